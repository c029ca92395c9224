-- Inbound: webhooks, mirrors, reconciliation, alerts. As in the ledger, there are no foreign keys,
-- and numerics are bounded against NaN and Infinity.

-- Webhooks as they came; rows are never deleted.
CREATE TABLE webhooks (
    -- order of arrival
    webhook_no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- the provider's id of the event
    event_id text COLLATE "C" NOT NULL,
    -- such as invoice.created
    event_type text NOT NULL,
    -- kind of the object that has changed; null if the webhook is only kept
    object_kind text,
    -- the provider's id of the object
    object_id text COLLATE "C",
    -- the reading it waits for, or waited for
    ticket bigint,
    -- delivered or backfilled
    source text NOT NULL,
    -- waiting, applied, stale or kept
    status text NOT NULL,
    -- when the provider made the event
    created_at timestamptz NOT NULL,
    -- when it first came
    received_at timestamptz NOT NULL,
    -- since when it waits: its arrival, or the replay that a person asked for
    waiting_since timestamptz,
    -- when its status was decided
    settled_at timestamptz,
    -- how often it was delivered, its twins included
    deliveries bigint NOT NULL,
    -- the object as the payload showed it, as JSON; to tell a stale webhook
    shown text,
    -- why its object could not be read so far
    detail text,
    -- the bytes as they came
    payload bytea NOT NULL
);

CREATE INDEX webhooks_waiting ON webhooks (object_kind, object_id, ticket)
    WHERE status = 'waiting';
CREATE INDEX webhooks_waiting_since ON webhooks (received_at) WHERE status = 'waiting';

-- Every name of every webhook: its id, its twin's id, and its content. A fact has one webhook.
CREATE TABLE webhook_names (
    -- the name
    name text COLLATE "C" NOT NULL,
    -- the webhook
    webhook_no bigint NOT NULL,
    PRIMARY KEY (name)
);

-- Where jobs that read a list of the provider's have come to.
CREATE TABLE cursors (
    -- the job
    name text COLLATE "C" NOT NULL,
    -- its own words
    value text NOT NULL,
    PRIMARY KEY (name)
);

-- The provider's objects as they were last read.
CREATE TABLE mirrors (
    -- subscription, invoice, credit_grant, customer or error_report
    kind text COLLATE "C" NOT NULL,
    -- the provider's id
    object_id text COLLATE "C" NOT NULL,
    -- the highest ticket given out
    wanted bigint NOT NULL,
    -- the ticket of the reading that is kept; 0 before the first
    version bigint NOT NULL,
    -- whose it is
    customer text COLLATE "C",
    -- one word by which mirrors are searched for; null before the first reading
    status text,
    -- what was read, as JSON
    snapshot text,
    -- when that reading was begun
    read_at timestamptz,
    -- when it is to be read; null if nothing is wanted
    due_at timestamptz,
    -- readings that failed since the last one that did not
    attempts bigint NOT NULL,
    -- until when somebody reads it
    leased_until timestamptz,
    PRIMARY KEY (kind, object_id)
);

