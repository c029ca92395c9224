//! What the shared store knows about time: the database's clock, and the marks of all servers.
//!
//! A crash leaves marks lowered or not, as a whole; lowering again changes nothing more.

use super::PostgresStore;
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::clock::{Clocks, TimeMarks};
use crate::store::sql::{Row, SqlStore, lower_tables, values};
use async_trait::async_trait;

#[async_trait]
impl Clocks for PostgresStore {
    async fn read_clock(&self) -> Result<Option<Timestamp>> {
        let sql = "-- read_clock\nSELECT clock_timestamp() AS now";
        self.in_reader(move |session| session.read_one(sql, &[], Row::only)).await
    }

    async fn read_time_marks(&self) -> Result<TimeMarks> {
        let sql = "-- read_time_marks
            SELECT (SELECT max(committed_at) FROM ingest_commits) AS high_water,
                GREATEST((SELECT max(bucket_start) FROM rollups),
                    (SELECT max(bucket_start) FROM rollup_deltas)) AS newest_usage,
                (SELECT max(mark) FROM cut_marks) AS newest_cut";
        self.in_reader(move |session| {
            session.read_one(sql, &[], |row| {
                Ok(TimeMarks {
                    high_water: row.get("high_water")?,
                    newest_usage: row.get("newest_usage")?,
                    newest_cut: row.get("newest_cut")?,
                })
            })
        })
        .await
    }

    async fn lower_time_marks(&self, now: Timestamp) -> Result<()> {
        self.in_transaction(move |session| {
            let sql = "-- lower
                UPDATE ingest_commits SET committed_at = $1 WHERE committed_at > $1";
            session.run(sql, values![now])?;
            lower_tables(session, now)
        })
        .await
    }
}
