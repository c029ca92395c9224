//! Total blocks: the totals of a run, a few hundred to a row, in the order of their keys.
//!
//! A body is a checksum and records. A record is a total, or one value that a unique meter has
//! seen, which comes after its total. Of its key it holds what differs from the record before it.
//! A row names the key of its first record and the tenant of its last one, so a reader finds the
//! blocks of a tenant and meter by the index, and passes over the block before them unread if it
//! ends with another tenant.
//!
//! Invariant: keys ascend strictly within a block and from block to block of a run, and a block
//! never changes. A body that does not agree with its checksum is damage and stops the reader;
//! nothing is skipped.

use super::corrupt;
use super::record::{Reader, write_number, write_signed, write_text};
use super::statements::Statements;
use crate::rules::ids::{EventId, MeterNo, TenantNo};
use crate::rules::quantity::Quantity;
use crate::rules::rollup::{Accumulator, Group, Rollup, RollupKey};
use crate::rules::timestamp::Timestamp;
use crate::store::{Error, Result};
use rusqlite::{Connection, Params, params};
use std::collections::BTreeSet;

/// With its row around it, a block of this size still fits one page of the database.
const BLOCK_BYTES: usize = 4_000;
const CHECKSUM_BYTES: usize = 4;

/// Of a record's first byte: its kind, and which parts of its key are those of the record before.
const KIND_BITS: u8 = 0b0000_0111;
const SAME_TENANT: u8 = 0b0000_1000;
const SAME_METER: u8 = 0b0001_0000;
const SAME_BUCKET: u8 = 0b0010_0000;
const SAME_GROUP: u8 = 0b0100_0000;

const COUNT: u8 = 0;
const SUM: u8 = 1;
const MIN: u8 = 2;
const MAX: u8 = 3;
const LATEST: u8 = 4;
const UNIQUE: u8 = 5;
const VALUE: u8 = 6;

/// One record of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TotalRecord {
    pub key: RollupKey,
    pub part: TotalPart,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TotalPart {
    /// A total. That of a unique meter has its values in records of their own.
    Total(Rollup),
    /// A value of a unique meter's total.
    Value(Box<str>),
}

impl TotalRecord {
    /// Where the record is in the order of its run.
    pub fn place(&self) -> (&RollupKey, Option<&str>) {
        match &self.part {
            TotalPart::Total(_) => (&self.key, None),
            TotalPart::Value(value) => (&self.key, Some(value)),
        }
    }
}

/// A block before it is a row: the key of its first record, and its body.
pub struct NewBlock {
    tenant: TenantNo,
    meter: MeterNo,
    bucket_start: Timestamp,
    /// Of the last record: readers of later tenants pass over the block, also if it is damaged.
    last_tenant: TenantNo,
    body: Vec<u8>,
}

/// Collects records, in their order, into blocks.
#[derive(Default)]
pub struct BlockBuilder {
    full: Vec<NewBlock>,
    open: Option<NewBlock>,
    before: Before,
}

/// The key of the record before, of which the next one holds the differences.
#[derive(Default)]
struct Before {
    tenant: u32,
    meter: u16,
    bucket_start: i64,
    group: Vec<u8>,
    value: Vec<u8>,
}

impl BlockBuilder {
    /// Adds a total and, if its meter is unique, its values.
    pub fn push_total(&mut self, key: &RollupKey, total: &Rollup) {
        self.push(key, |bytes, _| write_total(bytes, key, total), kind_of(total));
        if let Accumulator::Unique(values) = &total.value {
            values.iter().for_each(|value| self.push_value(key, value));
        }
    }

    fn push_value(&mut self, key: &RollupKey, value: &str) {
        let write = |bytes: &mut Vec<u8>, before: &Before| {
            write_shared(bytes, &before.value, value.as_bytes());
        };
        self.push(key, write, VALUE);
        self.before.value = value.as_bytes().to_vec();
    }

    pub fn push_record(&mut self, record: &TotalRecord) {
        match &record.part {
            TotalPart::Total(total) => self.push_total(&record.key, total),
            TotalPart::Value(value) => self.push_value(&record.key, value),
        }
    }

