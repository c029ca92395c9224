//! `counterfoil demo`: a server is sent disorderly traffic, is killed in the middle, and must end
//! with exactly the right totals.
//!
//! Invariant: whatever was not answered is sent again with the same ids, as a real sender would;
//! the demo knows from its own arithmetic what must have been counted, and fails if it was not.

mod report;
mod server;
mod traffic;

use super::check::check_store;
use super::client::{Client, Failure, Request, ServerArguments};
use super::send::BatchAnswer;
use crate::clock::Clock;
use crate::config::StoreUrl;
use crate::http::auth::new_token;
use anyhow::{Context, bail};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use report::Report;
use reqwest::Method;
use server::{Launch, Scratch, Server};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use traffic::{LANES, Lane, METERS, Plan, meter_spec};

const BATCH_EVENTS: u64 = 1_000;
/// The server is killed when these parts of the traffic are acknowledged, in percent.
const KILLS_AT_PERCENT: [u64; 2] = [30, 65];
/// How long a batch is tried; a restart takes far less.
const PATIENCE: Duration = Duration::from_secs(120);
const RETRY_PAUSE: Duration = Duration::from_millis(50);
const LOOK_EVERY: Duration = Duration::from_millis(5);
const PLAIN_LINE_EVERY: Duration = Duration::from_secs(2);

/// Watch a server count exactly through duplicates, conflicts and kill -9
#[derive(clap::Args)]
#[command(after_help = "Examples:
  counterfoil demo
      300,000 events; the server then runs until Ctrl-C, to be explored
  counterfoil demo --once --events 50000 --seed 7
  counterfoil demo --store postgres://counterfoil:secret@localhost/counterfoil

Exit code: 0 everything was counted exactly, 1 it was not.")]
pub struct DemoArguments {
    /// Deliveries to send; one in twenty is a duplicate, some are worse
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
    tokio::select! {
        ended = demonstrate(arguments) => ended,
        _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        _ = terminate.recv() => bail!("interrupted"),
    }
}

