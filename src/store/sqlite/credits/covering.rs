//! Usage that credits cover, inside the transaction of a cut.
//!
//! Invariant: what a call of `record_cuts` draws is seen by all it cuts after it, and every draw is
//! on the grant's row before the next one is planned. A tenant without grants costs one look into
//! an index for each call. A crash leaves a cut with all its draws or with none.

use super::rows::{NewChange, change_grant, find_grant, list_live_grants, read_draws};
use crate::rules::credit::{
    ChangeKind, CoverOrder, Covered, Draw, DrawOrder, Grant, plan_covering, standing_draws,
};
use crate::rules::ids::TenantNo;
use crate::rules::push::CutState;
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::Result;
use crate::store::sqlite::corrupt;
use crate::store::sqlite::push_rows::Owner;
use hashbrown::HashMap;
use rusqlite::Connection;

/// Grants of the tenants that a call has come to, as its transaction has left them.
#[derive(Default)]
pub struct Credit {
    grants: HashMap<TenantNo, Vec<Grant>>,
}

/// A window that has changed.
#[derive(Clone, Copy)]
pub struct Usage<'a> {
    pub owner: Owner<'a>,
    pub window: Window,
    pub state: &'a CutState,
    /// When it was used.
    pub during: Window,
    /// The window's billable total now.
    pub now: Quantity,
}

impl Credit {
    /// Draws on grants for what the window has grown by, or gives back what it has shrunk by;
    /// returns how much of it is covered then.
    pub fn cover(
        &mut self,
        connection: &Connection,
        usage: Usage<'_>,
        (order, at): (DrawOrder, Timestamp),
    ) -> Result<Quantity> {
        let Usage { owner, window, state, during, now } = usage;
        let grants = self.grants_of(connection, owner)?;
        if grants.is_empty() && state.covered == Quantity::ZERO {
            return Ok(Quantity::ZERO);
        }
        let inexact = |_| corrupt("what credits cover of a window");
        // Only a window that shrinks below what is covered needs to know what it drew.
        let drawn = if now < state.covered {
            let place = (owner.tenant_no, owner.meter_no, window.start);
            standing_draws(&read_draws(connection, place)?).map_err(inexact)?
        } else {
            Vec::new()
        };
        let cover = CoverOrder {
            meter: owner.meter_no,
            scale: owner.meter.usage_scale(),
            during,
            before: state.total,
            now,
            covered: state.covered,
        };
        let covering = plan_covering(&cover, grants, &drawn, order).map_err(inexact)?;
        for draw in &covering.given_back {
            self.change(connection, usage, (ChangeKind::GivenBack, *draw), at)?;
        }
        for draw in &covering.drawn {
            self.change(connection, usage, (ChangeKind::Drawn, *draw), at)?;
        }
        Ok(covering.covered)
    }

    fn grants_of(&mut self, connection: &Connection, owner: Owner<'_>) -> Result<&[Grant]> {
        let tenant = owner.tenant_no;
        if !self.grants.contains_key(&tenant) {
            // All of them: what was given back may have made more live than may be issued.
            let live = list_live_grants(connection, (tenant, owner.tenant), 0, usize::MAX)?;
            self.grants.insert(tenant, live);
        }
        Ok(&self.grants[&tenant])
    }

    fn change(
        &mut self,
        connection: &Connection,
        usage: Usage<'_>,
        (kind, draw): (ChangeKind, Draw),
        at: Timestamp,
    ) -> Result<()> {
        let owner = usage.owner;
        let grants = self.grants.entry(owner.tenant_no).or_default();
        let place = match grants.iter().position(|grant| grant.number == draw.grant) {
            Some(place) => place,
            // What is given back may be of a grant that had nothing left.
            None => {
                let found = find_grant(connection, (owner.tenant_no, owner.tenant), draw.grant)?;
                grants.push(found.ok_or_else(|| corrupt("the grant of a draw"))?);
                grants.len() - 1
            }
        };
        let covered =
            Covered { meter: owner.meter_no, window: usage.window, quantity: draw.quantity };
        let change =
            NewChange { kind, amount: draw.cost, covered: Some(covered), key: None, memo: "" };
        change_grant(connection, owner.tenant_no, &mut grants[place], change, at).map(drop)
    }
}
