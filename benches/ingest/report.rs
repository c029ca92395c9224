//! Tables for people, JSON for programs.

use crate::growth::Read;
use crate::load::Run;
use anyhow::{Context, Result};
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use serde_json::{Map, Value, json};
use std::path::Path;

/// Ratios, with what is wanted at least.
pub const RATIOS: [(&str, f64); 8] = [
    ("embedded_http_vs_append_floor", 0.15),
    ("embedded_http_vs_parse_floor", 0.10),
    ("embedded_http_vs_baseline", 30.0),
    ("embedded_single_vs_parse_floor", 0.3),
    ("postgres_http_vs_copy_floor", 0.7),
    ("postgres_http_vs_baseline", 8.0),
    ("growth_embedded", 0.8),
    ("growth_postgres", 0.7),
];

/// Figures, with what is wanted at most.
pub const FIGURES: [(&str, f64); 6] = [
    ("memory_bytes_per_key", 64.0),
    ("disk_bytes_per_event", 220.0),
    ("restart_seconds", 5.0),
    ("commit_p99_ms", 100.0),
    ("usage_p99_ms", 5.0),
    ("list_p99_ms", 20.0),
];

#[derive(Default)]
pub struct Report {
    pub runs: Vec<Run>,
    pub ratios: Map<String, Value>,
    pub figures: Map<String, Value>,
    pub notes: Map<String, Value>,
}

impl Report {
    pub fn push(&mut self, run: Run) {
        println!("  {:<44} {:>10.0} events/s", describe(&run), run.rate());
        self.runs.push(run);
    }

    /// The mean rate of all runs of one name and shape.
    pub fn rate(&self, name: &str, batch: usize, connections: usize) -> Option<f64> {
        let same = |run: &&Run| {
            run.name == name
                && run.batch == batch
                && run.connections == connections
                && run.repeats_percent <= 5
        };
        let rates: Vec<f64> = self.runs.iter().filter(same).map(Run::rate).collect();
        (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64)
    }

    /// The better of several numbers of connections.
    pub fn best(&self, name: &str, batch: usize, connections: &[usize]) -> Option<f64> {
        let rates = connections.iter().filter_map(|count| self.rate(name, batch, *count));
        rates.reduce(f64::max)
    }

    pub fn ratio(&mut self, name: &str, measured: Option<f64>, against: Option<f64>) {
        if let (Some(measured), Some(against)) = (measured, against) {
            self.ratios.insert(name.to_owned(), json!(rounded(measured / against)));
        }
    }

    pub fn figure(&mut self, name: &str, value: f64) {
        self.figures.insert(name.to_owned(), json!(rounded(value)));
    }

    pub fn note(&mut self, name: &str, value: Value) {
        println!("  {name}: {value}");
        self.notes.insert(name.to_owned(), value);
    }

    pub fn print_runs(&self) {
        let mut table = table(&[
            "run",
            "events/s",
            "server µs/event",
            "client µs/event",
            "p50 ms",
            "p99 ms",
            "written B/event",
        ]);
        for run in &self.runs {
            table.add_row([
                describe(run),
                format!("{:.0}", run.rate()),
                format!("{:.2}", run.micros_per_event(run.server)),
                format!("{:.2}", run.micros_per_event(run.client)),
                format!("{:.2}", run.p50_ms),
                format!("{:.2}", run.p99_ms),
                format!("{:.0}", run.server.written_bytes as f64 / run.events.max(1) as f64),
            ]);
        }
        println!("\n{table}");
    }

    pub fn print_reads(&self, reads: &[Read]) {
        let mut table = table(&["read beside a full load", "count", "p50 ms", "p99 ms"]);
        for read in reads {
            let (p50, p99) = (format!("{:.2}", read.p50_ms), format!("{:.2}", read.p99_ms));
            table.add_row([read.name.to_owned(), read.count.to_string(), p50, p99]);
        }
        println!("\n{table}");
    }

    pub fn print_targets(&self) {
        let mut table = table(&["measure", "measured", "wanted", ""]);
        let mut add = |name: &str, value: Option<f64>, wanted: String, reached: Option<bool>| {
            let reached = reached.map_or("not measured", |r| if r { "reached" } else { "not yet" });
            let value = value.map_or("-".to_owned(), |value| value.to_string());
            table.add_row([name.to_owned(), value, wanted, reached.to_owned()]);
        };
        for (name, wanted) in RATIOS {
            let value = self.ratios.get(name).and_then(Value::as_f64);
            add(name, value, format!(">= {wanted}"), value.map(|value| value >= wanted));
        }
        for (name, wanted) in FIGURES {
            let value = self.figures.get(name).and_then(Value::as_f64);
            add(name, value, format!("<= {wanted}"), value.map(|value| value <= wanted));
        }
        println!("\n{table}");
    }

    pub fn write_json(&self, path: &Path, machine: Value) -> Result<()> {
        let report = json!({
            "machine": machine,
            "ratios": self.ratios,
            "figures": self.figures,
            "notes": self.notes,
            "runs": self.runs.iter().map(run_json).collect::<Vec<_>>(),
        });
        let text = serde_json::to_string_pretty(&report)?;
        std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))
    }
}

fn run_json(run: &Run) -> Value {
    json!({
        "name": run.name,
        "batch": run.batch,
        "connections": run.connections,
        "repeats_percent": run.repeats_percent,
        "events": run.events,
        "seconds": rounded(run.seconds),
        "events_per_second": run.rate().round(),
        "server_cpu_micros_per_event": rounded(run.micros_per_event(run.server)),
        "client_cpu_micros_per_event": rounded(run.micros_per_event(run.client)),
        "p50_ms": run.p50_ms,
        "p99_ms": run.p99_ms,
        "written_bytes": run.server.written_bytes,
    })
}

fn describe(run: &Run) -> String {
    let repeats = if run.repeats_percent == 50 { ", half repeats" } else { "" };
    format!("{}, {} x {}{repeats}", run.name, run.connections, run.batch)
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header(header.iter().copied());
    table
}

fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}
