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
    /// The number of closed and billed windows in which the provider's total equals neither the
    /// counted nor the pushed total.
    pub differing: usize,
}

/// One window on both sides, as decimal numbers.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct ComparedWindow {
    pub start: Timestamp,
    pub end: Timestamp,
    pub state: WindowState,
    /// The counted total, without `trial` and `outside`.
    pub ledger: Decimal,
    /// The total of the pushes, without discarded and shadow pushes.
    pub pushed: Decimal,
    /// The provider's total.
    pub provider: Decimal,
    /// Whether the provider's total equals the counted or the pushed total, and all usage is
    /// billed.
    pub equal: bool,
    pub verdict: WindowVerdict,
    /// Usage that an operator wrote off; null if none.
    pub written_off: Option<Decimal>,
    /// Who wrote it off, and why.
    pub note: Option<String>,
    /// Usage in a trial of its subscription, as of the last cut; never billed. Null if none.
    pub trial: Option<Decimal>,
    /// Usage in no subscription that is held, as of the last cut. Null if none.
    pub outside: Option<Decimal>,
}

/// The result of comparing one window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WindowVerdict {
    Equal,
    /// Equal but for usage that an operator wrote off.
    WrittenOff,
    /// It lies before the meter's `billing.from`.
    NotBilled,
    /// It was counted in shadow mode.
    Shadow,
    /// Equal but for usage in no subscription, which is held.
    Outside,
    Differs,
}
