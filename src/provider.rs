//! What we need of a billing provider, as a trait. Nothing outside `provider/stripe` knows Stripe's
//! words, and nothing here knows the store.
//!
//! Invariant: an answer says no more than the provider did. What cannot be distinguished from
//! "maybe counted" is `Unknown`. The same facts always encode to the same bytes.

pub mod deadline;
pub mod nowhere;
pub mod sink;
pub mod stripe;

use crate::clock::Clock;
use crate::config::{ProviderConfig, ProviderKind, Shadow, SinkConfig, StripeConfig};
use crate::rules::binding::BillingAccount;
use crate::rules::ids::{CustomerId, SubscriptionId, TenantId};
use crate::rules::invoice::Invoice;
use crate::rules::meter::Meter;
use crate::rules::mirror::{ObjectName, Snapshot};
use crate::rules::quantity::Quantity;
use crate::rules::submission::{Horizons, SubmitOutcome};
use crate::rules::subscription::Subscription;
use crate::rules::timestamp::Timestamp;
use crate::rules::webhook::WebhookFacts;
use crate::rules::window::Window;
use async_trait::async_trait;
use std::sync::Arc;

/// What a push says.
#[derive(Debug, Clone, Copy)]
pub struct PushFacts<'a> {
    pub key: &'a str,
    pub customer: &'a CustomerId,
    /// The provider's name of the meter.
    pub event_name: &'a str,
    pub value: Quantity,
    pub stamped_at: Timestamp,
}

/// A push on its way.
#[derive(Debug, Clone)]
pub struct Request {
    /// The push's key, which the provider counts once.
    pub key: String,
    /// How often a fresh request key was needed; 0 at first.
    pub request_keys: u32,
    /// What `encode` made, or what was stored of it.
    pub body: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub outcome: SubmitOutcome,
    /// The provider's name for the request.
    pub request_id: Option<String>,
}

/// What a provider can hold and remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub horizons: Horizons,
    /// Significant digits of a value.
    pub digits_max: u32,
    /// Whether it shows totals. If not, its word is all there will be.
    pub shows_totals: bool,
    /// Whether anything is sent at all.
    pub sends: bool,
}

/// Asks for what the provider counted of a customer.
#[derive(Debug, Clone)]
pub struct TotalsQuery<'a> {
    pub customer: &'a CustomerId,
    pub event_name: &'a str,
    /// Decimal places to which its numbers are rounded.
    pub scale: u32,
    /// Windows of one length, whole hours or days, oldest first.
    pub windows: &'a [Window],
}

impl<'a> TotalsQuery<'a> {
    pub fn new(customer: &'a CustomerId, meter: &'a Meter, windows: &'a [Window]) -> Self {
        let (event_name, scale) = (meter.event_name(), meter.billing_scale());
        Self { customer, event_name, scale, windows }
    }
}

/// Totals could not be read; asking again later may help.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Unreadable {
    pub message: String,
}

#[async_trait]
pub trait Provider: Send + Sync {
    fn name(&self) -> &'static str;
    fn limits(&self) -> Limits;
    /// The bytes that tell these facts.
    fn encode(&self, facts: &PushFacts<'_>) -> Vec<u8>;
    async fn send_push(&self, request: &Request) -> Answer;
    /// What it counted in each of the windows, in their order.
    async fn read_totals(&self, query: &TotalsQuery<'_>) -> Result<Vec<Quantity>, Unreadable>;
    /// Whether its answers tell what time it is there.
    fn tells_time(&self) -> bool {
        false
    }
    /// Makes a call that changes nothing, so that the clock hears the answer's time.
    async fn ask_time(&self) {}
    /// The account that pushes go to, as far as this provider tells accounts apart.
    async fn read_account(&self) -> Result<BillingAccount, Unreadable> {
        Ok(BillingAccount { provider: self.name().to_owned(), id: None, live: true })
    }
    /// What it tells besides totals; none if nothing.
    fn inbound(&self) -> Option<&dyn Inbound> {
        None
    }
    /// What can be changed there besides totals; none if nothing.
    fn operations(&self) -> Option<&dyn Operations> {
        None
    }
}

/// A list of events that were sent as webhooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventList {
    /// Those that show their object.
    Snapshot,
    /// Reports of refused pushes, which are in a list of their own.
    ErrorReport,
}

/// A page of events, newest first, each with its bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventPage {
    pub events: Vec<(WebhookFacts, Vec<u8>)>,
    /// Asks for the page after it; none at the end.
    pub next: Option<String>,
}

