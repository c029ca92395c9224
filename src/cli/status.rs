//! `counterfoil status`: whether billing is well, on one screen.
//!
//! Invariant: the first line says what the numbers are of. Those that must be zero come next, and
//! alone decide the exit code.

use super::EXIT_FINDINGS;
use super::client::{Client, Request, ServerArguments};
use super::table::{cell, grouped, new_table, plain, plain_json};
use anyhow::Context;
use reqwest::Method;
use serde::Deserialize;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::process::ExitCode;

/// Show billing health: numbers that must be zero, and unbilled usage
#[derive(clap::Args)]
#[command(after_help = "Examples:
  counterfoil status
  counterfoil status --json
  counterfoil status > /dev/null || echo 'billing needs somebody'

Exit code: 0 all numbers that must be zero are, 4 one is not, 1 the server could not be asked.")]
pub struct StatusArguments {
    #[command(flatten)]
    server: ServerArguments,
    /// Print the server's JSON answer
    #[arg(long)]
    json: bool,
}

#[derive(Deserialize)]
struct Health {
    /// Not every server tells these.
    version: Option<String>,
    provider: Option<String>,
    shadow: Option<String>,
    #[serde(default)]
    unbilled: BTreeMap<String, BTreeMap<String, Option<String>>>,
    #[serde(default)]
    quarantined_more: bool,
    observed: u64,
    observed_long: u64,
    without_customer: u64,
    #[serde(default)]
    without_customer_usage: BTreeMap<String, UnmappedUsage>,
    #[serde(default)]
    unsent_usage: BTreeMap<String, UnmappedUsage>,
    submitted: u64,
    submitted_long: u64,
    dead: u64,
    drifting_tenants: u64,
    /// Not every server counts these two; what is not told is not shown.
    findings_open: Option<u64>,
    webhooks_waiting: u64,
    alerts_open: Option<u64>,
    pages: Pages,
    last_pass: LastPasses,
}

#[derive(Deserialize)]
struct UnmappedUsage {
    tenants: u64,
    quantity: String,
}

#[derive(Deserialize)]
struct Pages {
    open: u64,
    day: u64,
    week: u64,
    week_before: u64,
}

#[derive(Deserialize)]
struct LastPasses {
    hourly: Option<String>,
    #[serde(default)]
    hourly_incomplete: bool,
    nightly: Option<String>,
    #[serde(default)]
    nightly_incomplete: bool,
}

pub async fn run(arguments: &StatusArguments) -> anyhow::Result<ExitCode> {
    let request = Request::new(Method::GET, &["v1", "health", "billing"]);
    let body = Client::new(&arguments.server)?.call(&request).await?;
    let health: Health =
        serde_json::from_slice(&body).context("the server's answer cannot be read")?;
    if arguments.json {
        println!("{}", plain_json(&body));
    } else {
        print_server(&health);
        print_zeros(&health);
        print_unbilled(&health);
        print_rest(&health);
    }
    Ok(if health.is_well() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FINDINGS) })
}

impl Health {
    fn zeros(&self) -> [(u64, &'static str, &'static str); 6] {
        [
            (
                self.observed_long,
                "pushes observed for more than 5 minutes",
                "counterfoil pushes --state observed",
            ),
            (
                self.submitted_long,
                "pushes submitted for more than 1 hour",
                "counterfoil pushes --state submitted",
            ),
            (
                self.drifting_tenants,
                "tenants with drift unresolved after two passes",
                "counterfoil findings",
            ),
            (self.dead, "dead letters", "counterfoil pushes --state dead"),
            (
                self.without_customer,
                "pushes of tenants without a customer",
                "counterfoil pushes --state waiting",
            ),
            (self.pages.open, "open pages", "counterfoil alerts"),
        ]
    }

    fn is_well(&self) -> bool {
        self.zeros().iter().all(|(count, _, _)| *count == 0)
    }
}

