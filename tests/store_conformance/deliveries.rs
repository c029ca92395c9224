//! What becomes of deliveries.

use crate::fixture::{Fixture, between, call, deliver_to, event, event_id, in_pages, tenant_id};
use counterfoil::rules::timestamp::Timestamp;
use counterfoil::rules::verdict::{Quarantine, Tally, Verdict};
use counterfoil::rules::window::Window;
use counterfoil::store::decision::{ConflictQuery, InboxFilter, QuarantineFilter, QuarantineQuery};
use counterfoil::store::{CounterFilter, CounterRow, Query};

const DUPLICATE: Verdict = Verdict::Duplicate { restamped: false };
const RESTAMPED: Verdict = Verdict::Duplicate { restamped: true };

/// The hour in which the fixture's events arrive.
fn now_hour() -> Window {
    between("2026-11-15T12:00:00Z", "2026-11-15T13:00:00Z")
}

fn inbox(tenant: Option<&str>) -> ConflictQuery {
    Query::first(InboxFilter::of(tenant.map(tenant_id)), 1_000)
}

fn quarantine(tenant: Option<&str>) -> QuarantineQuery {
    let of = InboxFilter::of(tenant.map(tenant_id));
    Query::first(QuarantineFilter { of, reason: None }, 1_000)
}

