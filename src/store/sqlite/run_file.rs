//! A run file: the keys of the events of one run, sorted by hash, with filters in front.
//!
//! Layout: blocks of records, the index of the blocks, the filters, a footer of fixed size. A
//! record is the key's hash (6 bytes) and its event's place in the run (4 bytes). The index has the
//! first hash and the checksum of each block. There is one filter for each part of all hashes.
//!
//! Memory: index and filters, about 1.2 bytes a key. The records stay on disk; a key that the
//! filter lets through costs one read of a block.
//!
//! Invariant: a file never changes. It is written under another name, synced and renamed, so a
//! crash leaves a whole file or one that nobody refers to. Whatever is read is compared with its
//! checksum first: damage is an error, never a key that is not found. A file holds nothing that
//! the events do not say, so a lost or damaged one is made again from them.

use crate::store::{Error, Result};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use xorf::{BinaryFuse8, BinaryFuse8Ref, DmaSerializable, Filter, FilterRef};

/// Bits of a key's hash that a run holds: the exact key is compared on every hit.
const HASH_BITS: u32 = 48;
const HASH_MASK: u64 = (1 << HASH_BITS) - 1;
const RECORD_BYTES: usize = 10;
const BLOCK_RECORDS: usize = 256;
const BLOCK_BYTES: usize = RECORD_BYTES * BLOCK_RECORDS;
const FENCE_BYTES: usize = 12;
/// Keys of one filter: making one takes about 25 bytes of memory a key.
const FILTER_KEYS: u64 = 1 << 20;
/// Keys after which a merge lets other threads run.
const YIELD_KEYS: u32 = 4_096;
const MAGIC: [u8; 8] = *b"CFKEYS01";
const FOOTER_BYTES: usize = 48;
const FILE_MODE: u32 = 0o600;

/// Most events of a run: a place has 32 bits.
pub const RUN_EVENTS_MAX: u64 = 0xffff_ffff;

/// The part of a key's hash that runs hold.
pub fn short_hash(hash: u64) -> u64 {
    hash & HASH_MASK
}

/// A key in a run. Sorted by hash, then place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyRecord {
    hash: u64,
    place: u32,
}

impl KeyRecord {
    /// The key of the event at `place` of the run.
    pub fn new(hash: u64, place: u32) -> Self {
        Self { hash: short_hash(hash), place }
    }

