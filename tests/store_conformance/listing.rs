//! Events by time, one event's trace, and the inboxes.

use crate::fixture::{Fixture, between, call, event, event_id, in_pages, tenant_id};
use counterfoil::rules::timestamp::Timestamp;
use counterfoil::store::decision::{ConflictRecord, InboxFilter, QuarantineFilter};
use counterfoil::store::{EventFilter, EventQuery, Query};

/// Events of acme, newest first.
pub fn query(limit: usize) -> EventQuery {
    Query::first(of_acme(), limit)
}

fn of_acme() -> EventFilter {
    let (tenant, searched_max) = (tenant_id("acme"), 1_000_000);
    EventFilter { tenant, meter: None, range: None, searched_max }
}

async fn all_pages(f: &Fixture, mut query: EventQuery) -> Vec<(Timestamp, String)> {
    let mut found = Vec::new();
    loop {
        let page = f.store.list_events(query.clone()).await.unwrap();
        let events = page.events;
        assert!(events.len() <= query.limit);
        assert!(events.iter().all(|stored| stored.received_at == f.now));
        found.extend(events.iter().map(|s| (s.event.occurred_at, s.event.id.to_string())));
        let last = events.last().map(|last| (last.event.occurred_at, last.event.id.clone()));
        query.after = match (page.searched_to, last) {
            (Some(end), _) => Some(end),
            (None, Some(last)) => Some(last),
            (None, None) => return found,
        };
    }
}

pub async fn a_search_for_a_rare_meter_goes_on_where_it_ended(f: Fixture) {
    let mut expected = Vec::new();
    for n in 0..240u32 {
        let meter = if n % 60 == 7 { "logins" } else { "calls" };
        let at = format!("2026-11-15T{:02}:00:{:02}Z", n % 12, n % 60);
        f.deliver_one(&event("acme", &format!("e{n}"), meter, "1", &at, "{}")).await;
        if meter == "logins" {
            expected.push((Timestamp::parse(&at).unwrap(), format!("e{n}")));
        }
    }
    expected.sort();
    expected.reverse();
    let meter = Some(f.meter_no("logins").await);
    for searched_max in [1, 7, 30, 1000] {
        for limit in [1, 2, 100] {
            let rare = Query::first(EventFilter { meter, searched_max, ..of_acme() }, limit);
            let all = all_pages(&f, rare).await;
            assert_eq!(all, expected, "searched {searched_max}, limit {limit}");
        }
    }
    let first = Query::first(EventFilter { meter, searched_max: 5, ..of_acme() }, 100);
    let page = f.store.list_events(first).await.unwrap();
    assert!(page.searched_to.is_some() && page.events.len() < expected.len());
    // A meter without events: nothing to search.
    let meter = Some(f.meter_no("traffic").await);
    let none = Query::first(EventFilter { meter, searched_max: 50, ..of_acme() }, 5);
    assert_eq!(all_pages(&f, none).await, []);
}

/// 520 events over several segments, 300 of them in one, out of order, several at one instant, and
/// another tenant's.
async fn fill(f: &Fixture) -> Vec<(Timestamp, String)> {
    let mut expected = Vec::new();
    for batch in 0..23u32 {
        let mut events = Vec::new();
        for n in 0..if batch == 11 { 300 } else { 10u32 } {
            let second = (batch * 7 + n * 13) % 60;
            let at = format!("2026-11-15T{:02}:00:{second:02}Z", (batch * 5 + n) % 12);
            let id = format!("e{batch}-{n}");
            let meter = if n % 2 == 0 { "calls" } else { "traffic" };
            events.push(event("acme", &id, meter, "1", &at, "{}"));
            events.push(event("umbrella", &id, meter, "1", &at, "{}"));
            expected.push((Timestamp::parse(&at).unwrap(), id));
        }
        f.deliver(&events).await;
    }
    expected.sort();
    expected.reverse();
    expected
}

pub async fn pages_hold_every_event_once(mut f: Fixture) {
    let expected = fill(&f).await;
    for limit in [1, 7, 100, 1000] {
        assert_eq!(all_pages(&f, Query::first(of_acme(), limit)).await, expected, "limit {limit}");
    }
    f.restart().await;
    assert_eq!(all_pages(&f, Query::first(of_acme(), 33)).await, expected);
    let nobody = Query::first(EventFilter { tenant: tenant_id("nobody"), ..of_acme() }, 10);
    assert_eq!(all_pages(&f, nobody).await, []);
}

