//! Steps of a long command: a heading for each as it starts, and a table of all at the end, so
//! that nobody has to scroll to see what failed.

use anyhow::{Result, bail};
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed,
    Skipped,
    LeftOut,
}

impl Outcome {
    fn is_bad(self) -> bool {
        match self {
            Self::Passed | Self::LeftOut => false,
            Self::Failed | Self::Skipped => true,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Passed => "ok",
            Self::Failed => "FAILED",
            Self::Skipped => "skipped",
            Self::LeftOut => "left out",
        }
    }
}

/// What was done so far.
pub struct Steps {
    started: Instant,
    done: Vec<(&'static str, Outcome, Duration)>,
}

impl Steps {
    pub fn begin() -> Self {
        Self { started: Instant::now(), done: Vec::new() }
    }

    /// Does one step. A failure is printed and remembered; the steps after it still run, so that
    /// one run shows everything that is wrong. Returns what the step made, if it passed.
    pub fn step<T>(&mut self, name: &'static str, work: impl FnOnce() -> Result<T>) -> Option<T> {
        println!("\n=== {name} (at {}) ===", seconds(self.started.elapsed()));
        let began = Instant::now();
        let made = work();
        let outcome = match &made {
            Ok(_) => Outcome::Passed,
            Err(error) => {
                println!("{name}: {error:#}");
                Outcome::Failed
            }
        };
        self.done.push((name, outcome, began.elapsed()));
        made.ok()
    }

    /// Records a step that cannot run because one it needs has failed.
    pub fn skip(&mut self, name: &'static str) {
        self.done.push((name, Outcome::Skipped, Duration::ZERO));
    }

    /// Records a step that this machine has no program for. It is no failure, and no pass either:
    /// the table says so.
    pub fn leave_out(&mut self, name: &'static str, why: &str) {
        println!("\n=== {name} ===\nleft out: {why}");
        self.done.push((name, Outcome::LeftOut, Duration::ZERO));
    }

    /// Prints the table; an error if any step failed or was skipped.
    pub fn finish(self) -> Result<()> {
        println!("\n{}", self.table());
        let bad = self.done.iter().filter(|(_, outcome, _)| outcome.is_bad()).count();
        if bad > 0 {
            bail!("{bad} of {} steps did not pass", self.done.len());
        }
        Ok(())
    }

    fn table(&self) -> String {
        let width = self.done.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
        let mut lines: Vec<String> = self
            .done
            .iter()
            .map(|(name, outcome, took)| {
                format!("{name:width$}  {:8}{:>9}", outcome.word(), seconds(*took))
            })
            .collect();
        let all = seconds(self.started.elapsed());
        lines.push(format!("{:width$}  {:8}{all:>9}", "in all", ""));
        lines.join("\n")
    }
}

fn seconds(time: Duration) -> String {
    format!("{}.{} s", time.as_secs(), time.subsec_millis() / 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failure_fails_the_whole_and_does_not_stop_the_rest() {
        let mut steps = Steps::begin();
        assert_eq!(steps.step("first", || -> Result<()> { bail!("planted") }), None);
        assert_eq!(steps.step("second", || Ok(7)), Some(7));
        let table = steps.table();
        assert!(table.contains("first   FAILED"), "{table}");
        assert!(table.contains("second  ok"), "{table}");
        assert!(steps.finish().is_err());
    }

    #[test]
    fn a_skipped_step_is_not_a_pass() {
        let mut steps = Steps::begin();
        steps.skip("later");
        assert!(steps.finish().is_err());
        assert!(Steps::begin().finish().is_ok());
    }

    #[test]
    fn a_step_that_is_left_out_is_neither_a_failure_nor_a_pass() {
        let mut steps = Steps::begin();
        steps.leave_out("rare", "planted");
        let table = steps.table();
        assert!(table.contains("rare  left out"), "{table}");
        assert!(!table.contains(Outcome::Passed.word()), "{table}");
        assert!(steps.finish().is_ok());
    }

    #[test]
    fn times_are_cut_to_tenths() {
        assert_eq!(seconds(Duration::from_millis(61_290)), "61.2 s");
    }
}
