//! What must hold for any bytes that reach a parser: one function for each target of `fuzz/`.
//!
//! Invariant: no input makes a function here panic. Each reads its input as the server would, and
//! asserts what must be true of whatever was accepted, mostly that writing it and reading it again
//! gives the same value. The tests below run every function on stable Rust, over arbitrary bytes
//! and over changed copies of the valid inputs in `fuzzing/seeds/`; `fuzz/` runs the same functions
//! under libFuzzer. They are compiled for these two alone.

use crate::config::Secret;
use crate::http::events::items::{Format, Items, parse_items};
use crate::http::{alerts, counters, passes, quotes, records};
use crate::provider::stripe::signature::{Forgery, verify};
use crate::provider::stripe::webhook::{is_plain, parse_webhook};
use crate::rules::digest::hex;
use crate::rules::event::{Event, parse_event};
use crate::rules::ids::{MeterNo, MeterSlug, TenantId};
use crate::rules::meter::{Catalog, Meter};
use crate::rules::mirror::Snapshot;
use crate::rules::timestamp::{MICROS_PER_SECOND, Timestamp};
use crate::rules::verdict::Tally;
use crate::store::CounterRow;
use crate::store::sqlite::record::{self, EventView};
use hmac::{Hmac, KeyInit, Mac};
use serde_json::Value;
use sha2::Sha256;
use std::sync::{Arc, LazyLock};

/// Whether a target accepted its input. A fuzzer has no use for it; the tests need it to show that
/// the seeds are valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Accepted,
    Refused,
}

impl Outcome {
    fn accepted_if(accepted: bool) -> Self {
        if accepted { Self::Accepted } else { Self::Refused }
    }
}

/// Most events of one body.
const EVENTS_MAX: usize = 64;

