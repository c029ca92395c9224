//! Restores: how a store that was put back from a backup is recognised, and what is sent after it.
//!
//! A restored store has forgotten what was sent since the backup. The number of the restore is the
//! store's epoch. In an epoch nothing is sent of a window that began before the restore until the
//! provider's total of the window was compared with what the store knows.
//!
//! Invariant: after a comparison the store's settled pushes of the window make exactly what the
//! provider holds. What the provider holds and the store had forgotten is adopted as sent, never
//! sent again; where the provider holds more than the ledger has counted, nothing is sent, because
//! producers may still send the events again that the ledger lost.

use super::evidence::LAG;
use super::quantity::Quantity;
use super::span::Span;
use super::timestamp::Timestamp;

/// A store that was not alive for longer than this may be a copy of the whole machine, markers and
/// all. A false alarm costs a reading for each window and a delay of [`SUSPECT_LAG`].
const STOP_MAX: Span = Span::from_minutes(10);
/// How long after a stop that may hide a restore totals are believed to show everything that was
/// sent before. A draft of an invoice is fixed an hour after it was made, so a stop must not delay
/// usage by that much; and as the keys stay the same, the provider counts what it has not shown by
/// then once all the same.
const SUSPECT_LAG: Span = Span::from_minutes(10);
/// Two readings of a total that are closer than this count as one.
const READINGS_APART: Span = Span::from_minutes(5);
/// How long to wait for events that producers send again before the next comparison.
const COMPARE_EVERY: Span = Span::from_minutes(15);
/// How long to wait for such events at all: later the ledger does not accept them any more.
const COMPARE_MAX: Span = Span::from_hours(8 * 24);

/// A store's identity and a number that grows while the store is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    pub store: String,
    pub number: u64,
}

/// What a store knows of its own past, and what is known of it outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    pub own: Mark,
    /// When it was last known to be in use; none before its first start.
    pub alive_at: Option<Timestamp>,
    /// Marks in files: in the store's directory, and next to the directory. Empty for a store
    /// without files.
    pub files: Vec<MarkFile>,
    /// The database's identity as it was and as it is, part by part; an unknown part is none.
    pub identity: Vec<IdentityPart>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkFile {
    pub path: String,
    /// Whether its absence means something: the file next to the directory cannot always be
    /// written.
    pub required: bool,
    pub mark: Option<Mark>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityPart {
    pub name: &'static str,
    pub before: Option<String>,
    pub now: Option<String>,
}

/// Why a store is taken for restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    pub reason: String,
    /// Only a long stop speaks for it. Keys stay as they are, and totals are believed sooner.
    pub suspected: bool,
}

impl Cause {
    pub fn known(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), suspected: false }
    }
}

/// How long after a restore the provider's totals show everything that was sent before.
pub fn lag_after(suspected: bool) -> Span {
    if suspected { SUSPECT_LAG } else { LAG }
}

/// Whether pushes may still wait for the readings that a restore asks for, and for nothing else.
pub fn is_comparing((restored_at, suspected): (Timestamp, bool), at: Timestamp) -> bool {
    at < READINGS_APART.after(lag_after(suspected).after(restored_at))
}

/// Why a store that is being started has to be taken for restored; none if it is not.
pub fn judge_start(life: &Life, now: Timestamp) -> Option<Cause> {
    if let Some(reason) = judge_marks(life) {
        return Some(Cause::known(reason));
    }
    if let Some(cause) = judge_identity(life) {
        return Some(cause);
    }
    let alive_at = life.alive_at?;
    (STOP_MAX.after(alive_at) < now).then(|| Cause {
        reason: format!("the store was last in use at {alive_at}; a copy of it may have run since"),
        suspected: true,
    })
}

fn judge_marks(life: &Life) -> Option<String> {
    for file in &life.files {
        match &file.mark {
            Some(mark) if mark.store != life.own.store => {
                return Some(format!("{} belongs to another store", file.path));
            }
            Some(mark) if mark.number > life.own.number => {
                let (path, own, number) = (&file.path, life.own.number, mark.number);
                return Some(format!("the store is at mark {own}, and {path} at {number}"));
            }
            None if file.required && life.own.number > 0 => {
                return Some(format!("{} is missing", file.path));
            }
            Some(_) | None => {}
        }
    }
    None
}

