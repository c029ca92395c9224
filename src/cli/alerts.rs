//! `counterfoil alerts`: open and resolved alerts.
//!
//! Invariant: only reads. Each alert is shown with the command that shows more.

use super::answer::{JsonArguments, ask_list, print_more};
use super::client::{Request, ServerArguments};
use super::table::{cell, moment, print_table};
use crate::api::alerts::AlertList;
use std::process::ExitCode;

/// List open alerts
#[derive(clap::Args)]
#[command(after_help = "Examples:
  counterfoil alerts
      open alerts, each with the command that shows details
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

pub async fn run(arguments: &AlertsArguments) -> anyhow::Result<ExitCode> {
    let open = (!arguments.all).then(|| "true".to_owned());
    let filters = [("open", &open), ("kind", &arguments.kind)];
    let request = Request::list("alerts", filters, arguments.limit);
    let none = if arguments.all { "no alerts" } else { "no open alerts" };
    let found = ask_list::<AlertList>(&arguments.server, &request, arguments.shown, none).await?;
    let Some(list) = found else { return Ok(ExitCode::SUCCESS) };
    let header = ["id", "severity", "kind", "subject", "opened", "resolved", "what", "command"];
    let rows = list.alerts.iter().map(|alert| {
        let subject = if alert.subject.is_empty() { "-" } else { &alert.subject };
        [
            cell(alert.id),
            cell(alert.severity.name()),
            cell(alert.kind.name()),
            cell(subject),
            moment(alert.opened_at),
            moment(alert.resolved_at),
            cell(&alert.summary),
            cell(&alert.command),
        ]
    });
    print_table(header, header.len(), rows);
    print_more(list.next_before);
    Ok(ExitCode::SUCCESS)
}
