//! Events from a file or a pipe, in batches, with the line each came from.
//!
//! Invariant: at most one batch is held at a time, and no line longer than
//! [`LINE_BYTES_MAX`], however large the input is. A line of NDJSON is passed on unchanged; a
//! row of CSV becomes the same bytes each time it is read. So an input that is sent again carries
//! the same ids and the same payloads.

use anyhow::{Context, bail};
use serde_json::{Map, Value};
use std::io::{BufRead, Read};

/// Longest line that is sent; an event is far shorter.
pub const LINE_BYTES_MAX: usize = 1024 * 1024;
/// Largest body of one request, well below what a server takes by default.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Some events in the form in which they are sent.
#[derive(Default)]
pub struct Batch {
    pub body: Vec<u8>,
    /// The line of the input that each event came from.
    pub lines: Vec<u64>,
    /// How many bytes of the input it took.
    pub bytes_read: u64,
    /// Lines that are too long to be sent.
    pub too_long: Vec<u64>,
}

impl Batch {
    fn push(&mut self, line: u64, event: &[u8]) {
        self.body.extend_from_slice(event);
        self.body.push(b'\n');
        self.lines.push(line);
    }

    fn is_full(&self, events_max: usize) -> bool {
        self.lines.len() >= events_max || self.body.len() >= BATCH_BYTES_MAX
    }

    fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.too_long.is_empty()
    }
}

/// What a CSV row is completed with.
#[derive(Debug, Clone, Default)]
pub struct CsvDefaults {
    pub meter: Option<String>,
    pub tenant: Option<String>,
}

/// Reads NDJSON and gives each full batch to `deliver`, which says whether to go on.
pub fn read_ndjson(
    mut input: impl BufRead,
    events_max: usize,
    mut deliver: impl FnMut(Batch) -> bool,
) -> anyhow::Result<()> {
    let mut batch = Batch::default();
    let mut line = Vec::new();
    let limit = u64::try_from(LINE_BYTES_MAX).expect("a small number") + 1;
    for number in 1u64.. {
        line.clear();
        let context = || format!("cannot read line {number}");
        let read = input.by_ref().take(limit).read_until(b'\n', &mut line);
        let read = read.with_context(context)?;
        if read == 0 {
            break;
        }
        batch.bytes_read += u64::try_from(read).expect("a small number");
        if read > LINE_BYTES_MAX && line.last() != Some(&b'\n') {
            batch.bytes_read += skip_line(&mut input).with_context(context)?;
            batch.too_long.push(number);
        } else if !line.trim_ascii().is_empty() {
            batch.push(number, line.trim_ascii());
        }
        if batch.is_full(events_max) && !deliver(std::mem::take(&mut batch)) {
            return Ok(());
        }
    }
    if !batch.is_empty() {
        deliver(batch);
    }
    Ok(())
}

fn skip_line(input: &mut impl BufRead) -> std::io::Result<u64> {
    let mut skipped = 0;
    loop {
        let chunk = input.fill_buf()?;
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let length = end.map_or(chunk.len(), |place| place + 1);
        let finished = end.is_some() || chunk.is_empty();
        input.consume(length);
        skipped += u64::try_from(length).expect("a small number");
        if finished {
            return Ok(skipped);
        }
    }
}

/// Reads CSV whose first row names the fields.
pub fn read_csv(
    input: impl Read,
    defaults: &CsvDefaults,
    events_max: usize,
    mut deliver: impl FnMut(Batch) -> bool,
) -> anyhow::Result<()> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(input);
    let header = reader.headers().context("cannot read the header row")?.clone();
    check_header(&header, defaults)?;
    let (mut batch, mut row) = (Batch::default(), csv::StringRecord::new());
    let mut before = reader.position().byte();
    loop {
        let more = reader
            .read_record(&mut row)
            .context("cannot read a row; every row needs as many fields as the header has")?;
        if !more {
            break;
        }
        let line = row.position().map_or(0, csv::Position::line);
        let event = csv_event(&header, &row, defaults).to_string();
        if event.len() > LINE_BYTES_MAX {
            batch.too_long.push(line);
        } else {
            batch.push(line, event.as_bytes());
        }
        let now = reader.position().byte();
        batch.bytes_read += now - before;
        before = now;
        if batch.is_full(events_max) && !deliver(std::mem::take(&mut batch)) {
            return Ok(());
        }
    }
    if !batch.is_empty() {
        deliver(batch);
    }
    Ok(())
}

/// Columns that are fields of an event; all others are properties.
const FIELDS: [&str; 8] =
    ["tenant", "id", "correlation_id", "meter", "quantity", "occurred_at", "subscription", "trial"];

/// Columns that a refused header row is shown with.
const COLUMNS_SHOWN_MAX: usize = 20;