/// Why a database is not the one that it was; none if it is, as far as is known.
pub fn judge_identity(life: &Life) -> Option<Cause> {
    life.identity.iter().find_map(|part| {
        let (before, now) = (part.before.as_ref()?, part.now.as_ref()?);
        let name = part.name;
        let differs = format!("the database's {name} was {before} and is {now}");
        (before != now).then(|| Cause::known(differs))
    })
}

/// A reading of a window's total at the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    pub total: Quantity,
    pub at: Timestamp,
}

/// Until when to wait before a total may be compared; none if it may be now. Two equal readings
/// after the restore are needed, the second after everything sent before it had time to show.
pub fn judge_reading(
    (restored_at, suspected): (Timestamp, bool),
    last: Option<Reading>,
    reading: Reading,
) -> Option<Timestamp> {
    let proved = last.is_some_and(|last| {
        last.total == reading.total
            && last.at >= restored_at
            && READINGS_APART.after(last.at) <= reading.at
    });
    let shown_at = lag_after(suspected).after(restored_at);
    if proved && shown_at <= reading.at {
        return None;
    }
    Some(shown_at.max(READINGS_APART.after(reading.at)))
}

/// What a store knows of a window, for one customer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// What its settled pushes make at the provider.
    pub settled: Quantity,
    /// The same with the push in question.
    pub with_push: Quantity,
    /// The same with all pushes that are not settled.
    pub planned: Quantity,
    /// Whether nobody knows if some dead push of the window counted.
    pub doubtful: bool,
    /// When the push was planned, or the restore if that was later.
    pub since: Timestamp,
}

/// What a comparison says of a push of a restored store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// The provider holds what the store knows, without this push.
    Missing,
    /// The provider holds what the store knows, with this push.
    Present,
    /// The provider holds `adopted` more than the store knows, and `rest` of what was planned is
    /// still to be sent.
    Adopt {
        adopted: Quantity,
        rest: Quantity,
    },
    /// The provider holds more than was planned; compare again then.
    Wait {
        until: Timestamp,
    },
    Undecidable,
}

