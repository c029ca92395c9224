//! Windows of a restored store, compared with what the provider holds.
//!
//! Invariant: as in `sql/corrections`, the window's pushes are locked first, then its row in
//! `cuts`, without which no push can be added; the comparison is judged by `rules::restore` under
//! both locks, and what follows is written in the same transaction. So what was planned for the
//! window stays the sum of its pushes. A crash leaves a comparison done in full or not at all.

use super::cuts::{States, WindowKey, lock_states, write_revisions};
use super::epochs::{read_epoch, verify};
use super::failure::Failure;
use super::push_rows::{change_pushes, insert_pushes, lock_pushes, read_pushes};
use super::pushes::read_standing;
use super::scalars::{SqlTimestamp, column, corrupt, meter_number, tenant_number, write_count};
use super::settlements::window_of;
use super::statements::Statements;
use super::transaction::Done;
use crate::rules::push::StoredPush;
use crate::rules::quantity::Quantity;
use crate::rules::settlement::{Adopting, ComparedWindow, Followed, plan_comparison};
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::push::{Settlement, TransitionLine};
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeSet;

/// What a comparison led to.
pub enum Compared {
    /// The push is settled by this.
    Settle(Settlement),
    /// The window's open pushes were replaced.
    Adopted(Vec<TransitionLine>),
}

/// Compares the window of a claimed push, which is locked, and does what follows beyond the push.
pub async fn compare(
    client: &ClientWrapper,
    secret: &[u8; 32],
    (found, settlement): (&StoredPush, &Settlement),
    reading: (Quantity, Timestamp),
    at: Timestamp,
) -> Done<Compared> {
    let key = window_of(found);
    let (pushes, mut states) = lock_window(client, key).await?;
    let state = states.get_mut(&key);
    let state = state.ok_or_else(|| corrupt("pushes row without its cuts row"))?;
    let number = write_count(found.push.number)?;
    let standing = read_standing(client, &[number]).await?.remove(&found.push.number);
    let standing = standing.ok_or_else(|| corrupt("pushes row vanished mid-transaction"))?;
    let customer = found.push.customer.clone().or(standing.customer);
    let customer = customer.or_else(|| found.tenant_customer.clone());
    let customer = customer.ok_or_else(|| corrupt("claimed pushes row without a customer"))?;
    let window = ComparedWindow {
        pushes: &pushes,
        customer: &customer,
        doubtful: standing.doubtful,
        restored_at: read_epoch(client).await?.map(|epoch| epoch.restored_at),
        state,
    };
    match plan_comparison(found, window, settlement, reading, at)? {
        Followed::Settle(settlement) => Ok(Compared::Settle(settlement)),
        Followed::Verify(settlement) => {
            verify(client, found.push.number).await?;
            Ok(Compared::Settle(settlement))
        }
        Followed::Adopt(Adopting { changes, state: after, pushes }) => {
            *state = after;
            let mut lines = change_pushes(client, &changes, at).await?;
            write_revisions(client, &states).await?;
            lines.extend(insert_pushes(client, secret, &pushes, at).await?);
            Ok(Compared::Adopted(lines))
        }
    }
}

/// Locks all pushes of a window and its state; the pushes, oldest revision first. Nothing can be
/// added to the window from here on.
async fn lock_window(client: &ClientWrapper, window: WindowKey) -> Done<(Vec<StoredPush>, States)> {
    let locked = list_window(client, window).await?;
    lock_pushes(client, &locked).await?;
    let states = lock_states(client, &BTreeSet::from([window])).await?;
    // One that was added between the two locks is not locked.
    let numbers = list_window(client, window).await?;
    if numbers != locked {
        return Err(Failure::Again("a push was added to the window".into()));
    }
    let mut pushes = read_pushes(client, &numbers).await?;
    pushes.sort_by_key(|found| found.push.revision);
    Ok((pushes, states))
}

/// The numbers of the window's pushes, in their order.
pub async fn list_window(client: &ClientWrapper, window: WindowKey) -> Done<Vec<i64>> {
    let sql = "-- list_window
        SELECT push_no FROM pushes
        WHERE tenant_no = $1 AND meter_no = $2 AND window_start = $3
        ORDER BY push_no";
    let (meter, start) = (meter_number(window.meter), SqlTimestamp(window.start));
    let tenant = tenant_number(window.tenant_no);
    let rows = client.read_all(sql, &[&tenant, &meter, &start]).await?;
    Ok(rows.iter().map(|row| column(row, 0)).collect::<Result<_>>()?)
}
