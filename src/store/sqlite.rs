//! The embedded store: SQLite as the durable container of a journal that is folded into tables.
//!
//! Each commit is one row of `journal` in counterfoil.db, written with synchronous=FULL: keys,
//! events, totals and counters in one durable fact. Memory holds what makes judging and reading
//! fast and is rebuilt at open. Beside the commits, folding turns journal rows into the tables of
//! ledger.db and the run files of keys/, and merging keeps the number of runs small.
//!
//! Life of a batch: `judge` (verdicts), `writer` (the transaction), `record` (its bytes), `segment`
//! and `memory` (what is known of it), `fold` (its rows and its run), `merge` (fewer, larger runs);
//! `recovery` is the way back after a stop or a crash.
//! `docs/decisions/0022-folding-beside-commits.md` says why.

mod backup;
mod check;
mod checkpoint;
mod clock;
mod counter_blocks;
mod counters;
mod cuts;
mod day_groups;
mod declarations;
mod epochs;
mod event_blocks;
mod event_ranges;
mod events;
mod fold;
mod idempotency;
mod inbox;
mod judge;
mod key_filter;
mod memory;
mod merge;
mod migrations;
mod readers;
pub(crate) mod record;
mod recovery;
mod rollups;
mod run_file;
mod runs;
mod segment;
mod session;
mod shared;
mod statements;
mod total_blocks;
mod totals;
mod writer;

use crate::clock::Clock;
use crate::config::SqliteConfig;
use crate::rules::chain::ChainReport;
use crate::rules::fingerprint::Fingerprinter;
use crate::rules::ids::{EventId, MeterNo, TenantId, TenantNo};
use crate::rules::meter::{Catalog, Meter};
use crate::rules::self_check::{Place, Slice, SliceReport};
use crate::rules::timestamp::Timestamp;
use crate::rules::usage::{Usage, UsageRow, UsageShape};
use crate::rules::verdict::Verdict;
use crate::rules::window::Window;
use crate::store::decision::{
    AdmissionBatch, ConflictQuery, ConflictRecord, QuarantineQuery, QuarantineRecord,
};
use crate::store::groups::KnownGroups;
use crate::store::self_check::{Slices, TotalsPair};
use crate::store::sql::{
    Done, Session, create_api_key, list_api_keys, list_conflicts, list_quarantine, revoke_api_key,
};
use crate::store::throttle::Throttle;
use crate::store::{
    ApiKey, ApiKeys, CheckProgress, CheckReport, CheckStep, CounterQuery, CounterRow, Declaration,
    Declarations, Deliveries, DeliveryBatch, Error, EventPage, EventQuery, EventTrace, Health,
    Progress, Queries, Result, Store, TenantFields, TenantPut, damaged, stop_process,
};
use async_trait::async_trait;
use epochs::Marks;
use fold::Folder;
use idempotency::RequestKeys;
use merge::Merger;
use readers::Readers;
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use session::SqliteSession;
use shared::{Shared, Waiting};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, RwLock, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use writer::{Job, Writer};

const FILE_NAME: &str = "counterfoil.db";
const LEDGER_FILE_NAME: &str = "ledger.db";
/// No read of a job takes this long; it is there so that none holds the log for ever.
const JOB_READ_TIME_MAX: Duration = Duration::from_secs(600);
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
const LOG_FILE_NAMES: [&str; 2] = ["counterfoil.db-wal", "ledger.db-wal"];

/// The embedded store in one directory.
///
/// Invariant: requests and jobs read on connections of their own ([`Store::for_jobs`]), and neither
/// keeps the other waiting. API keys change only through this process, so they are kept in memory:
/// no request waits for a connection before it is known who sent it.
pub struct SqliteStore {
    shared: Arc<Shared>,
    readers: Arc<Readers>,
    job_readers: Arc<Readers>,
    /// Whether the database answers is asked on a connection of its own.
    ping_reader: Arc<Readers>,
    api_keys: Arc<RwLock<Vec<ApiKey>>>,
    jobs: mpsc::Sender<Job>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    token_secret: [u8; 32],
    /// Keys of pushes are derived from it.
    push_secret: [u8; 32],
    high_water: Timestamp,
    marks: Arc<Marks>,
    /// Held as long as the store is open, so that no second server opens it.
    lock: Mutex<Option<File>>,
}

