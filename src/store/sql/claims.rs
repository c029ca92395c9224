//! Pushes: claimed, then begun, by one claimant at a time.
//!
//! A look outside of the transaction finds what could be claimed, so that the transaction only
//! looks at those few; the transaction then decides, and only it leases.
//!
//! Invariant: of a tenant and meter at most one push is leased, and of a window the lowest observed
//! revision goes first, so of those begun only one is unresolved. A claim locks each tenant and
//! meter it leases a push of, until its commit; it never waits for one. Under that lock it looks
//! again, in a statement of its own that sees every lease committed before, so the unique index
//! `pushes_in_flight` is there to prove the rule, not to carry it.
//!
//! A crash leaves leases that end by themselves; their pushes are then due as before, with the
//! customer and the bytes of their first attempt. A claim that is repeated because its outcome was
//! lost passes over what the lost one leased. An attempt that is begun again counts as another
//! attempt, under the same fence, customer and bytes.

use super::epochs::read_epoch;
use super::session::{PushPair, Sum};
use super::{Done, Row, Session, Value, values};
use crate::faults::planted;
use crate::rules::ids::{CustomerId, TenantNo};
use crate::rules::push::StoredPush;
use crate::rules::quantity::Quantity;
use crate::rules::settlement::plan_attempt;
use crate::rules::submission::Class;
use crate::rules::timestamp::Timestamp;
use crate::store::Error;
use crate::store::epoch::Uncompared;
use crate::store::push::{AttemptIntent, ClaimedPush, PushClaim, TransitionLine};
use std::collections::{BTreeMap, BTreeSet};

/// Due rows that are looked at for each push that may be claimed: a tenant and meter with several
/// due rows takes one.
const ROWS_PER_CLAIM: usize = 4;

/// What a push has to meet beside being due, its tenant and meter being free and having a customer.
/// Whether there is any hold is asked once, so that without one no push is looked up among them.
const CLAIMABLE: &str = "($3::bool OR NOT EXISTS (
        SELECT 1 FROM pushes AS lower
        WHERE lower.tenant_no = pushes.tenant_no AND lower.meter_no = pushes.meter_no
            AND lower.window_start = pushes.window_start AND lower.revision < pushes.revision
            AND lower.state = 'observed'
    ))
    AND (NOT EXISTS (SELECT 1 FROM holds) OR NOT EXISTS (
        SELECT 1 FROM holds
        WHERE holds.tenant_no = pushes.tenant_no AND holds.held_from <= pushes.window_start
    ))";

/// What a look for due pushes has found.
#[derive(Debug, Clone, Default)]
pub struct FoundPushes {
    /// The first of each tenant and meter, in the order of claims.
    due: Vec<(u64, PushPair)>,
    /// Tenants without a customer of which a push is due that was never sent.
    pub unmapped: BTreeSet<TenantNo>,
    /// Whether there are no others.
    all: bool,
}

impl FoundPushes {
    pub fn is_empty(&self) -> bool {
        self.due.is_empty()
    }
}

