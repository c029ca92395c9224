//! What becomes of a push: the provider's answers, and what follows from each.
//!
//! Invariant: a push is sent again only under its own key and only while the provider is sure to
//! remember that key (`Horizons::resend`). After that nothing is sent until the provider's own
//! summary has shown whether it counted. What is not known is never guessed.
//!
//! ```text
//! waiting --customer known--> observed, or replaced (not sent) if it is too old by then
//! observed --accepted, already there, present--> submitted --summary shows it--> confirmed
//!    |  \--refused, undecidable, unreadable--> dead <--summary lacks it after all--/
//!    \--absent--> replaced (a push with the next revision takes its place; an operator's retry of
//!                 a dead one does the same)
//! ```

use super::billing::Mode;
use super::named::named_enum;
use super::quantity::Quantity;
use super::span::Span;
use super::timestamp::Timestamp;

/// Longest pause between two looks for a push.
const LOOK_EVERY_MAX: Span = Span::from_hours(1);
/// Most pushes of a window among which dropped ones are searched for.
const PARTS_MAX: usize = 12;
/// How long a summary may be unreadable before a person decides. An outage of the provider or a
/// revoked key is repaired within a weekend; a deleted customer or meter never comes back, and
/// later revisions of the window wait behind the push.
const UNREADABLE_MAX: Span = Span::from_hours(3 * 24);
/// How long a provider that could not show totals is left alone.
const UNREADABLE_PAUSE: Span = Span::from_minutes(5);

named_enum! {
    /// The state of a push.
    pub enum PushState {
        /// Written down for a tenant without a customer: nobody can be billed for it yet.
        Waiting = "waiting",
        /// Written down; not sent yet, or sent with an unknown outcome.
        Observed = "observed",
        /// The provider says that it has it.
        Submitted = "submitted",
        /// The provider's summary shows it.
        Confirmed = "confirmed",
        /// A reconciliation pass or an invoice line has closed it.
        Reconciled = "reconciled",
        /// Needs a person.
        Dead = "dead",
        /// A person wrote it off.
        Discarded = "discarded",
        /// Surely never counted: a later revision took its place, or it was too old to be sent when
        /// its tenant got a customer (class not_sent).
        Replaced = "replaced",
    }
}

impl PushState {
    /// Whether the provider has it, as far as is known.
    pub fn settled(self) -> bool {
        match self {
            Self::Submitted | Self::Confirmed | Self::Reconciled => true,
            Self::Waiting | Self::Observed | Self::Dead | Self::Discarded | Self::Replaced => false,
        }
    }
}

named_enum! {
    /// Why a push is where it is: one word for each row of its history.
    pub enum Class {
        /// A cut planned it.
        Cut = "cut",
        /// It is about to be sent.
        Attempt = "attempt",
        /// The provider took it.
        Accepted = "accepted",
        /// The provider had it already, under this very key.
        AlreadyThere = "already_there",
        /// The provider refused it; it did not count.
        Refused = "refused",
        /// It may have counted or not; it will be tried again.
        Unknown = "unknown",
        /// The summary shows an unknown one: it counted.
        Present = "present",
        /// The summary lacks it: it did not count.
        Absent = "absent",
        /// The summary fits neither; a person must look.
        Undecidable = "undecidable",
        /// The summary could not be read for days; a person must look.
        Unreadable = "unreadable",
        /// The summary shows what was submitted.
        Confirmed = "confirmed",
        /// It lies further back than the provider takes; it was not sent.
        TooOld = "too_old",
        /// A person asked for another try.
        Retried = "retried",
        /// A person wrote it off.
        Discarded = "discarded",
        /// A later absolute total of the window made it pointless.
        Overtaken = "overtaken",
        /// It was not sent: shadow mode without a destination, or too old when its tenant got a
        /// customer.
        NotSent = "not_sent",
        /// The provider had counted so much and shows it no more.
        Lost = "lost",
        /// A pass found that the provider lacks it, beyond doubt.
        Reissue = "reissue",
        /// A pass over its day found both halves equal.
        Reconciled = "reconciled",
        /// The provider held it, and the store had forgotten it: it was sent before a restore.
        Adopted = "adopted",
    }
}

