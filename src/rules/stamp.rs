//! Where in its window a push is stamped, so that the provider charges it by the subscription that
//! was in force for its usage.
//!
//! The provider bills what is stamped within a subscription and drops the rest. And a change of
//! prices takes effect some minutes after the boundary from which on usage is agreed to be charged
//! by the new ones.
//!
//! Invariant: an event's stamp lies strictly inside its window. Where a subscription is known to
//! have been in force for the usage and the window and it overlap, the stamp lies inside both.
//! Where none is known, the stamp is what it would be without any. Windows that are pushed as a
//! whole are divided and stamped by `attribution`.

use super::ids::SubscriptionId;
use super::push::stamp_inside;
use super::subscription::{Origin, TimelineEntry};
use super::timestamp::{MICROS_PER_SECOND, Timestamp};
use super::window::Window;
use std::collections::BTreeSet;

/// What our own record says of a subscription and its prices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreed {
    pub subscription: SubscriptionId,
    pub began_at: Timestamp,
    /// From when on the provider charges by it, if that is known to be later.
    pub charged_from: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
}

/// A time for whose usage a subscription was in force, and where the provider charges by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    pub subscription: SubscriptionId,
    pub began_at: Timestamp,
    /// None while it is open.
    pub ended_at: Option<Timestamp>,
    pub charged_from: Timestamp,
}

impl Term {
    pub fn holds_at(&self, at: Timestamp) -> bool {
        self.began_at <= at && self.ended_at.is_none_or(|end| at < end)
    }
}

/// The nearest whole second to `at` that lies strictly inside all of the terms, where there is
/// one.
pub fn clamp<'t>(at: Timestamp, terms: impl Iterator<Item = &'t Term>) -> Timestamp {
    let (mut first, mut last) = (at.micros(), i64::MAX);
    for term in terms {
        first = first.max(first_charged(term.charged_from).micros());
        let end = term.ended_at.map(|end| (end.micros() - 1).div_euclid(MICROS_PER_SECOND));
        last = last.min(end.map_or(i64::MAX, |second| second * MICROS_PER_SECOND));
    }
    Timestamp::from_micros(first.min(last))
}

/// The first stamp that surely falls into what is charged from then on.
pub fn first_charged(charged_from: Timestamp) -> Timestamp {
    let second = charged_from.micros().div_euclid(MICROS_PER_SECOND);
    Timestamp::from_micros((second + 1) * MICROS_PER_SECOND)
}

/// The stamp of an event: inside the subscriptions in force when it occurred.
pub fn stamp_event(window: Window, occurred_at: Timestamp, terms: &[Term]) -> Timestamp {
    let moment = stamp_inside(window, occurred_at);
    let in_force = terms.iter().filter(|term| term.holds_at(occurred_at));
    stamp_inside(window, clamp(moment, in_force))
}

