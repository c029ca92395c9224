//! Meters: what is counted and how. A meter's definition decides what every stored total means,
//! so it is fixed once declared; only its description, the life of its windows and whether it is
//! archived may change, and billing may be added once.
//!
//! Invariant: a `Meter` that exists can hold each of its totals exactly (see `quantity`). Billing
//! that exists never changes: what was pushed under one mode or grain cannot be continued under
//! another.

use super::billing::Billing;
use super::given::Given;
use super::ids::{MeterNo, MeterSlug};
use super::quantity::{INTEGER_DIGITS_MAX, Quantity, QuantityRange, SCALE};
use super::refusal::Refusal;
use super::span::Span;
use super::timestamp::Timestamp;
use super::window::Bucket;
use super::window_life::WindowLife;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;

/// Most dimensions of one meter: each multiplies the number of stored totals.
pub const DIMENSIONS_MAX: usize = 8;

/// How a meter turns the events of a window into one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aggregation {
    /// The sum of the quantities.
    Sum,
    /// The number of events.
    Count,
    /// The smallest quantity.
    Min,
    /// The largest quantity.
    Max,
    /// The quantity of the latest event by occurred_at; ties go to the larger event id.
    Latest,
    /// The exact number of different values of `unique_property`.
    Unique,
}

/// A meter as it is declared, by the API and in the configuration file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "MeterDraft")]
pub struct MeterSpec {
    pub aggregation: Aggregation,
    /// Most digits after the decimal point. Left out beside a precision, as many of 6 as fit.
    pub scale: u32,
    /// Most digits in all, as in SQL's NUMERIC(precision, scale); 12 more than scale if left out.
    pub precision: u32,
    /// Whether quantities may be negative.
    pub signed: bool,
    /// The grain at which totals are kept; windows are composed of whole buckets.
    pub bucket: Bucket,
    /// Properties by which usage can be grouped.
    pub dimensions: Vec<String>,
    /// The property whose different values a `unique` meter counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique_property: Option<String>,
    /// How long after its end a window stays open; then it is cut. May change later.
    pub settle_after: Span,
    /// How long after its end late events are expected. May change later.
    pub late_until: Span,
    /// How often windows are cut. May change later.
    pub cut_every: Span,
    /// The largest difference between ledger and provider that is let pass, as a decimal number.
    /// May change later.
    #[serde(skip_serializing_if = "is_zero")]
    pub drift_tolerance: Quantity,
    /// How totals reach the billing provider; without it they do not. May be added once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub billing: Option<Billing>,
    /// For people. May change later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Whether events are refused. What was counted stays, and is billed. May change later.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub archived: bool,
}

/// A declaration as it is sent: what is left out stays as it is, null brings the default back.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MeterDraft {
    aggregation: Option<Aggregation>,
    scale: Given<u32>,
    precision: Given<u32>,
    signed: Given<bool>,
    bucket: Given<Bucket>,
    dimensions: Given<Vec<String>>,
    unique_property: Given<String>,
    settle_after: Given<Span>,
    late_until: Given<Span>,
    cut_every: Given<Span>,
    drift_tolerance: Given<Quantity>,
    billing: Given<Billing>,
    description: Given<String>,
    archived: Given<bool>,
}

