//! Decisions about quarantined events and conflicts: each record is decided once, and what is
//! admitted is counted once, in whatever order it is sent, admitted and decided.

use crate::fixture::{
    Fixture, at_once, between, call, deliver_to, event, event_id, in_pages, tenant_id,
};
use counterfoil::rules::decision::{
    ConflictRuling, ConflictState, Decision, InboxKey, QuarantineState,
};
use counterfoil::rules::timestamp::Timestamp;
use counterfoil::rules::verdict::{Quarantine, Tally, Verdict};
use counterfoil::store::decision::{
    AdmissionBatch, ConflictRecord, InboxFilter, QuarantineFilter, QuarantineRecord,
};
use counterfoil::store::{Query, Store};
use std::sync::Arc;

const DUPLICATE: Verdict = Verdict::Duplicate { restamped: false };
const TOO_OLD: Verdict = Verdict::Quarantined(Quarantine::TooOld);

fn decision(f: &Fixture, reason: &str) -> Decision {
    Decision::new(reason.into(), "zoe".into(), f.now).unwrap()
}

/// A call two months before now.
fn old_call(id: &str, quantity: &str) -> String {
    call(id, quantity).replace("2026-11-15", "2026-09-15")
}

async fn quarantined(f: &Fixture) -> Vec<QuarantineRecord> {
    f.store.list_quarantine(Query::first(QuarantineFilter::default(), 1_000)).await.unwrap()
}

async fn conflicts(f: &Fixture) -> Vec<ConflictRecord> {
    f.store.list_conflicts(Query::first(InboxFilter::default(), 1_000)).await.unwrap()
}

async fn admissions(f: &Fixture, records: &[QuarantineRecord], reason: &str) -> AdmissionBatch {
    let payloads: Vec<String> = records.iter().map(|record| record.payload.clone()).collect();
    AdmissionBatch {
        tenant: records[0].tenant.clone(),
        numbers: records.iter().map(|record| record.number).collect(),
        events: f.events(&payloads).await,
        decision: decision(f, reason),
        groups_per_day: f.groups_per_day,
    }
}

async fn admit(f: &Fixture, records: &[QuarantineRecord]) -> Option<Vec<Verdict>> {
    let batch = admissions(f, records, "real usage").await;
    f.store.record_admissions(0, batch).await.unwrap()
}

async fn states(f: &Fixture) -> Vec<QuarantineState> {
    quarantined(f).await.iter().map(|record| record.state).collect()
}

async fn tally(f: &Fixture) -> Tally {
    let day = between("2026-11-15T00:00:00Z", "2026-11-16T00:00:00Z");
    let rows = f.store.read_counters(day).await.unwrap();
    rows.iter().fold(Tally::default(), |mut sum, row| {
        sum.merge(&row.tally);
        sum
    })
}

pub async fn an_admitted_event_is_counted_once(mut f: Fixture) {
    assert_eq!(f.deliver_one(&old_call("e1", "5")).await, TOO_OLD);
    assert_eq!(f.deliver_one(&call("e2", "10")).await, Verdict::Accepted);
    let records = quarantined(&f).await;
    assert_eq!((records[0].state, &records[0].decision), (QuarantineState::Undecided, &None));
    assert_eq!(admit(&f, &records).await, Some(vec![Verdict::Accepted]));
    for round in 0..3 {
        assert_eq!(f.total("acme", "calls").await, "15");
        let record = quarantined(&f).await.remove(0);
        assert_eq!(record.state, QuarantineState::Admitted);
        assert_eq!(record.decision, Some(decision(&f, "real usage")));
        let expected = Tally {
            accepted: 2,
            admitted: 1,
            quarantined: 1,
            duplicates: round * 2,
            ..Tally::default()
        };
        let found = tally(&f).await;
        assert_eq!((found, found.received()), (expected, 2 + round * 2));
        let trace = f.store.trace_event(&tenant_id("acme"), &event_id("e1")).await.unwrap();
        let counted = trace.counted.unwrap();
        assert_eq!(counted.event, f.events(&[old_call("e1", "5")]).await[0]);
        assert_eq!(trace.quarantined, [record]);
        // Decided before: nothing happens.
        assert_eq!(admit(&f, &records).await, None);
        assert_eq!(f.deliver_one(&old_call("e1", "5")).await, DUPLICATE);
        assert_eq!(f.deliver_one(&call("e2", "10")).await, DUPLICATE);
        f.check().await;
        f.restart().await;
    }
}

