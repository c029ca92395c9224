//! The store on PostgreSQL: any number of servers on one database, tables in
//! `migrations/postgres`.
//!
//! Invariant: the database decides. An event counts once because of the primary key of
//! `event_claims`, whichever server it came to; the ledger, the inboxes and what is added to totals
//! and counters are written in the same transaction (`deliveries`). What is added lies beside
//! totals and counters until it is folded into them (`fold`), and every read sees both. What is
//! cached here (tenant numbers, meters) never changes once committed.
//!
//! A crash leaves every transaction whole or absent; nothing is repaired at start.

mod api_keys;
mod check;
mod check_claims;
mod clock;
mod connection;
mod copy;
mod counters;
mod cuts;
mod day_groups;
mod declarations;
mod deliveries;
mod deltas;
mod distribution;
mod epochs;
mod events;
mod failure;
mod fold;
mod idempotency;
mod inbox;
mod judgement;
mod migrations;
mod numeric;
mod partitions;
mod recent_keys;
mod rollups;
mod scalars;
mod session;
mod slice_plan;
mod slices;
mod statements;
mod tls;
mod transaction;
mod unbilled;

use crate::clock::Clock;
use crate::config::PostgresConfig;
use crate::rules::chain::ChainReport;
use crate::rules::fingerprint::Fingerprinter;
use crate::rules::ids::{EventId, MeterNo, TenantId, TenantNo};
use crate::rules::meter::Catalog;
use crate::rules::self_check::{Place, Slice, SliceReport};
use crate::rules::timestamp::Timestamp;
use crate::rules::usage::{Composition, Usage, UsageRow, UsageShape};
use crate::rules::window::Window;
use crate::store::decision::{ConflictQuery, ConflictRecord, QuarantineQuery, QuarantineRecord};
use crate::store::fault_log::FaultLog;
use crate::store::self_check::{Slices, TotalsPair};
use crate::store::sql::{
    Session, SqlStore, list_conflicts, list_quarantine, trace_inboxes, verify_passes,
};
use crate::store::{
    CheckReport, CounterQuery, CounterRow, Error, EventPage, EventQuery, EventTrace, Health,
    Progress, Queries, Result, Store,
};
use async_trait::async_trait;
use connection::{Connector, Refusal, Snapshot};
use deadpool_postgres::{Object, Pool, PoolError, TimeoutType};
use deliveries::Writer;
use hashbrown::HashMap;
use idempotency::RequestKeys;
use partitions::KnownDays;
use rollups::TotalsQuery;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, Notify};
use tokio::task::JoinHandle;

const CONTROL_CONNECTIONS: usize = 3;
const WAIT_BETWEEN_TRIES: Duration = Duration::from_secs(1);

/// A ledger in a PostgreSQL database.
///
/// Invariant: requests and jobs have pools of their own ([`Store::for_jobs`]), and in each of them
/// those who write never hold up those who read. So however many requests wait for a row lock, jobs
/// renew their leases, cut and claim. What every request needs first (API keys, meters, tenants'
/// numbers, whether the database answers) and leases have a pool too, so that no number of queries
/// keeps events from being counted.
pub struct PostgresStore {
    core: Arc<Core>,
    readers: Pool,
    /// For what is written, but for deliveries.
    outbound: Pool,
}

/// What requests and jobs share.
pub struct Core {
    connector: Connector,
    job_connections: usize,
    /// For API keys, meters, tenants' numbers, leases and pings: each a short statement.
    control: Pool,
    writers: Vec<Writer>,
    fingerprinter: Fingerprinter,
    token_secret: [u8; 32],
    /// Under which the keys of pushes are made.
    push_secret: [u8; 32],
    high_water: Timestamp,
    /// Partitions of the ledger that exist.
    days: KnownDays,
    /// Tenants that are committed.
    tenants: RwLock<HashMap<TenantId, TenantNo>>,
    /// Meters as last loaded.
    catalog: RwLock<Arc<Catalog>>,
    closed: AtomicBool,
    /// Wakes the task that folds when the store is closed.
    closing: Arc<Notify>,
    folding: Mutex<Option<JoinHandle<()>>>,
    faults: FaultLog,
}

impl Core {
    async fn control(&self) -> Result<Object> {
        Ok(self.control.get().await?)
    }
}

impl Deref for PostgresStore {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl PostgresStore {
    /// Connects, brings the schema up to date and reads the store's secrets.
    pub async fn open(url: &str, config: &PostgresConfig) -> Result<Arc<Self>> {
        Self::open_with_fingerprinter_bits(url, config, None).await
    }

