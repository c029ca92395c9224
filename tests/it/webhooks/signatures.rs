//! Signatures at the endpoint: whatever is not signed with an active secret over exactly these
//! bytes, just now, is refused and leaves no trace but a counter.

use super::world::{Ground, OLD_SECRET, SECRET, World, hook, send};
use counterfoil::jobs::Job;
use serde_json::{Value, json};
use stripe_sim::sign;

/// A world in which something was received and read, so that there are rows to leave alone.
async fn busy(ground: Ground) -> (World, Value) {
    let world = World::with(ground, &format!("{SECRET},{OLD_SECRET}")).await;
    let customer = world.tenant("acme").await;
    let price = world.price("calls", "2");
    world.stripe.subscribe(&customer, &price);
    let created = world.events().pop().unwrap();
    world.taken(&created).await;
    world.read_all().await;
    world.jobs.backfill.pass().await.unwrap();
    let fresh = json!({
        "id": "evt_forged", "object": "event", "type": "customer.subscription.updated",
        "created": world.seconds(), "data": created["data"].clone(),
    });
    (world, fresh)
}

pub async fn forgeries_leave_no_trace(ground: Ground) {
    let (world, event) = busy(ground).await;
    let body = event.to_string();
    let now = world.seconds();
    let good = sign(SECRET, now, &body);
    let hex = good.split_once("v1=").unwrap().1.to_owned();
    let upper = format!("t={now},v1={}", hex.to_uppercase());
    let pretty = serde_json::to_string_pretty(&event).unwrap();
    let large = format!("{body}{}", " ".repeat(1024 * 1024));
    let many: String = (0..40).map(|_| format!(",v1={}", "0".repeat(64))).collect();
    let cases: Vec<(&str, Option<String>, &str, &str)> = vec![
        ("mismatch", Some(format!("t={now},v1={}", "ab".repeat(32))), &body, "forged"),
        ("mismatch", Some(sign("whsec_other", now, &body)), &body, "wrong secret"),
        ("mismatch", Some(sign("", now, &body)), &body, "the empty secret"),
        ("mismatch", Some(sign("new", now, &body)), &body, "the secret without its prefix"),
        ("mismatch", Some(good.clone()), &pretty, "written anew"),
        ("mismatch", Some(good.clone()), "", "no body"),
        ("mismatch", Some(format!("t={},v1={hex}", now + 1)), &body, "another moment"),
        ("mismatch", Some(format!("t=0{now},v1={hex}")), &body, "another spelling of the moment"),
        ("mismatch", Some(format!("t={now}{many},v1={hex}")), &body, "after too many signatures"),
        ("expired", Some(sign(SECRET, now - 301, &body)), &body, "expired"),
        ("expired", Some(sign(SECRET, now + 301, &body)), &body, "from the future"),
        ("expired", Some(sign(SECRET, 0, &body)), &body, "from 1970"),
        ("expired", Some(sign(SECRET, i64::MAX, &body)), &body, "from the end of time"),
        ("unsigned", None, &body, "no header"),
        ("unsigned", Some(String::new()), &body, "an empty header"),
        ("unsigned", Some(upper), &body, "upper-case hex"),
        ("unsigned", Some(format!("v1={hex}")), &body, "no moment"),
        ("unsigned", Some(format!("t={now},v0={hex}")), &body, "another scheme"),
        ("unsigned", Some(format!("t={now},v1=")), &body, "an empty signature"),
        ("unsigned", Some(format!("t={now},v1={}", &hex[..62])), &body, "a short signature"),
        ("unsigned", Some(format!("t=-{now},v1={hex}")), &body, "a negative moment"),
        ("unsigned", Some(format!("t= {now},v1={hex}")), &body, "a space before the moment"),
    ];
    let before = world.rows().await;
    assert!(before.iter().any(|row| row.starts_with("timeline_entries")), "{before:#?}");
    for (reason, signature, body, what) in cases {
        let counted = world.refused(reason).await;
        let answer = send(&world.server.routes, hook(signature.as_deref(), body.as_bytes())).await;
        assert_eq!(answer.status, 400, "{what}: {}", answer.body);
        answer.problem(400, "invalid_signature");
        assert!(!answer.body.contains(SECRET), "{what}");
        assert!(world.refused(reason).await > counted, "{what} is counted as {reason}");
        assert_eq!(world.rows().await, before, "{what}");
    }
    let counted = world.refused("too_large").await;
    let answer = world.post_hook(&sign(SECRET, now, &large), large.as_bytes()).await;
    answer.problem(413, "body_too_large");
    assert!(world.refused("too_large").await > counted);
    assert_eq!(world.rows().await, before, "too large");
    // The same bytes, well signed, are taken: nothing above had burnt the event.
    assert_eq!(world.post_hook(&good, body.as_bytes()).await.status, 200);
    assert_ne!(world.rows().await, before);
}

