//! Windows of a restored store, compared with what the provider holds.
//!
//! Invariant: as in `corrections`, the window's pushes are locked first, then its row in `cuts`,
//! without which no push can be added; the comparison is judged by `rules::restore` under both
//! locks, and what follows is written in the same transaction. So what was planned for the window
//! stays the sum of its pushes. A crash leaves a comparison done in full or not at all.

use super::corrections::list_window;
use super::cuts::{States, lock_states};
use super::epochs::{read_epoch, verify};
use super::failure::Failure;
use super::numeric::SqlQuantity;
use super::push_rows::{
    Change, NewPush, StoredPush, insert_pushes, key_of, lock_pushes, read_pushes,
};
use super::pushes::read_standing;
use super::scalars::{SqlTimestamp, corrupt, write_count};
use super::settlements::{apply, turn, window_of, write_revisions};
use super::transaction::Done;
use crate::rules::billing::Mode;
use crate::rules::delivery::{Class, Next, PushState};
use crate::rules::ids::CustomerId;
use crate::rules::push::{PlannedPush, plan_adoption};
use crate::rules::quantity::Quantity;
use crate::rules::restore::{Comparison, Known, judge_comparison};
use crate::rules::timestamp::Timestamp;
use crate::store::push::Settlement;
use crate::store::{Error, Result};
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeSet;

/// What a comparison leads to.
pub enum Followed {
    /// The push is settled by this.
    Settle(Settlement),
    /// The window's open pushes were replaced.
    Adopted(Vec<Change>),
}

/// Compares the window of a claimed push, which is locked, and does what follows beyond the push.
pub async fn compare(
    client: &ClientWrapper,
    secret: &[u8; 32],
    (found, settlement): (&StoredPush, &Settlement),
    (total, look_at): (Quantity, Timestamp),
    at: Timestamp,
) -> Done<Followed> {
    let (pushes, mut states) = lock_window(client, found).await?;
    let number = write_count(found.push.number)?;
    let standing = read_standing(client, &[number]).await?.remove(&found.push.number);
    let standing = standing.ok_or_else(|| corrupt("a push is there and is not"))?;
    let customer = found.push.customer.clone().or(standing.customer);
    let customer = customer.or_else(|| found.tenant_customer.clone());
    let customer = customer.ok_or_else(|| corrupt("a claimed push has no customer"))?;
    let open: Vec<&StoredPush> =
        pushes.iter().filter(|push| push.push.state == PushState::Observed).collect();
    let restored_at = read_epoch(client).await?.map(|epoch| epoch.restored_at);
    let known = Known {
        doubtful: standing.doubtful,
        since: found.push.created_at.max(restored_at.unwrap_or(found.push.created_at)),
        ..add_up(&pushes, (&open, found), &customer)?
    };
    let comparison = judge_comparison(known, total, at);
    let detail = format!(
        "compared after a restore: the provider's total of the window is {total}; the store knows \
         of {}, and of {} with what is to be sent",
        known.settled, known.planned
    );
    let (class, next) = match comparison {
        Comparison::Missing if found.push.attempts > 0 => (Class::Absent, Next::Replaced),
        Comparison::Missing => {
            verify(client, found.push.number).await?;
            (Class::Absent, Next::Wait { until: at, fresh_request_key: false })
        }
        Comparison::Present => (Class::Present, Next::Submitted { look_at }),
        Comparison::Wait { until } => (Class::Unknown, Next::Looked { total, until }),
        Comparison::Undecidable => (Class::Undecidable, Next::Dead),
        Comparison::Adopt { adopted, rest } => {
            let parts = ((adopted, rest), total);
            let changes =
                adopt(client, secret, (&open, &mut states), (parts, &customer, &detail), at);
            return Ok(Followed::Adopted(changes.await?));
        }
    };
    Ok(Followed::Settle(Settlement { class, next, detail: Some(detail), ..settlement.clone() }))
}

/// All pushes of the window, oldest revision first, and its state; nothing can be added to it from
/// here on.
async fn lock_window(
    client: &ClientWrapper,
    found: &StoredPush,
) -> Done<(Vec<StoredPush>, States)> {
    let window = window_of(found);
    let locked = list_window(client, window).await?;
    lock_pushes(client, &locked).await?;
    let states = lock_states(client, &BTreeSet::from([window])).await?;
    let numbers = list_window(client, window).await?;
    if numbers != locked {
        return Err(Failure::Again("a push was added to the window".into()));
    }
    let mut pushes = read_pushes(client, &numbers).await?;
    pushes.sort_by_key(|found| found.push.revision);
    Ok((pushes, states))
}

