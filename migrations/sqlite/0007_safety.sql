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
