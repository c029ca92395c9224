//! Draining: before what a tenant is charged by changes, its usage up to the change is cut, sent
//! and taken by the provider.
//!
//! Invariant: the step is done only when no push of a window that starts before the boundary is
//! left to be sent. If the provider takes nothing for `DRAINED_WITHIN`, the saga turns back.

use super::step::{Step, Turn, done, either, from_store};
use crate::rules::meter::Catalog;
use crate::rules::saga::{Outcome, StepShape};
use crate::rules::span::Span;
use crate::rules::timestamp::{MICROS_PER_HOUR, Timestamp};
use async_trait::async_trait;
use serde::Deserialize;

/// How often to look whether pushes were taken.
const LOOK_AGAIN: Span = Span::from_seconds(5);
const DRAINED_WITHIN: Span = Span::from_hours(6);

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

pub struct Drain;

impl Drain {
    async fn look(turn: &Turn<'_>) -> Result<Outcome, Outcome> {
        let Boundary { boundary: Some(boundary) } = turn.params()? else { return Ok(done()) };
        if turn.now < boundary {
            let waits = format!("usage is cut at {boundary}");
            return Ok(Outcome::Later(boundary, waits));
        }
        let tenant = &turn.saga.tenant;
        let cut = turn.cutter.cut_until(tenant, boundary).await.map_err(from_store)?;
        let left = turn.store.count_pushes_before(tenant, boundary).await.map_err(from_store)?;
        if cut && left == 0 {
            return Ok(done());
        }
        if turn.now >= DRAINED_WITHIN.after(boundary) {
            return Err(Outcome::Refused(format!(
                "{left} pushes from before {boundary} were not taken by the provider within 6 hours"
            )));
        }
        let waits = format!("{left} pushes from before {boundary} are on their way");
        Ok(Outcome::Later(LOOK_AGAIN.after(turn.now), waits))
    }
}

#[async_trait]
impl Step for Drain {
    fn shape(&self) -> StepShape {
        StepShape { name: "drain", undoable: true }
    }

    async fn act(&self, turn: &Turn<'_>) -> Outcome {
        either(Self::look(turn).await)
    }

    /// What was sent is true all the same.
    async fn undo(&self, _: &Turn<'_>) -> Outcome {
        done()
    }
}