    fn write(self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.hash.to_le_bytes()[..6]);
        bytes.extend_from_slice(&self.place.to_le_bytes());
    }

    fn read(bytes: &[u8; RECORD_BYTES]) -> Self {
        let [a, b, c, d, e, f, place @ ..] = *bytes;
        let hash = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
        Self { hash, place: u32::from_le_bytes(place) }
    }

    /// A number that differs wherever hash or event differ; the sum over a run tells whether it
    /// holds exactly the keys of its events.
    pub fn mark(self, first_no: u64) -> u64 {
        let mut mixed = self.hash ^ (first_no + u64::from(self.place)).rotate_left(32);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// A run's keys, ready for look-ups.
pub struct RunFile {
    path: PathBuf,
    file: File,
    events: Range<u64>,
    checksum: u32,
    fences: Vec<Fence>,
    filters: Vec<KeyFilter>,
}

struct Fence {
    first: u64,
    checksum: u32,
}

/// Tells whether a key may be among those of its part.
enum KeyFilter {
    Empty,
    Fuse {
        descriptor: [u8; BinaryFuse8::DESCRIPTOR_LEN],
        fingerprints: Box<[u8]>,
    },
    /// No filter could be made: any key may be there.
    Open,
}

impl KeyFilter {
    fn may_hold(&self, hash: u64) -> bool {
        match self {
            Self::Empty => false,
            Self::Fuse { descriptor, fingerprints } => {
                BinaryFuse8Ref::from_dma(descriptor, fingerprints).contains(&hash)
            }
            Self::Open => true,
        }
    }
}

impl RunFile {
    /// Opens the file of a run that has the events `events`.
    pub fn open(path: &Path, events: Range<u64>) -> Result<Self> {
        let file = File::open(path).map_err(|error| unreadable(path, &error))?;
        let length = file.metadata().map_err(|error| unreadable(path, &error))?.len();
        let footer_at = length.checked_sub(wide(FOOTER_BYTES)).ok_or_else(|| damaged(path))?;
        let mut footer = [0; FOOTER_BYTES];
        file.read_exact_at(&mut footer, footer_at).map_err(|error| unreadable(path, &error))?;
        let footer = Footer::read(&footer).ok_or_else(|| damaged(path))?;
        let count = events.end - events.start;
        let blocks = count.div_ceil(wide(BLOCK_RECORDS));
        let records = count * wide(RECORD_BYTES);
        let whole = footer.first_no == events.start
            && footer.keys == count
            && footer.index_bytes == blocks * wide(FENCE_BYTES)
            && Some(length) == footer.length_after(records);
        if !whole {
            return Err(damaged(path));
        }
        let tail = usize::try_from(footer_at - records).map_err(|_| damaged(path))?;
        let mut tail = vec![0; tail];
        file.read_exact_at(&mut tail, records).map_err(|error| unreadable(path, &error))?;
        if crc32fast::hash(&tail) != footer.tail_checksum {
            return Err(damaged(path));
        }
        let (index, filters) =
            tail.split_at(usize::try_from(footer.index_bytes).map_err(|_| damaged(path))?);
        let checksum = crc32fast::hash(index);
        let fences = index.as_chunks().0.iter().map(Fence::read).collect();
        let filters = read_filters(filters, parts_of(count)).ok_or_else(|| damaged(path))?;
        Ok(Self { path: path.to_owned(), file, events, checksum, fences, filters })
    }

    pub fn events(&self) -> Range<u64> {
        self.events.clone()
    }

    /// The checksum of the index, which differs wherever a key differs.
    pub fn checksum(&self) -> u32 {
        self.checksum
    }

    /// Bytes of memory that look-ups need.
    pub fn memory_bytes(keys: u64) -> u64 {
        keys + keys / 4
    }

    /// Whether the key may be in this run. Never wrongly says no.
    pub fn may_hold(&self, hash: u64) -> bool {
        let hash = short_hash(hash);
        self.filters[part_of(hash, self.filters.len())].may_hold(hash)
    }

    /// Appends the numbers of the events whose key has this hash.
    pub fn find(&self, hash: u64, numbers: &mut Vec<u64>) -> Result<()> {
        let hash = short_hash(hash);
        let first = self.fences.partition_point(|fence| fence.first < hash).saturating_sub(1);
        for block in first..self.fences.len() {
            if self.fences[block].first > hash {
                break;
            }
            let records = self.read_block(block)?;
            let start = records.partition_point(|record| record.hash < hash);
            let equal = records[start..].iter().take_while(|record| record.hash == hash);
            numbers.extend(equal.map(|record| self.events.start + u64::from(record.place)));
        }
        Ok(())
    }

    fn read_block(&self, block: usize) -> Result<Vec<KeyRecord>> {
        let count = usize::try_from(self.events.end - self.events.start).expect("it fits memory");
        let records = BLOCK_RECORDS.min(count - block * BLOCK_RECORDS);
        let mut bytes = vec![0; records * RECORD_BYTES];
        let at = wide(block) * wide(BLOCK_BYTES);
        let read = self.file.read_exact_at(&mut bytes, at);
        read.map_err(|error| unreadable(&self.path, &error))?;
        if crc32fast::hash(&bytes) != self.fences[block].checksum {
            return Err(damaged(&self.path));
        }
        Ok(bytes.as_chunks().0.iter().map(KeyRecord::read).collect())
    }

    /// Every key, in order.
    pub fn scan(&self) -> RunScan<'_> {
        RunScan { run: self, next_block: 0, records: Vec::new().into_iter() }
    }

    /// Reads the whole file and compares it with its checksums and its order. Returns the sum of
    /// the marks of its keys.
    pub fn verify(&self) -> Result<u64> {
        let (mut scan, mut last, mut sum) = (self.scan(), None, 0u64);
        while let Some(record) = scan.next_record()? {
            if last.is_some_and(|last| last >= record) || !self.may_hold(record.hash) {
                return Err(damaged(&self.path));
            }
            last = Some(record);
            sum = sum.wrapping_add(record.mark(self.events.start));
        }
        Ok(sum)
    }
}

/// A walk through the keys of a run.
pub struct RunScan<'r> {
    run: &'r RunFile,
    next_block: usize,
    records: std::vec::IntoIter<KeyRecord>,
}