impl SqliteStore {
    /// Opens the store in `directory`, creating it if there is none.
    pub fn open(directory: &Path, settings: &SqliteConfig) -> Result<Arc<Self>> {
        Self::open_with(directory, settings, Fingerprinter::new)
    }

    /// Opens the store with event keys of only `bits` bits, so that tests meet collisions.
    pub fn open_colliding(
        directory: &Path,
        settings: &SqliteConfig,
        bits: u32,
    ) -> Result<Arc<Self>> {
        Self::open_with(directory, settings, |key| Fingerprinter::colliding(key, bits))
    }

    fn open_with(
        directory: &Path,
        settings: &SqliteConfig,
        fingerprinter: impl FnOnce([u8; 16]) -> Fingerprinter,
    ) -> Result<Arc<Self>> {
        let lock = lock_directory(directory)?;
        let marks = Arc::new(Marks::find(directory));
        let (mut connection, ledger) = open_files(directory)?;
        epochs::found_store(&connection)?;
        let fingerprinter = fingerprinter(secret(&connection, "event_keys")?);
        inbox::mark_old_rows(&mut connection, &fingerprinter)?;
        let token_secret = secret(&connection, "tokens")?;
        let push_secret = secret(&connection, "pushes")?;
        let api_keys = Arc::new(RwLock::new(list_api_keys(&SqliteSession::on(&connection))?));
        let parts = recover_parts(directory, (connection, ledger), settings, fingerprinter)?;
        let (shared, high_water) = (Arc::clone(&parts.writer.shared), parts.high_water);
        let (jobs, threads) = start_threads(directory, parts)?;
        let readers =
            |count, time_max| Arc::new(Readers::new(directory.to_owned(), count, time_max));
        let query_time_max = Duration::from_millis(settings.query_timeout_ms);
        let (threads, lock) = (Mutex::new(threads), Mutex::new(Some(lock)));
        Ok(Arc::new(Self {
            shared,
            readers: readers(settings.readers, query_time_max),
            job_readers: readers(settings.readers, JOB_READ_TIME_MAX),
            ping_reader: readers(1, query_time_max),
            api_keys,
            jobs,
            threads,
            token_secret,
            push_secret,
            high_water,
            marks,
            lock,
        }))
    }

    /// Copies a store that may be in use to a new directory.
    pub fn back_up_directory(directory: &Path, target: &Path) -> Result<()> {
        backup::back_up(directory, target)
    }

    /// Checks a store that may be in use, without writing to it.
    pub fn check_directory(directory: &Path, progress: Progress<'_>) -> Result<CheckReport> {
        let connection = readers::open_read_only(directory)?;
        migrations::require_current(&connection)?;
        check::check(&connection, directory, &read_fingerprinter(&connection)?, progress)
    }

    /// Follows the chain of nightly passes of a store that may be in use.
    pub fn verify_directory(directory: &Path) -> Result<ChainReport> {
        let connection = readers::open_read_only(directory)?;
        migrations::require_current(&connection)?;
        check::verify_chain(&connection)
    }

    /// Checks a store that no server has open, and makes wrong totals and damaged runs again from
    /// the events. The report lists what was wrong with the totals.
    pub fn repair_directory(directory: &Path, progress: Progress<'_>) -> Result<CheckReport> {
        let _lock = lock_directory(directory)?;
        let connection = readers::open_read_only(directory)?;
        migrations::require_current(&connection)?;
        let fingerprinter = read_fingerprinter(&connection)?;
        let recovered = recovery::recover(&connection, directory, &fingerprinter)?;
        runs::heal_runs(&connection, directory, &fingerprinter, &recovered.memory.runs)?;
        let ledger = open_for_writing(&directory.join(LEDGER_FILE_NAME))?;
        check::repair(&connection, &ledger, (directory, &fingerprinter), progress)
    }

