//! Recording deliveries: one transaction for each batch, on the connection of its partition.
//!
//! The transaction takes a number for its batch, as a row of `ingest_commits`, first and commits
//! last; in between it only inserts. It is redone from the start, with another number, when another
//! transaction was in the way, or when the connection broke before COMMIT was sent. When it broke
//! at COMMIT, the database is asked by inserting the same row: that waits until the broken
//! transaction has ended, and then finds its row or takes its place for ever. Only if that question
//! finds no answer is the outcome unknown.
//!
//! Keys that this process has not lately seen are not looked up before they are inserted
//! (`recent_keys`): if one of them is stored, the transaction is redone with a look at all of them.
//!
//! COMMIT is not sent along with the last statement: a statement that failed on this side of the
//! wire would leave a COMMIT behind that commits the rest. Every statement has answered before.
//!
//! A crash of this process or of the server leaves all of the batch or nothing.

use super::PostgresStore;
use super::connection::Connector;
use super::counters::add_admitted;
use super::day_groups::{insert_groups, load_days};
use super::declarations::Creation;
use super::deltas::{self, encode_tallies, encode_totals};
use super::events::{EventRows, Probe, Slot};
use super::failure::{Failure, describe};
use super::inbox::{record_conflicts, record_quarantine};
use super::judgement::{Gate, Judgement, SortedBatch};
use super::partitions::Day;
use super::recent_keys::RecentKeys;
use super::scalars::{SqlTimestamp, column};
use crate::faults::{crash_point, planted};
use crate::rules::batch::{check_admissions, check_batch};
use crate::rules::ids::TenantNo;
use crate::rules::meter::Catalog;
use crate::rules::verdict::Verdict;
use crate::store::groups::{GroupGate, KnownGroups, NewGroups};
use crate::store::sql::{Admissions, Session};
use crate::store::{AdmissionBatch, Deliveries, DeliveryBatch, Error, Result};
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
#[derive(Default)]
pub struct Writer {
    idle: Mutex<Option<ClientWrapper>>,
    memory: Mutex<Memory>,
}

/// What a writer knows of what is stored.
#[derive(Default)]
struct Memory {
    /// Groups of this partition's tenants that are stored.
    groups: KnownGroups,
    keys: RecentKeys,
}

impl Writer {
    /// Waits for the transaction in progress and drops the connection.
    pub async fn close(&self) {
        self.idle.lock().await.take();
    }

    /// A connection set up for writing.
    async fn connect(connector: &Connector) -> Result<ClientWrapper> {
        let client = connector.open().await?;
        // The probe must look up each key in the index, whatever the statistics of a young table
        // say, and on one server needs no plan of its own for each batch.
        let sql = "-- connect
            SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off;
            SET enable_mergejoin = off; SET jit = off";
        client.batch_execute(sql).await?;
        // Citus cannot plan a look-up whose values it does not see.
        let plans = if connector.distributed { "force_custom_plan" } else { "force_generic_plan" };
        client.batch_execute(&format!("SET plan_cache_mode = {plans}")).await?;
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
        let recorded = self.record(partition, batch, None).await?;
        recorded.ok_or_else(|| Error::Internal { what: "deliveries have no records".into() })
    }

    async fn record_admissions(
        &self,
        partition: usize,
        batch: AdmissionBatch,
    ) -> Result<Option<Vec<Verdict>>> {
        let admissions = Admissions::of(&batch)?;
        self.record(partition, batch.deliveries(), Some(admissions)).await
    }
}

