//! Reconciliation: compares both halves of every bill, follows what differs, and sends again what
//! may safely be sent again.
//!
//! Three kinds of passes: every hour, window by window, over what has moved in two days; every
//! night, by day, over everyone's last five weeks, with one audit row for each tenant and meter of
//! the day that has ended; and whatever a person orders. All of them compare in both directions: a
//! tenant's usage that the provider lacks, and the provider's that the ledger lacks.
//!
//! Invariant: one holder of the lease runs passes, one after the other; hourly and nightly ones
//! take turns where both are due. A day that lies too far back for a nightly pass is not left out
//! without a word: a failed pass says so. What a pass reads of the provider is kept before it is
//! judged. What is sent again is decided by the store in one transaction, by what is stored then; a
//! pass only proposes.
//!
//! A pass judges by what it has read itself. What it could not read is unread: no total is shown,
//! no finding advances or ends by it, and the pass ends incomplete. The last nightly pass, if it is
//! incomplete, is taken up again every hour for what it has not read.
//!
//! A crash leaves a pass running; the next holder goes on after the rows that are written. What a
//! chunk means for findings is written before its rows, and counts once for a pass.

mod compare;
mod halves;
mod invoices;
mod objects;
mod ranges;
mod snapshot;
mod unbilled;

use super::{Context, Job, gauge, sure_time};
use crate::clock::Clock;
use crate::config::ReconcileConfig;
use crate::faults::crash_point;
use crate::provider::Provider;
use crate::rules::attribution::Outside;
use crate::rules::billing::Billing;
use crate::rules::drift::Verdict;
use crate::rules::finding::{Finding, FindingChange, FindingKind, Observation, follow_findings};
use crate::rules::ids::{CustomerId, MeterNo, TenantId};
use crate::rules::meter::{Catalog, Meter};
use crate::rules::pace::Budget;
use crate::rules::pass::{
    Hash, Pass, PassKind, PassOrder, PassProgress, PassRow, PassState, chain_pass, choose_pass,
};
use crate::rules::span::Span;
use crate::rules::submission::{Class, PushState};
use crate::rules::timestamp::{MICROS_PER_DAY, MICROS_PER_HOUR, MICROS_PER_SECOND, Timestamp};
use crate::rules::window::Window;
use crate::store::list::{PAGE, read_all};
use crate::store::push::{Lease, Push, PushFilter};
use crate::store::reconciliation::{FindingFilter, Pair, PassFilter, PassUpdate, Reconciliation};
use crate::store::{self, Query, Store, Tenant};
use compare::Compared;
use snapshot::Readings;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LEASE: &str = "reconcile";
/// Prolonged inside every loop of a pass, once a part of it is over.
const LEASE_SPAN: Span = Span::from_minutes(10);
const RENEWED_AFTER: Span = Span::from_minutes(3);
const HOURLY: Span = Span::from_hours(1);
/// How long after its end an incomplete nightly pass is taken up again.
const TAKEN_UP_AFTER: Span = Span::from_hours(1);
/// How far back an hourly pass looks.
const HOURLY_REACH: Span = Span::from_hours(48);
/// When the day that has ended is compared: late events are in by then.
const NIGHTLY_AFTER: Span = Span::from_hours(5);
/// How far back a nightly pass looks, in days: the open and the last closed period, as far as the
/// provider takes usage for them.
const NIGHTLY_DAYS: i64 = 35;
/// Tenants and meters of one chunk: read together, written together.
const CHUNK: usize = 100;

pub struct ReconcileJob {
    store: Arc<dyn Store>,
    provider: Arc<dyn Provider>,
    clock: Clock,
    holder: String,
    settings: ReconcileConfig,
    /// What is done with usage in no subscription.
    outside: Outside,
    shadow: bool,
    budget: Mutex<Budget>,
    /// Whose totals were read last; the next pass begins after it, so that everyone has a turn
    /// where the reads of an hour do not do for all.
    turn: Mutex<Option<Pair>>,
    /// Whether an hourly pass went before a nightly one that was due: the nightly one is next.
    passed_over: AtomicBool,
    /// The last invoice that was listed when the reads of an hour were spent; the list goes on
    /// after it.
    invoices_after: Mutex<Option<String>>,
}

