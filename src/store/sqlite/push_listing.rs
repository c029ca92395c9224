//! Snapshots of the embedded store. Nothing is written here.

use super::sql_error;
use crate::store::Result;
use rusqlite::Connection;

/// Opens a read transaction; the reader that lent the connection ends it.
pub fn begin_snapshot(connection: &Connection) -> Result<()> {
    connection.execute_batch("BEGIN").map_err(sql_error)
}
