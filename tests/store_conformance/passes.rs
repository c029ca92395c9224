//! Passes and their rows: closed ones never change.

use crate::billed::{after, quantity, window};
use crate::fixture::{Fixture, at_once, in_pages, tenant_id};
use counterfoil::rules::drift::{Reason, Verdict};
use counterfoil::rules::ids::MeterNo;
use counterfoil::rules::pass::{
    DriftWindow, Hash, Marks, Pass, PassKind, PassOrder, PassProgress, PassRow, PassState,
};
use counterfoil::rules::window::Window;
use counterfoil::store::push::Lease;
use counterfoil::store::reconciliation::{PassFilter, PassUpdate};
use counterfoil::store::{Query, TenantFields};
use std::sync::Arc;

async fn lease(f: &Fixture, holder: &str, minute: i64) -> Lease {
    let (now, until) = (after(f.now, minute), after(f.now, minute + 10));
    f.store.claim_lease("reconcile", holder, now, until).await.unwrap().unwrap()
}

fn day(number: i64) -> Window {
    Window { start: window(24 * number).start, end: window(24 * number + 24).start }
}

fn order(kind: PassKind, number: i64) -> PassOrder {
    PassOrder { kind, range: day(number), tenant: None, apply: false }
}

fn update(number: u64, state: PassState) -> PassUpdate {
    PassUpdate { number, state, progress: PassProgress::default(), hash: None, detail: None }
}

async fn create(f: &Fixture, kind: PassKind, number: i64) -> u64 {
    f.store.create_pass(order(kind, number), f.now).await.unwrap()
}

async fn change(f: &Fixture, lease: &Lease, update: PassUpdate, minute: i64) -> bool {
    f.store.update_pass(lease, update, after(f.now, minute)).await.unwrap()
}

async fn pass(f: &Fixture, number: u64) -> Pass {
    f.store.find_pass(number).await.unwrap().unwrap()
}

/// A pass that is running.
async fn running(f: &Fixture, lease: &Lease, number: i64) -> u64 {
    let pass = create(f, PassKind::OneShot, number).await;
    assert!(change(f, lease, update(pass, PassState::Running), 0).await);
    pass
}

async fn tenant(f: &Fixture, tenant: &str) {
    f.store.put_tenant(&tenant_id(tenant), TenantFields::default(), f.now).await.unwrap();
}

fn row(tenant: &str, meter: MeterNo, number: i64, provider: &str) -> PassRow {
    let drift = DriftWindow {
        start: window(24 * number).start,
        end: window(24 * number + 1).start,
        ledger: quantity("1.000000000001"),
        pushed: quantity("1"),
        provider: Some(quantity(provider)),
        verdict: Verdict::Bypass,
        reason: Reason::ProviderHigher,
        action: Some("none".to_owned()),
    };
    let row = PassRow {
        tenant: tenant_id(tenant),
        meter,
        day: day(number),
        ledger: quantity("1.000000000001"),
        pushed: quantity("1"),
        provider: Some(quantity(provider)),
        verdict: Verdict::Bypass,
        reason: Reason::ProviderHigher,
        windows: vec![drift],
        marks: Marks {
            written_off: Some(quantity("0.5")),
            note: Some("push 1: \"credited\"".to_owned()),
            ..Marks::default()
        },
        hash: None,
    };
    PassRow { hash: Some(row.chain(&[7; 32])), ..row }
}

async fn rows(f: &Fixture, pass: u64) -> Vec<PassRow> {
    let query = Query::first(pass, 1_000);
    f.store.list_pass_rows(query).await.unwrap()
}

pub async fn a_nightly_pass_is_one_for_each_range(f: Fixture) {
    let f = Arc::new(f);
    let order = |f: Arc<Fixture>, _| async move { create(&f, PassKind::Nightly, 0).await };
    let numbers = at_once(&f, 0..4, order).await;
    assert!(numbers.iter().all(|number| *number == numbers[0]));
    let other = create(&f, PassKind::Nightly, 1).await;
    assert_ne!(other, numbers[0]);
    let hourly = [create(&f, PassKind::Hourly, 0).await, create(&f, PassKind::Hourly, 0).await];
    let asked = [create(&f, PassKind::OneShot, 0).await, create(&f, PassKind::OneShot, 0).await];
    assert!(hourly[0] < hourly[1] && hourly[1] < asked[0] && asked[0] < asked[1]);
    // A closed one is still the one of its range.
    let lease = lease(&f, "a", 0).await;
    assert!(change(&f, &lease, update(other, PassState::Closed), 1).await);
    assert_eq!(create(&f, PassKind::Nightly, 1).await, other);
}