pub async fn ranges_and_meters_filter(f: Fixture) {
    let everything = fill(&f).await;
    let range = between("2026-11-15T03:00:20Z", "2026-11-15T05:00:30Z");
    let in_range = |at: &Timestamp| (range.start..range.end).contains(at);
    let expected: Vec<_> = everything.iter().filter(|(at, _)| in_range(at)).cloned().collect();
    assert!(!expected.is_empty());
    let ranged = EventFilter { range: Some(range), ..of_acme() };
    assert_eq!(all_pages(&f, Query::first(ranged.clone(), 5)).await, expected);
    let of_calls = |id: &str| id.ends_with(['0', '2', '4', '6', '8']);
    let expected: Vec<_> = expected.into_iter().filter(|(_, id)| of_calls(id)).collect();
    let meter = Some(f.meter_no("calls").await);
    let of_meter = Query::first(EventFilter { meter, ..ranged }, 5);
    assert_eq!(all_pages(&f, of_meter).await, expected);
}

pub async fn a_trace_tells_everything(mut f: Fixture) {
    let stamped = call("e1", "5").replace(
        r#""properties":{}"#,
        r#""subscription":"s1","trial":true,"properties":{"a":"b"}"#,
    );
    f.deliver_one(&stamped).await;
    f.deliver_one(&call("e1", "6")).await;
    f.deliver_one(&call("e2", "5").replace("2026", "2025")).await;
    for _ in 0..2 {
        let trace = f.store.trace_event(&tenant_id("acme"), &event_id("e1")).await.unwrap();
        let counted = trace.counted.unwrap();
        assert_eq!(counted.event, f.events(std::slice::from_ref(&stamped)).await[0]);
        assert_eq!(counted.received_at, f.now);
        assert_eq!((trace.conflicts.len(), trace.quarantined.len()), (1, 0));
        let trace = f.store.trace_event(&tenant_id("acme"), &event_id("e2")).await.unwrap();
        assert_eq!((trace.counted, trace.conflicts.len()), (None, 0));
        assert_eq!(trace.quarantined.len(), 1);
        let trace = f.store.trace_event(&tenant_id("umbrella"), &event_id("e1")).await.unwrap();
        assert_eq!(trace, counterfoil::store::EventTrace::default());
        f.restart().await;
    }
}

/// An event and a conflict with it are committed together: no trace shows one without the other.
pub async fn a_trace_is_of_one_moment(f: Fixture) {
    let rounds = 60;
    let trace = |round: usize| {
        let (store, id) = (std::sync::Arc::clone(&f.store), event_id(&format!("e{round}")));
        tokio::spawn(async move {
            loop {
                let trace = store.trace_event(&tenant_id("acme"), &id).await.unwrap();
                let seen = (trace.counted.is_some(), trace.conflicts.len());
                if seen != (false, 0) {
                    return seen;
                }
            }
        })
    };
    for round in 0..rounds {
        let id = format!("e{round}");
        let readers = [trace(round), trace(round)];
        f.deliver(&[call(&id, "1"), call(&id, "2")]).await;
        for reader in readers {
            assert_eq!(reader.await.unwrap(), (true, 1), "round {round}");
        }
    }
}

pub async fn inbox_pages(f: Fixture) {
    for n in 0..5 {
        f.deliver_one(&call(&format!("e{n}"), "1")).await;
        f.deliver_one(&call(&format!("e{n}"), "2")).await;
        f.deliver_one(&call(&format!("old{n}"), "2").replace("2026", "2025")).await;
    }
    let read = async |last: Option<&ConflictRecord>| {
        let (filter, after) = (InboxFilter::default(), last.map(|record| record.number));
        let query = Query { filter, after, limit: 2 };
        f.store.list_conflicts(query).await.unwrap()
    };
    let conflicts = in_pages(2, read).await;
    let ids: Vec<&str> = conflicts.iter().map(|conflict| conflict.id.as_str()).collect();
    assert_eq!(ids, ["e0", "e1", "e2", "e3", "e4"]);
    let of = |tenant: &str| InboxFilter::of(Some(tenant_id(tenant)));
    let kept = |tenant: &str| QuarantineFilter { of: of(tenant), reason: None };
    let other = Query::first(of("umbrella"), 9);
    assert!(f.store.list_conflicts(other).await.unwrap().is_empty());
    assert!(f.store.list_quarantine(Query::first(kept("umbrella"), 9)).await.unwrap().is_empty());
    let all = Query::first(kept("acme"), 9);
    assert_eq!(f.store.list_quarantine(all).await.unwrap().len(), 5);
}
