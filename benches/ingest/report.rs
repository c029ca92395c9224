//! Tables for people, JSON for programs.

use crate::load::Run;
use anyhow::{Context, Result};
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use serde_json::{Map, Value, json};
use std::path::Path;

/// What a row came to: a ratio, of which much is good, or a figure, of which little is.
struct Finding {
    row: &'static str,
    name: String,
    value: f64,
    wanted: Option<f64>,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ratio,
    Figure,
}

impl Finding {
    fn judgement(&self) -> (String, &'static str) {
        let Some(wanted) = self.wanted else { return (String::new(), "") };
        let (sign, reached) = match self.kind {
            Kind::Ratio => (">=", self.value >= wanted),
            Kind::Figure => ("<=", self.value <= wanted),
        };
        (format!("{sign} {wanted}"), if reached { "reached" } else { "not yet" })
    }
}

/// A contender that is not on this machine.
#[derive(PartialEq, Eq)]
struct Missing {
    row: &'static str,
    name: String,
    why: &'static str,
}

#[derive(Default)]
pub struct Report {
    /// The row that is being measured.
    pub row: &'static str,
    runs: Vec<(&'static str, Run)>,
    findings: Vec<Finding>,
    missing: Vec<Missing>,
    notes: Map<String, Value>,
}

impl Report {
    pub fn push(&mut self, run: Run) {
        println!(
            "  {:<58} {:>9.0} events/s {:>8.2} ms {:>7.2} µs/event",
            describe(&run),
            run.rate(),
            run.p50_ms,
            run.cpu_micros()
        );
        self.runs.push((self.row, run));
    }

    pub fn ratio(&mut self, name: &str, value: f64, at_least: Option<f64>) {
        self.find(name, value, at_least, Kind::Ratio);
    }

    pub fn figure(&mut self, name: &str, value: f64, at_most: Option<f64>) {
        self.find(name, value, at_most, Kind::Figure);
    }

    fn find(&mut self, name: &str, value: f64, wanted: Option<f64>, kind: Kind) {
        println!("  {name}: {value:.3}");
        self.findings.push(Finding { row: self.row, name: name.to_owned(), value, wanted, kind });
    }

    pub fn missing(&mut self, name: &str, why: &'static str) {
        let missing = Missing { row: self.row, name: name.to_owned(), why };
        if !self.missing.contains(&missing) {
            println!("  {name}: {why}");
            self.missing.push(missing);
        }
    }

    pub fn note(&mut self, name: &str, value: Value) {
        println!("  {name}: {value}");
        self.notes.insert(name.to_owned(), value);
    }

    pub fn print(&self) {
        let mut runs = table(&[
            "row",
            "run",
            "events/s",
            "p50 ms",
            "p99 ms",
            "server µs",
            "database µs",
            "client µs",
            "written B",
            "settled s",
            "memory MiB",
        ]);
        for (row, run) in &self.runs {
            let per_event = |amount: f64| run.per_event(amount);
            runs.add_row([
                (*row).to_owned(),
                describe(run),
                format!("{:.0}", run.rate()),
                cell(run.p50_ms, 2),
                cell(run.p99_ms, 2),
                cell(per_event(run.server.cpu_seconds * 1e6), 2),
                cell(per_event(run.database.cpu_seconds * 1e6), 2),
                cell(per_event(run.client.cpu_seconds * 1e6), 2),
                cell(per_event(run.server.plus(run.database).written_bytes as f64), 0),
                cell(run.settle_seconds, 1),
                cell((run.resident_bytes >> 20) as f64, 0),
            ]);
        }
        println!("\nEach run, µs and B for an event:\n{runs}");
        let mut findings = table(&["row", "measure", "measured", "wanted", ""]);
        for finding in &self.findings {
            let (wanted, judgement) = finding.judgement();
            let (row, name) = (finding.row.to_owned(), finding.name.clone());
            let value = format!("{:.3}", finding.value);
            findings.add_row([row, name, value, wanted, judgement.to_owned()]);
        }
        println!("\n{findings}");
        for missing in &self.missing {
            println!("left out of {}: {}: {}", missing.row, missing.name, missing.why);
        }
    }

    pub fn write_json(&self, path: &Path, machine: Value) -> Result<()> {
        let of = |kind: Kind| {
            let found = self.findings.iter().filter(move |finding| finding.kind == kind);
            let entry = |finding: &Finding| {
                let value = json!({"value": rounded(finding.value), "wanted": finding.wanted});
                (format!("{}: {}", finding.row, finding.name), value)
            };
            found.map(entry).collect::<Map<_, _>>()
        };
        let missing = self.missing.iter().map(|m| (format!("{}: {}", m.row, m.name), json!(m.why)));
        let report = json!({
            "machine": machine,
            "notes": self.notes,
            "ratios": of(Kind::Ratio),
            "figures": of(Kind::Figure),
            "missing": missing.collect::<Map<_, _>>(),
            "runs": self.runs.iter().map(run_json).collect::<Vec<_>>(),
        });
        let text = serde_json::to_string_pretty(&report)?;
        std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))
    }
}

fn run_json((row, run): &(&'static str, Run)) -> Value {
    let per_event = |amount: f64| measured(run.per_event(amount));
    json!({
        "row": row,
        "name": run.name,
        "batch": run.workload.batch,
        "connections": run.workload.connections,
        "repeats_percent": run.workload.repeats_percent,
        "events": run.events,
        "seconds": rounded(run.seconds),
        "settle_seconds": rounded(run.settle_seconds),
        "events_per_second": run.rate().round(),
        "server_cpu_micros_per_event": per_event(run.server.cpu_seconds * 1e6),
        "database_cpu_micros_per_event": per_event(run.database.cpu_seconds * 1e6),
        "client_cpu_micros_per_event": per_event(run.client.cpu_seconds * 1e6),
        "p50_ms": measured(run.p50_ms),
        "p99_ms": measured(run.p99_ms),
        "written_bytes_per_event":
            per_event(run.server.plus(run.database).written_bytes as f64),
        "read_bytes_per_event": per_event(run.server.plus(run.database).read_bytes as f64),
        "resident_bytes": measured(run.resident_bytes as f64),
    })
}

fn describe(run: &Run) -> String {
    format!("{}, {} x {}", run.name, run.workload.connections, run.workload.batch)
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header(header.iter().copied());
    table
}

/// Nothing that is measured is exactly nothing.
fn measured(value: f64) -> Option<f64> {
    (value != 0.0).then(|| rounded(value))
}

fn cell(value: f64, decimals: usize) -> String {
    measured(value).map_or("-".to_owned(), |_| format!("{value:.decimals$}"))
}

fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}
