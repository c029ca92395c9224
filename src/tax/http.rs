//! An engine of the user's own, asked over HTTP.
//!
//! It gets the request and the discounts as JSON, with `Idempotency-Key`, and answers `{"lines":
//! [{"id": "…", "taxes": [{"jurisdiction", "name", "percent", "amount"}]}]}`: the taxes of each
//! line, all figures as strings. Net and gross are computed here.
//!
//! Invariant: every line is answered once, in order, with figures that are whole smallest units of
//! the currency; an answer that is not so is refused as a fault of the engine and nothing is
//! quoted.

use super::{NoQuote, TaxEngine};
use crate::config::{Secret, TaxConfig};
use crate::rules::quantity::Quantity;
use crate::rules::tax::{
    LineTax, PriceKind, Quote, QuoteRequest, QuotedLine, TaxRate, smallest, total_up,
};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Largest answer that is read.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

pub struct HttpEngine {
    client: reqwest::Client,
    url: reqwest::Url,
    token: Secret,
}

#[derive(Serialize)]
struct EngineRequest<'a> {
    request: &'a QuoteRequest,
    discounts: &'a [Quantity],
}

#[derive(Deserialize)]
struct Answered {
    lines: Vec<AnsweredLine>,
}

#[derive(Deserialize)]
struct AnsweredLine {
    id: String,
    taxes: Vec<LineTax>,
}

impl HttpEngine {
    pub fn connect(config: &TaxConfig) -> Result<Self, String> {
        let url = reqwest::Url::parse(&config.url)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https"))
            .ok_or("tax.engine is \"http\": set tax.url to the address that quotes")?;
        // It can only be installed already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .timeout(Duration::from_millis(config.timeout_ms))
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| format!("the client of tax.url: {error}"))?;
        Ok(Self { client, url, token: config.token.clone() })
    }

    async fn ask(&self, body: Vec<u8>, key: &str) -> Result<Answered, NoQuote> {
        let mut request = self
            .client
            .post(self.url.clone())
            .header("content-type", "application/json")
            .header("idempotency-key", key)
            .body(body);
        if !self.token.is_empty() {
            request = request.bearer_auth(self.token.expose());
        }
        let failed = |error: reqwest::Error| {
            NoQuote::Unavailable(format!("the tax engine: {}", error.without_url()))
        };
        let mut response = request.send().await.map_err(failed)?;
        let status = response.status();
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > ANSWER_BYTES_MAX {
                return Err(NoQuote::Unavailable("the tax engine's answer is too large".into()));
            }
        }
        if !status.is_success() {
            return Err(NoQuote::Unavailable(format!("the tax engine answered {status}")));
        }
        serde_json::from_slice(&bytes).map_err(|error| {
            NoQuote::Unavailable(format!("the tax engine's answer cannot be read: {error}"))
        })
    }
}

#[async_trait]
impl TaxEngine for HttpEngine {
    fn name(&self) -> &'static str {
        "http"
    }

    async fn quote(
        &self,
        request: &QuoteRequest,
        discounts: &[Quantity],
        _: &[TaxRate],
        key: &str,
    ) -> Result<Quote, NoQuote> {
        let body = serde_json::to_vec(&EngineRequest { request, discounts }).expect("plain JSON");
        let answered = self.ask(body, key).await?;
        assemble(request, discounts, answered)
            .ok_or_else(|| NoQuote::Unavailable("the tax engine's figures do not add up".into()))
    }
}

/// A quote of what the engine said; none if it does not fit the request.
fn assemble(request: &QuoteRequest, discounts: &[Quantity], answered: Answered) -> Option<Quote> {
    if answered.lines.len() != request.lines.len() {
        return None;
    }
    let smallest = smallest(&request.currency);
    let mut lines = Vec::with_capacity(request.lines.len());
    for ((asked, discount), answered) in request.lines.iter().zip(discounts).zip(answered.lines) {
        let price = asked.amount.checked_sub(*discount)?;
        let mut tax = Quantity::ZERO;
        for part in &answered.taxes {
            if part.amount < Quantity::ZERO || part.amount.units() % smallest != 0 {
                return None;
            }
            tax = tax.checked_add(part.amount)?;
        }
        let (net, gross) = match request.prices {
            PriceKind::Exclusive => (price, price.checked_add(tax)?),
            PriceKind::Inclusive => (price.checked_sub(tax)?, price),
        };
        if answered.id != asked.id || net < Quantity::ZERO {
            return None;
        }
        let (id, amount, discount) = (answered.id, asked.amount, *discount);
        lines.push(QuotedLine { id, amount, discount, net, taxes: answered.taxes, gross });
    }
    total_up(lines)
}
