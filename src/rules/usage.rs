//! Usage answers: stored totals composed to the windows and groups that were asked for.
//!
//! Invariant: the total and the windows come from the same totals, so for a sum or a count the
//! windows add up to the total exactly. Windows without usage are left out when usage is grouped
//! and shown as zero when it is not.

use super::meter::{Aggregation, Meter};
use super::quantity::Quantity;
use super::refusal::Refusal;
use super::rollup::{FoldError, Group, Rollup};
use super::timestamp::Timestamp;
use super::window::Window;
use std::collections::BTreeMap;

/// One stored total of the tenant and meter in question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageRow {
    pub bucket_start: Timestamp,
    pub group: Group,
    pub rollup: Rollup,
}

/// What usage is grouped by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupBy {
    Subscription,
    Trial,
    /// The place of a dimension in the meter's definition, and its name.
    Dimension(usize, String),
}

impl GroupBy {
    pub fn parse(name: &str, meter: &Meter) -> Result<Self, Refusal> {
        match name {
            "subscription" => Ok(Self::Subscription),
            "trial" => Ok(Self::Trial),
            _ => {
                let dimensions = &meter.spec.dimensions;
                let place = dimensions.iter().position(|dimension| dimension == name);
                place.map(|place| Self::Dimension(place, name.to_owned())).ok_or_else(|| {
                    let mut known = vec!["subscription", "trial"];
                    known.extend(dimensions.iter().map(String::as_str));
                    let known = known.join(", ");
                    Refusal::new(
                        "unknown_dimension",
                        format!("meter {} can be grouped by {known}", meter.slug),
                    )
                })
            }
        }
    }

    pub fn name(&self) -> &str {
        match self {
            Self::Subscription => "subscription",
            Self::Trial => "trial",
            Self::Dimension(_, name) => name,
        }
    }
}

/// The value of one window, and of one group if usage was grouped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageWindow {
    pub window: Window,
    pub value: Quantity,
    pub count: u64,
    /// The value of each `group_by`, in its order.
    pub group: Vec<Option<String>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    pub total: Quantity,
    pub count: u64,
    pub windows: Vec<UsageWindow>,
}

/// Composes totals to windows. Every row must lie in one of the windows.
pub fn compose(
    rows: &[UsageRow],
    windows: &[Window],
    group_by: &[GroupBy],
    aggregation: Aggregation,
) -> Result<Usage, FoldError> {
    let mut total: Option<Rollup> = None;
    let mut parts: BTreeMap<(usize, Vec<Option<String>>), Rollup> = BTreeMap::new();
    for row in rows {
        let place = windows.partition_point(|window| window.end <= row.bucket_start);
        let inside = windows.get(place).is_some_and(|window| window.start <= row.bucket_start);
        assert!(inside, "a total lies in the range that was asked for");
        let group = group_values(&row.group, group_by)?;
        match parts.get_mut(&(place, group.clone())) {
            Some(rollup) => rollup.fold(&row.rollup)?,
            None => drop(parts.insert((place, group), row.rollup.clone())),
        }
        match &mut total {
            Some(rollup) => rollup.fold(&row.rollup)?,
            None => total = Some(row.rollup.clone()),
        }
    }
    let mut answer = Vec::with_capacity(parts.len());
    for ((place, group), rollup) in parts {
        let window = windows[place];
        answer.push(UsageWindow { window, value: rollup.answer()?, count: rollup.count, group });
    }
    if group_by.is_empty() && zero_is_known(aggregation) {
        answer = fill_with_zero(answer, windows);
    }
    let count = total.as_ref().map_or(0, |rollup| rollup.count);
    let total = total.map_or(Ok(Quantity::ZERO), |rollup| rollup.answer())?;
    Ok(Usage { total, count, windows: answer })
}

/// No events sum up to zero; but the smallest of no quantities is not zero, it is nothing.
fn zero_is_known(aggregation: Aggregation) -> bool {
    match aggregation {
        Aggregation::Sum | Aggregation::Count | Aggregation::Unique => true,
        Aggregation::Min | Aggregation::Max | Aggregation::Latest => false,
    }
}

fn fill_with_zero(found: Vec<UsageWindow>, windows: &[Window]) -> Vec<UsageWindow> {
    let mut found = found.into_iter().peekable();
    windows
        .iter()
        .map(|window| {
            found.next_if(|usage| usage.window == *window).unwrap_or_else(|| UsageWindow {
                window: *window,
                value: Quantity::ZERO,
                count: 0,
                group: Vec::new(),
            })
        })
        .collect()
}

fn group_values(group: &Group, group_by: &[GroupBy]) -> Result<Vec<Option<String>>, FoldError> {
    if group_by.is_empty() {
        return Ok(Vec::new());
    }
    let parts = group.parts().ok_or(FoldError)?;
    let value = |by: &GroupBy| match by {
        GroupBy::Subscription => parts.subscription.clone(),
        GroupBy::Trial => Some(parts.trial.to_string()),
        GroupBy::Dimension(place, _) => parts.dimensions.get(*place).cloned().flatten(),
    };
    Ok(group_by.iter().map(value).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::rollup::Accumulator;

    fn row(hour: i64, group: &str, quantity: i128) -> UsageRow {
        let value = Accumulator::Sum(Quantity::from_units(quantity));
        UsageRow {
            bucket_start: Timestamp::from_micros(hour * 3_600_000_000),
            group: Group::from_stored(group),
            rollup: Rollup { count: 1, value },
        }
    }

    fn windows(hours: &[i64]) -> Vec<Window> {
        let at = |hour: i64| Timestamp::from_micros(hour * 3_600_000_000);
        hours.windows(2).map(|two| Window { start: at(two[0]), end: at(two[1]) }).collect()
    }

    #[test]
    fn windows_add_up_and_empty_ones_are_zero() {
        let rows = [row(0, "", 1), row(1, "", 2), row(5, "", 4)];
        let usage = compose(&rows, &windows(&[0, 2, 4, 6]), &[], Aggregation::Sum).expect("fits");
        let values: Vec<i128> = usage.windows.iter().map(|w| w.value.units()).collect();
        assert_eq!((values, usage.total.units(), usage.count), (vec![3, 0, 4], 7, 3));
    }

    #[test]
    fn nothing_is_not_a_minimum_of_zero() {
        let usage = compose(&[], &windows(&[0, 1]), &[], Aggregation::Min).expect("fits");
        assert!(usage.windows.is_empty());
    }

    #[test]
    fn groups() {
        let rows = [
            row(0, r#"[null,false,"eu"]"#, 1),
            row(0, r#"["s",true,"eu"]"#, 2),
            row(0, r#"[null,false,null]"#, 4),
        ];
        let by = [GroupBy::Dimension(0, "region".into())];
        let usage = compose(&rows, &windows(&[0, 1]), &by, Aggregation::Sum).expect("fits");
        let found: Vec<_> =
            usage.windows.iter().map(|w| (w.group[0].as_deref(), w.value.units())).collect();
        assert_eq!(found, [(None, 4), (Some("eu"), 3)]);
        let by_trial = compose(&rows, &windows(&[0, 1]), &[GroupBy::Trial], Aggregation::Sum);
        let found: Vec<_> =
            by_trial.expect("fits").windows.iter().map(|w| w.value.units()).collect();
        assert_eq!(found, [5, 2]);
    }
}
