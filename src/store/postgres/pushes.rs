//! Pushes: claimed, then begun, by one server at a time.
//!
//! Invariant: of a tenant and meter at most one push is leased, and of a window the lowest observed
//! revision goes first, so of those begun only one is unresolved. A claim holds an advisory lock on
//! each tenant and meter it leases a push of, until its commit; it never waits for one. Under that
//! lock it looks again, in a statement of its own that sees every lease committed before, so the
//! unique index `pushes_in_flight` is there to prove the rule, not to carry it.
//!
//! A crash leaves leases that end by themselves; their pushes are then due as before, with the
//! customer and the bytes of their first attempt. A claim that is repeated because its outcome was
//! lost passes over what the lost one leased. An attempt that is begun again counts as another
//! attempt, under the same fence, customer and bytes.

use super::PostgresStore;
use super::epochs::read_windows;
use super::numeric::SqlQuantity;
use super::push_rows::{lock_pushes, log_lines, read_customer, read_pushes, record_lines};
use super::scalars::{SqlTimestamp, column, corrupt, read_count, write_count, write_limit};
use super::statements::Statements;
use super::transaction::{Done, Transaction};
use super::unbilled;
use crate::faults::planted;
use crate::rules::ids::{CustomerId, MeterNo};
use crate::rules::push::StoredPush;
use crate::rules::quantity::Quantity;
use crate::rules::settlement::plan_attempt;
use crate::rules::submission::Class;
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::epoch::Uncompared;
use crate::store::push::{
    AttemptIntent, ClaimedPush, PushClaim, Pushes, Ruling, Settlement, TransitionLine, UnbilledSums,
};
use async_trait::async_trait;
use deadpool_postgres::ClientWrapper;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio_postgres::types::ToSql;

/// Due rows that are looked at for each push that may be claimed: a tenant and meter with several
/// due rows takes one.
const ROWS_PER_CLAIM: usize = 4;

#[async_trait]
impl Pushes for PostgresStore {
    async fn claim_pushes(&self, claim: PushClaim) -> Result<Vec<ClaimedPush>> {
        let claim = &claim;
        let work = move |client: Arc<Transaction>| async move { claim_due(&client, claim).await };
        self.transact(work).await
    }

    async fn begin_attempts(&self, intents: Vec<AttemptIntent>, at: Timestamp) -> Result<Vec<u64>> {
        let intents = intents.as_slice();
        let work =
            move |client: Arc<Transaction>| async move { begin_all(&client, intents, at).await };
        let lines = self.transact(work).await?;
        log_lines(&lines);
        Ok(lines.into_iter().map(|line| line.push).collect())
    }

    async fn settle_pushes(&self, settlements: Vec<Settlement>, at: Timestamp) -> Result<usize> {
        self.settle(&settlements, at).await
    }

    async fn retry_push(&self, number: u64, at: Timestamp) -> Result<Ruling> {
        self.retry(number, at).await
    }

    async fn discard_push(&self, number: u64, reason: &str, at: Timestamp) -> Result<Ruling> {
        self.discard(number, reason, at).await
    }

    async fn sum_unbilled(&self, meters: Vec<(MeterNo, Timestamp)>) -> Result<UnbilledSums> {
        unbilled::sum_unbilled(self.reader().await?, &self.connector, &meters).await
    }
}

/// A due push, before it is claimed.
struct DuePush {
    number: i64,
    pair: PushPair,
}

/// A tenant and a meter.
type PushPair = (i32, i16);

/// Everything but the COMMIT.
async fn claim_due(client: &ClientWrapper, claim: &PushClaim) -> Done<Vec<ClaimedPush>> {
    end_leases(client, claim.now).await?;
    let (mut seen, mut claimed) = (BTreeSet::new(), Vec::new());
    while claimed.len() < claim.limit {
        let missing = claim.limit - claimed.len();
        let rows_max = missing.saturating_mul(ROWS_PER_CLAIM).saturating_add(ROWS_PER_CLAIM);
        let page = list_due(client, claim, &seen, rows_max).await?;
        let last = page.len() < rows_max;
        // The first of each tenant and meter; on the next page those are left out.
        let first: Vec<DuePush> =
            page.into_iter().filter(|due| seen.insert(due.pair)).take(missing).collect();
        let locked = lock_pairs(client, &first).await?;
        claimed.extend(lease_pushes(client, &locked, claim).await?);
        if last {
            break;
        }
    }
    describe_claimed(client, &claimed).await
}