    fn push(&mut self, key: &RollupKey, write: impl Fn(&mut Vec<u8>, &Before), kind: u8) {
        if let Some(open) = &mut self.open {
            let end = open.body.len();
            write_key(&mut open.body, &self.before, key, kind);
            write(&mut open.body, &self.before);
            if open.body.len() > BLOCK_BYTES {
                open.body.truncate(end);
                self.end_block();
            }
        }
        if self.open.is_none() {
            self.before = Before::default();
            let mut body = vec![0; CHECKSUM_BYTES];
            write_key(&mut body, &self.before, key, kind);
            write(&mut body, &self.before);
            let RollupKey { tenant, meter, bucket_start, .. } = *key;
            self.open = Some(NewBlock { tenant, meter, bucket_start, last_tenant: tenant, body });
        }
        if let Some(open) = &mut self.open {
            open.last_tenant = key.tenant;
        }
        let before = &mut self.before;
        (before.tenant, before.meter) = (key.tenant.0, key.meter.0);
        before.bucket_start = key.bucket_start.micros();
        before.group.clear();
        before.group.extend_from_slice(key.group.as_text().as_bytes());
    }

    fn end_block(&mut self) {
        let Some(mut block) = self.open.take() else { return };
        let checksum = crc32fast::hash(&block.body[CHECKSUM_BYTES..]);
        block.body[..CHECKSUM_BYTES].copy_from_slice(&checksum.to_le_bytes());
        self.full.push(block);
    }

    pub fn full_blocks(&self) -> usize {
        self.full.len()
    }

    /// Takes the blocks that are full.
    pub fn take_full(&mut self) -> Vec<NewBlock> {
        std::mem::take(&mut self.full)
    }

    /// All blocks that were not taken.
    pub fn finish(mut self) -> Vec<NewBlock> {
        self.end_block();
        self.full
    }
}

fn kind_of(total: &Rollup) -> u8 {
    match &total.value {
        Accumulator::Count => COUNT,
        Accumulator::Sum(_) => SUM,
        Accumulator::Min(_) => MIN,
        Accumulator::Max(_) => MAX,
        Accumulator::Latest { .. } => LATEST,
        Accumulator::Unique(_) => UNIQUE,
    }
}

fn write_key(bytes: &mut Vec<u8>, before: &Before, key: &RollupKey, kind: u8) {
    let (bucket_start, group) = (key.bucket_start.micros(), key.group.as_text().as_bytes());
    let same = |same: bool, flag: u8| if same { flag } else { 0 };
    let same_tenant = same(key.tenant.0 == before.tenant, SAME_TENANT);
    let same_meter = same(key.meter.0 == before.meter, SAME_METER);
    let same_bucket = same(bucket_start == before.bucket_start, SAME_BUCKET);
    let same_group = same(group == before.group, SAME_GROUP);
    bytes.push(kind | same_tenant | same_meter | same_bucket | same_group);
    if same_tenant == 0 {
        write_number(bytes, (key.tenant.0 - before.tenant).into());
    }
    if same_meter == 0 {
        write_number(bytes, key.meter.0.into());
    }
    if same_bucket == 0 {
        write_signed(bytes, i128::from(bucket_start) - i128::from(before.bucket_start));
    }
    if same_group == 0 {
        write_shared(bytes, &before.group, group);
    }
}

fn write_total(bytes: &mut Vec<u8>, key: &RollupKey, total: &Rollup) {
    write_number(bytes, total.count.into());
    match &total.value {
        Accumulator::Count | Accumulator::Unique(_) => {}
        Accumulator::Sum(quantity) | Accumulator::Min(quantity) | Accumulator::Max(quantity) => {
            write_signed(bytes, quantity.units());
        }
        Accumulator::Latest { at, id, quantity } => {
            write_signed(bytes, quantity.units());
            write_signed(bytes, i128::from(at.micros()) - i128::from(key.bucket_start.micros()));
            write_text(bytes, id.as_str());
        }
    }
}

/// Writes how many bytes are those of `before`, and the others.
fn write_shared(bytes: &mut Vec<u8>, before: &[u8], text: &[u8]) {
    let shared = before.iter().zip(text).take_while(|(a, b)| a == b).count();
    let number = |length: usize| u128::try_from(length).expect("a length fits 128 bits");
    write_number(bytes, number(shared));
    write_number(bytes, number(text.len() - shared));
    bytes.extend_from_slice(&text[shared..]);
}

