//! A pass and its rows, as the server tells them.
//!
//! Invariant: quantities are read from their text into exact numbers, never through a float. What
//! the server wrote is kept beside what was read of it, so that `--json` prints it untouched.

use super::super::client::{Client, Request};
use crate::rules::drift::Verdict;
use crate::rules::pass::{PassKind, PassState};
use crate::rules::quantity::Quantity;
use anyhow::Context;
use reqwest::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// Rows asked for at a time.
const PAGE_ROWS: &str = "1000";
/// Rows that are read of one pass; more would not fit into the memory of a small machine.
const ROWS_MAX: usize = 1_000_000;

#[derive(Debug, Clone, Deserialize)]
pub struct Pass {
    pub id: u64,
    pub kind: PassKind,
    pub from: String,
    pub to: String,
    pub tenant: Option<String>,
    pub apply: bool,
    pub state: PassState,
    pub created_at: String,
    pub ended_at: Option<String>,
    pub pairs: u64,
    pub pairs_done: u64,
    /// Not every server tells.
    #[serde(default)]
    pub pairs_unread: u64,
    pub windows: u64,
    pub reads: u64,
    pub verdicts: BTreeMap<Verdict, u64>,
    pub replayed: u64,
    pub corrected: u64,
    pub hash: Option<String>,
    pub detail: Option<String>,
}

/// One tenant and meter on one day.
#[derive(Debug, Clone, Deserialize)]
pub struct Row {
    pub tenant: String,
    pub meter: String,
    pub from: String,
    pub to: String,
    pub ledger: Quantity,
    pub pushed: Quantity,
    /// None if it was not read.
    pub provider: Option<Quantity>,
    /// By how much the provider is above what was handed to billing; none if it was not read.
    pub delta: Option<Quantity>,
    pub verdict: Verdict,
    pub reason: String,
    pub advice: String,
    /// Usage that is never billed, by cause; not every server tells.
    #[serde(default)]
    pub written_off: Option<Quantity>,
    #[serde(default)]
    pub not_billed: Option<Quantity>,
    #[serde(default)]
    pub shadow: Option<Quantity>,
    /// Who wrote it off, and why.
    #[serde(default)]
    pub note: Option<String>,
    /// Those of the day that are not equal.
    pub windows: Vec<RowWindow>,
    /// None if the row is no part of the chain.
    pub hash: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct RowWindow {
    pub start: String,
    pub end: String,
    pub ledger: Quantity,
    pub pushed: Quantity,
    pub provider: Option<Quantity>,
    pub verdict: Verdict,
    pub reason: String,
    /// What was done about it.
    pub action: Option<String>,
}

impl Pass {
    pub fn has_ended(&self) -> bool {
        self.state.has_ended()
    }

    /// Windows with this verdict.
    pub fn count(&self, verdict: Verdict) -> u64 {
        self.verdicts.get(&verdict).copied().unwrap_or(0)
    }

    /// Windows that stay wrong unless somebody does something.
    pub fn drifting(&self) -> u64 {
        Verdict::ALL.into_iter().filter(|v| v.is_drift()).map(|v| self.count(v)).sum()
    }

    /// What it looks at, and whether it changes anything, in words.
    pub fn scope(&self) -> String {
        let (from, to) = (day(&self.from), day(&self.to));
        let tenant = self.tenant.as_deref().unwrap_or("every tenant");
        format!("{tenant} from {from} until {to} ({})", self.mode())
    }

    pub fn mode(&self) -> &'static str {
        if self.apply { "applied" } else { "dry run" }
    }
}

impl Row {
    /// The row's day, or the part of it that was asked for.
    pub fn day(&self) -> String {
        let midnight = |instant: &str| instant.ends_with("T00:00:00Z");
        if midnight(&self.from) && midnight(&self.to) {
            return day(&self.from).to_owned();
        }
        format!("{}/{}", self.from, self.to)
    }

    /// Usage that is never billed, by cause.
    pub fn asides(&self) -> impl Iterator<Item = (&'static str, Quantity)> {
        let causes = [
            ("written off", self.written_off),
            ("before billing.from", self.not_billed),
            ("shadow", self.shadow),
            ("no customer", self.unmapped()),
        ];
        causes.into_iter().filter_map(|(cause, quantity)| Some((cause, quantity?)))
    }

    /// Usage of a tenant without a customer.
    pub fn unmapped(&self) -> Option<Quantity> {
        let aside =
            self.not_billed.unwrap_or_default().checked_add(self.shadow.unwrap_or_default());
        let rest = aside.and_then(|aside| self.ledger.checked_sub(aside));
        rest.filter(|_| self.verdict == Verdict::Unmapped)
    }

    pub fn actions(&self) -> impl Iterator<Item = (&RowWindow, &str)> {
        self.windows.iter().filter_map(|window| Some((window, window.action.as_deref()?)))
    }
}

/// The date of an instant in UTC.
pub fn day(instant: &str) -> &str {
    instant.split('T').next().unwrap_or(instant)
}

/// What was read of an answer, and the answer.
pub struct Told<T> {
    pub value: T,
    pub text: Box<RawValue>,
}

impl<T: DeserializeOwned> Told<T> {
    pub fn read(body: &[u8]) -> anyhow::Result<Self> {
        let text: Box<RawValue> = serde_json::from_slice(body).context(UNREADABLE)?;
        Self::of(text)
    }

    fn of(text: Box<RawValue>) -> anyhow::Result<Self> {
        let value = serde_json::from_str(text.get()).context(UNREADABLE)?;
        Ok(Self { value, text })
    }
}

const UNREADABLE: &str = "the server's answer cannot be read";

#[derive(Deserialize)]
struct RowPage {
    rows: Vec<Box<RawValue>>,
    next_after: Option<String>,
}

/// All rows of a pass, page after page; the texts in the order of the rows.
pub async fn read_rows(
    client: &Client,
    pass: u64,
) -> anyhow::Result<(Vec<Row>, Vec<Box<RawValue>>)> {
    let (mut rows, mut texts) = (Vec::new(), Vec::new());
    let mut after: Option<String> = None;
    loop {
        let mut request = Request::new(Method::GET, &["v1", "passes", &pass.to_string(), "rows"]);
        request.query.push(("limit", PAGE_ROWS.into()));
        request.query.extend(after.take().map(|after| ("after", after)));
        let body = client.call(&request).await?;
        let page: RowPage = serde_json::from_slice(&body).context(UNREADABLE)?;
        for text in page.rows {
            let told = Told::<Row>::of(text)?;
            rows.push(told.value);
            texts.push(told.text);
        }
        anyhow::ensure!(
            rows.len() <= ROWS_MAX,
            "pass {pass} has more than {ROWS_MAX} rows; compare fewer days or one --tenant"
        );
        after = page.next_after;
        if after.is_none() {
            return Ok((rows, texts));
        }
    }
}
