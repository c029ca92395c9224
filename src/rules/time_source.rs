//! Which time to run by, judged from the readings of several clocks.
//!
//! A server has its machine's wall clock, which anybody can set, and a monotonic clock, which
//! nobody can set and which carries the time on that the process has run by so far (`running`).
//! Others confirm or contradict them: the provider by the `Date` of each answer, PostgreSQL by
//! `clock_timestamp()`. A store's high-water mark is a time that once was: the time now should not
//! be before it, nor long after it.
//!
//! Invariant: clocks that differ by more than [`CLOCK_TOLERANCE_MICROS`] never pass as one time.
//! Either the clocks of others settle which time is right and the wall clock agrees with them, or
//! there is a [`Doubt`] that names the clock that is off. The judgement depends on the readings
//! alone.

use super::timestamp::{MICROS_PER_DAY, MICROS_PER_MINUTE, MICROS_PER_SECOND, Timestamp};
use std::fmt;

/// Clocks that differ by more do not agree.
pub const CLOCK_TOLERANCE_MICROS: i64 = 5 * MICROS_PER_MINUTE;
/// A reading of another clock that is older does not allow a job to send or decide.
pub const CONFIRMATION_AGE_MAX_MICROS: i64 = 10 * MICROS_PER_MINUTE;
/// A store that recorded nothing for longer, before a clock that nothing confirms, is one that the
/// clock may have left behind.
const IDLE_MAX_MICROS: i64 = 30 * MICROS_PER_DAY;

/// A clock of somebody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Witness {
    Provider,
    Database,
}

impl Witness {
    pub const ALL: [Self; 2] = [Self::Provider, Self::Database];

    fn name(self) -> &'static str {
        match self {
            Self::Provider => "the provider's clock",
            Self::Database => "the database's clock",
        }
    }
}

/// What the clocks show at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Readings {
    /// The machine's clock, which can be set.
    pub wall: Timestamp,
    /// The time the process has run by so far, carried on by the monotonic clock.
    pub running: Timestamp,
    /// Whether `running` began as the wall clock's time, and so tells where the wall clock was
    /// before somebody set it. If not, it is a copy of a witness's time or of the mark.
    pub running_was_wall: bool,
    pub provider: Option<Timestamp>,
    pub database: Option<Timestamp>,
    /// The store's high-water mark, carried on by the monotonic clock, until it is settled.
    pub mark: Option<Timestamp>,
}

/// The time to run by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// The machine's clock.
    Wall,
    /// The time so far, carried on by the monotonic clock.
    Running,
    /// Another time; the machine's clock is off.
    Other(Timestamp),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    pub follow: Follow,
    pub doubt: Option<Doubt>,
}

/// Why nobody can be sure of the time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doubt {
    pub cause: Cause,
    /// By how much the clock that is off is ahead of the one it is compared with.
    pub ahead_micros: i64,
    /// Every time that may be the right one.
    pub candidates: Vec<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The wall clock was set while the process ran, and no other clock confirms it.
    WallSet,
    /// The wall clock differs from this one.
    WallOff(Witness),
    /// This clock differs from the wall clock and from the other witness.
    WitnessOff(Witness),
    /// The provider's clock, the database's and the wall clock all differ.
    AllDiffer,
    /// The wall clock is behind what the store has recorded.
    BehindMark,
    /// The wall clock is far ahead of what the store has recorded.
    FarAheadOfMark,
    /// Clocks that could confirm the time are set up and none was heard lately.
    Unconfirmed,
}

impl Doubt {
    /// The state of a server that has not heard from another clock lately.
    pub fn unconfirmed(now: Timestamp) -> Self {
        Self { cause: Cause::Unconfirmed, ahead_micros: 0, candidates: vec![now] }
    }

