//! The commands as a person meets them: help texts, refusals with their fix, exit codes.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod billing;
mod docs;
mod reconcile;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const KEY: &str = "commands-test-admin-key";

fn counterfoil(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_counterfoil"));
    command.args(arguments).stdin(Stdio::null());
    for name in ["COUNTERFOIL_URL", "COUNTERFOIL_KEY", "COUNTERFOIL_ADMIN_KEY"] {
        command.env_remove(name);
    }
    command
}

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    read(&counterfoil(arguments).output().unwrap())
}

fn read(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// A server on a free port, killed at the end.
struct Server {
    child: Child,
    url: String,
    ready: serde_json::Value,
}

impl Server {
    fn start(directory: &std::path::Path, admin_key: Option<&str>) -> Self {
        let data = directory.to_str().unwrap();
        let mut command = counterfoil(&["serve", "--data", data, "--listen", "127.0.0.1:0"]);
        if let Some(key) = admin_key {
            command.env("COUNTERFOIL_ADMIN_KEY", key);
        }
        let mut child = command
            .args(["--log", "json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
        Self { child, url: ready["url"].as_str().unwrap().to_owned(), ready }
    }

    fn run(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let mut command = counterfoil(arguments);
        command.env("COUNTERFOIL_URL", &self.url).env("COUNTERFOIL_KEY", KEY);
        read(&command.output().unwrap())
    }

    fn run_with_input(&self, arguments: &[&str], input: &str) -> (Option<i32>, String, String) {
        let mut command = counterfoil(arguments);
        command.env("COUNTERFOIL_URL", &self.url).env("COUNTERFOIL_KEY", KEY);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        read(&child.wait_with_output().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_reader_that_goes_away_ends_a_command_quietly() {
    for arguments in [["config", "print"], ["completions", "bash"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = counterfoil(&arguments).stdout(writer).output().unwrap();
        assert_eq!(read(&output), (Some(0), String::new(), String::new()), "{arguments:?}");
    }
}

#[test]
fn help_texts() {
    let commands: [&[&str]; 27] = [
        &[],
        &["serve"],
        &["send"],
        &["usage"],
        &["keys"],
        &["keys", "create"],
        &["keys", "list"],
        &["keys", "revoke"],
        &["pushes"],
        &["pushes", "list"],
        &["status"],
        &["reconcile"],
        &["passes"],
        &["passes", "show"],
        &["passes", "verify"],
        &["findings"],
        &["alerts"],
        &["webhooks"],
        &["webhooks", "show"],
        &["webhooks", "replay"],
        &["check"],
        &["config"],
        &["config", "print"],
        &["config", "explain"],
        &["demo"],
        &["stripe-sim"],
        &["completions"],
    ];
    for command in commands {
        let (code, help, _) = run(&[command, &["--help"]].concat());
        assert_eq!(code, Some(0));
        assert!(help.contains("Example"), "{command:?} shows how it is used");
        insta::assert_snapshot!([&["help"], command].concat().join("_"), help);
    }
}

#[test]
fn explain_is_the_default_file() {
    let (code, output, _) = run(&["config", "explain"]);
    assert_eq!((code, output.as_str()), (Some(0), include_str!("../../counterfoil.default.toml")));
}

#[test]
fn print_shows_where_settings_come_from_and_no_password() {
    let output = counterfoil(&["config", "print"])
        .env("COUNTERFOIL_STORE_URL", "postgres://me:hunter2@db/x")
        .output()
        .unwrap();
    let (code, printed, _) = read(&output);
    assert_eq!(code, Some(0));
    assert!(printed.contains("url = \"postgres://…@db/x\"  # COUNTERFOIL_STORE_URL"), "{printed}");
    assert!(printed.contains("strict = false  # default") && !printed.contains("hunter2"));
}

#[test]
fn completions_for_shells() {
    for shell in ["bash", "zsh", "fish"] {
        let (code, script, _) = run(&["completions", shell]);
        assert_eq!(code, Some(0));
        assert!(script.contains("counterfoil") && script.contains("usage"));
    }
}

/// A refusal is one sentence on standard error, with what to do.
fn check_refused(arguments: &[&str], expected_code: i32, expected: &[&str]) {
    let (code, output, said) = run(arguments);
    assert_eq!((code, output.as_str()), (Some(expected_code), ""), "{arguments:?}: {said}");
    for part in expected {
        assert!(said.contains(part), "{arguments:?}: {said}");
    }
}

#[test]
fn refusals_say_what_to_do() {
    let nobody = ["keys", "list", "--key", "k", "--url", "http://127.0.0.1:1"];
    check_refused(&nobody, 1, &["no server answers", "counterfoil serve", "--url"]);
    check_refused(&["keys", "list"], 1, &["a key is needed", "COUNTERFOIL_KEY"]);
    check_refused(&["keys", "list", "--key", "k", "--url", "db:1"], 1, &["--url"]);
    check_refused(&["serve", "--listen", "nonsense"], 2, &["--listen"]);
    check_refused(&["serve", "--config", "/no/such/file"], 1, &["/no/such/file", "No such file"]);
    check_refused(&["check", "--data", "/no/such"], 1, &["no directory /no/such", "--data"]);
    let verify = ["passes", "verify", "--data", "/no/such"];
    check_refused(&verify, 1, &["no directory /no/such", "--data"]);
    let (_, _, said) = run(&["serve", "--store", "mysql://me:hunter2@db/x"]);
    assert!(said.contains("sqlite:DIRECTORY") && !said.contains("hunter2"), "{said}");
    check_refused(&["frobnicate"], 2, &["frobnicate"]);
    check_refused(&["serve", "--listen", "localhost:9000"], 2, &["127.0.0.1"]);
}

#[test]
fn a_publishable_key_of_stripe_stops_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let mut serve = counterfoil(&["serve", "--listen", "127.0.0.1:0", "--data"]);
    serve.arg(folder.path()).env("COUNTERFOIL_PROVIDER_KIND", "stripe");
    serve.env("COUNTERFOIL_STRIPE_API_KEY", "pk_test_shown_to_browsers");
    let (code, _, said) = read(&serve.output().unwrap());
    assert!(code == Some(1) && said.contains("publishable key"), "{code:?}: {said}");
    assert!(!said.contains("pk_test_shown_to_browsers"), "{said}");
}

#[test]
fn a_password_on_the_command_line_is_warned_of() {
    let url = "postgres://app:open-sesame@127.0.0.1:1/billing";
    let (code, _, said) = read(&counterfoil(&["check", "--store", url]).output().unwrap());
    assert!(code == Some(1) && said.contains("COUNTERFOIL_STORE_URL"), "{code:?}: {said}");
    assert!(!said.contains("open-sesame"), "{said}");
    let mut check = counterfoil(&["check"]);
    let (_, _, said) = read(&check.env("COUNTERFOIL_STORE_URL", url).output().unwrap());
    assert!(!said.contains("warning"), "{said}");
}

#[test]
fn one_directory_and_one_port_have_one_server() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = Server::start(one.path(), Some(KEY));
    let data = one.path().to_str().unwrap();
    let taken = ["serve", "--data", data, "--listen", "127.0.0.1:0"];
    check_refused(&taken, 1, &["in use by another server", "--data"]);
    let (data, listen) = (two.path().to_str().unwrap(), server.ready["listen"].as_str().unwrap());
    let taken = ["serve", "--data", data, "--listen", listen];
    check_refused(&taken, 1, &["another program listens there", "--listen"]);
}

#[test]
fn a_meter_declared_differently_stops_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let config = directory.path().join("counterfoil.toml");
    let start = |aggregation: &str| {
        std::fs::write(&config, format!("[meters.calls]\naggregation = \"{aggregation}\"\n"))
            .unwrap();
        let config = config.to_str().unwrap();
        let store = format!("sqlite:{}", data.display());
        let mut server = counterfoil(&["serve", "--store", &store, "--config", config])
            .args(["--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let _ = server.kill();
        (line, read(&server.wait_with_output().unwrap()))
    };
    assert!(start("sum").0.starts_with("listening on http://127.0.0.1:"));
    let (line, (code, _, said)) = start("max");
    assert_eq!((line.as_str(), code), ("", Some(1)));
    assert!(said.contains("[meters.calls] was declared differently before"), "{said}");
}

#[test]
fn the_first_key_is_shown_once_and_a_given_one_never() {
    let directory = tempfile::tempdir().unwrap();
    let first = Server::start(directory.path(), None);
    assert!(first.ready["admin_key"].as_str().unwrap().starts_with("cf_"));
    drop(first);
    let again = Server::start(directory.path(), None);
    assert!(again.ready.get("admin_key").is_none());
    drop(again);
    let given = Server::start(directory.path(), Some(KEY));
    assert!(given.ready.get("admin_key").is_none());
    assert_eq!(given.run(&["keys", "list"]).0, Some(0));
}

#[test]
fn send_then_usage_then_check() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("counterfoil.toml");
    std::fs::write(&config, "").unwrap();
    let data = directory.path().join("data");
    let server = Server::start(&data, Some(KEY));
    let declared = tokio::runtime::Runtime::new().unwrap().block_on(async {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let url = format!("{}/v1/meters/calls", server.url);
        let request = reqwest::Client::new().put(url).bearer_auth(KEY);
        let spec = "{\"aggregation\":\"sum\",\"dimensions\":[\"region\"]}";
        request.header("content-type", "application/json").body(spec).send().await.unwrap().status()
    });
    assert!(declared.is_success());
    let now = jiff::Timestamp::now();
    let line = |id: &str, quantity: &str| {
        format!(
            "{{\"tenant\":\"acme\",\"id\":\"{id}\",\"meter\":\"calls\",\"quantity\":\"{quantity}\",\
             \"occurred_at\":\"{now}\"}}\n"
        )
    };
    let input = [line("a", "1.5"), line("a", "1.5"), "nonsense\n".into(), line("a", "2")].concat();
    let sent = server.run_with_input(&["send", "-", "--connections", "1", "--batch", "2"], &input);
    assert_eq!(sent.0, Some(3), "{sent:?}");
    assert!(sent.1.contains("line 3: rejected: the line is not JSON"), "{}", sent.1);
    assert!(sent.1.contains("line 4: conflict a: another payload"), "{}", sent.1);
    let rows = format!("id,occurred_at,quantity,region\nb,{now},2.25,eu\nc,{now},3,us\n");
    let csv = ["send", "--format", "csv", "--tenant", "acme", "--meter", "calls", "--json"];
    let (code, summary, _) = server.run_with_input(&csv, &rows);
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    assert_eq!((code, &summary["accepted"]), (Some(0), &2.into()));
    let usage = ["usage", "--tenant", "acme", "--meter", "calls"];
    let (_, shown, _) = server.run(&usage);
    assert!(shown.contains("total 6.75 from 3 events"), "{shown}");
    // Two days from now on: today is there, and tomorrow is not.
    let today = now.to_zoned(jiff::tz::TimeZone::UTC).date();
    let day = |days: i64| (today + jiff::Span::new().days(days)).to_string();
    let days = ["--window", "day", "--from", &day(0), "--to", &day(2)];
    let (_, shown, _) = server.run(&[&usage[..], &days].concat());
    let starts = |day: &str| shown.lines().any(|line| line.trim_start().starts_with(day));
    assert!(starts(&day(0)) && !starts(&day(1)), "{shown}");
    let (_, json, _) = server.run(&[&usage[..], &["--group-by", "region", "--json"]].concat());
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["windows"].as_array().unwrap().len(), 3);
    let (code, _, said) = server.run(&["usage", "--tenant", "acme", "--meter", "nope"]);
    assert!(code == Some(1) && said.contains("(unknown_meter)"), "{said}");
    let (code, _, said) = server.run(&["keys", "list", "--key", "wrong"]);
    assert!(code == Some(1) && said.contains("(unauthenticated); give a valid key"), "{said}");
    let (code, report, _) = run(&["check", "--data", data.to_str().unwrap()]);
    assert_eq!(code, Some(0));
    assert!(report.contains("every total is exactly"), "{report}");
    let (code, report, _) = run(&["passes", "verify", "--data", data.to_str().unwrap()]);
    assert!(code == Some(0) && report.contains("nightly passes with"), "{report}");
}

#[test]
fn keys_are_made_listed_and_revoked() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), Some(KEY));
    let made = ["keys", "create", "--name", "gateway", "--scope", "ingest,read", "--json"];
    let (code, key, _) = server.run(&made);
    assert_eq!(code, Some(0));
    let key: serde_json::Value = serde_json::from_str(&key).unwrap();
    let (id, token) = (key["id"].as_str().unwrap(), key["token"].as_str().unwrap());
    let (_, list, _) = server.run(&["keys", "list"]);
    assert!(list.contains(id) && list.contains("ingest, read") && !list.contains(token));
    assert_eq!(server.run(&["keys", "revoke", id]).0, Some(0));
    let (code, _, said) = server.run(&["keys", "revoke", id]);
    assert!(code == Some(1) && said.contains("(unknown_key)"), "{said}");
}

#[test]
fn files_that_are_something_else_are_refused_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("events.csv");
    let send = ["send", "--key", "k", "--url", "http://127.0.0.1:1", file.to_str().unwrap()];
    for (input, reason) in [
        ("event;customer\n", "separate columns by commas"),
        ("event,customer\n", "its columns are: event, customer"),
    ] {
        std::fs::write(&file, input).unwrap();
        let (code, table, said) = run(&send);
        assert!(code == Some(1) && table.is_empty(), "only the reason is said: {table}");
        assert!(said.contains(reason), "{said}");
    }
    let data = ["serve", "--listen", "127.0.0.1:0", "--data", file.to_str().unwrap()];
    let (code, _, said) = run(&data);
    assert!(code == Some(1) && said.contains("is a file") && !said.contains("os error"), "{said}");
}

