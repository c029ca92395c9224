-- Outbound: customers, cuts, pushes. As in the ledger, there are no foreign keys: numbers come from
-- dictionaries whose rows are never deleted, and numerics are bounded against NaN and Infinity.

-- the billing provider's name for the tenant; null until it is known
ALTER TABLE tenants ADD COLUMN customer text COLLATE "C";

CREATE UNIQUE INDEX tenants_by_customer ON tenants (customer) WHERE customer IS NOT NULL;

-- The right to run a job that runs once at a time.
CREATE TABLE leases (
    -- the job
    name text COLLATE "C" NOT NULL PRIMARY KEY,
    -- who runs it; empty when it was given back
    holder text NOT NULL,
    -- grows with each holder; writes of an earlier one are refused
    fence bigint NOT NULL,
    -- when another may take it
    until timestamptz NOT NULL
);

-- The state of each window after its last cut.
CREATE TABLE cuts (
    -- whose usage
    tenant_no integer NOT NULL,
    -- of what
    meter_no smallint NOT NULL,
    -- start of the window
    window_start timestamptz NOT NULL,
    -- events it had at the cut, trials included
    count bigint NOT NULL,
    -- exact billable total it had
    total numeric NOT NULL CHECK (total
        BETWEEN -170141183460469231731687304 AND 170141183460469231731687304),
    -- sum of what was planned for it, in the provider's decimals
    planned numeric NOT NULL CHECK (planned
        BETWEEN -170141183460469231731687304 AND 170141183460469231731687304),
    -- revision of its last push; 0 before the first
    revision integer NOT NULL,
    -- whether it is only compared and never billed
    shadow boolean NOT NULL,
    -- when it was last cut
    cut_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_no, meter_no, window_start)
);

-- What the provider cannot hold of a tenant's usage yet; goes into its next push.
CREATE TABLE remainders (
    -- whose usage
    tenant_no integer NOT NULL,
    -- of what
    meter_no smallint NOT NULL,
    -- whether it is of windows that are only compared
    shadow boolean NOT NULL,
    -- exact decimal, not negative
    remainder numeric NOT NULL CHECK (remainder
        BETWEEN -170141183460469231731687304 AND 170141183460469231731687304),
    PRIMARY KEY (tenant_no, meter_no, shadow)
);

-- The moment before which all that was received is cut.
CREATE TABLE cut_marks (
    -- of which meter
    meter_no smallint NOT NULL PRIMARY KEY,
    -- the moment
    mark timestamptz NOT NULL
);

-- Events that were cut and gave no push of their own, for meters billed by event: what they used is
-- in the remainder. With the pushes' event_id this tells which events were cut.
CREATE TABLE carried_events (
    -- whose event
    tenant_no integer NOT NULL,
    -- of what
    meter_no smallint NOT NULL,
    -- start of the window it lies in
    window_start timestamptz NOT NULL,
    -- the producer's id
    event_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant_no, meter_no, window_start, event_id)
);

-- Submissions to the provider. What was planned never changes; the state does.
CREATE TABLE pushes (
    -- order of creation
    push_no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- whose usage
    tenant_no integer NOT NULL,
    -- of what
    meter_no smallint NOT NULL,
    -- start of the window
    window_start timestamptz NOT NULL,
    -- its end
    window_end timestamptz NOT NULL,
    -- 1, 2, … within the window
    revision integer NOT NULL,
    -- whether it is only compared and never billed
    shadow boolean NOT NULL,
    -- delta or absolute
    mode text NOT NULL,
    -- by how much it changes what the provider has of the window
    quantity numeric NOT NULL CHECK (quantity
        BETWEEN -170141183460469231731687304 AND 170141183460469231731687304),
    -- what is sent: the quantity, or the window's planned total
    value numeric NOT NULL CHECK (value
        BETWEEN -170141183460469231731687304 AND 170141183460469231731687304),
    -- its name at the provider
    key text COLLATE "C" NOT NULL,
    -- the moment it is stamped with, strictly inside the window
    stamped_at timestamptz NOT NULL,
    -- exact billable totals by subscription at the cut, as JSON
    subscriptions text NOT NULL,
    -- the event it is of, for meters billed by event
    event_id text COLLATE "C",
    -- observed, submitted, confirmed, reconciled, dead or replaced
    state text NOT NULL,
    -- why it is in that state
    class text NOT NULL,
    -- what the provider or a person said last
    detail text,
    -- the customer it was sent for; set by the first attempt
    customer text COLLATE "C",
    -- the bytes it is sent with; set by the first attempt
    request bytea,
    -- how often it was sent
    attempts integer NOT NULL,
    -- fresh request keys used so far
    request_keys integer NOT NULL,
    -- when it was first sent; resending is safe only for a while after that
    first_attempt_at timestamptz,
    -- when something is due next
    due_at timestamptz NOT NULL,
    -- grows with each claim; settlements of an earlier one are refused
    fence bigint NOT NULL,
    -- until when its claimant works on it; null while nobody does
    leased_until timestamptz,
    -- when it was planned
    created_at timestamptz NOT NULL,
    -- when it came into its state
    state_at timestamptz NOT NULL
);

-- A key names one push for ever.
CREATE UNIQUE INDEX pushes_by_key ON pushes (key);
CREATE UNIQUE INDEX pushes_by_window ON pushes (tenant_no, meter_no, window_start, revision);
-- At most one push of a window was begun and is not resolved.
CREATE UNIQUE INDEX pushes_unresolved ON pushes (tenant_no, meter_no, window_start)
    WHERE state = 'observed' AND attempts > 0;
-- At most one of a tenant and meter is in flight.
CREATE UNIQUE INDEX pushes_in_flight ON pushes (tenant_no, meter_no)
    WHERE leased_until IS NOT NULL;
-- What is due, in the order of claims, so that a claim stops at its limit.
CREATE INDEX pushes_due ON pushes (due_at, push_no) WHERE state = 'observed';
CREATE INDEX pushes_observed ON pushes (tenant_no, meter_no, window_start, revision)
    WHERE state = 'observed';
CREATE INDEX pushes_submitted ON pushes (due_at) WHERE state = 'submitted';
CREATE INDEX pushes_dead ON pushes (tenant_no, meter_no, window_start, revision)
    WHERE state = 'dead';
CREATE INDEX pushes_by_event ON pushes (tenant_no, meter_no, event_id)
    WHERE event_id IS NOT NULL;

-- Every change of every push; rows are only added.
CREATE TABLE push_transitions (
    -- order in which they were written
    transition_no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- the push
    push_no bigint NOT NULL,
    -- when
    at timestamptz NOT NULL,
    -- its state after it
    state text NOT NULL,
    -- what happened
    class text NOT NULL,
    -- the number of the attempt it belongs to
    attempt integer NOT NULL,
    -- the provider's name for the request
    request_id text,
    -- what the provider or a person said
    detail text
);

CREATE INDEX push_transitions_by_push ON push_transitions (push_no);
