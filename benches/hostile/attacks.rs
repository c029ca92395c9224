//! The attacks: what each one prepares, and what its processes send until they are killed.
//!
//! All but the first were found by a review of the product, whose numbers they keep. They use what
//! the attacker has: nothing, or keys that are bound to its own tenant.

use crate::http1::{ATTACKER, Connection, Request};
use crate::http2::greedy_peer;
use anyhow::{Context, Result, bail, ensure};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncWriteExt, Interest};

pub struct Attack {
    pub number: &'static str,
    pub what: &'static str,
    connections: usize,
    /// What the server holds before.
    pub prepared: Prepared,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prepared {
    Nothing,
    /// Events with a user each: groups of a query.
    Users(usize),
    /// Events of 4 KB.
    Large(usize),
    /// Events of a tenant each, by an unbound key.
    Tenants(usize),
    /// Events that came too late and are in quarantine.
    Late(usize),
}

pub const ATTACKS: [Attack; 11] = [
    Attack {
        number: "flood",
        what: "8 connections with batches of 1,000 valid events",
        connections: 8,
        prepared: Prepared::Nothing,
    },
    Attack {
        number: "H1",
        what: "10,000 bad items in 61 bytes, each under a new Idempotency-Key",
        connections: 8,
        prepared: Prepared::Nothing,
    },
    Attack {
        number: "H2",
        what: "64 connections ask for usage by user",
        connections: 64,
        prepared: Prepared::Users(400_000),
    },
    Attack {
        number: "H3",
        what: "HTTP/2 with window 0: 128 unread lists of 4 MB a connection",
        connections: 16,
        prepared: Prepared::Large(1_000),
    },
    Attack {
        number: "H4",
        what: "4,096 connections that never read, without a key",
        connections: 4_096,
        prepared: Prepared::Nothing,
    },
    Attack {
        number: "H5",
        what: "258 webhook bodies without their last byte, without a key",
        connections: 258,
        prepared: Prepared::Nothing,
    },
    Attack {
        number: "H6",
        what: "batches of 2,000 payloads under one id",
        connections: 2,
        prepared: Prepared::Nothing,
    },
    Attack {
        number: "M1",
        what: "16 MB bodies with a key that may only read",
        connections: 6,
        prepared: Prepared::Nothing,
    },
    Attack {
        number: "M2",
        what: "new groups, and 8 connections that ask for all of them",
        connections: 10,
        prepared: Prepared::Users(200_000),
    },
    Attack {
        number: "L5",
        what: "4 connections read counters among 200,000 tenants",
        connections: 4,
        prepared: Prepared::Tenants(200_000),
    },
    Attack {
        number: "L6",
        what: "late events into quarantine, and lists of it",
        connections: 4,
        prepared: Prepared::Late(500_000),
    },
];

/// How soon a connection that the server has closed is opened again. The attacks hold what they
/// have; how many connections in a second a machine can open and close is its kernel's affair.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// What an attacker has.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct Means {
    pub server: SocketAddr,
    pub ingest: String,
    pub read: String,
}

/// Answers by status; connections that ended otherwise are 0.
#[derive(Default)]
struct Seen {
    statuses: Mutex<BTreeMap<u16, u64>>,
    sent_bytes: AtomicU64,
}

/// A number that this process has not used before, and the one that prepared the attack neither.
fn next() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    (u64::from(std::process::id()) << 32) + NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Runs in a process of its own for the seconds that the environment names, then says what it saw.
pub async fn attack_from_environment(number: &str) -> Result<()> {
    let attack = ATTACKS.iter().find(|attack| attack.number == number);
    let attack = attack.with_context(|| format!("there is no attack {number}"))?;
    let means: Means = serde_json::from_str(&std::env::var("HOSTILE_MEANS")?)?;
    let lasting = Duration::from_secs(std::env::var("HOSTILE_SECONDS")?.parse()?);
    let (seen, bodies) = (Arc::<Seen>::default(), Arc::new(Bodies::make()));
    for place in 0..attack.connections {
        let (means, seen, bodies) = (means.clone(), seen.clone(), bodies.clone());
        tokio::spawn(async move {
            loop {
                if attack_once(attack.number, place, &means, &bodies, &seen).await.is_err() {
                    *seen.statuses.lock().unwrap().entry(0).or_default() += 1;
                }
                tokio::time::sleep(AGAIN_AFTER).await;
            }
        });
    }
    tokio::time::sleep(lasting).await;
    let sent = seen.sent_bytes.load(Ordering::Relaxed);
    println!("{}", serde_json::json!({"statuses": *seen.statuses.lock().unwrap(), "sent": sent}));
    std::process::exit(0);
}

/// Bodies that are the same each time.
struct Bodies {
    zeros: Vec<u8>,
    large: Vec<u8>,
    webhook: Vec<u8>,
}

