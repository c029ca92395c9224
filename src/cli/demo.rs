//! `counterfoil demo`: a server is sent disorderly traffic, is killed in the middle, bills a Stripe
//! that fails, and must end with exactly the right totals on both sides.
//!
//! Invariant: whatever was not answered is sent again with the same ids, as a real sender would;
//! the demo knows from its own arithmetic what must have been counted and billed, and fails if it
//! was not.

mod comparison;
mod display;
mod report;
mod server;
mod settling;
mod stripe;
mod traffic;

use super::check::{CheckDisplay, check_store};
use super::client::{Client, Failure, Request, ServerArguments};
use super::table::grouped;
use crate::api::events::Verdicts;
use crate::clock::Clock;
use crate::config::StoreUrl;
use crate::http::auth::new_token;
use anyhow::{Context, bail};
use comparison::Comparison;
use display::Display;
use report::{Ledger, Report};
use reqwest::Method;
use server::{Launch, Scratch, Server};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};
use stripe::Stripe;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use traffic::{LANES, Lane, METERS, Plan, TENANTS, gather_truths};

/// The server is killed when these parts of the traffic are acknowledged, in percent.
const KILLS_AT_PERCENT: [u64; 2] = [30, 65];
/// Stripe is down between these, and at least so long.
const OUTAGE_PERCENT: [u64; 2] = [45, 80];
const OUTAGE_MIN: Duration = Duration::from_millis(500);
/// How long the last tenth of the traffic is held back for Stripe to have been billed something.
const STRAGGLERS_PATIENCE: Duration = Duration::from_secs(5);
/// How long a batch is tried; a restart takes far less.
const PATIENCE: Duration = Duration::from_secs(120);
const RETRY_PAUSE: Duration = Duration::from_millis(50);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Run a demo: exact counts and bills through duplicates, kill -9 and a failing Stripe
#[derive(clap::Args)]
#[command(after_help = "Examples:
  counterfoil demo
      300,000 events; the server then runs until Ctrl-C, to be explored, and so does a Stripe
      simulator that it bills; nothing leaves this machine
  counterfoil demo --once --events 50000 --seed 7
  counterfoil demo --store postgres://counterfoil:secret@localhost/counterfoil

Exit code: 0 everything was counted and billed exactly, 1 it was not.")]
pub struct DemoArguments {
    /// Deliveries to send; one in twenty is a duplicate, some conflict or are malformed
    #[arg(long, default_value_t = 300_000, value_parser = clap::value_parser!(u64).range(1..))]
    events: u64,
    /// Store to use instead of a temporary directory
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// The same seed gives the same traffic
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// End after the report; the default where standard output is not a terminal
    #[arg(long)]
    once: bool,
}

