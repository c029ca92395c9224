//! The commands as a person meets them: help texts, refusals with their fix, exit codes.

mod billing;
mod docs;
mod reconcile;
mod refusals;
mod servers;

use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};

on_every_store! {
    servers {
        a_meter_declared_differently_stops_the_start,
        the_first_key_is_shown_once_and_a_given_one_never,
        send_then_usage_then_check,
        keys_are_made_listed_and_revoked,
        quarantine_and_conflicts_are_decided,
    }
}

// Most of its time it waits for the jobs of a real server, which `outbound` runs on every store.
on_one_store! {
    billing {
        usage_arrives_and_what_does_not_is_found,
    }
}

const KEY: &str = "commands-test-admin-key";

fn counterfoil(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_counterfoil"));
    command.args(arguments).stdin(Stdio::null());
    for name in
        ["COUNTERFOIL_URL", "COUNTERFOIL_KEY", "COUNTERFOIL_ADMIN_KEY", "COUNTERFOIL_AUTHOR"]
    {
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

/// A command that runs until the end of the test, and its first line.
struct Running {
    child: Child,
    line: String,
}

impl Running {
    fn start(mut command: Command, log: Stdio) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { child, line }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server on a free port.
struct Server {
    _running: Running,
    url: String,
    ready: Value,
}

impl Server {
    /// On the store with this URL.
    fn start(store: &str, admin_key: Option<&str>) -> Self {
        let mut command = counterfoil(&["serve", "--listen", "127.0.0.1:0", "--log", "json"]);
        command.env("COUNTERFOIL_STORE_URL", store);
        if let Some(key) = admin_key {
            command.env("COUNTERFOIL_ADMIN_KEY", key);
        }
        Self::of(Running::start(command, Stdio::null()))
    }

    fn of(running: Running) -> Self {
        let ready: Value = serde_json::from_str(&running.line).unwrap();
        let url = ready["url"].as_str().unwrap().to_owned();
        Self { _running: running, url, ready }
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

/// A refusal is one sentence on standard error, with what to do.
fn check_refused(arguments: &[&str], expected_code: i32, expected: &[&str]) {
    let (code, output, said) = run(arguments);
    assert_eq!((code, output.as_str()), (Some(expected_code), ""), "{arguments:?}: {said}");
    for part in expected {
        assert!(said.contains(part), "{arguments:?}: {said}");
    }
}
