//! Two servers on one PostgreSQL database that are told, read, compare and alert at once.

use crate::billed::{Billed, after, quantity, window};
use crate::findings::usage;
use crate::fixture::{Fixture, customer_id, in_tasks, tenant_id};
use crate::inbound::{entering, named, snapshot, subscription_name, thin};
use crate::reissues::order;
use counterfoil::rules::alert::{AlertChange, AlertKind, Condition};
use counterfoil::rules::drift::Verdict;
use counterfoil::rules::finding::{FindingChange, Observation};
use counterfoil::rules::mirror::ObjectName;
use counterfoil::rules::pass::{PassKind, PassOrder};
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::submission::{Class, Next, PushState};
use counterfoil::rules::webhook::WebhookStatus;
use counterfoil::rules::window::Window;
use counterfoil::store::alert::AlertFilter;
use counterfoil::store::outbox::{Queue, SendOutcome};
use counterfoil::store::push::Ruling;
use counterfoil::store::reconciliation::{FindingFilter, SummaryReading};
use counterfoil::store::webhook::{MirrorClaim, MirrorReading, WebhookFilter, WebhookReceipt};
use counterfoil::store::{Query, Store};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

const OBJECTS: usize = 24;

/// Two servers on one fresh database, twice each: neighbours within a server meet as well.
async fn servers(f: &Fixture) -> Vec<Arc<dyn Store>> {
    let other = f.second_server().await;
    vec![Arc::clone(&f.store), Arc::clone(&other), Arc::clone(&f.store), other]
}

fn objects() -> Vec<ObjectName> {
    (0..OBJECTS).map(|n| subscription_name(&format!("sub_{n}"))).collect()
}

