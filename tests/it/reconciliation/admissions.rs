//! A quarantined event that a person admits reaches the bill: its window, cut long before, gets a
//! revision, and ledger and provider match.

use super::world::{Ground, World, quantity, window};
use counterfoil::rules::decision::Decision;
use counterfoil::rules::drift::{Reason, Verdict};
use counterfoil::rules::verdict::{Quarantine, Verdict as EventVerdict};
use counterfoil::store::Query;
use counterfoil::store::decision::{AdmissionBatch, QuarantineFilter};

pub async fn an_admitted_event_makes_a_revision_of_its_window(ground: Ground) {
    let (world, _) = World::usual(ground).await;
    world.used("acme", "7", "2026-11-15T11:10:00Z").await;
    let ahead = world.event("acme", "ahead", "13", "2026-11-15T12:30:00Z").await;
    let kept = EventVerdict::Quarantined(Quarantine::TooFarAhead);
    assert_eq!(world.record(vec![ahead.clone()]).await, [kept]);
    world.hours(1).await;
    world.used("acme", "5", "2026-11-15T12:10:00Z").await;
    // Longer than late events are looked for, with nothing received in between.
    world.hours(12).await;
    assert_eq!(world.planned_sum().await, "12");
    let query = Query::first(QuarantineFilter::default(), 9);
    let record = world.store.list_quarantine(query).await.unwrap().remove(0);
    let now = world.clock.now();
    let batch = AdmissionBatch {
        tenant: record.tenant.clone(),
        numbers: vec![record.number],
        events: vec![ahead],
        decision: Decision::new("real usage".into(), "zoe".into(), now).unwrap(),
        groups_per_day: 100_000,
    };
    let admitted = world.store.record_admissions(0, batch).await.unwrap();
    assert_eq!(admitted, Some(vec![EventVerdict::Accepted]));
    world.hours(2).await;
    let pushes = world.pushes().await;
    let hour = window("2026-11-15T12:00:00Z", "2026-11-15T13:00:00Z");
    let mut of_window: Vec<_> = pushes.iter().filter(|push| push.window == hour).collect();
    of_window.sort_by_key(|push| push.revision);
    let revisions: Vec<_> = of_window.iter().map(|push| (push.revision, push.quantity)).collect();
    assert_eq!(revisions, [(1, quantity("5")), (2, quantity("13"))]);
    assert!(world.store.list_recuts(9).await.unwrap().is_empty(), "what was requested is done");
    let pass = world.one_shot("2026-11-15T00:00:00Z", "2026-11-16T00:00:00Z", false).await;
    let row = world.rows(pass.number).await.remove(0);
    assert_eq!((row.verdict, row.reason), (Verdict::Equal, Reason::Matches), "{row:#?}");
    assert_eq!((row.ledger, row.provider), (quantity("25"), Some(quantity("25"))));
}
