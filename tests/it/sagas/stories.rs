//! The sagas as stories: what there is before, what is begun, and what must be there at the end,
//! completed or compensated, at the provider and in the store.

use super::script::Accident;
use super::world::{World, prices_of};
use async_trait::async_trait;
use counterfoil::jobs::sagas::{CancelParams, ChangeParams, CreateParams, PlanTerms};
use counterfoil::rules::ids::SubscriptionId;
use counterfoil::rules::saga::SagaKind;
use counterfoil::rules::submission::PushState;
use counterfoil::rules::timestamp::Timestamp;
use counterfoil::store::saga::SubscriptionRecord;
use serde_json::Value;
use stripe_sim::ReceivedEvent;

/// One saga of one tenant.
pub struct Case {
    pub tenant: String,
    pub saga: String,
    /// As it was before, if there was one.
    pub customer: Option<Value>,
    pub subscription: Option<Value>,
    pub boundary: Option<Timestamp>,
}

#[async_trait]
pub trait Story: Send + Sync {
    /// Makes what is there before, for a new tenant, and begins the saga.
    async fn begin(&self, world: &World) -> Case;
    /// What turns the saga back as late as possible.
    fn obstacle(&self) -> (&'static str, Accident);
    async fn check_completed(&self, world: &World, case: &Case);
    async fn check_compensated(&self, world: &World, case: &Case);
}

/// A tenant without a customer, or with one, subscribes.
pub struct Create {
    pub with_customer: bool,
}

#[async_trait]
impl Story for Create {
    async fn begin(&self, world: &World) -> Case {
        let tenant = world.fresh("create");
        let customer = match self.with_customer {
            true => Some(world.customer(&world.tenant(&tenant).await)),
            false => None,
        };
        let terms = PlanTerms {
            plan: "pro".into(),
            prices: vec![world.prices[0].clone(), world.flat.clone()],
            features: vec!["exports".into()],
        };
        let params = CreateParams { terms, name: Some("Acme".into()), email: None, anchor: None };
        let saga = world.begin(&tenant, SagaKind::CreateSubscription, &params).await;
        Case { tenant, saga, customer, subscription: None, boundary: None }
    }

    fn obstacle(&self) -> (&'static str, Accident) {
        ("record_subscription", Accident::FailBefore)
    }

    async fn check_completed(&self, world: &World, case: &Case) {
        let generation = world.saga(&case.saga).await.0.generation;
        let tag = format!("{}.{generation}", case.saga);
        let made = world.made_customers(&case.tenant);
        let kept: Vec<&Value> = made.iter().filter(|one| !is_abandoned(one)).collect();
        let customer = match &case.customer {
            Some(before) => {
                assert!(made.is_empty(), "{made:#?}");
                let customer = before["id"].as_str().unwrap();
                assert_eq!(world.customer(customer), *before);
                customer
            }
            None => {
                let [customer] = kept[..] else { panic!("{made:#?}") };
                assert_eq!(customer["metadata"]["counterfoil_saga"], tag);
                customer["id"].as_str().unwrap()
            }
        };
        assert_eq!(world.mapped_to(&case.tenant).await.as_deref(), Some(customer));
        let all = world.subscriptions(customer);
        let live: Vec<&Value> = all.iter().filter(|one| one["status"] != "canceled").collect();
        let [live] = live[..] else { panic!("{all:#?}") };
        assert_eq!(live["status"], "active");
        assert_eq!(live["metadata"]["counterfoil_saga"], tag);
        assert_eq!(prices_of(live), [&world.prices[0], &world.flat]);
        assert_eq!(world.kept(customer), 500, "the first month, paid once");
        let records = world.records(&case.tenant).await;
        let [record] = &records[..] else { panic!("{records:#?}") };
        assert_eq!(record.subscription.as_str(), live["id"]);
        assert_eq!((record.plan.as_str(), record.access), ("pro", true));
        assert_eq!((record.ended_at, &record.saga), (None, &case.saga));
    }

    async fn check_compensated(&self, world: &World, case: &Case) {
        let made = world.made_customers(&case.tenant);
        assert!(made.len() <= 1 && made.iter().all(is_abandoned), "{made:#?}");
        let mut customers: Vec<&Value> = made.iter().collect();
        let mapped = case.customer.as_ref().and_then(|before| before["id"].as_str());
        if let Some(before) = &case.customer {
            assert!(made.is_empty(), "{made:#?}");
            assert_eq!(world.customer(mapped.unwrap()), *before, "it is not this saga's");
            customers.push(before);
        }
        for customer in customers {
            let all = world.subscriptions(customer["id"].as_str().unwrap());
            let over = all.iter().all(|one| one["status"] == "canceled");
            assert!(over && all.len() <= 1, "{all:#?}");
            assert_eq!(world.kept(customer["id"].as_str().unwrap()), 0, "everything is given back");
        }
        assert_eq!(world.mapped_to(&case.tenant).await.as_deref(), mapped);
        assert_eq!(world.records(&case.tenant).await, []);
    }
}

fn is_abandoned(customer: &Value) -> bool {
    customer["metadata"]["counterfoil_state"] == "abandoned"
}

/// Makes a tenant with a customer, a subscription, a subscription record, and usage in the open
/// window.
pub async fn subscriber(world: &World, prefix: &str) -> Case {
    let tenant = world.fresh(prefix);
    let customer = world.tenant(&tenant).await;
    let fields = [
        ("customer", customer.as_str()),
        ("items[0][price]", &world.prices[0]),
        ("metadata[counterfoil_tenant]", &tenant),
    ];
    let subscription = world.stripe.ask("/v1/subscriptions", &fields);
    let base = world.subscription_record(&tenant, id_of(&subscription).as_str());
    world.agree(SubscriptionRecord { prices: world.prices[..1].to_vec(), ..base }).await;
    world.used(&tenant, "7", world.clock.now()).await;
    let (customer, subscription) = (Some(world.customer(&customer)), Some(subscription));
    Case { tenant, saga: String::new(), customer, subscription, boundary: None }
}

pub fn id_of(subscription: &Value) -> SubscriptionId {
    SubscriptionId::parse(subscription["id"].as_str().unwrap()).unwrap()
}

impl Case {
    pub fn customer_id(&self) -> &str {
        self.customer.as_ref().unwrap()["id"].as_str().unwrap()
    }

