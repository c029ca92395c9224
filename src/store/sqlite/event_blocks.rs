//! Event blocks: the folded events, a few dozen to a row, in the order of their numbers.
//!
//! A body is a checksum and the compressed records of its events, each as it was in the journal
//! and followed by how long after its use it was received.
//!
//! Invariant: blocks follow each other without a gap, and a block never changes. A body that does
//! not agree with its checksum is damage and stops the reader; nothing is skipped.

use super::corrupt;
use super::record::{EventView, Reader, decompress, event_end, write_number, write_signed};
use super::segment::Segment;
use super::statements::Statements;
use crate::rules::event::Event;
use crate::rules::ids::{TenantId, TenantNo};
use crate::rules::timestamp::Timestamp;
use crate::store::{Result, StoredEvent};
use rusqlite::{Connection, params};
use std::ops::Range;

/// Events of a block: more compress better, fewer are read faster one at a time.
const BLOCK_EVENTS: usize = 64;
/// A block of large events ends before it has so many.
const BLOCK_BYTES: usize = 64 * 1024;

/// Collects events into blocks and writes each that is full.
pub struct BlockWriter<'c> {
    connection: &'c Connection,
    first_no: u64,
    events: usize,
    records: Vec<u8>,
}

impl<'c> BlockWriter<'c> {
    /// The first event will have the number `first_no`.
    pub fn new(connection: &'c Connection, first_no: u64) -> Self {
        Self { connection, first_no, events: 0, records: Vec::with_capacity(BLOCK_BYTES) }
    }

    /// Adds the event at a place of a segment.
    pub fn push(&mut self, segment: &Segment, place: u32) -> Result<()> {
        let (record, received_at) = segment.record(place);
        self.records.extend_from_slice(record);
        let after = received_at.micros() - segment.entry(place).occurred_at.micros();
        write_signed(&mut self.records, after.into());
        self.events += 1;
        let full = self.events == BLOCK_EVENTS || self.records.len() >= BLOCK_BYTES;
        if full { self.end_block() } else { Ok(()) }
    }

    pub fn finish(mut self) -> Result<()> {
        if self.events == 0 { Ok(()) } else { self.end_block() }
    }

    fn end_block(&mut self) -> Result<()> {
        let count = u64::try_from(self.events).expect("a length fits 64 bits");
        let mut head = Vec::with_capacity(self.records.len() + 2);
        write_number(&mut head, count.into());
        head.extend_from_slice(&self.records);
        let compressed = lz4_flex::compress_prepend_size(&head);
        let mut body = crc32fast::hash(&compressed).to_le_bytes().to_vec();
        body.extend_from_slice(&compressed);
        self.connection.run(
            "-- end_block\nINSERT INTO event_blocks (first_no, body) VALUES (?, ?)",
            params![self.first_no, body],
        )?;
        self.first_no += count;
        self.events = 0;
        self.records.clear();
        Ok(())
    }
}

/// A block that was read.
pub struct EventBlock {
    pub first_no: u64,
    bytes: Vec<u8>,
    /// Where each event's record starts.
    offsets: Vec<usize>,
}

impl EventBlock {
    /// The block of the event with this number.
    pub fn fetch(connection: &Connection, number: u64) -> Result<Self> {
        let found = connection.read_optional(
            "-- fetch
             SELECT first_no, body FROM event_blocks WHERE first_no <= ?
             ORDER BY first_no DESC LIMIT 1",
            [number],
            |row| Self::decode(row.get(0)?, row.get_ref(1)?.as_blob().unwrap_or_default()),
        )?;
        let block = found.ok_or_else(|| corrupt("the event block"))?;
        if block.numbers().contains(&number) { Ok(block) } else { Err(corrupt("an event")) }
    }

    /// Reads a row of `event_blocks`.
    pub fn decode(first_no: u64, body: &[u8]) -> Result<Self> {
        Self::try_decode(first_no, body).ok_or_else(|| corrupt("event_blocks.body"))
    }

    fn try_decode(first_no: u64, body: &[u8]) -> Option<Self> {
        let (checksum, compressed) = body.split_first_chunk()?;
        if crc32fast::hash(compressed) != u32::from_le_bytes(*checksum) {
            return None;
        }
        let bytes = decompress(compressed)?;
        let mut reader = Reader { bytes: &bytes, at: 0 };
        let mut offsets = Vec::new();
        for _ in 0..reader.number()? {
            offsets.push(reader.at);
            reader.at = event_end(&bytes, reader.at).ok()?;
            reader.signed()?;
        }
        let whole = reader.at == bytes.len() && !offsets.is_empty();
        whole.then_some(Self { first_no, bytes, offsets })
    }

    /// The numbers of its events.
    pub fn numbers(&self) -> Range<u64> {
        self.first_no..self.first_no + u64::try_from(self.offsets.len()).expect("64 bits")
    }

    /// The event with this number, which is one of the block's, and when it was received.
    pub fn view(&self, number: u64) -> Result<(EventView<'_>, Timestamp)> {
        let place = usize::try_from(number - self.first_no).expect("within the block");
        let view = EventView::read(&self.bytes, self.offsets[place])?;
        let mut reader = Reader { bytes: &self.bytes, at: view.end };
        let after = reader.signed().and_then(|after| i64::try_from(after).ok());
        let after = after.ok_or_else(|| corrupt("event_blocks.body"))?;
        let received_at = view.occurred_at.saturating_add_micros(after);
        Ok((view, received_at))
    }
}

/// Reads single events; those that share a block with the one before cost no further read.
pub struct EventReader<'c> {
    connection: &'c Connection,
    block: Option<EventBlock>,
}

impl<'c> EventReader<'c> {
    pub fn new(connection: &'c Connection) -> Self {
        Self { connection, block: None }
    }

    pub fn view(&mut self, number: u64) -> Result<(EventView<'_>, Timestamp)> {
        self.load(number)?.view(number)
    }

    /// The event if it has this very key.
    pub fn find_key(
        &mut self,
        number: u64,
        (tenant_no, tenant): (TenantNo, &TenantId),
        id: &str,
    ) -> Result<Option<StoredEvent>> {
        let (view, received_at) = self.view(number)?;
        if view.tenant != tenant_no || view.id != id {
            return Ok(None);
        }
        let event: Event = view.to_event(tenant.clone())?;
        Ok(Some(StoredEvent { event, received_at }))
    }

    /// The block of an event, and nothing else any more.
    pub fn into_block(mut self, number: u64) -> Result<EventBlock> {
        self.load(number)?;
        Ok(self.block.expect("it was just read"))
    }

    pub fn load(&mut self, number: u64) -> Result<&EventBlock> {
        let at_hand = self.block.as_ref().is_some_and(|block| block.numbers().contains(&number));
        if !at_hand {
            self.block = Some(EventBlock::fetch(self.connection, number)?);
        }
        Ok(self.block.as_ref().expect("it was just read"))
    }
}
