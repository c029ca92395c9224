//! Folding: about once a second, deltas of batches become part of totals and counters.
//!
//! One server folds at a time: it holds [`FOLD_LOCK`] on the connection that it folds on, so the
//! lock cannot outlive the connection, nor a transaction the lock. The others try to get it each
//! time.
//!
//! Invariant: the deltas that a pass takes are deleted in the transaction that adds them to totals
//! and counters. Readers see both of them in one statement, so a delta is always in exactly one of
//! the two. A crash leaves all of a pass or nothing of it, and deltas that the next pass takes.
//!
//! A pass takes the deltas of at most [`PASS_BATCHES`] batches. Batches are numbered when they
//! begin and may commit later than ones that began after them, so each pass looks [`LATE_BATCHES`]
//! back, and every minute one looks at everything.
//!
//! The server that folds also does what the tables need: it clears away what folding has deleted,
//! forgets old rows of `ingest_commits`, makes partitions ahead and indexes past ones.

use super::counters::{Tallies, add_tallies};
use super::failure::{Failure, describe};
use super::partitions::{index_past_day, today};
use super::rollups::{Totals, add_totals, fold_total, usage_row};
use super::scalars::{column, instant, read_count, read_meter_no, read_tenant_no};
use super::statements::Statements;
use super::{Core, judgement::meter_of};
use crate::faults::{crash_point, planted};
use crate::rules::rollup::RollupKey;
use crate::rules::verdict::Tally;
use crate::store::{Error, Result};
use deadpool_postgres::ClientWrapper;
use futures_util::TryStreamExt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// Any number that no other lock has.
const FOLD_LOCK: i64 = 0x636f_756e_7465_7266_i64 ^ 0x666f_6c64;
/// The pause between two passes; longer if a pass takes more than a tenth of it.
const PAUSE: Duration = Duration::from_secs(1);
/// Batches of one pass: with a thousand totals each, about 50 MB.
const PASS_BATCHES: i64 = 256;
/// A batch that began so many batches before the last one that was folded may still commit.
const LATE_BATCHES: i64 = 8_192;
/// How often a pass looks at everything, and the tables are looked after.
const LOOK_AFTER: Duration = Duration::from_secs(60);
/// How often what was deleted is cleared away; longer if that takes more than a tenth of it.
const CLEAR_AFTER: Duration = Duration::from_secs(15);
/// Rows of `ingest_commits` that are kept. A writer that asks for an older one does its batch
/// again, which then finds itself.
const COMMITS_KEPT: i64 = 1_000_000;

/// Starts the task, which ends when the store is closed or gone.
pub fn start(core: &Arc<Core>) -> JoinHandle<()> {
    let (core, closing) = (Arc::downgrade(core), Arc::clone(&core.closing));
    tokio::spawn(async move {
        let mut folder = Folder::default();
        let mut pause = PAUSE;
        loop {
            let _ = tokio::time::timeout(pause, closing.notified()).await;
            let Some(core) = Weak::upgrade(&core) else { return };
            if core.closed.load(Ordering::SeqCst) {
                return;
            }
            let began = Instant::now();
            if let Err(error) = folder.work(&core).await {
                // The connection is dropped with the lock; another server may fold.
                folder.client = None;
                tracing::warn!(%error, "could not fold deltas; they stay and are counted");
            }
            pause = PAUSE.max(began.elapsed() * 10);
        }
    })
}

#[derive(Default)]
struct Folder {
    /// The connection that holds the lock.
    client: Option<ClientWrapper>,
    /// Batches up to this one were folded, but for late ones.
    folded: i64,
    looked_after: Option<Instant>,
    cleared: Option<Instant>,
    clear_pause: Duration,
    deleted: u64,
}