impl RunScan<'_> {
    fn next_record(&mut self) -> Result<Option<KeyRecord>> {
        if let Some(record) = self.records.next() {
            return Ok(Some(record));
        }
        if self.next_block == self.run.fences.len() {
            return Ok(None);
        }
        self.records = self.run.read_block(self.next_block)?.into_iter();
        self.next_block += 1;
        Ok(self.records.next())
    }

    /// The next key's hash and its event's number.
    pub fn next_key(&mut self) -> Result<Option<(u64, u64)>> {
        let first_no = self.run.events.start;
        let record = self.next_record()?;
        Ok(record.map(|record| (record.hash, first_no + u64::from(record.place))))
    }
}

/// Writes one run file.
pub struct RunWriter {
    path: PathBuf,
    temporary: PathBuf,
    file: BufWriter<File>,
    events: Range<u64>,
    parts: usize,
    written: u64,
    block: Vec<u8>,
    block_first: u64,
    index: Vec<u8>,
    filters: Vec<u8>,
    /// The distinct hashes of the part that is being written.
    part_hashes: Vec<u64>,
    part: usize,
}

impl RunWriter {
    pub fn create(path: &Path, events: Range<u64>) -> Result<Self> {
        let count = events.end - events.start;
        assert!(count <= RUN_EVENTS_MAX, "a run has fewer than 2^32 events");
        let temporary = path.with_extension("tmp");
        let mut options = File::options();
        let file = options.create(true).truncate(true).write(true).mode(FILE_MODE).open(&temporary);
        Ok(Self {
            path: path.to_owned(),
            file: BufWriter::with_capacity(1 << 18, file.map_err(|error| io(&temporary, &error))?),
            temporary,
            events,
            parts: parts_of(count),
            written: 0,
            block: Vec::with_capacity(BLOCK_BYTES),
            block_first: 0,
            index: Vec::new(),
            filters: Vec::new(),
            part_hashes: Vec::new(),
            part: 0,
        })
    }

    /// Adds a key; keys come in order.
    pub fn push(&mut self, record: KeyRecord) -> Result<()> {
        let part = part_of(record.hash, self.parts);
        while self.part < part {
            self.end_part();
        }
        if self.part_hashes.last() != Some(&record.hash) {
            self.part_hashes.push(record.hash);
        }
        if self.block.is_empty() {
            self.block_first = record.hash;
        }
        record.write(&mut self.block);
        self.written += 1;
        if self.block.len() == BLOCK_BYTES { self.end_block() } else { Ok(()) }
    }

    /// Makes the file durable and opens it.
    pub fn finish(mut self) -> Result<RunFile> {
        if !self.block.is_empty() {
            self.end_block()?;
        }
        while self.part < self.parts {
            self.end_part();
        }
        assert_eq!(self.written, self.events.end - self.events.start, "every event has a key");
        let mut tail = std::mem::take(&mut self.index);
        let index_bytes = wide(tail.len());
        tail.extend_from_slice(&self.filters);
        let footer = Footer {
            first_no: self.events.start,
            keys: self.written,
            index_bytes,
            filter_bytes: wide(self.filters.len()),
            tail_checksum: crc32fast::hash(&tail),
        };
        self.put(&tail)?;
        self.put(&footer.write())?;
        let path = self.temporary;
        let file = self.file.into_inner().map_err(|error| io(&path, error.error()))?;
        file.sync_all().map_err(|error| super::sync_error(&path, &error))?;
        std::fs::rename(&path, &self.path).map_err(|error| io(&path, &error))?;
        super::sync_directory(&self.path)?;
        RunFile::open(&self.path, self.events)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| io(&self.temporary, &error))
    }

    fn end_block(&mut self) -> Result<()> {
        self.index.extend_from_slice(&self.block_first.to_le_bytes());
        self.index.extend_from_slice(&crc32fast::hash(&self.block).to_le_bytes());
        let block = std::mem::take(&mut self.block);
        self.put(&block)?;
        self.block = block;
        self.block.clear();
        Ok(())
    }

    fn end_part(&mut self) {
        let hashes = std::mem::take(&mut self.part_hashes);
        write_filter(&mut self.filters, &hashes);
        self.part_hashes = hashes;
        self.part_hashes.clear();
        self.part += 1;
    }
}

