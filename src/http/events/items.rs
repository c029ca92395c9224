//! A body taken apart into items, borrowed from its bytes.
//!
//! Invariant: never more items than the limit are held, however small they are. The usual is read
//! by `rules::event::plain`, everything else by serde_json. An array is read in one pass; only if
//! that fails is it read again item by item, so that an item which is JSON
//! and still cannot be read (a lone surrogate, 1e999) is refused alone.

use super::super::problem::{Kind, Problem};
use crate::rules::event::{Item, plain};
use crate::rules::refusal::Refusal;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

/// How a body holds its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One object, or an array.
    Json,
    /// One JSON value on each line.
    Lines,
    CloudEvent,
    CloudEvents,
}

/// An item, or why there is none where one was expected.
pub type ReadItem<'a> = Result<Item<'a>, Refusal>;

pub struct Items<'a> {
    pub items: Vec<ReadItem<'a>>,
    /// Whether the body is one event rather than a batch of one.
    pub single: bool,
}

pub fn parse_items(body: &[u8], format: Format, items_max: usize) -> Result<Items<'_>, Problem> {
    if format == Format::Lines {
        return Ok(Items { items: parse_lines(body, items_max)?, single: false });
    }
    let text = std::str::from_utf8(body).map_err(|error| {
        Problem::new(
            Kind::Invalid,
            "invalid_json",
            format!(
                "the body is not UTF-8 after byte {}; nothing of this request was counted",
                error.valid_up_to()
            ),
        )
    })?;
    let is_array = text.trim_ascii_start().starts_with('[');
    let batch = match format {
        Format::CloudEvents => true,
        Format::CloudEvent => false,
        Format::Json | Format::Lines => is_array,
    };
    if batch {
        return Ok(Items { items: parse_array(text, items_max)?, single: false });
    }
    if let Some(item) = plain::read_item(text) {
        return Ok(Items { items: vec![Ok(item)], single: true });
    }
    let item = match serde_json::from_str::<Item<'_>>(text) {
        Ok(item) => Ok(item),
        Err(error) => match serde_json::from_str::<&RawValue>(text) {
            Ok(_) => Err(unreadable()),
            Err(_) if holds_several(text) => return Err(several()),
            Err(_) => return Err(invalid_json(&error)),
        },
    };
    Ok(Items { items: vec![item], single: true })
}

/// Whether one JSON value follows another.
fn holds_several(text: &str) -> bool {
    let values = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
    values.take(2).filter(Result::is_ok).count() == 2
}

fn several() -> Problem {
    Problem::new(
        Kind::Invalid,
        "invalid_json",
        "the body holds several JSON values; send one event on each line with Content-Type: \
         application/x-ndjson, or an array as application/json; nothing of this request was counted",
    )
}

fn parse_array(text: &str, items_max: usize) -> Result<Vec<ReadItem<'_>>, Problem> {
    if let Some(items) = plain::read_items(text, items_max) {
        return Ok(items.into_iter().map(Ok).collect());
    }
    match parse_bounded::<Item<'_>>(text, items_max)? {
        Ok(items) => Ok(items.into_iter().map(Ok).collect()),
        Err(error) => match parse_bounded::<&RawValue>(text, items_max)? {
            Ok(items) => {
                let texts = items.into_iter().map(RawValue::get);
                Ok(texts.map(|text| serde_json::from_str(text).map_err(|_| unreadable())).collect())
            }
            Err(_) => Err(invalid_json(&error)),
        },
    }
}

fn parse_lines(body: &[u8], items_max: usize) -> Result<Vec<ReadItem<'_>>, Problem> {
    let lines: Box<dyn Iterator<Item = Option<&str>>> = match std::str::from_utf8(body) {
        Ok(text) => Box::new(text.split('\n').map(Some)),
        Err(_) => {
            let lines = body.split(|byte| *byte == b'\n');
            Box::new(lines.map(|line| std::str::from_utf8(line).ok()))
        }
    };
    let mut items = Vec::new();
    for (line, number) in lines.zip(1u64..) {
        let item = match line.map(str::trim_ascii) {
            Some("") => continue,
            Some(text) => read_line(text).map_err(|error| {
                let column = error.column();
                invalid_line(format!("line {number} is not JSON, as column {column} shows"))
            }),
            None => Err(invalid_line(format!("line {number} is not UTF-8"))),
        };
        if items.len() == items_max {
            return Err(too_many_events(items_max));
        }
        items.push(item);
    }
    Ok(items)
}

