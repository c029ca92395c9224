//! Windows of a restored store, compared with what the provider holds.
//!
//! Invariant: as in `corrections`, the window's pushes are locked first, then its row in `cuts`,
//! without which no push can be added; the comparison is judged by `rules::restore` under both
//! locks, and what follows is written in the same transaction. So what was planned for the window
//! stays the sum of its pushes. A crash leaves a comparison done in full or not at all.

use super::corrections::lock_window;
use super::cuts::write_revisions;
use super::epochs::{read_epoch, verify};
use super::push_rows::{change_pushes, insert_pushes};
use super::pushes::read_standing;
use super::scalars::{corrupt, write_count};
use super::settlements::window_of;
use super::transaction::Done;
use crate::rules::push::StoredPush;
use crate::rules::quantity::Quantity;
use crate::rules::settlement::{Adopting, ComparedWindow, Followed, plan_comparison};
use crate::rules::timestamp::Timestamp;
use crate::store::push::{Settlement, TransitionLine};
use deadpool_postgres::ClientWrapper;

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
