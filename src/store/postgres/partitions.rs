//! Partitions of the ledger: one for each day of receipt, in UTC.
//!
//! Invariant: an event is never refused for want of a partition. Before a batch begins, its writer
//! makes sure of the partition of its day: of those that it knows, without asking. The partitions
//! of this day and the next are made when a store is opened and, from then on, by `fold` long
//! before they are needed. Making one holds [`PARTITION_LOCK`] until its end. A partition is made
//! beside the ledger and then attached, which lets others read and write the ledger meanwhile.
//! There is no default partition: its rows would stand in the way of later ones.
//!
//! Past days get an index by tenant and time, built while others read and write. Reads do not
//! depend on it. A crash leaves a partition attached or absent, and an index that is not valid,
//! which is dropped and built again.

use super::connection::Connector;
use super::scalars::column;
use crate::rules::timestamp::{MICROS_PER_DAY, Timestamp};
use crate::store::Result;
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeSet;
use std::sync::{PoisonError, RwLock};

/// Any number that no other lock has.
const PARTITION_LOCK: i64 = 0x636f_756e_7465_7270;
/// Any number that no other lock has; held while an index is built.
const INDEX_LOCK: i64 = 0x636f_756e_7465_7269;
/// A day is past when so many days have begun since: servers' clocks differ.
const MARGIN_DAYS: i32 = 2;

/// A day in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Day(i32);

impl Day {
    pub fn of(at: Timestamp) -> Self {
        let day = at.micros().div_euclid(MICROS_PER_DAY);
        Self(i32::try_from(day).expect("64 bits of microseconds fit"))
    }

    /// From the number that PostgreSQL counts a date by.
    pub fn from_wire(number: i32) -> Self {
        Self(number.saturating_add(EPOCH_DAYS))
    }

    /// The number that PostgreSQL counts a date by.
    pub fn to_wire(self) -> i32 {
        self.0.saturating_sub(EPOCH_DAYS)
    }

    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Its first moment, as SQL.
    fn start(self) -> String {
        Timestamp::from_micros(i64::from(self.0).saturating_mul(MICROS_PER_DAY)).to_string()
    }

    /// Which events belong to it: a condition that names its partition to the planner.
    pub fn condition(self) -> String {
        let (start, end) = (self.start(), self.next().start());
        format!("e.received_at >= '{start}' AND e.received_at < '{end}'")
    }

    /// The name of its partition: `events_20261115`.
    fn partition(self) -> String {
        let start = self.start();
        let digits = start.chars().take_while(|c| *c != 'T').filter(char::is_ascii_digit);
        format!("events_{}", digits.collect::<String>())
    }
}

/// Days from 1970 to 2000, where PostgreSQL starts to count.
const EPOCH_DAYS: i32 = 10_957;

/// The days whose partitions are known to exist.
#[derive(Default)]
pub struct KnownDays(RwLock<BTreeSet<Day>>);

impl KnownDays {
    /// Makes the partition of a day if it is not known to exist.
    pub async fn ensure(&self, connector: &Connector, day: Day) -> Result<()> {
        if self.0.read().unwrap_or_else(PoisonError::into_inner).contains(&day) {
            return Ok(());
        }
        let client = connector.open().await?;
        self.make(&client, day).await
    }

    /// Makes the partition of a day where it is missing.
    pub async fn make(&self, client: &ClientWrapper, day: Day) -> Result<()> {
        make_partition(client, day).await?;
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(day);
        Ok(())
    }

    /// After a failure: perhaps somebody has removed a partition.
    pub fn forget(&self) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

async fn make_partition(client: &ClientWrapper, day: Day) -> Result<()> {
    let name = day.partition();
    // From the tables, not by to_regclass: that may not know yet what was made a moment ago.
    let exists = "-- make_partition
        SELECT EXISTS (
            SELECT FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
            WHERE i.inhparent = 'events'::regclass AND c.relname::text = $1
        )";
    if column(&client.query_one(exists, &[&name]).await?, 0)? {
        return Ok(());
    }
    client.batch_execute("BEGIN").await?;
    client.execute("SELECT pg_advisory_xact_lock($1)", &[&PARTITION_LOCK]).await?;
    if !column::<bool>(&client.query_one(exists, &[&name]).await?, 0)? {
        let (start, end) = (day.start(), day.next().start());
        // Each by itself: Citus sends the whole text of a statement to its nodes.
        let table =
            format!("-- make_partition\nCREATE TABLE {name} (LIKE events INCLUDING CONSTRAINTS)");
        client.batch_execute(&table).await?;
        let sql = format!(
            "-- make_partition
            ALTER TABLE events ATTACH PARTITION {name} FOR VALUES FROM ('{start}') TO ('{end}')"
        );
        client.batch_execute(&sql).await?;
    }
    // After a failure the connection is dropped, and the server rolls back.
    client.batch_execute("COMMIT").await?;
    Ok(())
}

/// The day by the database's clock.
pub async fn today(client: &ClientWrapper) -> Result<Day> {
    let sql = "-- today\nSELECT clock_timestamp()";
    Ok(Day::of(super::scalars::instant(&client.query_one(sql, &[]).await?, 0)?))
}

/// Builds one index that a past day lacks, unless another server is at it.
pub async fn index_past_day(client: &ClientWrapper, today: Day) -> Result<()> {
    client.batch_execute("SET statement_timeout = 0").await?;
    let sql = "-- index_past_day\nSELECT pg_try_advisory_lock($1)";
    if !column::<bool>(&client.query_one(sql, &[&INDEX_LOCK]).await?, 0)? {
        return Ok(());
    }
    let newest = Day(today.0.saturating_sub(MARGIN_DAYS)).partition();
    let sql = "-- index_past_day
        SELECT c.relname::text, x.indexrelid IS NOT NULL
        FROM pg_inherits i
        JOIN pg_class c ON c.oid = i.inhrelid
        LEFT JOIN pg_index x ON x.indexrelid = to_regclass(c.relname || '_by_time')
        WHERE i.inhparent = 'events'::regclass AND c.relname::text COLLATE \"C\" <= $1
            AND length(c.relname) = length($1) AND x.indisvalid IS NOT TRUE
        ORDER BY c.relname LIMIT 1";
    if let Some(row) = client.query_opt(sql, &[&newest]).await? {
        let (name, broken): (String, bool) = (column(&row, 0)?, column(&row, 1)?);
        if broken {
            client.batch_execute(&format!("DROP INDEX {name}_by_time")).await?;
        }
        let sql = format!(
            "-- index_past_day
            CREATE INDEX CONCURRENTLY {name}_by_time ON {name} (tenant_no, occurred_at, id)"
        );
        client.batch_execute(&sql).await?;
        tracing::info!(partition = name, "indexed a past day of the ledger");
    }
    // The lock belongs to the session, which ends after a failure.
    client.execute("SELECT pg_advisory_unlock($1)", &[&INDEX_LOCK]).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_has_a_name_and_bounds() {
        let day = Day::of(Timestamp::parse("2026-11-15T23:59:59.999999Z").expect("valid"));
        assert_eq!(day.partition(), "events_20261115");
        assert_eq!(
            day.condition(),
            "e.received_at >= '2026-11-15T00:00:00Z' AND e.received_at < '2026-11-16T00:00:00Z'"
        );
        assert_eq!(Day::from_wire(day.to_wire()), day);
        assert_eq!(Day::of(Timestamp::parse("2000-01-01T00:00:00Z").expect("valid")).to_wire(), 0);
    }
}
