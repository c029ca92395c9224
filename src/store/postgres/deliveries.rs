//! Recording deliveries: one transaction for each batch, on the connection of its partition.
//!
//! The transaction names itself in `ingest_commits` first and commits last. It is redone from the
//! start when another transaction was in the way, or when the connection broke before COMMIT was
//! sent. When it broke at COMMIT, the database is asked: the row of `ingest_commits` is locked by
//! the broken transaction until that has ended, and then names this batch or the one before. Only
//! if that question finds no answer is the outcome unknown.
//!
//! COMMIT is not sent along with the last statement: a statement that failed on this side of the
//! wire would leave a COMMIT behind that commits the rest. Every statement has answered before.
//!
//! A crash of this process or of the server leaves all of the batch or nothing.

use super::PostgresStore;
use super::connection::Connector;
use super::day_groups::{insert_groups, load_days};
use super::declarations::Creation;
use super::events::{Probe, Slot, insert_events};
use super::failure::{Failure, describe};
use super::inbox::{record_conflicts, record_quarantine};
use super::judgement::{Gate, Judgement, SortedBatch};
use super::scalars::{SqlHash, SqlTimestamp, column, corrupt};
use super::{counters::record_counters, rollups::record_rollups};
use crate::faults::{crash_point, planted};
use crate::rules::batch::check_batch;
use crate::rules::ids::TenantNo;
use crate::rules::meter::Catalog;
use crate::rules::verdict::Verdict;
use crate::store::groups::{GroupGate, KnownGroups, NewGroups};
use crate::store::{Deliveries, DeliveryBatch, Error, Result};
use async_trait::async_trait;
use deadpool_postgres::ClientWrapper;
use futures_util::future::join3;
use hashbrown::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// How often a transaction is retried before the caller gets an error.
const TRIES_MAX: u32 = 20;
/// How often the database is asked for the outcome of a commit, and how much longer the pause gets
/// each time: in all a little longer than a server takes to restart.
const QUESTIONS_MAX: u32 = 8;
const QUESTION_PAUSE: Duration = Duration::from_millis(200);

/// One partition's connection. It is taken out while a transaction runs and put back when that has
/// ended well, so that no abandoned transaction is ever continued.
pub struct Writer {
    /// Names this writer in `ingest_commits`.
    id: SqlHash,
    idle: Mutex<Option<ClientWrapper>>,
    /// Groups of this partition's tenants that are stored.
    known_groups: Mutex<KnownGroups>,
}

impl Writer {
    pub fn new() -> Result<Self> {
        Ok(Self { id: random_number()?, idle: Mutex::new(None), known_groups: Mutex::default() })
    }

    /// Waits for the transaction in progress and drops the connection.
    pub async fn close(&self) {
        self.idle.lock().await.take();
    }

    /// A connection set up for writing, with this writer's row in `ingest_commits`.
    async fn connect(&self, connector: &Connector) -> Result<ClientWrapper> {
        let client = connector.open().await?;
        // The probe must look up each key in the index, whatever the statistics of a young table
        // say, and needs no plan of its own for each batch.
        let sql = "-- connect
            SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off;
            SET enable_mergejoin = off; SET jit = off; SET plan_cache_mode = force_generic_plan";
        client.batch_execute(sql).await?;
        let sql = "-- connect
            INSERT INTO ingest_commits (writer) VALUES ($1) ON CONFLICT DO NOTHING";
        client.execute(sql, &[&self.id]).await?;
        Ok(client)
    }
}

#[async_trait]
impl Deliveries for PostgresStore {
    fn partitions(&self) -> usize {
        self.writers.len()
    }

    async fn record_deliveries(
        &self,
        partition: usize,
        batch: DeliveryBatch,
    ) -> Result<Vec<Verdict>> {
        let writer = self.writers.get(partition).ok_or_else(|| Error::Internal {
            what: format!("there is no partition {partition}"),
        })?;
        let sorted = self.sort_batch(&batch).await?;
        let batch_id = random_number()?;
        let mut idle = writer.idle.lock().await;
        let mut known_groups = writer.known_groups.lock().await;
        let mut hindrance = String::new();
        for round in 0..TRIES_MAX {
            self.refuse_if_closed()?;
            if round > 0 {
                tokio::time::sleep(pause(round)?).await;
            }
            let client = match idle.take() {
                Some(client) if !client.is_closed() => client,
                Some(_) | None => writer.connect(&self.connector).await?,
            };
            let work = self.write_batch(&client, (writer.id, batch_id), &sorted, &mut known_groups);
            let failure = match self.connector.within(work).await {
                Ok(Ok(mut written)) => {
                    let added = std::mem::take(&mut written.new_groups);
                    match self.commit(client, writer, batch_id, written).await? {
                        Committed::Yes(verdicts, client) => {
                            *idle = client;
                            known_groups.take_over(added);
                            return Ok(verdicts);
                        }
                        Committed::No(what) => Failure::Lost(what),
                    }
                }
                Ok(Err(Failure::Again(what))) => {
                    *idle = self.roll_back(client).await;
                    Failure::Again(what)
                }
                // The connection is dropped, and the server rolls back.
                Ok(Err(failure @ (Failure::Lost(_) | Failure::Final(_)))) => failure,
                Err(silence) => Failure::Final(silence),
            };
            match failure {
                Failure::Again(what) | Failure::Lost(what) => {
                    tracing::debug!(%what, round, "redoing a batch of deliveries");
                    hindrance = what;
                }
                Failure::Final(error) => return Err(error),
            }
        }
        Err(Error::Unavailable { what: format!("tried {TRIES_MAX} times, last: {hindrance}") })
    }
}

