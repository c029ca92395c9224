-- Operations on money: accounts, credits, sagas, quotes, and the change feed.

-- how much of the window's total credits cover; it is not billed
ALTER TABLE cuts ADD COLUMN covered TEXT NOT NULL DEFAULT '0';

-- Accounts of tenants. Over a tenant and unit, balances sum to zero.
CREATE TABLE accounts (
    -- order of creation
    account_no INTEGER NOT NULL PRIMARY KEY,
    -- whose
    tenant_no INTEGER NOT NULL,
    -- its name
    name TEXT NOT NULL,
    -- what its amounts are of
    unit TEXT NOT NULL,
    -- zero if it may not fall below it, else none
    floor TEXT NOT NULL,
    -- exact decimal
    balance TEXT NOT NULL,
    -- entries that have touched it
    version INTEGER NOT NULL,
    -- when it was created
    created_at INTEGER NOT NULL,
    UNIQUE (tenant_no, name),
    CHECK (floor IN ('zero', 'none')),
    CHECK (floor = 'none' OR balance NOT LIKE '-%')
) STRICT;

-- Entries; rows are only added.
CREATE TABLE entries (
    -- order of creation
    entry_no INTEGER NOT NULL PRIMARY KEY,
    -- whose
    tenant_no INTEGER NOT NULL,
    -- under which it was written once
    key TEXT NOT NULL,
    -- why
    memo TEXT NOT NULL,
    -- when
    at INTEGER NOT NULL,
    UNIQUE (tenant_no, key)
) STRICT;

-- The lines of entries; rows are only added.
CREATE TABLE postings (
    -- the entry
    entry_no INTEGER NOT NULL,
    -- place within the entry, from 0
    line INTEGER NOT NULL,
    -- the account
    account_no INTEGER NOT NULL,
    -- what it gained; negative where it lost
    amount TEXT NOT NULL,
    -- its balance afterwards
    balance TEXT NOT NULL,
    -- its version afterwards
    version INTEGER NOT NULL,
    PRIMARY KEY (entry_no, line),
    UNIQUE (account_no, version)
) STRICT, WITHOUT ROWID;

-- Credits that were given or paid for.
CREATE TABLE grants (
    -- order of creation, and its name in the API
    grant_no INTEGER NOT NULL PRIMARY KEY,
    -- whose
    tenant_no INTEGER NOT NULL,
    -- under which it was issued once
    key TEXT NOT NULL,
    -- granted or purchased
    pool TEXT NOT NULL,
    -- what its amount is of
    unit TEXT NOT NULL,
    -- how much it was
    amount TEXT NOT NULL,
    -- what a unit of usage costs, by meter number, as JSON
    rates TEXT NOT NULL,
    -- 0 is drawn first
    priority INTEGER NOT NULL,
    -- usage from then on is covered
    effective_at INTEGER NOT NULL,
    -- usage from then on is not; null if it never expires
    expires_at INTEGER,
    -- why
    memo TEXT NOT NULL,
    -- what is left of it
    remaining TEXT NOT NULL,
    -- when it was issued
    created_at INTEGER NOT NULL,
    UNIQUE (tenant_no, key),
    CHECK (pool IN ('granted', 'purchased')),
    CHECK (remaining NOT LIKE '-%')
) STRICT;

CREATE INDEX grants_live ON grants (tenant_no, grant_no) WHERE remaining <> '0';
CREATE INDEX grants_expiring ON grants (expires_at) WHERE remaining <> '0' AND expires_at NOT NULL;

-- Every change of every grant; rows are only added.
CREATE TABLE credit_changes (
    -- order in which they were written
    change_no INTEGER NOT NULL PRIMARY KEY,
    -- whose
    tenant_no INTEGER NOT NULL,
    -- the grant
    grant_no INTEGER NOT NULL,
    -- issued, drawn, given_back, expired, refunded or voided
    kind TEXT NOT NULL,
    -- in the grant's unit, never negative
    amount TEXT NOT NULL,
    -- what it left of the grant
    remaining TEXT NOT NULL,
    -- for draws and what is given back: the meter
    meter_no INTEGER,
    -- start of the window
    window_start INTEGER,
    -- end of the window
    window_end INTEGER,
    -- usage that is covered, in units of the meter
    quantity TEXT,
    -- for refunds and voids: under which it happened once
    key TEXT,
    -- why
    memo TEXT NOT NULL,
    -- when
    at INTEGER NOT NULL
) STRICT;

CREATE INDEX credit_changes_by_tenant ON credit_changes (tenant_no, change_no);
CREATE INDEX credit_changes_by_grant ON credit_changes (grant_no, change_no);
CREATE INDEX credit_changes_by_window ON credit_changes (tenant_no, meter_no, window_start)
    WHERE meter_no NOT NULL;
CREATE UNIQUE INDEX credit_changes_by_key ON credit_changes (tenant_no, key) WHERE key NOT NULL;