/// At most `limit` pushes that could be claimed, of tenants and meters that were not seen yet. A
/// long queue of one tenant is passed over: what was seen is left out of the next page.
pub fn find_due(
    session: &dyn Session,
    claim: &PushClaim,
    seen: &mut BTreeSet<PushPair>,
    limit: usize,
) -> Done<FoundPushes> {
    let sql = format!(
        "-- find_due
        SELECT push_no, pushes.tenant_no, pushes.meter_no, attempts,
            tenants.customer IS NOT NULL AS mapped
        FROM pushes /*+ INDEXED BY pushes_due */ CROSS JOIN tenants
        WHERE tenants.tenant_no = pushes.tenant_no
            AND state = 'observed' AND due_at <= $1 AND shadow = $2
            AND (pushes.tenant_no, pushes.meter_no) NOT IN (
                SELECT busy.tenant_no, busy.meter_no FROM pushes AS busy
                WHERE busy.leased_until IS NOT NULL AND busy.leased_until > $1
            )
            AND (pushes.tenant_no, pushes.meter_no) NOT IN (VALUES ($::int4, $::int2), ...)
            AND {CLAIMABLE}
        ORDER BY due_at, push_no LIMIT $4"
    );
    let mut found = FoundPushes::default();
    while found.due.len() < limit && !found.all {
        let missing = limit - found.due.len();
        let rows_max = missing.saturating_mul(ROWS_PER_CLAIM).saturating_add(ROWS_PER_CLAIM);
        // No tenant and no meter has a negative number.
        let mut left_out = vec![values![-1i64, -1i64].to_vec()];
        left_out.extend(seen.iter().map(|(tenant, meter)| values![tenant, meter].to_vec()));
        let given = values![claim.now, claim.shadow, planted("bug.two_unresolved"), rows_max];
        let page = session.read_set_with(&sql, given, left_out, |row| {
            let pair = (row.get("pushes.tenant_no")?, row.get("pushes.meter_no")?);
            let begun: u32 = row.get("pushes.attempts")?;
            Ok((row.get("pushes.push_no")?, pair, row.get("tenants.mapped")?, begun > 0))
        })?;
        found.all = page.len() < rows_max;
        for (number, pair, mapped, begun) in page {
            if found.due.len() == limit || !seen.insert(pair) {
                continue;
            }
            match (mapped, begun) {
                (true, _) => found.due.push((number, pair)),
                (false, false) => drop(found.unmapped.insert(pair.0)),
                (false, true) => {}
            }
        }
    }
    Ok(found)
}

/// Leases those of the pushes that can still be claimed, and others in the place of those that
/// cannot.
pub fn claim_found(
    session: &dyn Session,
    claim: &PushClaim,
    mut found: FoundPushes,
) -> Done<Vec<ClaimedPush>> {
    end_leases(session, claim.now)?;
    let (mut seen, mut claimed) = (BTreeSet::new(), Vec::new());
    loop {
        let leased = lease_pushes(session, claim, &found.due)?;
        // What was found is older than this transaction, and another may have sent it since then.
        let outdated = leased.len() < found.due.len();
        claimed.extend(leased);
        let missing = claim.limit - claimed.len();
        if missing == 0 || (found.all && !outdated) {
            return describe_claimed(session, &claimed);
        }
        found = find_due(session, claim, &mut seen, missing)?;
    }
}

/// Takes off leases that ended; their pushes stay observed. One that is being settled is passed
/// over.
fn end_leases(session: &dyn Session, now: Timestamp) -> Done<()> {
    let sql = "-- end_leases
        UPDATE pushes SET leased_until = NULL
        WHERE push_no IN (
            SELECT push_no FROM pushes /*+ INDEXED BY pushes_in_flight */
            WHERE leased_until IS NOT NULL AND leased_until <= $1
            ORDER BY push_no FOR UPDATE SKIP LOCKED
        )";
    session.run(sql, values![now])?;
    Ok(())
}

/// Leases those that can still be claimed and that no other claim works on.
fn lease_pushes(
    session: &dyn Session,
    claim: &PushClaim,
    due: &[(u64, PushPair)],
) -> Done<Vec<u64>> {
    let free = session.try_lock_pairs(due.iter().map(|(_, pair)| *pair).collect())?;
    let sql = format!(
        "-- lease_pushes
        WITH given (number) AS (VALUES ($::int8), ...), free (free_no) AS MATERIALIZED (
            SELECT push_no FROM given JOIN pushes ON push_no = number
            JOIN tenants ON tenants.tenant_no = pushes.tenant_no
            WHERE state = 'observed' AND due_at <= $1 AND tenants.customer IS NOT NULL
                AND NOT EXISTS (
                    SELECT 1 FROM pushes AS busy
                    WHERE busy.tenant_no = pushes.tenant_no AND busy.meter_no = pushes.meter_no
                        AND busy.leased_until IS NOT NULL
                )
                AND {CLAIMABLE}
            ORDER BY push_no FOR UPDATE OF pushes SKIP LOCKED
        )
        UPDATE pushes SET leased_until = $2::timestamptz, fence = fence + 1
        FROM free WHERE push_no = free_no
        RETURNING push_no"
    );
    let given = values![claim.now, claim.lease_until, planted("bug.two_unresolved")];
    let rows = due.iter().filter(|(_, pair)| free.contains(pair));
    session.read_batch_with(
        &sql,
        given,
        rows.map(|(number, _)| values![number].to_vec()),
        Row::only,
    )
}

