//! The provider's totals, pushes by window, and pairs that a pass must look at.

use crate::billed::{Billed, HOUR_MICROS, after, quantity, window};
use crate::findings::usage;
use crate::fixture::{Fixture, customer_id, tenant_id};
use counterfoil::rules::billing::Mode;
use counterfoil::rules::drift::{Summary, Verdict};
use counterfoil::rules::finding::{FindingChange, FindingKind, Observation};
use counterfoil::rules::ids::MeterNo;
use counterfoil::rules::submission::{Class, Next, PushState};
use counterfoil::rules::timestamp::Timestamp;
use counterfoil::rules::window::Window;
use counterfoil::store::Query;
use counterfoil::store::reconciliation::{FindingFilter, Pair, SummaryReading};

const DAY_MICROS: i64 = 24 * HOUR_MICROS;
const REFUSED: (Class, Next) = (Class::Refused, Next::Dead);

fn seconds(at: Timestamp, tenths: i64) -> Timestamp {
    at.saturating_add_micros(tenths * 100_000)
}

async fn start(f: Fixture) -> Billed {
    let billed = Billed::with_acme(f).await;
    billed.customer("umbrella", "cus_umbrella").await;
    billed
}

async fn record(billed: &Billed, window: Window, value: &str, at: Timestamp) {
    let (tenant, meter) = (tenant_id("acme"), billed.f.meter_no("tokens").await);
    let (customer, value) = (customer_id("cus_acme"), quantity(value));
    let reading = SummaryReading { tenant, meter, customer, window, value };
    billed.f.store.record_summaries(vec![reading], at).await.unwrap();
}

async fn summaries(billed: &Billed, range: Window, length_micros: i64) -> Vec<Summary> {
    let meter = billed.f.meter_no("tokens").await;
    let (acme, customer) = (tenant_id("acme"), customer_id("cus_acme"));
    let read = billed.f.store.read_summaries((&acme, &customer), meter, range, length_micros);
    let mut summaries = read.await.unwrap();
    summaries.sort_by_key(|summary| summary.window.start);
    summaries
}

pub async fn equal_readings_are_counted(f: Fixture) {
    let mut billed = start(f).await;
    let now = billed.f.now;
    // Tenths of a second, value, and what is known then: value, reads, since, and both readings.
    let steps = [
        (0, "5", ("5", 1, 0, None, 0)),
        (9, "5", ("5", 1, 0, None, 0)),
        (10, "5.0", ("5", 2, 0, Some(0), 10)),
        (15, "5", ("5", 2, 0, Some(0), 10)),
        (20, "5", ("5", 3, 0, Some(10), 20)),
        (21, "6", ("6", 1, 21, None, 21)),
        (22, "5", ("5", 1, 22, None, 22)),
        (60, "5", ("5", 2, 22, Some(22), 60)),
        (50, "7", ("5", 2, 22, Some(22), 60)),
    ];
    for (tenths, value, (expected, reads, since, read_before, read_at)) in steps {
        record(&billed, window(0), value, seconds(now, tenths)).await;
        if tenths == 15 {
            billed.f.restart().await;
        }
        let found = summaries(&billed, window(0), HOUR_MICROS).await;
        let expected = Summary {
            window: window(0),
            value: quantity(expected),
            read_at: seconds(now, read_at),
            read_before: read_before.map(|tenths| seconds(now, tenths)),
            since: seconds(now, since),
            reads,
        };
        assert_eq!(found, [expected], "after {tenths} tenths of a second");
    }
}

pub async fn hours_and_days_are_apart(f: Fixture) {
    let billed = start(f).await;
    let now = billed.f.now;
    let day = Window { start: window(0).start, end: window(24).start };
    record(&billed, day, "24", now).await;
    for hour in [0, 1, 23, 24] {
        record(&billed, window(hour), &hour.to_string(), now).await;
    }
    let starts = |found: Vec<Summary>| {
        found.iter().map(|summary| (summary.window, summary.value)).collect::<Vec<_>>()
    };
    let hours = starts(summaries(&billed, day, HOUR_MICROS).await);
    let expected = [0, 1, 23].map(|hour| (window(hour), quantity(&hour.to_string())));
    assert_eq!(hours, expected, "the end of the range is not in it");
    assert_eq!(starts(summaries(&billed, day, DAY_MICROS).await), [(day, quantity("24"))]);
    let later = Window { start: window(1).start, end: window(48).start };
    assert_eq!(starts(summaries(&billed, later, DAY_MICROS).await), []);
    let (store, whole) = (&billed.f.store, billed.f.meter_no("whole").await);
    let tokens = billed.f.meter_no("tokens").await;
    for (tenant, customer, meter) in [
        ("umbrella", "cus_acme", tokens),
        ("nobody", "cus_acme", tokens),
        ("acme", "cus_acme", whole),
        ("acme", "cus_other", tokens),
    ] {
        let (id, of) = (tenant_id(tenant), customer_id(customer));
        let found = store.read_summaries((&id, &of), meter, day, HOUR_MICROS).await;
        assert_eq!(found.unwrap(), [], "{tenant} {customer} {meter:?}");
    }
}

