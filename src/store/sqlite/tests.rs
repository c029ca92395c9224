//! What the embedded store does when its disk, its log or its rows are not as they should be.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::rules::event::{Event, Item, parse_event};
use crate::rules::ids::MeterSlug;
use crate::rules::verdict::Acceptance;
use crate::store::decision::{InboxFilter, QuarantineFilter};
use crate::store::sql::SqlStore;
use crate::store::{Query, Tenants};
use rusqlite::StatementStatus;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

const NOW: &str = "2026-11-15T12:00:00Z";
const SEGMENT_EVENTS: usize = 40;

fn settings() -> SqliteConfig {
    SqliteConfig {
        segment_events: SEGMENT_EVENTS,
        segment_age_max_ms: 3_600_000,
        readers: 2,
        query_timeout_ms: 30_000,
    }
}

/// The threads of a store, which do not run: nothing happens but what the test does.
struct Parts {
    writer: Writer,
    folder: Folder,
    merger: Merger,
}

impl Parts {
    fn open(directory: &Path) -> Self {
        let _ = lock_directory(directory).unwrap();
        let (connection, ledger) = open_files(directory).unwrap();
        let fingerprinter = Fingerprinter::new(secret(&connection, "event_keys").unwrap());
        let files = (connection, ledger);
        let parts = recover_parts(directory, files, &settings(), fingerprinter).unwrap();
        let StoreParts { mut writer, folder, fold_jobs, .. } = parts;
        // The writer may send; nobody reads.
        std::mem::forget(fold_jobs);
        let merger = new_merger(directory, &writer.shared).unwrap();
        let spec = serde_json::from_str(r#"{"aggregation":"sum"}"#).unwrap();
        let meter = Meter::declare(MeterSlug::parse("calls").unwrap(), spec).unwrap();
        writer.declare_meter(&meter, Timestamp::parse(NOW).unwrap()).unwrap();
        Self { writer, folder, merger }
    }

    /// Records new events; all of them count.
    fn record(&mut self, numbers: std::ops::Range<usize>) -> Result<()> {
        let catalog = Arc::clone(&self.writer.shared.read_memory().catalog);
        let verdicts = self.writer.record(batch(&catalog, numbers))?;
        assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Accepted));
        Ok(())
    }

    /// Records events again; all of them are known.
    fn repeat(&mut self, numbers: std::ops::Range<usize>) {
        let catalog = Arc::clone(&self.writer.shared.read_memory().catalog);
        let verdicts = self.writer.record(batch(&catalog, numbers)).unwrap();
        assert!(verdicts.iter().all(|verdict| matches!(verdict, Verdict::Duplicate { .. })));
    }

    fn fold_all(&mut self) {
        self.writer.seal_segment();
        self.folder.fold_sealed().unwrap();
    }

    fn sealed(&self) -> usize {
        self.writer.shared.read_memory().sealed.len()
    }

    fn runs(&self) -> Vec<u32> {
        self.writer.shared.read_memory().runs.iter().map(|run| run.row.level).collect()
    }

    /// How many events the totals of acme count.
    fn count(&self, directory: &Path) -> u64 {
        let connection = readers::open_read_only(directory).unwrap();
        let (tenant, hour) = (TenantId::parse("acme").unwrap(), Timestamp::parse(NOW).unwrap());
        let range = Window { start: hour, end: Timestamp::from_micros(hour.micros() + 1) };
        let place = (&tenant, MeterNo(1), range);
        let shared = &self.writer.shared;
        let rows = rollups::read_usage(shared, &connection, place, usize::MAX).unwrap();
        rows.iter().map(|row| row.rollup.count).sum()
    }
}

fn assert_sound(directory: &Path, events: u64) {
    let report = SqliteStore::check_directory(directory, &|_| {}).unwrap();
    assert_eq!((report.findings, report.events), (Vec::new(), events));
}

fn batch(catalog: &Catalog, numbers: std::ops::Range<usize>) -> DeliveryBatch {
    let event = |number: usize| -> Event {
        let json = format!(
            r#"{{"tenant":"acme","id":"e{number}","meter":"calls","quantity":"1","occurred_at":"{NOW}"}}"#
        );
        let item: Item<'_> = serde_json::from_str(&json).unwrap();
        parse_event(&item, catalog).unwrap()
    };
    let acceptance =
        Acceptance { now: Timestamp::parse(NOW).unwrap(), horizon_micros: 3_600_000_000 };
    let (events, refused) = (numbers.map(event).collect(), Vec::new());
    DeliveryBatch { events, refused, acceptance, strict_tenants: false, groups_per_day: 100_000 }
}

