//! The report of a pass as one HTML file, for finance people, a browser and a printer.
//!
//! Invariant: a pure function of the pass, its rows and what is not billed. The file asks for
//! nothing from anywhere: its own policy allows one style sheet and one script, both by their hash,
//! so that no name from outside could run even if it were markup. Numbers are exact text. Its size
//! is limited.

mod chart;
mod figures;
mod markup;

use super::outcome::{provided, signed, signed_if_read};
use super::pass::day;
use crate::api::health::BillingHealth;
use crate::api::passes::{DriftWindow, PassAnswer, RowAnswer};
use crate::cli::table::{counted, grouped};
use crate::rules::base64;
use crate::rules::drift::Verdict;
use crate::rules::pass::PassState;
use crate::rules::timestamp::Timestamp;
use figures::{Figures, MeterFigures};
use markup::{badge, escape, name, verdict_meaning};
use sha2::{Digest, Sha256};
use std::fmt::Write;

const STYLE: &str = include_str!("report/report.css");
const SCRIPT: &str = include_str!("report/report.js");

/// What is shown at most; the rest is counted, and is in the CSV.
const METERS_MAX: usize = 20;
const TENANTS_MAX: usize = 8;
const UNEQUAL_ROWS_MAX: usize = 1_000;
const ALL_ROWS_MAX: usize = 5_000;
const WINDOWS_MAX: usize = 48;
/// Meters in the tile of differences.
const TILE_METERS_MAX: usize = 3;

/// The whole file.
pub fn render(
    pass: &PassAnswer,
    rows: &[RowAnswer],
    health: &BillingHealth,
) -> anyhow::Result<String> {
    let figures = Figures::of(rows)?;
    let title = format!("Reconciliation {} to {}", day(pass.from), day(pass.to));
    let mut html = String::with_capacity(64 * 1024);
    let _ = write!(
        html,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         style-src '{}'; script-src '{}'; base-uri 'none'; form-action 'none'\">\n\
         <title>{}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n",
        content_hash(STYLE),
        content_hash(SCRIPT),
        escape(&title)
    );
    write_heading(&mut html, pass, &figures);
    write_tiles(&mut html, pass, &figures);
    write_verdicts(&mut html, pass);
    write_meters(&mut html, &figures);
    write_unequal(&mut html, rows);
    write_unbilled(&mut html, health);
    write_all(&mut html, rows);
    write_meanings(&mut html);
    write_footer(&mut html, pass);
    let _ = write!(html, "</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n");
    Ok(html)
}

fn content_hash(text: &str) -> String {
    format!("sha256-{}", base64::encode(&Sha256::digest(text)))
}

fn write_heading(html: &mut String, pass: &PassAnswer, figures: &Figures) {
    let tenant = pass.tenant.as_deref().map_or_else(|| "All tenants".to_owned(), name);
    let mode = if pass.apply {
        "Applied: what the provider provably lacked was sent again"
    } else {
        "Dry run: nothing was sent"
    };
    let when = match pass.ended_at {
        Some(ended_at) => format!("Ended {}", instant(ended_at)),
        None => format!("Ordered {}", instant(pass.created_at)),
    };
    let _ = write!(
        html,
        "<header>\n<p class=\"kicker\">Counterfoil reconciliation, pass {}</p>\n\
         <h1>{} <span class=\"until\">until</span> {}</h1>\n\
         <p class=\"facts\"><span>{tenant}</span><span>{mode}</span><span>{when}</span>\
         <span>State: {}</span></p>\n",
        pass.id,
        long_date(pass.from),
        long_date(pass.to),
        pass.state.name()
    );
    let (class, sentence) = verdict_sentence(pass, figures);
    let _ = write!(html, "<p class=\"ruling {class}\">{sentence}</p>\n</header>\n");
}

