//! `counterfoil findings`: differences that passes found, and how long each has been there.
//!
//! Invariant: only `--accept` changes anything. Numbers are shown as the server wrote them.

use super::answer::{JsonArguments, ask_list, print_more};
use super::client::{Client, Request, ServerArguments};
use super::table::{cell, grouped, moment, optional, plain, print_table};
use crate::api::findings::{FindingAnswer, FindingList};
use std::collections::BTreeMap;
use std::process::ExitCode;

/// List open discrepancies between ledger and provider
#[derive(clap::Args)]
#[command(after_help = "Examples:
  counterfoil findings
      open findings, each with what to do
  counterfoil findings --all --tenant acme
      also those that were cleared, and how long each took
  counterfoil findings --kind invoice --json
  counterfoil findings --accept 42
      an unknown subscription of a tenant is left as it is and not reported again")]
pub struct FindingsArguments {
    #[command(flatten)]
    server: ServerArguments,
    /// Only open findings; this is the default
    #[arg(long, conflicts_with = "all")]
    open: bool,
    /// Include cleared findings
    #[arg(long)]
    all: bool,
    /// Only of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Only of this kind
    #[arg(long, value_parser = ["usage", "subscription", "invoice"])]
    kind: Option<String>,
    /// Accept the unknown subscription of this finding as it is
    #[arg(long, value_name = "ID", conflicts_with_all = ["open", "all", "tenant", "kind"])]
    accept: Option<u64>,
    /// Most findings to show, newest first
    #[arg(long, default_value_t = 50)]
    limit: u16,
    #[command(flatten)]
    shown: JsonArguments,
}

pub async fn run(arguments: &FindingsArguments) -> anyhow::Result<ExitCode> {
    if let Some(id) = arguments.accept {
        let path = ["v1", "findings", &id.to_string(), "accept"];
        Client::new(&arguments.server)?.call(&Request::post(&path)).await?;
        println!("finding {id} is cleared; its subscription is not reported again");
        return Ok(ExitCode::SUCCESS);
    }
    let open = (!arguments.all).then(|| "true".to_owned());
    let filters = [("open", &open), ("kind", &arguments.kind), ("tenant", &arguments.tenant)];
    let request = Request::list("findings", filters, arguments.limit);
    let none = if arguments.all { "no findings" } else { "no open findings" };
    let found = ask_list(&arguments.server, &request, arguments.shown, none).await?;
    found.iter().for_each(print_list);
    Ok(ExitCode::SUCCESS)
}

fn print_list(list: &FindingList) {
    let header = [
        "id", "kind", "tenant", "meter", "subject", "verdict", "why", "opened", "state", "passes",
        "ledger", "provider",
    ];
    let rows = list.findings.iter().map(|finding| {
        [
            cell(finding.id),
            cell(finding.kind.name()),
            optional(finding.tenant.as_ref()),
            optional(finding.meter.as_ref()),
            cell(&finding.subject),
            cell(finding.verdict.name()),
            cell(finding.reason.name()),
            moment(finding.opened_at),
            cell(state(finding)),
            cell(finding.passes),
            cell(grouped(finding.ledger)),
            cell(grouped(finding.provider)),
        ]
    });
    print_table(header, 9, rows);
    let open = list.findings.iter().filter(|finding| finding.cleared_at.is_none());
    let advice: BTreeMap<&str, &str> =
        open.map(|finding| (finding.reason.name(), finding.advice.as_str())).collect();
    if !advice.is_empty() {
        println!("\nwhat to do");
        for (reason, advice) in advice {
            println!("  {reason}: {}", plain(advice));
        }
    }
    print_more(list.next_before);
}

fn state(finding: &FindingAnswer) -> String {
    match (finding.cleared_at, finding.took_seconds, finding.paged_at) {
        (Some(_), Some(seconds), _) => format!("cleared after {}", duration(seconds)),
        (Some(_), None, _) => "cleared".into(),
        (None, _, Some(_)) => "open, paged".into(),
        (None, _, None) => "open".into(),
    }
}

/// Seconds in the largest two units that say something.
fn duration(seconds: i64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min"),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let check = |seconds: i64, expected: &str| assert_eq!(duration(seconds), expected);
        check(0, "0 s");
        check(59, "59 s");
        check(61, "1 min");
        check(7_260, "2 h 1 min");
        check(90_000, "1 d 1 h");
    }
}
