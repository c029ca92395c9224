//! Subscriptions: made, listed, changed and ended.

use super::{DAY, NOON, SAGA, World, at, customer_id, done, subscription_id, word};
use counterfoil::provider::{CancelWhen, Inbound, RemoteSubscription};
use counterfoil::rules::mirror::{ObjectKind, ObjectName, Snapshot};
use serde_json::{Value, json};
use stripe_sim::SimRequest;

fn prices(subscription: &RemoteSubscription) -> Vec<&str> {
    subscription.items.iter().map(|item| item.price.as_str()).collect()
}

#[tokio::test]
async fn a_subscription_says_whose_it_is() {
    let world = World::new().await;
    let (customer, made) = world.subscribed().await;
    assert_eq!(prices(&made), world.prices[..2]);
    assert_eq!((made.status.as_str(), made.saga.as_deref()), ("active", Some(SAGA)));
    assert_eq!((made.cancel_at_period_end, made.period_end), (false, Some(at(NOON + 30 * DAY))));
    let shown = world.subscriptions()[0].clone();
    assert_eq!(shown["customer"], customer.as_str());
    let expected = json!({ "counterfoil_tenant": "acme", "counterfoil_saga": SAGA });
    assert_eq!(shown["metadata"], expected);
    assert_eq!(shown["billing_mode"]["type"], "flexible");
    let read = world.operations().read_subscription(&made.id).await;
    assert_eq!(read, Ok(Some(made)));
    let none = world.operations().read_subscription(&subscription_id("sub_none")).await;
    assert_eq!(none, Ok(None));
    // An id is one part of a path, whatever it is made of.
    let odd = subscription_id("../customers?x=/y");
    assert_eq!(world.operations().read_subscription(&odd).await, Ok(None));
}

#[tokio::test]
async fn what_is_refused_leaves_nothing() {
    let world = World::new().await;
    let customer = done(world.create_customer(SAGA, "customer").await);
    let none = [String::from("price_none")];
    let called = world.subscribe(&customer, &none, "a").await;
    assert_eq!(word(&called), "refused");
    assert!(format!("{called:?}").contains("No such price: 'price_none'"), "{called:?}");
    assert_eq!(word(&world.subscribe(&customer, &[], "b").await), "refused");
    let nobody = customer_id("cus_none");
    assert_eq!(word(&world.subscribe(&nobody, &world.prices, "c").await), "refused");
    assert!(world.subscriptions().is_empty());
    let twice = [world.prices[0].clone(), world.prices[1].clone(), world.prices[0].clone()];
    let made = done(world.subscribe(&customer, &twice, "d").await);
    assert_eq!(prices(&made), world.prices[..2], "a price that is named twice is one");
}

#[tokio::test]
async fn all_of_a_customer_in_every_state() {
    let world = World::new().await;
    let customer = done(world.create_customer(SAGA, "customer").await);
    let other = done(world.create_customer("saga_other", "other").await);
    done(world.subscribe(&other, &world.prices[..1], "other's").await);
    let mut made = Vec::new();
    for number in 0..210 {
        let fields = [("customer", customer.as_str()), ("items[0][price]", &world.prices[0])];
        let object = world.simulated.ask("/v1/subscriptions", &fields);
        let id = object["id"].as_str().unwrap().to_owned();
        if number % 2 == 0 {
            world.simulated.answer(&SimRequest::new("DELETE", &format!("/v1/subscriptions/{id}")));
        }
        made.push(id);
    }
    made.reverse();
    let listed = world.operations().list_customer_subscriptions(&customer).await.unwrap();
    let ids: Vec<&str> = listed.iter().map(|found| found.id.as_str()).collect();
    assert_eq!(ids, made);
    let ended = listed.iter().filter(|found| found.status == "canceled");
    assert_eq!(ended.count(), 105);
    assert_eq!(world.calls("GET /v1/subscriptions"), 3);
}

