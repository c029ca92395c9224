//! Usage answers: stored totals composed to the windows and groups that were asked for.
//!
//! Invariant: the total and the windows come from the same totals, so for a sum or a count the
//! windows add up to the total exactly. Windows without usage are left out when usage is grouped
//! and shown as zero when it is not.

use super::fault::{Fault, must};
use super::meter::{Aggregation, Meter};
use super::quantity::Quantity;
use super::refusal::Refusal;
use super::rollup::{Accumulator, FoldError, Group, Rollup};
use super::timestamp::Timestamp;
use super::window::{WINDOWS_MAX, Window};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

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

/// Most windows and groups in one answer. Senders choose the values of dimensions, so their number
/// is bounded by nothing else.
pub const ANSWER_ROWS_MAX: usize = WINDOWS_MAX;

/// What usage is asked for, and how much of it.
#[derive(Debug, Clone)]
pub struct UsageShape {
    /// They follow each other; every total that is added lies in one of them.
    pub windows: Vec<Window>,
    pub group_by: Vec<GroupBy>,
    pub aggregation: Aggregation,
    /// Stored totals and unique values that may be read.
    pub rows_max: usize,
}

/// Usage that is being composed from totals, one at a time. It holds what the answer will hold and,
/// of a unique meter, each value once and a number for it in each window.
#[derive(Debug)]
pub struct Composition {
    shape: UsageShape,
    rows: usize,
    total: Option<Rollup>,
    parts: BTreeMap<(usize, Vec<Option<String>>), UsagePart>,
    values: HashMap<Box<str>, u32>,
}

