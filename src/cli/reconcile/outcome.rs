//! What a pass found, for people: a table, a sentence, and files that were asked for.
//!
//! Invariant: the table may leave out what is equal; the files and `--json` hold every row. A file
//! that cannot be written loses nothing: the pass is stored, and the message says how to get it.

use super::super::EXIT_FINDINGS;
use super::super::answer::read;
use super::super::client::{Client, Request};
use super::super::table::{cell, counted, grouped, new_table, plain};
use super::pass::{Received, read_rows};
use super::{report, sheet};
use crate::api::health::BillingHealth;
use crate::api::passes::{PassAnswer, RowAnswer};
use crate::rules::drift::Verdict;
use crate::rules::pass::PassState;
use crate::rules::quantity::Quantity;
use anyhow::Context;
use serde::Serialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Rows of the table; more is read in a file and not in a terminal.
const TABLE_ROWS_MAX: usize = 500;

#[derive(clap::Args)]
pub struct OutputArguments {
    /// Show equal rows too
    #[arg(long)]
    all: bool,
    /// Write all rows to this file, for a spreadsheet
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write a report with charts to this file, for a browser or a printer
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print the pass and all rows as JSON
    #[arg(long)]
    json: bool,
}

/// What `--json` prints: the server's answers, untouched.
#[derive(Serialize)]
struct Whole<'t> {
    pass: &'t RawValue,
    rows: &'t [Box<RawValue>],
}

/// Shows the current state of a pass, and says by the exit code whether something drifts.
pub async fn present(
    client: &Client,
    received: &Received<PassAnswer>,
    output: &OutputArguments,
) -> anyhow::Result<ExitCode> {
    let pass = &received.value;
    let (rows, texts) = read_rows(client, pass.id).await?;
    let again = |file: &Path| {
        let (id, file) = (pass.id, file.display());
        format!("cannot write {file}; `counterfoil passes show {id}` can write it elsewhere")
    };
    if let Some(file) = &output.csv {
        sheet::write(file, &rows).with_context(|| again(file))?;
    }
    if let Some(file) = &output.html {
        let request = Request::get(&["v1", "health", "billing"]);
        let health: BillingHealth = read(&client.call(&request).await?)?;
        let html = report::render(pass, &rows, &health)?;
        std::fs::write(file, html).with_context(|| again(file))?;
    }
    if output.json {
        let whole = Whole { pass: &received.text, rows: &texts };
        println!("{}", serde_json::to_string(&whole)?);
    } else {
        print_rows(&rows, output.all);
        print_asides(&rows);
        print_advice(&rows);
        print_actions(&rows);
        print_summary(pass);
        for file in output.csv.iter().chain(&output.html) {
            println!("written: {}", file.display());
        }
    }
    if pass.state == PassState::Failed {
        let detail = pass.detail.as_deref().unwrap_or("the server's log says why");
        anyhow::bail!("pass {} failed: {detail}; it may be ordered again", pass.id);
    }
    let drifts = pass.drifting() > 0 || rows.iter().any(|row| row.verdict.is_drift());
    if pass.state == PassState::Incomplete {
        let detail = pass.detail.as_deref().unwrap_or("the server's log says what was not read");
        eprintln!("error: pass {} is incomplete: {}; order it again", pass.id, plain(detail));
    }
    Ok(match (drifts, pass.state) {
        (true, _) => ExitCode::from(EXIT_FINDINGS),
        (false, PassState::Incomplete) => ExitCode::FAILURE,
        (
            false,
            PassState::Waiting | PassState::Running | PassState::Closed | PassState::Failed,
        ) => ExitCode::SUCCESS,
    })
}

/// A difference with its sign.
pub fn signed(delta: Quantity) -> String {
    let sign = if delta > Quantity::ZERO { "+" } else { "" };
    format!("{sign}{}", grouped(delta))
}

/// A quantity of the provider's; "-" if it was not read.
pub fn provided(provider: Option<Quantity>) -> String {
    provider.map_or_else(|| "-".to_owned(), grouped)
}

/// A difference with its sign; "-" if the provider was not read.
pub fn signed_if_read(delta: Option<Quantity>) -> String {
    delta.map_or_else(|| "-".to_owned(), signed)
}

