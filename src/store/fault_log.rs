//! Faults that a store has met since it was opened: facts about money that did not hold.
//!
//! Invariant: each fault is logged once, with its ids, and kept until the process ends, so that an
//! alert shows it for as long. Faults are kept in memory alone: a crash forgets them, and the
//! operation that met one meets it again.

use super::{Error, Result};
use std::collections::BTreeSet;
use std::sync::Mutex;

/// Faults that are kept and logged; with more than these something is wrong with the whole store.
const FAULTS_MAX: usize = 20;

#[derive(Debug, Default)]
pub struct FaultLog(Mutex<BTreeSet<String>>);

impl FaultLog {
    /// Keeps the fault of a verb that was refused for one; passes the verb's outcome on.
    pub fn note<T>(&self, outcome: Result<T>) -> Result<T> {
        if let Err(Error::Internal { what }) = &outcome {
            self.keep(what);
        }
        outcome
    }

    /// What was kept, in the order of the texts.
    pub fn list(&self) -> Vec<String> {
        self.0.lock().expect("no holder panics").iter().cloned().collect()
    }

    fn keep(&self, what: &str) {
        let mut known = self.0.lock().expect("no holder panics");
        if known.len() < FAULTS_MAX && known.insert(what.to_owned()) {
            tracing::error!(fault = what, "an operation was refused for a fault: {what}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_kept_once_and_other_errors_are_not() {
        let log = FaultLog::default();
        let internal = |what: &str| -> Result<()> { Err(Error::Internal { what: what.into() }) };
        for what in ["b", "a", "b"] {
            assert!(log.note(internal(what)).is_err(), "the outcome is passed on");
        }
        assert!(log.note::<()>(Err(Error::Unavailable { what: "c".into() })).is_err());
        assert_eq!(log.note(Ok(7)).expect("passed on"), 7);
        assert_eq!(log.list(), ["a", "b"]);
        for number in 0..100 {
            assert!(log.note(internal(&format!("fault {number}"))).is_err());
        }
        assert_eq!(log.list().len(), FAULTS_MAX);
    }
}
