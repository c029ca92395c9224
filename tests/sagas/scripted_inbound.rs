//! The inbound half of the store, whose calls meet the accidents of a script.

use super::scripted_store::ScriptedStore;
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
impl Webhooks for ScriptedStore {
    async fn record_webhooks(&self, receipts: Vec<WebhookReceipt>) -> Result<Vec<Receipted>> {
        self.through("record_webhooks", self.inner.record_webhooks(receipts)).await
    }
    async fn list_webhooks(&self, query: WebhookQuery) -> Result<Vec<WebhookRecord>> {
        self.through("list_webhooks", self.inner.list_webhooks(query)).await
    }
    async fn find_webhook(&self, number: u64) -> Result<Option<(WebhookRecord, Vec<u8>)>> {
        self.through("find_webhook", self.inner.find_webhook(number)).await
    }
    async fn replay_webhook(&self, number: u64, at: Timestamp) -> Result<Ruling> {
        self.through("replay_webhook", self.inner.replay_webhook(number, at)).await
    }
    async fn count_webhooks(&self) -> Result<WebhookCounts> {
        self.through("count_webhooks", self.inner.count_webhooks()).await
    }
    async fn read_cursor(&self, name: &'static str) -> Result<Option<String>> {
        self.through("read_cursor", self.inner.read_cursor(name)).await
    }
    async fn record_cursor(&self, name: &'static str, value: &str) -> Result<()> {
        self.through("record_cursor", self.inner.record_cursor(name, value)).await
    }
}

#[async_trait]
impl Mirrors for ScriptedStore {
    async fn want_mirrors(&self, names: Vec<ObjectName>, at: Timestamp) -> Result<Vec<u64>> {
        self.through("want_mirrors", self.inner.want_mirrors(names, at)).await
    }
    async fn claim_mirrors(&self, claim: MirrorClaim) -> Result<Vec<WantedMirror>> {
        self.through("claim_mirrors", self.inner.claim_mirrors(claim)).await
    }
    async fn record_mirrors(
        &self,
        readings: Vec<MirrorReading>,
        at: Timestamp,
    ) -> Result<Vec<Mirrored>> {
        self.through("record_mirrors", self.inner.record_mirrors(readings, at)).await
    }
    async fn put_off_mirror(
        &self,
        wanted: &WantedMirror,
        until: Timestamp,
        detail: &str,
    ) -> Result<()> {
        self.through("put_off_mirror", self.inner.put_off_mirror(wanted, until, detail)).await
    }
    async fn find_mirror(&self, name: &ObjectName) -> Result<Option<Mirror>> {
        self.through("find_mirror", self.inner.find_mirror(name)).await
    }
    async fn list_mirrors(&self, query: MirrorQuery) -> Result<Vec<Mirror>> {
        self.through("list_mirrors", self.inner.list_mirrors(query)).await
    }
    async fn read_timeline(&self, tenant: &TenantId) -> Result<Vec<TimelineEntry>> {
        self.through("read_timeline", self.inner.read_timeline(tenant)).await
    }
    async fn reject_pushes(&self, rejection: Rejection, at: Timestamp) -> Result<RejectionReport> {
        self.through("reject_pushes", self.inner.reject_pushes(rejection, at)).await
    }
}

