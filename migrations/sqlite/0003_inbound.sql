-- Inbound: webhooks, mirrors, reconciliation, alerts. Rows of these tables are written directly, in
-- a transaction of their own; they need no journal.

-- Webhooks as they came; rows are never deleted.
CREATE TABLE webhooks (
    -- order of arrival
    webhook_no INTEGER NOT NULL PRIMARY KEY,
    -- the provider's id of the event
    event_id TEXT NOT NULL,
    -- such as invoice.created
    event_type TEXT NOT NULL,
    -- kind of the object that has changed; null if the webhook is only kept
    object_kind TEXT,
    -- the provider's id of the object
    object_id TEXT,
    -- the reading it waits for, or waited for
    ticket INTEGER,
    -- delivered or backfilled
    source TEXT NOT NULL,
    -- waiting, applied, stale or kept
    status TEXT NOT NULL,
    -- when the provider made the event
    created_at INTEGER NOT NULL,
    -- when it first came
    received_at INTEGER NOT NULL,
    -- since when it waits: its arrival, or the replay that a person asked for
    waiting_since INTEGER,
    -- when its status was decided
    settled_at INTEGER,
    -- how often it was delivered, its twins included
    deliveries INTEGER NOT NULL,
    -- the object as the payload showed it, as JSON; to tell a stale webhook
    shown TEXT,
    -- why its object could not be read so far
    detail TEXT,
    -- the bytes as they came
    payload BLOB NOT NULL
) STRICT;

CREATE INDEX webhooks_waiting ON webhooks (object_kind, object_id, ticket)
    WHERE status = 'waiting';
CREATE INDEX webhooks_waiting_since ON webhooks (received_at) WHERE status = 'waiting';

-- Every name of every webhook: its id, its twin's id, and its content. A fact has one webhook.
CREATE TABLE webhook_names (
    -- the name
    name TEXT NOT NULL,
    -- the webhook
    webhook_no INTEGER NOT NULL,
    PRIMARY KEY (name)
) STRICT, WITHOUT ROWID;

-- Where jobs that read a list of the provider's have come to.
CREATE TABLE cursors (
    -- the job
    name TEXT NOT NULL,
    -- its own words
    value TEXT NOT NULL,
    PRIMARY KEY (name)
) STRICT, WITHOUT ROWID;