/// A tenant and a meter that are compared.
#[derive(Debug, Clone)]
struct Work {
    pair: Pair,
    /// Customers that the tenant was mapped to before.
    former: Vec<CustomerId>,
    meter: Arc<Meter>,
    /// Usage from before went to another account in part; none if there was no other.
    comparable_from: Option<Timestamp>,
}

impl Work {
    fn billing(&self) -> &Billing {
        self.meter.spec.billing.as_ref().expect("only billed meters are compared")
    }

    /// From when on both halves can be compared.
    fn start(&self) -> Timestamp {
        let billed = self.billing().start();
        self.comparable_from.map_or(billed, |from| from.max(billed))
    }

    /// The tenant's customer, then those before.
    fn customers(&self) -> impl Iterator<Item = &CustomerId> {
        std::iter::once(&self.pair.customer).chain(&self.former)
    }
}

/// What a pass has at hand.
struct Running {
    pass: Pass,
    lease: Lease,
    /// When the lease was prolonged last.
    kept_at: Timestamp,
    progress: PassProgress,
    /// Open findings of usage.
    findings: HashMap<(TenantId, MeterNo), Vec<Finding>>,
    /// Windows with a dead push that the provider took and did not count.
    dropped: HashMap<(TenantId, MeterNo), Vec<Window>>,
    /// The day before, of nightly passes.
    before: Before,
    readings: Readings,
}

/// What a nightly pass is chained to; nothing for the first one, and for other passes.
#[derive(Default)]
struct Before {
    hash: Hash,
    rows: BTreeMap<(TenantId, MeterNo), Hash>,
}

/// A pass by the clock that is due.
enum DuePass {
    Begun(Box<Pass>),
    /// The range of one that is still to be ordered.
    New(Window),
}

/// Why a pass ended early.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    #[error("another server reconciles")]
    LeaseLost,
    #[error("the reads of this hour are spent")]
    Spent,
    #[error("the time is in doubt")]
    ClockInDoubt,
    #[error(transparent)]
    Store(#[from] store::Error),
}

impl Job for ReconcileJob {
    const NAME: &'static str = "reconcile";
    const PAUSE: Duration = Duration::from_secs(1);
    type Done = Option<u64>;
    type Error = PassError;

    /// Runs the pass that is due, if any, unless another server is at it; returns its number.
    async fn pass(&self) -> Result<Option<u64>, PassError> {
        let Some(now) = sure_time(&self.clock, "reconcile") else { return Ok(None) };
        let until = LEASE_SPAN.after(now);
        let Some(lease) = self.store.claim_lease(LEASE, &self.holder, now, until).await? else {
            return Ok(None);
        };
        let due = self.find_due(now).await?;
        let number = match due {
            Some(pass) if is_out_of_reach(&pass, now) => {
                let number = pass.number;
                self.skip(&lease, pass).await?;
                Some(number)
            }
            Some(pass) => {
                let (number, progress) = (pass.number, pass.progress.clone());
                match self.run_pass(pass, lease.clone()).await {
                    Ok(()) => Some(number),
                    Err(PassError::Store(error)) => {
                        // One that would only fail again must not hold up the passes after it; a
                        // store that cannot answer now is another matter.
                        if error.is_of_data() {
                            self.fail(&lease, number, progress, error.to_string()).await?;
                        }
                        return Err(PassError::Store(error));
                    }
                    Err(PassError::LeaseLost) => {
                        tracing::warn!(
                            pass = number,
                            "pass {number} lost its lease; the server that holds it goes on"
                        );
                        return Ok(None);
                    }
                    // It goes on in the next hour, or once the clocks agree.
                    Err(PassError::Spent | PassError::ClockInDoubt) => None,
                }
            }
            None => None,
        };
        self.store.release_lease(&lease).await?;
        Ok(number)
    }
}