    /// What a person does about it.
    pub fn remedy(&self) -> &'static str {
        match self.cause {
            Cause::WallSet | Cause::WallOff(_) => {
                "set this machine's clock (timedatectl); work resumes by itself once it is right"
            }
            Cause::WitnessOff(Witness::Database) => {
                "set the clock of the database's machine; work resumes by itself once it is right"
            }
            Cause::WitnessOff(Witness::Provider) => {
                "look whether stripe.api_base leads to the provider, and what is in between"
            }
            Cause::AllDiffer => "set this machine's clock and the database's (timedatectl)",
            Cause::BehindMark | Cause::FarAheadOfMark => {
                "if this machine's clock is wrong, set it and restart; if it is right, stop the \
                 server and run counterfoil clock reset"
            }
            Cause::Unconfirmed => "look whether the provider can be reached",
        }
    }
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let off = Difference(self.ahead_micros);
        match self.cause {
            Cause::WallSet => write!(
                f,
                "this machine's clock was set while the server ran: it is {off} its monotonic clock"
            ),
            Cause::WallOff(witness) => {
                write!(f, "this machine's clock is {off} {}", witness.name())
            }
            Cause::WitnessOff(witness) => {
                write!(f, "{} is {off} all other clocks", witness.name())
            }
            Cause::AllDiffer => write!(
                f,
                "this machine's clock, the provider's and the database's all differ; this \
                 machine's is {off} the provider's"
            ),
            Cause::BehindMark => {
                write!(f, "this machine's clock is {off} what the store has recorded")
            }
            Cause::FarAheadOfMark => write!(
                f,
                "this machine's clock is {off} what the store has recorded, and no other clock \
                 confirms it"
            ),
            Cause::Unconfirmed => {
                f.write_str("no other clock has confirmed this machine's time lately")
            }
        }
    }
}

/// A signed difference in words: `27h 0m 3s ahead of`.
struct Difference(i64);

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.unsigned_abs() / MICROS_PER_SECOND.unsigned_abs();
        let (days, hours) = (seconds / 86_400, seconds / 3_600 % 24);
        let (minutes, seconds) = (seconds / 60 % 60, seconds % 60);
        if days > 0 {
            write!(f, "{days}d ")?;
        }
        write!(f, "{hours}h {minutes}m {seconds}s ")?;
        f.write_str(if self.0 < 0 { "behind" } else { "ahead of" })
    }
}

/// Judges which time to run by, and whether anything contradicts it.
pub fn judge_clocks(readings: &Readings) -> Judgement {
    match (readings.provider, readings.database) {
        (Some(provider), Some(database)) if !agree(provider, database) => {
            judge_contradiction(readings, provider, database)
        }
        (Some(time), database) => {
            judge_witnessed(readings, Witness::Provider, time, database.is_some())
        }
        (None, Some(time)) => judge_witnessed(readings, Witness::Database, time, false),
        (None, None) => judge_alone(readings),
    }
}

pub fn agree(one: Timestamp, other: Timestamp) -> bool {
    one.micros().abs_diff(other.micros()) <= CLOCK_TOLERANCE_MICROS.unsigned_abs()
}

fn ahead(one: Timestamp, other: Timestamp) -> i64 {
    one.micros().saturating_sub(other.micros())
}

/// The witnesses contradict each other: nothing settles the time, which runs on as it was.
fn judge_contradiction(readings: &Readings, provider: Timestamp, database: Timestamp) -> Judgement {
    let wall = readings.wall;
    let (cause, ahead_micros) = if agree(wall, provider) {
        (Cause::WitnessOff(Witness::Database), ahead(database, provider))
    } else if agree(wall, database) {
        (Cause::WitnessOff(Witness::Provider), ahead(provider, database))
    } else {
        (Cause::AllDiffer, ahead(wall, provider))
    };
    let candidates = vec![readings.running, wall, provider, database];
    let doubt = Some(Doubt { cause, ahead_micros, candidates });
    Judgement { follow: Follow::Running, doubt }
}