/// The one sentence to read if only one is read.
fn verdict_sentence(pass: &PassAnswer, figures: &Figures) -> (&'static str, String) {
    let waiting = pass.count(Verdict::Waiting);
    match pass.state {
        PassState::Failed => {
            let detail = pass.detail.as_deref().unwrap_or("the server's log says why");
            let text = format!("This pass failed and says nothing final: {}", escape(detail));
            return ("bad", text);
        }
        PassState::Waiting | PassState::Running => {
            let (done, pairs) = (grouped(pass.pairs_done), grouped(pass.pairs));
            let text = format!("This pass is not over: {done} of {pairs} pairs were compared.");
            return ("open", text);
        }
        PassState::Closed | PassState::Incomplete => {}
    }
    if pass.drifting() > 0 || figures.drifting_tenants > 0 {
        let windows = counted(pass.drifting(), "window", "windows");
        let tenants = counted(figures.drifting_tenants, "tenant", "tenants");
        return ("bad", format!("{windows} of {tenants} will not agree by themselves."));
    }
    if pass.state == PassState::Incomplete {
        let detail = pass.detail.as_deref().unwrap_or("the provider could not be read");
        let text = format!("This pass is incomplete and proves nothing: {}.", escape(detail));
        return ("open", text);
    }
    let aside: u64 = Verdict::ALL
        .into_iter()
        .filter(|verdict| verdict.needs_no_reading() || *verdict == Verdict::WrittenOff)
        .map(|verdict| pass.count(verdict))
        .sum();
    if aside > 0 {
        let windows = counted(aside, "window holds", "windows hold");
        return ("open", format!("Nothing drifts; {windows} usage that is not billed."));
    }
    match (pass.windows, waiting) {
        (0, _) => ("open", "There was nothing to compare in this range.".into()),
        (_, 0) => ("good", "Ledger and provider agree in every window.".into()),
        (_, waiting) => {
            let windows = counted(waiting, "window", "windows");
            let text = format!("Nothing drifts; {windows} will be looked at again.");
            ("open", text)
        }
    }
}

/// The numbers to look at first.
fn write_tiles(html: &mut String, pass: &PassAnswer, figures: &Figures) {
    let tile = |html: &mut String, label: &str, number: &str, note: &str| {
        let _ = writeln!(
            html,
            "<div class=\"tile\"><p class=\"label\">{label}</p><p class=\"number\">{number}</p>\
             <p class=\"note\">{note}</p></div>"
        );
    };
    let of =
        |part: u64, whole: u64| format!("{} <small>of {}</small>", grouped(part), grouped(whole));
    html.push_str("<section class=\"tiles\">\n");
    let equal = of(pass.count(Verdict::Equal), pass.windows);
    tile(html, "Windows equal", &equal, "provider shows exactly what was pushed");
    let drifting = of_tenants(figures);
    tile(html, "Tenants that drift", &drifting, "somebody or --apply must act");
    let waiting = grouped(pass.count(Verdict::Waiting));
    tile(html, "Windows on their way", &waiting, "the next pass looks again");
    let unread = of(pass.count(Verdict::Unread), pass.windows);
    tile(html, "Windows not read", &unread, "nothing is said about them");
    let pairs = of(pass.pairs_done.saturating_sub(pass.pairs_unread), pass.pairs);
    tile(html, "Pairs compared", &pairs, "a pair is a tenant and a meter");
    write_difference_tile(html, figures);
    html.push_str("</section>\n");
}

fn of_tenants(figures: &Figures) -> String {
    let (part, whole) = (grouped(figures.drifting_tenants), grouped(figures.tenants));
    format!("{part} <small>of {whole}</small>")
}

/// Differences by meter; those with the largest number of rows that differ first.
fn write_difference_tile(html: &mut String, figures: &Figures) {
    let mut meters: Vec<_> =
        figures.meters.iter().filter(|(_, meter)| !meter.total.apart.is_zero()).collect();
    meters.sort_by_key(|(name, meter)| (std::cmp::Reverse(meter.rows_unequal), **name));
    html.push_str("<div class=\"tile wide\"><p class=\"label\">Sum of differences, without what is on its way</p>\n");
    if meters.is_empty() {
        html.push_str("<p class=\"number\">0</p><p class=\"note\">in every meter</p></div>\n");
        return;
    }
    html.push_str("<ul>");
    for (meter, figures) in meters.iter().take(TILE_METERS_MAX) {
        let (meter, net) = (name(meter), signed(figures.total.apart.net()));
        let _ = write!(html, "<li><span>{meter}</span><b>{net}</b></li>");
    }
    html.push_str("</ul>");
    if meters.len() > TILE_METERS_MAX {
        let more = counted(meters.len() - TILE_METERS_MAX, "meter", "meters");
        let _ = write!(html, "<p class=\"note\">and {more} more below</p>");
    }
    html.push_str("</div>\n");
}