/// The total of a window and group. Unique values stand beside it.
#[derive(Debug)]
struct UsagePart {
    rollup: Rollup,
    values: HashSet<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ComposeError {
    #[error(transparent)]
    Fold(#[from] FoldError),
    #[error(transparent)]
    Fault(#[from] Fault),
    #[error("usage has more totals, values or groups than one answer may hold")]
    TooLarge,
}

impl Composition {
    pub fn new(shape: UsageShape) -> Self {
        let (parts, values) = (BTreeMap::new(), HashMap::new());
        Self { shape, rows: 0, total: None, parts, values }
    }

    /// Adds one total, or a part of it.
    pub fn add(&mut self, mut row: UsageRow) -> Result<(), ComposeError> {
        self.count_row()?;
        let values = match &mut row.rollup.value {
            Accumulator::Unique(values) => std::mem::take(values),
            Accumulator::Sum(_)
            | Accumulator::Count
            | Accumulator::Min(_)
            | Accumulator::Max(_)
            | Accumulator::Latest { .. } => BTreeSet::new(),
        };
        match &mut self.total {
            Some(total) => total.fold(&row.rollup)?,
            None => self.total = Some(row.rollup.clone()),
        }
        let place = self.place(row.bucket_start, &row.group)?;
        let full = self.parts.len() == ANSWER_ROWS_MAX;
        match self.parts.get_mut(&place) {
            Some(part) => part.rollup.fold(&row.rollup)?,
            None if full => return Err(ComposeError::TooLarge),
            None => {
                let part = UsagePart { rollup: row.rollup, values: HashSet::new() };
                self.parts.insert(place.clone(), part);
            }
        }
        for value in values {
            self.add_value_at(&place, &value)?;
        }
        Ok(())
    }

    /// Adds a value of a unique meter's total; the total itself is added before.
    pub fn add_value(
        &mut self,
        bucket_start: Timestamp,
        group: &Group,
        value: &str,
    ) -> Result<(), ComposeError> {
        let place = self.place(bucket_start, group)?;
        self.add_value_at(&place, value)
    }

    fn add_value_at(
        &mut self,
        place: &(usize, Vec<Option<String>>),
        value: &str,
    ) -> Result<(), ComposeError> {
        self.count_row()?;
        let number = match self.values.get(value) {
            Some(number) => *number,
            None => {
                let number =
                    u32::try_from(self.values.len()).map_err(|_| ComposeError::TooLarge)?;
                self.values.insert(value.into(), number);
                number
            }
        };
        self.parts.get_mut(place).ok_or(FoldError)?.values.insert(number);
        Ok(())
    }

    fn count_row(&mut self) -> Result<(), ComposeError> {
        if self.rows == self.shape.rows_max {
            return Err(ComposeError::TooLarge);
        }
        self.rows += 1;
        Ok(())
    }

    fn place(
        &self,
        bucket_start: Timestamp,
        group: &Group,
    ) -> Result<(usize, Vec<Option<String>>), ComposeError> {
        let windows = &self.shape.windows;
        let place = windows.partition_point(|window| window.end <= bucket_start);
        let inside = windows.get(place).is_some_and(|window| window.start <= bucket_start);
        must!(
            inside,
            "a total lies in the range that was asked for",
            "bucket={bucket_start} windows={}",
            windows.len()
        );
        Ok((place, group_values(group, &self.shape.group_by)?))
    }

    /// The answer, when every total was added.
    pub fn finish(self) -> Result<Usage, ComposeError> {
        let UsageShape { windows, group_by, aggregation, .. } = self.shape;
        let mut answer = Vec::with_capacity(self.parts.len());
        for ((place, group), UsagePart { rollup, values }) in self.parts {
            let (value, count) = (value_of(&rollup, values.len())?, rollup.count);
            answer.push(UsageWindow { window: windows[place], value, count, group });
        }
        if group_by.is_empty() && zero_is_known(aggregation) {
            answer = fill_with_zero(answer, &windows);
        }
        let count = self.total.as_ref().map_or(0, |rollup| rollup.count);
        let total = self.total.map_or(Ok(Quantity::ZERO), |t| value_of(&t, self.values.len()))?;
        let usage = Usage { total, count, windows: answer };
        usage.check(&windows, aggregation)?;
        Ok(usage)
    }
}

impl Usage {
    /// Checks an answer before it is given: its windows, and that they make the whole.
    fn check(&self, windows: &[Window], aggregation: Aggregation) -> Result<(), Fault> {
        let Self { total, count, windows: answer } = self;
        must!(
            windows.is_sorted_by(|before, after| before.end <= after.start),
            "windows of an answer follow each other",
            "windows={}",
            windows.len()
        );
        let counted = answer.iter().try_fold(0u64, |sum, part| sum.checked_add(part.count));
        must!(
            counted == Some(*count),
            "the events of windows are those of their range",
            "count={count} windows={counted:?}"
        );
        if !matches!(aggregation, Aggregation::Sum | Aggregation::Count) {
            return Ok(());
        }
        let sum = answer.iter().try_fold(Quantity::ZERO, |sum, part| sum.checked_add(part.value));
        must!(
            sum == Some(*total),
            "the totals of windows make the total of their range",
            "total={total} windows={}",
            answer.len()
        );
        Ok(())
    }
}

/// What the meter reports; `values` is how many a unique meter has found.
fn value_of(rollup: &Rollup, values: usize) -> Result<Quantity, FoldError> {
    if !matches!(rollup.value, Accumulator::Unique(_)) {
        return rollup.answer();
    }
    u64::try_from(values).ok().and_then(Quantity::from_count).ok_or(FoldError)
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

    fn compose(
        rows: &[UsageRow],
        windows: &[Window],
        group_by: &[GroupBy],
        aggregation: Aggregation,
    ) -> Result<Usage, ComposeError> {
        let (windows, group_by) = (windows.to_vec(), group_by.to_vec());
        let shape = UsageShape { windows, group_by, aggregation, rows_max: 5 };
        let mut composition = Composition::new(shape);
        for row in rows {
            composition.add(row.clone())?;
        }
        composition.finish()
    }

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
    fn answers_that_contradict_are_not_given() {
        let check = |windows: &[Window], expected: &str| match compose(
            &[row(1, "", 2)],
            windows,
            &[],
            Aggregation::Sum,
        ) {
            Err(ComposeError::Fault(fault)) => assert_eq!(fault.fact, expected),
            other => panic!("{other:?}"),
        };
        check(&windows(&[2, 3]), "a total lies in the range that was asked for");
        let twice = [windows(&[0, 2]), windows(&[1, 3])].concat();
        check(&twice, "windows of an answer follow each other");
        let range = windows(&[0, 2]);
        let sound = compose(&[row(1, "", 2)], &range, &[], Aggregation::Sum).expect("fits");
        let refuse = |usage: Usage, expected: &str| {
            let fault = usage.check(&range, Aggregation::Sum).expect_err(expected);
            assert_eq!(fault.fact, expected);
        };
        let more = Usage { count: 2, ..sound.clone() };
        refuse(more, "the events of windows are those of their range");
        let total = Quantity::from_units(3);
        refuse(Usage { total, ..sound }, "the totals of windows make the total of their range");
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

    fn users(hour: i64, group: &str, values: &[&str]) -> UsageRow {
        let value = Accumulator::Unique(values.iter().map(|value| (*value).into()).collect());
        UsageRow { rollup: Rollup { count: 3, value }, ..row(hour, group, 0) }
    }

    #[test]
    fn a_value_of_several_windows_counts_once_in_each_and_once_in_all() {
        let rows = [users(0, "", &["a"]), users(1, "", &["a", "b"])];
        let usage = compose(&rows, &windows(&[0, 1, 2]), &[], Aggregation::Unique).expect("fits");
        let values: Vec<String> = usage.windows.iter().map(|w| w.value.to_string()).collect();
        assert_eq!(
            (values, usage.total.to_string(), usage.count),
            (vec!["1".to_owned(), "2".to_owned()], "2".to_owned(), 6)
        );
    }

    #[test]
    fn totals_and_values_are_bounded() {
        let many: Vec<UsageRow> = (0..6).map(|hour| row(hour, "", 1)).collect();
        let five = compose(&many[..5], &windows(&[0, 6]), &[], Aggregation::Sum);
        assert_eq!(five.expect("fits").count, 5);
        let six = compose(&many, &windows(&[0, 6]), &[], Aggregation::Sum);
        assert_eq!(six, Err(ComposeError::TooLarge));
        let values = [users(0, "", &["a", "b", "c", "d", "e"])];
        let values = compose(&values, &windows(&[0, 1]), &[], Aggregation::Unique);
        assert_eq!(values, Err(ComposeError::TooLarge));
    }
}