pub async fn run(arguments: &DemoArguments) -> anyhow::Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for signals")?;
    // Whichever ends first, leaving here ends the server and removes its directory.
    let (demo, exact) = tokio::select! {
        ended = demonstrate(arguments) => ended?,
        _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        _ = terminate.recv() => bail!("interrupted"),
    };
    if !arguments.once && std::io::stdout().is_terminal() {
        demo.print_ways_on();
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
    }
    Ok(if exact { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs all of it and returns whether everything was counted exactly.
async fn demonstrate(arguments: &DemoArguments) -> anyhow::Result<(Arc<Demo>, bool)> {
    let scratch = Scratch::create()?;
    let data = scratch.path().join("data");
    let store = arguments.store.clone().unwrap_or_else(|| format!("sqlite:{}", data.display()));
    let start = Clock::system().now();
    // A database may hold an earlier demo; a new directory does not.
    let prefix = match &arguments.store {
        Some(_) => format!("demo-{:x}-", start.micros()),
        None => String::new(),
    };
    let plan = Plan { seed: arguments.seed, deliveries: arguments.events, start, prefix };
    let stripe = Stripe::start(&plan).await?;
    let (log, stripe_url) = (scratch.path().join("server.log"), stripe.url.clone());
    let launch = Launch { store, key: new_token(), log, stripe_url };
    let demo = Demo::start(plan, launch, stripe, scratch).await?;
    let lanes = demo.send_traffic().await?;
    let (truths, ledger) = (gather_truths(&lanes), Ledger::read(&demo).await?);
    let pushes = settling::settle(&demo, &ledger).await?;
    demo.display.finish();
    let report = Report::gather(&demo, &lanes, &truths, &ledger);
    report.print();
    let mut config = crate::config::load(None)?;
    config.store.url = StoreUrl::try_from(demo.launch.store.clone())
        .map_err(|refusal| anyhow::anyhow!("--store: {refusal}"))?;
    let check = check_store(&config, Arc::new(CheckDisplay::hidden())).await?;
    report::print_check(&check);
    let comparison = Comparison::gather(&demo, &truths, &ledger, pushes)?;
    comparison.print();
    let exact = report.exact() && check.findings.is_empty() && comparison.exact();
    let shown = match exact {
        true => "every total is exact, in the ledger and at Stripe,",
        false => "SOMETHING DIFFERS",
    };
    let (events, kills) = (grouped(arguments.events), KILLS_AT_PERCENT.len());
    println!("\n{shown} after {events} events and {kills} kills");
    Ok((demo, exact))
}

struct Demo {
    plan: Plan,
    launch: Launch,
    server: Mutex<Server>,
    /// Dropped after the server, which writes in it.
    _scratch: Scratch,
    stripe: Stripe,
    /// Stripe's ids of the tenants, in their order.
    customers: Vec<String>,
    /// Changes if the server comes back on another port.
    client: RwLock<Arc<Client>>,
    seen: Mutex<Seen>,
    display: Display,
}

/// What the senders have seen so far.
#[derive(Debug, Clone, Default)]
struct Seen {
    sent: u64,
    acknowledged: u64,
    retries: u64,
    kills: u64,
    /// How long Stripe was down.
    outage: Duration,
    accepted: u64,
    duplicates: u64,
    conflicts: u64,
    quarantined: u64,
    rejected: u64,
}

impl Demo {
    async fn start(
        plan: Plan,
        launch: Launch,
        stripe: Stripe,
        _scratch: Scratch,
    ) -> anyhow::Result<Arc<Self>> {
        let server = tokio::task::block_in_place(|| Server::start(&launch, None))?;
        let client = RwLock::new(connect(&server, &launch)?);
        let display = Display::new(plan.deliveries);
        let (server, seen) = (Mutex::new(server), Mutex::new(Seen::default()));
        let names = (0..TENANTS).map(|tenant| plan.tenant_name(tenant));
        let customers =
            names.map(|name| stripe.create_customer(&name)).collect::<Result<_, _>>()?;
        let demo =
            Self { plan, launch, server, _scratch, stripe, customers, client, seen, display };
        demo.set_up().await?;
        Ok(Arc::new(demo))
    }

    async fn set_up(&self) -> anyhow::Result<()> {
        for meter in &METERS {
            let request = Request::new(Method::PUT, &["v1", "meters", meter.slug]);
            self.client().call(&request.with_json(&meter.spec())).await?;
        }
        for (tenant, customer) in (0..TENANTS).zip(&self.customers) {
            let name = self.plan.tenant_name(tenant);
            let request = Request::new(Method::PUT, &["v1", "tenants", &name]);
            let spec = serde_json::json!({"customer": customer});
            self.client().call(&request.with_json(&spec)).await?;
        }
        self.display.say(&format!(
            "a server runs, with a meter for every way to aggregate; two are billed, at a Stripe \
             simulator\non {} where every fifth call fails",
            self.stripe.url
        ));
        self.stripe.begin_faults(self.plan.seed);
        Ok(())
    }

    fn client(&self) -> Arc<Client> {
        Arc::clone(&self.client.read().expect("no holder of the client panics"))
    }

    fn seen(&self) -> Seen {
        self.seen.lock().expect("no holder of the counts panics").clone()
    }

    fn see(&self, change: impl FnOnce(&mut Seen)) {
        let mut seen = self.seen.lock().expect("no holder of the counts panics");
        change(&mut seen);
        self.display.show(&seen);
    }

    /// Sends everything over several connections while the server is killed now and then and
    /// Stripe has an outage.
    async fn send_traffic(self: &Arc<Self>) -> anyhow::Result<Vec<Lane>> {
        let mut senders = JoinSet::new();
        for lane in 0..LANES {
            senders.spawn(Arc::clone(self).send_lane(Lane::new(self.plan.clone(), lane)));
        }
        let mut accidents = JoinSet::new();
        accidents.spawn(Arc::clone(self).kill_now_and_then());
        accidents.spawn(Arc::clone(self).cut_off_stripe());
        let mut lanes = Vec::new();
        while let Some(ended) = senders.join_next().await {
            lanes.push(ended.context("a sender was interrupted")??);
        }
        while let Some(ended) = accidents.join_next().await {
            ended.context("an accident was interrupted")??;
        }
        self.display.say("all traffic is acknowledged; the rest is being sent to Stripe");
        Ok(lanes)
    }

    async fn send_lane(self: Arc<Self>, mut lane: Lane) -> anyhow::Result<Lane> {
        let mut held_back = false;
        loop {
            if lane.in_last_tenth() && !held_back {
                held_back = true;
                self.wait_for_first_bill().await;
            }
            let Some((body, events)) = lane.next_batch(self.plan.batch_events()) else { break };
            self.see(|seen| seen.sent += events);
            let answer = self.send_until_answered(&Request::events(body.into())).await?;
            let answer: Verdicts = serde_json::from_slice(&answer)?;
            self.see(|seen| {
                seen.acknowledged += events;
                seen.accepted += answer.accepted;
                seen.duplicates += answer.duplicates;
                seen.conflicts += answer.conflicts;
                seen.quarantined += answer.quarantined;
                seen.rejected += answer.rejected;
            });
        }
        Ok(lane)
    }

    /// What comes after this is late for its windows, and makes revisions.
    async fn wait_for_first_bill(&self) {
        let started = Instant::now();
        while !self.stripe.has_counted() && started.elapsed() < STRAGGLERS_PATIENCE {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn send_until_answered(&self, request: &Request) -> Result<bytes::Bytes, Failure> {
        let started = Instant::now();
        loop {
            match self.client().call(request).await {
                Err(failure) if failure.passes() && started.elapsed() < PATIENCE => {
                    self.see(|seen| seen.retries += 1);
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                answered => return answered,
            }
        }
    }

    async fn kill_now_and_then(self: Arc<Self>) -> anyhow::Result<()> {
        for percent in KILLS_AT_PERCENT {
            self.wait_until_acknowledged(percent).await;
            let started = Instant::now();
            tokio::task::block_in_place(|| self.restart_server())?;
            self.see(|seen| seen.kills += 1);
            self.display.say(&format!(
                "kill -9 at {percent} %; the server was ready again after {} ms",
                started.elapsed().as_millis()
            ));
        }
        Ok(())
    }

    async fn cut_off_stripe(self: Arc<Self>) -> anyhow::Result<()> {
        let [first, last] = OUTAGE_PERCENT;
        self.wait_until_acknowledged(first).await;
        let started = Instant::now();
        self.stripe.go_down().await?;
        self.display.say(&format!("Stripe is down at {first} %"));
        self.wait_until_acknowledged(last).await;
        tokio::time::sleep(OUTAGE_MIN.saturating_sub(started.elapsed())).await;
        self.stripe.come_back().await?;
        let outage = started.elapsed();
        self.see(|seen| seen.outage = outage);
        self.display.say(&format!("Stripe is back after {} ms", outage.as_millis()));
        Ok(())
    }

    async fn wait_until_acknowledged(&self, percent: u64) {
        while self.seen().acknowledged * 100 < self.plan.deliveries * percent {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn restart_server(&self) -> anyhow::Result<()> {
        let mut server = self.server.lock().expect("no holder of the server panics");
        server.restart(&self.launch)?;
        let client = connect(&server, &self.launch)?;
        *self.client.write().expect("no holder of the client panics") = client;
        Ok(())
    }

    fn print_ways_on(&self) {
        let url = self.server.lock().expect("no holder of the server panics").url.clone();
        let (key, tenant) = (&self.launch.key, self.plan.tenant_name(7));
        let stripe = &self.stripe.url;
        println!(
            "\nThe server still runs on {url}, until Ctrl-C. Its admin key: {key}\n\n\
             export COUNTERFOIL_URL={url} COUNTERFOIL_KEY={key}\n\
             counterfoil usage --tenant {tenant} --meter api_calls --window day --group-by region\n\
             counterfoil stripe compare --tenant {tenant} --meter api_calls\n\
             counterfoil pushes --tenant {tenant} --meter api_calls\n\
             curl -s {stripe}/_sim/state\n\
             counterfoil keys create --name gateway --scope ingest\n\
             curl -s -H \"Authorization: Bearer $COUNTERFOIL_KEY\" \"{url}/v1/conflicts?limit=3\"\n\n\
             The whole interface: {url}/docs"
        );
    }
}

fn connect(server: &Server, launch: &Launch) -> anyhow::Result<Arc<Client>> {
    let (url, key) = (server.url.clone(), Some(launch.key.clone()));
    Ok(Arc::new(Client::new(&ServerArguments { url, key })?))
}