    /// The only subscription of the customer, as it is now.
    pub fn subscription_now(&self, world: &World) -> Value {
        let mut all = world.subscriptions(self.customer_id());
        assert_eq!(all.len(), 1, "{all:#?}");
        all.remove(0)
    }

    /// The customer is as it was, and the first subscription record stands.
    async fn check_nothing_changed(&self, world: &World) {
        assert_eq!(world.customer(self.customer_id()), *self.customer.as_ref().unwrap());
        let now = self.subscription_now(world);
        assert_eq!(now["status"], "active");
        assert_eq!(now["cancel_at_period_end"], false);
        assert_eq!(prices_of(&now), world.prices[..1]);
        let records = world.records(&self.tenant).await;
        let [record] = &records[..] else { panic!("{records:#?}") };
        assert_eq!((record.access, record.ended_at), (true, None));
    }

    /// Usage from before the boundary has reached the provider, once, by this second.
    async fn check_drained(&self, world: &World, by: &Value) {
        let received = world.stripe.lock().events_received().to_vec();
        let own = received.iter().filter(|event| event.customer == self.customer_id());
        let told = |event: &ReceivedEvent| {
            (event.value.to_string(), event.received.seconds() <= by.as_i64().unwrap())
        };
        assert_eq!(own.map(told).collect::<Vec<_>>(), [("7".to_owned(), true)]);
        let pushes = world.pushes(&self.tenant).await;
        let sent = pushes.iter().all(|push| push.state != PushState::Observed);
        assert!(sent && pushes.len() == 1, "{pushes:#?}");
    }
}

/// A subscription gets the second price.
pub struct Change;

#[async_trait]
impl Story for Change {
    async fn begin(&self, world: &World) -> Case {
        let mut case = subscriber(world, "change").await;
        let boundary = world.boundary().await;
        let subscription = id_of(case.subscription.as_ref().unwrap());
        let terms = PlanTerms {
            plan: "scale".into(),
            prices: world.prices[1..2].to_vec(),
            features: vec!["exports".into(), "sso".into()],
        };
        let params = ChangeParams { subscription, terms, boundary };
        case.saga = world.begin(&case.tenant, SagaKind::ChangePlan, &params).await;
        case.boundary = Some(boundary);
        case
    }

    fn obstacle(&self) -> (&'static str, Accident) {
        ("record_subscription", Accident::FailBefore)
    }

    async fn check_completed(&self, world: &World, case: &Case) {
        let now = case.subscription_now(world);
        assert_eq!(now["status"], "active");
        assert_eq!(prices_of(&now), world.prices[1..2]);
        case.check_drained(world, &now["items"]["data"][0]["created"]).await;
        let records = world.records(&case.tenant).await;
        let [new, old] = &records[..] else { panic!("{records:#?}") };
        assert_eq!((new.plan.as_str(), new.access, new.ended_at), ("scale", true, None));
        assert_eq!(Some(new.began_at), case.boundary);
        assert_eq!((old.plan.as_str(), old.ended_at), ("pro", case.boundary));
        assert!(!world.store.release_hold(&case.saga).await.unwrap(), "a hold is left");
    }

    async fn check_compensated(&self, world: &World, case: &Case) {
        case.check_nothing_changed(world).await;
        assert!(!world.store.release_hold(&case.saga).await.unwrap(), "a hold is left");
    }
}

/// A subscription ends at once, or with its period.
pub struct Cancel {
    pub at_once: bool,
}

#[async_trait]
impl Story for Cancel {
    async fn begin(&self, world: &World) -> Case {
        let mut case = subscriber(world, "cancel").await;
        case.boundary = match self.at_once {
            true => Some(world.boundary().await),
            false => None,
        };
        let subscription = id_of(case.subscription.as_ref().unwrap());
        let params = CancelParams { subscription, boundary: case.boundary };
        case.saga = world.begin(&case.tenant, SagaKind::CancelSubscription, &params).await;
        case
    }

    fn obstacle(&self) -> (&'static str, Accident) {
        ("cancel_subscription", Accident::Refuse)
    }

    async fn check_completed(&self, world: &World, case: &Case) {
        let now = case.subscription_now(world);
        let records = world.records(&case.tenant).await;
        let [record] = &records[..] else { panic!("{records:#?}") };
        if self.at_once {
            assert_eq!(now["status"], "canceled");
            assert_eq!(record.ended_at, case.boundary);
            case.check_drained(world, &now["ended_at"]).await;
        } else {
            assert_eq!(now["status"], "active");
            assert_eq!(now["cancel_at_period_end"], true);
            let end = now["items"]["data"][0]["current_period_end"].as_i64().unwrap();
            assert_eq!(record.ended_at.unwrap().micros(), end * 1_000_000);
        }
        assert_eq!(world.mapped_to(&case.tenant).await.as_deref(), Some(case.customer_id()));
    }

    async fn check_compensated(&self, world: &World, case: &Case) {
        case.check_nothing_changed(world).await;
    }
}