    async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Shared, &Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let shared = Arc::clone(&self.shared);
        let answer = self.readers.read(move |connection| query(&shared, connection)).await;
        self.shared.faults.note(answer)
    }

    /// Runs a query of any size; see [`Readers::read_any_size`].
    async fn read_any_size<T: Send + 'static>(
        &self,
        large: bool,
        query: impl Fn(&Shared, &Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let shared = Arc::clone(&self.shared);
        let query = move |connection: &Connection| query(&shared, connection);
        self.shared.faults.note(self.readers.read_any_size(large, query).await)
    }

    async fn list_any_size<T: Send + 'static>(
        &self,
        list: impl Fn(&dyn Session) -> Done<T> + Send + 'static,
    ) -> Result<T> {
        self.read_any_size(false, move |_, c| Ok(list(&SqliteSession::on(c))?)).await
    }

    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Writer) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let _waiting = Waiting::new(&self.shared);
        let job = Job::Write(Box::new(move |writer| drop(reply.send(work(writer)))));
        self.send(job)?;
        let answer = answer.await.map_err(|_| closed())?;
        self.shared.faults.note(answer)
    }

    fn send(&self, job: Job) -> Result<()> {
        self.jobs.send(job).map_err(|_| closed())
    }
}

#[async_trait]
impl Deliveries for SqliteStore {
    fn partitions(&self) -> usize {
        1
    }

    async fn record_deliveries(&self, _: usize, batch: DeliveryBatch) -> Result<Vec<Verdict>> {
        let (reply, answer) = oneshot::channel();
        let _waiting = Waiting::new(&self.shared);
        self.send(Job::Record { batch, reply })?;
        answer.await.map_err(|_| closed())?
    }

    async fn record_admissions(
        &self,
        _: usize,
        batch: AdmissionBatch,
    ) -> Result<Option<Vec<Verdict>>> {
        self.write(move |writer| writer.admit(&batch)).await
    }
}

#[async_trait]
impl Declarations for SqliteStore {
    async fn declare_meter(&self, meter: Meter, at: Timestamp) -> Result<Declaration<Meter>> {
        self.write(move |writer| writer.declare_meter(&meter, at)).await
    }

    async fn load_catalog(&self) -> Result<Catalog> {
        Ok(self.shared.read_memory().catalog.as_ref().clone())
    }

    async fn put_tenant(
        &self,
        tenant: &TenantId,
        fields: TenantFields,
        at: Timestamp,
    ) -> Result<TenantPut> {
        let tenant = tenant.clone();
        self.write(move |writer| writer.put_tenant(&tenant, &fields, at)).await
    }
}

#[async_trait]
impl Queries for SqliteStore {
    async fn read_usage(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        range: Window,
        rows_max: usize,
    ) -> Result<Vec<UsageRow>> {
        let tenant = tenant.clone();
        let read = move |shared: &Shared, connection: &Connection| {
            rollups::read_usage(shared, connection, (&tenant, meter, range), rows_max)
        };
        self.read(read).await
    }

    async fn compose_usage(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        range: Window,
        shape: UsageShape,
    ) -> Result<Usage> {
        let tenant = tenant.clone();
        let large = rollups::is_large(&self.shared.read_memory(), &tenant, meter);
        let compose = move |shared: &Shared, connection: &Connection| {
            rollups::compose_usage(shared, connection, (&tenant, meter, range), shape.clone())
        };
        self.read_any_size(large, compose).await
    }

    async fn list_events(&self, query: EventQuery) -> Result<EventPage> {
        self.read_any_size(false, move |shared, c| events::list_events(shared, c, &query)).await
    }

    async fn trace_event(&self, tenant: &TenantId, id: &EventId) -> Result<EventTrace> {
        let (tenant, id) = (tenant.clone(), id.clone());
        self.read(move |shared, c| events::trace_event(shared, c, &tenant, &id)).await
    }

    async fn list_conflicts(&self, query: ConflictQuery) -> Result<Vec<ConflictRecord>> {
        self.list_any_size(move |session| list_conflicts(session, &query)).await
    }