/// Merges files whose events follow each other into one.
pub fn merge_files(sources: &[&RunFile], path: &Path) -> Result<RunFile> {
    let events = |at: Option<&&RunFile>| at.map(|run| run.events()).unwrap_or_default();
    let (first_no, end) = (events(sources.first()).start, events(sources.last()).end);
    let mut writer = RunWriter::create(path, first_no..end)?;
    let mut scans: Vec<RunScan<'_>> = sources.iter().map(|run| run.scan()).collect();
    let mut next: BinaryHeap<Reverse<(u64, u64, usize)>> = BinaryHeap::new();
    for (source, scan) in scans.iter_mut().enumerate() {
        next.extend(scan.next_key()?.map(|(hash, number)| Reverse((hash, number, source))));
    }
    while let Some(Reverse((hash, number, source))) = next.pop() {
        let place = u32::try_from(number - first_no).expect("a place has 32 bits");
        writer.push(KeyRecord { hash, place })?;
        if place.is_multiple_of(YIELD_KEYS) {
            std::thread::yield_now();
        }
        let following = scans[source].next_key()?;
        next.extend(following.map(|(hash, number)| Reverse((hash, number, source))));
    }
    writer.finish()
}

struct Footer {
    first_no: u64,
    keys: u64,
    index_bytes: u64,
    filter_bytes: u64,
    tail_checksum: u32,
}

impl Footer {
    fn write(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for number in [self.first_no, self.keys, self.index_bytes, self.filter_bytes] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&self.tail_checksum.to_le_bytes());
        let checksum = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn read(bytes: &[u8; FOOTER_BYTES]) -> Option<Self> {
        let (body, checksum) = bytes.split_last_chunk::<4>()?;
        if crc32fast::hash(body) != u32::from_le_bytes(*checksum) || !body.starts_with(&MAGIC) {
            return None;
        }
        let (numbers, tail) = body[MAGIC.len()..].as_chunks::<8>();
        let number = |place: usize| u64::from_le_bytes(numbers[place]);
        Some(Self {
            first_no: number(0),
            keys: number(1),
            index_bytes: number(2),
            filter_bytes: number(3),
            tail_checksum: u32::from_le_bytes(tail.try_into().ok()?),
        })
    }

    /// The length of a file with so many bytes of records.
    fn length_after(&self, records: u64) -> Option<u64> {
        let tail = self.index_bytes.checked_add(self.filter_bytes)?;
        records.checked_add(tail)?.checked_add(wide(FOOTER_BYTES))
    }
}

impl Fence {
    fn read(bytes: &[u8; FENCE_BYTES]) -> Self {
        let [first @ .., a, b, c, d] = *bytes;
        Self { first: u64::from_le_bytes(first), checksum: u32::from_le_bytes([a, b, c, d]) }
    }
}

/// Marks a part without a filter that could be made.
const OPEN: u32 = u32::MAX;

fn write_filter(bytes: &mut Vec<u8>, hashes: &[u64]) {
    if hashes.is_empty() {
        bytes.extend_from_slice(&0u32.to_le_bytes());
        return;
    }
    let Ok(filter) = BinaryFuse8::try_from(hashes) else {
        bytes.extend_from_slice(&OPEN.to_le_bytes());
        return;
    };
    let fingerprints = filter.dma_fingerprints();
    let length = u32::try_from(fingerprints.len()).expect("a part has about a million keys");
    bytes.extend_from_slice(&length.to_le_bytes());
    let mut descriptor = [0; BinaryFuse8::DESCRIPTOR_LEN];
    filter.dma_copy_descriptor_to(&mut descriptor);
    bytes.extend_from_slice(&descriptor);
    bytes.extend_from_slice(fingerprints);
}

