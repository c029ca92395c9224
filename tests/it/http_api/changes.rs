//! Changes as others are told of them: in their order, to those whom they concern, until they are
//! taken; and dunning, once for each stage.

use super::credits::{billing, cut, issue, usage};
use crate::world::{Ground, Receiver, Server, at, default_config, each};
use counterfoil::config::Secret;
use counterfoil::destinations::ChangeWebhook;
use counterfoil::jobs::credits::CreditsJob;
use counterfoil::jobs::dunning::DunningJob;
use counterfoil::jobs::outbox::{OutboxJob, Receivers};
use counterfoil::jobs::sweep::SweepJob;
use counterfoil::jobs::{Context, Job};
use counterfoil::rules::ids::CustomerId;
use counterfoil::rules::invoice::Invoice;
use counterfoil::rules::mirror::{ObjectKind, ObjectName, Snapshot};
use counterfoil::rules::span::Span;
use counterfoil::rules::timestamp::MICROS_PER_HOUR;
use counterfoil::rules::window::Window;
use counterfoil::store::outbox::Queue;
use counterfoil::store::webhook::MirrorReading;
use serde_json::{Value, json};
use std::sync::Arc;

/// Base64 of the bytes below, as `base64` prints it.
const SECRET: &str = "whsec_Y291bnRlcmZvaWwtYWxlcnQtc2VjcmV0LWZvci10ZXN0cyEh";
const SECRET_BYTES: &[u8] = b"counterfoil-alert-secret-for-tests!!";

async fn changes(server: &Server, query: &str) -> Vec<Value> {
    server.get(&format!("/v1/changes?{query}")).await.rows("changes")
}

fn grant(amount: &str) -> Value {
    json!({
        "pool": "granted", "unit": "eur", "amount": amount, "rates": {"calls": "1"},
        "effective_at": "2026-11-10T00:00:00Z", "memo": "welcome",
    })
}

