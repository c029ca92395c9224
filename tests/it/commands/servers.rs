//! Commands against a running server.

use super::{KEY, Running, Server, check_refused, counterfoil, read};
use crate::world::Ground;
use serde_json::Value;
use std::process::Stdio;

/// A directory has a lock; servers share a database.
#[test]
fn one_directory_and_one_port_have_one_server() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let data = one.path().to_str().unwrap();
    let server = Server::start(&format!("sqlite:{data}"), Some(KEY));
    let taken = ["serve", "--data", data, "--listen", "127.0.0.1:0"];
    check_refused(&taken, 1, &["in use by another server", "--data"]);
    let (data, listen) = (two.path().to_str().unwrap(), server.ready["listen"].as_str().unwrap());
    let taken = ["serve", "--data", data, "--listen", listen];
    check_refused(&taken, 1, &["another program listens there", "--listen"]);
}

pub async fn a_meter_declared_differently_stops_the_start(ground: Ground) {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("counterfoil.toml");
    let serve = |aggregation: &str| {
        let meter = format!("[meters.calls]\naggregation = \"{aggregation}\"\n");
        std::fs::write(&config, meter).unwrap();
        let mut command = counterfoil(&["serve", "--listen", "127.0.0.1:0", "--config"]);
        command.arg(&config).env("COUNTERFOIL_STORE_URL", ground.url());
        command
    };
    let first = Running::start(serve("sum"), Stdio::null());
    assert!(first.line.starts_with("listening on http://127.0.0.1:"), "{}", first.line);
    drop(first);
    let (code, output, said) = read(&serve("max").output().unwrap());
    assert_eq!((output.as_str(), code), ("", Some(1)));
    assert!(said.contains("[meters.calls] was declared differently before"), "{said}");
}

pub async fn the_first_key_is_shown_once_and_a_given_one_never(ground: Ground) {
    let store = ground.url();
    let first = Server::start(&store, None);
    assert!(first.ready["admin_key"].as_str().unwrap().starts_with("cf_"));
    drop(first);
    let again = Server::start(&store, None);
    assert!(again.ready.get("admin_key").is_none());
    drop(again);
    let given = Server::start(&store, Some(KEY));
    assert!(given.ready.get("admin_key").is_none());
    assert_eq!(given.run(&["keys", "list"]).0, Some(0));
}

pub async fn send_then_usage_then_check(ground: Ground) {
    let server = Server::start(&ground.url(), Some(KEY));
    let _ = rustls::crypto::ring::default_provider().install_default();
    let url = format!("{}/v1/meters/calls", server.url);
    let spec = r#"{"aggregation":"sum","dimensions":["region"]}"#;
    let request = reqwest::Client::new().put(url).bearer_auth(KEY).body(spec);
    let declared = request.header("content-type", "application/json").send().await.unwrap();
    assert!(declared.status().is_success());
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
    let summary: Value = serde_json::from_str(&summary).unwrap();
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
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["windows"].as_array().unwrap().len(), 3);
    let (code, _, said) = server.run(&["usage", "--tenant", "acme", "--meter", "nope"]);
    assert!(code == Some(1) && said.contains("(unknown_meter)"), "{said}");
    let (code, _, said) = server.run(&["keys", "list", "--key", "wrong"]);
    assert!(code == Some(1) && said.contains("(unauthenticated); give a valid key"), "{said}");
    let run = |arguments: &[&str]| {
        let mut command = counterfoil(arguments);
        read(&command.env("COUNTERFOIL_STORE_URL", ground.url()).output().unwrap())
    };
    let (code, report, _) = run(&["check"]);
    assert_eq!(code, Some(0));
    assert!(report.contains("every total is exactly"), "{report}");
    let (code, report, _) = run(&["passes", "verify"]);
    assert!(code == Some(0) && report.contains("nightly passes with"), "{report}");
}

pub async fn keys_are_made_listed_and_revoked(ground: Ground) {
    let server = Server::start(&ground.url(), Some(KEY));
    let made = ["keys", "create", "--name", "gateway", "--scope", "ingest,read", "--json"];
    let (code, key, _) = server.run(&made);
    assert_eq!(code, Some(0));
    let key: Value = serde_json::from_str(&key).unwrap();
    let (id, token) = (key["id"].as_str().unwrap(), key["token"].as_str().unwrap());
    let (_, list, _) = server.run(&["keys", "list"]);
    assert!(list.contains(id) && list.contains("ingest, read") && !list.contains(token));
    assert_eq!(server.run(&["keys", "revoke", id]).0, Some(0));
    let (code, _, said) = server.run(&["keys", "revoke", id]);
    assert!(code == Some(1) && said.contains("(unknown_key)"), "{said}");
}

