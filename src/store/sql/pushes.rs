//! Pushes on their way to the provider: each verb, by the file of its noun (`claims`,
//! `settlements`).
//!
//! Invariant: every verb is one transaction, so a crash leaves all of it or nothing. What it
//! changed is logged after the commit: a line never tells what did not happen. A look before the
//! transaction of a claim only spares it; the transaction decides.

use super::claims::{begin_attempts, claim_found, find_due};
use super::epochs::move_mark;
use super::settlements::Settling;
use super::waiting::withhold;
use super::{Done, Session, SqlStore};
use crate::faults::planted;
use crate::rules::ids::MeterNo;
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::push::{
    AttemptIntent, ClaimedPush, PushClaim, Pushes, Ruling, Settlement, UnbilledSums, log_transition,
};
use async_trait::async_trait;
use std::collections::BTreeSet;

#[async_trait]
impl<S: SqlStore> Pushes for S {
    async fn claim_pushes(&self, claim: PushClaim) -> Result<Vec<ClaimedPush>> {
        let (wanted, at) = (claim.clone(), claim.now);
        let look = move |session: &dyn Session| {
            find_due(session, &wanted, &mut BTreeSet::new(), wanted.limit)
        };
        let found = self.in_reader(look).await?;
        if !found.unmapped.is_empty() && !planted("bug.push_without_customer") {
            let unmapped = found.unmapped.clone();
            let work = move |session: &dyn Session| withhold(session, &unmapped, at);
            self.in_transaction(work).await?.iter().for_each(log_transition);
        }
        if found.is_empty() {
            return Ok(Vec::new());
        }
        self.in_transaction(move |session| claim_found(session, &claim, found.clone())).await
    }

    async fn begin_attempts(&self, intents: Vec<AttemptIntent>, at: Timestamp) -> Result<Vec<u64>> {
        let marks = self.marks_attempts();
        let work = move |session: &dyn Session| {
            let lines = begin_attempts(session, &intents, at)?;
            Ok((lines, marks.then(|| move_mark(session)).transpose()?))
        };
        let (lines, mark) = self.in_transaction(work).await?;
        lines.iter().for_each(log_transition);
        if let Some(mark) = mark {
            self.write_mark(&mark);
        }
        Ok(lines.into_iter().map(|line| line.push).collect())
    }

    async fn settle_pushes(&self, settlements: Vec<Settlement>, at: Timestamp) -> Result<usize> {
        change(self, at, move |settling| settling.settle(&settlements)).await
    }

    async fn retry_push(&self, number: u64, at: Timestamp) -> Result<Ruling> {
        change(self, at, move |settling| settling.retry(number)).await
    }

    async fn discard_push(&self, number: u64, reason: &str, at: Timestamp) -> Result<Ruling> {
        let reason = reason.to_owned();
        change(self, at, move |settling| settling.discard(number, &reason)).await
    }

    async fn sum_unbilled(&self, meters: Vec<(MeterNo, Timestamp)>) -> Result<UnbilledSums> {
        self.add_unbilled(meters).await
    }
}

/// Runs `work` in one transaction and logs what it changed.
async fn change<S: SqlStore, T: Send + 'static>(
    store: &S,
    at: Timestamp,
    work: impl Fn(&mut Settling<'_>) -> Done<T> + Send + Sync + 'static,
) -> Result<T> {
    let secret = store.push_secret();
    let work = move |session: &dyn Session| {
        let mut settling = Settling { session, secret, at, lines: Vec::new() };
        let answer = work(&mut settling)?;
        Ok((answer, settling.lines))
    };
    let (answer, lines) = store.in_transaction(work).await?;
    lines.iter().for_each(log_transition);
    Ok(answer)
}
