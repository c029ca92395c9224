//! What the shared store knows about time: the database's clock, and the marks of all servers.
//!
//! A crash leaves marks lowered or not, as a whole; lowering again changes nothing more.

use super::PostgresStore;
use super::scalars::{SqlTimestamp, column};
use super::transaction::{Done, Transaction};
use crate::rules::timestamp::{MICROS_PER_MINUTE, Timestamp};
use crate::store::Result;
use crate::store::clock::{
    Clocks, LEASE_MICROS_MAX, LEASED_TABLES, RESEND_MICROS_MAX, TimeMarks, WAIT_MICROS_MAX,
};
use async_trait::async_trait;
use deadpool_postgres::ClientWrapper;
use std::sync::Arc;

#[async_trait]
impl Clocks for PostgresStore {
    async fn read_clock(&self) -> Result<Option<Timestamp>> {
        let client = self.reader().await?;
        let sql = "-- read_clock
            SELECT clock_timestamp()";
        let row = client.query_one(sql, &[]).await?;
        let now: SqlTimestamp = column(&row, 0)?;
        Ok(Some(now.0))
    }

    async fn read_time_marks(&self) -> Result<TimeMarks> {
        let client = self.reader().await?;
        let sql = "-- read_time_marks
            SELECT (SELECT max(committed_at) FROM ingest_commits),
                (SELECT max(bucket_start) FROM rollups), (SELECT max(mark) FROM cut_marks)";
        let row = client.query_one(sql, &[]).await?;
        let latest = |place: usize| -> Result<Option<Timestamp>> {
            let latest: Option<SqlTimestamp> = column(&row, place)?;
            Ok(latest.map(|stamp| stamp.0))
        };
        Ok(TimeMarks { high_water: latest(0)?, newest_usage: latest(1)?, newest_cut: latest(2)? })
    }

    async fn lower_time_marks(&self, now: Timestamp) -> Result<()> {
        let work = move |client: Arc<Transaction>| async move { lower(&client, now).await };
        self.transact(work).await
    }
}

async fn lower(client: &ClientWrapper, now: Timestamp) -> Done<()> {
    let later = |micros: i64| SqlTimestamp(now.saturating_add_micros(micros));
    let at = SqlTimestamp(now);
    let sql = "-- lower
        UPDATE ingest_commits SET committed_at = $1 WHERE committed_at > $1";
    client.execute(sql, &[&at]).await?;
    client.execute("-- lower\nDELETE FROM cut_marks WHERE mark > $1", &[&at]).await?;
    let (lease_max, wait_max) = (later(LEASE_MICROS_MAX), later(WAIT_MICROS_MAX));
    let sql = "-- lower\nUPDATE leases SET until = $1 WHERE until > $2";
    client.execute(sql, &[&at, &lease_max]).await?;
    for table in LEASED_TABLES {
        let sql = format!("-- lower\nUPDATE {table} SET leased_until = $1 WHERE leased_until > $2");
        client.execute(&sql, &[&at, &lease_max]).await?;
        let sql = format!("-- lower\nUPDATE {table} SET due_at = $1 WHERE due_at > $2");
        client.execute(&sql, &[&at, &wait_max]).await?;
    }
    let sql = "-- lower
        UPDATE pushes SET first_attempt_at = $1 WHERE first_attempt_at > $2";
    client.execute(sql, &[&later(-RESEND_MICROS_MAX), &later(5 * MICROS_PER_MINUTE)]).await?;
    Ok(())
}
