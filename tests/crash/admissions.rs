//! An admission and the decision on its record are one commit: a crash leaves both or neither, and
//! what is asked again afterwards counts the event once.

use super::load::client;
use super::server::{KEY, Launch, Place, Server};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::time::Duration;

const OLD: &str = "2026-01-05T10:30:00Z";

async fn ask(
    server: &Server,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> Option<(StatusCode, Value)> {
    let mut request = client().request(method, format!("{}{path}", server.url)).bearer_auth(KEY);
    if let Some(body) = body {
        request = request.header("content-type", "application/json").body(body.to_string());
    }
    let answer = request.send().await.ok()?;
    let status = answer.status();
    Some((status, serde_json::from_str(&answer.text().await.ok()?).ok()?))
}

async fn get(server: &Server, path: &str) -> Value {
    let (status, answer) = ask(server, Method::GET, path, None).await.unwrap();
    assert!(status.is_success(), "{path}: {answer}");
    answer
}

fn event(id: &str, quantity: &str) -> Value {
    json!({
        "tenant": "acme", "id": id, "meter": "calls", "quantity": quantity, "occurred_at": OLD,
    })
}

/// State of the record, the meter's total, and how many events the counters call admitted.
async fn find(server: &Server, number: u64) -> (String, String, u64) {
    let record = get(server, &format!("/v1/quarantine/{number}")).await;
    let range = "from=2026-01-01T00:00:00Z&to=2026-02-01T00:00:00Z";
    let usage = get(server, &format!("/v1/usage?tenant=acme&meter=calls&{range}")).await;
    let counters = get(server, "/v1/counters").await["counters"].clone();
    let sum = |name: &str| {
        counters.as_array().unwrap().iter().map(|row| row[name].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!(sum("received"), sum("accepted") + sum("duplicates") + sum("quarantined"));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(&record["state"]), text(&usage["total"]), sum("admitted"))
}

/// Crashes an admission at this point; `done` says whether it has happened by then.
async fn crash_at(place: &Place, point: &str, done: bool) {
    let mut server = Server::start(place);
    let spec = json!({"aggregation": "sum"});
    ask(&server, Method::PUT, "/v1/meters/calls", Some(spec)).await.unwrap();
    let batch = json!([event("a", "5"), event("b", "10")]);
    let (_, verdicts) = ask(&server, Method::POST, "/v1/events", Some(batch)).await.unwrap();
    assert_eq!(verdicts["quarantined"], 2);
    let list = get(&server, "/v1/quarantine").await;
    let numbers: Vec<u64> = list["quarantined"]
        .as_array()
        .unwrap()
        .iter()
        .map(|record| record["number"].as_u64().unwrap())
        .collect();
    server.kill();
    let failpoints = format!("{point}=return");
    let launch = Launch { failpoints: &failpoints, ..Launch::default() };
    let mut server = Server::launch(place, &launch).unwrap();
    let why = json!({"reason": "real usage", "author": "zoe"});
    let path = format!("/v1/quarantine/{}/admit", numbers[0]);
    let answer = ask(&server, Method::POST, &path, Some(why.clone())).await;
    assert!(answer.is_none(), "{point}: it is not answered: {answer:?}");
    assert!(server.ended_within(Duration::from_secs(10)).await.is_some(), "it crashes at {point}");
    let mut server = Server::start(place);
    let expected = if done { ("admitted", "5", 1) } else { ("undecided", "0", 0) };
    let (state, total, admitted) = find(&server, numbers[0]).await;
    assert_eq!((state.as_str(), total.as_str(), admitted), expected, "{point}");
    for _ in 0..2 {
        let (status, record) = ask(&server, Method::POST, &path, Some(why.clone())).await.unwrap();
        assert!(status.is_success(), "{record}");
        let (state, total, admitted) = find(&server, numbers[0]).await;
        assert_eq!((state.as_str(), total.as_str(), admitted), ("admitted", "5", 1));
        assert_eq!(find(&server, numbers[1]).await.0, "undecided");
        let batch = json!([event("a", "5")]);
        let (_, verdicts) = ask(&server, Method::POST, "/v1/events", Some(batch)).await.unwrap();
        assert_eq!(verdicts["duplicates"], 1);
        server.kill();
        server = Server::start(place);
    }
    server.kill();
    assert_eq!(place.check(), Vec::<String>::new(), "{point}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_admission_is_whole_or_nothing_on_sqlite() {
    crash_at(&Place::sqlite(), "sqlite.before_commit", false).await;
    crash_at(&Place::sqlite(), "sqlite.after_commit", true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_admission_is_whole_or_nothing_on_postgres() {
    for (point, done) in [("postgres.before_commit", false), ("postgres.after_commit", true)] {
        let Some(place) = Place::postgres().await else { return };
        crash_at(&place, point, done).await;
    }
}
