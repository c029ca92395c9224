//! Usage that credits cover, inside the transaction of a cut.
//!
//! Invariant: what a call of `record_cuts` draws is seen by all it cuts after it, and every draw is
//! on the grant's row before the next one is planned. A tenant without grants costs one look into
//! an index for each call. A crash leaves a cut with all its draws or with none.

use super::rows::{find_grant, list_live_grants, read_draws, write_changes};
use crate::rules::credit::DrawOrder;
use crate::rules::credit::covering::CoverOrder;
use crate::rules::grant::ledger::Ledger;
use crate::rules::ids::TenantNo;
use crate::rules::push::CutState;
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::Result;
use crate::store::sqlite::corrupt;
use crate::store::sqlite::push_rows::Owner;
use hashbrown::HashSet;
use rusqlite::Connection;

/// Grants of the tenants that a call has come to, as its transaction has left them.
#[derive(Default)]
pub struct Credit {
    held: HashSet<TenantNo>,
    ledger: Ledger<TenantNo>,
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
        (draw_order, at): (DrawOrder, Timestamp),
    ) -> Result<Quantity> {
        let Usage { owner, window, state, during, now } = usage;
        let tenant = owner.tenant_no;
        self.hold_live(connection, owner)?;
        let order = CoverOrder {
            meter: owner.meter_no,
            scale: owner.meter.usage_scale(),
            during,
            before: state.total,
            now,
            covered: state.covered,
        };
        // Only a window that shrinks below what is covered needs to know what it drew.
        let mut changes = Vec::new();
        if now < state.covered {
            changes = read_draws(connection, (tenant, owner.meter_no, window.start))?;
            for (_, draw) in &changes {
                // What is given back may be of a grant that had nothing left.
                if !self.ledger.holds(tenant, draw.grant) {
                    let found = find_grant(connection, (tenant, owner.tenant), draw.grant)?;
                    let grant = found.ok_or_else(|| corrupt("grants row of a draw"))?;
                    self.ledger.hold(tenant, grant)?;
                }
            }
        }
        let covering = self.ledger.cover(tenant, window, &order, &changes, draw_order)?;
        write_changes(connection, self.ledger.take_planned(), at)?;
        Ok(covering.covered)
    }

    /// Holds a tenant's grants with anything left. All of them: what was given back may have made
    /// more live than may be issued.
    fn hold_live(&mut self, connection: &Connection, owner: Owner<'_>) -> Result<()> {
        let tenant = owner.tenant_no;
        if self.held.insert(tenant) {
            for grant in list_live_grants(connection, (tenant, owner.tenant), 0, usize::MAX)? {
                self.ledger.hold(tenant, grant)?;
            }
        }
        Ok(())
    }
}