/// What the class of a dead push tells about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadClass {
    Refused,
    Absent,
    Undecidable,
    Unreadable,
    TooOld,
    /// A class that tells nothing of whether it counted.
    Other,
}

impl Class {
    /// As the class of a dead push. The one list of the classes that decide nothing.
    pub fn of_dead(self) -> DeadClass {
        match self {
            Self::Refused => DeadClass::Refused,
            Self::Absent => DeadClass::Absent,
            Self::Undecidable => DeadClass::Undecidable,
            Self::Unreadable => DeadClass::Unreadable,
            Self::TooOld => DeadClass::TooOld,
            Self::Cut
            | Self::Attempt
            | Self::Accepted
            | Self::AlreadyThere
            | Self::Unknown
            | Self::Present
            | Self::Confirmed
            | Self::Retried
            | Self::Discarded
            | Self::Overtaken
            | Self::NotSent
            | Self::Lost
            | Self::Reissue
            | Self::Reconciled
            | Self::Adopted => DeadClass::Other,
        }
    }
}

/// What the provider answered, sorted by what must follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubmitOutcome {
    Accepted,
    /// It knows this key: the push was delivered before.
    AlreadyThere,
    /// It will never count as it is.
    Refused {
        message: String,
    },
    /// No answer, or none that tells whether it counted.
    Unknown {
        message: String,
        resend: Resend,
        retry_after: Option<Span>,
    },
}

/// How an unknown push may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resend {
    /// Exactly as before.
    Same,
    /// With a fresh request key, since the provider would only repeat its stored answer; the
    /// push's own key stays, and it is what counts once.
    FreshRequestKey,
    /// Not at all: the provider asked not to. Its summary will tell.
    No,
}

/// What is done with a push next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Nothing until then.
    Wait {
        until: Timestamp,
        fresh_request_key: bool,
    },
    /// The summary could not be read; ask again then. The store keeps since when.
    Unread {
        until: Timestamp,
    },
    /// After a restore: the window's total was read and is read again then.
    Looked {
        total: Quantity,
        until: Timestamp,
    },
    /// After a restore: the window's total was read often enough. The store compares it by
    /// `rules::restore` inside its transaction, and the push follows from that.
    Compared {
        total: Quantity,
        look_at: Timestamp,
    },
    /// Look for it in the provider's summary from then on.
    Submitted {
        look_at: Timestamp,
    },
    Confirmed,
    Dead,
    /// A push with the next revision takes its place.
    Replaced,
}

/// The provider's memory, as far as we rely on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Horizons {
    /// The same key may be sent again until so long after the first attempt; none: for ever.
    pub resend: Option<Span>,
    /// From so long after the first attempt on, the summary tells. Between the two nothing is done.
    pub decide: Span,
    /// What lies further back is not taken; none: everything is.
    pub stamp_age_max: Option<Span>,
}

/// How long to wait between attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    pub base_ms: u64,
    pub max_ms: u64,
}

impl Backoff {
    /// Full jitter: any moment up to a bound that doubles with each attempt; `random` is any
    /// number.
    pub fn pause_micros(self, attempts: u32, random: u64) -> i64 {
        let doublings = attempts.saturating_sub(1).min(32);
        let bound = self.base_ms.saturating_mul(1u64 << doublings).min(self.max_ms).max(1);
        let micros = bound.saturating_mul(1_000);
        i64::try_from(random % micros + 1).unwrap_or(i64::MAX)
    }
}

/// How far a push has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The moment it is stamped with.
    pub stamped_at: Timestamp,
    pub attempts: u32,
    pub first_attempt_at: Option<Timestamp>,
}

/// What is due for a push that is observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    Send,
    Wait {
        until: Timestamp,
    },
    /// Ask the provider's summary.
    Decide,
    /// It was never sent and lies too far back.
    Refuse,
}

pub fn judge_due(progress: Progress, horizons: Horizons, now: Timestamp) -> Act {
    let Some(first) = progress.first_attempt_at else {
        let refuse = is_too_old(progress.stamped_at, horizons.stamp_age_max, now);
        return if refuse { Act::Refuse } else { Act::Send };
    };
    let Some(resend) = horizons.resend else { return Act::Send };
    let decide_at = horizons.decide.after(first);
    if now < resend.after(first) {
        Act::Send
    } else if now < decide_at {
        Act::Wait { until: decide_at }
    } else {
        Act::Decide
    }
}

