//! Draining: before what a tenant is charged by changes, its usage up to the change is cut, sent
//! and counted by the provider.
//!
//! Invariant: the step is done only when no push of a window that starts before the boundary is
//! left to be sent, and the provider's summaries show all that were sent. When the last cut is
//! made and until when it is worth waiting is decided by `rules::drain`; all its times follow
//! from the boundary that the saga's parameters hold, so that a crash in the wait changes none of
//! them.

use super::step::{Step, Tried, Turn, done};
use crate::faults::planted;
use crate::provider::{TotalsQuery, Unreadable};
use crate::rules::drain::{Drained, Ending, Progress};
use crate::rules::ids::{CustomerId, MeterNo};
use crate::rules::meter::Catalog;
use crate::rules::quantity::Quantity;
use crate::rules::saga::{Outcome, StepShape};
use crate::rules::span::Span;
use crate::rules::submission::{Class, Next};
use crate::rules::timestamp::{MICROS_PER_HOUR, Timestamp};
use crate::rules::window::Window;
use crate::store::push::{Right, Settlement, SubmittedWindow};
use async_trait::async_trait;
use serde::Deserialize;
use std::collections::BTreeMap;

/// How often to look whether pushes were taken.
const LOOK_AGAIN: Span = Span::from_seconds(5);
/// Windows of one look; those that are counted are confirmed, and the next look finds the rest.
const WINDOWS_MAX: usize = 500;

/// What both sagas that drain are asked for.
#[derive(Deserialize)]
struct Boundary {
    /// None if nothing has to be drained.
    boundary: Option<Timestamp>,
}

/// The first moment, not before `at`, at which a window of every billed meter ends.
pub fn boundary_after(catalog: &Catalog, at: Timestamp) -> Timestamp {
    let ends = catalog.billed().into_iter().filter_map(|(_, meter)| {
        let billing = meter.spec.billing.as_ref()?;
        let window = billing.window_around(at.saturating_add_micros(-1), meter.spec.bucket);
        Some(window.end)
    });
    let hour = at.micros().saturating_add(MICROS_PER_HOUR - 1).div_euclid(MICROS_PER_HOUR);
    ends.max().unwrap_or_else(|| Timestamp::from_micros(hour * MICROS_PER_HOUR))
}

pub struct Drain {
    pub before: Ending,
}

/// Windows that one call asks for: of one customer, meter and length.
type TotalsRequest = BTreeMap<(CustomerId, MeterNo, i64), Vec<SubmittedWindow>>;

impl Drain {
    fn cut_at(&self, catalog: &Catalog, boundary: Timestamp) -> Timestamp {
        if planted("bug.no_grace_before_last_cut") {
            return boundary;
        }
        let billed = catalog.billed();
        let longest = billed.iter().map(|(_, meter)| meter.spec.settle_after).max();
        self.before.cut_at(boundary, longest.unwrap_or(Span::from_seconds(0)))
    }

    /// Pushes that the provider took and its summaries do not show; those that they show are
    /// confirmed.
    async fn count(
        turn: &Turn<'_>,
        catalog: &Catalog,
        boundary: Timestamp,
        count_again: Timestamp,
    ) -> Result<u64, Outcome> {
        if planted("bug.drained_means_sent") || !turn.provider.limits().shows_totals {
            return Ok(0);
        }
        let tenant = &turn.saga.tenant;
        let windows = turn.store.list_unconfirmed_before(tenant, boundary, WINDOWS_MAX).await;
        let mut asked = TotalsRequest::new();
        for window in windows? {
            let length = window.window.end.micros() - window.window.start.micros();
            let key = (window.customer.clone(), window.meter, length);
            asked.entry(key).or_default().push(window);
        }
        let (mut uncounted, mut settlements) = (0, Vec::new());
        for ((customer, meter, _), windows) in asked {
            let read = Self::read(turn, catalog, (&customer, meter), windows).await?;
            // No failure of the saga: what is to follow can wait.
            let read = read.map_err(|Unreadable { message }| {
                let waits = format!("the provider's totals could not be read: {message}");
                Outcome::Later(count_again, waits)
            })?;
            for (window, counted) in read {
                match counted {
                    true => settlements.extend(confirm(&window)),
                    false => uncounted += u64::try_from(window.pushes.len()).unwrap_or(u64::MAX),
                }
            }
        }
        let counted = settlements.len();
        let settled = turn.store.settle_pushes(settlements, turn.now).await?;
        // Those of a window that has changed since it was listed are read again.
        Ok(uncounted + u64::try_from(counted.saturating_sub(settled)).unwrap_or(u64::MAX))
    }

