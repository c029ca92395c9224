-- Recuts: windows that must be cut again although no event came: a decision or a timeline changed
-- what is billed of them.
CREATE TABLE recuts (
    -- order of requests
    recut_no INTEGER NOT NULL PRIMARY KEY,
    -- whose windows
    tenant_no INTEGER NOT NULL,
    -- windows that overlap this range: its start
    from_at INTEGER NOT NULL,
    -- its end
    until_at INTEGER NOT NULL,
    -- 1 if windows that are open are cut too
    expedited INTEGER NOT NULL,
    -- when it was requested
    requested_at INTEGER NOT NULL
) STRICT;

-- what of its usage was in a trial by the timeline at the cut; no part of its total
ALTER TABLE cuts ADD COLUMN trial TEXT NOT NULL DEFAULT '0';

-- what of its usage is held because no subscription was in force; no part of its total
ALTER TABLE cuts ADD COLUMN outside TEXT NOT NULL DEFAULT '0';

CREATE INDEX cuts_outside ON cuts (meter_no, outside) WHERE outside <> '0';

-- What the provider had counted and no longer shows is reissued; "correction" is a producer's word.
UPDATE pushes SET class = 'reissue' WHERE class = 'correction';
UPDATE push_transitions SET class = 'reissue' WHERE class = 'correction';

-- The self-check: stored totals and counters are compared with the events, a sample each hour and
-- everything each night.
CREATE TABLE self_checks (
    -- always 1
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    -- JSON: where the walk goes on, what it found, when samples and walks ended; see
    -- src/rules/self_check.rs
    state TEXT NOT NULL
) STRICT;

-- Windows whose stored total or counter is not what their events add up to.
CREATE TABLE self_check_mismatches (
    -- order in which they were found
    mismatch_no INTEGER NOT NULL PRIMARY KEY,
    -- whose usage
    tenant_no INTEGER NOT NULL,
    -- the tenant's id
    tenant TEXT NOT NULL,
    -- of what; null for a counter of accepted events
    meter_no INTEGER,
    -- the meter's slug
    meter TEXT NOT NULL,
    -- start of the bucket, or of the hour of receipt of a counter
    window_start INTEGER NOT NULL,
    -- its end
    window_end INTEGER NOT NULL,
    -- the group of the total, as in totals
    grp TEXT NOT NULL,
    -- what is stored, in words
    stored TEXT NOT NULL,
    -- what the events add up to, in words
    events TEXT NOT NULL,
    -- when it was found first
    found_at INTEGER NOT NULL
) STRICT;

CREATE INDEX self_check_mismatches_by_tenant ON self_check_mismatches (tenant_no);
