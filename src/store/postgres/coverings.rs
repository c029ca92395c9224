//! Windows that are covered by credits, as part of their cut.
//!
//! Invariant: what a window draws and gives back is written with its state, in the cut's
//! transaction. The caller holds the windows, so their draws stand; then the tenants' grants are
//! locked in the order of their numbers, so every window sees what those before it have left,
//! whichever server or verb took it.
//!
//! A tenant without grants costs its share of one look at an index. A crash leaves all of the
//! caller's transaction or nothing.

use super::credit_changes::{Ledger, NewChange};
use super::credit_rows::{WindowChanges, live_grants, lock_grants, read_window_changes};
use super::cuts::WindowKey;
use super::scalars::{corrupt, write_count};
use super::transaction::Done;
use crate::rules::credit::{
    ChangeKind, CoverOrder, Covered, Draw, DrawOrder, plan_covering, standing_draws,
};
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::{Error, Result};
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeSet;

/// The credits of tenants whose windows are cut.
#[derive(Default)]
pub struct Coverings {
    ledger: Ledger,
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
        let ledger = Ledger::new(lock_grants(client, &numbers).await?);
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
        let grants = self.ledger.grants(key.tenant_no);
        if grants.is_empty() && order.covered == Quantity::ZERO {
            return Ok(Quantity::ZERO);
        }
        // Only a window that shrinks below what is covered gives back.
        let standing = match order.now < order.covered {
            true => standing_draws(self.changes.get(&key).map_or(&[], Vec::as_slice)),
            false => Ok(Vec::new()),
        };
        let standing = standing
            .map_err(|error| corrupt(format!("the draws of a window contradict: {error}")))?;
        let covering = plan_covering(order, grants, &standing, draw_order)
            .map_err(|error| Error::Internal { what: error.to_string() })?;
        for draw in covering.drawn {
            self.change(key, window, ChangeKind::Drawn, draw)?;
        }
        for draw in covering.given_back {
            self.change(key, window, ChangeKind::GivenBack, draw)?;
        }
        Ok(covering.covered)
    }

    fn change(
        &mut self,
        key: WindowKey,
        window: Window,
        kind: ChangeKind,
        draw: Draw,
    ) -> Result<()> {
        let covered = Some(Covered { meter: key.meter, window, quantity: draw.quantity });
        let new = NewChange { covered, ..NewChange::of(draw.grant, kind, draw.cost) };
        self.ledger.plan(key.tenant_no, new)?;
        // What the same call takes off the window again is given back from here.
        self.changes.entry(key).or_default().push((kind, draw));
        Ok(())
    }

    pub async fn write(self, client: &ClientWrapper, at: Timestamp) -> Done<()> {
        self.ledger.write(client, at).await?;
        Ok(())
    }
}
