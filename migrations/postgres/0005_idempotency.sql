-- Idempotency keys of requests: the table of the crate counterfoil-idempotency, word for word.

-- Idempotency keys: one row for each key that a tenant has sent to a route, from its first call
-- until it is swept. Times are Unix milliseconds.
CREATE TABLE IF NOT EXISTS idempotency_keys (
    -- who sent the key, as authentication says
    tenant text COLLATE "C" NOT NULL,
    -- the operation it was sent to
    route text COLLATE "C" NOT NULL,
    -- the key as the caller chose it
    key text COLLATE "C" NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
    -- SHA-256 of the request, 32 bytes; another request under the key is refused
    fingerprint bytea NOT NULL CHECK (octet_length(fingerprint) = 32),
    -- claimed: somebody is at it; released: given up, and the next caller goes on at once;
    -- completed and failed: ended with the answer in this row
    state text NOT NULL CHECK (state IN ('claimed', 'released', 'completed', 'failed')),
    -- who claimed it last: 16 random bytes of that claim
    owner bytea NOT NULL CHECK (octet_length(owner) = 16),
    -- how often it was claimed; shuts out earlier owners
    fence bigint NOT NULL CHECK (fence >= 1),
    -- until when the owner is taken to be alive; null unless claimed
    lease_until bigint,
    -- for how many milliseconds the owner asked; a lease further ahead shows a clock set back
    lease_ms bigint NOT NULL CHECK (lease_ms >= 0),
    -- where the work got to, in its own words; null before its first effect
    recovery_point text CHECK (length(recovery_point) BETWEEN 1 AND 1024),
    -- HTTP status of the answer; this and the next three are null unless ended
    status bigint CHECK (status BETWEEN 200 AND 599),
    -- headers of the answer: a JSON list of [name, value], one character for each byte of a value
    headers text,
    -- body of the answer, byte for byte
    body bytea,
    -- when it was first claimed
    created_at bigint NOT NULL,
    -- when it ended
    ended_at bigint,
    -- from when it may be swept; null if never: while claimed, and while released after an effect
    expires_at bigint,
    PRIMARY KEY (tenant, route, key),
    CONSTRAINT idempotency_keys_claimed CHECK ((state = 'claimed') = (lease_until IS NOT NULL)),
    CONSTRAINT idempotency_keys_ended CHECK (
        (state IN ('completed', 'failed')) = (status IS NOT NULL)
        AND (status IS NULL) = (headers IS NULL)
        AND (status IS NULL) = (body IS NULL)
        AND (status IS NULL) = (ended_at IS NULL)
    ),
    CONSTRAINT idempotency_keys_expiry CHECK (
        (expires_at IS NULL)
        = (state = 'claimed' OR (state = 'released' AND recovery_point IS NOT NULL))
    )
);

CREATE INDEX IF NOT EXISTS idempotency_keys_sweep ON idempotency_keys (expires_at)
    WHERE expires_at IS NOT NULL;
