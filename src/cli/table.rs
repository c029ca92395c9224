//! Tables for people, all of one look, and numbers with their thousands apart.
//!
//! Invariant: no text is left out. On a terminal long cells go on in the next line, so that the
//! table fits; ids and numbers are never broken. In a pipe or a file every row is one line.

use crate::config::columns;
use crate::rules::timestamp::Timestamp;
use comfy_table::{
    Cell, CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Table, TableStyle,
};
use serde::Serialize;

/// Lines above, below and under the header; none between rows.
const STYLE: TableStyle = TableStyle::new()
    .top_border(LineStyle::none().fill('─').junction('─'))
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .bottom_border(LineStyle::none().fill('─').junction('─'));

/// A table with a header; columns after the first `left` are numbers and align right.
pub fn new_table(header: &[&str], left: usize) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE).set_header(header);
    // Without a width of its own, a table has that of the terminal.
    table.set_content_arrangement(ContentArrangement::Dynamic);
    if let Some(columns) = columns().filter(|_| table.is_tty()) {
        table.set_width(columns);
    }
    // An id is copied, so it stays on one line.
    if let (Some(&"id"), Some(column)) = (header.first(), table.column_mut(0)) {
        column.set_constraint(ColumnConstraint::ContentWidth);
    }
    for column in table.column_iter_mut().skip(left) {
        column.set_cell_alignment(CellAlignment::Right);
        column.set_constraint(ColumnConstraint::ContentWidth);
    }
    table
}

pub fn cell(text: impl ToString) -> Cell {
    Cell::new(plain(&text.to_string()))
}

/// A table of these rows.
pub fn print_table<const N: usize>(
    header: [&str; N],
    left: usize,
    rows: impl IntoIterator<Item = [Cell; N]>,
) {
    let mut table = new_table(&header, left);
    table.add_rows(rows);
    println!("{table}");
}

/// A moment without the fraction of its second; a dash for none.
pub fn moment(at: impl Into<Option<Timestamp>>) -> Cell {
    let text = at.into().map_or_else(|| "-".to_owned(), |at| at.to_string());
    match text.split_once('.') {
        Some((seconds, _)) => cell(format!("{seconds}Z")),
        None => cell(text),
    }
}

/// The name that a value of a plain enum has in JSON.
pub fn word(value: impl Serialize) -> String {
    let name = serde_json::to_value(value).unwrap_or_default();
    name.as_str().unwrap_or_default().to_owned()
}

/// A text that may be absent.
pub fn optional(text: Option<&String>) -> Cell {
    text.map_or_else(|| cell("-"), cell)
}

/// The text without what a terminal would obey: names and details come from outside.
pub fn plain(text: &str) -> String {
    let shown = |c: char| if c.is_control() && c != '\n' { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().map(shown).collect()
}

/// A JSON text of the server's whose control characters are escaped, which means the same.
pub fn plain_json(body: &[u8]) -> String {
    let mut text = String::with_capacity(body.len());
    for c in String::from_utf8_lossy(body).chars() {
        if c.is_control() && c != '\n' {
            text.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            text.push(c);
        }
    }
    text
}

/// A number with its noun: `1 push`, `1,234 pushes`.
pub fn counted(count: impl ToString, one: &str, many: &str) -> String {
    let shown = grouped(count);
    let noun = if shown == "1" { one } else { many };
    format!("{shown} {noun}")
}

/// `1234567` as `1,234,567`; a sign and decimals stay as they are.
pub fn grouped(number: impl ToString) -> String {
    let text = number.to_string();
    let (sign, unsigned) = match text.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", text.as_str()),
    };
    let (whole, fraction) = match unsigned.split_once('.') {
        Some((whole, fraction)) => (whole, format!(".{fraction}")),
        None => (unsigned, String::new()),
    };
    let mut shown = String::with_capacity(text.len() + text.len() / 3);
    for (place, digit) in whole.char_indices() {
        if place > 0 && (whole.len() - place).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    format!("{sign}{shown}{fraction}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_no_name() {
        assert_eq!(plain("a\u{1b}[31mb\nc"), "a\u{fffd}[31mb\nc");
    }

    #[test]
    fn a_table_is_as_wide_as_the_terminal_and_says_everything() {
        let mut table = new_table(&["id", "what", "command", "quantity"], 3);
        let what =
            "12 pushes of tenant acme were refused by the provider and bill nothing ".repeat(3);
        let command = "counterfoil pushes --state dead --tenant acme";
        table.add_row([cell("1"), cell(&what), cell(command), cell(grouped("1234567890.000001"))]);
        table.set_width(100);
        let shown = table.to_string();
        assert!(shown.lines().all(|line| line.chars().count() <= 100), "{shown}");
        assert!(shown.contains("1,234,567,890.000001"), "{shown}");
        let words = |text: &str| text.split_whitespace().filter(|word| *word == "refused").count();
        assert_eq!(words(&shown), 3, "{shown}");
        table.set_width(20);
        table.add_row([cell("key_cc1d3f2f46e41232ee68206b"), cell(""), cell(""), cell("1")]);
        assert!(table.to_string().contains("key_cc1d3f2f46e41232ee68206b"), "{table}");
        assert!(table.to_string().contains("1,234,567,890.000001"), "{table}");
    }

    #[test]
    fn moments_have_seconds() {
        let check = |text: &str| {
            let at = Timestamp::parse(text).unwrap();
            assert_eq!(moment(at).content(), "2026-11-16T21:46:10Z");
        };
        check("2026-11-16T21:46:10.123456Z");
        check("2026-11-16T21:46:10Z");
        assert_eq!(moment(None).content(), "-");
    }

    #[test]
    fn thousands() {
        let check = |text: &str, expected: &str| assert_eq!(grouped(text), expected);
        check("0", "0");
        check("999", "999");
        check("1000", "1,000");
        check("-1234567.000001", "-1,234,567.000001");
        check("123456", "123,456");
    }
}