#[async_trait]
impl Reconciliation for ScriptedStore {
    async fn record_summaries(
        &self,
        readings: Vec<SummaryReading>,
        read_at: Timestamp,
    ) -> Result<()> {
        self.through("record_summaries", self.inner.record_summaries(readings, read_at)).await
    }
    async fn read_summaries(
        &self,
        whose: (&TenantId, &CustomerId),
        meter: MeterNo,
        range: Window,
        length_micros: i64,
    ) -> Result<Vec<Summary>> {
        self.through(
            "read_summaries",
            self.inner.read_summaries(whose, meter, range, length_micros),
        )
        .await
    }
    async fn read_window_pushes(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        range: Window,
    ) -> Result<Vec<WindowPush>> {
        self.through("read_window_pushes", self.inner.read_window_pushes(tenant, meter, range))
            .await
    }
    async fn list_restless_pairs(&self, since: Timestamp, shadow: bool) -> Result<Vec<Pair>> {
        self.through("list_restless_pairs", self.inner.list_restless_pairs(since, shadow)).await
    }
    async fn list_former_customers(&self) -> Result<Vec<(TenantId, CustomerId)>> {
        self.through("list_former_customers", self.inner.list_former_customers()).await
    }
    async fn create_pass(&self, order: PassOrder, at: Timestamp) -> Result<u64> {
        self.through("create_pass", self.inner.create_pass(order, at)).await
    }
    async fn update_pass(&self, lease: &Lease, update: PassUpdate, at: Timestamp) -> Result<bool> {
        self.through("update_pass", self.inner.update_pass(lease, update, at)).await
    }
    async fn list_passes(&self, query: PassQuery) -> Result<Vec<Pass>> {
        self.through("list_passes", self.inner.list_passes(query)).await
    }
    async fn find_pass(&self, number: u64) -> Result<Option<Pass>> {
        self.through("find_pass", self.inner.find_pass(number)).await
    }
    async fn record_pass_rows(&self, lease: &Lease, pass: u64, rows: Vec<PassRow>) -> Result<bool> {
        self.through("record_pass_rows", self.inner.record_pass_rows(lease, pass, rows)).await
    }
    async fn list_pass_rows(&self, query: PassRowQuery) -> Result<Vec<PassRow>> {
        self.through("list_pass_rows", self.inner.list_pass_rows(query)).await
    }

    async fn list_findings(&self, query: FindingQuery) -> Result<Vec<Finding>> {
        self.through("list_findings", self.inner.list_findings(query)).await
    }
    async fn record_findings(
        &self,
        lease: &Lease,
        pass: u64,
        changes: Vec<FindingChange>,
        at: Timestamp,
    ) -> Result<bool> {
        self.through("record_findings", self.inner.record_findings(lease, pass, changes, at)).await
    }
    async fn accept_finding(&self, number: u64, at: Timestamp) -> Result<Ruling> {
        self.through("accept_finding", self.inner.accept_finding(number, at)).await
    }
    async fn is_accepted(&self, subscription: &str) -> Result<bool> {
        self.through("is_accepted", self.inner.is_accepted(subscription)).await
    }
    async fn count_drifting_tenants(&self) -> Result<u64> {
        self.through("count_drifting_tenants", self.inner.count_drifting_tenants()).await
    }
    async fn record_correction(&self, order: CorrectionOrder, at: Timestamp) -> Result<Ruling> {
        self.through("record_correction", self.inner.record_correction(order, at)).await
    }
    async fn close_pushes(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        range: Window,
        at: Timestamp,
    ) -> Result<u64> {
        self.through("close_pushes", self.inner.close_pushes(tenant, meter, range, at)).await
    }
}

#[async_trait]
impl Alerts for ScriptedStore {
    async fn record_alerts(
        &self,
        changes: Vec<AlertChange>,
        destinations: &[&'static str],
        at: Timestamp,
    ) -> Result<usize> {
        self.through("record_alerts", self.inner.record_alerts(changes, destinations, at)).await
    }
    async fn list_alerts(&self, query: AlertQuery) -> Result<Vec<Alert>> {
        self.through("list_alerts", self.inner.list_alerts(query)).await
    }
    async fn count_pages(&self, now: Timestamp) -> Result<PageCounts> {
        self.through("count_pages", self.inner.count_pages(now)).await
    }
    async fn claim_notices(
        &self,
        now: Timestamp,
        lease_until: Timestamp,
        limit: usize,
    ) -> Result<Vec<ClaimedNotice>> {
        self.through("claim_notices", self.inner.claim_notices(now, lease_until, limit)).await
    }
    async fn settle_notice(
        &self,
        number: u64,
        fence: u64,
        outcome: NoticeOutcome,
        at: Timestamp,
    ) -> Result<bool> {
        self.through("settle_notice", self.inner.settle_notice(number, fence, outcome, at)).await
    }
    async fn put_threshold(&self, threshold: Threshold) -> Result<()> {
        self.through("put_threshold", self.inner.put_threshold(threshold)).await
    }
    async fn delete_threshold(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        kind: ThresholdKind,
        period: ThresholdPeriod,
    ) -> Result<bool> {
        self.through("delete_threshold", self.inner.delete_threshold(tenant, meter, kind, period))
            .await
    }
    async fn list_thresholds(&self, query: ThresholdQuery) -> Result<Vec<Threshold>> {
        self.through("list_thresholds", self.inner.list_thresholds(query)).await
    }
}