#[test]
fn a_fold_that_fails_is_tried_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut parts = Parts::open(directory.path());
    parts.record(0..50).unwrap();
    assert_eq!(parts.sealed(), 1, "a segment is sealed");
    let limit = |parts: &Parts, pages: i64| {
        parts.folder.connection.execute_batch(&format!("PRAGMA max_page_count = {pages}")).unwrap();
    };
    let sql = "PRAGMA page_count";
    let pages: i64 = parts.folder.connection.query_row(sql, [], |row| row.get(0)).unwrap();
    limit(&parts, pages);
    let mut next = 50;
    let failed = loop {
        parts.record(next..next + 50).unwrap();
        next += 50;
        match parts.folder.fold_sealed() {
            Ok(()) => assert!(next < 100_000, "the disk is full at some time"),
            Err(error) => break error,
        }
    };
    assert!(matches!(failed, Error::Unavailable { .. }), "{failed}");
    let files = std::fs::read_dir(directory.path().join(runs::KEYS_DIRECTORY)).unwrap().count();
    assert_eq!(files, parts.runs().len(), "a fold that failed left its file behind");
    let events = u64::try_from(next).unwrap();
    assert_eq!(parts.count(directory.path()), events);
    assert_sound(directory.path(), events);
    limit(&parts, 1_000_000);
    parts.fold_all();
    assert_eq!((parts.sealed(), parts.count(directory.path())), (0, events));
    parts.repeat(0..next);
    assert_sound(directory.path(), events);
}

