//! Changes of pushes that no claimant makes: each verb, by the file of its noun.
//!
//! Invariant: every verb is one transaction, so a crash leaves all of it or nothing. What it
//! changed is logged after the commit: a line never tells what did not happen.

use super::{Session, SqlStore, reissues, rejections, waiting};
use crate::rules::ids::{MeterNo, TenantId};
use crate::rules::reissue::ReissueOrder;
use crate::rules::rejection::{Rejection, RejectionReport};
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::Result;
use crate::store::push::{PushChanges, PushRelease, Ruling, log_transition};
use async_trait::async_trait;

#[async_trait]
impl<S: SqlStore> PushChanges for S {
    async fn release_pushes(&self, release: PushRelease) -> Result<usize> {
        let work = move |session: &dyn Session| waiting::release(session, &release);
        let lines = self.in_transaction_if(waiting::is_releasing, work).await?;
        lines.iter().for_each(log_transition);
        Ok(lines.len())
    }

    async fn reject_pushes(&self, rejection: Rejection, at: Timestamp) -> Result<RejectionReport> {
        let work = move |session: &dyn Session| rejections::reject_pushes(session, &rejection, at);
        let (report, lines) = self.in_transaction(work).await?;
        lines.iter().for_each(log_transition);
        Ok(report)
    }

    async fn record_reissue(&self, order: ReissueOrder, at: Timestamp) -> Result<Ruling> {
        let secret = self.push_secret();
        let work =
            move |session: &dyn Session| reissues::record_reissue(session, &secret, &order, at);
        let (ruling, lines) = self.in_transaction(work).await?;
        lines.iter().for_each(log_transition);
        Ok(ruling)
    }

    async fn close_pushes(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        range: Window,
        at: Timestamp,
    ) -> Result<u64> {
        let tenant = tenant.clone();
        let work =
            move |session: &dyn Session| reissues::close_pushes(session, &tenant, meter, range, at);
        let lines = self.in_transaction(work).await?;
        lines.iter().for_each(log_transition);
        Ok(u64::try_from(lines.len()).expect("a length fits 64 bits"))
    }
}
