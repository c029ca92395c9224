-- Decisions about quarantined events and conflicts. A row is decided once and keeps its decision.

-- undecided, admitted (counted by the decision), duplicate or conflict (to be admitted, and another
-- delivery was counted under its key), or discarded
ALTER TABLE quarantine ADD COLUMN state text NOT NULL DEFAULT 'undecided';
-- why it was decided so; null while it is undecided, as the two columns after it
ALTER TABLE quarantine ADD COLUMN decision_reason text;
-- who decided
ALTER TABLE quarantine ADD COLUMN decided_by text;
-- when it was decided
ALTER TABLE quarantine ADD COLUMN decided_at timestamptz;

-- undecided, standing_kept (the counted payload is right) or dismissed (nothing is said)
ALTER TABLE conflicts ADD COLUMN state text NOT NULL DEFAULT 'undecided';
-- why it was decided so; null while it is undecided, as the two columns after it
ALTER TABLE conflicts ADD COLUMN decision_reason text;
-- who decided
ALTER TABLE conflicts ADD COLUMN decided_by text;
-- when it was decided
ALTER TABLE conflicts ADD COLUMN decided_at timestamptz;

-- What is open, however much is decided.
CREATE INDEX quarantine_undecided ON quarantine (quarantine_no) WHERE state = 'undecided';
CREATE INDEX quarantine_undecided_by_tenant ON quarantine (tenant_no, quarantine_no)
    WHERE state = 'undecided';
CREATE INDEX conflicts_undecided ON conflicts (conflict_no) WHERE state = 'undecided';
CREATE INDEX conflicts_undecided_by_tenant ON conflicts (tenant_no, conflict_no)
    WHERE state = 'undecided';

-- Of accepted, those that were received before, quarantined, and then admitted. It is written by
-- the admission itself: counter_deltas hold none of it.
ALTER TABLE counters ADD COLUMN admitted bigint NOT NULL DEFAULT 0;
