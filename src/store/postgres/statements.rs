//! Running statements on a connection. Each is prepared once and kept with the connection.

use deadpool_postgres::ClientWrapper;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

type Values<'a> = &'a [&'a (dyn ToSql + Sync)];

pub trait Statements {
    /// Runs a statement that returns no rows; returns how many it changed.
    async fn run(&self, sql: &str, values: Values<'_>) -> Result<u64, Error>;

    /// Every row, in the statement's order.
    async fn read_all(&self, sql: &str, values: Values<'_>) -> Result<Vec<Row>, Error>;

    /// The row, if there is one; an error if there are several.
    async fn read_optional(&self, sql: &str, values: Values<'_>) -> Result<Option<Row>, Error>;
}

impl Statements for ClientWrapper {
    async fn run(&self, sql: &str, values: Values<'_>) -> Result<u64, Error> {
        self.execute(&self.prepare_cached(sql).await?, values).await
    }

    async fn read_all(&self, sql: &str, values: Values<'_>) -> Result<Vec<Row>, Error> {
        self.query(&self.prepare_cached(sql).await?, values).await
    }

    async fn read_optional(&self, sql: &str, values: Values<'_>) -> Result<Option<Row>, Error> {
        self.query_opt(&self.prepare_cached(sql).await?, values).await
    }
}