/// What a claimant needs to know, in the order of claims.
fn describe_claimed(session: &dyn Session, numbers: &[u64]) -> Done<Vec<ClaimedPush>> {
    let mut standing = read_standing(session, numbers)?;
    let pushes = session.read_pushes(numbers)?;
    let mut uncompared = find_uncompared(session, &pushes)?;
    let mut claimed = Vec::with_capacity(pushes.len());
    for found in pushes {
        let number = found.push.number;
        let PushStanding { doubtful, customer } = take(&mut standing, number)?;
        claimed.push(ClaimedPush {
            fence: found.fence,
            customer: customer_to_send_for(&found, customer)?,
            settled: Quantity::ZERO,
            doubtful,
            unreadable_since: found.unreadable_since,
            uncompared: uncompared.remove(&number),
            request: found.request,
            request_keys: found.request_keys,
            push: found.push,
        });
    }
    let rows = claimed.iter().map(|one| values![one.push.number, one.customer].to_vec());
    let settled = sum_settled(session, rows)?;
    for one in &mut claimed {
        one.settled = settled.get(&one.push.number).copied().unwrap_or_default().quantity;
    }
    claimed.sort_by_key(|claimed| (claimed.push.due_at, claimed.push.number));
    Ok(claimed)
}

/// What the provider has of the windows of pushes, each given with the customer that it is of: a
/// summary is by customer.
pub fn sum_settled(
    session: &dyn Session,
    pushes: impl Iterator<Item = Vec<Value>>,
) -> Done<BTreeMap<u64, Sum>> {
    let sql = "-- sum_settled
        WITH given (number, customer) AS (VALUES ($::int8, $::text), ...)
        SELECT number, 0 AS pushes, settled.quantity AS quantity
        FROM given JOIN pushes ON pushes.push_no = number
        JOIN pushes AS settled ON settled.tenant_no = pushes.tenant_no
            AND settled.meter_no = pushes.meter_no AND settled.window_start = pushes.window_start
        WHERE settled.state IN ('submitted', 'confirmed', 'reconciled')
            AND COALESCE(settled.customer, given.customer) = given.customer";
    session.sum_batch(sql, pushes)
}

/// The stored state of a push's window.
pub struct PushStanding {
    /// Whether nobody knows if some dead push of the window counted.
    pub doubtful: bool,
    /// The customer that the window belongs to, as `rules::customer::customer_of_window` has it.
    pub customer: Option<CustomerId>,
}

/// Takes out what was read of a push.
pub fn take<T>(read: &mut BTreeMap<u64, T>, push: u64) -> Done<T> {
    let what = || format!("pushes.push_no={push} vanished mid-transaction");
    Ok(read.remove(&push).ok_or_else(|| Error::Corrupt { what: what() })?)
}

/// The customer that a push is sent for; `of_window` is that of its window.
pub fn customer_to_send_for(found: &StoredPush, of_window: Option<CustomerId>) -> Done<CustomerId> {
    let customer = found.push.customer.clone().or(of_window);
    let customer = customer.or_else(|| found.tenant_customer.clone());
    let what = || format!("claimed pushes.push_no={} has no customer", found.push.number);
    Ok(customer.ok_or_else(|| Error::Corrupt { what: what() })?)
}

pub fn read_standing(session: &dyn Session, numbers: &[u64]) -> Done<BTreeMap<u64, PushStanding>> {
    let sql = "-- read_standing
        WITH given (number) AS (VALUES ($::int8), ...)
        SELECT push_no, (
            SELECT own.customer FROM pushes AS own /*+ INDEXED BY pushes_by_window */
            WHERE own.tenant_no = pushes.tenant_no AND own.meter_no = pushes.meter_no
                AND own.window_start = pushes.window_start AND own.customer IS NOT NULL
                AND (own.state IN ('submitted', 'confirmed', 'reconciled')
                    OR (own.state = 'observed' AND own.attempts > 0)
                    OR (own.state = 'dead'
                        AND own.class IN ('undecidable', 'unreadable', 'absent'))
                    OR own.state = 'discarded'
                    OR (own.state = 'dead' AND own.class = 'refused' AND own.attempts > 1))
                AND NOT $1::bool
            ORDER BY own.revision LIMIT 1
        ) AS window_customer, EXISTS (
            SELECT 1 FROM pushes AS dead
            WHERE dead.tenant_no = pushes.tenant_no AND dead.meter_no = pushes.meter_no
                AND dead.window_start = pushes.window_start
                AND ((dead.state = 'dead' AND dead.class IN ('undecidable', 'unreadable'))
                    OR (dead.state = 'discarded' AND EXISTS (
                        SELECT 1 FROM push_transitions AS past
                        WHERE past.push_no = dead.push_no
                            AND past.class IN ('undecidable', 'unreadable')
                    )))
        ) AS doubtful
        FROM given JOIN pushes ON push_no = number";
    let given = values![planted("bug.customer_of_today")];
    let rows = numbers.iter().map(|number| values![number].to_vec());
    let standing = session.read_batch_with(sql, given, rows, |row| {
        let doubtful = row.get("pushes.doubtful")?;
        let customer = row.get("pushes.window_customer")?;
        Ok((row.get("pushes.push_no")?, PushStanding { doubtful, customer }))
    })?;
    Ok(standing.into_iter().collect())
}