#[test]
fn events_count_once_in_segments_runs_and_merged_runs() {
    let directory = tempfile::tempdir().unwrap();
    let mut parts = Parts::open(directory.path());
    for number in 0..80 {
        let first = number * 50;
        parts.record(first..first + 50).unwrap();
        assert_eq!(parts.count(directory.path()), u64::try_from(first + 50).unwrap());
        match number % 5 {
            0 => parts.repeat(0..first + 50),
            1 => parts.folder.fold_sealed().unwrap(),
            2 => drop(parts.folder.fold_next().unwrap()),
            3 => while parts.merger.merge_next().unwrap() {},
            _ => parts = Parts::open(directory.path()),
        }
        assert_eq!(parts.count(directory.path()), u64::try_from(first + 50).unwrap());
    }
    parts.fold_all();
    while parts.merger.merge_next().unwrap() {}
    assert!(parts.runs().contains(&1), "{:?}", parts.runs());
    assert!(parts.runs().len() < 16, "{:?}", parts.runs());
    parts.repeat(0..4_000);
    parts.writer.work_while_idle();
    let sql = "SELECT count(*) FROM journal";
    let rows: i64 = parts.writer.connection.query_row(sql, [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 1, "the rows that are folded are deleted");
    let mut parts = Parts::open(directory.path());
    parts.repeat(0..4_000);
    assert_sound(directory.path(), 4_000);
    let named = |path: std::fs::DirEntry| path.file_name().into_string().unwrap();
    let files = std::fs::read_dir(directory.path().join("keys")).unwrap();
    let files: Vec<String> = files.map(|path| named(path.unwrap())).collect();
    assert_eq!(files.len(), parts.runs().len(), "{files:?}");
}

#[test]
fn totals_that_no_run_names_are_swept() {
    let directory = tempfile::tempdir().unwrap();
    let mut parts = Parts::open(directory.path());
    parts.record(0..50).unwrap();
    parts.fold_all();
    let garbage = "INSERT INTO total_blocks
                       (run_no, tenant_no, meter_no, bucket_start, last_tenant_no, body)
                   VALUES (7, 1, 1, 0, 1, x'00')";
    parts.folder.connection.execute(garbage, []).unwrap();
    assert_sound(directory.path(), 50);
    let mut parts = Parts::open(directory.path());
    parts.record(50..100).unwrap();
    parts.fold_all();
    parts.merger.sweep().unwrap();
    let sql = "SELECT group_concat(run_no) FROM total_blocks";
    let runs: String = parts.folder.connection.query_row(sql, [], |row| row.get(0)).unwrap();
    assert_eq!(runs, "1,8", "the run after the garbage has the next number");
    assert_eq!(parts.count(directory.path()), 100);
}

/// Damages the one run file of a store with fifty folded events.
fn damage_run(damage: impl Fn(&Path)) -> (tempfile::TempDir, Parts) {
    let directory = tempfile::tempdir().unwrap();
    let mut parts = Parts::open(directory.path());
    parts.record(0..50).unwrap();
    parts.fold_all();
    damage(&directory.path().join("keys/1.run"));
    (directory, parts)
}

#[test]
fn a_run_that_is_damaged_while_it_is_open_is_made_again() {
    // In place, so that the open file has the damage.
    let (directory, mut parts) = damage_run(|path| {
        use std::os::unix::fs::FileExt;
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(&[0xff; 8], 16).unwrap();
    });
    let report = SqliteStore::check_directory(directory.path(), &|_| {}).unwrap();
    assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
    parts.repeat(0..50);
    assert_sound(directory.path(), 50);
}

#[test]
fn a_lost_or_torn_run_is_made_again_at_the_start() {
    let lose = |path: &Path| std::fs::remove_file(path).unwrap();
    let tear = |path: &Path| {
        let bytes = std::fs::read(path).unwrap();
        std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
    };
    let accidents: [fn(&Path); 2] = [lose, tear];
    for damage in accidents {
        let (directory, parts) = damage_run(damage);
        drop(parts);
        let mut parts = Parts::open(directory.path());
        parts.repeat(0..50);
        assert_sound(directory.path(), 50);
    }
}

#[test]
fn files_of_different_moments_are_refused() {
    let (directory, before) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut parts = Parts::open(directory.path());
    parts.record(0..50).unwrap();
    parts.fold_all();
    let names = ["counterfoil.db", "ledger.db"];
    let settle = |parts: &Parts| {
        for connection in [&parts.writer.connection, &parts.folder.connection] {
            connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        }
    };
    settle(&parts);
    for name in names {
        std::fs::copy(directory.path().join(name), before.path().join(name)).unwrap();
    }
    for number in 1..20 {
        parts.record(number * 50..number * 50 + 50).unwrap();
        parts.fold_all();
        parts.writer.work_while_idle();
    }
    settle(&parts);
    drop(parts);
    for older in names {
        let mixed = tempfile::tempdir().unwrap();
        for name in names {
            let from = if name == older { before.path() } else { directory.path() };
            std::fs::copy(from.join(name), mixed.path().join(name)).unwrap();
        }
        let refused = SqliteStore::open(mixed.path(), &settings()).err().unwrap().to_string();
        assert!(refused.contains(&format!("{older} is older")), "{refused}");
    }
    std::fs::remove_file(directory.path().join("ledger.db")).unwrap();
    let refused = SqliteStore::open(directory.path(), &settings()).err().unwrap().to_string();
    assert!(refused.contains("ledger.db is older"), "{refused}");
}

#[test]
fn a_stopped_fold_takes_events_up_to_a_bound() {
    let directory = tempfile::tempdir().unwrap();
    let mut parts = Parts::open(directory.path());
    parts.record(0..50).unwrap();
    parts.writer.shared.fold_paused.store(true, Ordering::Release);
    let mut next = 50;
    let refused = loop {
        match parts.record(next..next + 10) {
            Ok(()) => next += 10,
            Err(error) => break error,
        }
        assert!(next < 100_000, "the journal has a bound");
    };
    assert!(matches!(&refused, Error::Unavailable { what } if what.contains("fold_stopped")));
    assert!(next >= SEGMENT_EVENTS * 16, "{next} events were taken");
    parts.fold_all();
    parts.record(next..next + 10).unwrap();
    assert_sound(directory.path(), u64::try_from(next + 10).unwrap());
}

#[test]
fn an_unreadable_total_stops_merging_and_is_repaired() {
    let directory = tempfile::tempdir().unwrap();
    let mut parts = Parts::open(directory.path());
    for number in 0..8 {
        parts.record(number * 50..number * 50 + 50).unwrap();
        parts.fold_all();
    }
    let damage = "UPDATE total_blocks SET body = x'00' WHERE run_no = 3";
    assert_eq!(parts.folder.connection.execute(damage, []).unwrap(), 1);
    let failed = parts.merger.merge_next().unwrap_err().to_string();
    assert!(failed.contains("run 3"), "it names the run: {failed}");
    let files = std::fs::read_dir(directory.path().join("keys")).unwrap().count();
    assert_eq!(files, 8, "a merge that fails leaves no file");
    parts.record(400..450).unwrap();
    parts.fold_all();
    drop(parts);
    let report = SqliteStore::repair_directory(directory.path(), &|_| {}).unwrap();
    let [found] = &report.findings[..] else { panic!("one total: {:?}", report.findings) };
    assert!(found.starts_with("tenant acme, meter calls: could not be checked"), "{found}");
    let mut parts = Parts::open(directory.path());
    assert!(parts.merger.merge_next().unwrap());
    assert_eq!(parts.count(directory.path()), 450);
    assert_sound(directory.path(), 450);
}

#[test]
fn totals_are_not_repaired_from_damaged_events() {
    let directory = tempfile::tempdir().unwrap();
    let mut parts = Parts::open(directory.path());
    parts.record(0..50).unwrap();
    parts.fold_all();
    let damage = "UPDATE total_blocks SET body = x'00';
                  UPDATE event_blocks SET body = substr(body, 1, length(body) - 1)";
    parts.folder.connection.execute_batch(damage).unwrap();
    drop(parts);
    let refused = SqliteStore::repair_directory(directory.path(), &|_| {}).unwrap_err();
    assert!(matches!(refused, Error::Corrupt { .. }), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outgrown_log_is_cut_once_no_read_holds_it() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path(), &settings()).unwrap();
    let reader = readers::open_read_only(directory.path()).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM journal").unwrap();
    let mebibyte = 1024 * 1024;
    let sql = format!("INSERT INTO secrets VALUES ('large', zeroblob({}))", 140 * mebibyte);
    let write = move |writer: &mut Writer| {
        writer.write(|connection| connection.execute_batch(&sql).map_err(sql_error))
    };
    store.write(write).await.unwrap();
    let log = directory.path().join(LOG_FILE_NAMES[0]);
    let size = || std::fs::metadata(&log).unwrap().len();
    assert!(size() > 140 * mebibyte, "a read holds the log");
    drop(reader);
    let started = Instant::now();
    while size() > mebibyte || store.health().log_bytes > mebibyte {
        assert!(started.elapsed() < Duration::from_secs(60), "the log has {} bytes", size());
        std::thread::sleep(Duration::from_millis(20));
    }
    store.close().await;
}

#[test]
fn the_check_does_not_hold_the_log_while_it_reads_events() {
    let directory = tempfile::tempdir().unwrap();
    let mut parts = Parts::open(directory.path());
    parts.record(0..500).unwrap();
    parts.fold_all();
    let busy = Mutex::new(Vec::new());
    parts.folder.connection.busy_timeout(Duration::ZERO).unwrap();
    let ledger = Mutex::new(parts.folder.connection);
    let restart = |_| {
        let sql = "PRAGMA wal_checkpoint(RESTART)";
        let held: i64 = ledger.lock().unwrap().query_row(sql, [], |row| row.get(0)).unwrap();
        busy.lock().unwrap().push(held);
    };
    let report = SqliteStore::check_directory(directory.path(), &restart).unwrap();
    assert_eq!((report.events, report.findings.len()), (500, 0));
    assert_eq!(busy.lock().unwrap().first(), Some(&0), "no transaction is open between slices");
}

/// A store from before fingerprints: its rows have none until it is opened.
#[test]
fn payloads_kept_before_fingerprints_are_found_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut parts = Parts::open(directory.path());
    let catalog = Arc::clone(&parts.writer.shared.read_memory().catalog);
    let late = |quantity: i128| {
        let mut late = batch(&catalog, 0..1);
        late.acceptance.now = Timestamp::parse("2027-01-01T00:00:00Z").unwrap();
        late.events[0].quantity = crate::rules::quantity::Quantity::from_units(quantity);
        late
    };
    for quantity in 1..=3 {
        parts.writer.record(late(quantity)).unwrap();
    }
    parts.record(1..2).unwrap();
    let writer = &mut parts.writer;
    let mut other = batch(&catalog, 1..2);
    other.events[0].quantity = crate::rules::quantity::Quantity::ZERO;
    writer.record(other).unwrap();
    let forget =
        "UPDATE conflicts SET fingerprint = NULL; UPDATE quarantine SET fingerprint = NULL";
    writer.connection.execute_batch(forget).unwrap();
    let fingerprinter = read_fingerprinter(&writer.connection).unwrap();
    inbox::mark_old_rows(&mut writer.connection, &fingerprinter).unwrap();
    for quantity in 2..=4 {
        writer.record(late(quantity)).unwrap();
    }
    let mut other = batch(&catalog, 1..2);
    other.events[0].quantity = crate::rules::quantity::Quantity::ZERO;
    writer.record(other).unwrap();
    let deliveries = |table: &str| -> Vec<i64> {
        let sql = format!("SELECT deliveries FROM {table} ORDER BY rowid");
        let mut select = writer.connection.prepare(&sql).unwrap();
        let rows = select.query_map([], |row| row.get(0)).unwrap();
        rows.collect::<std::result::Result<_, _>>().unwrap()
    };
    assert_eq!(deliveries("quarantine"), [1, 2, 2, 1]);
    assert_eq!(deliveries("conflicts"), [2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_that_wait_hold_up_neither_keys_nor_pings_nor_jobs() {
    let directory = tempfile::tempdir().unwrap();
    let hasty = SqliteConfig { query_timeout_ms: 50, ..settings() };
    let store = SqliteStore::open(directory.path(), &hasty).unwrap();
    let at = Timestamp::parse(NOW).unwrap();
    let key = |id: &str| ApiKey {
        id: id.to_owned(),
        name: id.to_owned(),
        digest: [u8::try_from(id.len()).unwrap(); 32],
        scopes: vec!["read".to_owned()],
        tenant: None,
        created_at: at,
        revoked_at: None,
    };
    let places = store.readers.hold_all().await;
    assert!(matches!(store.list_tenants(Query::first((), 10)).await, Err(Error::Overdue { .. })));
    store.create_api_key(key("b")).await.unwrap();
    store.create_api_key(key("aa")).await.unwrap();
    assert!(store.revoke_api_key("b", at).await.unwrap());
    let revoked = ApiKey { revoked_at: Some(at), ..key("b") };
    assert_eq!(store.list_api_keys().await.unwrap(), [key("aa"), revoked.clone()]);
    store.ping().await.unwrap();
    let jobs = store.for_jobs().unwrap().unwrap();
    assert_eq!(jobs.list_tenants(Query::first((), 10)).await.unwrap(), []);
    drop(places);
    assert_eq!(store.list_tenants(Query::first((), 10)).await.unwrap(), []);
    store.close().await;
    let store = SqliteStore::open(directory.path(), &settings()).unwrap();
    assert_eq!(store.list_api_keys().await.unwrap(), [key("aa"), revoked]);
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_is_given_up_after_its_time() {
    let directory = tempfile::tempdir().unwrap();
    let hasty = SqliteConfig { query_timeout_ms: 50, readers: 1, ..settings() };
    let store = SqliteStore::open(directory.path(), &hasty).unwrap();
    let endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
                   SELECT count(*) FROM n";
    let answer = store
        .read(move |_, connection| {
            connection.query_row(endless, [], |row| row.get::<_, i64>(0)).map_err(sql_error)
        })
        .await;
    assert!(matches!(answer, Err(Error::Overdue { .. })), "{answer:?}");
    assert_eq!(store.list_tenants(Query::first((), 10)).await.unwrap(), []);
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_owner_may_read_a_store() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("new/data");
    let store = SqliteStore::open(&directory, &settings()).unwrap();
    store
        .put_tenant(
            &TenantId::parse("acme").unwrap(),
            TenantFields::default(),
            Timestamp::default(),
        )
        .await
        .unwrap();
    store.write_mark(&crate::rules::restore::Mark { store: "s".into(), number: 1 });
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&directory), 0o700);
    assert_eq!(mode(&directory.join("keys")), 0o700);
    for database in ["counterfoil.db", "ledger.db"] {
        for name in ["", "-wal", "-shm"] {
            let name = format!("{database}{name}");
            assert_eq!(mode(&directory.join(&name)), 0o600, "{name}");
        }
    }
    for name in ["lock", "epoch"] {
        assert_eq!(mode(&directory.join(name)), 0o600, "{name}");
    }
    assert_eq!(mode(&parent.path().join("new/data.epoch")), 0o600);
    store.close().await;
}

#[test]
fn a_page_of_an_inbox_reads_no_rows_of_other_tenants() {
    let directory = tempfile::tempdir().unwrap();
    let mut parts = Parts::open(directory.path());
    let connection = &mut parts.writer.connection;
    connection
        .execute_batch(
            "INSERT INTO tenants (tenant_no, tenant, created_at) 
             VALUES (8, 'storm', 0), (9, 'calm', 0);
             WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 20000)
             INSERT INTO quarantine (tenant_no, id, fingerprint, payload, reason,
                                     first_received_at, last_received_at, deliveries)
             SELECT 8, 'e' || n, randomblob(16), '{}', 'too_old', 0, 0, 1 FROM n;
             INSERT INTO conflicts (tenant_no, id, fingerprint, arriving, standing,
                                    first_received_at, last_received_at, deliveries)
             SELECT 8, id, fingerprint, '{}', '{}', 0, 0, 1 FROM quarantine;",
        )
        .unwrap();
    // Each step of the virtual machine is counted; a row takes several.
    let steps = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&steps);
    let count = move || counted.fetch_add(1, Ordering::Relaxed) == usize::MAX;
    connection.progress_handler(1, Some(count)).unwrap();
    let tenant = Some(TenantId::parse("calm").unwrap());
    let filter = InboxFilter::of(tenant);
    let quarantined = QuarantineFilter { of: filter.clone(), reason: None };
    let session = session::SqliteSession::on(connection);
    assert!(list_quarantine(&session, &Query::first(quarantined, 100)).unwrap().is_empty());
    assert!(list_conflicts(&session, &Query::first(filter, 100)).unwrap().is_empty());
    let steps = steps.load(Ordering::Relaxed);
    assert!((1..1_000).contains(&steps), "{steps} steps");
}

