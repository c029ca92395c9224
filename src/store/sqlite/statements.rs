//! Running statements on a connection. Each is prepared once and kept with the connection.
//!
//! Invariant: an error of SQLite is sorted by `sql_error` before any caller sees it, so a disk that
//! cannot sync stops the process wherever it is met.

use super::sql_error;
use crate::store::{Error, Result};
use rusqlite::{Connection, Params, Row};

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        sql_error(error)
    }
}

pub trait Statements {
    /// Runs a statement that returns no rows; returns how many it changed.
    fn run(&self, sql: &str, values: impl Params) -> Result<usize>;

    /// Every row, decoded, in the statement's order.
    fn read_all<T>(
        &self,
        sql: &str,
        values: impl Params,
        decode: impl FnMut(&Row<'_>) -> Result<T>,
    ) -> Result<Vec<T>>;

    /// The first row, if there is one.
    fn read_optional<T>(
        &self,
        sql: &str,
        values: impl Params,
        decode: impl FnOnce(&Row<'_>) -> Result<T>,
    ) -> Result<Option<T>>;

    /// The first row of a statement that always has one.
    fn read_one<T>(
        &self,
        sql: &str,
        values: impl Params,
        decode: impl FnOnce(&Row<'_>) -> Result<T>,
    ) -> Result<T> {
        let found = self.read_optional(sql, values, decode)?;
        found.ok_or_else(|| rusqlite::Error::QueryReturnedNoRows.into())
    }
}

impl Statements for Connection {
    fn run(&self, sql: &str, values: impl Params) -> Result<usize> {
        Ok(self.prepare_cached(sql)?.execute(values)?)
    }

    fn read_all<T>(
        &self,
        sql: &str,
        values: impl Params,
        mut decode: impl FnMut(&Row<'_>) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut statement = self.prepare_cached(sql)?;
        let mut rows = statement.query(values)?;
        let mut decoded = Vec::new();
        while let Some(row) = rows.next()? {
            decoded.push(decode(row)?);
        }
        Ok(decoded)
    }

    fn read_optional<T>(
        &self,
        sql: &str,
        values: impl Params,
        decode: impl FnOnce(&Row<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        let mut statement = self.prepare_cached(sql)?;
        let mut rows = statement.query(values)?;
        rows.next()?.map(decode).transpose()
    }
}