impl MeterDraft {
    /// The meter that is declared, given the existing one of the slug.
    pub fn onto(self, standing: Option<&MeterSpec>) -> Result<MeterSpec, Refusal> {
        let missing = || Refusal::new("invalid_body", "missing field `aggregation`; see /docs");
        let aggregation = self.aggregation.or(standing.map(|meter| meter.aggregation));
        let old = standing;
        // Where one of the two is given and differs, the other fits it: the meter is another one,
        // and is refused as such, not for digits that nobody asked for.
        let kept = |given: &Given<u32>, standing: u32| match given {
            Given::Value(value) => *value == standing,
            Given::LeftOut | Given::Null => true,
        };
        let digits =
            old.filter(|m| kept(&self.scale, m.scale) && kept(&self.precision, m.precision));
        let precision = match (&self.precision, digits) {
            (Given::Value(precision), _) => Some(*precision),
            (Given::LeftOut, Some(standing)) => Some(standing.precision),
            (Given::LeftOut | Given::Null, _) => None,
        };
        // Another aggregation makes another meter, which is refused as such.
        let counts_alike = old.filter(|standing| Some(standing.aggregation) == aggregation);
        let scale = self.scale.or_else(digits.map(|m| m.scale), || scale_beside(precision));
        Ok(MeterSpec {
            aggregation: aggregation.ok_or_else(missing)?,
            scale,
            precision: precision.unwrap_or(scale.saturating_add(WHOLE_DIGITS)),
            signed: self.signed.or_else(old.map(|m| m.signed), || false),
            bucket: self.bucket.or_else(old.map(|m| m.bucket), Bucket::default),
            dimensions: self.dimensions.or_else(old.map(|m| m.dimensions.clone()), Vec::new),
            unique_property: self
                .unique_property
                .or_none(counts_alike.and_then(|m| m.unique_property.clone())),
            settle_after: self
                .settle_after
                .or_else(old.map(|m| m.settle_after), default_settle_after),
            late_until: self.late_until.or_else(old.map(|m| m.late_until), default_late_until),
            cut_every: self.cut_every.or_else(old.map(|m| m.cut_every), default_cut_every),
            drift_tolerance: self
                .drift_tolerance
                .or_else(old.map(|m| m.drift_tolerance), || Quantity::ZERO),
            // Billing that exists never ends; see `redeclare`.
            billing: self.billing.or_none(old.and_then(|m| m.billing.clone())),
            description: self.description.or_none(old.and_then(|m| m.description.clone())),
            archived: self.archived.or_else(old.map(|m| m.archived), || false),
        })
    }
}

impl TryFrom<MeterDraft> for MeterSpec {
    type Error = Refusal;

    fn try_from(draft: MeterDraft) -> Result<Self, Refusal> {
        draft.onto(None)
    }
}

/// Digits before the point where no precision is given.
const WHOLE_DIGITS: u32 = 12;

/// The decimal places of a meter whose precision alone is given, or neither.
fn scale_beside(precision: Option<u32>) -> u32 {
    match precision {
        None => default_scale(),
        Some(precision) if precision <= default_scale() => 0,
        Some(precision) => default_scale().max(precision.saturating_sub(INTEGER_DIGITS_MAX)),
    }
}

fn default_scale() -> u32 {
    6
}

fn default_settle_after() -> Span {
    Span::from_minutes(60)
}

fn default_late_until() -> Span {
    Span::from_minutes(4 * 60)
}

fn default_cut_every() -> Span {
    Span::from_minutes(10)
}

fn is_zero(quantity: &Quantity) -> bool {
    *quantity == Quantity::ZERO
}

/// A declared meter whose definition was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meter {
    pub slug: MeterSlug,
    pub spec: MeterSpec,
}

