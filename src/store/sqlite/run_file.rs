//! A run file: the keys of the events of one run, sorted by hash, with a filter in front.
//!
//! Layout: blocks of records, the index of the blocks, the filter, a footer of fixed size. A
//! record is the key's hash (6 bytes) and its event's place in the run (4 bytes). The index has the
//! first hash and the checksum of each block.
//!
//! Memory: index and filter, about 2.1 bytes a key. The records stay on disk; a key that the
//! filter lets through costs one read of a block.
//!
//! Invariant: a file never changes. It is written under another name, synced and renamed, so a
//! crash leaves a whole file or one that nobody refers to. Whatever is read is compared with its
//! checksum first: damage is an error, never a key that is not found. A file holds nothing that
//! the events do not say, so a lost or damaged one is made again from them. That the system has no
//! file handle or no memory to spare is not damage, and passes.

use super::key_filter::{FilterScan, KeyFilter};
use crate::store::{Error, Result};
use rustix::io::Errno;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bits of a key's hash that a run holds: the exact key is compared on every hit.
pub const HASH_BITS: u32 = 48;
const HASH_MASK: u64 = (1 << HASH_BITS) - 1;
const RECORD_BYTES: usize = 10;
const BLOCK_RECORDS: usize = 256;
const BLOCK_BYTES: usize = RECORD_BYTES * BLOCK_RECORDS;
const FENCE_BYTES: usize = 12;
/// Keys after which a merge lets other threads run.
const YIELD_KEYS: u32 = 4_096;
const BUFFER_BYTES: usize = 256 * 1024;
/// Bytes after which a file that is being written is synced: a commit that syncs meanwhile waits
/// for no more of it.
const SYNCED_BYTES: usize = 8 << 20;
const MAGIC: [u8; 8] = *b"CFKEYS02";
const FOOTER_BYTES: usize = 48;
const FILE_MODE: u32 = 0o600;

/// What a disk or a file system answers that has lost what it held.
const BROKEN: &[Errno] = &[
    Errno::IO,
    Errno::BADMSG,
    #[cfg(target_os = "linux")]
    Errno::UCLEAN,
];

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
    filter: KeyFilter,
}

struct Fence {
    first: u64,
    checksum: u32,
}

impl RunFile {
    /// Opens the file of a run that has the events `events`.
    pub fn open(path: &Path, events: Range<u64>) -> Result<Self> {
        Self::open_with(path, events, |keys, from| {
            KeyFilter::read(keys, &mut BufReader::with_capacity(BUFFER_BYTES, from))
        })
    }

    /// The same without its filter in memory, for those that read it from one end to the other.
    pub fn open_to_scan(path: &Path, events: Range<u64>) -> Result<Self> {
        Self::open_with(path, events, |_, from| {
            io::copy(from, &mut io::sink())?;
            Ok(KeyFilter::for_keys(0))
        })
    }

    fn open_with(
        path: &Path,
        events: Range<u64>,
        read_filter: impl FnOnce(u64, &mut dyn Read) -> io::Result<KeyFilter>,
    ) -> Result<Self> {
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
            && footer.filter_bytes == KeyFilter::bytes_of(count)
            && Some(length) == footer.length_after(records);
        if !whole {
            return Err(damaged(path));
        }
        let mut tail =
            Checked::new(FileFrom { file: &file, at: records }.take(footer_at - records));
        let mut index = vec![0; usize::try_from(footer.index_bytes).map_err(|_| damaged(path))?];
        let read = tail.read_exact(&mut index).and_then(|()| read_filter(count, &mut tail));
        let filter = read.map_err(|error| unreadable(path, &error))?;
        if tail.checksum.finalize() != footer.tail_checksum {
            return Err(damaged(path));
        }
        let checksum = crc32fast::hash(&index);
        let fences = index.as_chunks().0.iter().map(Fence::read).collect();
        Ok(Self { path: path.to_owned(), file, events, checksum, fences, filter })
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
        KeyFilter::bytes_of(keys) + keys / wide(BLOCK_RECORDS) * wide(size_of::<Fence>())
    }

    /// Whether the key may be in this run. Never wrongly says no.
    pub fn may_hold(&self, hash: u64) -> bool {
        self.filter.may_hold(hash)
    }

    /// The keys of a batch that may be in this run, each with its place there.
    pub fn select(&self, keys: &[(usize, u64)], selected: &mut Vec<(usize, u64)>) {
        self.filter.select(keys, selected);
    }

    /// The first block that may have the hash.
    fn first_block(&self, hash: u64) -> usize {
        self.fences.partition_point(|fence| fence.first < hash).saturating_sub(1)
    }

