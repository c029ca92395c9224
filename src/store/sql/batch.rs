//! Statements over any number of rows. A round trip to PostgreSQL for each row would be too slow
//! for cuts, so one statement carries many.
//!
//! Invariant: rows are sent in the order in which they were given, in a few fixed sizes: the texts
//! that a connection keeps prepared are then few. A caller whose rows are locks gives them in the
//! order of locks. The statements are part of the caller's transaction, so a crash leaves all of
//! them or none.

use super::failure::Done;
use super::row::Row;
use super::session::{Session, Sum};
use super::value::Value;
use crate::store::{Error, Result};
use std::collections::BTreeMap;

/// Rows of one statement, largest first. The last is 1, so any number is a sum of these.
const SIZES: [usize; 4] = [256, 32, 4, 1];

/// How a statement says that the row before it comes once for each row that is given.
const REPEATED: &str = ", ...";

impl dyn Session + '_ {
    /// Runs a statement over rows; returns how many it changed. The text has one row, such as
    /// `VALUES ($::int8, $, 'waiting'), ...`, in which each `$` is the row's next value.
    pub fn run_batch(&self, sql: &str, rows: impl IntoIterator<Item = Vec<Value>>) -> Done<u64> {
        self.run_batch_with(sql, &[], rows)
    }

    /// As [`Self::run_batch`]; `$1`, `$2` and so on are values that all rows share.
    pub fn run_batch_with(
        &self,
        sql: &str,
        shared: &[Value],
        rows: impl IntoIterator<Item = Vec<Value>>,
    ) -> Done<u64> {
        let mut changed = 0;
        for (sql, values) in statements(sql, shared, rows)? {
            changed += self.run(&sql, &values)?;
        }
        Ok(changed)
    }

    /// As [`Self::run_batch`], for a statement that returns rows.
    pub fn read_batch<T>(
        &self,
        sql: &str,
        rows: impl IntoIterator<Item = Vec<Value>>,
        decode: impl FnMut(&Row) -> Result<T>,
    ) -> Done<Vec<T>> {
        self.read_batch_with(sql, &[], rows, decode)
    }

    /// As [`Self::run_batch_with`], for a statement that returns rows.
    pub fn read_batch_with<T>(
        &self,
        sql: &str,
        shared: &[Value],
        rows: impl IntoIterator<Item = Vec<Value>>,
        mut decode: impl FnMut(&Row) -> Result<T>,
    ) -> Done<Vec<T>> {
        let mut found = Vec::new();
        for (sql, values) in statements(sql, shared, rows)? {
            found.extend(self.read_all(&sql, &values, &mut decode)?);
        }
        Ok(found)
    }

    /// As [`Self::read_batch_with`], in one statement, for rows that are a set and at least one:
    /// the last is repeated up to a fixed size.
    pub fn read_set_with<T>(
        &self,
        sql: &str,
        shared: &[Value],
        mut rows: Vec<Vec<Value>>,
        decode: impl FnMut(&Row) -> Result<T>,
    ) -> Done<Vec<T>> {
        let fitting = SIZES.into_iter().rev().find(|size| *size >= rows.len());
        let size = fitting.unwrap_or_else(|| rows.len().next_multiple_of(SIZES[0]));
        let last = rows.last().cloned().unwrap_or_default();
        rows.resize(size, last);
        let (head, row, tail) = parts(sql)?;
        let text = format!("{head}{}{tail}", repeat(row, size, shared.len()));
        self.read_all(&text, &[shared, &rows.concat()].concat(), decode)
    }

    /// Adds up the rows of a statement as [`Session::sum_by_number`] does.
    pub fn sum_batch(
        &self,
        sql: &str,
        rows: impl IntoIterator<Item = Vec<Value>>,
    ) -> Done<BTreeMap<u64, Sum>> {
        let mut sums = BTreeMap::new();
        for (sql, values) in statements(sql, &[], rows)? {
            sums.extend(self.sum_by_number(&sql, &values)?);
        }
        Ok(sums)
    }
}

