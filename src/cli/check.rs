//! `counterfoil check`: recomputes every total from the events and compares; follows the chain of
//! audit rows.
//!
//! Invariant: without `--repair` it only reads, so it may run beside a server at any time.

mod display;

pub use display::CheckDisplay;

use super::EXIT_FINDINGS;
use super::store::StoreArguments;
use super::table::{cell, grouped, new_table};
use crate::config::{Config, StoreUrl};
use crate::store::CheckReport;
use crate::store::postgres::PostgresStore;
use crate::store::sqlite::SqliteStore;
use anyhow::{Context, bail};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Recompute every total from its events and compare
#[derive(clap::Args)]
#[command(after_help = "Examples:
  counterfoil check
      the store in ./counterfoil-data; a server may be running on it
  counterfoil check --data /var/lib/counterfoil --json
  counterfoil check --store postgres://counterfoil:secret@db/counterfoil
  counterfoil check --data /var/lib/counterfoil --repair
      makes wrong totals again from their events; stop the server and copy its directory first

Nothing is changed without --repair.
Exit code: 0 everything agrees, 4 something does not, 1 it could not be checked or repaired.")]
pub struct CheckArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Rebuild wrong or unreadable totals from their events; embedded store only,
    /// and its server must be stopped
    #[arg(long)]
    repair: bool,
}

pub async fn run(arguments: &CheckArguments) -> anyhow::Result<ExitCode> {
    let config = arguments.store.load_config()?;
    let display = Arc::new(CheckDisplay::new());
    let wrong = match arguments.repair {
        true => repair_store(&config, Arc::clone(&display)).await?,
        false => Vec::new(),
    };
    let report = check_store(&config, Arc::clone(&display)).await;
    display.end();
    let report = report?;
    for finding in wrong.iter().filter(|finding| !report.findings.contains(finding)) {
        eprintln!("repaired: {finding}");
    }
    if arguments.json {
        let report = serde_json::json!({
            "store": config.store.url.to_string(), "events": report.events,
            "totals": report.rollups, "nightly_passes": report.audit.passes,
            "audit_rows": report.audit.rows, "findings": report.findings,
        });
        println!("{report}");
    } else {
        print_report(&config.store.url, &report);
    }
    Ok(if report.findings.is_empty() { ExitCode::SUCCESS } else { EXIT_FINDINGS.into() })
}

/// Checks a store that may be in use; `display` follows the events that are read.
pub async fn check_store(
    config: &Config,
    display: Arc<CheckDisplay>,
) -> anyhow::Result<CheckReport> {
    let url = &config.store.url;
    let report = match url {
        StoreUrl::Sqlite(directory) => {
            let directory = existing(directory)?;
            let check = move || {
                SqliteStore::check_directory(&directory, &|progress| display.show(progress))
            };
            tokio::task::spawn_blocking(check).await.context("the check was interrupted")?
        }
        StoreUrl::Postgres(url) => {
            let progress = |progress| display.show(progress);
            PostgresStore::check_database(url, &config.postgres, &progress).await
        }
    };
    report.with_context(|| format!("cannot check {url}"))
}

/// Makes wrong totals again from the events; returns everything that was found before.
async fn repair_store(config: &Config, display: Arc<CheckDisplay>) -> anyhow::Result<Vec<String>> {
    let url = &config.store.url;
    let StoreUrl::Sqlite(directory) = url else {
        bail!("--repair is for the embedded store; restore a PostgreSQL database from its backup");
    };
    let directory = existing(directory)?;
    let repair =
        move || SqliteStore::repair_directory(&directory, &|progress| display.show(progress));
    let repaired =
        tokio::task::spawn_blocking(repair).await.context("the repair was interrupted")?;
    Ok(repaired.with_context(|| format!("cannot repair {url}"))?.findings)
}

pub fn existing(directory: &Path) -> anyhow::Result<PathBuf> {
    if !directory.is_dir() {
        bail!("there is no directory {}; name the store with --data", directory.display());
    }
    Ok(directory.to_owned())
}

fn print_report(url: &StoreUrl, report: &CheckReport) {
    let header = ["store", "events", "totals", "nightly passes", "audit rows", "findings"];
    let mut table = new_table(&header, 1);
    table.add_row([
        cell(url),
        cell(grouped(report.events)),
        cell(grouped(report.rollups)),
        cell(grouped(report.audit.passes)),
        cell(grouped(report.audit.rows)),
        cell(grouped(report.findings.len())),
    ]);
    println!("{table}");
    for finding in &report.findings {
        println!("- {finding}");
    }
    if report.findings.is_empty() {
        println!(
            "every total is exactly what its events add up to, and every audit row has the hash \
             that follows from the one before"
        );
    } else {
        println!(
            "\nwhat is stored contradicts itself: keep a copy of the files as they are, stop billing \
             from the totals named above, and see \"Damaged data\" in docs/operating.md"
        );
    }
}