/// Those of the pushes whose windows have to be compared before anything of them is sent.
fn find_uncompared(
    session: &dyn Session,
    pushes: &[StoredPush],
) -> Done<BTreeMap<u64, Uncompared>> {
    let Some(epoch) = read_epoch(session)?.filter(|_| !planted("bug.no_look_after_restore")) else {
        return Ok(BTreeMap::new());
    };
    let (restored_at, suspected) = (epoch.restored_at, epoch.suspected);
    let before = pushes.iter().filter(|found| found.push.window.start < restored_at);
    let uncompared = before.map(|found| {
        (found.push.number, Uncompared { restored_at, suspected, last: found.looked })
    });
    let mut uncompared: BTreeMap<u64, Uncompared> = uncompared.collect();
    let sql = "-- read_compared
        WITH given (number) AS (VALUES ($::int8), ...)
        SELECT pushes.push_no FROM given JOIN pushes ON pushes.push_no = number
        WHERE EXISTS (
            SELECT 1 FROM pushes AS compared /*+ INDEXED BY pushes_by_window */
            WHERE compared.tenant_no = pushes.tenant_no AND compared.meter_no = pushes.meter_no
                AND compared.window_start = pushes.window_start AND compared.verified_epoch = $1
        )";
    let rows: Vec<Vec<Value>> = uncompared.keys().map(|number| values![number].to_vec()).collect();
    let compared: Vec<u64> =
        session.read_batch_with(sql, values![epoch.number], rows, Row::only)?;
    uncompared.retain(|number, _| !compared.contains(number));
    Ok(uncompared)
}

/// Writes attempts down whose claimants still hold their pushes; what was sent first stays.
pub fn begin_attempts(
    session: &dyn Session,
    intents: &[AttemptIntent],
    at: Timestamp,
) -> Done<Vec<TransitionLine>> {
    let by_number: BTreeMap<u64, &AttemptIntent> =
        intents.iter().rev().map(|intent| (intent.push, intent)).collect();
    let numbers: Vec<u64> = by_number.keys().copied().collect();
    let (mut begun, mut lines) = (Vec::new(), Vec::new());
    for found in session.lock_pushes(&numbers)? {
        let Some(intent) = by_number.get(&found.push.number) else { continue };
        if !plan_attempt(&found, intent, at)? {
            continue;
        }
        begun.push(values![intent.push, intent.customer, intent.request].to_vec());
        lines.push(TransitionLine {
            push: found.push.number,
            tenant: found.push.tenant,
            key: found.push.key,
            state: found.push.state,
            class: Class::Attempt,
            attempt: found.push.attempts + 1,
            request_id: None,
            detail: None,
        });
    }
    let sql = "-- begin_attempts
        WITH given (number, customer, request) AS (VALUES ($::int8, $::text, $::bytea), ...)
        UPDATE pushes SET attempts = attempts + 1, class = 'attempt',
            first_attempt_at = COALESCE(first_attempt_at, $1::timestamptz),
            customer = COALESCE(pushes.customer, given.customer),
            request = COALESCE(pushes.request, given.request)
        FROM given WHERE push_no = number";
    session.run_batch_with(sql, values![at], begun)?;
    session.record_lines(&lines, at)?;
    Ok(lines)
}
