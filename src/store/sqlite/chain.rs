//! Follows the chain of nightly passes, in one read transaction.

use super::passes::{list_pass_rows, list_passes};
use super::sql_error;
use crate::rules::chain::{Chain, ChainReport};
use crate::rules::pass::{Pass, PassKind, PassRow};
use crate::store::reconciliation::{PassQuery, PassRowQuery};
use crate::store::{Error, Result};
use rusqlite::Connection;

const PAGE: usize = 1_000;

/// Whether every nightly pass and row has the hash that follows from what stands before it.
pub fn verify_passes(connection: &Connection) -> Result<ChainReport> {
    connection.execute_batch("BEGIN").map_err(sql_error)?;
    let report = follow(connection);
    connection.execute_batch("ROLLBACK").map_err(sql_error)?;
    report
}

fn follow(connection: &Connection) -> Result<ChainReport> {
    let mut chain = Chain::default();
    for pass in nightly_passes(connection)? {
        match rows_of(connection, pass.number) {
            Ok(rows) => chain.follow(&pass, &rows),
            Err(Error::Corrupt { what }) => chain.end_unreadable(pass.number, &what),
            Err(
                error @ (Error::Unavailable { .. }
                | Error::Overdue { .. }
                | Error::TooLarge { .. }
                | Error::Unknown { .. }
                | Error::Internal { .. }),
            ) => return Err(error),
        }
        if chain.is_broken() {
            break;
        }
    }
    Ok(chain.report())
}

/// Oldest first.
fn nightly_passes(connection: &Connection) -> Result<Vec<Pass>> {
    let mut passes: Vec<Pass> = Vec::new();
    loop {
        let before = passes.last().map(|pass| pass.number);
        let kind = Some(PassKind::Nightly);
        let page = list_passes(connection, &PassQuery { kind, state: None, before, limit: PAGE })?;
        let ended = page.len() < PAGE;
        passes.extend(page);
        if ended {
            passes.reverse();
            return Ok(passes);
        }
    }
}

fn rows_of(connection: &Connection, pass: u64) -> Result<Vec<PassRow>> {
    let mut rows: Vec<PassRow> = Vec::new();
    loop {
        let last = rows.last();
        let after = last.map(|row| (row.tenant.clone(), row.meter, row.day.start));
        let page = list_pass_rows(connection, &PassRowQuery { pass, after, limit: PAGE })?;
        let ended = page.len() < PAGE;
        rows.extend(page);
        if ended {
            return Ok(rows);
        }
    }
}