fn read_shared(reader: &mut Reader<'_>, text: &mut Vec<u8>) -> Option<()> {
    let shared = usize::try_from(reader.number()?).ok()?;
    let rest = usize::try_from(reader.number()?).ok()?;
    if shared > text.len() {
        return None;
    }
    text.truncate(shared);
    text.extend_from_slice(reader.take(rest)?);
    Some(())
}

/// Goes through the records of a block. A record that is passed over costs no allocation.
struct Cursor {
    body: Vec<u8>,
    at: usize,
    key: Before,
    /// The group of the last record that was built, if it is still that of the cursor.
    group: Option<Group>,
    kind: u8,
    count: u64,
    units: i128,
    latest: Option<(i64, Box<str>)>,
}

impl Cursor {
    fn open(body: Vec<u8>) -> Option<Self> {
        let (checksum, records) = body.split_first_chunk::<CHECKSUM_BYTES>()?;
        let sound = crc32fast::hash(records) == u32::from_le_bytes(*checksum);
        sound.then(|| Self {
            body,
            at: CHECKSUM_BYTES,
            key: Before::default(),
            group: None,
            kind: COUNT,
            count: 0,
            units: 0,
            latest: None,
        })
    }

    /// Reads the next record. None if it is damaged, false at the end.
    fn advance(&mut self) -> Option<bool> {
        if self.at == self.body.len() {
            return Some(false);
        }
        let mut reader = Reader { bytes: &self.body, at: self.at };
        let (key, flags) = (&mut self.key, reader.byte()?);
        if flags & SAME_TENANT == 0 {
            key.tenant = key.tenant.checked_add(u32::try_from(reader.number()?).ok()?)?;
        }
        if flags & SAME_METER == 0 {
            key.meter = u16::try_from(reader.number()?).ok()?;
        }
        if flags & SAME_BUCKET == 0 {
            let bucket_start = i128::from(key.bucket_start).checked_add(reader.signed()?)?;
            key.bucket_start = i64::try_from(bucket_start).ok()?;
        }
        if flags & SAME_GROUP == 0 {
            read_shared(&mut reader, &mut key.group)?;
            self.group = None;
        }
        self.kind = flags & KIND_BITS;
        if self.kind == VALUE {
            read_shared(&mut reader, &mut key.value)?;
        } else {
            self.count = u64::try_from(reader.number()?).ok()?;
        }
        if matches!(self.kind, SUM | MIN | MAX | LATEST) {
            self.units = reader.signed()?;
        }
        if self.kind == LATEST {
            let at = i128::from(key.bucket_start).checked_add(reader.signed()?)?;
            self.latest = Some((i64::try_from(at).ok()?, reader.text()?.into()));
        }
        self.at = reader.at;
        Some(true)
    }

    fn place(&self) -> (TenantNo, MeterNo, Timestamp) {
        let Before { tenant, meter, bucket_start, .. } = self.key;
        (TenantNo(tenant), MeterNo(meter), Timestamp::from_micros(bucket_start))
    }

    fn record(&mut self) -> Option<TotalRecord> {
        let group = match &self.group {
            Some(group) => group.clone(),
            None => Group::from_stored(std::str::from_utf8(&self.key.group).ok()?),
        };
        self.group = Some(group.clone());
        let (tenant, meter, bucket_start) = self.place();
        let key = RollupKey { tenant, meter, bucket_start, group };
        Some(TotalRecord { key, part: self.part()? })
    }

    fn part(&self) -> Option<TotalPart> {
        let quantity = Quantity::from_units(self.units);
        let value = match self.kind {
            COUNT => Accumulator::Count,
            SUM => Accumulator::Sum(quantity),
            MIN => Accumulator::Min(quantity),
            MAX => Accumulator::Max(quantity),
            LATEST => {
                let (at, id) = self.latest.as_ref()?;
                let (at, id) = (Timestamp::from_micros(*at), EventId::parse(id).ok()?);
                Accumulator::Latest { at, id, quantity }
            }
            UNIQUE => Accumulator::Unique(BTreeSet::new()),
            VALUE => {
                return Some(TotalPart::Value(std::str::from_utf8(&self.key.value).ok()?.into()));
            }
            _ => return None,
        };
        Some(TotalPart::Total(Rollup { count: self.count, value }))
    }
}

