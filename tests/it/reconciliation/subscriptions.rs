//! Subscriptions at the provider against what is known here.

use super::world::{Ground, World, at};
use counterfoil::config::{Config, UnknownSubscriptions};
use counterfoil::rules::alert::AlertKind;
use counterfoil::rules::drift::{Reason, Verdict};
use counterfoil::rules::finding::FindingKind;
use counterfoil::rules::ids::{CustomerId, OnceKey, TenantId};
use counterfoil::rules::mirror::{ObjectKind, ObjectName, Snapshot};
use counterfoil::rules::saga::SagaKind;
use counterfoil::rules::subscription::Subscription;
use counterfoil::store::push::Ruling;
use counterfoil::store::saga::NewSaga;
use counterfoil::store::webhook::MirrorReading;
use serde_json::Value;
use stripe_sim::SimRequest;

const NIGHT: &str = "2026-11-16T05:00:00Z";

async fn status(world: &World, id: &str) -> Option<(String, u64)> {
    let mirror = world.mirror(ObjectKind::Subscription, id).await?;
    Some((mirror.snapshot.status().to_owned(), mirror.version))
}

fn cancel(world: &World, id: &str) {
    world.stripe.answer(&SimRequest::new("DELETE", &format!("/v1/subscriptions/{id}")));
}

pub async fn all_pages_and_states_are_looked_at(ground: Ground) {
    let (world, acme) = World::usual(ground).await;
    let price = world.stripe.price("calls", "1", "month");
    let mut ids = vec![world.stripe.subscribe(&acme, &price)];
    // The oldest is on the last page.
    ids.extend((0..205).map(|_| world.stripe.subscribe(&acme, &price)));
    let trial =
        [("customer", acme.as_str()), ("items[0][price]", &price), ("trial_period_days", "9")];
    ids.push(world.stripe.ask("/v1/subscriptions", &trial)["id"].as_str().unwrap().to_owned());
    world.work().await;
    assert_eq!(status(&world, &ids[0]).await.unwrap().0, "active");
    assert_eq!(status(&world, ids.last().unwrap()).await.unwrap().0, "trialing");
    // Two end and nobody is told: not by a webhook, not by the list of events.
    world.keep_backfill(false);
    world.lose_webhooks(true);
    let (_, version) = status(&world, &ids[0]).await.unwrap();
    cancel(&world, &ids[0]);
    cancel(&world, &ids[150]);
    world.leap("2026-11-16T04:00:00Z").await;
    assert_eq!(status(&world, &ids[0]).await.unwrap(), ("active".into(), version));
    world.leap(NIGHT).await;
    let (now, synced) = status(&world, &ids[0]).await.unwrap();
    assert_eq!(now, "canceled");
    assert!(synced > version, "{synced}");
    assert_eq!(status(&world, &ids[150]).await.unwrap().0, "canceled");
    let open = world.open_findings(FindingKind::Subscription).await;
    assert_eq!(open.len(), 2, "{open:?}");
    let seen = &open[0].seen;
    assert_eq!((seen.verdict, seen.reason), (Verdict::Waiting, Reason::Status));
    assert!(seen.detail.contains("was active here and is canceled"), "{}", seen.detail);
    world.hours(1).await;
    assert!(world.open_findings(FindingKind::Subscription).await.is_empty());
    // What has ended is quiet.
    world.leap("2026-11-17T05:00:00Z").await;
    world.hours(2).await;
    assert!(world.open_findings(FindingKind::Subscription).await.is_empty());
    assert_eq!(world.pages(), []);
}