pub async fn pushes_are_read_by_window(f: Fixture) {
    let mut billed = start(f).await;
    billed.planned("acme", "e1", "tokens", "1", 1).await;
    billed.planned("acme", "e2", "tokens", "2", 0).await;
    billed.planned("acme", "e3", "tokens", "3", 1).await;
    billed.planned("acme", "e4", "tokens", "4", 2).await;
    billed.planned("acme", "e5", "whole", "5", 0).await;
    billed.planned("umbrella", "e6", "tokens", "6", 0).await;
    let first = billed.claim(1).await.remove(0);
    billed.finish(&first, billed.accepted(1), 1).await;
    billed.f.restart().await;
    let meter = billed.f.meter_no("tokens").await;
    let range = Window { start: window(0).start, end: window(2).start };
    let acme = tenant_id("acme");
    let found = billed.f.store.read_window_pushes(&acme, meter, range).await.unwrap();
    let places: Vec<_> = found.iter().map(|push| (push.window, push.revision)).collect();
    assert_eq!(places, [(window(0), 1), (window(1), 1), (window(1), 2)]);
    for found in &found {
        let push = billed.push(found.number).await;
        assert_eq!((found.quantity, found.value), (push.quantity, push.value));
        assert_eq!((found.state, found.class), (push.state, push.class));
        assert_eq!((found.attempts, found.state_at), (push.attempts, push.state_at));
        assert_eq!((found.shadow, found.mode), (false, Mode::Delta));
        assert_eq!(found.stamped_at, push.stamped_at);
    }
    assert_eq!((found[1].number, found[1].state), (first.push.number, PushState::Submitted));
    let nobody = tenant_id("nobody");
    assert_eq!(billed.f.store.read_window_pushes(&nobody, meter, range).await.unwrap(), []);
}

async fn restless(billed: &Billed, minute: i64) -> Vec<(String, MeterNo)> {
    let since = after(billed.f.now, minute);
    let shadow = billed.terms.shadow;
    let mut pairs = billed.f.store.list_restless_pairs(since, shadow).await.unwrap();
    pairs.sort();
    for Pair { tenant, customer, .. } in &pairs {
        assert_eq!(*customer, customer_id(&format!("cus_{tenant}")));
    }
    pairs.into_iter().map(|pair| (pair.tenant.to_string(), pair.meter)).collect()
}

pub async fn pairs_are_restless_until_all_is_settled(f: Fixture) {
    let billed = start(f).await;
    let tokens = billed.f.meter_no("tokens").await;
    let pair = |tenant: &str| (tenant.to_owned(), tokens);
    assert_eq!(restless(&billed, 0).await, []);
    billed.planned("hooli", "e0", "tokens", "1", 0).await;
    assert_eq!(restless(&billed, 0).await, [], "it has no customer");
    billed.planned("acme", "e1", "tokens", "1", 0).await;
    assert_eq!(restless(&billed, 60).await, [pair("acme")], "observed");
    let number = billed.send(billed.accepted(1), 1).await;
    assert_eq!(restless(&billed, 60).await, [pair("acme")], "submitted");
    assert!(billed.settle_number(number, None, (Class::Confirmed, Next::Confirmed), 9).await);
    assert_eq!(restless(&billed, 9).await, [pair("acme")], "it changed then");
    assert_eq!(restless(&billed, 10).await, []);
    billed.planned("umbrella", "e2", "tokens", "1", 0).await;
    let dead = billed.send(REFUSED, 10).await;
    assert_eq!(restless(&billed, 60).await, [pair("umbrella")], "dead");
    billed.f.store.discard_push(dead, "small", after(billed.f.now, 11)).await.unwrap();
    assert_eq!(restless(&billed, 11).await, [pair("umbrella")], "it was written off then");
    assert_eq!(restless(&billed, 12).await, [], "discarded");
    assert_eq!(restless(&billed, 0).await, [pair("acme"), pair("umbrella")], "each once");
}

pub async fn shadow_pairs_are_apart(f: Fixture) {
    let mut billed = start(f).await;
    let (tokens, whole) = (billed.f.meter_no("tokens").await, billed.f.meter_no("whole").await);
    billed.planned("acme", "e1", "tokens", "1", 0).await;
    billed.terms.shadow = true;
    billed.planned("acme", "e2", "whole", "1", 0).await;
    assert_eq!(restless(&billed, 60).await, [("acme".to_owned(), whole)]);
    assert_eq!(restless(&billed, 0).await, [("acme".to_owned(), whole)]);
    billed.terms.shadow = false;
    assert_eq!(restless(&billed, 60).await, [("acme".to_owned(), tokens)]);
    assert_eq!(restless(&billed, 0).await, [("acme".to_owned(), tokens)]);
}

pub async fn an_open_finding_makes_a_pair_restless(f: Fixture) {
    let billed = start(f).await;
    let tokens = billed.f.meter_no("tokens").await;
    let observation = |kind, tenant: &str, meter| {
        let seen = usage(tenant, "subject", Verdict::Bypass);
        FindingChange::Open(Observation { kind, meter, ..seen })
    };
    let changes = vec![
        observation(FindingKind::Usage, "acme", Some(tokens)),
        observation(FindingKind::Invoice, "umbrella", None),
    ];
    let (store, lease) = (&billed.f.store, &billed.lease);
    assert!(store.record_findings(lease, 1, changes, billed.f.now).await.unwrap());
    assert_eq!(restless(&billed, 60).await, [("acme".to_owned(), tokens)]);
    let query = Query::first(
        FindingFilter { kind: Some(FindingKind::Usage), ..FindingFilter::default() },
        9,
    );
    let number = store.list_findings(query).await.unwrap()[0].number;
    let clear = vec![FindingChange::Clear { number }];
    assert!(store.record_findings(lease, 2, clear, billed.f.now).await.unwrap());
    assert_eq!(restless(&billed, 60).await, []);
}