/// Takes off leases that ended; their pushes stay observed. One that is being settled is passed
/// over.
async fn end_leases(client: &ClientWrapper, now: Timestamp) -> Done<()> {
    let sql = "-- end_leases
        UPDATE pushes SET leased_until = NULL
        WHERE push_no IN (
            SELECT push_no FROM pushes
            WHERE leased_until IS NOT NULL AND leased_until <= $1
            ORDER BY push_no FOR UPDATE SKIP LOCKED
        )";
    client.run(sql, &[&SqlTimestamp(now)]).await?;
    Ok(())
}

/// Pushes that could be claimed, in the order of claims, of tenants and meters not seen yet.
/// Whether there is any hold is asked once, so that without one no push is looked up among them.
async fn list_due(
    client: &ClientWrapper,
    claim: &PushClaim,
    seen: &BTreeSet<PushPair>,
    rows_max: usize,
) -> Done<Vec<DuePush>> {
    let sql = "-- list_due
        SELECT p.push_no, p.tenant_no, p.meter_no
        FROM pushes p
        JOIN tenants t ON t.tenant_no = p.tenant_no AND t.customer IS NOT NULL
        WHERE p.state = 'observed' AND p.due_at <= $1 AND p.shadow = $6
            AND (p.tenant_no, p.meter_no) NOT IN (
                SELECT busy.tenant_no, busy.meter_no FROM pushes busy
                WHERE busy.leased_until IS NOT NULL
            )
            AND (p.tenant_no, p.meter_no) NOT IN (
                SELECT seen.tenant_no, seen.meter_no
                FROM unnest($2::int4[], $3::int2[]) AS seen (tenant_no, meter_no)
            )
            AND ($4 OR NOT EXISTS (
                SELECT FROM pushes lower
                WHERE lower.tenant_no = p.tenant_no AND lower.meter_no = p.meter_no
                    AND lower.window_start = p.window_start AND lower.revision < p.revision
                    AND lower.state = 'observed'
            ))
            AND (NOT EXISTS (SELECT FROM holds) OR NOT EXISTS (
                SELECT FROM holds h
                WHERE h.tenant_no = p.tenant_no AND h.held_from <= p.window_start
            ))
        ORDER BY p.due_at, p.push_no
        LIMIT $5";
    let (tenants, meters): (Vec<i32>, Vec<i16>) = seen.iter().copied().unzip();
    let any_revision = planted("bug.two_unresolved");
    let (now, limit) = (SqlTimestamp(claim.now), write_limit(rows_max));
    let given: [&(dyn ToSql + Sync); 6] =
        [&now, &tenants, &meters, &any_revision, &limit, &claim.shadow];
    let rows = client.read_all(sql, &given).await?;
    let due =
        |row| Ok(DuePush { number: column(row, 0)?, pair: (column(row, 1)?, column(row, 2)?) });
    Ok(rows.iter().map(due).collect::<Result<_>>()?)
}

/// The numbers of those whose tenant and meter no other claim works on; these are then ours until
/// the transaction ends.
async fn lock_pairs(client: &ClientWrapper, due: &[DuePush]) -> Done<Vec<i64>> {
    let sql = "-- lock_pairs
        SELECT given.push_no
        FROM unnest($1::int8[], $2::int4[], $3::int2[]) AS given (push_no, tenant_no, meter_no)
        WHERE pg_try_advisory_xact_lock(given.tenant_no, given.meter_no)";
    if due.is_empty() {
        return Ok(Vec::new());
    }
    let numbers: Vec<i64> = due.iter().map(|due| due.number).collect();
    let (tenants, meters): (Vec<i32>, Vec<i16>) = due.iter().map(|due| due.pair).unzip();
    let rows = client.read_all(sql, &[&numbers, &tenants, &meters]).await?;
    Ok(rows.iter().map(|row| column(row, 0)).collect::<Result<_>>()?)
}

