//! Customers: what is sent, what is found again, and what may be marked.

use super::{DAY, NOON, SAGA, World, at, customer_id, done, word};
use counterfoil::config::{ProviderConfig, ProviderKind, Secret, Shadow, SinkConfig, StripeConfig};
use counterfoil::provider::{self, CustomerFacts, Operations, stripe::Stripe};
use serde_json::json;
use stripe_sim::{FaultKind, FaultRule, SimRequest};

#[tokio::test]
async fn a_customer_says_whose_it_is() {
    let world = World::new().await;
    let id = done(world.create_customer(SAGA, "key").await);
    let made = world.customers()[0].clone();
    assert_eq!(made["id"], id.as_str());
    assert_eq!((&made["name"], &made["email"]), (&json!("Ada & Søn"), &json!("ada@example.com")));
    let expected = json!({ "counterfoil_tenant": "acme", "counterfoil_saga": SAGA });
    assert_eq!(made["metadata"], expected);
    let bare = CustomerFacts { tenant: &world.tenant, name: None, email: None, saga: "saga_2" };
    done(world.operations().create_customer(&bare, "other").await);
    let made = world.customers()[1].clone();
    assert_eq!((&made["name"], &made["email"]), (&json!(null), &json!(null)));
}

#[tokio::test]
async fn a_refusal_says_what_the_provider_said() {
    let world = World::new().await;
    let facts = CustomerFacts { tenant: &world.tenant, name: None, email: Some("ada"), saga: SAGA };
    let called = world.operations().create_customer(&facts, "key").await;
    assert_eq!(word(&called), "refused");
    assert!(format!("{called:?}").contains("Invalid email address: ada"), "{called:?}");
    assert!(world.customers().is_empty());
}

#[tokio::test]
async fn a_key_that_is_not_accepted_is_not_the_call_s_fault() {
    let world = World::new().await;
    let config = StripeConfig {
        api_key: Secret::new("rk_wrong_secret"),
        api_base: world.simulated.handle.url(),
        timeout_ms: 2_000,
        webhook_secrets: Secret::new(""),
    };
    let stripe = Stripe::connect(&config).unwrap();
    let facts = CustomerFacts { tenant: &world.tenant, name: None, email: None, saga: SAGA };
    let called = stripe.create_customer(&facts, "key").await;
    assert_eq!(word(&called), "retry", "{called:?}");
    assert!(!format!("{called:?}").contains("rk_wrong_secret"), "{called:?}");
    let id = customer_id("cus_1");
    assert!(stripe.list_customer_subscriptions(&id).await.is_err());
}

#[tokio::test]
async fn found_on_a_later_page() {
    let world = World::new().await;
    let id = done(world.create_customer(SAGA, "key").await);
    world.advance(1);
    for number in 0..230 {
        let saga = format!("other_{number}");
        world.simulated.ask("/v1/customers", &[("metadata[counterfoil_saga]", &saga)]);
    }
    let found = world.operations().find_created_customer(SAGA, at(NOON)).await;
    assert_eq!(found, Ok(Some(id)));
    assert_eq!(world.calls("GET /v1/customers"), 3);
    assert_eq!(world.operations().find_created_customer("saga_none", at(NOON)).await, Ok(None));
}

#[tokio::test]
async fn found_though_the_clocks_are_apart_and_not_for_ever() {
    let world = World::new().await;
    let id = done(world.create_customer(SAGA, "key").await);
    let look = |since: i64| world.operations().find_created_customer(SAGA, at(since));
    assert_eq!(look(NOON - DAY).await, Ok(Some(id.clone())));
    assert_eq!(look(NOON + 3_600).await, Ok(Some(id)), "the provider's clock is behind ours");
    assert_eq!(look(NOON + 3_601).await, Ok(None));
}

