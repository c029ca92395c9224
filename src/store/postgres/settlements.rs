//! Settlements and rulings: what becomes of a push, and the push that takes its place.
//!
//! Invariant: pushes are locked first, in the order of their numbers, then the rows of their
//! windows in `cuts`, in the order of tenant, meter and window. A push is settled by whoever holds
//! its lease under its last fence, or, once submitted, by anyone; each settlement ends the lease.
//!
//! A crash leaves all of a call or nothing. A settlement that is repeated because its outcome was
//! lost finds the lease ended and is left alone; for a submitted push it writes the same again. A
//! ruling that is repeated finds the push no longer dead, or discarded, and is refused.

use super::PostgresStore;
use super::corrections::{list_window, window_push};
use super::cuts::{States, WindowKey, lock_states};
use super::epochs::secret_now;
use super::numeric::SqlQuantity;
use super::push_rows::{
    Change, NewPush, StoredPush, insert_pushes, key_of, lock_pushes, log_changes, read_pushes,
    record_changes,
};
use super::restores::{self, Followed, record_looks};
use super::scalars::{
    SqlTimestamp, column, corrupt, meter_number, read_count, write_count, write_ordinal,
};
use super::summaries::find_summary;
use super::transaction::{Done, Transaction};
use crate::faults::planted;
use crate::rules::billing::Mode;
use crate::rules::delivery::{Class, Next, PushState, Retry, judge_discard, judge_retry};
use crate::rules::drift::WindowPush;
use crate::rules::evidence::judge_resend;
use crate::rules::push::plan_replacement;
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::push::{Push, Right, Ruling, Settlement, UNRESOLVED};
use deadpool_postgres::ClientWrapper;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio_postgres::types::ToSql;

/// What a push is changed to; its lease ends with it.
pub struct Turn<'p> {
    found: &'p StoredPush,
    state: PushState,
    class: Class,
    detail: Option<String>,
    pub due_at: Timestamp,
    fresh_request_keys: i32,
}

/// What the history says of a change, where it is not what the push says from then on.
#[derive(Clone, Copy)]
pub struct Words<'s> {
    pub class: Class,
    pub request_id: Option<&'s str>,
    pub detail: Option<&'s str>,
}

impl<'s> Words<'s> {
    fn of(settlement: &'s Settlement) -> Self {
        Self {
            class: settlement.class,
            request_id: settlement.request_id.as_deref(),
            detail: settlement.detail.as_deref(),
        }
    }
}

impl PostgresStore {
    pub(super) async fn settle(&self, settlements: &[Settlement], at: Timestamp) -> Result<usize> {
        let work = move |client: Arc<Transaction>| async move {
            let secret = secret_now(&client, &self.push_secret).await?;
            settle_all(&client, &secret, settlements, at).await
        };
        let (settled, changes) = self.transact(work).await?;
        log_changes(changes);
        Ok(settled)
    }

    pub(super) async fn retry(&self, number: u64, at: Timestamp) -> Result<Ruling> {
        let work = move |client: Arc<Transaction>| async move {
            let Some(found) = lock_push(&client, number).await? else {
                return Ok((Ruling::NotFound, Vec::new()));
            };
            match may_resend(&client, &found).await? {
                Err(refusal) => return Ok((Ruling::Refused(refusal), Vec::new())),
                Ok(Retry::Look) => return look_again(&client, &found, at).await,
                Ok(Retry::Replace) => {}
            }
            let detail = found.push.detail.clone();
            let turn = turn(&found, (PushState::Replaced, Class::Retried), detail);
            let mut changes = apply(&client, &[(turn, None)], at).await?;
            let secret = secret_now(&client, &self.push_secret).await?;
            let replacing = replace(&client, &secret, &[&found], at).await?;
            let replacement = replacing.first().map(|change| change.push);
            changes.extend(replacing);
            Ok((Ruling::Done(replacement), changes))
        };
        let (ruling, changes) = self.transact(work).await?;
        log_changes(changes);
        Ok(ruling)
    }

