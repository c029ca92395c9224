//! The enums of `rules` that are on the wire, described by the names they have in JSON.
//!
//! Invariant: a description lists every name. `ALL` is the list where an enum has one; elsewhere a
//! variant that is not listed here does not compile.

use crate::rules::account::Floor;
use crate::rules::alert::{AlertKind, Severity, ThresholdKind, ThresholdPeriod};
use crate::rules::billing::{Granularity, Mode};
use crate::rules::credit::{ChangeKind, Pool};
use crate::rules::decision::{ConflictRuling, ConflictState, QuarantineRuling, QuarantineState};
use crate::rules::drift::{Reason, Verdict};
use crate::rules::finding::FindingKind;
use crate::rules::invoice::Dunning;
use crate::rules::meter::Aggregation;
use crate::rules::mirror::ObjectKind;
use crate::rules::pass::{PassKind, PassState};
use crate::rules::saga::{Mark, SagaKind, SagaState};
use crate::rules::submission::{Class, PushState};
use crate::rules::tax::PriceKind;
use crate::rules::webhook::{WebhookSource, WebhookStatus};
use crate::rules::window::{Bucket, Grain};
use crate::rules::window_life::WindowState;
use serde::Serialize;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

macro_rules! names {
    ($type:ident, $description:expr, $($variant:ident)|+) => {
        const _: fn($type) = |value| match value {
            $($type::$variant)|+ => {}
        };
        names!($type, $description, values: [$($type::$variant),+]);
    };
    ($type:ident, $description:expr) => {
        names!($type, $description, values: $type::ALL);
    };
    ($type:ident, $description:expr, values: $values:expr) => {
        impl PartialSchema for $type {
            fn schema() -> RefOr<Schema> {
                describe($description, &$values)
            }
        }

        impl ToSchema for $type {}
    };
}

fn describe(description: &str, values: &[impl Serialize]) -> RefOr<Schema> {
    let name = |value| serde_json::to_value(value).expect("a plain enum is its name in JSON");
    let schema = ObjectBuilder::new().schema_type(Type::String).description(Some(description));
    schema.enum_values(Some(values.iter().map(name))).into()
}

names!(
    Aggregation,
    "How a meter turns the events of a window into one value.",
    Sum | Count | Min | Max | Latest | Unique
);
names!(AlertKind, "What an alert is about; docs/operating.md has a heading for each.");
names!(
    Bucket,
    "The grain at which a meter's totals are kept, in UTC.",
    Minute | QuarterHour | Hour | Day
);
names!(ChangeKind, "What happened to a grant.");
names!(Class, "The reason for a push's state, one for each row of its history.");
names!(
    ConflictRuling,
    "`keep_standing`: the counted payload is right. `dismiss`: nothing is said of either."
);
names!(ConflictState, "What was decided about a conflict.");
names!(Dunning, "The state of an invoice's payment.", None | Failing | Recovered | Lost);
names!(FindingKind, "What differs: totals (`usage`), a subscription, or an invoice.");
names!(Floor, "How low a balance may go: `zero`, never below 0; `none`, any balance.");
names!(Grain, "How a range is divided into windows.", Hour | Day | Week | Month | None);
names!(Granularity, "The usage that one push carries.", Window | Day | Event);
names!(Mark, "The event of a step that a line of the log records.");
names!(
    Mode,
    "`delta`: the growth of the window's total. `absolute`: the whole total; the last one counts."
);
names!(ObjectKind, "The kind of a provider object.");
names!(PassKind, "The schedule that started a pass, or a request (`one_shot`).");
names!(PassState, "The state of a reconciliation pass.");
names!(
    Pool,
    "`purchased`: paid by the tenant (Stripe: `paid`). `granted`: free (Stripe: `promotional`)."
);
names!(PriceKind, "Whether a line's amount includes its tax.", Inclusive | Exclusive);
names!(
    PushState,
    "`waiting`: for a customer. `observed`: recorded, not accepted yet. `submitted`: accepted by \
         the provider. `confirmed`: shown in its summary. `reconciled`: compared by a pass. `dead`: \
         needs an operator. `discarded`: written off. `replaced`: never counted; a later revision \
         carries its usage, or it was too old to be sent."
);
names!(QuarantineRuling, "`admit`: count it once, at its own time. `discard`: never count it.");
names!(
    QuarantineState,
    "`admitted`: counted by the decision. `duplicate`, `conflict`: to be admitted, and the same or \
         another payload was counted under its id."
);
names!(Reason, "The reason for a verdict.");
names!(SagaKind, "The operation that a saga carries out.");
names!(SagaState, "The state of a saga; `compensated` means that every step was undone.");
names!(Severity, "How urgent an alert is.");
names!(
    ThresholdKind,
    "`threshold`: opens an alert. `quota`: also ends the entitlement; events are still counted."
);
names!(ThresholdPeriod, "Calendar periods, in UTC.");
names!(Verdict, "The result of a comparison.");
names!(WebhookSource, "Whether Stripe delivered a webhook or a backfill found it.");
names!(WebhookStatus, "The state of a webhook.");
names!(WindowState, "Whether events are still expected in a window.", Open | Settling | Final);
