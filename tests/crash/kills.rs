//! kill -9 at random moments under traffic of every kind, again and again on the same store: with
//! one server, or with three that get the same events at the same time while their database is
//! restarted as well. In the end every answer must be what the model says.
//!
//! `COUNTERFOIL_TEST_KILL_ROUNDS=100` makes it longer. `COUNTERFOIL_TEST_KILL_SEED` repeats the
//! events, the settings and the pauses of a run; which request a kill hits differs all the same.

use super::load::put;
use super::model::{METERS, Model};
use super::server::{Launch, Place, Server};
use super::traffic::{Traffic, pick, roll};
use crate::database::workers;
use crate::dice::Dice;
use std::process::Command;
use std::time::{Duration, Instant};

/// Enough to meet folds and merges in several states, few enough for every run of the suite.
const ROUNDS: usize = 6;
const PAUSE_MS_MAX: u64 = 600;
/// One round in so many restarts the database, and not a server.
const DATABASE_EVERY: u64 = 4;
/// One server in so many is killed once more while it starts.
const TWICE_EVERY: u64 = 3;
/// A node of a cluster is started again, and its prepared transactions are recovered.
const RECOVERED_WITHIN: Duration = Duration::from_secs(180);

pub struct Plan {
    pub rounds: usize,
    pub servers: usize,
    pub restarts_database: bool,
    /// In the notation of the `fail` crate.
    pub failpoints: &'static str,
}

impl Plan {
    fn of_environment(servers: usize) -> Self {
        let rounds = std::env::var("COUNTERFOIL_TEST_KILL_ROUNDS");
        let rounds = rounds.map_or(ROUNDS, |rounds| rounds.parse().unwrap());
        Self { rounds, servers, restarts_database: servers > 1, failpoints: "" }
    }
}

/// Runs all rounds and compares; returns the model, or whatever contradicts it.
pub async fn kill_rounds(place: &Place, plan: &Plan) -> Result<Model, Vec<String>> {
    let seed = std::env::var("COUNTERFOIL_TEST_KILL_SEED");
    let seed = seed.map_or_else(|_| u64::from(getrandom::u32().unwrap()), |s| s.parse().unwrap());
    println!("seed {seed}: {} rounds, {} servers, {}", plan.rounds, plan.servers, place.store());
    let mut dice = Dice(seed);
    let start = |dice: &mut Dice| start(place, plan, dice).map_err(|said| vec![said]);
    let mut servers = Vec::new();
    for _ in 0..plan.servers {
        servers.push(start(&mut dice)?);
    }
    for meter in &METERS {
        put(&servers[0], &format!("/v1/meters/{}", meter.slug), &meter.spec()).await;
    }
    let urls = servers.iter().map(|server| server.url.clone()).collect();
    let traffic = Traffic::new(Model::new(jiff::Timestamp::now().as_microsecond()), urls);
    let tasks = traffic.begin(&mut dice);
    for round in 1..=plan.rounds {
        tokio::time::sleep(Duration::from_millis(dice.below(PAUSE_MS_MAX))).await;
        if plan.restarts_database && dice.below(DATABASE_EVERY) == 0 {
            let mut nodes = workers();
            nodes.push(place.store());
            let node = pick(&mut dice, &nodes);
            restart_database(node).await;
            println!("round {round}: the database {node}");
            continue;
        }
        let which = roll(&mut dice, servers.len());
        if let Some(ended) = servers[which].ended_within(Duration::from_millis(1)).await {
            traffic.model().violate(format!("it ended by itself: {ended}; {}", place.log_text()));
        }
        servers[which].kill();
        servers[which] = start(&mut dice)?;
        traffic.move_server(which, &servers[which].url);
        println!("round {round}: server {which}, {} keys", traffic.model().keys());
        traffic.result()?;
    }
    traffic.end(tasks).await;
    if plan.restarts_database {
        recover_prepared(&place.store()).await;
    }
    traffic.compare().await;
    drop(servers);
    examine(place, traffic.result()?).await
}

