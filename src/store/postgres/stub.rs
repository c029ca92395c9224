//! To be replaced.
#![allow(unused_variables)]
use super::PostgresStore;
use crate::rules::alert::*;
use crate::rules::drift::*;
use crate::rules::finding::*;
use crate::rules::ids::*;
use crate::rules::mirror::*;
use crate::rules::pass::*;
use crate::rules::subscription::*;
use crate::rules::timestamp::*;
use crate::rules::window::*;
use crate::store::Result;
use crate::store::alert::*;
use crate::store::push::*;
use crate::store::reconciliation::*;
use crate::store::webhook::*;
use async_trait::async_trait;

#[async_trait]
impl Webhooks for PostgresStore {
    async fn record_webhooks(&self, receipts: Vec<WebhookReceipt>) -> Result<Vec<Receipted>> {
        unimplemented!()
    }
    async fn list_webhooks(&self, query: WebhookQuery) -> Result<Vec<WebhookRecord>> {
        unimplemented!()
    }
    async fn find_webhook(&self, number: u64) -> Result<Option<(WebhookRecord, Vec<u8>)>> {
        unimplemented!()
    }
    async fn replay_webhook(&self, number: u64, at: Timestamp) -> Result<Ruling> {
        unimplemented!()
    }
    async fn count_webhooks(&self) -> Result<WebhookCounts> {
        unimplemented!()
    }
    async fn read_cursor(&self, name: &'static str) -> Result<Option<String>> {
        unimplemented!()
    }
    async fn record_cursor(&self, name: &'static str, value: &str) -> Result<()> {
        unimplemented!()
    }
}

#[async_trait]
impl Mirrors for PostgresStore {
    async fn want_mirrors(&self, names: Vec<ObjectName>, at: Timestamp) -> Result<Vec<u64>> {
        unimplemented!()
    }
    async fn claim_mirrors(&self, claim: MirrorClaim) -> Result<Vec<WantedMirror>> {
        unimplemented!()
    }
    async fn record_mirrors(
        &self,
        readings: Vec<MirrorReading>,
        at: Timestamp,
    ) -> Result<Vec<Mirrored>> {
        unimplemented!()
    }
    async fn put_off_mirror(
        &self,
        wanted: &WantedMirror,
        until: Timestamp,
        detail: &str,
    ) -> Result<()> {
        unimplemented!()
    }
    async fn find_mirror(&self, name: &ObjectName) -> Result<Option<Mirror>> {
        unimplemented!()
    }
    async fn list_mirrors(&self, query: MirrorQuery) -> Result<Vec<Mirror>> {
        unimplemented!()
    }
    async fn read_timeline(&self, tenant: &TenantId) -> Result<Vec<TimelineEntry>> {
        unimplemented!()
    }
    async fn reject_pushes(&self, rejection: Rejection, at: Timestamp) -> Result<RejectionReport> {
        unimplemented!()
    }
}

#[async_trait]
impl Reconciliation for PostgresStore {
    async fn record_summaries(
        &self,
        readings: Vec<SummaryReading>,
        read_at: Timestamp,
    ) -> Result<()> {
        unimplemented!()
    }
    async fn read_summaries(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        range: Window,
        length_micros: i64,
    ) -> Result<Vec<Summary>> {
        unimplemented!()
    }
    async fn read_window_pushes(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        range: Window,
    ) -> Result<Vec<WindowPush>> {
        unimplemented!()
    }
    async fn list_restless_pairs(&self, since: Timestamp, shadow: bool) -> Result<Vec<Pair>> {
        unimplemented!()
    }
    async fn create_pass(&self, order: PassOrder, at: Timestamp) -> Result<u64> {
        unimplemented!()
    }
    async fn update_pass(&self, lease: &Lease, update: PassUpdate, at: Timestamp) -> Result<bool> {
        unimplemented!()
    }
    async fn list_passes(&self, query: PassQuery) -> Result<Vec<Pass>> {
        unimplemented!()
    }
    async fn find_pass(&self, number: u64) -> Result<Option<Pass>> {
        unimplemented!()
    }
    async fn record_pass_rows(&self, lease: &Lease, pass: u64, rows: Vec<PassRow>) -> Result<bool> {
        unimplemented!()
    }
    async fn list_pass_rows(&self, query: PassRowQuery) -> Result<Vec<PassRow>> {
        unimplemented!()
    }

    async fn list_findings(&self, query: FindingQuery) -> Result<Vec<Finding>> {
        unimplemented!()
    }
    async fn record_findings(
        &self,
        lease: &Lease,
        pass: u64,
        changes: Vec<FindingChange>,
        at: Timestamp,
    ) -> Result<bool> {
        unimplemented!()
    }
    async fn count_drifting_tenants(&self) -> Result<u64> {
        unimplemented!()
    }
    async fn record_correction(&self, order: CorrectionOrder, at: Timestamp) -> Result<Ruling> {
        unimplemented!()
    }
    async fn close_pushes(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        range: Window,
        at: Timestamp,
    ) -> Result<u64> {
        unimplemented!()
    }
}

#[async_trait]
impl Alerts for PostgresStore {
    async fn record_alerts(
        &self,
        changes: Vec<AlertChange>,
        destinations: &[&'static str],
        at: Timestamp,
    ) -> Result<usize> {
        unimplemented!()
    }
    async fn list_alerts(&self, query: AlertQuery) -> Result<Vec<Alert>> {
        unimplemented!()
    }
    async fn count_pages(&self, now: Timestamp) -> Result<PageCounts> {
        unimplemented!()
    }
    async fn claim_notices(
        &self,
        now: Timestamp,
        lease_until: Timestamp,
        limit: usize,
    ) -> Result<Vec<ClaimedNotice>> {
        unimplemented!()
    }
    async fn settle_notice(
        &self,
        number: u64,
        fence: u64,
        outcome: NoticeOutcome,
        at: Timestamp,
    ) -> Result<bool> {
        unimplemented!()
    }
    async fn put_threshold(&self, threshold: Threshold) -> Result<()> {
        unimplemented!()
    }
    async fn delete_threshold(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        kind: ThresholdKind,
        period: ThresholdPeriod,
    ) -> Result<bool> {
        unimplemented!()
    }
    async fn list_thresholds(&self, tenant: Option<&TenantId>) -> Result<Vec<Threshold>> {
        unimplemented!()
    }
}
