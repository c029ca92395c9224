-- The ledger of the embedded store, in a file of its own (ledger.db): what folding makes of the
-- journal in counterfoil.db. Folding is the only writer, outside the commits of events. Instants
-- are microseconds of UTC since 1970; quantities are exact decimals as text.

-- How far folding has come; exactly one row.
CREATE TABLE fold_state (
    -- always 1
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    -- random bytes; counterfoil.db holds the same, so that no foreign ledger is opened with it
    store BLOB,
    -- the first segment that is not folded
    segment_no INTEGER NOT NULL,
    -- number of that segment's first event
    next_event_no INTEGER NOT NULL,
    -- journal rows up to this one are folded
    folded_seq INTEGER NOT NULL,
    -- latest moment of any folded commit: the clock never goes back before it
    high_water INTEGER NOT NULL
) STRICT;

INSERT INTO fold_state VALUES (1, NULL, 1, 1, 0, 0);

-- Folded events: within a segment in the order of tenant, occurred_at, id.
CREATE TABLE event_blocks (
    -- number of the block's first event
    first_no INTEGER NOT NULL PRIMARY KEY,
    -- compressed events; see src/store/sqlite/event_blocks.rs
    body BLOB NOT NULL
) STRICT;

-- The segments that were folded.
CREATE TABLE segments (
    -- order of folding
    segment_no INTEGER NOT NULL PRIMARY KEY,
    -- number of its first event
    first_no INTEGER NOT NULL,
    -- number after its last event
    end_no INTEGER NOT NULL,
    -- earliest occurred_at; null if it has no events
    first_at INTEGER,
    -- latest occurred_at
    last_at INTEGER
) STRICT;

-- Where the events of each tenant lie in a segment.
CREATE TABLE event_ranges (
    -- the segment
    segment_no INTEGER NOT NULL,
    -- the first tenant of this block of ranges
    first_tenant INTEGER NOT NULL,
    -- a checksum, and ranges of tenants in order with the time of each 64th event; see
    -- src/store/sqlite/event_ranges.rs
    body BLOB NOT NULL,
    PRIMARY KEY (segment_no, first_tenant)
) STRICT, WITHOUT ROWID;

-- Runs: the keys and totals of adjacent segments, sorted. A run is written once and never changes;
-- eight runs of one level are merged into one of the next. Keys are in keys/RUN_NO.run.
CREATE TABLE runs (
    -- names the run; total blocks with a number that is not here are garbage
    run_no INTEGER NOT NULL PRIMARY KEY,
    -- how often its parts were merged
    level INTEGER NOT NULL,
    -- number of its first event
    first_no INTEGER NOT NULL UNIQUE,
    -- number after its last event
    end_no INTEGER NOT NULL,
    -- earliest bucket_start of its totals
    first_bucket INTEGER NOT NULL,
    -- latest bucket_start of its totals
    last_bucket INTEGER NOT NULL,
    -- of the index of its key file, so that no other run's file is taken for its own
    checksum INTEGER NOT NULL
) STRICT;

-- Exact totals of folded events. A total is the sum of its records in all runs.
CREATE TABLE total_blocks (
    -- blocks of a run ascend
    block_no INTEGER NOT NULL PRIMARY KEY,
    -- the run
    run_no INTEGER NOT NULL,
    -- of the first record: whose usage
    tenant_no INTEGER NOT NULL,
    -- of what
    meter_no INTEGER NOT NULL,
    -- start of the bucket
    bucket_start INTEGER NOT NULL,
    -- whose usage the last record is
    last_tenant_no INTEGER NOT NULL,
    -- totals in order; see src/store/sqlite/total_blocks.rs
    body BLOB NOT NULL
) STRICT;

CREATE INDEX total_blocks_by_key ON total_blocks (run_no, tenant_no, meter_no, bucket_start);

-- Conservation: deliveries received in an hour, by verdict.
CREATE TABLE counter_blocks (
    -- start of the hour
    hour INTEGER NOT NULL,
    -- 0 for the tenants 0 to 63, 1 for the next, and so on; tenant 0 has the deliveries whose
    -- tenant could not be read
    block_no INTEGER NOT NULL,
    -- counts of each tenant; see src/store/sqlite/counter_blocks.rs
    body BLOB NOT NULL,
    PRIMARY KEY (hour, block_no)
) STRICT, WITHOUT ROWID;