/// With settings that keep folds and merges under way, and now and then not at the first try.
fn start(place: &Place, plan: &Plan, dice: &mut Dice) -> Result<Server, String> {
    let settings = [
        ("COUNTERFOIL_SQLITE_SEGMENT_EVENTS", pick(dice, &[64, 100, 250, 700, 2_000]).to_string()),
        ("COUNTERFOIL_POSTGRES_WRITERS", pick(dice, &[1, 2, 4]).to_string()),
    ];
    let failpoints = plan.failpoints;
    let launch = Launch { failpoints, settings: &settings, ..Launch::default() };
    tokio::task::block_in_place(|| {
        if dice.below(TWICE_EVERY) == 0 {
            let after = Duration::from_millis(dice.below(200));
            Server::kill_while_starting(place, &launch, after);
        }
        Server::launch(place, &launch)
    })
}

/// Starts a server on a store that must hold what the model says, sends everything again and
/// compares everything.
pub async fn examine(place: &Place, model: Model) -> Result<Model, Vec<String>> {
    let launch = || Server::launch(place, &Launch::default());
    let mut server = tokio::task::block_in_place(launch).map_err(|said| vec![said])?;
    let traffic = Traffic::new(model, vec![server.url.clone()]);
    tokio::select! {
        () = traffic.settle() => {}
        ended = server.ended() => {
            return Err(vec![format!("it ended by itself: {ended}; {}", place.log_text())]);
        }
    }
    server.kill();
    let (events, findings) = place.check_events();
    let model = traffic.result()?;
    let expected = model.events();
    if events != expected || !findings.is_empty() {
        return Err(vec![format!("check: {events} events of {expected}; {findings:#?}")]);
    }
    println!("{events} events are exact");
    Ok(model)
}

/// Ends the database at once, without a word to its connections. It is then started again by the
/// program that keeps it.
async fn restart_database(store: &str) {
    let (client, connection) = loop {
        match tokio_postgres::connect(store, tokio_postgres::NoTls).await {
            Ok(connected) => break connected,
            // It is still starting after the last time.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    tokio::spawn(connection);
    let process = "SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)";
    let process: String = client.query_one(process, &[]).await.unwrap().get(0);
    let sent = Command::new("kill").args(["-QUIT", &process]).status().unwrap();
    assert!(sent.success(), "process {process} cannot be signalled");
}

/// After a node of a Citus cluster was ended, it may hold its part of a committed transaction back
/// until the coordinator recovers it, which it does once a minute. Does that now.
async fn recover_prepared(store: &str) {
    let (_, name) = store.rsplit_once('/').unwrap();
    let prepared = format!("(SELECT count(*) FROM pg_prepared_xacts WHERE database = '{name}')");
    for worker in workers() {
        let started = Instant::now();
        loop {
            let recovered = read_number(store, "recover_prepared_transactions()").await;
            let left = read_number(&format!("{worker}/postgres"), &prepared).await;
            if recovered.is_some() && left == Some(0) {
                break;
            }
            assert!(started.elapsed() < RECOVERED_WITHIN, "{worker}: {left:?} are prepared");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// None while the server does not answer.
async fn read_number(url: &str, expression: &str) -> Option<i64> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.ok()?;
    tokio::spawn(connection);
    let sql = format!("SELECT {expression}::int8");
    client.query_one(&sql, &[]).await.ok().map(|row| row.get(0))
}

async fn be_exact(place: &Place, servers: usize) {
    let wrong = kill_rounds(place, &Plan::of_environment(servers)).await.err();
    assert!(wrong.is_none(), "{wrong:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_is_exact_after_kills() {
    be_exact(&Place::sqlite(), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_is_exact_after_kills() {
    if let Some(place) = Place::postgres().await {
        be_exact(&place, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_servers_are_exact_after_kills_and_restarts_of_their_database() {
    if let Some(place) = Place::restarting_postgres().await {
        be_exact(&place, 3).await;
    }
}