/// A page of subscriptions by their ids.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SubscriptionPage {
    pub subscriptions: Vec<(String, Subscription)>,
    pub next: Option<String>,
}

/// Part of a list of invoices, the newest first; their lines are left out.
#[derive(Debug)]
pub struct InvoicePage {
    pub invoices: Vec<(String, Invoice)>,
    pub next: Option<String>,
}

/// What a provider tells of its objects and events.
#[async_trait]
pub trait Inbound: Send + Sync {
    /// The object as it is now.
    async fn read_object(&self, name: &ObjectName) -> Result<Snapshot, Unreadable>;
    /// Events that were made since then; `after` is `next` of the page before.
    async fn list_events(
        &self,
        list: EventList,
        since: Timestamp,
        after: Option<&str>,
    ) -> Result<EventPage, Unreadable>;
    /// Every subscription, in whatever state.
    async fn list_subscriptions(&self, after: Option<&str>)
    -> Result<SubscriptionPage, Unreadable>;
    /// Every invoice that was created since then, in whatever state.
    async fn list_invoices(
        &self,
        since: Timestamp,
        after: Option<&str>,
    ) -> Result<InvoicePage, Unreadable>;
}

/// What came of a call that changes something at the provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Called<T> {
    Done(T),
    /// It was refused; nothing happened and the same request will always be refused.
    Refused(String),
    /// Nobody knows, or it may be tried again: the same key is safe to use again.
    Retry(String),
    /// The provider keeps a failure under this key: the same key only repeats it. Whether
    /// something happened must be looked up.
    Kept(String),
}

impl<T> Called<T> {
    /// Goes on with what was done.
    pub fn and_then<U>(self, next: impl FnOnce(T) -> Called<U>) -> Called<U> {
        match self {
            Self::Done(done) => next(done),
            Self::Refused(message) => Called::Refused(message),
            Self::Retry(message) => Called::Retry(message),
            Self::Kept(message) => Called::Kept(message),
        }
    }
}

/// A customer that a saga makes.
#[derive(Debug, Clone, Copy)]
pub struct CustomerFacts<'a> {
    pub tenant: &'a TenantId,
    pub name: Option<&'a str>,
    pub email: Option<&'a str>,
    /// The saga's id, by which the customer is found again.
    pub saga: &'a str,
}

/// A subscription that a saga makes.
#[derive(Debug, Clone, Copy)]
pub struct SubscriptionFacts<'a> {
    pub customer: &'a CustomerId,
    pub prices: &'a [String],
    pub tenant: &'a TenantId,
    /// The saga's id, by which the subscription is found again.
    pub saga: &'a str,
    /// Where its periods are counted from, if not from its beginning. Flat prices are charged from
    /// then on.
    pub anchor: Option<Timestamp>,
}

/// A subscription as far as sagas need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteSubscription {
    pub id: SubscriptionId,
    /// The provider's word: trialing, active, past_due, canceled and others.
    pub status: String,
    pub items: Vec<RemoteItem>,
    /// The saga that made or changed it last.
    pub saga: Option<String>,
    pub cancel_at_period_end: bool,
    pub period_end: Option<Timestamp>,
    /// From when on it charges.
    pub started_at: Option<Timestamp>,
    /// Whether usage at a price that goes is billed; if not, it is dropped.
    pub bills_replaced: bool,
}

