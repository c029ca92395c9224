//! Events whose total tells how often each was counted, and the judge of what a server says.
//!
//! Event k of a tenant carries 10^(k - 12), so digit k of the tenant's total is the number of times
//! that event was counted: 0 lost, 1 right, 2 doubled. A second meter has large sums of many
//! events on few tenants.

use super::server::{KEY, Place, Server};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A meter of NUMERIC(27, 12) has this many digits.
const DIGITS: usize = 27;
const DECIMALS: usize = 12;
const BULK_TENANTS: usize = 3;

/// Some of a run's traffic; `name` keeps it apart from the rest.
pub struct Load {
    name: String,
    digit_tenants: usize,
    events: Vec<Event>,
    batches: Vec<Vec<usize>>,
}

struct Event {
    json: String,
    tenant: String,
    /// In units of 10^-12.
    units: i128,
    bulk: bool,
}

/// Which events were acknowledged, by their place.
pub struct Acknowledged(Mutex<Vec<bool>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// What was acknowledged must be counted; the rest may be, once.
    AfterCrash,
    /// Everything was sent again: everything must be counted once.
    Complete,
}

/// What a sender does when there is no answer, or 503.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failing {
    /// Gives up: the server was killed.
    Stop,
    /// Sends the same again.
    Retry,
}

enum Answer {
    Counted,
    /// The server is gone, or asks to come back: nobody knows what became of the batch.
    None,
    Wrong(String),
}

impl Load {
    pub fn new(name: &str, digit_tenants: usize, bulk_events: usize) -> Self {
        let now = jiff::Timestamp::now();
        let mut events = Vec::new();
        let mut add = |meter: &str, tenant: String, id: String, units: i128| {
            let unit = 10i128.pow(12);
            let quantity = format!("{}.{:012}", units / unit, units % unit);
            let json = format!(
                "{{\"tenant\":\"{tenant}\",\"id\":\"{id}\",\"meter\":\"{meter}\",\
                 \"quantity\":\"{quantity}\",\"occurred_at\":\"{now}\"}}"
            );
            events.push(Event { json, tenant, units, bulk: meter == "bulk" });
        };
        for tenant in 0..digit_tenants {
            for digit in 0..DIGITS {
                let units = 10i128.pow(u32::try_from(digit).unwrap());
                add("digits", format!("{name}-digit-{tenant}"), format!("digit-{digit}"), units);
            }
        }
        for number in 0..bulk_events {
            let tenant = format!("{name}-bulk-{}", number % BULK_TENANTS);
            let units = 900_000_000_000_000_000_000_000_001 + i128::try_from(number).unwrap();
            add("bulk", tenant, format!("bulk-{number}"), units);
        }
        let batches = shuffle(events.len()).chunks(40).map(<[usize]>::to_vec).collect();
        Self { name: name.to_owned(), digit_tenants, events, batches }
    }

    pub fn none_acknowledged(&self) -> Acknowledged {
        Acknowledged(Mutex::new(vec![false; self.events.len()]))
    }

    /// Sends every batch over several connections. Returns answers that no server may give.
    pub async fn send(
        &self,
        url: &str,
        connections: usize,
        failing: Failing,
        known: &Acknowledged,
    ) -> Vec<String> {
        let next = AtomicUsize::new(0);
        let connection = || async {
            let client = client();
            let mut wrong = Vec::new();
            loop {
                let place = next.fetch_add(1, Ordering::SeqCst);
                let Some(batch) = self.batches.get(place) else { return wrong };
                loop {
                    match self.send_batch(&client, url, batch, known).await {
                        Answer::Counted => break,
                        Answer::Wrong(answer) => {
                            wrong.push(format!("batch {place} was answered {answer}"));
                            break;
                        }
                        Answer::None if failing == Failing::Stop => return wrong,
                        Answer::None => tokio::time::sleep(Duration::from_millis(20)).await,
                    }
                }
            }
        };
        let connections = (0..connections).map(|_| connection());
        futures_util::future::join_all(connections).await.concat()
    }

    /// What was acknowledged is remembered.
    async fn send_batch(
        &self,
        client: &reqwest::Client,
        url: &str,
        batch: &[usize],
        known: &Acknowledged,
    ) -> Answer {
        let body: Vec<&str> = batch.iter().map(|place| self.events[*place].json.as_str()).collect();
        let sent = client
            .post(format!("{url}/v1/events?results=problems"))
            .bearer_auth(KEY)
            .header("content-type", "application/x-ndjson")
            .body(body.join("\n"))
            .send()
            .await;
        let Ok(response) = sent else { return Answer::None };
        let status = response.status().as_u16();
        let Ok(answer) = response.bytes().await else { return Answer::None };
        if status == 503 {
            return Answer::None;
        }
        let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap();
        let count = |name: &str| answer[name].as_u64().unwrap_or(0);
        let counted = count("accepted") + count("duplicates");
        if status != 200 || counted != u64::try_from(batch.len()).unwrap() {
            return Answer::Wrong(answer.to_string());
        }
        let mut known = known.0.lock().unwrap();
        for place in batch {
            known[*place] = true;
        }
        Answer::Counted
    }

