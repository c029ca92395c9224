//! What Stripe is asked for: objects, lists of events, all subscriptions, and recent invoices.
//!
//! Invariant: reading changes nothing. What Stripe does not know is `Gone`; what could not be read
//! is an error, and never an empty answer. Lists are read to their last page.

use super::objects::{read_invoice, read_line, read_snapshot, read_subscription};
use super::webhook::{ERROR_REPORTS, parse_webhook};
use super::{PriceFacts, Stripe, form, seconds};
use crate::provider::{EventList, EventPage, Inbound, InvoicePage, SubscriptionPage, Unreadable};
use crate::rules::invoice::InvoiceLine;
use crate::rules::mirror::{ObjectKind, ObjectName, Snapshot};
use crate::rules::timestamp::Timestamp;
use async_trait::async_trait;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

const PAGE: &str = "100";

#[derive(Deserialize)]
struct ObjectList<T> {
    data: Vec<T>,
    #[serde(default)]
    has_more: bool,
    #[serde(default)]
    next_page_url: Option<String>,
}

#[async_trait]
impl Inbound for Stripe {
    async fn read_object(&self, name: &ObjectName) -> Result<Snapshot, Unreadable> {
        let path = match name.kind {
            ObjectKind::Subscription => format!("/v1/subscriptions/{}", name.id),
            ObjectKind::Invoice => format!("/v1/invoices/{}", name.id),
            ObjectKind::CreditGrant => format!("/v1/billing/credit_grants/{}", name.id),
            ObjectKind::Customer => format!("/v1/customers/{}", name.id),
            ObjectKind::ErrorReport => format!("/v2/core/events/{}", name.id),
        };
        let found: Option<Value> = self.client.find(&path, "").await.map_err(unreadable)?;
        let Some(mut object) = found else { return Ok(Snapshot::Gone) };
        if name.kind == ObjectKind::Subscription {
            self.read_items(&mut object).await?;
        }
        let missing = || unreadable(format!("{path} lacks what is needed"));
        let mut snapshot = read_snapshot(name.kind, &object).ok_or_else(missing)?;
        match &mut snapshot {
            Snapshot::Invoice(invoice) => {
                invoice.lines = self.read_lines(&name.id, &object).await?;
            }
            Snapshot::ErrorReport(report) => {
                if let Some(meter) = report.event_name.take() {
                    report.event_name = self.event_name(&meter).await?;
                }
            }
            Snapshot::Subscription(_)
            | Snapshot::CreditGrant(_)
            | Snapshot::Customer(_)
            | Snapshot::Gone => {}
        }
        Ok(snapshot)
    }

    async fn list_events(
        &self,
        list: EventList,
        since: Timestamp,
        after: Option<&str>,
    ) -> Result<EventPage, Unreadable> {
        let (path, query) = match (list, after) {
            (EventList::Snapshot, after) => {
                let since = seconds(since).to_string();
                let mut pairs = vec![("limit", PAGE), ("created[gte]", &since)];
                pairs.extend(after.map(|id| ("starting_after", id)));
                ("/v1/events", form::encode(&pairs))
            }
            // The provider's own words for the next page.
            (EventList::ErrorReport, Some(query)) => ("/v2/core/events", query.to_owned()),
            (EventList::ErrorReport, None) => {
                let since = since.to_string();
                let pairs = [
                    ("limit", PAGE),
                    ("created[gte]", &since),
                    ("types[0]", ERROR_REPORTS[0]),
                    ("types[1]", ERROR_REPORTS[1]),
                ];
                ("/v2/core/events", form::encode(&pairs))
            }
        };
        let page: ObjectList<Box<RawValue>> =
            self.client.get(path, &query).await.map_err(unreadable)?;
        let mut events = Vec::with_capacity(page.data.len());
        for event in &page.data {
            let payload = event.get().as_bytes().to_vec();
            // One that cannot be read must not hide the others.
            match parse_webhook(&payload) {
                Ok(facts) => events.push((facts, payload)),
                Err(refusal) => tracing::warn!(%refusal.detail, "an event of the list is refused"),
            }
        }
        let last = page.data.last().and_then(|event| {
            let id: Value = serde_json::from_str(event.get()).ok()?;
            id["id"].as_str().map(str::to_owned)
        });
        let next = match list {
            EventList::Snapshot => last.filter(|_| page.has_more),
            EventList::ErrorReport => page
                .next_page_url
                .and_then(|url| url.split_once('?').map(|(_, query)| query.to_owned())),
        };
        Ok(EventPage { events, next })
    }

    async fn list_subscriptions(
        &self,
        after: Option<&str>,
    ) -> Result<SubscriptionPage, Unreadable> {
        let mut pairs = vec![("limit", PAGE), ("status", "all")];
        pairs.extend(after.map(|id| ("starting_after", id)));
        let query = form::encode(&pairs);
        let mut page: ObjectList<Value> =
            self.client.get("/v1/subscriptions", &query).await.map_err(unreadable)?;
        for object in &mut page.data {
            self.read_items(object).await?;
        }
        let last = page.data.last().and_then(|object| object["id"].as_str().map(str::to_owned));
        let read =
            |object: &Value| Some((object["id"].as_str()?.to_owned(), read_subscription(object)?));
        let subscriptions: Vec<_> = page.data.iter().filter_map(read).collect();
        if subscriptions.len() != page.data.len() {
            return Err(unreadable("a subscription lacks what is needed".into()));
        }
        Ok(SubscriptionPage { subscriptions, next: last.filter(|_| page.has_more) })
    }

