//! The totals of one tenant and meter in a segment, in the order of bucket and group.
//!
//! A query copies them under the lock that a commit needs, and a tenant may have a hundred thousand
//! groups. So the totals are in leaves which copies share: a copy costs one count for each leaf,
//! and a commit copies a leaf before it changes it only if a query still holds that leaf.
//!
//! Invariant: places ascend strictly within a leaf and from leaf to leaf, no leaf is empty, and
//! each names its first place.

use crate::rules::rollup::{Accumulator, FoldError, Group, Rollup};
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use std::sync::Arc;

/// Few enough that a commit which has to copy a leaf does not notice.
const LEAF_TOTALS_MAX: usize = 64;

/// A total's bucket and group.
pub type Place = (Timestamp, Group);

#[derive(Clone)]
pub enum Totals {
    /// The usual case where there are many tenants, in one allocation. Not for unique meters, whose
    /// totals are large to copy.
    One(Box<(Place, Rollup)>),
    Leaves(Vec<Leaf>),
}

#[derive(Clone)]
pub struct Leaf {
    /// The place of its first total: the leaf of a place is found without a look into any other.
    first: Place,
    totals: Arc<Vec<(Place, Rollup)>>,
}

impl Leaf {
    fn new(totals: Vec<(Place, Rollup)>) -> Self {
        Self { first: totals[0].0.clone(), totals: Arc::new(totals) }
    }
}

impl Default for Totals {
    fn default() -> Self {
        Self::Leaves(Vec::new())
    }
}

impl Totals {
    pub fn add(&mut self, place: Place, rollup: Rollup) -> Result<(), FoldError> {
        let leaves = match self {
            Self::One(one) if one.0 == place => return one.1.fold(&rollup),
            Self::One(one) => {
                *self = Self::Leaves(vec![Leaf::new(vec![(**one).clone()])]);
                return self.add(place, rollup);
            }
            Self::Leaves(leaves) => leaves,
        };
        let after = leaves.partition_point(|leaf| leaf.first <= place);
        let number = after.saturating_sub(1);
        let Some(leaf) = leaves.get_mut(number) else {
            *self = match &rollup.value {
                Accumulator::Unique(_) => Self::Leaves(vec![Leaf::new(vec![(place, rollup)])]),
                Accumulator::Sum(_)
                | Accumulator::Count
                | Accumulator::Min(_)
                | Accumulator::Max(_)
                | Accumulator::Latest { .. } => Self::One(Box::new((place, rollup))),
            };
            return Ok(());
        };
        if place < leaf.first {
            leaf.first = place.clone();
        }
        let totals = Arc::make_mut(&mut leaf.totals);
        match totals.binary_search_by(|(other, _)| other.cmp(&place)) {
            Ok(found) => return totals[found].1.fold(&rollup),
            Err(free) => totals.insert(free, (place, rollup)),
        }
        if totals.len() > LEAF_TOTALS_MAX {
            let upper = totals.split_off(LEAF_TOTALS_MAX / 2);
            leaves.insert(number + 1, Leaf::new(upper));
        }
        Ok(())
    }

    fn leaves(&self) -> impl Iterator<Item = &[(Place, Rollup)]> {
        let (one, leaves) = match self {
            Self::One(one) => (Some(std::slice::from_ref(&**one)), &[][..]),
            Self::Leaves(leaves) => (None, &leaves[..]),
        };
        one.into_iter().chain(leaves.iter().map(|leaf| &leaf.totals[..]))
    }

    pub fn len(&self) -> usize {
        self.leaves().map(<[_]>::len).sum()
    }

    pub fn iter(&self) -> impl Iterator<Item = &(Place, Rollup)> {
        self.leaves().flatten()
    }

    /// Those whose bucket starts in the range.
    pub fn within(&self, range: Window) -> impl Iterator<Item = &(Place, Rollup)> {
        let before = move |(place, _): &(Place, Rollup)| place.0 < range.start;
        let leaves = self.leaves().skip_while(move |leaf| leaf.last().is_some_and(before));
        let totals = leaves.flatten().skip_while(move |total| before(total));
        totals.take_while(move |total| total.0.0 < range.end)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn place(bucket: i64, group: u8) -> Place {
        (Timestamp::from_micros(bucket), Group::from_stored(&format!("[\"{group}\"]")))
    }

    fn one() -> Rollup {
        Rollup { count: 1, value: Accumulator::Count }
    }

    proptest! {
        #[test]
        fn totals_equal_those_of_a_sorted_map(
            added in prop::collection::vec((0..40_i64, any::<u8>()), 0..600),
            (start, end) in (0..45_i64, 0..45_i64),
        ) {
            let (mut totals, mut model) = (Totals::default(), BTreeMap::<Place, Rollup>::new());
            let mut copies = Vec::new();
            for (number, (bucket, group)) in added.into_iter().enumerate() {
                totals.add(place(bucket, group), one()).unwrap();
                let sum = model.entry(place(bucket, group)).or_insert(Rollup { count: 0, ..one() });
                sum.fold(&one()).unwrap();
                if number % 50 == 0 {
                    copies.push((totals.clone(), model.clone()));
                }
            }
            copies.push((totals, model));
            let range = Window {
                start: Timestamp::from_micros(start),
                end: Timestamp::from_micros(end),
            };
            for (totals, model) in copies {
                let listed: Vec<_> = totals.iter().cloned().collect();
                prop_assert_eq!(totals.len(), model.len());
                prop_assert_eq!(listed, model.clone().into_iter().collect::<Vec<_>>());
                let within: Vec<_> = totals.within(range).cloned().collect();
                let inside = |bucket: Timestamp| (range.start..range.end).contains(&bucket);
                let wanted: Vec<_> = model.into_iter().filter(|(p, _)| inside(p.0)).collect();
                prop_assert_eq!(within, wanted);
            }
        }
    }

    #[test]
    fn a_change_copies_one_leaf_of_many() {
        let mut totals = Totals::default();
        for bucket in 0..10_000 {
            totals.add(place(bucket, 0), one()).unwrap();
        }
        let copy = totals.clone();
        totals.add(place(5_000, 0), one()).unwrap();
        let (Totals::Leaves(copy), Totals::Leaves(totals)) = (copy, totals) else {
            panic!("many totals are in leaves")
        };
        let pairs = copy.iter().zip(&totals);
        assert!(copy.len() > 70);
        let copied = |(held, new): &(&Leaf, &Leaf)| !Arc::ptr_eq(&held.totals, &new.totals);
        assert_eq!(pairs.filter(copied).count(), 1);
    }
}
