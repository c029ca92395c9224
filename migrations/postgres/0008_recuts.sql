-- Recuts: windows that must be cut again although no event came: a decision or a timeline changed
-- what is billed of them.
CREATE TABLE recuts (
    -- order of requests
    recut_no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- whose windows
    tenant_no integer NOT NULL,
    -- windows that overlap this range: its start
    from_at timestamptz NOT NULL,
    -- its end
    until_at timestamptz NOT NULL,
    -- when it was requested
    requested_at timestamptz NOT NULL
);

-- What the provider had counted and no longer shows is reissued; "correction" is a producer's word.
UPDATE pushes SET class = 'reissue' WHERE class = 'correction';
UPDATE push_transitions SET class = 'reissue' WHERE class = 'correction';
