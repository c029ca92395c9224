//! Keys that this process has lately seen: a batch looks up only those of its keys that are among
//! them, and leaves the judgement of the others to the primary key of `event_claims`.
//!
//! Invariant: nothing is judged by what is kept here. A key that is not among the recent ones may
//! still be stored, by another server or long ago: then the primary key refuses the batch, which is
//! done again with a look at all of its keys. After that a number of batches look up everything,
//! twice as many each time it happens soon again, so that a sender who repeats old events costs
//! little more than the look-ups.
//!
//! Nothing here is durable: after a start all keys are looked up until enough are known.

use hashbrown::HashSet;

/// Keys of one generation; two are kept. 16 bytes each at most.
const GENERATION_KEYS: usize = 400_000;
/// Batches that look up everything after a start or a surprise.
const CAUTIOUS_BATCHES_MIN: u32 = 64;
const CAUTIOUS_BATCHES_MAX: u32 = 16_384;

pub struct RecentKeys {
    young: HashSet<u64>,
    old: HashSet<u64>,
    /// Batches that are still to look up everything.
    cautious: u32,
    /// How many follow the next surprise.
    cautious_next: u32,
    /// Batches without a surprise since.
    trusted: u32,
}

impl Default for RecentKeys {
    fn default() -> Self {
        Self {
            young: HashSet::new(),
            old: HashSet::new(),
            cautious: CAUTIOUS_BATCHES_MIN,
            cautious_next: CAUTIOUS_BATCHES_MIN,
            trusted: 0,
        }
    }
}

impl RecentKeys {
    /// Whether a batch may leave out keys that are not among the recent ones.
    pub fn is_trusted(&self) -> bool {
        self.cautious == 0
    }

    /// Whether a key may have been seen.
    pub fn may_know(&self, home: u128) -> bool {
        let key = shorten(home);
        self.young.contains(&key) || self.old.contains(&key)
    }

    /// Takes in the keys of a batch that was committed.
    pub fn note(&mut self, homes: impl Iterator<Item = u128>) {
        self.young.extend(homes.map(shorten));
        if self.young.len() >= GENERATION_KEYS {
            self.old = std::mem::take(&mut self.young);
        }
        if self.cautious > 0 {
            self.cautious -= 1;
            return;
        }
        self.trusted = self.trusted.saturating_add(1);
        if self.trusted > self.cautious_next {
            self.cautious_next = CAUTIOUS_BATCHES_MIN;
        }
    }

    /// A key that was left out was stored.
    pub fn surprise(&mut self) {
        self.cautious = self.cautious_next;
        self.cautious_next = self.cautious_next.saturating_mul(2).min(CAUTIOUS_BATCHES_MAX);
        self.trusted = 0;
    }
}

/// Two keys that fall together here cost one look-up.
fn shorten(home: u128) -> u64 {
    u64::try_from(home >> 64).expect("64 bits are left")
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn home(number: u128) -> u128 {
        number << 64
    }

    fn trusted() -> RecentKeys {
        let mut keys = RecentKeys::default();
        (0..CAUTIOUS_BATCHES_MIN).for_each(|_| keys.note(std::iter::empty()));
        assert!(keys.is_trusted());
        keys
    }

    #[test]
    fn keys_are_known_for_at_least_a_generation() {
        let mut keys = trusted();
        keys.note([home(1)].into_iter());
        let generation = u128::try_from(GENERATION_KEYS).expect("small");
        keys.note((2..generation).map(home));
        assert!(keys.may_know(home(1)) && !keys.may_know(home(generation + 7)));
        keys.note((generation..2 * generation).map(home));
        assert!(keys.may_know(home(1)), "two generations are kept");
        keys.note((2 * generation..3 * generation).map(home));
        assert!(!keys.may_know(home(1)));
    }

    #[test]
    fn surprises_that_go_on_make_it_cautious_for_longer() {
        let mut keys = trusted();
        let mut lasted = Vec::new();
        for _ in 0..3 {
            keys.surprise();
            let mut batches = 0;
            while !keys.is_trusted() {
                keys.note(std::iter::empty());
                batches += 1;
            }
            lasted.push(batches);
        }
        assert_eq!(lasted, [64, 128, 256]);
        (0..600).for_each(|_| keys.note(std::iter::empty()));
        keys.surprise();
        assert_eq!(keys.cautious, CAUTIOUS_BATCHES_MIN);
    }
}
