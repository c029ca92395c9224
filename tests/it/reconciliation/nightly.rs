//! The nightly pass: one row for everyone, chained, for each day once.

use super::world::{ABSOLUTE, CALLS, Ground, SUMMARIES, World, at, window};
use counterfoil::jobs::Job;
use counterfoil::rules::alert::{AlertKind, NoticeEvent};
use counterfoil::rules::drift::{Reason, Verdict};
use counterfoil::rules::finding::FindingKind;
use counterfoil::rules::pass::{Hash, Pass, PassKind, PassOrder, PassRow, PassState, chain_pass};
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::submission::{Class, PushState};
use counterfoil::store::reconciliation::PassUpdate;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Passes with their rows, oldest first.
pub type Nights = Vec<(Pass, Vec<PassRow>)>;

/// The days of closed nightly passes, as month-day.
async fn days(world: &World) -> Vec<String> {
    let passes = world.passes(PassKind::Nightly).await;
    assert!(passes.iter().all(|pass| pass.state == PassState::Closed && pass.hash.is_some()));
    passes.iter().map(|pass| pass.order.range.start.to_string()[5..10].to_owned()).collect()
}

pub async fn all_rows(world: &World) -> Nights {
    let mut all = Vec::new();
    for pass in world.passes(PassKind::Nightly).await {
        let rows = world.rows(pass.number).await;
        all.push((pass, rows));
    }
    all
}

/// Whether every hash follows from what stands before it; what was not read has none.
pub fn is_chained(nights: &[(Pass, Vec<PassRow>)]) -> bool {
    let mut rows_before: BTreeMap<(String, u32), Hash> = BTreeMap::new();
    let mut pass_before = [0; 32];
    for (pass, rows) in nights {
        let mut next = BTreeMap::new();
        for row in rows {
            let key = (row.tenant.as_str().to_owned(), u32::from(row.meter.0));
            let before = rows_before.get(&key).copied().unwrap_or([0; 32]);
            let Some(hash) = row.hash else { continue };
            if row.chain(&before) != hash {
                return false;
            }
            next.insert(key, hash);
        }
        if pass.hash.is_none() && next.is_empty() && !rows.is_empty() {
            continue;
        }
        rows_before = next;
        let hash = chain_pass(&pass_before, rows.iter().filter_map(|row| row.hash));
        if pass.hash != Some(hash) {
            return false;
        }
        pass_before = hash;
    }
    true
}

/// What the provider showed, in the order of rows; tenants without a customer have no total.
fn totals(rows: &[PassRow]) -> Vec<String> {
    rows.iter().filter_map(|row| Some(row.provider?.to_string())).collect()
}

async fn three_tenants(world: &World) -> [String; 3] {
    world.meter("calls", CALLS).await;
    world.meter("storage", ABSOLUTE).await;
    let declared = r#"{"aggregation":"sum"}"#;
    world.meter("not_billed", declared).await;
    let customers =
        [world.tenant("acme").await, world.tenant("Beta").await, world.tenant("quiet").await];
    // One without a customer is shown and not compared; its usage waits.
    world.used("nobody", "1", "2026-11-15T11:00:00Z").await;
    customers
}

pub async fn one_row_for_everyone_drift_or_not(ground: Ground) {
    let world = World::on(ground).await;
    let [acme, beta, _] = three_tenants(&world).await;
    world.used("acme", "10", "2026-11-15T11:00:00Z").await;
    world.used_of("storage", "acme", "2.5", "2026-11-15T11:00:00Z").await;
    world.used("Beta", "300", "2026-11-15T11:30:00Z").await;
    world.used("Beta", "4000", "2026-11-15T12:00:00Z").await;
    world.hours(4).await;
    world.stripe.foreign(&beta, "calls", "7", "2026-11-15T12:10:00Z");
    world.until("2026-11-16T05:00:00Z").await;
    assert_eq!(days(&world).await, ["11-14", "11-15"]);
    let (pass, rows) = all_rows(&world).await.pop().unwrap();
    let show = |row: &PassRow| {
        let PassRow { tenant, meter, ledger, pushed, provider, .. } = row;
        let (verdict, delta) = (row.verdict.name(), row.delta().unwrap_or_default());
        let provider = provider.map_or("-".to_owned(), |provider| provider.to_string());
        format!("{tenant} {} {ledger} {pushed} {provider} {delta} {verdict}", meter.0)
    };
    let mut expected = [
        "acme 1 10 10 10 0 equal",
        "acme 2 2.5 2.5 2.5 0 equal",
        "Beta 1 4300 4300 4307 7 bypass",
        "Beta 2 0 0 0 0 equal",
        "nobody 1 1 1 - 0 unmapped",
        "quiet 1 0 0 0 0 equal",
        "quiet 2 0 0 0 0 equal",
    ];
    let mut shown: Vec<String> = rows.iter().map(show).collect();
    shown.sort();
    expected.sort_unstable();
    assert_eq!(shown, expected);
    let drifting = rows.iter().find(|row| row.verdict == Verdict::Bypass).unwrap();
    assert_eq!(drifting.reason, Reason::ProviderHigher);
    assert_eq!(drifting.windows.len(), 1);
    assert_eq!(drifting.windows[0].start, at("2026-11-15T12:00:00Z"));
    assert_eq!((pass.progress.pairs, pass.progress.pairs_done), (6, 6));
    assert_eq!(pass.progress.verdicts.get(&Verdict::Bypass), Some(&1));
    assert_eq!(world.stripe.sum(&acme), "12.5");
}