impl PostgresStore {
    /// Records deliveries, or events that a person admits. None if a record of these was decided
    /// before; nothing has happened then.
    async fn record(
        &self,
        partition: usize,
        batch: DeliveryBatch,
        admissions: Option<Admissions>,
    ) -> Result<Option<Vec<Verdict>>> {
        let writer = self.writers.get(partition).ok_or_else(|| Error::Internal {
            what: format!("there is no partition {partition}"),
        })?;
        let sorted = self.sort_batch(&batch).await?;
        let day = Day::of(batch.acceptance.now);
        let mut idle = writer.idle.lock().await;
        let mut memory = writer.memory.lock().await;
        let mut hindrance = String::new();
        for round in 0..TRIES_MAX {
            self.refuse_if_closed()?;
            if round > 0 {
                tokio::time::sleep(pause(round)?).await;
                self.days.forget();
            }
            self.days.ensure(&self.connector, day).await?;
            let client = match idle.take() {
                Some(client) if !client.is_closed() => client,
                Some(_) | None => Writer::connect(&self.connector).await?,
            };
            let trusting = round == 0 && memory.keys.is_trusted();
            let work = self.write_batch(&client, &sorted, &mut memory, trusting);
            let written = self.connector.within(work).await;
            let (client, written) = self.decide(client, admissions.as_ref(), written).await?;
            let failure = match written {
                Ok(Ok(written)) if written.decided_before => {
                    *idle = self.roll_back(client).await;
                    return Ok(None);
                }
                Ok(Ok(mut written)) => {
                    let added = std::mem::take(&mut written.new_groups);
                    match self.commit(client, written).await? {
                        Committed::Yes(verdicts, client) => {
                            *idle = client;
                            memory.groups.take_over(added);
                            memory.keys.note(sorted.groups.iter().map(|group| group.home));
                            return Ok(Some(verdicts));
                        }
                        Committed::No(what) => Failure::Lost(what),
                    }
                }
                Ok(Err(Failure::Again(what))) => {
                    *idle = self.roll_back(client).await;
                    if trusting {
                        memory.keys.surprise();
                    }
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
    batch_no: i64,
    judgement: Judgement<'b>,
    catalog: Arc<Catalog>,
    new_groups: NewGroups,
    /// Whether a record of what is admitted was decided before: it must not be committed.
    decided_before: bool,
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
        sorted: &SortedBatch<'b>,
        memory: &mut Memory,
        trusting: bool,
    ) -> std::result::Result<Written<'b>, Failure> {
        let now = sorted.batch.acceptance.now;
        let catalog = self.catalog_with(std::iter::empty()).await?;
        load_days(client, sorted, &catalog, &mut memory.groups).await?;
        let groups = GroupGate::new(&mut memory.groups, sorted.batch.groups_per_day);
        let mut gate = Gate { groups, fingerprinter: &self.fingerprinter };
        let recent = trusting.then_some(&memory.keys);
        let (batch_no, mut judgement) = self.judge(client, sorted, recent, &mut gate).await?;
        let new_groups = gate.groups.added;
        judgement.sort();
        let mut tallies = judgement.tallies(sorted);
        for (tenant, count) in &sorted.batch.refused {
            let tenant = tenant.as_ref().and_then(|tenant| self.tenant_no(tenant));
            tallies.entry(tenant).or_default().rejected += count;
        }
        let figures = judgement.figures(sorted.batch, &tallies);
        match sorted.batch.acceptance.is_of_admissions() {
            true => check_admissions(&figures)?,
            false => check_batch(&figures)?,
        }
        let [totals_copy, tallies_copy] = deltas::prepare(client).await?;
        let events_copy = EventRows::prepare(client).await?;
        let events = EventRows::encode(&judgement.accepted, batch_no, now)?;
        let counted = match planted("bug.rollup_outside_transaction") {
            true => &[],
            false => judgement.accepted.as_slice(),
        };
        let totals = encode_totals(counted, &catalog, batch_no)?;
        let tallies = encode_tallies(&tallies, now, batch_no)?;
        // One after the other on the connection, without a wait between them.
        let (events, totals, tallies) = join3(
            events.send(client, &events_copy),
            totals.send(client, &totals_copy),
            tallies.send(client, &tallies_copy),
        )
        .await;
        // The first failure is the cause of the others.
        events?;
        totals?;
        tallies?;
        let fingerprinter = &self.fingerprinter;
        insert_groups(client, &new_groups).await?;
        record_conflicts(client, &judgement.conflicts, now, &catalog, fingerprinter).await?;
        record_quarantine(client, &judgement.quarantined, now, &catalog, fingerprinter).await?;
        Ok(Written { batch_no, judgement, catalog, new_groups, decided_before: false })
    }

    /// Decides the records of what is admitted, in the transaction that counts it.
    async fn decide<'b>(
        &self,
        client: ClientWrapper,
        admissions: Option<&Admissions>,
        written: Result<std::result::Result<Written<'b>, Failure>>,
    ) -> Result<(ClientWrapper, Result<std::result::Result<Written<'b>, Failure>>)> {
        let (admissions, mut written) = match (admissions, written) {
            (Some(admissions), Ok(Ok(written))) => (admissions.clone(), written),
            (_, written) => return Ok((client, written)),
        };
        let verdicts = written.judgement.verdicts();
        // A session works on a thread of its own, which gives the connection back.
        let shared = Arc::new(Box::new(client));
        let work = move |session: &dyn Session| {
            let Some(counted) = admissions.record(session, &verdicts)? else { return Ok(false) };
            if counted > 0 {
                add_admitted(session, &admissions, counted)?;
            }
            Ok(true)
        };
        let decided = self.in_session(Arc::clone(&shared), work).await;
        let client = Arc::into_inner(shared).ok_or_else(|| Error::Internal {
            what: "a connection was kept beyond its work".into(),
        })?;
        let written = decided.map(|decided| {
            written.decided_before = !decided;
            written
        });
        Ok((*client, Ok(written)))
    }

    /// Commits, and finds out what happened if the answer is lost.
    async fn commit(&self, client: ClientWrapper, written: Written<'_>) -> Result<Committed> {
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
            return Ok(match self.was_committed(written.batch_no, &what).await? {
                true => Committed::Yes(written.judgement.into_verdicts(), None),
                false => Committed::No(what),
            });
        };
        crash_point("postgres.after_commit");
        if planted("bug.rollup_outside_transaction") {
            let Written { batch_no, judgement, catalog, .. } = &written;
            let [copy, _] = deltas::prepare(&client).await?;
            encode_totals(&judgement.accepted, catalog, *batch_no)?.send(&client, &copy).await?;
        }
        Ok(Committed::Yes(written.judgement.into_verdicts(), Some(client)))
    }

