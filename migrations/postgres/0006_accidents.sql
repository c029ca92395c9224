-- What accidents need: wrong clocks, restored backups, changed customers, lost leases.

-- since when the provider's summary of the window could not be read for it; null if it could be
ALTER TABLE pushes ADD COLUMN unreadable_since timestamptz;
