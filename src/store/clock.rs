//! What a store knows about time: its own clock, and what a clock that was ahead has moved.

use super::Result;
use super::faulty::verbs;
use crate::rules::timestamp::Timestamp;

/// What a store has recorded of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeMarks {
    /// The latest moment at which anything was received.
    pub high_water: Option<Timestamp>,
    /// Start of the latest bucket with usage.
    pub newest_usage: Option<Timestamp>,
    /// The latest moment up to which a meter was cut.
    pub newest_cut: Option<Timestamp>,
}

verbs! {
    pub trait Clocks: Send + Sync {
        /// The clock of the store's own machine; none if that is ours.
        async fn read_clock(&self) -> Result<Option<Timestamp>>;
        async fn read_time_marks(&self) -> Result<TimeMarks>;
        /// Sets the high-water mark to `now`, which is right, and resets what else a clock that
        /// was ahead of it has moved: the marks of cuts (the next cut then looks at everything that
        /// was received), leases, and times at which something is due. A push that was first sent
        /// at a time to come is sent no more: its summary decides. What lies before `now` stays as
        /// it is, so the verb may be repeated.
        async fn lower_time_marks(&self, now: Timestamp) -> Result<()>;
    }
}
