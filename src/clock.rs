//! The clock: the only place that reads the time.
//!
//! Time runs on by the monotonic clock, which nobody can set. The wall clock is followed while it
//! agrees with it and with the clocks of others (`rules::time_source`). A wall clock that is set
//! while the process runs does not move `now`: it raises a doubt, which ends when the wall clock is
//! right again, or when another clock confirms it.
//!
//! Invariant: `now` goes back only where the clocks of others have settled that it was ahead. It
//! never stops: after a small step back of the wall clock it runs on, a tenth slower, until
//! the wall clock has caught up. `sure` gives the time only while nothing contradicts it.
//!
//! Nothing of this outlives the process but the store's high-water mark, which `now` moves.

use crate::faults::planted;
use crate::rules::time_source::{
    CLOCK_TOLERANCE_MICROS, CONFIRMATION_AGE_MAX_MICROS, Doubt, Follow, Readings, Witness, agree,
    judge_clocks,
};
use crate::rules::timestamp::{MICROS_PER_MINUTE, Timestamp};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// An answer that took longer says too little about when its clock was read.
const ROUND_TRIP_MICROS_MAX: i64 = 2 * MICROS_PER_MINUTE;
/// While the wall clock is behind, this part of the time that passes is left out.
const CATCHING_UP: i64 = 10;

/// The machine's clocks, or those of a test.
#[derive(Debug, Clone)]
pub struct Clock {
    machine: Machine,
    state: Arc<Mutex<ClockState>>,
    /// Whether a clock of somebody else can be heard, so that its silence means something.
    confirmed: Arc<AtomicBool>,
}

/// Where readings come from.
#[derive(Debug, Clone)]
enum Machine {
    System {
        /// The monotonic clock at the start.
        started: i64,
    },
    Hand {
        /// The true time, which moves by hand and serves as monotonic clock.
        time: Arc<AtomicI64>,
        /// By how much the wall clock is ahead of it.
        wall_ahead: Arc<AtomicI64>,
    },
}

#[derive(Debug)]
struct ClockState {
    /// `now` less the monotonic clock.
    base: i64,
    read_at: i64,
    was_wall: bool,
    heard: [Option<Heard>; 2],
    /// The store's high-water mark, less the monotonic clock when it was given; until it is
    /// settled.
    mark: Option<i64>,
    /// A mark that the clocks of others have shown to be ahead.
    wrong_mark: bool,
    /// Whether the store's mark confirmed the wall clock at the start.
    mark_agreed: bool,
    /// The latest time that was given.
    latest: i64,
}

/// A reading of another clock.
#[derive(Debug, Clone, Copy)]
struct Heard {
    /// Its time less the monotonic clock.
    base: i64,
    at: i64,
}

/// A moment of the monotonic clock, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tick(i64);

/// The time, and what speaks against it.
#[derive(Debug, Clone)]
pub struct Moment {
    pub now: Timestamp,
    pub doubt: Option<Doubt>,
    /// Whether nothing confirmed the time yet, although a clock of others can.
    pub unheard: bool,
}

impl Clock {
    pub fn system() -> Self {
        let machine = Machine::System { started: monotonic_micros() };
        Self::starting(machine)
    }

    /// A clock that moves only when set.
    pub fn by_hand(start: Timestamp) -> Self {
        let (time, wall_ahead) = (AtomicI64::new(start.micros()), AtomicI64::new(0));
        Self::starting(Machine::Hand { time: Arc::new(time), wall_ahead: Arc::new(wall_ahead) })
    }

    /// The clock of another machine whose wall clock is ahead by so much at its start. It moves
    /// with this one, which must be driven by hand.
    pub fn of_machine_ahead(&self, micros: i64) -> Self {
        let Machine::Hand { time, .. } = &self.machine else {
            panic!("only a clock driven by hand has other machines");
        };
        let wall_ahead = Arc::new(AtomicI64::new(micros));
        Self::starting(Machine::Hand { time: Arc::clone(time), wall_ahead })
    }

