//! Ledger, pushes and provider side by side, window by window.

use super::{Decimal, Timestamp};
use crate::rules::window_life::WindowState;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Serialize, Deserialize, ToSchema)]
pub struct ComparisonAnswer {
    pub tenant: String,
    /// The tenant's customer of today.
    pub customer: String,
    /// The customers whose totals are added up: that of today first, then those that something of
    /// these windows was sent for before.
    pub customers: Vec<String>,
    pub meter: String,
    /// Windows with anything on either side, oldest first.
    pub windows: Vec<ComparedWindow>,
    /// The windows, open ones left out, in which the provider shows neither what was counted nor
    /// what was pushed of it, and that are billed.
    pub differing: usize,
}

/// One window on both sides, as decimal numbers.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct ComparedWindow {
    pub start: Timestamp,
    pub end: Timestamp,
    pub state: WindowState,
    /// What was counted.
    pub ledger: Decimal,
    /// What was handed to pushes and not written off; nothing of what is sent nowhere.
    pub pushed: Decimal,
    /// What the provider shows.
    pub provider: Decimal,
    /// Whether the provider shows what was counted, or what was pushed of it, and all of it is
    /// billed.
    pub equal: bool,
    pub verdict: WindowVerdict,
    /// What a person wrote off of it; null if nothing.
    pub written_off: Option<Decimal>,
    /// Who wrote it off, and why.
    pub note: Option<String>,
}

/// What a comparison of one window says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WindowVerdict {
    Equal,
    /// Equal but for what a person wrote off.
    WrittenOff,
    /// It lies before the meter's `billing.from`.
    NotBilled,
    /// It was counted in shadow mode.
    Shadow,
    Differs,
}
