//! Crashes of the inbound half at its named points: webhooks, readings, backfill, notices and
//! passes. After a restart, with everything sent again, each has had one effect.

use super::load::{client, get, put};
use super::server::{KEY, Place, Server};
use super::stage::{Stage, following};
use serde_json::{Value, json};
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use stripe_sim::{Options, SimRequest, Simulator, Timestamp, sign};

const SECRET: &str = "whsec_crash";

/// The settings besides those of the provider.
const SETTINGS: [(&str, &str); 1] = [("COUNTERFOIL_STRIPE_WEBHOOK_SECRETS", SECRET)];

/// A test that fails shows what its servers logged.
impl Drop for Stage {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.place.log_text());
        }
    }
}

impl Stage {
    /// Starts a server that crashes by itself, perhaps before it is ready.
    async fn crash_at_start(&self, point: &str) {
        if let Ok(mut server) = self.launch(&format!("{point}=return")) {
            crashed(&mut server, point).await;
        }
        self.end_leases().await;
    }

    /// A subscription of a tenant's customer; returns the event that tells of it.
    async fn subscribe(&self, server: &Server, tenant: &str) -> String {
        let (price, customer) = (self.price(tenant), self.ask("/v1/customers", &[]));
        put(server, &format!("/v1/tenants/{tenant}"), &json!({ "customer": customer })).await;
        self.ask("/v1/subscriptions", &[("customer", &customer), ("items[0][price]", &price)]);
        let simulator = self.handle.simulator();
        let list = simulator.lock().unwrap().handle(&SimRequest::get("/v1/events?limit=1"));
        list.json()["data"][0].to_string()
    }

    /// Lets every lease end, as time would, and brings what was put off forward.
    async fn end_leases(&self) {
        let sqlite = "UPDATE leases SET until = 0;
            UPDATE mirrors SET leased_until = NULL;
            UPDATE mirrors SET due_at = 1 WHERE due_at IS NOT NULL;
            UPDATE outbox SET leased_until = 1 WHERE leased_until IS NOT NULL";
        match &self.place {
            Place::Directory(directory) => {
                let path = directory.path().join("counterfoil.db");
                rusqlite::Connection::open(path).unwrap().execute_batch(sqlite).unwrap();
            }
            Place::Database { url, .. } => {
                let sql = sqlite.replace("= 0", "= 'epoch'").replace("= 1", "= 'epoch'");
                let (client, connection) =
                    tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
                tokio::spawn(connection);
                client.batch_execute(&sql).await.unwrap();
            }
        }
    }
}

async fn crashed(server: &mut Server, point: &str) {
    let ended = server.ended_within(Duration::from_secs(30)).await;
    assert!(ended.is_some_and(|status| !status.success()), "it crashes at {point}");
}

/// None where the server is gone before it answers.
async fn post(server: &Server, path: &str, body: &str) -> Option<Value> {
    let request = client().post(format!("{}{path}", server.url)).bearer_auth(KEY);
    let signature = sign(SECRET, jiff::Timestamp::now().as_second(), body);
    let request = request.header("stripe-signature", signature);
    let request = request.header("content-type", "application/json").body(body.to_owned());
    let answer = request.send().await.ok()?;
    let status = answer.status();
    let body = answer.bytes().await.ok()?;
    assert!(status.is_success(), "{path}: {}", String::from_utf8_lossy(&body));
    serde_json::from_slice(&body).ok()
}