CREATE INDEX mirrors_due ON mirrors (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX mirrors_by_status ON mirrors (kind, status, object_id);
CREATE INDEX mirrors_by_customer ON mirrors (customer, kind) WHERE customer IS NOT NULL;

-- States of subscriptions and the moment from which each held: a set, so the order of arrival plays
-- no part.
CREATE TABLE timeline_entries (
    -- the provider's id
    subscription text COLLATE "C" NOT NULL,
    -- from when on
    at timestamptz NOT NULL,
    -- created, updated, ended or read
    origin text COLLATE "C" NOT NULL,
    -- of the reading; 0 for entries from events
    version bigint NOT NULL,
    -- SHA-256 of the state, which tells two states of one second apart
    digest bytea NOT NULL,
    -- whose it is
    customer text COLLATE "C" NOT NULL,
    -- the state, as JSON
    state text NOT NULL,
    PRIMARY KEY (subscription, at, origin, version, digest)
);

CREATE INDEX timeline_entries_by_customer ON timeline_entries (customer);

-- The provider's totals as they were last read.
CREATE TABLE summaries (
    -- whose usage
    tenant_no integer NOT NULL,
    -- of what
    meter_no smallint NOT NULL,
    -- start of the window
    window_start timestamptz NOT NULL,
    -- an hour or a day
    length_seconds bigint NOT NULL,
    -- rounded to the decimals that were sent
    value numeric NOT NULL CHECK (value
        BETWEEN -170141183460469231731687304 AND 170141183460469231731687304),
    -- when it was read last
    read_at timestamptz NOT NULL,
    -- when this value was first read
    since timestamptz NOT NULL,
    -- how often in a row
    reads integer NOT NULL,
    PRIMARY KEY (tenant_no, meter_no, length_seconds, window_start)
);

-- Comparisons of both halves.
CREATE TABLE passes (
    -- order of creation
    pass_no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- hourly, nightly or one_shot
    kind text NOT NULL,
    -- what is compared
    range_start timestamptz NOT NULL,
    -- its end
    range_end timestamptz NOT NULL,
    -- the only tenant that is looked at
    tenant text COLLATE "C",
    -- whether what may safely be sent again is sent
    apply boolean NOT NULL,
    -- waiting, running, closed or failed
    state text NOT NULL,
    -- when it was ordered
    created_at timestamptz NOT NULL,
    -- when it was closed or failed
    ended_at timestamptz,
    -- how far it has come and what it found, as JSON
    progress text NOT NULL,
    -- over all rows and the pass before, of nightly ones that are closed
    hash bytea,
    -- why it failed
    detail text
);

CREATE UNIQUE INDEX passes_nightly ON passes (range_start, range_end) WHERE kind = 'nightly';
CREATE INDEX passes_open ON passes (state) WHERE state IN ('waiting', 'running');

-- One tenant and meter on one day, as a pass found them.
CREATE TABLE pass_rows (
    -- the pass
    pass_no bigint NOT NULL,
    -- whose usage
    tenant_no integer NOT NULL,
    -- of what
    meter_no smallint NOT NULL,
    -- the day, or the part of it that was asked for
    day_start timestamptz NOT NULL,
    -- its end
    day_end timestamptz NOT NULL,
    -- what was counted and is billed
    ledger numeric NOT NULL CHECK (ledger
        BETWEEN -170141183460469231731687304 AND 170141183460469231731687304),
    -- what was handed to billing
    pushed numeric NOT NULL CHECK (pushed
        BETWEEN -170141183460469231731687304 AND 170141183460469231731687304),
    -- what the provider shows
    provider numeric NOT NULL CHECK (provider
        BETWEEN -170141183460469231731687304 AND 170141183460469231731687304),
    -- what the comparison says
    verdict text NOT NULL,
    -- and why
    reason text NOT NULL,
    -- the windows of the day that are not equal, as JSON
    windows text NOT NULL,
    -- of the row and, of nightly ones, the same row of the day before
    hash bytea NOT NULL,
    PRIMARY KEY (pass_no, tenant_no, meter_no, day_start)
);

-- Differences, each followed from the pass that found it to the one that does not.
CREATE TABLE findings (
    -- order of creation
    finding_no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- usage, subscription or invoice
    kind text NOT NULL,
    -- whose; null if nobody here is
    tenant_no integer,
    -- of what; null if it is not about usage
    meter_no smallint,
    -- the window, or the provider's id of the object
    subject text COLLATE "C" NOT NULL,
    -- what the last comparison said
    verdict text NOT NULL,
    -- and why
    reason text NOT NULL,
    -- what should be there
    ledger numeric NOT NULL CHECK (ledger
        BETWEEN -170141183460469231731687304 AND 170141183460469231731687304),
    -- what the provider shows
    provider numeric NOT NULL CHECK (provider
        BETWEEN -170141183460469231731687304 AND 170141183460469231731687304),
    -- a sentence for people
    detail text NOT NULL,
    -- when it was found
    opened_at timestamptz NOT NULL,
    -- by which pass
    opened_pass bigint NOT NULL,
    -- the last pass that saw it
    last_pass bigint NOT NULL,
    -- how many passes saw it
    passes integer NOT NULL,
    -- when somebody was called
    paged_at timestamptz,
    -- when it was not there any more
    cleared_at timestamptz
);

CREATE UNIQUE INDEX findings_open
    ON findings (kind, subject, COALESCE(tenant_no, -1), COALESCE(meter_no, -1))
    WHERE cleared_at IS NULL;

-- Alerts.
CREATE TABLE alerts (
    -- order of creation
    alert_no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- what it is about
    kind text NOT NULL,
    -- of that
    subject text COLLATE "C" NOT NULL,
    -- whether somebody was called
    page boolean NOT NULL,
    -- one sentence
    summary text NOT NULL,
    -- the command that shows more
    command text NOT NULL,
    -- when it began
    opened_at timestamptz NOT NULL,
    -- when it was over
    resolved_at timestamptz
);

CREATE UNIQUE INDEX alerts_open ON alerts (kind, subject) WHERE resolved_at IS NULL;
CREATE INDEX alerts_by_opening ON alerts (opened_at);

-- The outbox: what is sent to others, written with what it tells of.
CREATE TABLE outbox (
    -- order of creation
    message_no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- its name; it is written once under it
    id text COLLATE "C" NOT NULL UNIQUE,
    -- alerts or changes
    queue text NOT NULL,
    -- to whom
    destination text NOT NULL,
    -- such as saga.completed; of an alert, opened or resolved
    kind text NOT NULL,
    -- of which alert; null if of a change
    alert_no bigint,
    -- whom it is about; null if nobody in particular
    tenant_no integer,
    -- what is published, as a JSON object
    payload text NOT NULL,
    -- when it was written
    at timestamptz NOT NULL,
    -- waiting, sent or given_up
    state text NOT NULL,
    -- how often it was tried
    attempts integer NOT NULL,
    -- when it is tried next
    due_at timestamptz NOT NULL,
    -- grows with each claim; settlements of an earlier one are refused
    fence bigint NOT NULL,
    -- until when its claimant sends it
    leased_until timestamptz,
    -- when it was sent or given up
    settled_at timestamptz,
    -- what went wrong last
    detail text
);

CREATE INDEX outbox_due ON outbox (queue, due_at, message_no) WHERE state = 'waiting';
CREATE INDEX outbox_by_alert ON outbox (alert_no) WHERE alert_no IS NOT NULL;
CREATE INDEX outbox_by_age ON outbox (at);
CREATE INDEX outbox_by_tenant ON outbox (tenant_no, message_no);

-- When a tenant's usage is worth a word.
CREATE TABLE thresholds (
    -- whose usage
    tenant_no integer NOT NULL,
    -- of what
    meter_no smallint NOT NULL,
    -- threshold or quota
    kind text COLLATE "C" NOT NULL,
    -- day or month, in UTC
    period text COLLATE "C" NOT NULL,
    -- the usage of a period from which on it is
    usage_limit numeric NOT NULL CHECK (usage_limit
        BETWEEN -170141183460469231731687304 AND 170141183460469231731687304),
    -- when it was set
    created_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_no, meter_no, kind, period)
);

-- Which tenants' pushes have changed lately, without a look at all pushes ever made.
CREATE INDEX pushes_by_change ON pushes (state_at, shadow, tenant_no, meter_no);
