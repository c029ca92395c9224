//! Speaking to a server: one request, one answer, and what to do about a refusal.
//!
//! Invariant: a request is only ever repeated as it was, bytes and ids untouched, so that the
//! server can tell that it is the same one. The key is in no message.

use bytes::Bytes;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use reqwest::{Method, StatusCode, Url};
use serde::Serialize;
use std::time::{Duration, Instant};

/// How long a server may take for one answer; longer than its own limits.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Waits between attempts double from the first of these to the second, and a random part of each
/// is waited, so that many senders do not come back together.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// A server that asks for longer than this is asked again after it.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// Which server, and with which key.
#[derive(clap::Args, Debug, Clone)]
pub struct ServerArguments {
    /// Address of the server
    #[arg(long, env = "COUNTERFOIL_URL", default_value = "http://127.0.0.1:8787")]
    pub url: String,
    /// Counterfoil API key
    #[arg(long, env = "COUNTERFOIL_KEY", hide_env_values = true)]
    pub key: Option<String>,
}

pub struct Client {
    http: reqwest::Client,
    url: Url,
    authorization: HeaderValue,
}

/// Why there is no answer to use.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Nobody answered, so nobody knows whether the request was done.
    #[error("{0}")]
    NoAnswer(String),
    #[error("{text}")]
    Refused { status: StatusCode, text: String, retry_after: Option<Duration> },
}

impl Failure {
    /// Whether the same request may succeed later.
    pub fn passes(&self) -> bool {
        match self {
            Self::NoAnswer(_) => true,
            Self::Refused { status, .. } => {
                matches!(status.as_u16(), 408 | 429 | 500 | 502 | 503 | 504)
            }
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::NoAnswer(_) => None,
            Self::Refused { retry_after, .. } => *retry_after,
        }
    }
}

impl Client {
    pub fn new(server: &ServerArguments) -> anyhow::Result<Self> {
        let refuse = || anyhow::anyhow!("--url is an address such as http://127.0.0.1:8787");
        let url = Url::parse(&server.url).map_err(|_| refuse())?;
        if !matches!(url.scheme(), "http" | "https") || url.cannot_be_a_base() {
            return Err(refuse());
        }
        let key = server.key.as_deref().filter(|key| !key.is_empty()).ok_or_else(|| {
            anyhow::anyhow!(
                "a key is needed: give it with --key or COUNTERFOIL_KEY; the server printed the \
                 first one when it first started"
            )
        })?;
        let mut authorization = HeaderValue::from_str(&format!("Bearer {key}"))
            .map_err(|_| anyhow::anyhow!("the key has characters that no key has"))?;
        authorization.set_sensitive(true);
        let http = reqwest::Client::builder()
            .timeout(ANSWER_TIMEOUT)
            .connect_timeout(CONNECT_TIMEOUT)
            // Proxies of the environment are for the internet; a ledger is reached directly.
            .no_proxy()
            .build()?;
        Ok(Self { http, url, authorization })
    }