pub async fn subscription_without_a_tenant_is_found(ground: Ground) {
    let (world, acme) = World::usual(ground).await;
    let price = world.stripe.price("calls", "1", "month");
    world.stripe.subscribe(&acme, &price);
    let stranger = world.stripe.customer();
    let unknown = world.stripe.subscribe(&stranger, &price);
    let over = world.stripe.subscribe(&stranger, &price);
    cancel(&world, &over);
    world.leap(NIGHT).await;
    let finding = world.only_finding(FindingKind::Subscription).await;
    assert_eq!(finding.seen.subject, unknown);
    assert_eq!((finding.seen.verdict, finding.seen.reason), (Verdict::Bypass, Reason::OneSided));
    assert!(finding.seen.detail.contains(&stranger), "{}", finding.seen.detail);
    assert_eq!(world.pages(), []);
    world.hours(1).await;
    assert_eq!(world.pages(), [AlertKind::UnknownSubscription]);
    world.hours(2).await;
    world.leap("2026-11-17T05:00:00Z").await;
    assert_eq!(world.pages(), [AlertKind::UnknownSubscription], "told once");
    let parsed = CustomerId::parse(&stranger).unwrap();
    assert!(world.store.find_customer(&parsed).await.unwrap().is_none(), "nothing is created");
    world.map("stranger", &stranger).await;
    world.hours(1).await;
    assert!(world.open_findings(FindingKind::Subscription).await.is_empty());
    world.check_opened_and_resolved(AlertKind::UnknownSubscription);
    world.leap("2026-11-18T05:00:00Z").await;
    assert!(world.open_findings(FindingKind::Subscription).await.is_empty());
}

pub async fn a_subscription_that_the_list_lacks_is_read_again(ground: Ground) {
    let (world, acme) = World::usual(ground).await;
    let name = ObjectName { kind: ObjectKind::Subscription, id: "sub_of_elsewhere".into() };
    let now = world.clock.now();
    let ticket = world.store.want_mirrors(vec![name.clone()], now).await.unwrap()[0];
    let snapshot = Snapshot::Subscription(Subscription {
        customer: CustomerId::parse(&acme).unwrap(),
        status: "active".into(),
        prices: Vec::new(),
        period: None,
        trial: None,
        cancel_at_period_end: false,
        ended_at: None,
    });
    let reading = MirrorReading { name, ticket, snapshot, read_at: now };
    world.store.record_mirrors(vec![reading], now).await.unwrap();
    world.leap(NIGHT).await;
    let finding = world.findings().await.remove(0);
    assert_eq!(finding.seen.detail, "the provider's list lacks it");
    assert_eq!(status(&world, "sub_of_elsewhere").await.unwrap().0, "gone");
    world.hours(1).await;
    world.leap("2026-11-17T05:00:00Z").await;
    world.hours(1).await;
    assert_eq!(world.findings().await.len(), 1, "and not every night anew");
    assert!(world.open_findings(FindingKind::Subscription).await.is_empty());
}

pub async fn a_plan_that_changes_on_its_first_day(ground: Ground) {
    let (world, acme) = World::usual(ground).await;
    let (free, paid) =
        (world.stripe.price("calls", "0", "day"), world.stripe.price("calls", "3", "day"));
    let id = world.stripe.subscribe(&acme, &free);
    world.used("acme", "10", "2026-11-15T12:00:00Z").await;
    world.hours(3).await;
    let item =
        world.stripe.get(&format!("/v1/subscriptions/{id}"))["items"]["data"][0]["id"].clone();
    let change = [("items[0][id]", item.as_str().unwrap()), ("items[0][price]", paid.as_str())];
    world.stripe.ask(&format!("/v1/subscriptions/{id}"), &change);
    world.used("acme", "200", "2026-11-15T15:00:00Z").await;
    world.until("2026-11-16T15:00:00Z").await;
    let bill = |one: &Value| {
        let quantity = one["lines"]["data"][0]["quantity_decimal"].as_str().unwrap();
        (quantity.to_owned(), one["subtotal"].as_i64().unwrap())
    };
    let bills: Vec<(String, i64)> = world.stripe.invoices().iter().map(bill).collect();
    assert_eq!(bills, [("10".into(), 0), ("200".into(), 600)]);
    assert_eq!(world.findings().await, []);
    assert_eq!(world.pages(), []);
    assert_eq!((world.stripe.sum(&acme), world.planned_sum().await), ("210".into(), "210".into()));
    let pushes = world.pushes().await;
    assert!(pushes[0].stamped_at < at("2026-11-15T15:00:00Z"));
}

