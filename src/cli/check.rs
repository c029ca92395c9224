//! `counterfoil check`: recomputes every total from the events and compares.
//!
//! Invariant: it only reads, so it may run beside a server at any time.

use super::EXIT_FINDINGS;
use super::store::{StoreArguments, open_store};
use super::table::{cell, grouped, new_table};
use crate::config::{Config, StoreUrl};
use crate::store::CheckReport;
use crate::store::sqlite::SqliteStore;
use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use std::process::ExitCode;
use std::time::Duration;

/// Compare every stored total with the events it was made of, without changing anything
#[derive(clap::Args)]
#[command(after_help = "Examples:
  counterfoil check
      the store in ./counterfoil-data; a server may be running on it
  counterfoil check --data /var/lib/counterfoil --json
  counterfoil check --store postgres://counterfoil:secret@db/counterfoil

Exit code: 0 everything agrees, 4 something does not, 1 it could not be checked.")]
pub struct CheckArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(arguments: &CheckArguments) -> anyhow::Result<ExitCode> {
    let config = arguments.store.load_config()?;
    let bar = ProgressBar::new_spinner();
    let style = ProgressStyle::with_template("{spinner} {human_pos} events read, {per_sec}")
        .expect("the template is valid");
    bar.set_style(style);
    bar.enable_steady_tick(Duration::from_millis(100));
    let report = check_store(&config, bar.clone()).await;
    bar.finish_and_clear();
    let report = report?;
    if arguments.json {
        let report = serde_json::json!({
            "store": config.store.url.to_string(), "events": report.events,
            "totals": report.rollups, "findings": report.findings,
        });
        println!("{report}");
    } else {
        print_report(&config.store.url, &report);
    }
    Ok(if report.findings.is_empty() { ExitCode::SUCCESS } else { EXIT_FINDINGS.into() })
}

/// Checks a store that may be in use; `bar` follows the events read.
pub async fn check_store(config: &Config, bar: ProgressBar) -> anyhow::Result<CheckReport> {
    let url = &config.store.url;
    let report = match url {
        StoreUrl::Sqlite(directory) => {
            if !directory.is_dir() {
                bail!("there is no directory {}; name the store with --data", directory.display());
            }
            let directory = directory.clone();
            let check = move || {
                SqliteStore::check_directory(&directory, &|events| bar.set_position(events))
            };
            tokio::task::spawn_blocking(check).await.context("the check was interrupted")?
        }
        StoreUrl::Postgres(_) => {
            let store = open_store(config).await?;
            let report = store.check(&|events| bar.set_position(events)).await;
            store.close().await;
            report
        }
    };
    report.with_context(|| format!("cannot check {url}"))
}

fn print_report(url: &StoreUrl, report: &CheckReport) {
    let mut table = new_table(&["store", "events", "totals", "findings"], 1);
    table.add_row([
        cell(url),
        cell(grouped(report.events)),
        cell(grouped(report.rollups)),
        cell(grouped(report.findings.len())),
    ]);
    println!("{table}");
    for finding in &report.findings {
        println!("- {finding}");
    }
    if report.findings.is_empty() {
        println!("every total is exactly what its events add up to");
    } else {
        println!(
            "\nstored totals contradict stored events: keep the files as they are, stop billing \
             from the totals named above, and report this as a bug"
        );
    }
}
