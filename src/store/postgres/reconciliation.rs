//! Reconciliation as the jobs see it: each verb, by the file of its noun.
//!
//! Invariant: every verb that writes is one transaction, so a crash leaves all of it or nothing;
//! what its repetition does is said in its file.

use super::PostgresStore;
use super::{findings, passes, push_history, summaries};
use crate::rules::drift::{Summary, WindowPush};
use crate::rules::finding::{Finding, FindingChange};
use crate::rules::ids::{CustomerId, MeterNo, TenantId};
use crate::rules::pass::{Pass, PassOrder, PassRow};
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::Result;
use crate::store::push::{Lease, Ruling};
use crate::store::reconciliation::{
    CorrectionOrder, FindingQuery, Pair, PassQuery, PassRowQuery, PassUpdate, Reconciliation,
    SummaryReading,
};
use async_trait::async_trait;

#[async_trait]
impl Reconciliation for PostgresStore {
    async fn record_summaries(
        &self,
        readings: Vec<SummaryReading>,
        read_at: Timestamp,
    ) -> Result<()> {
        self.keep_summaries(&readings, read_at).await
    }

    async fn read_summaries(
        &self,
        whose: (&TenantId, &CustomerId),
        meter: MeterNo,
        range: Window,
        length_micros: i64,
    ) -> Result<Vec<Summary>> {
        let client = self.reader().await?;
        summaries::read_summaries(&client, whose, meter, range, length_micros).await
    }

    async fn read_window_pushes(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        range: Window,
    ) -> Result<Vec<WindowPush>> {
        let client = self.reader().await?;
        push_history::read_window_pushes(&client, tenant, meter, range).await
    }

    async fn list_restless_pairs(&self, since: Timestamp, shadow: bool) -> Result<Vec<Pair>> {
        let client = self.reader().await?;
        push_history::list_restless_pairs(&client, since, shadow).await
    }

    async fn list_former_customers(&self) -> Result<Vec<(TenantId, CustomerId)>> {
        let client = self.reader().await?;
        push_history::list_former_customers(&client).await
    }

    async fn create_pass(&self, order: PassOrder, at: Timestamp) -> Result<u64> {
        self.order_pass(&order, at).await
    }

    async fn update_pass(&self, lease: &Lease, update: PassUpdate, at: Timestamp) -> Result<bool> {
        self.change_pass(lease, &update, at).await
    }

    async fn list_passes(&self, query: PassQuery) -> Result<Vec<Pass>> {
        let client = self.reader().await?;
        passes::list_passes(&client, &query).await
    }

    async fn find_pass(&self, number: u64) -> Result<Option<Pass>> {
        let client = self.reader().await?;
        passes::find_pass(&client, number).await
    }

    async fn record_pass_rows(&self, lease: &Lease, pass: u64, rows: Vec<PassRow>) -> Result<bool> {
        self.add_rows(lease, pass, &rows).await
    }

    async fn list_pass_rows(&self, query: PassRowQuery) -> Result<Vec<PassRow>> {
        let client = self.reader().await?;
        passes::list_pass_rows(&client, &query).await
    }

    async fn list_findings(&self, query: FindingQuery) -> Result<Vec<Finding>> {
        let client = self.reader().await?;
        findings::list_findings(&client, &query).await
    }

    async fn record_findings(
        &self,
        lease: &Lease,
        pass: u64,
        changes: Vec<FindingChange>,
        at: Timestamp,
    ) -> Result<bool> {
        self.follow(lease, pass, &changes, at).await
    }

    async fn accept_finding(&self, number: u64, at: Timestamp) -> Result<Ruling> {
        self.accept(number, at).await
    }

    async fn is_accepted(&self, subscription: &str) -> Result<bool> {
        let client = self.reader().await?;
        findings::is_accepted(&client, subscription).await
    }

    async fn count_drifting_tenants(&self) -> Result<u64> {
        let client = self.reader().await?;
        findings::count_drifting_tenants(&client).await
    }

    async fn record_correction(&self, order: CorrectionOrder, at: Timestamp) -> Result<Ruling> {
        self.correct(&order, at).await
    }

    async fn close_pushes(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        range: Window,
        at: Timestamp,
    ) -> Result<u64> {
        self.close_windows(tenant, meter, range, at).await
    }
}