impl ReconcileJob {
    pub fn new(context: &Context, provider: &Arc<dyn Provider>) -> Self {
        let Context { store, clock, config, holder, .. } = context.clone();
        let settings = config.reconcile.clone();
        Self {
            store,
            provider: Arc::clone(provider),
            clock,
            holder,
            budget: Mutex::new(Budget::new(settings.reads_per_hour)),
            settings,
            outside: config.billing.outside,
            shadow: config.provider.is_shadow(),
            turn: Mutex::default(),
            passed_over: AtomicBool::new(false),
            invoices_after: Mutex::default(),
        }
    }

    async fn fail(
        &self,
        lease: &Lease,
        number: u64,
        progress: PassProgress,
        detail: String,
    ) -> store::Result<()> {
        let (state, detail) = (PassState::Failed, Some(detail));
        let update = PassUpdate { number, state, progress, hash: None, detail };
        self.store.update_pass(lease, update, self.clock.now()).await.map(drop)
    }

    /// The pass to run: what a person waits for, then hourly and nightly passes in turn.
    async fn find_due(&self, now: Timestamp) -> store::Result<Option<Pass>> {
        let mut begun = Vec::new();
        for state in [PassState::Waiting, PassState::Running] {
            let filter = PassFilter { state: Some(state), kind: None };
            begun.extend(self.store.list_passes(Query::first(filter, PAGE)).await?);
        }
        // Newest first; those that wait longest come first.
        begun.sort_by_key(|pass| pass.number);
        let first = |kind| begun.iter().find(|pass| pass.order.kind == kind).cloned();
        if let Some(ordered) = first(PassKind::OneShot) {
            return Ok(Some(ordered));
        }
        let limits = self.provider.limits();
        let by_clock = self.settings.passes && limits.shows_totals && limits.sends;
        let hourly = match first(PassKind::Hourly) {
            Some(pass) => Some(DuePass::Begun(Box::new(pass))),
            None if by_clock => self.hourly_due(now).await?.map(DuePass::New),
            None => None,
        };
        let nightly = match first(PassKind::Nightly) {
            Some(pass) => {
                let begun = DuePass::Begun(Box::new(pass));
                Some(begun).filter(|_| self.can_go_on(PassKind::Nightly, CHUNK))
            }
            None if by_clock => self.nightly_due(now).await?,
            None => None,
        };
        let passed_over = self.passed_over.load(Ordering::Relaxed);
        let chosen = choose_pass(hourly.is_some(), nightly.is_some(), passed_over);
        let (kind, due) = match chosen {
            Some(PassKind::Nightly) => (PassKind::Nightly, nightly),
            Some(kind @ (PassKind::Hourly | PassKind::OneShot)) => {
                self.passed_over.store(nightly.is_some(), Ordering::Relaxed);
                (kind, hourly)
            }
            None => return Ok(None),
        };
        if kind == PassKind::Nightly {
            self.passed_over.store(false, Ordering::Relaxed);
        }
        match due {
            Some(DuePass::Begun(pass)) => Ok(Some(*pass)),
            Some(DuePass::New(range)) => {
                let order = PassOrder { kind, range, tenant: None, apply: true };
                let number = self.store.create_pass(order, now).await?;
                self.store.find_pass(number).await
            }
            None => Ok(None),
        }
    }

    /// Ends a nightly pass over days that lie too far back to be compared.
    async fn skip(&self, lease: &Lease, pass: Pass) -> store::Result<()> {
        let Pass { number, order, progress, .. } = pass;
        let days = order.range.micros() / MICROS_PER_DAY;
        let (start, end) = (order.range.start, order.range.end);
        let detail = format!(
            "skipped: {days} days from {start} to {end} were not compared in time and lie more than \
             {NIGHTLY_DAYS} days back; counterfoil reconcile --from {start} --to {end} compares them"
        );
        tracing::warn!(pass = number, days, "nightly pass {number} is {detail}");
        self.fail(lease, number, progress, detail).await
    }

    async fn hourly_due(&self, now: Timestamp) -> store::Result<Option<Window>> {
        let last = self.last_pass(PassKind::Hourly).await?;
        if last.is_some_and(|pass| now < HOURLY.after(pass.created_at)) {
            return Ok(None);
        }
        let hour = now.micros().div_euclid(MICROS_PER_HOUR) * MICROS_PER_HOUR;
        let end = Timestamp::from_micros(hour + MICROS_PER_HOUR);
        Ok(Some(Window { start: HOURLY_REACH.before(end), end }))
    }

