//! A tenant becomes a subscriber: customer, subscription, our own record, access to features.
//!
//! The customer that the tenant has is used; only one that this saga created is ever marked as
//! abandoned, and none is deleted. The tenant is mapped to the customer in the last step, so usage
//! is not pushed to a customer before there is a subscription to bill it by.
//!
//! Undone, the subscription is cancelled and everything that its invoices took is given back.

use super::step::{PlanTerms, Step, Tried, Turn, done, done_with, settle_call};
use crate::faults::planted;
use crate::provider::{
    CancelWhen, CustomerFacts, RemoteSubscription, SubscriptionFacts, Unreadable,
};
use crate::rules::ids::{CustomerId, SubscriptionId};
use crate::rules::saga::{Outcome, StepShape};
use crate::rules::span::Span;
use crate::rules::timestamp::Timestamp;
use crate::store::{TenantFields, TenantPut};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};

/// How far the clocks of the provider and ours may differ when a customer is looked for.
const CLOCK_MARGIN: Span = Span::from_hours(1);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateParams {
    #[serde(flatten)]
    pub terms: PlanTerms,
    /// For a customer that is created.
    pub name: Option<String>,
    pub email: Option<String>,
    /// Where the billing periods are counted from, if not from the beginning.
    #[serde(default)]
    pub anchor: Option<Timestamp>,
}

pub fn steps() -> Vec<&'static dyn Step> {
    vec![&CustomerStep, &SubscriptionStep, &RecordNew, &Access]
}

#[derive(Serialize, Deserialize)]
struct CustomerResult {
    customer: CustomerId,
    /// Whether this saga created it.
    created: bool,
}

#[derive(Serialize, Deserialize)]
struct SubscriptionResult {
    subscription: SubscriptionId,
    /// From when on it charges, by the provider's clock.
    #[serde(default)]
    started_at: Option<Timestamp>,
}

struct CustomerStep;

impl CustomerStep {
    /// What an earlier try has created.
    async fn find(turn: &Turn<'_>) -> Result<Option<CustomerId>, Unreadable> {
        let since = CLOCK_MARGIN.before(turn.began_at());
        turn.operations.find_created_customer(&turn.tag(), since).await
    }

    async fn create(turn: &Turn<'_>, known_name: Option<String>) -> Result<CustomerId, Outcome> {
        let params: CreateParams = turn.params()?;
        let (tag, name) = (turn.tag(), params.name.or(known_name));
        let facts = CustomerFacts {
            tenant: &turn.saga.tenant,
            name: name.as_deref(),
            email: params.email.as_deref(),
            saga: &tag,
        };
        let called = turn.operations.create_customer(&facts, &turn.key).await;
        settle_call(called, Self::find(turn)).await
    }
}

#[async_trait]
impl Step for CustomerStep {
    fn shape(&self) -> StepShape {
        StepShape { name: "customer", undoable: true }
    }

    async fn act(&self, turn: &Turn<'_>) -> Tried {
        let tenant = turn.store.find_tenant(&turn.saga.tenant).await?;
        if let Some(customer) = tenant.as_ref().and_then(|tenant| tenant.customer.clone()) {
            return Ok(done_with(&CustomerResult { customer, created: false }));
        }
        let standing = if turn.again { Self::find(turn).await? } else { None };
        let customer = match standing {
            Some(customer) => customer,
            None => Self::create(turn, tenant.and_then(|tenant| tenant.name)).await?,
        };
        Ok(done_with(&CustomerResult { customer, created: true }))
    }

    async fn undo(&self, turn: &Turn<'_>) -> Tried {
        let known: Option<CustomerResult> = turn.result("customer");
        let customer = match known {
            Some(CustomerResult { created: false, .. }) => return Ok(done()),
            Some(CustomerResult { customer, .. }) => customer,
            None => match Self::find(turn).await? {
                Some(customer) => customer,
                None => return Ok(done()),
            },
        };
        let called = turn.operations.abandon_customer(&customer, &turn.tag(), &turn.key).await;
        settle_call(called, async { Ok(None) }).await?;
        Ok(done())
    }
}

struct SubscriptionStep;

impl SubscriptionStep {
    /// The first invoice of a flat price is paid when the subscription is made. The step is undone
    /// only when that is given back, so that a new start never charges twice.
    async fn give_back(turn: &Turn<'_>, own: &RemoteSubscription) -> Result<(), Outcome> {
        if planted("bug.undo_keeps_the_money") {
            return Ok(());
        }
        let given = turn.operations.give_back(&own.id, &turn.tag(), &turn.key).await;
        // What was given back is looked up at the next try.
        settle_call(given, async { Ok(None) }).await
    }
}