    async fn list_quarantine(&self, query: QuarantineQuery) -> Result<Vec<QuarantineRecord>> {
        self.list_any_size(move |session| list_quarantine(session, &query)).await
    }

    async fn read_counters(&self, range: Window) -> Result<Vec<CounterRow>> {
        self.read_any_size(false, move |shared, c| counters::read_counters(shared, c, range)).await
    }

    async fn list_counters(&self, query: CounterQuery) -> Result<Vec<CounterRow>> {
        self.read_any_size(false, move |shared, c| counters::list_counters(shared, c, &query)).await
    }

    async fn check(&self, progress: Progress<'_>) -> Result<CheckReport> {
        let directory = self.readers.directory().to_owned();
        let report = self.read(move |shared, connection| {
            check::check(connection, &directory, &shared.fingerprinter, &|_| {})
        });
        let report = report.await?;
        let (step, events) = (CheckStep::Totals, report.events);
        progress(CheckProgress { step, events, of: events });
        Ok(report)
    }
}

#[async_trait]
impl Slices for SqliteStore {
    async fn plan_slices(&self, from: Place, limit: usize) -> Result<Vec<Slice>> {
        self.read_any_size(true, move |_, c| check::plan_slices(c, from, limit)).await
    }

    async fn check_slice(&self, slice: Slice, rows_max: usize) -> Result<SliceReport> {
        self.read_any_size(true, move |_, c| check::check_slice(c, slice, rows_max)).await
    }

    async fn list_pairs(
        &self,
        after: (TenantNo, MeterNo),
        limit: usize,
    ) -> Result<Vec<TotalsPair>> {
        self.read_any_size(true, move |_, c| check::list_pairs(c, after, limit)).await
    }

    async fn list_active(
        &self,
        since: Timestamp,
        after: TenantNo,
        limit: usize,
    ) -> Result<Vec<TenantNo>> {
        self.read_any_size(true, move |_, c| check::list_active(c, since, after, limit)).await
    }
}

#[async_trait]
impl ApiKeys for SqliteStore {
    fn token_secret(&self) -> [u8; 32] {
        self.token_secret
    }

    async fn create_api_key(&self, key: ApiKey) -> Result<()> {
        let keys = Arc::clone(&self.api_keys);
        self.write(move |writer| {
            writer.write(|c| Ok(create_api_key(&SqliteSession::on(c), &key)?))?;
            let mut keys = keys.write().expect("no holder panics");
            let order = |key: &ApiKey| (key.created_at, key.id.clone());
            let place = keys.partition_point(|other| order(other) < order(&key));
            keys.insert(place, key);
            Ok(())
        })
        .await
    }

    async fn list_api_keys(&self) -> Result<Vec<ApiKey>> {
        Ok(self.api_keys.read().expect("no holder panics").clone())
    }