fn write_verdicts(html: &mut String, pass: &PassAnswer) {
    let chart = chart::verdicts(|verdict| pass.count(verdict));
    let _ = write!(
        html,
        "<section>\n<h2>Windows by verdict</h2>\n<div class=\"card chart\">{chart}</div>\n\
         </section>\n"
    );
}

fn write_meters(html: &mut String, figures: &Figures) {
    for (meter, figures) in figures.meters.iter().take(METERS_MAX) {
        write_meter(html, meter, figures);
    }
    if let Some(more) = figures.meters.len().checked_sub(METERS_MAX).filter(|more| *more > 0) {
        let meters = counted(more, "meter is", "meters are");
        let _ =
            writeln!(html, "<p class=\"more\">{meters} not drawn; the CSV holds every row.</p>");
    }
}

const DOT_LEGEND: &str = "<p class=\"legend\"><i class=\"key dot\"></i>on this day something \
                          drifts</p>\n";

fn write_meter(html: &mut String, meter: &str, figures: &MeterFigures) {
    let total = &figures.total;
    let _ = write!(
        html,
        "<section class=\"meter\">\n<h2>{}</h2>\n<div class=\"card\">\n<dl class=\"sums\">\
         <div><dt><i class=\"key ledger\"></i>Ledger</dt><dd>{}</dd></div>\
         <div><dt>Pushed</dt><dd>{}</dd></div>\
         <div><dt><i class=\"key provider\"></i>Provider</dt><dd>{}</dd></div>\
         <div><dt>Difference</dt><dd>{}</dd></div>\
         <div><dt>On its way</dt><dd>{}</dd></div>\
         <div><dt>Not billed</dt><dd>{}</dd></div>\
         <div><dt>Rows that differ</dt><dd>{} of {}</dd></div>\
         <div><dt>Rows not read</dt><dd>{}</dd></div></dl>\n\
         <h3>Ledger and provider by day</h3>\n<div class=\"chart\">{}</div>\n{}",
        name(meter),
        grouped(total.ledger),
        grouped(total.pushed),
        grouped(total.provider),
        signed(total.apart.net()),
        signed(total.waiting),
        grouped(total.unbilled),
        grouped(figures.rows_unequal),
        grouped(figures.rows),
        grouped(figures.rows_unread),
        chart::days(meter, &figures.bins),
        if figures.bins.iter().any(|bin| bin.drifts) { DOT_LEGEND } else { "" }
    );
    let largest = figures.largest();
    if !largest.is_empty() {
        let shown = &largest[..largest.len().min(TENANTS_MAX)];
        let _ = write!(
            html,
            "<h3>Largest differences by tenant</h3>\n<div class=\"chart\">{}</div>\n\
             <p class=\"legend\"><i class=\"key less\"></i>provider has less\
             <i class=\"key more\"></i>provider has more</p>\n",
            chart::tenants(meter, shown)
        );
        if largest.len() > shown.len() {
            let more = counted(largest.len() - shown.len(), "tenant", "tenants");
            let _ = writeln!(html, "<p class=\"more\">{more} more with smaller differences</p>");
        }
    }
    html.push_str("</div>\n</section>\n");
}

const ROW_HEADER: [(&str, bool); 8] = [
    ("Tenant", false),
    ("Meter", false),
    ("Day", false),
    ("Verdict", false),
    ("Ledger", true),
    ("Pushed", true),
    ("Provider", true),
    ("Difference", true),
];

fn write_table_head(html: &mut String, more: &str) {
    html.push_str("<thead><tr>");
    for (label, is_number) in ROW_HEADER {
        let class = if is_number { " class=\"n\"" } else { "" };
        let _ = write!(html, "<th scope=\"col\"{class}>{label}</th>");
    }
    let _ = writeln!(html, "{more}</tr></thead>");
}

fn row_cells(row: &RowAnswer) -> String {
    format!(
        "<td>{}</td><td>{}</td><td class=\"day\">{}</td><td>{}</td><td class=\"n\">{}</td>\
         <td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>",
        name(&row.tenant),
        name(&row.meter),
        escape(&row.day()),
        badge(row.verdict),
        grouped(row.ledger),
        grouped(row.pushed),
        provided(row.provider),
        signed_if_read(row.delta)
    )
}

