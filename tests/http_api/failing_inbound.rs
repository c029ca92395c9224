//! The inbound half of the store that can be switched off.

use super::failing_store::FailingStore;
use async_trait::async_trait;
use counterfoil::rules::alert::*;
use counterfoil::rules::drift::*;
use counterfoil::rules::finding::*;
use counterfoil::rules::ids::*;
use counterfoil::rules::mirror::*;
use counterfoil::rules::pass::*;
use counterfoil::rules::subscription::*;
use counterfoil::rules::timestamp::*;
use counterfoil::rules::window::*;
use counterfoil::store::Result;
use counterfoil::store::alert::*;
use counterfoil::store::push::*;
use counterfoil::store::reconciliation::*;
use counterfoil::store::webhook::*;

#[async_trait]
impl Webhooks for FailingStore {
    async fn record_webhooks(&self, receipts: Vec<WebhookReceipt>) -> Result<Vec<Receipted>> {
        let _open = self.webhooks_gate.read().await;
        self.up()?.record_webhooks(receipts).await
    }
    async fn list_webhooks(&self, query: WebhookQuery) -> Result<Vec<WebhookRecord>> {
        self.up()?.list_webhooks(query).await
    }
    async fn find_webhook(&self, number: u64) -> Result<Option<(WebhookRecord, Vec<u8>)>> {
        self.up()?.find_webhook(number).await
    }
    async fn replay_webhook(&self, number: u64, at: Timestamp) -> Result<Ruling> {
        self.up()?.replay_webhook(number, at).await
    }
    async fn count_webhooks(&self) -> Result<WebhookCounts> {
        self.up()?.count_webhooks().await
    }
    async fn read_cursor(&self, name: &'static str) -> Result<Option<String>> {
        self.up()?.read_cursor(name).await
    }
    async fn record_cursor(&self, name: &'static str, value: &str) -> Result<()> {
        self.up()?.record_cursor(name, value).await
    }
}

#[async_trait]
impl Mirrors for FailingStore {
    async fn want_mirrors(&self, names: Vec<ObjectName>, at: Timestamp) -> Result<Vec<u64>> {
        self.up()?.want_mirrors(names, at).await
    }
    async fn claim_mirrors(&self, claim: MirrorClaim) -> Result<Vec<WantedMirror>> {
        self.up()?.claim_mirrors(claim).await
    }
    async fn record_mirrors(
        &self,
        readings: Vec<MirrorReading>,
        at: Timestamp,
    ) -> Result<Vec<Mirrored>> {
        self.up()?.record_mirrors(readings, at).await
    }
    async fn put_off_mirror(
        &self,
        wanted: &WantedMirror,
        until: Timestamp,
        detail: &str,
    ) -> Result<()> {
        self.up()?.put_off_mirror(wanted, until, detail).await
    }
    async fn find_mirror(&self, name: &ObjectName) -> Result<Option<Mirror>> {
        self.up()?.find_mirror(name).await
    }
    async fn list_mirrors(&self, query: MirrorQuery) -> Result<Vec<Mirror>> {
        self.up()?.list_mirrors(query).await
    }
    async fn read_timeline(&self, tenant: &TenantId) -> Result<Vec<TimelineEntry>> {
        self.up()?.read_timeline(tenant).await
    }
    async fn reject_pushes(&self, rejection: Rejection, at: Timestamp) -> Result<RejectionReport> {
        self.up()?.reject_pushes(rejection, at).await
    }
}