    async fn last_pass(&self, kind: PassKind) -> store::Result<Option<Pass>> {
        let filter = PassFilter { kind: Some(kind), state: None };
        Ok(self.store.list_passes(Query::first(filter, 1)).await?.pop())
    }

    /// The first day that has ended and has no pass yet; or all days that lie too far back by now;
    /// or the last pass, if it could not read everything.
    async fn nightly_due(&self, now: Timestamp) -> store::Result<Option<DuePass>> {
        let (ended, oldest) = (ended_day(now), oldest_day(now));
        let last = self.last_pass(PassKind::Nightly).await?;
        let day_before = ended.saturating_add_micros(-MICROS_PER_DAY);
        let start = last.as_ref().map_or(day_before, |pass| pass.order.range.end);
        if start < oldest {
            return Ok(Some(DuePass::New(Window { start, end: oldest })));
        }
        let day = Window { start, end: start.saturating_add_micros(MICROS_PER_DAY) };
        if start < ended {
            return Ok(Some(DuePass::New(day)));
        }
        let again = last.filter(|pass| {
            let rested = pass.ended_at.is_some_and(|at| TAKEN_UP_AFTER.after(at) <= now);
            pass.state == PassState::Incomplete && rested && self.can_go_on(pass.order.kind, CHUNK)
        });
        Ok(again.map(|pass| DuePass::Begun(Box::new(pass))))
    }

    async fn run_pass(&self, pass: Pass, lease: Lease) -> Result<(), PassError> {
        let mut works = self.find_work(&pass).await?;
        let pairs = u64::try_from(works.len()).unwrap_or(u64::MAX);
        let again = |row: &PassRow| row.hash.is_none() || row.verdict == Verdict::Unmapped;
        let (unread, done): (Vec<_>, Vec<_>) =
            self.all_rows(pass.number).await?.into_iter().partition(again);
        let names = |row: PassRow| (row.tenant, row.meter);
        let unread: BTreeSet<_> = unread.into_iter().map(names).collect();
        let done: BTreeSet<_> = done.into_iter().map(names).collect();
        let done: BTreeSet<_> = done.difference(&unread).cloned().collect();
        works.retain(|work| !done.contains(&(work.pair.tenant.clone(), work.pair.meter)));
        // What is counted of pairs without rows is counted anew.
        let begun = match done.is_empty() {
            true => PassProgress::default(),
            false => pass.progress.clone().without_unread(),
        };
        let left = u64::try_from(works.len()).unwrap_or(u64::MAX);
        let pairs_done = pairs.saturating_sub(left);
        let mut running = Running {
            findings: self.open_findings().await?,
            dropped: self.dropped_windows().await?,
            before: self.chain_before(&pass).await?,
            progress: PassProgress { pairs, pairs_done, ..begun },
            kept_at: self.clock.now(),
            readings: Readings::default(),
            pass,
            lease,
        };
        self.update(&mut running, PassState::Running, None).await?;
        let kind = running.pass.order.kind;
        for works in works.chunks(CHUNK) {
            if !self.can_go_on(kind, works.len()) {
                return Err(PassError::Spent);
            }
            sure_time(&self.clock, "reconcile").ok_or(PassError::ClockInDoubt)?;
            running.readings.begin_chunk();
            let compared = match kind {
                PassKind::Hourly => self.compare_windows(&mut running, works).await?,
                PassKind::Nightly | PassKind::OneShot => {
                    self.compare_days(&mut running, works).await?
                }
            };
            self.record(&mut running, compared).await?;
            running.progress.pairs_done += u64::try_from(works.len()).unwrap_or(u64::MAX);
            self.update(&mut running, PassState::Running, None).await?;
        }
        self.compare_unmapped(&mut running).await?;
        self.compare_objects(&mut running).await?;
        crash_point("reconcile.before_close");
        let hash = self.chain_after(&running).await?;
        let missed = running.readings.missed.len();
        running.progress.pairs_unread = u64::try_from(missed).unwrap_or(u64::MAX);
        running.progress.lists_unread = running.readings.lists_missed;
        let state = match running.progress.unread() {
            Some(_) => PassState::Incomplete,
            None => PassState::Closed,
        };
        self.update(&mut running, state, hash).await?;
        log_pass(&running);
        metrics::gauge!(
            "counterfoil_last_pass_timestamp_seconds", "kind" => running.pass.order.kind.name()
        )
        .set(gauge(self.clock.now().micros() / MICROS_PER_SECOND));
        Ok(())
    }

