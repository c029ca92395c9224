//! `counterfoil reconcile`: both halves compared over a range of days, and the report of it.
//!
//! Invariant: without `--apply` nothing is sent to anyone. The pass runs in the server: this
//! command orders it, watches it and shows it. A crash or Ctrl-C here leaves the pass running, and
//! `counterfoil passes show` shows it later.

pub mod outcome;
pub mod pass;
mod report;
mod sheet;

use super::client::{Client, Request, ServerArguments};
use crate::api::passes::{PassAnswer, PassSpec};
use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use jiff::civil::Date;
use outcome::OutputArguments;
use pass::Received;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

/// Waits between two looks at the pass grow from the first of these to the second: a small pass is
/// shown at once, and a long one is not asked about for nothing.
const LOOK_FIRST: Duration = Duration::from_millis(100);
const LOOK_MAX: Duration = Duration::from_secs(2);
/// How long a server may be away, to restart for example, before watching is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Compare the ledger with the provider and report every difference
#[derive(clap::Args)]
#[command(after_help = "Examples:
  counterfoil reconcile --from 2026-11-01 --to 2026-11-15
      a dry run: compares and reports, and sends nothing
  counterfoil reconcile --from 2026-11-01 --to 2026-12-01 --html november.html --csv november.csv
      the same for finance: one HTML file that needs no network, and all rows for a spreadsheet
  counterfoil reconcile --from 2026-11-01 --to 2026-11-15 --tenant acme --apply
      also sends again what the provider provably lacks; nothing else is ever corrected

The table shows what is not equal; files and --json hold every row.
Exit code: 0 all was read and nothing drifts, 4 something drifts, 1 the comparison could not be made
or is incomplete: the provider could not be read.")]
pub struct ReconcileArguments {
    #[command(flatten)]
    server: ServerArguments,
    /// First day, in UTC
    #[arg(long, value_name = "DATE", value_parser = read_day)]
    from: Date,
    /// First day that is no longer included
    #[arg(long, value_name = "DATE", value_parser = read_day)]
    to: Date,
    /// Only of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Send again what the provider provably lacks, and update findings
    #[arg(long, conflicts_with = "dry_run")]
    apply: bool,
    /// Only compare and report; this is the default
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: OutputArguments,
}

fn read_day(text: &str) -> Result<Date, String> {
    let day = text.parse().ok().filter(|_| text.len() == 10);
    day.ok_or_else(|| "give a day without a time, such as 2026-11-01".to_owned())
}

pub async fn run(arguments: &ReconcileArguments) -> anyhow::Result<ExitCode> {
    let (from, to) = (arguments.from, arguments.to);
    if from >= to {
        bail!("--to is the first day that is no longer included, so it must be after {from}");
    }
    let client = Client::new(&arguments.server)?;
    let order = PassSpec {
        from: from.to_string(),
        to: to.to_string(),
        tenant: arguments.tenant.clone(),
        apply: arguments.apply,
    };
    // Asked once: a second order would be a second pass.
    let body = client.call(&Request::post(&["v1", "passes"]).with_json(&order)).await?;
    let ordered = Received::<PassAnswer>::read(&body)?;
    let id = ordered.value.id;
    eprintln!("pass {id} compares {}", ordered.value.scope());
    let ended = watch(&client, ordered).await.with_context(|| {
        format!("pass {id} goes on in the server; `counterfoil passes show {id}` shows it")
    })?;
    outcome::present(&client, &ended, &arguments.output).await
}

/// Looks at the pass until it has ended.
async fn watch(
    client: &Client,
    ordered: Received<PassAnswer>,
) -> anyhow::Result<Received<PassAnswer>> {
    let progress = PassBar::new();
    let path = ["v1", "passes", &ordered.value.id.to_string()];
    let request = Request::get(&path);
    let (mut received, mut wait) = (ordered, LOOK_FIRST);
    while !received.value.has_ended() {
        progress.show(&received.value);
        tokio::time::sleep(wait).await;
        wait = (wait * 3 / 2).min(LOOK_MAX);
        let body = client.call_patiently(&request, PATIENCE, |_| {}).await?;
        received = Received::read(&body)?;
    }
    progress.finish();
    Ok(received)
}

/// A bar for people who watch; nothing for a log.
struct PassBar(Option<ProgressBar>);

impl PassBar {
    fn new() -> Self {
        Self(std::io::stderr().is_terminal().then(|| {
            let template = "{spinner} {bar:30} {pos} of {len} pairs, {msg}";
            let style = ProgressStyle::with_template(template).expect("the template is valid");
            let bar = ProgressBar::new(0).with_style(style);
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        }))
    }

    fn show(&self, pass: &PassAnswer) {
        if let Some(bar) = &self.0 {
            bar.set_length(pass.pairs);
            bar.set_position(pass.pairs_done);
            bar.set_message(format!("{} windows, {} reads", pass.windows, pass.reads));
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
