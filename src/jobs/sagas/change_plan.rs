//! A subscription gets other prices, at the end of a window.
//!
//! Usage is priced by what the subscription charges at its stamp, so usage up to the boundary
//! goes out and is counted first, later usage waits, the prices change, and then it goes on.
//! Undone, the prices are what they were and nothing waits.
//!
//! The prices change some minutes after the boundary from which on they were agreed. Usage since
//! the boundary is stamped not before that change (`rules::stamp`): at the boundary the provider
//! still charges by the old prices.

use super::create_subscription::is_over;
use super::drain::Drain;
use super::prices::{are_same, find_own, prices_of, read_own, set};
use super::step::{PlanTerms, Step, Tried, Turn, done, done_with};
use crate::provider::RemoteSubscription;
use crate::rules::drain::Ending;
use crate::rules::ids::SubscriptionId;
use crate::rules::saga::{Outcome, StepShape, unsettled_until};
use crate::rules::timestamp::Timestamp;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeParams {
    pub subscription: SubscriptionId,
    #[serde(flatten)]
    pub terms: PlanTerms,
    /// From when on usage is charged by the new prices; the end of a window.
    pub boundary: Timestamp,
}

pub fn steps() -> Vec<&'static dyn Step> {
    vec![&Hold, &Drain { before: Ending::Change }, &ChangeStep, &RecordPlan, &Resume]
}

/// What the subscription was charged by before.
#[derive(Serialize, Deserialize)]
struct HoldResult {
    prices_before: Vec<String>,
}

struct Hold;

#[async_trait]
impl Step for Hold {
    fn shape(&self) -> StepShape {
        StepShape { name: "hold", undoable: true }
    }

    async fn act(&self, turn: &Turn<'_>) -> Tried {
        let params: ChangeParams = turn.params()?;
        let subscription = read_own(turn, &params.subscription).await?;
        if !subscription.bills_replaced {
            return Err(Outcome::Refused(format!(
                "subscription {} has billing mode classic, in which the usage of the period is \
                 dropped when its prices change; migrate it to flexible billing first",
                subscription.id
            )));
        }
        let claim = (turn.saga.number, turn.fence);
        if !turn.store.put_hold(claim, params.boundary, turn.now).await? {
            return Err(Outcome::Retry("another runner has the saga".into()));
        }
        Ok(done_with(&HoldResult { prices_before: prices_of(&subscription) }))
    }

    async fn undo(&self, turn: &Turn<'_>) -> Tried {
        release(turn).await
    }
}

/// When the provider began to charge by the new prices.
#[derive(Serialize, Deserialize)]
struct ChangeResult {
    changed_at: Timestamp,
}

impl ChangeResult {
    /// As the subscription that has them shows it.
    fn of(turn: &Turn<'_>, params: &ChangeParams, subscription: &RemoteSubscription) -> Self {
        let new =
            subscription.items.iter().filter(|item| params.terms.prices.contains(&item.price));
        let since = new.filter_map(|item| item.since).max().unwrap_or(turn.now);
        Self { changed_at: since.max(params.boundary) }
    }
}

/// Has usage since the boundary stamped where the new prices are charged. A log of an older
/// version does not tell when that was.
async fn charge(turn: &Turn<'_>) -> Result<(), Outcome> {
    let Some(ChangeResult { changed_at }) = turn.result("change") else { return Ok(()) };
    Ok(turn.store.charge_from(&turn.saga.id, changed_at).await?)
}

async fn release(turn: &Turn<'_>) -> Tried {
    turn.store.release_hold(&turn.saga.id).await?;
    Ok(done())
}

struct ChangeStep;

#[async_trait]
impl Step for ChangeStep {
    fn shape(&self) -> StepShape {
        StepShape { name: "change", undoable: true }
    }

    async fn act(&self, turn: &Turn<'_>) -> Tried {
        let params: ChangeParams = turn.params()?;
        let subscription = read_own(turn, &params.subscription).await?;
        if are_same(&prices_of(&subscription), &params.terms.prices) {
            return Ok(done_with(&ChangeResult::of(turn, &params, &subscription)));
        }
        let boundary = params.boundary;
        if !Ending::Change.is_in_time(boundary, turn.now) {
            let why = format!(
                "the prices could not be changed within 25 minutes of {boundary}, and usage since \
                 then would be charged by the old ones; begin the change again"
            );
            // An earlier try may have changed them, or may still.
            return Err(if turn.again { Outcome::GivenUp(why) } else { Outcome::Refused(why) });
        }
        let changed = set(turn, &subscription, &params.terms.prices).await?;
        Ok(done_with(&ChangeResult::of(turn, &params, &changed)))
    }

    /// Only prices that this saga has set are set back: somebody else's change stays.
    async fn undo(&self, turn: &Turn<'_>) -> Tried {
        let params: ChangeParams = turn.params()?;
        let HoldResult { prices_before } = turn.needed("hold")?;
        let subscription = find_own(turn, &params.subscription).await?;
        if is_over(&subscription) {
            // Nothing is charged by it.
            return Ok(done());
        }
        if are_same(&prices_of(&subscription), &params.terms.prices) {
            set(turn, &subscription, &prices_before).await?;
            return Ok(done());
        }
        match unsettled_until(turn.log, turn.saga.generation, "change") {
            Some(until) if turn.now < until => {
                let waits = "a call to change the prices was not answered and may take effect late";
                Ok(Outcome::Later(until, waits.into()))
            }
            Some(_) | None => Ok(done()),
        }
    }
}

struct RecordPlan;

#[async_trait]
impl Step for RecordPlan {
    fn shape(&self) -> StepShape {
        StepShape { name: "record", undoable: true }
    }

    async fn act(&self, turn: &Turn<'_>) -> Tried {
        let ChangeParams { subscription, terms, boundary } = turn.params()?;
        turn.record_subscription(subscription, terms, boundary).await?;
        charge(turn).await?;
        turn.store.set_access(&turn.saga.id, true).await?;
        Ok(done())
    }

    async fn undo(&self, turn: &Turn<'_>) -> Tried {
        turn.store.withdraw_subscription(&turn.saga.id).await?;
        Ok(done())
    }
}

/// The last step: nothing comes after it, and a hold that is gone needs no undoing.
struct Resume;

#[async_trait]
impl Step for Resume {
    fn shape(&self) -> StepShape {
        StepShape { name: "resume", undoable: true }
    }

    async fn act(&self, turn: &Turn<'_>) -> Tried {
        // What was cut while the subscription record was being written has no stamp by it.
        charge(turn).await?;
        release(turn).await
    }
}
