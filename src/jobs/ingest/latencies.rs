//! Delivery latencies of what this process has counted, by meter and by tenant and meter.
//!
//! Invariant: memory is bounded. Once there are [`PAIRS_MAX`] pairs of tenant and meter, further
//! ones are only counted under their meter. A crash forgets them; they are measured anew. A warning
//! about a meter is logged when it becomes true, not at every look.

use crate::rules::event::Event;
use crate::rules::ids::{MeterNo, TenantId};
use crate::rules::latency::{Latency, Percentiles};
use crate::rules::meter::{Catalog, Meter};
use crate::rules::timestamp::Timestamp;
use crate::rules::verdict::Verdict;
use crate::store::Declarations;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// At about a kilobyte each.
const PAIRS_MAX: usize = 10_000;
/// Tenants shown as metrics: each costs three lines per scrape.
const SHOWN_MAX: usize = 1_000;
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Events measured of one commit, evenly spread: measuring each would cost more than it tells.
const SAMPLES_MAX: usize = 64;

#[derive(Default)]
pub struct Latencies {
    known: Mutex<KnownLatencies>,
}

#[derive(Default)]
struct KnownLatencies {
    by_meter: BTreeMap<MeterNo, Latency>,
    by_tenant: BTreeMap<(TenantId, MeterNo), Latency>,
}

/// Fewest events by which a meter's `late_until` is judged in the log.
const WARN_SAMPLES_MIN: u64 = 100;

/// One meter's percentiles as metrics; without a tenant, of all tenants together.
fn show(meter: &Meter, tenant: &str, found: Percentiles) {
    for (percentile, millis) in [("50", found.p50_ms), ("95", found.p95_ms), ("99", found.p99_ms)] {
        metrics::gauge!(
            "counterfoil_delivery_latency_seconds",
            "meter" => meter.slug.to_string(), "tenant" => tenant.to_owned(),
            "percentile" => percentile
        )
        .set(Duration::from_millis(millis).as_secs_f64());
    }
}

/// Some events of a batch, taken down before the batch is handed to the store.
pub struct Samples(Vec<(usize, TenantId, MeterNo, Timestamp)>);

impl Samples {
    pub fn of(events: &[Event]) -> Self {
        let stride = events.len().div_ceil(SAMPLES_MAX).max(1);
        let sample = |(place, event): (usize, &Event)| {
            (place, event.tenant.clone(), event.meter, event.occurred_at)
        };
        Self(events.iter().enumerate().step_by(stride).map(sample).collect())
    }
}

impl Latencies {
    /// Measures those of the samples that were accepted.
    pub fn record(&self, samples: Samples, verdicts: &[Verdict], received_at: Timestamp) {
        let mut known = self.known.lock().expect("no holder panics");
        for (place, tenant, meter, occurred_at) in samples.0 {
            if verdicts.get(place) != Some(&Verdict::Accepted) {
                continue;
            }
            let micros = received_at.micros().saturating_sub(occurred_at.micros());
            known.by_meter.entry(meter).or_default().record(micros);
            let key = (tenant, meter);
            let room = known.by_tenant.len() < PAIRS_MAX;
            match known.by_tenant.get_mut(&key) {
                Some(latency) => latency.record(micros),
                None if room => known.by_tenant.entry(key).or_default().record(micros),
                None => {}
            }
        }
    }

    /// Shows them as metrics and warns of windows that close too early, for ever.
    pub async fn watch(self: Arc<Self>, store: Arc<dyn Declarations>) {
        let mut warned = BTreeSet::new();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            // While the store is down there is nothing to say about meters.
            if let Ok(catalog) = store.load_catalog().await {
                self.look(&catalog, &mut warned);
            }
        }
    }

    fn look(&self, catalog: &Catalog, warned: &mut BTreeSet<MeterNo>) {
        for (number, found) in self.read(None) {
            let Some(meter) = catalog.get(number) else { continue };
            show(meter, "", found);
            // A handful of events says nothing about one in a hundred.
            if found.samples < WARN_SAMPLES_MIN {
                continue;
            }
            let (late_until, needed) = (meter.spec.late_until, found.recommended_late_until());
            if needed <= late_until {
                warned.remove(&number);
            } else if warned.insert(number) {
                let slug = meter.slug.as_str();
                tracing::warn!(
                    meter = slug,
                    "events of {slug} come so late that late_until, {late_until}, should be \
                     {needed} at least: GET /v1/latency"
                );
            }
        }
        let known = self.known.lock().expect("no holder panics");
        for ((tenant, number), latency) in known.by_tenant.iter().take(SHOWN_MAX) {
            if let (Some(meter), Some(found)) = (catalog.get(*number), latency.percentiles()) {
                show(meter, tenant.as_str(), found);
            }
        }
    }

    /// Of one tenant, or of all together.
    pub fn read(&self, tenant: Option<&TenantId>) -> Vec<(MeterNo, Percentiles)> {
        let known = self.known.lock().expect("no holder panics");
        match tenant {
            None => {
                let all = known.by_meter.iter();
                all.filter_map(|(meter, latency)| Some((*meter, latency.percentiles()?))).collect()
            }
            Some(tenant) => {
                let from = (tenant.clone(), MeterNo(0));
                let own = known.by_tenant.range(from..).take_while(|((t, _), _)| t == tenant);
                own.filter_map(|((_, meter), latency)| Some((*meter, latency.percentiles()?)))
                    .collect()
            }
        }
    }
}