    /// Whom a pass looks at.
    async fn find_work(&self, pass: &Pass) -> store::Result<Vec<Work>> {
        let catalog = self.store.load_catalog().await?;
        let pairs = match pass.order.kind {
            PassKind::Hourly => {
                let since = pass.order.range.start;
                self.store.list_restless_pairs(since, self.shadow).await?
            }
            PassKind::Nightly | PassKind::OneShot => {
                self.all_pairs(&catalog, pass.order.tenant.as_ref()).await?
            }
        };
        let mut former: HashMap<TenantId, Vec<CustomerId>> = HashMap::new();
        for (tenant, customer) in self.store.list_former_customers().await? {
            former.entry(tenant).or_default().push(customer);
        }
        let binding = self.store.read_binding().await?;
        let work = |pair: Pair| {
            let meter = catalog.get(pair.meter)?;
            let billing = meter.spec.billing.as_ref()?;
            let around = |at| billing.window_around(at, meter.spec.bucket);
            let comparable_from = binding.as_ref().and_then(|one| one.comparable_from(around));
            let former = former.get(&pair.tenant).cloned().unwrap_or_default();
            Some(Work { meter: Arc::clone(meter), former, pair, comparable_from })
        };
        let mut works: Vec<Work> = pairs.into_iter().filter_map(work).collect();
        works.sort_by(|a, b| a.pair.cmp(&b.pair));
        if let Some(last) = &*self.turn.lock().expect("no holder panics") {
            let place = works.partition_point(|work| work.pair <= *last);
            works.rotate_left(place);
        }
        Ok(works)
    }

    /// Every tenant that is a customer, with every meter that is billed.
    async fn all_pairs(
        &self,
        catalog: &Catalog,
        only: Option<&TenantId>,
    ) -> store::Result<Vec<Pair>> {
        let meters = catalog.billed();
        let mut pairs = Vec::new();
        for tenant in self.tenants(only).await? {
            let Some(customer) = tenant.customer else { continue };
            pairs.extend(meters.iter().map(|(meter, _)| Pair {
                tenant: tenant.id.clone(),
                meter: *meter,
                customer: customer.clone(),
            }));
        }
        Ok(pairs)
    }

    /// All tenants, or one.
    async fn tenants(&self, only: Option<&TenantId>) -> store::Result<Vec<Tenant>> {
        if let Some(tenant) = only {
            return Ok(self.store.find_tenant(tenant).await?.into_iter().collect());
        }
        let id = |tenant: &Tenant| tenant.id.clone();
        read_all((), id, |query| self.store.list_tenants(query)).await
    }

    async fn open_findings(&self) -> store::Result<HashMap<(TenantId, MeterNo), Vec<Finding>>> {
        let mut open: HashMap<_, Vec<Finding>> = HashMap::new();
        for finding in list_open_findings(&*self.store, Some(FindingKind::Usage)).await? {
            if let (Some(tenant), Some(meter)) = (finding.seen.tenant.clone(), finding.seen.meter) {
                open.entry((tenant, meter)).or_default().push(finding);
            }
        }
        Ok(open)
    }

    async fn dropped_windows(&self) -> store::Result<HashMap<(TenantId, MeterNo), Vec<Window>>> {
        let mut dropped: HashMap<_, Vec<Window>> = HashMap::new();
        let (state, class) = (Some(PushState::Dead), Some(Class::Absent));
        let filter = PushFilter { state, class, ..PushFilter::default() };
        let number = |push: &Push| push.number;
        let pushes = read_all(filter, number, |query| self.store.list_pushes(query)).await?;
        for push in pushes.into_iter().filter(|push| push.shadow == self.shadow) {
            dropped.entry((push.tenant, push.meter)).or_default().push(push.window);
        }
        Ok(dropped)
    }

