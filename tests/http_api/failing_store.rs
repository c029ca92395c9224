//! A store that can be switched off: every verb is then unavailable.

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
    Declarations, Deliveries, DeliveryBatch, Error, EventPage, EventQuery, EventTrace, InboxPage,
    InboxQuery, Progress, QuarantineRecord, Queries, Result, Store, Tenant, TenantFields,
    TenantPut,
};
use counterfoil_idempotency::StoreError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

pub struct FailingStore {
    inner: Arc<dyn Store>,
    down: AtomicBool,
    /// What deliveries fail with while the store is otherwise up.
    pub deliveries: Mutex<Option<Error>>,
    /// How often API keys cannot be read from now on.
    pub api_key_failures: AtomicUsize,
    /// Webhooks are not written while somebody holds it.
    pub webhooks_gate: tokio::sync::RwLock<()>,
    /// Grants that were read are not returned while it is held for writing.
    pub grants_gate: tokio::sync::RwLock<()>,
    /// How often grants were read.
    pub grants_read: AtomicUsize,
}

impl FailingStore {
    pub fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            down: AtomicBool::new(false),
            deliveries: Mutex::new(None),
            api_key_failures: AtomicUsize::new(0),
            webhooks_gate: tokio::sync::RwLock::new(()),
            grants_gate: tokio::sync::RwLock::new(()),
            grants_read: AtomicUsize::new(0),
        })
    }

    pub fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    pub fn up(&self) -> Result<&dyn Store> {
        if self.down.load(Ordering::SeqCst) {
            return Err(Error::Unavailable { what: "secret detail of the disk".into() });
        }
        Ok(&*self.inner)
    }

    /// The same for keys of requests.
    pub fn up_for_keys(&self) -> std::result::Result<&dyn Store, StoreError> {
        self.up().map_err(|error| StoreError::Unavailable(error.to_string()))
    }
}

#[async_trait]
impl Deliveries for FailingStore {
    fn partitions(&self) -> usize {
        self.inner.partitions()
    }

    async fn record_deliveries(&self, part: usize, batch: DeliveryBatch) -> Result<Vec<Verdict>> {
        if let Some(error) = self.deliveries.lock().unwrap().clone() {
            return Err(error);
        }
        self.up()?.record_deliveries(part, batch).await
    }
}

#[async_trait]
impl Declarations for FailingStore {
    async fn declare_meter(&self, meter: Meter, at: Timestamp) -> Result<Declaration<Meter>> {
        self.up()?.declare_meter(meter, at).await
    }
    async fn load_catalog(&self) -> Result<Catalog> {
        self.up()?.load_catalog().await
    }
    async fn put_tenant(
        &self,
        id: &TenantId,
        fields: TenantFields,
        at: Timestamp,
    ) -> Result<TenantPut> {
        self.up()?.put_tenant(id, fields, at).await
    }
    async fn find_tenant(&self, tenant: &TenantId) -> Result<Option<Tenant>> {
        self.up()?.find_tenant(tenant).await
    }
    async fn find_customer(&self, customer: &CustomerId) -> Result<Option<Tenant>> {
        self.up()?.find_customer(customer).await
    }
    async fn list_tenants(&self, after: Option<&TenantId>, limit: usize) -> Result<Vec<Tenant>> {
        self.up()?.list_tenants(after, limit).await
    }
}

#[async_trait]
impl Queries for FailingStore {
    async fn read_usage(
        &self,
        id: &TenantId,
        no: MeterNo,
        range: Window,
        rows_max: usize,
    ) -> Result<Vec<UsageRow>> {
        self.up()?.read_usage(id, no, range, rows_max).await
    }
    async fn compose_usage(
        &self,
        id: &TenantId,
        no: MeterNo,
        range: Window,
        shape: UsageShape,
    ) -> Result<Usage> {
        self.up()?.compose_usage(id, no, range, shape).await
    }
    async fn list_events(&self, query: EventQuery) -> Result<EventPage> {
        self.up()?.list_events(query).await
    }
    async fn trace_event(&self, tenant: &TenantId, id: &EventId) -> Result<EventTrace> {
        self.up()?.trace_event(tenant, id).await
    }
    async fn list_conflicts(&self, query: InboxQuery) -> Result<InboxPage<ConflictRecord>> {
        self.up()?.list_conflicts(query).await
    }
    async fn list_quarantine(&self, query: InboxQuery) -> Result<InboxPage<QuarantineRecord>> {
        self.up()?.list_quarantine(query).await
    }
    async fn list_counters(&self, query: CounterQuery) -> Result<Vec<CounterRow>> {
        self.up()?.list_counters(query).await
    }
    async fn read_counters(&self, range: Window) -> Result<Vec<CounterRow>> {
        self.up()?.read_counters(range).await
    }
    async fn check(&self, progress: Progress<'_>) -> Result<CheckReport> {
        self.up()?.check(progress).await
    }
}

