//! Alerts: told once, told again where a destination failed, and ended.

use super::world::{EVENTS, Ground, Heard, World, lock, quantity, tenant_id};
use counterfoil::jobs::ingest::Ingest;
use counterfoil::jobs::thresholds::ThresholdsJob;
use counterfoil::jobs::{Context, Job};
use counterfoil::rules::alert::{AlertKind, NoticeEvent};
use counterfoil::rules::mirror::ObjectKind;
use counterfoil::rules::verdict::Verdict;
use counterfoil::store::alert::{Threshold, ThresholdKind, ThresholdPeriod};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use NoticeEvent::{Opened, Resolved};

pub async fn dead_letter_alert_opens_once_and_resolves(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    let meter =
        world.stripe.get("/v1/billing/meters")["data"][0]["id"].as_str().unwrap().to_owned();
    world.stripe.ask(&format!("/v1/billing/meters/{meter}/deactivate"), &[]);
    world.used("acme", "30", "2026-11-15T11:10:00Z").await;
    world.used("acme", "4", "2026-11-15T12:00:00Z").await;
    world.hours(5).await;
    for kind in [AlertKind::DeadLetters, AlertKind::Unbilled] {
        assert_eq!(world.notices(kind), [Opened], "{kind:?}");
        let mailed =
            lock(&world.recorders.mail.heard).iter().filter(|one| one.kind == kind).count();
        assert_eq!(mailed, 1, "one notice for each destination");
    }
    world.stripe.ask(&format!("/v1/billing/meters/{meter}/reactivate"), &[]);
    let dead = world.pushes().await;
    world.store.retry_push(dead[0].number, world.clock.now()).await.unwrap();
    let why = "paid by hand";
    world.store.discard_push(dead[1].number, why, world.clock.now()).await.unwrap();
    world.hours(3).await;
    for kind in [AlertKind::DeadLetters, AlertKind::Unbilled] {
        assert_eq!(world.notices(kind), [Opened, Resolved], "{kind:?}");
    }
    assert_eq!(world.stripe.sum(&customer), "30");
}

pub async fn failed_notice_is_sent_again(ground: Ground) {
    let (world, _) = World::usual(ground).await;
    world.recorders.pager.failures.store(3, Ordering::SeqCst);
    world.out_of_reach(EVENTS);
    world.used("acme", "30", "2026-11-15T11:10:00Z").await;
    world.hours(1).await;
    world.pass_seconds(6 * 60);
    world.look().await;
    for _ in 0..8 {
        world.pass_seconds(60);
        world.look().await;
    }
    let heard: Vec<Heard> = lock(&world.recorders.pager.heard).clone();
    let tries: Vec<(u64, bool)> = heard.iter().map(|one| (one.number, one.taken)).collect();
    let number = tries[0].0;
    assert_eq!(tries, [(number, false), (number, false), (number, false), (number, true)]);
    assert_eq!(lock(&world.recorders.mail.heard).len(), 1, "the other has it at once");
    // It ends while the pager fails for good: the end is told when it works again.
    world.recorders.pager.failures.store(u64::MAX, Ordering::SeqCst);
    world.stripe.faults(Vec::new());
    world.hours(2).await;
    assert_eq!(world.alerted(AlertKind::PushesObservedLong).await, (1, 0));
    assert_eq!(world.notices(AlertKind::PushesObservedLong), [Opened]);
    world.recorders.pager.failures.store(0, Ordering::SeqCst);
    world.hours(2).await;
    assert_eq!(world.notices(AlertKind::PushesObservedLong), [Opened, Resolved]);
}

pub async fn undelivered_opening_is_dropped_with_its_alert(ground: Ground) {
    let (world, _) = World::usual(ground).await;
    world.out_of_reach(EVENTS);
    world.used("acme", "30", "2026-11-15T11:10:00Z").await;
    world.go_to("2026-11-15T13:00:00Z");
    world.send().await;
    world.pass_seconds(6 * 60);
    // It is over before anybody was told.
    world.jobs.alerter.pass().await.unwrap();
    assert_eq!(world.alerted(AlertKind::PushesObservedLong).await, (1, 1));
    world.stripe.faults(Vec::new());
    world.pass_seconds(10 * 60);
    world.send().await;
    world.jobs.alerter.pass().await.unwrap();
    assert_eq!(world.alerted(AlertKind::PushesObservedLong).await, (1, 0));
    world.hours(2).await;
    assert_eq!(world.notices(AlertKind::PushesObservedLong), []);
    assert!(lock(&world.recorders.mail.heard).is_empty());
}

