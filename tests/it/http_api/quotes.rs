//! Quotes: rates by place and moment, coupons once in a cycle, figures that never change, and an
//! engine elsewhere that is asked once.

use super::idempotency::{check_problem, check_replay, check_same};
use crate::world::{Answer, Ground, Server, default_config, each, serve_on_loopback};
use axum::extract::State;
use counterfoil::config::{Config, Secret, TaxEngineKind};
use http::{HeaderMap, Method, StatusCode};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use tokio::sync::Semaphore;

const QUOTES: &str = "/v1/tenants/acme/quotes";
const CYCLE: &str = "2026-11-01T00:00:00Z";

fn request(jurisdiction: &str, prices: &str, amounts: &[&str]) -> Value {
    let lines: Vec<Value> = amounts
        .iter()
        .enumerate()
        .map(|(number, amount)| json!({"id": format!("l{number}"), "amount": amount}))
        .collect();
    json!({"currency": "eur", "jurisdiction": jurisdiction, "prices": prices, "lines": lines})
}

async fn rate(
    server: &Server,
    place: &str,
    name: &str,
    percent: &str,
    valid: (&str, Option<&str>),
) -> Answer {
    let body = json!({
        "jurisdiction": place, "name": name, "percent": percent, "valid_from": valid.0,
        "valid_until": valid.1,
    });
    server.put("/v1/tax/rates", &body.to_string()).await
}

async fn quote(server: &Server, key: &str, request: &Value) -> Answer {
    server.once(QUOTES, key, &request.to_string()).await
}

/// Discount, net, tax and gross of a quote.
fn figures(answer: &Answer) -> String {
    let quote = &answer.ok(200)["quote"];
    ["discount", "net", "tax", "gross"].map(|name| quote[name].as_str().unwrap()).join(" ")
}

/// A request of 100 with a coupon of a cycle.
fn with_coupon(code: &str, cycle: &str) -> Value {
    let mut asked = request("de", "exclusive", &["100"]);
    (asked["coupon"], asked["cycle"]) = (code.into(), cycle.into());
    asked
}

/// A server that knows some rates and coupons.
async fn with_rates(ground: Ground) -> Server {
    let server = Server::start(ground).await;
    for (place, name, percent, valid) in [
        ("de", "vat", "19", ("2021-01-01T00:00:00Z", None)),
        ("de", "vat", "16", ("2020-07-01T00:00:00Z", Some("2021-01-01T00:00:00Z"))),
        ("ch", "vat", "0", ("2020-01-01T00:00:00Z", None)),
        ("us-ny", "state", "4", ("2020-01-01T00:00:00Z", None)),
        ("us-ny-nyc", "city", "4.5", ("2020-01-01T00:00:00Z", None)),
    ] {
        assert_eq!(rate(&server, place, name, percent, valid).await.status, 200);
    }
    for (code, body) in [
        ("TEN", json!({"percent_off": "10", "valid_from": "2026-01-01T00:00:00Z"})),
        (
            "FIVE",
            json!({
                "amount_off": "5", "currency": "eur", "valid_from": "2026-01-01T00:00:00Z",
                "cycles_max": 2,
            }),
        ),
        (
            "OLD",
            json!({
                "percent_off": "50", "valid_from": "2025-01-01T00:00:00Z",
                "valid_until": "2026-01-01T00:00:00Z",
            }),
        ),
    ] {
        server.put(&format!("/v1/coupons/{code}"), &body.to_string()).await.ok(200);
    }
    server
}