pub async fn an_admission_of_what_was_counted_says_so(mut f: Fixture) {
    let ahead = call("e1", "5").replace("11:59:00Z", "13:00:00Z");
    f.deliver_one(&ahead).await;
    f.deliver_one(&old_call("e2", "5")).await;
    f.deliver_one(&old_call("e3", "7")).await;
    f.deliver_one(&old_call("e3", "8")).await;
    f.now = Timestamp::parse("2026-11-15T13:00:00Z").unwrap();
    assert_eq!(f.deliver_one(&ahead).await, Verdict::Accepted);
    assert_eq!(f.deliver_one(&call("e2", "6")).await, Verdict::Accepted);
    let records = quarantined(&f).await;
    let differing = vec!["quantity", "occurred_at"];
    let two = vec!["quantity"];
    let expected = [
        DUPLICATE,
        Verdict::Conflict { differing },
        Verdict::Accepted,
        Verdict::Conflict { differing: two },
    ];
    assert_eq!(admit(&f, &records).await.unwrap(), expected);
    let became = [
        QuarantineState::Duplicate,
        QuarantineState::Conflict,
        QuarantineState::Admitted,
        QuarantineState::Conflict,
    ];
    for _ in 0..2 {
        assert_eq!(states(&f).await, became);
        assert_eq!(f.total("acme", "calls").await, "18");
        assert!(conflicts(&f).await.is_empty(), "the payload is kept where it was");
        let found = tally(&f).await;
        assert_eq!((found.accepted, found.admitted, found.conflicts), (3, 1, 0));
        assert_eq!(found.received(), 6);
        f.check().await;
        f.restart().await;
    }
}

pub async fn admissions_at_once_count_once(f: Fixture) {
    let json: Vec<String> = (0..20).map(|n| old_call(&format!("e{n}"), "1")).collect();
    f.deliver(&json).await;
    let records = quarantined(&f).await;
    let f = Arc::new(f);
    let work = move |f: Arc<Fixture>, part: usize| {
        let records = records.clone();
        async move {
            let mut counted = 0;
            for one in records.chunks(if part == 0 { 20 } else { 1 }) {
                let verdicts = admit(&f, one).await.unwrap_or_default();
                counted += verdicts.iter().filter(|one| **one == Verdict::Accepted).count();
            }
            counted
        }
    };
    let counted: usize = at_once(&f, 0..4, work).await.into_iter().sum();
    assert_eq!(counted, 20);
    assert_eq!(f.total("acme", "calls").await, "20");
    assert!(states(&f).await.iter().all(|state| *state == QuarantineState::Admitted));
    f.check().await;
}

/// The same event comes inside the horizon of another moment while it is admitted.
pub async fn a_delivery_and_an_admission_at_once_count_once(f: Fixture) {
    let json: Vec<String> = (0..12).map(|n| old_call(&format!("e{n}"), "1")).collect();
    f.deliver(&json).await;
    let records = quarantined(&f).await;
    let events = f.events(&json).await;
    let mut batch = f.batch(events);
    batch.acceptance.now = Timestamp::parse("2026-09-15T12:00:00Z").unwrap();
    let f = Arc::new(f);
    let work = move |f: Arc<Fixture>, part: usize| {
        let (records, batch) = (records.clone(), batch.clone());
        async move {
            let mut counted = Vec::new();
            if part == 0 {
                counted.extend(deliver_to(f.store.as_ref(), batch).await);
            } else {
                for record in &records {
                    counted.extend(admit(&f, std::slice::from_ref(record)).await.unwrap());
                }
            }
            counted.iter().filter(|one| **one == Verdict::Accepted).count()
        }
    };
    let counted: usize = at_once(&f, 0..2, work).await.into_iter().sum();
    assert_eq!(counted, 12);
    assert_eq!(f.total("acme", "calls").await, "12");
    assert!(!states(&f).await.contains(&QuarantineState::Undecided));
    f.check().await;
}