    async fn list_invoices(
        &self,
        since: Timestamp,
        after: Option<&str>,
    ) -> Result<InvoicePage, Unreadable> {
        let since = seconds(since).to_string();
        let mut pairs = vec![("limit", PAGE), ("created[gte]", &since)];
        pairs.extend(after.map(|id| ("starting_after", id)));
        let query = form::encode(&pairs);
        let page: ObjectList<Value> =
            self.client.get("/v1/invoices", &query).await.map_err(unreadable)?;
        let last = page.data.last().and_then(|object| object["id"].as_str().map(str::to_owned));
        let mut invoices = Vec::with_capacity(page.data.len());
        for object in &page.data {
            // One that cannot be read must not hide the others.
            match object["id"].as_str().zip(read_invoice(object)) {
                Some((id, invoice)) => invoices.push((id.to_owned(), invoice)),
                None => tracing::warn!(id = %object["id"], "an invoice of the list is unreadable"),
            }
        }
        Ok(InvoicePage { invoices, next: last.filter(|_| page.has_more) })
    }
}

impl Stripe {
    /// Puts all items into a subscription that shows only the first of them.
    pub(super) async fn read_items(&self, subscription: &mut Value) -> Result<(), Unreadable> {
        if subscription["items"]["has_more"] != true {
            return Ok(());
        }
        let id = subscription["id"].as_str().unwrap_or_default().to_owned();
        let mut items = Vec::new();
        let mut after = None;
        loop {
            let filters = [("subscription", id.as_str())];
            let page = self.client.page("/v1/subscription_items", &filters, after.as_deref());
            let page = page.await.map_err(unreadable)?;
            items.extend(page.rows);
            after = page.next;
            if after.is_none() {
                subscription["items"]["data"] = Value::Array(items);
                subscription["items"]["has_more"] = false.into();
                return Ok(());
            }
        }
    }

    /// All lines: those that came with the invoice, and the pages after them.
    async fn read_lines(&self, id: &str, invoice: &Value) -> Result<Vec<InvoiceLine>, Unreadable> {
        let first = invoice["lines"].clone();
        let mut page: ObjectList<Value> = serde_json::from_value(first)
            .map_err(|error| unreadable(format!("the lines of {id} cannot be read: {error}")))?;
        let mut lines: Vec<InvoiceLine> = Vec::new();
        loop {
            for object in &page.data {
                let missing = || unreadable(format!("a line of {id} lacks what is needed"));
                let mut line = read_line(object).ok_or_else(missing)?;
                if let Some(price) = &line.price {
                    let PriceFacts { event_name, tiered } = self.read_price(price).await?;
                    line.event_name = event_name;
                    // A line of a tier shows a rounded unit amount, or none for a flat amount.
                    line.unit_amount = line.unit_amount.filter(|_| !tiered);
                }
                lines.push(line);
            }
            let Some(last) = lines.last().filter(|_| page.has_more) else { return Ok(lines) };
            let query = form::encode(&[("limit", PAGE), ("starting_after", &last.id)]);
            let path = format!("/v1/invoices/{id}/lines");
            page = self.client.get(&path, &query).await.map_err(unreadable)?;
        }
    }

    /// The name of the meter that a price is of; a price never changes its meter.
    pub(super) async fn metered_by(&self, price: &str) -> Result<Option<String>, Unreadable> {
        Ok(self.read_price(price).await?.event_name)
    }

    async fn read_price(&self, price: &str) -> Result<PriceFacts, Unreadable> {
        let known = self.prices.lock().expect("no holder panics").get(price).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let path = format!("/v1/prices/{price}");
        let object: Option<Value> = self.client.find(&path, "").await.map_err(unreadable)?;
        let meter = object.as_ref().and_then(|object| object["recurring"]["meter"].as_str());
        let event_name = match meter {
            Some(meter) => self.event_name(meter).await?,
            None => None,
        };
        let tiered = object.is_some_and(|object| object["billing_scheme"] == "tiered");
        let facts = PriceFacts { event_name, tiered };
        let mut prices = self.prices.lock().expect("no holder panics");
        prices.insert(price.to_owned(), facts.clone());
        Ok(facts)
    }

    /// The name that a meter's events have.
    async fn event_name(&self, meter: &str) -> Result<Option<String>, Unreadable> {
        let named = || {
            let meters = self.meters.lock().expect("no holder panics");
            meters.iter().find(|(_, id)| *id == meter).map(|(name, _)| name.clone())
        };
        if let Some(known) = named() {
            return Ok(Some(known));
        }
        self.load_meters().await?;
        Ok(named())
    }
}

fn unreadable(message: String) -> Unreadable {
    Unreadable { message }
}