pub async fn a_pass_is_kept_as_it_stands(mut f: Fixture) {
    let lease = lease(&f, "a", 0).await;
    let tenant = Some(tenant_id("nobody yet"));
    let asked = PassOrder { tenant, apply: true, ..order(PassKind::OneShot, 0) };
    let number = f.store.create_pass(asked.clone(), f.now).await.unwrap();
    let mut expected = Pass {
        number,
        order: asked,
        state: PassState::Waiting,
        created_at: f.now,
        ended_at: None,
        progress: PassProgress::default(),
        hash: None,
        detail: None,
    };
    assert_eq!(pass(&f, number).await, expected);
    expected.progress =
        PassProgress { pairs: 3, pairs_done: 2, windows: 48, reads: 2, ..Default::default() };
    expected.progress.verdicts.insert(Verdict::Replay, 2);
    expected.state = PassState::Running;
    let running =
        PassUpdate { progress: expected.progress.clone(), ..update(number, PassState::Running) };
    assert!(change(&f, &lease, running, 1).await);
    f.restart().await;
    assert_eq!(pass(&f, number).await, expected);
    let failed = PassUpdate {
        detail: Some("no connection".to_owned()),
        progress: expected.progress.clone(),
        ..update(number, PassState::Failed)
    };
    assert!(change(&f, &lease, failed, 2).await);
    expected.state = PassState::Failed;
    (expected.ended_at, expected.detail) =
        (Some(after(f.now, 2)), Some("no connection".to_owned()));
    assert_eq!(pass(&f, number).await, expected);
    // It may be begun anew, and then closed.
    assert!(change(&f, &lease, update(number, PassState::Running), 3).await);
    assert_eq!(pass(&f, number).await.ended_at, None);
    let hash: Hash = [9; 32];
    let closed = PassUpdate { hash: Some(hash), ..update(number, PassState::Closed) };
    assert!(change(&f, &lease, closed, 4).await);
    let closed = pass(&f, number).await;
    assert_eq!((closed.state, closed.hash), (PassState::Closed, Some(hash)));
    assert_eq!((closed.ended_at, &closed.detail), (Some(after(f.now, 4)), &None));
    for state in PassState::ALL {
        assert!(!change(&f, &lease, update(number, state), 5).await, "a closed one never changes");
    }
    assert_eq!(pass(&f, number).await, closed);
    assert!(!change(&f, &lease, update(number + 1, PassState::Running), 5).await);
    assert_eq!(f.store.find_pass(number + 1).await.unwrap(), None);
}

pub async fn passes_are_listed_newest_first(f: Fixture) {
    let lease = lease(&f, "a", 0).await;
    let mut numbers = Vec::new();
    for n in 0..6 {
        let kind = [PassKind::Hourly, PassKind::Nightly, PassKind::OneShot][n % 3];
        numbers.push(create(&f, kind, i64::try_from(n).unwrap()).await);
    }
    assert!(change(&f, &lease, update(numbers[1], PassState::Closed), 1).await);
    let check = async |query: Query<PassFilter>, places: &[usize]| {
        let found = f.store.list_passes(query).await.unwrap();
        let found: Vec<u64> = found.iter().map(|pass| pass.number).collect();
        assert_eq!(found, places.iter().map(|place| numbers[*place]).collect::<Vec<_>>());
    };
    let (any, of) = (PassFilter::default, |filter| Query::first(filter, 100));
    check(of(any()), &[5, 4, 3, 2, 1, 0]).await;
    check(Query { after: Some(numbers[4]), limit: 2, ..of(any()) }, &[3, 2]).await;
    check(of(PassFilter { kind: Some(PassKind::Nightly), ..any() }), &[4, 1]).await;
    check(of(PassFilter { state: Some(PassState::Closed), ..any() }), &[1]).await;
    let (kind, state) = (Some(PassKind::Nightly), Some(PassState::Waiting));
    check(Query::first(PassFilter { kind, state }, 1), &[4]).await;
}

