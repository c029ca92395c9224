//! Windows of a restored store, compared with what the provider holds.
//!
//! Invariant: a comparison is judged by `rules::restore` with the window as it is inside the
//! writer's transaction, and what follows is written in the same one; so what was planned for the
//! window stays the sum of its pushes. A crash leaves a comparison done in full or not at all; the
//! push is then compared again.

use super::cuts::write_revision;
use super::push_rows::fetch_window;
use super::pushes::{Changes, customer_to_send_for, is_doubtful, place_of, window_state};
use super::session::SqliteSession;
use super::statements::Statements;
use crate::rules::push::StoredPush;
use crate::rules::quantity::Quantity;
use crate::rules::settlement::{Adopting, ComparedWindow, Followed, plan_comparison};
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::push::Settlement;
use crate::store::sql::read_epoch;
use rusqlite::Connection;

impl Changes<'_> {
    /// Compares the window of a claimed push and does what follows.
    pub fn compare(
        &mut self,
        found: &StoredPush,
        settlement: &Settlement,
        reading: (Quantity, Timestamp),
    ) -> Result<()> {
        let connection = self.connection;
        let customer = match &found.push.customer {
            Some(customer) => customer.clone(),
            None => customer_to_send_for(connection, found)?,
        };
        let (pushes, state) =
            (fetch_window(connection, place_of(found))?, window_state(connection, found)?);
        let window = ComparedWindow {
            pushes: &pushes,
            customer: &customer,
            doubtful: is_doubtful(connection, found)?,
            restored_at: read_epoch(&SqliteSession::on(connection))?.map(|epoch| epoch.restored_at),
            state: &state,
        };
        match plan_comparison(found, window, settlement, reading, self.at)? {
            Followed::Settle(settlement) => self.settle(found, &settlement),
            Followed::Verify(settlement) => {
                verify(connection, found)?;
                self.settle(found, &settlement)
            }
            Followed::Adopt(Adopting { changes, state, pushes }) => {
                changes.iter().try_for_each(|change| self.apply(change))?;
                write_revision(connection, place_of(found), &state)?;
                pushes.iter().try_for_each(|push| self.insert(push).map(drop))
            }
        }
    }
}

/// Keeps that the window was compared in this epoch.
fn verify(connection: &Connection, found: &StoredPush) -> Result<()> {
    connection.run(
        "-- verify
         UPDATE pushes SET verified_epoch = (SELECT MAX(epoch) FROM epochs) WHERE push_no = ?",
        [found.push.number],
    )?;
    Ok(())
}
