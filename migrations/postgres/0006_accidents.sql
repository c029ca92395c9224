-- What accidents need: wrong clocks, restored backups, changed customers, lost leases.

-- since when the provider's summary of the window could not be read for it; null if it could be
ALTER TABLE pushes ADD COLUMN unreadable_since timestamptz;

-- The unconfirmed pushes of a tenant, for which a cancellation or a change of prices waits.
CREATE INDEX pushes_submitted_by_tenant ON pushes (tenant_no, meter_no, window_start)
    WHERE state = 'submitted';

-- from when on the provider charges by the agreement; null if that is when it began
ALTER TABLE agreements ADD COLUMN charged_from timestamptz;
