//! Awkward contents: what is signed may still be anything.

use super::world::{Ground, SECRET, World, id_of};
use counterfoil::jobs::Job;
use counterfoil::rules::mirror::ObjectKind;
use http::Method;
use serde_json::json;
use stripe_sim::{FaultKind, FaultRule};

/// A text is the only thing that the log can show again.
pub async fn body_that_is_not_utf8_is_refused(ground: Ground) {
    let world = World::on(ground).await;
    let mut body = br#"{"id":"evt_1","type":"a","created":1,"livemode":"??"}"#.to_vec();
    let place = body.iter().position(|byte| *byte == b'?').unwrap();
    body[place] = 0xff;
    let signature = sign_bytes(&body, world.seconds());
    let answer = world.post_hook(&signature, &body).await;
    answer.problem(400, "invalid_webhook");
    assert!(world.webhooks().await.is_empty());
}

fn sign_bytes(body: &[u8], seconds: i64) -> String {
    use hmac::{Hmac, KeyInit, Mac};
    let mut mac: Hmac<sha2::Sha256> = Hmac::new_from_slice(SECRET.as_bytes()).unwrap();
    mac.update(format!("{seconds}.").as_bytes());
    mac.update(body);
    let hex: String =
        mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("t={seconds},v1={hex}")
}

/// The year 10000 has no spelling in RFC 3339. One object that names it must not keep the others
/// from being read.
pub async fn timestamp_out_of_range_harms_nothing(ground: Ground) {
    let world = World::on(ground).await;
    let customer = world.tenant("acme").await;
    let far = ["253402300800", "9000000000000", "-99999999999"];
    let mut grants = Vec::new();
    for expires in far {
        let fields = [
            ("customer", customer.as_str()),
            ("amount[type]", "monetary"),
            ("amount[monetary][currency]", "usd"),
            ("amount[monetary][value]", "500"),
            ("applicability_config[scope][price_type]", "metered"),
            ("expires_at", expires),
        ];
        grants.push(id_of(&world.stripe.ask("/v1/billing/credit_grants", &fields)));
    }
    let price = world.price("calls", "2");
    let subscription = world.stripe.subscribe(&customer, &price);
    for event in world.events() {
        world.taken(&event).await;
    }
    world.read_all().await;
    assert!(world.mirror(ObjectKind::Subscription, &subscription).await.is_some());
    for grant in &grants {
        assert!(world.mirror(ObjectKind::CreditGrant, grant).await.is_some());
    }
    assert_eq!(world.get("/v1/health/billing").await["webhooks_waiting"], 0);
    assert_eq!(world.get("/v1/timeline?tenant=acme").await["credit_grants"][0]["amount"], 500);
    // An event of such a moment is refused, or it can be shown.
    for created in [253_402_300_800_i64, 9_000_000_000_000, -99_999_999_999] {
        let event = json!({ "id": format!("evt_{created}"), "type": "a", "created": created });
        world.deliver(&event).await.problem(400, "invalid_webhook");
    }
    world.webhooks().await;
}

pub async fn a_payload_with_nul_is_kept(ground: Ground) {
    let world = World::on(ground).await;
    let customer = world.tenant("acme").await;
    let event = json!({
        "id": "evt_1", "type": "customer.subscription.updated", "created": world.seconds(),
        "data": { "object": {
            "id": "sub_1", "object": "subscription", "customer": customer, "status": "act\u{0}ive",
            "metadata": { "a\u{0}": "\u{0}" }, "items": { "data": [{ "price": { "id": "p\u{0}" } }] },
        } },
        "detail": "\u{0}\u{feff}\u{2028}",
    });
    let (number, _) = world.taken(&event).await;
    let shown = world.get(&format!("/v1/webhooks/{number}")).await;
    assert_eq!(shown["payload"], event);
    world.read_all().await;
    assert_eq!(world.webhook(&event).await["status"], "stale", "the provider knows no sub_1");
    // What a broken proxy says in place of the provider is kept as the reason.
    world.stripe.faults(vec![FaultRule::new(FaultKind::Garbage200).times(1)]);
    assert_eq!(
        world
            .server
            .call(Method::POST, &format!("/v1/webhooks/{number}/replay"), &world.server.admin, "")
            .await
            .status,
        200
    );
    world.jobs.mirror.pass().await.unwrap();
    let waiting = world.webhook(&event).await;
    assert_eq!(waiting["status"], "waiting");
    assert!(waiting["detail"].is_string(), "{waiting}");
}

pub async fn a_type_with_control_characters_is_refused(ground: Ground) {
    let world = World::on(ground).await;
    let long = "a".repeat(256);
    for query in ["type=%00", "type=", "type=a%0Ab", "type=%7F", &format!("type={long}")] {
        let answer = world
            .server
            .call(Method::GET, &format!("/v1/webhooks?{query}"), &world.server.admin, "")
            .await;
        assert_eq!(answer.status, 400, "{query}: {}", answer.body);
    }
    assert_eq!(world.get("/v1/webhooks?type=a.b").await["webhooks"], json!([]));
}
