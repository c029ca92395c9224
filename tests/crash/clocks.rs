//! The real binary on a machine whose wall clock is wrong: from its start, or set while it runs.
//!
//! The wall clock of a server is the machine's plus the number in a file, which the failpoint
//! `clock.shift` names; the monotonic clock, the provider's and PostgreSQL's stay right.

use super::load::{client, get, put};
use super::server::{KEY, Launch, Place, Server};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use stripe_sim::{Decimal, Handle, Options, SimRequest, Simulator, Timestamp};

const HOUR: i64 = 3_600_000_000;
const TEN_YEARS: i64 = 87_660 * HOUR;

/// A store, a Stripe simulator whose totals lag by an hour, and a machine's clock.
struct Stage {
    place: Place,
    handle: Handle,
    files: tempfile::TempDir,
    customer: String,
    with_provider: bool,
}

impl Stage {
    async fn set(place: Place) -> Self {
        let simulator = Simulator::following(Timestamp::now, Options::default());
        let listen = "127.0.0.1:0".parse().unwrap();
        let handle = Handle::start(listen, Arc::new(Mutex::new(simulator))).await.unwrap();
        let files = tempfile::tempdir().unwrap();
        let mut stage = Self { place, handle, files, customer: String::new(), with_provider: true };
        stage.ask(
            "/v1/billing/meters",
            &[
                ("display_name", "calls"),
                ("event_name", "calls"),
                ("default_aggregation[formula]", "sum"),
            ],
        );
        stage.customer = stage.ask("/v1/customers", &[])["id"].as_str().unwrap().to_owned();
        stage.handle.simulator().lock().unwrap().set_summary_lag(3_600);
        stage
    }

    fn ask(&self, path: &str, fields: &[(&str, &str)]) -> Value {
        let simulator = self.handle.simulator();
        let response = simulator.lock().unwrap().handle(&SimRequest::form(path, fields));
        assert_eq!(response.status, 200, "{path}: {}", response.json());
        response.json()
    }

    fn file(&self, machine: &str) -> PathBuf {
        self.files.path().join(machine)
    }

    /// Sets the wall clock of a machine, ahead of the true time by so much.
    fn set_clock(&self, machine: &str, micros: i64) {
        let new = self.file("new");
        std::fs::write(&new, micros.to_string()).unwrap();
        std::fs::rename(new, self.file(machine)).unwrap();
    }

    fn start(&self, machine: &str) -> Server {
        self.start_with(machine, "")
    }

    fn start_with(&self, machine: &str, bugs: &str) -> Server {
        let failpoints = format!("clock.shift=return({}){bugs}", self.file(machine).display());
        let mut settings = vec![
            ("COUNTERFOIL_PUSH_LOOK_AFTER", "1s".to_owned()),
            ("COUNTERFOIL_PUSH_POLL_MS", "20".to_owned()),
            // A killed server's lease on a push ends soon.
            ("COUNTERFOIL_PUSH_LEASE_MS", "4000".to_owned()),
            ("COUNTERFOIL_STRIPE_TIMEOUT_MS", "2000".to_owned()),
            ("COUNTERFOIL_SINK_TIMEOUT_MS", "2000".to_owned()),
        ];
        if self.with_provider {
            settings.extend([
                ("COUNTERFOIL_PROVIDER_KIND", "stripe".to_owned()),
                ("COUNTERFOIL_STRIPE_API_BASE", self.handle.url()),
                ("COUNTERFOIL_STRIPE_API_KEY", "sk_test_crash".to_owned()),
            ]);
        }
        let launch = Launch { failpoints: &failpoints, settings: &settings, ..Launch::default() };
        Server::launch(&self.place, &launch).expect("it starts")
    }

    /// Declares the meter and the tenant.
    async fn prepare(&self, server: &Server) {
        let spec = json!({
            "aggregation": "sum", "cut_every": "1s", "settle_after": "0s",
            "billing": {"event_name": "calls", "from": "2020-01-01T00:00:00Z"},
        });
        put(server, "/v1/meters/calls", &spec).await;
        put(server, "/v1/tenants/acme", &json!({"customer": self.customer})).await;
    }

    /// What the provider holds, whatever its totals show.
    fn held(&self) -> String {
        let totals = self.handle.simulator().lock().unwrap().exact_totals();
        totals.into_values().sum::<Decimal>().to_string()
    }

