//! Decisions of a person about what was kept and not counted: quarantined events and conflicts.
//!
//! Invariant: a record is decided once. The same ruling again changes nothing and is answered as it
//! was decided; another one is refused. An event that is admitted is judged as a delivery is, and
//! the verdict makes its state: it was counted, or another delivery was counted under its key.

use super::ids::TenantId;
use super::named::named_enum;
use super::refusal::Refusal;
use super::timestamp::{MICROS_PER_HOUR, Timestamp};
use super::verdict::Verdict;
use super::window::Window;

/// Longest reason, in bytes of UTF-8.
pub const REASON_BYTES_MAX: usize = 500;
/// Longest name of an author, in bytes of UTF-8.
pub const AUTHOR_BYTES_MAX: usize = 200;

named_enum! {
    /// The state of a quarantined event.
    #[derive(Default)]
    pub enum QuarantineState {
        #[default]
        Undecided = "undecided",
        Admitted = "admitted",
        /// It was to be admitted, and the same payload was counted before.
        Duplicate = "duplicate",
        /// It was to be admitted, and another payload was counted under its key.
        Conflict = "conflict",
        Discarded = "discarded",
    }
}

named_enum! {
    /// What a person says of a quarantined event.
    pub enum QuarantineRuling {
        Admit = "admit",
        Discard = "discard",
    }
}

named_enum! {
    /// The state of a conflict.
    #[derive(Default)]
    pub enum ConflictState {
        #[default]
        Undecided = "undecided",
        StandingKept = "standing_kept",
        Dismissed = "dismissed",
    }
}

named_enum! {
    /// What a person says of a conflict.
    pub enum ConflictRuling {
        /// The counted payload is right.
        KeepStanding = "keep_standing",
        /// Nothing is said of either payload; the conflict is no longer open.
        Dismiss = "dismiss",
    }
}

impl QuarantineState {
    /// The ruling that led to it; none while it is undecided.
    pub fn ruling(self) -> Option<QuarantineRuling> {
        match self {
            Self::Undecided => None,
            Self::Admitted | Self::Duplicate | Self::Conflict => Some(QuarantineRuling::Admit),
            Self::Discarded => Some(QuarantineRuling::Discard),
        }
    }

    /// What the verdict on an admission makes of the event; none if it stays undecided.
    pub fn of_admission(verdict: &Verdict) -> Option<Self> {
        match verdict {
            Verdict::Accepted => Some(Self::Admitted),
            Verdict::Duplicate { .. } => Some(Self::Duplicate),
            Verdict::Conflict { .. } => Some(Self::Conflict),
            Verdict::Quarantined(_) | Verdict::Rejected(_) => None,
        }
    }
}

impl ConflictState {
    /// The ruling that led to it; none while it is undecided.
    pub fn ruling(self) -> Option<ConflictRuling> {
        match self {
            Self::Undecided => None,
            Self::StandingKept => Some(ConflictRuling::KeepStanding),
            Self::Dismissed => Some(ConflictRuling::Dismiss),
        }
    }
}

impl ConflictRuling {
    /// The state that it leads to.
    pub fn state(self) -> ConflictState {
        match self {
            Self::KeepStanding => ConflictState::StandingKept,
            Self::Dismiss => ConflictState::Dismissed,
        }
    }
}

/// Why, by whom and when something was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub reason: String,
    pub author: String,
    pub at: Timestamp,
}

impl Decision {
    /// Refuses a reason or an author that is empty, too long or has control characters.
    pub fn new(reason: String, author: String, at: Timestamp) -> Result<Self, Refusal> {
        if !is_plain(&reason, REASON_BYTES_MAX) {
            let detail = format!("reason has 1 to {REASON_BYTES_MAX} bytes, no control characters");
            return Err(Refusal::new("invalid_reason", detail));
        }
        if !is_plain(&author, AUTHOR_BYTES_MAX) {
            let detail = format!("author has 1 to {AUTHOR_BYTES_MAX} bytes, no control characters");
            return Err(Refusal::new("invalid_author", detail));
        }
        Ok(Self { reason, author, at })
    }
}

fn is_plain(text: &str, bytes_max: usize) -> bool {
    !text.trim().is_empty() && text.len() <= bytes_max && !text.chars().any(char::is_control)
}

/// A record by its number, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxKey {
    pub tenant: TenantId,
    pub number: u64,
}

/// The hours that hold these moments, with neighbours joined: what must be cut again.
pub fn hours_around(moments: impl IntoIterator<Item = Timestamp>) -> Vec<Window> {
    let hour = |at: Timestamp| at.micros().div_euclid(MICROS_PER_HOUR);
    let mut hours: Vec<i64> = moments.into_iter().map(hour).collect();
    hours.sort_unstable();
    hours.dedup();
    let start = |hour: i64| Timestamp::from_micros(hour.saturating_mul(MICROS_PER_HOUR));
    let joined = hours.chunk_by(|before, hour| before + 1 == *hour);
    joined.map(|run| Window { start: start(run[0]), end: start(run[run.len() - 1] + 1) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::verdict::Quarantine;
    use proptest::prelude::*;

    #[test]
    fn every_state_has_the_ruling_that_leads_to_it() {
        for ruling in ConflictRuling::ALL {
            assert_eq!(ruling.state().ruling(), Some(ruling));
        }
        let check = |verdict: Verdict, state: Option<QuarantineState>| {
            assert_eq!(QuarantineState::of_admission(&verdict), state);
            let ruling = state.map(|_| QuarantineRuling::Admit);
            assert_eq!(state.and_then(QuarantineState::ruling), ruling);
        };
        check(Verdict::Accepted, Some(QuarantineState::Admitted));
        check(Verdict::Duplicate { restamped: true }, Some(QuarantineState::Duplicate));
        check(Verdict::Conflict { differing: vec!["meter"] }, Some(QuarantineState::Conflict));
        check(Verdict::Quarantined(Quarantine::TooManyGroups), None);
        check(Verdict::Rejected(Refusal::new("x", "y")), None);
        assert_eq!(QuarantineState::Discarded.ruling(), Some(QuarantineRuling::Discard));
        assert_eq!(QuarantineState::default().ruling(), None);
        assert_eq!(ConflictState::default().ruling(), None);
    }

    #[test]
    fn a_decision_has_a_reason_and_an_author() {
        let check = |reason: &str, author: &str, code: Option<&str>| {
            let made = Decision::new(reason.into(), author.into(), Timestamp::from_micros(0));
            assert_eq!(made.err().map(|refusal| refusal.code), code);
        };
        check("late, and right", "Zoë", None);
        check(" ", "zoe", Some("invalid_reason"));
        check(&"x".repeat(501), "zoe", Some("invalid_reason"));
        check("x", "", Some("invalid_author"));
        check("x", "a\nb", Some("invalid_author"));
        check("x", &"x".repeat(201), Some("invalid_author"));
    }

    proptest! {
        #[test]
        fn hours_hold_exactly_what_was_given(
            hours in proptest::collection::vec(-50..50i64, 0..20),
        ) {
            let moment = |hour: &i64| Timestamp::from_micros(hour * MICROS_PER_HOUR + 7);
            let windows = hours_around(hours.iter().map(moment));
            for hour in -60..60 {
                let at = moment(&hour);
                let holds = windows.iter().filter(|w| w.start <= at && at < w.end).count();
                prop_assert_eq!(holds, usize::from(hours.contains(&hour)));
            }
            prop_assert!(windows.is_sorted_by(|a, b| a.end < b.start));
        }
    }
}
