//! Subscriptions at the provider, and the timelines that they make.
//!
//! A timeline is a set of states, each with the moment from which it held. A set has no order of
//! arrival and holds nothing twice, so webhooks in any order and any number make the same timeline.
//!
//! Invariant: of states with the same moment only the last counts: those that were read from the
//! provider come after those from events, and ends after changes. Nothing is said of the time
//! before the first state: it is not known.

use super::ids::{CustomerId, SubscriptionId};
use super::named::named_enum;
use super::timestamp::Timestamp;
use super::window::Window;
use serde::{Deserialize, Serialize};

/// A subscription as the provider showed it at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscription {
    pub customer: CustomerId,
    /// The provider's word: trialing, active, past_due, canceled and others.
    pub status: String,
    /// The prices it is made of, in the order of their ids: the plan.
    pub prices: Vec<String>,
    pub period: Option<Window>,
    pub trial: Option<Window>,
    pub cancel_at_period_end: bool,
    pub ended_at: Option<Timestamp>,
}

named_enum! {
    /// How a state came to be known; the later variant comes later at the same moment.
    pub enum Origin {
        Created = "created",
        Updated = "updated",
        Ended = "ended",
        /// It was read from the provider at that moment.
        Read = "read",
    }
}

/// A state of a subscription and the moment from which it held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimelineEntry {
    pub subscription: SubscriptionId,
    pub at: Timestamp,
    pub origin: Origin,
    /// The version of the reading; 0 for entries from events.
    pub version: u64,
    pub state: Subscription,
}

/// A time during which a subscription was of one plan, status and trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch {
    pub subscription: SubscriptionId,
    pub from: Timestamp,
    /// None: until now.
    pub until: Option<Timestamp>,
    pub status: String,
    pub prices: Vec<String>,
    pub trial: Option<Window>,
}

impl Stretch {
    fn like(&self, state: &Subscription) -> bool {
        (&self.status, &self.prices, &self.trial) == (&state.status, &state.prices, &state.trial)
    }
}

/// What a subscription was at a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    pub subscription: SubscriptionId,
    pub status: String,
    pub prices: Vec<String>,
    pub trial: bool,
}

/// Entries in the order of subscriptions, then of time; of those of one moment the last alone.
pub fn in_order(entries: &[TimelineEntry]) -> Vec<&TimelineEntry> {
    let mut sorted: Vec<&TimelineEntry> = entries.iter().collect();
    sorted.sort_by(|a, b| {
        let key = |e: &TimelineEntry| (e.subscription.clone(), e.at, e.origin, e.version);
        // States that nothing tells apart are put in an order that does not depend on arrival.
        key(a).cmp(&key(b)).then_with(|| a.state.text().cmp(&b.state.text()))
    });
    let moment = |entry: &TimelineEntry| (entry.subscription.clone(), entry.at);
    let last = |place: usize, entry: &TimelineEntry| {
        sorted.get(place + 1).is_none_or(|next| moment(next) != moment(entry))
    };
    let chosen = sorted.iter().enumerate().filter(|(place, entry)| last(*place, entry));
    chosen.map(|(_, entry)| *entry).collect()
}

/// The stretches of a tenant's subscriptions, in the order of subscriptions, then of time.
pub fn unroll(entries: &[TimelineEntry]) -> Vec<Stretch> {
    let entries = in_order(entries);
    let mut stretches: Vec<Stretch> = Vec::new();
    for (place, entry) in entries.iter().enumerate() {
        let next = entries.get(place + 1).filter(|next| next.subscription == entry.subscription);
        let until = next.map(|next| next.at);
        match stretches.last_mut() {
            Some(last) if last.subscription == entry.subscription && last.like(&entry.state) => {
                last.until = until;
            }
            Some(_) | None => stretches.push(Stretch {
                subscription: entry.subscription.clone(),
                from: entry.at,
                until,
                status: entry.state.status.clone(),
                prices: entry.state.prices.clone(),
                trial: entry.state.trial,
            }),
        }
    }
    stretches
}

/// The subscriptions that were in force at a moment; those that had ended are left out.
pub fn stamps_at(stretches: &[Stretch], at: Timestamp) -> Vec<Stamp> {
    let holds = |stretch: &&Stretch| {
        stretch.from <= at
            && stretch.until.is_none_or(|until| at < until)
            && !matches!(stretch.status.as_str(), "canceled" | "incomplete_expired")
    };
    let stamp = |stretch: &Stretch| Stamp {
        subscription: stretch.subscription.clone(),
        status: stretch.status.clone(),
        prices: stretch.prices.clone(),
        trial: stretch.trial.is_some_and(|trial| trial.contains(at)),
    };
    stretches.iter().filter(holds).map(stamp).collect()
}

impl Subscription {
    /// Its one spelling.
    pub fn text(&self) -> String {
        serde_json::to_string(self).expect("a subscription is valid JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::samples::minute as at;
    use proptest::prelude::*;

    fn entry(minute: i64, origin: Origin, status: &str, price: &str) -> TimelineEntry {
        let state = Subscription {
            customer: CustomerId::parse("cus_1").expect("valid"),
            status: status.into(),
            prices: vec![price.into()],
            period: None,
            trial: Some(Window { start: at(0), end: at(10) }),
            cancel_at_period_end: false,
            ended_at: None,
        };
        let subscription = SubscriptionId::parse("sub_1").expect("valid");
        TimelineEntry { subscription, at: at(minute), origin, version: 0, state }
    }

    fn life() -> Vec<TimelineEntry> {
        vec![
            entry(0, Origin::Created, "trialing", "small"),
            entry(10, Origin::Updated, "active", "small"),
            entry(20, Origin::Updated, "active", "large"),
            entry(20, Origin::Read, "active", "large"),
            entry(25, Origin::Read, "active", "large"),
            entry(30, Origin::Ended, "canceled", "large"),
        ]
    }

    #[test]
    fn plan_and_trial_at_a_moment() {
        let stretches = unroll(&life());
        assert_eq!(stretches.len(), 4);
        let check = |minute: i64, expected: Option<(&str, &str, bool)>| {
            let stamps = stamps_at(&stretches, at(minute));
            let found = stamps.first().map(|s| (s.status.as_str(), s.prices[0].as_str(), s.trial));
            assert_eq!(found, expected, "minute {minute}");
        };
        check(-1, None);
        check(0, Some(("trialing", "small", true)));
        check(9, Some(("trialing", "small", true)));
        check(10, Some(("active", "small", false)));
        check(19, Some(("active", "small", false)));
        check(20, Some(("active", "large", false)));
        check(29, Some(("active", "large", false)));
        check(30, None);
    }

    #[test]
    fn a_reading_decides_where_events_of_one_second_do_not() {
        let tied = vec![
            entry(5, Origin::Updated, "active", "b"),
            entry(5, Origin::Updated, "active", "a"),
            entry(5, Origin::Read, "active", "a"),
        ];
        let stretches = unroll(&tied);
        assert_eq!(stretches.len(), 1);
        assert_eq!(stretches[0].prices, ["a"]);
    }

    proptest! {
        #[test]
        fn order_and_number_of_arrivals_do_not_matter(
            arrivals in Just((0..6usize).flat_map(|n| [n, n]).collect::<Vec<_>>()).prop_shuffle()
        ) {
            let known = life();
            let mut arrived: Vec<TimelineEntry> = Vec::new();
            for place in arrivals {
                if !arrived.contains(&known[place]) {
                    arrived.push(known[place].clone());
                }
            }
            prop_assert_eq!(unroll(&arrived), unroll(&known));
        }
    }
}