#[test]
fn send_gives_up_when_nobody_answers() {
    let (code, _, said) = run(&["send", "--key", "k", "--url", "http://127.0.0.1:1"]);
    assert_eq!(code, Some(0), "nothing to send: {said}");
    let mut command = counterfoil(&["send", "--key", "k", "--url", "http://127.0.0.1:1"]);
    let started = Instant::now();
    let mut child = command
        .args(["--retry-for", "1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The pipe stays open: giving up does not wait for its end.
    let mut input = child.stdin.take().unwrap();
    for _ in 0..1_000 {
        input.write_all(b"{}\n").unwrap();
    }
    let (code, _, said) = read(&child.wait_with_output().unwrap());
    drop(input);
    assert_eq!(code, Some(1));
    assert!(said.contains("gave up: no server answers") && said.contains("is safe"), "{said}");
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[test]
fn the_demo_counts_exactly() {
    let (code, report, said) = run(&["demo", "--events", "8000", "--seed", "3"]);
    assert_eq!(code, Some(0), "{report}\n{said}");
    let exact = "every total is exact, in the ledger and at Stripe, after 8,000 events and 2 kills";
    assert!(report.contains(exact), "{report}");
    // Six meters, five outcomes, the check, and five tenants, the others and all of two meters.
    assert_eq!(report.matches('✓').count(), 26, "{report}");
    let header = ["tenant", "meter", "generator's truth", "ledger", "Stripe"];
    let is_header = |line: &&str| header.iter().all(|name| line.contains(name));
    assert_eq!(report.lines().filter(is_header).count(), 1, "{report}");
    for part in ["lost_after ", "error_500_executed ", "was down once", "are revisions"] {
        assert!(report.contains(part), "{part}: {report}");
    }
    assert!(!report.contains(" 0 are revisions"), "{report}");
}