/// Whether the provider takes a stamp no more.
pub fn is_too_old(stamped_at: Timestamp, stamp_age_max: Option<Span>, now: Timestamp) -> bool {
    stamp_age_max.is_some_and(|max| max.after(stamped_at) <= now)
}

/// What follows from an answer.
pub fn judge_outcome(
    outcome: &SubmitOutcome,
    progress: Progress,
    horizons: Horizons,
    (backoff, random): (Backoff, u64),
    (now, look_after): (Timestamp, Span),
) -> (Class, Next) {
    let submitted = Next::Submitted { look_at: look_after.after(now) };
    match outcome {
        SubmitOutcome::Accepted => (Class::Accepted, submitted),
        SubmitOutcome::AlreadyThere => (Class::AlreadyThere, submitted),
        SubmitOutcome::Refused { .. } if progress.attempts <= 1 => (Class::Refused, Next::Dead),
        // An earlier attempt may have counted before whatever is wrong now went wrong, and where
        // keys are remembered for ever, no summary is ever asked: sending on would never end.
        SubmitOutcome::Refused { .. } if horizons.resend.is_none() => {
            (Class::Undecidable, Next::Dead)
        }
        SubmitOutcome::Refused { .. } => {
            let until = horizons.decide.after(progress.first_attempt_at.unwrap_or(now));
            (Class::Unknown, Next::Wait { until, fresh_request_key: false })
        }
        SubmitOutcome::Unknown { resend, retry_after, .. } => {
            let pause = backoff.pause_micros(progress.attempts, random);
            let soonest = retry_after.map_or(now, |span| span.after(now));
            let again = now.saturating_add_micros(pause).max(soonest);
            let first = progress.first_attempt_at.unwrap_or(now);
            let until = match resend {
                Resend::Same | Resend::FreshRequestKey => again,
                Resend::No => horizons.decide.after(first),
            };
            let fresh_request_key = *resend == Resend::FreshRequestKey;
            (Class::Unknown, Next::Wait { until, fresh_request_key })
        }
    }
}

/// What the provider's summary says about a push whose outcome is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    pub mode: Mode,
    pub quantity: Quantity,
    pub value: Quantity,
    /// The sum of the window's other pushes that the provider has.
    pub settled: Quantity,
    /// Whether the window has another push of which nobody knows if it counted.
    pub doubtful: bool,
}

/// What a summary says of a push whose outcome is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// It counted.
    Present,
    /// It did not count.
    Absent,
    /// The summary fits neither; a person must look.
    Undecidable,
}

impl Shown {
    pub fn class(self) -> Class {
        match self {
            Self::Present => Class::Present,
            Self::Absent => Class::Absent,
            Self::Undecidable => Class::Undecidable,
        }
    }

    /// What it means for the push.
    pub fn next(self, look_at: Timestamp) -> Next {
        match self {
            Self::Present => Next::Submitted { look_at },
            Self::Absent => Next::Replaced,
            Self::Undecidable => Next::Dead,
        }
    }
}

pub fn judge_summary(question: Question, summary: Quantity) -> Shown {
    match question.mode {
        // The last total received wins: sending it again can only make it right.
        Mode::Absolute if summary == question.value => Shown::Present,
        Mode::Absolute => Shown::Absent,
        Mode::Delta if question.doubtful => Shown::Undecidable,
        Mode::Delta => {
            let with_it = question.settled.checked_add(question.quantity);
            if with_it == Some(summary) {
                Shown::Present
            } else if summary == question.settled {
                Shown::Absent
            } else {
                Shown::Undecidable
            }
        }
    }
}

/// What follows when the summary of a push cannot be read, and could not since then. Beyond the
/// provider's limit of age nothing could be sent in its place, so waiting on gains nothing.
pub fn judge_unreadable(
    stamped_at: Timestamp,
    unreadable_since: Option<Timestamp>,
    horizons: Horizons,
    now: Timestamp,
) -> (Class, Next) {
    let wait = (Class::Unknown, Next::Unread { until: UNREADABLE_PAUSE.after(now) });
    let Some(since) = unreadable_since else { return wait };
    let too_old = horizons.stamp_age_max.is_some_and(|max| max.after(stamped_at) <= now);
    if too_old || UNREADABLE_MAX.after(since) <= now {
        (Class::Unreadable, Next::Dead)
    } else {
        wait
    }
}