impl Folder {
    async fn work(&mut self, core: &Core) -> Result<()> {
        let client = match self.client.take() {
            Some(client) if !client.is_closed() => client,
            Some(_) | None => match connect(core).await? {
                Some(client) => client,
                None => return Ok(()),
            },
        };
        let due = |last: Option<Instant>, after| last.is_none_or(|last| last.elapsed() >= after);
        let thorough = due(self.looked_after, LOOK_AFTER);
        if thorough {
            self.look_after(core, &client).await?;
            self.looked_after = Some(Instant::now());
        }
        let mut behind = true;
        let mut first = true;
        while behind && !core.closed.load(Ordering::SeqCst) {
            behind = self.pass(core, &client, thorough && first).await?;
            first = false;
        }
        if self.deleted > 0 && due(self.cleared, CLEAR_AFTER.max(self.clear_pause)) {
            let began = Instant::now();
            let sql = "-- clear\nVACUUM rollup_deltas; VACUUM counter_deltas";
            for sql in sql.split("; ") {
                client.batch_execute(sql).await?;
            }
            (self.deleted, self.cleared) = (0, Some(Instant::now()));
            self.clear_pause = began.elapsed() * 10;
        }
        self.client = Some(client);
        Ok(())
    }

    /// Folds the deltas of some batches; returns whether there are more.
    async fn pass(&mut self, core: &Core, client: &ClientWrapper, thorough: bool) -> Result<bool> {
        let sql = "-- next_batches
            SELECT max(batch_no), count(*) FROM (
                SELECT batch_no FROM ingest_commits WHERE batch_no > $1
                ORDER BY batch_no LIMIT $2
            ) AS next";
        let row = client.query_one(sql, &[&self.folded, &PASS_BATCHES]).await?;
        let (newest, batches): (Option<i64>, i64) = (column(&row, 0)?, column(&row, 1)?);
        let last = match newest {
            Some(newest) => newest,
            None if thorough => self.folded,
            None => return Ok(false),
        };
        let after = if thorough { -1 } else { self.folded.saturating_sub(LATE_BATCHES) };
        let folded = core.connector.within(fold(core, client, after, last)).await?;
        self.deleted += folded.map_err(Failure::into_error)?;
        self.folded = last;
        Ok(batches == PASS_BATCHES)
    }

    /// What the tables need once in a while.
    async fn look_after(&mut self, core: &Core, client: &ClientWrapper) -> Result<()> {
        let day = today(client).await?;
        core.days.make(client, day).await?;
        core.days.make(client, day.next()).await?;
        let sql = "-- forget_commits
            DELETE FROM ingest_commits
            WHERE batch_no < (SELECT max(batch_no) FROM ingest_commits) - $1
                AND committed_at IS DISTINCT FROM (SELECT max(committed_at) FROM ingest_commits)";
        client.execute(sql, &[&COMMITS_KEPT]).await?;
        // An index takes as long as it takes; folding goes on meanwhile.
        let connector = core.connector.clone();
        tokio::spawn(async move {
            let indexed = async { index_past_day(&connector.open().await?, day).await };
            if let Err(error) = indexed.await {
                tracing::debug!(%error, "could not index a past day of the ledger yet");
            }
        });
        Ok(())
    }
}

/// A connection that holds the lock; none if another server has it.
async fn connect(core: &Core) -> Result<Option<ClientWrapper>> {
    let client = core.connector.open().await?;
    // A server that no longer answers loses the lock with its connection.
    client.batch_execute("SET idle_session_timeout = 60000; SET lock_timeout = 1000").await?;
    let sql = "-- hold_fold_lock\nSELECT pg_try_advisory_lock($1)";
    let held: bool = column(&client.query_one(sql, &[&FOLD_LOCK]).await?, 0)?;
    Ok(held.then_some(client))
}

