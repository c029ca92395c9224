//! Confirmation: looks for submitted pushes in the provider's summaries.
//!
//! Only windows with something unconfirmed are asked for, those of one customer and meter in one
//! call, and each window less and less often; so the provider's quota of reads is kept.
//!
//! Invariant: a push is confirmed only if the window's whole total at the provider is what its
//! settled pushes make; it is called absent only if the total lacks exactly what is unconfirmed
//! long after it was taken. A crash leaves pushes submitted; they are looked for again.

use super::push::{billing_scale, event_name};
use super::{Stop, repeat};
use crate::clock::Clock;
use crate::faults::crash_point;
use crate::provider::{Provider, TotalsQuery};
use crate::rules::delivery::{Unconfirmed, judge_unconfirmed};
use crate::rules::ids::{CustomerId, MeterNo};
use crate::rules::meter::Catalog;
use crate::rules::quantity::Quantity;
use crate::rules::span::Span;
use crate::rules::window::Window;
use crate::store::push::{Settlement, SubmittedWindow};
use crate::store::{self, Store};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const LEASE: &str = "confirm";
const LEASE_LENGTH: Span = Span::from_minutes(2);
const PAUSE: Duration = Duration::from_secs(5);
/// Windows looked at in one pass.
const WINDOWS_MAX: usize = 500;

pub struct Confirmer {
    store: Arc<dyn Store>,
    provider: Arc<dyn Provider>,
    clock: Clock,
    holder: String,
    look_after: Span,
    shadow: bool,
}

/// Windows that one call asks for: of one customer, meter and length.
type Asked = BTreeMap<(CustomerId, MeterNo, i64), Vec<SubmittedWindow>>;

impl Confirmer {
    pub fn new(
        store: Arc<dyn Store>,
        provider: Arc<dyn Provider>,
        clock: Clock,
        (holder, look_after): (String, Span),
        shadow: bool,
    ) -> Self {
        Self { store, provider, clock, holder, look_after, shadow }
    }

    pub async fn run(self, stop: Stop) {
        repeat("confirm", PAUSE, stop, || async { self.pass().await.map(drop) }).await;
    }

    /// Looks for what is due to be looked for; returns how many pushes were settled.
    pub async fn pass(&self) -> store::Result<usize> {
        let limits = self.provider.limits();
        if !limits.shows_totals || !limits.sends {
            return Ok(0);
        }
        let now = self.clock.now();
        let until = LEASE_LENGTH.after(now);
        let Some(lease) = self.store.claim_lease(LEASE, &self.holder, now, until).await? else {
            return Ok(0);
        };
        let due = self.store.list_submitted_windows(now, self.shadow, WINDOWS_MAX).await?;
        let catalog = self.store.load_catalog().await?;
        let mut asked = Asked::new();
        for window in due {
            let length = window.window.end.micros() - window.window.start.micros();
            let key = (window.customer.clone(), window.meter, length);
            asked.entry(key).or_default().push(window);
        }
        let mut settled = 0;
        for ((customer, meter, _), mut windows) in asked {
            windows.sort_by_key(|window| window.window.start);
            let settlements = self.look(&customer, meter, &windows, &catalog).await?;
            crash_point("confirm.before_settle");
            settled += self.store.settle_pushes(settlements, self.clock.now()).await?;
        }
        self.store.release_lease(&lease).await?;
        Ok(settled)
    }

    async fn look(
        &self,
        customer: &CustomerId,
        meter: MeterNo,
        windows: &[SubmittedWindow],
        catalog: &Catalog,
    ) -> store::Result<Vec<Settlement>> {
        let Some(meter) = catalog.get(meter) else {
            let what = "a push has a meter that does not exist".into();
            return Err(store::Error::Corrupt { what });
        };
        let spans: Vec<Window> = windows.iter().map(|window| window.window).collect();
        let query = TotalsQuery {
            customer,
            event_name: event_name(meter),
            scale: billing_scale(meter),
            windows: &spans,
        };
        match self.provider.read_totals(&query).await {
            Ok(totals) => {
                let pairs = windows.iter().zip(totals);
                Ok(pairs.flat_map(|(window, total)| self.judge(window, total)).collect())
            }
            Err(error) => {
                tracing::debug!(%error, customer = customer.as_str(), "could not read totals");
                Ok(Vec::new())
            }
        }
    }

    fn judge(&self, window: &SubmittedWindow, total: Quantity) -> Vec<Settlement> {
        let unconfirmed = Unconfirmed {
            mode: window.mode,
            expected: window.expected,
            quantities: window.pushes.iter().map(|(_, quantity)| *quantity).collect(),
            submitted_at: window.submitted_at,
        };
        let times = (self.clock.now(), self.look_after);
        let horizons = self.provider.limits().horizons;
        let judged = judge_unconfirmed(&unconfirmed, total, horizons, times);
        let detail = format!("the provider's total is {total}, expected {}", window.expected);
        window
            .pushes
            .iter()
            .zip(judged)
            .map(|((push, _), (class, next))| Settlement {
                push: *push,
                fence: None,
                class,
                next,
                request_id: None,
                detail: Some(detail.clone()),
            })
            .collect()
    }
}