/// A batch of 40 facts, thin or with their payload, that overlaps with the next by half. Twins
/// know each other by a shared name.
fn batch(f: &Fixture, round: usize, full: bool) -> Vec<WebhookReceipt> {
    let receipt = |n: usize| {
        let object = subscription_name(&format!("sub_{}", n % 7));
        match full {
            true => named(entering(thin(f, &format!("full_{n}"), object), "active"), &[]),
            false => named(thin(f, &format!("thin_{n}"), object), &[&format!("full_{n}")]),
        }
    };
    (round * 20..round * 20 + 40).map(receipt).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_and_twins_told_at_once_are_one() {
    const ROUNDS: usize = 8;
    let Some(f) = Fixture::postgres().await else { return };
    let servers = servers(&f).await;
    let record = |(place, store): (usize, Arc<dyn Store>)| {
        let mut batches: Vec<_> = (0..ROUNDS).map(|round| batch(&f, round, place < 2)).collect();
        if place % 2 == 1 {
            batches.reverse();
            batches.iter_mut().for_each(|batch| batch.reverse());
        }
        async move {
            let mut numbers = Vec::new();
            for batch in batches {
                let names: Vec<String> =
                    batch.iter().map(|r| r.facts.names.last().unwrap().clone()).collect();
                let receipted = store.record_webhooks(batch).await.unwrap();
                numbers.extend(names.into_iter().zip(receipted));
            }
            numbers
        }
    };
    let recorded = in_tasks(servers.iter().cloned().enumerate().map(record)).await;
    let (mut fresh, mut numbers) = (0, BTreeMap::new());
    for (name, receipted) in recorded.into_iter().flatten() {
        fresh += usize::from(receipted.fresh);
        let number = *numbers.entry(name).or_insert(receipted.number);
        assert_eq!(number, receipted.number, "a fact has one webhook");
    }
    // 8 batches of 40 that overlap by half: 180 facts.
    assert_eq!((fresh, numbers.len()), (180, 180));
    let query = Query::first(WebhookFilter::default(), 1_000);
    let webhooks = f.store.list_webhooks(query).await.unwrap();
    assert_eq!(webhooks.len(), 180);
    let deliveries: u64 = webhooks.iter().map(|webhook| webhook.deliveries).sum();
    assert_eq!(deliveries, 4 * 8 * 40);
    let claim = MirrorClaim { now: f.now, lease_until: after(f.now, 1), limit: 100 };
    let wanted = f.store.claim_mirrors(claim).await.unwrap();
    assert_eq!(wanted.len(), 7);
    assert_eq!(wanted.iter().map(|wanted| wanted.ticket).sum::<u64>(), 180);
    servers[1].close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mirrors_claimed_at_once_are_claimed_once() {
    let Some(f) = Fixture::postgres().await else { return };
    let servers = servers(&f).await;
    f.store.want_mirrors(objects(), f.now).await.unwrap();
    let claim = MirrorClaim { now: f.now, lease_until: after(f.now, 10), limit: 2 };
    let claim_all = |store: Arc<dyn Store>| async move {
        let mut claimed = Vec::new();
        for _ in 0..OBJECTS {
            let wanted = store.claim_mirrors(claim).await.unwrap();
            claimed.extend(wanted.into_iter().map(|wanted| wanted.name));
        }
        claimed
    };
    let claimed = in_tasks(servers.iter().cloned().map(claim_all)).await.concat();
    assert_eq!(claimed.len(), OBJECTS);
    assert_eq!(claimed.into_iter().collect::<HashSet<_>>().len(), OBJECTS);
    servers[1].close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_readings_at_once_the_higher_stays() {
    let Some(f) = Fixture::postgres().await else { return };
    let servers = servers(&f).await;
    let receipts: Vec<WebhookReceipt> = (0..OBJECTS * 4)
        .map(|n| thin(&f, &format!("evt_{n}"), objects()[n % OBJECTS].clone()))
        .collect();
    f.store.record_webhooks(receipts).await.unwrap();
    let mut tasks = Vec::new();
    for (place, store) in servers.iter().cloned().enumerate() {
        let ticket = u64::try_from(place).unwrap() + 1;
        let reading = |name: ObjectName| {
            let snapshot = snapshot(&format!("state {ticket}"));
            MirrorReading { name, ticket, snapshot, read_at: f.now }
        };
        let mut readings: Vec<MirrorReading> = objects().into_iter().map(reading).collect();
        if place % 2 == 1 {
            readings.reverse();
        }
        let now = f.now;
        tasks.push(tokio::spawn(async move {
            for part in readings.chunks(6) {
                store.record_mirrors(part.to_vec(), now).await.unwrap();
            }
        }));
    }
    // While the readings are written, more webhooks of the same objects come and ask for others.
    let more: Vec<WebhookReceipt> =
        (0..OBJECTS).map(|n| thin(&f, &format!("more_{n}"), objects()[n].clone())).collect();
    for part in more.rchunks(5) {
        servers[1].record_webhooks(part.to_vec()).await.unwrap();
    }
    for task in tasks {
        task.await.unwrap();
    }
    for name in objects() {
        let mirror = f.store.find_mirror(&name).await.unwrap().unwrap();
        assert_eq!((mirror.version, mirror.snapshot), (4, snapshot("state 4")));
    }
    let query = Query::first(WebhookFilter::default(), 1_000);
    let webhooks = f.store.list_webhooks(query).await.unwrap();
    let waiting: Vec<&str> = webhooks
        .iter()
        .filter(|webhook| webhook.status == WebhookStatus::Waiting)
        .map(|webhook| webhook.event_id.as_str())
        .collect();
    assert_eq!(waiting.len(), OBJECTS);
    assert!(waiting.iter().all(|id| id.starts_with("more_")), "{waiting:?}");
    let claim = MirrorClaim { now: f.now, lease_until: after(f.now, 1), limit: 100 };
    let wanted = f.store.claim_mirrors(claim).await.unwrap();
    assert_eq!(wanted.len(), OBJECTS);
    assert!(wanted.iter().all(|wanted| wanted.ticket == 5));
    servers[1].close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alerts_and_notices_at_once_are_one() {
    const ALERTS: usize = 20;
    let Some(f) = Fixture::postgres().await else { return };
    let servers = servers(&f).await;
    let open = |n: usize| {
        let (subject, text) = (format!("tenant-{n}"), String::new());
        let (summary, command) = (text.clone(), text);
        AlertChange::Open(Condition { kind: AlertKind::Silence, subject, summary, command })
    };
    let all = |change: &dyn Fn(usize) -> AlertChange| {
        let mut batches = vec![(0..ALERTS).map(change).collect::<Vec<_>>(); 4];
        batches[1].reverse();
        batches[3].rotate_left(ALERTS / 2);
        batches
    };
    let now = f.now;
    let record = async |batches: Vec<Vec<AlertChange>>| {
        let record = |(store, changes): (Arc<dyn Store>, _)| async move {
            store.record_alerts(changes, &["pager", "chat"], now).await.unwrap()
        };
        let made = in_tasks(servers.iter().cloned().zip(batches).map(record)).await;
        made.into_iter().sum::<usize>()
    };
    assert_eq!(record(all(&open)).await, ALERTS);
    let query = Query::first(AlertFilter { open: Some(true), ..AlertFilter::default() }, 100);
    let alerts = f.store.list_alerts(query.clone()).await.unwrap();
    assert_eq!(alerts.len(), ALERTS);
    let sent = send_all(&f, &servers).await;
    assert_eq!((sent.len(), sent.iter().collect::<HashSet<_>>().len()), (ALERTS * 2, ALERTS * 2));
    assert_eq!(record(all(&|n| AlertChange::Resolve(alerts[n].number))).await, ALERTS);
    assert_eq!(f.store.list_alerts(query).await.unwrap(), []);
    assert_eq!(send_all(&f, &servers).await.len(), ALERTS * 2, "each end is told once");
    servers[1].close().await;
}

/// Sends notices from all servers at once until none is due; their numbers.
async fn send_all(f: &Fixture, servers: &[Arc<dyn Store>]) -> Vec<u64> {
    let now = f.now;
    let send = |store: Arc<dyn Store>| async move {
        let mut sent = Vec::new();
        for _ in 0..20 {
            let claimed = store.claim_messages(Queue::Alerts, now, after(now, 1), 3).await;
            for notice in claimed.unwrap() {
                let (number, fence) = (notice.message.number, notice.fence);
                let settled = store.settle_message(number, fence, SendOutcome::Sent, now);
                assert!(settled.await.unwrap());
                sent.push(number);
            }
        }
        sent
    };
    in_tasks(servers.iter().cloned().map(send)).await.concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn findings_opened_at_once_are_one() {
    const FINDINGS: i64 = 20;
    let Some(f) = Fixture::postgres().await else { return };
    f.store.put_tenant(&tenant_id("acme"), Default::default(), f.now).await.unwrap();
    let meter = f.meter_no("calls").await;
    let servers = servers(&f).await;
    let observation = |n: i64| Observation {
        tenant: (n % 2 == 0).then(|| tenant_id("acme")),
        meter: (n % 3 == 0).then_some(meter),
        ..usage("acme", &format!("window {}", n / 6), Verdict::Bypass)
    };
    let subjects: HashSet<String> =
        (0..FINDINGS).map(|n| format!("{:?}", observation(n))).collect();
    // Each has a lease of its own, so that only the findings themselves keep them apart.
    let places = (1..).zip(["a", "b", "c", "d"]).zip(servers.iter().cloned());
    let recorded = in_tasks(places.map(|((pass, name), store)| {
        let mut changes: Vec<_> =
            (0..FINDINGS).map(|n| FindingChange::Open(observation(n))).collect();
        if pass % 2 == 0 {
            changes.reverse();
        }
        let now = f.now;
        async move {
            let lease = store.claim_lease(name, "test", now, after(now, 60)).await.unwrap();
            store.record_findings(&lease.unwrap(), pass, changes, now).await.unwrap()
        }
    }));
    assert_eq!(recorded.await, [true; 4]);
    let query = Query::first(FindingFilter::default(), 100);
    let findings = f.store.list_findings(query).await.unwrap();
    assert_eq!(findings.len(), subjects.len());
    assert!(findings.iter().all(|finding| finding.passes == 4 && finding.cleared_at.is_none()));
    servers[1].close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nightly_passes_and_summaries_at_once_are_one() {
    let Some(f) = Fixture::postgres().await else { return };
    f.store.put_tenant(&tenant_id("acme"), Default::default(), f.now).await.unwrap();
    let meter = f.meter_no("calls").await;
    let servers = servers(&f).await;
    let order = PassOrder { kind: PassKind::Nightly, range: window(0), tenant: None, apply: false };
    let (acme, customer) = (tenant_id("acme"), customer_id("cus_acme"));
    let reading = |hour: i64| {
        let (tenant, customer, window) = (acme.clone(), customer.clone(), window(hour));
        SummaryReading { tenant, meter, customer, window, value: Quantity::ONE }
    };
    let numbers = in_tasks(servers.iter().cloned().enumerate().map(|(place, store)| {
        let mut readings: Vec<SummaryReading> = (0..100).map(reading).collect();
        if place % 2 == 1 {
            readings.reverse();
        }
        let (order, now) = (order.clone(), f.now);
        async move {
            store.record_summaries(readings, now).await.unwrap();
            store.create_pass(order, now).await.unwrap()
        }
    }));
    let numbers = numbers.await;
    assert_eq!(numbers, [numbers[0]; 4]);
    let range = Window { start: window(0).start, end: window(99).end };
    let length = window(0).micros();
    let whose = (&acme, &customer);
    let summaries = f.store.read_summaries(whose, meter, range, length).await.unwrap();
    assert_eq!(summaries.len(), 100);
    assert!(summaries.iter().all(|summary| summary.reads == 1), "they are of one moment");
    servers[1].close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn corrections_at_once_are_one() {
    let Some(f) = Fixture::postgres().await else { return };
    let b = Billed::with_acme(f).await;
    let servers = servers(&b.f).await;
    let meter = b.f.meter_no("tokens").await;
    for hour in 0..5 {
        b.planned("acme", &format!("e{hour}"), "tokens", "5", hour).await;
        let number = b.send(b.accepted(1), 1).await;
        assert!(b.settle_number(number, None, (Class::Confirmed, Next::Confirmed), 20).await);
        let order = order(&b, "tokens", hour, ["5", "3"]).await;
        b.read_twice(&b.push(number).await, order.provider).await;
        let at = after(b.f.now, 30);
        let correct = |store: &Arc<dyn Store>| {
            let (store, order) = (Arc::clone(store), order.clone());
            async move { store.record_reissue(order, at).await.unwrap() }
        };
        let mut done = 0;
        for ruling in in_tasks(servers.iter().map(correct)).await {
            match ruling {
                Ruling::Done(number) => done += usize::from(number.is_some()),
                Ruling::Refused(_) => {}
                Ruling::NotFound => panic!("the window is there"),
            }
        }
        assert_eq!(done, 1);
        let pushes = b.f.store.read_window_pushes(&tenant_id("acme"), meter, window(hour)).await;
        let told: Vec<(u32, Quantity, PushState, Class)> = pushes
            .unwrap()
            .into_iter()
            .map(|push| (push.revision, push.quantity, push.state, push.class))
            .collect();
        let expected = [
            (1, quantity("5"), PushState::Confirmed, Class::Confirmed),
            (2, quantity("-2"), PushState::Reconciled, Class::Lost),
            (3, quantity("2"), PushState::Observed, Class::Reissue),
        ];
        assert_eq!(told, expected);
        b.send(b.accepted(40), 40).await;
    }
    servers[1].close().await;
}