/// Whether nothing is billed by it any more.
pub fn is_over(subscription: &RemoteSubscription) -> bool {
    matches!(subscription.status.as_str(), "canceled" | "incomplete_expired")
}

#[async_trait]
impl Step for SubscriptionStep {
    fn shape(&self) -> StepShape {
        StepShape { name: "subscription", undoable: true }
    }

    async fn act(&self, turn: &Turn<'_>) -> Tried {
        let CustomerResult { customer, .. } = turn.needed("customer")?;
        let params: CreateParams = turn.params()?;
        let standing = match turn.again {
            true => turn.own_subscription(&customer).await?,
            false => None,
        };
        let subscription = match standing {
            Some(subscription) => subscription,
            None => {
                let (tenant, tag) = (&turn.saga.tenant, turn.tag());
                let (customer, prices) = (&customer, &params.terms.prices);
                let anchor = params.anchor;
                if anchor.is_some_and(|anchor| anchor <= turn.now) {
                    let why = "the end of the window that its billing was to be aligned to has \
                               passed; request the subscription again under another key";
                    return Err(Outcome::Refused(why.into()));
                }
                let facts = SubscriptionFacts { customer, prices, tenant, saga: &tag, anchor };
                let called = turn.operations.create_subscription(&facts, &turn.key).await;
                settle_call(called, turn.own_subscription(customer)).await?
            }
        };
        if is_over(&subscription) {
            let RemoteSubscription { id, status, .. } = subscription;
            return Err(Outcome::Refused(format!("subscription {id} is {status}")));
        }
        let RemoteSubscription { id: subscription, started_at, .. } = subscription;
        Ok(done_with(&SubscriptionResult { subscription, started_at }))
    }

    async fn undo(&self, turn: &Turn<'_>) -> Tried {
        let CustomerResult { customer, .. } = turn.needed("customer")?;
        let Some(own) = turn.own_subscription(&customer).await? else { return Ok(done()) };
        if !is_over(&own) {
            let when = match planted("bug.undo_keeps_the_money") {
                true => CancelWhen::Now,
                false => CancelWhen::Unwanted,
            };
            let cancelled = turn.operations.cancel_subscription(&own.id, when, &turn.key).await;
            let look = async {
                let found = turn.operations.read_subscription(&own.id).await?;
                Ok(found.filter(is_over))
            };
            settle_call(cancelled, look).await?;
        }
        Self::give_back(turn, &own).await?;
        Ok(done())
    }
}

struct RecordNew;

#[async_trait]
impl Step for RecordNew {
    fn shape(&self) -> StepShape {
        StepShape { name: "record", undoable: true }
    }

    async fn act(&self, turn: &Turn<'_>) -> Tried {
        let params: CreateParams = turn.params()?;
        let SubscriptionResult { subscription, started_at } = turn.needed("subscription")?;
        turn.record_subscription(subscription, params.terms, turn.began_at()).await?;
        // Usage of the hour of the sign-up is stamped inside the subscription.
        if let Some(at) = started_at {
            turn.store.charge_from(&turn.saga.id, at).await?;
        }
        Ok(done())
    }

    async fn undo(&self, turn: &Turn<'_>) -> Tried {
        turn.store.withdraw_subscription(&turn.saga.id).await?;
        Ok(done())
    }
}

/// The last step; nothing comes after it that could fail, so it is never undone.
struct Access;

#[async_trait]
impl Step for Access {
    fn shape(&self) -> StepShape {
        StepShape { name: "access", undoable: false }
    }

    async fn act(&self, turn: &Turn<'_>) -> Tried {
        let CustomerResult { customer, .. } = turn.needed("customer")?;
        let tenant = turn.store.find_tenant(&turn.saga.tenant).await?;
        // The tenant was mapped meanwhile: that mapping wins.
        let mapped = tenant.as_ref().and_then(|tenant| tenant.customer.as_ref());
        if let Some(other) = mapped.filter(|mapped| **mapped != customer) {
            return Err(Outcome::Refused(format!("the tenant was mapped to customer {other}")));
        }
        let fields = TenantFields { customer: Some(customer.clone()), ..TenantFields::default() };
        match turn.store.put_tenant(&turn.saga.tenant, fields, turn.now).await? {
            TenantPut::Stored(_) => {}
            TenantPut::CustomerTaken(holder) => {
                return Err(Outcome::Refused(format!(
                    "customer {customer} belongs to tenant {holder}"
                )));
            }
        }
        turn.store.set_access(&turn.saga.id, true).await?;
        Ok(done())
    }

    async fn undo(&self, _: &Turn<'_>) -> Tried {
        Err(Outcome::Refused("access is the last step and is never undone".into()))
    }
}