    /// Has the system read the block of a key that is looked up soon, and does not wait for it.
    pub fn prefetch(&self, hash: u64) {
        let at = wide(self.first_block(short_hash(hash))) * wide(BLOCK_BYTES);
        prefetch(&self.file, at, wide(BLOCK_BYTES));
    }

    /// Appends the numbers of the events whose key has this hash.
    pub fn find(&self, hash: u64, numbers: &mut Vec<u64>) -> Result<()> {
        let hash = short_hash(hash);
        let first = self.first_block(hash);
        let mut bytes = [0; BLOCK_BYTES];
        for block in first..self.fences.len() {
            if self.fences[block].first > hash {
                break;
            }
            let records = self.read_block(block, &mut bytes)?;
            let start = records.partition_point(|record| KeyRecord::read(record).hash < hash);
            let records = records[start..].iter().map(KeyRecord::read);
            let equal = records.take_while(|record| record.hash == hash);
            numbers.extend(equal.map(|record| self.events.start + u64::from(record.place)));
        }
        Ok(())
    }

    /// The records of a block, in `bytes`.
    fn read_block<'b>(
        &self,
        block: usize,
        bytes: &'b mut [u8; BLOCK_BYTES],
    ) -> Result<&'b [[u8; RECORD_BYTES]]> {
        let count = usize::try_from(self.events.end - self.events.start).expect("it fits memory");
        let records = BLOCK_RECORDS.min(count - block * BLOCK_RECORDS);
        let bytes = &mut bytes[..records * RECORD_BYTES];
        let at = wide(block) * wide(BLOCK_BYTES);
        self.file.read_exact_at(bytes, at).map_err(|error| unreadable(&self.path, &error))?;
        if crc32fast::hash(bytes) != self.fences[block].checksum {
            return Err(damaged(&self.path));
        }
        Ok(bytes.as_chunks().0)
    }

    /// Every key, in order.
    pub fn scan(&self) -> RunScan<'_> {
        RunScan { run: self, next_block: 0, records: Vec::new().into_iter() }
    }

    fn scan_filter(&self) -> FilterScan<impl Read> {
        let keys = self.events.end - self.events.start;
        let index = wide(self.fences.len()) * wide(FENCE_BYTES);
        let from = FileFrom { file: &self.file, at: keys * wide(RECORD_BYTES) + index };
        FilterScan::new(keys, BufReader::with_capacity(BUFFER_BYTES, from))
    }

    /// Reads the whole file and compares it with its checksums and its order. Returns the sum of
    /// the marks of its keys.
    pub fn verify(&self) -> Result<u64> {
        let (mut scan, mut last, mut sum) = (self.scan(), None, 0u64);
        let mut filter = self.scan_filter();
        while let Some(record) = scan.next_record()? {
            let passes = |filter: &mut FilterScan<_>| filter.may_hold(record.hash);
            let held = passes(&mut filter).map_err(|error| unreadable(&self.path, &error))?;
            if last.is_some_and(|last| last >= record) || !held {
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
        let mut bytes = [0; BLOCK_BYTES];
        let records = self.run.read_block(self.next_block, &mut bytes)?;
        self.records = records.iter().map(KeyRecord::read).collect::<Vec<_>>().into_iter();
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

/// Writes one run file. One that is not finished is removed.
pub struct RunWriter {
    path: PathBuf,
    temporary: Temporary,
    file: BufWriter<SyncedFile>,
    events: Range<u64>,
    written: u64,
    block: Vec<u8>,
    block_first: u64,
    fences: Vec<Fence>,
    filter: KeyFilter,
}

/// A file that is removed unless it has got its final name.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // After the rename there is none; one that stays is deleted at the next start.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl RunWriter {
    pub fn create(path: &Path, events: Range<u64>) -> Result<Self> {
        let count = events.end - events.start;
        assert!(count <= RUN_EVENTS_MAX, "a run has fewer than 2^32 events");
        let temporary = path.with_extension("tmp");
        let mut options = File::options();
        options.create(true).truncate(true).read(true).write(true).mode(FILE_MODE);
        let file = options.open(&temporary).map_err(|error| unwritten(&temporary, &error))?;
        let file = SyncedFile { file, path: temporary.clone(), unsynced: 0 };
        Ok(Self {
            path: path.to_owned(),
            temporary: Temporary(temporary),
            file: BufWriter::with_capacity(BUFFER_BYTES, file),
            events,
            written: 0,
            block: Vec::with_capacity(BLOCK_BYTES),
            block_first: 0,
            fences: Vec::new(),
            filter: KeyFilter::for_keys(count),
        })
    }

    /// Adds a key; keys come in order.
    pub fn push(&mut self, record: KeyRecord) -> Result<()> {
        self.filter.add(record.hash);
        if self.block.is_empty() {
            self.block_first = record.hash;
        }
        record.write(&mut self.block);
        self.written += 1;
        if self.block.len() == BLOCK_BYTES { self.end_block() } else { Ok(()) }
    }

    /// Makes the file durable.
    pub fn finish(mut self) -> Result<RunFile> {
        if !self.block.is_empty() {
            self.end_block()?;
        }
        assert_eq!(self.written, self.events.end - self.events.start, "every event has a key");
        let index: Vec<u8> = self.fences.iter().flat_map(Fence::write).collect();
        let failed = |error| unwritten(&self.temporary.0, &error);
        let mut tail = Checked::new(&mut self.file);
        tail.write_all(&index).and_then(|()| self.filter.write(&mut tail)).map_err(failed)?;
        let tail_checksum = tail.checksum.finalize();
        let footer = Footer {
            first_no: self.events.start,
            keys: self.written,
            index_bytes: wide(index.len()),
            filter_bytes: KeyFilter::bytes_of(self.written),
            tail_checksum,
        };
        self.file.write_all(&footer.write()).map_err(failed)?;
        let file = self.file.into_inner().map_err(|error| failed(error.into_error()))?.file;
        file.sync_all().map_err(|error| super::sync_error(&self.temporary.0, &error))?;
        std::fs::rename(&self.temporary.0, &self.path).map_err(failed)?;
        super::sync_directory(&self.path)?;
        Ok(RunFile {
            path: self.path,
            file,
            events: self.events,
            checksum: crc32fast::hash(&index),
            fences: self.fences,
            filter: self.filter,
        })
    }

    fn end_block(&mut self) -> Result<()> {
        let checksum = crc32fast::hash(&self.block);
        self.fences.push(Fence { first: self.block_first, checksum });
        let written = self.file.write_all(&self.block);
        self.block.clear();
        written.map_err(|error| unwritten(&self.temporary.0, &error))
    }
}

/// A file that is synced as it grows.
struct SyncedFile {
    file: File,
    path: PathBuf,
    unsynced: usize,
}

impl Write for SyncedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.unsynced += written;
        if self.unsynced >= SYNCED_BYTES {
            self.unsynced = 0;
            self.file
                .sync_data()
                .inspect_err(|error| drop(super::sync_error(&self.path, error)))?;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A file from some byte on.
struct FileFrom<'f> {
    file: &'f File,
    at: u64,
}

impl Read for FileFrom<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(bytes, self.at)?;
        self.at += wide(read);
        Ok(read)
    }
}