/// Writes the next blocks of a run.
pub fn insert_blocks(connection: &Connection, run_no: i64, blocks: &[NewBlock]) -> Result<()> {
    for NewBlock { tenant, meter, bucket_start, last_tenant, body } in blocks {
        connection.run(
            "-- insert_blocks
             INSERT INTO total_blocks
                 (run_no, tenant_no, meter_no, bucket_start, last_tenant_no, body)
             VALUES (?, ?, ?, ?, ?, ?)",
            params![run_no, tenant.0, meter.0, bucket_start.micros(), last_tenant.0, body],
        )?;
    }
    Ok(())
}

/// Deletes up to `limit` blocks of a run. Returns how many it deleted.
pub fn delete_blocks(connection: &Connection, run_no: i64, limit: usize) -> Result<usize> {
    connection.run(
        "-- delete_blocks
         DELETE FROM total_blocks WHERE block_no IN
             (SELECT block_no FROM total_blocks WHERE run_no = ? LIMIT ?)",
        params![run_no, limit],
    )
}

/// Where a record or a block starts.
pub type Place = (TenantNo, MeterNo, Timestamp);

/// Reads the records of a run in their order, one block at a time. Runs never change, so the reader
/// needs no transaction around it.
pub struct RecordReader<'c> {
    connection: &'c Connection,
    run_no: i64,
    /// The start and the number of the last block that was fetched.
    fetched: (Place, i64),
    cursor: Option<Cursor>,
    /// Whether the cursor is at a record that was not returned yet.
    waiting: bool,
    /// Blocks that start here or after it are not read, so damage to them harms no reader of
    /// others.
    end: Place,
}

impl<'c> RecordReader<'c> {
    /// Before the first record of the run.
    pub fn all(connection: &'c Connection, run_no: i64) -> Self {
        let before_all = (TenantNo(0), MeterNo(0), Timestamp::from_micros(i64::MIN));
        let end = (TenantNo(u32::MAX), MeterNo(u16::MAX), Timestamp::from_micros(i64::MAX));
        Self { connection, run_no, fetched: (before_all, -1), cursor: None, waiting: false, end }
    }

    /// Before the first record that is at `place` or after it.
    pub fn seek(connection: &'c Connection, run_no: i64, place: Place) -> Result<Self> {
        let end = (TenantNo(u32::MAX), MeterNo(u16::MAX), Timestamp::from_micros(i64::MAX));
        Self::seek_before(connection, run_no, place, end)
    }

    /// The same; the reader may end once it has returned the last record before `end`.
    pub fn seek_before(
        connection: &'c Connection,
        run_no: i64,
        place: Place,
        end: Place,
    ) -> Result<Self> {
        let mut reader = Self { end, ..Self::all(connection, run_no) };
        reader.fetch_before(place)?;
        while reader.advance()? {
            if reader.cursor.as_ref().is_some_and(|cursor| cursor.place() >= place) {
                reader.waiting = true;
                break;
            }
        }
        Ok(reader)
    }

    /// The next record, or none at the end.
    pub fn next(&mut self) -> Result<Option<TotalRecord>> {
        if !std::mem::take(&mut self.waiting) && !self.advance()? {
            return Ok(None);
        }
        let record = self.cursor.as_mut().and_then(Cursor::record);
        record.ok_or_else(|| damaged_block(self.run_no)).map(Some)
    }

    fn advance(&mut self) -> Result<bool> {
        loop {
            let advanced = self.cursor.as_mut().map_or(Some(false), Cursor::advance);
            if advanced.ok_or_else(|| damaged_block(self.run_no))? {
                return Ok(true);
            }
            let (run_no, ((tenant, meter, bucket_start), block_no)) = (self.run_no, self.fetched);
            let found = self.fetch(
                "-- advance
                 SELECT tenant_no, meter_no, bucket_start, block_no, body FROM total_blocks
                 WHERE run_no = ?
                     AND (tenant_no, meter_no, bucket_start, block_no) > (?, ?, ?, ?)
                 ORDER BY tenant_no, meter_no, bucket_start, block_no LIMIT 1",
                params![run_no, tenant.0, meter.0, bucket_start.micros(), block_no],
            )?;
            if !found {
                return Ok(false);
            }
        }
    }

