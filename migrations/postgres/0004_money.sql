-- Operations on money: accounts, credits, sagas, quotes, and the change feed.

-- how much of the window's total credits cover; it is not billed
ALTER TABLE cuts ADD COLUMN covered numeric NOT NULL DEFAULT 0 CHECK (covered
    BETWEEN -170141183460469231731687304 AND 170141183460469231731687304);

-- Accounts of tenants. Over a tenant and unit, balances sum to zero.
CREATE TABLE accounts (
    -- order of creation
    account_no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- whose
    tenant_no integer NOT NULL,
    -- its name
    name text COLLATE "C" NOT NULL,
    -- what its amounts are of
    unit text NOT NULL,
    -- zero if it may not fall below it, else none
    floor text NOT NULL,
    -- exact decimal
    balance numeric NOT NULL CHECK (balance
        BETWEEN -170141183460469231731687304 AND 170141183460469231731687304),
    -- entries that have touched it
    version bigint NOT NULL,
    -- when it was created
    created_at timestamptz NOT NULL,
    UNIQUE (tenant_no, name),
    CHECK (floor IN ('zero', 'none')),
    CHECK (floor = 'none' OR balance >= 0)
);

-- Entries; rows are only added.
CREATE TABLE entries (
    -- order of creation
    entry_no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- whose
    tenant_no integer NOT NULL,
    -- under which it was written once
    key text COLLATE "C" NOT NULL,
    -- why
    memo text NOT NULL,
    -- when
    at timestamptz NOT NULL,
    UNIQUE (tenant_no, key)
);

-- The lines of entries; rows are only added.
CREATE TABLE postings (
    -- the entry
    entry_no bigint NOT NULL,
    -- place within the entry, from 0
    line bigint NOT NULL,
    -- the account
    account_no bigint NOT NULL,
    -- what it gained; negative where it lost
    amount numeric NOT NULL CHECK (amount
        BETWEEN -170141183460469231731687304 AND 170141183460469231731687304),
    -- its balance afterwards
    balance numeric NOT NULL CHECK (balance
        BETWEEN -170141183460469231731687304 AND 170141183460469231731687304),
    -- its version afterwards
    version bigint NOT NULL,
    PRIMARY KEY (entry_no, line),
    UNIQUE (account_no, version)
);

-- Credits that were given or paid for.
CREATE TABLE grants (
    -- order of creation, and its name in the API
    grant_no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- whose
    tenant_no integer NOT NULL,
    -- under which it was issued once
    key text COLLATE "C" NOT NULL,
    -- granted or purchased
    pool text NOT NULL,
    -- what its amount is of
    unit text NOT NULL,
    -- how much it was
    amount numeric NOT NULL CHECK (amount
        BETWEEN -170141183460469231731687304 AND 170141183460469231731687304),
    -- what a unit of usage costs, by meter number, as JSON
    rates text NOT NULL,
    -- 0 is drawn first
    priority integer NOT NULL,
    -- usage from then on is covered
    effective_at timestamptz NOT NULL,
    -- usage from then on is not; null if it never expires
    expires_at timestamptz,
    -- why
    memo text NOT NULL,
    -- what is left of it
    remaining numeric NOT NULL CHECK (remaining
        BETWEEN -170141183460469231731687304 AND 170141183460469231731687304),
    -- when it was issued
    created_at timestamptz NOT NULL,
    UNIQUE (tenant_no, key),
    CHECK (pool IN ('granted', 'purchased')),
    CHECK (remaining >= 0 AND remaining <= amount)
);

CREATE INDEX grants_live ON grants (tenant_no, grant_no) WHERE remaining <> 0;
CREATE INDEX grants_expiring ON grants (expires_at) WHERE remaining <> 0 AND expires_at IS NOT NULL;

-- Every change of every grant; rows are only added.
CREATE TABLE credit_changes (
    -- order in which they were written
    change_no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- whose
    tenant_no integer NOT NULL,
    -- the grant
    grant_no bigint NOT NULL,
    -- issued, drawn, given_back, expired, refunded or voided
    kind text NOT NULL,
    -- in the grant's unit, never negative
    amount numeric NOT NULL CHECK (amount
        BETWEEN -170141183460469231731687304 AND 170141183460469231731687304),
    -- what it left of the grant
    remaining numeric NOT NULL CHECK (remaining
        BETWEEN -170141183460469231731687304 AND 170141183460469231731687304),
    -- for draws and what is given back: the meter
    meter_no smallint,
    -- start of the window
    window_start timestamptz,
    -- end of the window
    window_end timestamptz,
    -- usage that is covered, in units of the meter
    quantity numeric CHECK (quantity
        BETWEEN -170141183460469231731687304 AND 170141183460469231731687304),
    -- for refunds and voids: under which it happened once
    key text COLLATE "C",
    -- why
    memo text NOT NULL,
    -- when
    at timestamptz NOT NULL
);

CREATE INDEX credit_changes_by_tenant ON credit_changes (tenant_no, change_no);
CREATE INDEX credit_changes_by_grant ON credit_changes (grant_no, change_no);
CREATE INDEX credit_changes_by_window ON credit_changes (tenant_no, meter_no, window_start)
    WHERE meter_no IS NOT NULL;
CREATE UNIQUE INDEX credit_changes_by_key ON credit_changes (tenant_no, key) WHERE key IS NOT NULL;