impl Meter {
    pub fn declare(slug: MeterSlug, spec: MeterSpec) -> Result<Self, Refusal> {
        let refuse = |detail: String| Err(Refusal::new("invalid_meter_definition", detail));
        if spec.scale > SCALE {
            return refuse(format!("scale is at most {SCALE}"));
        }
        let whole_digits = spec.precision.checked_sub(spec.scale);
        if !whole_digits.is_some_and(|digits| (1..=INTEGER_DIGITS_MAX).contains(&digits)) {
            return refuse(format!(
                "precision minus scale, the digits before the point, must be 1 to \
                 {INTEGER_DIGITS_MAX}; leave one of the two out to have it fit the other"
            ));
        }
        if spec.dimensions.len() > DIMENSIONS_MAX {
            return refuse(format!("a meter has at most {DIMENSIONS_MAX} dimensions"));
        }
        for (place, name) in spec.dimensions.iter().enumerate() {
            super::properties::check_name(name)?;
            if spec.dimensions[..place].contains(name) {
                return refuse(format!("dimension {name} is listed twice"));
            }
            if name == "subscription" || name == "trial" {
                return refuse(format!("{name} is always available to group by; do not list it"));
            }
        }
        match (spec.aggregation == Aggregation::Unique, &spec.unique_property) {
            (true, None) => return refuse("a unique meter needs unique_property".into()),
            (false, Some(_)) => return refuse("only a unique meter has unique_property".into()),
            (true, Some(name)) => super::properties::check_name(name)?,
            (false, None) => {}
        }
        if let Some(description) = &spec.description
            && (description.len() > 500 || description.contains('\0'))
        {
            return refuse("description is at most 500 bytes, without NULs".into());
        }
        if spec.late_until < spec.settle_after {
            return refuse("late_until is at least settle_after".into());
        }
        if spec.cut_every < Span::from_seconds(1) {
            return refuse("cut_every is at least 1s".into());
        }
        if spec.drift_tolerance < Quantity::ZERO {
            return refuse("drift_tolerance is not negative".into());
        }
        if let Some(billing) = &spec.billing {
            billing.check(spec.aggregation, spec.scale)?;
        }
        Ok(Self { slug, spec })
    }

    /// Until when a window of this meter changes, and when it is cut.
    pub fn window_life(&self) -> WindowLife {
        WindowLife { settle_after: self.spec.settle_after, late_until: self.spec.late_until }
    }

    pub fn quantity_range(&self) -> QuantityRange {
        let MeterSpec { precision, scale, signed, .. } = self.spec;
        QuantityRange { precision, scale, signed }
    }

    /// Whether an event may leave its quantity out: it is then 1.
    pub fn quantity_optional(&self) -> bool {
        matches!(self.spec.aggregation, Aggregation::Count | Aggregation::Unique)
    }

    /// The provider's name of the meter.
    pub fn event_name(&self) -> &str {
        let billing = self.spec.billing.as_ref();
        billing.map_or(self.slug.as_str(), |billing| billing.event_name(&self.slug))
    }

    /// Decimal places its totals can have.
    pub fn usage_scale(&self) -> u32 {
        match self.spec.aggregation {
            Aggregation::Count | Aggregation::Unique => 0,
            Aggregation::Sum | Aggregation::Min | Aggregation::Max | Aggregation::Latest => {
                self.spec.scale
            }
        }
    }

    /// The decimal places the provider gets.
    pub fn billing_scale(&self) -> u32 {
        let billing = self.spec.billing.as_ref();
        billing.and_then(|billing| billing.scale).unwrap_or(self.spec.scale)
    }

    /// What a declaration makes of this meter, or none if that would change what its totals or
    /// its pushes mean. Usage is billed from `at` on where the declaration does not say.
    pub fn redeclare(&self, declared: &Meter, at: Timestamp) -> Option<Meter> {
        let fixed = |meter: &Meter| MeterSpec {
            description: None,
            settle_after: default_settle_after(),
            late_until: default_late_until(),
            cut_every: default_cut_every(),
            drift_tolerance: Quantity::ZERO,
            billing: None,
            archived: false,
            ..meter.spec.clone()
        };
        if fixed(self) != fixed(declared) {
            return None;
        }
        let billing = match (&self.spec.billing, &declared.spec.billing) {
            (Some(standing), Some(given)) if !standing.continues_as(given) => return None,
            // What is billed goes on being billed if a declaration leaves it out.
            (Some(standing), _) => Some(standing.clone()),
            (None, given) => given.as_ref().map(|billing| billing.starting(at)),
        };
        Some(Meter {
            slug: self.slug.clone(),
            spec: MeterSpec { billing, ..declared.spec.clone() },
        })
    }

    /// The meter as it is declared for the first time.
    pub fn starting(self, at: Timestamp) -> Meter {
        let billing = self.spec.billing.as_ref().map(|billing| billing.starting(at));
        Meter { slug: self.slug, spec: MeterSpec { billing, ..self.spec } }
    }
}