-- The provider's objects as they were last read.
CREATE TABLE mirrors (
    -- subscription, invoice, credit_grant, customer or error_report
    kind TEXT NOT NULL,
    -- the provider's id
    object_id TEXT NOT NULL,
    -- the highest ticket given out
    wanted INTEGER NOT NULL,
    -- the ticket of the reading that is kept; 0 before the first
    version INTEGER NOT NULL,
    -- whose it is
    customer TEXT,
    -- one word by which mirrors are searched for; null before the first reading
    status TEXT,
    -- what was read, as JSON
    snapshot TEXT,
    -- when that reading was begun
    read_at INTEGER,
    -- when it is to be read; null if nothing is wanted
    due_at INTEGER,
    -- readings that failed since the last one that did not
    attempts INTEGER NOT NULL,
    -- until when somebody reads it
    leased_until INTEGER,
    PRIMARY KEY (kind, object_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX mirrors_due ON mirrors (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX mirrors_by_status ON mirrors (kind, status, object_id);
CREATE INDEX mirrors_by_customer ON mirrors (customer, kind) WHERE customer IS NOT NULL;

-- States of subscriptions and the moment from which each held: a set, so the order of arrival plays
-- no part.
CREATE TABLE timeline_entries (
    -- the provider's id
    subscription TEXT NOT NULL,
    -- from when on
    at INTEGER NOT NULL,
    -- created, updated, ended or read
    origin TEXT NOT NULL,
    -- of the reading; 0 for entries from events
    version INTEGER NOT NULL,
    -- SHA-256 of the state, which tells two states of one second apart
    digest BLOB NOT NULL,
    -- whose it is
    customer TEXT NOT NULL,
    -- the state, as JSON
    state TEXT NOT NULL,
    PRIMARY KEY (subscription, at, origin, version, digest)
) STRICT, WITHOUT ROWID;

CREATE INDEX timeline_entries_by_customer ON timeline_entries (customer);

-- The provider's totals as they were last read.
CREATE TABLE summaries (
    -- whose usage
    tenant_no INTEGER NOT NULL,
    -- of what
    meter_no INTEGER NOT NULL,
    -- start of the window
    window_start INTEGER NOT NULL,
    -- an hour or a day
    length_seconds INTEGER NOT NULL,
    -- rounded to the decimals that were sent
    value TEXT NOT NULL,
    -- when it was read last
    read_at INTEGER NOT NULL,
    -- when this value was first read
    since INTEGER NOT NULL,
    -- how often in a row
    reads INTEGER NOT NULL,
    PRIMARY KEY (tenant_no, meter_no, length_seconds, window_start)
) STRICT, WITHOUT ROWID;

-- Comparisons of both halves.
CREATE TABLE passes (
    -- order of creation
    pass_no INTEGER NOT NULL PRIMARY KEY,
    -- hourly, nightly or one_shot
    kind TEXT NOT NULL,
    -- what is compared
    range_start INTEGER NOT NULL,
    -- its end
    range_end INTEGER NOT NULL,
    -- the only tenant that is looked at
    tenant TEXT,
    -- 1 if what may safely be sent again is sent
    apply INTEGER NOT NULL,
    -- waiting, running, closed or failed
    state TEXT NOT NULL,
    -- when it was ordered
    created_at INTEGER NOT NULL,
    -- when it was closed or failed
    ended_at INTEGER,
    -- how far it has come and what it found, as JSON
    progress TEXT NOT NULL,
    -- over all rows and the pass before, of nightly ones that are closed
    hash BLOB,
    -- why it failed
    detail TEXT
) STRICT;

CREATE UNIQUE INDEX passes_nightly ON passes (range_start, range_end) WHERE kind = 'nightly';
CREATE INDEX passes_open ON passes (state) WHERE state IN ('waiting', 'running');

-- One tenant and meter on one day, as a pass found them.
CREATE TABLE pass_rows (
    -- the pass
    pass_no INTEGER NOT NULL,
    -- whose usage
    tenant_no INTEGER NOT NULL,
    -- of what
    meter_no INTEGER NOT NULL,
    -- the day, or the part of it that was asked for
    day_start INTEGER NOT NULL,
    -- its end
    day_end INTEGER NOT NULL,
    -- what was counted and is billed
    ledger TEXT NOT NULL,
    -- what was handed to billing
    pushed TEXT NOT NULL,
    -- what the provider shows
    provider TEXT NOT NULL,
    -- what the comparison says
    verdict TEXT NOT NULL,
    -- and why
    reason TEXT NOT NULL,
    -- the windows of the day that are not equal, as JSON
    windows TEXT NOT NULL,
    -- of the row and, of nightly ones, the same row of the day before
    hash BLOB NOT NULL,
    PRIMARY KEY (pass_no, tenant_no, meter_no, day_start)
) STRICT, WITHOUT ROWID;

-- Differences, each followed from the pass that found it to the one that does not.
CREATE TABLE findings (
    -- order of creation
    finding_no INTEGER NOT NULL PRIMARY KEY,
    -- usage, subscription or invoice
    kind TEXT NOT NULL,
    -- whose; null if nobody here is
    tenant_no INTEGER,
    -- of what; null if it is not about usage
    meter_no INTEGER,
    -- the window, or the provider's id of the object
    subject TEXT NOT NULL,
    -- what the last comparison said
    verdict TEXT NOT NULL,
    -- and why
    reason TEXT NOT NULL,
    -- what should be there
    ledger TEXT NOT NULL,
    -- what the provider shows
    provider TEXT NOT NULL,
    -- a sentence for people
    detail TEXT NOT NULL,
    -- when it was found
    opened_at INTEGER NOT NULL,
    -- by which pass
    opened_pass INTEGER NOT NULL,
    -- the last pass that saw it
    last_pass INTEGER NOT NULL,
    -- how many passes saw it
    passes INTEGER NOT NULL,
    -- when somebody was called
    paged_at INTEGER,
    -- when it was not there any more
    cleared_at INTEGER
) STRICT;

CREATE UNIQUE INDEX findings_open
    ON findings (kind, subject, COALESCE(tenant_no, -1), COALESCE(meter_no, -1))
    WHERE cleared_at IS NULL;

-- Alerts.
CREATE TABLE alerts (
    -- order of creation
    alert_no INTEGER NOT NULL PRIMARY KEY,
    -- what it is about
    kind TEXT NOT NULL,
    -- of that
    subject TEXT NOT NULL,
    -- 1 if somebody was called
    page INTEGER NOT NULL,
    -- one sentence
    summary TEXT NOT NULL,
    -- the command that shows more
    command TEXT NOT NULL,
    -- when it began
    opened_at INTEGER NOT NULL,
    -- when it was over
    resolved_at INTEGER
) STRICT;

CREATE UNIQUE INDEX alerts_open ON alerts (kind, subject) WHERE resolved_at IS NULL;
CREATE INDEX alerts_by_opening ON alerts (opened_at);

-- The outbox: what is sent to others, written with what it tells of.
CREATE TABLE outbox (
    -- order of creation; never used again, also when the last ones were pruned
    message_no INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    -- its name; it is written once under it
    id TEXT NOT NULL UNIQUE,
    -- alerts or changes
    queue TEXT NOT NULL,
    -- to whom
    destination TEXT NOT NULL,
    -- such as saga.completed; of an alert, opened or resolved
    kind TEXT NOT NULL,
    -- of which alert; null if of a change
    alert_no INTEGER,
    -- whom it is about; null if nobody in particular
    tenant_no INTEGER,
    -- what is published, as a JSON object
    payload TEXT NOT NULL,
    -- when it was written
    at INTEGER NOT NULL,
    -- waiting, sent or given_up
    state TEXT NOT NULL,
    -- how often it was tried
    attempts INTEGER NOT NULL,
    -- when it is tried next
    due_at INTEGER NOT NULL,
    -- grows with each claim; settlements of an earlier one are refused
    fence INTEGER NOT NULL,
    -- until when its claimant sends it
    leased_until INTEGER,
    -- when it was sent or given up
    settled_at INTEGER,
    -- what went wrong last
    detail TEXT
) STRICT;

CREATE INDEX outbox_due ON outbox (queue, due_at, message_no) WHERE state = 'waiting';
CREATE INDEX outbox_by_alert ON outbox (alert_no) WHERE alert_no IS NOT NULL;
CREATE INDEX outbox_by_age ON outbox (at);
CREATE INDEX outbox_by_tenant ON outbox (tenant_no, message_no);

-- When a tenant's usage is worth a word.
CREATE TABLE thresholds (
    -- whose usage
    tenant_no INTEGER NOT NULL,
    -- of what
    meter_no INTEGER NOT NULL,
    -- threshold or quota
    kind TEXT NOT NULL,
    -- day or month, in UTC
    period TEXT NOT NULL,
    -- the usage of a period from which on it is
    usage_limit TEXT NOT NULL,
    -- when it was set
    created_at INTEGER NOT NULL,
    PRIMARY KEY (tenant_no, meter_no, kind, period)
) STRICT, WITHOUT ROWID;

-- Which tenants' pushes have changed lately, without a look at all pushes ever made.
CREATE INDEX pushes_by_change ON pushes (state_at, shadow, tenant_no, meter_no);
