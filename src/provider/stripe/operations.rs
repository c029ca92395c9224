//! What sagas change at Stripe: customers, subscriptions, and the invoices of what is undone.
//!
//! Invariant: a call that changes something carries the key it was given, and the same arguments
//! make the same bytes, so that a call made again is the same call. What a saga made names the saga
//! in its metadata and is found by it in lists, which lag behind nothing; the search API does lag.
//! What the saga did not make is never marked.
//!
//! A crash leaves a call whose outcome is unknown: it is made again under its key, or looked up.

use super::answers::{Reply, judge_failure};
use super::objects::read_remote;
use super::{METADATA_SAGA, METADATA_STATE, METADATA_TENANT, Stripe, form, seconds};
use crate::provider::{
    Called, CancelWhen, CustomerFacts, Operations, RemoteSubscription, SubscriptionFacts,
    Unreadable,
};
use crate::rules::ids::{CustomerId, SubscriptionId};
use crate::rules::timestamp::{MICROS_PER_SECOND, Timestamp};
use async_trait::async_trait;
use serde_json::Value;

const ABANDONED: &str = "abandoned";
/// How far Stripe's clock may be behind ours. Sagas have distinct ids, so looking
/// too far back costs pages and nothing else.
const CLOCKS_APART_SECONDS: i64 = 3_600;

#[async_trait]
impl Operations for Stripe {
    async fn create_customer(&self, facts: &CustomerFacts<'_>, key: &str) -> Called<CustomerId> {
        let (tenant, saga) = (metadata(METADATA_TENANT), metadata(METADATA_SAGA));
        let mut pairs = Vec::new();
        pairs.extend(facts.name.map(|name| ("name", name)));
        pairs.extend(facts.email.map(|email| ("email", email)));
        pairs.extend([(tenant.as_str(), facts.tenant.as_str()), (&saga, facts.saga)]);
        self.post("/v1/customers", &pairs, key).await.and_then(|customer| {
            let unnamed = || Called::Retry("Stripe's answer names no customer".into());
            customer_id(&customer).map_or_else(unnamed, Called::Done)
        })
    }

    async fn find_created_customer(
        &self,
        saga: &str,
        since: Timestamp,
    ) -> Result<Option<CustomerId>, Unreadable> {
        let since = seconds(since).saturating_sub(CLOCKS_APART_SECONDS).to_string();
        let filters = [("created[gte]", since.as_str())];
        // One that was abandoned belongs to a life of the saga that was undone.
        let wanted = |customer: &&Value| {
            let metadata = &customer["metadata"];
            metadata[METADATA_SAGA] == saga && metadata[METADATA_STATE] != ABANDONED
        };
        let mut after = None;
        loop {
            let page = self.client.page("/v1/customers", &filters, after.as_deref()).await;
            let page = page.map_err(unreadable)?;
            if let Some(customer) = page.rows.iter().find(wanted) {
                let unnamed = || unreadable("a customer at Stripe has no id".into());
                return customer_id(customer).ok_or_else(unnamed).map(Some);
            }
            after = page.next;
            if after.is_none() {
                return Ok(None);
            }
        }
    }

    async fn abandon_customer(&self, customer: &CustomerId, saga: &str, key: &str) -> Called<()> {
        let path = customer_path(customer);
        let found: Option<Value> = match self.client.find(&path, "").await {
            Ok(found) => found,
            Err(message) => return Called::Retry(message),
        };
        // What somebody deleted needs no mark.
        let Some(found) = found.filter(|found| found["deleted"] != true) else {
            return Called::Done(());
        };
        if found["metadata"][METADATA_SAGA] != saga {
            let customer = customer.as_str();
            return Called::Refused(format!("{customer} was not made by {saga}"));
        }
        if found["metadata"][METADATA_STATE] == ABANDONED {
            return Called::Done(());
        }
        let marked = self.post(&path, &[(&metadata(METADATA_STATE), ABANDONED)], key).await;
        marked.and_then(|_| Called::Done(()))
    }

    async fn create_subscription(
        &self,
        facts: &SubscriptionFacts<'_>,
        key: &str,
    ) -> Called<RemoteSubscription> {
        let (tenant, saga) = (metadata(METADATA_TENANT), metadata(METADATA_SAGA));
        let mut form = vec![("customer".to_owned(), facts.customer.as_str())];
        for (place, price) in distinct(facts.prices).into_iter().enumerate() {
            form.push((format!("items[{place}][price]"), price));
        }
        // Usage at a price that is replaced later is billed; in the older mode it is dropped.
        form.push(("billing_mode[type]".to_owned(), "flexible"));
        // One that cannot be paid is refused and not left behind half made.
        form.push(("payment_behavior".to_owned(), "error_if_incomplete"));
        let anchor = facts.anchor.map(|at| at.micros().div_euclid(MICROS_PER_SECOND).to_string());
        if let Some(anchor) = &anchor {
            form.push(("billing_cycle_anchor".to_owned(), anchor));
            form.push(("proration_behavior".to_owned(), "none"));
        }
        form.push((tenant, facts.tenant.as_str()));
        form.push((saga, facts.saga));
        let called = self.post("/v1/subscriptions", &borrowed(&form), key).await;
        self.read_called(called).await
    }

