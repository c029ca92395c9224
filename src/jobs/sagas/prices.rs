//! The prices of a subscription, read and set.

use super::create_subscription::is_over;
use super::step::{Turn, settle_call};
use crate::provider::RemoteSubscription;
use crate::rules::ids::SubscriptionId;
use crate::rules::saga::Outcome;
use std::collections::BTreeSet;

/// The tenant's own subscription, also if it is over.
pub async fn find_own(turn: &Turn<'_>, id: &SubscriptionId) -> Result<RemoteSubscription, Outcome> {
    let tenant = turn.store.find_tenant(&turn.saga.tenant).await?;
    let customer = tenant.and_then(|tenant| tenant.customer);
    let customer = customer.ok_or_else(|| {
        Outcome::Refused(format!("tenant {} has no customer at the provider", turn.saga.tenant))
    })?;
    let all = turn.operations.list_customer_subscriptions(&customer).await;
    let found = all?.into_iter().find(|one| one.id == *id);
    found.ok_or_else(|| Outcome::Refused(format!("customer {customer} has no subscription {id}")))
}

/// The tenant's own subscription, if it is not over.
pub async fn read_own(turn: &Turn<'_>, id: &SubscriptionId) -> Result<RemoteSubscription, Outcome> {
    let subscription = find_own(turn, id).await?;
    if is_over(&subscription) {
        return Err(Outcome::Refused(format!("subscription {id} is {}", subscription.status)));
    }
    Ok(subscription)
}

pub fn prices_of(subscription: &RemoteSubscription) -> Vec<String> {
    subscription.items.iter().map(|item| item.price.clone()).collect()
}

pub fn are_same(one: &[String], other: &[String]) -> bool {
    one.iter().collect::<BTreeSet<_>>() == other.iter().collect::<BTreeSet<_>>()
}

/// Sets the prices of a subscription that was just read, unless they are these already; returns it
/// as it is then.
pub async fn set(
    turn: &Turn<'_>,
    subscription: &RemoteSubscription,
    prices: &[String],
) -> Result<RemoteSubscription, Outcome> {
    if are_same(&prices_of(subscription), prices) {
        return Ok(subscription.clone());
    }
    let tag = turn.tag();
    let called = turn.operations.change_prices(subscription, prices, &tag, &turn.key).await;
    let look = async {
        let found = turn.operations.read_subscription(&subscription.id).await?;
        Ok(found.filter(|found| are_same(&prices_of(found), prices)))
    };
    settle_call(called, look).await
}
