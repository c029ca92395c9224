//! `counterfoil passes`: comparisons that were made, and what each found.
//!
//! Invariant: only reads. A stored pass is shown exactly as `counterfoil reconcile` showed it.
//! `verify` reads the store itself and trusts no server.

use super::EXIT_FINDINGS;
use super::answer::{JsonArguments, ListOr, ask_list, print_more};
use super::check::existing;
use super::client::{Client, Request, ServerArguments};
use super::reconcile::outcome::{OutputArguments, present};
use super::reconcile::pass::{Received, day};
use super::store::StoreArguments;
use super::table::{cell, grouped, moment, print_table};
use crate::api::passes::PassList;
use crate::config::{Config, StoreUrl};
use crate::rules::chain::ChainReport;
use crate::rules::digest::hex;
use crate::rules::drift::Verdict;
use crate::store::postgres::PostgresStore;
use crate::store::sqlite::SqliteStore;
use anyhow::Context;
use std::process::ExitCode;

pub type PassesArguments = ListOr<PassesCommand, ListArguments>;

/// List reconciliation passes and show their results
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  counterfoil passes
  counterfoil passes --kind nightly --limit 7
  counterfoil passes show 7
      what pass 7 found, as `counterfoil reconcile` shows it
  counterfoil passes show 7 --html november.html
  counterfoil passes verify
      whether an audit row was changed or taken away"
)]
pub struct ListArguments {
    #[command(flatten)]
    server: ServerArguments,
    /// Only of this kind
    #[arg(long, value_parser = ["hourly", "nightly", "one_shot"])]
    kind: Option<String>,
    /// Most passes to show, newest first
    #[arg(long, default_value_t = 50)]
    limit: u16,
    #[command(flatten)]
    shown: JsonArguments,
}

#[derive(clap::Subcommand)]
pub enum PassesCommand {
    /// List passes, newest first; the same as no subcommand
    #[command(after_help = "Example:
  counterfoil passes list --kind nightly")]
    List(ListArguments),
    /// Show a pass, and write its rows to files
    #[command(after_help = "Examples:
  counterfoil passes show 7
  counterfoil passes show 7 --csv november.csv --html november.html

Exit code: 0 all was read and nothing drifts, 4 something drifts, 1 the pass failed or is
incomplete.")]
    Show {
        #[command(flatten)]
        server: ServerArguments,
        /// The pass's id
        id: u64,
        #[command(flatten)]
        output: OutputArguments,
    },
    /// Verify the chain of nightly audit rows; report the first changed one
    #[command(after_help = "Examples:
  counterfoil passes verify
      the store in ./counterfoil-data; a server may be running on it
  counterfoil passes verify --store postgres://counterfoil:secret@db/counterfoil

Reads the store itself. Keep a copy of the last hash elsewhere: it proves later that no pass at the
end was removed. docs/operating.md says how a hash is made.
Exit code: 0 the chain holds, 4 it is broken, 1 it could not be read.")]
    Verify {
        #[command(flatten)]
        store: StoreArguments,
        /// Print the outcome as JSON
        #[arg(long)]
        json: bool,
    },
}

pub async fn run(arguments: PassesArguments) -> anyhow::Result<ExitCode> {
    match arguments.command.unwrap_or(PassesCommand::List(arguments.list)) {
        PassesCommand::List(arguments) => list(&arguments).await,
        PassesCommand::Show { server, id, output } => {
            let client = Client::new(&server)?;
            let request = Request::get(&["v1", "passes", &id.to_string()]);
            let received = Received::read(&client.call(&request).await?)?;
            present(&client, &received, &output).await
        }
        PassesCommand::Verify { store, json } => verify(&store, json).await,
    }
}

async fn verify(store: &StoreArguments, json: bool) -> anyhow::Result<ExitCode> {
    let config = store.load_config()?;
    let report = verify_store(&config).await?;
    let ChainReport { passes, rows, head, broken } = &report;
    let head = head.map(|(pass, hash)| (pass, hex(&hash)));
    if json {
        let head =
            head.as_ref().map(|(pass, hash)| serde_json::json!({"pass": pass, "hash": hash}));
        let outcome = serde_json::json!({
            "passes": passes, "rows": rows, "head": head, "broken": broken,
        });
        println!("{outcome}");
    } else {
        let (passes, rows) = (grouped(passes), grouped(rows));
        println!("{passes} nightly passes with {rows} rows follow from each other");
        if let Some((pass, hash)) = head {
            println!("pass {pass} ends with the hash {hash}");
        }
        if let Some(broken) = broken {
            println!("BROKEN: {broken}");
        }
    }
    Ok(if broken.is_some() { EXIT_FINDINGS.into() } else { ExitCode::SUCCESS })
}

async fn verify_store(config: &Config) -> anyhow::Result<ChainReport> {
    let url = &config.store.url;
    let report = match url {
        StoreUrl::Sqlite(directory) => {
            let directory = existing(directory)?;
            let verify = move || SqliteStore::verify_directory(&directory);
            tokio::task::spawn_blocking(verify).await.context("it was interrupted")?
        }
        StoreUrl::Postgres(url) => PostgresStore::verify_database(url, &config.postgres).await,
    };
    report.with_context(|| format!("cannot read the passes of {url}"))
}

async fn list(arguments: &ListArguments) -> anyhow::Result<ExitCode> {
    let filters = [("kind", &arguments.kind)];
    let request = Request::list("passes", filters, arguments.limit);
    let none = "no passes; `counterfoil reconcile` makes one";
    let found = ask_list::<PassList>(&arguments.server, &request, arguments.shown, none).await?;
    let Some(list) = found else { return Ok(ExitCode::SUCCESS) };
    let header = [
        "id", "kind", "from", "until", "tenant", "mode", "state", "ordered", "windows", "equal",
        "waiting", "unread", "drifting",
    ];
    let rows = list.passes.iter().map(|pass| {
        [
            cell(pass.id),
            cell(pass.kind.name()),
            cell(day(pass.from)),
            cell(day(pass.to)),
            cell(pass.tenant.as_deref().unwrap_or("all")),
            cell(pass.mode()),
            cell(pass.state.name()),
            moment(pass.created_at),
            cell(grouped(pass.windows)),
            cell(grouped(pass.count(Verdict::Equal))),
            cell(grouped(pass.count(Verdict::Waiting))),
            cell(grouped(pass.count(Verdict::Unread))),
            cell(grouped(pass.drifting())),
        ]
    });
    print_table(header, 8, rows);
    print_more(list.next_before);
    Ok(ExitCode::SUCCESS)
}