    async fn list_customer_subscriptions(
        &self,
        customer: &CustomerId,
    ) -> Result<Vec<RemoteSubscription>, Unreadable> {
        let filters = [("customer", customer.as_str()), ("status", "all")];
        let mut subscriptions = Vec::new();
        let mut after = None;
        loop {
            let page = self.client.page("/v1/subscriptions", &filters, after.as_deref()).await;
            let page = page.map_err(unreadable)?;
            for object in page.rows {
                subscriptions.push(self.read_whole(object).await?);
            }
            after = page.next;
            if after.is_none() {
                return Ok(subscriptions);
            }
        }
    }

    async fn read_subscription(
        &self,
        id: &SubscriptionId,
    ) -> Result<Option<RemoteSubscription>, Unreadable> {
        let found = self.client.find(&subscription_path(id), "").await.map_err(unreadable)?;
        match found {
            Some(object) => self.read_whole(object).await.map(Some),
            None => Ok(None),
        }
    }

    async fn change_prices(
        &self,
        subscription: &RemoteSubscription,
        prices: &[String],
        saga: &str,
        key: &str,
    ) -> Called<RemoteSubscription> {
        let wanted = distinct(prices);
        let goes = subscription.items.iter().filter(|item| !wanted.contains(&item.price.as_str()));
        let goes: Vec<_> = goes.collect();
        let is_there = |price: &str| subscription.items.iter().any(|item| item.price == price);
        let comes: Vec<&str> = wanted.iter().copied().filter(|price| !is_there(price)).collect();
        if goes.is_empty() && comes.is_empty() && subscription.saga.as_deref() == Some(saga) {
            return Called::Done(subscription.clone());
        }
        let gone_prices = goes.iter().map(|item| item.price.as_str());
        let proration = match self.proration(gone_prices).await {
            Ok(proration) => proration,
            Err(Unreadable { message }) => return Called::Retry(message),
        };
        let mut form = Vec::new();
        for (place, item) in goes.iter().enumerate() {
            form.push((format!("items[{place}][id]"), item.id.as_str()));
            form.push((format!("items[{place}][deleted]"), "true"));
        }
        for (place, price) in comes.into_iter().enumerate() {
            form.push((format!("items[{}][price]", goes.len() + place), price));
        }
        form.push(("proration_behavior".to_owned(), proration));
        form.push((metadata(METADATA_SAGA), saga));
        let path = subscription_path(&subscription.id);
        let called = self.post(&path, &borrowed(&form), key).await;
        self.read_called(called).await
    }

    async fn cancel_subscription(
        &self,
        id: &SubscriptionId,
        when: CancelWhen,
        key: &str,
    ) -> Called<RemoteSubscription> {
        let path = subscription_path(id);
        let called = match when {
            CancelWhen::PeriodEnd => {
                self.post(&path, &[("cancel_at_period_end", "true")], key).await
            }
            CancelWhen::Now | CancelWhen::Unwanted => {
                let invoiced = if when == CancelWhen::Now { "true" } else { "false" };
                let query = form::encode(&[("invoice_now", invoiced), ("prorate", "false")]);
                match judge(self.client.delete(&path, &query, key).await) {
                    // Nothing is kept of a DELETE: made again it ends the subscription, or is
                    // refused because that has ended.
                    Called::Kept(message) | Called::Retry(message) => Called::Retry(message),
                    Called::Done(object) => Called::Done(object),
                    Called::Refused(message) => Called::Refused(message),
                }
            }
        };
        let Called::Refused(message) = called else { return self.read_called(called).await };
        // Stripe says of a subscription that has ended that there is none, or that it cannot be
        // changed.
        match self.read_subscription(id).await {
            Ok(Some(found)) if has_ended(&found) => Called::Done(found),
            Ok(Some(_) | None) => Called::Refused(message),
            Err(Unreadable { message }) => Called::Retry(message),
        }
    }

    async fn give_back(&self, id: &SubscriptionId, saga: &str, key: &str) -> Called<()> {
        let filters = [("subscription", id.as_str())];
        let mut after = None;
        loop {
            let page = match self.client.page("/v1/invoices", &filters, after.as_deref()).await {
                Ok(page) => page,
                Err(message) => return Called::Retry(message),
            };
            for invoice in &page.rows {
                let given = self.give_back_invoice(invoice, saga, key).await;
                if given != Called::Done(()) {
                    return given;
                }
            }
            after = page.next;
            if after.is_none() {
                return Called::Done(());
            }
        }
    }
}

impl Stripe {
    async fn post(&self, path: &str, pairs: &[(&str, &str)], key: &str) -> Called<Value> {
        judge(self.client.post(path, form::encode(pairs).into_bytes(), Some(key)).await)
    }