pub async fn both_secrets_are_accepted_during_a_rotation(ground: Ground) {
    let world = World::with(ground, &format!("{SECRET}, {OLD_SECRET}")).await;
    let signed = |number: u32, secrets: &[&str]| {
        let event =
            json!({ "id": format!("evt_{number}"), "type": "charge.refunded", "created": 1 });
        let body = event.to_string();
        let now = world.seconds();
        let mut header = format!("t={now}");
        for secret in secrets {
            let signed = sign(secret, now, &body);
            header.push_str(&format!(",v1={}", signed.split_once("v1=").unwrap().1));
        }
        (header, body)
    };
    let several: [&[&str]; 5] = [
        &[SECRET],
        &[OLD_SECRET],
        &[OLD_SECRET, SECRET],
        &["whsec_elsewhere", SECRET],
        &[OLD_SECRET, "whsec_elsewhere", "whsec_more"],
    ];
    for (number, secrets) in several.iter().enumerate() {
        let (header, body) = signed(u32::try_from(number).unwrap(), secrets);
        let answer = world.post_hook(&header, body.as_bytes()).await;
        assert_eq!(answer.status, 200, "{secrets:?}: {}", answer.body);
    }
    // Spaces and schemes we do not know are passed over.
    let (header, body) = signed(9, &[SECRET]);
    let spaced = format!("v0=00, {}, v9=zz", header.replace(',', " , "));
    let answer = world.post_hook(&spaced.replace(" ,", ","), body.as_bytes()).await;
    assert_eq!(answer.status, 200, "{spaced}: {}", answer.body);
    assert_eq!(world.webhooks().await.len(), 6);
}

pub async fn revoked_secret_is_refused(ground: Ground) {
    let world = World::with(ground, &format!("{SECRET},{OLD_SECRET}")).await;
    let body = json!({ "id": "evt_1", "type": "charge.refunded", "created": 1 }).to_string();
    let signature = sign(OLD_SECRET, world.seconds(), &body);
    let after = world.other_routes(SECRET);
    let refused = send(&after, hook(Some(&signature), body.as_bytes())).await;
    refused.problem(400, "invalid_signature");
    assert!(world.webhooks().await.is_empty());
    let before = send(&world.server.routes, hook(Some(&signature), body.as_bytes())).await;
    assert_eq!(before.status, 200, "the server that still knows it takes it");
}

pub async fn webhooks_are_refused_without_a_secret(ground: Ground) {
    let world = World::with(ground, " , ").await;
    let body = json!({ "id": "evt_1", "type": "charge.refunded", "created": 1 }).to_string();
    for secret in ["", "whsec_1", ","] {
        let signature = sign(secret, world.seconds(), &body);
        let answer = world.post_hook(&signature, body.as_bytes()).await;
        answer.problem(503, "webhooks_not_set_up");
    }
    assert!(world.webhooks().await.is_empty());
}

pub async fn signature_is_valid_for_five_minutes(ground: Ground) {
    let world = World::on(ground).await;
    let mut number = 0;
    for offset in [-301, -300, 0, 300, 301] {
        number += 1;
        let event = json!({ "id": format!("evt_{number}"), "type": "a", "created": 1 }).to_string();
        let signature = sign(SECRET, world.seconds() + offset, &event);
        let answer = world.post_hook(&signature, event.as_bytes()).await;
        let expected = if i64::abs(offset) <= 300 { 200 } else { 400 };
        assert_eq!(answer.status, expected, "{offset}");
    }
    // A retry is signed anew, so an old event is taken however old it is.
    let old = json!({ "id": "evt_old", "type": "a", "created": 1 });
    assert_eq!(world.deliver(&old).await.status, 200);
    assert_eq!(world.webhooks().await.len(), 4);
}
