//! A store whose calls meet the accidents of a script.

use super::script::Script;
use async_trait::async_trait;
use counterfoil::rules::ids::{CustomerId, EventId, MeterNo, TenantId};
use counterfoil::rules::meter::{Catalog, Meter};
use counterfoil::rules::push::CutState;
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::timestamp::Timestamp;
use counterfoil::rules::usage::{Usage, UsageRow, UsageShape};
use counterfoil::rules::verdict::Verdict;
use counterfoil::rules::window::Window;
use counterfoil::store::clock::{Clocks, TimeMarks};
use counterfoil::store::push::{
    AttemptIntent, ClaimedPush, CutOrder, CutReport, CutTerms, Cuts, Lease, Leases, OpenPushes,
    Push, PushAges, PushClaim, PushCounts, PushQuery, PushRelease, PushTrace, Pushes, Ruling,
    Settlement, SubmittedWindow, UnbilledSums, UnsentUsage,
};
use counterfoil::store::{
    ApiKey, ApiKeys, CheckReport, ConflictRecord, CounterQuery, CounterRow, Declaration,
    Declarations, Deliveries, DeliveryBatch, EventPage, EventQuery, EventTrace, InboxPage,
    InboxQuery, Progress, QuarantineRecord, Queries, Result, Store, Tenant, TenantFields,
    TenantPut,
};
use std::sync::Arc;

pub struct ScriptedStore {
    pub inner: Arc<dyn Store>,
    pub script: Arc<Script>,
}

impl ScriptedStore {
    pub async fn through<T: Send>(
        &self,
        name: &'static str,
        call: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        self.script.through(name, call).await
    }

    /// For verbs that change nothing when they are called again.
    pub async fn repeatable<T: Send, F: Future<Output = Result<T>> + Send>(
        &self,
        name: &'static str,
        call: impl Fn() -> F + Send + Sync,
    ) -> Result<T> {
        self.script.repeatable(name, call).await
    }
}

#[async_trait]
impl Deliveries for ScriptedStore {
    fn partitions(&self) -> usize {
        self.inner.partitions()
    }

    async fn record_deliveries(&self, part: usize, batch: DeliveryBatch) -> Result<Vec<Verdict>> {
        self.through("record_deliveries", self.inner.record_deliveries(part, batch)).await
    }
}

#[async_trait]
impl Declarations for ScriptedStore {
    async fn declare_meter(&self, meter: Meter, at: Timestamp) -> Result<Declaration<Meter>> {
        self.through("declare_meter", self.inner.declare_meter(meter, at)).await
    }
    async fn load_catalog(&self) -> Result<Catalog> {
        self.through("load_catalog", self.inner.load_catalog()).await
    }
    async fn put_tenant(
        &self,
        id: &TenantId,
        fields: TenantFields,
        at: Timestamp,
    ) -> Result<TenantPut> {
        self.repeatable("put_tenant", || self.inner.put_tenant(id, fields.clone(), at)).await
    }
    async fn find_tenant(&self, tenant: &TenantId) -> Result<Option<Tenant>> {
        self.through("find_tenant", self.inner.find_tenant(tenant)).await
    }
    async fn find_customer(&self, customer: &CustomerId) -> Result<Option<Tenant>> {
        self.through("find_customer", self.inner.find_customer(customer)).await
    }
    async fn list_tenants(&self, after: Option<&TenantId>, limit: usize) -> Result<Vec<Tenant>> {
        self.through("list_tenants", self.inner.list_tenants(after, limit)).await
    }
}

#[async_trait]
impl Queries for ScriptedStore {
    async fn read_usage(
        &self,
        id: &TenantId,
        no: MeterNo,
        range: Window,
        rows_max: usize,
    ) -> Result<Vec<UsageRow>> {
        self.through("read_usage", self.inner.read_usage(id, no, range, rows_max)).await
    }
    async fn compose_usage(
        &self,
        id: &TenantId,
        no: MeterNo,
        range: Window,
        shape: UsageShape,
    ) -> Result<Usage> {
        self.through("compose_usage", self.inner.compose_usage(id, no, range, shape)).await
    }
    async fn list_events(&self, query: EventQuery) -> Result<EventPage> {
        self.through("list_events", self.inner.list_events(query)).await
    }
    async fn trace_event(&self, tenant: &TenantId, id: &EventId) -> Result<EventTrace> {
        self.through("trace_event", self.inner.trace_event(tenant, id)).await
    }
    async fn list_conflicts(&self, query: InboxQuery) -> Result<InboxPage<ConflictRecord>> {
        self.through("list_conflicts", self.inner.list_conflicts(query)).await
    }
    async fn list_quarantine(&self, query: InboxQuery) -> Result<InboxPage<QuarantineRecord>> {
        self.through("list_quarantine", self.inner.list_quarantine(query)).await
    }
    async fn list_counters(&self, query: CounterQuery) -> Result<Vec<CounterRow>> {
        self.through("list_counters", self.inner.list_counters(query)).await
    }
    async fn read_counters(&self, range: Window) -> Result<Vec<CounterRow>> {
        self.through("read_counters", self.inner.read_counters(range)).await
    }
    async fn check(&self, progress: Progress<'_>) -> Result<CheckReport> {
        self.through("check", self.inner.check(progress)).await
    }
}

