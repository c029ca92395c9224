//! Why one event, meter or query was refused: a stable code for programs, a sentence for people.
//!
//! Invariant: a code, once published, keeps its meaning for ever; the sentence may improve.

use std::borrow::Cow;
use std::fmt;

/// A refusal of one input. Nothing was stored for it, and the answer says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub code: &'static str,
    pub detail: Cow<'static, str>,
}

impl Refusal {
    pub fn new(code: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { code, detail: detail.into() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.detail, self.code)
    }
}

impl std::error::Error for Refusal {}