    /// As [`Self::open`]; with only `2^bits` different fingerprints, so that tests meet collisions.
    /// A database must always be opened with the same number of bits.
    pub async fn open_with_fingerprinter_bits(
        url: &str,
        config: &PostgresConfig,
        bits: Option<u32>,
    ) -> Result<Arc<Self>> {
        let mut connector = Connector::parse(url, config)?;
        let mut client = connector.open().await?;
        migrations::check_server(&client).await?;
        migrations::migrate(&mut client).await?;
        connector.distributed = distribution::is_distributed(&client).await?;
        epochs::found_store(&client).await?;
        let key = migrations::secret::<16>(&client, "event_keys").await?;
        let token_secret = migrations::secret::<32>(&client, "tokens").await?;
        let push_secret = migrations::secret::<32>(&client, "pushes").await?;
        let high_water = migrations::high_water(&client).await?;
        let days = KnownDays::default();
        let today = partitions::today(&client).await?;
        days.make(&client, today).await?;
        days.make(&client, today.next()).await?;
        let writers = (0..config.writers).map(|_| Writer::default()).collect();
        let fingerprinter = match bits {
            None => Fingerprinter::new(key),
            Some(bits) => Fingerprinter::colliding(key, bits),
        };
        let readers = connector.query_pool(config.readers)?;
        let control = connector.pool(CONTROL_CONNECTIONS)?;
        let outbound = connector.pool(config.request_writers)?;
        let core = Arc::new(Core {
            connector,
            job_connections: config.job_connections,
            control,
            writers,
            fingerprinter,
            token_secret,
            push_secret,
            high_water,
            days,
            tenants: RwLock::default(),
            catalog: RwLock::default(),
            closed: AtomicBool::new(false),
            closing: Arc::default(),
            folding: Mutex::new(None),
            faults: FaultLog::default(),
        });
        *core.folding.lock().await = Some(fold::start(&core));
        Ok(Arc::new(Self { core, readers, outbound }))
    }

    /// Makes the schema and distributes its tables over the nodes of a Citus cluster, unless that
    /// was done before. [`Self::open`] finds out by itself how the tables are kept.
    pub async fn distribute(url: &str, config: &PostgresConfig) -> Result<()> {
        let mut client = Connector::parse(url, config)?.open().await?;
        migrations::check_server(&client).await?;
        migrations::migrate(&mut client).await?;
        distribution::distribute(&client).await
    }

    /// Waits until the database answers, at most `patience`. A database that answers and refuses,
    /// such as for a wrong password, is not waited for.
    pub async fn wait_for(url: &str, config: &PostgresConfig, patience: Duration) -> Result<()> {
        let connector = Connector::parse(url, config)?;
        let give_up = Instant::now() + patience;
        loop {
            let error = match connector.try_open().await {
                Ok(_) => return Ok(()),
                Err(Refusal::ByServer(error)) => return Err(error),
                Err(Refusal::NoAnswer(error)) => error,
            };
            if Instant::now() >= give_up {
                return Err(error);
            }
            tracing::warn!(%error, "the database does not answer yet; trying again");
            tokio::time::sleep(WAIT_BETWEEN_TRIES.min(patience)).await;
        }
    }

    /// Checks a database that may be in use, without writing to it.
    pub async fn check_database(
        url: &str,
        config: &PostgresConfig,
        progress: Progress<'_>,
    ) -> Result<CheckReport> {
        let mut connector = Connector::parse(url, config)?;
        let client = connector.open().await?;
        migrations::require_current(&client).await?;
        connector.distributed = distribution::is_distributed(&client).await?;
        let pool = connector.pool(1)?;
        let key = migrations::read_secret::<16>(&client, "event_keys").await?;
        drop(client);
        check::check(&pool, &connector, &Fingerprinter::new(key), progress).await
    }

    /// Follows the chain of nightly passes of a database that may be in use.
    pub async fn verify_database(url: &str, config: &PostgresConfig) -> Result<ChainReport> {
        let connector = Connector::parse(url, config)?;
        let pool = connector.pool(1)?;
        let client = pool.get().await?;
        migrations::require_current(&client).await?;
        let snapshot = Snapshot::begin(client).await?;
        session::read_snapshot(snapshot, &connector, verify_passes).await
    }

    async fn reader(&self) -> Result<Object> {
        match self.readers.get().await {
            Err(error @ PoolError::Timeout(TimeoutType::Wait)) => {
                Err(Error::Overdue { what: format!("no connection for a query: {error}") })
            }
            got => Ok(got?),
        }
    }

    fn refuse_if_closed(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Error::Unavailable { what: "the store is closed".into() });
        }
        Ok(())
    }
}