/// The outcome of a COMMIT.
enum Committed {
    /// With the connection, if it can be used again.
    Yes(Vec<Verdict>, Option<ClientWrapper>),
    No(String),
}

/// What a transaction wrote, up to its COMMIT.
struct Written<'b> {
    judgement: Judgement<'b>,
    catalog: Arc<Catalog>,
    new_groups: NewGroups,
}

impl PostgresStore {
    /// Numbers the tenants and sorts the events by their keys.
    async fn sort_batch<'b>(&self, batch: &'b DeliveryBatch) -> Result<SortedBatch<'b>> {
        let creation = match batch.strict_tenants {
            true => Creation::Never,
            false => Creation::At(batch.acceptance.now),
        };
        let tenants = batch.events.iter().map(|event| &event.tenant);
        self.number_tenants(tenants, creation).await?;
        // What was refused creates no tenant: anybody can misspell one.
        let tenants = batch.refused.iter().filter_map(|(tenant, _)| tenant.as_ref());
        self.number_tenants(tenants, Creation::Never).await?;
        let tenants = batch.events.iter().map(|event| self.tenant_no(&event.tenant)).collect();
        self.catalog_with(batch.events.iter().map(|event| event.meter)).await?;
        Ok(SortedBatch::new(batch, tenants, &self.fingerprinter))
    }

    /// Everything but the COMMIT.
    async fn write_batch<'b>(
        &self,
        client: &ClientWrapper,
        (writer, batch_id): (SqlHash, SqlHash),
        sorted: &SortedBatch<'b>,
        known_groups: &mut KnownGroups,
    ) -> std::result::Result<Written<'b>, Failure> {
        let now = sorted.batch.acceptance.now;
        let catalog = self.catalog_with(std::iter::empty()).await?;
        load_days(client, sorted, &catalog, known_groups).await?;
        let groups = GroupGate::new(known_groups, sorted.batch.groups_per_day);
        let mut gate = Gate { groups, fingerprinter: &self.fingerprinter };
        let mut judgement = self.judge(client, (writer, batch_id), sorted, &mut gate).await?;
        let new_groups = gate.groups.added;
        judgement.sort();
        let mut tallies = judgement.tallies(sorted);
        for (tenant, count) in &sorted.batch.refused {
            let tenant = tenant.as_ref().and_then(|tenant| self.tenant_no(tenant));
            tallies.entry(tenant).or_default().rejected += count;
        }
        check_batch(&judgement.figures(sorted.batch, &tallies))?;
        let fingerprinter = &self.fingerprinter;
        insert_events(client, &judgement.accepted, now).await?;
        if !planted("bug.rollup_outside_transaction") {
            record_rollups(client, &judgement.accepted, &catalog).await?;
        }
        insert_groups(client, &new_groups).await?;
        record_conflicts(client, &judgement.conflicts, now, &catalog, fingerprinter).await?;
        record_quarantine(client, &judgement.quarantined, now, &catalog, fingerprinter).await?;
        record_counters(client, &tallies, now).await?;
        Ok(Written { judgement, catalog, new_groups })
    }

    /// Commits, and finds out what happened if the answer is lost.
    async fn commit(
        &self,
        client: ClientWrapper,
        writer: &Writer,
        batch_id: SqlHash,
        written: Written<'_>,
    ) -> Result<Committed> {
        crash_point("postgres.before_commit");
        if planted("bug.ack_before_commit") {
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(20)).await;
                client.batch_execute("COMMIT").await
            });
            return Ok(Committed::Yes(written.judgement.into_verdicts(), None));
        }
        let answer = self.connector.within(client.batch_execute("COMMIT")).await;
        let Ok(Ok(())) = answer else {
            drop(client);
            let what = match answer {
                Ok(Ok(())) => String::new(),
                Ok(Err(error)) => describe(&error),
                Err(silence) => silence.to_string(),
            };
            return Ok(match self.was_committed(writer, batch_id, &what).await? {
                true => Committed::Yes(written.judgement.into_verdicts(), None),
                false => Committed::No(what),
            });
        };
        crash_point("postgres.after_commit");
        if planted("bug.rollup_outside_transaction") {
            let accepted = &written.judgement.accepted;
            let late = record_rollups(&client, accepted, &written.catalog).await;
            late?;
        }
        Ok(Committed::Yes(written.judgement.into_verdicts(), Some(client)))
    }

    /// Asks the database, for a few seconds if it must, whether the batch is there.
    async fn was_committed(&self, writer: &Writer, batch_id: SqlHash, what: &str) -> Result<bool> {
        let mut hindrance = String::new();
        for round in 0..QUESTIONS_MAX {
            tokio::time::sleep(QUESTION_PAUSE * round).await;
            match self.connector.within(self.last_batch(writer)).await {
                Ok(Ok(last)) => return Ok(last == Some(batch_id)),
                Ok(Err(error)) | Err(error) => hindrance = error.to_string(),
            }
        }
        let what = format!("the connection broke at the commit ({what}), then: {hindrance}");
        Err(Error::Unknown { what })
    }

    /// The batch this writer committed last. The lock waits for a transaction that is still at its
    /// COMMIT.
    async fn last_batch(&self, writer: &Writer) -> Result<Option<SqlHash>> {
        let client = self.connector.open().await?;
        let sql = "-- last_batch
            SELECT batch FROM ingest_commits WHERE writer = $1 FOR UPDATE";
        let row = client.query_one(sql, &[&writer.id]).await?;
        column(&row, 0)
    }

    /// Ends a failed transaction; a connection on which even that fails is dropped.
    async fn roll_back(&self, client: ClientWrapper) -> Option<ClientWrapper> {
        match self.connector.within(client.batch_execute("ROLLBACK")).await {
            Ok(Ok(())) => Some(client),
            Ok(Err(_)) | Err(_) => None,
        }
    }

    /// Begins the transaction, finds what is stored under the keys and judges the deliveries.
    async fn judge<'b>(
        &self,
        client: &ClientWrapper,
        (writer, batch_id): (SqlHash, SqlHash),
        sorted: &SortedBatch<'b>,
        gate: &mut Gate<'_>,
    ) -> std::result::Result<Judgement<'b>, Failure> {
        let sql = "-- judge
            UPDATE ingest_commits SET batch = $2, committed_at = GREATEST(committed_at, $3)
            WHERE writer = $1";
        let mark = client.prepare_cached(sql).await?;
        let look = Probe::prepare(client).await?;
        let now = SqlTimestamp(sorted.batch.acceptance.now);
        let mut open: Vec<(usize, u128)> =
            sorted.groups.iter().map(|group| group.home).enumerate().collect();
        let places = |open: &[(usize, u128)]| {
            Probe::new(open.iter().map(|(group, slot)| (sorted.groups[*group].tenant, *slot)))
        };
        let probe = places(&open);
        let (begun, marked, found) = join3(
            client.batch_execute("BEGIN"),
            client.execute(&mark, &[&writer, &batch_id, &now]),
            probe.run(client, &look),
        )
        .await;
        begun?;
        if marked? != 1 {
            return Err(corrupt("the writer's ingest_commits row was deleted").into());
        }
        let mut found = found?;
        let mut judgement = Judgement::new(sorted);
        let mut taken: HashSet<(TenantNo, u128)> = HashSet::with_capacity(open.len());
        loop {
            let catalog = self.catalog_with(found.meters()?.into_iter()).await?;
            let mut collided = Vec::new();
            for (index, slot) in open {
                let group = &sorted.groups[index];
                let first = sorted.first(group);
                let stored = match found.at(group.tenant, slot, &first.tenant, &first.id)? {
                    Slot::Same(stored) => Some(stored.event),
                    Slot::Free if !sorted.has_acceptable(group) => None,
                    Slot::Free if !taken.contains(&(group.tenant, slot)) => None,
                    Slot::Free | Slot::Other => {
                        collided.push((index, slot.wrapping_add(1)));
                        continue;
                    }
                };
                // A place where nothing is counted stays free, also for others of this batch.
                let found = (slot, stored.as_ref());
                if judgement.judge_group(sorted, group, found, &catalog, gate)? {
                    taken.insert((group.tenant, slot));
                }
            }
            if collided.is_empty() {
                return Ok(judgement);
            }
            found = places(&collided).run(client, &look).await?;
            open = collided;
        }
    }
}

/// A short random pause that grows, so that two servers in each other's way part.
pub fn pause(round: u32) -> Result<Duration> {
    let random = getrandom::u32().map_err(|error| Error::Internal { what: error.to_string() })?;
    Ok(Duration::from_millis(u64::from(random % (round * 10) + 1)))
}

fn random_number() -> Result<SqlHash> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| Error::Internal { what: error.to_string() })?;
    Ok(SqlHash(u128::from_be_bytes(bytes)))
}