    fn starting(machine: Machine) -> Self {
        let (tick, wall) = (machine.tick(), machine.wall());
        let state = ClockState {
            base: wall.saturating_sub(tick),
            read_at: tick,
            was_wall: true,
            heard: [None; 2],
            mark: None,
            wrong_mark: false,
            mark_agreed: false,
            latest: i64::MIN,
        };
        let state = Arc::new(Mutex::new(state));
        Self { machine, state, confirmed: Arc::default() }
    }

    pub fn now(&self) -> Timestamp {
        self.moment().now
    }

    /// The time if no clock contradicts it and, where others can be heard, one of them was heard
    /// lately. Nothing that costs money may be sent or decided by any other time.
    pub fn sure(&self) -> Result<Timestamp, Doubt> {
        let moment = self.moment();
        if planted("bug.trust_wall_clock") {
            return Ok(moment.now);
        }
        match moment.doubt {
            Some(doubt) => Err(doubt),
            None if self.needs_confirmation() => Err(Doubt::unconfirmed(moment.now)),
            None => Ok(moment.now),
        }
    }

    /// The time on the provider's clock, as far as it was heard: ages of what the provider
    /// remembers are measured by it.
    pub fn provider_now(&self) -> Timestamp {
        let now = self.now();
        let heard = self.lock().heard[place(Witness::Provider)];
        let theirs = |heard: Heard| Timestamp::from_micros(heard.base + self.machine.tick());
        // Beyond that the time is in doubt and nothing is measured.
        heard.map(theirs).filter(|theirs| agree(*theirs, now)).unwrap_or(now)
    }

    pub fn tick(&self) -> Tick {
        Tick(self.machine.tick())
    }

    /// A time that only measures how long something takes. It has no date and never goes back.
    pub fn monotonic(&self) -> Timestamp {
        Timestamp::from_micros(self.machine.tick())
    }

    /// Takes over what another clock showed in an answer to a question that was asked at `asked`.
    pub fn witness(&self, witness: Witness, theirs: Timestamp, asked: Tick) {
        let answered = self.machine.tick();
        let round_trip = answered.saturating_sub(asked.0);
        if round_trip > ROUND_TRIP_MICROS_MAX {
            return;
        }
        let read_at = asked.0 + round_trip / 2;
        let heard = Heard { base: theirs.micros().saturating_sub(read_at), at: answered };
        self.lock().heard[place(witness)] = Some(heard);
    }

    /// From now on a clock of somebody else can be heard, and must be.
    pub fn require_confirmation(&self) {
        self.confirmed.store(true, Ordering::SeqCst);
    }

    fn needs_confirmation(&self) -> bool {
        if !self.confirmed.load(Ordering::SeqCst) {
            return false;
        }
        self.heard_age(&Witness::ALL).is_none_or(|age| age > CONFIRMATION_AGE_MAX_MICROS)
    }

    /// For how many microseconds none of these was heard; none if never.
    pub fn heard_age(&self, witnesses: &[Witness]) -> Option<i64> {
        let (now, state) = (self.machine.tick(), self.lock());
        let ages = witnesses.iter().filter_map(|witness| state.heard[place(*witness)]);
        ages.map(|heard| now.saturating_sub(heard.at)).min()
    }

    /// Takes the high-water mark of the store that was opened; 1970 if it has recorded nothing.
    pub fn start_after(&self, mark: Timestamp) {
        if mark == Timestamp::default() {
            return;
        }
        let (tick, wall) = (self.machine.tick(), self.machine.wall());
        let mut state = self.lock();
        state.mark = Some(mark.micros().saturating_sub(tick));
        if agree(Timestamp::from_micros(wall), mark) {
            state.mark_agreed = true;
            state.base = state.base.max(mark.micros().saturating_sub(tick));
        }
    }

    /// Whether the store's mark is ahead of the time that the clocks of others have settled.
    pub fn mark_is_wrong(&self) -> bool {
        let _ = self.moment();
        self.lock().wrong_mark
    }

    /// The store's mark was lowered.
    pub fn mark_was_lowered(&self) {
        self.lock().wrong_mark = false;
    }

