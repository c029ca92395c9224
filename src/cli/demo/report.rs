//! The demo's totals: the generator's truth beside what the server has counted.
//!
//! Invariant: a row has a mark only if every tenant's value and count is exactly equal.

use super::traffic::{Kind, Lane, METERS, TENANTS, Truth, Truths, decimal, read_decimal};
use super::{Demo, Seen};
use crate::api::usage::UsageAnswer;
use crate::cli::answer::read;
use crate::cli::client::Request;
use crate::cli::table::{cell, grouped, new_table};
use crate::rules::timestamp::MICROS_PER_HOUR;
use crate::rules::window::Bucket;
use crate::store::CheckReport;
use std::collections::BTreeMap;

/// What the server has counted, by tenant and place in [`METERS`].
pub struct Ledger(BTreeMap<(u64, usize), UsageAnswer>);

impl Ledger {
    /// Reads all of it.
    pub async fn read(demo: &Demo) -> anyhow::Result<Self> {
        let mut ledger = BTreeMap::new();
        for (place, meter) in METERS.iter().enumerate() {
            for tenant in 0..TENANTS {
                ledger.insert((tenant, place), read_usage(demo, tenant, meter.slug).await?);
            }
        }
        Ok(Self(ledger))
    }

    /// The total as the server wrote it.
    pub fn total(&self, tenant: u64, place: usize) -> String {
        self.usage(tenant, place).total.map_or_else(String::new, |total| total.to_string())
    }

    fn usage(&self, tenant: u64, place: usize) -> &UsageAnswer {
        self.0.get(&(tenant, place)).expect("every tenant and meter was read")
    }
}

pub struct Report {
    meters: Vec<MeterRow>,
    planned: BTreeMap<Kind, u64>,
    seen: Seen,
}

/// All tenants of one meter.
struct MeterRow {
    slug: &'static str,
    aggregation: &'static str,
    events: Pair,
    /// The tenants' values together, in millionths.
    value: Pair,
    tenants_equal: u64,
}

/// The truth and what was counted.
#[derive(Default)]
struct Pair {
    truth: i128,
    counted: i128,
}

impl Report {
    pub fn gather(demo: &Demo, lanes: &[Lane], truths: &Truths, ledger: &Ledger) -> Self {
        let mut planned = BTreeMap::new();
        for (kind, count) in lanes.iter().flat_map(|lane| &lane.planned) {
            *planned.entry(*kind).or_default() += count;
        }
        let mut meters = Vec::new();
        for (place, meter) in METERS.iter().enumerate() {
            let (slug, aggregation) = (meter.slug, meter.aggregation);
            let (events, value) = (Pair::default(), Pair::default());
            let mut row = MeterRow { slug, aggregation, events, value, tenants_equal: 0 };
            for tenant in 0..TENANTS {
                let truth = truths.get(&(tenant, place)).cloned().unwrap_or_default();
                row.compare(&truth, ledger.usage(tenant, place));
            }
            meters.push(row);
        }
        Self { meters, planned, seen: demo.seen() }
    }

    pub fn exact(&self) -> bool {
        self.meters.iter().all(MeterRow::exact) && self.outcomes().iter().all(OutcomeRow::exact)
    }

    pub fn print(&self) {
        println!("\nTotals of {TENANTS} tenants, the generator's truth and the server's count:");
        let header = ["meter", "aggregation", "events", "counted", "truth", "total", "tenants", ""];
        let mut table = new_table(&header, 2);
        for row in &self.meters {
            table.add_row([
                cell(row.slug),
                cell(row.aggregation),
                cell(grouped(row.events.truth)),
                cell(grouped(row.events.counted)),
                cell(grouped(decimal(row.value.truth))),
                cell(grouped(decimal(row.value.counted))),
                cell(format!("{}/{TENANTS}", row.tenants_equal)),
                cell(mark(row.exact())),
            ]);
        }
        println!("{table}");
        println!("\nDeliveries by verdict:");
        let mut table = new_table(&["outcome", "expected", "found", ""], 1);
        for row in self.outcomes() {
            let (expected, found) = (grouped(row.expected), grouped(row.found));
            table.add_row([cell(row.name), cell(expected), cell(found), cell(mark(row.exact()))]);
        }
        println!("{table}");
        let unanswered = self.count(Kind::Fresh).saturating_sub(self.seen.accepted);
        println!(
            "{} events were answered `accepted`. {} were committed, but a kill cut off the answer: \
             sent\nagain, they came back as duplicates and stay counted once. {} requests were sent \
             again in all.",
            grouped(self.seen.accepted),
            grouped(unanswered),
            grouped(self.seen.retries)
        );
    }

    fn count(&self, kind: Kind) -> u64 {
        self.planned.get(&kind).copied().unwrap_or(0)
    }

    fn outcomes(&self) -> [OutcomeRow; 5] {
        let fresh = self.count(Kind::Fresh);
        let repeated = self.count(Kind::Duplicate) + self.count(Kind::Restamped);
        let counted = self.meters.iter().map(|row| row.events.counted).sum();
        let row = |name, expected: u64, found: u64| OutcomeRow {
            name,
            expected: expected.into(),
            found: found.into(),
        };
        [
            OutcomeRow { name: "distinct events counted", expected: fresh.into(), found: counted },
            row(
                "accepted or duplicate",
                fresh + repeated,
                self.seen.accepted + self.seen.duplicates,
            ),
            row("conflicts", self.count(Kind::Conflict), self.seen.conflicts),
            row("quarantined (late)", self.count(Kind::Late), self.seen.quarantined),
            row("rejected (malformed)", self.count(Kind::Malformed), self.seen.rejected),
        ]
    }
}

struct OutcomeRow {
    name: &'static str,
    expected: i128,
    found: i128,
}

impl OutcomeRow {
    fn exact(&self) -> bool {
        self.expected == self.found
    }
}

impl MeterRow {
    fn compare(&mut self, truth: &Truth, usage: &UsageAnswer) {
        let expected = truth.value(self.aggregation);
        self.events.truth += i128::from(truth.count);
        self.events.counted += i128::from(usage.count);
        self.value.truth += expected.unwrap_or(0);
        let counted = usage.total.map(|total| total.to_string());
        self.value.counted += counted.as_deref().and_then(read_decimal).unwrap_or(0);
        if counted == expected.map(decimal) && usage.count == truth.count {
            self.tenants_equal += 1;
        }
    }

    fn exact(&self) -> bool {
        self.tenants_equal == TENANTS
    }
}

pub fn print_check(check: &CheckReport) {
    println!(
        "\ncounterfoil check: {} events against {} totals, {} findings {}",
        grouped(check.events),
        grouped(check.rollups),
        check.findings.len(),
        mark(check.findings.is_empty())
    );
    for finding in &check.findings {
        println!("- {finding}");
    }
}

pub fn mark(exact: bool) -> &'static str {
    if exact { "✓" } else { "DIFFERS" }
}

async fn read_usage(demo: &Demo, tenant: u64, slug: &str) -> anyhow::Result<UsageAnswer> {
    let hour = Bucket::Hour.start_of(demo.plan.start);
    let mut request = Request::get(&["v1", "usage"]);
    request.query = vec![
        ("tenant", demo.plan.tenant_name(tenant)),
        ("meter", slug.to_owned()),
        ("from", hour.saturating_add_micros(-72 * MICROS_PER_HOUR).to_string()),
        ("to", hour.saturating_add_micros(2 * MICROS_PER_HOUR).to_string()),
    ];
    read(&demo.client().call(&request).await?)
}
