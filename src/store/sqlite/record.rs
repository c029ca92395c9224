//! The bytes of an event in the journal and in memory, and of a journal row.
//!
//! Invariant: what is written reads back equal, field by field. A byte that cannot be read is
//! corruption and stops the reader; nothing is skipped.
//!
//! Event: tenant number, meter number, flags, occurred_at (8 bytes, little endian), quantity, id,
//! subscription if flagged, properties. Numbers are variable-length, texts preceded by their
//! length. Journal row, lz4-compressed: version, counters, number of events, events. The second
//! version, which has one more number to a counter, is only written where events were admitted.

use crate::rules::event::Event;
use crate::rules::ids::{EventId, MeterNo, SubscriptionId, TenantId, TenantNo};
use crate::rules::properties::Properties;
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;
use crate::rules::verdict::Tally;
use crate::store::{Error, Result};

const VERSION: u8 = 1;
/// Counters have one more number: events that were admitted.
const VERSION_WITH_ADMITTED: u8 = 2;
/// No byte of LZ4 expands to more bytes than this: 255 is the largest step of a length.
const LZ4_RATIO_MAX: usize = 255;
const FLAG_TRIAL: u8 = 1;
const FLAG_SUBSCRIPTION: u8 = 2;

/// A tenant's counters in one journal row; accepted events are not in it, they are in the row. How
/// many of them were admitted is in it.
pub type CounterEntry = (TenantNo, Tally);

/// Appends one event.
pub fn write_event(bytes: &mut Vec<u8>, tenant: TenantNo, event: &Event) {
    write_number(bytes, u128::from(tenant.0));
    write_number(bytes, u128::from(event.meter.0));
    let subscription_flag = if event.subscription.is_some() { FLAG_SUBSCRIPTION } else { 0 };
    bytes.push(if event.trial { FLAG_TRIAL } else { 0 } | subscription_flag);
    bytes.extend_from_slice(&event.occurred_at.micros().to_le_bytes());
    write_signed(bytes, event.quantity.units());
    write_text(bytes, event.id.as_str());
    if let Some(subscription) = &event.subscription {
        write_text(bytes, subscription.as_str());
    }
    write_text(bytes, event.properties.as_text());
}

/// The event that starts at `offset`, its parts still in place.
pub struct EventView<'a> {
    pub tenant: TenantNo,
    pub meter: MeterNo,
    pub occurred_at: Timestamp,
    pub quantity: Quantity,
    pub id: &'a str,
    pub subscription: Option<&'a str>,
    pub trial: bool,
    pub properties: &'a str,
    /// Where the next event starts.
    pub end: usize,
}

impl<'a> EventView<'a> {
    pub fn read(bytes: &'a [u8], offset: usize) -> Result<Self> {
        Self::try_read(bytes, offset).ok_or_else(corrupt)
    }

    fn try_read(bytes: &'a [u8], offset: usize) -> Option<Self> {
        let mut reader = Reader { bytes, at: offset };
        let tenant = TenantNo(u32::try_from(reader.number()?).ok()?);
        let meter = MeterNo(u16::try_from(reader.number()?).ok()?);
        let flags = reader.byte()?;
        let micros = i64::from_le_bytes(reader.take(8)?.try_into().ok()?);
        let quantity = Quantity::from_units(reader.signed()?);
        let id = reader.text()?;
        let subscription = if flags & FLAG_SUBSCRIPTION != 0 { Some(reader.text()?) } else { None };
        let properties = reader.text()?;
        let occurred_at = Timestamp::from_micros(micros);
        let (trial, end) = (flags & FLAG_TRIAL != 0, reader.at);
        Some(Self {
            tenant,
            meter,
            occurred_at,
            quantity,
            id,
            subscription,
            trial,
            properties,
            end,
        })
    }

    /// The whole event; `tenant` is the name of its tenant number.
    pub fn to_event(&self, tenant: TenantId) -> Result<Event> {
        let id = EventId::parse(self.id).map_err(|_| corrupt())?;
        let subscription = self.subscription.map(SubscriptionId::parse).transpose();
        Ok(Event {
            tenant,
            id,
            meter: self.meter,
            quantity: self.quantity,
            occurred_at: self.occurred_at,
            properties: Properties::from_stored(self.properties),
            subscription: subscription.map_err(|_| corrupt())?,
            trial: self.trial,
        })
    }
}