    async fn revoke_api_key(&self, id: &str, at: Timestamp) -> Result<bool> {
        let id = id.to_owned();
        let keys = Arc::clone(&self.api_keys);
        self.write(move |writer| {
            let revoke = |c: &Connection| Ok(revoke_api_key(&SqliteSession::on(c), &id, at)?);
            let revoked = writer.write(revoke)?;
            let mut keys = keys.write().expect("no holder panics");
            if let Some(key) = keys.iter_mut().find(|key| revoked && key.id == id) {
                key.revoked_at = Some(at);
            }
            Ok(revoked)
        })
        .await
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn high_water(&self) -> Timestamp {
        self.high_water
    }

    fn health(&self) -> Health {
        let unfolded = self.shared.read_memory().unfolded_events();
        Health {
            fold_stopped: self.shared.fold_stopped.lock().expect("no holder panics").clone(),
            unfolded_events: u64::try_from(unfolded).expect("a length fits 64 bits"),
            log_bytes: self.shared.log_bytes.load(Ordering::Relaxed)
                + self.shared.ledger_log_bytes.load(Ordering::Relaxed),
            faults: self.shared.faults.list(),
        }
    }

    fn for_jobs(&self) -> Result<Option<Arc<dyn Store>>> {
        Ok(Some(Arc::new(Self {
            shared: Arc::clone(&self.shared),
            readers: Arc::clone(&self.job_readers),
            job_readers: Arc::clone(&self.job_readers),
            ping_reader: Arc::clone(&self.ping_reader),
            api_keys: Arc::clone(&self.api_keys),
            jobs: self.jobs.clone(),
            threads: Mutex::default(),
            token_secret: self.token_secret,
            push_secret: self.push_secret,
            high_water: self.high_water,
            marks: Arc::clone(&self.marks),
            lock: Mutex::default(),
        })))
    }

    fn request_keys(self: Arc<Self>, clock: Clock) -> Arc<dyn counterfoil_idempotency::Store> {
        Arc::new(RequestKeys { store: self, clock })
    }

    async fn ping(&self) -> Result<()> {
        self.ping_reader.read(fold::read_state).await.map(|_| ())
    }

    async fn close(&self) {
        self.shared.closed.store(true, Ordering::Release);
        for readers in [&self.readers, &self.job_readers, &self.ping_reader] {
            readers.close();
        }
        let _ = self.send(Job::Stop);
        let threads = std::mem::take(&mut *self.threads.lock().expect("no holder panics"));
        let joined = tokio::task::spawn_blocking(move || {
            for thread in threads {
                thread.thread().unpark();
                let _ = thread.join();
            }
        });
        let _ = joined.await;
        self.lock.lock().expect("no holder panics").take();
    }
}

/// Opens both databases for writing, creates what is missing, and refuses another store's ledger.
fn open_files(directory: &Path) -> Result<(Connection, Connection)> {
    let mut connection = open_for_writing(&directory.join(FILE_NAME))?;
    migrations::migrate(&mut connection)?;
    let mut ledger = open_for_writing(&directory.join(LEDGER_FILE_NAME))?;
    migrations::migrate_ledger(&mut ledger)?;
    let own: [u8; 16] = secret(&connection, "ledger")?;
    let sql = "UPDATE fold_state SET store = coalesce(store, ?) RETURNING store";
    let found: [u8; 16] = ledger.query_row(sql, [own], |row| row.get(0)).map_err(sql_error)?;
    if found != own {
        let what = "ledger.db belongs to another store than counterfoil.db; put the files of one \
                    store in place, all of them";
        return Err(Error::Corrupt { what: what.into() });
    }
    Ok((connection, ledger))
}

/// The threads of a store before they run.
struct StoreParts {
    writer: Writer,
    folder: Folder,
    fold_jobs: mpsc::Receiver<fold::FoldJob>,
    high_water: Timestamp,
}

/// Writer and folder as the databases say they go on.
fn recover_parts(
    directory: &Path,
    (connection, ledger): (Connection, Connection),
    settings: &SqliteConfig,
    fingerprinter: Fingerprinter,
) -> Result<StoreParts> {
    let reader = readers::open_read_only(directory)?;
    let recovered = recovery::recover(&reader, directory, &fingerprinter)?;
    let open_since = (!recovered.memory.open.is_empty()).then(Instant::now);
    let next_run_no = runs::next_run_no(&ledger)?;
    let folded_seq = recovered.fold.folded_seq;
    let shared = Shared::new(recovered.memory, fingerprinter, folded_seq, next_run_no);
    let shared = Arc::new(shared);
    let (folder, fold_jobs) = mpsc::channel();
    let writer = Writer {
        shared: Arc::clone(&shared),
        connection,
        ledger: readers::open_ledger(directory)?,
        directory: directory.to_owned(),
        settings: settings.clone(),
        folder,
        first_seq: recovered.first_seq,
        open_since,
        warnings: Throttle::default(),
        known_groups: KnownGroups::default(),
    };
    let folder = Folder {
        shared,
        connection: ledger,
        directory: directory.to_owned(),
        state: recovered.fold,
        stopped: false,
        warnings: Throttle::default(),
    };
    Ok(StoreParts { writer, folder, fold_jobs, high_water: recovered.high_water })
}

/// Starts the threads; returns where the writer takes its jobs.
fn start_threads(
    directory: &Path,
    parts: StoreParts,
) -> Result<(mpsc::Sender<Job>, Vec<JoinHandle<()>>)> {
    let StoreParts { writer, folder, fold_jobs, .. } = parts;
    let (jobs, work) = mpsc::channel();
    let shared = Arc::clone(&writer.shared);
    let merger = new_merger(directory, &shared)?;
    let checkpoint_connection = open_for_writing(&directory.join(FILE_NAME))?;
    let logs = LOG_FILE_NAMES.map(|name| directory.join(name));
    let checkpointing = Arc::clone(&shared);
    let merging = spawn("merger", move || merger.run())?;
    let _ = shared.merger.set(merging.thread().clone());
    let threads = vec![
        spawn("writer", move || writer.run(&work))?,
        spawn("folder", move || folder.run(&fold_jobs))?,
        merging,
        spawn("checkpointer", move || {
            checkpoint::run(&checkpointing, &checkpoint_connection, &logs);
        })?,
    ];
    Ok((jobs, threads))
}

fn new_merger(directory: &Path, shared: &Arc<Shared>) -> Result<Merger> {
    Ok(Merger {
        shared: Arc::clone(shared),
        connection: open_for_writing(&directory.join(LEDGER_FILE_NAME))?,
        directory: directory.to_owned(),
        first_run_no: shared.next_run_no.load(Ordering::Relaxed),
        warnings: Throttle::default(),
    })
}

fn lock_directory(directory: &Path) -> Result<File> {
    let unavailable = |error: std::io::Error| Error::Unavailable {
        what: format!("cannot use the directory {}: {error}", directory.display()),
    };
    if directory.metadata().is_ok_and(|found| !found.is_dir()) {
        return Err(Error::Unavailable {
            what: format!(
                "{} is a file, and the store needs a directory of its own; name another with --data",
                directory.display()
            ),
        });
    }
    // Parents get the usual mode: only the last one is the store's own.
    if let Some(parent) = directory.parent() {
        std::fs::create_dir_all(parent).map_err(unavailable)?;
    }
    for own in [directory.to_owned(), directory.join(runs::KEYS_DIRECTORY)] {
        match std::fs::DirBuilder::new().mode(DIRECTORY_MODE).create(own) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(unavailable(error));
            }
            Ok(()) | Err(_) => {}
        }
    }
    // SQLite gives the log and its index the mode of the database.
    for name in [FILE_NAME, LEDGER_FILE_NAME] {
        open_private(&directory.join(name)).map_err(unavailable)?;
    }
    let lock = open_private(&directory.join("lock")).map_err(unavailable)?;
    warn_of_wide_modes(directory);
    lock.try_lock().map_err(|_| Error::Unavailable {
        what: format!(
            "the directory {} is in use by another server; stop it, or choose another directory \
             with --data",
            directory.display()
        ),
    })?;
    Ok(lock)
}

