-- What keeps tenants apart: bounded inboxes, bounded reads.

-- fingerprint of the arriving payload's text; after a collision the next free number. Null in rows
-- from before this column, until the store is opened
ALTER TABLE conflicts ADD COLUMN fingerprint BLOB;

-- fingerprint of the payload's text, as in conflicts
ALTER TABLE quarantine ADD COLUMN fingerprint BLOB;

DROP INDEX conflicts_by_key;
DROP INDEX quarantine_by_key;
CREATE UNIQUE INDEX conflicts_by_payload ON conflicts (tenant_no, id, fingerprint);
CREATE UNIQUE INDEX quarantine_by_payload ON quarantine (tenant_no, id, fingerprint);
CREATE INDEX conflicts_unmarked ON conflicts (conflict_no) WHERE fingerprint IS NULL;
CREATE INDEX quarantine_unmarked ON quarantine (quarantine_no) WHERE fingerprint IS NULL;

-- A tenant's pages of an inbox.
CREATE INDEX conflicts_by_tenant ON conflicts (tenant_no, conflict_no);
CREATE INDEX quarantine_by_tenant ON quarantine (tenant_no, quarantine_no);

-- Deliveries of ids whose inbox holds as many payloads as it keeps of an id.
CREATE TABLE inbox_overflow (
    -- whose events
    tenant_no INTEGER NOT NULL,
    -- their id
    id TEXT NOT NULL,
    -- conflicts or quarantine
    inbox TEXT NOT NULL,
    -- deliveries of payloads that were not kept
    deliveries INTEGER NOT NULL,
    -- when the first of them came
    first_received_at INTEGER NOT NULL,
    -- when the last of them came
    last_received_at INTEGER NOT NULL,
    PRIMARY KEY (tenant_no, id, inbox)
) STRICT, WITHOUT ROWID;

-- Rows of passes: a total of the provider's that was not read is null, and such a row has no hash.
-- The state of a pass may also be incomplete: it could not read everything.
CREATE TABLE pass_rows_next (
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
    -- what was counted
    ledger TEXT NOT NULL,
    -- what was handed to billing and not written off
    pushed TEXT NOT NULL,
    -- what the provider shows; null if it was not read in this pass
    provider TEXT,
    -- what the comparison says
    verdict TEXT NOT NULL,
    -- and why
    reason TEXT NOT NULL,
    -- the windows of the day that are not equal, as JSON
    windows TEXT NOT NULL,
    -- of the row and, of nightly ones, the same row of the day before; null outside the chain
    hash BLOB,
    -- quantities that are not billed, by cause, with what is known of them, as JSON; null if none
    marks TEXT,
    PRIMARY KEY (pass_no, tenant_no, meter_no, day_start)
) STRICT, WITHOUT ROWID;

INSERT INTO pass_rows_next (pass_no, tenant_no, meter_no, day_start, day_end, ledger, pushed,
                            provider, verdict, reason, windows, hash)
SELECT pass_no, tenant_no, meter_no, day_start, day_end, ledger, pushed, provider, verdict, reason,
       windows, hash
FROM pass_rows;
DROP TABLE pass_rows;
ALTER TABLE pass_rows_next RENAME TO pass_rows;

-- Windows that were counted in shadow mode, to add them up.
CREATE INDEX cuts_shadow ON cuts (meter_no) WHERE shadow;

-- What a person wrote off has a state of its own, so that those that are dead are those that need
-- a person. The state of a push may also be waiting (its tenant has no customer) or discarded.
UPDATE pushes SET state = 'discarded' WHERE state = 'dead' AND class = 'discarded';
UPDATE push_transitions SET state = 'discarded'
WHERE class = 'discarded' AND push_no IN (SELECT push_no FROM pushes WHERE class = 'discarded');
CREATE INDEX pushes_discarded ON pushes (push_no) WHERE state = 'discarded';