    /// The time and what speaks against it.
    pub fn moment(&self) -> Moment {
        let mut state = self.lock();
        let (tick, wall) = (self.machine.tick(), self.machine.wall());
        if planted("bug.trust_wall_clock") {
            state.latest = state.latest.max(wall);
            let now = Timestamp::from_micros(state.latest);
            return Moment { now, doubt: None, unheard: false };
        }
        let readings = state.readings(tick, wall);
        let judged = judge_clocks(&readings);
        state.follow(judged.follow, tick, readings.wall);
        if judged.doubt.is_none() {
            state.settle_mark(tick);
        }
        let mut now = state.base.saturating_add(tick);
        state.latest = state.latest.max(now);
        if planted("bug.clock_is_frozen") {
            now = state.latest;
        }
        // A store that was written to a moment ago is a witness too: a restart while the provider
        // is away puts no event off.
        let silent = state.heard.iter().all(Option::is_none) && !state.mark_agreed;
        let unheard = self.confirmed.load(Ordering::SeqCst) && silent;
        Moment { now: Timestamp::from_micros(now), doubt: judged.doubt, unheard }
    }

    /// Moves a clock that is driven by hand.
    pub fn advance(&self, micros: i64) {
        assert!(micros >= 0, "the clock never goes back");
        self.hand().0.fetch_add(micros, Ordering::SeqCst);
    }

    /// Moves a clock that is driven by hand to this true time, unless it is later already.
    pub fn advance_to(&self, time: Timestamp) {
        self.hand().0.fetch_max(time.micros(), Ordering::SeqCst);
    }

    /// Sets the wall clock of a machine whose clock is driven by hand: ahead of the true time by
    /// so much.
    pub fn set_wall_ahead(&self, micros: i64) {
        self.hand().1.store(micros, Ordering::SeqCst);
    }