static CATALOG: LazyLock<Catalog> = LazyLock::new(|| {
    let specs = [("calls", r#"{"aggregation":"sum"}"#), ("visitors", r#"{"aggregation":"count"}"#)];
    let mut catalog = Catalog::default();
    for (number, (slug, spec)) in (1u16..).zip(specs) {
        let slug = MeterSlug::parse(slug).expect("the slug is valid");
        let spec = serde_json::from_str(spec).expect("the declaration is JSON");
        let meter = Meter::declare(slug, spec).expect("the declaration is valid");
        catalog.insert(MeterNo(number), Arc::new(meter));
    }
    catalog
});

/// The body of `POST /v1/events` as `application/json`, and as lines.
///
/// Events that were accepted, written as an array or as lines, are read as the same events.
pub fn event_json(body: &[u8]) -> Outcome {
    read_events(body, Format::Lines);
    let events: Vec<Event> = read_events(body, Format::Json).into_iter().flatten().collect();
    let written: Vec<String> = events.iter().map(write_event).collect();
    let same = |body: String, format: Format| {
        let read: Option<Vec<Event>> = read_events(body.as_bytes(), format).into_iter().collect();
        assert_eq!(read.as_ref(), Some(&events), "{body}");
    };
    same(format!("[{}]", written.join(",")), Format::Json);
    same(written.join("\n"), Format::Lines);
    Outcome::accepted_if(!events.is_empty())
}

/// The body of `POST /v1/events` in the media types of CloudEvents.
///
/// The id of an event is the JSON array of source and id, its tenant is the subject, and the event
/// in the native form is the same event.
pub fn cloud_event(body: &[u8]) -> Outcome {
    let batch = body.trim_ascii_start().starts_with(b"[");
    let format = if batch { Format::CloudEvents } else { Format::CloudEvent };
    let events = read_events(body, format);
    let envelopes = match serde_json::from_slice(body) {
        Ok(Value::Array(envelopes)) if batch => envelopes,
        Ok(envelope) => vec![envelope],
        // The parser reads no number that it does not need; `Value` reads all, and not every one.
        Err(_) => vec![Value::Null; events.len()],
    };
    for (event, envelope) in events.iter().zip(&envelopes) {
        let Some(event) = event else { continue };
        let native = write_event(event);
        assert_eq!(read_events(native.as_bytes(), Format::Json), [Some(event.clone())], "{native}");
        if envelope["specversion"].is_string() {
            let (source, id): (String, String) =
                serde_json::from_str(event.id.as_str()).expect("an id is an array of two texts");
            assert_eq!(envelope["source"], source.as_str());
            assert_eq!(envelope["id"], id.as_str());
            assert_eq!(envelope["subject"], event.tenant.as_str());
        }
    }
    Outcome::accepted_if(events.iter().any(Option::is_some))
}

/// The items of a body; `None` for an item that was refused.
fn read_events(body: &[u8], format: Format) -> Vec<Option<Event>> {
    let Ok(Items { items, .. }) = parse_items(body, format, EVENTS_MAX) else { return vec![] };
    assert!(items.len() <= EVENTS_MAX, "{} items", items.len());
    items.iter().map(|item| parse_event(item.as_ref().ok()?, &CATALOG).ok()).collect()
}

fn write_event(event: &Event) -> String {
    let meter = CATALOG.get(event.meter).expect("an event has a meter of the catalog");
    event.to_json(&meter.slug)
}

/// The body of a webhook from Stripe whose signature was good.
///
/// The first name of a webhook is its event's id, no name is empty or unprintable, and what follows
/// from an object exists only with the object.
pub fn stripe_webhook(body: &[u8]) -> Outcome {
    let Ok(facts) = parse_webhook(body) else { return Outcome::Refused };
    assert_eq!(facts.names.first(), Some(&facts.event_id));
    assert!(facts.names.iter().all(|name| is_plain(name)), "{:?}", facts.names);
    assert!(facts.snapshot.is_none() || facts.object.is_some(), "{facts:?}");
    let of_subscription = matches!(facts.snapshot, Some(Snapshot::Subscription(_)));
    assert!(facts.timeline.is_none() || of_subscription, "{facts:?}");
    let spaced = [b" ".as_slice(), body, b"\r\n"].concat();
    assert_eq!(parse_webhook(&spaced).as_ref(), Ok(&facts), "spaces around it change nothing");
    Outcome::Accepted
}

const WEBHOOK_SECRET: &str = "whsec_fuzzing";
/// When the server receives a webhook, in seconds since 1970.
const WEBHOOK_SECONDS: i64 = 1_700_000_000;

/// The header `Stripe-Signature` on the first line, and the body after it.
///
/// A header that is accepted holds the signature of the body. What Stripe would send for the body
/// is accepted, and refused for any other body.
pub fn stripe_signature(bytes: &[u8]) -> Outcome {
    let (header, body) = match bytes.iter().position(|byte| *byte == b'\n') {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, &[][..]),
    };
    let secrets = [Secret::new("whsec_other"), Secret::new(WEBHOOK_SECRET)];
    let now = Timestamp::from_micros(WEBHOOK_SECONDS * MICROS_PER_SECOND);
    let judge = |header: &str, body: &[u8]| verify(&secrets, header, body, now);

    let genuine = format!("t={WEBHOOK_SECONDS},v1={}", sign(&WEBHOOK_SECONDS.to_string(), body));
    assert_eq!(judge(&genuine, body), Ok(()));
    assert_eq!(judge(&genuine, &[body, b" "].concat()), Err(Forgery::Mismatch));

    // A header that is not text never reaches the parser.
    let Ok(header) = std::str::from_utf8(header) else { return Outcome::Refused };
    let accepted = judge(header, body).is_ok();
    if accepted {
        let signed_at = header.split(',').find_map(|part| part.trim().strip_prefix("t="));
        let signature = sign(signed_at.expect("an accepted header has a moment"), body);
        assert!(header.contains(&signature), "{header} was accepted without {signature}");
    }
    Outcome::accepted_if(accepted)
}

fn sign(signed_at: &str, body: &[u8]) -> String {
    let key = WEBHOOK_SECRET.as_bytes();
    let mut mac: Hmac<Sha256> = Hmac::new_from_slice(key).expect("HMAC takes any key");
    for part in [signed_at.as_bytes(), b".", body] {
        mac.update(part);
    }
    hex(&mac.finalize().into_bytes())
}

/// A row of the embedded store's journal, as it is stored and before its compression.
///
/// Whatever can be read is written and read again as the same counters and events.
pub fn journal_row(bytes: &[u8]) -> Outcome {
    let stored = check_journal(bytes);
    let plain = check_journal(&lz4_flex::compress_prepend_size(bytes));
    Outcome::accepted_if(stored.or(plain).is_some())
}

/// `None` if the row, or one of its events, is damaged.
fn check_journal(row: &[u8]) -> Option<()> {
    let body = record::read_journal(row).ok()?;
    let tenant = TenantId::parse("acme").expect("the tenant is valid");
    let (mut events, mut offset) = (Vec::new(), 0);
    for _ in 0..body.event_count {
        let view = EventView::read(&body.events, offset).ok()?;
        events.push((view.tenant, view.to_event(tenant.clone()).ok()?));
        assert!(view.end > offset, "an event takes at least a byte");
        offset = view.end;
    }
    let mut written = Vec::new();
    events.iter().for_each(|(number, event)| record::write_event(&mut written, *number, event));
    let row = record::write_journal(&body.counters, events.len(), &written);
    let again = record::read_journal(&row).expect("what was written can be read");
    assert_eq!(again.counters, body.counters);
    assert_eq!(again.event_count, events.len());
    let mut offset = 0;
    for (number, event) in &events {
        let view = EventView::read(&again.events, offset).expect("what was written can be read");
        assert_eq!(view.tenant, *number);
        assert_eq!(view.to_event(tenant.clone()).as_ref().ok(), Some(event));
        offset = view.end;
    }
    assert_eq!(offset, again.events.len(), "nothing follows the last event");
    Some(())
}

/// The cursors of lists, each of which a client sends back as it got it, or changed.
///
/// A cursor that is accepted, written again, names the same place.
pub fn cursor(bytes: &[u8]) -> Outcome {
    let Ok(text) = std::str::from_utf8(bytes) else { return Outcome::Refused };
    let event = records::parse_cursor(text).ok();
    if let Some((at, id)) = &event {
        let again = records::parse_cursor(&records::write_cursor(*at, id)).ok();
        assert_eq!(again.as_ref(), event.as_ref(), "{text}");
    }
    let counter = counters::parse_cursor(text).ok();
    if let Some((hour, tenant)) = &counter {
        let row = CounterRow { tenant: tenant.clone(), hour: *hour, tally: Tally::default() };
        let again = counters::parse_cursor(&counters::write_cursor(&row)).ok();
        assert_eq!(again.as_ref(), counter.as_ref(), "{text}");
    }
    let pass = passes::parse_cursor(text).is_ok();
    let threshold = alerts::parse_cursor(text).is_ok();
    let rate = quotes::parse_rate_cursor(text).is_ok();
    Outcome::accepted_if(event.is_some() || counter.is_some() || pass || threshold || rate)
}

#[cfg(test)]
mod tests;