#[tokio::test]
async fn prices_change_and_others_keep_their_items() {
    let world = World::new().await;
    let (_, before) = world.subscribed().await;
    let wanted = [world.prices[2].clone(), world.prices[1].clone()];
    let operations = world.operations();
    let after = done(operations.change_prices(&before, &wanted, "saga_2", "key").await);
    assert_eq!(after.items[0], before.items[1], "the item that stays is the same");
    assert_eq!(prices(&after), [&world.prices[1], &world.prices[2]]);
    assert_eq!((after.id.as_str(), after.saga.as_deref()), (before.id.as_str(), Some("saga_2")));
    let shown = world.subscriptions()[0].clone();
    assert_eq!(shown["metadata"]["counterfoil_tenant"], "acme", "the tenant stays");
    // What is as it should be is not touched again, under whatever key.
    let same = done(operations.change_prices(&after, &wanted, "saga_2", "other").await);
    assert_eq!(same, after);
    assert_eq!(world.calls("POST /v1/subscriptions/:id"), 1);
    // Another saga leaves its name, also where nothing else is to be done.
    let named = done(operations.change_prices(&after, &wanted, "saga_3", "third").await);
    assert_eq!((&named.items, named.saga.as_deref()), (&after.items, Some("saga_3")));
}

#[tokio::test]
async fn usage_at_a_price_that_goes_is_billed() {
    let world = World::new().await;
    let (customer, before) = world.subscribed().await;
    world.simulated.ask(
        "/v1/billing/meter_events",
        &[
            ("event_name", "calls_0"),
            ("payload[stripe_customer_id]", customer.as_str()),
            ("payload[value]", "7"),
        ],
    );
    world.advance(DAY);
    let operations = world.operations();
    let more = done(operations.change_prices(&before, &world.prices, SAGA, "more").await);
    assert!(world.simulated.invoices().is_empty(), "what only comes is billed later");
    done(operations.change_prices(&more, &world.prices[1..], SAGA, "less").await);
    let invoices = world.simulated.invoices();
    let lines: Vec<&Value> =
        invoices.iter().map(|invoice| &invoice["lines"]["data"][0]["quantity_decimal"]).collect();
    assert_eq!(lines, ["7"]);
}

#[tokio::test]
async fn a_change_that_cannot_be() {
    let world = World::new().await;
    let (_, before) = world.subscribed().await;
    let operations = world.operations();
    let none = [String::from("price_none")];
    assert_eq!(word(&operations.change_prices(&before, &none, SAGA, "a").await), "refused");
    assert_eq!(word(&operations.change_prices(&before, &[], SAGA, "b").await), "refused");
    let mut other = before.clone();
    other.items[0].id = "si_none".into();
    let wanted = &world.prices[1..];
    assert_eq!(word(&operations.change_prices(&other, wanted, SAGA, "c").await), "refused");
    let read = operations.read_subscription(&before.id).await;
    assert_eq!(read, Ok(Some(before.clone())));
    // The same key with other arguments is the provider's to refuse, and kept.
    done(operations.change_prices(&before, wanted, SAGA, "d").await);
    let again = operations.change_prices(&before, &world.prices[2..], SAGA, "d").await;
    assert_eq!(word(&again), "kept", "{again:?}");
}

#[tokio::test]
async fn more_items_than_it_shows() {
    let mut world = World::new().await;
    world.add_prices(12);
    let customer = done(world.create_customer(SAGA, "customer").await);
    let made = done(world.subscribe(&customer, &world.prices, "key").await);
    assert_eq!(prices(&made), world.prices);
    let operations = world.operations();
    let read = operations.read_subscription(&made.id).await;
    assert_eq!(read, Ok(Some(made.clone())));
    let listed = operations.list_customer_subscriptions(&customer).await;
    assert_eq!(listed, Ok(vec![made.clone()]));
    let after = done(operations.change_prices(&made, &world.prices[..14], SAGA, "less").await);
    assert_eq!(after.items, made.items[..14], "the last one went and no other");
    // Mirrors see them all, too.
    let name = ObjectName { kind: ObjectKind::Subscription, id: made.id.as_str().to_owned() };
    let Snapshot::Subscription(mirror) = world.stripe.read_object(&name).await.unwrap() else {
        panic!("not a subscription");
    };
    assert_eq!(mirror.prices.len(), 14);
    let page = world.stripe.list_subscriptions(None).await.unwrap();
    assert_eq!(page.subscriptions[0].1.prices.len(), 14);
}

