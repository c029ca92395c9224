//! Rollups: the exact total of one tenant, meter, bucket and group.
//!
//! Invariant: folding is commutative and associative, so a total does not depend on the order of
//! arrival, on how events were batched, or on how often the work was interrupted. Arithmetic is
//! checked: an overflow is an error and never a wrong number.

use super::event::Event;
use super::ids::{EventId, MeterNo, TenantNo};
use super::meter::{Aggregation, DIMENSIONS_MAX, Meter};
use super::properties::{Properties, push_json_string};
use super::quantity::Quantity;
use super::timestamp::Timestamp;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

/// What a total belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RollupKey {
    pub tenant: TenantNo,
    pub meter: MeterNo,
    pub bucket_start: Timestamp,
    pub group: Group,
}

/// An exact total that can be folded with others of its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rollup {
    pub count: u64,
    pub value: Accumulator,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Accumulator {
    Sum(Quantity),
    Count,
    Min(Quantity),
    Max(Quantity),
    Latest { at: Timestamp, id: EventId, quantity: Quantity },
    Unique(BTreeSet<Box<str>>),
}

/// A total outgrew what can be held exactly, or two totals of different kinds met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a total cannot be folded exactly")]
pub struct FoldError;

impl Rollup {
    /// What one event adds, and to which bucket and group.
    pub fn of_event(event: &Event, meter: &Meter) -> (Timestamp, Group, Self) {
        let value = match meter.spec.aggregation {
            Aggregation::Sum => Accumulator::Sum(event.quantity),
            Aggregation::Count => Accumulator::Count,
            Aggregation::Min => Accumulator::Min(event.quantity),
            Aggregation::Max => Accumulator::Max(event.quantity),
            Aggregation::Latest => Accumulator::Latest {
                at: event.occurred_at,
                id: event.id.clone(),
                quantity: event.quantity,
            },
            Aggregation::Unique => {
                let value = unique_value(event, meter);
                Accumulator::Unique(value.into_iter().collect())
            }
        };
        let bucket_start = meter.spec.bucket.start_of(event.occurred_at);
        (bucket_start, Group::of_event(event, meter), Self { count: 1, value })
    }

    /// Adds `other` to this total; on an error this total is unchanged.
    pub fn fold(&mut self, other: &Self) -> Result<(), FoldError> {
        use Accumulator::{Count, Latest, Max, Min, Sum, Unique};
        let count = self.count.checked_add(other.count).ok_or(FoldError)?;
        match (&mut self.value, &other.value) {
            (Sum(mine), Sum(theirs)) => *mine = mine.checked_add(*theirs).ok_or(FoldError)?,
            (Count, Count) => {}
            (Min(mine), Min(theirs)) => *mine = (*mine).min(*theirs),
            (Max(mine), Max(theirs)) => *mine = (*mine).max(*theirs),
            (mine @ Latest { .. }, theirs @ Latest { .. }) => {
                if theirs.latest_rank() > mine.latest_rank() {
                    *mine = theirs.clone();
                }
            }
            (Unique(mine), Unique(theirs)) => {
                // Most values were seen before, and need no copy.
                for value in theirs {
                    if !mine.contains(value) {
                        mine.insert(value.clone());
                    }
                }
            }
            (Sum(_) | Count | Min(_) | Max(_) | Latest { .. } | Unique(_), _) => {
                return Err(FoldError);
            }
        }
        self.count = count;
        Ok(())
    }

    /// The value the meter reports.
    pub fn answer(&self) -> Result<Quantity, FoldError> {
        match &self.value {
            Accumulator::Sum(q) | Accumulator::Min(q) | Accumulator::Max(q) => Ok(*q),
            Accumulator::Latest { quantity, .. } => Ok(*quantity),
            Accumulator::Count => Quantity::from_count(self.count).ok_or(FoldError),
            Accumulator::Unique(values) => {
                let count = u64::try_from(values.len()).map_err(|_| FoldError)?;
                Quantity::from_count(count).ok_or(FoldError)
            }
        }
    }
}