    /// Fetches the last block that starts before `place`; without its body if it ends before the
    /// tenant. Returns whether there is one.
    fn fetch_before(&mut self, (tenant, meter, bucket_start): Place) -> Result<bool> {
        let run_no = self.run_no;
        self.fetch(
            "-- fetch_before
             SELECT tenant_no, meter_no, bucket_start, block_no,
                 CASE WHEN last_tenant_no >= ?2 THEN body END
             FROM total_blocks
             WHERE run_no = ?1 AND (tenant_no, meter_no, bucket_start) < (?2, ?3, ?4)
             ORDER BY tenant_no DESC, meter_no DESC, bucket_start DESC, block_no DESC LIMIT 1",
            params![run_no, tenant.0, meter.0, bucket_start.micros()],
        )
    }

    fn fetch(&mut self, sql: &str, values: impl Params) -> Result<bool> {
        let found = self.connection.read_optional(sql, values, |row| {
            let place = (TenantNo(row.get(0)?), MeterNo(row.get(1)?), row.get(2)?);
            let place = (place.0, place.1, Timestamp::from_micros(place.2));
            Ok(((place, row.get(3)?), row.get::<_, Option<Vec<u8>>>(4)?))
        })?;
        let Some((fetched, body)) = found else { return Ok(false) };
        if fetched.0 >= self.end {
            return Ok(false);
        }
        self.fetched = fetched;
        self.cursor = match body {
            Some(body) => Some(Cursor::open(body).ok_or_else(|| damaged_block(self.run_no))?),
            None => None,
        };
        Ok(true)
    }

    /// Passes over the rest of a block that cannot be read.
    pub fn skip_block(&mut self) {
        self.cursor = None;
    }
}

/// The first and the last bucket of a tenant's totals of a meter in one run.
pub fn find_bounds(
    connection: &Connection,
    run_no: i64,
    (tenant, meter): (TenantNo, MeterNo),
) -> Result<Option<(Timestamp, Timestamp)>> {
    let own = |key: &RollupKey| (key.tenant, key.meter) == (tenant, meter);
    let start = (tenant, meter, Timestamp::from_micros(i64::MIN));
    let first = RecordReader::seek(connection, run_no, start)?.next()?;
    let Some(first) = first.filter(|record| own(&record.key)) else { return Ok(None) };
    let (first, mut last) = (first.key.bucket_start, first.key.bucket_start);
    // The last of them is in the last block that starts before their end.
    let mut reader = RecordReader::all(connection, run_no);
    reader.fetch_before((tenant, meter, Timestamp::from_micros(i64::MAX)))?;
    let mut cursor = reader.cursor.ok_or_else(|| damaged_block(run_no))?;
    while cursor.advance().ok_or_else(|| damaged_block(run_no))? {
        let place = cursor.place();
        if (place.0, place.1) == (tenant, meter) {
            last = last.max(place.2);
        }
    }
    Ok(Some((first, last)))
}

