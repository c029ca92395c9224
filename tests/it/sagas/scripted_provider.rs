//! A provider whose changing and reading calls meet the accidents of a script.

use super::script::Script;
use async_trait::async_trait;
use counterfoil::provider::{
    Answer, Called, CancelWhen, CustomerFacts, Limits, Operations, Provider, PushFacts,
    RemoteSubscription, Request, SubscriptionFacts, TotalsQuery, Unreadable,
};
use counterfoil::rules::ids::{CustomerId, SubscriptionId};
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::timestamp::Timestamp;
use std::sync::Arc;

pub struct ScriptedProvider {
    pub inner: Arc<dyn Provider>,
    pub script: Arc<Script>,
}

impl ScriptedProvider {
    fn real(&self) -> &dyn Operations {
        self.inner.operations().unwrap()
    }
}

#[async_trait]
impl Provider for ScriptedProvider {
    fn name(&self) -> &'static str {
        self.inner.name()
    }
    fn limits(&self) -> Limits {
        self.inner.limits()
    }
    fn encode(&self, facts: &PushFacts<'_>) -> Vec<u8> {
        self.inner.encode(facts)
    }
    async fn send_push(&self, request: &Request) -> Answer {
        self.inner.send_push(request).await
    }
    async fn read_totals(&self, query: &TotalsQuery<'_>) -> Result<Vec<Quantity>, Unreadable> {
        self.script.through("read_totals", self.inner.read_totals(query)).await
    }
    fn operations(&self) -> Option<&dyn Operations> {
        Some(self)
    }
}

#[async_trait]
impl Operations for ScriptedProvider {
    async fn create_customer(&self, facts: &CustomerFacts<'_>, key: &str) -> Called<CustomerId> {
        let call = || self.real().create_customer(facts, key);
        self.script.repeatable("create_customer", call).await
    }
    async fn find_created_customer(
        &self,
        saga: &str,
        since: Timestamp,
    ) -> Result<Option<CustomerId>, Unreadable> {
        let call = self.real().find_created_customer(saga, since);
        self.script.through("find_created_customer", call).await
    }
    async fn abandon_customer(&self, customer: &CustomerId, saga: &str, key: &str) -> Called<()> {
        let call = || self.real().abandon_customer(customer, saga, key);
        self.script.repeatable("abandon_customer", call).await
    }
    async fn create_subscription(
        &self,
        facts: &SubscriptionFacts<'_>,
        key: &str,
    ) -> Called<RemoteSubscription> {
        let call = || self.real().create_subscription(facts, key);
        self.script.repeatable("create_subscription", call).await
    }
    async fn list_customer_subscriptions(
        &self,
        customer: &CustomerId,
    ) -> Result<Vec<RemoteSubscription>, Unreadable> {
        let call = self.real().list_customer_subscriptions(customer);
        self.script.through("list_customer_subscriptions", call).await
    }
    async fn read_subscription(
        &self,
        id: &SubscriptionId,
    ) -> Result<Option<RemoteSubscription>, Unreadable> {
        self.script.through("read_subscription", self.real().read_subscription(id)).await
    }
    async fn change_prices(
        &self,
        subscription: &RemoteSubscription,
        prices: &[String],
        saga: &str,
        key: &str,
    ) -> Called<RemoteSubscription> {
        let call = || self.real().change_prices(subscription, prices, saga, key);
        self.script.repeatable("change_prices", call).await
    }
    async fn cancel_subscription(
        &self,
        id: &SubscriptionId,
        when: CancelWhen,
        key: &str,
    ) -> Called<RemoteSubscription> {
        let call = || self.real().cancel_subscription(id, when, key);
        self.script.repeatable("cancel_subscription", call).await
    }
    async fn give_back(&self, id: &SubscriptionId, saga: &str, key: &str) -> Called<()> {
        let call = || self.real().give_back(id, saga, key);
        self.script.repeatable("give_back", call).await
    }
}
