//! `counterfoil status`: whether billing is well, on one screen.
//!
//! Invariant: the first line says what the numbers are of. Those that must be zero come next, and
//! alone decide the exit code.

use super::EXIT_FINDINGS;
use super::answer::read;
use super::client::{Client, Request, ServerArguments};
use super::table::{cell, grouped, new_table, plain, plain_json};
use crate::api::health::{BillingHealth, Pages, UnmappedUsage};
use std::cmp::Ordering;
use std::process::ExitCode;

/// Show billing health: numbers that must be zero, and unbilled usage
#[derive(clap::Args)]
#[command(after_help = "Examples:
  counterfoil status
  counterfoil status --json
  counterfoil status > /dev/null || echo 'billing needs attention'

Exit code: 0 all numbers that must be zero are, 4 one is not, 1 the server could not be asked.")]
pub struct StatusArguments {
    #[command(flatten)]
    server: ServerArguments,
    /// Print the server's JSON answer
    #[arg(long)]
    json: bool,
}

pub async fn run(arguments: &StatusArguments) -> anyhow::Result<ExitCode> {
    let request = Request::get(&["v1", "health", "billing"]);
    let body = Client::new(&arguments.server)?.call(&request).await?;
    let health: BillingHealth = read(&body)?;
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

impl BillingHealth {
    fn zeros(&self) -> [(u64, &'static str, &'static str); 7] {
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
            (
                self.self_check.mismatches,
                "windows that their events do not add up to",
                "counterfoil check",
            ),
            (self.pages.open, "open pages", "counterfoil alerts"),
        ]
    }

    fn is_well(&self) -> bool {
        self.zeros().iter().all(|(count, _, _)| *count == 0)
    }
}

/// What the numbers are of.
fn print_server(health: &BillingHealth) {
    let provider = health.provider.as_deref().unwrap_or("none");
    let BillingHealth { version, shadow, .. } = health;
    println!("{}", plain(&format!("counterfoil {version}, provider {provider}, shadow {shadow}")));
    match (shadow.as_str(), provider) {
        ("nowhere" | "sandbox", _) => println!("SHADOW MODE: nothing is billed"),
        (_, "none") => println!("there is no provider: nothing is billed"),
        (_, _) => {}
    }
    println!();
}

/// Everything that is not billed, by meter and cause.
fn print_unbilled(health: &BillingHealth) {
    if health.unbilled.is_empty() {
        // Without a provider the first lines have said that nothing is billed.
        if health.provider.as_deref().is_some_and(|provider| provider != "none") {
            println!("all usage of billed meters is billed, or on its way\n");
        }
        return;
    }
    let mut table = new_table(&["not billed", "cause", "quantity"], 2);
    for (meter, usage) in &health.unbilled {
        table.add_row([cell(meter), cell("total"), cell(grouped(usage.total))]);
        for (cause, quantity) in usage.causes() {
            table.add_row([cell(""), cell(cause), cell(grouped(quantity))]);
        }
    }
    println!("{table}");
    if health.quarantined_more {
        println!("the quarantined quantity is incomplete: there are too many events to add up");
    }
    println!();
}

fn print_zeros(health: &BillingHealth) {
    let mut table = new_table(&["", "must be zero", "command", "now"], 3);
    for (count, what, command) in health.zeros() {
        let mark = if count == 0 { "✓" } else { "✗" };
        table.add_row([cell(mark), cell(what), cell(command), cell(grouped(count))]);
    }
    println!("{table}\n");
}

fn print_rest(health: &BillingHealth) {
    let mut table = new_table(&["other", "command", "now"], 2);
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
        for (meter, UnmappedUsage { tenants, quantity, .. }) in usage {
            let what = format!("{meter} of {} tenants {what}", grouped(*tenants));
            add(&what, "counterfoil alerts", grouped(quantity));
        }
    }
    add("open findings", "counterfoil findings", grouped(health.findings_open));
    let waiting = "counterfoil webhooks --status waiting";
    add("webhooks waiting", waiting, grouped(health.webhooks_waiting));
    add("open alerts", "counterfoil alerts", grouped(health.alerts_open));
    let pages = &health.pages;
    add("pages in the last day", "counterfoil alerts --all", grouped(pages.day));
    add("pages in the last week", "counterfoil alerts --all", pages.trend());
    let last = &health.last_pass;
    let passes = [
        ("hourly", last.hourly, last.hourly_incomplete),
        ("nightly", last.nightly, last.nightly_incomplete),
    ];
    for (kind, at, incomplete) in passes {
        let command = format!("counterfoil passes --kind {kind}");
        let at = at.map_or_else(|| "never".to_owned(), |at| at.to_string());
        let at = if incomplete { format!("{at}, incomplete") } else { at };
        add(&format!("last {kind} pass"), &command, at);
    }
    let check = &health.self_check;
    let walked = match (&check.not_done, check.last_walk) {
        (Some(why), _) => format!("not done: {why}"),
        (None, Some(at)) => at.to_string(),
        (None, None) => "not ended yet".to_owned(),
    };
    add("last self-check of everything", "counterfoil check", walked);
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