/// The statements for these rows, with their values; none for no rows.
fn statements(
    sql: &str,
    shared: &[Value],
    rows: impl IntoIterator<Item = Vec<Value>>,
) -> Result<Vec<(String, Vec<Value>)>> {
    let (head, row, tail) = parts(sql)?;
    let mut rows: Vec<Vec<Value>> = rows.into_iter().collect();
    let width = row.matches('$').count();
    if let Some(other) = rows.iter().find(|row| row.len() != width) {
        let what = format!("{} values for a row of {width} in: {sql:.80}", other.len());
        return Err(Error::Internal { what });
    }
    let mut statements = Vec::new();
    for size in SIZES {
        while rows.len() >= size {
            let rest = rows.split_off(size);
            let text = format!("{head}{}{tail}", repeat(row, size, shared.len()));
            let values = shared.iter().cloned().chain(rows.into_iter().flatten());
            statements.push((text, values.collect()));
            rows = rest;
        }
    }
    Ok(statements)
}

/// The text before the row that is repeated, that row, and the text behind it.
fn parts(sql: &str) -> Result<(&str, &str, &str)> {
    let malformed = || Error::Internal { what: format!("no row to repeat in: {sql:.80}") };
    let (head, tail) = sql.split_once(REPEATED).ok_or_else(malformed)?;
    let (head, row) = head.split_at(head.rfind('(').ok_or_else(malformed)?);
    Ok((head, row, tail))
}

/// The row so many times, with its places numbered after the shared ones.
fn repeat(row: &str, times: usize, shared: usize) -> String {
    let mut text = String::with_capacity(times * (row.len() + 16));
    let mut place = shared;
    for time in 0..times {
        text.push_str(if time == 0 { "" } else { ", " });
        for character in row.chars() {
            text.push(character);
            if character == '$' {
                place += 1;
                text.push_str(&place.to_string());
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sql::values;

    fn rows(count: i64) -> Vec<Vec<Value>> {
        (0..count).map(|number| values![number, "x"].to_vec()).collect()
    }

    #[test]
    fn a_row_is_repeated_with_its_places_numbered() {
        let sql = "INSERT INTO t (a, b, c) VALUES ($::int8, 'y', $), ... RETURNING (a)";
        let made = statements(sql, &[], rows(5)).expect("a statement");
        let four = "INSERT INTO t (a, b, c) VALUES ($1::int8, 'y', $2), ($3::int8, 'y', $4), \
                    ($5::int8, 'y', $6), ($7::int8, 'y', $8) RETURNING (a)";
        let one = "INSERT INTO t (a, b, c) VALUES ($1::int8, 'y', $2) RETURNING (a)";
        let texts: Vec<&str> = made.iter().map(|(sql, _)| sql.as_str()).collect();
        assert_eq!(texts, [four, one]);
        let sent: Vec<Value> = made.into_iter().flat_map(|(_, values)| values).collect();
        assert_eq!(sent, rows(5).concat());
    }

    #[test]
    fn shared_values_come_first() {
        let sql = "INSERT INTO t VALUES ($, $), ... ON CONFLICT DO UPDATE SET a = $1";
        let made = statements(sql, values![7i64], rows(1)).expect("a statement");
        let text = "INSERT INTO t VALUES ($2, $3) ON CONFLICT DO UPDATE SET a = $1";
        assert_eq!(made, [(text.to_owned(), values![7i64, 0i64, "x"].to_vec())]);
    }

    #[test]
    fn any_number_of_rows_needs_few_texts() {
        let check = |count: i64, expected: &[usize]| {
            let made = statements("VALUES ($, $), ...", &[], rows(count)).expect("a statement");
            let sizes: Vec<usize> = made.iter().map(|(_, values)| values.len() / 2).collect();
            assert_eq!(sizes, expected, "{count} rows");
        };
        check(0, &[]);
        check(1, &[1]);
        check(7, &[4, 1, 1, 1]);
        check(40, &[32, 4, 4]);
        check(549, &[256, 256, 32, 4, 1]);
    }

    #[test]
    fn a_text_that_does_not_suit_its_rows_is_refused() {
        let refused =
            |sql: &str| statements(sql, &[], rows(1)).expect_err("it is refused").to_string();
        assert!(refused("VALUES ($, $)").contains("no row to repeat"));
        assert!(refused("VALUES ($), ...").contains("2 values for a row of 1"));
    }
}