/// A window with pushes that the provider took and its summary has not shown yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unconfirmed {
    pub mode: Mode,
    /// What the summary shows when everything has arrived.
    pub expected: Quantity,
    /// The quantities of the pushes in question.
    pub quantities: Vec<Quantity>,
    /// When the last of them was taken.
    pub submitted_at: Timestamp,
}

/// What the summary says of each of the pushes in question: confirmed if it shows all of them. If
/// it lacks exactly some of them long after they were taken, those were dropped after all. Anything
/// else waits, for lag or for a reconciliation pass.
pub fn judge_unconfirmed(
    window: &Unconfirmed,
    summary: Quantity,
    horizons: Horizons,
    (now, look_after): (Timestamp, Span),
) -> Vec<(Class, Next)> {
    let confirmed = (Class::Confirmed, Next::Confirmed);
    let absent = (Class::Absent, Next::Dead);
    let count = window.quantities.len();
    if summary == window.expected {
        return vec![confirmed; count];
    }
    let late = now >= horizons.decide.after(window.submitted_at);
    if late && window.mode == Mode::Absolute {
        return vec![absent; count];
    }
    let lacking = window.expected.checked_sub(summary);
    if let Some(dropped) = lacking.filter(|_| late).and_then(|l| part_of(&window.quantities, l)) {
        let judge = |dropped| if dropped { absent.clone() } else { confirmed.clone() };
        return dropped.into_iter().map(judge).collect();
    }
    let until = look_again(window.submitted_at, now, look_after);
    let until = if late { until } else { until.min(horizons.decide.after(window.submitted_at)) };
    vec![(Class::Unknown, Next::Wait { until, fresh_request_key: false }); count]
}

/// When to look again: twice as long after the submission as now, so that a window is asked for
/// less and less often, but at least every hour.
pub fn look_again(submitted_at: Timestamp, now: Timestamp, look_after: Span) -> Timestamp {
    let waited = now.micros().saturating_sub(submitted_at.micros()).min(LOOK_EVERY_MAX.micros());
    now.saturating_add_micros(waited.max(look_after.micros()))
}

/// Which of the quantities add up to `sum`. If several choices do, any of them is right: sending
/// them again makes the window's total the same.
fn part_of(quantities: &[Quantity], sum: Quantity) -> Option<Vec<bool>> {
    if quantities.len() > PARTS_MAX {
        return None;
    }
    let choices = 1u32 << quantities.len();
    let chosen = |choice: u32, place: usize| choice >> place & 1 == 1;
    let adds_up = |choice: &u32| {
        let parts = quantities.iter().enumerate().filter(|(place, _)| chosen(*choice, *place));
        let total = parts.map(|(_, part)| part).try_fold(Quantity::ZERO, |a, b| a.checked_add(*b));
        total == Some(sum)
    };
    let found = (1..choices).find(adds_up)?;
    Some((0..quantities.len()).map(|place| chosen(found, place)).collect())
}

/// How a dead push is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// A new revision takes its place.
    Replace,
    /// The provider's summary is asked again; nothing is sent before it has answered.
    Look,
}

/// Whether and how a dead push may be tried again.
pub fn judge_retry(state: PushState, class: Class) -> Result<Retry, &'static str> {
    if state == PushState::Discarded {
        return Err("an operator discarded it, with a reason");
    }
    if state != PushState::Dead {
        return Err("only a dead push can be retried; this one is still being processed");
    }
    match class.of_dead() {
        DeadClass::Refused | DeadClass::Absent => Ok(Retry::Replace),
        DeadClass::Unreadable => Ok(Retry::Look),
        DeadClass::TooOld => Err(
            "it lies further back than the provider takes, and always will; bill it by hand, such \
             as with an invoice item, and discard this push with the reason",
        ),
        DeadClass::Undecidable => {
            Err("it is not known whether the provider counted it, so sending it again could bill \
             twice; compare the window's total at the provider with its pushes, correct it there, \
             and discard this push with the reason")
        }
        DeadClass::Other => Err("its history does not prove that it was not counted"),
    }
}

