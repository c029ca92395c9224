//! Flush: while an invoice is a draft, its tenant's windows of the period are cut at once.
//!
//! What is reported after the invoice is fixed is on no invoice, and that may be an hour after the
//! period's end; so these windows do not wait until they have settled. Late events still make
//! further revisions, as long as the draft exists.
//!
//! A new draft is looked at within seconds. Later, a draft is looked at once a minute while its
//! tenant sends events, and once an hour otherwise, since a window that holds the period's end may
//! have ended meanwhile. Events older than the accept horizon are not counted any more, so no older
//! window is read; what changed before is the ordinary pass's to cut.
//!
//! Invariant: only windows of which something may be on the invoice are expedited. The one that
//! holds the period's end is divided there, so it is cut while it is open, and what it has after
//! that end is pushed with it. Where a meter is billed by totals it is not divided, and is cut when
//! it is over. A tenant whose windows cannot be read or cut does not keep the others from being
//! flushed. A crash leaves the draft's mirror, and the next look begins anew.

use super::{CutJob, Pass, Recorded};
use crate::jobs::mirror::list_all;
use crate::jobs::{Job, sure_time};
use crate::rules::ids::{CustomerId, TenantId};
use crate::rules::mirror::{ObjectKind, Snapshot};
use crate::rules::span::Span;
use crate::rules::timestamp::{MICROS_PER_HOUR, Timestamp};
use crate::rules::window::Window;
use crate::store;
use crate::store::push::CutOrder;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const LEASE: &str = "cut.drafts";
/// How often drafts are looked for.
const EVERY: Span = Span::from_seconds(5);
/// How often one tenant's windows are looked at while its draft exists: at the start of a month
/// everyone has one.
const AGAIN_AFTER: Span = Span::from_minutes(1);

/// How often the window that holds the period's end is cut while it is open: what it has after that
/// end is pushed with it, and is on no draft yet.
const OPEN_AGAIN_AFTER: Span = Span::from_minutes(10);

/// When this process last looked, and for whom. Forgotten in a crash, and looked at anew.
#[derive(Default)]
pub struct Flushes {
    looked_at: Option<Timestamp>,
    by_customer: BTreeMap<CustomerId, Timestamp>,
    /// When open windows were last cut.
    open_cut_at: BTreeMap<CustomerId, Timestamp>,
    /// Tenants that could not be flushed; each is logged once.
    failed: BTreeSet<TenantId>,
}

impl Flushes {
    /// Whether it is time to look for drafts.
    fn begin(&mut self, now: Timestamp) -> bool {
        let due = self.looked_at.is_none_or(|at| at > now || EVERY.after(at) <= now);
        if due {
            self.looked_at = Some(now);
        }
        due
    }

    /// The drafts that are due, each with the last look at it; those that stand no more are
    /// forgotten.
    fn choose(&mut self, drafts: Vec<Draft>, now: Timestamp) -> Vec<(Draft, Option<Timestamp>)> {
        let owners: BTreeSet<&CustomerId> = drafts.iter().map(|(customer, _)| customer).collect();
        self.by_customer.retain(|customer, _| owners.contains(customer));
        self.open_cut_at.retain(|customer, _| owners.contains(customer));
        let last = |draft: Draft| {
            let last = self.by_customer.get(&draft.0).copied();
            (draft, last)
        };
        let due =
            |at: Option<Timestamp>| at.is_none_or(|at| at > now || AGAIN_AFTER.after(at) <= now);
        drafts.into_iter().map(last).filter(|(_, at)| due(*at)).collect()
    }

    /// Notes a look at a customer's windows; whether open ones are due too.
    fn look(&mut self, customer: &CustomerId, now: Timestamp) -> bool {
        self.by_customer.insert(customer.clone(), now);
        let last = self.open_cut_at.get(customer);
        let due = last.is_none_or(|at| *at > now || OPEN_AGAIN_AFTER.after(*at) <= now);
        if due {
            self.open_cut_at.insert(customer.clone(), now);
        }
        due
    }

