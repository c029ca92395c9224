//! Key filters: whether a key may be in a run, for two bytes of memory a key.
//!
//! A filter is blocks of 64 bytes, one for each [`BLOCK_KEYS`] keys. The leading bits of a key's
//! hash choose a block, the others one bit in each of its eight words. So a look-up meets one line
//! of the processor's cache, and keys that come in order are written from the first block to the
//! last. About one in a thousand keys that were not added passes.
//!
//! Invariant: a key that was added passes.

use super::run_file::{HASH_BITS, short_hash};
use std::hint::black_box;
use std::io::{self, Read, Write};

/// Keys of one block: two bytes of memory for each.
const BLOCK_KEYS: u64 = 32;
const BLOCK_BYTES: usize = 64;
/// Blocks that a processor can wait for at once.
const READ_AHEAD: usize = 32;

/// Eight words, in one line of the cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(align(64))]
struct FilterBlock([u64; 8]);

#[derive(Debug, PartialEq, Eq)]
pub struct KeyFilter {
    blocks: Box<[FilterBlock]>,
}

impl KeyFilter {
    /// Without any key, and with room for so many.
    pub fn for_keys(keys: u64) -> Self {
        Self { blocks: vec![FilterBlock::default(); blocks_of(keys)].into() }
    }

    /// Bytes of a filter for so many keys, in memory and in a file.
    pub fn bytes_of(keys: u64) -> u64 {
        keys.div_ceil(BLOCK_KEYS) * 64
    }

    pub fn add(&mut self, hash: u64) {
        let block = self.block_of(hash);
        for (word, bit) in self.blocks[block].0.iter_mut().zip(bits_of(hash)) {
            *word |= 1 << bit;
        }
    }

    /// Whether the key may have been added.
    pub fn may_hold(&self, hash: u64) -> bool {
        self.blocks.get(self.block_of(hash)).is_some_and(|block| block.may_hold(hash))
    }

    /// Those keys of a batch that may have been added, each with its place there.
    pub fn select(&self, keys: &[(usize, u64)], selected: &mut Vec<(usize, u64)>) {
        for keys in keys.chunks(READ_AHEAD) {
            // The look-ups of one key after the other would wait for memory as often as there are
            // keys. A word of each block that is read first makes that about once.
            for (_, hash) in keys {
                black_box(self.blocks.get(self.block_of(*hash)).map(|block| block.0[0]));
            }
            selected.extend(keys.iter().filter(|(_, hash)| self.may_hold(*hash)));
        }
    }

    fn block_of(&self, hash: u64) -> usize {
        block_of(hash, self.blocks.len())
    }

    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        for block in &self.blocks {
            let mut bytes = [0; BLOCK_BYTES];
            for (chunk, word) in bytes.as_chunks_mut().0.iter_mut().zip(block.0) {
                *chunk = word.to_le_bytes();
            }
            out.write_all(&bytes)?;
        }
        Ok(())
    }

    /// Reads what `write` wrote for so many keys.
    pub fn read(keys: u64, from: &mut impl Read) -> io::Result<Self> {
        let mut filter = Self::for_keys(keys);
        for block in &mut filter.blocks {
            *block = FilterBlock::read(from)?;
        }
        Ok(filter)
    }
}

impl FilterBlock {
    fn read(from: &mut impl Read) -> io::Result<Self> {
        let (mut block, mut bytes) = (Self::default(), [0; BLOCK_BYTES]);
        from.read_exact(&mut bytes)?;
        for (word, chunk) in block.0.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*chunk);
        }
        Ok(block)
    }

    fn may_hold(&self, hash: u64) -> bool {
        // Without branches: which bit is missing differs from key to key.
        self.0.iter().zip(bits_of(hash)).fold(1, |all, (word, bit)| all & (word >> bit)) == 1
    }
}

/// Asks a filter that stays in its file for keys in their order, one block in memory at a time.
pub struct FilterScan<R> {
    blocks: usize,
    /// How many were read; the last of them is `block`.
    read: usize,
    block: FilterBlock,
    from: R,
}

impl<R: Read> FilterScan<R> {
    /// Of the filter for so many keys that is written from here on.
    pub fn new(keys: u64, from: R) -> Self {
        Self { blocks: blocks_of(keys), read: 0, block: FilterBlock::default(), from }
    }

    /// Whether the key may have been added; no key is before the one that was asked for last.
    pub fn may_hold(&mut self, hash: u64) -> io::Result<bool> {
        let wanted = block_of(hash, self.blocks);
        while self.read <= wanted {
            self.block = FilterBlock::read(&mut self.from)?;
            self.read += 1;
        }
        Ok(self.block.may_hold(hash))
    }
}

/// The block of a key, of so many: the next one's is the same or a later one.
fn block_of(hash: u64, blocks: usize) -> usize {
    let blocks = u128::try_from(blocks).expect("a length fits 128 bits");
    let block = (u128::from(hash << (u64::BITS - HASH_BITS)) * blocks) >> u64::BITS;
    usize::try_from(block).expect("less than the number of blocks")
}

fn blocks_of(keys: u64) -> usize {
    usize::try_from(keys.div_ceil(BLOCK_KEYS)).expect("it fits memory")
}

/// A bit of each word. They depend on all bits of the hash, also where its leading ones are those
/// of the block.
fn bits_of(hash: u64) -> [u64; 8] {
    let mixed = short_hash(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = mixed ^ (mixed >> 32);
    [0, 6, 12, 18, 24, 30, 36, 42].map(|shift| (mixed >> shift) & 63)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filter(hashes: &[u64]) -> KeyFilter {
        let mut filter = KeyFilter::for_keys(u64::try_from(hashes.len()).unwrap());
        hashes.iter().for_each(|hash| filter.add(*hash));
        filter
    }

    proptest! {
        #[test]
        fn every_key_passes_also_after_a_file(
            hashes in prop::collection::vec(0..1u64 << HASH_BITS, 0..400),
        ) {
            let made = filter(&hashes);
            let mut bytes = Vec::new();
            made.write(&mut bytes).unwrap();
            let keys = u64::try_from(hashes.len()).unwrap();
            prop_assert_eq!(u64::try_from(bytes.len()).unwrap(), KeyFilter::bytes_of(keys));
            let read = KeyFilter::read(keys, &mut &bytes[..]).unwrap();
            prop_assert!(hashes.iter().all(|hash| read.may_hold(*hash)));
            let (mut sorted, mut scan) = (hashes.clone(), FilterScan::new(keys, &bytes[..]));
            sorted.sort_unstable();
            prop_assert!(sorted.iter().all(|hash| scan.may_hold(*hash).unwrap()));
            let all: Vec<(usize, u64)> = hashes.into_iter().enumerate().collect();
            let mut selected = Vec::new();
            read.select(&all, &mut selected);
            prop_assert_eq!(selected, all);
            prop_assert_eq!(read, made);
            prop_assert!(KeyFilter::read(keys + BLOCK_KEYS, &mut &bytes[..]).is_err());
        }
    }

    #[test]
    fn few_other_keys_pass() {
        let mut next = 7u64;
        let mut random = || {
            next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            next >> (u64::BITS - HASH_BITS)
        };
        for keys in [100, 10_000, 300_000] {
            let hashes: Vec<u64> = (0..keys).map(|_| random()).collect();
            let filter = filter(&hashes);
            let passed = (0..100_000).filter(|_| filter.may_hold(random())).count();
            assert!(passed < 200, "{passed} of 100,000 passed a filter of {keys} keys");
        }
        assert!(!filter(&[]).may_hold(1));
    }
}
