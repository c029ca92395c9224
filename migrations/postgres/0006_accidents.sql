-- What accidents need: wrong clocks, restored backups, changed customers, lost leases.

-- Tenants without a customer. Their pushes wait (state waiting) and are released when there is one.

-- true while pushes that waited for the tenant's customer are still to be released
ALTER TABLE tenants ADD COLUMN releasing boolean NOT NULL DEFAULT false;

CREATE INDEX tenants_releasing ON tenants (tenant_no) WHERE releasing;
CREATE INDEX pushes_waiting ON pushes (tenant_no, push_no) WHERE state = 'waiting';

-- Usage that waits for a customer, and usage that was too old to be sent when there was one. Shadow
-- pushes are left out.
CREATE TABLE unmapped_usage (
    -- whose usage
    tenant_no integer NOT NULL,
    -- of what
    meter_no smallint NOT NULL,
    -- pushes that wait
    waiting_pushes bigint NOT NULL,
    -- the sum of their quantities
    waiting_quantity numeric NOT NULL,
    -- pushes that were too old to be sent
    unsent_pushes bigint NOT NULL,
    -- the sum of their quantities
    unsent_quantity numeric NOT NULL,
    -- when the last of those was closed
    unsent_at timestamptz,
    PRIMARY KEY (tenant_no, meter_no)
);

CREATE INDEX unmapped_usage_unsent ON unmapped_usage (unsent_at) WHERE unsent_at IS NOT NULL;

UPDATE pushes p SET state = 'waiting' FROM tenants t
WHERE t.tenant_no = p.tenant_no AND t.customer IS NULL AND p.state = 'observed' AND p.attempts = 0;

INSERT INTO unmapped_usage (tenant_no, meter_no, waiting_pushes, waiting_quantity, unsent_pushes,
    unsent_quantity)
SELECT tenant_no, meter_no, count(*), sum(quantity), 0, 0 FROM pushes
WHERE state = 'waiting' AND NOT shadow GROUP BY tenant_no, meter_no;

-- since when the provider's summary of the window could not be read for it; null if it could be
ALTER TABLE pushes ADD COLUMN unreadable_since timestamptz;

-- The unconfirmed pushes of a tenant, for which a cancellation or a change of prices waits.
CREATE INDEX pushes_submitted_by_tenant ON pushes (tenant_no, meter_no, window_start)
    WHERE state = 'submitted';

-- from when on the provider charges by the subscription record; null if that is when it began
ALTER TABLE subscription_records ADD COLUMN charged_from timestamptz;

-- The provider's totals as they were last read, by customer. Readings from before are not known to
-- be of one customer, so they are dropped and taken again.
DROP TABLE summaries;
CREATE TABLE summaries (
    -- whose usage
    tenant_no integer NOT NULL,
    -- of what
    meter_no smallint NOT NULL,
    -- an hour or a day
    length_seconds bigint NOT NULL,
    -- start of the window
    window_start timestamptz NOT NULL,
    -- the customer whose total it is
    customer text NOT NULL,
    -- rounded to the decimals that were sent
    value numeric NOT NULL CHECK (value
        BETWEEN -170141183460469231731687304 AND 170141183460469231731687304),
    -- when it was read last
    read_at timestamptz NOT NULL,
    -- when it was read before that, with the same value; null after one reading of a value
    read_before timestamptz,
    -- when this value was first read
    since timestamptz NOT NULL,
    -- how often in a row
    reads integer NOT NULL,
    PRIMARY KEY (tenant_no, meter_no, length_seconds, window_start, customer)
);

-- Customers that tenants were mapped to before: windows that were sent to them are compared there.
CREATE TABLE former_customers (
    -- whose
    tenant_no integer NOT NULL,
    -- the provider's name for the tenant at that time
    customer text NOT NULL,
    PRIMARY KEY (tenant_no, customer)
);

INSERT INTO former_customers (tenant_no, customer)
SELECT DISTINCT p.tenant_no, p.customer
FROM pushes p JOIN tenants t ON t.tenant_no = p.tenant_no
WHERE p.customer IS NOT NULL AND p.customer IS DISTINCT FROM t.customer;

-- Whether the provider's last reading of the subscription suspends the features.
ALTER TABLE subscription_records ADD COLUMN suspended boolean NOT NULL DEFAULT false;
CREATE INDEX subscription_records_by_subscription ON subscription_records (subscription, record_no);

-- Subscriptions without a subscription record that a person has accepted as they are.
CREATE TABLE accepted_subscriptions (
    -- the provider's id
    subscription text NOT NULL PRIMARY KEY,
    -- when it was accepted
    accepted_at timestamptz NOT NULL
);

-- Restores from a backup, recognised or declared. The last one is the store's epoch.
CREATE TABLE epochs (
    -- 1, 2, …; before the first restore the epoch is 0
    epoch int4 NOT NULL PRIMARY KEY,
    -- when; windows that began before are compared with the provider before they are sent
    restored_at timestamptz NOT NULL,
    -- how it was recognised, or what a person said
    reason text NOT NULL,
    -- whether only a long stop spoke for it; keys are made as before then
    suspected boolean NOT NULL
);

-- The store's identity and age, in one row; compared at start with the database's own identity.
CREATE TABLE store_life (
    -- always 1
    place int4 NOT NULL PRIMARY KEY CHECK (place = 1),
    -- random, in hex
    store text NOT NULL,
    -- grows while the store is in use
    mark int8 NOT NULL,
    -- when it was last known to be in use; null before the first start
    alive_at timestamptz,
    -- the cluster's identifier; null if it could not be read
    cluster text,
    -- the cluster's timeline, which a recovery to a moment and a failover change
    timeline text,
    -- the database's number within the cluster, which a dump that is read back changes
    database text
);

-- the epoch in which the provider's total was found to lack this push and hold all others
ALTER TABLE pushes ADD COLUMN verified_epoch int4;
-- the provider's total of the window as it was last read for this push after a restore
ALTER TABLE pushes ADD COLUMN looked_total numeric;
-- when it was read
ALTER TABLE pushes ADD COLUMN looked_at timestamptz;

-- The provider's account that usage is sent to. A store that met one account sends nothing to
-- another until a person ends the binding.
CREATE TABLE bindings (
    -- 1, 2, …
    binding int4 NOT NULL PRIMARY KEY,
    -- the provider's name
    provider text NOT NULL,
    -- the provider's name of the account; null if it could not be read
    account text,
    -- whether money is moved there
    live boolean NOT NULL,
    -- since when
    bound_at timestamptz NOT NULL,
    -- when a person ended it; null while it holds
    ended_at timestamptz
);

-- At most one binding holds.
CREATE UNIQUE INDEX bindings_current ON bindings ((true)) WHERE ended_at IS NULL;