pub async fn rows_are_chained_from_day_to_day(ground: Ground) {
    let world = World::on(ground).await;
    three_tenants(&world).await;
    for day in 15..=17 {
        world.used("acme", "10", &format!("2026-11-{day}T11:00:00Z")).await;
        world.leap(&format!("2026-11-{day}T14:00:00Z")).await;
        world.hours(1).await;
        world.leap(&format!("2026-11-{}T05:00:00Z", day + 1)).await;
        world.leap(&format!("2026-11-{}T12:00:00Z", day + 1)).await;
    }
    assert_eq!(days(&world).await, ["11-14", "11-15", "11-16", "11-17"]);
    let nights = all_rows(&world).await;
    assert_eq!(nights.iter().map(|(_, rows)| rows.len()).collect::<Vec<_>>(), [0, 7, 6, 6]);
    assert!(is_chained(&nights));
    let changes: [fn(&mut Nights); 5] = [
        |nights| nights[1].1[0].provider = Some(Quantity::ONE),
        |nights| nights[2].1[0].verdict = Verdict::Tolerance,
        |nights| drop(nights[2].1.remove(5)),
        |nights| nights[3].1.swap(0, 1),
        |nights| drop(nights.remove(2)),
    ];
    for (place, change) in changes.into_iter().enumerate() {
        let mut altered = nights.clone();
        change(&mut altered);
        assert!(!is_chained(&altered), "change {place}");
    }
}

pub async fn a_changed_audit_row_is_named(ground: Ground) {
    let (world, _) = World::usual(ground).await;
    world.used("acme", "10", "2026-11-15T11:00:00Z").await;
    for day in 15..=17 {
        world.leap(&format!("2026-11-{day}T14:00:00Z")).await;
        world.leap(&format!("2026-11-{}T05:00:00Z", day + 1)).await;
    }
    let audit = async || {
        let report = world.store.check(&|_| {}).await.unwrap();
        (report.audit, report.findings)
    };
    let (report, findings) = audit().await;
    assert_eq!((report.passes, report.rows, report.broken, findings), (4, 3, None, vec![]));
    let nights = world.passes(PassKind::Nightly).await;
    let last = nights.last().unwrap();
    assert_eq!(report.head, Some((last.number, last.hash.unwrap())));
    let second = nights[1].number;
    let change = |to: &str| format!("UPDATE pass_rows SET ledger = {to} WHERE pass_no = {second}");
    world.ground.plant(&change("'999'")).await;
    let (report, findings) = audit().await;
    let named =
        format!("the row of acme, meter 1, day 2026-11-15T00:00:00Z in pass {second} was changed");
    assert!(report.broken.unwrap().contains(&named));
    assert!(findings[0].contains(&named), "{findings:?}");
    world.ground.plant(&change("'10'")).await;
    assert_eq!(audit().await.1, Vec::<String>::new());
    let gone = format!("DELETE FROM pass_rows WHERE pass_no = {}", nights[2].number);
    world.ground.plant(&gone).await;
    let broken = audit().await.0.broken.unwrap();
    assert!(broken.starts_with(&format!("pass {} does not follow", nights[2].number)), "{broken}");
}

