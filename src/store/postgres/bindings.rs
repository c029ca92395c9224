//! Bindings of a PostgreSQL store. An index allows one that has not ended; of two servers that bind
//! at once the second finds the binding of the first.

use super::PostgresStore;
use super::scalars::{SqlTimestamp, column, corrupt, instant, read_count, read_ordinal};
use super::transaction::{Done, Transaction};
use crate::rules::binding::{BillingAccount, Binding, Unbinding};
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::binding::Bindings;
use async_trait::async_trait;
use deadpool_postgres::ClientWrapper;
use std::sync::Arc;

#[async_trait]
impl Bindings for PostgresStore {
    async fn read_binding(&self) -> Result<Option<Binding>> {
        let work = move |client: Arc<Transaction>| async move { read_binding(&client).await };
        self.transact(work).await
    }

    async fn bind(&self, account: &BillingAccount, at: Timestamp) -> Result<Binding> {
        let work = move |client: Arc<Transaction>| async move {
            let BillingAccount { provider, id, live } = account;
            let sql = "-- bind
                INSERT INTO bindings (binding, provider, account, live, bound_at)
                SELECT COALESCE(max(binding), 0) + 1, $1, $2, $3, $4 FROM bindings
                ON CONFLICT DO NOTHING";
            client.execute(sql, &[provider, id, live, &SqlTimestamp(at)]).await?;
            let standing = read_binding(&client).await?;
            let standing =
                standing.ok_or_else(|| corrupt("bindings row vanished mid-transaction"))?;
            if standing.account.id.is_none() && id.is_some() && standing.account.admits(account) {
                let sql = "-- keep_account
                    UPDATE bindings SET account = COALESCE(account, $1) WHERE ended_at IS NULL";
                client.execute(sql, &[id]).await?;
            }
            let standing = read_binding(&client).await?;
            Ok(standing.ok_or_else(|| corrupt("bindings row vanished mid-transaction"))?)
        };
        self.transact(work).await
    }

    async fn end_binding(&self, at: Timestamp) -> Result<Unbinding> {
        let work = move |client: Arc<Transaction>| async move {
            let Some(standing) = read_binding(&client).await? else {
                return Ok(Unbinding::Unbound);
            };
            let sql = "-- count_unsettled
                SELECT count(*) FROM pushes
                WHERE NOT shadow AND (state = 'submitted'
                    OR (state = 'observed' AND first_attempt_at IS NOT NULL))";
            let unsettled = read_count(column(&client.query_one(sql, &[]).await?, 0)?)?;
            if unsettled > 0 {
                return Ok(Unbinding::Unsettled(unsettled));
            }
            let sql = "-- end_binding
                UPDATE bindings SET ended_at = $1 WHERE ended_at IS NULL";
            client.execute(sql, &[&SqlTimestamp(at)]).await?;
            Ok(Unbinding::Ended(standing))
        };
        self.transact(work).await
    }
}

async fn read_binding(client: &ClientWrapper) -> Done<Option<Binding>> {
    let sql = "-- read_binding
        SELECT binding, provider, account, live, bound_at FROM bindings WHERE ended_at IS NULL";
    let Some(row) = client.query_opt(sql, &[]).await? else { return Ok(None) };
    let account =
        BillingAccount { provider: column(&row, 1)?, id: column(&row, 2)?, live: column(&row, 3)? };
    let number = read_ordinal(column(&row, 0)?)?;
    Ok(Some(Binding { number, account, bound_at: instant(&row, 4)? }))
}