    fn hand(&self) -> (&AtomicI64, &AtomicI64) {
        match &self.machine {
            Machine::Hand { time, wall_ahead } => (time, wall_ahead),
            Machine::System { .. } => panic!("only a clock driven by hand can be moved"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, ClockState> {
        self.state.lock().expect("no holder panics")
    }
}

impl ClockState {
    fn readings(&self, tick: i64, wall: i64) -> Readings {
        let carried = |base: i64| Timestamp::from_micros(base.saturating_add(tick));
        let heard = |witness| self.heard[place(witness)].map(|heard: Heard| carried(heard.base));
        Readings {
            wall: Timestamp::from_micros(wall),
            running: carried(self.base),
            running_was_wall: self.was_wall,
            provider: heard(Witness::Provider),
            database: heard(Witness::Database),
            mark: self.mark.map(carried),
        }
    }

    fn follow(&mut self, follow: Follow, tick: i64, wall: Timestamp) {
        let passed = tick.saturating_sub(self.read_at).max(0);
        self.read_at = tick;
        let running = self.base.saturating_add(tick);
        match follow {
            Follow::Running => {}
            Follow::Other(time) => {
                self.wrong_mark |= time.micros() < running;
                self.base = time.micros().saturating_sub(tick);
                self.was_wall = false;
            }
            Follow::Wall => {
                let behind = running.saturating_sub(wall.micros());
                self.was_wall = true;
                if behind > 0 && behind <= CLOCK_TOLERANCE_MICROS {
                    self.base -= behind.min(passed / CATCHING_UP);
                    if planted("bug.clock_is_frozen") {
                        self.base -= passed - behind.min(passed / CATCHING_UP);
                    }
                } else {
                    self.wrong_mark |= behind > 0;
                    self.base = wall.micros().saturating_sub(tick);
                }
            }
        }
    }

    /// Nothing contradicts the time: it says whether the store's mark was ahead.
    fn settle_mark(&mut self, tick: i64) {
        let Some(mark) = self.mark.take() else { return };
        let now = Timestamp::from_micros(self.base.saturating_add(tick));
        let mark = Timestamp::from_micros(mark.saturating_add(tick));
        self.wrong_mark |= mark > now && !agree(mark, now);
    }
}

impl Machine {
    /// The monotonic clock.
    fn tick(&self) -> i64 {
        match self {
            Self::System { started } => monotonic_micros().saturating_sub(*started),
            Self::Hand { time, .. } => time.load(Ordering::SeqCst),
        }
    }

    fn wall(&self) -> i64 {
        match self {
            Self::System { .. } => wall_clock_micros().saturating_add(shifted_by_test_micros()),
            Self::Hand { time, wall_ahead } => {
                time.load(Ordering::SeqCst).saturating_add(wall_ahead.load(Ordering::SeqCst))
            }
        }
    }
}

fn place(witness: Witness) -> usize {
    match witness {
        Witness::Provider => 0,
        Witness::Database => 1,
    }
}

/// The clock that nobody can set. It counts while the machine sleeps, so that a laptop that was
/// closed over lunch does not look like a machine whose wall clock was set forward.
#[cfg(target_os = "linux")]
fn monotonic_micros() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec.saturating_mul(1_000_000).saturating_add(time.tv_nsec / 1_000)
}

/// The clock that nobody can set.
#[cfg(not(target_os = "linux"))]
fn monotonic_micros() -> i64 {
    static FIRST: std::sync::LazyLock<std::time::Instant> =
        std::sync::LazyLock::new(std::time::Instant::now);
    i64::try_from(FIRST.elapsed().as_micros()).unwrap_or(i64::MAX)
}

#[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
fn wall_clock_micros() -> i64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let micros = since_epoch.expect("the machine's clock is set after 1970").as_micros();
    i64::try_from(micros).expect("the machine's clock is set before the year 200000")
}

/// By how much a test has set the wall clock of a running server: the number in the file that the
/// failpoint `clock.shift` names. Always 0 without the feature `failpoints`.
fn shifted_by_test_micros() -> i64 {
    fail::fail_point!("clock.shift", |file: Option<String>| {
        let text = file.and_then(|file| std::fs::read_to_string(file).ok());
        text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    });
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::time_source::Cause;
    use crate::rules::timestamp::{MICROS_PER_HOUR, MICROS_PER_SECOND};

    fn noon() -> Timestamp {
        Timestamp::parse("2026-11-16T12:00:00Z").expect("valid")
    }

    fn after(micros: i64) -> Timestamp {
        noon().saturating_add_micros(micros)
    }

    fn cause(clock: &Clock) -> Option<Cause> {
        clock.sure().err().map(|doubt| doubt.cause)
    }

    #[test]
    fn the_system_clock_runs() {
        let clock = Clock::system();
        let before = clock.now();
        assert!(clock.now() >= before && clock.sure().is_ok());
    }

    #[test]
    fn a_step_of_the_wall_clock_is_bridged_until_it_is_undone() {
        for step in [27 * MICROS_PER_HOUR, -27 * MICROS_PER_HOUR, 87_600 * MICROS_PER_HOUR] {
            let clock = Clock::by_hand(noon());
            assert_eq!(clock.now(), noon());
            clock.set_wall_ahead(step);
            clock.advance(MICROS_PER_HOUR);
            assert_eq!(clock.now(), after(MICROS_PER_HOUR));
            assert_eq!(cause(&clock), Some(Cause::WallSet));
            clock.set_wall_ahead(0);
            clock.advance(MICROS_PER_HOUR);
            assert_eq!(clock.sure(), Ok(after(2 * MICROS_PER_HOUR)));
        }
    }

    #[test]
    fn a_small_step_back_slows_the_time_and_never_stops_it() {
        let clock = Clock::by_hand(noon());
        clock.set_wall_ahead(-60 * MICROS_PER_SECOND);
        assert_eq!(clock.now(), noon());
        clock.advance(100 * MICROS_PER_SECOND);
        assert_eq!(clock.sure(), Ok(after(90 * MICROS_PER_SECOND)));
        for _ in 0..10 {
            clock.advance(100 * MICROS_PER_SECOND);
            assert!(clock.sure().is_ok());
        }
        assert_eq!(clock.now(), after(1_040 * MICROS_PER_SECOND));
    }

    #[test]
    fn a_small_step_forward_is_followed() {
        let clock = Clock::by_hand(noon());
        clock.set_wall_ahead(200 * MICROS_PER_SECOND);
        assert_eq!(clock.sure(), Ok(after(200 * MICROS_PER_SECOND)));
    }

    #[test]
    fn a_witness_settles_which_of_two_times_is_right() {
        let truth = Clock::by_hand(noon());
        let clock = truth.of_machine_ahead(27 * MICROS_PER_HOUR);
        assert_eq!(clock.now(), after(27 * MICROS_PER_HOUR));
        clock.witness(Witness::Provider, truth.now(), clock.tick());
        assert_eq!(clock.now(), noon());
        assert_eq!(cause(&clock), Some(Cause::WallOff(Witness::Provider)));
        clock.set_wall_ahead(0);
        truth.advance(MICROS_PER_SECOND);
        assert_eq!(clock.sure(), Ok(after(MICROS_PER_SECOND)));
        // The machine slept: its monotonic clock did not count, and its wall clock is right.
        let clock = Clock::by_hand(noon());
        clock.set_wall_ahead(8 * MICROS_PER_HOUR);
        assert_eq!(cause(&clock), Some(Cause::WallSet));
        clock.witness(Witness::Database, after(8 * MICROS_PER_HOUR), clock.tick());
        assert_eq!(clock.sure(), Ok(after(8 * MICROS_PER_HOUR)));
    }

    #[test]
    fn a_clock_that_must_be_confirmed_is_not_sure_without_a_recent_reading() {
        let clock = Clock::by_hand(noon());
        clock.require_confirmation();
        assert_eq!(cause(&clock), Some(Cause::Unconfirmed));
        assert!(clock.moment().unheard && clock.moment().doubt.is_none());
        clock.witness(Witness::Provider, noon(), clock.tick());
        assert_eq!(clock.sure(), Ok(noon()));
        clock.advance(CONFIRMATION_AGE_MAX_MICROS + 1);
        assert_eq!(cause(&clock), Some(Cause::Unconfirmed));
        assert!(!clock.moment().unheard);
    }

    #[test]
    fn a_recent_mark_confirms_the_time_until_a_witness_is_heard() {
        for (mark, unheard) in [(-MICROS_PER_SECOND, false), (-27 * MICROS_PER_HOUR, true)] {
            let clock = Clock::by_hand(noon());
            clock.require_confirmation();
            clock.start_after(after(mark));
            assert_eq!(
                (clock.moment().unheard, cause(&clock)),
                (unheard, Some(Cause::Unconfirmed))
            );
        }
    }

    #[test]
    fn a_mark_that_is_ahead_is_settled_by_a_witness() {
        let clock = Clock::by_hand(noon());
        let mark = after(87_600 * MICROS_PER_HOUR);
        clock.start_after(mark);
        assert_eq!(cause(&clock), Some(Cause::BehindMark));
        assert!(!clock.mark_is_wrong());
        clock.witness(Witness::Database, noon(), clock.tick());
        assert_eq!(clock.sure(), Ok(noon()));
        assert!(clock.mark_is_wrong());
        clock.mark_was_lowered();
        assert!(!clock.mark_is_wrong());
    }

    #[test]
    fn a_mark_shortly_ahead_is_where_time_goes_on() {
        let clock = Clock::by_hand(noon());
        clock.start_after(after(60 * MICROS_PER_SECOND));
        assert_eq!(clock.sure(), Ok(after(60 * MICROS_PER_SECOND)));
        clock.advance(10 * MICROS_PER_SECOND);
        assert_eq!(clock.sure(), Ok(after(69 * MICROS_PER_SECOND)));
    }

    #[test]
    fn the_provider_measures_by_its_own_clock() {
        let clock = Clock::by_hand(noon());
        clock.witness(Witness::Provider, after(90 * MICROS_PER_SECOND), clock.tick());
        assert_eq!(clock.now(), noon());
        assert_eq!(clock.provider_now(), after(90 * MICROS_PER_SECOND));
    }
}