impl Bodies {
    fn make() -> Self {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(format!("[{}0]", "0,".repeat(9_999)).as_bytes()).unwrap();
        let zeros = encoder.finish().unwrap();
        let members: Vec<String> = (0..1_300_000).map(|n| format!(r#""{n}":0"#)).collect();
        let large = format!("{{{}}}", members.join(",")).into_bytes();
        let mut webhook = b"POST /webhooks/stripe HTTP/1.1\r\nHost: bench\r\n\
            Stripe-Signature: t=1,v1=00\r\nContent-Length: 1048576\r\n\r\n"
            .to_vec();
        webhook.resize(webhook.len() + 1_048_575, b' ');
        Self { zeros, large, webhook }
    }
}

/// One connection, until the server ends it.
async fn attack_once(
    number: &str,
    place: usize,
    means: &Means,
    bodies: &Bodies,
    seen: &Seen,
) -> Result<()> {
    let mut connection = Connection::open(means.server, ATTACKER).await?;
    let events = "/v1/events?tenant=evil&limit=1000";
    let pipelined = "GET /openapi.json HTTP/1.1\r\nHost: bench\r\n\r\n".repeat(60);
    match number {
        "H3" => return hold(connection, &greedy_peer(events, &means.read, 128), seen).await,
        "H4" if place.is_multiple_of(2) => {
            return hold(connection, &greedy_peer("/openapi.json", "", 8), seen).await;
        }
        "H4" => return hold(connection, pipelined.as_bytes(), seen).await,
        "H5" => return hold(connection, &bodies.webhook, seen).await,
        _ => {}
    }
    loop {
        let request = request(number, place, means, bodies)?;
        let sent = request.head().len() + request.body.len();
        seen.sent_bytes.fetch_add(sent as u64, Ordering::Relaxed);
        let (status, _) = connection.exchange(&request).await?;
        *seen.statuses.lock().unwrap().entry(status).or_default() += 1;
    }
}

fn request<'a>(
    number: &str,
    place: usize,
    means: &'a Means,
    bodies: &'a Bodies,
) -> Result<Request<'a>> {
    let fresh = format!("Idempotency-Key: k{}\r\n", next());
    let post = |body: String| Request::post("/v1/events", &means.ingest, body.into_bytes());
    Ok(match number {
        "flood" => post(valid(1_000)),
        "H1" => Request {
            headers: format!("Content-Encoding: gzip\r\n{fresh}"),
            ..Request::post("/v1/events", &means.ingest, &bodies.zeros[..])
        },
        "H6" => post(conflicts(2_000)),
        "M1" => Request {
            headers: fresh,
            ..Request::post("/v1/quotes", &means.read, &bodies.large[..])
        },
        "M2" if place < 2 => post(users(1_000)),
        "H2" | "M2" => {
            Request::get("/v1/usage?tenant=evil&meter=logins&group_by=user", &means.read)
        }
        "L5" => Request::get("/v1/counters", &means.read),
        "L6" if place < 2 => post(late(10_000)),
        "L6" => Request::get("/v1/quarantine?tenant=evil&limit=1000", &means.read),
        other => bail!("there is no attack {other}"),
    })
}

/// Sends, and keeps the connection until the server closes it. Nothing is read.
async fn hold(mut connection: Connection, bytes: &[u8], seen: &Seen) -> Result<()> {
    seen.sent_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    connection.stream.write_all(bytes).await?;
    while !connection.stream.ready(Interest::READABLE).await?.is_read_closed() {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    Ok(())
}

/// Sends what the attack needs to be there.
pub async fn prepare(prepared: Prepared, means: &Means, admin: &str) -> Result<()> {
    let (events_of, size, total): (fn(usize) -> String, usize, usize) = match prepared {
        Prepared::Nothing => return Ok(()),
        Prepared::Users(total) => (users, 10_000, total),
        Prepared::Large(total) => (large, 1_000, total),
        Prepared::Tenants(total) => (tenants, 10_000, total),
        Prepared::Late(total) => (late, 10_000, total),
    };
    let key = if matches!(prepared, Prepared::Tenants(_)) { admin } else { &means.ingest };
    let mut connection = Connection::open(means.server, ATTACKER).await?;
    for _ in 0..total / size {
        let body = events_of(size);
        let request = Request::post("/v1/events?results=problems", key, body.into_bytes());
        let (status, answer) = connection.exchange(&request).await?;
        ensure!(status == 200, "status {status}: {}", String::from_utf8_lossy(answer));
    }
    Ok(())
}

fn valid(count: usize) -> String {
    events(count, |event, n| {
        let quantity = n % 100;
        write!(event, r#""id":"e{n}","tenant":"evil","meter":"calls","quantity":"{quantity}""#)
    })
}

fn users(count: usize) -> String {
    events(count, |event, n| {
        let head = r#""tenant":"evil","meter":"logins""#;
        write!(event, r#""id":"u{n}",{head},"properties":{{"user":"u{n}"}}"#)
    })
}

fn large(count: usize) -> String {
    let text = "x".repeat(3_900);
    events(count, |event, n| {
        let head = r#""tenant":"evil","meter":"calls","quantity":"1""#;
        write!(event, r#""id":"l{n}",{head},"properties":{{"text":"{text}"}}"#)
    })
}

fn tenants(count: usize) -> String {
    events(count, |event, n| {
        write!(event, r#""id":"t{n}","tenant":"t{n}","meter":"calls","quantity":"1""#)
    })
}

fn late(count: usize) -> String {
    let late = |event: &mut String, n: u64| {
        write!(event, r#""id":"q{n}","tenant":"evil","meter":"calls","quantity":"1""#)
    };
    events(count, late).replace(&now(), "2020-01-01T00:00:00Z")
}

/// All under the id that a program gives which forgot to make one.
fn conflicts(count: usize) -> String {
    events(count, |event, n| {
        let head = r#""id":"undefined","tenant":"evil","meter":"calls""#;
        write!(event, r#"{head},"quantity":"1","properties":{{"n":{n}}}"#)
    })
}

/// A batch of events that happened now; `write` gives the other members by the event's number.
fn events(count: usize, write: impl Fn(&mut String, u64) -> std::fmt::Result) -> String {
    let (mut body, at) = (String::from("["), now());
    for place in 0..count {
        body.push_str(if place == 0 { "{" } else { ",{" });
        write(&mut body, next()).unwrap();
        body.push_str(r#","occurred_at":""#);
        body.push_str(&at);
        body.push_str("\"}");
    }
    body.push(']');
    body
}

/// The begin of this hour.
pub fn now() -> String {
    jiff::Timestamp::now().strftime("%FT%H:00:00Z").to_string()
}