pub async fn days_that_were_missed_are_caught_up(ground: Ground) {
    let world = World::on(ground).await;
    let [acme, ..] = three_tenants(&world).await;
    world.used("acme", "10", "2026-11-15T11:00:00Z").await;
    world.hours(2).await;
    // Three days without a server.
    world.leap("2026-11-18T04:59:00Z").await;
    assert_eq!(days(&world).await, ["11-14", "11-15", "11-16"]);
    world.leap("2026-11-18T05:00:00Z").await;
    assert_eq!(days(&world).await, ["11-14", "11-15", "11-16", "11-17"]);
    world.hours(3).await;
    assert_eq!(days(&world).await.len(), 4, "no day is passed twice");
    let nights = all_rows(&world).await;
    let compared = |rows: &[PassRow]| totals(rows).len();
    assert!(nights[1..].iter().all(|(_, rows)| compared(rows) == 6));
    assert!(is_chained(&nights));
    let totals = totals(&nights[1].1);
    assert_eq!(totals.iter().filter(|total| *total == "10").count(), 1);
    assert_eq!((world.stripe.sum(&acme), world.findings().await), ("10".into(), Vec::new()));
}

pub async fn two_servers_run_one_pass(ground: Ground) {
    let world = World::on(ground).await;
    three_tenants(&world).await;
    let other = world.other_server(|_| {});
    world.go_to("2026-11-16T05:00:00Z");
    for _ in 0..4 {
        let (one, two) = tokio::join!(world.jobs.reconciler.pass(), other.reconciler.pass());
        let (one, two) = (one.unwrap(), two.unwrap());
        assert!(one.is_none() || one != two, "{one:?} {two:?}");
    }
    assert_eq!(days(&world).await, ["11-15"]);
    assert_eq!(world.passes(PassKind::Hourly).await.len(), 1);
    assert_eq!(totals(&all_rows(&world).await[0].1).len(), 6);
}

/// Work that is dropped in the middle, after so many steps.
struct Dying<F> {
    tick: Pin<Box<F>>,
    polls: u32,
}

impl<F: Future> Future for Dying<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(left) = self.polls.checked_sub(1) else { return Poll::Ready(None) };
        self.polls = left;
        self.tick.as_mut().poll(context).map(Some)
    }
}

pub async fn a_pass_that_was_cut_off_is_begun_anew(ground: Ground) {
    let world = World::on(ground).await;
    let [acme, beta, _] = three_tenants(&world).await;
    world.used("acme", "10", "2026-11-15T11:00:00Z").await;
    world.until("2026-11-15T15:00:00Z").await;
    world.stripe.foreign(&beta, "calls", "7", "2026-11-15T12:10:00Z");
    world.go_to("2026-11-16T05:00:00Z");
    // Servers die at their first, second, third step; a pass is left running.
    let mut cut_off = 0;
    for polls in 1..12 {
        let dying = world.other_server(|_| {});
        let tick = Box::pin(dying.reconciler.pass());
        let ended = Dying { tick, polls }.await;
        cut_off += u32::from(ended.is_none());
        // Its lease ends, and nobody gave it back.
        world.pass_seconds(11 * 60);
    }
    assert!(cut_off > 0, "none was cut off");
    world.work().await;
    let nights = world.passes(PassKind::Nightly).await;
    let fifteenth =
        nights.iter().filter(|pass| pass.order.range.start == at("2026-11-15T00:00:00Z"));
    let pass = fifteenth.clone().next().unwrap();
    assert_eq!((fifteenth.count(), pass.state), (1, PassState::Closed));
    let rows = world.rows(pass.number).await;
    let totals = totals(&rows);
    assert_eq!((totals.len(), totals.iter().filter(|total| *total == "0").count()), (6, 4));
    assert!(is_chained(&all_rows(&world).await));
    world.hours(2).await;
    assert_eq!(world.open_findings(FindingKind::Usage).await.len(), 1);
    assert_eq!(world.pages(), [AlertKind::DriftUnresolved]);
    assert_eq!((world.stripe.sum(&acme), world.stripe.sum(&beta)), ("10".into(), "7".into()));
}

