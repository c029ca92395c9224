//! Settlements and rulings, as `rules::settlement` plans them.
//!
//! Invariant: pushes are locked first, in the order of their numbers, then the rows of their
//! windows in `cuts`, in the order of tenant, meter and window.
//!
//! A crash leaves all of a call or nothing. A settlement that is repeated because its outcome was
//! lost finds the lease ended and is left alone; for a submitted push it writes the same again. A
//! ruling that is repeated finds the push no longer dead, or discarded, and is refused.

use super::PostgresStore;
use super::cuts::{WindowKey, lock_states, write_revisions};
use super::epochs::secret_now;
use super::numeric::SqlQuantity;
use super::push_rows::{change_pushes, insert_pushes, lock_pushes, log_lines, read_pushes};
use super::restores::{self, Compared, list_window};
use super::scalars::{column, corrupt, read_count, write_count};
use super::summaries::find_summary;
use super::transaction::{Done, Transaction};
use crate::faults::planted;
use crate::rules::drift::WindowPush;
use crate::rules::push::{Push, StoredPush};
use crate::rules::quantity::Quantity;
use crate::rules::settlement::{
    Replacing, Right, Ruled, Settled, Settlement, Then, is_current, plan_discard, plan_overtaking,
    plan_replacing, plan_retry, plan_settlement, rests_on_window,
};
use crate::rules::submission::{Next, PushState};
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::push::{Ruling, TransitionLine, may_resend};
use deadpool_postgres::ClientWrapper;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl PostgresStore {
    pub(super) async fn settle(&self, settlements: &[Settlement], at: Timestamp) -> Result<usize> {
        let work = move |client: Arc<Transaction>| async move {
            let secret = secret_now(&client, &self.push_secret).await?;
            settle_all(&client, &secret, settlements, at).await
        };
        let (settled, lines) = self.transact(work).await?;
        log_lines(&lines);
        Ok(settled)
    }

    pub(super) async fn retry(&self, number: u64, at: Timestamp) -> Result<Ruling> {
        let work = move |client: Arc<Transaction>| async move {
            let Some(found) = lock_push(&client, number).await? else {
                return Ok((Ruling::NotFound, Vec::new()));
            };
            let Push { meter, window, tenant, customer, .. } = &found.push;
            let numbers = list_window(&client, window_of(&found)).await?;
            let pushes = read_pushes(&client, &numbers).await?;
            let pushes: Vec<WindowPush> = pushes.iter().map(|one| (&one.push).into()).collect();
            let summary = match customer {
                Some(customer) => {
                    find_summary(&client, (tenant, customer), *meter, *window).await?
                }
                None => None,
            };
            let may = may_resend(&found.push, &pushes, summary.as_ref());
            let ruled = plan_retry(&found, may, &pushes, at)?;
            let secret = secret_now(&client, &self.push_secret).await?;
            rule(&client, &secret, (&found, ruled, Some(number)), at).await
        };
        let (ruling, lines) = self.transact(work).await?;
        log_lines(&lines);
        Ok(ruling)
    }

    pub(super) async fn discard(&self, number: u64, reason: &str, at: Timestamp) -> Result<Ruling> {
        let work = move |client: Arc<Transaction>| async move {
            let Some(found) = lock_push(&client, number).await? else {
                return Ok((Ruling::NotFound, Vec::new()));
            };
            let ruled = plan_discard(&found, reason, at)?;
            let secret = secret_now(&client, &self.push_secret).await?;
            rule(&client, &secret, (&found, ruled, None), at).await
        };
        let (ruling, lines) = self.transact(work).await?;
        log_lines(&lines);
        Ok(ruling)
    }
}

/// Does what a ruling leads to; `stays` is answered if the push stays. A push that is looked for
/// again competes with one of its window that is begun at the same time: the unique index
/// `pushes_unresolved` lets one of the two through.
async fn rule(
    client: &ClientWrapper,
    secret: &[u8; 32],
    (found, ruled, stays): (&StoredPush, Ruled, Option<u64>),
    at: Timestamp,
) -> Done<(Ruling, Vec<TransitionLine>)> {
    match ruled {
        Ruled::Refused(refusal) => Ok((Ruling::Refused(refusal), Vec::new())),
        Ruled::Changed(change) => {
            Ok((Ruling::Done(stays), change_pushes(client, &[change], at).await?))
        }
        Ruled::Replaced(change) => {
            let mut lines = change_pushes(client, &[change], at).await?;
            let replacing = replace(client, secret, &[found], at).await?;
            let replacement = replacing.first().map(|line| line.push);
            lines.extend(replacing);
            Ok((Ruling::Done(replacement), lines))
        }
    }
}

