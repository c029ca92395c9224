-- The ledger on SQLite. Instants are microseconds of UTC since 1970; quantities are exact decimals
-- as text. A commit writes one row of `journal`; folding turns journal rows into the other tables,
-- a few at each commit. Rows of `journal` beyond fold_state.folded_seq are the unfolded tail: they
-- count too, and `counterfoil check` and the API read them.

-- Secrets of this store; made once when it is created.
CREATE TABLE secrets (
    -- what it is for: event_keys or tokens
    name TEXT NOT NULL PRIMARY KEY,
    -- random bytes
    value BLOB NOT NULL
) STRICT;

-- Who is billed.
CREATE TABLE tenants (
    -- short number used in every other table
    tenant_no INTEGER NOT NULL PRIMARY KEY,
    -- the tenant's id, as its producer writes it
    tenant TEXT NOT NULL UNIQUE,
    -- for people
    name TEXT,
    -- when it was declared or first seen
    created_at INTEGER NOT NULL
) STRICT;

-- What is counted.
CREATE TABLE meters (
    -- short number used in every other table
    meter_no INTEGER NOT NULL PRIMARY KEY,
    -- the meter's name in the API
    slug TEXT NOT NULL UNIQUE,
    -- JSON; fixed once declared, but for its description
    definition TEXT NOT NULL,
    -- when it was declared
    created_at INTEGER NOT NULL
) STRICT;

-- One row for each commit that is not folded yet: the durable fact.
CREATE TABLE journal (
    -- order of commits, without gaps
    seq INTEGER NOT NULL PRIMARY KEY,
    -- when the batch was received
    received_at INTEGER NOT NULL,
    -- compressed events and counters; see src/store/sqlite/record.rs
    body BLOB NOT NULL
) STRICT;

-- How far folding has come; exactly one row.
CREATE TABLE fold_state (
    -- always 1
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    -- the segment being folded, or else the one being filled
    segment_no INTEGER NOT NULL,
    -- last journal row of the segment being folded; null while it is being filled
    closing_seq INTEGER,
    -- events, then rollups, then counters of that segment that are in their tables
    steps_done INTEGER NOT NULL,
    -- number of the segment's first event
    next_event_no INTEGER NOT NULL,
    -- journal rows up to this one are folded; they are deleted a few at a time
    folded_seq INTEGER NOT NULL,
    -- latest moment of any folded commit: the clock never goes back before it
    high_water INTEGER NOT NULL
) STRICT;

INSERT INTO fold_state VALUES (1, 1, NULL, 0, 1, 0, 0);

-- Folded events: within a segment in the order of tenant, occurred_at, id.
CREATE TABLE events (
    -- place of the event; keys and ranges point here
    event_no INTEGER NOT NULL PRIMARY KEY,
    -- whose usage
    tenant_no INTEGER NOT NULL,
    -- of what
    meter_no INTEGER NOT NULL,
    -- when it was used
    occurred_at INTEGER NOT NULL,
    -- how long after occurred_at it was received, in microseconds: half the bytes of an instant
    received_after INTEGER NOT NULL,
    -- the producer's id, unique within the tenant
    id TEXT NOT NULL,
    -- exact decimal
    quantity TEXT NOT NULL,
    -- canonical JSON object, or empty
    properties TEXT NOT NULL,
    -- subscription at the time of use
    subscription TEXT,
    -- 1 if it was used in a trial
    trial INTEGER NOT NULL
) STRICT;

-- Where the events of a tenant lie in each segment.
CREATE TABLE event_ranges (
    -- whose events
    tenant_no INTEGER NOT NULL,
    -- in which segment
    segment_no INTEGER NOT NULL,
    -- first event_no
    first_no INTEGER NOT NULL,
    -- last event_no
    last_no INTEGER NOT NULL,
    -- occurred_at of the first
    first_at INTEGER NOT NULL,
    -- occurred_at of the last
    last_at INTEGER NOT NULL,
    PRIMARY KEY (tenant_no, segment_no)
) STRICT, WITHOUT ROWID;

-- Event keys of folded events, to find a duplicate without an index on random ids.
CREATE TABLE key_blocks (
    -- event_no of the first key
    first_no INTEGER NOT NULL PRIMARY KEY,
    -- 8 bytes, little endian, for each event from first_no on
    hashes BLOB NOT NULL
) STRICT;