/// Opens a file that only its owner may read, and creates it if there is none.
fn open_private(path: &Path) -> std::io::Result<File> {
    File::options().create(true).truncate(false).write(true).mode(FILE_MODE).open(path)
}

/// The store holds secrets and all usage. A directory that was made by others keeps its mode; the
/// operator may have reasons.
fn warn_of_wide_modes(directory: &Path) {
    for name in ["", FILE_NAME, LEDGER_FILE_NAME, LOG_FILE_NAMES[0], LOG_FILE_NAMES[1], "lock"] {
        let path = if name.is_empty() { directory.to_owned() } else { directory.join(name) };
        let Ok(metadata) = std::fs::metadata(&path) else { continue };
        let mode = metadata.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            let (shown, home) = (path.display(), directory.display());
            tracing::warn!(
                "{shown} has the mode {mode:o}: other users of this machine can get at the \
                 store's secrets and usage; run `chmod -R go= {home}`"
            );
        }
    }
}

/// Has SQLite plan a statement once, whatever values are bound to it. Otherwise it plans every
/// statement with `LIMIT ?` anew each time, which takes longer than most of them run.
fn keep_plans(connection: &Connection) -> Result<()> {
    let kept = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true);
    kept.map(drop).map_err(sql_error)
}

fn open_for_writing(path: &Path) -> Result<Connection> {
    let connection = Connection::open(path).map_err(sql_error)?;
    keep_plans(&connection)?;
    connection.set_prepared_statement_cache_capacity(128);
    connection
        .execute_batch(
            "PRAGMA page_size = 4096;
             PRAGMA journal_mode = WAL;
             PRAGMA synchronous = FULL;
             PRAGMA wal_autocheckpoint = 0;
             PRAGMA journal_size_limit = 134217728;
             PRAGMA cache_size = -65536;
             PRAGMA busy_timeout = 5000;
             PRAGMA temp_store = MEMORY;",
        )
        .map_err(sql_error)?;
    Ok(connection)
}