    /// Each window, and whether its total at the provider is exactly what was sent.
    async fn read(
        turn: &Turn<'_>,
        catalog: &Catalog,
        (customer, meter): (&CustomerId, MeterNo),
        mut windows: Vec<SubmittedWindow>,
    ) -> Result<Result<Vec<(SubmittedWindow, bool)>, Unreadable>, Outcome> {
        let lost = || Outcome::Retry("a push has a meter that does not exist".into());
        let meter = catalog.get(meter).ok_or_else(lost)?;
        windows.sort_by_key(|window| window.window.start);
        let spans: Vec<Window> = windows.iter().map(|window| window.window).collect();
        let query = TotalsQuery::new(customer, meter, &spans);
        let totals = turn.provider.read_totals(&query).await;
        let judge = |(window, total): (SubmittedWindow, Quantity)| {
            let counted = window.expected == total;
            (window, counted)
        };
        Ok(totals.map(|totals| windows.into_iter().zip(totals).map(judge).collect()))
    }
}

fn confirm(window: &SubmittedWindow) -> impl Iterator<Item = Settlement> {
    let detail = format!("the provider's total is {}, as expected", window.expected);
    window.pushes.iter().map(move |(push, _)| Settlement {
        push: *push,
        right: Right::Reading { expected: window.expected },
        class: Class::Confirmed,
        next: Next::Confirmed,
        request_id: None,
        detail: Some(detail.clone()),
    })
}

#[async_trait]
impl Step for Drain {
    fn shape(&self) -> StepShape {
        StepShape { name: "drain", undoable: true }
    }

    async fn act(&self, turn: &Turn<'_>) -> Tried {
        let Boundary { boundary: Some(boundary) } = turn.params()? else { return Ok(done()) };
        let catalog = turn.store.load_catalog().await?;
        let cut_at = self.cut_at(&catalog, boundary);
        if turn.now < cut_at {
            let waits =
                format!("usage before {boundary} is cut at {cut_at}, when late events are in");
            return Ok(Outcome::Later(cut_at, waits));
        }
        let tenant = &turn.saga.tenant;
        let cut = turn.cutter.cut_until(tenant, boundary).await?;
        let unsent = turn.store.count_pushes_before(tenant, boundary).await?;
        let count_again = self.before.count_again(cut_at, turn.now);
        let uncounted = match unsent == 0 && self.before.is_in_time(boundary, turn.now) {
            true => Self::count(turn, &catalog, boundary, count_again).await?,
            false => 0,
        };
        let progress = Progress { cut, unsent, uncounted };
        match self.before.judge(progress, boundary, turn.now) {
            Drained::Done => Ok(done()),
            Drained::NotYet if unsent > 0 || !cut => {
                let waits = format!("{unsent} pushes from before {boundary} are not sent yet");
                Ok(Outcome::Later(LOOK_AGAIN.after(turn.now), waits))
            }
            Drained::NotYet => {
                let waits = format!(
                    "{uncounted} pushes from before {boundary} are not in the provider's totals yet"
                );
                Ok(Outcome::Later(count_again, waits))
            }
            Drained::TooLate => Err(Outcome::Refused(format!(
                "usage from before {boundary} was not sent and counted by the provider within 25 \
                 minutes, and would be dropped; begin the change again"
            ))),
        }
    }
}
