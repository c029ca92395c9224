//! What the tests of the inbound half are made of: webhooks, objects and their states.

use crate::billed::after;
use crate::fixture::Fixture;
use counterfoil::rules::ids::{CustomerId, SubscriptionId};
use counterfoil::rules::mirror::{ObjectKind, ObjectName, Snapshot};
use counterfoil::rules::subscription::{Origin, Subscription, TimelineEntry};
use counterfoil::rules::timestamp::Timestamp;
use counterfoil::rules::webhook::{WebhookFacts, WebhookSource};
use counterfoil::store::webhook::{
    MirrorClaim, MirrorReading, Mirrored, Receipted, WantedMirror, WebhookReceipt, WebhookRecord,
};

pub fn object(kind: ObjectKind, id: &str) -> ObjectName {
    ObjectName { kind, id: id.to_owned() }
}

pub fn subscription_name(id: &str) -> ObjectName {
    object(ObjectKind::Subscription, id)
}

/// A subscription of customer cus_acme.
pub fn subscription(status: &str) -> Subscription {
    subscription_of("cus_acme", status)
}

pub fn subscription_of(customer: &str, status: &str) -> Subscription {
    Subscription {
        customer: CustomerId::parse(customer).unwrap(),
        status: status.to_owned(),
        prices: vec!["price_small".to_owned()],
        period: None,
        trial: None,
        cancel_at_period_end: false,
        ended_at: None,
    }
}

pub fn snapshot(status: &str) -> Snapshot {
    Snapshot::Subscription(subscription(status))
}

pub fn entry(id: &str, at: Timestamp, origin: Origin, state: Subscription) -> TimelineEntry {
    let subscription = SubscriptionId::parse(id).unwrap();
    TimelineEntry { subscription, at, origin, version: 0, state }
}

/// A thin webhook about an object, known by its id only.
pub fn thin(f: &Fixture, id: &str, object: ObjectName) -> WebhookReceipt {
    let facts = WebhookFacts {
        event_id: id.to_owned(),
        event_type: format!("{}.updated", object.kind.name()),
        created_at: after(f.now, -1),
        names: vec![id.to_owned()],
        object: Some(object),
        snapshot: None,
        timeline: None,
    };
    let payload = format!("payload of {id}").into_bytes();
    WebhookReceipt { facts, payload, source: WebhookSource::Delivered, received_at: f.now }
}

/// The same with more names.
pub fn named(mut receipt: WebhookReceipt, names: &[&str]) -> WebhookReceipt {
    receipt.facts.names.extend(names.iter().map(|name| (*name).to_owned()));
    receipt
}

/// The same with a payload that shows its object.
pub fn telling(mut receipt: WebhookReceipt, told: Snapshot) -> WebhookReceipt {
    receipt.facts.snapshot = Some(told);
    receipt
}

/// The same with a state that its object had from the event's moment on.
pub fn entering(mut receipt: WebhookReceipt, status: &str) -> WebhookReceipt {
    let id = receipt.facts.object.clone().unwrap().id;
    let at = receipt.facts.created_at;
    receipt.facts.timeline = Some(entry(&id, at, Origin::Updated, subscription(status)));
    telling(receipt, snapshot(status))
}

/// A webhook of a type that nothing here knows.
pub fn unknown(f: &Fixture, id: &str) -> WebhookReceipt {
    let mut receipt = thin(f, id, subscription_name("none"));
    receipt.facts.event_type = "radar.early_fraud_warning.created".to_owned();
    receipt.facts.object = None;
    receipt
}

pub async fn record(f: &Fixture, receipts: Vec<WebhookReceipt>) -> Vec<Receipted> {
    f.store.record_webhooks(receipts).await.unwrap()
}

/// Records one webhook that was not known, and returns its number.
pub async fn record_fresh(f: &Fixture, receipt: WebhookReceipt) -> u64 {
    let receipted = record(f, vec![receipt]).await;
    assert!(receipted.len() == 1 && receipted[0].fresh, "{receipted:?}");
    receipted[0].number
}

pub async fn webhook(f: &Fixture, number: u64) -> WebhookRecord {
    f.store.find_webhook(number).await.unwrap().unwrap().0
}

/// Claims what is to be read so many minutes after now, for ten minutes.
pub async fn claim(f: &Fixture, minute: i64) -> Vec<WantedMirror> {
    let now = after(f.now, minute);
    let claim = MirrorClaim { now, lease_until: after(now, 10), limit: 100 };
    f.store.claim_mirrors(claim).await.unwrap()
}

pub async fn want(f: &Fixture, names: &[ObjectName], minute: i64) -> Vec<u64> {
    f.store.want_mirrors(names.to_vec(), after(f.now, minute)).await.unwrap()
}

/// Writes a reading that was begun a minute before.
pub async fn read(
    f: &Fixture,
    name: &ObjectName,
    ticket: u64,
    snapshot: Snapshot,
    minute: i64,
) -> Mirrored {
    let read_at = after(f.now, minute - 1);
    let reading = MirrorReading { name: name.clone(), ticket, snapshot, read_at };
    let written = f.store.record_mirrors(vec![reading], after(f.now, minute)).await;
    written.unwrap().remove(0)
}
