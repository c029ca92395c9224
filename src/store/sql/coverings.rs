//! Windows that are covered by credits, as part of their cut.
//!
//! Invariant: what a window draws and gives back is written with its state, in the cut's
//! transaction. The caller holds the windows, so their draws do not change; then the tenants'
//! grants are locked in the order of their numbers, so every window sees what those before it have
//! left, whichever server or verb took it. Only PostgreSQL has others that wait for these locks,
//! and it takes all of them in one call of [`Coverings::hold`].
//!
//! A tenant without grants costs its share of one look at an index. A crash leaves all of the
//! caller's transaction or nothing.

use super::credit_changes::{WindowChanges, read_window_changes, write_changes};
use super::cut_rows::WindowKey;
use super::grants::{HeldGrant, live_grants, lock_grants};
use super::{Done, Session};
use crate::rules::credit::covering::CoverOrder;
use crate::rules::credit::{ChangeKind, DrawOrder};
use crate::rules::grant::ledger::Ledger;
use crate::rules::ids::TenantNo;
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::Result;
use std::collections::BTreeSet;

/// The credits of tenants whose windows are cut, as the transaction has left them.
#[derive(Default)]
pub struct Coverings {
    held: BTreeSet<TenantNo>,
    ledger: Ledger,
    /// Of the windows that may give back, and what is planned since the last write.
    changes: WindowChanges,
}

impl Coverings {
    /// Holds what the tenants have left, and the grants that the windows may give back to.
    pub fn hold(
        &mut self,
        session: &dyn Session,
        tenants: &BTreeSet<TenantNo>,
        giving_back: &BTreeSet<WindowKey>,
    ) -> Done<()> {
        self.changes = read_window_changes(session, giving_back)?;
        let new: Vec<TenantNo> = tenants.difference(&self.held).copied().collect();
        let mut numbers: BTreeSet<u64> = live_grants(session, &new)?.into_iter().collect();
        for (window, draws) in &self.changes {
            // What is given back may be of a grant that had nothing left.
            let drawn = draws.iter().map(|(_, draw)| draw.grant);
            numbers.extend(drawn.filter(|grant| !self.ledger.holds(window.tenant_no, *grant)));
        }
        for HeldGrant { tenant_no, grant } in lock_grants(session, &numbers)? {
            self.ledger.hold(tenant_no, grant)?;
        }
        self.held.extend(new);
        Ok(())
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

    /// Writes what is planned; the grants stay held.
    pub fn write(&mut self, session: &dyn Session, at: Timestamp) -> Done<()> {
        self.changes.clear();
        write_changes(session, self.ledger.take_planned(), at)?;
        Ok(())
    }
}
