//! Bindings of the embedded store. One writer, so two servers cannot bind at once.

use super::{SqliteStore, corrupt, sql_error};
use crate::rules::binding::{BillingAccount, Binding, Unbinding};
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::binding::Bindings;
use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, params};

#[async_trait]
impl Bindings for SqliteStore {
    async fn read_binding(&self) -> Result<Option<Binding>> {
        self.read(|_, connection| read_binding(connection)).await
    }

    async fn bind(&self, account: &BillingAccount, at: Timestamp) -> Result<Binding> {
        let account = account.clone();
        self.write(move |writer| {
            writer.write(|connection| {
                match read_binding(connection)? {
                    None => insert(connection, &account, at)?,
                    Some(standing) if standing.account.admits(&account) => connection.execute(
                        "UPDATE bindings SET account = COALESCE(account, ?)
                             WHERE ended_at IS NULL",
                        [&account.id],
                    )?,
                    Some(_) => 0,
                };
                read_binding(connection)?.ok_or_else(|| corrupt("bindings row"))
            })
        })
        .await
    }

    async fn end_binding(&self, at: Timestamp) -> Result<Unbinding> {
        self.write(move |writer| {
            writer.write(|connection| {
                let Some(standing) = read_binding(connection)? else {
                    return Ok(Unbinding::Unbound);
                };
                let unsettled = count_unsettled(connection)?;
                if unsettled > 0 {
                    return Ok(Unbinding::Unsettled(unsettled));
                }
                let sql = "UPDATE bindings SET ended_at = ? WHERE ended_at IS NULL";
                connection.execute(sql, [at.micros()])?;
                Ok(Unbinding::Ended(standing))
            })
        })
        .await
    }
}

fn insert(connection: &Connection, account: &BillingAccount, at: Timestamp) -> Result<usize> {
    let BillingAccount { provider, id, live } = account;
    connection
        .execute(
            "INSERT INTO bindings (binding, provider, account, live, bound_at)
             SELECT COALESCE(MAX(binding), 0) + 1, ?, ?, ?, ? FROM bindings",
            params![provider, id, live, at.micros()],
        )
        .map_err(sql_error)
}

fn read_binding(connection: &Connection) -> Result<Option<Binding>> {
    let sql = "-- read_binding
        SELECT binding, provider, account, live, bound_at FROM bindings WHERE ended_at IS NULL";
    let read = |row: &rusqlite::Row<'_>| {
        let account = BillingAccount { provider: row.get(1)?, id: row.get(2)?, live: row.get(3)? };
        let bound_at = Timestamp::from_micros(row.get(4)?);
        Ok(Binding { number: row.get(0)?, account, bound_at })
    };
    connection.query_row(sql, [], read).optional().map_err(sql_error)
}

/// Pushes that were sent and are neither confirmed nor decided.
fn count_unsettled(connection: &Connection) -> Result<u64> {
    let sql = "-- count_unsettled
        SELECT COUNT(*) FROM pushes
        WHERE shadow = 0 AND (state = 'submitted'
            OR (state = 'observed' AND first_attempt_at IS NOT NULL))";
    connection.query_row(sql, [], |row| row.get(0)).map_err(sql_error)
}
