//! The enums of `rules` that are on the wire, described by the names they have in JSON.
//!
//! Invariant: a description lists every name. `ALL` is the list where an enum has one; elsewhere a
//! variant that is not listed here does not compile.

use crate::rules::account::Floor;
use crate::rules::alert::{AlertKind, Severity, ThresholdKind, ThresholdPeriod};
use crate::rules::billing::{Granularity, Mode};
use crate::rules::credit::{ChangeKind, Pool};
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

fn describe(description: Option<&str>, values: &[impl Serialize]) -> RefOr<Schema> {
    let name = |value| serde_json::to_value(value).expect("a plain enum is its name in JSON");
    let schema = ObjectBuilder::new().schema_type(Type::String).description(description);
    schema.enum_values(Some(values.iter().map(name))).into()
}

names!(
    Aggregation,
    Some("How a meter turns the events of a window into one value."),
    Sum | Count | Min | Max | Latest | Unique
);
names!(AlertKind, Some("What an alert is about; docs/operating.md has a heading for each."));
names!(
    Bucket,
    Some("The grain at which a meter's totals are kept, in UTC."),
    Minute | QuarterHour | Hour | Day
);
names!(ChangeKind, Some("What happened to a grant."));
names!(Class, Some("Why a push is where it is: one word for each row of its history."));
names!(Dunning, Some("The state of an invoice's payment."), None | Failing | Recovered | Lost);
names!(FindingKind, Some("What is compared."));
names!(Floor, None);
names!(Grain, Some("How a range is cut into windows."), Hour | Day | Week | Month | None);
names!(Granularity, Some("What one push is of."), Window | Day | Event);
names!(Mark, Some("What a line of the log says about its step."));
names!(Mode, Some("What a push says."));
names!(ObjectKind, Some("What is mirrored."));
names!(PassKind, None);
names!(PassState, None);
names!(Pool, None);
names!(PriceKind, Some("Whether a line's amount holds its tax already."), Inclusive | Exclusive);
names!(PushState, Some("The state of a push."));
names!(Reason, Some("Why."));
names!(SagaKind, None);
names!(SagaState, None);
names!(Severity, Some("How urgent an alert is."));
names!(ThresholdKind, None);
names!(ThresholdPeriod, Some("Calendar periods, in UTC."));
names!(Verdict, Some("What a comparison says."));
names!(WebhookSource, Some("How a webhook came."));
names!(WebhookStatus, Some("The state of a webhook."));
names!(WindowState, None, Open | Settling | Final);