pub async fn a_pass_that_was_left_running_is_ended(ground: Ground) {
    let world = World::on(ground).await;
    three_tenants(&world).await;
    world.go_to("2026-11-16T05:00:00Z");
    let now = world.clock.now();
    let range = window("2026-11-15T00:00:00Z", "2026-11-16T00:00:00Z");
    let order = PassOrder { kind: PassKind::Nightly, range, tenant: None, apply: true };
    let number = world.store.create_pass(order, now).await.unwrap();
    let until = now.saturating_add_micros(600_000_000);
    let lease = world.store.claim_lease("reconcile", "dead", now, until).await.unwrap().unwrap();
    let (state, progress) = (PassState::Running, Default::default());
    let update = PassUpdate { number, state, progress, hash: None, detail: None };
    assert!(world.store.update_pass(&lease, update.clone(), now).await.unwrap());
    assert_eq!(world.reconcile().await, Vec::<u64>::new(), "another holds the lease");
    world.pass_seconds(601);
    let ran = world.reconcile().await;
    assert!(ran.contains(&number), "{ran:?}");
    assert_eq!(days(&world).await, ["11-15"]);
    assert_eq!(totals(&world.rows(number).await).len(), 6);
    // The dead one wakes up and has nothing to say.
    assert!(!world.store.update_pass(&lease, update, world.clock.now()).await.unwrap());
    assert_eq!(days(&world).await, ["11-15"]);
}

pub async fn first_day_of_billing_is_compared_from_its_start(ground: Ground) {
    let world = World::on(ground).await;
    let spec = r#"{"aggregation":"sum","billing":{"from":"2026-11-15T12:00:00Z"}}"#;
    world.meter("calls", spec).await;
    let customer = world.tenant("acme").await;
    // Another program reported until noon.
    world.stripe.foreign(&customer, "calls", "5000", "2026-11-15T08:30:00Z");
    world.used("acme", "30", "2026-11-15T12:00:00Z").await;
    world.until("2026-11-16T08:00:00Z").await;
    let (_, rows) = all_rows(&world).await.pop().unwrap();
    let row = &rows[0];
    assert_eq!((totals(&rows)[0].as_str(), row.verdict), ("30", Verdict::Equal));
    world.leap("2026-11-17T05:00:00Z").await;
    world.hours(1).await;
    assert_eq!(world.findings().await, []);
    // After noon it is ours alone.
    world.stripe.foreign(&customer, "calls", "4", "2026-11-15T15:30:00Z");
    world.hours(3).await;
    world.check_finding(Verdict::Bypass, Reason::ProviderHigher, true).await;
}

pub async fn usage_that_nobody_cuts_is_found(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    world.used("acme", "30", "2026-11-15T11:10:00Z").await;
    let passes = async |hours: u32| {
        for _ in 0..hours {
            world.pass_hours(1);
            world.reconcile().await;
            world.look().await;
        }
    };
    passes(20).await;
    assert_eq!((world.findings().await, world.pages()), (Vec::new(), Vec::new()));
    passes(24).await;
    let open = world.open_findings(FindingKind::Usage).await;
    assert!(!open.is_empty());
    for finding in open {
        let seen = &finding.seen;
        assert_eq!((seen.verdict, seen.reason), (Verdict::Undecidable, Reason::Uncut));
        assert_eq!(seen.ledger.to_string(), "30");
    }
    assert_eq!(world.pages(), [AlertKind::DriftUnresolved]);
    world.hours(3).await;
    assert_eq!(world.stripe.sum(&customer), "30");
    assert!(world.open_findings(FindingKind::Usage).await.is_empty());
}

pub async fn unreadable_totals_are_reported(ground: Ground) {
    let (world, _) = World::usual(ground).await;
    world.stripe.lock().set_summary_lag(0);
    world.used("acme", "30", "2026-11-15T11:10:00Z").await;
    world.hours(1).await;
    world.out_of_reach(SUMMARIES);
    world.until("2026-11-16T06:00:00Z").await;
    let (_, rows) = all_rows(&world).await.pop().unwrap();
    assert_eq!((rows[0].verdict, rows[0].reason), (Verdict::Unread, Reason::Unread));
    assert_eq!(world.alerted(AlertKind::DriftUnresolved).await, (0, 0));
    world.stripe.faults(Vec::new());
    world.hours(2).await;
    let counts = world.count_pushes().await;
    assert_eq!((counts.observed, counts.submitted, counts.dead), (0, 0, 0));
    assert!(world.open_findings(FindingKind::Usage).await.is_empty());
}