pub async fn a_quote_is_shown_whole(ground: Ground) {
    let server = with_rates(ground).await;
    let mut asked = request("us-ny-nyc", "exclusive", &["10.05", "0.99"]);
    (asked["coupon"], asked["cycle"]) = ("TEN".into(), CYCLE.into());
    let answer = quote(&server, "q1", &asked).await;
    insta::assert_snapshot!(answer.show(), @r#"200 {"key":"q1","at":"2026-11-15T12:00:00Z","engine":"table","quote":{"discount":"1.11","gross":"10.78","lines":[{"amount":"10.05","discount":"1.01","gross":"9.81","id":"l0","net":"9.04","taxes":[{"amount":"0.36","jurisdiction":"us-ny","name":"state","percent":"4"},{"amount":"0.41","jurisdiction":"us-ny-nyc","name":"city","percent":"4.5"}]},{"amount":"0.99","discount":"0.1","gross":"0.97","id":"l1","net":"0.89","taxes":[{"amount":"0.04","jurisdiction":"us-ny","name":"state","percent":"4"},{"amount":"0.04","jurisdiction":"us-ny-nyc","name":"city","percent":"4.5"}]}],"net":"9.93","rounding":"half away from zero; each rate on each line, or, where prices hold their tax, the tax of each line","tax":"0.85"},"coupon":"TEN","coupon_refused":null}"#);
    assert_eq!(server.get(&format!("{QUOTES}/q1")).await.body, answer.body);
    server.get(&format!("{QUOTES}/q2")).await.problem(404, "unknown_quote");
    server.get("/v1/tenants/globex/quotes/q1").await.problem(404, "unknown_quote");
}

pub async fn the_place_and_the_moment_decide(ground: Ground) {
    let server = with_rates(ground).await;
    for (number, (place, prices, at, expected)) in [
        ("de", "exclusive", "2026-11-15T12:00:00Z", "0 100 19 119"),
        ("de", "inclusive", "2026-11-15T12:00:00Z", "0 84.03 15.97 100"),
        ("de-by", "exclusive", "2026-11-15T12:00:00Z", "0 100 19 119"),
        ("ch", "exclusive", "2026-11-15T12:00:00Z", "0 100 0 100"),
        ("us-ny", "exclusive", "2026-11-15T12:00:00Z", "0 100 4 104"),
        ("us-ny-nyc", "exclusive", "2026-11-15T12:00:00Z", "0 100 8.5 108.5"),
        ("us-ny-nyc", "inclusive", "2026-11-15T12:00:00Z", "0 92.17 7.83 100"),
        // The last moment of one rate, and the first of the next; moments are UTC.
        ("de", "exclusive", "2020-12-31T23:59:59.999999Z", "0 100 16 116"),
        ("de", "exclusive", "2021-01-01T00:00:00Z", "0 100 19 119"),
        ("de", "exclusive", "2021-01-01T00:30:00+01:00", "0 100 16 116"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut asked = request(place, prices, &["100"]);
        asked["at"] = at.into();
        let answer = quote(&server, &format!("q{number}"), &asked).await;
        assert_eq!(figures(&answer), expected, "{place} {prices} {at}");
    }
    // A place or a moment without a rate is not free of tax: it is unknown.
    for (place, at) in [
        ("den", "2026-11-15T12:00:00Z"),
        ("us", "2026-11-15T12:00:00Z"),
        ("de", "2020-06-30T23:59:59Z"),
    ] {
        let mut asked = request(place, "exclusive", &["100"]);
        asked["at"] = at.into();
        quote(&server, "none", &asked).await.problem(422, "no_tax_rate");
    }
    // Each line is rounded by itself, half away from zero.
    let lines = request("de", "exclusive", &["0.05", "0.05", "0.50"]);
    assert_eq!(figures(&quote(&server, "r1", &lines).await), "0 0.6 0.12 0.72");
    let mut yen = request("de", "exclusive", &["3", "50"]);
    yen["currency"] = "jpy".into();
    assert_eq!(figures(&quote(&server, "r2", &yen).await), "0 53 11 64");
}

pub async fn what_cannot_be_quoted(ground: Ground) {
    let server = with_rates(ground).await;
    let fine = request("de", "exclusive", &["1"]);
    let many: Vec<Value> = (0..201).map(|n| json!({"id": n.to_string(), "amount": "1"})).collect();
    let line = |id: &str, amount: &str| json!([{"id": id, "amount": amount}]);
    for (number, (member, value, code)) in [
        ("currency", json!("EUR"), "invalid_unit"),
        ("jurisdiction", json!("DE"), "invalid_jurisdiction"),
        ("jurisdiction", json!(""), "invalid_jurisdiction"),
        ("prices", json!("net"), "invalid_body"),
        ("at", json!("now"), "invalid_timestamp"),
        ("lines", json!([]), "invalid_lines"),
        ("lines", json!(many), "invalid_lines"),
        ("lines", line("x", "0.001"), "invalid_amount"),
        ("lines", line("x", "-1"), "invalid_amount"),
        ("lines", line("x", "1e1"), "invalid_amount"),
        ("lines", line("", "1"), "invalid_key"),
        ("lines", line("a\u{0}b", "1"), "invalid_key"),
        ("lines", line(&"x".repeat(256), "1"), "invalid_key"),
        ("coupon", json!("TEN"), "cycle_missing"),
        ("cycle", json!("monthly"), "invalid_timestamp"),
        ("tenant", json!("globex"), "invalid_body"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut asked = fine.clone();
        asked[member] = value;
        quote(&server, &format!("q{number}"), &asked).await.problem(422, code);
    }
    let long = "x".repeat(256);
    for (code, refusal) in [
        ("NONE", "unknown_coupon"),
        ("", "invalid_key"),
        ("a\u{0}b", "invalid_key"),
        (&long, "invalid_key"),
    ] {
        let answer = quote(&server, &format!("c{}", code.len()), &with_coupon(code, CYCLE)).await;
        answer.problem(422, refusal);
    }
}

pub async fn rates_never_overlap_and_can_be_ended(ground: Ground) {
    let server = Server::start(ground).await;
    let put = async |percent: &str, from: &str, until: Option<&str>| {
        let moment = |day: &str| format!("{day}T00:00:00Z");
        let (from, until) = (moment(from), until.map(moment));
        rate(&server, "fr", "tva", percent, (&from, until.as_deref())).await
    };
    let first = put("20", "2026-01-01", None).await;
    assert_eq!(first.json()["valid_until"], Value::Null);
    assert_eq!(put("20", "2026-01-01", None).await.body, first.body, "it stands");
    for (percent, from, until) in [
        ("21", "2026-01-01", None),
        ("21", "2027-01-01", None),
        ("21", "2025-01-01", None),
        ("21", "2025-01-01", Some("2026-01-02")),
        ("20", "2026-02-01", Some("2026-03-01")),
        ("21", "2026-01-01", Some("2026-12-31")),
    ] {
        let said = "tva in fr is 20 % from 2026-01-01T00:00:00Z";
        put(percent, from, until).await.problem_saying(409, "rate_overlaps", said);
    }
    assert_eq!(put("19.6", "2014-01-01", Some("2026-01-01")).await.status, 200, "up to its start");
    // Another name, another place: another rate.
    rate(&server, "fr", "eco", "1", ("2026-01-01T00:00:00Z", None)).await.ok(200);
    rate(&server, "fr-co", "tva", "2", ("2026-01-01T00:00:00Z", None)).await.ok(200);
    let ended = put("20", "2026-01-01", Some("2027-01-01")).await;
    assert_eq!(ended.json()["valid_until"], "2027-01-01T00:00:00Z");
    assert_eq!(put("20", "2026-01-01", Some("2027-01-01")).await.body, ended.body);
    put("20", "2026-01-01", None).await.problem(409, "rate_overlaps");
    assert_eq!(put("21", "2027-01-01", None).await.status, 200);
    let told = |rate: &Value| {
        let year =
            |name: &str| rate[name].as_str().unwrap_or("-").get(..4).unwrap_or("-").to_owned();
        let (place, name, percent) = (&rate["jurisdiction"], &rate["name"], &rate["percent"]);
        format!("{place} {name} {percent} {} {}", year("valid_from"), year("valid_until"))
    };
    let rates = server.get("/v1/tax/rates").await.rows("rates");
    let told: Vec<String> = rates.iter().map(told).collect();
    insta::assert_snapshot!(told.join("\n").replace('"', ""), @r"
    fr eco 1 2026 -
    fr tva 19.6 2014 2026
    fr tva 20 2026 2027
    fr tva 21 2027 -
    fr-co tva 2 2026 -
    ");
}

pub async fn rates_that_cannot_be_are_refused(ground: Ground) {
    let server = Server::start(ground).await;
    for (member, value, code) in [
        ("jurisdiction", json!("FR"), "invalid_jurisdiction"),
        ("jurisdiction", json!("x".repeat(65)), "invalid_jurisdiction"),
        ("name", json!(""), "invalid_rate_name"),
        ("name", json!("x".repeat(65)), "invalid_rate_name"),
        ("name", json!("t\u{0}a"), "invalid_rate_name"),
        ("percent", json!("100.000001"), "invalid_percent"),
        ("percent", json!("-1"), "invalid_percent"),
        ("percent", json!("0.0000001"), "invalid_percent"),
        ("percent", json!("x"), "invalid_amount"),
        ("percent", json!(20), "invalid_body"),
        ("valid_from", json!("2026"), "invalid_timestamp"),
        ("valid_until", json!("2026-01-01T00:00:00Z"), "invalid_validity"),
    ] {
        let mut body = json!({
            "jurisdiction": "it", "name": "iva", "percent": "22",
            "valid_from": "2026-01-01T00:00:00Z",
        });
        body[member] = value;
        server.put("/v1/tax/rates", &body.to_string()).await.problem(422, code);
    }
}

pub async fn a_coupon_counts_once_in_a_cycle(ground: Ground) {
    let server = with_rates(ground).await;
    let with = with_coupon;
    let first = quote(&server, "q1", &with("TEN", CYCLE)).await;
    assert_eq!(figures(&first), "10 90 17.1 107.1");
    check_replay(&first, &quote(&server, "q1", &with("TEN", CYCLE)).await);
    // A second quote of the cycle has to do without, and is told why.
    let second = quote(&server, "q2", &with("TEN", CYCLE)).await;
    assert_eq!(figures(&second), "0 100 19 119");
    let told = second.json();
    assert_eq!(told["coupon"], Value::Null);
    assert_eq!(told["coupon_refused"], "it was used in this cycle by quote q1");
    // The next cycle, another tenant and another coupon are not concerned.
    let next = quote(&server, "q3", &with("TEN", "2026-12-01T00:00:00Z")).await;
    assert_eq!(figures(&next), "10 90 17.1 107.1");
    let body = with("TEN", CYCLE).to_string();
    let other = server.once("/v1/tenants/globex/quotes", "q1g", &body).await;
    assert_eq!(figures(&other), "10 90 17.1 107.1");
    assert_eq!(figures(&quote(&server, "q4", &with("FIVE", CYCLE)).await), "5 95 18.05 113.05");
    // After the key is forgotten the quote that used it still has it.
    server.forget_keys().await;
    check_same(&first, &quote(&server, "q1", &with("TEN", CYCLE)).await);
    // In so many cycles and no more.
    let more = quote(&server, "q5", &with("FIVE", "2026-12-01T00:00:00Z")).await;
    assert_eq!(figures(&more), "5 95 18.05 113.05");
    let none = quote(&server, "q6", &with("FIVE", "2027-01-01T00:00:00Z")).await;
    assert_eq!(none.json()["coupon_refused"], "it was used in 2 cycles, which is all it may be");
    assert_eq!(figures(&none), "0 100 19 119");
    let old = quote(&server, "q7", &with("OLD", CYCLE)).await.json();
    assert_eq!(old["coupon_refused"], "it does not hold at that moment");
    let mut dollars = with("FIVE", "2026-12-01T00:00:00Z");
    dollars["currency"] = "usd".into();
    let dollars = quote(&server, "q8", &dollars).await.json();
    assert_eq!(dollars["coupon_refused"], "it is of another currency");
    // It takes no more than there is.
    let mut small = request("de", "exclusive", &["1", "2"]);
    (small["coupon"], small["cycle"]) = ("FIVE".into(), CYCLE.into());
    let small = server.once("/v1/tenants/globex/quotes", "q9", &small.to_string()).await;
    assert_eq!(figures(&small), "3 0 0 0");
}

pub async fn of_quotes_at_once_one_has_the_coupon(ground: Ground) {
    let server = Arc::new(with_rates(ground).await);
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..20 {
        let (server, asked) = (Arc::clone(&server), with_coupon("TEN", CYCLE));
        calls.spawn(async move { quote(&server, &format!("q{number}"), &asked).await });
    }
    let mut used = 0;
    for answer in calls.join_all().await {
        match answer.status {
            200 => used += usize::from(answer.json()["coupon"] == "TEN"),
            _ => drop(answer.problem(409, "coupon_used")),
        }
    }
    assert_eq!(used, 1);
}

pub async fn coupons_are_made_once(ground: Ground) {
    let server = Server::start(ground).await;
    let put = async |code: &str, body: Value| {
        server.put(&format!("/v1/coupons/{code}"), &body.to_string()).await
    };
    let from = "2026-01-01T00:00:00Z";
    let ten = json!({"percent_off": "10", "valid_from": from, "cycles_max": 3});
    let first = put("TEN", ten.clone()).await;
    insta::assert_snapshot!(first.show(), @r#"200 {"code":"TEN","percent_off":"10","amount_off":null,"currency":null,"valid_from":"2026-01-01T00:00:00Z","valid_until":null,"cycles_max":3}"#);
    assert_eq!(put("TEN", ten).await.body, first.body);
    let other = json!({"percent_off": "11", "valid_from": from, "cycles_max": 3});
    put("TEN", other).await.problem(409, "coupon_differs");
    for body in [
        json!({"valid_from": from}),
        json!({"percent_off": "10", "amount_off": "1", "currency": "eur", "valid_from": from}),
        json!({"percent_off": "0", "valid_from": from}),
        json!({"percent_off": "100.1", "valid_from": from}),
        json!({"percent_off": "10", "currency": "eur", "valid_from": from}),
        json!({"amount_off": "1", "valid_from": from}),
        json!({"amount_off": "0.001", "currency": "eur", "valid_from": from}),
        json!({"amount_off": "1", "currency": "EUR", "valid_from": from}),
        json!({"percent_off": "10", "valid_from": from, "valid_until": from}),
        json!({"percent_off": "10", "valid_from": from, "cycles_max": 0}),
    ] {
        put("BAD", body).await.problem(422, "invalid_coupon");
    }
    let good = json!({"percent_off": "10", "valid_from": from});
    put("a%00b", good.clone()).await.problem(422, "invalid_coupon");
    for code in ["A", "B"] {
        put(code, good.clone()).await;
    }
    let codes = |answer: &Answer| each(&answer.rows("coupons"), "code");
    let page = server.get("/v1/coupons?limit=2").await;
    assert_eq!((codes(&page).join(" "), &page.json()["next_after"]), ("A B".into(), &"B".into()));
    assert_eq!(codes(&server.get("/v1/coupons?limit=2&after=B").await), ["TEN"]);
    server.get("/v1/coupons?after=%00").await.problem(400, "invalid_key");
    let bound = server.key("operate", Some("acme")).await;
    server.get_as(&bound, "/v1/coupons").await.problem(403, "tenant_forbidden");
    for path in ["/v1/coupons/X", "/v1/tax/rates"] {
        let answer = server.call(Method::PUT, path, &bound, "{}").await;
        answer.problem(403, "tenant_forbidden");
    }
    server.get_as(&bound, "/v1/tax/rates").await.ok(200);
}

pub async fn figures_stay_whatever_rates_hold_by_then(ground: Ground) {
    let server = with_rates(ground).await;
    let asked = request("de", "exclusive", &["100"]);
    let first = quote(&server, "q1", &asked).await;
    assert_eq!(figures(&first), "0 100 19 119");
    let until = ("2021-01-01T00:00:00Z", Some("2026-11-15T12:00:00Z"));
    assert_eq!(rate(&server, "de", "vat", "19", until).await.status, 200);
    let from = ("2026-11-15T12:00:00Z", None);
    assert_eq!(rate(&server, "de", "vat", "25", from).await.status, 200);
    check_replay(&first, &quote(&server, "q1", &asked).await);
    assert_eq!(figures(&quote(&server, "q2", &asked).await), "0 100 25 125");
    // Also when the key is forgotten, and at another moment.
    assert_eq!(server.forget_keys().await, 2);
    let again = quote(&server, "q1", &asked).await;
    check_same(&first, &again);
    check_replay(&again, &quote(&server, "q1", &asked).await);
    server.forget_keys().await;
    let other = request("de", "exclusive", &["101"]);
    quote(&server, "q1", &other).await.problem(409, "key_taken");
    // A rate that is not the one that stands ends nothing.
    let conflict =
        rate(&server, "de", "vat", "24", ("2026-11-15T12:00:00Z", Some("2027-01-01T00:00:00Z")));
    conflict.await.problem(409, "rate_overlaps");
}

/// A call that the engine got.
#[derive(Clone)]
struct Call {
    headers: HeaderMap,
    body: Value,
}

/// An engine on loopback that answers what it is told to, and counts.
struct Engine {
    calls: Mutex<Vec<Call>>,
    says: Mutex<(u16, String)>,
    /// An answer takes one; without any, calls wait.
    permits: Semaphore,
}

impl Engine {
    async fn start() -> (Arc<Self>, Config) {
        let engine = Arc::new(Self {
            calls: Mutex::default(),
            says: Mutex::new((200, taxes("l0", "2.38"))),
            permits: Semaphore::new(1_000),
        });
        let router = axum::Router::new().fallback(answer).with_state(Arc::clone(&engine));
        let mut config = default_config();
        config.tax.engine = TaxEngineKind::Http;
        config.tax.url = format!("{}/quote?a=b", serve_on_loopback(router).await);
        config.tax.token = Secret::new("canary-token");
        (engine, config)
    }

    fn says(&self, status: u16, body: impl Into<String>) {
        *self.says.lock().unwrap() = (status, body.into());
    }

    fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }
}

async fn answer(
    State(engine): State<Arc<Engine>>,
    headers: HeaderMap,
    body: String,
) -> (StatusCode, String) {
    let body = serde_json::from_str(&body).unwrap();
    engine.calls.lock().unwrap().push(Call { headers, body });
    engine.permits.acquire().await.unwrap().forget();
    let (status, body) = engine.says.lock().unwrap().clone();
    (StatusCode::from_u16(status).unwrap(), body)
}

fn taxes(id: &str, amount: &str) -> String {
    let tax = json!({"jurisdiction": "de", "name": "vat", "percent": "19", "amount": amount});
    json!({"lines": [{"id": id, "taxes": [tax]}]}).to_string()
}

pub async fn an_engine_elsewhere_is_asked_once(ground: Ground) {
    let (engine, config) = Engine::start().await;
    let server = Server::start_with(ground, &config).await;
    let asked = request("de", "exclusive", &["12.50"]);
    let first = quote(&server, "q1", &asked).await;
    assert_eq!(figures(&first), "0 12.5 2.38 14.88");
    assert_eq!(first.json()["engine"], "http");
    let calls = engine.calls();
    insta::assert_snapshot!(calls[0].body, @r#"{"discounts":["0"],"request":{"at":"2026-11-15T12:00:00Z","coupon":null,"currency":"eur","cycle":null,"jurisdiction":"de","lines":[{"amount":"12.5","id":"l0"}],"prices":"exclusive","tenant":"acme"}}"#);
    assert_eq!(calls[0].headers["authorization"], "Bearer canary-token");
    let key = calls[0].headers["idempotency-key"].clone();
    assert!(key.to_str().unwrap().starts_with("cfq1-"));
    engine.says(200, taxes("l0", "99"));
    check_replay(&first, &quote(&server, "q1", &asked).await);
    assert_eq!(server.forget_keys().await, 1);
    check_same(&first, &quote(&server, "q1", &asked).await);
    assert_eq!(engine.calls().len(), 1, "a retry never calls it again");
    quote(&server, "q2", &asked).await;
    let calls = engine.calls();
    assert_eq!(calls.len(), 2);
    assert_ne!(calls[1].headers["idempotency-key"], key);
}

pub async fn an_engine_that_cannot_be_believed_is_tried_again(ground: Ground) {
    let (engine, mut config) = Engine::start().await;
    config.tax.timeout_ms = 300;
    let server = Server::start_with(ground, &config).await;
    let asked = request("de", "inclusive", &["12.50"]);
    let two = json!({"lines": [{"id": "l0", "taxes": []}, {"id": "l1", "taxes": []}]}).to_string();
    let lines: Vec<(u16, String)> = vec![
        (500, taxes("l0", "2.38")),
        (302, String::new()),
        (404, String::new()),
        (200, "no JSON".into()),
        (200, r#"{"lines":[]}"#.into()),
        (200, two),
        (200, taxes("l1", "2.38")),
        (200, taxes("l0", "2.385")),
        (200, taxes("l0", "-1")),
        (200, taxes("l0", "12.51")),
        (200, taxes("l0", "999999999999999999999999999")),
        (200, taxes("l0", "2.38").replace("\"2.38\"", "2.38")),
        (200, format!("{}{}", " ".repeat(1024 * 1024), taxes("l0", "2.38"))),
    ];
    for (count, (status, body)) in lines.iter().enumerate() {
        engine.says(*status, body.clone());
        let answer = quote(&server, "q1", &asked).await;
        answer.problem(503, "tax_engine_unavailable");
        assert!(!answer.body.contains("canary") && !answer.body.contains("127.0.0.1"));
        assert_eq!(engine.calls().len(), count + 1, "{status} {body}");
    }
    server.get(&format!("{QUOTES}/q1")).await.problem(404, "unknown_quote");
    // It says nothing for too long.
    engine.says(200, taxes("l0", "2.38"));
    engine.permits.forget_permits(usize::MAX);
    let answer = quote(&server, "q1", &asked).await;
    answer.problem(503, "tax_engine_unavailable");
    engine.permits.add_permits(100);
    // Nothing of all that was kept under the key, and each try told the engine that it was one.
    assert_eq!(figures(&quote(&server, "q1", &asked).await), "0 10.12 2.38 12.5");
    let calls = engine.calls();
    assert_eq!(calls.len(), lines.len() + 2);
    let key = |call: &Call| call.headers["idempotency-key"].clone();
    assert!(calls.iter().all(|call| key(call) == key(&calls[0])));
}

/// A quote under the key q1 that waits for the engine.
async fn at_work(
    ground: Ground,
    asked: &Value,
) -> (Arc<Engine>, Arc<Server>, tokio::task::JoinHandle<Answer>) {
    let (engine, config) = Engine::start().await;
    let server = Arc::new(Server::start_with(ground, &config).await);
    engine.permits.forget_permits(usize::MAX);
    let (caller, asked) = (Arc::clone(&server), asked.clone());
    let call = tokio::spawn(async move { quote(&caller, "q1", &asked).await });
    while engine.calls().is_empty() {
        tokio::task::yield_now().await;
    }
    (engine, server, call)
}

pub async fn a_request_that_is_at_work_is_not_begun_again(ground: Ground) {
    let asked = request("de", "exclusive", &["12.50"]);
    let (engine, server, first) = at_work(ground, &asked).await;
    let busy = quote(&server, "q1", &asked).await;
    check_problem(&busy, 409, "idempotency_key_in_use");
    let seconds: u64 = busy.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=5).contains(&seconds));
    let other = request("de", "exclusive", &["13"]);
    check_problem(&quote(&server, "q1", &other).await, 422, "idempotency_key_reused");
    engine.permits.add_permits(100);
    let first = first.await.unwrap();
    assert_eq!(figures(&first), "0 12.5 2.38 14.88");
    check_replay(&first, &quote(&server, "q1", &asked).await);
    assert_eq!(engine.calls().len(), 1);
}

/// A caller who hangs up does not cut what is at work.
pub async fn a_caller_who_hangs_up_finds_the_answer_later(ground: Ground) {
    let asked = request("de", "exclusive", &["12.50"]);
    let (engine, server, call) = at_work(ground, &asked).await;
    call.abort();
    assert!(call.await.is_err());
    engine.permits.add_permits(100);
    let found = loop {
        let answer = quote(&server, "q1", &asked).await;
        if answer.status != 409 {
            break answer;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(found.headers["idempotency-replayed"], "true");
    assert_eq!((figures(&found).as_str(), engine.calls().len()), ("0 12.5 2.38 14.88", 1));
}

pub async fn who_may_ask(ground: Ground) {
    let server = with_rates(ground).await;
    let asked = request("de", "exclusive", &["1"]).to_string();
    let (read, own) = (server.key("read", None).await, server.key("operate", Some("acme")).await);
    let other = server.key("operate", Some("globex")).await;
    let ask = async |key: &str| server.once_as(key, (Method::POST, QUOTES), "q1", &asked).await;
    ask(&read).await.problem(403, "scope_missing");
    ask(&other).await.problem(403, "tenant_forbidden");
    assert_eq!(ask(&own).await.status, 200, "a tenant may ask what it will pay");
    let path = format!("{QUOTES}/q1");
    server.get_as(&other, &path).await.problem(403, "tenant_forbidden");
    server.get_as(&read, &path).await.ok(200);
    server.faults.set_down(true);
    for path in [path.as_str(), "/v1/tax/rates", "/v1/coupons"] {
        server.get(path).await.problem(503, "store_unavailable");
    }
}