#[async_trait]
impl Queries for PostgresStore {
    async fn read_usage(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        range: Window,
        rows_max: usize,
    ) -> Result<Vec<UsageRow>> {
        let catalog = self.catalog_with(std::iter::once(meter)).await?;
        let Some(definition) = catalog.get(meter) else { return Ok(Vec::new()) };
        let aggregation = definition.spec.aggregation;
        let Some(tenant) = self.find_tenant(tenant).await? else { return Ok(Vec::new()) };
        let client = self.reader().await?;
        let query = TotalsQuery { tenant, meter, aggregation, range };
        rollups::read_usage(&client, query, rows_max).await
    }

    async fn compose_usage(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        range: Window,
        shape: UsageShape,
    ) -> Result<Usage> {
        let Some(tenant) = self.find_tenant(tenant).await? else {
            return Ok(Composition::new(shape).finish()?);
        };
        let client = self.reader().await?;
        let query = TotalsQuery { tenant, meter, aggregation: shape.aggregation, range };
        let usage = rollups::compose_usage(&client, query, shape).await;
        self.faults.note(usage)
    }

    async fn list_events(&self, query: EventQuery) -> Result<EventPage> {
        let Some(tenant) = self.find_tenant(&query.filter.tenant).await? else {
            return Ok(EventPage::default());
        };
        let client = self.reader().await?;
        events::list_events(&client, tenant, &query).await
    }

    async fn trace_event(&self, tenant: &TenantId, id: &EventId) -> Result<EventTrace> {
        let Some(number) = self.find_tenant(tenant).await? else {
            return Ok(EventTrace::default());
        };
        let home = self.fingerprinter.event_key(number, id);
        let (of, key) = (tenant.clone(), id.clone());
        let snapshot = Snapshot::begin(self.reader().await?).await?;
        let counted = events::find_event(&snapshot, number, home, tenant, id).await?;
        let trace = move |session: &dyn Session| trace_inboxes(session, &of, &key);
        let kept = session::read_snapshot(snapshot, &self.connector, trace).await?;
        Ok(EventTrace { counted, ..kept })
    }

    async fn list_conflicts(&self, query: ConflictQuery) -> Result<Vec<ConflictRecord>> {
        self.in_reader(move |session| list_conflicts(session, &query)).await
    }

    async fn list_quarantine(&self, query: QuarantineQuery) -> Result<Vec<QuarantineRecord>> {
        self.in_reader(move |session| list_quarantine(session, &query)).await
    }

    async fn read_counters(&self, range: Window) -> Result<Vec<CounterRow>> {
        let client = self.reader().await?;
        counters::read_counters(&client, range).await
    }

    async fn list_counters(&self, query: CounterQuery) -> Result<Vec<CounterRow>> {
        let client = self.reader().await?;
        counters::list_counters(&client, &query).await
    }

    async fn check(&self, progress: Progress<'_>) -> Result<CheckReport> {
        check::check(&self.readers, &self.connector, &self.fingerprinter, progress).await
    }
}

#[async_trait]
impl Slices for PostgresStore {
    async fn plan_slices(&self, from: Place, limit: usize) -> Result<Vec<Slice>> {
        slice_plan::plan_slices(self.reader().await?, from, limit).await
    }

    async fn check_slice(&self, slice: Slice, rows_max: usize) -> Result<SliceReport> {
        slices::check_slice(self.reader().await?, slice, rows_max, None).await
    }

    async fn list_pairs(
        &self,
        after: (TenantNo, MeterNo),
        limit: usize,
    ) -> Result<Vec<TotalsPair>> {
        slice_plan::list_pairs(&*self.reader().await?, after, limit).await
    }

    async fn list_active(
        &self,
        since: Timestamp,
        after: TenantNo,
        limit: usize,
    ) -> Result<Vec<TenantNo>> {
        slice_plan::list_active(&*self.reader().await?, since, after, limit).await
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn high_water(&self) -> Timestamp {
        self.high_water
    }

    fn health(&self) -> Health {
        Health { faults: self.faults.list(), ..Health::default() }
    }

    fn for_jobs(&self) -> Result<Option<Arc<dyn Store>>> {
        let pool = || self.connector.pool(self.job_connections);
        let (core, readers, outbound) = (Arc::clone(&self.core), pool()?, pool()?);
        Ok(Some(Arc::new(Self { core, readers, outbound })))
    }

    fn request_keys(self: Arc<Self>, clock: Clock) -> Arc<dyn counterfoil_idempotency::Store> {
        Arc::new(RequestKeys { store: self, clock })
    }

    async fn ping(&self) -> Result<()> {
        let client = self.control().await?;
        client.batch_execute("-- ping\nSELECT 1").await?;
        Ok(())
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        for writer in &self.writers {
            writer.close().await;
        }
        if let Some(folding) = self.folding.lock().await.take() {
            self.closing.notify_one();
            // It ends by itself; if it panicked, there is nothing to wait for.
            let _ = folding.await;
        }
        self.readers.close();
        self.outbound.close();
        self.control.close();
    }
}
