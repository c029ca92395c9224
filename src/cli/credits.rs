//! `counterfoil credits`: what is left of a tenant's credits, and what became of the rest.
//!
//! Invariant: only reads. Amounts are shown as the server wrote them.

use super::answer::{JsonArguments, ask, given, print_more};
use super::client::{Request, ServerArguments};
use super::table::{cell, moment, new_table};
use reqwest::Method;
use serde::Deserialize;
use std::process::ExitCode;

/// Show a tenant's credit balance, or its changes
#[derive(clap::Args)]
#[command(after_help = "Examples:
  counterfoil credits --tenant acme
      by unit and pool, with usage up to this moment
  counterfoil credits --tenant acme --changes
      every change, with the usage it covered")]
pub struct CreditsArguments {
    #[command(flatten)]
    server: ServerArguments,
    #[arg(long)]
    tenant: String,
    /// List changes instead, newest first
    #[arg(long)]
    changes: bool,
    /// Most changes to show
    #[arg(long, default_value_t = 50, requires = "changes")]
    limit: u16,
    #[command(flatten)]
    shown: JsonArguments,
}

#[derive(Deserialize)]
struct Credits {
    pools: Vec<Pool>,
}

#[derive(Deserialize)]
struct Pool {
    unit: String,
    pool: String,
    remaining: String,
    pending: String,
    available: String,
}

#[derive(Deserialize)]
struct ChangeList {
    changes: Vec<Change>,
    next_before: Option<u64>,
}

#[derive(Deserialize)]
struct Change {
    number: u64,
    grant: u64,
    kind: String,
    amount: String,
    remaining: String,
    covered: Option<Covered>,
    memo: String,
    at: String,
}

#[derive(Deserialize)]
struct Covered {
    meter: String,
    window_start: String,
    quantity: String,
}

pub async fn run(arguments: &CreditsArguments) -> anyhow::Result<ExitCode> {
    if arguments.changes {
        list_changes(arguments).await?;
    } else {
        show_pools(arguments).await?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn show_pools(arguments: &CreditsArguments) -> anyhow::Result<()> {
    let path = ["v1", "tenants", &arguments.tenant, "credits"];
    let request = Request::new(Method::GET, &path);
    let answer = ask::<Credits>(&arguments.server, &request, arguments.shown).await?;
    let Some(Credits { pools }) = answer else { return Ok(()) };
    if pools.is_empty() {
        println!("no credits");
        return Ok(());
    }
    let header = ["unit", "pool", "left after the last cuts", "usage since", "available"];
    let mut table = new_table(&header, 2);
    for Pool { unit, pool, remaining, pending, available } in &pools {
        table.add_row([cell(unit), cell(pool), cell(remaining), cell(pending), cell(available)]);
    }
    println!("{table}");
    Ok(())
}

async fn list_changes(arguments: &CreditsArguments) -> anyhow::Result<()> {
    let path = ["v1", "tenants", &arguments.tenant, "credits", "changes"];
    let mut request = Request::new(Method::GET, &path);
    let limit = arguments.limit.to_string();
    request.query = given([("limit", Some(&limit))]);
    let answer = ask::<ChangeList>(&arguments.server, &request, arguments.shown).await?;
    let Some(list) = answer else { return Ok(()) };
    let header = ["change", "at", "grant", "what", "amount", "left", "usage", "memo"];
    let mut table = new_table(&header, header.len());
    for change in &list.changes {
        let usage = change.covered.as_ref().map(|covered| {
            let Covered { meter, window_start, quantity } = covered;
            format!("{quantity} {meter} of {window_start}")
        });
        table.add_row([
            cell(change.number),
            moment(&change.at),
            cell(change.grant),
            cell(&change.kind),
            cell(&change.amount),
            cell(&change.remaining),
            cell(usage.as_deref().unwrap_or("-")),
            cell(&change.memo),
        ]);
    }
    println!("{table}");
    print_more(list.next_before);
    Ok(())
}
