//! Commands without a server: help texts, refusals with their fix, exit codes.

use super::{check_refused, counterfoil, read, run};
use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

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
    let groups = [
        &["", "serve", "send", "usage", "status", "reconcile", "findings", "alerts"][..],
        &["quarantine", "quarantine admit", "conflicts", "conflicts dismiss"],
        &["keys", "keys create", "keys list", "keys revoke", "pushes", "pushes list"],
        &["passes", "passes show", "passes verify", "webhooks", "webhooks show", "webhooks replay"],
        &["check", "config", "config print", "config explain", "demo", "stripe-sim", "completions"],
    ];
    for command in groups.concat() {
        let words: Vec<&str> = command.split_whitespace().collect();
        let (code, help, _) = run(&[&words[..], &["--help"]].concat());
        assert_eq!(code, Some(0));
        assert!(help.contains("Example"), "{command:?} shows how it is used");
        insta::assert_snapshot!([&["help"], &words[..]].concat().join("_"), help);
    }
}

#[test]
fn explain_is_the_default_file() {
    let (code, output, _) = run(&["config", "explain"]);
    let file = include_str!("../../../counterfoil.default.toml");
    assert_eq!((code, output.as_str()), (Some(0), file));
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
