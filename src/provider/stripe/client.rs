//! A thin HTTP client of Stripe: a few calls, a pinned version, one pool of connections, and the
//! key in no log and no message.
//!
//! Invariant: it never retries by itself. The caller decides, by what is stored.

use super::answers::Reply;
use super::form;
use crate::clock::Clock;
use crate::config::{Secret, StripeConfig};
use crate::provider::deadline;
use crate::rules::time_source::Witness;
use crate::rules::timestamp::Timestamp;
use http::{HeaderMap, HeaderName, header};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::time::Duration;

/// The version whose answers this client reads.
pub const STRIPE_VERSION: &str = "2026-04-22.dahlia";
/// Most bytes of an answer that are read.
const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;

pub struct StripeClient {
    http: reqwest::Client,
    base: String,
    key: Secret,
    /// Hears the time of every answer.
    clock: Option<Clock>,
}

/// A meter at Stripe.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct StripeMeter {
    pub id: String,
    pub event_name: String,
    pub status: String,
    pub default_aggregation: Formula,
    /// hour or day: the meter is pre-aggregated.
    #[serde(default)]
    pub event_time_window: Option<String>,
    pub customer_mapping: PayloadKey,
    pub value_settings: PayloadKey,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Formula {
    pub formula: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct PayloadKey {
    pub event_payload_key: String,
}

#[derive(Deserialize)]
struct StripeAccount {
    id: String,
}

#[derive(Deserialize)]
struct StripeMeterList {
    data: Vec<StripeMeter>,
    has_more: bool,
}

#[derive(Deserialize)]
struct StripeList {
    data: Vec<Value>,
    has_more: bool,
}

/// Rows of a list, and what asks for those after them; none at the end.
#[derive(Debug)]
pub struct Page {
    pub rows: Vec<Value>,
    pub next: Option<String>,
}

impl StripeClient {
    pub fn connect(config: &StripeConfig) -> Result<Self, String> {
        if config.api_key.expose().starts_with("pk_") {
            return Err("stripe.api_key is a publishable key, which can send no usage; give a \
                        secret key (sk_…) or a restricted one (rk_…)"
                .into());
        }
        if config.api_key.is_empty() {
            return Err("there is no Stripe key; set COUNTERFOIL_STRIPE_API_KEY, or \
                        stripe.api_key in the settings"
                .into());
        }
        // It can only be installed already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .timeout(Duration::from_millis(config.timeout_ms))
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| format!("cannot make an HTTP client: {error}"))?;
        let base = config.api_base.trim_end_matches('/').to_owned();
        Ok(Self { http, base, key: config.api_key.clone(), clock: None })
    }

    pub fn heard_by(self, clock: &Clock) -> Self {
        Self { clock: Some(clock.clone()), ..self }
    }

    /// Makes the cheapest call there is; whatever is answered carries a date.
    pub async fn ask_time(&self) {
        let request = self.http.get(format!("{}/v1/billing/meters?limit=1", self.base));
        // Only the date of the answer matters, and the clock has heard it.
        let _ = self.exchange(request).await;
    }

    /// Whether the key moves real money.
    pub fn is_live(&self) -> bool {
        super::is_live(&self.key)
    }

    /// The id of the account that the key belongs to; none if the key may not read it, as some
    /// restricted keys may not.
    pub async fn read_account_id(&self) -> Result<Option<String>, String> {
        let reply = self.exchange(self.http.get(format!("{}/v1/account", self.base))).await?;
        match reply.status {
            200..=299 => serde_json::from_slice(&reply.body)
                .map(|account: StripeAccount| Some(account.id))
                .map_err(|error| format!("Stripe's answer to /v1/account cannot be read: {error}")),
            403 if reply.error().is_some() => Ok(None),
            _ => Err(format!("Stripe answered {}", reply.describe())),
        }
    }

    /// Sends a form. An error says that there was no answer, or not all of one.
    pub async fn post(
        &self,
        path: &str,
        body: Vec<u8>,
        request_key: Option<&str>,
    ) -> Result<Reply, String> {
        deadline::check()?;
        let mut request = self
            .http
            .post(format!("{}{path}", self.base))
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(body);
        if let Some(key) = request_key {
            request = request.header("idempotency-key", key);
        }
        self.exchange(request).await
    }

    /// Ends an object. Version 1 looks at no key of a DELETE; it is sent for Stripe's log.
    pub async fn delete(&self, path: &str, query: &str, key: &str) -> Result<Reply, String> {
        deadline::check()?;
        let request = self.http.delete(format!("{}{path}?{query}", self.base));
        self.exchange(request.header("idempotency-key", key)).await
    }

    /// Reads an object; an error says why there is none.
    pub async fn get<T: DeserializeOwned>(&self, path: &str, query: &str) -> Result<T, String> {
        let missing = || format!("Stripe knows no {path}");
        self.find(path, query).await?.ok_or_else(missing)
    }

    /// Reads an object that may not be there.
    pub async fn find<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &str,
    ) -> Result<Option<T>, String> {
        let mark = if query.is_empty() { "" } else { "?" };
        let reply =
            self.exchange(self.http.get(format!("{}{path}{mark}{query}", self.base))).await?;
        if reply.status == 404 && reply.error().is_some() {
            return Ok(None);
        }
        if !(200..300).contains(&reply.status) {
            return Err(format!("Stripe answered {}", reply.describe()));
        }
        serde_json::from_slice(&reply.body)
            .map(Some)
            .map_err(|error| format!("Stripe's answer to {path} cannot be read: {error}"))
    }

    /// One page of a list; `after` is `next` of the page before.
    pub async fn page(
        &self,
        path: &str,
        filters: &[(&str, &str)],
        after: Option<&str>,
    ) -> Result<Page, String> {
        let mut pairs = vec![("limit", "100")];
        pairs.extend(filters);
        pairs.extend(after.map(|id| ("starting_after", id)));
        let list: StripeList = self.get(path, &form::encode(&pairs)).await?;
        let last = list.data.last().and_then(|row| row["id"].as_str().map(str::to_owned));
        if list.has_more && last.is_none() {
            return Err(format!("a page of {path} does not say where the next begins"));
        }
        Ok(Page { next: last.filter(|_| list.has_more), rows: list.data })
    }

    /// Every meter of the account, active or not.
    pub async fn list_meters(&self) -> Result<Vec<StripeMeter>, String> {
        let mut meters: Vec<StripeMeter> = Vec::new();
        loop {
            let mut pairs = vec![("limit", "100")];
            pairs.extend(meters.last().map(|meter| ("starting_after", meter.id.as_str())));
            let page: StripeMeterList =
                self.get("/v1/billing/meters", &form::encode(&pairs)).await?;
            let ended = !page.has_more || page.data.is_empty();
            meters.extend(page.data);
            if ended {
                return Ok(meters);
            }
        }
    }

    async fn exchange(&self, request: reqwest::RequestBuilder) -> Result<Reply, String> {
        let no_answer = |error: reqwest::Error| {
            let what = if error.is_timeout() { "no answer in time" } else { "no answer" };
            format!("{what}: {}", innermost(&error.without_url()))
        };
        let asked = self.clock.as_ref().map(Clock::tick);
        let mut response = request
            .bearer_auth(self.key.expose())
            .header("stripe-version", STRIPE_VERSION)
            .send()
            .await
            .map_err(no_answer)?;
        if let (Some(clock), Some(asked)) = (&self.clock, asked)
            && let Some(theirs) = read_date(response.headers())
        {
            clock.witness(Witness::Provider, theirs, asked);
        }
        let mut reply = read_headers(response.status().as_u16(), response.headers());
        while let Some(part) = response.chunk().await.map_err(no_answer)? {
            if reply.body.len() + part.len() > BODY_BYTES_MAX {
                return Err(format!("an answer of more than {BODY_BYTES_MAX} bytes"));
            }
            reply.body.extend_from_slice(&part);
        }
        Ok(reply)
    }
}

/// When the answer was made, by the clock of the machine that made it.
fn read_date(headers: &HeaderMap) -> Option<Timestamp> {
    let text = headers.get(header::DATE)?.to_str().ok()?;
    let parser = jiff::fmt::rfc2822::DateTimeParser::new();
    Some(Timestamp::from_micros(parser.parse_timestamp(text).ok()?.as_microsecond()))
}

fn read_headers(status: u16, headers: &HeaderMap) -> Reply {
    let text = |name: &'static str| {
        headers.get(HeaderName::from_static(name)).and_then(|value| value.to_str().ok())
    };
    Reply {
        status,
        should_retry: text("stripe-should-retry").and_then(|flag| flag.parse().ok()),
        retry_after: text("retry-after").and_then(|seconds| seconds.parse().ok()),
        replayed: text("idempotent-replayed") == Some("true"),
        request_id: text("request-id").map(str::to_owned),
        body: Vec::new(),
    }
}

/// What is at the bottom of an error: what is above only says that a request failed.
fn innermost(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => innermost(source),
        None => error.to_string(),
    }
}