#[tokio::test]
async fn a_look_that_fails_is_no_answer() {
    for kind in [FaultKind::LostBefore, FaultKind::Error500Executed, FaultKind::Garbage200] {
        let world = World::new().await;
        let (customer, made) = world.subscribed().await;
        // The second page is the one that fails.
        for _ in 0..120 {
            world.simulated.ask("/v1/customers", &[]);
        }
        let rule = FaultRule::new(kind).on_call("GET /v1/customers");
        world.simulated.faults(vec![FaultRule { nth: 2, ..rule }]);
        let found = world.operations().find_created_customer(SAGA, at(NOON)).await;
        assert!(found.is_err(), "{kind:?}: {found:?}");
        world.simulated.faults(vec![FaultRule::new(kind).on_call("GET /v1/subscriptions")]);
        assert!(world.operations().list_customer_subscriptions(&customer).await.is_err());
        world.simulated.faults(vec![FaultRule::new(kind).on_call("GET /v1/subscriptions/:id")]);
        assert!(world.operations().read_subscription(&made.id).await.is_err());
        let read = world.operations().read_subscription(&made.id).await;
        assert_eq!(read, Ok(Some(made)));
    }
}

#[tokio::test]
async fn an_abandoned_customer_is_kept_and_not_found() {
    let world = World::new().await;
    let first = done(world.create_customer(SAGA, "first").await);
    done(world.operations().abandon_customer(&first, SAGA, "undo").await);
    let marked = world.customers()[0].clone();
    let expected = json!({
        "counterfoil_tenant": "acme", "counterfoil_saga": SAGA, "counterfoil_state": "abandoned",
    });
    assert_eq!((&marked["metadata"], &marked["deleted"]), (&expected, &json!(null)));
    assert_eq!(world.operations().find_created_customer(SAGA, at(NOON)).await, Ok(None));
    // The next life of the saga finds its own.
    let second = done(world.create_customer(SAGA, "second").await);
    let found = world.operations().find_created_customer(SAGA, at(NOON)).await;
    assert_eq!(found, Ok(Some(second)));
    // Marked under any key, it stays marked; nothing is sent again.
    done(world.operations().abandon_customer(&first, SAGA, "other").await);
    assert_eq!(world.calls("POST /v1/customers/:id"), 1);
}

#[tokio::test]
async fn what_the_saga_did_not_make_is_not_marked() {
    let world = World::new().await;
    let others = done(world.create_customer("saga_other", "key").await);
    let plain = customer_id(world.simulated.ask("/v1/customers", &[])["id"].as_str().unwrap());
    let before = world.customers();
    for customer in [&others, &plain] {
        let called = world.operations().abandon_customer(customer, SAGA, "undo").await;
        assert_eq!(word(&called), "refused", "{called:?}");
    }
    assert_eq!(world.customers(), before);
    assert_eq!(world.calls("POST /v1/customers/:id"), 0);
    // What is gone needs no mark.
    let own = done(world.create_customer(SAGA, "own").await);
    world.simulated.answer(&SimRequest::new("DELETE", &format!("/v1/customers/{}", own.as_str())));
    done(world.operations().abandon_customer(&own, SAGA, "undo").await);
    done(world.operations().abandon_customer(&customer_id("cus_none"), SAGA, "undo").await);
    // One whose look fails is left for later.
    let lost = FaultRule::new(FaultKind::LostBefore).on_call("GET /v1/customers/:id");
    world.simulated.faults(vec![lost]);
    let called = world.operations().abandon_customer(&others, SAGA, "undo").await;
    assert_eq!(word(&called), "retry");
}

#[tokio::test]
async fn only_stripe_has_operations_and_none_in_shadow() {
    let stripe = StripeConfig {
        api_key: Secret::new("sk_test_1"),
        api_base: "http://127.0.0.1:1".into(),
        timeout_ms: 1,
        webhook_secrets: Secret::new(""),
    };
    let sink = SinkConfig {
        url: "http://127.0.0.1:1/".into(),
        secret: Secret::new("whsec_Y291bnRlcmZvaWwtc2luay1zZWNyZXQtZm9yLXRlc3Rz"),
        timeout_ms: 1,
    };
    let connect = |kind: ProviderKind, shadow: Shadow| {
        let provider = ProviderConfig { kind, shadow };
        provider::connect(&provider, &stripe, &sink).unwrap().unwrap()
    };
    assert!(connect(ProviderKind::Stripe, Shadow::Off).operations().is_some());
    assert!(connect(ProviderKind::Stripe, Shadow::Sandbox).operations().is_some());
    assert!(connect(ProviderKind::Stripe, Shadow::Nowhere).operations().is_none());
    assert!(connect(ProviderKind::Sink, Shadow::Off).operations().is_none());
}
