//! Access: what may be used follows what becomes of the subscription at the provider.

use super::world::{DAY, Dice, Ground, World, id_of};
use serde_json::{Value, json};
use stripe_sim::SimRequest;

/// A subscription at the provider with a subscription record here.
async fn subscriber(world: &World, tenant: &str) -> String {
    let customer = world.tenant(tenant).await;
    let price = world.price("calls", "2");
    let fields = [("customer", customer.as_str()), ("items[0][price]", &price)];
    let subscription = id_of(&world.stripe.ask("/v1/subscriptions", &fields));
    world.agree(world.subscription_record(tenant, &subscription)).await;
    // Usage of the moment before is on no invoice.
    world.pass_seconds(60);
    world.use_at_provider(&customer, "calls", "10");
    subscription
}

fn status(world: &World, subscription: &str) -> String {
    let shown = world.stripe.get(&format!("/v1/subscriptions/{subscription}"));
    shown["status"].as_str().unwrap().to_owned()
}

/// Lets days pass until the subscription has this status.
fn wait_for(world: &World, subscription: &str, wanted: &str) {
    for _ in 0..70 {
        if status(world, subscription) == wanted {
            return;
        }
        world.pass_seconds(DAY);
    }
    panic!("{subscription} is {}", status(world, subscription));
}

/// Delivers every event about a subscription that there is, in any order, with readings in between.
async fn tell(world: &World, subscription: &str, dice: &mut Dice) {
    let mut events = world.events_of(subscription);
    dice.shuffle(&mut events);
    for event in &events {
        // The signature is of now; the event may be known.
        assert_eq!(world.deliver(event).await.status, 200);
        if dice.below(3) == 0 {
            world.read_all().await;
        }
    }
    world.read_all().await;
}

/// What may be used, and how the subscription record stands.
async fn shown(world: &World, tenant: &str) -> Value {
    let answer = world.get(&format!("/v1/tenants/{tenant}/subscriptions")).await;
    let record = &answer["subscriptions"][0];
    json!([answer["features"], record["access"], record["suspended"]])
}

async fn told(world: &World, tenant: &str) -> Vec<String> {
    let answer = world.get(&format!("/v1/changes?tenant={tenant}&limit=100")).await;
    let changes = answer["changes"].as_array().unwrap().iter();
    let kinds = changes.map(|change| change["kind"].as_str().unwrap().to_owned());
    kinds.filter(|kind| kind.starts_with("access.")).collect()
}

pub async fn access_follows_the_subscription(ground: Ground) {
    let world = World::on(ground).await;
    let dice = &mut Dice::new(11);
    let subscription = subscriber(&world, "acme").await;
    let bystander = subscriber(&world, "umbrella").await;
    let (open, closed) = (json!([["exports"], true, false]), json!([[], false, true]));
    tell(&world, &subscription, dice).await;
    assert_eq!(shown(&world, "acme").await, open);

    world.payments_fail(true);
    wait_for(&world, &subscription, "past_due");
    tell(&world, &subscription, dice).await;
    assert_eq!(shown(&world, "acme").await, open, "dunning does not close anything");

    wait_for(&world, &subscription, "unpaid");
    tell(&world, &subscription, dice).await;
    assert_eq!(shown(&world, "acme").await, closed);

    world.payments_fail(false);
    let owed = world.stripe.get(&format!("/v1/invoices?subscription={subscription}"));
    for invoice in owed["data"].as_array().unwrap().iter().filter(|one| one["status"] == "open") {
        world.stripe.ask(&format!("/v1/invoices/{}/pay", id_of(invoice)), &[]);
    }
    assert_eq!(status(&world, &subscription), "active");
    tell(&world, &subscription, dice).await;
    assert_eq!(shown(&world, "acme").await, open);

    world.stripe.answer(&SimRequest::new("DELETE", &format!("/v1/subscriptions/{subscription}")));
    tell(&world, &subscription, dice).await;
    assert_eq!(shown(&world, "acme").await, json!([[], false, false]));
    let answer = world.get("/v1/tenants/acme/subscriptions").await;
    assert!(answer["subscriptions"][0]["ended_at"].is_string(), "{answer}");
    let kinds = ["access.suspended", "access.resumed", "access.ended"];
    assert_eq!(told(&world, "acme").await, kinds);
    tell(&world, &subscription, dice).await;
    assert_eq!(told(&world, "acme").await, kinds, "told once");

    // Nobody has told of the other one yet.
    assert_eq!(shown(&world, "umbrella").await, open);
    tell(&world, &bystander, dice).await;
    assert_eq!(shown(&world, "umbrella").await, closed);
}