pub fn judge_comparison(known: Known, total: Quantity, now: Timestamp) -> Comparison {
    let Known { settled, with_push, planned, .. } = known;
    if total == settled {
        return Comparison::Missing;
    }
    if known.doubtful {
        return Comparison::Undecidable;
    }
    if total == with_push {
        return Comparison::Present;
    }
    let between = (settled < total && total <= planned) || (planned <= total && total < settled);
    let adopted = total.checked_sub(settled).zip(planned.checked_sub(total));
    if let Some((adopted, rest)) = adopted.filter(|_| between) {
        return Comparison::Adopt { adopted, rest };
    }
    if COMPARE_MAX.after(known.since) <= now {
        return Comparison::Undecidable;
    }
    Comparison::Wait { until: COMPARE_EVERY.after(now) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::samples::{minute as at, quantity};

    fn mark(store: &str, number: u64) -> Mark {
        Mark { store: store.into(), number }
    }

    #[test]
    fn a_restored_store_is_recognised_by_its_files() {
        let check = |inside: Option<Mark>, beside: Option<Mark>, restored: bool| {
            let file = |path: &str, required, mark| MarkFile { path: path.into(), required, mark };
            let life = Life {
                own: mark("a", 5),
                alive_at: Some(at(0)),
                files: vec![file("inside", true, inside), file("beside", false, beside)],
                identity: Vec::new(),
            };
            assert_eq!(judge_start(&life, at(10)).is_some(), restored, "{life:?}");
        };
        check(Some(mark("a", 5)), Some(mark("a", 5)), false);
        check(Some(mark("a", 4)), None, false);
        check(Some(mark("a", 6)), Some(mark("a", 5)), true);
        check(Some(mark("a", 5)), Some(mark("a", 6)), true);
        check(Some(mark("b", 1)), None, true);
        check(Some(mark("a", 5)), Some(mark("b", 1)), true);
        check(None, None, true);
    }

    #[test]
    fn a_restored_database_is_recognised_by_its_identity() {
        let check = |before: Option<&str>, now: Option<&str>, restored: bool| {
            let text = |part: Option<&str>| part.map(str::to_owned);
            let part = IdentityPart { name: "timeline", before: text(before), now: text(now) };
            let life = Life {
                own: mark("a", 5),
                alive_at: Some(at(0)),
                files: Vec::new(),
                identity: vec![part],
            };
            assert_eq!(judge_start(&life, at(0)).is_some(), restored, "{life:?}");
        };
        check(Some("1"), Some("1"), false);
        check(Some("1"), Some("2"), true);
        check(None, Some("2"), false);
        check(Some("1"), None, false);
    }

    #[test]
    fn a_long_stop_may_hide_a_copy() {
        let life = |alive_at| Life {
            own: mark("a", 0),
            alive_at,
            files: Vec::new(),
            identity: Vec::new(),
        };
        assert_eq!(judge_start(&life(None), at(1_000)), None);
        assert_eq!(judge_start(&life(Some(at(0))), at(10)), None);
        assert!(judge_start(&life(Some(at(0))), at(11)).expect("a long stop").suspected);
    }

    #[test]
    fn two_equal_readings_after_the_restore_are_needed() {
        let check = |last: Option<(&str, i64)>, now: i64, expected: Option<i64>| {
            let reading = |(total, minute)| Reading { total: quantity(total), at: at(minute) };
            let judged = judge_reading((at(100), false), last.map(reading), reading(("5", now)));
            assert_eq!(judged, expected.map(at), "{last:?} {now}");
        };
        check(None, 100, Some(160));
        check(Some(("5", 100)), 130, Some(160));
        check(Some(("5", 100)), 160, None);
        check(Some(("4", 100)), 160, Some(165));
        check(Some(("5", 99)), 160, Some(165));
        check(None, 500, Some(505));
        check(Some(("5", 496)), 500, Some(505));
        check(Some(("5", 495)), 500, None);
        // After a stop that may hide a restore, totals are believed sooner.
        let reading = Reading { total: quantity("5"), at: at(100) };
        assert_eq!(judge_reading((at(100), true), None, reading), Some(at(110)));
        let later = Reading { at: at(110), ..reading };
        assert_eq!(judge_reading((at(100), true), Some(reading), later), None);
        assert!(is_comparing((at(100), true), at(114)) && !is_comparing((at(100), true), at(115)));
        assert!(is_comparing((at(100), false), at(164)));
    }

    #[test]
    fn comparisons() {
        let check = |[settled, push, planned]: [&str; 3], total: &str, expected: Comparison| {
            let settled = quantity(settled);
            let known = Known {
                settled,
                with_push: settled.checked_add(quantity(push)).expect("small"),
                planned: quantity(planned),
                doubtful: false,
                since: at(0),
            };
            assert_eq!(judge_comparison(known, quantity(total), at(1)), expected, "{total}");
        };
        let wait = Comparison::Wait { until: at(16) };
        let adopt = |adopted: &str, rest: &str| Comparison::Adopt {
            adopted: quantity(adopted),
            rest: quantity(rest),
        };
        check(["0", "12", "12"], "0", Comparison::Missing);
        check(["0", "12", "12"], "12", Comparison::Present);
        check(["0", "12", "12"], "10", adopt("10", "2"));
        check(["0", "12", "12"], "13", wait);
        check(["3", "2", "15"], "13", adopt("10", "2"));
        check(["3", "2", "15"], "15", adopt("12", "0"));
        check(["3", "2", "15"], "2", wait);
        check(["10", "-4", "6"], "8", adopt("-2", "-2"));
        check(["10", "-4", "6"], "12", wait);
    }

    #[test]
    fn what_is_ambiguous_is_left_to_an_operator() {
        let known = |doubtful| Known {
            settled: Quantity::ZERO,
            with_push: quantity("5"),
            planned: quantity("5"),
            doubtful,
            since: at(0),
        };
        let judge = |doubtful, total: &str, now| {
            judge_comparison(known(doubtful), quantity(total), at(now))
        };
        assert_eq!(judge(true, "0", 0), Comparison::Missing);
        assert_eq!(judge(true, "5", 0), Comparison::Undecidable);
        assert_eq!(judge(false, "9", 8 * 24 * 60), Comparison::Undecidable);
    }
}