/// What the provider holds of the window, as far as is known, and what it would with the pushes
/// that are not settled.
fn add_up(
    pushes: &[StoredPush],
    (open, found): (&[&StoredPush], &StoredPush),
    customer: &CustomerId,
) -> Result<Known> {
    let mut settled = Quantity::ZERO;
    for other in pushes {
        let own = other.push.customer.as_ref().is_none_or(|sent_for| sent_for == customer);
        if own && other.push.state.settled() {
            settled = told(settled, other)?;
        }
    }
    let mut planned = settled;
    for other in open {
        planned = told(planned, other)?;
    }
    let (with_push, since) = (told(settled, found)?, found.push.created_at);
    Ok(Known { settled, with_push, planned, doubtful: false, since })
}

/// What the provider holds once it has taken this push too.
fn told(before: Quantity, found: &StoredPush) -> Result<Quantity> {
    match found.push.mode {
        Mode::Delta => before.checked_add(found.push.quantity).ok_or_else(|| Error::Internal {
            what: "the pushes of a window add up to more than can be held".into(),
        }),
        Mode::Absolute => Ok(found.push.value),
    }
}

type Parts = ((Quantity, Quantity), Quantity);

/// Writes what the provider holds as a settled revision, and the rest as one to be sent; both take
/// the place of everything of the window that is not settled.
async fn adopt(
    client: &ClientWrapper,
    secret: &[u8; 32],
    (open, states): (&[&StoredPush], &mut States),
    ((parts, total), customer, detail): (Parts, &CustomerId, &str),
    at: Timestamp,
) -> Done<Vec<Change>> {
    let last = open.last().ok_or_else(|| corrupt("a push is compared and is not open"))?;
    let state = states.get_mut(&window_of(last));
    let state = state.ok_or_else(|| corrupt("a push lies in no window that was cut"))?;
    let plan = plan_adoption(state, parts, total, last.push.mode)
        .map_err(|error| Error::Internal { what: error.to_string() })?;
    *state = plan.state;
    let replaced = (PushState::Replaced, Class::Adopted);
    let turns: Vec<_> =
        open.iter().map(|found| (turn(found, replaced, Some(detail.to_owned())), None)).collect();
    let mut changes = apply(client, &turns, at).await?;
    write_revisions(client, states).await?;
    let mut written = vec![NewPush {
        customer: Some(customer.clone()),
        state: PushState::Confirmed,
        class: Class::Adopted,
        ..new_push(secret, last, plan.adopted, detail)
    }];
    written.extend(plan.rest.map(|rest| new_push(secret, last, rest, detail)));
    changes.extend(insert_pushes(client, &written, at).await?);
    Ok(changes)
}

fn new_push(secret: &[u8; 32], last: &StoredPush, planned: PlannedPush, detail: &str) -> NewPush {
    let push = &last.push;
    NewPush {
        tenant_no: last.tenant_no,
        tenant: push.tenant.clone(),
        meter: push.meter,
        window: push.window,
        shadow: push.shadow,
        mode: push.mode,
        key: key_of(secret, (&push.tenant, &last.slug), push.window, &planned),
        planned,
        stamped_at: push.stamped_at,
        subscriptions: push.subscriptions.clone(),
        event: None,
        detail: Some(detail.to_owned()),
        customer: None,
        state: PushState::Observed,
        class: Class::Cut,
    }
}

/// Keeps the totals that were read for pushes.
pub async fn record_looks(
    client: &ClientWrapper,
    looks: &[(u64, Quantity)],
    at: Timestamp,
) -> Done<()> {
    if looks.is_empty() {
        return Ok(());
    }
    let sql = "-- record_looks
        UPDATE pushes p SET looked_total = given.total, looked_at = $3
        FROM unnest($1::int8[], $2::numeric[]) AS given (push_no, total)
        WHERE p.push_no = given.push_no";
    let statement = client.prepare_cached(sql).await?;
    let numbers: Result<Vec<i64>> = looks.iter().map(|(push, _)| write_count(*push)).collect();
    let totals: Vec<_> = looks.iter().map(|(_, total)| SqlQuantity(*total)).collect();
    client.execute(&statement, &[&numbers?, &totals, &SqlTimestamp(at)]).await?;
    Ok(())
}