    async fn wait_until_held(&self, quantity: &str) {
        for _ in 0..600 {
            if self.held() == quantity {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the provider holds {}, not {quantity}\n{}", self.held(), self.place.log_text());
    }
}

/// Sends usage of so many hours ago by the true time; returns status and answer.
async fn send(server: &Server, id: &str, quantity: &str, hours_ago: i64) -> (u16, Value) {
    let at = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(hours_ago);
    let event = json!({"tenant": "acme", "meter": "calls", "id": id, "quantity": quantity,
        "occurred_at": at.to_string()});
    let request = client().post(format!("{}/v1/events", server.url)).bearer_auth(KEY);
    let request = request.header("content-type", "application/json").body(event.to_string());
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    (status, serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap())
}

async fn used(server: &Server, id: &str, quantity: &str, hours_ago: i64) {
    let (status, answer) = send(server, id, quantity, hours_ago).await;
    assert_eq!((status, &answer["accepted"]), (200, &json!(1)), "{answer}");
}

/// Waits until the alert about clocks is open, or is not.
async fn wait_for_doubt(server: &Server, wanted: bool) -> String {
    for _ in 0..600 {
        let alerts = get(server, "/v1/alerts?open=true&kind=clock_in_doubt").await;
        let open = alerts["alerts"].as_array().unwrap_or_else(|| panic!("{alerts}")).clone();
        if open.is_empty() != wanted {
            return open.first().map(|alert| alert["summary"].to_string()).unwrap_or_default();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the doubt about clocks is not {wanted}");
}

/// A push that was just taken, and whose total lags, looks 27 hours old to a clock that is ahead.
async fn fresh_push_meets_a_wrong_clock(place: Place, ahead: i64, restarts: bool) {
    let stage = Stage::set(place).await;
    stage.set_clock("a", 0);
    let mut server = stage.start("a");
    stage.prepare(&server).await;
    used(&server, "e1", "10", 2).await;
    stage.wait_until_held("10").await;
    if restarts {
        server.kill();
        stage.set_clock("a", ahead);
        server = stage.start("a");
    } else {
        stage.set_clock("a", ahead);
    }
    let summary = wait_for_doubt(&server, true).await;
    assert!(summary.contains("this machine's clock is 1d "), "{summary}");
    used(&server, "e2", "5", 3).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(stage.held(), "10", "nothing is sent while the time is in doubt");
    stage.set_clock("a", 0);
    stage.wait_until_held("15").await;
    wait_for_doubt(&server, false).await;
    assert_eq!(stage.place.check(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_clock_set_ahead_while_running_sends_nothing_until_it_is_right() {
    fresh_push_meets_a_wrong_clock(Place::sqlite(), 27 * HOUR, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_clock_ahead_at_the_start_sends_nothing_until_it_is_right() {
    fresh_push_meets_a_wrong_clock(Place::sqlite(), 27 * HOUR, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_clock_set_back_sends_nothing_until_it_is_right() {
    fresh_push_meets_a_wrong_clock(Place::sqlite(), -27 * HOUR, false).await;
    fresh_push_meets_a_wrong_clock(Place::sqlite(), -27 * HOUR, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_clock_ahead_sends_nothing_until_it_is_right() {
    if let Some(place) = Place::postgres().await {
        fresh_push_meets_a_wrong_clock(place, 27 * HOUR, true).await;
    }
}

/// A store whose marks a wrong clock has moved to 2036, on which today's events must be accepted.
async fn store_from_the_future(stage: &Stage) -> Server {
    stage.set_clock("a", TEN_YEARS);
    let mut server = stage.start_with("a", ";bug.trust_wall_clock=return");
    stage.prepare(&server).await;
    let (status, answer) = send(&server, "e1", "1", 1).await;
    assert_eq!((status, &answer["quarantined"]), (202, &json!(1)), "{answer}");
    server.kill();
    stage.set_clock("a", 0);
    stage.start("a")
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_mark_of_a_wrong_clock_is_lowered_when_the_provider_confirms_the_time() {
    let stage = Stage::set(Place::sqlite()).await;
    let server = store_from_the_future(&stage).await;
    used(&server, "e2", "7", 2).await;
    stage.wait_until_held("7").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_mark_of_a_wrong_clock_is_lowered_by_itself() {
    if let Some(place) = Place::postgres().await {
        let stage = Stage::set(place).await;
        let server = store_from_the_future(&stage).await;
        used(&server, "e2", "7", 2).await;
        stage.wait_until_held("7").await;
    }
}

/// Without a provider nobody confirms the time: senders try again until a person has settled it.
#[tokio::test(flavor = "multi_thread")]
async fn sqlite_mark_of_a_wrong_clock_is_reset_by_a_command() {
    let mut stage = Stage::set(Place::sqlite()).await;
    stage.with_provider = false;
    let mut server = store_from_the_future(&stage).await;
    let (status, answer) = send(&server, "e2", "7", 2).await;
    assert_eq!((status, &answer["code"]), (503, &json!("clock_in_doubt")), "{answer}");
    wait_for_doubt(&server, true).await;
    server.kill();
    let reset = Command::new(env!("CARGO_BIN_EXE_counterfoil"))
        .args(["clock", "reset", "--store", &stage.place.store()])
        .output()
        .unwrap();
    assert!(reset.status.success(), "{}", String::from_utf8_lossy(&reset.stderr));
    let shown = String::from_utf8_lossy(&reset.stdout).into_owned();
    assert!(shown.contains("20") && shown.contains("this machine's clock"), "{shown}");
    let server = stage.start("a");
    used(&server, "e2", "7", 2).await;
    assert_eq!(stage.place.check(), Vec::<String>::new());
}

/// One of two servers has a wrong clock: it sends nothing and pages; the other goes on.
#[tokio::test(flavor = "multi_thread")]
async fn postgres_one_of_two_servers_with_a_wrong_clock_does_not_stop_the_other() {
    let Some(place) = Place::postgres().await else { return };
    let stage = Stage::set(place).await;
    stage.set_clock("right", 0);
    stage.set_clock("wrong", 27 * HOUR);
    let right = stage.start("right");
    stage.prepare(&right).await;
    used(&right, "e1", "10", 2).await;
    stage.wait_until_held("10").await;
    let wrong = stage.start("wrong");
    wait_for_doubt(&wrong, true).await;
    used(&wrong, "e2", "5", 3).await;
    stage.wait_until_held("15").await;
    wait_for_doubt(&right, true).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(stage.held(), "15");
    stage.set_clock("wrong", 0);
    wait_for_doubt(&right, false).await;
}