    /// Asks the database, for a few seconds if it must, whether the batch is there.
    async fn was_committed(&self, batch_no: i64, what: &str) -> Result<bool> {
        let mut hindrance = String::new();
        for round in 0..QUESTIONS_MAX {
            tokio::time::sleep(QUESTION_PAUSE * round).await;
            match self.connector.within(self.settle_batch(batch_no)).await {
                Ok(Ok(committed)) => return Ok(committed),
                Ok(Err(error)) | Err(error) => hindrance = error.to_string(),
            }
        }
        let what = format!("the connection broke at the commit ({what}), then: {hindrance}");
        Err(Error::Unknown { what })
    }

    /// Whether a batch was committed; if it was not, it never will be. The insert waits for a
    /// transaction that is still at its COMMIT.
    async fn settle_batch(&self, batch_no: i64) -> Result<bool> {
        let client = self.connector.open().await?;
        let sql = "-- settle_batch
            INSERT INTO ingest_commits (batch_no) VALUES ($1) ON CONFLICT DO NOTHING";
        client.execute(sql, &[&batch_no]).await?;
        let sql = "-- settle_batch
            SELECT committed_at IS NOT NULL FROM ingest_commits WHERE batch_no = $1";
        column(&client.query_one(sql, &[&batch_no]).await?, 0)
    }

    /// Ends a failed transaction; a connection on which even that fails is dropped.
    async fn roll_back(&self, client: ClientWrapper) -> Option<ClientWrapper> {
        match self.connector.within(client.batch_execute("ROLLBACK")).await {
            Ok(Ok(())) => Some(client),
            Ok(Err(_)) | Err(_) => None,
        }
    }

    /// Begins the transaction, finds what is stored under the keys (of those that may be known
    /// among the recent ones, if these are given) and judges the deliveries. Returns the number of
    /// the batch too.
    async fn judge<'b>(
        &self,
        client: &ClientWrapper,
        sorted: &SortedBatch<'b>,
        recent: Option<&RecentKeys>,
        gate: &mut Gate<'_>,
    ) -> std::result::Result<(i64, Judgement<'b>), Failure> {
        let sql = "-- judge
            INSERT INTO ingest_commits (committed_at) VALUES ($1) RETURNING batch_no";
        let mark = client.prepare_cached(sql).await?;
        let look = Probe::prepare(client).await?;
        let now = SqlTimestamp(sorted.batch.acceptance.now);
        let mut open: Vec<(usize, u128)> =
            sorted.groups.iter().map(|group| group.home).enumerate().collect();
        let places = |open: &[(usize, u128)], recent: Option<&RecentKeys>| {
            let asked = |(_, slot): &&(usize, u128)| recent.is_none_or(|keys| keys.may_know(*slot));
            let place = |(group, slot): &(usize, u128)| (sorted.groups[*group].tenant, *slot);
            Probe::new(open.iter().filter(asked).map(place))
        };
        let probe = places(&open, recent);
        let (begun, marked, claims) = join3(
            client.batch_execute("BEGIN"),
            client.query_one(&mark, &[&now]),
            probe.run(client, &look),
        )
        .await;
        begun?;
        let batch_no = column(&marked?, 0)?;
        let mut found = claims?.read_events(client).await?;
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
                return Ok((batch_no, judgement));
            }
            found = places(&collided, None).run(client, &look).await?.read_events(client).await?;
            open = collided;
        }
    }
}

/// A short random pause that grows, so that two servers in each other's way part.
pub fn pause(round: u32) -> Result<Duration> {
    let random = getrandom::u32().map_err(|error| Error::Internal { what: error.to_string() })?;
    Ok(Duration::from_millis(u64::from(random % (round * 10) + 1)))
}