impl Accumulator {
    /// Two events at one instant are ranked by their ids, so that the latest does not depend on
    /// the order of arrival.
    fn latest_rank(&self) -> Option<(Timestamp, &EventId)> {
        match self {
            Self::Latest { at, id, .. } => Some((*at, id)),
            Self::Sum(_) | Self::Count | Self::Min(_) | Self::Max(_) | Self::Unique(_) => None,
        }
    }
}

/// The value a `unique` meter counts for this event; an event without the property counts none.
fn unique_value(event: &Event, meter: &Meter) -> Option<Box<str>> {
    event.properties.value(meter.spec.unique_property.as_ref()?).map(Box::from)
}

/// The stamps and dimension values a total is kept apart by, as canonical JSON:
/// `[subscription, trial, dimension values …]`; empty where there is nothing to keep apart.
///
/// Copies share their text: a query copies the totals in memory while commits wait for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Group(Option<Arc<str>>);

/// The parts of a [`Group`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupParts {
    pub subscription: Option<String>,
    pub trial: bool,
    pub dimensions: Vec<Option<String>>,
}

/// Groups that a thread has lately made. Most events are of a few groups: those that share their
/// text need no memory of their own, and comparing them finds it in the processor's cache.
#[derive(Default)]
struct RecentGroups {
    text: String,
    groups: HashSet<Arc<str>>,
}

/// At about a hundred bytes each, and never more than 5 KiB.
const RECENT_MAX: usize = 1_024;

thread_local! {
    static RECENT: RefCell<RecentGroups> = RefCell::default();
}

/// How the group of an event without stamps begins.
const UNSTAMPED: &str = "[null,false";

impl Group {
    pub fn of_event(event: &Event, meter: &Meter) -> Self {
        let unstamped = event.subscription.is_none() && !event.trial;
        if unstamped && meter.spec.dimensions.is_empty() {
            return Self::default();
        }
        let remembered = event.properties.remembered_group(event.meter);
        match (remembered, unstamped) {
            (Some(group), true) => group.clone(),
            (Some(group), false) => group.stamped(event),
            (None, true) => Self::of_properties(&event.properties, meter),
            (None, false) => Self::of_properties(&event.properties, meter).stamped(event),
        }
    }

    /// The group of an event that has these properties and no stamps. It is not empty, also where
    /// the meter has no dimensions.
    pub fn of_properties(properties: &Properties, meter: &Meter) -> Self {
        let names = &meter.spec.dimensions;
        let values = properties.raw_values::<DIMENSIONS_MAX>(names);
        RECENT.with_borrow_mut(|RecentGroups { text, groups }| {
            text.clear();
            text.push_str(UNSTAMPED);
            for (value, _) in values.iter().zip(names) {
                text.push(',');
                match value {
                    None => text.push_str("null"),
                    Some(string) if string.starts_with('"') => text.push_str(string),
                    // A number or a boolean is the same value as the string of its text.
                    Some(other) => push_json_string(text, other),
                }
            }
            text.push(']');
            if let Some(known) = groups.get(text.as_str()) {
                return Self(Some(Arc::clone(known)));
            }
            if groups.len() >= RECENT_MAX {
                groups.clear();
            }
            let group = Self::from_stored(text);
            groups.extend(group.0.clone());
            group
        })
    }

    /// The group of the same values with the event's stamps.
    fn stamped(&self, event: &Event) -> Self {
        let values = self.as_text().strip_prefix(UNSTAMPED).expect("it is written so");
        let mut text = String::with_capacity(values.len() + 64);
        text.push('[');
        match &event.subscription {
            None => text.push_str("null"),
            Some(subscription) => push_json_string(&mut text, subscription.as_str()),
        }
        text.push_str(if event.trial { ",true" } else { ",false" });
        text.push_str(values);
        Self::from_stored(&text)
    }