    pub(super) async fn discard(&self, number: u64, reason: &str, at: Timestamp) -> Result<Ruling> {
        let work = move |client: Arc<Transaction>| async move {
            let Some(found) = lock_push(&client, number).await? else {
                return Ok((Ruling::NotFound, Vec::new()));
            };
            if let Err(refusal) = judge_discard(found.push.state) {
                return Ok((Ruling::Refused(refusal), Vec::new()));
            }
            let turn =
                turn(&found, (PushState::Discarded, Class::Discarded), Some(reason.to_owned()));
            Ok((Ruling::Done(None), apply(&client, &[(turn, None)], at).await?))
        };
        let (ruling, changes) = self.transact(work).await?;
        log_changes(changes);
        Ok(ruling)
    }
}

/// Makes a dead push due for another look at its summary. The unique index `pushes_unresolved`
/// keeps out a push of the window that is begun at the same time.
async fn look_again(
    client: &ClientWrapper,
    found: &StoredPush,
    at: Timestamp,
) -> Done<(Ruling, Vec<Change>)> {
    let sql = "-- look_again
        SELECT EXISTS (
            SELECT FROM pushes
            WHERE tenant_no = $1 AND meter_no = $2 AND window_start = $3
                AND state = 'observed' AND attempts > 0
        )";
    let window = window_of(found);
    let (meter, start) = (meter_number(window.meter), SqlTimestamp(window.start));
    let row = client.query_one(sql, &[&window.tenant_no, &meter, &start]).await?;
    if column(&row, 0)? {
        return Ok((Ruling::Refused(UNRESOLVED), Vec::new()));
    }
    let number = write_count(found.push.number)?;
    let sql = "-- look_again
        UPDATE pushes SET unreadable_since = NULL WHERE push_no = $1";
    client.execute(sql, &[&number]).await?;
    let mut again = turn(found, (PushState::Observed, Class::Retried), found.push.detail.clone());
    again.due_at = at;
    let words = Words { class: Class::Retried, request_id: None, detail: None };
    let changes = apply(client, &[(again, Some(words))], at).await?;
    Ok((Ruling::Done(Some(found.push.number)), changes))
}

async fn lock_push(client: &ClientWrapper, number: u64) -> Done<Option<StoredPush>> {
    // A number that no column can hold names no push.
    let Ok(number) = write_count(number) else { return Ok(None) };
    lock_pushes(client, &[number]).await?;
    Ok(read_pushes(client, &[number]).await?.pop())
}

/// Whether a locked push may be sent again, by what is stored of its window now.
async fn may_resend(
    client: &ClientWrapper,
    found: &StoredPush,
) -> Done<std::result::Result<Retry, &'static str>> {
    let Push { meter, window, tenant, customer, state, class, .. } = &found.push;
    if planted("bug.resend_on_stale_reading") {
        return Ok(judge_retry(*state, *class));
    }
    let numbers = list_window(client, window_of(found)).await?;
    let pushes = read_pushes(client, &numbers).await?;
    let pushes: Vec<WindowPush> = pushes.iter().map(|one| window_push(&one.push)).collect();
    let summary = match customer {
        Some(customer) => find_summary(client, (tenant, customer), *meter, *window).await?,
        None => None,
    };
    Ok(judge_resend(&window_push(&found.push), &pushes, summary.as_ref()))
}

/// Everything but the COMMIT.
async fn settle_all(
    client: &ClientWrapper,
    secret: &[u8; 32],
    settlements: &[Settlement],
    at: Timestamp,
) -> Done<(usize, Vec<Change>)> {
    let numbers: BTreeSet<i64> =
        settlements.iter().filter_map(|given| write_count(given.push).ok()).collect();
    let numbers: Vec<i64> = numbers.into_iter().collect();
    lock_pushes(client, &numbers).await?;
    let stored = read_pushes(client, &numbers).await?;
    let stored: BTreeMap<u64, &StoredPush> =
        stored.iter().map(|found| (found.push.number, found)).collect();
    let (mut turns, mut settled) = (Vec::new(), BTreeSet::new());
    let (mut replaced, mut overtaking) = (Vec::new(), Vec::new());
    let expected = read_expected(client, settlements).await?;
    let compared = (&stored, &expected);
    let (settlements, adopted) = compare_all(client, secret, (settlements, compared), at).await?;
    for settlement in &settlements {
        let Some(found) = stored.get(&settlement.push).copied() else { continue };
        // The first settlement of a push ends its lease, so a second one is not current.
        if !is_current(found, settlement, &expected) || !settled.insert(settlement.push) {
            continue;
        }
        match settlement.next {
            Next::Replaced => replaced.push(found),
            Next::Submitted { .. } if found.push.mode == Mode::Absolute => {
                overtaking.push(write_count(settlement.push)?);
            }
            Next::Submitted { .. }
            | Next::Wait { .. }
            | Next::Unread { .. }
            | Next::Looked { .. }
            | Next::Compared { .. }
            | Next::Confirmed
            | Next::Dead => {}
        }
        turns.push((follow(found, settlement), Some(Words::of(settlement))));
    }
    mark_unreadable(client, &settlements, &settled, at).await?;
    record_looks(client, &looks(&settlements, &settled), at).await?;
    let mut changes = apply(client, &turns, at).await?;
    changes.extend(overtake(client, &overtaking, at).await?);
    changes.extend(replace(client, secret, &replaced, at).await?);
    let count = settled.len() + adopted.len();
    changes.extend(adopted.into_iter().flatten());
    Ok((count, changes))
}

