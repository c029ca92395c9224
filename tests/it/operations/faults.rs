//! Every call that changes something, failed in every way, and made again under the same key.

use super::{SAGA, World, at, customer_id, subscription_id, word};
use counterfoil::provider::{Called, CancelWhen, RemoteSubscription};
use serde_json::Value;
use std::collections::BTreeMap;
use stripe_sim::{FaultKind, FaultRule};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    CreateCustomer,
    AbandonCustomer,
    CreateSubscription,
    ChangePrices,
    CancelNow,
    CancelAtPeriodEnd,
    GiveBack,
}

impl Call {
    const ALL: [Self; 7] = [
        Self::CreateCustomer,
        Self::AbandonCustomer,
        Self::CreateSubscription,
        Self::ChangePrices,
        Self::CancelNow,
        Self::CancelAtPeriodEnd,
        Self::GiveBack,
    ];

    fn pattern(self) -> &'static str {
        match self {
            Self::CreateCustomer => "POST /v1/customers",
            Self::AbandonCustomer => "POST /v1/customers/:id",
            Self::CreateSubscription => "POST /v1/subscriptions",
            Self::ChangePrices | Self::CancelAtPeriodEnd => "POST /v1/subscriptions/:id",
            Self::CancelNow => "DELETE /v1/subscriptions/:id",
            Self::GiveBack => "POST /v1/credit_notes",
        }
    }
}

/// A world with what a call needs.
struct Scene {
    world: World,
    call: Call,
    customer: String,
    before: Option<RemoteSubscription>,
}

impl Scene {
    async fn new(call: Call) -> Self {
        if call == Call::GiveBack {
            let (world, customer, made) = super::subscriptions::paid().await;
            return Self { world, call, customer, before: Some(made) };
        }
        let world = World::new().await;
        let (customer, before) = match call {
            Call::CreateCustomer | Call::GiveBack => (String::new(), None),
            Call::AbandonCustomer | Call::CreateSubscription => {
                let made = super::done(world.create_customer(SAGA, "before").await);
                (made.as_str().to_owned(), None)
            }
            Call::ChangePrices | Call::CancelNow | Call::CancelAtPeriodEnd => {
                let (customer, made) = world.subscribed().await;
                (customer.as_str().to_owned(), Some(made))
            }
        };
        Self { world, call, customer, before }
    }

    /// Makes the call; what it gives is written as text.
    async fn make(&self, key: &str) -> Called<String> {
        let operations = self.world.operations();
        let prices = &self.world.prices;
        let id = || subscription_id(self.before.as_ref().unwrap().id.as_str());
        let named = |made: RemoteSubscription| Called::Done(made.id.as_str().to_owned());
        match self.call {
            Call::CreateCustomer => {
                let made = self.world.create_customer(SAGA, key).await;
                made.and_then(|id| Called::Done(id.as_str().to_owned()))
            }
            Call::AbandonCustomer => {
                let customer = customer_id(&self.customer);
                let marked = operations.abandon_customer(&customer, SAGA, key).await;
                marked.and_then(|()| Called::Done(self.customer.clone()))
            }
            Call::CreateSubscription => {
                let customer = customer_id(&self.customer);
                self.world.subscribe(&customer, &prices[..2], key).await.and_then(named)
            }
            Call::ChangePrices => {
                let before = self.before.as_ref().unwrap();
                operations.change_prices(before, &prices[1..], "saga_2", key).await.and_then(named)
            }
            Call::CancelNow => {
                operations.cancel_subscription(&id(), CancelWhen::Now, key).await.and_then(named)
            }
            Call::CancelAtPeriodEnd => {
                let when = CancelWhen::PeriodEnd;
                operations.cancel_subscription(&id(), when, key).await.and_then(named)
            }
            Call::GiveBack => {
                let given = operations.give_back(&id(), SAGA, key).await;
                given.and_then(|()| Called::Done(self.customer.clone()))
            }
        }
    }

    /// How often it took effect.
    fn effects(&self) -> usize {
        let (customers, subscriptions) = (self.world.customers(), self.world.subscriptions());
        match self.call {
            Call::CreateCustomer => customers.len(),
            Call::AbandonCustomer => {
                let marked = |one: &&Value| one["metadata"]["counterfoil_state"] == "abandoned";
                customers.iter().filter(marked).count()
            }
            Call::CreateSubscription => subscriptions.len(),
            Call::ChangePrices => {
                // The price that went is billed once, and another came.
                let prices = subscriptions[0]["items"]["data"].as_array().unwrap();
                let came =
                    prices.iter().filter(|item| item["price"]["id"] == *self.world.prices[2]);
                assert_eq!(came.count(), self.world.simulated.invoices().len());
                self.world.simulated.invoices().len()
            }
            Call::CancelNow => {
                let ended = subscriptions.iter().filter(|found| found["status"] == "canceled");
                let invoices = self.world.simulated.invoices().len();
                assert_eq!(ended.count(), invoices, "each with a last invoice");
                invoices
            }
            Call::CancelAtPeriodEnd => {
                subscriptions.iter().filter(|found| found["cancel_at_period_end"] == true).count()
            }
            Call::GiveBack => {
                let notes = self.world.simulated.get("/v1/credit_notes");
                notes["data"].as_array().unwrap().len()
            }
        }
    }

