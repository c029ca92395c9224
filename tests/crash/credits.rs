//! Credits on a server that bills through no provider: usage draws on them all the same.

use super::load::client;
use super::server::{KEY, Place, Server};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const DRAWN_WITHIN: Duration = Duration::from_secs(60);

async fn ask(server: &Server, method: reqwest::Method, path: &str, body: Option<Value>) -> Value {
    let request = client().request(method, format!("{}{path}", server.url)).bearer_auth(KEY);
    let request = request.header("idempotency-key", path.replace('/', "-"));
    let request = match body {
        Some(body) => request.header("content-type", "application/json").body(body.to_string()),
        None => request,
    };
    let answer = request.send().await.unwrap();
    let (status, text) = (answer.status(), answer.text().await.unwrap());
    assert!(status.is_success(), "{path}: {status} {text}");
    serde_json::from_str(&text).unwrap()
}

/// Usage is cut and draws on the credits; what they do not cover waits for a customer.
async fn check_drawn(place: Place) {
    use reqwest::Method;
    let server = Server::start(&place);
    let spec = json!({
        // A cut may come before the event does, and the next one after ten minutes by default.
        "aggregation": "sum", "cut_every": "1s",
        "billing": {"from": "2026-01-01T00:00:00Z", "granularity": "event"},
    });
    ask(&server, Method::PUT, "/v1/meters/calls", Some(spec)).await;
    let grant = json!({
        "pool": "purchased", "unit": "eur", "amount": "100", "rates": {"calls": "1"},
        "effective_at": "2026-01-01T00:00:00Z",
    });
    ask(&server, Method::POST, "/v1/tenants/acme/grants", Some(grant)).await;
    let occurred_at = counterfoil::clock::Clock::system().now().to_string();
    let event = json!({
        "tenant": "acme", "id": "1", "meter": "calls", "quantity": "180", "occurred_at": occurred_at,
    });
    ask(&server, Method::POST, "/v1/events", Some(event)).await;
    let begun = Instant::now();
    loop {
        let credits = ask(&server, Method::GET, "/v1/tenants/acme/credits", None).await;
        if credits["pools"] == json!([]) {
            break;
        }
        assert_eq!(credits["pools"][0]["available"], "0", "{credits}");
        assert!(begun.elapsed() < DRAWN_WITHIN, "nothing was drawn: {credits}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let changes = ask(&server, Method::GET, "/v1/tenants/acme/credits/changes", None).await;
    assert_eq!(changes["changes"][0]["kind"], "drawn", "{changes}");
    let pushes = ask(&server, Method::GET, "/v1/pushes", None).await;
    let push = &pushes["pushes"][0];
    assert_eq!((&push["state"], &push["value"]), (&"waiting".into(), &"80".into()), "{pushes}");
}

#[tokio::test]
async fn credits_are_drawn_without_a_provider_on_sqlite() {
    check_drawn(Place::sqlite()).await;
}

#[tokio::test]
async fn credits_are_drawn_without_a_provider_on_postgres() {
    if let Some(place) = Place::postgres().await {
        check_drawn(place).await;
    }
}