/// Leases those that can still be claimed.
async fn lease_pushes(
    client: &ClientWrapper,
    numbers: &[i64],
    claim: &PushClaim,
) -> Done<Vec<i64>> {
    if numbers.is_empty() {
        return Ok(Vec::new());
    }
    let sql = "-- lease_pushes
        WITH free AS MATERIALIZED (
            SELECT p.push_no FROM pushes p
            WHERE p.push_no = ANY ($1) AND p.state = 'observed' AND p.due_at <= $2
                AND p.leased_until IS NULL
                AND NOT EXISTS (
                    SELECT FROM pushes busy
                    WHERE busy.tenant_no = p.tenant_no AND busy.meter_no = p.meter_no
                        AND busy.leased_until IS NOT NULL
                )
                AND NOT EXISTS (
                    SELECT FROM holds h
                    WHERE h.tenant_no = p.tenant_no AND h.held_from <= p.window_start
                )
            ORDER BY p.push_no
            FOR UPDATE OF p SKIP LOCKED
        )
        UPDATE pushes p SET leased_until = $3, fence = p.fence + 1
        FROM free WHERE p.push_no = free.push_no
        RETURNING p.push_no";
    let (now, until) = (SqlTimestamp(claim.now), SqlTimestamp(claim.lease_until));
    let rows = client.read_all(sql, &[&numbers, &now, &until]).await?;
    Ok(rows.iter().map(|row| column(row, 0)).collect::<Result<_>>()?)
}

/// What a claimant needs to know, in the order of claims.
async fn describe_claimed(client: &ClientWrapper, numbers: &[i64]) -> Done<Vec<ClaimedPush>> {
    if numbers.is_empty() {
        return Ok(Vec::new());
    }
    let mut standing = read_standing(client, numbers).await?;
    let windows = read_windows(client, numbers).await?;
    let mut claimed = Vec::with_capacity(numbers.len());
    for found in read_pushes(client, numbers).await? {
        let StoredPush { push, tenant_customer, request, request_keys, fence, .. } = found;
        let unreadable_since = found.unreadable_since;
        let uncompared = windows.find(&push);
        let uncompared = uncompared.map(|window| Uncompared { last: found.looked, ..window });
        let PushStanding { settled, doubtful, customer } =
            standing.remove(&push.number).ok_or_else(|| {
                corrupt(format!("pushes.push_no={} vanished mid-transaction", push.number))
            })?;
        let customer = push.customer.clone().or(customer).or(tenant_customer);
        let customer = customer.ok_or_else(|| {
            corrupt(format!("claimed pushes.push_no={} has no customer", push.number))
        })?;
        claimed.push(ClaimedPush {
            push,
            fence,
            customer,
            request,
            request_keys,
            settled,
            doubtful,
            unreadable_since,
            uncompared,
        });
    }
    claimed.sort_by_key(|claimed| (claimed.push.due_at, claimed.push.number));
    Ok(claimed)
}

/// The stored state of a push's window.
pub struct PushStanding {
    /// What the provider has of it, for its customer, since the summary is by customer.
    pub settled: Quantity,
    /// Whether nobody knows if some dead push of the window counted.
    pub doubtful: bool,
    /// The customer that the window belongs to, as `rules::customer::customer_of_window` has it.
    pub customer: Option<CustomerId>,
}

