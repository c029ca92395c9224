//! A row that a statement returned.

use super::value::{FromValue, Value};
use crate::store::{Error, Result, damaged};
use std::sync::Arc;

/// The values of a row by the names of their columns.
#[derive(Debug, Clone)]
pub struct Row {
    names: Arc<[String]>,
    values: Vec<Value>,
}

impl Row {
    pub fn new(names: Arc<[String]>, values: Vec<Value>) -> Self {
        Self { names, values }
    }

    /// Reads a column, given as `table.column` so that an error names its place. Whatever does not
    /// have the form in which it was stored is damage.
    pub fn get<T: FromValue>(&self, column: &str) -> Result<T> {
        let name = column.rsplit_once('.').map_or(column, |(_, name)| name);
        let place = self.names.iter().position(|other| other == name);
        let value = place.and_then(|place| self.values.get(place)).ok_or_else(|| {
            Error::Internal { what: format!("a statement does not return {column}") }
        })?;
        T::from_value(value).ok_or_else(|| damaged(column, value))
    }

    /// The first column, of a statement that returns one.
    pub fn only<T: FromValue>(&self) -> Result<T> {
        let (name, value) = self
            .names
            .first()
            .zip(self.values.first())
            .ok_or_else(|| Error::Internal { what: "a statement returns no column".into() })?;
        T::from_value(value).ok_or_else(|| damaged(name, value))
    }
}
