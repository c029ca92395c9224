//! The verdict on one delivered event, with its reason.
//!
//! Invariant: there is no sixth outcome. The first payload accepted under an event key counts for
//! ever; an identical delivery is a duplicate, one that differs only in its time is a restamped
//! duplicate (SDKs that stamp each retry), any other is a conflict. An unknown key is accepted only
//! inside the accept horizon, else quarantined; a store also quarantines what would be one group
//! too many of a tenant, meter and day.

use super::event::Event;
use super::refusal::Refusal;
use super::timestamp::{MICROS_PER_MINUTE, Timestamp};

/// How far in the future an event may lie, for clocks that run ahead.
pub const FUTURE_MICROS_MAX: i64 = 5 * MICROS_PER_MINUTE;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Counted, durably.
    Accepted,
    /// Counted before; nothing changed.
    Duplicate { restamped: bool },
    /// Another payload was counted under the key; this one is kept in the inbox.
    Conflict { differing: Vec<&'static str> },
    /// Kept and not counted; a person decides.
    Quarantined(Quarantine),
    /// Not kept; the answer says why.
    Rejected(Refusal),
}

/// Why an event was not counted yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quarantine {
    TooOld,
    TooFarAhead,
    /// The tenant's meter has as many groups on that day as it may have.
    TooManyGroups,
}

impl Quarantine {
    pub fn code(self) -> &'static str {
        match self {
            Self::TooOld => "too_old",
            Self::TooFarAhead => "too_far_ahead",
            Self::TooManyGroups => "too_many_groups",
        }
    }

    pub fn from_code(code: &str) -> Option<Self> {
        let all = [Self::TooOld, Self::TooFarAhead, Self::TooManyGroups];
        all.into_iter().find(|reason| reason.code() == code)
    }
}

/// The span of time in which new events are accepted.
#[derive(Debug, Clone, Copy)]
pub struct Acceptance {
    pub now: Timestamp,
    /// The largest number means no limit at all ([`Acceptance::of_admissions`]).
    pub horizon_micros: i64,
}

impl Acceptance {
    /// For events that a person admits: they were received before, and any time is accepted.
    pub fn of_admissions(now: Timestamp) -> Self {
        Self { now, horizon_micros: i64::MAX }
    }

    /// Whether events are admitted by a person, rather than delivered.
    pub fn is_of_admissions(&self) -> bool {
        self.horizon_micros == i64::MAX
    }

    /// Whether an event of this time may be counted.
    pub fn admits(&self, occurred_at: Timestamp) -> Result<(), Quarantine> {
        if self.is_of_admissions() {
            Ok(())
        } else if occurred_at < self.now.saturating_add_micros(-self.horizon_micros) {
            Err(Quarantine::TooOld)
        } else if occurred_at > self.now.saturating_add_micros(FUTURE_MICROS_MAX) {
            Err(Quarantine::TooFarAhead)
        } else {
            Ok(())
        }
    }
}

/// Judges a delivery whose key is not known.
pub fn judge_new(arriving: &Event, acceptance: Acceptance) -> Verdict {
    match acceptance.admits(arriving.occurred_at) {
        Ok(()) => Verdict::Accepted,
        Err(reason) => Verdict::Quarantined(reason),
    }
}

/// Judges a delivery whose key was accepted before with the payload `stored`.
pub fn judge_known(stored: &Event, arriving: &Event) -> Verdict {
    debug_assert!(stored.tenant == arriving.tenant && stored.id == arriving.id);
    let mut differing = Vec::new();
    if stored.meter != arriving.meter {
        differing.push("meter");
    }
    if stored.quantity != arriving.quantity {
        differing.push("quantity");
    }
    if stored.properties != arriving.properties {
        differing.push("properties");
    }
    if stored.subscription != arriving.subscription {
        differing.push("subscription");
    }
    if stored.trial != arriving.trial {
        differing.push("trial");
    }
    if differing.is_empty() {
        return Verdict::Duplicate { restamped: stored.occurred_at != arriving.occurred_at };
    }
    if stored.occurred_at != arriving.occurred_at {
        differing.push("occurred_at");
    }
    Verdict::Conflict { differing }
}

/// How many deliveries ended in each way: for replies and for the conservation counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Counted.
    pub accepted: u64,
    /// Those of `accepted` that were received before, quarantined, and then admitted by a person:
    /// no receipts of this time.
    pub admitted: u64,
    pub duplicates: u64,
    pub conflicts: u64,
    pub quarantined: u64,
    pub rejected: u64,
}

