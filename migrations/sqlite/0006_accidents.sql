-- What accidents need: wrong clocks, restored backups, changed customers, lost leases.

-- since when the provider's summary of the window could not be read for it; null if it could be
ALTER TABLE pushes ADD COLUMN unreadable_since INTEGER;

-- The unconfirmed pushes of a tenant, for which a cancellation or a change of prices waits.
CREATE INDEX pushes_submitted_by_tenant ON pushes (tenant_no, meter_no, window_start)
    WHERE state = 'submitted';

-- Sum of first_no and the block's hashes, modulo 2^64, to find a damaged block when the store
-- opens; null for blocks that were written before this column.
ALTER TABLE key_blocks ADD COLUMN checksum INTEGER;

-- from when on the provider charges by the agreement; null if that is when it began
ALTER TABLE agreements ADD COLUMN charged_from INTEGER;
