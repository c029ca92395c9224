//! Epochs of a PostgreSQL store: the database's identity as it was, compared with what it is.
//!
//! A recovery to a moment and a failover begin a new timeline; a dump that is read back makes a new
//! database. A part of the identity that this user may not read is unknown and decides nothing.
//!
//! Invariant: an epoch only grows. A crash leaves a restore written down or not; the next start
//! finds the same identity and writes it down then.

use super::PostgresStore;
use super::scalars::{SqlTimestamp, column, damaged, instant, instant_if_any, read_count};
use super::scalars::{read_ordinal, write_count};
use super::statements::Statements;
use super::transaction::{Done, Transaction};
use crate::faults::planted;
use crate::rules::digest::hex;
use crate::rules::push::secret_of_epoch;
use crate::rules::restore::{Cause, IdentityPart, Life, Mark};
use crate::rules::timestamp::Timestamp;
use crate::store::epoch::{Epoch, Epochs, Uncompared};
use crate::store::push::Push;
use crate::store::sql::{self, SqlStore};
use crate::store::{Error, Result};
use async_trait::async_trait;
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeSet;
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

/// The last restore, for what is written for this store.
pub async fn read_epoch(client: &ClientWrapper) -> Done<Option<Epoch>> {
    let sql = "-- read_epoch
        SELECT epoch, restored_at, reason, suspected FROM epochs ORDER BY epoch DESC LIMIT 1";
    let Some(row) = client.read_optional(sql, &[]).await? else { return Ok(None) };
    Ok(Some(Epoch {
        number: read_ordinal(column(&row, 0)?)?,
        restored_at: instant(&row, 1)?,
        reason: column(&row, 2)?,
        suspected: column(&row, 3)?,
    }))
}

/// The secret under which keys are made now.
pub async fn secret_now(client: &ClientWrapper, secret: &[u8; 32]) -> Done<[u8; 32]> {
    let sql = "-- secret_now
        SELECT COALESCE(max(epoch), 0) FROM epochs WHERE NOT suspected";
    let row = client.read_one(sql, &[]).await?;
    Ok(secret_of_epoch(secret, read_ordinal(column(&row, 0)?)?))
}

/// The windows that have to be compared before anything of them is sent.
pub struct Windows {
    epoch: Option<Epoch>,
    verified: BTreeSet<u64>,
}

impl Windows {
    pub fn find(&self, push: &Push) -> Option<Uncompared> {
        let Epoch { restored_at, suspected, .. } = *self.epoch.as_ref()?;
        let known = push.window.start >= restored_at || self.verified.contains(&push.number);
        let known = known || planted("bug.no_look_after_restore");
        (!known).then_some(Uncompared { restored_at, suspected, last: None })
    }
}

/// What is known of the windows of these pushes.
pub async fn read_windows(client: &ClientWrapper, numbers: &[i64]) -> Done<Windows> {
    let Some(epoch) = read_epoch(client).await? else {
        return Ok(Windows { epoch: None, verified: BTreeSet::new() });
    };
    let sql = "-- read_windows
        SELECT p.push_no FROM pushes p
        WHERE p.push_no = ANY ($1) AND EXISTS (
            SELECT FROM pushes v
            WHERE v.tenant_no = p.tenant_no AND v.meter_no = p.meter_no
                AND v.window_start = p.window_start AND v.verified_epoch = $2
        )";
    let number = i32::try_from(epoch.number).map_err(|_| damaged("epochs.number", epoch.number))?;
    let rows = client.read_all(sql, &[&numbers, &number]).await?;
    let verified: Result<BTreeSet<u64>> =
        rows.iter().map(|row| read_count(column(row, 0)?)).collect();
    Ok(Windows { epoch: Some(epoch), verified: verified? })
}

/// Keeps that the window of a push was compared in this epoch.
pub async fn verify(client: &ClientWrapper, push: u64) -> Done<()> {
    let sql = "-- verify
        UPDATE pushes SET verified_epoch = (SELECT max(epoch) FROM epochs) WHERE push_no = $1";
    client.execute(sql, &[&write_count(push)?]).await?;
    Ok(())
}