impl Tally {
    pub fn add(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Accepted => self.accepted += 1,
            Verdict::Duplicate { .. } => self.duplicates += 1,
            Verdict::Conflict { .. } => self.conflicts += 1,
            Verdict::Quarantined(_) => self.quarantined += 1,
            Verdict::Rejected(_) => self.rejected += 1,
        }
    }

    /// Adds an event that a person admits and that is counted. Any other verdict on it adds
    /// nothing: it was received before.
    pub fn add_admission(&mut self) {
        self.accepted += 1;
        self.admitted += 1;
    }

    pub fn merge(&mut self, other: &Self) {
        self.accepted += other.accepted;
        self.admitted += other.admitted;
        self.duplicates += other.duplicates;
        self.conflicts += other.conflicts;
        self.quarantined += other.quarantined;
        self.rejected += other.rejected;
    }

    /// Events that were counted when they were received.
    pub fn accepted_at_receipt(&self) -> u64 {
        self.accepted.saturating_sub(self.admitted)
    }

    /// Every delivery received: the left side of the conservation law.
    pub fn received(&self) -> u64 {
        self.accepted_at_receipt()
            + self.duplicates
            + self.conflicts
            + self.quarantined
            + self.rejected
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::ids::{EventId, MeterNo, SubscriptionId, TenantId};
    use crate::rules::properties::Properties;
    use crate::rules::quantity::Quantity;

    fn event() -> Event {
        Event {
            tenant: TenantId::parse("acme").expect("valid"),
            id: EventId::parse("e1").expect("valid"),
            meter: MeterNo(1),
            quantity: Quantity::ONE,
            occurred_at: Timestamp::from_micros(1_000_000),
            properties: Properties::default(),
            subscription: None,
            trial: false,
        }
    }

    #[test]
    fn each_differing_field_is_named() {
        let check = |change: fn(&mut Event), expected: &[&'static str]| {
            let mut other = event();
            change(&mut other);
            let differing = expected.to_vec();
            assert_eq!(judge_known(&event(), &other), Verdict::Conflict { differing });
        };
        check(|e| e.meter = MeterNo(2), &["meter"]);
        check(|e| e.quantity = Quantity::ZERO, &["quantity"]);
        check(|e| e.properties = Properties::from_stored("{\"a\":1}"), &["properties"]);
        check(|e| e.subscription = SubscriptionId::parse("s").ok(), &["subscription"]);
        check(|e| e.trial = true, &["trial"]);
        check(
            |e| {
                e.quantity = Quantity::ZERO;
                e.occurred_at = Timestamp::from_micros(2);
            },
            &["quantity", "occurred_at"],
        );
    }

    #[test]
    fn a_restamped_retry_is_a_duplicate() {
        assert_eq!(judge_known(&event(), &event()), Verdict::Duplicate { restamped: false });
        let later = Event { occurred_at: Timestamp::from_micros(2_000_000), ..event() };
        assert_eq!(judge_known(&event(), &later), Verdict::Duplicate { restamped: true });
    }

    #[test]
    fn the_horizon_is_closed_at_both_ends() {
        let now = Timestamp::from_micros(1_000_000_000_000);
        let acceptance = Acceptance { now, horizon_micros: 1_000_000 };
        let judge = |offset: i64| {
            let occurred_at = now.saturating_add_micros(offset);
            judge_new(&Event { occurred_at, ..event() }, acceptance)
        };
        assert_eq!(judge(0), Verdict::Accepted);
        assert_eq!(judge(-1_000_000), Verdict::Accepted);
        assert_eq!(judge(-1_000_001), Verdict::Quarantined(Quarantine::TooOld));
        assert_eq!(judge(FUTURE_MICROS_MAX), Verdict::Accepted);
        assert_eq!(judge(FUTURE_MICROS_MAX + 1), Verdict::Quarantined(Quarantine::TooFarAhead));
    }

    #[test]
    fn a_person_admits_events_of_any_time() {
        let acceptance = Acceptance::of_admissions(Timestamp::from_micros(0));
        for micros in [i64::MIN, -1, 0, FUTURE_MICROS_MAX + 1, i64::MAX] {
            assert_eq!(acceptance.admits(Timestamp::from_micros(micros)), Ok(()));
        }
    }

    #[test]
    fn an_admission_is_no_receipt() {
        let mut tally = Tally::default();
        tally.add(&Verdict::Quarantined(Quarantine::TooOld));
        tally.add(&Verdict::Accepted);
        tally.add_admission();
        let expected = Tally { accepted: 2, admitted: 1, quarantined: 1, ..Tally::default() };
        assert_eq!((tally, tally.received(), tally.accepted_at_receipt()), (expected, 2, 1));
    }
}