pub async fn late_revisions_are_reconciled(ground: Ground) {
    let (world, _) = World::usual(ground).await;
    let closed = |quantity| (quantity, PushState::Reconciled, Class::Reconciled);
    world.used("acme", "10", "2026-11-15T11:10:00Z").await;
    world.until("2026-11-16T05:00:00Z").await;
    world.check_pushes(&[closed("10")]).await;
    // Within the reach of hourly passes.
    world.used("acme", "5", "2026-11-15T11:20:00Z").await;
    world.hours(3).await;
    world.check_pushes(&[closed("10"), closed("5")]).await;
    // Beyond it; the nightly pass of another day closes it.
    world.until("2026-11-19T12:00:00Z").await;
    world.used("acme", "2", "2026-11-15T11:30:00Z").await;
    world.until("2026-11-20T05:00:00Z").await;
    world.check_pushes(&[closed("10"), closed("5"), closed("2")]).await;
}

pub async fn a_day_that_agrees_later_is_reconciled(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    world.used("acme", "10", "2026-11-15T11:10:00Z").await;
    world.until("2026-11-15T15:00:00Z").await;
    let foreign = world.stripe.foreign(&customer, "calls", "7", "2026-11-15T11:40:00Z");
    world.until("2026-11-16T08:00:00Z").await;
    world.check_pushes(&[("10", PushState::Confirmed, Class::Confirmed)]).await;
    world.stripe.lose(&foreign);
    world.hours(2).await;
    world.check_pushes(&[("10", PushState::Reconciled, Class::Reconciled)]).await;
    // A dry run changes nothing, one that is applied closes what agrees.
    world.used("acme", "5", "2026-11-15T11:20:00Z").await;
    world.pass_seconds(1_200);
    world.send().await;
    world.pass_seconds(1_200);
    world.jobs.confirmer.pass().await.unwrap();
    let confirmed = ("5", PushState::Confirmed, Class::Confirmed);
    let closed = |quantity| (quantity, PushState::Reconciled, Class::Reconciled);
    world.one_shot("2026-11-15T00:00:00Z", "2026-11-16T00:00:00Z", false).await;
    world.check_pushes(&[closed("10"), confirmed]).await;
    world.one_shot("2026-11-15T00:00:00Z", "2026-11-16T00:00:00Z", true).await;
    world.check_pushes(&[closed("10"), closed("5")]).await;
}

pub async fn hourly_passes_do_not_keep_a_nightly_one_waiting(ground: Ground) {
    let (world, _) = World::usual(ground).await;
    world.until("2026-11-16T04:00:00Z").await;
    let nights = world.passes(PassKind::Nightly).await.len();
    // Each pass takes so long that an hourly one is due again at its end.
    for _ in 0..4 {
        world.clock.advance(3_600_000_000);
        world.jobs.reconciler.pass().await.unwrap();
    }
    assert_eq!(world.passes(PassKind::Nightly).await.len(), nights + 1);
    let hourly = world.passes(PassKind::Hourly).await;
    assert!(hourly.iter().filter(|pass| pass.created_at > at("2026-11-16T04:00:00Z")).count() >= 2);
}

pub async fn days_out_of_reach_are_shown_as_skipped(ground: Ground) {
    let (world, _) = World::usual(ground).await;
    world.until("2026-11-16T06:00:00Z").await;
    assert_eq!(days(&world).await, ["11-14", "11-15"]);
    assert_eq!(world.alerted(AlertKind::NightlyLate).await, (0, 0));
    // Forty days without a server.
    world.go_to("2026-12-26T06:00:00Z");
    world.look().await;
    assert_eq!(world.notices(AlertKind::NightlyLate), [NoticeEvent::Opened]);
    world.work().await;
    let nights = world.passes(PassKind::Nightly).await;
    let skipped: Vec<&Pass> =
        nights.iter().filter(|pass| pass.state == PassState::Failed).collect();
    assert_eq!(skipped.len(), 1, "{skipped:#?}");
    assert_eq!(skipped[0].order.range, window("2026-11-16T00:00:00Z", "2026-11-21T00:00:00Z"));
    assert!(skipped[0].detail.as_ref().unwrap().starts_with("skipped: 5 days"));
    assert_eq!(nights.len(), 2 + 1 + 35);
    assert_eq!(nights.last().unwrap().order.range.end, at("2026-12-26T00:00:00Z"));
    // The delay is over; the days that were skipped are shown for a week.
    assert_eq!(world.alerted(AlertKind::NightlyLate).await, (2, 1));
    world.leap("2026-12-29T06:00:00Z").await;
    world.leap("2027-01-01T06:00:00Z").await;
    world.leap("2027-01-03T06:00:00Z").await;
    world.look().await;
    assert_eq!(world.alerted(AlertKind::NightlyLate).await.1, 0);
}
