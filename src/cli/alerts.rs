//! `counterfoil alerts`: what a person was told, and whether it is over.
//!
//! Invariant: only reads. Each alert is shown with the command that tells more.

use super::answer::{JsonArguments, ask, given, print_more};
use super::client::{Request, ServerArguments};
use super::table::{cell, moment, new_table};
use reqwest::Method;
use serde::Deserialize;
use std::process::ExitCode;

/// List open alerts
#[derive(clap::Args)]
#[command(after_help = "Examples:
  counterfoil alerts
      those that are open, each with the command that tells more
  counterfoil alerts --all --kind dead_letters
  counterfoil alerts --json")]
pub struct AlertsArguments {
    #[command(flatten)]
    server: ServerArguments,
    /// Only open alerts; this is the default
    #[arg(long, conflicts_with = "all")]
    open: bool,
    /// Include resolved alerts
    #[arg(long)]
    all: bool,
    /// Only of this kind, such as dead_letters or silence
    #[arg(long)]
    kind: Option<String>,
    /// Most alerts to show, newest first
    #[arg(long, default_value_t = 50)]
    limit: u16,
    #[command(flatten)]
    shown: JsonArguments,
}

#[derive(Deserialize)]
struct AlertList {
    alerts: Vec<Alert>,
    next_before: Option<u64>,
}

#[derive(Deserialize)]
struct Alert {
    id: u64,
    kind: String,
    severity: String,
    subject: String,
    summary: String,
    command: String,
    opened_at: String,
    resolved_at: Option<String>,
}

pub async fn run(arguments: &AlertsArguments) -> anyhow::Result<ExitCode> {
    let mut request = Request::new(Method::GET, &["v1", "alerts"]);
    let (open, limit) = ("true".to_owned(), arguments.limit.to_string());
    request.query = given([
        ("open", (!arguments.all).then_some(&open)),
        ("kind", arguments.kind.as_ref()),
        ("limit", Some(&limit)),
    ]);
    let answer = ask::<AlertList>(&arguments.server, &request, arguments.shown).await?;
    let Some(list) = answer else { return Ok(ExitCode::SUCCESS) };
    if list.alerts.is_empty() {
        println!("{}", if arguments.all { "no alerts" } else { "no open alerts" });
        return Ok(ExitCode::SUCCESS);
    }
    let header = ["id", "severity", "kind", "about", "opened", "over", "what", "tells more"];
    let mut table = new_table(&header, header.len());
    for alert in &list.alerts {
        let subject = if alert.subject.is_empty() { "-" } else { &alert.subject };
        table.add_row([
            cell(alert.id),
            cell(&alert.severity),
            cell(&alert.kind),
            cell(subject),
            moment(&alert.opened_at),
            moment(alert.resolved_at.as_deref().unwrap_or("-")),
            cell(&alert.summary),
            cell(&alert.command),
        ]);
    }
    println!("{table}");
    print_more(list.next_before);
    Ok(ExitCode::SUCCESS)
}