/// Whether a push may be written off.
pub fn judge_discard(state: PushState) -> Result<(), &'static str> {
    match state {
        PushState::Dead => Ok(()),
        PushState::Discarded => Err("an operator discarded it before, with a reason"),
        PushState::Waiting
        | PushState::Observed
        | PushState::Submitted
        | PushState::Confirmed
        | PushState::Reconciled
        | PushState::Replaced => {
            Err("only a dead push can be discarded; this one is still being processed")
        }
    }
}

#[cfg(test)]
#[allow(clippy::wildcard_enum_match_arm)]
mod tests {
    use super::*;
    use crate::rules::samples::hour as at;

    const STRICT: Horizons = Horizons {
        resend: Some(Span::from_hours(22)),
        decide: Span::from_hours(26),
        stamp_age_max: Some(Span::from_hours(34 * 24)),
    };

    #[test]
    fn what_is_due() {
        let check = |first: Option<i64>, now: i64, expected: Act| {
            let first_attempt_at = first.map(at);
            let attempts = u32::from(first.is_some());
            let progress = Progress { stamped_at: at(0), attempts, first_attempt_at };
            assert_eq!(judge_due(progress, STRICT, at(now)), expected, "{first:?} {now}");
        };
        check(None, 1, Act::Send);
        check(None, 34 * 24 - 1, Act::Send);
        check(None, 34 * 24, Act::Refuse);
        check(Some(10), 10, Act::Send);
        check(Some(10), 31, Act::Send);
        check(Some(10), 32, Act::Wait { until: at(36) });
        check(Some(10), 35, Act::Wait { until: at(36) });
        check(Some(10), 36, Act::Decide);
        check(Some(10), 4_000, Act::Decide);
    }

    #[test]
    fn answers() {
        let progress = Progress { stamped_at: at(0), attempts: 3, first_attempt_at: Some(at(5)) };
        let judge = |outcome| {
            let backoff = (Backoff { base_ms: 500, max_ms: 60_000 }, 1_999_999);
            judge_outcome(&outcome, progress, STRICT, backoff, (at(6), Span::from_minutes(15)))
        };
        let unknown = |resend, retry_after| {
            judge(SubmitOutcome::Unknown { message: String::new(), resend, retry_after })
        };
        let look_at = Span::from_minutes(15).after(at(6));
        assert_eq!(judge(SubmitOutcome::Accepted), (Class::Accepted, Next::Submitted { look_at }));
        assert_eq!(
            judge(SubmitOutcome::AlreadyThere),
            (Class::AlreadyThere, Next::Submitted { look_at })
        );
        let wait =
            |until, fresh_request_key| (Class::Unknown, Next::Wait { until, fresh_request_key });
        let soon = at(6).saturating_add_micros(2_000_000);
        assert_eq!(unknown(Resend::Same, None), wait(soon, false));
        assert_eq!(unknown(Resend::FreshRequestKey, None), wait(soon, true));
        let later = Span::from_seconds(30).after(at(6));
        assert_eq!(unknown(Resend::Same, Some(Span::from_seconds(30))), wait(later, false));
        assert_eq!(unknown(Resend::No, None), wait(at(31), false));
        let refused = || SubmitOutcome::Refused { message: String::new() };
        assert_eq!(judge(refused()), wait(at(31), false));
        let first = Progress { attempts: 1, ..progress };
        let backoff = (Backoff { base_ms: 500, max_ms: 60_000 }, 0);
        let times = (at(6), Span::from_minutes(15));
        let first = judge_outcome(&refused(), first, STRICT, backoff, times);
        assert_eq!(first, (Class::Refused, Next::Dead));
    }

    #[test]
    fn pauses_stay_within_their_bound() {
        let backoff = Backoff { base_ms: 100, max_ms: 1_000 };
        for (attempts, bound_ms) in [(1, 100), (2, 200), (4, 800), (5, 1_000), (60, 1_000)] {
            for random in [0, 1, 99_999, u64::MAX / 3, u64::MAX] {
                let pause = backoff.pause_micros(attempts, random);
                assert!((1..=bound_ms * 1_000).contains(&pause), "{attempts} {random} {pause}");
            }
        }
    }