/// Does what comparisons after a restore lead to; returns what is still to be settled, and what was
/// adopted.
async fn compare_all(
    client: &ClientWrapper,
    secret: &[u8; 32],
    (settlements, (stored, expected)): (&[Settlement], (&BTreeMap<u64, &StoredPush>, &Expected)),
    at: Timestamp,
) -> Done<(Vec<Settlement>, Vec<Vec<Change>>)> {
    let (mut left, mut adopted) = (Vec::with_capacity(settlements.len()), Vec::new());
    for settlement in settlements {
        let Next::Compared { total, look_at } = settlement.next else {
            left.push(settlement.clone());
            continue;
        };
        let Some(found) = stored.get(&settlement.push).copied() else { continue };
        if !is_current(found, settlement, expected) {
            continue;
        }
        let about = (found, settlement);
        match restores::compare(client, secret, about, (total, look_at), at).await? {
            Followed::Settle(settlement) => left.push(settlement),
            Followed::Adopted(changes) => adopted.push(changes),
        }
    }
    Ok((left, adopted))
}

/// The totals that were read for pushes and are read again.
fn looks(settlements: &[Settlement], settled: &BTreeSet<u64>) -> Vec<(u64, Quantity)> {
    let look = |given: &Settlement| match given.next {
        Next::Looked { total, .. } if settled.contains(&given.push) => Some((given.push, total)),
        Next::Looked { .. }
        | Next::Wait { .. }
        | Next::Unread { .. }
        | Next::Compared { .. }
        | Next::Submitted { .. }
        | Next::Confirmed
        | Next::Dead
        | Next::Replaced => None,
    };
    settlements.iter().filter_map(look).collect()
}

/// What the summary of each push's window shows when everything has arrived; none where a push of
/// the window was begun and is not resolved.
type Expected = BTreeMap<u64, Option<Quantity>>;

/// Whether a settlement's right holds now.
fn is_current(found: &StoredPush, settlement: &Settlement, windows: &Expected) -> bool {
    match (settlement.right, &settlement.next) {
        (Right::Lease(fence), _) => found.leased_until.is_some() && found.fence == fence,
        (Right::Reading { .. }, _) if found.push.state != PushState::Submitted => false,
        (Right::Reading { .. }, Next::Wait { .. }) => true,
        (Right::Reading { .. }, _) if planted("bug.confirm_settles_unlisted") => true,
        (Right::Reading { expected }, _) => {
            windows.get(&settlement.push).copied().flatten() == Some(expected)
        }
    }
}