/// Folds what the batches after one and up to another added; returns how many deltas that were.
async fn fold(
    core: &Core,
    client: &ClientWrapper,
    after: i64,
    last: i64,
) -> std::result::Result<u64, Failure> {
    client.batch_execute("BEGIN").await?;
    let early = planted("bug.delta_lost_between_fold_and_delete");
    let late = planted("bug.delta_folded_twice");
    let (totals, deltas) = take_totals(core, client, (after, last), !late).await?;
    let (mut tallies, counted) = take_tallies(client, (after, last)).await?;
    if planted("bug.counter_off_by_one")
        && let Some(tally) = tallies.values_mut().next()
    {
        tally.accepted += 1;
    }
    if deltas + counted == 0 {
        client.batch_execute("ROLLBACK").await?;
        return Ok(0);
    }
    if early {
        client.batch_execute("COMMIT; BEGIN").await?;
        crash_point("postgres.before_fold_commit");
    }
    add_totals(client, totals).await?;
    add_tallies(client, &tallies).await?;
    if late {
        client.batch_execute("COMMIT; BEGIN").await?;
        crash_point("postgres.before_fold_commit");
        take_totals(core, client, (after, last), true).await?;
    }
    crash_point("postgres.before_fold_commit");
    if let Err(error) = client.batch_execute("COMMIT").await {
        // Committed or not, the next pass finds the deltas that are left.
        let what = format!("the connection broke at the commit of a fold: {}", describe(&error));
        return Err(Error::Unavailable { what }.into());
    }
    crash_point("postgres.after_fold_commit");
    Ok(deltas + counted)
}

/// Deletes what batches added to totals, and adds it up.
async fn take_totals(
    core: &Core,
    client: &ClientWrapper,
    (after, last): (i64, i64),
    delete: bool,
) -> std::result::Result<(Totals, u64), Failure> {
    let columns = "tenant_no, meter_no, bucket_start, grp, count, total, latest_at, latest_id,
        COALESCE(found, ARRAY[]::text[])";
    let range = "batch_no > $1 AND batch_no <= $2";
    let sql = match delete {
        true => {
            format!("-- take_totals\nDELETE FROM rollup_deltas WHERE {range} RETURNING {columns}")
        }
        false => format!("-- take_totals\nSELECT {columns} FROM rollup_deltas WHERE {range}"),
    };
    let statement = client.prepare_cached(&sql).await?;
    let mut rows = std::pin::pin!(client.query_raw(&statement, [&after, &last]).await?);
    let mut catalog = core.catalog_with(std::iter::empty()).await?;
    let (mut totals, mut deltas) = (Totals::new(), 0);
    while let Some(row) = rows.try_next().await? {
        let (tenant, meter) = (column(&row, 0)?, read_meter_no(column(&row, 1)?)?);
        if catalog.get(meter).is_none() {
            catalog = core.catalog_with(std::iter::once(meter)).await?;
        }
        let row = usage_row(&row, 2, meter_of(&catalog, meter)?.spec.aggregation)?;
        let tenant = read_tenant_no(tenant)?;
        let key = RollupKey { tenant, meter, bucket_start: row.bucket_start, group: row.group };
        fold_total(&mut totals, key, row.rollup)?;
        deltas += 1;
    }
    if planted("bug.total_loses_an_event")
        && let Some(total) = totals.values_mut().find(|total| total.count > 1)
    {
        total.count -= 1;
    }
    Ok((totals, deltas))
}

/// Deletes what batches added to counters, and adds it up.
async fn take_tallies(
    client: &ClientWrapper,
    (after, last): (i64, i64),
) -> std::result::Result<(Tallies, u64), Failure> {
    let sql = "-- take_tallies
        DELETE FROM counter_deltas WHERE batch_no > $1 AND batch_no <= $2
        RETURNING hour, tenant_no, accepted, duplicates, conflicts, quarantined, rejected";
    let (mut tallies, mut deltas) = (Tallies::new(), 0);
    for row in client.read_all(sql, &[&after, &last]).await? {
        let count = |place: usize| read_count(column(&row, place)?);
        let tally = Tally {
            accepted: count(2)?,
            duplicates: count(3)?,
            conflicts: count(4)?,
            quarantined: count(5)?,
            rejected: count(6)?,
            admitted: 0,
        };
        tallies.entry((instant(&row, 0)?, column(&row, 1)?)).or_default().merge(&tally);
        deltas += 1;
    }
    Ok((tallies, deltas))
}