    /// Writes down what a chunk found: rows, and what changes of findings.
    async fn record(
        &self,
        running: &mut Running,
        compared: Vec<Compared>,
    ) -> Result<(), PassError> {
        let now = sure_time(&self.clock, "reconcile").ok_or(PassError::ClockInDoubt)?;
        let (mut rows, mut changes) = (Vec::new(), Vec::new());
        for one in compared {
            running.progress.windows += one.windows;
            for (verdict, count) in &one.verdicts {
                *running.progress.verdicts.entry(*verdict).or_default() += count;
            }
            let key = (one.pair.tenant.clone(), one.pair.meter);
            rows.extend(one.rows);
            let empty = Vec::new();
            let open = running.findings.get(&key).unwrap_or(&empty);
            let judged: Vec<Finding> = open
                .iter()
                .filter(|finding| one.subjects.contains(&finding.seen.subject))
                .cloned()
                .collect();
            changes.extend(follow_findings(&judged, one.observations, now));
        }
        self.save(running, changes, now).await?;
        crash_point("reconcile.before_rows");
        self.record_rows(running, rows).await
    }

    /// Writes rows, each with its hash if it is audited.
    async fn record_rows(
        &self,
        running: &Running,
        mut rows: Vec<PassRow>,
    ) -> Result<(), PassError> {
        let Running { pass, lease, before, .. } = running;
        for row in &mut rows {
            let before = before.rows.get(&(row.tenant.clone(), row.meter)).copied();
            row.hash = row.is_audited().then(|| row.chain(&before.unwrap_or([0; 32])));
        }
        if !rows.is_empty() && !self.store.record_pass_rows(lease, pass.number, rows).await? {
            return Err(PassError::LeaseLost);
        }
        Ok(())
    }

    /// Follows findings of subscriptions or invoices.
    async fn follow(
        &self,
        running: &Running,
        judged: &[Finding],
        observations: Vec<Observation>,
    ) -> Result<(), PassError> {
        let now = sure_time(&self.clock, "reconcile").ok_or(PassError::ClockInDoubt)?;
        self.save(running, follow_findings(judged, observations, now), now).await
    }

    async fn save(
        &self,
        running: &Running,
        changes: Vec<FindingChange>,
        now: Timestamp,
    ) -> Result<(), PassError> {
        let Running { pass, lease, .. } = running;
        // A dry run looks and changes nothing.
        if changes.is_empty() || !pass.order.apply {
            return Ok(());
        }
        if self.store.record_findings(lease, pass.number, changes, now).await? {
            Ok(())
        } else {
            Err(PassError::LeaseLost)
        }
    }

    /// Says how far the pass is, and keeps the lease.
    async fn update(
        &self,
        running: &mut Running,
        state: PassState,
        hash: Option<Hash>,
    ) -> Result<(), PassError> {
        let now = self.clock.now();
        let update = PassUpdate {
            number: running.pass.number,
            state,
            progress: running.progress.clone(),
            hash,
            detail: running.progress.unread(),
        };
        self.renew_lease(running).await?;
        if self.store.update_pass(&running.lease, update, now).await? {
            Ok(())
        } else {
            Err(PassError::LeaseLost)
        }
    }

    /// Prolongs the lease if it was not lately: called inside every loop of a pass, however long a
    /// turn of it may take.
    async fn keep_lease(&self, running: &mut Running) -> Result<(), PassError> {
        if self.clock.now() < RENEWED_AFTER.after(running.kept_at) {
            return Ok(());
        }
        self.renew_lease(running).await
    }

    async fn renew_lease(&self, running: &mut Running) -> Result<(), PassError> {
        let now = self.clock.now();
        let until = LEASE_SPAN.after(now);
        let kept = self.store.claim_lease(LEASE, &self.holder, now, until).await?;
        if kept.as_ref() != Some(&running.lease) {
            return Err(PassError::LeaseLost);
        }
        running.kept_at = now;
        Ok(())
    }

