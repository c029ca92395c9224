//! Usage that is counted and never billed: passes show it with its quantity and cause, and call
//! none of it equal.

use super::world::{CALLS, Ground, World, quantity};
use counterfoil::config::Shadow;
use counterfoil::jobs::Job;
use counterfoil::jobs::unbilled::{Cause, Slow, Unbilled};
use counterfoil::rules::decision::{Decision, InboxKey};
use counterfoil::rules::drift::{Reason, Verdict};
use counterfoil::rules::finding::FindingKind;
use counterfoil::rules::pass::{PassKind, PassRow};
use counterfoil::rules::submission::{Class, PushState};
use counterfoil::store::Query;
use counterfoil::store::decision::QuarantineFilter;
use counterfoil::store::push::Ruling;
use stripe_sim::FaultKind;

const FROM: &str = "2026-11-15T00:00:00Z";
const TO: &str = "2026-11-16T00:00:00Z";

async fn only_row(world: &World) -> PassRow {
    let pass = world.one_shot(FROM, TO, false).await;
    let mut rows = world.rows(pass.number).await;
    assert_eq!(rows.len(), 1, "{rows:#?}");
    rows.remove(0)
}

/// Ledger, pushed, provider and verdict of a row.
fn check(row: &PassRow, expected: (&str, &str, Option<&str>), verdict: (Verdict, Reason)) {
    let (ledger, pushed, provider) = expected;
    assert_eq!((row.verdict, row.reason), verdict, "{row:#?}");
    assert_eq!(
        (row.ledger, row.pushed, row.provider),
        (quantity(ledger), quantity(pushed), provider.map(quantity)),
        "{row:#?}"
    );
}

pub async fn written_off_usage_names_who_and_why(ground: Ground) {
    let (world, _) = World::usual(ground).await;
    world.stripe.fault(FaultKind::AsyncRejection, 1);
    world.used("acme", "5", "2026-11-15T11:10:00Z").await;
    world.hours(1).await;
    world.used("acme", "40", "2026-11-15T12:10:00Z").await;
    world.hours(3).await;
    let dead = world.pushes().await.remove(0);
    assert_eq!((dead.state, dead.class), (PushState::Dead, Class::Refused));
    check(&only_row(&world).await, ("45", "45", Some("40")), (Verdict::Replay, Reason::Refused));
    let reason = "credited by hand (by key_ops)";
    let ruled = world.store.discard_push(dead.number, reason, world.clock.now()).await.unwrap();
    assert!(matches!(ruled, Ruling::Done(_)), "{ruled:?}");
    world.pass_seconds(60);
    let row = only_row(&world).await;
    check(&row, ("45", "40", Some("40")), (Verdict::WrittenOff, Reason::Discarded));
    assert_eq!((row.delta(), row.marks.written_off), (Some(quantity("0")), Some(quantity("5"))));
    assert_eq!(row.marks.note, Some(format!("push {}: {reason}", dead.number)));
    let window = &row.windows[0];
    assert_eq!((row.windows.len(), window.verdict), (1, Verdict::WrittenOff));
    assert_eq!((window.pushed, window.action.clone()), (quantity("0"), row.marks.note.clone()));
    world.hours(2).await;
    assert!(world.open_findings(FindingKind::Usage).await.is_empty());
}

pub async fn usage_before_billing_began_is_not_called_equal(ground: Ground) {
    let world = World::on(ground).await;
    let spec = r#"{"aggregation":"sum","billing":{"from":"2026-11-15T12:00:00Z"}}"#;
    world.meter("calls", spec).await;
    world.tenant("acme").await;
    world.used("acme", "7", "2026-11-14T11:10:00Z").await;
    world.used("acme", "16.8", "2026-11-15T11:10:00Z").await;
    world.hours(4).await;
    let row = only_row(&world).await;
    check(&row, ("16.8", "0", Some("0")), (Verdict::NotBilled, Reason::BeforeFrom));
    assert_eq!(row.marks.not_billed, Some(quantity("16.8")));
    // A whole day before.
    let pass = world.one_shot("2026-11-14T00:00:00Z", "2026-11-15T00:00:00Z", false).await;
    let row = world.rows(pass.number).await.remove(0);
    check(&row, ("7", "0", None), (Verdict::NotBilled, Reason::BeforeFrom));
    assert_eq!(pass.progress.verdicts.get(&Verdict::NotBilled), Some(&1));
    assert!(row.hash.is_some(), "it needs no reading");
    // What is billed later is compared as before.
    world.used("acme", "5", "2026-11-15T15:00:00Z").await;
    world.hours(4).await;
    let row = only_row(&world).await;
    check(&row, ("21.8", "5", Some("5")), (Verdict::NotBilled, Reason::BeforeFrom));
}

