//! What is well signed and still refused, and what is only kept.

use super::world::{Ground, World};
use serde_json::json;

pub async fn webhook_without_an_id_is_refused(ground: Ground) {
    let world = World::on(ground).await;
    let before = world.rows().await;
    let counted = world.refused("webhook_without_id").await;
    let subscription = json!({ "id": "sub_1", "object": "subscription", "customer": "cus_1" });
    let cases = [
        json!({ "type": "customer.subscription.updated", "created": 5,
            "data": { "object": subscription } }),
        json!({ "id": null, "type": "a", "created": 5 }),
        json!({ "id": "", "type": "a", "created": 5 }),
        json!({ "id": "evt\u{0}1", "type": "a", "created": 5 }),
        json!({ "id": "evt_1\n", "type": "a", "created": 5 }),
        json!({ "id": "e".repeat(256), "type": "a", "created": 5 }),
        // The id of its twin is not its own.
        json!({ "type": "v1.a", "created": "2026-11-15T12:00:00Z", "snapshot_event": "evt_1" }),
    ];
    for event in &cases {
        world.deliver(event).await.problem(400, "webhook_without_id");
        assert_eq!(world.rows().await, before, "{event}");
    }
    assert!(world.refused("webhook_without_id").await >= counted + 7);
}

pub async fn body_that_is_no_event_is_refused(ground: Ground) {
    let world = World::on(ground).await;
    let before = world.rows().await;
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let cases = [
        "",
        "{",
        "null",
        "[]",
        "\"evt_1\"",
        "{\"id\":\"evt_1\"",
        r#"{"id":"evt_1","type":"a","created":1} {"id":"evt_2","type":"a","created":1}"#,
        r#"{"id":"evt_1","id":"evt_2","type":"a","created":1}"#,
        r#"{"id":5,"type":"a","created":1}"#,
        r#"{"id":"evt_1","type":5,"created":1}"#,
        r#"{"id":"evt_1","type":"","created":1}"#,
        r#"{"id":"evt_1","created":1}"#,
        r#"{"id":"evt_1","type":"a"}"#,
        r#"{"id":"evt_1","type":"a","created":null}"#,
        r#"{"id":"evt_1","type":"a","created":1.5}"#,
        r#"{"id":"evt_1","type":"a","created":"yesterday"}"#,
        r#"{"id":"evt_1","type":"a","created":9223372036854775807}"#,
        r#"{"id":"evt_1","type":"a","created":-9223372036854775808}"#,
        r#"{"id":"evt_1","type":"a","created":1e400}"#,
        r#"{"id":"evt_1","type":"a","created":1,"related_object":"sub_1"}"#,
        &deep,
    ];
    for body in cases {
        let answer = world.deliver_text(body).await;
        assert_eq!(answer.status, 400, "{}: {}", &body[..body.len().min(80)], answer.body);
        answer.problem(400, "invalid_webhook");
        assert_eq!(world.rows().await, before, "{}", &body[..body.len().min(80)]);
    }
}

pub async fn unknown_types_are_kept_and_acknowledged(ground: Ground) {
    let world = World::on(ground).await;
    let mut number = 0;
    let mut event = |event_type: &str, rest: serde_json::Value| {
        number += 1;
        let mut event = json!({ "id": format!("evt_{number}"), "type": event_type, "created": 7 });
        event.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        event
    };
    let kept = [
        event(
            "charge.refunded",
            json!({ "data": { "object": { "id": "ch_1", "object": "charge" } } }),
        ),
        event("of.the.future", json!({})),
        event("invoice.upcoming", json!({ "data": { "object": { "object": "invoice" } } })),
        event(
            "customer.updated",
            json!({ "data": { "object": { "id": "cus_1", "object": "customer" } } }),
        ),
        event(
            "v1.product.created",
            json!({ "related_object": { "id": "prod_1", "type": "product" } }),
        ),
        event("invoice.paid", json!({ "data": null })),
        event("invoice.paid", json!({ "data": { "object": "in_1" } })),
        event(
            "customer.subscription.updated",
            json!({ "data": { "object": { "id": "a\u{0}b", "object": "subscription" } } }),
        ),
    ];
    for event in &kept {
        assert!(!world.taken(event).await.1, "{event}");
        assert!(world.taken(event).await.1, "{event}");
        let hook = world.webhook(event).await;
        assert_eq!(hook["status"], "kept", "{event}");
        assert_eq!((&hook["object_kind"], &hook["object_id"]), (&json!(null), &json!(null)));
        assert_eq!(hook["deliveries"], 2);
        assert_eq!(hook["settled_at"], hook["received_at"]);
    }
    assert_eq!(world.read_all().await, 0, "nothing is read for what is kept");
    assert_eq!(world.get("/v1/health/billing").await["webhooks_waiting"], 0);
}
