-- What accidents need: wrong clocks, restored backups, changed customers, lost leases.

-- Tenants without a customer. Their pushes wait (state waiting) and are released when there is one.

-- 1 while pushes that waited for the tenant's customer are still to be released
ALTER TABLE tenants ADD COLUMN releasing INTEGER NOT NULL DEFAULT 0;

CREATE INDEX tenants_releasing ON tenants (tenant_no) WHERE releasing;
CREATE INDEX pushes_waiting ON pushes (tenant_no, push_no) WHERE state = 'waiting';

-- Usage that waits for a customer, and usage that was too old to be sent when there was one. Shadow
-- pushes are left out.
CREATE TABLE unmapped_usage (
    -- whose usage
    tenant_no INTEGER NOT NULL,
    -- of what
    meter_no INTEGER NOT NULL,
    -- pushes that wait
    waiting_pushes INTEGER NOT NULL,
    -- the sum of their quantities
    waiting_quantity TEXT NOT NULL,
    -- pushes that were too old to be sent
    unsent_pushes INTEGER NOT NULL,
    -- the sum of their quantities
    unsent_quantity TEXT NOT NULL,
    -- when the last of those was closed
    unsent_at INTEGER,
    PRIMARY KEY (tenant_no, meter_no)
) STRICT, WITHOUT ROWID;

CREATE INDEX unmapped_usage_unsent ON unmapped_usage (unsent_at) WHERE unsent_at IS NOT NULL;

-- Dead pushes by their class, and a tenant's pushes, in the order of pages.
CREATE INDEX pushes_dead_by_class ON pushes (class, push_no) WHERE state = 'dead';
CREATE INDEX pushes_by_tenant ON pushes (tenant_no, push_no);

-- since when the provider's summary of the window could not be read for it; null if it could be
ALTER TABLE pushes ADD COLUMN unreadable_since INTEGER;

-- The unconfirmed pushes of a tenant, for which a cancellation or a change of prices waits.
CREATE INDEX pushes_submitted_by_tenant ON pushes (tenant_no, meter_no, window_start)
    WHERE state = 'submitted';

-- from when on the provider charges by the subscription record; null if that is when it began
ALTER TABLE subscription_records ADD COLUMN charged_from INTEGER;

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
ALTER TABLE subscription_records ADD COLUMN suspended INTEGER NOT NULL DEFAULT 0;
CREATE INDEX subscription_records_by_subscription ON subscription_records (subscription, record_no);

-- Subscriptions without a subscription record that a person has accepted as they are.
CREATE TABLE accepted_subscriptions (
    -- the provider's id
    subscription TEXT NOT NULL PRIMARY KEY,
    -- when it was accepted
    accepted_at INTEGER NOT NULL
) STRICT;

-- Restores from a backup, recognised or declared. The last one is the store's epoch.
CREATE TABLE epochs (
    -- 1, 2, …; before the first restore the epoch is 0
    epoch INTEGER NOT NULL PRIMARY KEY,
    -- when; windows that began before are compared with the provider before they are sent
    restored_at INTEGER NOT NULL,
    -- how it was recognised, or what a person said
    reason TEXT NOT NULL,
    -- 1 if only a long stop spoke for it; keys are made as before then
    suspected INTEGER NOT NULL
) STRICT;

-- The store's identity and age, in one row; compared at start with what is kept outside.
CREATE TABLE store_life (
    -- always 1
    place INTEGER NOT NULL PRIMARY KEY CHECK (place = 1),
    -- random, in hex
    store TEXT NOT NULL,
    -- grows while the store is in use
    mark INTEGER NOT NULL,
    -- when it was last known to be in use; null before the first start
    alive_at INTEGER
) STRICT;

-- the epoch in which the provider's total was found to lack this push and hold all others
ALTER TABLE pushes ADD COLUMN verified_epoch INTEGER;
-- the provider's total of the window as it was last read for this push after a restore
ALTER TABLE pushes ADD COLUMN looked_total TEXT;
-- when it was read
ALTER TABLE pushes ADD COLUMN looked_at INTEGER;

-- The provider's account that usage is sent to. A store that met one account sends nothing to
-- another until a person ends the binding.
CREATE TABLE bindings (
    -- 1, 2, …
    binding INTEGER NOT NULL PRIMARY KEY,
    -- the provider's name
    provider TEXT NOT NULL,
    -- the provider's name of the account; null if it could not be read
    account TEXT,
    -- 1 if money is moved there
    live INTEGER NOT NULL,
    -- since when
    bound_at INTEGER NOT NULL,
    -- when a person ended it; null while it holds
    ended_at INTEGER
) STRICT;

-- At most one binding holds.
CREATE UNIQUE INDEX bindings_current ON bindings ((1)) WHERE ended_at IS NULL;
