//! Follows the chain of nightly passes, in the caller's snapshot.

use super::passes::{list_pass_rows, list_passes};
use crate::rules::chain::{Chain, ChainReport};
use crate::rules::pass::{Pass, PassKind, PassRow};
use crate::store::Result;
use crate::store::reconciliation::{PassQuery, PassRowQuery, follow_pass};
use deadpool_postgres::ClientWrapper;

const PAGE: usize = 1_000;

/// Whether every nightly pass and row has the hash that follows from its predecessor.
pub async fn verify_passes(client: &ClientWrapper) -> Result<ChainReport> {
    let mut chain = Chain::default();
    for pass in nightly_passes(client).await? {
        if !follow_pass(&mut chain, &pass, rows_of(client, pass.number).await)? {
            break;
        }
    }
    Ok(chain.report())
}

/// Oldest first.
async fn nightly_passes(client: &ClientWrapper) -> Result<Vec<Pass>> {
    let mut passes: Vec<Pass> = Vec::new();
    loop {
        let before = passes.last().map(|pass| pass.number);
        let kind = Some(PassKind::Nightly);
        let query = PassQuery { kind, state: None, before, limit: PAGE };
        let page = list_passes(client, &query).await?;
        let ended = page.len() < PAGE;
        passes.extend(page);
        if ended {
            passes.reverse();
            return Ok(passes);
        }
    }
}

async fn rows_of(client: &ClientWrapper, pass: u64) -> Result<Vec<PassRow>> {
    let mut rows: Vec<PassRow> = Vec::new();
    loop {
        let last = rows.last();
        let after = last.map(|row| (row.tenant.clone(), row.meter, row.day.start));
        let page = list_pass_rows(client, &PassRowQuery { pass, after, limit: PAGE }).await?;
        let ended = page.len() < PAGE;
        rows.extend(page);
        if ended {
            return Ok(rows);
        }
    }
}