#[async_trait]
impl ApiKeys for ScriptedStore {
    fn token_secret(&self) -> [u8; 32] {
        self.inner.token_secret()
    }
    async fn create_api_key(&self, key: ApiKey) -> Result<()> {
        self.through("create_api_key", self.inner.create_api_key(key)).await
    }
    async fn list_api_keys(&self) -> Result<Vec<ApiKey>> {
        self.through("list_api_keys", self.inner.list_api_keys()).await
    }
    async fn revoke_api_key(&self, id: &str, at: Timestamp) -> Result<bool> {
        self.through("revoke_api_key", self.inner.revoke_api_key(id, at)).await
    }
}

#[async_trait]
impl Leases for ScriptedStore {
    async fn claim_lease(
        &self,
        name: &'static str,
        holder: &str,
        now: Timestamp,
        until: Timestamp,
    ) -> Result<Option<Lease>> {
        self.through("claim_lease", self.inner.claim_lease(name, holder, now, until)).await
    }
    async fn release_lease(&self, lease: &Lease) -> Result<()> {
        self.through("release_lease", self.inner.release_lease(lease)).await
    }
}

#[async_trait]
impl Cuts for ScriptedStore {
    async fn read_cuts(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        range: Window,
    ) -> Result<Vec<(Timestamp, CutState)>> {
        self.through("read_cuts", self.inner.read_cuts(tenant, meter, range)).await
    }
    async fn record_cuts(
        &self,
        lease: &Lease,
        orders: Vec<CutOrder>,
        terms: CutTerms,
    ) -> Result<CutReport> {
        self.through("record_cuts", self.inner.record_cuts(lease, orders, terms)).await
    }
    async fn read_cut_marks(&self) -> Result<Vec<(MeterNo, Timestamp)>> {
        self.through("read_cut_marks", self.inner.read_cut_marks()).await
    }
    async fn record_cut_mark(&self, lease: &Lease, meter: MeterNo, at: Timestamp) -> Result<bool> {
        self.through("record_cut_mark", self.inner.record_cut_mark(lease, meter, at)).await
    }
    async fn read_remainder(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        shadow: bool,
    ) -> Result<Quantity> {
        self.through("read_remainder", self.inner.read_remainder(tenant, meter, shadow)).await
    }
}

#[async_trait]
impl Pushes for ScriptedStore {
    async fn claim_pushes(&self, claim: PushClaim) -> Result<Vec<ClaimedPush>> {
        self.through("claim_pushes", self.inner.claim_pushes(claim)).await
    }
    async fn release_pushes(&self, release: PushRelease) -> Result<usize> {
        self.through("release_pushes", self.inner.release_pushes(release)).await
    }
    async fn list_unsent_usage(&self, since: Timestamp, limit: usize) -> Result<Vec<UnsentUsage>> {
        self.through("list_unsent_usage", self.inner.list_unsent_usage(since, limit)).await
    }
    async fn begin_attempts(&self, intents: Vec<AttemptIntent>, at: Timestamp) -> Result<Vec<u64>> {
        self.through("begin_attempts", self.inner.begin_attempts(intents, at)).await
    }
    async fn settle_pushes(&self, settlements: Vec<Settlement>, at: Timestamp) -> Result<usize> {
        self.through("settle_pushes", self.inner.settle_pushes(settlements, at)).await
    }
    async fn list_submitted_windows(
        &self,
        now: Timestamp,
        shadow: bool,
        limit: usize,
    ) -> Result<Vec<SubmittedWindow>> {
        self.through(
            "list_submitted_windows",
            self.inner.list_submitted_windows(now, shadow, limit),
        )
        .await
    }
    async fn list_pushes(&self, query: PushQuery) -> Result<Vec<Push>> {
        self.through("list_pushes", self.inner.list_pushes(query)).await
    }
    async fn trace_push(&self, number: u64) -> Result<Option<PushTrace>> {
        self.through("trace_push", self.inner.trace_push(number)).await
    }
    async fn retry_push(&self, number: u64, at: Timestamp) -> Result<Ruling> {
        self.through("retry_push", self.inner.retry_push(number, at)).await
    }
    async fn discard_push(&self, number: u64, reason: &str, at: Timestamp) -> Result<Ruling> {
        self.through("discard_push", self.inner.discard_push(number, reason, at)).await
    }
    async fn count_pushes(&self, ages: PushAges) -> Result<PushCounts> {
        self.through("count_pushes", self.inner.count_pushes(ages)).await
    }
    async fn sum_unbilled(&self, meters: Vec<(MeterNo, Timestamp)>) -> Result<UnbilledSums> {
        self.through("sum_unbilled", self.inner.sum_unbilled(meters)).await
    }
    async fn count_open_pushes(&self, tenant: &TenantId) -> Result<OpenPushes> {
        self.through("count_open_pushes", self.inner.count_open_pushes(tenant)).await
    }
}

#[async_trait]
impl Clocks for ScriptedStore {
    async fn read_clock(&self) -> Result<Option<Timestamp>> {
        self.through("read_clock", self.inner.read_clock()).await
    }
    async fn read_time_marks(&self) -> Result<TimeMarks> {
        self.through("read_time_marks", self.inner.read_time_marks()).await
    }
    async fn lower_time_marks(&self, now: Timestamp) -> Result<()> {
        self.through("lower_time_marks", self.inner.lower_time_marks(now)).await
    }
}

#[async_trait]
impl Store for ScriptedStore {
    fn high_water(&self) -> Timestamp {
        self.inner.high_water()
    }
    async fn ping(&self) -> Result<()> {
        self.through("ping", self.inner.ping()).await
    }
    async fn close(&self) {
        self.inner.close().await;
    }
}