fn paging(config: &mut Config) {
    config.reconcile.unknown_subscriptions = UnknownSubscriptions::Page;
}

fn acme() -> TenantId {
    TenantId::parse("acme").unwrap()
}

pub async fn an_unknown_subscription_of_a_tenant_pages(ground: Ground) {
    let (world, customer) = World::usual_with(ground, paging).await;
    let price = world.stripe.price("calls", "1", "month");
    let known = world.stripe.subscribe(&customer, &price);
    world.agree(world.subscription_record("acme", &known)).await;
    let over = world.stripe.subscribe(&customer, &price);
    cancel(&world, &over);
    let unknown = world.stripe.subscribe(&customer, &price);
    world.leap(NIGHT).await;
    let finding = world.only_finding(FindingKind::Subscription).await;
    assert_eq!((&finding.seen.subject, &finding.seen.tenant), (&unknown, &Some(acme())));
    assert_eq!((finding.seen.verdict, finding.seen.reason), (Verdict::Bypass, Reason::OneSided));
    assert!(finding.seen.detail.contains("--accept"), "{}", finding.seen.detail);
    assert_eq!(world.pages(), []);
    world.hours(1).await;
    assert_eq!(world.pages(), [AlertKind::UnknownSubscription]);
    let listed = world.store.list_subscription_records(&acme(), 10).await.unwrap();
    assert_eq!(listed.len(), 1, "nothing is created");
    world.leap("2026-11-17T05:00:00Z").await;
    world.hours(1).await;
    assert_eq!(world.pages(), [AlertKind::UnknownSubscription], "told once");
    cancel(&world, &unknown);
    world.hours(2).await;
    assert!(world.open_findings(FindingKind::Subscription).await.is_empty());
    world.check_opened_and_resolved(AlertKind::UnknownSubscription);
}

pub async fn an_unknown_subscription_that_is_accepted_is_quiet(ground: Ground) {
    let (world, customer) = World::usual_with(ground, paging).await;
    let price = world.stripe.price("calls", "1", "month");
    world.stripe.subscribe(&customer, &price);
    world.leap(NIGHT).await;
    world.hours(1).await;
    assert_eq!(world.pages(), [AlertKind::UnknownSubscription]);
    let number = world.only_finding(FindingKind::Subscription).await.number;
    let accept =
        async |number| world.store.accept_finding(number, world.clock.now()).await.unwrap();
    assert_eq!(accept(number + 1).await, Ruling::NotFound);
    assert_eq!(accept(number).await, Ruling::Done(None));
    assert!(matches!(accept(number).await, Ruling::Refused(_)), "it is not open any more");
    world.hours(1).await;
    world.leap("2026-11-17T05:00:00Z").await;
    world.hours(2).await;
    assert!(world.open_findings(FindingKind::Subscription).await.is_empty());
    world.check_opened_and_resolved(AlertKind::UnknownSubscription);
    // The next one is not accepted with it.
    let other = world.stripe.subscribe(&customer, &price);
    world.leap("2026-11-18T05:00:00Z").await;
    assert_eq!(world.only_finding(FindingKind::Subscription).await.seen.subject, other);
}

pub async fn a_subscription_of_a_saga_under_way_is_not_unknown(ground: Ground) {
    let (world, customer) = World::usual_with(ground, paging).await;
    let price = world.stripe.price("calls", "1", "month");
    let new = NewSaga {
        id: "saga_1".into(),
        kind: SagaKind::CreateSubscription,
        tenant: acme(),
        key: OnceKey::parse("sign-up").unwrap(),
        params: "{}".into(),
    };
    world.store.begin_saga(new, world.clock.now(), None).await.unwrap();
    let id = world.stripe.subscribe(&customer, &price);
    world.leap(NIGHT).await;
    world.hours(1).await;
    assert_eq!(world.findings().await, []);
    world.agree(world.subscription_record("acme", &id)).await;
    world.leap("2026-11-17T05:00:00Z").await;
    world.hours(1).await;
    assert_eq!(world.findings().await, []);
}
