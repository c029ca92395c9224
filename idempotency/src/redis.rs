//! Keys in Redis.
//!
//! Invariant: every write is a script that compares the whole value with what was read and changes
//! nothing if it differs, so a verb happens wholly or not at all. Only records that nobody holds
//! and that tell of no unfinished effect have an expiry.

mod value;

use crate::clock::Clock;
use crate::digest::{digest_fields, hex};
use crate::judge::{
    Judgement, RELEASED_KEPT, Stored, check_point, judge, new_owner, state_of, write_headers,
};
use crate::record::{Answer, Claim, Claimed, Ending, Fingerprint, Scope, StoreError, whole_millis};
use crate::store::Store;
use ::redis::aio::{ConnectionManager, ConnectionManagerConfig};
use ::redis::{Client, RedisError, Script};
use async_trait::async_trait;
use std::time::Duration;

/// How often a verb looks again because others changed the record under its eyes.
const TRIES: u32 = 32;
const TIMEOUT: Duration = Duration::from_secs(2);

/// Sets the value if there is none; else returns what is there.
const INSERT: &str = "
    local known = redis.call('GET', KEYS[1])
    if known then return known end
    redis.call('SET', KEYS[1], ARGV[1])
    return false";

/// Sets the value if it still is what was read. An expiry of 0 is none.
const REPLACE: &str = "
    if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
    if ARGV[3] == '0' then
        redis.call('SET', KEYS[1], ARGV[2])
    else
        redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
    end
    return 1";

/// Removes the value if it still is what was read.
const REMOVE: &str = "
    if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
    return redis.call('DEL', KEYS[1])";

/// Keys in Redis 7, with the same contract as the others and fewer promises.
///
/// # What Redis alone cannot promise
///
/// An effect is never in Redis, so it and its record cannot commit together: an owner may die
/// after the effect and before [`Store::end`], and the next owner runs the handler again, from its
/// last recovery point. And Redis may forget: with `appendfsync everysec` a crash loses up to a
/// second, a failover may lose what the replica had not got, an eviction loses anything. A
/// forgotten claim lets a second caller in beside the first; a forgotten answer lets the operation
/// run again.
///
/// So Redis is a gate before the effect and not the authority on it. Give the effect a unique key
/// of its own where it is kept, such as a unique column with the scope in it, or send the key on
/// to a provider that knows it, and a second run finds the first. Where the effect is in a SQL
/// database anyway, the stores for SQLite and PostgreSQL need none of this.
///
/// Set `appendonly yes`, and `appendfsync always` if you can afford it. Eviction must be off;
/// [`RedisStore::connect`] refuses a server that evicts.
///
/// # Time
///
/// Redis itself expires records, by its own clock, so [`Store::sweep`] has nothing to do and a
/// clock of the application that was set forward forgets nothing. A clock of the Redis server that
/// was set forward does: watch it. Leases are judged by the application's clocks.
#[derive(Clone)]
pub struct RedisStore {
    connection: ConnectionManager,
    clock: Clock,
}

impl RedisStore {
    /// Connects; afterwards a lost connection is made again by itself.
    pub async fn connect(url: &str, clock: Clock) -> Result<Self, StoreError> {
        let client = Client::open(url).map_err(|error| failed(&error))?;
        let config = ConnectionManagerConfig::new()
            .set_number_of_retries(1)
            .set_connection_timeout(Some(TIMEOUT))
            .set_response_timeout(Some(TIMEOUT));
        let connection = ConnectionManager::new_with_config(client, config).await;
        let mut connection = connection.map_err(|error| failed(&error))?;
        let memory: String = ::redis::cmd("INFO")
            .arg("memory")
            .query_async(&mut connection)
            .await
            .map_err(|error| failed(&error))?;
        refuse_eviction(&memory)?;
        Ok(Self { connection, clock })
    }

    /// None if the value was set, else the value that is there.
    async fn insert(&self, scope: &Scope, value: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let mut connection = self.connection.clone();
        let script = Script::new(INSERT);
        let known = script.key(name(scope)).arg(value).invoke_async(&mut connection).await;
        known.map_err(|error| failed(&error))
    }

