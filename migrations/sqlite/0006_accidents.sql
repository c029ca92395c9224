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

-- The provider's totals as they were last read, by customer. Readings from before are not known to
-- be of one customer, so they are dropped and taken again.
DROP TABLE summaries;
CREATE TABLE summaries (
    -- whose usage
    tenant_no INTEGER NOT NULL,
    -- of what
    meter_no INTEGER NOT NULL,
    -- an hour or a day
    length_seconds INTEGER NOT NULL,
    -- start of the window
    window_start INTEGER NOT NULL,
    -- the customer whose total it is
    customer TEXT NOT NULL,
    -- rounded to the decimals that were sent
    value TEXT NOT NULL,
    -- when it was read last
    read_at INTEGER NOT NULL,
    -- when it was read before that, with the same value; null after one reading of a value
    read_before INTEGER,
    -- when this value was first read
    since INTEGER NOT NULL,
    -- how often in a row
    reads INTEGER NOT NULL,
    PRIMARY KEY (tenant_no, meter_no, length_seconds, window_start, customer)
) STRICT, WITHOUT ROWID;

-- Customers that tenants were mapped to before: windows that were sent to them are compared there.
CREATE TABLE former_customers (
    -- whose
    tenant_no INTEGER NOT NULL,
    -- the provider's name for the tenant at that time
    customer TEXT NOT NULL,
    PRIMARY KEY (tenant_no, customer)
) STRICT, WITHOUT ROWID;

INSERT INTO former_customers (tenant_no, customer)
SELECT DISTINCT pushes.tenant_no, pushes.customer
FROM pushes JOIN tenants ON tenants.tenant_no = pushes.tenant_no
WHERE pushes.customer IS NOT NULL AND pushes.customer IS NOT tenants.customer;

-- Whether the provider's last reading of the subscription suspends the features.
ALTER TABLE agreements ADD COLUMN suspended INTEGER NOT NULL DEFAULT 0;
CREATE INDEX agreements_by_subscription ON agreements (subscription, agreement_no);

-- Subscriptions without an agreement that a person has accepted as they are.
CREATE TABLE accepted_subscriptions (
    -- the provider's id
    subscription TEXT NOT NULL PRIMARY KEY,
    -- when it was accepted
    accepted_at INTEGER NOT NULL
) STRICT;
