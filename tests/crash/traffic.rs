//! Traffic of every kind that is checked against the model while servers come and go.
//!
//! Senders make up events and deliver them, some again and some with another payload under the same
//! key, each request until it is answered. A reader asks for usage meanwhile. At the end everything
//! is sent once more: nothing may be accepted, and every answer must be exact.

use super::load::client;
use super::model::{DAY, Delivery, HOUR, Inbox, METERS, Model, Payload, Question, TENANTS};
use super::server::KEY;
use crate::dice::Dice;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const SENDERS: u64 = 4;
/// A request that has no answer for so long is a violation.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(20);
/// Usage older than this is not accepted; the oldest events are a day younger.
const HORIZON_DAYS: i64 = 7;
/// Events in a request of the last redelivery.
const REDELIVERED_AT_ONCE: usize = 1_000;

pub struct Traffic {
    model: Mutex<Model>,
    client: reqwest::Client,
    urls: Mutex<Vec<String>>,
    over: AtomicBool,
}

impl Traffic {
    /// Towards servers that may change their addresses.
    pub fn new(model: Model, urls: Vec<String>) -> Arc<Self> {
        let (model, urls) = (Mutex::new(model), Mutex::new(urls));
        Arc::new(Self { model, client: client(), urls, over: AtomicBool::new(false) })
    }

    pub fn move_server(&self, which: usize, url: &str) {
        url.clone_into(&mut self.urls.lock().unwrap()[which]);
    }

