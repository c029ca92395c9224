//! Meters, as they are declared and answered. `rules` owns the declaration, which is also that of
//! the settings file; here it is described.

use crate::rules::billing::{Billing, Granularity, Mode};
use crate::rules::ids::METER_SLUG_BYTES_MAX;
use crate::rules::meter::{Aggregation, DIMENSIONS_MAX, Meter, MeterSpec};
use crate::rules::properties::NAME_BYTES_MAX;
use crate::rules::window::Bucket;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};

/// A declared meter.
#[derive(Serialize, Deserialize)]
pub struct MeterAnswer {
    pub slug: String,
    #[serde(flatten)]
    pub spec: MeterSpec,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct MeterList {
    pub meters: Vec<MeterAnswer>,
}

impl From<&Meter> for MeterAnswer {
    fn from(meter: &Meter) -> Self {
        Self { slug: meter.slug.to_string(), spec: meter.spec.clone() }
    }
}

/// Names of properties have no control characters.
const PROPERTY_NAME: &str = r"^[^\x00-\x1f\x7f-\x9f]+$";

/// What both a declaration and its answer have; defaults are those of a declaration.
fn properties() -> Value {
    json!({
        "aggregation": {"$ref": "#/components/schemas/Aggregation"},
        "scale": {"type": "integer", "format": "int32", "minimum": 0, "maximum": 12, "default": 6,
            "description": "Most digits after the decimal point. Left out beside a precision, as \
                many of 6 as fit."},
        "precision": {"type": "integer", "format": "int32", "minimum": 1, "maximum": 27,
            "description": "Most digits in all, as in SQL's NUMERIC(precision, scale); 12 more \
                than scale if left out."},
        "signed": {"type": "boolean", "default": false,
            "description": "Whether quantities may be negative."},
        "bucket": {"$ref": "#/components/schemas/Bucket", "default": "1h",
            "description": "The grain at which totals are kept; windows are composed of whole \
                buckets."},
        "dimensions": {"type": "array", "maxItems": DIMENSIONS_MAX, "uniqueItems": true,
            "description": "Properties by which usage can be grouped.",
            "items": {"type": "string", "minLength": 1, "maxLength": NAME_BYTES_MAX,
                "pattern": PROPERTY_NAME}},
        "unique_property": {"type": ["string", "null"], "minLength": 1,
            "maxLength": NAME_BYTES_MAX, "pattern": PROPERTY_NAME,
            "description": "The property whose different values a `unique` meter counts."},
        "settle_after": {"type": "string", "default": "1h",
            "description": "How long after its end a window stays open; then its total is \
                handed to billing. May change later."},
        "late_until": {"type": "string", "default": "4h",
            "description": "How long after its end late events are expected. May change later."},
        "cut_every": {"type": "string", "default": "10m",
            "description": "How often the totals of windows, and what late events \
                changed of them, are handed to billing. May change later."},
        "drift_tolerance": {"type": "string", "default": "0",
            "description": "The largest difference between ledger and provider that is \
                tolerated, as a decimal number. May change later."},
        "billing": {"oneOf": [{"$ref": "#/components/schemas/Billing",
            "description": "How totals reach the billing provider; without it they do not. May be \
                added once."}, {"type": "null"}]},
        "description": {"type": ["string", "null"], "maxLength": 500,
            "description": "For people. May change later."},
        "archived": {"type": "boolean", "default": false,
            "description": "Whether events are refused. What was counted stays, and is billed. \
                May change later."},
    })
}

fn schema_of(description: Value) -> RefOr<Schema> {
    serde_json::from_value(description).expect("the description is a schema")
}

impl PartialSchema for MeterSpec {
    fn schema() -> RefOr<Schema> {
        schema_of(json!({
            "type": "object",
            "description": "A meter as it is declared, by the API and in the configuration file.",
            "required": ["aggregation"], "additionalProperties": false,
            "properties": properties(),
            "example": {"aggregation": "sum", "scale": 6, "dimensions": ["region"]},
        }))
    }
}

impl ToSchema for MeterSpec {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        fn named<T: ToSchema>() -> (String, RefOr<Schema>) {
            (T::name().into_owned(), T::schema())
        }
        schemas.extend([named::<Aggregation>(), named::<Bucket>(), named::<Billing>()]);
        schemas.extend([named::<Mode>(), named::<Granularity>()]);
    }
}

impl PartialSchema for MeterAnswer {
    fn schema() -> RefOr<Schema> {
        let mut properties = properties();
        properties["slug"] = json!({"type": "string", "minLength": 1,
            "maxLength": METER_SLUG_BYTES_MAX, "pattern": "^[a-z0-9][a-z0-9_.-]*$"});
        schema_of(json!({
            "type": "object",
            "description": "A declared meter.",
            "required": [
                "slug", "aggregation", "scale", "precision", "signed", "bucket", "dimensions"
            ],
            "properties": properties,
        }))
    }
}

impl ToSchema for MeterAnswer {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        MeterSpec::schemas(schemas);
    }
}

impl PartialSchema for Billing {
    fn schema() -> RefOr<Schema> {
        schema_of(json!({
            "type": "object",
            "additionalProperties": false,
            "properties": {
                "event_name": {"type": ["string", "null"], "maxLength": 100,
                    "description": "The name under which the provider knows the meter; the slug \
                        where it is left out."},
                "mode": {"$ref": "#/components/schemas/Mode"},
                "granularity": {"$ref": "#/components/schemas/Granularity"},
                "scale": {"type": ["integer", "null"], "format": "int32", "minimum": 0,
                    "maximum": 12,
                    "description": "Decimal places the provider gets; the rest is carried into the \
                        next push. The meter's scale where it is left out."},
                "from": {"type": ["string", "null"], "format": "date-time",
                    "description": "Usage of windows that start at this moment or later is billed \
                        (RFC 3339); the moment at which billing was declared where it is left \
                        out."},
            },
            "example": {"mode": "delta", "granularity": "window"},
        }))
    }
}

impl ToSchema for Billing {}