#[test]
fn statements_are_planned_once_whatever_their_limit() {
    let directory = tempfile::tempdir().unwrap();
    let parts = Parts::open(directory.path());
    let reader = readers::open_read_only(directory.path()).unwrap();
    for connection in [&parts.writer.connection, &reader] {
        let sql = "SELECT tenant FROM tenants WHERE tenant_no > ? LIMIT ?";
        let mut select = connection.prepare(sql).unwrap();
        for limit in 1..4 {
            select.query_map([limit, limit], |_| Ok(())).unwrap().for_each(drop);
        }
        assert_eq!(select.get_status(StatementStatus::RePrepare), 0);
    }
}

/// Backups beside commits, folds and merges: each is the store of one moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_is_of_one_moment() {
    let directory = tempfile::tempdir().unwrap();
    drop(Parts::open(directory.path()));
    let store = SqliteStore::open(directory.path(), &settings()).unwrap();
    let catalog = store.load_catalog().await.unwrap();
    let copies = tempfile::tempdir().unwrap();
    for number in 0..20 {
        let loading = Arc::clone(&store);
        let batches: Vec<_> = (0..20)
            .map(|part| (number * 20 + part) * 10)
            .map(|first| batch(&catalog, first..first + 10))
            .collect();
        let load = tokio::spawn(async move {
            for batch in batches {
                loading.record_deliveries(0, batch).await.unwrap();
            }
        });
        let (from, to) = (directory.path().to_owned(), copies.path().join(number.to_string()));
        let copied = to.clone();
        let copying = tokio::task::spawn_blocking(move || backup::back_up(&from, &copied));
        copying.await.unwrap().unwrap();
        load.await.unwrap();
        let report = SqliteStore::check_directory(&to, &|_| {}).unwrap();
        let runs = |finding: &&String| !finding.contains("cannot be read");
        assert_eq!(report.findings.iter().filter(runs).count(), 0, "{:?}", report.findings);
        let least = u64::try_from(number * 200).unwrap();
        assert!(report.events >= least, "{} of {least}", report.events);
        let mut restored = Parts::open(&to);
        restored.repeat(0..number * 200);
        drop(restored);
        let refused = backup::back_up(directory.path(), &to).unwrap_err().to_string();
        assert!(refused.contains("must be new"), "{refused}");
    }
    store.close().await;
    assert_sound(directory.path(), 4_000);
}