    pub fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap()
    }

    /// The model, or what contradicts it so far.
    pub fn result(&self) -> Result<Model, Vec<String>> {
        let model = self.model();
        if model.violations().is_empty() {
            Ok(model.clone())
        } else {
            Err(model.violations().to_vec())
        }
    }

    /// Starts the senders and the reader.
    pub fn begin(self: &Arc<Self>, dice: &mut Dice) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        for sender in 0..SENDERS {
            let (traffic, dice) = (Arc::clone(self), Dice(dice.below(u64::MAX)));
            tasks.spawn(async move { traffic.send(sender, dice).await });
        }
        let (traffic, dice) = (Arc::clone(self), Dice(dice.below(u64::MAX)));
        tasks.spawn(async move { traffic.read(dice).await });
        tasks
    }

    /// Waits until the senders have their answers.
    pub async fn end(&self, tasks: JoinSet<()>) {
        self.over.store(true, Ordering::SeqCst);
        tasks.join_all().await;
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    async fn send(&self, sender: u64, mut dice: Dice) {
        let mut number = 0;
        while !self.is_over() {
            let most = *pick(&mut dice, &[1, 10, 60, 400]);
            let batch: Vec<Delivery> = {
                let (mut model, size) = (self.model(), 1 + dice.below(most));
                let mut next = |_| {
                    number += 1;
                    choose_delivery(&mut model, &mut dice, &format!("{sender}-{number}"))
                };
                (0..size).map(&mut next).collect()
            };
            let first = roll(&mut dice, 3);
            self.deliver_everywhere(&batch, first).await;
            tokio::time::sleep(Duration::from_millis(dice.below(8))).await;
        }
    }

    /// Where there are several servers, two get the batch at the same time.
    async fn deliver_everywhere(&self, batch: &[Delivery], first: usize) {
        let copies = self.urls.lock().unwrap().len().min(2);
        let deliver = (first..first + copies).map(|server| self.deliver(batch, server));
        futures_util::future::join_all(deliver).await;
    }

    /// Sends a batch until it is answered.
    async fn deliver(&self, batch: &[Delivery], mut server: usize) {
        let (started, body) = (Instant::now(), self.model().body(batch));
        while started.elapsed() < PATIENCE {
            let counted_before = self.model().send(batch);
            let request = self.client.post(self.url(server, "/v1/events"));
            let request = request.header("content-type", "application/x-ndjson");
            match answer_to(request.body(body.clone())).await {
                Some((200, answer)) => {
                    return self.model().learn(batch, &counted_before, &answer);
                }
                None | Some((429 | 503, _)) => {}
                Some((status, answer)) => {
                    return self.model().violate(format!("a batch got {status}: {answer}"));
                }
            }
            server += 1;
            tokio::time::sleep(PAUSE).await;
        }
        self.model().violate(format!("{} events have no answer", batch.len()));
    }

    async fn read(&self, mut dice: Dice) {
        while !self.is_over() {
            let (tenant, meter) = (roll(&mut dice, TENANTS.len()), roll(&mut dice, METERS.len()));
            let question = *pick(&mut dice, &Question::all_of(tenant, meter));
            self.ask(&question, roll(&mut dice, 3)).await;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Compares the answer to a question, if there is one.
    async fn ask(&self, question: &Question, server: usize) -> bool {
        let before = self.model().usage(question);
        let (from, to) = self.model().range();
        let [from, to] = [from, to].map(|at| jiff::Timestamp::from_microsecond(at).unwrap());
        let path = format!("/v1/usage?{}&from={from}&to={to}", question.parameters());
        match answer_to(self.client.get(self.url(server, &path))).await {
            Some((200, answer)) => self.model().compare(question, &before, &answer),
            None | Some((429 | 503, _)) => return false,
            Some((status, answer)) => {
                self.model().violate(format!("{path} got {status}: {answer}"));
            }
        }
        true
    }

    /// Sends every payload once more and compares everything with what must be counted by now.
    pub async fn settle(&self) {
        let everything: Vec<Delivery> = {
            let model = self.model();
            let payloads = |key| (0..model.payloads_of(key)).map(move |payload| (key, payload));
            let respelled = |(key, payload)| Delivery { key, payload, respelled: key % 2 == 0 };
            (0..model.keys()).flat_map(payloads).map(respelled).collect()
        };
        for batch in everything.chunks(REDELIVERED_AT_ONCE) {
            self.deliver_everywhere(batch, 0).await;
        }
        self.model().demand_certainty();
        self.compare().await;
    }

    /// Compares every answer about usage, counters and inboxes.
    pub async fn compare(&self) {
        for (tenant, meter) in pairs() {
            for question in Question::all_of(tenant, meter) {
                let started = Instant::now();
                while !self.ask(&question, 0).await {
                    if started.elapsed() > PATIENCE {
                        return self.model().violate(format!("{question:?} has no answer"));
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        self.compare_counters().await;
        self.compare_inbox(Inbox::Conflicts, "conflicts").await;
        self.compare_inbox(Inbox::Quarantine, "quarantine").await;
    }

    async fn compare_counters(&self) {
        let mut sums: Vec<BTreeMap<String, u64>> = vec![BTreeMap::new(); TENANTS.len()];
        for row in self.list("/v1/counters?limit=1000", "counters").await {
            let tenant = TENANTS.iter().position(|tenant| row["tenant"] == **tenant).unwrap();
            for (name, value) in row.as_object().unwrap() {
                if let Some(number) = value.as_u64() {
                    *sums[tenant].entry(name.clone()).or_default() += number;
                }
            }
        }
        for (tenant, sums) in sums.iter().enumerate() {
            self.model().compare_counters(tenant, sums);
        }
    }

    async fn compare_inbox(&self, inbox: Inbox, name: &str) {
        let list = if name == "quarantine" { "quarantined" } else { name };
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let records = self.list(&format!("/v1/{name}?limit=1000"), list).await;
        let keys: BTreeSet<_> =
            records.iter().map(|record| (text(&record["tenant"]), text(&record["id"]))).collect();
        self.model().compare_inbox(inbox, &keys);
    }

    /// Every page of a list.
    async fn list(&self, path: &str, name: &str) -> Vec<Value> {
        let (started, mut rows, mut after) = (Instant::now(), Vec::new(), String::new());
        loop {
            assert!(started.elapsed() < PATIENCE, "{path} has no answer");
            let request = self.client.get(self.url(0, &format!("{path}{after}")));
            let Some((200, answer)) = answer_to(request).await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            rows.extend(answer[name].as_array().unwrap().iter().cloned());
            let next = &answer["next_after"];
            if next.is_null() {
                return rows;
            }
            let next = next.as_str().map_or_else(|| next.to_string(), str::to_owned);
            after = format!("&after={next}");
        }
    }

    fn url(&self, server: usize, path: &str) -> String {
        let urls = self.urls.lock().unwrap();
        format!("{}{path}", urls[server % urls.len()])
    }
}

/// None if there is no answer, as from a server that was killed.
async fn answer_to(request: reqwest::RequestBuilder) -> Option<(u16, Value)> {
    let response = request.bearer_auth(KEY).send().await.ok()?;
    let status = response.status().as_u16();
    let bytes = response.bytes().await.ok()?;
    Some((status, serde_json::from_slice(&bytes).unwrap_or(Value::Null)))
}

fn pairs() -> impl Iterator<Item = (usize, usize)> {
    (0..TENANTS.len()).flat_map(|tenant| (0..METERS.len()).map(move |meter| (tenant, meter)))
}

/// A new event, or one that was sent before, lately or long ago, in any of its payloads.
fn choose_delivery(model: &mut Model, dice: &mut Dice, name: &str) -> Delivery {
    let known = model.keys();
    let key = match dice.below(10) {
        0 if known > 0 => roll(dice, known),
        1 | 2 if known > 0 => known - 1 - roll(dice, known.min(300)),
        _ => {
            // Ids whose order in a language is not that of their bytes.
            let id = format!("{}{name}", pick(dice, &["a", "B", "_", "é"]));
            let too_old = dice.below(100) == 0;
            let payloads = make_payloads(model.now, dice, too_old);
            model.add_key(roll(dice, TENANTS.len()), id, payloads, too_old);
            known
        }
    };
    let payload = roll(dice, model.payloads_of(key));
    Delivery { key, payload, respelled: dice.below(2) == 0 }
}

/// One payload, and in some cases a copy with another time and a contradicting payload.
fn make_payloads(now: i64, dice: &mut Dice, too_old: bool) -> Vec<Payload> {
    let first = make_payload(now, dice);
    if too_old {
        return vec![Payload { at: first.at - (HORIZON_DAYS + 1) * DAY, ..first }];
    }
    let mut payloads = vec![first.clone()];
    if dice.below(5) == 0 {
        let at = make_time(now, dice);
        payloads.extend((at != first.at).then(|| Payload { at, ..first.clone() }));
    }
    payloads.extend(match dice.below(24) {
        0 => Some(Payload { units: first.units + 1, ..first }),
        1 => Some(Payload { trial: !first.trial, ..first }),
        2 => Some(Payload { meter: (first.meter + 1) % METERS.len(), ..first }),
        3 => Some(Payload { region: Some("ap"), at: make_time(now, dice), ..first }),
        _ => None,
    });
    payloads
}

fn make_payload(now: i64, dice: &mut Dice) -> Payload {
    let digits = u32::try_from(1 + dice.below(26)).unwrap();
    let random = (0..4).fold(0u128, |number, _| (number << 31) + u128::from(dice.below(1 << 31)));
    let magnitude = i128::try_from(random % 10u128.pow(digits)).unwrap();
    Payload {
        meter: roll(dice, METERS.len()),
        units: if dice.below(2) == 0 { magnitude } else { -magnitude },
        at: make_time(now, dice),
        subscription: *pick(dice, &[None, None, Some("sub_1")]),
        trial: dice.below(6) == 0,
        region: *pick(dice, &[None, Some("eu"), Some("us")]),
        tier: *pick(dice, &[None, Some("2.5")]),
        user: Some(dice.below(60)).filter(|user| *user < 50),
    }
}

/// Within the last six days, and often on the first moment of an hour, where events tie.
fn make_time(now: i64, dice: &mut Dice) -> i64 {
    let back = i64::try_from(dice.below(1 << 31)).unwrap() * 251 % ((HORIZON_DAYS - 1) * DAY);
    let at = now - back;
    if dice.below(4) == 0 { at.div_euclid(HOUR) * HOUR } else { at }
}

pub fn roll(dice: &mut Dice, sides: usize) -> usize {
    usize::try_from(dice.below(u64::try_from(sides).unwrap())).unwrap()
}

pub fn pick<'i, T>(dice: &mut Dice, items: &'i [T]) -> &'i T {
    &items[roll(dice, items.len())]
}