    pub fn from_stored(text: &str) -> Self {
        Self((!text.is_empty()).then(|| text.into()))
    }

    pub fn as_text(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    /// Takes the group apart; `None` if the text is not one that this type wrote.
    pub fn parts(&self) -> Option<GroupParts> {
        let Some(text) = &self.0 else { return Some(GroupParts::default()) };
        let (subscription, trial, dimensions) = {
            let mut values: Vec<serde_json::Value> = serde_json::from_str(text).ok()?;
            let dimensions = values.split_off(values.len().min(2));
            let trial = values.pop()?.as_bool()?;
            (values.pop()?, trial, dimensions)
        };
        let text = |value: serde_json::Value| value.as_str().map(str::to_owned);
        Some(GroupParts {
            subscription: text(subscription),
            trial,
            dimensions: dimensions.into_iter().map(text).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::ids::{MeterSlug, SubscriptionId, TenantId};
    use crate::rules::meter::MeterSpec;
    use crate::rules::properties::Properties;
    use proptest::prelude::*;

    fn meter(spec: &str) -> Meter {
        let spec: MeterSpec = serde_json::from_str(spec).expect("well-formed");
        Meter::declare(MeterSlug::parse("m").expect("valid"), spec).expect("valid")
    }

    fn event(id: &str, quantity: i128, minute: i64, properties: &str) -> Event {
        Event {
            tenant: TenantId::parse("acme").expect("valid"),
            id: EventId::parse(id).expect("valid"),
            meter: MeterNo(1),
            quantity: Quantity::from_units(quantity),
            occurred_at: Timestamp::from_micros(minute * 60_000_000),
            properties: Properties::parse(properties).expect("valid"),
            subscription: None,
            trial: false,
        }
    }

    fn fold_all(meter: &Meter, events: &[Event]) -> Rollup {
        let mut rollups = events.iter().map(|event| Rollup::of_event(event, meter).2);
        let mut total = rollups.next().expect("at least one event");
        rollups.for_each(|rollup| total.fold(&rollup).expect("fits"));
        total
    }

    #[test]
    fn groups_take_apart_what_they_put_together() {
        let meter = meter(r#"{"aggregation":"sum","dimensions":["region","tier"]}"#);
        let mut event = event("a", 1, 0, r#"{"region":"e\"u","other":1}"#);
        event.subscription = Some(SubscriptionId::parse("sub_1").expect("valid"));
        event.trial = true;
        let parts = Group::of_event(&event, &meter).parts().expect("well-formed");
        assert_eq!(parts.subscription.as_deref(), Some("sub_1"));
        assert!(parts.trial);
        assert_eq!(parts.dimensions, [Some("e\"u".to_owned()), None]);
        assert_eq!(Group::default().parts(), Some(GroupParts::default()));
        assert_eq!(Group::from_stored("nonsense").parts(), None);
    }

    /// The encoding that is stored, made by serde_json.
    fn encode_by_serde(event: &Event, meter: &Meter) -> String {
        if event.subscription.is_none() && !event.trial && meter.spec.dimensions.is_empty() {
            return String::new();
        }
        let subscription = event.subscription.as_ref().map(|s| s.as_str());
        let mut parts = vec![serde_json::Value::from(subscription), event.trial.into()];
        let values: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(event.properties.as_json()).expect("JSON");
        parts.extend(meter.spec.dimensions.iter().map(|name| match values.get(name) {
            None => serde_json::Value::Null,
            Some(serde_json::Value::String(text)) => text.as_str().into(),
            Some(other) => other.to_string().into(),
        }));
        serde_json::Value::from(parts).to_string()
    }

    #[test]
    fn overflow_is_an_error_and_changes_nothing() {
        let mut total =
            Rollup { count: 1, value: Accumulator::Sum(Quantity::from_units(i128::MAX)) };
        let before = total.clone();
        let one = Rollup { count: 1, value: Accumulator::Sum(Quantity::from_units(1)) };
        assert_eq!(total.fold(&one), Err(FoldError));
        assert_eq!(total, before);
        let other_kind = Rollup { count: 1, value: Accumulator::Count };
        assert_eq!(total.fold(&other_kind), Err(FoldError));
    }

    #[test]
    fn an_event_without_the_property_adds_no_unique_value() {
        let meter = meter(r#"{"aggregation":"unique","unique_property":"user"}"#);
        let events = [
            event("a", 1, 0, r#"{"user":"x"}"#),
            event("b", 1, 1, r#"{"user":"x"}"#),
            event("c", 1, 2, r#"{"user":"y"}"#),
            event("d", 1, 3, "{}"),
        ];
        let total = fold_all(&meter, &events);
        assert_eq!((total.count, total.answer()), (4, Ok(Quantity::from_count(2).expect("fits"))));
    }

    /// Stamps, and texts with everything that JSON escapes.
    fn any_stamps() -> impl Strategy<Value = (Option<String>, bool)> {
        (proptest::option::of("[a-z\"\\\\é]{1,9}"), any::<bool>())
    }

    proptest! {
        #[test]
        fn groups_are_encoded_as_serde_does(
            (subscription, trial) in any_stamps(),
            texts in proptest::collection::btree_map("[a-d\"\\\\]{1,2}", "\\PC{0,9}|[\"\\\\\n\t\u{7f}]{0,5}", 0..5),
            number in any::<u32>(),
            dimensions in proptest::collection::btree_set("[a-d\"\\\\n]{1,2}", 0..=DIMENSIONS_MAX),
        ) {
            let mut values: serde_json::Map<String, serde_json::Value> =
                texts.into_iter().map(|(name, text)| (name, text.into())).collect();
            values.insert("n".to_owned(), number.into());
            values.insert("b".to_owned(), trial.into());
            let spec = serde_json::json!({"aggregation": "sum", "dimensions": dimensions});
            let meter = meter(&spec.to_string());
            let mut event = event("a", 1, 0, &serde_json::Value::from(values).to_string());
            event.subscription = subscription.map(|s| SubscriptionId::parse(&s).expect("valid"));
            event.trial = trial;
            let expected = encode_by_serde(&event, &meter);
            let group = Group::of_event(&event, &meter);
            prop_assert_eq!(group.as_text(), &expected);
            let remembered = Group::of_properties(&event.properties, &meter);
            event.properties.remember_group(event.meter, remembered);
            let group = Group::of_event(&event, &meter);
            prop_assert_eq!(group.as_text(), &expected);
        }

        #[test]
        fn order_and_batching_do_not_matter(
            seed in proptest::collection::vec((any::<i32>(), 0i64..5, 0u8..4), 1..12),
            cut in any::<prop::sample::Index>(),
            shuffle in any::<prop::sample::Index>(),
        ) {
            for aggregation in ["sum", "count", "min", "max", "latest", "unique"] {
                let property = if aggregation == "unique" { r#","unique_property":"u""# } else { "" };
                let meter = meter(&format!(r#"{{"aggregation":"{aggregation}"{property}}}"#));
                let events: Vec<Event> = seed
                    .iter()
                    .enumerate()
                    .map(|(n, (q, minute, user))| {
                        event(&n.to_string(), i128::from(*q), *minute, &format!(r#"{{"u":{user}}}"#))
                    })
                    .collect();
                let whole = fold_all(&meter, &events);
                let mut turned = events.clone();
                turned.rotate_left(shuffle.index(events.len()));
                turned.reverse();
                prop_assert_eq!(&fold_all(&meter, &turned), &whole);
                let at = cut.index(events.len());
                if at > 0 {
                    let mut left = fold_all(&meter, &events[..at]);
                    left.fold(&fold_all(&meter, &events[at..])).expect("fits");
                    prop_assert_eq!(left, whole);
                }
            }
        }
    }
}
