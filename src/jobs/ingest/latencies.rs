//! Delivery latencies of what this process has counted, by meter and by tenant and meter.
//!
//! Invariant: memory is bounded. Once there are [`PAIRS_MAX`] pairs of tenant and meter, further
//! ones are only counted under their meter. A crash forgets them; they are measured anew.

use crate::rules::event::Event;
use crate::rules::ids::{MeterNo, TenantId};
use crate::rules::latency::{Latency, Percentiles};
use crate::rules::timestamp::Timestamp;
use crate::rules::verdict::Verdict;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// At about a kilobyte each.
const PAIRS_MAX: usize = 10_000;
/// Events measured of one commit, evenly spread: measuring each would cost more than it tells.
const SAMPLES_MAX: usize = 64;

#[derive(Default)]
pub struct Latencies {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    by_meter: BTreeMap<MeterNo, Latency>,
    by_tenant: BTreeMap<(TenantId, MeterNo), Latency>,
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