    /// Whether a look shows that it took effect.
    async fn look(&self) -> bool {
        let operations = self.world.operations();
        if self.call == Call::CreateCustomer {
            let now = self.world.simulated.lock().now().seconds();
            return operations.find_created_customer(SAGA, at(now)).await.unwrap().is_some();
        }
        let customer = customer_id(&self.customer);
        let listed = operations.list_customer_subscriptions(&customer).await.unwrap();
        match self.call {
            Call::CreateCustomer => unreachable!("it was looked for above"),
            Call::AbandonCustomer => {
                operations.find_created_customer(SAGA, at(super::NOON)).await.unwrap().is_none()
            }
            Call::CreateSubscription => {
                listed.iter().any(|found| found.saga.as_deref() == Some(SAGA))
            }
            Call::ChangePrices => listed[0].saga.as_deref() == Some("saga_2"),
            Call::CancelNow => listed[0].status == "canceled",
            Call::CancelAtPeriodEnd => listed[0].cancel_at_period_end,
            Call::GiveBack => {
                let given =
                    |one: &Value| one["amount_paid"] == one["post_payment_credit_notes_amount"];
                self.world.simulated.invoices().iter().all(given)
            }
        }
    }
}

/// Fails a call once in this way. Then it is made again under its key, and, if the failure was
/// kept, looked up and made under another key where nothing had happened.
async fn check(call: Call, kind: FaultKind, first: &str, effects: usize, second: &str) {
    let scene = Scene::new(call).await;
    scene.world.simulated.faults(vec![FaultRule::new(kind).on_call(call.pattern())]);
    let failed = scene.make("key").await;
    assert_eq!(word(&failed), first, "{call:?} {kind:?}: {failed:?}");
    let injected = BTreeMap::from([(kind, 1)]);
    assert_eq!(scene.world.simulated.lock().faults_injected(), &injected);
    assert_eq!(scene.effects(), effects, "{call:?} {kind:?}");
    let again = scene.make("key").await;
    assert_eq!(word(&again), second, "{call:?} {kind:?}: {again:?}");
    if second == "kept" {
        assert_eq!(scene.effects(), effects, "{call:?} {kind:?}: the key repeats its failure");
        let happened = scene.look().await;
        assert_eq!(happened, effects == 1, "{call:?} {kind:?}");
        if !happened {
            assert_eq!(word(&scene.make("another key").await), "done", "{call:?} {kind:?}");
        }
    }
    assert_eq!(scene.effects(), 1, "{call:?} {kind:?}");
    assert!(scene.look().await, "{call:?} {kind:?}");
}

#[tokio::test]
async fn before_the_effect() {
    for call in Call::ALL {
        for kind in [
            FaultKind::LostBefore,
            FaultKind::Error502,
            FaultKind::Error503,
            FaultKind::Error504,
            FaultKind::RateLimited429,
            FaultKind::LockTimeout429,
        ] {
            check(call, kind, "retry", 0, "done").await;
        }
        // A DELETE has no key that could be in use.
        if call != Call::CancelNow {
            check(call, FaultKind::Conflict409, "retry", 0, "done").await;
        }
    }
}

#[tokio::test]
async fn after_the_effect() {
    for call in Call::ALL {
        for kind in [FaultKind::LostAfter, FaultKind::ResetMidBody, FaultKind::Garbage200] {
            check(call, kind, "retry", 1, "done").await;
        }
    }
}

#[tokio::test]
async fn no_answer_in_time() {
    for (kind, effects) in [(FaultKind::HangBefore, 0), (FaultKind::HangAfter, 1)] {
        check(Call::CreateCustomer, kind, "retry", effects, "done").await;
        check(Call::CancelNow, kind, "retry", effects, "done").await;
    }
}

#[tokio::test]
async fn a_500_is_kept_whether_it_happened_or_not() {
    for call in Call::ALL {
        for (kind, effects) in
            [(FaultKind::Error500Executed, 1), (FaultKind::Error500NotExecuted, 0)]
        {
            match (call, effects) {
                // Nothing is kept of a DELETE.
                (Call::CancelNow, _) => check(call, kind, "retry", effects, "done").await,
                // A mark is looked at before it is made.
                (Call::AbandonCustomer | Call::GiveBack, 1) => {
                    check(call, kind, "kept", 1, "done").await;
                }
                _ => check(call, kind, "kept", effects, "kept").await,
            }
        }
    }
}

#[tokio::test]
async fn made_twice_under_one_key() {
    for call in Call::ALL {
        let scene = Scene::new(call).await;
        let first = super::done(scene.make("key").await);
        let second = super::done(scene.make("key").await);
        assert_eq!(first, second, "{call:?}");
        assert_eq!(scene.effects(), 1, "{call:?}");
    }
}

#[tokio::test]
async fn one_of_two_at_once_is_told_to_wait() {
    let scene = Scene::new(Call::CreateCustomer).await;
    let delayed = FaultRule::new(FaultKind::Delayed).on_call("POST /v1/customers");
    scene.world.simulated.faults(vec![delayed]);
    let (one, other) = tokio::join!(scene.make("key"), scene.make("key"));
    let mut words = [word(&one), word(&other)];
    words.sort_unstable();
    assert_eq!(words, ["done", "retry"], "{one:?} {other:?}");
    assert_eq!(word(&scene.make("key").await), "done");
    assert_eq!(scene.effects(), 1);
}

#[tokio::test]
async fn a_key_of_something_else() {
    let world = World::new().await;
    super::done(world.create_customer("saga_other", "key").await);
    let called = world.create_customer(SAGA, "key").await;
    assert_eq!(word(&called), "kept", "{called:?}");
    assert_eq!(world.customers().len(), 1);
}