/// All declared meters, by slug and by number.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    by_slug: HashMap<Box<str>, (MeterNo, Arc<Meter>)>,
    by_number: HashMap<MeterNo, Arc<Meter>>,
}

impl Catalog {
    pub fn insert(&mut self, number: MeterNo, meter: Arc<Meter>) {
        self.by_slug.insert(meter.slug.as_str().into(), (number, Arc::clone(&meter)));
        self.by_number.insert(number, meter);
    }

    pub fn find(&self, slug: &str) -> Option<(MeterNo, &Arc<Meter>)> {
        self.by_slug.get(slug).map(|(number, meter)| (*number, meter))
    }

    pub fn get(&self, number: MeterNo) -> Option<&Arc<Meter>> {
        self.by_number.get(&number)
    }

    /// Another meter that is billed under the same event name.
    pub fn billed_alike(&self, meter: &Meter) -> Option<&Meter> {
        meter.spec.billing.as_ref()?;
        let other = |known: &&Arc<Meter>| {
            known.slug != meter.slug
                && known.spec.billing.is_some()
                && known.event_name() == meter.event_name()
        };
        self.by_number.values().find(other).map(Arc::as_ref)
    }

    /// Meters that are billed, in the order of their slugs.
    pub fn billed(&self) -> Vec<(MeterNo, Arc<Meter>)> {
        let billed = self.by_slug.values().filter(|(_, meter)| meter.spec.billing.is_some());
        let mut billed: Vec<(MeterNo, Arc<Meter>)> = billed.cloned().collect();
        billed.sort_by(|(_, a), (_, b)| a.slug.cmp(&b.slug));
        billed
    }

    /// The billed meter that the provider knows by this name.
    pub fn find_billed(&self, event_name: &str) -> Option<(MeterNo, Arc<Meter>)> {
        self.billed().into_iter().find(|(_, meter)| meter.event_name() == event_name)
    }

    /// Every meter in the order of its slug.
    pub fn list(&self) -> Vec<Arc<Meter>> {
        let mut meters: Vec<_> = self.by_number.values().cloned().collect();
        meters.sort_by(|a, b| a.slug.cmp(&b.slug));
        meters
    }

    /// The numbers of all meters, in no particular order.
    pub fn numbers(&self) -> Vec<MeterNo> {
        self.by_number.keys().copied().collect()
    }

    pub fn len(&self) -> usize {
        self.by_number.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(spec: &str, expected: Result<(), &str>) {
        let spec: MeterSpec = serde_json::from_str(spec).expect("well-formed");
        let slug = MeterSlug::parse("m").expect("valid");
        assert_eq!(Meter::declare(slug, spec).map(|_| ()).map_err(|r| r.code), expected);
    }

    #[test]
    fn definitions() {
        let bad = Err("invalid_meter_definition");
        check(r#"{"aggregation":"sum"}"#, Ok(()));
        check(r#"{"aggregation":"sum","scale":12,"precision":27}"#, Ok(()));
        check(r#"{"aggregation":"sum","scale":13,"precision":27}"#, bad);
        check(r#"{"aggregation":"sum","scale":6,"precision":6}"#, bad);
        for scale in 0..=12 {
            check(&format!(r#"{{"aggregation":"count","scale":{scale}}}"#), Ok(()));
        }
        for precision in 1..=27 {
            check(&format!(r#"{{"aggregation":"sum","precision":{precision}}}"#), Ok(()));
        }
        check(r#"{"aggregation":"sum","scale":0,"precision":16}"#, bad);
        check(r#"{"aggregation":"unique"}"#, bad);
        check(r#"{"aggregation":"unique","unique_property":"user"}"#, Ok(()));
        check(r#"{"aggregation":"sum","unique_property":"user"}"#, bad);
        check(r#"{"aggregation":"sum","dimensions":["a","a"]}"#, bad);
        check(r#"{"aggregation":"sum","dimensions":["trial"]}"#, bad);
        check(r#"{"aggregation":"sum","dimensions":[""]}"#, Err("invalid_property"));
    }
}