async fn lock_push(client: &ClientWrapper, number: u64) -> Done<Option<StoredPush>> {
    // A number that no column can hold names no push.
    let Ok(number) = write_count(number) else { return Ok(None) };
    lock_pushes(client, &[number]).await?;
    Ok(read_pushes(client, &[number]).await?.pop())
}

/// Everything but the COMMIT.
async fn settle_all(
    client: &ClientWrapper,
    secret: &[u8; 32],
    settlements: &[Settlement],
    at: Timestamp,
) -> Done<(usize, Vec<TransitionLine>)> {
    let numbers: BTreeSet<i64> =
        settlements.iter().filter_map(|given| write_count(given.push).ok()).collect();
    let numbers: Vec<i64> = numbers.into_iter().collect();
    lock_pushes(client, &numbers).await?;
    let stored = read_pushes(client, &numbers).await?;
    let stored: BTreeMap<u64, &StoredPush> =
        stored.iter().map(|found| (found.push.number, found)).collect();
    let expected = read_expected(client, settlements).await?;
    let (mut current, mut seen) = (Vec::new(), BTreeSet::new());
    for settlement in settlements {
        let Some(found) = stored.get(&settlement.push).copied() else { continue };
        let settled = expected.get(&settlement.push).copied().flatten();
        // The first settlement of a push ends its lease, so a second one is not current.
        if is_current(found, settlement, settled) && seen.insert(settlement.push) {
            current.push((found, settlement));
        }
    }
    let (followed, mut lines) = compare_all(client, secret, &current, at).await?;
    let (mut changes, mut replaced, mut overtaking) = (Vec::new(), Vec::new(), Vec::new());
    for (found, settlement) in &followed {
        let Settled { change, then } = plan_settlement(found, settlement, at)?;
        changes.push(change);
        match then {
            Then::Nothing => {}
            Then::Replace => replaced.push(*found),
            Then::Overtake => overtaking.push(*found),
        }
    }
    lines.extend(change_pushes(client, &changes, at).await?);
    lines.extend(overtake(client, &overtaking, at).await?);
    lines.extend(replace(client, secret, &replaced, at).await?);
    Ok((current.len(), lines))
}

/// A settlement, and its push.
type OfPush<'p> = (&'p StoredPush, Settlement);