/// Reads the windows of what is settled by a reading. No lock is needed: a push that is begun after
/// this was begun after the reading, which therefore does not show it.
async fn read_expected(client: &ClientWrapper, settlements: &[Settlement]) -> Done<Expected> {
    let by_reading = |given: &&Settlement| matches!(given.right, Right::Reading { .. });
    let numbers: Vec<i64> = settlements
        .iter()
        .filter(by_reading)
        .filter_map(|given| write_count(given.push).ok())
        .collect();
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
                    WHEN 'absolute' THEN (array_agg(told.value ORDER BY told.revision DESC))[1]
                    ELSE COALESCE(sum(told.quantity), 0) END
                FROM pushes told
                WHERE told.tenant_no = p.tenant_no AND told.meter_no = p.meter_no
                    AND told.window_start = p.window_start
                    AND told.state IN ('submitted', 'confirmed', 'reconciled')
                    AND COALESCE(told.customer, p.customer, t.customer)
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

/// Keeps since when the summaries of pushes could not be read, and forgets it once they could.
async fn mark_unreadable(
    client: &ClientWrapper,
    settlements: &[Settlement],
    settled: &BTreeSet<u64>,
    at: Timestamp,
) -> Done<()> {
    let unread = settlements
        .iter()
        .filter(|given| matches!(given.next, Next::Unread { .. }) && settled.contains(&given.push));
    let numbers: Vec<i64> = unread.filter_map(|given| write_count(given.push).ok()).collect();
    let all: Vec<i64> = settled.iter().filter_map(|push| write_count(*push).ok()).collect();
    let sql = "-- mark_unreadable
        UPDATE pushes SET unreadable_since =
            CASE WHEN push_no = ANY ($1) THEN COALESCE(unreadable_since, $2) END
        WHERE push_no = ANY ($3) AND (push_no = ANY ($1) OR unreadable_since IS NOT NULL)";
    let statement = client.prepare_cached(sql).await?;
    client.execute(&statement, &[&numbers, &SqlTimestamp(at), &all]).await?;
    Ok(())
}

/// What a settlement makes of its push.
fn follow<'p>(found: &'p StoredPush, settlement: &Settlement) -> Turn<'p> {
    let (push, class, detail) = (&found.push, settlement.class, settlement.detail.clone());
    let to = |state| turn(found, (state, class), detail.clone());
    match &settlement.next {
        Next::Wait { until, fresh_request_key } => Turn {
            found,
            state: push.state,
            // A submitted one that waits for the summary is still submitted for the same reason.
            class: if push.state == PushState::Submitted { push.class } else { class },
            detail: detail.clone().or_else(|| push.detail.clone()),
            due_at: *until,
            fresh_request_keys: i32::from(*fresh_request_key),
        },
        Next::Unread { until } | Next::Looked { until, .. } => {
            Turn { due_at: *until, ..to(push.state) }
        }
        Next::Compared { look_at, .. } => Turn { due_at: *look_at, ..to(push.state) },
        Next::Submitted { look_at } => Turn { due_at: *look_at, ..to(PushState::Submitted) },
        Next::Confirmed => to(PushState::Confirmed),
        Next::Dead => to(PushState::Dead),
        Next::Replaced => to(PushState::Replaced),
    }
}

/// A turn to another state, with everything else as it was.
pub fn turn(
    found: &StoredPush,
    (state, class): (PushState, Class),
    detail: Option<String>,
) -> Turn<'_> {
    Turn { found, state, class, detail, due_at: found.push.due_at, fresh_request_keys: 0 }
}

/// Changes pushes and adds the changes to their history, with words of their own or with those of
/// the push.
pub async fn apply(
    client: &ClientWrapper,
    turns: &[(Turn<'_>, Option<Words<'_>>)],
    at: Timestamp,
) -> Done<Vec<Change>> {
    if turns.is_empty() {
        return Ok(Vec::new());
    }
    let sql = "-- apply
        UPDATE pushes p SET state = given.state, class = given.class, detail = given.detail,
            due_at = given.due_at, request_keys = p.request_keys + given.request_keys,
            state_at = CASE WHEN p.state = given.state THEN p.state_at ELSE $7 END,
            leased_until = NULL
        FROM unnest($1::int8[], $2::text[], $3::text[], $4::text[], $5::timestamptz[], $6::int4[])
            AS given (push_no, state, class, detail, due_at, request_keys)
        WHERE p.push_no = given.push_no";
    let statement = client.prepare_cached(sql).await?;
    let numbers: Result<Vec<i64>> =
        turns.iter().map(|(turn, _)| write_count(turn.found.push.number)).collect();
    let states: Vec<&str> = turns.iter().map(|(turn, _)| turn.state.name()).collect();
    let classes: Vec<&str> = turns.iter().map(|(turn, _)| turn.class.name()).collect();
    let details: Vec<Option<&str>> = turns.iter().map(|(turn, _)| turn.detail.as_deref()).collect();
    let due: Vec<_> = turns.iter().map(|(turn, _)| SqlTimestamp(turn.due_at)).collect();
    let keys: Vec<i32> = turns.iter().map(|(turn, _)| turn.fresh_request_keys).collect();
    let parameters: [&(dyn ToSql + Sync); 7] =
        [&numbers?, &states, &classes, &details, &due, &keys, &SqlTimestamp(at)];
    client.execute(&statement, &parameters).await?;
    let change = |(turn, words): &(Turn<'_>, Option<Words<'_>>)| Change {
        push: turn.found.push.number,
        tenant: turn.found.push.tenant.clone(),
        key: turn.found.push.key.clone(),
        state: turn.state,
        class: words.map_or(turn.class, |words| words.class),
        attempt: turn.found.push.attempts,
        request_id: words.and_then(|words| words.request_id.map(str::to_owned)),
        detail: words.map_or(turn.detail.as_deref(), |words| words.detail).map(str::to_owned),
    };
    let changes: Vec<Change> = turns.iter().map(change).collect();
    record_changes(client, &changes, at).await?;
    Ok(changes)
}

