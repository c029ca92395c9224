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
    -- whether windows that are open are cut too
    expedited boolean NOT NULL,
    -- when it was requested
    requested_at timestamptz NOT NULL
);

-- what of its usage was in a trial by the timeline at the cut; no part of its total
ALTER TABLE cuts ADD COLUMN trial numeric NOT NULL DEFAULT 0 CHECK (trial
    NOT IN ('NaN', 'Infinity', '-Infinity'));

-- what of its usage is held because no subscription was in force; no part of its total
ALTER TABLE cuts ADD COLUMN outside numeric NOT NULL DEFAULT 0 CHECK (outside
    NOT IN ('NaN', 'Infinity', '-Infinity'));

CREATE INDEX cuts_outside ON cuts (meter_no, outside) WHERE outside <> 0;

-- What the provider had counted and no longer shows is reissued; "correction" is a producer's word.
UPDATE pushes SET class = 'reissue' WHERE class = 'correction';
UPDATE push_transitions SET class = 'reissue' WHERE class = 'correction';