/// Does what comparisons after a restore lead to; returns what is still to be settled, and what was
/// adopted.
async fn compare_all<'p>(
    client: &ClientWrapper,
    secret: &[u8; 32],
    current: &[(&'p StoredPush, &Settlement)],
    at: Timestamp,
) -> Done<(Vec<OfPush<'p>>, Vec<TransitionLine>)> {
    let (mut left, mut adopted) = (Vec::with_capacity(current.len()), Vec::new());
    for (found, settlement) in current.iter().copied() {
        let Next::Compared { total, look_at } = settlement.next else {
            left.push((found, settlement.clone()));
            continue;
        };
        let about = (found, settlement);
        match restores::compare(client, secret, about, (total, look_at), at).await? {
            Compared::Settle(settlement) => left.push((found, settlement)),
            Compared::Adopted(lines) => adopted.extend(lines),
        }
    }
    Ok((left, adopted))
}

/// What the settled pushes of each push's window make; none where a push of the window was begun
/// and is not resolved.
type Expected = BTreeMap<u64, Option<Quantity>>;

/// Reads the windows of what is settled by a reading. No lock is needed: a push that is begun after
/// this was begun after the reading, which therefore does not show it.
async fn read_expected(client: &ClientWrapper, settlements: &[Settlement]) -> Done<Expected> {
    if planted("bug.confirm_settles_unlisted") {
        let believed = settlements.iter().filter_map(|given| match given.right {
            Right::Reading { expected } => Some((given.push, Some(expected))),
            Right::Lease(_) => None,
        });
        return Ok(believed.collect());
    }
    let resting = settlements.iter().filter(|given| rests_on_window(given));
    let numbers: Vec<i64> = resting.filter_map(|given| write_count(given.push).ok()).collect();
    if numbers.is_empty() {
        return Ok(Expected::new());
    }
    let sql = "-- read_expected
        SELECT p.push_no,
            EXISTS (
                SELECT FROM pushes begun
                WHERE begun.tenant_no = p.tenant_no AND begun.meter_no = p.meter_no
                    AND begun.window_start = p.window_start
                    AND begun.state = 'observed' AND begun.attempts > 0
            ),
            (
                SELECT CASE p.mode
                    WHEN 'absolute' THEN (array_agg(sent.value ORDER BY sent.revision DESC))[1]
                    ELSE COALESCE(sum(sent.quantity), 0) END
                FROM pushes sent
                WHERE sent.tenant_no = p.tenant_no AND sent.meter_no = p.meter_no
                    AND sent.window_start = p.window_start
                    AND sent.state IN ('submitted', 'confirmed', 'reconciled')
                    AND COALESCE(sent.customer, p.customer, t.customer)
                        IS NOT DISTINCT FROM COALESCE(p.customer, t.customer)
            )
        FROM pushes p JOIN tenants t ON t.tenant_no = p.tenant_no
        WHERE p.push_no = ANY ($1)";
    let statement = client.prepare_cached(sql).await?;
    let mut expected = Expected::new();
    for row in client.query(&statement, &[&numbers]).await? {
        let total: Option<SqlQuantity> = column(&row, 2)?;
        let unresolved: bool = column(&row, 1)?;
        let total = total.map(|SqlQuantity(total)| total).filter(|_| !unresolved);
        expected.insert(read_count(column(&row, 0)?)?, total);
    }
    Ok(expected)
}

/// Replaces the earlier dead totals of the windows of totals that the provider took.
async fn overtake(
    client: &ClientWrapper,
    overtaking: &[&StoredPush],
    at: Timestamp,
) -> Done<Vec<TransitionLine>> {
    if overtaking.is_empty() {
        return Ok(Vec::new());
    }
    let sql = "-- overtake
        SELECT dead.push_no, taken.push_no
        FROM pushes taken
        JOIN pushes dead ON dead.tenant_no = taken.tenant_no AND dead.meter_no = taken.meter_no
            AND dead.window_start = taken.window_start AND dead.revision < taken.revision
            AND dead.state IN ('dead', 'discarded')
        WHERE taken.push_no = ANY ($1)
        ORDER BY dead.push_no
        FOR UPDATE OF dead";
    let statement = client.prepare_cached(sql).await?;
    let taken: BTreeMap<u64, &Push> =
        overtaking.iter().map(|found| (found.push.number, &found.push)).collect();
    let numbers: Vec<i64> =
        taken.keys().map(|number| write_count(*number)).collect::<Result<_>>()?;
    let mut pairs: BTreeMap<i64, u64> = BTreeMap::new();
    for row in client.query(&statement, &[&numbers]).await? {
        pairs.insert(column(&row, 0)?, read_count(column(&row, 1)?)?);
    }
    let numbers: Vec<i64> = pairs.keys().copied().collect();
    let mut changes = Vec::with_capacity(pairs.len());
    // Both are in the order of the dead ones' numbers.
    for (dead, number) in read_pushes(client, &numbers).await?.iter().zip(pairs.values()) {
        let taken = taken
            .get(number)
            .ok_or_else(|| corrupt(format!("pushes.push_no={number} vanished mid-transaction")))?;
        changes.push(plan_overtaking(dead, taken, at)?);
    }
    change_pushes(client, &changes, at).await
}

/// Writes the pushes that take the place of those that surely never counted, in their order.
async fn replace(
    client: &ClientWrapper,
    secret: &[u8; 32],
    replaced: &[&StoredPush],
    at: Timestamp,
) -> Done<Vec<TransitionLine>> {
    if replaced.is_empty() {
        return Ok(Vec::new());
    }
    let keys: BTreeSet<WindowKey> = replaced.iter().map(|found| window_of(found)).collect();
    let mut states = lock_states(client, &keys).await?;
    let mut pushes = Vec::with_capacity(replaced.len());
    for found in replaced {
        let state = states.get_mut(&window_of(found));
        let state = state.ok_or_else(|| corrupt("pushes row without its cuts row"))?;
        let Replacing { state: after, push } = plan_replacing(found, state, PushState::Observed)?;
        *state = after;
        pushes.push(push);
    }
    write_revisions(client, &states).await?;
    insert_pushes(client, secret, &pushes, at).await
}

pub fn window_of(found: &StoredPush) -> WindowKey {
    let StoredPush { tenant_no, push, .. } = found;
    WindowKey { tenant_no: *tenant_no, meter: push.meter, start: push.window.start }
}