/// Totals that the provider took make the earlier dead ones of their windows pointless.
async fn overtake(client: &ClientWrapper, overtaking: &[i64], at: Timestamp) -> Done<Vec<Change>> {
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
    let mut pairs: BTreeMap<i64, i64> = BTreeMap::new();
    for row in client.query(&statement, &[&overtaking]).await? {
        pairs.insert(column(&row, 0)?, column(&row, 1)?);
    }
    let numbers: Vec<i64> = pairs.keys().copied().collect();
    let dead = read_pushes(client, &numbers).await?;
    let mut turns = Vec::with_capacity(dead.len());
    // Both are in the order of the dead ones' numbers.
    for (found, taken) in dead.iter().zip(pairs.values()) {
        let detail = Some(format!("overtaken by push {taken}"));
        turns.push((turn(found, (PushState::Replaced, Class::Overtaken), detail), None));
    }
    apply(client, &turns, at).await
}

/// Writes the pushes that take the place of those that surely never counted, in their order.
async fn replace(
    client: &ClientWrapper,
    secret: &[u8; 32],
    replaced: &[&StoredPush],
    at: Timestamp,
) -> Done<Vec<Change>> {
    if replaced.is_empty() {
        return Ok(Vec::new());
    }
    let keys: BTreeSet<WindowKey> = replaced.iter().map(|found| window_of(found)).collect();
    let mut states = lock_states(client, &keys).await?;
    let mut pushes = Vec::with_capacity(replaced.len());
    for found in replaced {
        let state = states.get_mut(&window_of(found));
        let state = state.ok_or_else(|| corrupt("a push lies in no window that was cut"))?;
        let push = &found.push;
        let (next, planned) = plan_replacement(state, push.quantity, push.mode);
        *state = next;
        pushes.push(NewPush {
            tenant_no: found.tenant_no,
            tenant: push.tenant.clone(),
            meter: push.meter,
            window: push.window,
            shadow: push.shadow,
            mode: push.mode,
            key: key_of(secret, (&push.tenant, &found.slug), push.window, &planned),
            planned,
            stamped_at: push.stamped_at,
            subscriptions: push.subscriptions.clone(),
            event: push.event.clone(),
            detail: Some(format!("takes the place of push {}", push.number)),
            customer: None,
            state: PushState::Observed,
            class: Class::Cut,
        });
    }
    write_revisions(client, &states).await?;
    insert_pushes(client, &pushes, at).await
}

pub fn window_of(found: &StoredPush) -> WindowKey {
    let (tenant_no, meter) = (found.tenant_no, found.push.meter);
    WindowKey { tenant_no, meter, start: found.push.window.start }
}

pub async fn write_revisions(client: &ClientWrapper, states: &States) -> Done<()> {
    let sql = "-- write_revisions
        UPDATE cuts c SET revision = given.revision
        FROM unnest($1::int4[], $2::int2[], $3::timestamptz[], $4::int4[])
            AS given (tenant_no, meter_no, window_start, revision)
        WHERE c.tenant_no = given.tenant_no AND c.meter_no = given.meter_no
            AND c.window_start = given.window_start";
    let statement = client.prepare_cached(sql).await?;
    let tenants: Vec<i32> = states.keys().map(|key| key.tenant_no).collect();
    let meters: Vec<i16> = states.keys().map(|key| meter_number(key.meter)).collect();
    let starts: Vec<_> = states.keys().map(|key| SqlTimestamp(key.start)).collect();
    let revisions: Vec<i32> =
        states.values().map(|state| write_ordinal(state.revision)).collect::<Result<_>>()?;
    client.execute(&statement, &[&tenants, &meters, &starts, &revisions]).await?;
    Ok(())
}