/// The rows that are not equal, each with what to do and its windows.
fn write_unequal(html: &mut String, rows: &[RowAnswer]) {
    let mut unequal: Vec<&RowAnswer> =
        rows.iter().filter(|row| row.verdict != Verdict::Equal).collect();
    // What needs somebody comes first, and of each verdict the order is the server's.
    unequal.sort_by_key(|row| (!row.verdict.is_drift(), std::cmp::Reverse(row.verdict)));
    html.push_str("<section>\n<h2>What is not equal</h2>\n");
    if unequal.is_empty() {
        html.push_str("<p class=\"card none\">Every row is equal.</p>\n</section>\n");
        return;
    }
    html.push_str(
        "<p class=\"filter\" hidden><label>Filter <input type=\"search\" \
         placeholder=\"tenant, meter, day or verdict\"></label></p>\n\
         <div class=\"card scroll\"><table class=\"rows sortable\">\n",
    );
    write_table_head(html, "");
    for row in unequal.iter().take(UNEQUAL_ROWS_MAX) {
        let _ = write!(
            html,
            "<tbody>\n<tr>{}</tr>\n<tr class=\"under\"><td colspan=\"8\"><p>{}</p>",
            row_cells(row),
            sentence(&row.advice)
        );
        write_asides(html, row);
        write_windows(html, &row.windows);
        let hash = row.hash.as_deref().map_or_else(String::new, escape);
        let _ = write!(html, "<p class=\"hash\">{hash}</p></td></tr>\n</tbody>\n");
    }
    html.push_str("</table></div>\n");
    write_more(html, unequal.len(), UNEQUAL_ROWS_MAX);
    html.push_str("</section>\n");
}

/// What is not billed when the report is made, whatever its days: also what no row can hold, since
/// it was not counted or not cut.
fn write_unbilled(html: &mut String, health: &BillingHealth) {
    html.push_str(
        "<section>\n<h2>What is not billed</h2>\n<p class=\"more\">Of all tenants and days, when \
         this file was made.</p>\n",
    );
    if health.unbilled.is_empty() {
        html.push_str(
            "<p class=\"card none\">Everything that was counted is billed, or on its way.</p>\n\
             </section>\n",
        );
        return;
    }
    html.push_str(
        "<div class=\"card scroll\"><table class=\"rows\">\n<thead><tr><th scope=\"col\">Meter</th>\
         <th scope=\"col\">Cause</th><th scope=\"col\" class=\"n\">Quantity</th></tr></thead>\n<tbody>\n",
    );
    for (meter, usage) in &health.unbilled {
        for (cause, quantity) in usage.causes().chain([("total", usage.total)]) {
            let (meter, quantity) = (name(meter), grouped(quantity));
            let row = format!("<td>{meter}</td><td>{cause}</td><td class=\"n\">{quantity}</td>");
            let _ = writeln!(html, "<tr>{row}</tr>");
        }
    }
    html.push_str("</tbody>\n</table></div>\n");
    if health.quarantined_more {
        html.push_str("<p class=\"more\">And more quarantined events than were added up.</p>\n");
    }
    html.push_str("</section>\n");
}

/// What of a row is never billed, with who decided it.
fn write_asides(html: &mut String, row: &RowAnswer) {
    for (cause, quantity) in row.asides() {
        let note = row.note.as_deref().filter(|_| cause == "written off");
        let note = note.map_or_else(String::new, |note| format!(" ({})", escape(note)));
        let _ = write!(html, "<p>Not billed, {cause}: {}{note}</p>", grouped(quantity));
    }
}