/// What the numbers are of.
fn print_server(health: &Health) {
    let version = health.version.as_deref().unwrap_or("of an unknown version");
    let provider = health.provider.as_deref().unwrap_or("none");
    let shadow = health.shadow.as_deref().unwrap_or("unknown");
    println!(
        "counterfoil {}, provider {}, shadow {}",
        plain(version),
        plain(provider),
        plain(shadow)
    );
    match (shadow, provider) {
        ("nowhere" | "sandbox", _) => println!("SHADOW MODE: nothing is billed"),
        (_, "none") => println!("there is no provider: nothing is billed"),
        (_, _) => {}
    }
    println!();
}

/// Everything that is not billed, by meter and cause.
fn print_unbilled(health: &Health) {
    if health.unbilled.is_empty() {
        // Without a provider the first lines have said that nothing is billed.
        if health.provider.as_deref().is_some_and(|provider| provider != "none") {
            println!("all usage of billed meters is billed, or on its way\n");
        }
        return;
    }
    let mut table = new_table(&["not billed", "cause", "quantity"], 2);
    for (meter, causes) in &health.unbilled {
        let total = causes.get("total").cloned().flatten().unwrap_or_default();
        table.add_row([cell(meter), cell("total"), cell(grouped(total))]);
        for (cause, quantity) in causes.iter().filter(|(cause, _)| *cause != "total") {
            if let Some(quantity) = quantity {
                table.add_row([cell(""), cell(cause.replace('_', " ")), cell(grouped(quantity))]);
            }
        }
    }
    println!("{table}");
    if health.quarantined_more {
        println!("and more quarantined events than were added up");
    }
    println!();
}

fn print_zeros(health: &Health) {
    let mut table = new_table(&["", "must be zero", "tells more", "now"], 3);
    for (count, what, command) in health.zeros() {
        let mark = if count == 0 { "✓" } else { "✗" };
        table.add_row([cell(mark), cell(what), cell(command), cell(grouped(count))]);
    }
    println!("{table}\n");
}

fn print_rest(health: &Health) {
    let mut table = new_table(&["also", "tells more", "now"], 2);
    let mut add = |what: &str, command: &str, now: String| {
        table.add_row([cell(what), cell(command), cell(now)]);
    };
    add("pushes observed", "counterfoil pushes --state observed", grouped(health.observed));
    add("pushes submitted", "counterfoil pushes --state submitted", grouped(health.submitted));
    let kinds = [
        ("waits for a customer", &health.without_customer_usage),
        ("was too old to be sent", &health.unsent_usage),
    ];
    for (what, usage) in kinds {
        for (meter, UnmappedUsage { tenants, quantity }) in usage {
            let what = format!("{meter} of {} tenants {what}", grouped(*tenants));
            add(&what, "counterfoil alerts", grouped(quantity));
        }
    }
    if let Some(findings) = health.findings_open {
        add("open findings", "counterfoil findings", grouped(findings));
    }
    let waiting = "counterfoil webhooks --status waiting";
    add("webhooks waiting", waiting, grouped(health.webhooks_waiting));
    if let Some(alerts) = health.alerts_open {
        add("open alerts", "counterfoil alerts", grouped(alerts));
    }
    let pages = &health.pages;
    add("pages in the last day", "counterfoil alerts --all", grouped(pages.day));
    add("pages in the last week", "counterfoil alerts --all", pages.trend());
    let last = &health.last_pass;
    let passes = [
        ("hourly", &last.hourly, last.hourly_incomplete),
        ("nightly", &last.nightly, last.nightly_incomplete),
    ];
    for (kind, at, incomplete) in passes {
        let command = format!("counterfoil passes --kind {kind}");
        let at = at.clone().unwrap_or_else(|| "never".into());
        let at = if incomplete { format!("{at}, incomplete") } else { at };
        add(&format!("last {kind} pass"), &command, at);
    }
    println!("{table}");
}

impl Pages {
    fn trend(&self) -> String {
        let arrow = match self.week.cmp(&self.week_before) {
            Ordering::Less => "↓",
            Ordering::Equal => "→",
            Ordering::Greater => "↑",
        };
        format!("{arrow} {}, before {}", grouped(self.week), grouped(self.week_before))
    }
}
