//! Confirmation: looks for submitted pushes in the provider's summaries.
//!
//! Only windows with something unconfirmed are asked for, those of one customer and meter in one
//! call, and each window less and less often; so the provider's quota of reads is kept.
//!
//! Invariant: a push is confirmed only if the window's whole total at the provider is what its
//! settled pushes make; it is called absent only if two totals, both read long after it was taken,
//! lack exactly what is unconfirmed; and either only if the window's pushes are still those that
//! were listed before the total was read. Every total is kept as a reading before it is judged. A
//! crash leaves pushes submitted; they are looked for again.

use super::keeper::{Keeper, LeaseTerms};
use super::{Context, Job, Stop, do_all_but_faulty, repeat, sure_time};
use crate::clock::Clock;
use crate::config::PushConfig;
use crate::faults::{crash_point, planted};
use crate::provider::{Provider, TotalsQuery};
use crate::rules::evidence::read_twice_from;
use crate::rules::ids::{CustomerId, MeterNo};
use crate::rules::meter::Catalog;
use crate::rules::quantity::Quantity;
use crate::rules::submission::{Class, Next, Unconfirmed, judge_unconfirmed, look_again};
use crate::rules::window::Window;
use crate::store::push::{Right, Settlement, SubmittedWindow};
use crate::store::reconciliation::SummaryReading;
use crate::store::{self, Store};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const LEASE: &str = "confirm";
/// Shortest pause between passes.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Windows looked at in one pass.
const WINDOWS_MAX: usize = 500;

pub struct ConfirmJob {
    store: Arc<dyn Store>,
    provider: Arc<dyn Provider>,
    clock: Clock,
    holder: String,
    settings: PushConfig,
    shadow: bool,
    stop: OnceLock<Stop>,
}

/// Windows that one call asks for: of one customer, meter and length.
type SummaryRequest = BTreeMap<(CustomerId, MeterNo, i64), Vec<SubmittedWindow>>;

impl Job for ConfirmJob {
    const NAME: &'static str = "confirm";
    /// The longest. Within the limits, pushes are looked for as often as `push.look_after` lets one
    /// be due.
    const PAUSE: Duration = Duration::from_secs(5);
    type Done = usize;
    type Error = store::Error;

    async fn run(&self, stop: Stop) {
        let stop = self.stop.get_or_init(|| stop).clone();
        repeat(self, stop).await;
    }

    async fn rest(&self, _settled: Option<&usize>, stop: &mut Stop) {
        let look_after = Duration::from_micros(self.settings.look_after.micros().unsigned_abs());
        stop.wait(look_after.clamp(PAUSE_MIN, Self::PAUSE)).await;
    }

    /// Looks for what is due to be looked for; returns how many pushes were settled.
    async fn pass(&self) -> store::Result<usize> {
        let limits = self.provider.limits();
        if !limits.shows_totals || !limits.sends {
            return Ok(0);
        }
        let Some(now) = sure_time(&self.clock, "confirm") else { return Ok(0) };
        let span_micros = i64::from(self.settings.lease_ms) * 1_000;
        let terms = LeaseTerms { name: LEASE, holder: &self.holder, span_micros };
        let claimed = Keeper::claim(&*self.store, &self.clock, terms).await?;
        let Some(mut keeper) = claimed else { return Ok(0) };
        let due = self.store.list_submitted_windows(now, self.shadow, WINDOWS_MAX).await?;
        let catalog = self.store.load_catalog().await?;
        let mut asked = SummaryRequest::new();
        for window in due {
            let length = window.window.end.micros() - window.window.start.micros();
            let key = (window.customer.clone(), window.meter, length);
            asked.entry(key).or_default().push(window);
        }
        let mut settled = 0;
        for ((customer, meter, _), mut windows) in asked {
            // A provider that does not answer must not hold up the server's end.
            if self.stop.get().is_some_and(Stop::is_requested) {
                break;
            }
            windows.sort_by_key(|window| window.window.start);
            let settlements = self.look(&customer, meter, &windows, &catalog).await?;
            crash_point("confirm.before_settle");
            let at = self.clock.now();
            let settle = |batch| self.store.settle_pushes(batch, at);
            settled += do_all_but_faulty(settlements, settle).await?.into_iter().sum::<usize>();
            if !keeper.keep().await? {
                return Ok(settled);
            }
        }
        keeper.release().await?;
        Ok(settled)
    }
}

