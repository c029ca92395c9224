//! The demo's last phase: what was counted is cut, pushed and found again in Stripe's totals.
//!
//! Invariant: it is over when the pushes of every tenant add up to the ledger and none of them is
//! open, or when patience is; then the comparison shows what is missing.

use super::Demo;
use super::report::Ledger;
use super::traffic::{METERS, TENANTS, read_decimal};
use crate::api::health::BillingHealth;
use crate::api::pushes::{PushAnswer, PushList};
use crate::cli::answer::{Pages, read};
use crate::cli::client::Request;
use crate::rules::submission::PushState;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long accidents go on after the traffic, for the pushes that only then begin.
const FAULTS_LINGER: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often all pushes are read where others keep the numbers of health from zero.
const READ_EVERY: Duration = Duration::from_secs(1);
const PAGE_PUSHES: &str = "1000";

/// The demo's own pushes.
pub struct Pushes(Vec<PushAnswer>);

impl Pushes {
    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub fn windows(&self) -> usize {
        let window =
            |push: &PushAnswer| format!("{} {} {}", push.tenant, push.meter, push.window_start);
        self.0.iter().map(window).collect::<BTreeSet<_>>().len()
    }

    /// Pushes of windows that had been billed before.
    pub fn revisions(&self) -> usize {
        self.0.iter().filter(|push| push.revision > 1).count()
    }

    /// Neither found at Stripe yet nor given up.
    pub fn open(&self) -> usize {
        self.in_state(PushState::Observed) + self.in_state(PushState::Submitted)
    }

    pub fn dead(&self) -> usize {
        self.in_state(PushState::Dead)
    }

    fn in_state(&self, state: PushState) -> usize {
        self.0.iter().filter(|push| push.state == state).count()
    }

    /// Whether all that was counted was handed to pushes.
    fn add_up_to(&self, demo: &Demo, ledger: &Ledger) -> bool {
        let mut sums: BTreeMap<(&str, &str), i128> = BTreeMap::new();
        for push in self.0.iter().filter(|push| push.state != PushState::Replaced) {
            let sum = sums.entry((&push.tenant, &push.meter)).or_default();
            *sum += read_decimal(&push.quantity.to_string()).unwrap_or(0);
        }
        let billed = || METERS.iter().enumerate().filter(|(_, meter)| meter.billed.is_some());
        (0..TENANTS).all(|tenant| {
            let name = demo.plan.tenant_name(tenant);
            billed().all(|(place, meter)| {
                let pushed = sums.get(&(name.as_str(), meter.slug)).copied().unwrap_or(0);
                read_decimal(&ledger.total(tenant, place)) == Some(pushed)
            })
        })
    }
}

/// Waits until all is settled; returns the pushes as they are then.
pub async fn settle(demo: &Demo, ledger: &Ledger) -> anyhow::Result<Pushes> {
    let started = Instant::now();
    let mut bar = demo.display.begin_settling();
    let mut accidents_end = Some(started + FAULTS_LINGER);
    let mut last_read = started;
    loop {
        if accidents_end.is_some_and(|end| Instant::now() >= end) {
            accidents_end = None;
            demo.stripe.end_faults();
            demo.display.say("Stripe has no more accidents; what is still open must settle now");
        }
        let health = read_health(demo).await?;
        demo.display.show_settling(&mut bar, &health);
        let quiet = health.observed + health.submitted == 0;
        let shared = !demo.plan.prefix.is_empty() && last_read.elapsed() >= READ_EVERY;
        let over = started.elapsed() >= PATIENCE;
        if over || (accidents_end.is_none() && (quiet || shared)) {
            last_read = Instant::now();
            let pushes = read_pushes(demo).await?;
            if over || (pushes.open() == 0 && pushes.add_up_to(demo, ledger)) {
                return Ok(pushes);
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn read_health(demo: &Demo) -> anyhow::Result<BillingHealth> {
    let request = Request::get(&["v1", "health", "billing"]);
    read(&demo.client().call(&request).await?)
}

/// All pushes of this run. A database may hold those of earlier ones, which are older.
async fn read_pushes(demo: &Demo) -> anyhow::Result<Pushes> {
    let mut request = Request::get(&["v1", "pushes"]);
    request.query.push(("limit", PAGE_PUSHES.to_owned()));
    let (client, mut own) = (demo.client(), Vec::new());
    let mut pages = Pages::new(&client, request);
    while let Some((page, _)) = pages.next::<PushList>().await? {
        let read = own.len();
        let is_own = |push: &PushAnswer| push.tenant.starts_with(&demo.plan.prefix);
        own.extend(page.pushes.into_iter().filter(is_own));
        if own.len() == read {
            break;
        }
    }
    Ok(Pushes(own))
}
