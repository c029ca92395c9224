//! Two servers on one PostgreSQL database, sending the same events at once.

use crate::billed::after;
use crate::fixture::{Fixture, at_once, call, deliver_to, tenant_id};
use crate::ground::POSTGRES;
use counterfoil::config::PostgresConfig;
use counterfoil::rules::ids::MeterSlug;
use counterfoil::rules::meter::Meter;
use counterfoil::rules::verdict::Verdict;
use counterfoil::rules::window::Window;
use counterfoil::store::postgres::PostgresStore;
use counterfoil::store::{Declaration, Error, Queries, Store, TenantFields};
use std::sync::Arc;
use tokio_postgres::{Client, NoTls};

/// Connections on which requests read, as the fixture sets them.
const READERS: i64 = 2;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_events_at_once_are_counted_once() {
    let Some(f) = Fixture::postgres().await else { return };
    let f = Arc::new(f);
    let other = f.second_server().await;
    let batches: Vec<Vec<String>> = (0..20)
        .map(|b| (0..50).map(|n| call(&format!("e{}", b * 40 + n), "1")).collect())
        .collect();
    let deliver = |f: Arc<Fixture>, (server, partition): (usize, usize)| {
        let store = [&f.store, &other][server].clone();
        let mut batches = batches.clone();
        if server == 1 {
            batches.reverse();
        }
        async move {
            let mut accepted = 0;
            for json in batches {
                let events = f.events(&json).await;
                for verdict in store.record_deliveries(partition, f.batch(events)).await.unwrap() {
                    match verdict {
                        Verdict::Accepted => accepted += 1,
                        Verdict::Duplicate { restamped: false } => {}
                        other => panic!("{other:?}"),
                    }
                }
            }
            accepted
        }
    };
    let accepted = at_once(&f, [(0, 0), (1, 0), (0, 1), (1, 1)], deliver).await;
    // 20 batches of 50 that overlap by ten: 810 different ids.
    assert_eq!(accepted.into_iter().sum::<u64>(), 810);
    assert_eq!(f.total("acme", "calls").await, "810");
    f.check().await;
    other.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn meters_and_tenants_made_at_once_are_made_once() {
    let Some(f) = Fixture::postgres().await else { return };
    let other = f.second_server().await;
    let spec = r#"{"aggregation":"sum"}"#;
    let events = f.events(&[call("e1", "1").replace("acme", "both")]).await;
    let (a, b) = tokio::join!(
        deliver_to(f.store.as_ref(), f.batch(events.clone())),
        deliver_to(other.as_ref(), f.batch(events)),
    );
    assert_eq!([a, b].concat().iter().filter(|v| **v == Verdict::Accepted).count(), 1);
    f.declare("later", spec).await;
    let catalog = other.load_catalog().await.unwrap();
    assert!(catalog.find("later").is_some());
    assert_eq!(f.total("both", "calls").await, "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_event_name_declared_at_once_is_of_one_meter() {
    let Some(f) = Fixture::postgres().await else { return };
    let other = f.second_server().await;
    for round in 0..20 {
        let meter = |slug: &str| {
            let spec = format!(r#"{{"aggregation":"sum","billing":{{"event_name":"n{round}"}}}}"#);
            let slug = MeterSlug::parse(&format!("{slug}{round}")).unwrap();
            Meter::declare(slug, serde_json::from_str(&spec).unwrap()).unwrap()
        };
        let (a, b) = tokio::join!(
            f.store.declare_meter(meter("a"), f.now),
            other.declare_meter(meter("b"), f.now),
        );
        let outcomes = [a.unwrap(), b.unwrap()];
        let created = outcomes.iter().filter(|one| **one == Declaration::Created).count();
        let taken = |one: &&Declaration<Meter>| matches!(one, Declaration::EventNameTaken(_));
        assert_eq!((created, outcomes.iter().filter(taken).count()), (1, 1), "{outcomes:?}");
    }
    other.close().await;
}

/// Reads while both servers deliver, until deltas were folded several times: a delta that is hidden
/// or shown twice makes a total that no number of events has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn totals_are_exact_while_deltas_are_folded() {
    let Some(f) = Fixture::postgres().await else { return };
    let f = Arc::new(f);
    let other = f.second_server().await;
    let client = connect(&f).await;
    let (mut sent, mut folds, mut before) = (0u64, 0, 0i64);
    while folds < 3 {
        for store in [&f.store, &other] {
            let json: Vec<String> = (0..20).map(|n| call(&format!("e{}", sent + n), "1")).collect();
            deliver_to(store.as_ref(), f.batch(f.events(&json).await)).await;
            sent += 20;
        }
        let usage = f.usage("acme", "calls").await;
        assert_eq!((usage.count, usage.total.to_string()), (sent, sent.to_string()));
        let hour = Window { start: after(f.now, -60), end: after(f.now, 60) };
        let counted: u64 =
            f.store.read_counters(hour).await.unwrap().iter().map(|row| row.tally.accepted).sum();
        assert_eq!(counted, sent);
        let folded = "SELECT COALESCE(sum(count), 0)::int8 FROM rollups";
        let now: i64 = client.query_one(folded, &[]).await.unwrap().get(0);
        folds += i32::from(now > before);
        before = now;
    }
    f.check().await;
    other.close().await;
}

/// A server that has seen many keys no longer looks up those that are new to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_another_server_has_counted_is_a_duplicate() {
    let Some(f) = Fixture::postgres().await else { return };
    let other = f.second_server().await;
    for number in 0..100 {
        assert_eq!(f.deliver_one(&call(&format!("own{number}"), "1")).await, Verdict::Accepted);
    }
    for number in 0..3 {
        let theirs = f.events(&[call(&format!("their{number}"), "1")]).await;
        let verdicts = deliver_to(other.as_ref(), f.batch(theirs)).await;
        assert_eq!(verdicts, [Verdict::Accepted]);
        let json = [call(&format!("mine{number}"), "1"), call(&format!("their{number}"), "1")];
        let expected = [Verdict::Accepted, Verdict::Duplicate { restamped: false }];
        assert_eq!(f.deliver(&json).await, expected);
        for own in 0..70 {
            let id = format!("more{number}-{own}");
            assert_eq!(f.deliver_one(&call(&id, "1")).await, Verdict::Accepted);
        }
    }
    assert_eq!(f.total("acme", "calls").await, "316");
    f.check().await;
    other.close().await;
}

/// However it came to be missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_is_missing_is_made() {
    let Some(f) = Fixture::postgres().await else { return };
    let client = connect(&f).await;
    let logins = |id: &str| call(id, "1").replace("calls", "logins");
    let quarantined = f.deliver_one(&logins("old").replace("2026-11", "2026-01")).await;
    assert!(matches!(quarantined, Verdict::Quarantined(_)), "{quarantined:?}");
    client.batch_execute("DROP TABLE events_20261115").await.unwrap();
    assert_eq!(f.deliver_one(&logins("e1")).await, Verdict::Accepted);
    assert_eq!(f.total("acme", "logins").await, "1");
    f.check().await;
}