/// Where the event that starts at `offset` ends, without a look at its texts.
pub fn event_end(bytes: &[u8], offset: usize) -> Result<usize> {
    let mut reader = Reader { bytes, at: offset };
    let mut skip = || -> Option<()> {
        reader.number()?;
        reader.number()?;
        let flags = reader.byte()?;
        reader.take(8)?;
        reader.number()?;
        for _ in 0..2 + usize::from(flags & FLAG_SUBSCRIPTION != 0) {
            let length = usize::try_from(reader.number()?).ok()?;
            reader.take(length)?;
        }
        Some(())
    };
    skip().ok_or_else(corrupt)?;
    Ok(reader.at)
}

/// The compressed body of a journal row.
pub fn write_journal(counters: &[CounterEntry], event_count: usize, events: &[u8]) -> Vec<u8> {
    let admitted = counters.iter().any(|(_, tally)| tally.admitted > 0);
    let mut head = vec![if admitted { VERSION_WITH_ADMITTED } else { VERSION }];
    write_number(&mut head, wide(counters.len()));
    for (tenant, tally) in counters {
        write_number(&mut head, u128::from(tenant.0));
        for count in [tally.duplicates, tally.conflicts, tally.quarantined, tally.rejected] {
            write_number(&mut head, u128::from(count));
        }
        if admitted {
            write_number(&mut head, u128::from(tally.admitted));
        }
    }
    write_number(&mut head, wide(event_count));
    head.extend_from_slice(events);
    lz4_flex::compress_prepend_size(&head)
}

/// What a journal row holds.
pub struct JournalBody {
    pub counters: Vec<CounterEntry>,
    pub event_count: usize,
    /// The events, one after the other.
    pub events: Vec<u8>,
}

pub fn read_journal(body: &[u8]) -> Result<JournalBody> {
    let bytes = decompress(body).ok_or_else(corrupt)?;
    let mut reader = Reader { bytes: &bytes, at: 0 };
    let mut read = || -> Option<(Vec<CounterEntry>, usize, usize)> {
        let admitted = match reader.byte()? {
            VERSION => false,
            VERSION_WITH_ADMITTED => true,
            _ => return None,
        };
        let mut counters = Vec::new();
        for _ in 0..reader.number()? {
            let tenant = TenantNo(u32::try_from(reader.number()?).ok()?);
            let mut count = || u64::try_from(reader.number()?).ok();
            let tally = Tally {
                accepted: 0,
                duplicates: count()?,
                conflicts: count()?,
                quarantined: count()?,
                rejected: count()?,
                admitted: if admitted { count()? } else { 0 },
            };
            counters.push((tenant, tally));
        }
        let event_count = usize::try_from(reader.number()?).ok()?;
        Some((counters, event_count, reader.at))
    };
    let (counters, event_count, start) = read().ok_or_else(corrupt)?;
    Ok(JournalBody { counters, event_count, events: bytes[start..].to_vec() })
}

/// The size comes before the compressed bytes and is allocated at once. A damaged one could ask for
/// 4 GiB, which would end the process where the row should be reported.
pub fn decompress(body: &[u8]) -> Option<Vec<u8>> {
    let (size, compressed) = lz4_flex::block::uncompressed_size(body).ok()?;
    if size > compressed.len().saturating_mul(LZ4_RATIO_MAX) {
        return None;
    }
    lz4_flex::decompress(compressed, size).ok()
}

fn corrupt() -> Error {
    Error::Corrupt { what: "journal.body is not valid".into() }
}

fn wide(number: usize) -> u128 {
    u128::try_from(number).expect("a length fits 128 bits")
}

/// Seven bits a byte, least significant first.
pub fn write_number(bytes: &mut Vec<u8>, mut number: u128) {
    // Nearly every number fits 64 bits, which are cheaper to shift.
    let mut small = loop {
        match u64::try_from(number) {
            Ok(small) => break small,
            Err(_) => bytes.push(low_bits(number.to_le_bytes()[0])),
        }
        number >>= 7;
    };
    while small >= 0x80 {
        bytes.push(low_bits(small.to_le_bytes()[0]));
        small >>= 7;
    }
    bytes.push(small.to_le_bytes()[0]);
}

/// Seven bits with the mark that more follow.
fn low_bits(byte: u8) -> u8 {
    byte | 0x80
}

