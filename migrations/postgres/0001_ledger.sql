-- The ledger on PostgreSQL. Tenants and meters have short numbers; an event is found by a 128-bit
-- fingerprint of its key, kept as uuid. No foreign keys on the tables of the ingest transaction:
-- its numbers come from the dictionaries below, whose rows are never deleted.
-- Quantities are exact: every numeric is bounded to what 128 bits of 10^-12 units hold. NaN and
-- Infinity are larger than any number to PostgreSQL, so the upper bound refuses both.

-- Secrets of this store; made once when it is created.
CREATE TABLE secrets (
    -- what it is for: event_keys or tokens
    name text NOT NULL PRIMARY KEY,
    -- random bytes
    value bytea NOT NULL
);

-- Who is billed.
CREATE TABLE tenants (
    -- short number used in every other table; 0 means no tenant and is never given
    tenant_no integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- the tenant's id, as its producer writes it
    tenant text COLLATE "C" NOT NULL UNIQUE,
    -- for people
    name text,
    -- when it was declared or first seen
    created_at timestamptz NOT NULL
);

-- What is counted.
CREATE TABLE meters (
    -- short number used in every other table
    meter_no smallint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- the meter's name in the API
    slug text COLLATE "C" NOT NULL UNIQUE,
    -- JSON; fixed once declared, but for its description
    definition text NOT NULL,
    -- when it was declared
    created_at timestamptz NOT NULL
);

-- The key of every event that was counted. This primary key is what makes an event count once.
CREATE TABLE event_claims (
    -- whose usage
    tenant_no integer NOT NULL,
    -- the day of its receipt, in UTC: the partition of events that holds it
    received_on date NOT NULL,
    -- fingerprint of (tenant_no, id); after a collision the next free number
    key_hash uuid NOT NULL,
    -- its number in events
    event_no bigint NOT NULL,
    PRIMARY KEY (tenant_no, key_hash)
);

-- The ledger: every event that was counted, in partitions by the day of receipt. The store makes
-- them (store/postgres/partitions.rs), and gives those of past days an index by tenant and time.
CREATE TABLE events (
    -- the number of its batch times 2^20, and its place in it
    event_no bigint NOT NULL,
    -- when it was used
    occurred_at timestamptz NOT NULL,
    -- when it was received
    received_at timestamptz NOT NULL,
    -- whose usage
    tenant_no integer NOT NULL,
    -- of what
    meter_no smallint NOT NULL,
    -- whether it was used in a trial
    trial boolean NOT NULL,
    -- how much
    quantity numeric NOT NULL CHECK (quantity
        BETWEEN -170141183460469231731687304 AND 170141183460469231731687304),
    -- the producer's id, unique within the tenant
    id text COLLATE "C" NOT NULL,
    -- canonical JSON object, or empty
    properties text NOT NULL,
    -- subscription at the time of use
    subscription text
) PARTITION BY RANGE (received_at);

-- An event is found by what its claim says; a tenant's events of a day lie side by side.
CREATE INDEX events_by_number ON events (tenant_no, event_no);

-- Exact totals, but for what is still in rollup_deltas. Half of each page is left free so that an
-- updated row stays on its page and the index is not touched.
CREATE TABLE rollups (
    -- whose usage
    tenant_no integer NOT NULL,
    -- of what
    meter_no smallint NOT NULL,
    -- start of the bucket
    bucket_start timestamptz NOT NULL,
    -- JSON array of subscription, trial and dimension values, or empty; where that is longer than
    -- an index can hold, "sha256:" and its digest in hex
    grp text COLLATE "C" NOT NULL,
    -- the array itself where grp is a digest
    grp_text text,
    -- number of events
    count bigint NOT NULL CHECK (count > 0),
    -- sum, minimum, maximum or latest quantity; null for count and unique
    total numeric CHECK (total
        BETWEEN -170141183460469231731687304 AND 170141183460469231731687304),
    -- for latest: the event's occurred_at
    latest_at timestamptz,
    -- for latest: the event's id
    latest_id text COLLATE "C",
    PRIMARY KEY (tenant_no, meter_no, bucket_start, grp)
) WITH (fillfactor = 50);

-- The different values that a unique meter has seen in a bucket.
CREATE TABLE rollup_uniques (
    -- whose usage
    tenant_no integer NOT NULL,
    -- of what
    meter_no smallint NOT NULL,
    -- start of the bucket
    bucket_start timestamptz NOT NULL,
    -- as in rollups
    grp text COLLATE "C" NOT NULL,
    -- the value
    value text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant_no, meter_no, bucket_start, grp, value)
);

-- What each batch adds to totals, written in the transaction that counts its events. It is folded
-- into rollups about once a second; a total is the rollup and all of its deltas.
CREATE TABLE rollup_deltas (
    -- the batch
    batch_no bigint NOT NULL,
    -- start of the bucket
    bucket_start timestamptz NOT NULL,
    -- number of events
    count bigint NOT NULL CHECK (count > 0),
    -- for latest: the event's occurred_at
    latest_at timestamptz,
    -- whose usage
    tenant_no integer NOT NULL,
    -- of what
    meter_no smallint NOT NULL,
    -- as in rollups
    total numeric CHECK (total
        BETWEEN -170141183460469231731687304 AND 170141183460469231731687304),
    -- JSON array of subscription, trial and dimension values, or empty
    grp text COLLATE "C" NOT NULL,
    -- for latest: the event's id
    latest_id text COLLATE "C",
    -- for unique: the different values
    found text[] COLLATE "C"
) WITH (vacuum_truncate = false);

