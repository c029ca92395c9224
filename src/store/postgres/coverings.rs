//! Windows that are covered by credits, as part of their cut.
//!
//! Invariant: what a window draws and gives back is written with its state, in the cut's
//! transaction. The caller holds the windows, so their draws stand; then the tenants' grants are
//! locked in the order of their numbers, so every window sees what those before it have left,
//! whichever server or verb took it.
//!
//! A tenant without grants costs its share of one look at an index. A crash leaves all of the
//! caller's transaction or nothing.

use super::credit_changes::write_changes;
use super::credit_rows::{WindowChanges, live_grants, lock_grants, read_window_changes};
use super::cuts::WindowKey;
use super::scalars::write_count;
use super::transaction::Done;
use crate::rules::credit::covering::CoverOrder;
use crate::rules::credit::{ChangeKind, DrawOrder};
use crate::rules::grant::ledger::Ledger;
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::Result;
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeSet;

/// The credits of tenants whose windows are cut.
#[derive(Default)]
pub struct Coverings {
    ledger: Ledger<i32>,
    /// Of the windows that may give back.
    changes: WindowChanges,
}

impl Coverings {
    /// Holds what the tenants have left, and the grants that the windows may give back to.
    pub async fn hold(
        client: &ClientWrapper,
        tenants: &BTreeSet<i32>,
        giving_back: &BTreeSet<WindowKey>,
    ) -> Done<Self> {
        if tenants.is_empty() {
            return Ok(Self::default());
        }
        let changes = read_window_changes(client, giving_back).await?;
        let tenants: Vec<i32> = tenants.iter().copied().collect();
        let mut numbers: BTreeSet<i64> = live_grants(client, &tenants).await?.into_iter().collect();
        for (_, draw) in changes.values().flatten() {
            numbers.insert(write_count(draw.grant)?);
        }
        let numbers: Vec<i64> = numbers.into_iter().collect();
        let mut ledger = Ledger::default();
        for (tenant_no, grant) in lock_grants(client, &numbers).await? {
            ledger.hold(tenant_no, grant)?;
        }
        Ok(Self { ledger, changes })
    }

    /// Covers what a window has grown by, or gives back; how much of it is covered then.
    pub fn cover(
        &mut self,
        key: WindowKey,
        window: Window,
        order: &CoverOrder,
        draw_order: DrawOrder,
    ) -> Result<Quantity> {
        let changes = self.changes.get(&key).map_or(&[][..], Vec::as_slice);
        let covering = self.ledger.cover(key.tenant_no, window, order, changes, draw_order)?;
        // What the same call takes off the window again is given back from here.
        let drawn = covering.drawn.iter().map(|draw| (ChangeKind::Drawn, *draw));
        let given_back = covering.given_back.iter().map(|draw| (ChangeKind::GivenBack, *draw));
        self.changes.entry(key).or_default().extend(drawn.chain(given_back));
        Ok(covering.covered)
    }

    pub async fn write(mut self, client: &ClientWrapper, at: Timestamp) -> Done<()> {
        write_changes(client, self.ledger.take_planned(), at).await?;
        Ok(())
    }
}
