//! The sums a report shows: by meter, by day and by tenant.
//!
//! Invariant: sums are exact, and of one meter each: usage of two meters has no common unit. What
//! the provider has too much, what it lacks and what is on its way are added up apart, so that they
//! hide nothing of each other.

use super::super::pass::day;
use crate::api::passes::RowAnswer;
use crate::rules::drift::Verdict;
use crate::rules::quantity::Quantity;
use anyhow::Context;
use jiff::civil::Date;
use std::collections::{BTreeMap, BTreeSet};

/// Pairs of bars that are distinguishable on a page; longer ranges have several days in a pair.
const BINS_MAX: usize = 46;

pub struct Figures<'r> {
    pub meters: BTreeMap<&'r str, MeterFigures<'r>>,
    /// Tenants with a row that stays wrong unless somebody does something.
    pub drifting_tenants: usize,
    pub tenants: usize,
}

#[derive(Default)]
pub struct MeterFigures<'r> {
    pub total: Totals,
    pub rows: usize,
    pub rows_unequal: usize,
    /// Those of which the provider's total was not read.
    pub rows_unread: usize,
    pub bins: Vec<Bin>,
    /// What is apart, by tenant; only tenants where something is.
    pub tenants: BTreeMap<&'r str, Apart>,
}

/// One or more days in a row.
pub struct Bin {
    pub first: Date,
    pub last: Date,
    pub total: Totals,
    pub drifts: bool,
}

#[derive(Default, Clone, Copy)]
pub struct Totals {
    pub ledger: Quantity,
    pub pushed: Quantity,
    /// Of the rows of which it was read.
    pub provider: Quantity,
    pub apart: Apart,
    /// Differences that are expected to go away by themselves; in `apart` they play no part.
    pub waiting: Quantity,
    /// What was counted and is never billed.
    pub unbilled: Quantity,
}

/// Differences between the provider and what was handed to billing.
#[derive(Default, Clone, Copy)]
pub struct Apart {
    /// What the provider lacks, as a negative number.
    pub less: Quantity,
    /// What it has too much.
    pub more: Quantity,
}

impl Apart {
    pub fn is_zero(self) -> bool {
        self.less == Quantity::ZERO && self.more == Quantity::ZERO
    }

    /// Both ends together.
    pub fn net(self) -> Quantity {
        let sum = self.less.checked_add(self.more);
        sum.expect("of two numbers of different signs, the sum is between them")
    }

    /// How much is wrong, whatever the direction.
    pub fn size(self) -> u128 {
        self.less.units().unsigned_abs().saturating_add(self.more.units().unsigned_abs())
    }

    fn add(&mut self, delta: Quantity) -> Option<()> {
        let side = if delta < Quantity::ZERO { &mut self.less } else { &mut self.more };
        *side = side.checked_add(delta)?;
        Some(())
    }
}

impl Totals {
    fn add(&mut self, row: &RowAnswer) -> Option<()> {
        self.ledger = self.ledger.checked_add(row.ledger)?;
        self.pushed = self.pushed.checked_add(row.pushed)?;
        for (_, quantity) in row.asides() {
            self.unbilled = self.unbilled.checked_add(quantity)?;
        }
        let (Some(provider), Some(delta)) = (row.provider, row.delta) else { return Some(()) };
        self.provider = self.provider.checked_add(provider)?;
        if row.verdict == Verdict::Waiting {
            self.waiting = self.waiting.checked_add(delta)?;
            return Some(());
        }
        self.apart.add(delta)
    }
}

impl<'r> Figures<'r> {
    pub fn of(rows: &'r [RowAnswer]) -> anyhow::Result<Self> {
        let days = Days::of(rows)?;
        let mut meters: BTreeMap<&str, MeterFigures> = BTreeMap::new();
        let (mut drifting, mut tenants) = (BTreeSet::new(), BTreeSet::new());
        for row in rows {
            tenants.insert(row.tenant.as_str());
            if row.verdict.is_drift() {
                drifting.insert(row.tenant.as_str());
            }
            let meter = meters
                .entry(&row.meter)
                .or_insert_with(|| MeterFigures { bins: days.bins(), ..MeterFigures::default() });
            let bin = days.place(date(row)?);
            meter.add(row, bin).with_context(|| {
                format!("the totals of {} are too large to be added up", row.meter)
            })?;
        }
        Ok(Self { meters, drifting_tenants: drifting.len(), tenants: tenants.len() })
    }
}

impl<'r> MeterFigures<'r> {
    fn add(&mut self, row: &'r RowAnswer, bin: usize) -> Option<()> {
        self.total.add(row)?;
        self.rows += 1;
        self.rows_unequal += usize::from(row.verdict.differs());
        let bin = &mut self.bins[bin];
        bin.total.add(row)?;
        bin.drifts |= row.verdict.is_drift();
        self.rows_unread += usize::from(row.verdict == Verdict::Unread);
        let delta = row.delta.filter(|delta| *delta != Quantity::ZERO);
        if let Some(delta) = delta.filter(|_| row.verdict != Verdict::Waiting) {
            self.tenants.entry(&row.tenant).or_default().add(delta)?;
        }
        Some(())
    }

    /// Tenants with the largest differences first.
    pub fn largest(&self) -> Vec<(&'r str, Apart)> {
        let mut tenants: Vec<_> =
            self.tenants.iter().map(|(name, apart)| (*name, *apart)).collect();
        tenants.sort_by_key(|(name, apart)| (std::cmp::Reverse(apart.size()), *name));
        tenants
    }
}

/// The days that all charts of a report show, and how many share a bin.
struct Days {
    first: Date,
    count: usize,
    in_bin: usize,
}

impl Days {
    fn of(rows: &[RowAnswer]) -> anyhow::Result<Self> {
        let dates: Vec<Date> = rows.iter().map(date).collect::<anyhow::Result<_>>()?;
        let first = dates.iter().min().copied().unwrap_or(Date::constant(1970, 1, 1));
        let last = dates.iter().max().copied().unwrap_or(first);
        let count = days_between(first, last) + 1;
        Ok(Self { first, count, in_bin: count.div_ceil(BINS_MAX) })
    }

    fn place(&self, date: Date) -> usize {
        days_between(self.first, date) / self.in_bin
    }

    fn bins(&self) -> Vec<Bin> {
        let at = |days: usize| {
            let days = i64::try_from(days.min(self.count - 1)).expect("a range of days is short");
            self.first.saturating_add(jiff::Span::new().days(days))
        };
        let starts = (0..self.count).step_by(self.in_bin);
        starts
            .map(|start| Bin {
                first: at(start),
                last: at(start + self.in_bin - 1),
                total: Totals::default(),
                drifts: false,
            })
            .collect()
    }
}

fn date(row: &RowAnswer) -> anyhow::Result<Date> {
    let read = || format!("the server's day {} is no date", row.from);
    day(row.from).parse().with_context(read)
}

fn days_between(first: Date, last: Date) -> usize {
    let days = first.until(last).map_or(0, |span| span.get_days());
    usize::try_from(days).unwrap_or(0)
}