pub async fn unusual_number_of_conflicts_alerts(ground: Ground) {
    let (world, _) = World::usual(ground).await;
    for round in ["1", "2"] {
        for number in 0..10 {
            let id = format!("same-{number}");
            let event = world.event("acme", &id, round, "2026-11-15T11:30:00Z").await;
            let verdict = world.record(vec![event]).await.remove(0);
            assert_eq!(verdict == Verdict::Accepted, round == "1", "{verdict:?}");
        }
    }
    world.pass_seconds(6 * 60);
    world.look().await;
    assert_eq!(world.notices(AlertKind::ConflictRate), [Opened]);
    let alert = world.alerts().await.remove(0);
    assert_eq!(alert.subject, "acme");
    assert!(alert.summary.starts_with("10 of 20 events of acme"), "{}", alert.summary);
    world.hours(4).await;
    assert_eq!(world.notices(AlertKind::ConflictRate), [Opened, Resolved]);
}

pub async fn silence_alerts_only_where_usage_was_regular(ground: Ground) {
    let (world, _) = World::usual(ground).await;
    world.tenant("never").await;
    let look = async |hours: u32, busy: bool| {
        for _ in 0..hours {
            let moment = world.clock.now().to_string();
            if busy {
                world.used("acme", "1", &moment).await;
            }
            // Twice in all, which is not much.
            if moment.contains("T14:00") {
                world.used("rare", "1", &moment).await;
            }
            world.pass_hours(1);
            world.look().await;
        }
    };
    look(25, true).await;
    assert_eq!(world.alerts().await, []);
    look(2, false).await;
    assert_eq!(world.alerts().await, []);
    look(1, false).await;
    assert_eq!(world.notices(AlertKind::Silence), [Opened]);
    assert_eq!(world.alerts().await[0].subject, "acme");
    // It is silent for as long as it sends nothing, and told once.
    look(60, false).await;
    assert_eq!((world.notices(AlertKind::Silence), world.alerts().await.len()), (vec![Opened], 1));
    look(1, true).await;
    assert_eq!(world.notices(AlertKind::Silence), [Opened, Resolved]);
}

pub async fn quarantined_events_alert_and_are_no_sign_of_life(ground: Ground) {
    let (world, _) = World::usual(ground).await;
    // A producer that comes back after eight days.
    let send = async |hour: u32, occurred_at: String, count: usize| {
        for number in 0..count {
            let id = format!("{hour}-{number}");
            let event = world.event("acme", &id, "5", &occurred_at).await;
            world.record(vec![event]).await;
        }
        world.pass_hours(1);
        world.look().await;
    };
    for hour in 0..25 {
        send(hour, world.clock.now().to_string(), 1).await;
    }
    assert_eq!(world.alerts().await, []);
    for hour in 25..28 {
        let old = world.clock.now().saturating_add_micros(-8 * 24 * 3_600_000_000);
        send(hour, old.to_string(), 20).await;
    }
    assert_eq!(world.notices(AlertKind::QuarantineRate), [Opened]);
    assert_eq!(world.notices(AlertKind::Silence), [Opened]);
    let alerts = world.alerts().await;
    let alert = alerts.iter().find(|one| one.kind == AlertKind::QuarantineRate).unwrap();
    assert!(alert.summary.contains("events of acme were too old"), "{}", alert.summary);
    for hour in 28..34 {
        send(hour, world.clock.now().to_string(), 1).await;
    }
    assert_eq!(world.notices(AlertKind::QuarantineRate), [Opened, Resolved]);
    assert_eq!(world.notices(AlertKind::Silence), [Opened, Resolved]);
}

pub async fn waiting_webhooks_alert(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    world.work().await;
    let price = world.stripe.price("calls", "1", "month");
    world.out_of_reach("/v1/subscriptions/");
    let id = world.stripe.subscribe(&customer, &price);
    world.work().await;
    world.pass_seconds(9 * 60);
    world.work().await;
    assert_eq!(world.notices(AlertKind::WebhooksWaiting), []);
    world.pass_seconds(2 * 60);
    world.work().await;
    assert_eq!(world.notices(AlertKind::WebhooksWaiting), [Opened]);
    world.stripe.faults(Vec::new());
    world.hours(1).await;
    assert_eq!(world.notices(AlertKind::WebhooksWaiting), [Opened, Resolved]);
    assert!(world.mirror(ObjectKind::Subscription, &id).await.is_some());
}

