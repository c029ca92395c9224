//! Outages: of the store, of the provider, and of room in the queue.

use super::world::{Ground, SECRET, World, hook, send};
use counterfoil::jobs::Job;
use counterfoil::rules::mirror::ObjectKind;
use serde_json::{Value, json};
use stripe_sim::{FaultKind, FaultRule, sign};

const MINUTE: i64 = 60;

pub async fn webhooks_wait_while_the_store_is_down(ground: Ground) {
    let (world, subscription, event) = World::subscribed(ground).await;
    let before = world.rows().await;
    world.store_faults.set_down(true);
    for _ in 0..3 {
        let answer = world.deliver(&event).await;
        let problem = answer.problem(503, "store_unavailable");
        assert!(!problem.to_string().contains("secret detail"));
    }
    assert!(world.jobs.mirror.pass().await.is_err());
    assert!(world.jobs.backfill.pass().await.is_err());
    assert!(world.jobs.alerter.pass().await.is_err());
    // A forgery is refused all the same, without asking the store.
    let forged = world.post_hook("t=1,v1=00", b"{}").await;
    forged.problem(400, "invalid_signature");
    world.store_faults.set_down(false);
    assert_eq!(world.rows().await, before);
    assert!(!world.taken(&event).await.1, "the retry is the first");
    assert_eq!(world.webhooks().await.len(), 1);
    assert_eq!(world.webhooks().await[0]["deliveries"], 1);
    assert_eq!(world.read_all().await, 1);
    // Down between the reading and its record: it is read again when the lease ends.
    let path = format!("/v1/webhooks/{}/replay", world.webhooks().await[0]["id"]);
    world.server.post_to(&path, "").await.ok(200);
    world.store_faults.set_down(true);
    assert!(world.jobs.mirror.pass().await.is_err());
    world.store_faults.set_down(false);
    world.pass_seconds(10 * MINUTE);
    assert_eq!(world.read_all().await, 1);
    assert_eq!(world.mirror(ObjectKind::Subscription, &subscription).await.unwrap().version, 2);
}

pub async fn full_queue_refuses_webhooks(ground: Ground) {
    let world = World::on(ground).await;
    let closed = world.store_faults.webhooks_gate.write().await;
    let mut waiting = Vec::new();
    let mut refused = Vec::new();
    // The first is taken out of the queue and waits at the gate; then the queue fills.
    for number in 0..4_000 {
        let event = json!({ "id": format!("evt_{number}"), "type": "a", "created": 5 }).to_string();
        let signature = sign(SECRET, world.seconds(), &event);
        let (router, request) =
            (world.server.routes.clone(), hook(Some(&signature), event.as_bytes()));
        let mut task = tokio::spawn(async move { send(&router, request).await });
        tokio::select! {
            biased;
            answer = &mut task => refused.push((event, answer.unwrap())),
            () = tokio::task::yield_now() => waiting.push(task),
        }
        if !refused.is_empty() {
            break;
        }
    }
    // Those that were sent last may have been refused, too, before anyone looked.
    drop(closed);
    let mut taken = 0;
    for task in waiting {
        let answer = task.await.unwrap();
        match answer.status {
            200 => taken += 1,
            _ => refused.push((String::new(), answer)),
        }
    }
    assert!(!refused.is_empty(), "somewhere there is an end");
    for (_, answer) in &refused {
        answer.problem(503, "store_unavailable");
    }
    assert!((2_048..=3_000).contains(&taken), "{taken}");
    assert_eq!(world.webhooks().await.len(), taken, "who was answered is stored, nobody else");
    let again = json!({ "id": "evt_last", "type": "a", "created": 5 });
    assert!(!world.taken(&again).await.1, "there is room again");
}

pub async fn objects_are_read_after_a_provider_outage(ground: Ground) {
    let (mut world, subscription, event) = World::subscribed(ground).await;
    world.stripe.handle.stop().await.unwrap();
    assert!(!world.taken(&event).await.1, "it is taken all the same");
    assert_eq!(world.jobs.mirror.pass().await.unwrap(), 1);
    let waiting = world.webhook(&event).await;
    assert_eq!(waiting["status"], "waiting");
    let detail = waiting["detail"].as_str().expect("the reason is shown").to_owned();
    assert!(!detail.is_empty() && !detail.contains("sk_test_webhooks"), "{detail}");
    assert_eq!(world.jobs.mirror.pass().await.unwrap(), 0, "it is put off");
    assert_eq!(world.get("/v1/health/billing").await["webhooks_waiting"], 1);
    let listed = world.get("/v1/webhooks?status=waiting").await;
    assert_eq!(listed["webhooks"][0]["detail"], detail.as_str());

    world.jobs.alerter.pass().await.unwrap();
    world.pass_seconds(10 * MINUTE - 1);
    world.jobs.alerter.pass().await.unwrap();
    assert!(world.alerts("webhooks_waiting").await.is_empty());
    world.pass_seconds(1);
    world.jobs.alerter.pass().await.unwrap();
    world.jobs.alerter.pass().await.unwrap();
    let open = world.alerts("webhooks_waiting").await;
    assert_eq!(open.len(), 1);
    assert_eq!(open[0]["resolved_at"], Value::Null);
    // Repeats while it is down change nothing; what is new joins the queue.
    assert!(world.taken(&event).await.1);
    world.jobs.mirror.pass().await.unwrap();

    world.stripe.handle.restart().await.unwrap();
    world.pass_seconds(3_600);
    assert_eq!(world.read_all().await, 1);
    let applied = world.webhook(&event).await;
    assert_eq!((&applied["status"], &applied["detail"]), (&json!("applied"), &Value::Null));
    assert_eq!(world.mirror(ObjectKind::Subscription, &subscription).await.unwrap().version, 1);
    world.jobs.alerter.pass().await.unwrap();
    let ended = world.alerts("webhooks_waiting").await;
    assert_eq!(ended.len(), 1);
    assert!(ended[0]["resolved_at"].is_string());

    // Other ways of being down: each leaves it waiting, and none makes up an object.
    for kind in [
        FaultKind::Error500NotExecuted,
        FaultKind::Error503,
        FaultKind::Garbage200,
        FaultKind::ResetMidBody,
        FaultKind::RateLimited429,
        FaultKind::LostBefore,
    ] {
        world.pass_seconds(MINUTE);
        let path = format!("/v1/subscriptions/{subscription}");
        world.stripe.ask(&path, &[("metadata[fault]", kind.name())]);
        let event = world.events_of(&subscription).pop().unwrap();
        world.stripe.faults(vec![FaultRule::new(kind).on_path("/v1/subscriptions").times(50)]);
        world.taken(&event).await;
        world.jobs.mirror.pass().await.unwrap();
        let waiting = world.webhook(&event).await;
        assert_eq!(waiting["status"], "waiting", "{}: {waiting}", kind.name());
        assert!(waiting["detail"].is_string(), "{}", kind.name());
        world.stripe.faults(Vec::new());
        world.pass_seconds(3_600);
        world.read_all().await;
        assert_eq!(world.webhook(&event).await["status"], "applied", "{}", kind.name());
    }
}
