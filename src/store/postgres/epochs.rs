//! Epochs of a PostgreSQL store: the database's identity as it was, compared with what it is.
//!
//! A recovery to a moment and a failover begin a new timeline; a dump that is read back makes a new
//! database. A part of the identity that this user may not read is unknown and decides nothing.
//!
//! Invariant: an epoch only grows. A crash leaves a restore written down or not; the next start
//! finds the same identity and writes it down then.

use super::PostgresStore;
use super::scalars::{SqlTimestamp, column, instant_if_any, read_count};
use super::transaction::Transaction;
use crate::rules::digest::hex;
use crate::rules::restore::{Cause, IdentityPart, Life, Mark};
use crate::rules::timestamp::Timestamp;
use crate::store::epoch::{Epoch, Epochs};
use crate::store::sql::{self, SqlStore};
use crate::store::{Error, Result};
use async_trait::async_trait;
use deadpool_postgres::ClientWrapper;
use std::sync::Arc;

/// Each in a statement of its own: one may be refused to this user.
const CLUSTER: &str = "-- cluster\nSELECT system_identifier::text FROM pg_control_system()";
const TIMELINE: &str = "-- timeline\nSELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)";
const DATABASE: &str =
    "-- database\nSELECT oid::text FROM pg_database WHERE datname = current_database()";

#[async_trait]
impl Epochs for PostgresStore {
    async fn read_life(&self) -> Result<Life> {
        let client = self.reader().await?;
        let sql = "-- read_life
            SELECT store, mark, alive_at, cluster, timeline, database FROM store_life";
        let row = client.query_one(sql, &[]).await?;
        let own = Mark { store: column(&row, 0)?, number: read_count(column(&row, 1)?)? };
        let now = read_identity(&client).await;
        let part = |name: &'static str, place: usize, now: Option<String>| {
            Ok(IdentityPart { name, before: column(&row, place)?, now })
        };
        let [cluster, timeline, database] = now;
        let identity: Result<Vec<IdentityPart>> = [
            part("cluster identifier", 3, cluster),
            part("timeline", 4, timeline),
            part("number in the cluster", 5, database),
        ]
        .into_iter()
        .collect();
        let (alive_at, identity) = (instant_if_any(&row, 2)?, identity?);
        Ok(Life { own, alive_at, files: Vec::new(), identity })
    }

    async fn read_epoch(&self) -> Result<Option<Epoch>> {
        self.in_reader(sql::read_epoch).await
    }

    async fn record_restore(&self, cause: &Cause, at: Timestamp) -> Result<Epoch> {
        let cause = cause.clone();
        self.in_transaction(move |session| sql::record_restore(session, &cause, 0, at)).await
    }

    async fn record_alive(&self, at: Timestamp) -> Result<()> {
        let client = self.reader().await?;
        let [cluster, timeline, database] = read_identity(&client).await;
        drop(client);
        let identity = &(cluster, timeline, database);
        let work = move |client: Arc<Transaction>| async move {
            let sql = "-- record_alive
                UPDATE store_life SET mark = mark + 1, alive_at = GREATEST(alive_at, $1),
                    cluster = COALESCE($2, cluster), timeline = COALESCE($3, timeline),
                    database = COALESCE($4, database)";
            let (cluster, timeline, database) = identity;
            client.execute(sql, &[&SqlTimestamp(at), cluster, timeline, database]).await?;
            Ok(())
        };
        self.transact(work).await
    }
}

/// Gives the store its identity when it has none.
pub async fn found_store(client: &ClientWrapper) -> Result<()> {
    let mut fresh = [0u8; 16];
    getrandom::fill(&mut fresh).map_err(|error| Error::Internal { what: error.to_string() })?;
    let sql = "-- found_store
        INSERT INTO store_life (place, store, mark) VALUES (1, $1, 0) ON CONFLICT DO NOTHING";
    client.execute(sql, &[&hex(&fresh)]).await?;
    Ok(())
}

/// Cluster, timeline and database.
async fn read_identity(client: &ClientWrapper) -> [Option<String>; 3] {
    let mut identity = [None, None, None];
    for (part, sql) in identity.iter_mut().zip([CLUSTER, TIMELINE, DATABASE]) {
        let row = client.query_opt(sql, &[]).await;
        *part = row.ok().flatten().and_then(|row| column(&row, 0).ok());
    }
    identity
}
