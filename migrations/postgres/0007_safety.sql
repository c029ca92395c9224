-- What keeps tenants apart: bounded inboxes, bounded reads.

-- Deliveries of ids whose inbox holds as many payloads as it keeps of an id.
CREATE TABLE inbox_overflow (
    -- whose events
    tenant_no integer NOT NULL,
    -- their id
    id text COLLATE "C" NOT NULL,
    -- conflicts or quarantine
    inbox text COLLATE "C" NOT NULL,
    -- deliveries of payloads that were not kept
    deliveries bigint NOT NULL CHECK (deliveries > 0),
    -- when the first of them came
    first_received_at timestamptz NOT NULL,
    -- when the last of them came
    last_received_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_no, id, inbox)
);

-- Rows of passes: a total of the provider's that was not read is null, and such a row has no hash.
-- The state of a pass may also be incomplete: it could not read everything.
ALTER TABLE pass_rows ALTER COLUMN provider DROP NOT NULL;
ALTER TABLE pass_rows ALTER COLUMN hash DROP NOT NULL;
-- quantities that are not billed, by cause, with what is known of them, as JSON; null if none
ALTER TABLE pass_rows ADD COLUMN marks text;

-- Windows that were counted in shadow mode, to add them up.
CREATE INDEX cuts_shadow ON cuts (meter_no) INCLUDE (total) WHERE shadow;

-- What a person wrote off has a state of its own, so that those that are dead are those that need
-- a person. The state of a push may also be waiting (its tenant has no customer) or discarded.
UPDATE pushes SET state = 'discarded' WHERE state = 'dead' AND class = 'discarded';
UPDATE push_transitions SET state = 'discarded'
WHERE class = 'discarded' AND push_no IN (SELECT push_no FROM pushes WHERE class = 'discarded');
CREATE INDEX pushes_discarded ON pushes (push_no) WHERE state = 'discarded';

-- Which groups a tenant's meter has on a day, so that their number has a bound.
CREATE TABLE day_groups (
    -- whose usage
    tenant_no integer NOT NULL,
    -- of what
    meter_no smallint NOT NULL,
    -- days since 1970, in UTC
    day integer NOT NULL,
    -- fingerprint of the group
    grp bigint NOT NULL,
    PRIMARY KEY (tenant_no, meter_no, day, grp)
);
