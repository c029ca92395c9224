-- What a commit of events writes on SQLite: one row of `journal`, new tenants and inbox rows.
-- Instants are microseconds of UTC since 1970; quantities are exact decimals as text. Folding turns
-- journal rows into the tables of ledger.db. Rows of `journal` beyond fold_state.folded_seq there
-- are not folded yet: they count too, and `counterfoil check` and the API read them.

-- Secrets of this store; made once when it is created.
CREATE TABLE secrets (
    -- what it is for: event_keys, tokens, pushes or ledger
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

-- One row for each commit that is not folded yet: the durable fact. The newest row stays when it is
-- folded, so that a ledger which is newer than this file is noticed.
CREATE TABLE journal (
    -- order of commits, without gaps
    seq INTEGER NOT NULL PRIMARY KEY,
    -- when the batch was received
    received_at INTEGER NOT NULL,
    -- compressed events and counters; see src/store/sqlite/record.rs
    body BLOB NOT NULL
) STRICT;

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