impl ConfirmJob {
    pub fn new(context: &Context, provider: &Arc<dyn Provider>) -> Self {
        let Context { store, clock, config, holder, .. } = context.clone();
        Self {
            store,
            provider: Arc::clone(provider),
            clock,
            holder,
            settings: config.push.clone(),
            shadow: config.provider.is_shadow(),
            stop: OnceLock::new(),
        }
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
        let query = TotalsQuery::new(customer, meter, &spans);
        let read_at = self.clock.now();
        let read = self.provider.read_totals(&query).await;
        // The answer may have shown that our clock is wrong: then it says nothing yet.
        if sure_time(&self.clock, "confirm").is_none() {
            return Ok(Vec::new());
        }
        match read {
            Ok(totals) => {
                let read = windows.iter().zip(&totals).map(|(window, value)| SummaryReading {
                    tenant: window.tenant.clone(),
                    meter: window.meter,
                    customer: customer.clone(),
                    window: window.window,
                    value: *value,
                });
                self.store.record_summaries(read.collect(), read_at).await?;
                let mut settlements = Vec::new();
                for (window, total) in windows.iter().zip(totals) {
                    settlements.extend(self.judge(window, total).await?);
                }
                Ok(settlements)
            }
            Err(error) => {
                tracing::debug!(%error, customer = customer.as_str(), "could not read totals");
                // They come up again later, and do not stand in the way of others till then.
                let why = error.to_string();
                Ok(windows.iter().flat_map(|window| self.put_off(window, &why)).collect())
            }
        }
    }

    fn put_off(&self, window: &SubmittedWindow, why: &str) -> Vec<Settlement> {
        let (now, look_after) = (self.clock.now(), self.settings.look_after);
        let until = look_again(window.submitted_at, now, look_after);
        let put_off = (Class::Unknown, Next::Wait { until, fresh_request_key: false });
        settle_all(window, vec![put_off; window.pushes.len()], why)
    }

    async fn judge(
        &self,
        window: &SubmittedWindow,
        total: Quantity,
    ) -> store::Result<Vec<Settlement>> {
        let unconfirmed = Unconfirmed {
            mode: window.mode,
            expected: window.expected,
            quantities: window.pushes.iter().map(|(_, quantity)| *quantity).collect(),
            submitted_at: window.submitted_at,
        };
        let times = (self.clock.provider_now(), self.settings.look_after);
        let horizons = self.provider.limits().horizons;
        let judged = judge_unconfirmed(&unconfirmed, total, horizons, times);
        let detail = format!("the provider's total is {total}, expected {}", window.expected);
        let absent = judged.iter().any(|(class, _)| *class == Class::Absent);
        if absent && !self.is_absence_proved(window).await? {
            return Ok(self.put_off(window, &format!("{detail}; another reading decides")));
        }
        Ok(settle_all(window, judged, &detail))
    }

    /// Whether the total was read twice since it can tell that something was dropped.
    async fn is_absence_proved(&self, window: &SubmittedWindow) -> store::Result<bool> {
        if planted("bug.resend_on_stale_reading") {
            return Ok(true);
        }
        let from = self.provider.limits().horizons.decide.after(window.submitted_at);
        let (whose, span) = ((&window.tenant, &window.customer), window.window);
        let only = Window { start: span.start, end: span.start.saturating_add_micros(1) };
        let read = self.store.read_summaries(whose, window.meter, only, span.micros()).await?;
        Ok(read.first().is_some_and(|summary| read_twice_from(summary, from)))
    }
}

/// What becomes of each of the window's pushes, in their order.
fn settle_all(
    window: &SubmittedWindow,
    judged: Vec<(Class, Next)>,
    detail: &str,
) -> Vec<Settlement> {
    let settle = |((push, _), (class, next)): (&(u64, Quantity), (Class, Next))| Settlement {
        push: *push,
        right: Right::Reading { expected: window.expected },
        class,
        next,
        request_id: None,
        detail: Some(detail.to_owned()),
    };
    window.pushes.iter().zip(judged).map(settle).collect()
}