fn check_header(header: &csv::StringRecord, defaults: &CsvDefaults) -> anyhow::Result<()> {
    let has = |name: &str| header.iter().any(|column| column == name);
    if let Some(column) =
        header.iter().find(|c| header.iter().filter(|other| other == c).count() > 1)
    {
        bail!("the header row names {column:?} twice");
    }
    let columns = || {
        let names: Vec<&str> = header.iter().take(COLUMNS_SHOWN_MAX).collect();
        format!("its columns are: {}", names.join(", "))
    };
    if let (1, Some(only)) = (header.len(), header.get(0))
        && let Some(other) = only.chars().find(|c| [';', '\t', '|'].contains(c))
    {
        bail!("the header row has no comma, and {other:?} in it: separate columns by commas");
    }
    if !has("id") && !has("correlation_id") {
        bail!(
            "the header row names neither id nor correlation_id; every event needs an id of its \
             own, the same each time it is sent; {}",
            columns()
        );
    }
    let needed = [
        ("tenant", defaults.tenant.is_some(), "; or give --tenant"),
        ("meter", defaults.meter.is_some(), "; or give --meter"),
        ("occurred_at", false, ""),
    ];
    for (name, given, or) in needed {
        if !given && !has(name) {
            bail!("the header row does not name {name}{or}; {}", columns());
        }
    }
    Ok(())
}

/// An empty cell is a field that is not there.
fn csv_event(header: &csv::StringRecord, row: &csv::StringRecord, defaults: &CsvDefaults) -> Value {
    let (mut event, mut properties) = (Map::new(), Map::new());
    for (column, text) in header.iter().zip(row).filter(|(_, text)| !text.is_empty()) {
        if FIELDS.contains(&column) {
            let value = match (column, text) {
                ("trial", "true") => Value::Bool(true),
                ("trial", "false") => Value::Bool(false),
                _ => Value::from(text),
            };
            event.insert(column.to_owned(), value);
        } else {
            properties.insert(column.to_owned(), text.into());
        }
    }
    for (name, default) in [("tenant", &defaults.tenant), ("meter", &defaults.meter)] {
        if let Some(default) = default {
            event.entry(name).or_insert_with(|| default.as_str().into());
        }
    }
    if !properties.is_empty() {
        event.insert("properties".to_owned(), properties.into());
    }
    Value::Object(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ndjson(input: &[u8], events_max: usize) -> Vec<Batch> {
        let mut batches = Vec::new();
        let deliver = |batch| {
            batches.push(batch);
            true
        };
        read_ndjson(input, events_max, deliver).expect("readable");
        batches
    }

    #[test]
    fn lines_keep_their_bytes_and_numbers() {
        let batches = ndjson(b"{\"a\" : 1}\n\n  \r\nnot json\r\n{}", 2);
        assert_eq!(batches.len(), 2);
        assert_eq!(batches[0].body, b"{\"a\" : 1}\nnot json\n");
        assert_eq!(batches[0].lines, [1, 4]);
        assert_eq!(
            (batches[1].body.as_slice(), batches[1].lines.as_slice()),
            (&b"{}\n"[..], &[5][..])
        );
        assert_eq!(batches.iter().map(|b| b.bytes_read).sum::<u64>(), 27);
    }

    #[test]
    fn a_line_without_end_is_not_held() {
        let mut input = vec![b'x'; 3 * LINE_BYTES_MAX];
        input.extend_from_slice(b"\n{}\n");
        let batches = ndjson(&input, 10);
        assert_eq!(
            (batches[0].too_long.as_slice(), batches[0].lines.as_slice()),
            (&[1][..], &[2][..])
        );
    }

    fn csv(input: &str, defaults: &CsvDefaults) -> Result<String, String> {
        let mut bodies = String::new();
        let deliver = |batch: Batch| {
            bodies.push_str(&String::from_utf8(batch.body).expect("text"));
            true
        };
        read_csv(input.as_bytes(), defaults, 10, deliver).map_err(|e| e.to_string())?;
        Ok(bodies)
    }

    #[test]
    fn unknown_columns_are_properties() {
        let defaults = CsvDefaults { meter: Some("calls".into()), tenant: None };
        let input = "tenant,id,quantity,occurred_at,region,trial\n\
                     acme,e1,1.50,2026-11-15T00:00:00Z,\"eu, west\",true\n\
                     acme,e2,2,2026-11-15T00:00:00Z,,\n";
        let expected = concat!(
            r#"{"id":"e1","meter":"calls","occurred_at":"2026-11-15T00:00:00Z","#,
            r#""properties":{"region":"eu, west"},"quantity":"1.50","tenant":"acme","trial":true}"#,
            "\n",
            r#"{"id":"e2","meter":"calls","occurred_at":"2026-11-15T00:00:00Z","#,
            r#""quantity":"2","tenant":"acme"}"#,
            "\n",
        );
        assert_eq!(csv(input, &defaults).expect("valid"), expected);
    }

    #[test]
    fn headers_that_cannot_work_are_refused() {
        let check = |header: &str, expected: &str| {
            let error = csv(header, &CsvDefaults::default()).expect_err("refused");
            assert!(error.contains(expected), "{error}");
        };
        check("tenant,meter,occurred_at\n", "neither id nor");
        check("id,meter,occurred_at\n", "--tenant");
        check("id,tenant,occurred_at\n", "--meter");
        check("id,id,tenant,meter,occurred_at\n", "twice");
        check("event,customer,at\n", "its columns are: event, customer, at");
        check("id,customer,meter,occurred_at\n", "its columns are: id, customer, meter");
        check("id;tenant;meter;occurred_at\n", "separate columns by commas");
        check("id\ttenant\n", "separate columns by commas");
    }
}
