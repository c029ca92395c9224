//! Pushes that the provider took and then refused, told by a thin report.

use super::world::{Ground, World};
use crate::world::serve_on_loopback;
use counterfoil::jobs::Job;
use counterfoil::rules::alert::{AlertKind, NoticeEvent};
use counterfoil::rules::drift::{Reason, Verdict};
use counterfoil::rules::finding::FindingKind;
use counterfoil::rules::submission::{Class, PushState};
use counterfoil::store::push::Ruling;
use serde_json::{Value, json};
use std::sync::Arc;
use stripe_sim::FaultKind;

const POSTS: &str = "POST /v1/billing/meter_events";
const CODE: &str = "meter_event_customer_not_found";

pub async fn reported_push_is_dead_until_the_cause_is_fixed(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    // However often the report comes.
    world.copy_webhooks(3);
    world.stripe.fault(FaultKind::AsyncRejection, 1);
    world.used("acme", "30", "2026-11-15T11:10:00Z").await;
    world.used("acme", "200", "2026-11-15T12:00:00Z").await;
    world.hours(1).await;
    world.check_pushes(&[("30", PushState::Dead, Class::Refused)]).await;
    let push = world.pushes().await.remove(0);
    assert!(push.detail.as_ref().unwrap().contains(CODE), "{push:?}");
    assert_eq!(world.pages(), [AlertKind::DeadLetters]);
    let unbilled = world.alerts().await.into_iter().find(|one| one.kind == AlertKind::Unbilled);
    assert!(unbilled.unwrap().summary.contains("30 of calls"));
    world.check_finding(Verdict::Replay, Reason::Refused, false).await;
    world.hours(2).await;
    world.check_finding(Verdict::Replay, Reason::Refused, true).await;
    // Nothing is sent again before a person says so.
    assert_eq!((world.stripe.calls(POSTS), world.stripe.sum(&customer)), (2, "200".into()));
    let ruled = world.store.retry_push(push.number, world.clock.now()).await.unwrap();
    assert!(matches!(ruled, Ruling::Done(Some(_))), "{ruled:?}");
    world.hours(3).await;
    assert_eq!((world.stripe.calls(POSTS), world.stripe.sum(&customer)), (3, "230".into()));
    assert_eq!(world.planned_sum().await, "230");
    assert!(world.open_findings(FindingKind::Usage).await.is_empty());
    for kind in [AlertKind::DeadLetters, AlertKind::Unbilled, AlertKind::DriftUnresolved] {
        assert_eq!(world.notices(kind), [NoticeEvent::Opened, NoticeEvent::Resolved], "{kind:?}");
    }
    // The report once more, late: the push it names is long replaced.
    let report =
        world.stripe.get("/v2/core/events?types[0]=v1.billing.meter.error_report_triggered");
    assert!(!world.receive(&report["data"][0].to_string()).await);
    world.hours(2).await;
    assert_eq!((world.stripe.calls(POSTS), world.stripe.sum(&customer)), (3, "230".into()));
}

pub async fn a_report_that_was_missed_is_found(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    world.lose_webhooks(true);
    world.stripe.fault(FaultKind::AsyncRejection, 1);
    world.used("acme", "30", "2026-11-15T11:10:00Z").await;
    world.hours(1).await;
    world.check_pushes(&[("30", PushState::Submitted, Class::Accepted)]).await;
    world.hours(1).await;
    world.check_pushes(&[("30", PushState::Dead, Class::Refused)]).await;
    assert_eq!(world.stripe.sum(&customer), "0");
}

pub async fn a_report_about_what_was_confirmed_changes_nothing(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    world.lose_webhooks(true);
    world.stripe.fault(FaultKind::AsyncRejection, 1);
    world.used("acme", "30", "2026-11-15T11:10:00Z").await;
    world.go_to("2026-11-15T13:00:00Z");
    world.send().await;
    // Somebody has entered it by hand meanwhile.
    world.stripe.foreign(&customer, "calls", "30", "2026-11-15T11:30:00Z");
    world.pass_seconds(20 * 60);
    world.jobs.confirmer.pass().await.unwrap();
    world.check_pushes(&[("30", PushState::Confirmed, Class::Confirmed)]).await;
    world.go_to("2026-11-15T14:00:00Z");
    world.work().await;
    world.rest(30).await;
    let state = (PushState::Reconciled, Class::Reconciled);
    world.check_pushes(&[("30", state.0, state.1)]).await;
    assert_eq!((world.stripe.calls(POSTS), world.stripe.sum(&customer)), (1, "30".into()));
}