fn write_windows(html: &mut String, windows: &[DriftWindow]) {
    if windows.is_empty() {
        return;
    }
    let _ = writeln!(
        html,
        "<details><summary>{}</summary><div class=\"scroll\"><table class=\"windows\"><thead><tr>\
         <th scope=\"col\">Window</th><th scope=\"col\">Verdict</th><th scope=\"col\">Reason</th>\
         <th scope=\"col\" class=\"n\">Ledger</th><th scope=\"col\" class=\"n\">Pushed</th>\
         <th scope=\"col\" class=\"n\">Provider</th><th scope=\"col\">What was done</th></tr>\
         </thead><tbody>",
        counted(windows.len(), "window", "windows")
    );
    for window in windows.iter().take(WINDOWS_MAX) {
        let (start, end) = (instant(window.start), instant(window.end));
        // Most windows end on the day on which they begin.
        let day = format!("{} ", day(window.start));
        let end = end.strip_prefix(&day).unwrap_or(&end);
        let _ = writeln!(
            html,
            "<tr><td class=\"day\">{start} to {end}</td><td>{}</td><td>{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td></tr>",
            badge(window.verdict),
            window.reason.name().replace('_', " "),
            grouped(window.ledger),
            grouped(window.pushed),
            provided(window.provider),
            window.action.as_deref().map_or_else(|| "nothing".to_owned(), escape)
        );
    }
    html.push_str("</tbody></table></div>");
    write_more(html, windows.len(), WINDOWS_MAX);
    html.push_str("</details>");
}

fn write_all(html: &mut String, rows: &[RowAnswer]) {
    let _ = write!(
        html,
        "<section class=\"all\">\n<h2>All rows</h2>\n<details><summary>{}</summary>\n\
         <div class=\"card scroll\"><table class=\"rows sortable\">\n",
        counted(rows.len(), "row", "rows")
    );
    write_table_head(html, "<th scope=\"col\">Hash</th>");
    for row in rows.iter().take(ALL_ROWS_MAX) {
        let hash = row.hash.as_deref().map_or_else(String::new, escape);
        let cells = row_cells(row);
        let _ = writeln!(html, "<tbody><tr>{cells}<td class=\"hash\">{hash}</td></tr></tbody>");
    }
    html.push_str("</table></div>\n");
    write_more(html, rows.len(), ALL_ROWS_MAX);
    html.push_str("</details>\n</section>\n");
}

fn write_more(html: &mut String, count: usize, most: usize) {
    if count > most {
        let more = grouped(count - most);
        let _ = writeln!(html, "<p class=\"more\">{more} more are not shown here.</p>");
    }
}

fn write_meanings(html: &mut String) {
    html.push_str("<section>\n<h2>What the verdicts mean</h2>\n<dl class=\"card meanings\">\n");
    for verdict in Verdict::ALL {
        let (badge, meaning, word) = (badge(verdict), verdict_meaning(verdict), verdict.name());
        let _ = writeln!(html, "<div><dt>{badge}<code>{word}</code></dt><dd>{meaning}</dd></div>");
    }
    html.push_str("</dl>\n</section>\n");
}

fn write_footer(html: &mut String, pass: &PassAnswer) {
    let hash = pass.hash.as_deref().map_or_else(
        || "it is not part of the chain of nightly passes".to_owned(),
        |hash| format!("hash <span class=\"hash\">{}</span>", escape(hash)),
    );
    let _ = writeln!(
        html,
        "<footer>Pass {} ({}), ordered {}; {} to the provider; {hash}. All days and instants are \
         UTC. Quantities are exact. A difference is what the provider shows minus what was handed \
         to billing and not written off.</footer>",
        pass.id,
        pass.kind.name().replace('_', " "),
        instant(pass.created_at),
        counted(pass.reads, "call", "calls")
    );
}

/// A sentence of the server with a capital and a full stop.
fn sentence(text: &str) -> String {
    let mut characters = text.chars();
    let first: String = characters.next().map(|c| c.to_uppercase().collect()).unwrap_or_default();
    escape(&format!("{first}{}.", characters.as_str().trim_end_matches('.')))
}

/// `2026-11-01T13:00:00Z` as `2026-11-01 13:00`.
fn instant(at: Timestamp) -> String {
    let text = at.to_string().replace('T', " ");
    let seconds = text.split(['.', 'Z']).next().unwrap_or_default();
    seconds.strip_suffix(":00").unwrap_or(seconds).to_owned()
}

/// `2026-11-01…` as `1 November 2026`; a day beyond the calendar stays.
fn long_date(at: Timestamp) -> String {
    let date: Result<jiff::civil::Date, _> = day(at).parse();
    date.map_or_else(|_| day(at), |date| date.strftime("%-d %B %Y").to_string())
}

#[cfg(test)]
pub mod examples;
#[cfg(test)]
mod tests;