fn read_fingerprinter(connection: &Connection) -> Result<Fingerprinter> {
    let sql = "SELECT value FROM secrets WHERE name = 'event_keys'";
    let key = connection.query_row(sql, [], |row| row.get(0)).map_err(sql_error)?;
    Ok(Fingerprinter::new(key))
}

/// A secret of this store, made when it is first asked for.
fn secret<const N: usize>(connection: &Connection, name: &str) -> Result<[u8; N]> {
    let mut fresh = [0u8; N];
    getrandom::fill(&mut fresh).map_err(|error| Error::Internal { what: error.to_string() })?;
    connection
        .execute("INSERT OR IGNORE INTO secrets (name, value) VALUES (?, ?)", (name, fresh))
        .map_err(sql_error)?;
    connection
        .query_row("SELECT value FROM secrets WHERE name = ?", [name], |row| row.get(0))
        .map_err(sql_error)
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map_err(|error| Error::Unavailable { what: format!("cannot start a thread: {error}") })
}

/// Makes a file's name durable.
fn sync_directory(file: &Path) -> Result<()> {
    let Some(directory) = file.parent() else { return Ok(()) };
    // Without a file handle nothing was tried, so the name may be made durable later.
    let opened = File::open(directory).map_err(|error| Error::Unavailable {
        what: format!("cannot open the directory {}: {error}", directory.display()),
    })?;
    opened.sync_all().map_err(|error| sync_error(directory, &error))
}

/// A disk that cannot sync stops the process: what it holds is unknown, and a second sync may claim
/// success for pages that are gone.
fn sync_error(path: &Path, error: &std::io::Error) -> Error {
    tracing::error!(%error, path = %path.display(), "the disk could not sync");
    stop_process("the disk could not sync; check the disk, then start again")
}

fn closed() -> Error {
    Error::Unavailable { what: "the store is closed".into() }
}

fn corrupt(what: &str) -> Error {
    Error::Corrupt { what: format!("{what} is missing or not valid") }
}

/// Sorts SQLite's errors by what must follow. A disk that cannot sync stops the process: what it
/// holds is unknown, and a second sync may claim success for pages that are gone.
fn sql_error(error: rusqlite::Error) -> Error {
    use rusqlite::ErrorCode;
    let what = error.to_string();
    let rusqlite::Error::SqliteFailure(failure, _) = &error else {
        return Error::Corrupt { what };
    };
    let sync_failed = [rusqlite::ffi::SQLITE_IOERR_FSYNC, rusqlite::ffi::SQLITE_IOERR_DIR_FSYNC];
    if sync_failed.contains(&failure.extended_code) {
        stop_process("the disk could not sync; check the disk, then start again");
    }
    let damaged = [ErrorCode::DatabaseCorrupt, ErrorCode::NotADatabase];
    let passing = [
        ErrorCode::DiskFull,
        ErrorCode::SystemIoFailure,
        ErrorCode::CannotOpen,
        ErrorCode::DatabaseBusy,
        ErrorCode::DatabaseLocked,
        ErrorCode::ReadOnly,
        ErrorCode::OutOfMemory,
        ErrorCode::OperationInterrupted,
    ];
    if damaged.contains(&failure.code) {
        Error::Corrupt { what }
    } else if passing.contains(&failure.code) {
        Error::Unavailable { what }
    } else {
        Error::Internal { what }
    }
}

#[cfg(test)]
mod tests;
