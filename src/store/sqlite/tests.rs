//! What the embedded store does when its disk, its log or its rows are not as they should be.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::rules::event::{Event, Item, parse_event};
use crate::rules::ids::MeterSlug;
use crate::rules::verdict::Acceptance;
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

/// A writer without threads beside it: nothing happens but what the test does.
fn open_writer(directory: &Path) -> Writer {
    let mut connection = open_for_writing(&directory.join(FILE_NAME)).unwrap();
    migrations::migrate(&mut connection).unwrap();
    let fingerprinter = Fingerprinter::new(secret(&connection, "event_keys").unwrap());
    let (mut writer, _) = recover_writer(connection, &settings(), fingerprinter).unwrap();
    let spec = serde_json::from_str(r#"{"aggregation":"sum"}"#).unwrap();
    let meter = Meter::declare(MeterSlug::parse("calls").unwrap(), spec).unwrap();
    writer.declare_meter(&meter, Timestamp::parse(NOW).unwrap()).unwrap();
    writer
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

/// Records new events; all of them count.
fn record(writer: &mut Writer, numbers: std::ops::Range<usize>) -> Result<()> {
    let catalog = Arc::clone(&writer.shared.read_memory().catalog);
    let verdicts = writer.record(batch(&catalog, numbers))?;
    assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Accepted));
    Ok(())
}

fn is_folding(writer: &Writer) -> bool {
    writer.shared.read_memory().folding.is_some()
}

#[test]
fn folding_waits_for_a_checkpoint_after_a_failed_write() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = open_writer(directory.path());
    record(&mut writer, 0..50).unwrap();
    assert!(is_folding(&writer), "a segment is closed");
    let limit = |writer: &Writer, pages: i64| {
        writer.connection.execute_batch(&format!("PRAGMA max_page_count = {pages}")).unwrap();
    };
    let pages: i64 =
        writer.connection.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
    limit(&writer, pages);
    let mut next = 50;
    let failed = loop {
        match record(&mut writer, next..next + 50) {
            Ok(()) => next += 50,
            Err(error) => break error,
        }
        assert!(next < 100_000, "the disk is full at some time");
    };
    assert!(matches!(failed, Error::Unavailable { .. }), "{failed}");
    limit(&writer, 1_000_000);
    let fold = writer.fold;
    record(&mut writer, next..next + 50).unwrap();
    writer.work_while_idle();
    assert_eq!(writer.fold, fold, "events are taken and nothing is folded");
    checkpoint::look(&writer.shared, &open_for_writing(&directory.path().join(FILE_NAME)).unwrap())
        .unwrap();
    writer.work_while_idle();
    assert!(writer.fold.segment_no > fold.segment_no, "folding goes on");
    drop(writer);
    let report = SqliteStore::check_directory(directory.path(), &|_| {}).unwrap();
    assert_eq!(report.findings, Vec::<String>::new());
    assert_eq!(report.events, u64::try_from(next + 50).unwrap());
}

#[test]
fn a_segment_counts_while_its_fold_is_planned() {
    const EVENTS: usize = 5_000;
    let directory = tempfile::tempdir().unwrap();
    let mut writer = open_writer(directory.path());
    writer.settings.segment_events = EVENTS;
    record(&mut writer, 0..EVENTS).unwrap();
    assert!(writer.shared.read_memory().sealed.is_some(), "the writer has not taken the plan");
    let total = |shared: &Shared| {
        let connection = open_for_writing(&directory.path().join(FILE_NAME)).unwrap();
        let (tenant, hour) = (TenantId::parse("acme").unwrap(), Timestamp::parse(NOW).unwrap());
        let range = Window { start: hour, end: Timestamp::from_micros(hour.micros() + 1) };
        let place = (&tenant, MeterNo(1), range);
        let rows = rollups::read_usage(shared, &connection, place, usize::MAX).unwrap();
        rows.iter().map(|row| row.rollup.count).sum::<u64>()
    };
    assert_eq!(total(&writer.shared), 5_000);
    let catalog = Arc::clone(&writer.shared.read_memory().catalog);
    let again = writer.record(batch(&catalog, 0..EVENTS)).unwrap();
    assert!(again.iter().all(|verdict| matches!(verdict, Verdict::Duplicate { .. })));
    record(&mut writer, EVENTS..EVENTS + 100).unwrap();
    assert_eq!(total(&writer.shared), 5_100);
    drop(writer);
    let mut writer = open_writer(directory.path());
    assert_eq!(total(&writer.shared), 5_100, "a restart before the first step of the fold");
    writer.fold_all().unwrap();
    assert_eq!(total(&writer.shared), 5_100);
    let report = SqliteStore::check_directory(directory.path(), &|_| {}).unwrap();
    assert_eq!((report.findings, report.events), (Vec::new(), 5_100));
}

