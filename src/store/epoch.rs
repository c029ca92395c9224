//! The store's epochs: how often it was restored from a backup, and what tells that it was.
//!
//! Invariant: the mark is written to the database before it is written anywhere else, so a crash
//! leaves the database at least as far as its marks; a mark that is ahead means that the database
//! was put back. Tests that want a restored store put back real files, or call `record_restore`.

use super::Result;
use super::faulty::verbs;
use crate::rules::restore::{Cause, Life, Reading, is_comparing};
use crate::rules::timestamp::Timestamp;

/// A restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Epoch {
    pub number: u32,
    pub restored_at: Timestamp,
    pub reason: String,
    /// Whether only a long stop spoke for it; then keys are made as before.
    pub suspected: bool,
}

impl Epoch {
    /// Whether pushes may still wait for the readings that it asks for.
    pub fn is_comparing(&self, at: Timestamp) -> bool {
        is_comparing((self.restored_at, self.suspected), at)
    }
}

/// What a claimant needs to know of a push of a window that began before the last restore and was
/// not compared with the provider's total since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uncompared {
    pub restored_at: Timestamp,
    /// Whether only a long stop speaks for the restore.
    pub suspected: bool,
    /// The last reading of the window's total for this push.
    pub last: Option<Reading>,
}

verbs! {
    pub trait Epochs: Send + Sync {
        /// What the store knows of its past; marks in files are as they were when it was opened.
        async fn read_life(&self) -> Result<Life>;
        /// The last restore; none if there was none.
        async fn read_epoch(&self) -> Result<Option<Epoch>>;
        /// Writes a restore down and begins the next epoch.
        async fn record_restore(&self, cause: &Cause, at: Timestamp) -> Result<Epoch>;
        /// Moves the mark on, here and outside, and keeps the database's identity of now.
        async fn record_alive(&self, at: Timestamp) -> Result<()>;
    }
}
