//! What the embedded store knows about time.
//!
//! Invariant: after `lower_time_marks` nothing raises the high-water mark but a later commit: all
//! that was recorded is folded first, so that no journal row with a time to come is read again. A
//! crash leaves the folding, or all of it.

use super::session::SqliteSession;
use super::writer::Writer;
use super::{SqliteStore, fold, sql_error};
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::clock::{Clocks, TimeMarks};
use crate::store::sql::{Failure, lower_tables};
use async_trait::async_trait;
use rusqlite::Connection;

#[async_trait]
impl Clocks for SqliteStore {
    async fn read_clock(&self) -> Result<Option<Timestamp>> {
        Ok(None)
    }

    async fn read_time_marks(&self) -> Result<TimeMarks> {
        self.write(|writer| {
            writer.fold_all()?;
            let high_water = writer.fold.high_water;
            writer.write(|connection| read_time_marks(connection, high_water))
        })
        .await
    }

    async fn lower_time_marks(&self, now: Timestamp) -> Result<()> {
        self.write(move |writer| lower(writer, now)).await
    }
}

fn read_time_marks(connection: &Connection, high_water: Timestamp) -> Result<TimeMarks> {
    let latest = |sql: &str| {
        let latest: rusqlite::Result<Option<i64>> = connection.query_row(sql, [], |row| row.get(0));
        latest.map(|micros| micros.map(Timestamp::from_micros)).map_err(sql_error)
    };
    Ok(TimeMarks {
        high_water: Some(high_water).filter(|mark| *mark != Timestamp::default()),
        newest_usage: latest("-- read_time_marks\nSELECT max(bucket_start) FROM rollups")?,
        newest_cut: latest("-- read_time_marks\nSELECT max(mark) FROM cut_marks")?,
    })
}

fn lower(writer: &mut Writer, now: Timestamp) -> Result<()> {
    writer.fold_all()?;
    let mut state = writer.fold;
    state.high_water = now;
    writer.write(|connection| {
        fold::write_state(connection, &state)?;
        lower_tables(&SqliteSession::on(connection), now).map_err(Failure::into_error)
    })?;
    writer.fold = state;
    Ok(())
}