-- Operations of several steps.
CREATE TABLE sagas (
    -- order of creation
    saga_no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- its name in the API and at the provider
    id text COLLATE "C" NOT NULL UNIQUE,
    -- create_subscription, change_plan or cancel_subscription
    kind text NOT NULL,
    -- whose
    tenant_no integer NOT NULL,
    -- under which it was begun once
    key text COLLATE "C" NOT NULL,
    -- what it was asked for, as JSON
    params text NOT NULL,
    -- running, compensating, completed, compensated or needs_attention
    state text NOT NULL,
    -- grows with each new start after everything was undone
    generation integer NOT NULL,
    -- tries in a row that have failed
    tries integer NOT NULL,
    -- when it goes on
    due_at timestamptz NOT NULL,
    -- what it waits for, or what went wrong last
    detail text,
    -- grows with each claim; what an earlier claimant writes is refused
    fence bigint NOT NULL,
    -- until when its claimant works on it; null while nobody does
    leased_until timestamptz,
    -- when it was begun
    created_at timestamptz NOT NULL,
    -- when it came into its state
    state_at timestamptz NOT NULL,
    UNIQUE (tenant_no, key)
);

-- At most one open saga of a tenant.
CREATE UNIQUE INDEX sagas_open ON sagas (tenant_no)
    WHERE state IN ('running', 'compensating', 'needs_attention');
CREATE INDEX sagas_due ON sagas (due_at, saga_no) WHERE state IN ('running', 'compensating');
CREATE INDEX sagas_by_state ON sagas (state, saga_no);

-- Logs of sagas; rows are only added.
CREATE TABLE saga_lines (
    -- the saga
    saga_no bigint NOT NULL,
    -- order within the saga, from 1
    line bigint NOT NULL,
    -- the saga's generation then
    generation integer NOT NULL,
    -- place of the step, from 0
    step integer NOT NULL,
    -- the step's name
    name text COLLATE "C" NOT NULL,
    -- what happened
    mark text NOT NULL,
    -- what the step left for those after it, as JSON
    result text,
    -- what went wrong
    detail text,
    -- when
    at timestamptz NOT NULL,
    PRIMARY KEY (saga_no, line)
);

-- Tenants whose later pushes wait.
CREATE TABLE holds (
    -- the saga that wants it
    saga text COLLATE "C" NOT NULL PRIMARY KEY,
    -- whose pushes
    tenant_no integer NOT NULL,
    -- pushes of windows that start then or later
    held_from timestamptz NOT NULL,
    -- when it was put
    created_at timestamptz NOT NULL
);

CREATE INDEX holds_by_tenant ON holds (tenant_no);

-- What tenants have agreed to.
CREATE TABLE subscription_records (
    -- order of creation
    record_no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- the saga that made it
    saga text COLLATE "C" NOT NULL UNIQUE,
    -- whose
    tenant_no integer NOT NULL,
    -- the provider's subscription
    subscription text COLLATE "C" NOT NULL,
    -- the plan's name
    plan text NOT NULL,
    -- the provider's prices, as a JSON array
    prices text NOT NULL,
    -- what may be used, as a JSON array
    features text NOT NULL,
    -- whether the features may be used
    access boolean NOT NULL,
    -- when it began
    began_at timestamptz NOT NULL,
    -- when it ended; null while it is open
    ended_at timestamptz,
    -- the saga whose subscription record took its place; null if none did
    ended_by text COLLATE "C",
    -- whether the features might be used when it was ended
    access_before boolean NOT NULL DEFAULT false
);

CREATE UNIQUE INDEX subscription_records_open ON subscription_records (subscription)
    WHERE ended_at IS NULL;
CREATE INDEX subscription_records_by_tenant ON subscription_records (tenant_no, record_no);
CREATE INDEX subscription_records_ended_by ON subscription_records (ended_by)
    WHERE ended_by IS NOT NULL;

-- Taxes, while they hold.
CREATE TABLE tax_rates (
    -- such as de or us-ny
    jurisdiction text COLLATE "C" NOT NULL,
    -- what it is called on the bill
    name text COLLATE "C" NOT NULL,
    -- from when on it holds
    valid_from timestamptz NOT NULL,
    -- until when; null until another one is known
    valid_until timestamptz,
    -- such as 19
    percent numeric NOT NULL CHECK (percent
        BETWEEN -170141183460469231731687304 AND 170141183460469231731687304),
    -- when it was written
    created_at timestamptz NOT NULL,
    PRIMARY KEY (jurisdiction, name, valid_from)
);

CREATE TABLE coupons (
    -- what the tenant is given
    code text COLLATE "C" NOT NULL PRIMARY KEY,
    -- what it takes off and when, as JSON
    coupon text NOT NULL,
    -- when it was written
    created_at timestamptz NOT NULL
);

-- Quotes as they were answered; rows are only added.
CREATE TABLE quotes (
    -- whose
    tenant_no integer NOT NULL,
    -- under which it was answered once
    key text COLLATE "C" NOT NULL,
    -- what was asked, as JSON in one form
    request text NOT NULL,
    -- what was answered, as JSON
    answer text NOT NULL,
    -- which engine answered
    engine text NOT NULL,
    -- when
    at timestamptz NOT NULL,
    PRIMARY KEY (tenant_no, key)
);

-- Coupons as they were used: once in a cycle.
CREATE TABLE coupon_uses (
    -- by whom
    tenant_no integer NOT NULL,
    -- which
    code text COLLATE "C" NOT NULL,
    -- start of the billing cycle
    cycle timestamptz NOT NULL,
    -- the quote's key
    quote_key text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant_no, code, cycle)
);