/// Asks until the answer is as wanted.
async fn until<F: Future<Output = Value>>(
    what: &str,
    mut ask: impl FnMut() -> F,
    wanted: impl Fn(&Value) -> bool,
) -> Value {
    let mut last = Value::Null;
    for _ in 0..600 {
        last = ask().await;
        if wanted(&last) {
            return last;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{what}: {last}");
}

async fn webhooks(server: &Server) -> Vec<Value> {
    get(server, "/v1/webhooks?limit=1000").await["webhooks"].as_array().unwrap().clone()
}

/// Waits until the only webhook is applied, sends it once more, and counts its effects.
async fn check_one_effect(stage: &Stage, server: &Server, body: &str, deliveries: u64) {
    let page = || get(server, "/v1/webhooks");
    until("it is applied", page, |page| page["webhooks"][0]["status"] == "applied").await;
    assert_eq!(post(server, "/webhooks/stripe", body).await.unwrap()["duplicate"], true);
    let told = webhooks(server).await;
    assert_eq!(told.len(), 1, "{told:#?}");
    assert_eq!(told[0]["deliveries"], deliveries + 1);
    let timeline = get(server, "/v1/timeline?tenant=acme").await;
    assert_eq!(timeline["stretches"].as_array().unwrap().len(), 1, "{timeline}");
    assert_eq!(timeline["stamps"][0]["status"], "active");
    assert_eq!(stage.place.check(), Vec::<String>::new());
}

async fn webhook_crashes(place: Place, point: &str, stored: bool) {
    let stage = Stage::set(place, following(), &SETTINGS).await;
    let mut server = stage.start();
    let body = stage.subscribe(&server, "acme").await;
    server.kill();
    let mut server = stage.launch(&format!("{point}=return")).unwrap();
    assert_eq!(post(&server, "/webhooks/stripe", &body).await, None, "nobody is answered");
    crashed(&mut server, point).await;
    let server = stage.start();
    assert_eq!(webhooks(&server).await.len(), usize::from(stored), "{point}");
    let again = post(&server, "/webhooks/stripe", &body).await.unwrap();
    assert_eq!(again["duplicate"], stored, "{point}");
    check_one_effect(&stage, &server, &body, 1 + u64::from(stored)).await;
}

/// The object was read and the reading not written: it is read again.
async fn reading_crashes(place: Place) {
    let mut stage = Stage::set(place, following(), &SETTINGS).await;
    let mut server = stage.start();
    let body = stage.subscribe(&server, "acme").await;
    stage.handle.stop().await.unwrap();
    assert_eq!(post(&server, "/webhooks/stripe", &body).await.unwrap()["duplicate"], false);
    server.kill();
    stage.end_leases().await;
    stage.handle.restart().await.unwrap();
    let reads = |stage: &Stage| {
        let simulator = stage.handle.simulator();
        let calls = simulator.lock().unwrap().calls().clone();
        calls.get("GET /v1/subscriptions/:id").copied().unwrap_or(0)
    };
    stage.crash_at_start("mirror.before_record").await;
    assert_eq!(reads(&stage), 1, "it crashed after the reading");
    let server = stage.start();
    check_one_effect(&stage, &server, &body, 1).await;
    assert_eq!(reads(&stage), 2);
}

/// A page was recorded and the cursor not: it is read again, and nothing is there twice.
async fn backfill_crashes(place: Place) {
    let now = Timestamp::now();
    let an_hour_ago = Timestamp::from_seconds(now.seconds() - 3_600);
    let mut simulator = Simulator::new(an_hour_ago, Options::default());
    for _ in 0..150 {
        assert_eq!(simulator.handle(&SimRequest::form("/v1/customers", &[])).status, 200);
    }
    simulator.set_clock(now);
    let stage = Stage::set(place, simulator, &SETTINGS).await;
    stage.crash_at_start("backfill.before_cursor").await;
    let server = stage.start();
    let page = || get(&server, "/v1/webhooks?limit=1000");
    let all =
        until("all are found", page, |page| page["webhooks"].as_array().unwrap().len() == 150)
            .await;
    let found = all["webhooks"].as_array().unwrap();
    let mut ids: Vec<&str> = found.iter().map(|hook| hook["event_id"].as_str().unwrap()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 150);
    assert!(found.iter().all(|hook| hook["source"] == "backfilled" && hook["status"] == "kept"));
    let calls = stage.handle.simulator().lock().unwrap().calls().clone();
    assert_eq!(calls["GET /v1/events"], 3, "only the page whose cursor was lost is read again");
}

/// Who takes notices: their ids, in the order in which they came.
async fn receiver() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/alerts", listener.local_addr().unwrap());
    let ids: Arc<Mutex<Vec<String>>> = Arc::default();
    let kept = Arc::clone(&ids);
    let receive = move |headers: axum::http::HeaderMap| {
        let id = headers["webhook-id"].to_str().unwrap().to_owned();
        kept.lock().unwrap().push(id);
        async { "taken" }
    };
    let router = axum::Router::new().fallback(receive);
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, ids)
}

