//! The command line: one file a command, and what they share.
//!
//! Invariant: answers go to standard output, everything else to standard error, and the exit code
//! says what happened: 0 done, 1 it could not be done, 2 the command line is wrong, 3 events were
//! refused (`send`), 4 something does not match (`check`, `stripe`, `reconcile`, `status`).

mod alerts;
mod answer;
mod check;
mod client;
mod clock;
mod completions;
mod config;
mod conflicts;
mod credits;
mod demo;
mod findings;
mod inboxes;
mod keys;
mod passes;
mod pushes;
mod quarantine;
mod reconcile;
mod sagas;
mod send;
mod serve;
mod status;
mod store;
mod stores;
mod stripe;
mod stripe_sim;
mod table;
mod usage;
mod webhooks;

use anyhow::Context;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Some events were refused, or are kept for a person to decide.
const EXIT_EVENTS_REFUSED: u8 = 3;
/// Two things that must match do not.
const EXIT_FINDINGS: u8 = 4;

/// Counts usage events exactly once in effect and keeps exact totals for billing.
#[derive(Parser)]
#[command(name = "counterfoil", version, max_term_width = 100, after_help = ROOT_EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const ROOT_EXAMPLES: &str = "Examples:
  counterfoil serve                 start a server on 127.0.0.1:8787 with its data in the
                                    directory counterfoil-data
  counterfoil demo                  exact counts and bills through kill -9 and a failing Stripe
  counterfoil send events.ndjson    send events from a file
  counterfoil usage --tenant acme --meter api_calls --window day
  counterfoil status                show billing health
  counterfoil reconcile --from 2026-11-01 --to 2026-12-01 --html november.html";

#[derive(Subcommand)]
enum Command {
    Serve(serve::ServeArguments),
    Send(send::SendArguments),
    Usage(usage::UsageArguments),
    Keys(keys::KeysArguments),
    Pushes(pushes::PushesArguments),
    Status(status::StatusArguments),
    Reconcile(reconcile::ReconcileArguments),
    Passes(passes::PassesArguments),
    Findings(findings::FindingsArguments),
    Quarantine(quarantine::QuarantineArguments),
    Conflicts(conflicts::ConflictsArguments),
    Alerts(alerts::AlertsArguments),
    Webhooks(webhooks::WebhooksArguments),
    Sagas(sagas::SagasArguments),
    Credits(credits::CreditsArguments),
    Stripe(stripe::StripeArguments),
    Check(check::CheckArguments),
    Clock(clock::ClockArguments),
    Store(stores::StoresArguments),
    Config(config::ConfigArguments),
    Demo(demo::DemoArguments),
    StripeSim(stripe_sim::StripeSimArguments),
    Completions(completions::CompletionsArguments),
}

/// Runs the command that the process was started with.
pub fn run() -> ExitCode {
    let arguments = Arguments::parse();
    if !matches!(arguments.command, Command::Serve(_)) {
        end_quietly_on_broken_pipes();
    }
    match run_command(arguments.command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("counterfoil: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Ends the process when the program that reads its output has gone, as in `counterfoil pushes |
/// head`: `println!` panics then, which is no fault of anybody.
fn end_quietly_on_broken_pipes() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload().downcast_ref::<String>().map_or("", String::as_str);
        if text.starts_with("failed printing to std") && text.contains("Broken pipe") {
            std::process::exit(0);
        }
        report(panic);
    }));
}

fn run_command(command: Command) -> anyhow::Result<ExitCode> {
    // Connections to servers and to PostgreSQL may be encrypted; both ask for this provider. It
    // can only be installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // Two threads more than cores: a request that only reads need not wait while every core's
    // thread reads a batch.
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores + 2)
        .enable_all()
        .build()
        .context("cannot start the threads that do the work")?;
    runtime.block_on(async {
        match command {
            Command::Serve(arguments) => serve::run(&arguments).await,
            Command::Send(arguments) => send::run(arguments).await,
            Command::Usage(arguments) => usage::run(&arguments).await,
            Command::Keys(arguments) => keys::run(arguments).await,
            Command::Pushes(arguments) => pushes::run(arguments).await,
            Command::Status(arguments) => status::run(&arguments).await,
            Command::Reconcile(arguments) => reconcile::run(&arguments).await,
            Command::Passes(arguments) => passes::run(arguments).await,
            Command::Findings(arguments) => findings::run(&arguments).await,
            Command::Quarantine(arguments) => quarantine::run(arguments).await,
            Command::Conflicts(arguments) => conflicts::run(arguments).await,
            Command::Alerts(arguments) => alerts::run(&arguments).await,
            Command::Webhooks(arguments) => webhooks::run(arguments).await,
            Command::Sagas(arguments) => sagas::run(arguments).await,
            Command::Credits(arguments) => credits::run(&arguments).await,
            Command::Stripe(arguments) => stripe::run(arguments).await,
            Command::Check(arguments) => check::run(&arguments).await,
            Command::Clock(arguments) => clock::run(&arguments).await,
            Command::Store(arguments) => stores::run(arguments).await,
            Command::Config(arguments) => config::run(&arguments),
            Command::Demo(arguments) => demo::run(&arguments).await,
            Command::StripeSim(arguments) => stripe_sim::run(arguments).await,
            Command::Completions(arguments) => Ok(completions::run(&arguments)),
        }
    })
}

/// The `clap` definition, for shell completions.
fn definition() -> clap::Command {
    <Arguments as clap::CommandFactory>::command()
}