    /// Everything that is wrong with what the server has counted.
    pub async fn examine(&self, url: &str, known: &Acknowledged, stage: Stage) -> Vec<String> {
        let known = known.0.lock().unwrap().clone();
        let mut violations = Vec::new();
        for tenant in 0..self.digit_tenants {
            let name = format!("{}-digit-{tenant}", self.name);
            let (total, _) = read_usage(url, &name, "digits").await;
            for digit in 0..DIGITS {
                let times = total / 10i128.pow(u32::try_from(digit).unwrap()) % 10;
                let needed = stage == Stage::Complete || known[tenant * DIGITS + digit];
                match times {
                    1 => {}
                    0 if needed => violations.push(format!("{name}: digit {digit} is lost")),
                    0 => {}
                    _ => violations.push(format!("{name}: digit {digit} counted {times} times")),
                }
            }
        }
        let mut bulk: BTreeMap<&str, [(i128, u64); 2]> = BTreeMap::new();
        for (event, known) in self.events.iter().zip(&known).filter(|(event, _)| event.bulk) {
            let [least, most] = bulk.entry(&event.tenant).or_default();
            let needed = stage == Stage::Complete || *known;
            *least = (least.0 + if needed { event.units } else { 0 }, least.1 + u64::from(needed));
            *most = (most.0 + event.units, most.1 + 1);
        }
        for (tenant, [least, most]) in bulk {
            let found = read_usage(url, tenant, "bulk").await;
            let sum_fits = (least.0..=most.0).contains(&found.0);
            if !sum_fits || !(least.1..=most.1).contains(&found.1) {
                violations.push(format!("{tenant}: {found:?} is not in {least:?} to {most:?}"));
            }
        }
        violations
    }

    /// Restarts after a crash: examines, sends everything again, examines, checks.
    pub async fn recover(&self, place: &Place, known: &Acknowledged) -> Vec<String> {
        let mut server = Server::start(place);
        let mut violations = self.examine(&server.url, known, Stage::AfterCrash).await;
        violations.extend(self.send(&server.url, 2, Failing::Retry, known).await);
        violations.extend(self.examine(&server.url, known, Stage::Complete).await);
        violations.extend(place.check());
        server.kill();
        violations
    }
}

/// Declares the meters; they stay declared.
pub async fn declare_meters(url: &str) {
    for meter in ["digits", "bulk"] {
        let spec = format!("{{\"aggregation\":\"sum\",\"scale\":{DECIMALS},\"precision\":27}}");
        let request = client().put(format!("{url}/v1/meters/{meter}")).bearer_auth(KEY).body(spec);
        let status = request.header("content-type", "application/json").send().await.unwrap();
        assert!(status.status().is_success(), "{}", status.text().await.unwrap());
    }
}

/// The total in units of 10^-12, and the number of events.
async fn read_usage(url: &str, tenant: &str, meter: &str) -> (i128, u64) {
    let day = |offset: i64| {
        let at = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(24 * offset);
        at.to_string()[..10].to_owned()
    };
    let (from, to) = (day(-1), day(2));
    let url = format!("{url}/v1/usage?tenant={tenant}&meter={meter}&from={from}&to={to}");
    let answer = client().get(url).bearer_auth(KEY).send().await.unwrap().bytes().await.unwrap();
    let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap();
    let total = answer["total"].as_str().unwrap_or_else(|| panic!("{answer}"));
    let (whole, fraction) = total.split_once('.').unwrap_or((total, ""));
    let units = format!("{whole}{fraction:0<DECIMALS$}").parse().unwrap();
    (units, answer["count"].as_u64().unwrap())
}

pub fn client() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().timeout(Duration::from_secs(30)).no_proxy().build().unwrap()
}

pub async fn get(server: &Server, path: &str) -> Value {
    let sent = client().get(format!("{}{path}", server.url)).bearer_auth(KEY).send().await.unwrap();
    serde_json::from_slice(&sent.bytes().await.unwrap()).unwrap()
}

pub async fn put(server: &Server, path: &str, body: &Value) {
    let request = client().put(format!("{}{path}", server.url)).bearer_auth(KEY);
    let request = request.header("content-type", "application/json").body(body.to_string());
    let answer = request.send().await.unwrap();
    assert!(answer.status().is_success(), "{path}: {}", answer.text().await.unwrap());
}

/// Places in an order that mixes tenants; the same each time.
fn shuffle(length: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..length).collect();
    places.sort_by_key(|place| {
        u64::try_from(*place).unwrap().wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(20)
    });
    places
}