CREATE INDEX rollup_deltas_by_total ON rollup_deltas (tenant_no, meter_no, bucket_start);
-- By ranges of pages: it costs an insert nothing, and folding reads what is new.
CREATE INDEX rollup_deltas_by_batch ON rollup_deltas USING brin (batch_no)
    WITH (pages_per_range = 16);

-- Payloads that came under a key another payload holds; one row for each different payload.
CREATE TABLE conflicts (
    -- order of arrival; pages of the inbox continue after it
    conflict_no bigint GENERATED ALWAYS AS IDENTITY,
    -- whose event
    tenant_no integer NOT NULL,
    -- the producer's id
    id text COLLATE "C" NOT NULL,
    -- fingerprint of the arriving payload; after a collision the next free number
    fingerprint uuid NOT NULL,
    -- the payload that was counted, as JSON
    standing text NOT NULL,
    -- the payload that was not, as JSON
    arriving text NOT NULL,
    -- when this payload came first
    first_received_at timestamptz NOT NULL,
    -- when it came last
    last_received_at timestamptz NOT NULL,
    -- how often it came
    deliveries bigint NOT NULL CHECK (deliveries > 0),
    PRIMARY KEY (tenant_no, conflict_no),
    UNIQUE (tenant_no, id, fingerprint)
);

CREATE INDEX conflicts_in_order ON conflicts (conflict_no);

-- Events that were kept and not counted; one row for each different payload.
CREATE TABLE quarantine (
    -- order of arrival; pages of the inbox continue after it
    quarantine_no bigint GENERATED ALWAYS AS IDENTITY,
    -- whose event
    tenant_no integer NOT NULL,
    -- the producer's id
    id text COLLATE "C" NOT NULL,
    -- fingerprint of the payload; after a collision the next free number
    fingerprint uuid NOT NULL,
    -- the payload, as JSON
    payload text NOT NULL,
    -- why it was not counted when it came first: too_old or too_far_ahead
    reason text NOT NULL,
    -- when this payload came first
    first_received_at timestamptz NOT NULL,
    -- when it came last
    last_received_at timestamptz NOT NULL,
    -- how often it came
    deliveries bigint NOT NULL CHECK (deliveries > 0),
    PRIMARY KEY (tenant_no, quarantine_no),
    UNIQUE (tenant_no, id, fingerprint)
);

CREATE INDEX quarantine_in_order ON quarantine (quarantine_no);

-- Conservation: events received from a tenant in an hour, by verdict, but for what is still in
-- counter_deltas.
CREATE TABLE counters (
    -- whose deliveries; 0 where no known tenant could be read
    tenant_no integer NOT NULL,
    -- start of the hour in which they were received
    hour timestamptz NOT NULL,
    -- counted
    accepted bigint NOT NULL CHECK (accepted >= 0),
    -- counted before
    duplicates bigint NOT NULL CHECK (duplicates >= 0),
    -- came under a key another payload holds
    conflicts bigint NOT NULL CHECK (conflicts >= 0),
    -- kept and not counted
    quarantined bigint NOT NULL CHECK (quarantined >= 0),
    -- refused to the sender
    rejected bigint NOT NULL CHECK (rejected >= 0),
    -- in the order in which they are read and folded
    PRIMARY KEY (hour, tenant_no)
) WITH (fillfactor = 50);

-- What each batch adds to counters, as rollup_deltas for totals.
CREATE TABLE counter_deltas (
    -- the batch
    batch_no bigint NOT NULL,
    -- start of the hour in which it was received
    hour timestamptz NOT NULL,
    -- counted
    accepted bigint NOT NULL CHECK (accepted >= 0),
    -- counted before
    duplicates bigint NOT NULL CHECK (duplicates >= 0),
    -- came under a key another payload holds
    conflicts bigint NOT NULL CHECK (conflicts >= 0),
    -- kept and not counted
    quarantined bigint NOT NULL CHECK (quarantined >= 0),
    -- refused to the sender
    rejected bigint NOT NULL CHECK (rejected >= 0),
    -- whose deliveries; 0 where no known tenant could be read
    tenant_no integer NOT NULL
) WITH (vacuum_truncate = false);

CREATE INDEX counter_deltas_by_batch ON counter_deltas USING brin (batch_no)
    WITH (pages_per_range = 16);

-- Keys of the API; the tokens themselves are not kept.
CREATE TABLE api_keys (
    -- public name of the key
    key_id text COLLATE "C" NOT NULL PRIMARY KEY,
    -- for people
    name text NOT NULL,
    -- HMAC-SHA256 of the token under the store's secret
    digest bytea NOT NULL UNIQUE CHECK (length(digest) = 32),
    -- what it may do, space-separated
    scopes text NOT NULL,
    -- the tenant it is bound to
    tenant text COLLATE "C",
    -- when it was made
    created_at timestamptz NOT NULL,
    -- when it was revoked
    revoked_at timestamptz
);

-- Batches that were committed, of late: the outcome of a commit whose answer was lost.
CREATE TABLE ingest_commits (
    -- the batch
    batch_no bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    -- when it was received; the clock never goes back before the latest. null: it was not
    -- committed, and the writer that asked made sure that it never will be
    committed_at timestamptz
);