/// All witnesses say `time`.
fn judge_witnessed(
    readings: &Readings,
    witness: Witness,
    time: Timestamp,
    by_both: bool,
) -> Judgement {
    let Readings { wall, running, running_was_wall, mark, .. } = *readings;
    if agree(wall, time) {
        return Judgement { follow: Follow::Wall, doubt: None };
    }
    let follow = if agree(running, time) { Follow::Running } else { Follow::Other(time) };
    // Where something besides one witness speaks against the wall clock, its time is out.
    let was_there = running_was_wall && agree(running, time);
    let excluded_by_mark =
        mark.is_some_and(|mark| plausible(wall, mark).is_err() && plausible(time, mark).is_ok());
    let candidates =
        if by_both || was_there || excluded_by_mark { vec![time] } else { vec![time, wall] };
    let ahead_micros = ahead(wall, time);
    let doubt = Some(Doubt { cause: Cause::WallOff(witness), ahead_micros, candidates });
    Judgement { follow, doubt }
}

/// No other clock was heard.
fn judge_alone(readings: &Readings) -> Judgement {
    let Readings { wall, running, mark, .. } = *readings;
    let doubt = |cause, reference, candidates| {
        Some(Doubt { cause, ahead_micros: ahead(wall, reference), candidates })
    };
    if let Some(mark) = mark {
        return match plausible(wall, mark) {
            Ok(()) => Judgement { follow: Follow::Wall, doubt: None },
            Err(cause) => Judgement {
                follow: Follow::Other(mark),
                doubt: doubt(cause, mark, vec![wall, mark]),
            },
        };
    }
    if agree(wall, running) {
        return Judgement { follow: Follow::Wall, doubt: None };
    }
    Judgement { follow: Follow::Running, doubt: doubt(Cause::WallSet, running, vec![running]) }
}