#[async_trait]
impl ApiKeys for FailingStore {
    fn token_secret(&self) -> [u8; 32] {
        self.inner.token_secret()
    }
    async fn create_api_key(&self, key: ApiKey) -> Result<()> {
        self.up()?.create_api_key(key).await
    }
    async fn list_api_keys(&self) -> Result<Vec<ApiKey>> {
        let left = &self.api_key_failures;
        let failing =
            left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if failing.is_ok() {
            return Err(Error::Unavailable { what: "w".into() });
        }
        self.up()?.list_api_keys().await
    }
    async fn revoke_api_key(&self, id: &str, at: Timestamp) -> Result<bool> {
        self.up()?.revoke_api_key(id, at).await
    }
}

#[async_trait]
impl Leases for FailingStore {
    async fn claim_lease(
        &self,
        name: &'static str,
        holder: &str,
        now: Timestamp,
        until: Timestamp,
    ) -> Result<Option<Lease>> {
        self.up()?.claim_lease(name, holder, now, until).await
    }
    async fn release_lease(&self, lease: &Lease) -> Result<()> {
        self.up()?.release_lease(lease).await
    }
}

#[async_trait]
impl Cuts for FailingStore {
    async fn read_cuts(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        range: Window,
    ) -> Result<Vec<(Timestamp, CutState)>> {
        self.up()?.read_cuts(tenant, meter, range).await
    }
    async fn record_cuts(
        &self,
        lease: &Lease,
        orders: Vec<CutOrder>,
        terms: CutTerms,
    ) -> Result<CutReport> {
        self.up()?.record_cuts(lease, orders, terms).await
    }
    async fn read_cut_marks(&self) -> Result<Vec<(MeterNo, Timestamp)>> {
        self.up()?.read_cut_marks().await
    }
    async fn record_cut_mark(&self, lease: &Lease, meter: MeterNo, at: Timestamp) -> Result<bool> {
        self.up()?.record_cut_mark(lease, meter, at).await
    }
    async fn read_remainder(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        shadow: bool,
    ) -> Result<Quantity> {
        self.up()?.read_remainder(tenant, meter, shadow).await
    }
}

#[async_trait]
impl Pushes for FailingStore {
    async fn claim_pushes(&self, claim: PushClaim) -> Result<Vec<ClaimedPush>> {
        self.up()?.claim_pushes(claim).await
    }
    async fn release_pushes(&self, release: PushRelease) -> Result<usize> {
        self.up()?.release_pushes(release).await
    }
    async fn list_unsent_usage(&self, since: Timestamp, limit: usize) -> Result<Vec<UnsentUsage>> {
        self.up()?.list_unsent_usage(since, limit).await
    }
    async fn begin_attempts(&self, intents: Vec<AttemptIntent>, at: Timestamp) -> Result<Vec<u64>> {
        self.up()?.begin_attempts(intents, at).await
    }
    async fn settle_pushes(&self, settlements: Vec<Settlement>, at: Timestamp) -> Result<usize> {
        self.up()?.settle_pushes(settlements, at).await
    }
    async fn list_submitted_windows(
        &self,
        now: Timestamp,
        shadow: bool,
        limit: usize,
    ) -> Result<Vec<SubmittedWindow>> {
        self.up()?.list_submitted_windows(now, shadow, limit).await
    }
    async fn list_pushes(&self, query: PushQuery) -> Result<Vec<Push>> {
        self.up()?.list_pushes(query).await
    }
    async fn trace_push(&self, number: u64) -> Result<Option<PushTrace>> {
        self.up()?.trace_push(number).await
    }
    async fn retry_push(&self, number: u64, at: Timestamp) -> Result<Ruling> {
        self.up()?.retry_push(number, at).await
    }
    async fn discard_push(&self, number: u64, reason: &str, at: Timestamp) -> Result<Ruling> {
        self.up()?.discard_push(number, reason, at).await
    }
    async fn count_pushes(&self, ages: PushAges) -> Result<PushCounts> {
        self.up()?.count_pushes(ages).await
    }
    async fn sum_unbilled(&self, meters: Vec<(MeterNo, Timestamp)>) -> Result<UnbilledSums> {
        self.up()?.sum_unbilled(meters).await
    }
    async fn count_open_pushes(&self, tenant: &TenantId) -> Result<OpenPushes> {
        self.up()?.count_open_pushes(tenant).await
    }
}

#[async_trait]
impl Clocks for FailingStore {
    async fn read_clock(&self) -> Result<Option<Timestamp>> {
        self.up()?.read_clock().await
    }
    async fn read_time_marks(&self) -> Result<TimeMarks> {
        self.up()?.read_time_marks().await
    }
    async fn lower_time_marks(&self, now: Timestamp) -> Result<()> {
        self.up()?.lower_time_marks(now).await
    }
}

#[async_trait]
impl Store for FailingStore {
    fn high_water(&self) -> Timestamp {
        self.inner.high_water()
    }
    async fn ping(&self) -> Result<()> {
        self.up()?.ping().await
    }
    async fn close(&self) {
        self.inner.close().await;
    }
}