pub async fn a_group_too_many_stays_undecided(mut f: Fixture) {
    f.groups_per_day = 1;
    let traffic = |id: &str, region: &str| {
        let properties = format!(r#"{{"region":"{region}","tier":"t"}}"#);
        event("acme", id, "traffic", "1", "2026-11-15T11:00:00Z", &properties)
    };
    f.deliver(&[traffic("a", "a"), traffic("b", "b")]).await;
    let records = quarantined(&f).await;
    assert_eq!(records[0].reason, Quarantine::TooManyGroups);
    for _ in 0..2 {
        let expected = vec![Verdict::Quarantined(Quarantine::TooManyGroups)];
        assert_eq!(admit(&f, &records).await, Some(expected));
        assert_eq!(states(&f).await, [QuarantineState::Undecided]);
        assert_eq!(quarantined(&f).await, records, "it did not come again");
        f.restart().await;
    }
    f.groups_per_day = 2;
    assert_eq!(admit(&f, &records).await, Some(vec![Verdict::Accepted]));
    assert_eq!(f.total("acme", "traffic").await, "2");
    f.check().await;
}

pub async fn windows_of_admitted_events_are_cut_again(f: Fixture) {
    let at = |id: &str, time: &str| call(id, "1").replace("2026-11-15T11:59:00Z", time);
    let json = [
        at("e1", "2026-03-01T10:59:59.999999Z"),
        at("e2", "2026-03-01T11:00:00Z"),
        at("e3", "2026-03-02T00:00:00Z"),
        at("e4", "2026-03-03T00:00:00Z"),
    ];
    f.deliver(&json).await;
    f.deliver_one(&call("e4", "1")).await;
    let records = quarantined(&f).await;
    admit(&f, &records).await.unwrap();
    let recuts = f.store.list_recuts(10).await.unwrap();
    let found: Vec<_> = recuts.iter().map(|recut| (recut.tenant.as_str(), recut.range)).collect();
    let expected = [
        ("acme", between("2026-03-01T10:00:00Z", "2026-03-01T12:00:00Z")),
        ("acme", between("2026-03-02T00:00:00Z", "2026-03-02T01:00:00Z")),
    ];
    assert_eq!(found, expected, "what was counted before changes nothing");
}

pub async fn what_is_discarded_stays_discarded(mut f: Fixture) {
    f.deliver_one(&old_call("e1", "5")).await;
    let record = quarantined(&f).await.remove(0);
    let key = || vec![InboxKey { tenant: record.tenant.clone(), number: record.number }];
    let discard = async |f: &Fixture, reason: &str| {
        f.store.discard_quarantined(key(), decision(f, reason)).await.unwrap()
    };
    assert_eq!(discard(&f, "a test").await, 1);
    assert_eq!(discard(&f, "another reason").await, 0);
    assert_eq!(admit(&f, std::slice::from_ref(&record)).await, None);
    assert_eq!(f.deliver_one(&old_call("e1", "5")).await, TOO_OLD);
    for _ in 0..2 {
        let found = f.store.find_quarantined(record.number).await.unwrap().unwrap();
        assert_eq!((found.state, found.deliveries), (QuarantineState::Discarded, 2));
        assert_eq!(found.decision, Some(decision(&f, "a test")));
        assert_eq!(f.total("acme", "calls").await, "0");
        f.restart().await;
    }
    assert_eq!(f.store.find_quarantined(record.number + 1).await.unwrap(), None);
    f.check().await;
}

pub async fn an_admission_with_a_decided_record_has_no_effect(f: Fixture) {
    f.deliver(&[old_call("e1", "1"), old_call("e2", "1")]).await;
    let records = quarantined(&f).await;
    let second = InboxKey { tenant: records[1].tenant.clone(), number: records[1].number };
    f.store.discard_quarantined(vec![second], decision(&f, "no")).await.unwrap();
    assert_eq!(admit(&f, &records).await, None);
    assert_eq!(states(&f).await, [QuarantineState::Undecided, QuarantineState::Discarded]);
    assert_eq!(f.total("acme", "calls").await, "0");
    assert!(f.store.list_recuts(10).await.unwrap().is_empty());
    assert_eq!(tally(&f).await.accepted, 0);
    assert_eq!(admit(&f, &records[..1]).await, Some(vec![Verdict::Accepted]));
    f.check().await;
}

pub async fn a_conflict_is_decided_once(mut f: Fixture) {
    for id in ["e1", "e2", "e3"] {
        f.deliver(&[call(id, "5"), call(id, "6")]).await;
    }
    let records = conflicts(&f).await;
    let key = |place: usize| {
        let record: &ConflictRecord = &records[place];
        vec![InboxKey { tenant: record.tenant.clone(), number: record.number }]
    };
    let decide = async |f: &Fixture, place: usize, ruling: ConflictRuling| {
        f.store.decide_conflicts(key(place), ruling, decision(f, "why")).await.unwrap()
    };
    assert_eq!(decide(&f, 0, ConflictRuling::KeepStanding).await, 1);
    assert_eq!(decide(&f, 1, ConflictRuling::Dismiss).await, 1);
    assert_eq!(decide(&f, 0, ConflictRuling::Dismiss).await, 0);
    f.deliver_one(&call("e1", "6")).await;
    for _ in 0..2 {
        let found = conflicts(&f).await;
        let of = |record: &ConflictRecord| (record.state, record.decision.is_some());
        let expected = [
            (ConflictState::StandingKept, true),
            (ConflictState::Dismissed, true),
            (ConflictState::Undecided, false),
        ];
        assert_eq!(found.iter().map(of).collect::<Vec<_>>(), expected);
        assert_eq!(found[0].deliveries, 2);
        let one = f.store.find_conflict(found[0].number).await.unwrap().unwrap();
        assert_eq!(one, found[0]);
        assert_eq!(f.total("acme", "calls").await, "15");
        f.restart().await;
    }
}

pub async fn inboxes_are_filtered(f: Fixture) {
    let mut f = f;
    for n in 0..4 {
        f.deliver_one(&old_call(&format!("old{n}"), "1")).await;
        let ahead = call(&format!("ahead{n}"), "1").replace("2026-11", "2027-11");
        f.deliver_one(&ahead.replace("acme", "globex")).await;
        f.now = f.now.saturating_add_micros(60_000_000);
    }
    let all = quarantined(&f).await;
    let decided: Vec<InboxKey> = all[..3]
        .iter()
        .map(|record| InboxKey { tenant: record.tenant.clone(), number: record.number })
        .collect();
    assert_eq!(f.store.discard_quarantined(decided, decision(&f, "no")).await.unwrap(), 3);
    let ids = async |filter: QuarantineFilter| {
        let read = async |last: Option<&QuarantineRecord>| {
            let after = last.map(|record| record.number);
            let query = Query { filter: filter.clone(), after, limit: 2 };
            f.store.list_quarantine(query).await.unwrap()
        };
        let found = in_pages(2, read).await;
        found.iter().map(|record| record.id.to_string()).collect::<Vec<_>>().join(" ")
    };
    let of = |of: InboxFilter| QuarantineFilter { of, reason: None };
    let any = InboxFilter::default;
    let open = of(InboxFilter { decided: Some(false), ..any() });
    assert_eq!(ids(open).await, "ahead1 old2 ahead2 old3 ahead3");
    let closed = of(InboxFilter { decided: Some(true), ..any() });
    assert_eq!(ids(closed).await, "old0 ahead0 old1");
    let acme = InboxFilter { decided: Some(false), ..InboxFilter::of(Some(tenant_id("acme"))) };
    assert_eq!(ids(of(acme)).await, "old2 old3");
    let reason = Some(Quarantine::TooFarAhead);
    let ahead = QuarantineFilter { of: InboxFilter { decided: Some(false), ..any() }, reason };
    assert_eq!(ids(ahead).await, "ahead1 ahead2 ahead3");
    let received = Some(between("2026-11-15T12:01:00Z", "2026-11-15T12:03:00Z"));
    assert_eq!(ids(of(InboxFilter { received, ..any() })).await, "old1 ahead1 old2 ahead2");
    let id = Some(event_id("old3"));
    assert_eq!(ids(of(InboxFilter { id, ..any() })).await, "old3");
    assert_eq!(ids(of(InboxFilter::of(Some(tenant_id("nobody"))))).await, "");
    let store: &dyn Store = f.store.as_ref();
    assert_eq!(store.list_conflicts(Query::first(any(), 9)).await.unwrap(), []);
}