#[test]
fn a_stopped_fold_takes_events_up_to_a_bound_and_is_repaired() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = open_writer(directory.path());
    record(&mut writer, 0..50).unwrap();
    writer.work_while_idle();
    assert!(!is_folding(&writer), "the first segment is folded");
    let damage = "UPDATE rollups SET total = '12.x'";
    assert_eq!(writer.connection.execute(damage, []).unwrap(), 1);
    let mut next = 50;
    let refused = loop {
        match record(&mut writer, next..next + 10) {
            Ok(()) => next += 10,
            Err(error) => break error,
        }
        writer.work_while_idle();
        assert!(next < 100_000, "the journal has a bound");
    };
    assert!(matches!(&refused, Error::Unavailable { what } if what.contains("fold_stopped")));
    assert!(next >= SEGMENT_EVENTS * 16, "{next} events were taken");
    let why = writer.shared.fold_stopped.lock().unwrap().clone().unwrap();
    assert!(why.contains("tenant_no 1, meter_no 1"), "it names the row: {why}");
    drop(writer);
    let report = SqliteStore::repair_directory(directory.path(), &|_| {}).unwrap();
    assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
    let mut writer = open_writer(directory.path());
    record(&mut writer, next..next + 10).unwrap();
    writer.work_while_idle();
    assert!(!writer.fold_stopped && !is_folding(&writer), "everything is folded");
    drop(writer);
    let report = SqliteStore::check_directory(directory.path(), &|_| {}).unwrap();
    assert_eq!(report.findings, Vec::<String>::new());
    assert_eq!(report.events, u64::try_from(next + 10).unwrap());
}

#[test]
fn totals_are_not_repaired_from_damaged_events() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = open_writer(directory.path());
    record(&mut writer, 0..50).unwrap();
    writer.work_while_idle();
    let damage = "UPDATE rollups SET total = '12.x'; UPDATE events SET id = 'x' WHERE event_no = 7";
    writer.connection.execute_batch(damage).unwrap();
    drop(writer);
    let refused = SqliteStore::repair_directory(directory.path(), &|_| {}).unwrap_err();
    assert!(matches!(refused, Error::Corrupt { .. }), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outgrown_log_is_cut_once_no_read_holds_it() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path(), &settings()).unwrap();
    let reader = readers::open_read_only(&directory.path().join(FILE_NAME)).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM events").unwrap();
    let mebibyte = 1024 * 1024;
    let sql = format!("INSERT INTO secrets VALUES ('large', zeroblob({}))", 140 * mebibyte);
    let write = move |writer: &mut Writer| {
        writer.write(|connection| connection.execute_batch(&sql).map_err(sql_error))
    };
    store.write(write).await.unwrap();
    let log = directory.path().join(LOG_FILE_NAME);
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
    let mut writer = open_writer(directory.path());
    record(&mut writer, 0..500).unwrap();
    writer.work_while_idle();
    let busy = Mutex::new(Vec::new());
    writer.connection.busy_timeout(Duration::ZERO).unwrap();
    let writer = Mutex::new(writer);
    let restart = |_| {
        let sql = "PRAGMA wal_checkpoint(RESTART)";
        let held: i64 =
            writer.lock().unwrap().connection.query_row(sql, [], |row| row.get(0)).unwrap();
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
    let mut writer = open_writer(directory.path());
    let catalog = Arc::clone(&writer.shared.read_memory().catalog);
    let late = |quantity: i128| {
        let mut late = batch(&catalog, 0..1);
        late.acceptance.now = Timestamp::parse("2027-01-01T00:00:00Z").unwrap();
        late.events[0].quantity = crate::rules::quantity::Quantity::from_units(quantity);
        late
    };
    for quantity in 1..=3 {
        writer.record(late(quantity)).unwrap();
    }
    record(&mut writer, 1..2).unwrap();
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
    for name in ["counterfoil.db", "counterfoil.db-wal", "counterfoil.db-shm", "lock", "epoch"] {
        assert_eq!(mode(&directory.join(name)), 0o600, "{name}");
    }
    assert_eq!(mode(&parent.path().join("new/data.epoch")), 0o600);
    store.close().await;
}

