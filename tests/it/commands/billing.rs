//! Billing as a person meets it: a Stripe account is checked and set up, usage arrives there, and
//! what does not is found, retried and written off. The key of Stripe is in no output.

use super::{KEY, Running, Server, counterfoil, read};
use crate::world::Ground;
use serde_json::Value;
use std::fs::File;
use std::process::Command;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::block_in_place;

/// Any output that contains it betrays the key.
const STRIPE_KEY: &str = "sk_test_canary4711";

/// A Stripe simulator, a settings file, and a server when it is started.
struct Account {
    directory: tempfile::TempDir,
    stripe: String,
    server: Option<Server>,
    _simulator: Running,
}

fn hours_ago(hours: i64) -> String {
    let then = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(hours);
    then.to_string()
}

impl Account {
    fn open() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let meter = format!(
            "[meters.calls]\naggregation = \"sum\"\nsettle_after = \"0s\"\ncut_every = \"1s\"\n\
             [meters.calls.billing]\nevent_name = \"api_calls\"\nfrom = \"{}\"\n",
            hours_ago(48)
        );
        std::fs::write(directory.path().join("counterfoil.toml"), meter).unwrap();
        let command = counterfoil(&["stripe-sim", "--listen", "127.0.0.1:0"]);
        let log = File::create(directory.path().join("simulator.log")).unwrap();
        let simulator = Running::start(command, log.into());
        let stripe = simulator.line.split_whitespace().nth(2).unwrap().to_owned();
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self { directory, stripe, server: None, _simulator: simulator }
    }

    /// Starts a server that pushes to the simulator.
    fn serve(&mut self, ground: &Ground) {
        let mut command = self.command(&["serve", "--listen", "127.0.0.1:0", "--log", "json"]);
        let config = self.directory.path().join("counterfoil.toml");
        command.arg("--config").arg(config);
        command.env("COUNTERFOIL_STORE_URL", ground.url());
        command.env("COUNTERFOIL_ADMIN_KEY", KEY);
        command.env("COUNTERFOIL_PROVIDER_KIND", "stripe");
        command.env("COUNTERFOIL_PUSH_LOOK_AFTER", "1s").env("COUNTERFOIL_LOG_LEVEL", "debug");
        let log = File::create(self.directory.path().join("server.log")).unwrap();
        self.server = Some(Server::of(Running::start(command, log.into())));
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = counterfoil(arguments);
        command.env("COUNTERFOIL_STRIPE_API_BASE", &self.stripe);
        command.env("COUNTERFOIL_STRIPE_API_KEY", STRIPE_KEY);
        command
    }

    /// Runs a command against the server, if there is one: its exit code and all it said.
    fn run(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let mut command = self.command(arguments);
        if let Some(server) = &self.server {
            command.env("COUNTERFOIL_URL", &server.url).env("COUNTERFOIL_KEY", KEY);
        }
        let (code, output, said) = read(&command.output().unwrap());
        let all = format!("{output}{said}");
        assert!(!all.contains("canary"), "{arguments:?} shows the key: {all}");
        (code, all)
    }

    fn run_stripe(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let config = self.directory.path().join("counterfoil.toml");
        let config = ["--config", config.to_str().unwrap()];
        self.run(&[&["stripe"], arguments, &config].concat())
    }

    /// Checks the exit code of a command, and that it said these words.
    fn check(&self, arguments: &[&str], expected: i32, words: &str) {
        let (code, said) = self.run(arguments);
        assert!(code == Some(expected) && said.contains(words), "{arguments:?}: {said}");
    }

    fn check_stripe(&self, arguments: &[&str], expected: i32, words: &str) {
        let (code, said) = self.run_stripe(arguments);
        assert!(code == Some(expected) && said.contains(words), "{arguments:?}: {said}");
    }

    fn call(&self, request: reqwest::RequestBuilder) -> Value {
        let call = async {
            let answer = request.send().await.unwrap();
            let status = answer.status();
            let body = answer.bytes().await.unwrap();
            assert!(status.is_success(), "{status}: {}", String::from_utf8_lossy(&body));
            serde_json::from_slice(&body).unwrap()
        };
        block_in_place(|| Handle::current().block_on(call))
    }

    fn state(&self) -> Value {
        self.call(reqwest::Client::new().get(format!("{}/_sim/state", self.stripe)))
    }

    fn new_customer(&self) -> String {
        let url = format!("{}/v1/customers", self.stripe);
        let made = self.call(reqwest::Client::new().post(url).bearer_auth("sk_test_other"));
        made["id"].as_str().unwrap().to_owned()
    }

    fn map(&self, tenant: &str, customer: &str) {
        let url = format!("{}/v1/tenants/{tenant}", self.server.as_ref().unwrap().url);
        let body = format!("{{\"customer\":\"{customer}\"}}");
        let request = reqwest::Client::new().put(url).bearer_auth(KEY).body(body);
        self.call(request.header("content-type", "application/json"));
    }

    fn send(&self, tenant: &str, quantity: &str) {
        let line = format!(
            "{{\"tenant\":\"{tenant}\",\"id\":\"{tenant}\",\"meter\":\"calls\",\
             \"quantity\":\"{quantity}\",\"occurred_at\":\"{}\"}}\n",
            hours_ago(2)
        );
        let file = self.directory.path().join("events.ndjson");
        std::fs::write(&file, line).unwrap();
        let (code, said) = self.run(&["send", file.to_str().unwrap()]);
        assert_eq!(code, Some(0), "{said}");
    }

    /// Waits until the tenant's newest push is in that state; returns its id.
    fn wait_for(&self, tenant: &str, state: &str) -> String {
        let mut last = String::new();
        for _ in 0..600 {
            let (_, list) = self.run(&["pushes", "--tenant", tenant, "--json"]);
            let list: Value = serde_json::from_str(&list).unwrap();
            let newest = &list["pushes"][0];
            if newest["state"] == state {
                return newest["id"].to_string();
            }
            last = newest.to_string();
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("no push of {tenant} is {state}: {last}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_is_checked_and_set_up() {
    let account = Account::open();
    let (code, said) = account.run_stripe(&["check"]);
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("sandbox or test") && said.contains("1 to fix"), "{said}");
    assert!(said.contains("counterfoil stripe setup --apply creates it"), "{said}");
    let (code, said) = account.run_stripe(&["setup", "--dry-run"]);
    assert!(code == Some(0) && said.contains("would be created"), "{said}");
    assert!(!said.contains("ready"), "nothing is ready yet: {said}");
    assert_eq!(account.state()["meters"], serde_json::json!([]));
    account.check_stripe(&["setup"], 2, "--dry-run");
    account.check_stripe(&["setup", "--apply"], 0, "created as mtr_");
    let made = account.state()["meters"].clone();
    assert_eq!(made[0]["event_name"], "api_calls");
    account.check_stripe(&["setup", "--apply"], 0, "is there already");
    assert_eq!(account.state()["meters"], made);
    account.check_stripe(&["check"], 0, "ready");
    let wrong = account
        .command(&["stripe", "check"])
        .env("COUNTERFOIL_STRIPE_API_KEY", "sk_wrong_canary")
        .output()
        .unwrap();
    let (code, _, said) = read(&wrong);
    assert!(code == Some(1) && said.contains("401") && !said.contains("canary"), "{said}");
    let none = account.command(&["stripe", "check"]).env("COUNTERFOIL_STRIPE_API_KEY", "").output();
    let (code, _, said) = read(&none.unwrap());
    assert!(code == Some(1) && said.contains("COUNTERFOIL_STRIPE_API_KEY"), "{said}");
}

pub async fn usage_arrives_and_what_does_not_is_found(ground: Ground) {
    let mut account = Account::open();
    account.run_stripe(&["setup", "--apply"]);
    account.serve(&ground);
    account.send("acme", "12.5");
    account.check_stripe(&["check"], 4, "such as acme");
    account.map("acme", &account.new_customer());
    account.check_stripe(&["check"], 0, "1 tenant is mapped");
    let id = account.wait_for("acme", "confirmed");
    let (_, list) = account.run(&["pushes", "--state", "confirmed", "--meter", "calls"]);
    assert!(list.contains("acme") && list.contains("12.5"), "{list}");
    let (code, shown) = account.run(&["pushes", "show", &id]);
    for part in ["delta 12.5 as cf1-", "accepted", "confirmed", "req_"] {
        assert!(code == Some(0) && shown.contains(part), "{part} in {shown}");
    }
    let compare = ["stripe", "compare", "--tenant", "acme", "--meter", "calls"];
    account.check(&compare, 0, "the one window is equal");
    assert_eq!(account.state()["totals"][0]["total"], "12.5");

    let before = account.state()["totals"][0]["customer"].as_str().unwrap_or("cus_").to_owned();
    account.map("acme", &account.new_customer());
    let (code, said) = account.run(&compare);
    assert!(code == Some(0) && said.contains("the one window is equal"), "{said}");
    let sum = "Stripe's totals of windows that were sent for cus_";
    assert!(said.contains(sum) && said.contains(&before), "{said}");

    account.map("ghost", "cus_ghost");
    account.send("ghost", "3");
    account.check_stripe(&["check"], 4, "cus_ghost");
    let dead = account.wait_for("ghost", "dead");
    let (_, shown) = account.run(&["pushes", "show", &dead]);
    assert!(shown.contains("dead, 3 unbilled") && shown.contains("No such customer"), "{shown}");
    account.check(&["pushes", "retry", &id], 1, "(push_not_retried)");
    account.map("ghost", &account.new_customer());
    account.check(&["pushes", "retry", &dead], 0, &format!("takes the place of {dead}"));
    account.wait_for("ghost", "confirmed");

    account.map("lost", "cus_lost");
    account.send("lost", "4");
    let dead = account.wait_for("lost", "dead");
    account.check(&["pushes", "discard", &dead, "--reason", "a gift"], 0, "is written off");
    account.check(&["pushes", "discard", &dead, "--reason", "again"], 1, "(push_not_discarded)");
    account.check(&["pushes", "--state", "discarded"], 0, "lost");
    let (_, list) = account.run(&["pushes", "--state", "dead"]);
    assert!(!list.contains("lost"), "{list}");
    account.check(&["pushes", "show", "99999"], 1, "(unknown_push)");
    account.check(&["pushes", "--tenant", "nobody"], 0, "no pushes");
    let lost = ["stripe", "compare", "--tenant", "lost", "--meter", "calls"];
    // What was written off may have counted: its window stays with the customer it was sent for.
    account.map("lost", &account.new_customer());
    account.check(&lost, 1, "No such customer: 'cus_lost'");
    for (log, said) in [("server.log", "submitted (accepted)"), ("simulator.log", "")] {
        let log = std::fs::read_to_string(account.directory.path().join(log)).unwrap();
        assert!(log.contains(said) && !log.contains("canary"), "the log shows the key");
    }
}