    /// The hashes of the day before, which those of this pass are chained to.
    async fn chain_before(&self, pass: &Pass) -> store::Result<Before> {
        if pass.order.kind != PassKind::Nightly {
            return Ok(Before::default());
        }
        let filter = PassFilter { kind: Some(PassKind::Nightly), state: None };
        let mut query = Query { filter, after: Some(pass.number), limit: PAGE };
        loop {
            let page = self.store.list_passes(query.clone()).await?;
            let Some(last) = page.last() else { return Ok(Before::default()) };
            query.after = Some(last.number);
            // One that read nothing is no part of the chain.
            let Some((number, hash)) = page.iter().find_map(|pass| Some((pass.number, pass.hash?)))
            else {
                continue;
            };
            let rows = self.all_rows(number).await?.into_iter();
            let hashed = rows.filter_map(|row| Some(((row.tenant, row.meter), row.hash?)));
            return Ok(Before { hash, rows: hashed.collect() });
        }
    }

    /// The hash over all rows of a nightly pass that were read, after that of the pass before; none
    /// if there were rows and none of them was read.
    async fn chain_after(&self, running: &Running) -> store::Result<Option<Hash>> {
        if running.pass.order.kind != PassKind::Nightly {
            return Ok(None);
        }
        let rows = self.all_rows(running.pass.number).await?;
        let hashes: Vec<Hash> = rows.iter().filter_map(|row| row.hash).collect();
        let chained = rows.is_empty() || !hashes.is_empty();
        Ok(chained.then(|| chain_pass(&running.before.hash, hashes)))
    }

    async fn all_rows(&self, pass: u64) -> store::Result<Vec<PassRow>> {
        let place = |row: &PassRow| (row.tenant.clone(), row.meter, row.day.start);
        read_all(pass, place, |query| self.store.list_pass_rows(query)).await
    }
}

/// The end of the last day that a nightly pass can be made of.
fn ended_day(now: Timestamp) -> Timestamp {
    let days = NIGHTLY_AFTER.before(now).micros().div_euclid(MICROS_PER_DAY);
    Timestamp::from_micros(days * MICROS_PER_DAY)
}

/// The start of the first day that a nightly pass still reaches.
fn oldest_day(now: Timestamp) -> Timestamp {
    ended_day(now).saturating_add_micros(-NIGHTLY_DAYS * MICROS_PER_DAY)
}

/// Whether it is a nightly pass over days that are not reached any more.
fn is_out_of_reach(pass: &Pass, now: Timestamp) -> bool {
    pass.order.kind == PassKind::Nightly && pass.order.range.end <= oldest_day(now)
}

/// All findings that are open, or those of a kind.
pub async fn list_open_findings(
    store: &dyn Reconciliation,
    kind: Option<FindingKind>,
) -> store::Result<Vec<Finding>> {
    let open = FindingFilter { open: Some(true), kind, tenant: None };
    read_all(open, |finding: &Finding| finding.number, |query| store.list_findings(query)).await
}

/// One line for each pass; a warning if something drifts.
fn log_pass(running: &Running) {
    let PassProgress { pairs, windows, reads, replayed, reissued, ref verdicts, .. } =
        running.progress;
    let unread = running.progress.unread();
    let kind = running.pass.order.kind.name();
    let drifting: u64 =
        verdicts.iter().filter(|(verdict, _)| verdict.is_drift()).map(|(_, count)| count).sum();
    metrics::counter!("counterfoil_passes_total", "kind" => kind).increment(1);
    if let Some(what) = &unread {
        tracing::warn!(kind, pairs, windows, reads, "{kind} pass is incomplete: {what}");
    }
    if drifting == 0 && unread.is_none() {
        tracing::info!(kind, pairs, windows, reads, "{kind} pass: ledger and provider match");
    } else if drifting > 0 {
        tracing::warn!(
            kind,
            pairs,
            windows,
            reads,
            drifting,
            replayed,
            reissued,
            "{kind} pass: {drifting} windows drift; counterfoil findings"
        );
    }
}