pub async fn rows_are_written_over_while_a_pass_runs(mut f: Fixture) {
    let lease = lease(&f, "a", 0).await;
    tenant(&f, "acme").await;
    let meter = f.meter_no("calls").await;
    let write = async |f: &Fixture, pass: u64, rows: Vec<PassRow>| {
        f.store.record_pass_rows(&lease, pass, rows).await.unwrap()
    };
    let pass = create(&f, PassKind::OneShot, 0).await;
    assert!(!write(&f, pass, vec![row("acme", meter, 0, "2")]).await, "it is not begun");
    assert!(change(&f, &lease, update(pass, PassState::Running), 0).await);
    assert!(write(&f, pass, vec![row("acme", meter, 0, "2"), row("acme", meter, 1, "2")]).await);
    assert!(write(&f, pass, vec![row("acme", meter, 0, "3")]).await);
    assert!(write(&f, pass, vec![]).await);
    f.restart().await;
    let expected = [row("acme", meter, 0, "3"), row("acme", meter, 1, "2")];
    assert_eq!(rows(&f, pass).await, expected);
    let other = running(&f, &lease, 1).await;
    assert_eq!(rows(&f, other).await, [], "rows are of their pass");
    assert!(change(&f, &lease, update(pass, PassState::Failed), 1).await);
    assert!(!write(&f, pass, vec![row("acme", meter, 0, "4")]).await);
    assert!(change(&f, &lease, update(pass, PassState::Running), 1).await);
    assert!(change(&f, &lease, update(pass, PassState::Closed), 1).await);
    assert!(!write(&f, pass, vec![row("acme", meter, 0, "4")]).await);
    assert!(!write(&f, other + 1, vec![row("acme", meter, 0, "4")]).await, "there is none");
    assert_eq!(rows(&f, pass).await, expected);
}

pub async fn a_lost_lease_writes_nothing(f: Fixture) {
    let stale = lease(&f, "a", 0).await;
    tenant(&f, "acme").await;
    let meter = f.meter_no("calls").await;
    let pass_no = running(&f, &stale, 0).await;
    let before = pass(&f, pass_no).await;
    let taken = lease(&f, "b", 10).await;
    let check_lost = async |lease: &Lease| {
        assert!(!change(&f, lease, update(pass_no, PassState::Closed), 11).await);
        let written = f.store.record_pass_rows(lease, pass_no, vec![row("acme", meter, 0, "2")]);
        assert!(!written.await.unwrap());
        assert!(!f.store.record_findings(lease, pass_no, vec![], f.now).await.unwrap());
        assert_eq!(pass(&f, pass_no).await, before);
        assert_eq!(rows(&f, pass_no).await, []);
    };
    check_lost(&stale).await;
    f.store.release_lease(&taken).await.unwrap();
    check_lost(&taken).await;
}

pub async fn rows_are_paged_by_tenant_meter_and_day(f: Fixture) {
    let lease = lease(&f, "a", 0).await;
    // Their numbers are in another order than their names.
    for name in ["b", "acme", "Z", "\u{e9}"] {
        tenant(&f, name).await;
    }
    let (calls, logins) = (f.meter_no("calls").await, f.meter_no("logins").await);
    let (first, second) = (calls.min(logins), calls.max(logins));
    let pass = running(&f, &lease, 0).await;
    let mut expected = Vec::new();
    for name in ["Z", "acme", "b", "\u{e9}"] {
        for meter in [first, second] {
            expected.extend([0, 1, 2].map(|number| row(name, meter, number, "2")));
        }
    }
    let mut shuffled = expected.clone();
    shuffled.reverse();
    assert!(f.store.record_pass_rows(&lease, pass, shuffled).await.unwrap());
    assert_eq!(rows(&f, pass).await, expected);
    for limit in [1, 2, 5, 24, 25] {
        let read = async |last: Option<&PassRow>| {
            let after = last.map(|last| (last.tenant.clone(), last.meter, last.day.start));
            f.store.list_pass_rows(Query { filter: pass, after, limit }).await.unwrap()
        };
        assert_eq!(in_pages(limit, read).await, expected, "pages of {limit}");
    }
}