/// One price of a subscription, under the provider's name for its place there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteItem {
    pub id: String,
    pub price: String,
    /// From when on it is there.
    pub since: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelWhen {
    /// At once, with a final invoice for metered usage and without proration.
    Now,
    /// At once, without a final invoice and without proration: nothing it did is wanted.
    Unwanted,
    PeriodEnd,
}

/// What a provider lets us change. Each call that changes something carries a key, under which it
/// takes effect once; what it did without our hearing of it is found by the reading calls.
#[async_trait]
pub trait Operations: Send + Sync {
    async fn create_customer(&self, facts: &CustomerFacts<'_>, key: &str) -> Called<CustomerId>;
    /// The customer that a saga created, looked for among those created since then: all pages of
    /// a list that lags behind nothing.
    async fn find_created_customer(
        &self,
        saga: &str,
        since: Timestamp,
    ) -> Result<Option<CustomerId>, Unreadable>;
    /// Marks a customer that a saga created as not wanted. It is never deleted: that would turn
    /// usage on its way into errors.
    async fn abandon_customer(&self, customer: &CustomerId, saga: &str, key: &str) -> Called<()>;
    async fn create_subscription(
        &self,
        facts: &SubscriptionFacts<'_>,
        key: &str,
    ) -> Called<RemoteSubscription>;
    /// All subscriptions of a customer, in whatever state, all pages.
    async fn list_customer_subscriptions(
        &self,
        customer: &CustomerId,
    ) -> Result<Vec<RemoteSubscription>, Unreadable>;
    async fn read_subscription(
        &self,
        id: &SubscriptionId,
    ) -> Result<Option<RemoteSubscription>, Unreadable>;
    /// Sets the prices: items of other prices go, missing ones come; without proration.
    async fn change_prices(
        &self,
        subscription: &RemoteSubscription,
        prices: &[String],
        saga: &str,
        key: &str,
    ) -> Called<RemoteSubscription>;
    /// Done also if it is cancelled already.
    async fn cancel_subscription(
        &self,
        id: &SubscriptionId,
        when: CancelWhen,
        key: &str,
    ) -> Called<RemoteSubscription>;
    /// Gives back all that the invoices of a subscription have taken, in full: what is paid is
    /// refunded, what is owed or drafted is voided. Each call that this takes has a key of its own,
    /// made of this one, and what was given back before is left alone.
    async fn give_back(&self, id: &SubscriptionId, saga: &str, key: &str) -> Called<()>;
}

/// The provider that the settings name; none if there is none.
pub fn connect(
    provider: &ProviderConfig,
    stripe: &StripeConfig,
    sink: &SinkConfig,
) -> Result<Option<Arc<dyn Provider>>, String> {
    connect_heard_by(provider, stripe, sink, &Clock::system())
}

/// The same; `clock` hears what time its answers tell.
pub fn connect_heard_by(
    provider: &ProviderConfig,
    stripe: &StripeConfig,
    sink: &SinkConfig,
    clock: &Clock,
) -> Result<Option<Arc<dyn Provider>>, String> {
    let connected: Arc<dyn Provider> = match provider.kind {
        ProviderKind::None => return Ok(None),
        ProviderKind::Stripe => {
            if provider.shadow == Shadow::Sandbox && stripe::is_live(&stripe.api_key) {
                return Err("provider.shadow is \"sandbox\" and stripe.api_key is a live key; \
                            give the key of a sandbox, or set provider.shadow = \"nowhere\""
                    .into());
            }
            Arc::new(stripe::Stripe::connect(stripe)?.heard_by(clock))
        }
        ProviderKind::Sink => Arc::new(sink::Sink::connect(sink)?.timed_by(clock)),
    };
    Ok(Some(match provider.shadow {
        Shadow::Nowhere => Arc::new(nowhere::Nowhere::beside(connected)),
        Shadow::Off | Shadow::Sandbox => connected,
    }))
}