fn print_rows(rows: &[RowAnswer], all: bool) {
    let shown = || rows.iter().filter(|row| all || row.verdict != Verdict::Equal);
    let count = shown().count();
    if count == 0 {
        return;
    }
    let header =
        ["tenant", "meter", "day", "verdict", "why", "ledger", "pushed", "provider", "delta"];
    let mut table = new_table(&header, 5);
    for row in shown().take(TABLE_ROWS_MAX) {
        table.add_row([
            cell(&row.tenant),
            cell(&row.meter),
            cell(row.day()),
            cell(row.verdict.name()),
            cell(row.reason.name()),
            cell(grouped(row.ledger)),
            cell(grouped(row.pushed)),
            cell(provided(row.provider)),
            cell(signed_if_read(row.delta)),
        ]);
    }
    println!("{table}");
    if count > TABLE_ROWS_MAX {
        println!("{} rows more; --csv and --html write them all", count - TABLE_ROWS_MAX);
    }
    println!();
}

/// What is never billed, row by row.
fn print_asides(rows: &[RowAnswer]) {
    let mut table = new_table(&["not billed", "meter", "day", "cause", "note", "quantity"], 5);
    let mut count = 0;
    for row in rows {
        for (cause, quantity) in row.asides() {
            count += 1;
            if count <= TABLE_ROWS_MAX {
                let note = row.note.as_deref().filter(|_| cause == "written off").unwrap_or("");
                table.add_row([
                    cell(&row.tenant),
                    cell(&row.meter),
                    cell(row.day()),
                    cell(cause),
                    cell(note),
                    cell(grouped(quantity)),
                ]);
            }
        }
    }
    if count > 0 {
        println!("{table}\n");
    }
}

/// What to do, once for each reason: the same sentence in every row would hide the numbers.
fn print_advice(rows: &[RowAnswer]) {
    let mut advice: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.verdict != Verdict::Equal) {
        *advice.entry((row.reason.name(), &row.advice)).or_default() += 1;
    }
    if advice.is_empty() {
        return;
    }
    println!("what to do");
    for ((reason, advice), count) in advice {
        println!("  {} ({}): {}", reason, counted(count, "row", "rows"), plain(advice));
    }
    println!();
}

fn print_actions(rows: &[RowAnswer]) {
    let mut any = false;
    for row in rows {
        for (window, action) in row.actions() {
            if !any {
                println!("what was done");
            }
            any = true;
            let (tenant, meter, action) = (plain(&row.tenant), plain(&row.meter), plain(action));
            println!("  {tenant} {meter} {}: {action}", window.start);
        }
    }
    if any {
        println!();
    }
}

fn print_summary(pass: &PassAnswer) {
    let verdicts: Vec<String> = Verdict::ALL
        .into_iter()
        .filter(|verdict| pass.count(*verdict) > 0)
        .map(|verdict| format!("{} {}", grouped(pass.count(verdict)), verdict.name()))
        .collect();
    let windows = counted(pass.windows, "window", "windows");
    println!("pass {} of {}, {}", pass.id, plain(&pass.scope()), pass.state.name());
    if !pass.has_ended() {
        let (done, pairs) = (grouped(pass.pairs_done), grouped(pass.pairs));
        println!("{done} of {pairs} pairs are done; look again later");
    }
    if pass.pairs_unread > 0 {
        let (unread, pairs) = (grouped(pass.pairs_unread), grouped(pass.pairs));
        println!("{unread} of {pairs} pairs were not read at the provider");
    }
    if verdicts.is_empty() {
        println!("{windows} compared");
    } else {
        println!("{windows} compared: {}", verdicts.join(", "));
    }
    match (pass.apply, pass.replayed + pass.reissued) {
        (true, 0) => println!("nothing was sent again"),
        (true, _) => println!(
            "sent again: {}, {}; compare again in an hour to see them arrive",
            counted(pass.replayed, "push", "pushes"),
            counted(pass.reissued, "reissue", "reissues")
        ),
        (false, _) if pass.count(Verdict::Replay) > 0 => println!(
            "this was a dry run, nothing was sent; --apply sends again what the provider provably \
             lacks"
        ),
        (false, _) => println!("this was a dry run, nothing was sent"),
    }
}