fn read_filters(mut bytes: &[u8], parts: usize) -> Option<Vec<KeyFilter>> {
    let mut filters = Vec::with_capacity(parts);
    for _ in 0..parts {
        let (length, rest) = bytes.split_first_chunk()?;
        bytes = rest;
        let filter = match u32::from_le_bytes(*length) {
            0 => KeyFilter::Empty,
            OPEN => KeyFilter::Open,
            length => {
                let (descriptor, rest) = bytes.split_first_chunk()?;
                let (fingerprints, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
                bytes = rest;
                KeyFilter::Fuse { descriptor: *descriptor, fingerprints: fingerprints.into() }
            }
        };
        filters.push(filter);
    }
    bytes.is_empty().then_some(filters)
}

/// Parts into which the hashes of so many keys are split.
fn parts_of(keys: u64) -> usize {
    usize::try_from(keys.div_ceil(FILTER_KEYS).max(1)).expect("a few thousand")
}

fn part_of(hash: u64, parts: usize) -> usize {
    let part = (u128::from(hash) * u128::from(wide(parts))) >> HASH_BITS;
    usize::try_from(part).expect("less than the number of parts")
}

fn wide(length: usize) -> u64 {
    u64::try_from(length).expect("a length fits 64 bits")
}

fn damaged(path: &Path) -> Error {
    Error::Corrupt { what: format!("the key run {} is damaged", path.display()) }
}

/// A file that cannot be read whole is as good as lost.
fn unreadable(path: &Path, error: &std::io::Error) -> Error {
    Error::Corrupt { what: format!("the key run {} cannot be read: {error}", path.display()) }
}

fn io(path: &Path, error: &std::io::Error) -> Error {
    Error::Unavailable { what: format!("cannot write {}: {error}", path.display()) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn write(path: &Path, first_no: u64, hashes: &[u64]) -> RunFile {
        let count = wide(hashes.len());
        let mut records: Vec<_> =
            (0..).zip(hashes).map(|(place, hash)| KeyRecord::new(*hash, place)).collect();
        records.sort_unstable();
        let mut writer = RunWriter::create(path, first_no..first_no + count).unwrap();
        records.into_iter().for_each(|record| writer.push(record).unwrap());
        writer.finish().unwrap()
    }

    fn found(run: &RunFile, hash: u64) -> Vec<u64> {
        let mut numbers = Vec::new();
        if run.may_hold(hash) {
            run.find(hash, &mut numbers).unwrap();
        }
        numbers
    }

    fn sum_of(first_no: u64, hashes: &[u64]) -> u64 {
        let marks = (0..).zip(hashes).map(|(place, hash)| KeyRecord::new(*hash, place));
        marks.fold(0, |sum, record| sum.wrapping_add(record.mark(first_no)))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn every_key_is_found_alone_and_merged(
            first in prop::collection::vec(prop_oneof![any::<u64>(), 0..40u64], 1..900),
            second in prop::collection::vec(prop_oneof![any::<u64>(), 0..40u64], 1..900),
        ) {
            let directory = tempfile::tempdir().unwrap();
            let path = |name: &str| directory.path().join(name);
            let middle = 7 + wide(first.len());
            let runs = [write(&path("a"), 7, &first), write(&path("b"), middle, &second)];
            let merged = merge_files(&[&runs[0], &runs[1]], &path("c")).unwrap();
            let all: Vec<u64> = first.iter().chain(&second).copied().collect();
            for (number, hash) in (7..).zip(&all) {
                prop_assert!(found(&merged, *hash).contains(&number));
                let own = if number < middle { &runs[0] } else { &runs[1] };
                prop_assert!(found(own, *hash).contains(&number));
            }
            for hash in 40..80 {
                prop_assert!(all.contains(&hash) || found(&merged, hash).is_empty());
            }
            prop_assert_eq!(merged.verify().unwrap(), sum_of(7, &all));
        }
    }

    #[test]
    fn a_key_of_many_events_spans_blocks() {
        let directory = tempfile::tempdir().unwrap();
        let hashes: Vec<u64> = (0..2_000).map(|number| number / 700).collect();
        let run = write(&directory.path().join("r"), 1, &hashes);
        assert_eq!(found(&run, 1), (701..=1_400).collect::<Vec<_>>());
    }

    #[test]
    fn any_flipped_bit_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r");
        let hashes: Vec<u64> =
            (0..600).map(|number: u64| number.wrapping_mul(0x9e37_79b9)).collect();
        write(&path, 1, &hashes);
        let sound = std::fs::read(&path).unwrap();
        for at in (0..sound.len()).step_by(97) {
            let mut bytes = sound.clone();
            bytes[at] ^= 4;
            std::fs::write(&path, &bytes).unwrap();
            let read = RunFile::open(&path, 1..601).and_then(|run| run.verify());
            assert!(matches!(read, Err(Error::Corrupt { .. })), "byte {at}");
        }
        for length in [0, 10, sound.len() / 2, sound.len() - 1] {
            std::fs::write(&path, &sound[..length]).unwrap();
            assert!(RunFile::open(&path, 1..601).is_err(), "{length} bytes");
        }
        std::fs::write(&path, &sound).unwrap();
        assert!(RunFile::open(&path, 1..602).is_err(), "of other events");
        assert!(RunFile::open(&path, 1..601).is_ok());
    }
}
