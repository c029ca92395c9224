//! The tenant that must not notice: single events, one after the other, with a new connection for
//! every twentieth, so that places for connections matter too.

use crate::attacks::now;
use crate::http1::{Connection, Request, VICTIM};
use anyhow::{Context, Result, ensure};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const REQUESTS_PER_CONNECTION: u64 = 20;
/// Leaves the server time for others, as a tenant with moderate traffic does.
const PAUSE: Duration = Duration::from_millis(5);

pub struct Victim {
    server: SocketAddr,
    pub key: String,
    /// Events that the server has accepted.
    pub accepted: u64,
    sent: u64,
}

/// Times in milliseconds.
#[derive(Debug, Clone, Copy, Default, serde::Serialize)]
pub struct Latency {
    pub requests: usize,
    /// Answered with anything but 200: each was sent again until it was accepted.
    pub refused: u64,
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

impl Victim {
    pub fn new(server: SocketAddr, key: String) -> Self {
        Self { server, key, accepted: 0, sent: 0 }
    }

    pub async fn send_for(&mut self, lasting: Duration) -> Result<Latency> {
        let started = Instant::now();
        let (mut times, mut refused) = (Vec::new(), 0);
        let mut connection = None;
        while started.elapsed() < lasting {
            let sent = Instant::now();
            if self.sent.is_multiple_of(REQUESTS_PER_CONNECTION) || connection.is_none() {
                connection = Connection::open(self.server, VICTIM).await.ok();
            }
            let accepted = match &mut connection {
                Some(open) => self.send_one(open).await.unwrap_or(false),
                None => false,
            };
            if accepted {
                times.push(sent.elapsed().as_secs_f64() * 1e3);
                (self.accepted, self.sent) = (self.accepted + 1, self.sent + 1);
            } else {
                refused += 1;
                connection = None;
            }
            tokio::time::sleep(PAUSE).await;
        }
        times.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| times.get((times.len() as f64 * share) as usize).copied();
        let max = times.last().copied().unwrap_or(f64::INFINITY);
        let (p50, p99) = (at(0.5).unwrap_or(max), at(0.99).unwrap_or(max));
        Ok(Latency { requests: times.len(), refused, p50, p99, max })
    }

    /// An event that was sent and not answered has the same id the next time.
    async fn send_one(&self, connection: &mut Connection) -> Result<bool> {
        let (n, at) = (self.sent, now());
        let body = format!(
            r#"{{"id":"v{n}","tenant":"victim","meter":"calls","occurred_at":"{at}","quantity":"1"}}"#
        );
        let request = Request::post("/v1/events", &self.key, body.into_bytes());
        Ok(connection.exchange(&request).await?.0 == 200)
    }

    /// Every event was counted once.
    pub async fn verify(&self) -> Result<()> {
        let mut connection = Connection::open(self.server, VICTIM).await?;
        let path = "/v1/usage?tenant=victim&meter=calls";
        let (status, body) = connection.exchange(&Request::get(path, &self.key)).await?;
        ensure!(status == 200, "{path}: status {status}: {}", String::from_utf8_lossy(body));
        let usage: serde_json::Value = serde_json::from_slice(body)?;
        let total = usage["total"].as_str().context("a total")?;
        ensure!(total == self.accepted.to_string(), "{total} counted, {} sent", self.accepted);
        Ok(())
    }
}
