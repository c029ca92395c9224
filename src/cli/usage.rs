//! `counterfoil usage`: the exact usage of a tenant, as a table with its shape, or of all tenants.
//!
//! Invariant: numbers are shown as the server wrote them; none passes through a float.

use super::answer::{JsonArguments, Pages, ask, given};
use super::client::{Client, Request, ServerArguments};
use super::table::{cell, grouped, new_table, optional, plain, plain_json, word};
use crate::api::usage::{TotalAnswer, TotalList, UsageAnswer, WindowAnswer};
use crate::clock::Clock;
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;
use std::process::ExitCode;

/// Show the exact usage of one tenant and meter, or of all
#[derive(clap::Args)]
#[command(after_help = "Examples:
  counterfoil usage --tenant acme --meter api_calls
      the current month
  counterfoil usage --tenant acme --meter api_calls --from 2026-11-01 --to 2026-12-01 \\
      --window day --tz Europe/Paris
  counterfoil usage --tenant acme --meter api_calls --window day --group-by region --json
  counterfoil usage --all --month 2026-11 --csv > november.csv
      every tenant and meter with events in that month")]
pub struct UsageArguments {
    #[command(flatten)]
    server: ServerArguments,
    /// Who is billed
    #[arg(long, required_unless_present = "all", requires = "meter")]
    tenant: Option<String>,
    /// What is counted, by its slug
    #[arg(long, required_unless_present = "all")]
    meter: Option<String>,
    /// All tenants and meters with events
    #[arg(long, conflicts_with_all = ["tenant", "meter", "window", "group_by"])]
    all: bool,
    /// The month to show, such as 2026-11
    #[arg(long, value_name = "YYYY-MM", value_parser = read_month)]
    #[arg(conflicts_with_all = ["from", "to"])]
    month: Option<Month>,
    /// First instant, RFC 3339 or a date; with --to, or neither for the current month
    #[arg(long, requires = "to")]
    from: Option<String>,
    /// First instant that is no longer included
    #[arg(long, requires = "from")]
    to: Option<String>,
    /// Split the range: none, hour, day, week or month
    #[arg(long)]
    window: Option<String>,
    /// IANA time zone in which days, weeks and months begin
    #[arg(long)]
    tz: Option<String>,
    /// Dimensions of the meter, subscription or trial; separated by commas
    #[arg(long)]
    group_by: Option<String>,
    /// With --all: print CSV
    #[arg(long, requires = "all", conflicts_with = "json")]
    csv: bool,
    #[command(flatten)]
    shown: JsonArguments,
}

/// A month's first day, and that of the next one.
#[derive(Clone)]
struct Month {
    from: String,
    to: String,
}

fn read_month(text: &str) -> Result<Month, String> {
    let refuse = || "give a year and a month, such as 2026-11".to_owned();
    let first: jiff::civil::Date = format!("{text}-01").parse().map_err(|_| refuse())?;
    if text.len() != 7 {
        return Err(refuse());
    }
    let next = first.checked_add(jiff::Span::new().months(1)).map_err(|_| refuse())?;
    Ok(Month { from: first.to_string(), to: next.to_string() })
}

