//! Follows the chain of nightly passes, in one read transaction.

use super::passes::{list_pass_rows, list_passes};
use crate::rules::chain::{Chain, ChainReport};
use crate::rules::pass::{Pass, PassKind, PassRow};
use crate::store::Result;
use crate::store::reconciliation::{PassQuery, PassRowQuery, follow_pass};
use rusqlite::Connection;

const PAGE: usize = 1_000;

/// Whether every nightly pass and row has the hash that follows from its predecessor.
pub fn verify_passes(connection: &Connection) -> Result<ChainReport> {
    connection.execute_batch("BEGIN")?;
    let report = follow(connection);
    connection.execute_batch("ROLLBACK")?;
    report
}

fn follow(connection: &Connection) -> Result<ChainReport> {
    let mut chain = Chain::default();
    for pass in nightly_passes(connection)? {
        if !follow_pass(&mut chain, &pass, rows_of(connection, pass.number))? {
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
