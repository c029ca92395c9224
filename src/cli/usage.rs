//! `counterfoil usage`: the exact usage of a tenant, as a table with its shape.
//!
//! Invariant: numbers are shown as the server wrote them; none passes through a float.

use super::client::{Client, Request, ServerArguments};
use super::table::{cell, grouped, new_table, plain, plain_json};
use crate::rules::quantity::Quantity;
use anyhow::Context;
use reqwest::Method;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::process::ExitCode;

/// Show the exact usage of one tenant and meter
#[derive(clap::Args)]
#[command(after_help = "Examples:
  counterfoil usage --tenant acme --meter api_calls
      the current month
  counterfoil usage --tenant acme --meter api_calls --from 2026-11-01 --to 2026-12-01 \\
      --window day --tz Europe/Paris
  counterfoil usage --tenant acme --meter api_calls --window day --group-by region --json")]
pub struct UsageArguments {
    #[command(flatten)]
    server: ServerArguments,
    /// Who is billed
    #[arg(long)]
    tenant: String,
    /// What is counted, by its slug
    #[arg(long)]
    meter: String,
    /// First instant, RFC 3339 or a date; with --to, or neither for the current month
    #[arg(long, requires = "to")]
    from: Option<String>,
    /// First instant that is no longer included
    #[arg(long, requires = "from")]
    to: Option<String>,
    /// How the range is cut: none, hour, day, week or month
    #[arg(long)]
    window: Option<String>,
    /// IANA time zone in which days, weeks and months begin
    #[arg(long)]
    tz: Option<String>,
    /// Dimensions of the meter, subscription or trial; separated by commas
    #[arg(long)]
    group_by: Option<String>,
    /// Print the server's answer as it is
    #[arg(long)]
    json: bool,
}

/// What `GET /v1/usage` answers.
#[derive(Deserialize)]
pub struct Usage {
    pub tenant: String,
    pub meter: String,
    pub from: String,
    pub to: String,
    pub total: Option<String>,
    pub count: u64,
    pub windows: Vec<UsageWindow>,
}

#[derive(Deserialize)]
pub struct UsageWindow {
    start: String,
    end: String,
    value: String,
    count: u64,
    state: String,
    #[serde(default)]
    group: BTreeMap<String, Option<String>>,
}

pub async fn run(arguments: &UsageArguments) -> anyhow::Result<ExitCode> {
    let client = Client::new(&arguments.server)?;
    let mut request = Request::new(Method::GET, &["v1", "usage"]);
    let wanted = [
        ("tenant", Some(&arguments.tenant)),
        ("meter", Some(&arguments.meter)),
        ("from", arguments.from.as_ref()),
        ("to", arguments.to.as_ref()),
        ("window", arguments.window.as_ref()),
        ("tz", arguments.tz.as_ref()),
        ("group_by", arguments.group_by.as_ref()),
    ];
    let given = wanted.into_iter().filter_map(|(name, value)| Some((name, value?.clone())));
    request.query.extend(given);
    let body = client.call(&request).await?;
    if arguments.json {
        println!("{}", plain_json(&body));
        return Ok(ExitCode::SUCCESS);
    }
    let usage = serde_json::from_slice(&body).context("the server's answer cannot be read")?;
    print_usage(&usage);
    Ok(ExitCode::SUCCESS)
}

fn print_usage(usage: &Usage) {
    let tenant = plain(&usage.tenant);
    println!("{} of {tenant}, from {} to {}\n", usage.meter, usage.from, usage.to);
    let dimensions: Vec<&str> = match usage.windows.first() {
        Some(window) => window.group.keys().map(String::as_str).collect(),
        None => Vec::new(),
    };
    let header: Vec<&str> = ["start", "end"]
        .into_iter()
        .chain(dimensions.iter().copied())
        .chain(["state", "value", "events"])
        .collect();
    let mut table = new_table(&header, 3 + dimensions.len());
    for window in &usage.windows {
        let group = window.group.values().map(|value| cell(value.as_deref().unwrap_or("-")));
        let numbers =
            [cell(&window.state), cell(grouped(&window.value)), cell(grouped(window.count))];
        let row = [cell(&window.start), cell(&window.end)];
        table.add_row(row.into_iter().chain(group).chain(numbers));
    }
    if usage.windows.is_empty() {
        println!("no usage in this range");
    } else {
        println!("{table}");
    }
    if dimensions.is_empty() && usage.windows.len() > 1 {
        let values: Vec<&str> = usage.windows.iter().map(|w| w.value.as_str()).collect();
        println!("\n{}", sparkline(&values));
    }
    let total = usage.total.as_deref().map_or_else(|| "none".to_owned(), grouped);
    println!("\ntotal {total} from {} events", grouped(usage.count));
}

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The shape of the values: from zero, or from the smallest if one is negative, to the largest.
fn sparkline(values: &[&str]) -> String {
    let units: Vec<i128> = values
        .iter()
        .map(|value| Quantity::parse_stored(value).map_or(0, Quantity::units))
        .collect();
    let low = units.iter().copied().min().unwrap_or(0).min(0);
    let high = units.iter().copied().max().unwrap_or(0).max(low + 1);
    // One part in a million is more than eight bars can show, and cannot overflow.
    let step = ((high - low) / 1_000_000).max(1);
    let span = ((high - low) / step).max(1);
    let bar = |value: i128| {
        let place = ((value - low) / step * 7 + span / 2) / span;
        BARS[usize::try_from(place.clamp(0, 7)).unwrap_or(0)]
    };
    units.into_iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes() {
        let check = |values: &[&str], expected: &str| assert_eq!(sparkline(values), expected);
        check(&["0", "1", "2", "3", "4", "5", "6", "7"], "▁▂▃▄▅▆▇█");
        check(&["5", "5"], "██");
        check(&["0", "0"], "▁▁");
        check(&["-1", "1"], "▁█");
        check(&["0.000001", "123456789012345"], "▁█");
        check(&[], "");
    }
}