pub async fn threshold_alerts_once_a_period(ground: Ground) {
    let (world, _) = World::usual(ground).await;
    let meter = world.meter_no("calls").await;
    for (kind, limit) in [(ThresholdKind::Threshold, "50"), (ThresholdKind::Quota, "100")] {
        let (tenant, period) = (tenant_id("acme"), ThresholdPeriod::Day);
        let created_at = world.clock.now();
        let limit = quantity(limit);
        let threshold = Threshold { tenant, meter, kind, period, limit, created_at };
        world.store.put_threshold(threshold).await.unwrap();
    }
    let settings = world.config.ingest.clone();
    let ingest = Ingest::start(Arc::clone(&world.store), world.clock.clone(), settings, false);
    let watched = Arc::clone(ingest.watched());
    let (store, holder) = (Arc::clone(&world.store), "watcher".to_owned());
    let context = Context {
        destinations: vec!["pagerduty", "email"],
        ..Context::new(store, world.clock.clone(), &world.config, holder, 1)
    };
    let watcher = ThresholdsJob::new(&context, watched);
    watcher.pass().await.unwrap();
    let mut number = 0;
    let mut submit = |quantity: &'static str| {
        number += 1;
        let (world, ingest, id) = (&world, &ingest, format!("t{number}"));
        async move {
            let now = world.clock.now().to_string();
            let event = world.event("acme", &id, quantity, &now).await;
            ingest.submit(vec![Ok(event)]).await.unwrap()
        }
    };
    let told = |world: &World| {
        (world.notices(AlertKind::UsageThreshold), world.notices(AlertKind::QuotaReached))
    };
    submit("49").await;
    assert_eq!(watcher.pass().await.unwrap(), 0);
    submit("1").await;
    assert_eq!(watcher.pass().await.unwrap(), 1);
    // A quota is told and never enforced.
    assert_eq!(submit("1000").await, [Verdict::Accepted]);
    assert_eq!(watcher.pass().await.unwrap(), 1);
    submit("1000").await;
    world.pass_seconds(90);
    assert_eq!(watcher.pass().await.unwrap(), 0, "told once");
    world.look().await;
    assert_eq!(told(&world), (vec![Opened], vec![Opened]));
    // The next day begins at nothing.
    world.go_to("2026-11-16T00:00:01Z");
    assert_eq!(watcher.pass().await.unwrap(), 2);
    world.look().await;
    assert_eq!(told(&world), (vec![Opened, Resolved], vec![Opened, Resolved]));
    submit("60").await;
    assert_eq!(watcher.pass().await.unwrap(), 1);
    world.look().await;
    assert_eq!(told(&world), (vec![Opened, Resolved, Opened], vec![Opened, Resolved]));
    // One that is taken away ends its alert.
    let (kind, period) = (ThresholdKind::Threshold, ThresholdPeriod::Day);
    let acme = tenant_id("acme");
    assert!(world.store.delete_threshold(&acme, meter, kind, period).await.unwrap());
    world.pass_seconds(61);
    assert_eq!(watcher.pass().await.unwrap(), 1);
    assert_eq!(world.alerted(AlertKind::UsageThreshold).await, (2, 0));
}

/// A row that contradicts another stops the usage it is about, and nothing else: a page names the
/// fact and the ids for as long as the process lives.
pub async fn a_fault_pages_while_others_are_billed(ground: Ground) {
    let (world, acme) = World::usual(ground).await;
    let umbrella = world.tenant("umbrella").await;
    world.used("acme", "30", "2026-11-15T11:10:00Z").await;
    world.hours(2).await;
    assert_eq!(world.stripe.sum(&acme), "30");
    world.ground.plant("UPDATE cuts SET planned = '31' WHERE total = '30'").await;
    // A late event of the broken window, and usage of another tenant in the same pass.
    world.used("acme", "5", "2026-11-15T11:20:00Z").await;
    world.used("umbrella", "7", "2026-11-15T12:30:00Z").await;
    world.hours(3).await;
    assert_eq!((world.stripe.sum(&acme), world.stripe.sum(&umbrella)), ("30".into(), "7".into()));
    assert_eq!(world.notices(AlertKind::InternalFault), [Opened], "once, however often it is met");
    let alert = world.alerts().await.into_iter().find(|one| one.kind == AlertKind::InternalFault);
    let fault = "an invariant is violated, and the operation was aborted: what was planned for a \
                 window is the sum of its pushes (tenant=acme meter=calls \
                 window=2026-11-15T11:00:00Z..2026-11-15T12:00:00Z planned=31 pushes=30)";
    assert_eq!(alert.unwrap().summary, fault);
    // What is fixed is billed; the fault is shown until the process ends.
    world.ground.plant("UPDATE cuts SET planned = '30' WHERE total = '30'").await;
    world.hours(2).await;
    assert_eq!(world.stripe.sum(&acme), "35");
    assert_eq!(world.alerted(AlertKind::InternalFault).await, (1, 1));
}
