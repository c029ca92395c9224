//! The key index: from the hash of an event key to where the event is.
//!
//! Invariant: every counted event has exactly one entry here. A hash finds
//! candidates and decides nothing: the caller compares the exact tenant and id, and two keys with
//! one hash simply have two entries.
//!
//! Memory: 17 bytes an entry at a load of 44 to 88 percent, in 256 tables, so that one growing
//! table moves 1/256 of the keys and no commit waits for all of them. Nothing here is durable: it
//! is rebuilt from `key_blocks` and the journal when the store opens.

use crate::rules::fingerprint::Fingerprinter;
use crate::rules::ids::{EventId, TenantNo};
use hashbrown::HashTable;

const TABLES: usize = 256;

/// Where an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Location {
    /// In the table `events`, by its number.
    Folded(u64),
    /// In memory: the segment's number and the place by arrival.
    Unfolded { segment: u32, place: u32 },
}

const UNFOLDED: u64 = 1 << 63;

impl Location {
    fn pack(self) -> u64 {
        match self {
            Self::Folded(number) => number,
            // 31 bits of segment number: 2^31 segments of 131,072 events are out of reach.
            Self::Unfolded { segment, place } => {
                UNFOLDED | (u64::from(segment) << 32) | u64::from(place)
            }
        }
    }

    fn unpack(packed: u64) -> Self {
        if packed & UNFOLDED == 0 {
            return Self::Folded(packed);
        }
        let low = |bits: u64| u32::try_from(bits & 0xffff_ffff).expect("32 bits");
        Self::Unfolded { segment: low((packed & !UNFOLDED) >> 32), place: low(packed) }
    }
}

pub struct KeyIndex {
    tables: Vec<HashTable<(u64, u64)>>,
}

impl KeyIndex {
    pub fn with_capacity(keys: usize) -> Self {
        let each = keys / TABLES + keys / TABLES / 16;
        Self { tables: (0..TABLES).map(|_| HashTable::with_capacity(each)).collect() }
    }

    pub fn insert(&mut self, hash: u64, location: Location) {
        let entry = (hash, location.pack());
        self.tables[table_of(hash)].insert_unique(hash, entry, |(hash, _)| *hash);
    }

    /// Every place where an event with this hash may be.
    pub fn candidates(&self, hash: u64) -> impl Iterator<Item = Location> {
        self.tables[table_of(hash)]
            .iter_hash(hash)
            .filter(move |(found, _)| *found == hash)
            .map(|(_, packed)| Location::unpack(*packed))
    }

    /// The event has moved.
    pub fn relocate(&mut self, hash: u64, from: Location, to: Location) {
        let (from, to) = (from.pack(), to.pack());
        let entry = self.tables[table_of(hash)].find_mut(hash, |entry| *entry == (hash, from));
        entry.expect("an event that moves is in the index").1 = to;
    }
}

/// The hash of an event key in this index and in `key_blocks`: 64 bits of its fingerprint are
/// enough, since the exact key is compared on every hit.
pub fn key_hash(fingerprinter: &Fingerprinter, tenant: TenantNo, id: &EventId) -> u64 {
    let fingerprint = fingerprinter.event_key(tenant, id);
    u64::try_from(fingerprint & u128::from(u64::MAX)).expect("64 bits")
}

/// Bits that the tables themselves use neither for the place nor for the tag.
fn table_of(hash: u64) -> usize {
    usize::try_from((hash >> 40) & 0xff).expect("eight bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_pack_and_unpack() {
        for location in [
            Location::Folded(0),
            Location::Folded((1 << 63) - 1),
            Location::Unfolded { segment: 0, place: 0 },
            Location::Unfolded { segment: (1 << 31) - 1, place: u32::MAX },
        ] {
            assert_eq!(Location::unpack(location.pack()), location);
        }
    }

    #[test]
    fn equal_hashes_keep_all_their_entries() {
        let mut keys = KeyIndex::with_capacity(0);
        for number in 0..5 {
            keys.insert(7, Location::Folded(number));
        }
        keys.relocate(7, Location::Folded(3), Location::Folded(30));
        let mut found: Vec<_> = keys.candidates(7).collect();
        found.sort_by_key(|location| location.pack());
        assert_eq!(found, [0, 1, 2, 4, 30].map(Location::Folded));
        assert_eq!(keys.candidates(8).count(), 0);
    }
}