fn damaged_block(run_no: i64) -> Error {
    corrupt(&format!("total_blocks.body of run {run_no}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn any_rollup() -> impl Strategy<Value = Rollup> {
        let quantity = || any::<i128>().prop_map(Quantity::from_units);
        let values =
            prop::collection::btree_set("[a-zé]{0,9}".prop_map(String::into_boxed_str), 0..9);
        let latest = (any::<i64>(), "[a-z]{1,9}", quantity());
        let value = prop_oneof![
            Just(Accumulator::Count),
            quantity().prop_map(Accumulator::Sum),
            quantity().prop_map(Accumulator::Min),
            quantity().prop_map(Accumulator::Max),
            latest.prop_map(|(at, id, quantity)| Accumulator::Latest {
                at: Timestamp::from_micros(at),
                id: EventId::parse(&id).unwrap(),
                quantity
            }),
            values.prop_map(Accumulator::Unique),
        ];
        (any::<u64>(), value).prop_map(|(count, value)| Rollup { count, value })
    }

    fn any_key() -> impl Strategy<Value = RollupKey> {
        let bucket = prop_oneof![0..9i64, any::<i64>()];
        let group = "(\\[\"[a-cé]{0,4}\"\\])?";
        (0..20u32, 0..3u16, bucket, group).prop_map(|(tenant, meter, bucket, group)| RollupKey {
            tenant: TenantNo(tenant),
            meter: MeterNo(meter),
            bucket_start: Timestamp::from_micros(bucket),
            group: Group::from_stored(&group),
        })
    }

    /// A database with these totals as run 1, between two others.
    fn store(totals: &BTreeMap<RollupKey, Rollup>) -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        let schema = include_str!("../../../migrations/ledger/0001_ledger.sql");
        connection.execute_batch(schema).unwrap();
        for run_no in [0, 2, 1] {
            let mut builder = BlockBuilder::default();
            totals.iter().for_each(|(key, total)| builder.push_total(key, total));
            insert_blocks(&connection, run_no, &builder.finish()).unwrap();
        }
        connection
    }

    /// The totals behind a reader, up to the first that is not wanted.
    fn read(
        mut reader: RecordReader<'_>,
        wanted: impl Fn(&RollupKey) -> bool,
    ) -> BTreeMap<RollupKey, Rollup> {
        let mut totals: BTreeMap<RollupKey, Rollup> = BTreeMap::new();
        while let Some(TotalRecord { key, part }) = reader.next().unwrap() {
            if !wanted(&key) {
                break;
            }
            match part {
                TotalPart::Total(total) => assert!(totals.insert(key, total).is_none()),
                TotalPart::Value(value) => {
                    let Accumulator::Unique(values) = &mut totals.get_mut(&key).unwrap().value
                    else {
                        panic!("only a unique meter has values")
                    };
                    assert!(values.insert(value));
                }
            }
        }
        totals
    }

    proptest! {
        #[test]
        fn totals_are_written_and_read_back(
            totals in prop::collection::btree_map(any_key(), any_rollup(), 0..600),
            place in any_key(),
        ) {
            let connection = store(&totals);
            prop_assert_eq!(&read(RecordReader::all(&connection, 1), |_| true), &totals);
            let start = (place.tenant, place.meter, place.bucket_start);
            let reader = RecordReader::seek(&connection, 1, start).unwrap();
            let own = |key: &RollupKey| (key.tenant, key.meter) == (place.tenant, place.meter);
            let found = read(reader, own);
            let mut behind = totals.clone();
            behind.retain(|key, _| own(key) && key.bucket_start >= place.bucket_start);
            prop_assert_eq!(found, behind);
            let bounds = find_bounds(&connection, 1, (place.tenant, place.meter)).unwrap();
            let buckets = || totals.keys().filter(|key| own(key)).map(|key| key.bucket_start);
            prop_assert_eq!(bounds, buckets().min().zip(buckets().max()));
        }

        #[test]
        fn damaged_records_never_panic(records in prop::collection::vec(any::<u8>(), 0..80)) {
            let mut body = crc32fast::hash(&records).to_le_bytes().to_vec();
            body.extend_from_slice(&records);
            let mut cursor = Cursor::open(body).unwrap();
            while cursor.advance() == Some(true) {
                let _ = cursor.record();
            }
        }
    }

    #[test]
    fn a_changed_byte_is_found() {
        let key = RollupKey {
            tenant: TenantNo(1),
            meter: MeterNo(1),
            bucket_start: Timestamp::from_micros(0),
            group: Group::default(),
        };
        let total = Rollup { count: 7, value: Accumulator::Sum(Quantity::from_units(5)) };
        let connection = store(&[(key, total)].into());
        let body: Vec<u8> = connection
            .query_row("SELECT body FROM total_blocks WHERE run_no = 1", [], |row| row.get(0))
            .unwrap();
        for place in 0..body.len() {
            let mut changed = body.clone();
            changed[place] ^= 1;
            let sql = "UPDATE total_blocks SET body = ? WHERE run_no = 1";
            connection.execute(sql, [changed]).unwrap();
            let read = RecordReader::all(&connection, 1).next();
            assert!(matches!(read, Err(Error::Corrupt { .. })), "byte {place}");
        }
    }
}