async fn demonstrate(arguments: &DemoArguments) -> anyhow::Result<ExitCode> {
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
    let launch = Launch { store, key: new_token(), log: scratch.path().join("server.log") };
    let demo = Demo::start(plan, launch).await?;
    let lanes = demo.send_traffic().await?;
    demo.display.finish();
    let report = Report::gather(&demo, &lanes).await?;
    report.print();
    let mut config = crate::config::load(None)?;
    config.store.url = StoreUrl::try_from(demo.launch.store.clone())
        .map_err(|refusal| anyhow::anyhow!("--store: {refusal}"))?;
    let check = check_store(&config, ProgressBar::hidden()).await?;
    report::print_check(&check);
    let exact = report.exact() && check.findings.is_empty();
    let shown = if exact { "every total is exact" } else { "SOMETHING DIFFERS" };
    println!("\n{shown} after {} events and {} kills", arguments.events, KILLS_AT_PERCENT.len());
    if !arguments.once && std::io::stdout().is_terminal() {
        demo.print_ways_on();
        std::future::pending::<()>().await;
    }
    Ok(if exact { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Demo {
    plan: Plan,
    launch: Launch,
    server: Mutex<Server>,
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
    accepted: u64,
    duplicates: u64,
    conflicts: u64,
    quarantined: u64,
    rejected: u64,
}

impl Demo {
    async fn start(plan: Plan, launch: Launch) -> anyhow::Result<Arc<Self>> {
        let server = tokio::task::block_in_place(|| Server::start(&launch, None))?;
        let client = RwLock::new(connect(&server, &launch)?);
        let display = Display::new(plan.deliveries);
        let (server, seen) = (Mutex::new(server), Mutex::new(Seen::default()));
        let demo = Arc::new(Self { plan, launch, server, client, seen, display });
        for (slug, aggregation) in METERS {
            let request = Request::new(Method::PUT, &["v1", "meters", slug]);
            demo.client().call(&request.with_json(&meter_spec(aggregation))).await?;
        }
        demo.display.say("a server runs, and meters are declared for every way to aggregate");
        Ok(demo)
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

    /// Sends everything over several connections while the server is killed now and then.
    async fn send_traffic(self: &Arc<Self>) -> anyhow::Result<Vec<Lane>> {
        let mut senders = JoinSet::new();
        for lane in 0..LANES {
            senders.spawn(Arc::clone(self).send_lane(Lane::new(self.plan.clone(), lane)));
        }
        let killing = tokio::spawn(Arc::clone(self).kill_now_and_then());
        let mut lanes = Vec::new();
        while let Some(ended) = senders.join_next().await {
            lanes.push(ended.context("a sender was interrupted")??);
        }
        killing.await.context("the killer was interrupted")??;
        Ok(lanes)
    }

    async fn send_lane(self: Arc<Self>, mut lane: Lane) -> anyhow::Result<Lane> {
        while let Some((body, events)) = lane.next_batch(BATCH_EVENTS) {
            self.see(|seen| seen.sent += events);
            let answer = self.send_until_answered(&Request::events(body.into())).await?;
            let answer: BatchAnswer = serde_json::from_slice(&answer)?;
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
            while self.seen().acknowledged * 100 < self.plan.deliveries * percent {
                tokio::time::sleep(LOOK_EVERY).await;
            }
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
        println!(
            "\nThe server still runs on {url}, until Ctrl-C. Its admin key: {key}\n\n\
             export COUNTERFOIL_URL={url} COUNTERFOIL_KEY={key}\n\
             counterfoil usage --tenant {tenant} --meter api_calls --window day --group-by region\n\
             counterfoil keys create --name gateway --scope ingest\n\
             curl -s -H \"Authorization: Bearer $COUNTERFOIL_KEY\" {url}/v1/conflicts?limit=3\n\n\
             The whole interface: {url}/docs"
        );
    }
}

fn connect(server: &Server, launch: &Launch) -> anyhow::Result<Arc<Client>> {
    let (url, key) = (server.url.clone(), Some(launch.key.clone()));
    Ok(Arc::new(Client::new(&ServerArguments { url, key })?))
}

/// Bars for people who watch, a line now and then for a log.
struct Display {
    bars: Option<(MultiProgress, ProgressBar, ProgressBar)>,
    last_line: Mutex<Instant>,
}

impl Display {
    fn new(deliveries: u64) -> Self {
        let bars = std::io::stderr().is_terminal().then(|| {
            let style =
                |template| ProgressStyle::with_template(template).expect("the template is valid");
            let all = MultiProgress::new();
            let sent = ProgressBar::new(deliveries)
                .with_style(style("sent         {bar:30} {human_pos} {msg}"));
            let acknowledged = ProgressBar::new(deliveries)
                .with_style(style("acknowledged {bar:30} {human_pos} {per_sec} {msg}"));
            let (sent, acknowledged) = (all.add(sent), all.add(acknowledged));
            (all, sent, acknowledged)
        });
        Self { bars, last_line: Mutex::new(Instant::now()) }
    }

    fn say(&self, text: &str) {
        match &self.bars {
            Some((all, _, _)) => drop(all.println(text)),
            None => eprintln!("{text}"),
        }
    }

    fn show(&self, seen: &Seen) {
        let Seen { sent, acknowledged, retries, kills, .. } = seen;
        let Seen { accepted, duplicates, conflicts, quarantined, rejected, .. } = seen;
        let outcomes = format!(
            "{accepted} accepted, {duplicates} duplicates, {conflicts} conflicts, {quarantined} \
             quarantined, {rejected} rejected"
        );
        if let Some((_, sent_bar, acknowledged_bar)) = &self.bars {
            sent_bar.set_position(*sent);
            sent_bar.set_message(format!("{kills} kills, {retries} retries"));
            acknowledged_bar.set_position(*acknowledged);
            acknowledged_bar.set_message(outcomes);
            return;
        }
        let mut last = self.last_line.lock().expect("no holder of the time panics");
        if last.elapsed() >= PLAIN_LINE_EVERY {
            *last = Instant::now();
            eprintln!("{sent} sent, {acknowledged} acknowledged: {outcomes}; {kills} kills");
        }
    }

    fn finish(&self) {
        if let Some((all, sent, acknowledged)) = &self.bars {
            sent.finish();
            acknowledged.finish();
            let _ = all.clear();
        }
    }
}
