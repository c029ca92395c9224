//! The log of webhooks: lists, one of them with its payload, and having its object read again.

use super::world::{Answer, Ground, World, each, id_of};
use counterfoil::rules::mirror::ObjectKind;
use http::Method;
use serde_json::{Value, json};

/// Three customers with subscriptions; every event was delivered, and nothing was read.
async fn told(ground: Ground) -> (World, Vec<Value>) {
    let world = World::on(ground).await;
    let price = world.price("calls", "2");
    for number in 0..3 {
        let customer = world.tenant(&format!("tenant-{number}")).await;
        world.stripe.subscribe(&customer, &price);
    }
    let events = world.events();
    for event in &events {
        world.taken(event).await;
    }
    (world, events)
}

fn ids(page: &Answer) -> Vec<String> {
    each(&page.rows("webhooks"), "event_id")
}

pub async fn log_is_filtered_and_paged(ground: Ground) {
    let (world, events) = told(ground).await;
    let newest_first: Vec<String> = events.iter().rev().map(id_of).collect();
    let list = async |query: &str| world.server.get(&format!("/v1/webhooks?{query}")).await;
    let all = list("").await;
    assert_eq!((ids(&all), &all.json()["next_before"]), (newest_first.clone(), &Value::Null));
    for limit in [1, 2, events.len() - 1, events.len(), events.len() + 1] {
        let mut found = Vec::new();
        let mut query = format!("limit={limit}");
        loop {
            let page = list(&query).await;
            assert!(page.rows("webhooks").len() <= limit);
            found.extend(ids(&page));
            let Some(before) = page.json()["next_before"].as_u64() else { break };
            query = format!("limit={limit}&before={before}");
        }
        assert_eq!(found, newest_first, "pages of {limit}");
    }
    let created = "customer.subscription.created";
    let of_type = list(&format!("type={created}&limit=2")).await;
    assert_eq!(each(&of_type.rows("webhooks"), "type"), [created, created]);
    let next = &of_type.json()["next_before"];
    assert_eq!(ids(&list(&format!("type={created}&limit=2&before={next}")).await).len(), 1);
    let count = async |status: &str| ids(&list(&format!("status={status}")).await).len();
    assert_eq!((count("waiting").await, count("applied").await), (3, 0));
    world.read_all().await;
    assert_eq!((count("waiting").await, count("applied").await), (0, 3));
    assert_eq!(count("kept").await, events.len() - 3);
    assert_eq!(count("stale").await, 0);
    assert_eq!(ids(&list(&format!("type={created}&status=kept")).await).len(), 0);
    for query in ["limit=0", "limit=1001", "limit=x", "status=lost", "before=-1", "nonsense=1"] {
        assert_eq!(list(query).await.status, 400, "{query}");
    }
    assert_eq!(ids(&list("before=18446744073709551615").await).len(), events.len());
    assert_eq!(ids(&list("before=0").await).len(), 0);
}

pub async fn payload_is_kept_byte_for_byte(ground: Ground) {
    let world = World::on(ground).await;
    // Spaces, the order of fields, long numbers and repeated names inside are the sender's own.
    let body = concat!(
        "{ \"type\" : \"charge.refunded\",\n\t\"created\": 5, \"id\":\"evt_1\", ",
        "\"b\":1.10000000000000000000001, \"a\":{\"x\":1,\"x\":2}, \"u\":\"\\u00e9\u{e9}\" }"
    );
    let taken = world.deliver_text(body).await.ok(200);
    let show = async |id: &str| world.server.get(&format!("/v1/webhooks/{id}")).await;
    let shown = show(&taken["id"].to_string()).await;
    assert_eq!(shown.ok(200)["event_id"], "evt_1");
    assert!(shown.body.contains(body), "{}", shown.body);
    for id in ["999", "0", "18446744073709551615"] {
        show(id).await.problem(404, "unknown_webhook");
    }
    for id in ["evt_1", "-1", "99999999999999999999"] {
        show(id).await.problem(400, "invalid_path");
    }
}

