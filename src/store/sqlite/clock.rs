//! What the embedded store knows about time.
//!
//! Invariant: after `lower_time_marks` nothing raises the high-water mark but a later commit: all
//! that was recorded is folded first, so that no journal row with a time to come is read again. A
//! crash leaves the folding, the lowered tables, or all of it; the command can be given again.

use super::SqliteStore;
use super::session::SqliteSession;
use super::statements::Statements;
use super::writer::Writer;
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::clock::{Clocks, TimeMarks};
use crate::store::sql::{Failure, lower_tables};
use async_trait::async_trait;

#[async_trait]
impl Clocks for SqliteStore {
    async fn read_clock(&self) -> Result<Option<Timestamp>> {
        Ok(None)
    }

    async fn read_time_marks(&self) -> Result<TimeMarks> {
        self.write(read_time_marks).await
    }

    async fn lower_time_marks(&self, now: Timestamp) -> Result<()> {
        self.write(move |writer| lower(writer, now)).await
    }
}

fn read_time_marks(writer: &mut Writer) -> Result<TimeMarks> {
    let high_water = writer.fold_all(|folder| Ok(folder.state.high_water))?;
    let runs = std::sync::Arc::clone(&writer.shared.read_memory().runs);
    let newest_cut: Option<i64> = writer.connection.read_one(
        "-- read_time_marks\nSELECT max(mark) FROM cut_marks",
        [],
        |row| Ok(row.get(0)?),
    )?;
    Ok(TimeMarks {
        high_water: Some(high_water).filter(|mark| *mark != Timestamp::default()),
        newest_usage: runs.iter().map(|run| run.row.buckets.1).max(),
        newest_cut: newest_cut.map(Timestamp::from_micros),
    })
}

fn lower(writer: &mut Writer, now: Timestamp) -> Result<()> {
    writer.fold_all(|_| Ok(()))?;
    writer.write(|connection| {
        lower_tables(&SqliteSession::on(connection), now).map_err(Failure::into_error)
    })?;
    writer.fold_all(move |folder| folder.lower_high_water(now))
}