/// A notice was sent and that not written: it is sent again, under the same id.
async fn notice_crashes(place: Place) {
    let (url, ids) = receiver().await;
    let mut stage = Stage::set(place, following(), &SETTINGS).await;
    stage.settings.extend([
        ("COUNTERFOIL_ALERTS_WEBHOOK_URL", url),
        ("COUNTERFOIL_ALERTS_WEBHOOK_SECRET", "bm90aWNlcyBvZiBjcmFzaGVz".to_owned()),
        ("COUNTERFOIL_ALERTS_ALLOW_PRIVATE", "true".to_owned()),
    ]);
    let mut server = stage.launch("outbox.before_settle=return").unwrap();
    put(&server, "/v1/meters/calls", &json!({ "aggregation": "sum" })).await;
    let threshold = json!({
        "tenant": "acme", "meter": "calls", "kind": "quota", "period": "month", "limit": "1",
    });
    put(&server, "/v1/thresholds", &threshold).await;
    let event = json!({
        "tenant": "acme", "id": "e1", "meter": "calls", "quantity": "5",
        "occurred_at": jiff::Timestamp::now().to_string(),
    });
    post(&server, "/v1/events", &event.to_string()).await;
    crashed(&mut server, "outbox.before_settle").await;
    assert_eq!(ids.lock().unwrap().len(), 1, "it was sent");
    stage.end_leases().await;
    let server = stage.start();
    let sent = "counterfoil_notices_total{destination=\"webhook\",result=\"sent\"} 1";
    let metrics = || async {
        let url = format!("{}/metrics", server.url);
        let answer = client().get(url).bearer_auth(KEY).send().await.unwrap();
        Value::String(answer.text().await.unwrap())
    };
    until("it is settled", metrics, |text| text.as_str().unwrap().contains(sent)).await;
    let ids = ids.lock().unwrap().clone();
    assert_eq!(ids.len(), 2);
    assert_eq!(ids[0], ids[1], "by its id it is known as the same");
    let alerts = get(&server, "/v1/alerts").await;
    assert_eq!(alerts["alerts"].as_array().unwrap().len(), 1, "{alerts}");
}

/// A pass was done and not closed: it is done again, and its rows are there once.
async fn pass_crashes(place: Place) {
    let stage = Stage::set(place, following(), &SETTINGS).await;
    let mut server = stage.start();
    stage.subscribe(&server, "acme").await;
    let today = jiff::Timestamp::now();
    let day = |offset: i64| {
        let at = today + jiff::SignedDuration::from_hours(24 * offset);
        at.to_string()[..10].to_owned()
    };
    let from = format!("{}T00:00:00Z", day(-7));
    let billed = json!({ "aggregation": "sum", "billing": { "from": from } });
    put(&server, "/v1/meters/acme", &billed).await;
    let event = json!({
        "tenant": "acme", "id": "e1", "meter": "acme", "quantity": "5",
        "occurred_at": (today - jiff::SignedDuration::from_hours(48)).to_string(),
    });
    post(&server, "/v1/events", &event.to_string()).await.unwrap();
    server.kill();
    stage.end_leases().await;
    let mut server = stage.launch("reconcile.before_close=return").unwrap();
    let order = json!({ "from": day(-3), "to": day(0) }).to_string();
    post(&server, "/v1/passes", &order).await;
    crashed(&mut server, "reconcile.before_close").await;
    stage.end_leases().await;
    let server = stage.start();
    let page = || get(&server, "/v1/passes");
    let closed = until("it is closed", page, |page| page["passes"][0]["state"] == "closed").await;
    let passes = closed["passes"].as_array().unwrap();
    assert_eq!(passes.len(), 1, "{closed}");
    assert_eq!(passes[0]["pairs"], passes[0]["pairs_done"]);
    let rows = get(&server, &format!("/v1/passes/{}/rows", passes[0]["id"])).await;
    let rows = rows["rows"].as_array().unwrap();
    let mut days: Vec<String> = rows
        .iter()
        .map(|row| format!("{} {} {}", row["tenant"], row["meter"], row["from"]))
        .collect();
    assert!(!days.is_empty());
    days.sort();
    days.dedup();
    assert_eq!(days.len(), rows.len(), "{rows:#?}");
}

macro_rules! on_both_stores {
    ($($test:ident: |$place:ident| $run:expr;)*) => {
        mod sqlite { use super::*; $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                let $place = Place::sqlite();
                $run.await;
            }
        )* }
        mod postgres { use super::*; $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                let Some($place) = Place::postgres().await else { return };
                $run.await;
            }
        )* }
    };
}

on_both_stores! {
    webhook_before_commit: |place| webhook_crashes(place, "webhook.before_commit", false);
    webhook_after_commit: |place| webhook_crashes(place, "webhook.after_commit", true);
    mirror_before_record: |place| reading_crashes(place);
    backfill_before_cursor: |place| backfill_crashes(place);
    notice_before_settle: |place| notice_crashes(place);
    reconcile_before_close: |place| pass_crashes(place);
}
