//! `counterfoil clock`: what a store has recorded of time, and resetting what a wrong clock
//! moved.
//!
//! Invariant: `reset` changes marks, leases and times at which something is due, never events,
//! totals or pushes' values. It may be repeated, and a crash leaves it done or not.

use super::store::{StoreArguments, open_store};
use super::table::{cell, new_table};
use crate::clock::Clock;
use crate::rules::timestamp::Timestamp;
use crate::store::clock::{Clocks, TimeMarks};
use clap::Subcommand;
use std::process::ExitCode;

/// Show a store's recorded times, or reset them after a wrong clock
#[derive(clap::Args)]
#[command(after_help = "Examples:
  counterfoil clock show --data /var/lib/counterfoil
      this machine's time, beside what the store has recorded
  counterfoil clock reset --data /var/lib/counterfoil
      after a wrong clock: sets the store's recorded times to this machine's time, which must be
      right; stop the server first

With PostgreSQL or Stripe neither command is needed: the server checks the time against theirs.")]
pub struct ClockArguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Show this machine's time and the store's recorded times
    Show(StoreArguments),
    /// Set the store's recorded times to this machine's time, which must be right
    Reset(StoreArguments),
}

pub async fn run(arguments: &ClockArguments) -> anyhow::Result<ExitCode> {
    let (target, resets) = match &arguments.action {
        Action::Show(target) => (target, false),
        Action::Reset(target) => (target, true),
    };
    let config = target.load_config()?;
    let store = open_store(&config).await?;
    let now = Clock::system().now();
    print_marks(&*store, now).await?;
    if resets {
        store.lower_time_marks(now).await?;
        println!(
            "the store's marks are at {now} now; cuts look at everything again, and events are \
             accepted by this machine's clock"
        );
    }
    store.close().await;
    Ok(ExitCode::SUCCESS)
}

async fn print_marks(store: &dyn Clocks, now: Timestamp) -> anyhow::Result<()> {
    let TimeMarks { high_water, newest_usage, newest_cut } = store.read_time_marks().await?;
    let text = |time: Option<Timestamp>| time.map_or("none".to_owned(), |time| time.to_string());
    let mut table = new_table(&["clock or mark", "time"], 2);
    table.add_row([cell("this machine's clock"), cell(now)]);
    table.add_row([cell("the database's clock"), cell(text(store.read_clock().await?))]);
    table.add_row([cell("anything last received at"), cell(text(high_water))]);
    table.add_row([cell("newest usage, by start of its bucket"), cell(text(newest_usage))]);
    table.add_row([cell("newest mark of a cut"), cell(text(newest_cut))]);
    println!("{table}");
    Ok(())
}
