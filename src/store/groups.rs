//! The groups that a meter of a tenant has on a day, as far as a writer knows them.
//!
//! A group is what totals are kept apart by: the subscription, the trial and the values of
//! dimensions. Senders choose them, and each is a row of every bucket, so their number has a bound.
//! A day is loaded when a batch first names it: the embedded store finds its groups in the totals,
//! PostgreSQL in the table `day_groups`, which is written in the transaction that counts the first
//! event of a group. The group of a meter without dimensions and of an event without stamps is not
//! counted: there is one.
//!
//! Invariant: an event is held back only where at least as many groups as the limit are stored, and
//! never one of a group that is stored. Fingerprints that collide let one group more in. The limit
//! is exact for one server; of several servers at one database each knows the groups that it has
//! loaded or written, so together they may let in as many times the limit.
//!
//! Nothing here is durable. What a batch adds is taken over after its commit; after a crash or a
//! failed commit it is loaded again.

use crate::rules::ids::{MeterNo, TenantNo};
use crate::rules::timestamp::{MICROS_PER_DAY, Timestamp};
use hashbrown::{HashMap, HashSet};
use std::collections::BTreeSet;

/// Groups and days that are kept in memory before it is emptied: about 50 MiB.
const KNOWN_MAX: usize = 1_000_000;

/// A tenant's meter on one day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupDay {
    pub tenant: TenantNo,
    pub meter: MeterNo,
    /// Days since 1970, in UTC.
    pub day: i32,
}

impl GroupDay {
    pub fn of(tenant: TenantNo, meter: MeterNo, bucket_start: Timestamp) -> Self {
        let day = bucket_start.micros().div_euclid(MICROS_PER_DAY);
        Self { tenant, meter, day: i32::try_from(day).expect("64 bits of microseconds fit") }
    }
}

/// Groups that are stored. All days share one table: a commit looks up each of its events in it.
#[derive(Debug, Default)]
pub struct KnownGroups {
    /// How many groups a day has.
    days: HashMap<GroupDay, usize>,
    groups: HashSet<(GroupDay, i64)>,
}

/// Groups that a batch adds, in the order of the table's key.
pub type NewGroups = BTreeSet<(GroupDay, i64)>;

impl KnownGroups {
    pub fn has_loaded(&self, day: &GroupDay) -> bool {
        self.days.contains_key(day)
    }

    /// Whether a group is known to be stored.
    pub fn holds(&self, day: GroupDay, group: i64) -> bool {
        self.groups.contains(&(day, group))
    }

    /// Takes the stored groups of a day.
    pub fn load(&mut self, day: GroupDay, groups: impl IntoIterator<Item = i64>) {
        let count = self.days.entry(day).or_default();
        *count += groups.into_iter().filter(|group| self.groups.insert((day, *group))).count();
    }

    /// Takes over what a commit has made durable.
    pub fn take_over(&mut self, added: NewGroups) {
        for (day, group) in added {
            // A day that is not loaded is found in the store when it is next named.
            if self.has_loaded(&day) {
                self.load(day, [group]);
            }
        }
        if self.groups.len() + self.days.len() > KNOWN_MAX {
            *self = Self::default();
        }
    }
}

/// Admits the groups of one batch.
#[derive(Debug)]
pub struct GroupGate<'k> {
    pub known: &'k mut KnownGroups,
    pub added: NewGroups,
    added_of: HashMap<GroupDay, usize>,
    limit: usize,
}

impl<'k> GroupGate<'k> {
    pub fn new(known: &'k mut KnownGroups, limit: usize) -> Self {
        Self { known, added: NewGroups::new(), added_of: HashMap::new(), limit }
    }

    /// Whether an event of this group may be counted; the day was loaded.
    pub fn admit(&mut self, day: GroupDay, group: i64) -> bool {
        if self.known.holds(day, group) || self.added.contains(&(day, group)) {
            return true;
        }
        let stored = self.known.days.get(&day).copied().unwrap_or_default();
        let added = self.added_of.entry(day).or_default();
        if stored + *added >= self.limit {
            return false;
        }
        *added += 1;
        self.added.insert((day, group));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_fails_adds_nothing_and_known_groups_stay_admitted() {
        let day = |number: i64| {
            let start = Timestamp::from_micros(number * MICROS_PER_DAY);
            GroupDay::of(TenantNo(1), MeterNo(1), start)
        };
        let mut known = KnownGroups::default();
        known.load(day(0), [7]);
        known.load(day(1), []);
        for _ in 0..2 {
            let mut gate = GroupGate::new(&mut known, 2);
            assert!(gate.admit(day(0), 7) && gate.admit(day(0), 8) && gate.admit(day(0), 8));
            assert!(!gate.admit(day(0), 9));
            assert!(gate.admit(day(1), 9), "another day");
        }
        let mut gate = GroupGate::new(&mut known, 2);
        assert!(gate.admit(day(0), 8));
        let added = gate.added;
        known.take_over(added);
        let mut gate = GroupGate::new(&mut known, 2);
        assert!(gate.admit(day(0), 7) && gate.admit(day(0), 8) && !gate.admit(day(0), 9));
        let mut gate = GroupGate::new(&mut known, 1);
        assert!(gate.admit(day(0), 7) && gate.admit(day(0), 8), "a lower limit takes none away");
    }
}
