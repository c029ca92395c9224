//! The life of a window: open, settling, final.
//!
//! Invariant: a window only ever moves forward, since the clock does. The state is a function of
//! the window's end, the meter's spans and the present moment; nothing of it is stored.

use super::span::Span;
use super::timestamp::Timestamp;
use serde::{Deserialize, Serialize};

/// The spans that decide it, both counted from the window's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowLife {
    pub settle_after: Span,
    pub late_until: Span,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowState {
    /// Events are still expected; its total is not handed to billing yet.
    Open,
    /// Its total was handed over or is about to be; late events make revisions.
    Settling,
    /// No more events are expected. One that comes all the same makes a revision.
    Final,
}

impl WindowLife {
    pub fn state(self, window_end: Timestamp, now: Timestamp) -> WindowState {
        if now < self.settle_after.after(window_end) {
            WindowState::Open
        } else if now < self.late_until.after(window_end) {
            WindowState::Settling
        } else {
            WindowState::Final
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_change_at_their_borders() {
        let life =
            WindowLife { settle_after: Span::from_hours(1), late_until: Span::from_hours(4) };
        let end = Timestamp::parse("2026-11-01T10:00:00Z").expect("valid");
        let check = |now: &str, expected| {
            let now = Timestamp::parse(now).expect("valid");
            assert_eq!(life.state(end, now), expected, "{now}");
        };
        check("2026-11-01T09:30:00Z", WindowState::Open);
        check("2026-11-01T10:59:59.999999Z", WindowState::Open);
        check("2026-11-01T11:00:00Z", WindowState::Settling);
        check("2026-11-01T13:59:59.999999Z", WindowState::Settling);
        check("2026-11-01T14:00:00Z", WindowState::Final);
        check("2030-01-01T00:00:00Z", WindowState::Final);
    }
}