-- Exact totals of folded events.
CREATE TABLE rollups (
    -- whose usage
    tenant_no INTEGER NOT NULL,
    -- of what
    meter_no INTEGER NOT NULL,
    -- start of the bucket
    bucket_start INTEGER NOT NULL,
    -- JSON array of subscription, trial and dimension values, or empty
    grp TEXT NOT NULL,
    -- number of events
    count INTEGER NOT NULL CHECK (count > 0),
    -- sum, minimum, maximum or latest quantity; null for count and unique
    total TEXT,
    -- for latest: the event's occurred_at
    latest_at INTEGER,
    -- for latest: the event's id
    latest_id TEXT,
    PRIMARY KEY (tenant_no, meter_no, bucket_start, grp)
) STRICT, WITHOUT ROWID;

-- The different values that a unique meter has seen in a bucket.
CREATE TABLE rollup_uniques (
    -- whose usage
    tenant_no INTEGER NOT NULL,
    -- of what
    meter_no INTEGER NOT NULL,
    -- start of the bucket
    bucket_start INTEGER NOT NULL,
    -- as in rollups
    grp TEXT NOT NULL,
    -- the value
    value TEXT NOT NULL,
    PRIMARY KEY (tenant_no, meter_no, bucket_start, grp, value)
) STRICT, WITHOUT ROWID;

-- Payloads that came under a key which another payload holds.
CREATE TABLE conflicts (
    -- order of first arrival
    conflict_no INTEGER NOT NULL PRIMARY KEY,
    -- whose event
    tenant_no INTEGER NOT NULL,
    -- the event's id
    id TEXT NOT NULL,
    -- the payload that was counted, as JSON
    standing TEXT NOT NULL,
    -- the payload that was not, as JSON
    arriving TEXT NOT NULL,
    -- when this payload first came
    first_received_at INTEGER NOT NULL,
    -- when it last came
    last_received_at INTEGER NOT NULL,
    -- how often it came
    deliveries INTEGER NOT NULL
) STRICT;

CREATE INDEX conflicts_by_key ON conflicts (tenant_no, id);

-- Events that were kept and not counted.
CREATE TABLE quarantine (
    -- order of first arrival
    quarantine_no INTEGER NOT NULL PRIMARY KEY,
    -- whose event
    tenant_no INTEGER NOT NULL,
    -- the event's id
    id TEXT NOT NULL,
    -- the event, as JSON
    payload TEXT NOT NULL,
    -- too_old or too_far_ahead
    reason TEXT NOT NULL,
    -- when this payload first came
    first_received_at INTEGER NOT NULL,
    -- when it last came
    last_received_at INTEGER NOT NULL,
    -- how often it came
    deliveries INTEGER NOT NULL
) STRICT;

CREATE INDEX quarantine_by_key ON quarantine (tenant_no, id);

-- Conservation: events received in an hour, by verdict.
CREATE TABLE counters (
    -- whose deliveries; 0 where the tenant could not be read
    tenant_no INTEGER NOT NULL,
    -- start of the hour in which they were received
    hour INTEGER NOT NULL,
    -- counted
    accepted INTEGER NOT NULL,
    -- counted before
    duplicates INTEGER NOT NULL,
    -- another payload under a known key
    conflicts INTEGER NOT NULL,
    -- kept and not counted
    quarantined INTEGER NOT NULL,
    -- refused to the sender's face
    rejected INTEGER NOT NULL,
    PRIMARY KEY (tenant_no, hour)
) STRICT, WITHOUT ROWID;

-- API keys; the tokens themselves are not kept.
CREATE TABLE api_keys (
    -- public name of the key
    key_id TEXT NOT NULL PRIMARY KEY,
    -- for people
    name TEXT NOT NULL,
    -- HMAC-SHA256 of the token
    digest BLOB NOT NULL UNIQUE,
    -- space-separated scopes
    scopes TEXT NOT NULL,
    -- the one tenant the key may act for; null for all
    tenant TEXT,
    -- when it was made
    created_at INTEGER NOT NULL,
    -- when it was revoked; null while it is valid
    revoked_at INTEGER
) STRICT;