/// Whether a store with this high-water mark may have been opened at this time.
fn plausible(time: Timestamp, mark: Timestamp) -> Result<(), Cause> {
    if time < mark.saturating_add_micros(-CLOCK_TOLERANCE_MICROS) {
        Err(Cause::BehindMark)
    } else if time > mark.saturating_add_micros(IDLE_MAX_MICROS) {
        Err(Cause::FarAheadOfMark)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::timestamp::MICROS_PER_HOUR;

    const NOON: i64 = 1_800_000_000_000_000;

    fn at(hours: i64) -> Timestamp {
        Timestamp::from_micros(NOON + hours * MICROS_PER_HOUR)
    }

    fn readings(wall: i64, running: i64) -> Readings {
        Readings {
            wall: at(wall),
            running: at(running),
            running_was_wall: true,
            provider: None,
            database: None,
            mark: None,
        }
    }

    fn check(readings: Readings, follow: Follow, cause: Option<Cause>, candidates: &[i64]) {
        let judged = judge_clocks(&readings);
        assert_eq!(judged.follow, follow, "{readings:?}");
        assert_eq!(judged.doubt.as_ref().map(|doubt| doubt.cause), cause, "{readings:?}");
        let expected: Vec<Timestamp> = candidates.iter().copied().map(at).collect();
        let found = judged.doubt.map(|doubt| doubt.candidates).unwrap_or_default();
        assert_eq!(found, expected, "{readings:?}");
    }

    #[test]
    fn a_wall_clock_that_was_set_is_not_followed_until_another_clock_confirms_it() {
        check(readings(0, 0), Follow::Wall, None, &[]);
        check(readings(27, 0), Follow::Running, Some(Cause::WallSet), &[0]);
        check(readings(-27, 0), Follow::Running, Some(Cause::WallSet), &[0]);
        let off = Some(Cause::WallOff(Witness::Provider));
        for wall in [27, -27, 87_600] {
            let step = Readings { provider: Some(at(0)), ..readings(wall, 0) };
            check(step, Follow::Running, off, &[0]);
            let right = Readings { provider: Some(at(wall)), ..readings(wall, 0) };
            check(right, Follow::Wall, None, &[]);
        }
    }

    #[test]
    fn a_wall_clock_that_was_wrong_at_the_start_gives_way_to_other_clocks() {
        for (witness, provider, database) in
            [(Witness::Provider, Some(at(0)), None), (Witness::Database, None, Some(at(0)))]
        {
            let start = Readings { provider, database, ..readings(27, 27) };
            let off = Some(Cause::WallOff(witness));
            check(start, Follow::Other(at(0)), off, &[0, 27]);
            // From then on the running time is the witness's own and proves nothing.
            let later = Readings { running: at(0), running_was_wall: false, ..start };
            check(later, Follow::Running, off, &[0, 27]);
        }
        let both = Readings { provider: Some(at(0)), database: Some(at(0)), ..readings(27, 27) };
        let off = Some(Cause::WallOff(Witness::Provider));
        check(both, Follow::Other(at(0)), off, &[0]);
        let marked = Readings { provider: Some(at(0)), mark: Some(at(-1)), ..readings(-27, -27) };
        check(marked, Follow::Other(at(0)), off, &[0]);
    }

    #[test]
    fn witnesses_that_contradict_each_other_settle_nothing() {
        let against = |wall, provider, database| Readings {
            provider: Some(at(provider)),
            database: Some(at(database)),
            ..readings(wall, 0)
        };
        let database = Some(Cause::WitnessOff(Witness::Database));
        check(against(0, 0, 9), Follow::Running, database, &[0, 0, 0, 9]);
        let provider = Some(Cause::WitnessOff(Witness::Provider));
        check(against(0, 9, 0), Follow::Running, provider, &[0, 0, 9, 0]);
        check(against(5, 9, 0), Follow::Running, Some(Cause::AllDiffer), &[0, 5, 9, 0]);
    }

    #[test]
    fn a_mark_must_lie_shortly_before_a_time_that_nothing_confirms() {
        let marked = |wall: i64, mark: i64| Readings {
            mark: Some(at(mark)),
            running_was_wall: false,
            ..readings(wall, mark)
        };
        check(marked(0, 0), Follow::Wall, None, &[]);
        check(marked(0, -29 * 24), Follow::Wall, None, &[]);
        let behind = Some(Cause::BehindMark);
        check(marked(0, 27), Follow::Other(at(27)), behind, &[0, 27]);
        let ahead = Some(Cause::FarAheadOfMark);
        check(marked(0, -31 * 24), Follow::Other(at(-31 * 24)), ahead, &[0, -31 * 24]);
        let settled = Readings { provider: Some(at(0)), ..marked(0, 87_600) };
        check(settled, Follow::Wall, None, &[]);
    }

    #[test]
    fn five_minutes_are_tolerated() {
        let off = |micros: i64| {
            let wall = at(0).saturating_add_micros(micros);
            judge_clocks(&Readings { wall, ..readings(0, 0) }).doubt.is_some()
        };
        assert!(!off(CLOCK_TOLERANCE_MICROS) && !off(-CLOCK_TOLERANCE_MICROS));
        assert!(off(CLOCK_TOLERANCE_MICROS + 1) && off(-CLOCK_TOLERANCE_MICROS - 1));
    }

    #[test]
    fn a_doubt_names_the_clock_that_is_off_and_by_how_much() {
        let text = |readings: Readings| judge_clocks(&readings).doubt.expect("doubt").to_string();
        let wall = Readings { provider: Some(at(0)), ..readings(27, 0) };
        assert_eq!(text(wall), "this machine's clock is 1d 3h 0m 0s ahead of the provider's clock");
        let database = Readings { provider: Some(at(0)), database: Some(at(-2)), ..readings(0, 0) };
        assert_eq!(text(database), "the database's clock is 2h 0m 0s behind all other clocks");
    }
}