/// Lists, shows, dry runs and decisions; the server's answers themselves are tested elsewhere.
pub async fn quarantine_and_conflicts_are_decided(ground: Ground) {
    let server = Server::start(&ground.url(), Some(KEY));
    let _ = rustls::crypto::ring::default_provider().install_default();
    let url = format!("{}/v1/meters/calls", server.url);
    let request = reqwest::Client::new().put(url).bearer_auth(KEY);
    let request = request.header("content-type", "application/json");
    let declared = request.body(r#"{"aggregation":"sum"}"#).send().await.unwrap();
    assert!(declared.status().is_success());
    let line = |id: &str, quantity: &str, at: &str| {
        format!(
            "{{\"tenant\":\"acme\",\"id\":\"{id}\",\"meter\":\"calls\",\"quantity\":\"{quantity}\",\
             \"occurred_at\":\"{at}\"}}\n"
        )
    };
    let (now, old) = (jiff::Timestamp::now().to_string(), "2026-01-05T10:30:00Z");
    let input = [
        line("old-1", "1500", old),
        line("old-2", "20", old),
        line("old-3", "3", old),
        line("new", "1", &now),
        line("new", "2", &now),
    ];
    assert_eq!(server.run_with_input(&["send", "-"], &input.concat()).0, Some(3));
    let say = |arguments: &[&str], parts: &[&str]| {
        let (code, output, said) = server.run(arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {said}");
        for part in parts {
            assert!(output.contains(part), "{arguments:?}: {part}: {output}");
        }
        output
    };
    let why = ["--reason", "the outage", "--author", "zoe"];
    let decide = |arguments: &[&str], parts: &[&str]| say(&[arguments, &why].concat(), parts);
    say(&["quarantine"], &["old-1", "old-2", "old-3", "too_old", "undecided"]);
    let list = say(&["quarantine", "--id", "old-1", "--json"], &[]);
    let list: Value = serde_json::from_str(&list).unwrap();
    let number = list["quarantined"][0]["number"].to_string();
    say(&["quarantine", "show", &number], &["event old-1 of acme, too_old", "came 1 time from"]);
    let dry = ["quarantine", "admit", "--tenant", "acme", "--cause", "too_old", "--dry-run"];
    decide(&dry, &["3 undecided events found", "1,523", "nothing is decided"]);
    let admitted = ": admitted: it is counted\n  decided by zoe at ";
    decide(&["quarantine", "admit", &number], &[&format!("{number}{admitted}")]);
    let (code, _, said) = server.run(&[&["quarantine", "discard", &number][..], &why].concat());
    assert_eq!(code, Some(1));
    assert!(said.contains("already_decided") && said.contains("by zoe: admitted"), "{said}");
    decide(&["quarantine", "admit", "--id", "old-2"], &["1 undecided event found", "1 admitted"]);
    decide(&["quarantine", "discard", "--all"], &["1 undecided event found", "1 discarded"]);
    say(&["quarantine"], &["no undecided events"]);
    say(&["quarantine", "list", "--decided"], &["admitted", "discarded", "zoe"]);
    say(&["conflicts"], &["new", "undecided"]);
    let dismissed = ["conflicts", "dismiss", "--tenant", "acme", "--dry-run"];
    decide(&dismissed, &["1 undecided conflict found", "nothing is decided"]);
    decide(&["conflicts", "keep-standing", "--tenant", "acme"], &["1 decided"]);
    say(&["conflicts", "list", "--all"], &["standing_kept", "zoe"]);
    let neither = [&["quarantine", "admit"][..], &why].concat();
    let (code, _, said) = server.run(&neither);
    assert!(code == Some(2) && said.contains("--all"), "{said}");
    let both = [&["quarantine", "admit", "1", "--all"][..], &why].concat();
    assert_eq!(server.run(&both).0, Some(2));
    let usage = ["usage", "--tenant", "acme", "--meter", "calls", "--from", "2026-01-01"];
    say(&[&usage[..], &["--to", "2026-02-01"]].concat(), &["1,520"]);
}