async fn connect(f: &Fixture) -> Client {
    let (client, connection) = tokio_postgres::connect(f.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Waits until at least so many connections wait for a lock.
async fn wait_for_waiters(client: &Client, count: i64) {
    let waiting = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'";
    // A transaction sees one state of the activity unless it asks for another.
    let clear = "SELECT pg_stat_clear_snapshot()";
    client.batch_execute(clear).await.unwrap();
    // The task that folds may wait too.
    while client.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) < count {
        tokio::task::yield_now().await;
        client.batch_execute(clear).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_wait_for_a_lock_leave_connections_to_jobs() {
    let Some(f) = Fixture::postgres().await else { return };
    f.deliver_one(&call("e1", "1")).await;
    let jobs = f.store.for_jobs().unwrap().unwrap();
    let client = connect(&f).await;
    client.batch_execute("BEGIN; SELECT FROM tenants FOR UPDATE").await.unwrap();
    let requests: Vec<_> = (0..10)
        .map(|number| {
            let (store, now) = (Arc::clone(&f.store), f.now);
            let fields =
                TenantFields { name: Some(format!("name {number}")), ..TenantFields::default() };
            tokio::spawn(async move { store.put_tenant(&tenant_id("acme"), fields, now).await })
        })
        .collect();
    // All connections on which requests write.
    wait_for_waiters(&client, 4).await;
    let claim = async |minute| {
        let (now, until) = (after(f.now, minute), after(f.now, minute + 10));
        jobs.claim_lease("cut", "a", now, until).await.unwrap().map(|lease| lease.fence)
    };
    assert_eq!([claim(0).await, claim(5).await], [Some(1), Some(1)]);
    client.batch_execute("ROLLBACK").await.unwrap();
    for request in requests {
        request.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_that_wait_leave_connections_to_keys_leases_and_events() {
    let Some(f) = Fixture::postgres().await else { return };
    f.deliver_one(&call("e1", "1")).await;
    let client = connect(&f).await;
    client.batch_execute("BEGIN; LOCK TABLE rollups IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let meter = f.meter_no("calls").await;
    let range = Window { start: f.now, end: after(f.now, 1) };
    let requests: Vec<_> = (0..20)
        .map(|_| {
            let store = Arc::clone(&f.store);
            tokio::spawn(async move {
                store.read_usage(&tenant_id("acme"), meter, range, usize::MAX).await
            })
        })
        .collect();
    // All connections on which requests read.
    wait_for_waiters(&client, READERS).await;
    assert_eq!(f.store.list_api_keys().await.unwrap(), []);
    f.store.ping().await.unwrap();
    f.store.load_catalog().await.unwrap();
    let lease = f.store.claim_lease("cut", "a", f.now, after(f.now, 10)).await.unwrap();
    assert!(lease.is_some());
    client.batch_execute("ROLLBACK").await.unwrap();
    for request in requests {
        request.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_on_postgres_is_given_up_after_its_time() {
    let Some(f) = Fixture::postgres().await else { return };
    f.deliver_one(&call("e1", "1")).await;
    let settings = PostgresConfig { readers: 1, query_timeout_ms: 200, ..POSTGRES };
    let hasty = PostgresStore::open(f.url(), &settings).await.unwrap();
    let client = connect(&f).await;
    client.batch_execute("BEGIN; LOCK TABLE rollups IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let meter = f.meter_no("calls").await;
    let range = Window { start: f.now, end: after(f.now, 1) };
    let acme = tenant_id("acme");
    let read = || hasty.read_usage(&acme, meter, range, usize::MAX);
    // One of them has the connection, the other waits for it.
    let (first, second) = tokio::join!(read(), read());
    for answer in [first, second] {
        assert!(matches!(answer, Err(Error::Overdue { .. })), "{answer:?}");
    }
    client.batch_execute("ROLLBACK").await.unwrap();
    read().await.unwrap();
    hasty.close().await;
}