/// A server that answers these paths.
async fn stub(answers: Vec<(String, Value)>) -> String {
    let answers = Arc::new(answers);
    let answer = move |uri: axum::http::Uri| {
        let answers = Arc::clone(&answers);
        async move {
            let found = answers.iter().find(|(path, _)| path == uri.path());
            let body = found.unwrap_or_else(|| panic!("{uri}")).1.clone();
            // A clock that contradicts the others would stop the jobs.
            ([("date", "Sun, 15 Nov 2026 15:00:06 GMT")], axum::Json(body))
        }
    };
    serve_on_loopback(axum::Router::new().fallback(answer)).await
}

pub async fn reports_name_pushes_in_both_shapes(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    world.go_to("2026-11-15T14:30:00Z");
    for (quantity, at) in [("1", "11"), ("20", "12"), ("300", "13")] {
        world.used("acme", quantity, &format!("2026-11-15T{at}:10:00Z")).await;
    }
    world.go_to("2026-11-15T15:00:00Z");
    while world.pushes().await.iter().filter(|push| push.attempts > 0).count() < 3 {
        world.send().await;
    }
    let pushes = world.pushes().await;
    pushes.iter().for_each(|push| world.stripe.lose(&push.key));
    // One report names one push in each of the shapes that were seen, and speaks of three.
    let meters = world.stripe.get("/v1/billing/meters");
    let sample = |request: Value| json!({ "error_message": "no", "request": request });
    let report = json!({
        "id": "evt_test_shapes", "object": "v2.core.event", "created": "2026-11-15T15:00:05Z",
        "type": "v1.billing.meter.error_report_triggered",
        "related_object": { "id": meters["data"][0]["id"], "type": "billing.meter" },
        "data": {
            "validation_start": "2026-11-15T15:00:00Z", "validation_end": "2026-11-15T15:00:10Z",
            "reason": { "error_count": 3, "error_types": [{
                "code": CODE, "error_count": 3, "sample_errors": [
                    sample(json!({ "identifier": pushes[0].key })),
                    // After a stored failure the request's key has a suffix.
                    sample(json!({
                        "id": "req_1", "idempotency_key": format!("{}.1", pushes[1].key)
                    })),
                    sample(json!({ "identifier": "of-somebody-else" })),
                ],
            }]},
        },
    });
    let base = stub(vec![
        ("/v2/core/events/evt_test_shapes".into(), report.clone()),
        ("/v1/billing/meters".into(), meters),
    ])
    .await;
    let other = world.other_server(|config| config.stripe.api_base = base);
    world.pass_seconds(6);
    let mut thin = report;
    thin.as_object_mut().unwrap().remove("data");
    assert!(world.receive(&thin.to_string()).await);
    assert_eq!(other.mirror.pass().await.unwrap(), 1);
    let told = || async {
        let pushes = world.pushes().await;
        pushes.iter().map(|push| (push.state, push.class)).collect::<Vec<_>>()
    };
    let refused = (PushState::Dead, Class::Refused);
    assert_eq!(told().await, [refused, refused, (PushState::Submitted, Class::Accepted)]);
    let third = world.store.trace_push(pushes[2].number).await.unwrap().unwrap();
    assert!(third.push.due_at <= world.clock.now(), "it is looked for at once: {third:?}");
    assert_eq!(third.transitions.last().unwrap().class, Class::Unknown);
    // Its absence is proved in time, and it is sent again; the two that were named wait.
    world.rest(30).await;
    assert_eq!(world.stripe.sum(&customer), "300");
    for push in &pushes[..2] {
        world.store.retry_push(push.number, world.clock.now()).await.unwrap();
    }
    world.hours(2).await;
    assert_eq!(
        (world.stripe.sum(&customer), world.planned_sum().await),
        ("321".into(), "321".into())
    );
    assert_eq!(world.stripe.calls(POSTS), 6);
    assert!(world.stripe.lock().repeats().refused == 0);
}
