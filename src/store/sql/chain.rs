//! Follows the chain of nightly passes, in the caller's snapshot. Nothing is written here, so a
//! crash leaves nothing.

use super::passes::{list_pass_rows, list_passes};
use super::{Done, Failure, Session};
use crate::rules::chain::{Chain, ChainReport};
use crate::rules::pass::{Pass, PassKind, PassRow};
use crate::store::Query;
use crate::store::reconciliation::{PassFilter, follow_pass};

const PAGE: usize = 1_000;

/// Whether every nightly pass and row has the hash that follows from its predecessor.
pub fn verify_passes(session: &dyn Session) -> Done<ChainReport> {
    let mut chain = Chain::default();
    for pass in nightly_passes(session)? {
        let rows = rows_of(session, pass.number).map_err(Failure::into_error);
        if !follow_pass(&mut chain, &pass, rows)? {
            break;
        }
    }
    Ok(chain.report())
}

/// Oldest first.
fn nightly_passes(session: &dyn Session) -> Done<Vec<Pass>> {
    let mut passes: Vec<Pass> = Vec::new();
    loop {
        let after = passes.last().map(|pass| pass.number);
        let filter = PassFilter { kind: Some(PassKind::Nightly), state: None };
        let page = list_passes(session, &Query { filter, after, limit: PAGE })?;
        let ended = page.len() < PAGE;
        passes.extend(page);
        if ended {
            passes.reverse();
            return Ok(passes);
        }
    }
}

fn rows_of(session: &dyn Session, pass: u64) -> Done<Vec<PassRow>> {
    let mut rows: Vec<PassRow> = Vec::new();
    loop {
        let last = rows.last();
        let after = last.map(|row| (row.tenant.clone(), row.meter, row.day.start));
        let page = list_pass_rows(session, &Query { filter: pass, after, limit: PAGE })?;
        let ended = page.len() < PAGE;
        rows.extend(page);
        if ended {
            return Ok(rows);
        }
    }
}