    #[test]
    fn summaries_decide_or_say_that_they_cannot() {
        let units = |n: i128| Quantity::from_units(n);
        let check = |mode, doubtful, summary: i128, expected| {
            let (quantity, value, settled) = match mode {
                Mode::Delta => (units(5), units(5), units(10)),
                Mode::Absolute => (units(5), units(15), units(10)),
            };
            let question = Question { mode, quantity, value, settled, doubtful };
            assert_eq!(judge_summary(question, units(summary)), expected, "{mode:?} {summary}");
        };
        check(Mode::Delta, false, 15, Shown::Present);
        check(Mode::Delta, false, 10, Shown::Absent);
        check(Mode::Delta, false, 12, Shown::Undecidable);
        check(Mode::Delta, false, 20, Shown::Undecidable);
        check(Mode::Delta, true, 15, Shown::Undecidable);
        check(Mode::Delta, true, 10, Shown::Undecidable);
        check(Mode::Absolute, false, 15, Shown::Present);
        check(Mode::Absolute, true, 10, Shown::Absent);
    }

    #[test]
    fn what_was_taken_is_confirmed_or_missed_in_the_end() {
        let units = |n: i128| Quantity::from_units(n);
        let window = Unconfirmed {
            mode: Mode::Delta,
            expected: units(15),
            quantities: vec![units(5), units(3)],
            submitted_at: at(0),
        };
        let check = |summary: i128, now: i64, expected: [Class; 2]| {
            let times = (at(now), Span::from_minutes(15));
            let judged = judge_unconfirmed(&window, units(summary), STRICT, times);
            let classes: Vec<Class> = judged.into_iter().map(|(class, _)| class).collect();
            assert_eq!(classes, expected, "{summary} at {now}");
        };
        check(15, 1, [Class::Confirmed; 2]);
        check(10, 1, [Class::Unknown; 2]);
        check(7, 26, [Class::Absent; 2]);
        check(10, 26, [Class::Absent, Class::Confirmed]);
        check(12, 26, [Class::Confirmed, Class::Absent]);
        check(11, 30, [Class::Unknown; 2]);
        check(20, 30, [Class::Unknown; 2]);
        check(15, 30, [Class::Confirmed; 2]);
    }

    #[test]
    fn looks_become_rarer_and_never_end() {
        let look_after = Span::from_minutes(15);
        let check = |hours: i64, minutes: u32| {
            let expected = Span::from_minutes(minutes).after(at(hours));
            assert_eq!(look_again(at(0), at(hours), look_after), expected, "{hours}");
        };
        check(0, 15);
        check(1, 60);
        check(1_000, 60);
        let half = Span::from_minutes(30).after(at(0));
        assert_eq!(look_again(at(0), half, look_after), at(1));
    }

    #[test]
    fn an_unreadable_summary_ends_in_a_decision() {
        let wait = |hour| {
            let until = UNREADABLE_PAUSE.after(at(hour));
            (Class::Unknown, Next::Unread { until })
        };
        let check = |since: Option<i64>, now: i64, expected: (Class, Next)| {
            let judged = judge_unreadable(at(0), since.map(at), STRICT, at(now));
            assert_eq!(judged, expected, "{since:?} {now}");
        };
        let dead = (Class::Unreadable, Next::Dead);
        check(None, 30, wait(30));
        check(Some(30), 101, wait(101));
        check(Some(30), 102, dead.clone());
        // Beyond the provider's limit of age, one look that failed before is enough.
        check(None, 34 * 24, wait(34 * 24));
        check(Some(34 * 24), 34 * 24 + 1, dead);
    }

    #[test]
    fn only_what_surely_did_not_count_is_retried() {
        for class in Class::ALL {
            let expected = match class {
                Class::Refused | Class::Absent => Some(Retry::Replace),
                Class::Unreadable => Some(Retry::Look),
                _ => None,
            };
            assert_eq!(judge_retry(PushState::Dead, class).ok(), expected, "{class:?}");
            assert!(judge_retry(PushState::Submitted, class).is_err());
            assert!(judge_retry(PushState::Discarded, class).is_err());
        }
        for state in PushState::ALL {
            assert_eq!(judge_discard(state).is_ok(), state == PushState::Dead, "{state:?}");
        }
    }
}