/// The terms of a tenant: what was agreed, and the provider's subscriptions of which nothing was.
pub fn find_terms(agreed: &[Agreed], timeline: &[TimelineEntry]) -> Vec<Term> {
    let ended = |id: &SubscriptionId| {
        let own = timeline.iter().filter(|entry| entry.subscription == *id);
        own.filter_map(|entry| entry.state.ended_at).min()
    };
    let mut terms: Vec<Term> = agreed
        .iter()
        .map(|one| Term {
            subscription: one.subscription.clone(),
            began_at: one.began_at,
            ended_at: one.ended_at.or_else(|| ended(&one.subscription)),
            charged_from: one.charged_from.unwrap_or(one.began_at),
        })
        .collect();
    let seen: BTreeSet<&SubscriptionId> = timeline.iter().map(|one| &one.subscription).collect();
    for id in seen {
        let subscription = id.clone();
        let own = || timeline.iter().filter(|entry| entry.subscription == *id);
        let agreed_from = agreed.iter().filter(|one| one.subscription == *id);
        if let Some(agreed_from) = agreed_from.map(|one| one.began_at).min() {
            // Before anything was agreed it was in force as far as it is known.
            let seen_from = own().map(|entry| entry.at).min().filter(|at| *at < agreed_from);
            let until = ended(id).map_or(agreed_from, |end| end.min(agreed_from));
            terms.extend(seen_from.map(|began_at| Term {
                subscription,
                began_at,
                ended_at: Some(until),
                charged_from: began_at,
            }));
            continue;
        }
        // One that was only seen later has begun some time before.
        let created = own().filter(|entry| entry.origin == Origin::Created);
        let began_at = created.map(|entry| entry.at).min();
        let began_at = began_at.unwrap_or(Timestamp::from_micros(i64::MIN));
        let ended_at = ended(id);
        terms.push(Term { subscription, began_at, ended_at, charged_from: began_at });
    }
    terms.sort_by(|a, b| {
        let key = |term: &Term| (term.began_at, term.ended_at, term.subscription.clone());
        key(a).cmp(&key(b))
    });
    terms
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::ids::CustomerId;
    use crate::rules::subscription::Subscription;
    use proptest::prelude::*;

    fn at(text: &str) -> Timestamp {
        Timestamp::parse(&format!("2026-11-15T{text}Z")).expect("valid")
    }

    fn hour() -> Window {
        Window { start: at("12:00:00"), end: at("13:00:00") }
    }

    fn term(began: &str, ended: Option<&str>) -> Term {
        let subscription = SubscriptionId::parse("sub_1").expect("valid");
        Term { subscription, began_at: at(began), ended_at: ended.map(at), charged_from: at(began) }
    }

    #[test]
    fn event_is_stamped_where_its_price_is_charged() {
        let changed = Term { charged_from: at("12:16:05.2"), ..term("12:00:00", None) };
        let terms = [term("09:00:00", Some("12:00:00")), changed.clone()];
        let check = |occurred: &str, expected: &str| {
            assert_eq!(stamp_event(hour(), at(occurred), &terms), at(expected), "{occurred}");
        };
        check("12:00:03", "12:16:06");
        check("12:16:05", "12:16:06");
        check("12:20:00", "12:20:00");
        // Another subscription beside it.
        let both = [term("09:00:00", None), changed];
        assert_eq!(stamp_event(hour(), at("12:00:03"), &both), at("12:16:06"));
        assert_eq!(stamp_event(hour(), at("12:10:00"), &[]), at("12:10:00"));
        // Used before anything was agreed.
        assert_eq!(stamp_event(hour(), at("12:10:00"), &[term("12:40:00", None)]), at("12:10:00"));
        let last = [term("09:00:00", Some("12:20:00"))];
        assert_eq!(stamp_event(hour(), at("12:19:59.9"), &last), at("12:19:59"));
    }

    fn entry(id: &str, when: &str, origin: Origin, ended: Option<&str>) -> TimelineEntry {
        let state = Subscription {
            customer: CustomerId::parse("cus_1").expect("valid"),
            status: "active".into(),
            prices: Vec::new(),
            period: None,
            trial: None,
            cancel_at_period_end: false,
            ended_at: ended.map(at),
        };
        let subscription = SubscriptionId::parse(id).expect("valid");
        TimelineEntry { subscription, at: at(when), origin, version: 0, state }
    }

    #[test]
    fn terms_come_from_records_and_else_from_the_provider() {
        let subscription = SubscriptionId::parse("sub_1").expect("valid");
        let (charged_from, ended_at) = (Some(at("12:16:00")), None);
        let agreed = [Agreed { subscription, began_at: at("12:00:00"), charged_from, ended_at }];
        let timeline = [
            entry("sub_1", "09:00:00", Origin::Created, None),
            entry("sub_1", "14:00:00", Origin::Ended, Some("14:00:00")),
            entry("sub_2", "10:00:00", Origin::Created, None),
            entry("sub_2", "11:00:00", Origin::Updated, None),
            entry("sub_3", "10:30:00", Origin::Read, None),
        ];
        let id = |id: &str| SubscriptionId::parse(id).expect("valid");
        let first = Term { charged_from: at("12:16:00"), ..term("12:00:00", Some("14:00:00")) };
        // It was made at the provider, and a plan was agreed to later.
        let before = term("09:00:00", Some("12:00:00"));
        let second = Term { subscription: id("sub_2"), ..term("10:00:00", None) };
        let long_ago = Timestamp::from_micros(i64::MIN);
        let seen = Term { began_at: long_ago, charged_from: long_ago, ..second.clone() };
        let seen = Term { subscription: id("sub_3"), ..seen };
        assert_eq!(find_terms(&agreed, &timeline), [seen, before, second, first]);
    }

    proptest! {
        #[test]
        fn stamps_lie_inside_their_window(
            borders in proptest::collection::vec((0i64..10_800, 1i64..7_200, 0i64..1_800), 0..4),
            occurred in 3_600i64..7_200
        ) {
            let base = at("11:00:00");
            let after = |seconds: i64| base.saturating_add_micros(seconds * MICROS_PER_SECOND);
            let terms: Vec<Term> = borders.into_iter().map(|(start, length, late)| Term {
                subscription: SubscriptionId::parse("sub_1").expect("valid"),
                began_at: after(start),
                ended_at: Some(after(start + length)),
                charged_from: after(start + late),
            }).collect();
            let event = stamp_event(hour(), after(occurred), &terms);
            prop_assert!(hour().start < event && event < hour().end);
        }
    }
}
