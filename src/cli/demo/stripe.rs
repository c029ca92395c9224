//! The demo's Stripe: the simulator inside this process, with faults and an outage.
//!
//! Invariant: its state is here and not in the server, so it outlives every kill; it counts what it
//! was sent with its own code, and knows nothing of the ledger or of the generator's truth.

use super::traffic::{METERS, Plan};
use crate::rules::billing::Mode;
use crate::rules::quantity::Quantity;
use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use stripe_sim::{
    FaultKind, FaultPlan, Handle, Options, Repeats, SimRequest, SimResponse, Simulator, Timestamp,
};

/// Faults of calls.
const FAULTS: [FaultKind; 8] = [
    FaultKind::LostBefore,
    FaultKind::LostAfter,
    FaultKind::ResetMidBody,
    FaultKind::Error500Executed,
    FaultKind::Error500NotExecuted,
    FaultKind::Error503,
    FaultKind::RateLimited429,
    FaultKind::Garbage200,
];
/// The chance of each in thousandths: together every fifth call.
const FAULT_PER_MILLE: u64 = 25;
/// How long to try for the old port after an outage, and the pause between tries.
const PORT_PATIENCE: Duration = Duration::from_secs(10);
const PORT_PAUSE: Duration = Duration::from_millis(50);

pub struct Stripe {
    pub url: String,
    simulator: Arc<Mutex<Simulator>>,
    port: tokio::sync::Mutex<Handle>,
}

/// What it went through.
pub struct Story {
    pub calls: u64,
    pub faults: BTreeMap<FaultKind, u64>,
    pub repeats: Repeats,
}

impl Stripe {
    /// Starts it on a free port, with the meters that are billed.
    pub async fn start(plan: &Plan) -> anyhow::Result<Self> {
        // A database may hold the customers of an earlier demo; a new directory does not.
        let ids_after = match plan.prefix.is_empty() {
            true => 0,
            false => plan.start.micros().unsigned_abs(),
        };
        // The demo shows totals confirmed within its few minutes.
        let options = Options { ids_after, summary_lag_seconds: 0, ..Options::default() };
        let simulator = Arc::new(Mutex::new(Simulator::following(Timestamp::now, options)));
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let handle = Handle::start(listen, Arc::clone(&simulator)).await;
        let handle = handle.context("cannot start the Stripe simulator")?;
        let stripe = Self { url: handle.url(), simulator, port: tokio::sync::Mutex::new(handle) };
        for meter in &METERS {
            if let Some(mode) = meter.billed {
                stripe.create_meter(meter.slug, mode)?;
            }
        }
        Ok(stripe)
    }

    fn create_meter(&self, event_name: &str, mode: Mode) -> anyhow::Result<()> {
        let mut fields = vec![
            ("display_name", event_name),
            ("event_name", event_name),
            ("default_aggregation[formula]", "sum"),
        ];
        match mode {
            Mode::Delta => {}
            // Then the last total of an hour wins.
            Mode::Absolute => fields.push(("event_time_window", "hour")),
        }
        self.ask(&SimRequest::form("/v1/billing/meters", &fields)).map(drop)
    }

    /// Makes a customer; returns its id.
    pub fn create_customer(&self, name: &str) -> anyhow::Result<String> {
        let made = self.ask(&SimRequest::form("/v1/customers", &[("name", name)]))?.json();
        let id = made["id"].as_str().context("the Stripe simulator made no customer")?;
        Ok(id.to_owned())
    }

    fn ask(&self, request: &SimRequest) -> anyhow::Result<SimResponse> {
        let response = self.lock().handle(request);
        if response.status != 200 {
            let body = String::from_utf8_lossy(&response.body);
            bail!("the Stripe simulator refuses {}: {body}", request.path);
        }
        Ok(response)
    }

    /// From now on every fifth call meets a fault.
    pub fn begin_faults(&self, seed: u64) {
        self.lock().set_faults(FaultPlan::seeded(seed, FAULT_PER_MILLE, &FAULTS));
    }

    pub fn end_faults(&self) {
        self.lock().set_faults(FaultPlan::default());
    }

    /// Closes the port and every connection.
    pub async fn go_down(&self) -> anyhow::Result<()> {
        self.port.lock().await.stop().await.context("cannot stop the Stripe simulator")
    }

    pub async fn come_back(&self) -> anyhow::Result<()> {
        let started = Instant::now();
        let mut port = self.port.lock().await;
        loop {
            match port.restart().await {
                Ok(()) => return Ok(()),
                // A connection of another program may have been given the port for a moment.
                Err(_) if started.elapsed() < PORT_PATIENCE => {
                    tokio::time::sleep(PORT_PAUSE).await;
                }
                Err(error) => return Err(error).context("cannot start the Stripe simulator"),
            }
        }
    }

    pub fn has_counted(&self) -> bool {
        self.lock().accepted_events() > 0
    }

    /// What it would bill, by customer and event name.
    pub fn totals(&self) -> anyhow::Result<BTreeMap<(String, String), Quantity>> {
        let mut totals: BTreeMap<(String, String), Quantity> = BTreeMap::new();
        for ((customer, event_name, _), hour) in self.lock().exact_totals() {
            let total = totals.entry((customer, event_name)).or_default();
            let sum = total.checked_add(Quantity::from_units(hour.units()));
            *total = sum.context("a total at Stripe is too large")?;
        }
        Ok(totals)
    }

    pub fn story(&self) -> Story {
        let simulator = self.lock();
        Story {
            calls: simulator.calls().values().sum(),
            faults: simulator.faults_injected().clone(),
            repeats: simulator.repeats(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Simulator> {
        self.simulator.lock().expect("no holder of the simulator panics")
    }
}