fn conflict(differing: &[&'static str]) -> Verdict {
    Verdict::Conflict { differing: differing.to_vec() }
}

pub async fn same_event_twice_counts_once(mut f: Fixture) {
    assert_eq!(f.deliver_one(&call("e1", "5")).await, Verdict::Accepted);
    assert_eq!(f.deliver_one(&call("e1", "5")).await, DUPLICATE);
    f.restart().await;
    assert_eq!(f.deliver_one(&call("e1", "5")).await, DUPLICATE);
    assert_eq!(f.total("acme", "calls").await, "5");
    f.check().await;
}

pub async fn spellings_of_one_quantity_are_one_payload(f: Fixture) {
    assert_eq!(f.deliver_one(&call("e1", "1")).await, Verdict::Accepted);
    for spelling in ["1.0", "1e0", "\"1.000\"", "10e-1"] {
        assert_eq!(f.deliver_one(&call("e1", spelling)).await, DUPLICATE, "{spelling}");
    }
    let zoned = call("e1", "1").replace("11:59:00Z", "13:59:00+02:00");
    assert_eq!(f.deliver_one(&zoned).await, DUPLICATE);
    assert_eq!(f.total("acme", "calls").await, "1");
}

pub async fn a_restamped_retry_is_a_duplicate(f: Fixture) {
    assert_eq!(f.deliver_one(&call("e1", "5")).await, Verdict::Accepted);
    let later = call("e1", "5").replace("11:59:00Z", "11:59:30Z");
    assert_eq!(f.deliver_one(&later).await, RESTAMPED);
    let next_month = call("e1", "5").replace("2026-11-15T11:59:00Z", "2026-12-01T00:00:00Z");
    assert_eq!(f.deliver_one(&next_month).await, RESTAMPED);
    assert_eq!(f.total("acme", "calls").await, "5");
}

pub async fn a_conflict_is_kept_and_not_counted(mut f: Fixture) {
    f.deliver_one(&call("e1", "5")).await;
    f.restart().await;
    assert_eq!(f.deliver_one(&call("e1", "6")).await, conflict(&["quantity"]));
    let other_meter = call("e1", "5").replace("calls", "traffic");
    assert_eq!(f.deliver_one(&other_meter).await, conflict(&["meter"]));
    let other_property = call("e1", "5").replace("{}", r#"{"a":1}"#);
    assert_eq!(f.deliver_one(&other_property).await, conflict(&["properties"]));
    assert_eq!(f.total("acme", "calls").await, "5");
    let inbox = f.store.list_conflicts(inbox(Some("acme"))).await.unwrap();
    assert_eq!(inbox.len(), 3);
    let first = &inbox[0];
    assert!(first.standing.contains(r#""quantity":"5""#), "{}", first.standing);
    assert!(first.arriving.contains(r#""quantity":"6""#), "{}", first.arriving);
    f.check().await;
}

pub async fn a_conflict_delivered_again_is_one_record(f: Fixture) {
    f.deliver_one(&call("e1", "5")).await;
    for _ in 0..3 {
        assert_eq!(f.deliver_one(&call("e1", "6")).await, conflict(&["quantity"]));
    }
    let inbox = f.store.list_conflicts(inbox(None)).await.unwrap();
    assert_eq!(inbox.iter().map(|c| c.deliveries).collect::<Vec<_>>(), [3]);
}

/// A producer with a constant id sends another payload each time.
pub async fn an_inbox_keeps_a_hundred_payloads_of_an_id(mut f: Fixture) {
    f.deliver(&[call("e1", "5"), call("e2", "5")]).await;
    for first in [1000, 1030, 1060, 1090] {
        let mut batch: Vec<String> =
            (first..first + 30).map(|n| call("e1", &n.to_string())).collect();
        batch.extend([call("e1", "1000"), call("e1", "9999"), call("e1", "9999")]);
        f.deliver(&batch).await;
    }
    f.deliver_one(&call("e2", "6")).await;
    let old = |n: u32| call("old", &n.to_string()).replace("2026-11-15", "2025-11-15");
    for numbers in [1..61, 61..131, 1..131] {
        f.deliver(&numbers.map(old).collect::<Vec<_>>()).await;
    }
    for _ in 0..2 {
        let trace = f.store.trace_event(&tenant_id("acme"), &event_id("e1")).await.unwrap();
        assert_eq!(trace.conflicts.len(), 100);
        let kept: u64 = trace.conflicts.iter().map(|conflict| conflict.deliveries).sum();
        assert_eq!((kept, trace.conflicts_not_kept), (4 * 33 - 21, 21));
        let first = trace.conflicts.iter().find(|c| c.arriving.contains(r#""1000""#)).unwrap();
        assert_eq!(first.deliveries, 5);
        let trace = f.store.trace_event(&tenant_id("acme"), &event_id("old")).await.unwrap();
        assert_eq!(trace.quarantined.len(), 100);
        assert!(trace.quarantined.iter().all(|record| record.deliveries == 2));
        assert_eq!(trace.quarantined_not_kept, 60);
        assert_eq!(f.store.list_conflicts(inbox(Some("acme"))).await.unwrap().len(), 101);
        let rows = f.store.read_counters(now_hour()).await.unwrap();
        assert_eq!((rows[0].tally.conflicts, rows[0].tally.quarantined), (133, 260));
        f.restart().await;
    }
    f.check().await;
}

pub async fn events_outside_the_horizon_are_quarantined(f: Fixture) {
    let at = |time: &str| call("e1", "5").replace("2026-11-15T11:59:00Z", time);
    let old = Verdict::Quarantined(Quarantine::TooOld);
    let ahead = Verdict::Quarantined(Quarantine::TooFarAhead);
    assert_eq!(f.deliver_one(&at("2026-11-08T11:59:59.999999Z")).await, old);
    assert_eq!(f.deliver_one(&at("2026-11-08T11:59:59.999999Z")).await, old);
    assert_eq!(f.deliver_one(&at("0001-01-01T00:00:00Z")).await, old);
    assert_eq!(f.deliver_one(&at("2026-11-15T12:05:00.000001Z")).await, ahead);
    assert_eq!(f.deliver_one(&at("9999-12-31T23:59:59Z")).await, ahead);
    assert_eq!(f.total("acme", "calls").await, "0");
    let inbox = f.store.list_quarantine(quarantine(Some("acme"))).await.unwrap();
    let deliveries: Vec<u64> = inbox.iter().map(|record| record.deliveries).collect();
    assert_eq!(deliveries, [2, 1, 1, 1]);
    assert_eq!(inbox[0].reason, Quarantine::TooOld);
    assert_eq!(f.deliver_one(&at("2026-11-08T12:00:00Z")).await, Verdict::Accepted);
    let edge = at("2026-11-15T12:05:00Z").replace("e1", "e2");
    assert_eq!(f.deliver_one(&edge).await, Verdict::Accepted);
    f.check().await;
}

pub async fn a_known_event_is_a_duplicate_however_old(mut f: Fixture) {
    assert_eq!(f.deliver_one(&call("e1", "5")).await, Verdict::Accepted);
    f.now = Timestamp::parse("2026-12-15T12:00:00Z").unwrap();
    assert_eq!(f.deliver_one(&call("e1", "5")).await, DUPLICATE);
    let fresh = Verdict::Quarantined(Quarantine::TooOld);
    assert_eq!(f.deliver_one(&call("e2", "5")).await, fresh);
}

pub async fn repeats_within_a_batch(f: Fixture) {
    let restamped = call("e1", "5").replace("11:59:00Z", "11:58:00Z");
    let batch = [
        call("e1", "5"),
        call("e1", "5"),
        call("e1", "6"),
        restamped,
        call("e2", "1"),
        call("e1", "5"),
    ];
    let verdicts = f.deliver(&batch).await;
    let accepted = Verdict::Accepted;
    let expected =
        [accepted.clone(), DUPLICATE, conflict(&["quantity"]), RESTAMPED, accepted, DUPLICATE];
    assert_eq!(verdicts, expected);
    // Repeats are judged against what is stored, not against the first of the batch.
    let again = f.deliver(&[call("e1", "6"), call("e1", "6"), call("e1", "5")]).await;
    assert_eq!(again, [conflict(&["quantity"]), conflict(&["quantity"]), DUPLICATE]);
    assert_eq!(f.total("acme", "calls").await, "6");
    f.check().await;
}

pub async fn strict_tenants_refuse_the_unknown(f: Fixture) {
    let events = f.events(&[call("e1", "5")]).await;
    let mut batch = f.batch(events.clone());
    batch.strict_tenants = true;
    let verdicts = deliver_to(f.store.as_ref(), batch).await;
    assert!(matches!(&verdicts[0], Verdict::Rejected(r) if r.code == "unknown_tenant"));
    f.store.put_tenant(&tenant_id("acme"), Default::default(), f.now).await.unwrap();
    let mut batch = f.batch(events);
    batch.strict_tenants = true;
    assert_eq!(deliver_to(f.store.as_ref(), batch).await, [Verdict::Accepted]);
}

pub async fn tenants_with_equal_ids_are_apart(f: Fixture) {
    let other = |quantity| call("e1", quantity).replace("acme", "umbrella");
    assert_eq!(f.deliver_one(&call("e1", "5")).await, Verdict::Accepted);
    assert_eq!(f.deliver_one(&other("7")).await, Verdict::Accepted);
    assert_eq!(f.deliver_one(&other("7")).await, DUPLICATE);
    assert_eq!(f.total("acme", "calls").await, "5");
    assert_eq!(f.total("umbrella", "calls").await, "7");
}

pub async fn counters_conserve_what_was_received(mut f: Fixture) {
    let old = call("e3", "1").replace("2026-11-15", "2026-10-15");
    f.deliver(&[call("e1", "5"), call("e1", "5"), call("e1", "6"), old, call("e2", "1")]).await;
    let mut batch = f.batch(Vec::new());
    batch.refused = vec![(Some(tenant_id("acme")), 2), (None, 3), (Some(tenant_id("nobody")), 1)];
    deliver_to(f.store.as_ref(), batch).await;
    let fresh = f.events(&[call("e1", "1").replace("acme", "fresh")]).await;
    let mut batch = f.batch(fresh);
    batch.refused = vec![(Some(tenant_id("fresh")), 5)];
    deliver_to(f.store.as_ref(), batch).await;
    for _ in 0..2 {
        let rows = f.store.read_counters(now_hour()).await.unwrap();
        let find = |tenant: Option<&str>| {
            let tenant = tenant.map(tenant_id);
            rows.iter().find(|row| row.tenant == tenant).unwrap().tally
        };
        let expected = Tally {
            accepted: 2,
            duplicates: 1,
            conflicts: 1,
            quarantined: 1,
            rejected: 2,
            ..Tally::default()
        };
        assert_eq!(find(Some("acme")), expected);
        assert_eq!(find(None), Tally { rejected: 4, ..Tally::default() });
        assert_eq!(find(Some("fresh")), Tally { accepted: 1, rejected: 5, ..Tally::default() });
        assert_eq!(rows.iter().map(|row| row.tally.received()).sum::<u64>(), 17);
        f.restart().await;
    }
    f.check().await;
}

pub async fn event_keys_that_collide_are_still_apart(mut f: Fixture) {
    f.restart_colliding(2).await;
    let batch: Vec<String> = (0..60).map(|n| call(&format!("e{n}"), "1")).collect();
    for half in batch.chunks(30) {
        assert!(f.deliver(half).await.iter().all(|v| *v == Verdict::Accepted));
    }
    f.restart().await;
    assert!(f.deliver(&batch).await.iter().all(|v| *v == DUPLICATE));
    assert_eq!(f.deliver_one(&call("e7", "2")).await, conflict(&["quantity"]));
    assert_eq!(f.total("acme", "calls").await, "60");
    let trace = f.store.trace_event(&tenant_id("acme"), &event_id("e59")).await;
    assert_eq!(trace.unwrap().counted.unwrap().event.id.as_str(), "e59");
}

/// Event k carries 10^k, so digit k of the total is the number of times it was counted.
pub async fn digits_of_the_total_count_each_event(mut f: Fixture) {
    let wide = |k: usize| {
        let quantity = format!("\"{}\"", "1".to_owned() + &"0".repeat(k));
        event("acme", &format!("e{k}"), "wide", &quantity, "2026-11-15T11:00:00Z", "{}")
    };
    let all: Vec<String> = (0..15).map(wide).collect();
    for round in 0..4 {
        for part in all.chunks(round + 1) {
            f.deliver(part).await;
        }
        f.restart().await;
    }
    assert_eq!(f.total("acme", "wide").await, "1".repeat(15));
    f.check().await;
}

pub async fn awkward_texts_are_kept_exactly(mut f: Fixture) {
    let names =
        ["é", "e\u{301}", "a b", "a  b", "A", "a", "a:b|c", "'; drop table events; --", "🦀"];
    let batch: Vec<String> = names
        .iter()
        .map(|name| {
            let properties = serde_json::json!({ *name: format!("\"{name}\n\\") }).to_string();
            event(name, name, "calls", "1", "2026-11-15T11:00:00Z", &properties)
        })
        .collect();
    assert!(f.deliver(&batch).await.iter().all(|v| *v == Verdict::Accepted));
    f.restart().await;
    assert!(f.deliver(&batch).await.iter().all(|v| *v == DUPLICATE));
    for name in names {
        let trace = f.store.trace_event(&tenant_id(name), &event_id(name)).await;
        let stored = trace.unwrap().counted.unwrap().event;
        assert_eq!((stored.tenant.as_str(), stored.id.as_str()), (name, name));
        assert_eq!(f.total(name, "calls").await, "1");
    }
}

pub async fn an_empty_batch_is_nothing(f: Fixture) {
    assert_eq!(f.deliver(&[]).await, []);
    f.check().await;
}

pub async fn pages_of_counters_hold_every_row_once(mut f: Fixture) {
    let hour = Timestamp::parse("2026-11-15T12:00:00Z").unwrap();
    for hours in 0..4 {
        f.now = hour.saturating_add_micros(hours * 3_600_000_000);
        let one = |n: i64| {
            let tenant = format!("t{}", (n * 7) % 30);
            event(&tenant, &format!("{hours}-{n}"), "calls", "1", "2026-11-15T11:00:00Z", "{}")
        };
        f.deliver(&(0..30).map(one).collect::<Vec<_>>()).await;
    }
    let range = Window { start: hour, end: hour.saturating_add_micros(3 * 3_600_000_000) };
    let key = |row: &CounterRow| (row.hour, row.tenant.clone());
    for _ in 0..2 {
        let mut all = f.store.read_counters(range).await.unwrap();
        all.sort_by_key(key);
        for limit in [1, 7, 1000] {
            let read = async |last: Option<&CounterRow>| {
                let filter = CounterFilter { range, tenant: None };
                let query = Query { filter, after: last.map(key), limit };
                f.store.list_counters(query).await.unwrap()
            };
            let mut found = in_pages(limit, read).await;
            assert!(found.is_sorted_by_key(|row| row.hour));
            found.sort_by_key(key);
            assert_eq!(found, all, "limit {limit}");
            assert_eq!(found.len(), 90);
        }
        f.restart().await;
    }
}

pub async fn counters_of_one_tenant_are_its_own(mut f: Fixture) {
    let hour = Timestamp::parse("2026-11-15T12:00:00Z").unwrap();
    for hours in 0..3 {
        f.now = hour.saturating_add_micros(hours * 3_600_000_000);
        for tenant in ["acme", "globex"] {
            let id = format!("{hours}-{tenant}");
            f.deliver_one(&event(tenant, &id, "calls", "1", "2026-11-15T11:00:00Z", "{}")).await;
        }
    }
    let start = hour.saturating_add_micros(-1);
    let range = Window { start, end: hour.saturating_add_micros(86_400_000_000) };
    for _ in 0..2 {
        let tenant = Some(tenant_id("globex"));
        let mut query = Query::first(CounterFilter { range, tenant }, 2);
        let mut found = Vec::new();
        for expected in [2, 1, 0] {
            let page = f.store.list_counters(query.clone()).await.unwrap();
            assert_eq!(page.len(), expected);
            query.after = page.last().map(|row| (row.hour, row.tenant.clone())).or(query.after);
            found.extend(page.into_iter().map(|row| (row.tenant.unwrap(), row.hour)));
        }
        let hours = [0, 1, 2].map(|n| hour.saturating_add_micros(n * 3_600_000_000));
        assert_eq!(found, hours.map(|hour| (tenant_id("globex"), hour)));
        let tenant = Some(tenant_id("nobody"));
        let nobody = Query::first(CounterFilter { range, tenant }, 2);
        assert_eq!(f.store.list_counters(nobody).await.unwrap(), []);
        f.restart().await;
    }
}

fn traffic(id: &str, region: &str, day: u32) -> String {
    let properties = format!(r#"{{"region":"{region}"}}"#);
    event("acme", id, "traffic", "1", &format!("2026-11-{day}T11:00:00Z"), &properties)
}

const TOO_MANY: Verdict = Verdict::Quarantined(Quarantine::TooManyGroups);

pub async fn a_group_too_many_of_a_day_is_quarantined(mut f: Fixture) {
    f.groups_per_day = 3;
    let first = ["a", "b", "c"].map(|region| traffic(region, region, 15));
    assert_eq!(f.deliver(&first).await, [const { Verdict::Accepted }; 3]);
    for round in 0..2 {
        let id = |name: &str| format!("{name}{round}");
        assert_eq!(f.deliver_one(&traffic("d", "d", 15)).await, TOO_MANY);
        // A group that is there goes on, and what was counted stays a duplicate.
        assert_eq!(f.deliver_one(&traffic(&id("more"), "c", 15)).await, Verdict::Accepted);
        assert_eq!(f.deliver_one(&first[0]).await, DUPLICATE);
        // Another day, tenant or meter has groups of its own; one group alone is never too many.
        assert_eq!(f.deliver_one(&traffic(&id("day"), "d", 14)).await, Verdict::Accepted);
        let other = traffic(&id("other"), "d", 15).replace("acme", "globex");
        assert_eq!(f.deliver_one(&other).await, Verdict::Accepted);
        assert_eq!(f.deliver_one(&call(&id("call"), "1")).await, Verdict::Accepted);
        f.restart().await;
    }
    assert_eq!(f.total("acme", "traffic").await, "7");
    let inbox = f.store.list_quarantine(quarantine(None)).await.unwrap();
    assert_eq!(inbox.len(), 1);
    assert_eq!((inbox[0].reason, inbox[0].deliveries), (Quarantine::TooManyGroups, 2));
    // Sent again under a higher limit it counts.
    f.groups_per_day = 4;
    assert_eq!(f.deliver_one(&traffic("d", "d", 15)).await, Verdict::Accepted);
    assert_eq!(f.deliver_one(&traffic("d", "d", 15)).await, DUPLICATE);
    assert_eq!(f.total("acme", "traffic").await, "8");
    f.check().await;
}

pub async fn groups_of_one_batch_are_bounded_too(mut f: Fixture) {
    f.groups_per_day = 5;
    let batch: Vec<String> = (0..20)
        .flat_map(|n| {
            let one = traffic(&format!("e{n}"), &format!("r{n}"), 15);
            // The second comes under the same id; the third is another event of the group.
            [one.clone(), one, traffic(&format!("f{n}"), &format!("r{n}"), 15)]
        })
        .collect();
    let verdicts = f.deliver(&batch).await;
    let count = |verdict: &Verdict| verdicts.iter().filter(|one| *one == verdict).count();
    assert_eq!((count(&Verdict::Accepted), count(&DUPLICATE), count(&TOO_MANY)), (10, 5, 45));
    assert_eq!(f.total("acme", "traffic").await, "10");
    f.restart().await;
    let again = f.deliver(&batch).await;
    let count = |verdict: &Verdict| again.iter().filter(|one| *one == verdict).count();
    assert_eq!((count(&DUPLICATE), count(&TOO_MANY)), (15, 45));
    f.check().await;
}
