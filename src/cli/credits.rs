//! `counterfoil credits`: a tenant's credit balance and its changes.
//!
//! Invariant: only reads. Amounts are shown as the server wrote them.

use super::answer::{JsonArguments, ask, given, print_more};
use super::client::{Request, ServerArguments};
use super::table::{cell, moment, optional, print_table};
use crate::api::credits::{ChangeList, CoveredAnswer, CreditsAnswer, PoolAnswer};
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
    /// Tenant whose credits to show
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
    let request = Request::get(&path);
    let answer = ask::<CreditsAnswer>(&arguments.server, &request, arguments.shown).await?;
    let Some(CreditsAnswer { pools }) = answer else { return Ok(()) };
    if pools.is_empty() {
        println!("no credits");
        return Ok(());
    }
    let header = ["unit", "pool", "left after the last cuts", "usage since", "available"];
    let rows = pools.iter().map(|of| {
        let PoolAnswer { unit, pool, remaining, pending, available } = of;
        [cell(unit), cell(pool.name()), cell(remaining), cell(pending), cell(available)]
    });
    print_table(header, 2, rows);
    Ok(())
}

async fn list_changes(arguments: &CreditsArguments) -> anyhow::Result<()> {
    let path = ["v1", "tenants", &arguments.tenant, "credits", "changes"];
    let mut request = Request::get(&path);
    let limit = arguments.limit.to_string();
    request.query = given([("limit", Some(&limit))]);
    let answer = ask::<ChangeList>(&arguments.server, &request, arguments.shown).await?;
    let Some(list) = answer else { return Ok(()) };
    let header = ["change", "at", "grant", "what", "amount", "left", "usage", "memo"];
    let rows = list.changes.iter().map(|change| {
        let usage = change.covered.as_ref().map(|covered| {
            let CoveredAnswer { meter, window_start, quantity, .. } = covered;
            format!("{quantity} {meter} of {window_start}")
        });
        [
            cell(change.number),
            moment(change.at),
            cell(change.grant),
            cell(change.kind.name()),
            cell(change.amount),
            cell(change.remaining),
            optional(usage.as_ref()),
            cell(&change.memo),
        ]
    });
    print_table(header, header.len(), rows);
    print_more(list.next_before);
    Ok(())
}
