//! Whether the server answers, and whether what was counted has reached the provider.

use super::{Decimal, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

#[derive(Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// Always `ok`.
    pub status: String,
}

/// The health of billing.
#[derive(Default, Serialize, Deserialize, ToSchema)]
pub struct BillingHealth {
    /// The server's version.
    pub version: String,
    /// The billing provider; null if there is none.
    pub provider: Option<String>,
    /// `off`, or in shadow mode, where nothing is billed, `nowhere` or `sandbox`.
    pub shadow: String,
    /// Usage that currently reaches no invoice, by meter and cause; includes quarantined events,
    /// which are not counted.
    pub unbilled: BTreeMap<String, UnbilledUsage>,
    /// Whether there are more quarantined events than were added up.
    pub quarantined_more: bool,
    /// Pushes that are recorded and not yet accepted by the provider.
    pub observed: u64,
    /// Of those, for more than 5 minutes.
    pub observed_long: u64,
    /// Pushes of tenants without a customer at the provider; they wait until one is set.
    pub without_customer: u64,
    /// The usage of those by meter.
    pub without_customer_usage: BTreeMap<String, UnmappedUsage>,
    /// Usage by meter that was too old to be sent when its tenant got a customer.
    pub unsent_usage: BTreeMap<String, UnmappedUsage>,
    /// Pushes that the provider accepted and its totals do not show yet.
    pub submitted: u64,
    /// Of those, for more than an hour.
    pub submitted_long: u64,
    /// Dead letters: an operator must retry or discard them.
    pub dead: u64,
    /// The quantities of the dead letters by meter, as decimal numbers.
    pub unbilled_quantity: BTreeMap<String, Decimal>,
    /// Tenants with drift that was still there after two passes.
    pub drifting_tenants: u64,
    /// Findings that are open; 1,000 means as many or more.
    pub findings_open: usize,
    /// Alerts that are open; 1,000 means as many or more.
    pub alerts_open: usize,
    /// Webhooks whose objects are still to be read.
    pub webhooks_waiting: u64,
    pub pages: Pages,
    pub last_pass: LastPasses,
    pub self_check: SelfCheckHealth,
}

/// Whether stored totals and counters are what their events add up to, as far as that was compared.
#[derive(Default, Serialize, Deserialize, ToSchema)]
pub struct SelfCheckHealth {
    /// Windows whose stored total or counter is not what its events add up to.
    pub mismatches: u64,
    /// Why not everything was compared lately; null if it was.
    pub not_done: Option<String>,
    /// When the last walk that compared everything began; nothing is unchecked for longer.
    pub complete_since: Option<Timestamp>,
    /// When it ended; null if there was none.
    pub last_walk: Option<Timestamp>,
    /// When the walk that goes on began; null if none does.
    pub walk_started: Option<Timestamp>,
    /// Events that the last walk has compared, also one that goes on.
    pub walk_events: u64,
    /// When the last hourly sample ended; null if there was none.
    pub last_sample: Option<Timestamp>,
}

/// A meter's usage that is not billed, by cause, as decimal numbers; a cause without usage is null.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct UnbilledUsage {
    /// All causes together.
    pub total: Decimal,
    /// Dead letters.
    pub dead: Option<Decimal>,
    /// Of tenants without a customer.
    pub no_customer: Option<Decimal>,
    /// Too old to be sent when the tenant got a customer.
    pub too_old: Option<Decimal>,
    /// Of events that were kept and not counted.
    pub quarantined: Option<Decimal>,
    /// Counted in shadow mode.
    pub shadow: Option<Decimal>,
    /// Used before the meter's `billing.from`.
    pub before_from: Option<Decimal>,
    /// Held back by a saga.
    pub held: Option<Decimal>,
    /// Used in no subscription, and held (`billing.outside = "hold"`).
    pub outside: Option<Decimal>,
}

/// A meter's usage of tenants that have, or had, no customer.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct UnmappedUsage {
    pub tenants: u64,
    pub pushes: u64,
    /// As a decimal number.
    pub quantity: Decimal,
}

/// The number of on-call pages.
#[derive(Default, Serialize, Deserialize, ToSchema)]
pub struct Pages {
    /// Still open.
    pub open: u64,
    /// In the last 24 hours.
    pub day: u64,
    /// In the last seven days, and in the seven before.
    pub week: u64,
    pub week_before: u64,
}

/// When the last passes ended, closed or incomplete; null if there was none.
#[derive(Default, Serialize, Deserialize, ToSchema)]
pub struct LastPasses {
    pub hourly: Option<Timestamp>,
    /// Whether it could not read everything.
    pub hourly_incomplete: bool,
    pub nightly: Option<Timestamp>,
    /// Whether it could not read everything.
    pub nightly_incomplete: bool,
}

impl UnbilledUsage {
    /// The causes with usage, in the order of their names.
    pub fn causes(&self) -> impl Iterator<Item = (&'static str, Decimal)> {
        let causes = [
            ("before from", self.before_from),
            ("dead", self.dead),
            ("held", self.held),
            ("no customer", self.no_customer),
            ("outside", self.outside),
            ("quarantined", self.quarantined),
            ("shadow", self.shadow),
            ("too old", self.too_old),
        ];
        causes.into_iter().filter_map(|(cause, quantity)| Some((cause, quantity?)))
    }
}