/// Sums up what passes it.
struct Checked<T> {
    inner: T,
    checksum: crc32fast::Hasher,
}

impl<T> Checked<T> {
    fn new(inner: T) -> Self {
        Self { inner, checksum: crc32fast::Hasher::new() }
    }
}

impl<T: Write> Write for Checked<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.checksum.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Read for Checked<T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(bytes)?;
        self.checksum.update(&bytes[..read]);
        Ok(read)
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
    fn write(&self) -> [u8; FENCE_BYTES] {
        let ([a, b, c, d, e, f, g, h], [i, j, k, l]) =
            (self.first.to_le_bytes(), self.checksum.to_le_bytes());
        [a, b, c, d, e, f, g, h, i, j, k, l]
    }

    fn read(bytes: &[u8; FENCE_BYTES]) -> Self {
        let [first @ .., a, b, c, d] = *bytes;
        Self { first: u64::from_le_bytes(first), checksum: u32::from_le_bytes([a, b, c, d]) }
    }
}

fn wide(length: usize) -> u64 {
    u64::try_from(length).expect("a length fits 64 bits")
}

fn damaged(path: &Path) -> Error {
    Error::Corrupt { what: format!("the key run {} is damaged", path.display()) }
}

/// A file that is gone, too short, or on a broken disk is damaged. Any other failure may pass.
fn unreadable(path: &Path, error: &io::Error) -> Error {
    let what = format!("the key run {} cannot be read: {error}", path.display());
    let lost = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof);
    let broken = |code| BROKEN.iter().any(|errno| errno.raw_os_error() == code);
    if lost || error.raw_os_error().is_some_and(broken) {
        return Error::Corrupt { what };
    }
    Error::Unavailable { what }
}

fn unwritten(path: &Path, error: &io::Error) -> Error {
    Error::Unavailable { what: format!("cannot write {}: {error}", path.display()) }
}

/// What fails here is only slower.
#[cfg(target_os = "linux")]
fn prefetch(file: &File, at: u64, bytes: u64) {
    let bytes = std::num::NonZeroU64::new(bytes);
    let _ = rustix::fs::fadvise(file, at, bytes, rustix::fs::Advice::WillNeed);
}

#[cfg(not(target_os = "linux"))]
fn prefetch(_: &File, _: u64, _: u64) {}

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