pub async fn replayed_webhook_is_read_again(ground: Ground) {
    let (world, events) = told(ground).await;
    let subscribed = events.iter().find(|e| e["type"] == "customer.subscription.created").unwrap();
    let object = id_of(&subscribed["data"]["object"]);
    let number = world.webhook(subscribed).await["id"].as_u64().unwrap();
    let replay = async |number: u64| {
        world.server.post_to(&format!("/v1/webhooks/{number}/replay"), "").await
    };
    // While it waits there is nothing to do again.
    let before = world.rows().await;
    assert_eq!(replay(number).await.json(), json!({ "id": number }));
    assert_eq!(world.rows().await, before);
    world.read_all().await;
    let read = world.mirror(ObjectKind::Subscription, &object).await.unwrap();
    for _ in 0..3 {
        assert_eq!(replay(number).await.status, 200);
    }
    assert_eq!(world.webhook(subscribed).await["status"], "waiting");
    assert_eq!(world.webhook(subscribed).await["settled_at"], Value::Null);
    assert_eq!(world.read_all().await, 1, "asked three times, read once");
    let again = world.mirror(ObjectKind::Subscription, &object).await.unwrap();
    assert_eq!((again.version, again.snapshot), (read.version + 1, read.snapshot));
    assert_eq!(world.webhook(subscribed).await["status"], "applied");
    assert_eq!(world.webhook(subscribed).await["deliveries"], 1);
    // What is only kept has no effect that could be repeated.
    let kept = events.iter().find(|event| event["type"] == "customer.created").unwrap();
    let kept = world.webhook(kept).await["id"].as_u64().unwrap();
    let before = world.rows().await;
    replay(kept).await.problem(409, "webhook_not_replayed");
    replay(9_999).await.problem(404, "unknown_webhook");
    replay(u64::MAX).await.problem(404, "unknown_webhook");
    assert_eq!(world.rows().await, before);
    // One that was stale tells the truth after what it told came back.
    let path = format!("/v1/subscriptions/{object}");
    world.pass_seconds(5);
    world.stripe.ask(&path, &[("cancel_at_period_end", "true")]);
    assert_eq!(replay(number).await.status, 200);
    world.read_all().await;
    assert_eq!(world.webhook(subscribed).await["status"], "stale");
    world.stripe.ask(&path, &[("cancel_at_period_end", "false")]);
    replay(number).await;
    world.read_all().await;
    assert_eq!(world.webhook(subscribed).await["status"], "applied");
}

pub async fn log_needs_a_key_with_its_scope(ground: Ground) {
    let (world, _) = told(ground).await;
    let (read, operate) =
        (world.server.key("read", None).await, world.server.key("operate", None).await);
    let bound = world.server.key("read", Some("tenant-0")).await;
    let bound_operate = world.server.key("operate", Some("tenant-0")).await;
    let ingest = world.server.key("ingest", None).await;
    let number = world.webhooks().await[0]["id"].as_u64().unwrap();
    let check = async |method: Method, path: &str, key: &str, expected: u16| {
        let answer = world.server.call(method.clone(), path, key, "").await;
        assert_eq!(answer.status, expected, "{method} {path}: {}", answer.body);
    };
    for path in ["/v1/webhooks", &format!("/v1/webhooks/{number}")] {
        for (key, expected) in
            [(read.as_str(), 200), (&bound, 403), (&ingest, 403), ("nonsense", 401)]
        {
            check(Method::GET, path, key, expected).await;
        }
    }
    let before = world.rows().await;
    let replay = format!("/v1/webhooks/{number}/replay");
    for key in [&read, &bound, &bound_operate, &ingest] {
        check(Method::POST, &replay, key, 403).await;
    }
    check(Method::GET, &replay, &operate, 405).await;
    assert_eq!(world.rows().await, before);
    check(Method::POST, &replay, &operate, 409).await;
    // A bound key sees its own timeline and no other.
    check(Method::GET, "/v1/timeline?tenant=tenant-0", &bound, 200).await;
    check(Method::GET, "/v1/timeline?tenant=tenant-1", &bound, 403).await;
    check(Method::GET, "/v1/timeline?tenant=tenant-1", &ingest, 403).await;
}
