//! What a step of a saga works with, and how answers of the provider become outcomes.
//!
//! Invariant: acting again after a crash finds what was done before: a step that may have reached
//! the provider looks first. Undoing touches only what carries this saga's tag.

use crate::jobs::cut::CutJob;
use crate::provider::{Called, Operations, Provider, RemoteSubscription, Unreadable};
use crate::rules::ids::{CustomerId, SubscriptionId};
use crate::rules::saga::{LogLine, Outcome, Saga, StepShape, result_of};
use crate::rules::timestamp::Timestamp;
use crate::store::saga::SubscriptionRecord;
use crate::store::{self, Store};
use async_trait::async_trait;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What came of a try; both ends are outcomes, so that `?` can end it.
pub type Tried = Result<Outcome, Outcome>;

/// A step as code.
#[async_trait]
pub trait Step: Send + Sync {
    fn shape(&self) -> StepShape;
    async fn act(&self, turn: &Turn<'_>) -> Tried;
    /// Called for a step that was begun, also if nobody knows what came of it. A step that only
    /// sends or releases has nothing to undo.
    async fn undo(&self, _: &Turn<'_>) -> Tried {
        Ok(done())
    }
}

/// What a tenant agrees to with a subscription.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanTerms {
    pub plan: String,
    pub prices: Vec<String>,
    pub features: Vec<String>,
}

/// One try of one step.
pub struct Turn<'a> {
    pub store: &'a dyn Store,
    pub provider: &'a dyn Provider,
    pub operations: &'a dyn Operations,
    pub cutter: &'a CutJob,
    pub now: Timestamp,
    pub saga: &'a Saga,
    /// Of the runner's claim.
    pub fence: u64,
    pub log: &'a [LogLine],
    /// Of the request, if there is one.
    pub key: String,
    /// Whether an earlier try may have reached the provider.
    pub again: bool,
}

impl Turn<'_> {
    /// What this saga's objects carry at the provider, in this generation.
    pub fn tag(&self) -> String {
        format!("{}.{}", self.saga.id, self.saga.generation)
    }

    /// What the saga was asked for.
    pub fn params<T: DeserializeOwned>(&self) -> Result<T, Outcome> {
        serde_json::from_str(&self.saga.params)
            .map_err(|error| Outcome::Refused(format!("the saga's parameters: {error}")))
    }

    /// What a step left; none if it was not done.
    pub fn result<T: DeserializeOwned>(&self, step: &str) -> Option<T> {
        let text = result_of(self.log, self.saga.generation, step)?;
        serde_json::from_str(text).ok()
    }

    /// What an earlier step must have left.
    pub fn needed<T: DeserializeOwned>(&self, step: &str) -> Result<T, Outcome> {
        let lost = || Outcome::Refused(format!("the log lacks the result of step {step}"));
        self.result(step).ok_or_else(lost)
    }

    /// When a step of this generation was done, for what must be the same at every try.
    pub fn began_at(&self) -> Timestamp {
        let first = self.log.iter().find(|line| line.generation == self.saga.generation);
        first.map_or(self.saga.created_at, |line| line.at)
    }

    /// The subscription of a customer that this saga made.
    pub async fn own_subscription(
        &self,
        customer: &CustomerId,
    ) -> Result<Option<RemoteSubscription>, Unreadable> {
        let all = self.operations.list_customer_subscriptions(customer).await?;
        let tag = self.tag();
        Ok(all.into_iter().find(|one| one.saga.as_deref() == Some(&tag)))
    }

    /// Records what was agreed to; access to its features comes later.
    pub async fn record_subscription(
        &self,
        subscription: SubscriptionId,
        terms: PlanTerms,
        began_at: Timestamp,
    ) -> store::Result<()> {
        let record = SubscriptionRecord {
            tenant: self.saga.tenant.clone(),
            subscription,
            plan: terms.plan,
            prices: terms.prices,
            features: terms.features,
            access: false,
            suspended: false,
            saga: self.saga.id.clone(),
            began_at,
            ended_at: None,
        };
        self.store.record_subscription(record).await
    }
}

/// Nothing is left for the steps after it.
pub fn done() -> Outcome {
    Outcome::Done("{}".into())
}

pub fn done_with(result: &impl Serialize) -> Outcome {
    Outcome::Done(serde_json::to_string(result).expect("results are plain JSON"))
}

/// The store could not; nothing is known to be wrong with the saga.
impl From<store::Error> for Outcome {
    fn from(error: store::Error) -> Self {
        Self::Retry(error.to_string())
    }
}

impl From<Unreadable> for Outcome {
    fn from(error: Unreadable) -> Self {
        Self::Retry(error.message)
    }
}

/// What came of a call: its value, or how to go on. A failure that the provider keeps is looked
/// into by `found`: what it finds was done after all.
pub async fn settle_call<T>(
    called: Called<T>,
    found: impl Future<Output = Result<Option<T>, Unreadable>>,
) -> Result<T, Outcome> {
    match called {
        Called::Done(value) => Ok(value),
        Called::Refused(why) => Err(Outcome::Refused(why)),
        Called::Retry(why) => Err(Outcome::Retry(why)),
        Called::Kept(why) => match found.await? {
            Some(value) => Ok(value),
            None => Err(Outcome::Stale(why)),
        },
    }
}