    fn fail(&mut self, tenant: &TenantId, error: &store::Error) {
        if self.failed.insert(tenant.clone()) {
            tracing::warn!(
                tenant = tenant.as_str(),
                %error,
                "windows of tenant {tenant} cannot be cut while its invoice is a draft: {error}"
            );
        }
    }
}

/// A customer with an invoice in draft, and its period.
type Draft = (CustomerId, Window);

/// Cuts the windows of drafts, again and again.
pub struct Flush<'a>(pub &'a CutJob);

impl Job for Flush<'_> {
    const NAME: &'static str = "flush";
    /// How often to look whether it is time.
    const PAUSE: Duration = Duration::from_secs(1);
    type Done = u64;
    type Error = store::Error;

    async fn pass(&self) -> store::Result<u64> {
        self.0.flush().await
    }
}

impl CutJob {
    /// Cuts the windows of drafts; returns how many pushes that made.
    pub async fn flush(&self) -> store::Result<u64> {
        let Some(now) = sure_time(&self.clock, "flush") else { return Ok(0) };
        if !self.flushes.lock().expect("no holder panics").begin(now) {
            return Ok(0);
        }
        let drafts = self.drafts().await?;
        let due = self.flushes.lock().expect("no holder panics").choose(drafts, now);
        if due.is_empty() {
            return Ok(0);
        }
        let orders = self.order_drafts(due, now).await?;
        if orders.is_empty() {
            return Ok(0);
        }
        let Some(mut keeper) = self.claim(LEASE).await? else { return Ok(0) };
        let mut done = Pass::default();
        match self.record(&mut keeper, orders, &mut done).await? {
            Recorded::LeaseLost => return Ok(done.pushes),
            Recorded::AllBut { failed, .. } => {
                let mut flushes = self.flushes.lock().expect("no holder panics");
                failed.iter().for_each(|(tenant, error)| flushes.fail(tenant, error));
            }
        }
        keeper.release().await?;
        let Pass { windows, pushes } = done;
        if pushes > 0 {
            tracing::info!(windows, pushes, "expedited {windows} windows of invoices in draft");
        }
        Ok(pushes)
    }

    /// Windows of the drafts that have changed.
    async fn order_drafts(
        &self,
        due: Vec<(Draft, Option<Timestamp>)>,
        now: Timestamp,
    ) -> store::Result<Vec<CutOrder>> {
        let catalog = self.store.load_catalog().await?;
        let active = match due.iter().any(|(_, last)| last.is_some()) {
            true => self.tenants_since(now, now).await?,
            false => BTreeSet::new(),
        };
        let horizon = Span::from_hours(self.config.ingest.accept_horizon_hours);
        let mut orders = Vec::new();
        for ((customer, period), last) in due {
            let found = self.store.find_customer(&customer).await?;
            let with_open = self.flushes.lock().expect("no holder panics").look(&customer, now);
            let Some(tenant) = found.map(|tenant| tenant.id) else { continue };
            let same_hour = last.is_some_and(|at| hour_of(at) == hour_of(now));
            if same_hour && !active.contains(&tenant) {
                continue;
            }
            let range = Window { start: period.start.max(horizon.before(now)), ..period };
            match self.order_expedited(&catalog, &tenant, (range, with_open), now).await {
                Ok(changed) => orders.extend(changed),
                Err(error) if error.is_of_data() => {
                    self.flushes.lock().expect("no holder panics").fail(&tenant, &error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(orders)
    }

    /// Customers with an invoice in draft, and its period.
    async fn drafts(&self) -> store::Result<Vec<Draft>> {
        let mirrors = list_all(&*self.store, ObjectKind::Invoice, Some("draft")).await?;
        let draft = |snapshot| {
            let Snapshot::Invoice(invoice) = snapshot else { return None };
            Some((invoice.customer, invoice.period))
        };
        Ok(mirrors.into_iter().filter_map(|mirror| draft(mirror.snapshot)).collect())
    }
}

fn hour_of(at: Timestamp) -> i64 {
    at.micros().div_euclid(MICROS_PER_HOUR)
}