#[async_trait]
impl Reconciliation for FailingStore {
    async fn record_summaries(
        &self,
        readings: Vec<SummaryReading>,
        read_at: Timestamp,
    ) -> Result<()> {
        self.up()?.record_summaries(readings, read_at).await
    }
    async fn read_summaries(
        &self,
        whose: (&TenantId, &CustomerId),
        meter: MeterNo,
        range: Window,
        length_micros: i64,
    ) -> Result<Vec<Summary>> {
        self.up()?.read_summaries(whose, meter, range, length_micros).await
    }
    async fn read_window_pushes(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        range: Window,
    ) -> Result<Vec<WindowPush>> {
        self.up()?.read_window_pushes(tenant, meter, range).await
    }
    async fn list_restless_pairs(&self, since: Timestamp, shadow: bool) -> Result<Vec<Pair>> {
        self.up()?.list_restless_pairs(since, shadow).await
    }
    async fn list_former_customers(&self) -> Result<Vec<(TenantId, CustomerId)>> {
        self.up()?.list_former_customers().await
    }
    async fn create_pass(&self, order: PassOrder, at: Timestamp) -> Result<u64> {
        self.up()?.create_pass(order, at).await
    }
    async fn update_pass(&self, lease: &Lease, update: PassUpdate, at: Timestamp) -> Result<bool> {
        self.up()?.update_pass(lease, update, at).await
    }
    async fn list_passes(&self, query: PassQuery) -> Result<Vec<Pass>> {
        self.up()?.list_passes(query).await
    }
    async fn find_pass(&self, number: u64) -> Result<Option<Pass>> {
        self.up()?.find_pass(number).await
    }
    async fn record_pass_rows(&self, lease: &Lease, pass: u64, rows: Vec<PassRow>) -> Result<bool> {
        self.up()?.record_pass_rows(lease, pass, rows).await
    }
    async fn list_pass_rows(&self, query: PassRowQuery) -> Result<Vec<PassRow>> {
        self.up()?.list_pass_rows(query).await
    }

    async fn list_findings(&self, query: FindingQuery) -> Result<Vec<Finding>> {
        self.up()?.list_findings(query).await
    }
    async fn record_findings(
        &self,
        lease: &Lease,
        pass: u64,
        changes: Vec<FindingChange>,
        at: Timestamp,
    ) -> Result<bool> {
        self.up()?.record_findings(lease, pass, changes, at).await
    }
    async fn accept_finding(&self, number: u64, at: Timestamp) -> Result<Ruling> {
        self.up()?.accept_finding(number, at).await
    }
    async fn is_accepted(&self, subscription: &str) -> Result<bool> {
        self.up()?.is_accepted(subscription).await
    }
    async fn count_drifting_tenants(&self) -> Result<u64> {
        self.up()?.count_drifting_tenants().await
    }
    async fn record_correction(&self, order: CorrectionOrder, at: Timestamp) -> Result<Ruling> {
        self.up()?.record_correction(order, at).await
    }
    async fn close_pushes(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        range: Window,
        at: Timestamp,
    ) -> Result<u64> {
        self.up()?.close_pushes(tenant, meter, range, at).await
    }
}

#[async_trait]
impl Alerts for FailingStore {
    async fn record_alerts(
        &self,
        changes: Vec<AlertChange>,
        destinations: &[&'static str],
        at: Timestamp,
    ) -> Result<usize> {
        self.up()?.record_alerts(changes, destinations, at).await
    }
    async fn list_alerts(&self, query: AlertQuery) -> Result<Vec<Alert>> {
        self.up()?.list_alerts(query).await
    }
    async fn count_pages(&self, now: Timestamp) -> Result<PageCounts> {
        self.up()?.count_pages(now).await
    }
    async fn claim_notices(
        &self,
        now: Timestamp,
        lease_until: Timestamp,
        limit: usize,
    ) -> Result<Vec<ClaimedNotice>> {
        self.up()?.claim_notices(now, lease_until, limit).await
    }
    async fn settle_notice(
        &self,
        number: u64,
        fence: u64,
        outcome: NoticeOutcome,
        at: Timestamp,
    ) -> Result<bool> {
        self.up()?.settle_notice(number, fence, outcome, at).await
    }
    async fn put_threshold(&self, threshold: Threshold) -> Result<()> {
        self.up()?.put_threshold(threshold).await
    }
    async fn delete_threshold(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        kind: ThresholdKind,
        period: ThresholdPeriod,
    ) -> Result<bool> {
        self.up()?.delete_threshold(tenant, meter, kind, period).await
    }
    async fn list_thresholds(&self, query: ThresholdQuery) -> Result<Vec<Threshold>> {
        self.up()?.list_thresholds(query).await
    }
}