#[tokio::test]
async fn ended_now_and_ended_again() {
    let world = World::new().await;
    let (_, made) = world.subscribed().await;
    world.advance(DAY);
    let operations = world.operations();
    let ended = done(operations.cancel_subscription(&made.id, CancelWhen::Now, "a").await);
    assert_eq!((ended.status.as_str(), &ended.items), ("canceled", &made.items));
    for (when, key) in
        [(CancelWhen::Now, "a"), (CancelWhen::Now, "b"), (CancelWhen::PeriodEnd, "c")]
    {
        let again = done(operations.cancel_subscription(&made.id, when, key).await);
        assert_eq!(again, ended, "{when:?} {key}");
    }
    assert_eq!(world.simulated.invoices().len(), 1, "one last invoice");
    let after = operations.change_prices(&ended, &world.prices[1..], SAGA, "d").await;
    assert_eq!(word(&after), "refused");
    let none = subscription_id("sub_none");
    for when in [CancelWhen::Now, CancelWhen::PeriodEnd] {
        let called = operations.cancel_subscription(&none, when, "e").await;
        assert_eq!(word(&called), "refused", "{called:?}");
    }
}

#[tokio::test]
async fn ended_with_the_period() {
    let world = World::new().await;
    let (_, made) = world.subscribed().await;
    let operations = world.operations();
    let when = CancelWhen::PeriodEnd;
    let ending = done(operations.cancel_subscription(&made.id, when, "a").await);
    assert_eq!((ending.status.as_str(), ending.cancel_at_period_end), ("active", true));
    let again = done(operations.cancel_subscription(&made.id, when, "b").await);
    assert_eq!(again, ending);
    world.advance(30 * DAY);
    let ended = done(operations.cancel_subscription(&made.id, when, "c").await);
    assert_eq!(ended.status, "canceled");
}

/// A world with a flat price of five dollars, and a subscription to it that is paid.
pub async fn paid() -> (World, String, RemoteSubscription) {
    let world = World::new().await;
    let customer = done(world.create_customer(SAGA, "customer").await);
    let flat = world.simulated.flat_price();
    let prices = [world.prices[0].clone(), flat];
    let made = done(world.subscribe(&customer, &prices, "made").await);
    (world, customer.as_str().to_owned(), made)
}

fn invoices(world: &World, customer: &str) -> Vec<Value> {
    let target = format!("/v1/invoices?customer={customer}");
    world.simulated.get(&target)["data"].as_array().unwrap().clone()
}

#[tokio::test]
async fn paid_invoices_are_refunded_once() {
    let (world, customer, made) = paid().await;
    let operations = world.operations();
    done(operations.cancel_subscription(&made.id, CancelWhen::Unwanted, "a").await);
    for key in ["b", "b", "c"] {
        done(operations.give_back(&made.id, SAGA, key).await);
        let all = invoices(&world, &customer);
        assert_eq!(all.len(), 1, "there is no final invoice: {all:#?}");
        let found = (&all[0]["status"], &all[0]["amount_paid"]);
        assert_eq!(found, (&json!("paid"), &json!(500)));
        assert_eq!(all[0]["post_payment_credit_notes_amount"], 500);
    }
    assert_eq!(world.calls("POST /v1/credit_notes"), 1);
    let notes = world.simulated.get("/v1/credit_notes")["data"].clone();
    assert_eq!(notes[0]["metadata"]["counterfoil_saga"], SAGA);
    assert_eq!(notes[0]["refunds"][0]["amount_refunded"], 500);
}

#[tokio::test]
async fn drafts_and_open_invoices_are_voided() {
    for final_first in [false, true] {
        let (world, customer, made) = paid().await;
        world.advance(30 * DAY);
        let draft = invoices(&world, &customer)[0].clone();
        assert_eq!((&draft["status"], &draft["total"]), (&json!("draft"), &json!(500)));
        if final_first {
            let path = format!("/v1/invoices/{}/finalize", draft["id"].as_str().unwrap());
            world.simulated.ask(&path, &[("auto_advance", "false")]);
        }
        let operations = world.operations();
        done(operations.cancel_subscription(&made.id, CancelWhen::Unwanted, "a").await);
        for key in ["b", "c"] {
            done(operations.give_back(&made.id, SAGA, key).await);
        }
        let statuses: Vec<Value> =
            invoices(&world, &customer).iter().map(|one| one["status"].clone()).collect();
        assert_eq!(statuses, ["void", "paid"]);
        assert_eq!(world.calls("POST /v1/invoices/:id/void"), 1);
    }
}