pub async fn all_that_happens_to_credits_is_told_in_its_order(ground: Ground) {
    let server = billing(ground).await;
    let used_up = issue(&server, "acme", "a", &grant("4")).await;
    let mut short = grant("5");
    short["expires_at"] = "2026-11-15T06:00:00Z".into();
    issue(&server, "acme", "b", &short).await;
    let taken = issue(&server, "acme", "c", &grant("6")).await;
    let path = format!("/v1/tenants/acme/grants/{taken}/void");
    assert_eq!(server.once(&path, "t", r#"{"amount":"6"}"#).await.status, 200);
    usage(&server, ("acme", "calls"), "9", "2026-11-15T07:30:00Z").await;
    cut(&server).await;
    server.clock.advance(48 * MICROS_PER_HOUR);
    cut(&server).await;
    let expirer = CreditsJob::new(&server.context(|config| config.ingest.accept_horizon_hours = 1));
    assert_eq!(expirer.pass().await.unwrap(), 1);
    let told = changes(&server, "").await;
    let kinds = ["issued", "issued", "issued", "voided", "exhausted", "expired"];
    assert_eq!(each(&told, "kind"), kinds.map(|kind| format!("credits.{kind}")));
    let numbers: Vec<u64> = told.iter().map(|change| change["number"].as_u64().unwrap()).collect();
    assert!(numbers.is_sorted_by(|one, two| one < two), "{numbers:?}");
    let ids: std::collections::BTreeSet<_> = told.iter().map(|one| one["id"].to_string()).collect();
    assert_eq!(ids.len(), 6);
    assert_eq!(told[4]["data"]["grant"], used_up, "{}", told[4]);
    insta::assert_snapshot!(told[0], @r#"{"at":"2026-11-15T12:00:00Z","data":{"amount":"4","at":"2026-11-15T12:00:00Z","grant":1,"kind":"issued","remaining":"4","tenant":"acme","unit":"eur"},"id":"msg_ba88c24835654e85da3ddc8a","kind":"credits.issued","number":1,"tenant":"acme"}"#);
    insta::assert_snapshot!(told[3], @r#"{"at":"2026-11-15T12:00:00Z","data":{"amount":"6","at":"2026-11-15T12:00:00Z","grant":3,"kind":"voided","remaining":"0","tenant":"acme","unit":"eur"},"id":"msg_1a8d62b02d2321d606773cc4","kind":"credits.voided","number":4,"tenant":"acme"}"#);
    insta::assert_snapshot!(told[5], @r#"{"at":"2026-11-17T12:00:00Z","data":{"amount":"5","at":"2026-11-17T12:00:00Z","grant":2,"kind":"expired","remaining":"0","tenant":"acme","unit":"eur"},"id":"msg_a14c10088498ccc24560ee56","kind":"credits.expired","number":6,"tenant":"acme"}"#);
    // Told once, however often it is looked at.
    cut(&server).await;
    assert_eq!(expirer.pass().await.unwrap(), 0);
    assert_eq!(changes(&server, "").await, told);
}

pub async fn whoever_remembers_the_last_number_misses_nothing(ground: Ground) {
    let server = billing(ground).await;
    let empty = server.get("/v1/changes").await.json();
    assert_eq!(empty, json!({"changes": [], "last": null}));
    for (number, tenant) in ["acme", "globex", "acme", "globex", "acme"].iter().enumerate() {
        issue(&server, tenant, &format!("k{number}"), &grant("1")).await;
    }
    let all = changes(&server, "").await;
    let (mut after, mut seen) = (0, Vec::new());
    loop {
        let page = server.get(&format!("/v1/changes?limit=2&after={after}")).await.json();
        let Some(last) = page["last"].as_u64() else { break };
        seen.extend(page["changes"].as_array().unwrap().clone());
        after = last;
    }
    assert_eq!(seen, all);
    issue(&server, "acme", "more", &grant("1")).await;
    let new = changes(&server, &format!("after={after}")).await;
    assert_eq!(new.len(), 1, "only what is new");
    let of_globex = changes(&server, "tenant=globex").await;
    assert_eq!(each(&of_globex, "tenant"), ["globex", "globex"]);
    assert_eq!(changes(&server, "tenant=nobody").await.len(), 0);
    let bound = server.key("read", Some("globex")).await;
    assert_eq!(server.get_as(&bound, "/v1/changes").await.rows("changes"), of_globex);
    let other = server.get_as(&bound, "/v1/changes?tenant=acme").await;
    other.problem(403, "tenant_forbidden");
    let ingest = server.key("ingest", None).await;
    server.get_as(&ingest, "/v1/changes").await.problem(403, "scope_missing");
    for after in ["9007199254740991", "9223372036854775807", "18446744073709551615"] {
        for tenant in ["", "&tenant=acme"] {
            assert_eq!(changes(&server, &format!("after={after}{tenant}")).await.len(), 0);
        }
    }
    for (query, code) in [
        ("limit=0", "invalid_limit"),
        ("after=-1", "invalid_query"),
        ("since=1", "invalid_query"),
        ("tenant=", "invalid_tenant"),
    ] {
        server.get(&format!("/v1/changes?{query}")).await.problem(400, code);
    }
    server.faults.set_down(true);
    server.get("/v1/changes").await.problem(503, "store_unavailable");
}

/// A receiver on loopback, and the job that posts changes to it.
async fn listen(server: &Server) -> (Arc<Receiver>, OutboxJob) {
    let receiver = Receiver::start(204).await;
    let mut config = default_config().alerts;
    config.webhook_url = Secret::new(&receiver.base);
    config.webhook_secret = Secret::new(SECRET);
    (config.webhook_changes, config.allow_private) = (true, true);
    let webhook = ChangeWebhook::connect(&config).unwrap().unwrap();
    let context = Context { jitter_seed: 7, ..server.context(|_| {}) };
    (receiver, OutboxJob::new(&context, Receivers::Changes(webhook)))
}

#[test]
fn the_webhook_is_told_only_if_that_is_asked_for() {
    let mut config = default_config().alerts;
    config.webhook_url = Secret::new("http://192.0.2.1");
    config.webhook_secret = Secret::new(SECRET);
    config.allow_private = true;
    assert!(ChangeWebhook::connect(&config).unwrap().is_none());
    config.webhook_changes = true;
    assert!(ChangeWebhook::connect(&config).unwrap().is_some());
    config.webhook_url = Secret::new("");
    let refusal = ChangeWebhook::connect(&config).err().unwrap();
    assert!(refusal.contains("webhook_url"), "{refusal}");
}

pub async fn the_webhook_is_told_what_the_list_tells(ground: Ground) {
    let server = billing(ground).await;
    let (receiver, teller) = listen(&server).await;
    assert_eq!(teller.pass().await.unwrap(), 0);
    for key in ["a", "b", "c"] {
        issue(&server, "acme", key, &grant("1")).await;
    }
    server.clock.advance(1_000_000);
    assert_eq!((teller.pass().await.unwrap(), teller.pass().await.unwrap()), (3, 0));
    let listed = changes(&server, "").await;
    let calls = receiver.calls();
    assert_eq!(calls.len(), 3);
    for (call, change) in calls.iter().zip(&listed) {
        call.verify(SECRET_BYTES);
        assert_eq!(call.header("webhook-id"), change["id"].as_str().unwrap());
        assert_eq!(call.header("webhook-timestamp"), "1794744001");
        let expected =
            json!({"type": change["kind"], "timestamp": change["at"], "data": change["data"]});
        assert_eq!(call.json(), expected);
    }
}

pub async fn a_receiver_in_trouble_gets_the_same_id_again(ground: Ground) {
    let server = billing(ground).await;
    let (receiver, teller) = listen(&server).await;
    issue(&server, "acme", "a", &grant("1")).await;
    receiver.always_answers(500);
    assert_eq!((teller.pass().await.unwrap(), teller.pass().await.unwrap()), (1, 0), "it waits");
    server.clock.advance(MICROS_PER_HOUR);
    assert_eq!(teller.pass().await.unwrap(), 1);
    receiver.always_answers(200);
    server.clock.advance(MICROS_PER_HOUR);
    assert_eq!(teller.pass().await.unwrap(), 1);
    server.clock.advance(100 * MICROS_PER_HOUR);
    assert_eq!(teller.pass().await.unwrap(), 0, "it was taken");
    let calls = receiver.calls();
    assert_eq!(calls.len(), 3);
    for call in &calls {
        call.verify(SECRET_BYTES);
        assert_eq!(call.header("webhook-id"), calls[0].header("webhook-id"));
        assert_eq!(call.body, calls[0].body);
    }
}

/// A process that dies after it has sent leaves a lease; when that is over, it is sent again.
pub async fn what_was_sent_and_not_settled_is_sent_again(ground: Ground) {
    let server = billing(ground).await;
    let (receiver, teller) = listen(&server).await;
    issue(&server, "acme", "a", &grant("1")).await;
    let now = server.clock.now();
    let until = Span::from_minutes(5).after(now);
    assert_eq!(server.store.claim_messages(Queue::Changes, now, until, 16).await.unwrap().len(), 1);
    assert_eq!(teller.pass().await.unwrap(), 0, "somebody else is at it");
    server.clock.advance(300_000_000);
    assert_eq!(teller.pass().await.unwrap(), 1);
    let ids: Vec<String> = receiver.calls().iter().map(|call| call.header("webhook-id")).collect();
    assert_eq!(ids, [changes(&server, "").await[0]["id"].as_str().unwrap()]);
}

pub async fn what_nobody_takes_is_given_up_and_stays_listed(ground: Ground) {
    let server = billing(ground).await;
    let (receiver, teller) = listen(&server).await;
    for (key, status) in [("a", 422), ("b", 410)] {
        issue(&server, "acme", key, &grant("1")).await;
        receiver.always_answers(status);
        assert_eq!(teller.pass().await.unwrap(), 1);
        server.clock.advance(100 * MICROS_PER_HOUR);
        assert_eq!(teller.pass().await.unwrap(), 0, "{status} is final");
    }
    // Three days of trouble; the message behind it is not held up by it.
    issue(&server, "acme", "c", &grant("1")).await;
    receiver.always_answers(503);
    let mut tries = 0;
    for _ in 0..100 {
        tries += teller.pass().await.unwrap();
        server.clock.advance(MICROS_PER_HOUR);
    }
    assert!((60..=75).contains(&tries), "{tries}");
    receiver.always_answers(200);
    assert_eq!(teller.pass().await.unwrap(), 0, "it was given up");
    issue(&server, "acme", "d", &grant("1")).await;
    assert_eq!(teller.pass().await.unwrap(), 1);
    assert_eq!(changes(&server, "").await.len(), 4);
    // After thirty days a message is gone, and its number is not used again.
    let last = changes(&server, "").await[3]["number"].as_u64().unwrap();
    server.clock.advance(31 * 24 * MICROS_PER_HOUR);
    let sweeper = SweepJob::new(&server.context(|_| {}));
    assert_eq!(sweeper.pass().await.unwrap().0, 4);
    assert_eq!(changes(&server, "").await.len(), 0);
    issue(&server, "acme", "e", &grant("1")).await;
    assert_eq!(changes(&server, &format!("after={last}")).await.len(), 1);
}

/// What the provider shows of an invoice.
async fn invoice(
    server: &Server,
    id: &str,
    status: &str,
    attempts: u32,
    next_in_hours: Option<u32>,
) {
    let now = server.clock.now();
    let created_at = at("2026-11-15T00:00:00Z");
    let snapshot = Snapshot::Invoice(Invoice {
        customer: CustomerId::parse("cus_acme").unwrap(),
        subscription: None,
        status: status.into(),
        reason: None,
        currency: "eur".into(),
        created_at,
        period: Window { start: created_at, end: now },
        finalizes_at: None,
        subtotal: 100,
        total_excluding_tax: 100,
        tax: 0,
        total: 100,
        amount_due: 100,
        attempt_count: attempts,
        next_attempt_at: next_in_hours.map(|hours| Span::from_hours(hours).after(now)),
        lines: Vec::new(),
    });
    let name = ObjectName { kind: ObjectKind::Invoice, id: id.into() };
    let ticket = server.store.want_mirrors(vec![name.clone()], now).await.unwrap()[0];
    let reading = MirrorReading { name, ticket, snapshot, read_at: now };
    server.store.record_mirrors(vec![reading], now).await.unwrap();
}

async fn dunned(ground: Ground) -> (Server, DunningJob) {
    let server = Server::start(ground).await;
    server.put("/v1/tenants/acme", r#"{"customer":"cus_acme"}"#).await;
    let dunner = DunningJob::new(&server.context(|_| {}));
    (server, dunner)
}

pub async fn each_stage_of_dunning_is_told_once(ground: Ground) {
    let (server, dunner) = dunned(ground).await;
    let told = async || each(&changes(&server, "").await, "kind").join(" ").replace("dunning.", "");
    invoice(&server, "in_1", "open", 0, Some(1)).await;
    assert_eq!((dunner.pass().await.unwrap(), told().await.as_str()), (0, ""));
    invoice(&server, "in_1", "open", 1, Some(24)).await;
    assert_eq!((dunner.pass().await.unwrap(), dunner.pass().await.unwrap()), (1, 0));
    let first = changes(&server, "").await;
    insta::assert_snapshot!(first[0], @r#"{"at":"2026-11-15T12:00:00Z","data":{"amount_due":100,"attempts":1,"currency":"eur","customer":"cus_acme","invoice":"in_1","next_attempt_at":"2026-11-16T12:00:00Z","stage":"reminder","tenant":"acme"},"id":"msg_288ce2eb5aa177757f1ea15e","kind":"dunning.reminder","number":1,"tenant":"acme"}"#);
    // Another process, which remembers nothing, tells nothing again.
    let other = DunningJob::new(&server.context(|_| {}));
    assert_eq!(other.pass().await.unwrap(), 0);
    invoice(&server, "in_1", "open", 2, Some(24)).await;
    assert_eq!(dunner.pass().await.unwrap(), 0, "still a reminder");
    invoice(&server, "in_1", "open", 3, Some(24)).await;
    assert_eq!((dunner.pass().await.unwrap(), other.pass().await.unwrap()), (1, 0));
    invoice(&server, "in_1", "open", 4, None).await;
    assert_eq!((other.pass().await.unwrap(), dunner.pass().await.unwrap()), (1, 0));
    invoice(&server, "in_1", "paid", 5, None).await;
    assert_eq!((dunner.pass().await.unwrap(), other.pass().await.unwrap()), (1, 0));
    assert_eq!(told().await, "reminder urgent final recovered");
    // Another invoice is another cycle; one that never failed has no end to be told of.
    invoice(&server, "in_2", "open", 1, Some(24)).await;
    invoice(&server, "in_3", "paid", 1, None).await;
    assert_eq!(dunner.pass().await.unwrap(), 1);
    server.clock.advance(7 * 24 * MICROS_PER_HOUR);
    // It is long ago.
    assert_eq!((dunner.pass().await.unwrap(), dunner.pass().await.unwrap()), (1, 0));
    invoice(&server, "in_2", "uncollectible", 1, None).await;
    assert_eq!((dunner.pass().await.unwrap(), dunner.pass().await.unwrap()), (1, 0));
    assert_eq!(told().await, "reminder urgent final recovered reminder urgent lost");
    assert!(changes(&server, "").await.iter().all(|change| change["tenant"] == "acme"));
}

/// Messages are removed after a month; an invoice may be owed for longer.
pub async fn dunning_is_not_published_again_when_its_changes_are_gone(ground: Ground) {
    let (server, dunner) = dunned(ground).await;
    invoice(&server, "in_1", "open", 4, None).await;
    assert_eq!(dunner.pass().await.unwrap(), 1);
    server.clock.advance(31 * 24 * MICROS_PER_HOUR);
    let sweeper = SweepJob::new(&server.context(|_| {}));
    sweeper.pass().await.unwrap();
    assert_eq!(dunner.pass().await.unwrap(), 0, "the final notice was given a month ago");
    let restarted = DunningJob::new(&server.context(|_| {}));
    assert_eq!(restarted.pass().await.unwrap(), 0);
    invoice(&server, "in_1", "paid", 5, None).await;
    assert_eq!(restarted.pass().await.unwrap(), 1, "and its end is told");
}