    /// Asks once.
    pub async fn call(&self, request: &Request) -> Result<Bytes, Failure> {
        let mut url = self.url.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(&request.path);
        }
        if !request.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&request.query);
        }
        let mut call = self
            .http
            .request(request.method.clone(), url)
            .header(AUTHORIZATION, self.authorization.clone())
            .header(ACCEPT, "application/json");
        if let Some((kind, body)) = &request.body {
            call = call.header(CONTENT_TYPE, *kind).body(body.clone());
        }
        let response = call.send().await.map_err(|error| self.no_answer(&error))?;
        let status = response.status();
        let retry_after = response.headers().get(RETRY_AFTER).and_then(read_retry_after);
        let body = response.bytes().await.map_err(|error| self.no_answer(&error))?;
        if status.is_success() {
            return Ok(body);
        }
        Err(Failure::Refused { status, text: problem_text(status, &body), retry_after })
    }

    /// Asks until there is an answer that will not change, or `patience` is over.
    pub async fn call_patiently(
        &self,
        request: &Request,
        patience: Duration,
        on_retry: impl Fn(&Failure),
    ) -> Result<Bytes, Failure> {
        let started = Instant::now();
        let mut backoff = BACKOFF_FIRST;
        loop {
            let failure = match self.call(request).await {
                Ok(body) => return Ok(body),
                Err(failure) => failure,
            };
            if !failure.passes() || started.elapsed() >= patience {
                return Err(failure);
            }
            on_retry(&failure);
            let asked = failure.retry_after().unwrap_or_default().min(RETRY_AFTER_MAX);
            tokio::time::sleep(asked + random_part(backoff)).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    fn no_answer(&self, error: &reqwest::Error) -> Failure {
        let url = &self.url;
        Failure::NoAnswer(if error.is_connect() {
            format!(
                "no server answers at {url}; start one with `counterfoil serve`, or give its \
                 address with --url"
            )
        } else if error.is_timeout() {
            format!("the server at {url} did not answer in time; trying again is safe")
        } else {
            format!("the connection to {url} broke before the answer; trying again is safe")
        })
    }
}

/// One request, which may be sent several times.
pub struct Request {
    pub method: Method,
    pub path: Vec<String>,
    pub query: Vec<(&'static str, String)>,
    /// Its media type and bytes.
    pub body: Option<(&'static str, Bytes)>,
}

impl Request {
    pub fn new(method: Method, path: &[&str]) -> Self {
        let path = path.iter().map(|part| (*part).to_owned()).collect();
        Self { method, path, query: Vec::new(), body: None }
    }

    pub fn get(path: &[&str]) -> Self {
        Self::new(Method::GET, path)
    }

    pub fn post(path: &[&str]) -> Self {
        Self::new(Method::POST, path)
    }

    /// A page of a list, with the filters that were given.
    pub fn list<const N: usize>(
        noun: &str,
        filters: [(&'static str, &Option<String>); N],
        limit: u16,
    ) -> Self {
        let mut request = Self::get(&["v1", noun]);
        let given = filters.into_iter().filter_map(|(name, value)| Some((name, value.clone()?)));
        request.query.extend(given);
        request.query.push(("limit", limit.to_string()));
        request
    }

    pub fn with_json(mut self, body: &impl Serialize) -> Self {
        let body = serde_json::to_vec(body).expect("a request is plain JSON");
        self.body = Some(("application/json", body.into()));
        self
    }

    /// A batch of events, one on each line; only problems are listed in the answer.
    pub fn events(lines: Bytes) -> Self {
        let mut request = Self::post(&["v1", "events"]);
        request.query.push(("results", "problems".into()));
        request.body = Some(("application/x-ndjson", lines));
        request
    }
}

fn read_retry_after(value: &HeaderValue) -> Option<Duration> {
    value.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// A problem of the server for people: what it says, its code, and what helps.
fn problem_text(status: StatusCode, body: &[u8]) -> String {
    let problem: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let text = |name: &str| problem.get(name).and_then(serde_json::Value::as_str);
    let (Some(detail), Some(code)) = (text("detail"), text("code")) else {
        return format!(
            "the server answered {status}; is this the address of a Counterfoil server?"
        );
    };
    let fix = match code {
        "unauthenticated" => "; give a valid key with --key or COUNTERFOIL_KEY",
        "scope_missing" => "; `counterfoil keys create` makes one",
        "payload_too_large" | "body_too_large" | "too_many_events" => "; use a smaller --batch",
        _ => "",
    };
    format!("{detail} ({code}){fix}")
}

/// A random part of `whole`, from nothing to all of it.
fn random_part(whole: Duration) -> Duration {
    let random = getrandom::u32().unwrap_or(u32::MAX / 2);
    let micros = u64::try_from(whole.as_micros()).unwrap_or(u64::MAX);
    Duration::from_micros(micros / 1_000 * u64::from(random % 1_001))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_a_part_of_the_whole() {
        let whole = Duration::from_millis(100);
        for _ in 0..1_000 {
            assert!(random_part(whole) <= whole);
        }
    }

    #[test]
    fn problems_are_shown_with_their_code() {
        let body = br#"{"detail":"this key is unknown","code":"unauthenticated"}"#;
        let text = problem_text(StatusCode::UNAUTHORIZED, body);
        assert!(text.starts_with("this key is unknown (unauthenticated); give a valid key"));
        assert!(problem_text(StatusCode::BAD_GATEWAY, b"<html>").contains("502"));
    }
}