    async fn get(&self, scope: &Scope) -> Result<Option<Vec<u8>>, StoreError> {
        let mut connection = self.connection.clone();
        let value = ::redis::cmd("GET").arg(name(scope)).query_async(&mut connection).await;
        value.map_err(|error| failed(&error))
    }

    /// False if the value is not any more what was read.
    async fn replace(
        &self,
        scope: &Scope,
        read: &[u8],
        stored: &Stored,
        expiry: Option<Duration>,
    ) -> Result<bool, StoreError> {
        let mut connection = self.connection.clone();
        let expiry_ms = expiry.map_or(0, |expiry| whole_millis(expiry).max(1));
        let replaced: Result<u8, RedisError> = Script::new(REPLACE)
            .key(name(scope))
            .arg(read)
            .arg(value::write(scope, stored))
            .arg(expiry_ms)
            .invoke_async(&mut connection)
            .await;
        Ok(replaced.map_err(|error| failed(&error))? == 1)
    }

    /// False if the value is not any more what was read.
    async fn remove(&self, scope: &Scope, read: &[u8]) -> Result<bool, StoreError> {
        let mut connection = self.connection.clone();
        let script = Script::new(REMOVE);
        let removed: Result<u8, RedisError> =
            script.key(name(scope)).arg(read).invoke_async(&mut connection).await;
        Ok(removed.map_err(|error| failed(&error))? == 1)
    }

    /// Changes the record of a claim that is still good.
    async fn change(
        &self,
        claim: &Claim,
        change: impl Fn(&mut Stored) -> Option<Duration> + Send + Sync,
    ) -> Result<(), StoreError> {
        for _ in 0..TRIES {
            let Some(read) = self.get(&claim.scope).await? else { return Err(StoreError::Fenced) };
            let mut stored = value::read(&claim.scope, &read)?;
            let own = stored.state == "claimed"
                && stored.fence == claim.fence
                && stored.owner == claim.owner;
            if !own {
                return Err(StoreError::Fenced);
            }
            let expiry = change(&mut stored);
            if self.replace(&claim.scope, &read, &stored, expiry).await? {
                return Ok(());
            }
        }
        Err(changed_too_often())
    }

    /// None if the record has changed since it was read.
    async fn take_over(
        &self,
        scope: &Scope,
        read: &[u8],
        stored: Stored,
        fence: i64,
        lease: Duration,
    ) -> Result<Option<Claim>, StoreError> {
        let owner = new_owner();
        let taken = Stored {
            state: "claimed".to_owned(),
            owner: owner.to_vec(),
            fence,
            lease_until: Some(self.clock.now().after(lease).0),
            lease_ms: whole_millis(lease),
            ..stored
        };
        let replaced = self.replace(scope, read, &taken, None).await?;
        let recovery_point = taken.recovery_point;
        let claim = || Claim { scope: scope.clone(), owner, fence, recovery_point };
        Ok(replaced.then(claim))
    }
}

#[async_trait]
impl Store for RedisStore {
    async fn claim(
        &self,
        scope: &Scope,
        fingerprint: &Fingerprint,
        lease: Duration,
    ) -> Result<Claimed, StoreError> {
        for _ in 0..TRIES {
            let owner = new_owner();
            let now = self.clock.now();
            let new = first_claim(fingerprint, owner, now.after(lease).0, whole_millis(lease));
            let Some(read) = self.insert(scope, &value::write(scope, &new)).await? else {
                let (scope, recovery_point) = (scope.clone(), None);
                return Ok(Claimed::Owned(Claim { scope, owner, fence: 1, recovery_point }));
            };
            let stored = value::read(scope, &read)?;
            match judge(&stored, fingerprint, now)? {
                Judgement::Free { fence } => {
                    if let Some(claim) = self.take_over(scope, &read, stored, fence, lease).await? {
                        return Ok(Claimed::Owned(claim));
                    }
                }
                Judgement::Ended(answer) => return Ok(Claimed::Ended(answer)),
                Judgement::Busy { retry_after, shortened } => {
                    if let Some(until) = shortened {
                        // If it has changed meanwhile, its owner lives.
                        let shorter = Stored { lease_until: Some(until.0), ..stored };
                        self.replace(scope, &read, &shorter, None).await?;
                    }
                    return Ok(Claimed::Busy { retry_after });
                }
                Judgement::Mismatch => return Ok(Claimed::Mismatch),
            }
        }
        Err(changed_too_often())
    }

