//! A pass and its rows, as the server answers them.
//!
//! Invariant: quantities are read from their text into exact numbers, never through a float. What
//! the server wrote is kept beside what was read of it, so that `--json` prints it untouched.

use super::super::answer::{Pages, read};
use super::super::client::{Client, Request};
use crate::api::passes::{DriftWindow, PassAnswer, RowAnswer};
use crate::rules::drift::Verdict;
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::{MICROS_PER_DAY, Timestamp};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

/// Rows asked for at a time.
const PAGE_ROWS: &str = "1000";
/// Rows that are read of one pass; more would not fit into the memory of a small machine.
const ROWS_MAX: usize = 1_000_000;

impl PassAnswer {
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
        let (from, to) = (day(self.from), day(self.to));
        let tenant = self.tenant.as_deref().unwrap_or("every tenant");
        format!("{tenant} from {from} until {to} ({})", self.mode())
    }

    pub fn mode(&self) -> &'static str {
        if self.apply { "applied" } else { "dry run" }
    }
}

impl RowAnswer {
    /// The row's day, or the part of it that was asked for.
    pub fn day(&self) -> String {
        let midnight = |at: Timestamp| at.micros().rem_euclid(MICROS_PER_DAY) == 0;
        if midnight(self.from) && midnight(self.to) {
            return day(self.from);
        }
        format!("{}/{}", self.from, self.to)
    }

    /// Usage that is never billed, by cause.
    pub fn asides(&self) -> impl Iterator<Item = (&'static str, Quantity)> {
        let causes = [
            ("written off", self.written_off),
            ("before billing.from", self.not_billed),
            ("shadow", self.shadow),
            ("no subscription", self.outside),
            ("no customer", self.unmapped()),
        ];
        causes.into_iter().filter_map(|(cause, quantity)| Some((cause, quantity?)))
    }

    /// Usage of a tenant without a customer.
    pub fn unmapped(&self) -> Option<Quantity> {
        let aside = [self.not_billed, self.shadow, self.outside].into_iter().flatten();
        let rest = aside.into_iter().try_fold(self.ledger, Quantity::checked_sub);
        rest.filter(|_| self.verdict == Verdict::Unmapped)
    }

    pub fn actions(&self) -> impl Iterator<Item = (&DriftWindow, &str)> {
        self.windows.iter().filter_map(|window| Some((window, window.action.as_deref()?)))
    }
}

/// The date of an instant in UTC.
pub fn day(at: Timestamp) -> String {
    at.to_string().split('T').next().unwrap_or_default().to_owned()
}

/// What was read of an answer, and the answer.
pub struct Received<T> {
    pub value: T,
    pub text: Box<RawValue>,
}

impl<T: DeserializeOwned> Received<T> {
    pub fn read(body: &[u8]) -> anyhow::Result<Self> {
        Self::of(read(body)?)
    }

    fn of(text: Box<RawValue>) -> anyhow::Result<Self> {
        Ok(Self { value: read(text.get().as_bytes())?, text })
    }
}

#[derive(Deserialize)]
struct RowPage {
    rows: Vec<Box<RawValue>>,
}

/// All rows of a pass, page after page; the texts in the order of the rows.
pub async fn read_rows(
    client: &Client,
    pass: u64,
) -> anyhow::Result<(Vec<RowAnswer>, Vec<Box<RawValue>>)> {
    let (mut rows, mut texts) = (Vec::new(), Vec::new());
    let mut request = Request::get(&["v1", "passes", &pass.to_string(), "rows"]);
    request.query.push(("limit", PAGE_ROWS.into()));
    let mut pages = Pages::new(client, request);
    while let Some((page, _)) = pages.next::<RowPage>().await? {
        for text in page.rows {
            let received = Received::<RowAnswer>::of(text)?;
            rows.push(received.value);
            texts.push(received.text);
        }
        anyhow::ensure!(
            rows.len() <= ROWS_MAX,
            "pass {pass} has more than {ROWS_MAX} rows; compare fewer days or one --tenant"
        );
    }
    Ok((rows, texts))
}