-- Operations of several steps.
CREATE TABLE sagas (
    -- order of creation
    saga_no INTEGER NOT NULL PRIMARY KEY,
    -- its name in the API and at the provider
    id TEXT NOT NULL UNIQUE,
    -- create_subscription, change_plan or cancel_subscription
    kind TEXT NOT NULL,
    -- whose
    tenant_no INTEGER NOT NULL,
    -- under which it was begun once
    key TEXT NOT NULL,
    -- what it was asked for, as JSON
    params TEXT NOT NULL,
    -- running, compensating, completed, compensated or needs_attention
    state TEXT NOT NULL,
    -- grows with each new start after everything was undone
    generation INTEGER NOT NULL,
    -- tries in a row that have failed
    tries INTEGER NOT NULL,
    -- when it goes on
    due_at INTEGER NOT NULL,
    -- what it waits for, or what went wrong last
    detail TEXT,
    -- grows with each claim; what an earlier claimant writes is refused
    fence INTEGER NOT NULL,
    -- until when its claimant works on it; null while nobody does
    leased_until INTEGER,
    -- when it was begun
    created_at INTEGER NOT NULL,
    -- when it came into its state
    state_at INTEGER NOT NULL,
    UNIQUE (tenant_no, key)
) STRICT;

-- At most one open saga of a tenant.
CREATE UNIQUE INDEX sagas_open ON sagas (tenant_no)
    WHERE state IN ('running', 'compensating', 'needs_attention');
CREATE INDEX sagas_due ON sagas (due_at, saga_no) WHERE state IN ('running', 'compensating');
CREATE INDEX sagas_by_state ON sagas (state, saga_no);

-- Logs of sagas; rows are only added.
CREATE TABLE saga_lines (
    -- the saga
    saga_no INTEGER NOT NULL,
    -- order within the saga, from 1
    line INTEGER NOT NULL,
    -- the saga's generation then
    generation INTEGER NOT NULL,
    -- place of the step, from 0
    step INTEGER NOT NULL,
    -- the step's name
    name TEXT NOT NULL,
    -- what happened
    mark TEXT NOT NULL,
    -- what the step left for those after it, as JSON
    result TEXT,
    -- what went wrong
    detail TEXT,
    -- when
    at INTEGER NOT NULL,
    PRIMARY KEY (saga_no, line)
) STRICT, WITHOUT ROWID;

-- Tenants whose later pushes wait.
CREATE TABLE holds (
    -- the saga that wants it
    saga TEXT NOT NULL PRIMARY KEY,
    -- whose pushes
    tenant_no INTEGER NOT NULL,
    -- pushes of windows that start then or later
    held_from INTEGER NOT NULL,
    -- when it was put
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX holds_by_tenant ON holds (tenant_no);

-- What tenants have agreed to.
CREATE TABLE subscription_records (
    -- order of creation
    record_no INTEGER NOT NULL PRIMARY KEY,
    -- the saga that made it
    saga TEXT NOT NULL UNIQUE,
    -- whose
    tenant_no INTEGER NOT NULL,
    -- the provider's subscription
    subscription TEXT NOT NULL,
    -- the plan's name
    plan TEXT NOT NULL,
    -- the provider's prices, as a JSON array
    prices TEXT NOT NULL,
    -- what may be used, as a JSON array
    features TEXT NOT NULL,
    -- whether the features may be used
    access INTEGER NOT NULL,
    -- when it began
    began_at INTEGER NOT NULL,
    -- when it ended; null while it is open
    ended_at INTEGER,
    -- the saga whose subscription record took its place; null if none did
    ended_by TEXT,
    -- whether the features might be used when it was ended
    access_before INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE UNIQUE INDEX subscription_records_open ON subscription_records (subscription)
    WHERE ended_at IS NULL;
CREATE INDEX subscription_records_by_tenant ON subscription_records (tenant_no, record_no);
CREATE INDEX subscription_records_ended_by ON subscription_records (ended_by)
    WHERE ended_by NOT NULL;

-- Taxes, while they hold.
CREATE TABLE tax_rates (
    -- such as de or us-ny
    jurisdiction TEXT NOT NULL,
    -- what it is called on the bill
    name TEXT NOT NULL,
    -- from when on it holds
    valid_from INTEGER NOT NULL,
    -- until when; null until another one is known
    valid_until INTEGER,
    -- such as 19
    percent TEXT NOT NULL,
    -- when it was written
    created_at INTEGER NOT NULL,
    PRIMARY KEY (jurisdiction, name, valid_from)
) STRICT, WITHOUT ROWID;

CREATE TABLE coupons (
    -- what the tenant is given
    code TEXT NOT NULL PRIMARY KEY,
    -- what it takes off and when, as JSON
    coupon TEXT NOT NULL,
    -- when it was written
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Quotes as they were answered; rows are only added.
CREATE TABLE quotes (
    -- whose
    tenant_no INTEGER NOT NULL,
    -- under which it was answered once
    key TEXT NOT NULL,
    -- what was asked, as JSON in one form
    request TEXT NOT NULL,
    -- what was answered, as JSON
    answer TEXT NOT NULL,
    -- which engine answered
    engine TEXT NOT NULL,
    -- when
    at INTEGER NOT NULL,
    PRIMARY KEY (tenant_no, key)
) STRICT, WITHOUT ROWID;

-- Coupons as they were used: once in a cycle.
CREATE TABLE coupon_uses (
    -- by whom
    tenant_no INTEGER NOT NULL,
    -- which
    code TEXT NOT NULL,
    -- start of the billing cycle
    cycle INTEGER NOT NULL,
    -- the quote's key
    quote_key TEXT NOT NULL,
    PRIMARY KEY (tenant_no, code, cycle)
) STRICT, WITHOUT ROWID;