pub async fn windows_of_a_shadow_are_marked(ground: Ground) {
    let (world, _) = World::usual(ground).await;
    let shadow = world.other_server(|config| config.provider.shadow = Shadow::Nowhere);
    world.used("acme", "5", "2026-11-15T11:10:00Z").await;
    world.clock.advance(2 * 3_600_000_000);
    shadow.cutter.flush().await.unwrap();
    shadow.cutter.pass().await.unwrap();
    shadow.submitter.pass().await.unwrap();
    // From here on the server is live, and late usage of the shadow's window comes.
    world.used("acme", "3", "2026-11-15T11:20:00Z").await;
    world.hours(3).await;
    let row = only_row(&world).await;
    check(&row, ("8", "0", Some("0")), (Verdict::Shadow, Reason::Shadow));
    assert_eq!(row.marks.shadow, Some(quantity("8")));
    world.used("acme", "2", "2026-11-15T15:20:00Z").await;
    world.hours(4).await;
    let row = only_row(&world).await;
    check(&row, ("10", "2", Some("2")), (Verdict::Shadow, Reason::Shadow));
}

pub async fn a_server_in_shadow_calls_nothing_equal(ground: Ground) {
    let (world, _) =
        World::usual_with(ground, |config| config.provider.shadow = Shadow::Sandbox).await;
    world.used("acme", "5", "2026-11-15T11:10:00Z").await;
    world.hours(4).await;
    let row = only_row(&world).await;
    check(&row, ("5", "5", Some("5")), (Verdict::Shadow, Reason::Matches));
    assert_eq!(row.marks.shadow, Some(quantity("5")));
}

pub async fn a_tenant_without_a_customer_has_its_row(ground: Ground) {
    let world = World::on(ground).await;
    world.meter("calls", CALLS).await;
    world.used("nobody", "9", "2026-11-15T11:10:00Z").await;
    world.used("nobody", "3", "2026-11-14T11:10:00Z").await;
    world.hours(3).await;
    let row = only_row(&world).await;
    check(&row, ("9", "9", None), (Verdict::Unmapped, Reason::NoCustomer));
    assert_eq!((row.tenant.as_str(), row.hash.is_some()), ("nobody", true));
    world.until("2026-11-16T05:00:00Z").await;
    let night = world.passes(PassKind::Nightly).await.pop().unwrap();
    let rows = world.rows(night.number).await;
    check(&rows[0], ("9", "9", None), (Verdict::Unmapped, Reason::NoCustomer));
    assert_eq!(night.progress.verdicts.get(&Verdict::Unmapped), Some(&1));
    // Once it has a customer it is compared.
    world.tenant("nobody").await;
    world.hours(3).await;
    check(&only_row(&world).await, ("9", "9", Some("9")), (Verdict::Equal, Reason::Matches));
}

pub async fn everything_unbilled_is_one_number(ground: Ground) {
    let (world, _) = World::usual(ground).await;
    let shadow = world.other_server(|config| config.provider.shadow = Shadow::Nowhere);
    world.used("acme", "5", "2026-11-15T10:10:00Z").await;
    world.used("acme", "0.5", "2026-11-14T10:10:00Z").await;
    world.clock.advance(3_600_000_000);
    shadow.cutter.flush().await.unwrap();
    shadow.cutter.pass().await.unwrap();
    world.stripe.fault(FaultKind::AsyncRejection, 1);
    world.used("acme", "7", "2026-11-15T12:10:00Z").await;
    world.hours(2).await;
    world.used("nobody", "11", "2026-11-15T12:10:00Z").await;
    let old = world.event("acme", "old", "13", "2026-11-01T00:00:00Z").await;
    world.record(vec![old]).await;
    world.used("acme", "100", "2026-11-15T14:10:00Z").await;
    world.hours(4).await;
    let counts = world.count_pushes().await;
    let catalog = world.store.load_catalog().await.unwrap();
    let slow = Slow::read(&*world.store, &catalog).await.unwrap();
    let unbilled = Unbilled::of(&counts, &slow).unwrap();
    let causes = &unbilled.by_meter[&world.meter_no("calls").await];
    let expected = [
        (Cause::Dead, "7"),
        (Cause::NoCustomer, "11"),
        (Cause::Quarantined, "13"),
        (Cause::Shadow, "5"),
        (Cause::BeforeFrom, "0.5"),
    ];
    let expected = expected.map(|(cause, text)| (cause, quantity(text)));
    assert_eq!(causes.iter().map(|(cause, sum)| (*cause, *sum)).collect::<Vec<_>>(), expected);
    assert_eq!(Unbilled::total(causes), Some(quantity("36.5")));
    assert!(!unbilled.quarantined_more);
    // What a person has decided about is not waiting any more.
    let query = Query::first(QuarantineFilter::default(), 9);
    let record = world.store.list_quarantine(query).await.unwrap().remove(0);
    let decision = Decision::new("a test".into(), "zoe".into(), world.clock.now()).unwrap();
    let key = InboxKey { tenant: record.tenant, number: record.number };
    assert_eq!(world.store.discard_quarantined(vec![key], decision).await.unwrap(), 1);
    let slow = Slow::read(&*world.store, &catalog).await.unwrap();
    let unbilled = Unbilled::of(&counts, &slow).unwrap();
    let causes = &unbilled.by_meter[&world.meter_no("calls").await];
    assert!(!causes.contains_key(&Cause::Quarantined));
}
