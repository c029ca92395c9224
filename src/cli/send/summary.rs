//! Verdicts on the events that were sent: counts, and the first of the problems.
//!
//! Invariant: every event that was answered is in exactly one count.

use super::input::{Batch, LINE_BYTES_MAX};
use crate::api::events::{Outcome, Verdicts};
use crate::cli::table::{cell, grouped, new_table, plain, word};
use serde::Serialize;

/// Most problems that are kept to be shown; the counts are complete all the same.
const PROBLEMS_KEPT_MAX: usize = 1_000;

#[derive(Debug, Default, Serialize)]
pub struct Summary {
    pub sent: u64,
    pub accepted: u64,
    pub duplicates: u64,
    /// Of the duplicates, those that came with another time.
    pub restamped: u64,
    pub conflicts: u64,
    pub quarantined: u64,
    pub rejected: u64,
    pub retries: u64,
    /// The first ones.
    pub problems: Vec<ProblemLine>,
}

#[derive(Debug, Serialize)]
pub struct ProblemLine {
    pub line: u64,
    pub id: Option<String>,
    pub outcome: Outcome,
    pub code: String,
    pub detail: String,
}

impl Summary {
    pub fn add(&mut self, batch: &Batch, answer: Verdicts) {
        self.sent += u64::try_from(batch.lines.len()).expect("a batch is small");
        self.accepted += answer.accepted;
        self.duplicates += answer.duplicates;
        self.conflicts += answer.conflicts;
        self.quarantined += answer.quarantined;
        self.rejected += answer.rejected;
        for item in answer.results {
            let code = item.code.unwrap_or_default();
            if code == "restamped" {
                self.restamped += 1;
            }
            let line = batch.lines.get(item.index).copied().unwrap_or(0);
            let detail = without_line(&item.detail.unwrap_or_default());
            let outcome = item.outcome;
            self.keep(ProblemLine { line, id: item.id, outcome, code, detail });
        }
    }

    /// Lines that were never sent are rejected here, to the sender's face as well.
    pub fn add_too_long(&mut self, lines: &[u64]) {
        for line in lines {
            self.sent += 1;
            self.rejected += 1;
            self.keep(ProblemLine {
                line: *line,
                id: None,
                outcome: Outcome::Rejected,
                code: "line_too_long".into(),
                detail: format!("the line is longer than {LINE_BYTES_MAX} bytes and was not sent"),
            });
        }
    }

    fn keep(&mut self, problem: ProblemLine) {
        if self.problems.len() < PROBLEMS_KEPT_MAX {
            self.problems.push(problem);
        }
    }

    /// Events that were neither counted now nor before.
    pub fn refused(&self) -> u64 {
        self.conflicts + self.quarantined + self.rejected
    }

    pub fn print(&self, problems_max: usize) {
        let mut problems: Vec<_> = self.problems.iter().collect();
        problems.sort_by_key(|problem| problem.line);
        for problem in problems.iter().take(problems_max) {
            let ProblemLine { line, id, outcome, code, detail } = problem;
            let outcome = word(outcome);
            let id = id.as_deref().map_or_else(String::new, |id| format!(" {id}"));
            println!("{}", plain(&format!("line {line}: {outcome}{id}: {detail} ({code})")));
        }
        let total = self.refused() + self.restamped;
        let shown = u64::try_from(problems.len().min(problems_max)).expect("a small number");
        if total > shown {
            println!("… and {} more; --problems shows more of them", grouped(total - shown));
        }
        let mut table = new_table(&["outcome", "events"], 1);
        let rows = [
            ("accepted", self.accepted),
            ("duplicates", self.duplicates),
            ("  of these, with another time", self.restamped),
            ("conflicts", self.conflicts),
            ("quarantined", self.quarantined),
            ("rejected", self.rejected),
            ("sent", self.sent),
        ];
        for (name, count) in rows {
            table.add_row([cell(name), cell(grouped(count))]);
        }
        println!("{table}");
    }
}

/// The server numbers the lines of one request; here the input's own number comes first.
fn without_line(detail: &str) -> String {
    let rest = detail.strip_prefix("line ").and_then(|rest| rest.split_once(' '));
    match rest {
        Some((number, rest)) if number.parse::<u64>().is_ok() => format!("the line {rest}"),
        Some(_) | None => detail.to_owned(),
    }
}
