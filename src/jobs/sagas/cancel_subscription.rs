//! A subscription ends: at once, when its usage so far is counted by the provider, or with its
//! period.
//!
//! A cancellation cannot be undone. Before it the saga may still turn back; after it only our own
//! record is left to be brought up to date, which is tried until it is done.

use super::create_subscription::is_over;
use super::drain::Drain;
use super::prices::find_own;
use super::step::{Step, Tried, Turn, done, done_with, settle_call};
use crate::provider::{CancelWhen, RemoteSubscription};
use crate::rules::drain::Ending;
use crate::rules::ids::SubscriptionId;
use crate::rules::saga::{Outcome, StepShape};
use crate::rules::timestamp::Timestamp;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelParams {
    pub subscription: SubscriptionId,
    /// Until when usage is sent before it ends at once; none if it ends with its period.
    pub boundary: Option<Timestamp>,
}

pub fn steps() -> Vec<&'static dyn Step> {
    vec![&Drain { before: Ending::Cancellation }, &Cancel, &RecordEnd]
}

#[derive(Serialize, Deserialize)]
struct CancelResult {
    ends_at: Timestamp,
}

struct Cancel;

#[async_trait]
impl Step for Cancel {
    fn shape(&self) -> StepShape {
        StepShape { name: "cancel", undoable: false }
    }

    async fn act(&self, turn: &Turn<'_>) -> Tried {
        let params: CancelParams = turn.params()?;
        let own = find_own(turn, &params.subscription).await?;
        let when = match params.boundary {
            Some(_) => CancelWhen::Now,
            None => CancelWhen::PeriodEnd,
        };
        let ends = |one: &RemoteSubscription| {
            is_over(one) || (params.boundary.is_none() && one.cancel_at_period_end)
        };
        let cancelled = if ends(&own) {
            own
        } else {
            let called = turn.operations.cancel_subscription(&own.id, when, &turn.key).await;
            let look = async {
                let found = turn.operations.read_subscription(&params.subscription).await?;
                Ok(found.filter(ends))
            };
            settle_call(called, look).await?
        };
        let with_period = cancelled.period_end.filter(|_| !is_over(&cancelled));
        let ends_at = with_period.or(params.boundary).unwrap_or(turn.now);
        Ok(done_with(&CancelResult { ends_at }))
    }

    async fn undo(&self, _: &Turn<'_>) -> Tried {
        Err(Outcome::Refused("a cancellation cannot be undone".into()))
    }
}

struct RecordEnd;

#[async_trait]
impl Step for RecordEnd {
    fn shape(&self) -> StepShape {
        StepShape { name: "record", undoable: false }
    }

    async fn act(&self, turn: &Turn<'_>) -> Tried {
        let params: CancelParams = turn.params()?;
        let CancelResult { ends_at } = turn.needed("cancel")?;
        let ended = turn.store.end_subscription(&params.subscription, ends_at).await;
        ended?;
        Ok(done())
    }

    async fn undo(&self, _: &Turn<'_>) -> Tried {
        Err(Outcome::Refused("the end of a subscription cannot be undone".into()))
    }
}