pub async fn read_standing(
    client: &ClientWrapper,
    numbers: &[i64],
) -> Done<BTreeMap<u64, PushStanding>> {
    let sql = "-- read_standing
        WITH claimed AS MATERIALIZED (
            SELECT p.*, t.customer AS tenant_customer, (
                SELECT own.customer FROM pushes own
                WHERE own.tenant_no = p.tenant_no AND own.meter_no = p.meter_no
                    AND own.window_start = p.window_start AND own.customer IS NOT NULL
                    AND (own.state IN ('submitted', 'confirmed', 'reconciled')
                        OR (own.state = 'observed' AND own.attempts > 0)
                        OR (own.state = 'dead'
                            AND own.class IN ('undecidable', 'unreadable', 'absent'))
                        OR own.state = 'discarded'
                        OR (own.state = 'dead' AND own.class = 'refused' AND own.attempts > 1))
                    AND NOT $2
                ORDER BY own.revision LIMIT 1
            ) AS window_customer
            FROM pushes p JOIN tenants t ON t.tenant_no = p.tenant_no
            WHERE p.push_no = ANY ($1)
        )
        SELECT p.push_no,
            (
                SELECT COALESCE(sum(settled.quantity), 0) FROM pushes settled
                WHERE settled.tenant_no = p.tenant_no AND settled.meter_no = p.meter_no
                    AND settled.window_start = p.window_start
                    AND settled.state IN ('submitted', 'confirmed', 'reconciled')
                    AND settled.customer
                        = COALESCE(p.customer, p.window_customer, p.tenant_customer)
            ),
            EXISTS (
                SELECT FROM pushes dead
                WHERE dead.tenant_no = p.tenant_no AND dead.meter_no = p.meter_no
                    AND dead.window_start = p.window_start
                    AND ((dead.state = 'dead' AND dead.class IN ('undecidable', 'unreadable'))
                        OR (dead.state = 'discarded' AND EXISTS (
                            SELECT FROM push_transitions past
                            WHERE past.push_no = dead.push_no
                                AND past.class IN ('undecidable', 'unreadable')
                        )))
            ),
            p.window_customer
        FROM claimed p";
    let statement = client.prepare_cached(sql).await?;
    let mut standing = BTreeMap::new();
    for row in client.query(&statement, &[&numbers, &planted("bug.customer_of_today")]).await? {
        let (SqlQuantity(settled), doubtful) = (column(&row, 1)?, column(&row, 2)?);
        let customer = read_customer(&row, 3)?;
        let number = read_count(column(&row, 0)?)?;
        standing.insert(number, PushStanding { settled, doubtful, customer });
    }
    Ok(standing)
}

/// Writes attempts down whose claimants still hold their pushes.
async fn begin_all(
    client: &ClientWrapper,
    intents: &[AttemptIntent],
    at: Timestamp,
) -> Done<Vec<TransitionLine>> {
    let numbers: Vec<i64> =
        intents.iter().map(|intent| write_count(intent.push)).collect::<Result<_>>()?;
    lock_pushes(client, &numbers).await?;
    let stored = read_pushes(client, &numbers).await?;
    let (mut begun, mut lines) = (Vec::new(), Vec::new());
    for found in &stored {
        let push = &found.push;
        let given = intents.iter().find(|intent| intent.push == push.number);
        let Some(intent) = given else { continue };
        if !plan_attempt(found, intent, at)? {
            continue;
        }
        begun.push(intent);
        lines.push(TransitionLine {
            push: push.number,
            tenant: push.tenant.clone(),
            key: push.key.clone(),
            state: push.state,
            class: Class::Attempt,
            attempt: push.attempts + 1,
            request_id: None,
            detail: None,
        });
    }
    if begun.is_empty() {
        return Ok(lines);
    }
    let sql = "-- begin_all
        UPDATE pushes p SET attempts = p.attempts + 1, class = 'attempt',
            first_attempt_at = COALESCE(p.first_attempt_at, $4),
            customer = COALESCE(p.customer, given.customer),
            request = COALESCE(p.request, given.request)
        FROM unnest($1::int8[], $2::text[], $3::bytea[]) AS given (push_no, customer, request)
        WHERE p.push_no = given.push_no";
    let numbers: Vec<i64> =
        begun.iter().map(|intent| write_count(intent.push)).collect::<Result<_>>()?;
    let customers: Vec<&str> = begun.iter().map(|intent| intent.customer.as_str()).collect();
    let requests: Vec<&[u8]> = begun.iter().map(|intent| intent.request.as_slice()).collect();
    let given: [&(dyn ToSql + Sync); 4] = [&numbers, &customers, &requests, &SqlTimestamp(at)];
    client.run(sql, &given).await?;
    record_lines(client, &lines, at).await?;
    Ok(lines)
}
