//! Epochs: how often the store was restored.
//!
//! Invariant: an epoch only grows. A crash leaves a restore written down or not; the next start
//! finds the same signs of it, and writes it down then.

use super::{Done, Row, Session, values};
use crate::rules::push::secret_of_epoch;
use crate::rules::restore::{Cause, Mark};
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::epoch::Epoch;

const LAST_EPOCH: &str = "-- read_epoch
    SELECT epoch, restored_at, reason, suspected FROM epochs ORDER BY epoch DESC LIMIT 1";

/// The last restore; none if there was none.
pub fn read_epoch(session: &dyn Session) -> Done<Option<Epoch>> {
    session.read_optional(LAST_EPOCH, &[], decode_epoch)
}

fn decode_epoch(row: &Row) -> Result<Epoch> {
    Ok(Epoch {
        number: row.get("epochs.epoch")?,
        restored_at: row.get("epochs.restored_at")?,
        reason: row.get("epochs.reason")?,
        suspected: row.get("epochs.suspected")?,
    })
}

/// Writes a restore down. From then on the store's mark is not below `mark_min`.
pub fn record_restore(
    session: &dyn Session,
    cause: &Cause,
    mark_min: u64,
    at: Timestamp,
) -> Done<Epoch> {
    let sql = "-- raise_mark
        UPDATE store_life SET mark = $1 WHERE mark < $1";
    session.run(sql, values![mark_min])?;
    let sql = "-- record_restore
        INSERT INTO epochs (epoch, restored_at, reason, suspected)
        SELECT COALESCE(max(epoch), 0) + 1, $1, $2, $3 FROM epochs";
    session.run(sql, values![at, cause.reason, cause.suspected])?;
    session.read_one(LAST_EPOCH, &[], decode_epoch)
}

/// Moves the store's mark on by one.
pub fn move_mark(session: &dyn Session) -> Done<Mark> {
    let sql = "-- move_mark
        UPDATE store_life SET mark = mark + 1 RETURNING store, mark";
    session.read_one(sql, &[], |row| {
        Ok(Mark { store: row.get("store_life.store")?, number: row.get("store_life.mark")? })
    })
}

/// The secret under which keys of pushes are made now.
pub fn secret_now(session: &dyn Session, secret: &[u8; 32]) -> Done<[u8; 32]> {
    let sql = "-- secret_now
        SELECT COALESCE(max(epoch), 0) AS epoch FROM epochs WHERE NOT suspected";
    Ok(secret_of_epoch(secret, session.read_one(sql, &[], Row::only)?))
}
