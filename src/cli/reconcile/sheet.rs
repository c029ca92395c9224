//! All rows of a pass as CSV, for a spreadsheet.
//!
//! Invariant: what was not read is an empty cell. No cell is a formula. Names come from outside,
//! and a spreadsheet runs what begins like a formula; such a cell gets an apostrophe, which shows
//! it as the text it is.

use crate::api::passes::RowAnswer;
use crate::rules::quantity::Quantity;
use std::path::Path;

const HEADER: [&str; 20] = [
    "tenant",
    "meter",
    "from",
    "to",
    "ledger",
    "pushed",
    "provider",
    "delta",
    "verdict",
    "reason",
    "advice",
    "written_off",
    "not_billed",
    "shadow",
    "outside",
    "trial",
    "note",
    "windows_not_equal",
    "actions",
    "hash",
];

pub fn write(file: &Path, rows: &[RowAnswer]) -> anyhow::Result<()> {
    let text = render(rows)?;
    std::fs::write(file, text)?;
    Ok(())
}

fn render(rows: &[RowAnswer]) -> anyhow::Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(HEADER)?;
    for row in rows {
        let actions: Vec<&str> = row.actions().map(|(_, action)| action).collect();
        let text =
            |quantity: Option<Quantity>| quantity.map_or_else(String::new, |q| q.to_string());
        let cells = [
            row.tenant.clone(),
            row.meter.clone(),
            row.from.to_string(),
            row.to.to_string(),
            row.ledger.to_string(),
            row.pushed.to_string(),
            text(row.provider),
            text(row.delta),
            row.verdict.name().to_owned(),
            row.reason.name().to_owned(),
            row.advice.clone(),
            text(row.written_off),
            text(row.not_billed),
            text(row.shadow),
            text(row.outside),
            text(row.trial),
            row.note.clone().unwrap_or_default(),
            row.windows.len().to_string(),
            actions.join("; "),
            row.hash.clone().unwrap_or_default(),
        ];
        writer.write_record(cells.map(guarded))?;
    }
    Ok(writer.into_inner()?)
}

/// The cell, with an apostrophe if a spreadsheet would run it.
fn guarded(cell: String) -> String {
    let runs = cell.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']);
    if runs && !is_plain_number(&cell) { format!("'{cell}") } else { cell }
}

/// Digits with at most a minus and a point: what `Quantity` writes, and nothing that is computed.
fn is_plain_number(cell: &str) -> bool {
    let unsigned = cell.strip_prefix('-').unwrap_or(cell);
    let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    digits(whole) && digits(fraction)
}

#[cfg(test)]
mod tests {
    use super::super::report::examples;
    use super::*;

    #[test]
    fn formulas_become_text_and_numbers_stay() {
        let check = |cell: &str, expected: &str| assert_eq!(guarded(cell.into()), expected);
        check("acme", "acme");
        check("=HYPERLINK(\"http://x\")", "'=HYPERLINK(\"http://x\")");
        check("+1", "'+1");
        check("-2.5", "-2.5");
        check("-2.5-3", "'-2.5-3");
        check("-", "'-");
        check("-.5", "'-.5");
        check("@SUM(A1)", "'@SUM(A1)");
        check("\t=1", "'\t=1");
        check("", "");
    }

    #[test]
    fn rows_are_quoted_where_needed() {
        let mut row = examples::row("a,\"b\"", 1, ("5", "5", "2.5"));
        row.advice = "=1+1".into();
        let text = String::from_utf8(render(&[row]).unwrap()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], HEADER.join(","));
        let begins = "\"a,\"\"b\"\"\",api_calls,2026-11-01T00:00:00Z,2026-11-02T00:00:00Z,5,5,2.5,";
        assert!(lines[1].starts_with(begins), "{}", lines[1]);
        assert!(lines[1].contains(",-2.5,replay,lost,'=1+1,,,,,,,1,,"), "{}", lines[1]);
    }
}