#[test]
fn a_commit_folds_few_values_of_a_unique_meter_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = open_writer(directory.path());
    let spec = r#"{"aggregation":"unique","unique_property":"user"}"#;
    let users = MeterSlug::parse("users").unwrap();
    let meter = Meter::declare(users, serde_json::from_str(spec).unwrap()).unwrap();
    writer.declare_meter(&meter, Timestamp::parse(NOW).unwrap()).unwrap();
    let catalog = Arc::clone(&writer.shared.read_memory().catalog);
    let mut many = batch(&catalog, 0..1_000);
    for (number, event) in many.events.iter_mut().enumerate() {
        event.meter = MeterNo(2);
        let properties = format!(r#"{{"user":"u{number}"}}"#);
        event.properties = crate::rules::properties::Properties::parse(&properties).unwrap();
    }
    assert_eq!(writer.record(many).unwrap().len(), 1_000);
    assert!(is_folding(&writer));
    let stored = |writer: &Writer| -> usize {
        let sql = "SELECT count(*) FROM rollup_uniques";
        writer.connection.query_row(sql, [], |row| row.get(0)).unwrap()
    };
    let (mut number, mut before) = (1_000, 0);
    while before < 1_000 {
        record(&mut writer, number..number + 1).unwrap();
        let after = stored(&writer);
        assert!(after - before <= 64, "{} values in one commit", after - before);
        (number, before) = (number + 1, after);
        assert!(number < 2_000, "every commit folds some");
    }
    drop(writer);
    let report = SqliteStore::check_directory(directory.path(), &|_| {}).unwrap();
    assert_eq!(report.findings, Vec::<String>::new());
}

#[test]
fn a_page_of_an_inbox_reads_no_rows_of_other_tenants() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = open_writer(directory.path());
    let connection = &mut writer.connection;
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
    let query = InboxQuery::first(tenant, 100);
    let session = session::SqliteSession::on(connection);
    assert!(list_quarantine(&session, &query).unwrap().is_empty());
    assert!(list_conflicts(&session, &query).unwrap().is_empty());
    let steps = steps.load(Ordering::Relaxed);
    assert!((1..1_000).contains(&steps), "{steps} steps");
}

#[test]
fn statements_are_planned_once_whatever_their_limit() {
    let directory = tempfile::tempdir().unwrap();
    let writer = open_writer(directory.path());
    let reader = readers::open_read_only(&directory.path().join(FILE_NAME)).unwrap();
    for connection in [&writer.connection, &reader] {
        let sql = "SELECT tenant FROM tenants WHERE tenant_no > ? LIMIT ?";
        let mut select = connection.prepare(sql).unwrap();
        for limit in 1..4 {
            select.query_map([limit, limit], |_| Ok(())).unwrap().for_each(drop);
        }
        assert_eq!(select.get_status(StatementStatus::RePrepare), 0);
    }
}
