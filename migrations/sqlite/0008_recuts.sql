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
    -- when it was requested
    requested_at INTEGER NOT NULL
) STRICT;

-- What the provider had counted and no longer shows is reissued; "correction" is a producer's word.
UPDATE pushes SET class = 'reissue' WHERE class = 'correction';
UPDATE push_transitions SET class = 'reissue' WHERE class = 'correction';
