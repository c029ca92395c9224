//! The totals of one tenant and meter in a segment, in the order of bucket and group.
//!
//! A query copies them under the lock that a commit needs, and a tenant may have a hundred thousand
//! groups. So the totals are in leaves which copies share: a copy costs one count for each leaf,
//! and a commit copies a leaf before it changes it only if a query still holds that leaf.
//!
//! Invariant: places ascend strictly within a leaf and from leaf to leaf, and no leaf is empty.

use crate::rules::rollup::{FoldError, Group, Rollup};
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use std::sync::Arc;

/// Few enough that a commit which has to copy a leaf does not notice.
const LEAF_TOTALS_MAX: usize = 128;

/// A total's bucket and group.
pub type Place = (Timestamp, Group);

#[derive(Clone, Default)]
pub struct Totals {
    leaves: Vec<Arc<Vec<(Place, Rollup)>>>,
}

impl Totals {
    pub fn add(&mut self, place: Place, rollup: Rollup) -> Result<(), FoldError> {
        let after = self.leaves.partition_point(|leaf| leaf[0].0 <= place);
        let number = after.saturating_sub(1);
        let Some(leaf) = self.leaves.get_mut(number) else {
            self.leaves.push(Arc::new(vec![(place, rollup)]));
            return Ok(());
        };
        let leaf = Arc::make_mut(leaf);
        match leaf.binary_search_by(|(other, _)| other.cmp(&place)) {
            Ok(found) => return leaf[found].1.fold(&rollup),
            Err(free) => leaf.insert(free, (place, rollup)),
        }
        if leaf.len() > LEAF_TOTALS_MAX {
            let upper = leaf.split_off(LEAF_TOTALS_MAX / 2);
            self.leaves.insert(number + 1, Arc::new(upper));
        }
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.leaves.iter().map(|leaf| leaf.len()).sum()
    }

    pub fn iter(&self) -> impl Iterator<Item = &(Place, Rollup)> {
        self.leaves.iter().flat_map(|leaf| leaf.iter())
    }

    /// Those whose bucket starts in the range.
    pub fn within(&self, range: Window) -> impl Iterator<Item = &(Place, Rollup)> {
        let before = move |(place, _): &(Place, Rollup)| place.0 < range.start;
        let skipped = self.leaves.partition_point(|leaf| leaf.last().is_some_and(before));
        let totals = self.leaves[skipped..].iter().flat_map(|leaf| leaf.iter());
        totals.skip_while(move |total| before(total)).take_while(move |total| total.0.0 < range.end)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rules::rollup::Accumulator;
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
        let pairs = copy.leaves.iter().zip(&totals.leaves);
        assert!(copy.leaves.len() > 70);
        assert_eq!(pairs.filter(|(held, new)| !Arc::ptr_eq(held, new)).count(), 1);
    }
}