impl UsageArguments {
    fn range(&self) -> [(&'static str, Option<&String>); 3] {
        let month = self.month.as_ref();
        [
            ("from", self.from.as_ref().or(month.map(|month| &month.from))),
            ("to", self.to.as_ref().or(month.map(|month| &month.to))),
            ("tz", self.tz.as_ref()),
        ]
    }
}

pub async fn run(arguments: &UsageArguments) -> anyhow::Result<ExitCode> {
    if arguments.all {
        return print_all(arguments).await;
    }
    let mut request = Request::get(&["v1", "usage"]);
    let wanted = [
        ("tenant", arguments.tenant.as_ref()),
        ("meter", arguments.meter.as_ref()),
        ("window", arguments.window.as_ref()),
        ("group_by", arguments.group_by.as_ref()),
    ];
    request.query = given(wanted.into_iter().chain(arguments.range()));
    if let Some(usage) = ask(&arguments.server, &request, arguments.shown).await? {
        print_usage(&usage, Clock::system().now());
    }
    Ok(ExitCode::SUCCESS)
}

/// Windows of the future are left out, unless events are ahead of this machine's clock.
fn print_usage(usage: &UsageAnswer, now: Timestamp) {
    let tenant = plain(&usage.tenant);
    println!("{} of {tenant}, from {} to {}\n", usage.meter, usage.from, usage.to);
    let group = usage.windows.first().and_then(|window| window.group.as_ref());
    let dimensions: Vec<&str> =
        group.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
    let header: Vec<&str> = ["start", "end"]
        .into_iter()
        .chain(dimensions.iter().copied())
        .chain(["state", "value", "events"])
        .collect();
    let mut table = new_table(&header, 3 + dimensions.len());
    let shown: Vec<&WindowAnswer> =
        usage.windows.iter().filter(|window| window.count > 0 || window.start <= now).collect();
    for window in &shown {
        let group = window.group.iter().flatten().map(|(_, value)| optional(value.as_ref()));
        let numbers =
            [cell(word(window.state)), cell(grouped(window.value)), cell(grouped(window.count))];
        let row = [cell(window.start), cell(window.end)];
        table.add_row(row.into_iter().chain(group).chain(numbers));
    }
    if shown.is_empty() {
        println!("no usage in this range");
    } else {
        println!("{table}");
    }
    if dimensions.is_empty() && shown.len() > 1 {
        let values: Vec<Quantity> = shown.iter().map(|window| window.value).collect();
        println!("\n{}", sparkline(&values));
    }
    let total = usage.total.map_or_else(|| "none".to_owned(), grouped);
    println!("\ntotal {total} from {} events", grouped(usage.count));
}

const COLUMNS: [&str; 8] = ["tenant", "name", "customer", "meter", "from", "to", "total", "events"];

/// Prints every tenant and meter, page by page, so that any number of tenants fits.
async fn print_all(arguments: &UsageArguments) -> anyhow::Result<ExitCode> {
    let client = Client::new(&arguments.server)?;
    let mut table = new_table(&["tenant", "name", "meter", "total", "events"], 3);
    if arguments.csv {
        println!("{}", COLUMNS.join(","));
    }
    let mut request = Request::get(&["v1", "usage", "totals"]);
    request.query = given(arguments.range());
    let mut pages = Pages::new(&client, request);
    while let Some((page, body)) = pages.next::<TotalList>().await? {
        if arguments.shown.json {
            println!("{}", plain_json(&body));
        }
        for row in &page.totals {
            if arguments.csv {
                println!("{}", csv_row(row, &page));
            }
            let numbers = [cell(grouped(row.total)), cell(grouped(row.count))];
            let names = [cell(&row.tenant), optional(row.name.as_ref()), cell(&row.meter)];
            table.add_row(names.into_iter().chain(numbers));
        }
    }
    if !arguments.csv && !arguments.shown.json {
        println!("{table}");
    }
    Ok(ExitCode::SUCCESS)
}

fn csv_row(row: &TotalAnswer, page: &TotalList) -> String {
    let optional = |text: &Option<String>| text.clone().unwrap_or_default();
    let fields = [
        row.tenant.clone(),
        optional(&row.name),
        optional(&row.customer),
        row.meter.clone(),
        page.from.to_string(),
        page.to.to_string(),
        row.total.to_string(),
        row.count.to_string(),
    ];
    fields.map(|field| csv_field(&plain(&field))).join(",")
}

/// RFC 4180. A text that a spreadsheet would run as a formula is marked as text.
fn csv_field(text: &str) -> String {
    let formula = text.starts_with(['=', '+', '@', '\t', '\r'])
        || (text.starts_with('-') && Quantity::parse_stored(text).is_none());
    let text = if formula { format!("'{text}") } else { text.to_owned() };
    if text.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", text.replace('"', "\"\""));
    }
    text
}

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The shape of the values: from zero, or from the smallest if one is negative, to the largest.
fn sparkline(values: &[Quantity]) -> String {
    let units: Vec<i128> = values.iter().map(|value| value.units()).collect();
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
    fn months_begin_on_their_first_day() {
        let month = read_month("2026-12").expect("a month");
        assert_eq!((month.from.as_str(), month.to.as_str()), ("2026-12-01", "2027-01-01"));
        for bad in ["2026", "2026-13", "2026-1", "2026-11-01"] {
            assert!(read_month(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn fields_of_csv_hold_anything() {
        let check = |text: &str, expected: &str| assert_eq!(csv_field(text), expected);
        check("acme", "acme");
        check("Acme, \"Inc\"", "\"Acme, \"\"Inc\"\"\"");
        check("=1+1", "'=1+1");
        check("-5.5", "-5.5");
    }

    #[test]
    fn shapes() {
        let check = |values: &[&str], expected: &str| {
            let read = |value: &&str| Quantity::parse_stored(value).unwrap();
            let values: Vec<Quantity> = values.iter().map(read).collect();
            assert_eq!(sparkline(&values), expected);
        };
        check(&["0", "1", "2", "3", "4", "5", "6", "7"], "▁▂▃▄▅▆▇█");
        check(&["5", "5"], "██");
        check(&["0", "0"], "▁▁");
        check(&["-1", "1"], "▁█");
        check(&["0.000001", "123456789012345"], "▁█");
        check(&[], "");
    }
}
