-- Outbound: customers, cuts, pushes. Rows of these tables are written directly, in a transaction of
-- their own; they need no journal.

-- the billing provider's name for the tenant; null until it is known
ALTER TABLE tenants ADD COLUMN customer TEXT;

CREATE UNIQUE INDEX tenants_by_customer ON tenants (customer) WHERE customer IS NOT NULL;

-- The right to run a job that runs once at a time.
CREATE TABLE leases (
    -- the job
    name TEXT NOT NULL PRIMARY KEY,
    -- who runs it; empty when it was given back
    holder TEXT NOT NULL,
    -- grows with each holder; writes of an earlier one are refused
    fence INTEGER NOT NULL,
    -- when another may take it
    until INTEGER NOT NULL
) STRICT;

-- The state of each window after its last cut.
CREATE TABLE cuts (
    -- whose usage
    tenant_no INTEGER NOT NULL,
    -- of what
    meter_no INTEGER NOT NULL,
    -- start of the window
    window_start INTEGER NOT NULL,
    -- events it had at the cut, trials included
    count INTEGER NOT NULL,
    -- exact billable total it had
    total TEXT NOT NULL,
    -- sum of what was planned for it, in the provider's decimals
    planned TEXT NOT NULL,
    -- revision of its last push; 0 before the first
    revision INTEGER NOT NULL,
    -- 1 if it is only compared and never billed
    shadow INTEGER NOT NULL,
    -- when it was last cut
    cut_at INTEGER NOT NULL,
    PRIMARY KEY (tenant_no, meter_no, window_start)
) STRICT, WITHOUT ROWID;

-- What the provider cannot hold of a tenant's usage yet; goes into its next push.
CREATE TABLE remainders (
    -- whose usage
    tenant_no INTEGER NOT NULL,
    -- of what
    meter_no INTEGER NOT NULL,
    -- 1 for windows that are only compared
    shadow INTEGER NOT NULL,
    -- exact decimal, not negative
    remainder TEXT NOT NULL,
    PRIMARY KEY (tenant_no, meter_no, shadow)
) STRICT, WITHOUT ROWID;

-- The moment before which all that was received is cut.
CREATE TABLE cut_marks (
    -- of which meter
    meter_no INTEGER NOT NULL PRIMARY KEY,
    -- the moment
    mark INTEGER NOT NULL
) STRICT;

-- Events that were cut and gave no push of their own, for meters billed by event: what they used is
-- in the remainder. With the pushes' event_id this tells which events were cut.
CREATE TABLE carried_events (
    -- whose event
    tenant_no INTEGER NOT NULL,
    -- of what
    meter_no INTEGER NOT NULL,
    -- start of the window it lies in
    window_start INTEGER NOT NULL,
    -- the producer's id
    event_id TEXT NOT NULL,
    PRIMARY KEY (tenant_no, meter_no, window_start, event_id)
) STRICT, WITHOUT ROWID;

-- Submissions to the provider. What was planned never changes; the state does.
CREATE TABLE pushes (
    -- order of creation
    push_no INTEGER NOT NULL PRIMARY KEY,
    -- whose usage
    tenant_no INTEGER NOT NULL,
    -- of what
    meter_no INTEGER NOT NULL,
    -- start of the window
    window_start INTEGER NOT NULL,
    -- its end
    window_end INTEGER NOT NULL,
    -- 1, 2, … within the window
    revision INTEGER NOT NULL,
    -- 1 if it is only compared and never billed
    shadow INTEGER NOT NULL,
    -- delta or absolute
    mode TEXT NOT NULL,
    -- by how much it changes what the provider has of the window
    quantity TEXT NOT NULL,
    -- what is sent: the quantity, or the window's planned total
    value TEXT NOT NULL,
    -- its name at the provider
    key TEXT NOT NULL,
    -- the moment it is stamped with, strictly inside the window
    stamped_at INTEGER NOT NULL,
    -- exact billable totals by subscription at the cut, as JSON
    subscriptions TEXT NOT NULL,
    -- the event it is of, for meters billed by event
    event_id TEXT,
    -- observed, submitted, confirmed, reconciled, dead or replaced
    state TEXT NOT NULL,
    -- why it is in that state
    class TEXT NOT NULL,
    -- what the provider or a person said last
    detail TEXT,
    -- the customer it was sent for; set by the first attempt
    customer TEXT,
    -- the bytes it is sent with; set by the first attempt
    request BLOB,
    -- how often it was sent
    attempts INTEGER NOT NULL,
    -- fresh request keys used so far
    request_keys INTEGER NOT NULL,
    -- when it was first sent; resending is safe only for a while after that
    first_attempt_at INTEGER,
    -- when something is due next
    due_at INTEGER NOT NULL,
    -- grows with each claim; settlements of an earlier one are refused
    fence INTEGER NOT NULL,
    -- until when its claimant works on it; null while nobody does
    leased_until INTEGER,
    -- when it was planned
    created_at INTEGER NOT NULL,
    -- when it came into its state
    state_at INTEGER NOT NULL
) STRICT;

-- A key names one push for ever.
CREATE UNIQUE INDEX pushes_by_key ON pushes (key);
CREATE UNIQUE INDEX pushes_by_window ON pushes (tenant_no, meter_no, window_start, revision);
-- At most one push of a window was begun and is not resolved.
CREATE UNIQUE INDEX pushes_unresolved ON pushes (tenant_no, meter_no, window_start)
    WHERE state = 'observed' AND attempts > 0;
-- At most one of a tenant and meter is in flight.
CREATE UNIQUE INDEX pushes_in_flight ON pushes (tenant_no, meter_no)
    WHERE leased_until IS NOT NULL;
-- What is due, in the order of claims; with all that a claim looks at first.
CREATE INDEX pushes_due ON pushes (state, due_at, push_no, tenant_no, meter_no, window_start)
    WHERE state = 'observed';
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
    transition_no INTEGER NOT NULL PRIMARY KEY,
    -- the push
    push_no INTEGER NOT NULL,
    -- when
    at INTEGER NOT NULL,
    -- its state after it
    state TEXT NOT NULL,
    -- what happened
    class TEXT NOT NULL,
    -- the number of the attempt it belongs to
    attempt INTEGER NOT NULL,
    -- the provider's name for the request
    request_id TEXT,
    -- what the provider or a person said
    detail TEXT
) STRICT;

CREATE INDEX push_transitions_by_push ON push_transitions (push_no);