/// The sign in the lowest bit, so that small negative numbers stay short.
pub fn write_signed(bytes: &mut Vec<u8>, number: i128) {
    let folded = (number << 1) ^ (number >> 127);
    write_number(bytes, u128::from_le_bytes(folded.to_le_bytes()));
}

pub fn write_text(bytes: &mut Vec<u8>, text: &str) {
    write_number(bytes, wide(text.len()));
    bytes.extend_from_slice(text.as_bytes());
}

/// Reads what [`write_number`] and the others wrote; None where the bytes are damaged.
pub struct Reader<'a> {
    pub bytes: &'a [u8],
    pub at: usize,
}

impl<'a> Reader<'a> {
    pub fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    pub fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let slice = self.bytes.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        Some(slice)
    }

    pub fn number(&mut self) -> Option<u128> {
        // Nine bytes fit 64 bits; nearly every number ends within them.
        let mut small = 0u64;
        for shift in (0..63).step_by(7) {
            let byte = self.byte()?;
            small |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(u128::from(small));
            }
        }
        let mut number = u128::from(small);
        for shift in (63..128).step_by(7) {
            let byte = self.byte()?;
            number |= u128::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    pub fn signed(&mut self) -> Option<i128> {
        let folded = self.number()?;
        let magnitude = i128::from_le_bytes((folded >> 1).to_le_bytes());
        Some(if folded & 1 == 1 { !magnitude } else { magnitude })
    }

    pub fn text(&mut self) -> Option<&'a str> {
        let length = usize::try_from(self.number()?).ok()?;
        std::str::from_utf8(self.take(length)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_event() -> impl Strategy<Value = Event> {
        let ids = ("[^\\x00-\\x1f\\x7f-\\x9f]{1,20}", proptest::option::of("[a-z]{1,9}"));
        (ids, any::<u16>(), any::<i128>(), any::<i64>(), "[a-z{}\"]{0,30}", any::<bool>()).prop_map(
            |((id, subscription), meter, units, at, properties, trial)| Event {
                tenant: TenantId::parse("acme").expect("valid"),
                id: EventId::parse(&id).expect("valid"),
                meter: MeterNo(meter),
                quantity: Quantity::from_units(units),
                occurred_at: Timestamp::from_micros(at),
                properties: Properties::from_stored(&properties),
                subscription: subscription.map(|s| SubscriptionId::parse(&s).expect("valid")),
                trial,
            },
        )
    }

    #[test]
    fn a_damaged_size_is_refused_before_it_is_allocated() {
        let mut body = write_journal(&[], 0, &[0; 1_000]);
        assert!(decompress(&body).is_some());
        body[3] = 0xff;
        assert!(decompress(&body).is_none());
        assert!(read_journal(&body).is_err());
    }

    proptest! {
        #[test]
        fn written_and_read_back(
            events in proptest::collection::vec(any_event(), 0..5),
            tenant in any::<u32>(),
            n in any::<u64>(),
            admitted in proptest::option::of(any::<u64>()),
        ) {
            let mut bytes = Vec::new();
            events.iter().for_each(|event| write_event(&mut bytes, TenantNo(tenant), event));
            let admitted = admitted.unwrap_or(0);
            let tally = Tally { duplicates: n, rejected: 1, admitted, ..Tally::default() };
            let body = write_journal(&[(TenantNo(tenant), tally)], events.len(), &bytes);
            let read = read_journal(&body).expect("readable");
            prop_assert_eq!(read.counters, vec![(TenantNo(tenant), tally)]);
            prop_assert_eq!(read.event_count, events.len());
            let mut offset = 0;
            for event in &events {
                let view = EventView::read(&read.events, offset).expect("readable");
                prop_assert_eq!(view.tenant, TenantNo(tenant));
                prop_assert_eq!(&view.to_event(event.tenant.clone()).expect("valid"), event);
                prop_assert_eq!(event_end(&read.events, offset).expect("readable"), view.end);
                offset = view.end;
            }
            prop_assert_eq!(offset, read.events.len());
        }

        #[test]
        fn a_row_of_equal_bytes_reads_back(byte in any::<u8>(), length in 0..100_000usize) {
            let events = vec![byte; length];
            let read = read_journal(&write_journal(&[], 0, &events)).expect("readable");
            prop_assert_eq!(read.events, events);
        }

        #[test]
        fn damaged_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = read_journal(&bytes);
            let _ = EventView::read(&bytes, 0).map(|view| view.end);
            let _ = event_end(&bytes, 0);
        }
    }
}