fn read_line(text: &str) -> serde_json::Result<Item<'_>> {
    plain::read_item(text).map_or_else(|| serde_json::from_str(text), Ok)
}

/// Reads an array of at most `items_max`. The outer error is for too many, the inner for not JSON.
fn parse_bounded<'a, T: Deserialize<'a>>(
    text: &'a str,
    items_max: usize,
) -> Result<serde_json::Result<Vec<T>>, Problem> {
    let exceeded = Cell::new(false);
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let bounded = Bounded { items_max, exceeded: &exceeded, item: PhantomData };
    let read = bounded.deserialize(&mut deserializer).and_then(|items| {
        deserializer.end()?;
        Ok(items)
    });
    if exceeded.get() { Err(too_many_events(items_max)) } else { Ok(read) }
}

struct Bounded<'c, T> {
    items_max: usize,
    exceeded: &'c Cell<bool>,
    item: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for Bounded<'_, T> {
    type Value = Vec<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<T>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Bounded<'_, T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            if items.len() == self.items_max {
                self.exceeded.set(true);
                return Err(A::Error::custom("too many events"));
            }
            items.push(item);
        }
        Ok(items)
    }
}

fn invalid_json(error: &serde_json::Error) -> Problem {
    Problem::new(
        Kind::Invalid,
        "invalid_json",
        format!("the body is not JSON: {error}; nothing of this request was counted"),
    )
}

fn invalid_line(what: String) -> Refusal {
    Refusal::new("invalid_json", format!("{what}; the other lines were judged on their own"))
}

fn unreadable() -> Refusal {
    Refusal::new(
        "invalid_json",
        "the item holds text that is not Unicode or a number beyond any range; correct it and \
         send it again",
    )
}

fn too_many_events(items_max: usize) -> Problem {
    Problem::new(
        Kind::TooLarge,
        "too_many_events",
        format!(
            "a request has at most {items_max} events; nothing of this request was counted; send \
             smaller batches"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &[u8], format: Format, expected: Result<&[Result<(), &str>], &str>) {
        let found = parse_items(body, format, 3)
            .map(|read| {
                read.items
                    .into_iter()
                    .map(|item| item.map(|_| ()).map_err(|refusal| refusal.code))
                    .collect::<Vec<_>>()
            })
            .map_err(|problem| format!("{problem:?}"));
        match (found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected),
            (Err(found), Err(expected)) => assert!(found.contains(expected), "{found}"),
            (found, expected) => panic!("{found:?} is not {expected:?}"),
        }
    }

    #[test]
    fn arrays() {
        let bad = Err("invalid_json");
        check(b"[]", Format::Json, Ok(&[]));
        check(b" [{}, 1, \"x\"] ", Format::Json, Ok(&[Ok(()), Ok(()), Ok(())]));
        check(b"[{}, 1e999, \"\\ud800\"]", Format::Json, Ok(&[Ok(()), bad, bad]));
        check(b"[1,1,1,1]", Format::Json, Err("too_many_events"));
        check(b"[1e999,1,1,1]", Format::Json, Err("too_many_events"));
        check(b"[{},", Format::Json, Err("line 1 column 4"));
        check(b"[{}]x", Format::Json, Err("invalid_json"));
        check(b"[\"\xff\"]", Format::Json, Err("not UTF-8 after byte 2"));
        check(b"{}", Format::CloudEvents, Err("invalid_json"));
        check(b"", Format::Json, Err("invalid_json"));
        check(b"{}\n{}\n", Format::Json, Err("application/x-ndjson"));
        check(b"{}\n{", Format::Json, Err("line 2 column 1"));
    }

    #[test]
    fn lines() {
        let bad = Err("invalid_json");
        check(b"{}\n\n  \r\n{}\r\n", Format::Lines, Ok(&[Ok(()), Ok(())]));
        check(b"{}\n{\n{}", Format::Lines, Ok(&[Ok(()), bad, Ok(())]));
        check(b"{}\n\"\xff\"\n{}", Format::Lines, Ok(&[Ok(()), bad, Ok(())]));
        check(b"1\n1\n1\n1", Format::Lines, Err("too_many_events"));
        check(b"", Format::Lines, Ok(&[]));
    }
}
