//! Backfill: finds webhooks that were never delivered in the provider's own list of events.
//!
//! A pass reads the list from its newest event back to the pass before, with an hour of overlap,
//! and records what is not known. After each page it notes where it is; the next pass, or the next
//! server, goes on from there.
//!
//! Invariant: the mark moves only when a pass has read its list to the end, to the moment at which
//! the pass began. So every event of the last thirty days is recorded, by delivery or from here. A
//! crash leaves the cursor at the last page that was recorded whole.

use super::keeper::{Keeper, LeaseTerms};
use super::{Context, Job, sure_time};
use crate::clock::Clock;
use crate::faults::crash_point;
use crate::provider::{EventList, Provider, Unreadable};
use crate::rules::span::Span;
use crate::rules::timestamp::Timestamp;
use crate::rules::webhook::WebhookSource;
use crate::store;
use crate::store::push::Leases;
use crate::store::webhook::{WebhookReceipt, Webhooks};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

const LEASE: &str = "backfill";
const LEASE_SPAN: Span = Span::from_minutes(5);
/// How often the lists are read.
pub const EVERY: Span = Span::from_minutes(30);
/// How far back the list is read: the provider's thirty days, less an hour, so that the place at
/// which a pass was cut is still in the list when the pass goes on.
const REACH: Span = Span::from_hours(30 * 24 - 1);
/// A pass that was cut longer ago begins anew: its place may be gone, and then no page would ever
/// be given again.
const CUT_MAX: Span = Span::from_minutes(50);
/// Events may appear in the list a little after their moment, and are delivered a little later.
const OVERLAP: Span = Span::from_hours(1);

/// What is younger may still be delivered; the next pass will see it.
const DELIVERY: Span = Span::from_minutes(10);

/// Where a pass over a list is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Cursor {
    /// Everything before it is recorded.
    mark: Timestamp,
    /// When the pass that is under way began, and the page it has come to.
    under_way: Option<(Timestamp, Option<String>)>,
    /// When the last pass ended.
    ended_at: Option<Timestamp>,
}

pub struct BackfillJob {
    store: Arc<dyn Webhooks>,
    leases: Arc<dyn Leases>,
    provider: Arc<dyn Provider>,
    clock: Clock,
    holder: String,
    arrived: Arc<Notify>,
}

/// Why a pass stopped; it goes on later.
#[derive(Debug, thiserror::Error)]
pub enum BackfillError {
    #[error("cannot read the provider's events: {0}")]
    Unreadable(#[from] Unreadable),
    #[error(transparent)]
    Store(#[from] store::Error),
}

impl Job for BackfillJob {
    const NAME: &'static str = "backfill";
    /// How often to look whether it is time.
    const PAUSE: Duration = Duration::from_secs(10);
    type Done = u64;
    type Error = BackfillError;

    /// Reads the lists if it is time; returns how many webhooks had been missed.
    async fn pass(&self) -> Result<u64, BackfillError> {
        if sure_time(&self.clock, "backfill").is_none() {
            return Ok(0);
        }
        let span_micros = LEASE_SPAN.micros();
        let terms = LeaseTerms { name: LEASE, holder: &self.holder, span_micros };
        let claimed = Keeper::claim(&*self.leases, &self.clock, terms).await?;
        let Some(mut keeper) = claimed else { return Ok(0) };
        let mut missed = 0;
        for (list, name) in [
            (EventList::Snapshot, "backfill.events"),
            (EventList::ErrorReport, "backfill.error_reports"),
        ] {
            missed += self.read_list(&mut keeper, list, name).await?;
        }
        keeper.release().await?;
        if missed > 0 {
            tracing::warn!(missed, "{missed} webhooks had been missed and were found in the list");
        }
        Ok(missed)
    }
}

impl BackfillJob {
    pub fn new(context: &Context, provider: &Arc<dyn Provider>, arrived: Arc<Notify>) -> Self {
        let Context { store, clock, holder, .. } = context.clone();
        let (leases, provider) = (store.clone(), Arc::clone(provider));
        Self { store, leases, provider, clock, holder, arrived }
    }

    /// Reads a list to its end, or until the lease is lost; the new holder goes on from the cursor.
    async fn read_list(
        &self,
        keeper: &mut Keeper<'_>,
        list: EventList,
        name: &'static str,
    ) -> Result<u64, BackfillError> {
        let Some(inbound) = self.provider.inbound() else { return Ok(0) };
        let now = self.clock.now();
        let stored = self.store.read_cursor(name).await?;
        let stored = stored.and_then(|text| serde_json::from_str(&text).ok());
        let mut cursor: Cursor =
            stored.unwrap_or(Cursor { mark: REACH.before(now), under_way: None, ended_at: None });
        let rested = cursor.ended_at.is_some_and(|ended| now < EVERY.after(ended));
        if cursor.under_way.is_none() && rested {
            return Ok(0);
        }
        let cut = cursor.under_way.take();
        let (began_at, mut after) =
            cut.filter(|(began_at, _)| now < CUT_MAX.after(*began_at)).unwrap_or((now, None));
        let since = OVERLAP.before(cursor.mark).max(REACH.before(now));
        let mut missed = 0;
        loop {
            let page = inbound.list_events(list, since, after.as_deref()).await?;
            let mut events = page.events;
            events.retain(|(facts, _)| facts.created_at < DELIVERY.before(began_at));
            missed += self.record(events).await?;
            crash_point("backfill.before_cursor");
            let ended = page.next.is_none();
            after = page.next;
            cursor = if ended {
                Cursor { mark: began_at, under_way: None, ended_at: Some(self.clock.now()) }
            } else {
                Cursor { under_way: Some((began_at, after.clone())), ..cursor }
            };
            let text = serde_json::to_string(&cursor).expect("a cursor is valid JSON");
            self.store.record_cursor(name, &text).await?;
            if ended || !keeper.keep().await? {
                return Ok(missed);
            }
        }
    }

    async fn record(
        &self,
        events: Vec<(crate::rules::webhook::WebhookFacts, Vec<u8>)>,
    ) -> store::Result<u64> {
        if events.is_empty() {
            return Ok(0);
        }
        let (source, received_at) = (WebhookSource::Backfilled, self.clock.now());
        let receipt = |(facts, payload)| WebhookReceipt { facts, payload, source, received_at };
        let recorded =
            self.store.record_webhooks(events.into_iter().map(receipt).collect()).await?;
        let fresh = recorded.iter().filter(|one| one.fresh).count();
        let fresh = u64::try_from(fresh).unwrap_or(u64::MAX);
        if fresh > 0 {
            // Page by page: entries read before a list breaks off are valid all the same.
            metrics::counter!("counterfoil_webhooks_backfilled_total").increment(fresh);
            self.arrived.notify_one();
        }
        Ok(fresh)
    }
}