    async fn renew(&self, claim: &Claim, lease: Duration) -> Result<(), StoreError> {
        let until = self.clock.now().after(lease).0;
        let change = |stored: &mut Stored| {
            stored.lease_until = Some(until);
            stored.lease_ms = whole_millis(lease);
            None
        };
        self.change(claim, change).await
    }

    async fn reach(&self, claim: &Claim, point: &str) -> Result<(), StoreError> {
        check_point(point)?;
        let change = |stored: &mut Stored| {
            stored.recovery_point = Some(point.to_owned());
            None
        };
        self.change(claim, change).await
    }

    async fn end(
        &self,
        claim: &Claim,
        answer: &Answer,
        ending: Ending,
        keep: Duration,
    ) -> Result<(), StoreError> {
        let headers = write_headers(answer)?;
        let change = |stored: &mut Stored| {
            stored.state = state_of(ending).to_owned();
            stored.lease_until = None;
            stored.status = Some(i64::from(answer.status));
            stored.headers = Some(headers.clone());
            stored.body = Some(answer.body.to_vec());
            Some(keep)
        };
        self.change(claim, change).await
    }

    async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
        let change = |stored: &mut Stored| {
            stored.state = "released".to_owned();
            stored.lease_until = None;
            stored.recovery_point.is_none().then_some(RELEASED_KEPT)
        };
        self.change(claim, change).await
    }

    async fn forget(&self, claim: &Claim) -> Result<(), StoreError> {
        let Some(read) = self.get(&claim.scope).await? else { return Err(StoreError::Fenced) };
        let stored = value::read(&claim.scope, &read)?;
        let first = stored.state == "claimed"
            && (stored.fence, claim.fence) == (1, 1)
            && stored.owner == claim.owner
            && stored.recovery_point.is_none();
        if first && self.remove(&claim.scope, &read).await? {
            return Ok(());
        }
        self.release(claim).await
    }

    async fn sweep(&self, _limit: u32) -> Result<u32, StoreError> {
        Ok(0)
    }
}

/// The name of a record: a digest, since tenants and keys may hold any separator.
fn name(scope: &Scope) -> String {
    let Scope { tenant, route, key } = scope;
    let fields = ["counterfoil idempotency scope 1", tenant, route, key];
    format!("idempotency:{}", hex(&digest_fields(fields.map(str::as_bytes))))
}

fn first_claim(
    fingerprint: &Fingerprint,
    owner: [u8; 16],
    lease_until: i64,
    lease_ms: i64,
) -> Stored {
    Stored {
        fingerprint: fingerprint.0.to_vec(),
        state: "claimed".to_owned(),
        owner: owner.to_vec(),
        fence: 1,
        lease_until: Some(lease_until),
        lease_ms,
        recovery_point: None,
        status: None,
        headers: None,
        body: None,
    }
}

fn refuse_eviction(memory: &str) -> Result<(), StoreError> {
    let policy = memory.lines().find_map(|line| line.trim().strip_prefix("maxmemory_policy:"));
    match policy {
        Some("noeviction") => Ok(()),
        Some(policy) => Err(StoreError::Unavailable(format!(
            "Redis has the maxmemory-policy {policy} and may forget keys; set it to noeviction"
        ))),
        None => Err(StoreError::Unavailable(
            "Redis does not say its maxmemory-policy, which has to be noeviction".to_owned(),
        )),
    }
}

fn changed_too_often() -> StoreError {
    StoreError::Unavailable(format!("the record changed {TRIES} times meanwhile"))
}

/// A value of another type under the name is a record that is not ours.
fn failed(error: &RedisError) -> StoreError {
    let message = error.to_string();
    let other_type = error.code() == Some("WRONGTYPE") || message.contains("WRONGTYPE");
    if other_type { StoreError::Unreadable(message) } else { StoreError::Unavailable(message) }
}