    /// An invoice that was just read; what was given back of it before is no part of it.
    async fn give_back_invoice(&self, invoice: &Value, saga: &str, key: &str) -> Called<()> {
        let Some(id) = invoice["id"].as_str() else {
            return Called::Retry("an invoice at Stripe has no id".into());
        };
        let path = format!("/v1/invoices/{}", form::segment(id));
        match invoice["status"].as_str().unwrap_or_default() {
            // A subscription's draft cannot be deleted, only voided.
            "draft" => {
                let finalize = format!("{path}/finalize");
                let (own_key, pairs) =
                    (format!("{key}.{id}.finalize"), [("auto_advance", "false")]);
                match self.post(&finalize, &pairs, &own_key).await {
                    // One of nothing is paid as soon as it is final.
                    Called::Done(fixed) if fixed["status"] == "open" => {
                        self.void(&path, id, key).await
                    }
                    Called::Done(_) => Called::Done(()),
                    Called::Refused(message) => Called::Refused(message),
                    Called::Retry(message) => Called::Retry(message),
                    Called::Kept(message) => Called::Kept(message),
                }
            }
            "open" | "uncollectible" => self.void(&path, id, key).await,
            "paid" => {
                let amount = |name: &str| invoice[name].as_i64().unwrap_or(0);
                let left = amount("amount_paid") - amount("post_payment_credit_notes_amount");
                if left <= 0 {
                    return Called::Done(());
                }
                let (left, name) = (left.to_string(), metadata(METADATA_SAGA));
                let pairs = [
                    ("invoice", id),
                    ("amount", &left),
                    ("refund_amount", &left),
                    ("reason", "order_change"),
                    (&name, saga),
                ];
                let own_key = format!("{key}.{id}.refund");
                self.post("/v1/credit_notes", &pairs, &own_key).await.and_then(|_| Called::Done(()))
            }
            "void" => Called::Done(()),
            other => Called::Refused(format!("invoice {id} is {other}; give it back by hand")),
        }
    }

    async fn void(&self, path: &str, id: &str, key: &str) -> Called<()> {
        let own_key = format!("{key}.{id}.void");
        self.post(&format!("{path}/void"), &[], &own_key).await.and_then(|_| Called::Done(()))
    }

    async fn read_called(&self, called: Called<Value>) -> Called<RemoteSubscription> {
        match called {
            Called::Done(object) => match self.read_whole(object).await {
                Ok(subscription) => Called::Done(subscription),
                // The same key shows it again.
                Err(Unreadable { message }) => Called::Retry(message),
            },
            Called::Refused(message) => Called::Refused(message),
            Called::Retry(message) => Called::Retry(message),
            Called::Kept(message) => Called::Kept(message),
        }
    }

    async fn read_whole(&self, mut object: Value) -> Result<RemoteSubscription, Unreadable> {
        self.read_items(&mut object).await?;
        let missing = || unreadable("a subscription lacks what is needed".into());
        read_remote(&object).ok_or_else(missing)
    }

    /// What Stripe is to do about the period under way when these prices go. Nothing, unless one
    /// of them is metered: `none` would drop the usage that was not yet billed at it.
    async fn proration(
        &self,
        prices: impl Iterator<Item = &str> + Send,
    ) -> Result<&'static str, Unreadable> {
        for price in prices {
            if self.metered_by(price).await?.is_some() {
                return Ok("create_prorations");
            }
        }
        Ok("none")
    }
}

/// What came of a call, with the object that it shows.
fn judge(sent: Result<Reply, String>) -> Called<Value> {
    let reply = match sent {
        Ok(reply) => reply,
        Err(message) => return Called::Retry(message),
    };
    if !(200..300).contains(&reply.status) {
        return judge_failure(&reply);
    }
    match serde_json::from_slice(&reply.body) {
        Ok(object) => Called::Done(object),
        // The same key brings the same answer, whole.
        Err(_) => Called::Retry(format!("{}, with a body that is not Stripe's", reply.status)),
    }
}

fn has_ended(subscription: &RemoteSubscription) -> bool {
    ["canceled", "incomplete_expired"].contains(&subscription.status.as_str())
}

/// Each price once: Stripe takes no price twice.
fn distinct(prices: &[String]) -> Vec<&str> {
    let mut distinct: Vec<&str> = Vec::with_capacity(prices.len());
    for price in prices {
        if !distinct.contains(&price.as_str()) {
            distinct.push(price);
        }
    }
    distinct
}

fn borrowed<'a>(form: &'a [(String, &'a str)]) -> Vec<(&'a str, &'a str)> {
    form.iter().map(|(name, value)| (name.as_str(), *value)).collect()
}

fn metadata(name: &str) -> String {
    format!("metadata[{name}]")
}

fn customer_id(customer: &Value) -> Option<CustomerId> {
    CustomerId::parse(customer["id"].as_str()?).ok()
}

fn customer_path(id: &CustomerId) -> String {
    format!("/v1/customers/{}", form::segment(id.as_str()))
}

fn subscription_path(id: &SubscriptionId) -> String {
    format!("/v1/subscriptions/{}", form::segment(id.as_str()))
}

fn unreadable(message: String) -> Unreadable {
    Unreadable { message }
}
