//! Values on their way to a statement and out of a row, the same for both databases.
//!
//! Invariant: every conversion is exact or refused. SQLite has no type for flags, instants and
//! decimals: there they are integers, microseconds since 1970 and text.

use crate::rules::account::Floor;
use crate::rules::alert::{AlertKind, NoticeEvent, Severity, ThresholdKind, ThresholdPeriod};
use crate::rules::billing::Mode;
use crate::rules::change::Queue;
use crate::rules::credit::{ChangeKind, Pool};
use crate::rules::decision::{ConflictState, QuarantineState};
use crate::rules::drift::{Reason, Verdict};
use crate::rules::dunning::Stage;
use crate::rules::finding::FindingKind;
use crate::rules::ids::{
    AccountName, CustomerId, EventId, MeterNo, MeterSlug, OnceKey, SubscriptionId, TenantId,
    TenantNo, Unit,
};
use crate::rules::mirror::ObjectKind;
use crate::rules::pass::{PassKind, PassState};
use crate::rules::quantity::Quantity;
use crate::rules::saga::{Mark, SagaKind, SagaState};
use crate::rules::submission::{Class, PushState};
use crate::rules::subscription::Origin;
use crate::rules::timestamp::Timestamp;
use crate::rules::webhook::{WebhookSource, WebhookStatus};
use std::fmt;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Null,
    Flag(bool),
    Integer(i64),
    /// An integer that no column can hold; a statement with it is refused.
    TooLarge(u64),
    Text(String),
    Bytes(Vec<u8>),
    Time(Timestamp),
    Decimal(Quantity),
}

impl Value {
    fn integer(&self) -> Option<i64> {
        if let Self::Integer(number) = self { Some(*number) } else { None }
    }

    fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("NULL"),
            Self::Flag(flag) => flag.fmt(f),
            Self::Integer(number) => number.fmt(f),
            Self::TooLarge(number) => number.fmt(f),
            Self::Text(text) => f.write_str(text),
            Self::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
            Self::Time(at) => at.fmt(f),
            Self::Decimal(quantity) => quantity.fmt(f),
        }
    }
}

/// What a statement can be given.
pub trait IntoValue {
    fn to_value(&self) -> Value;
}

/// What a column can be read as.
pub trait FromValue: Sized {
    /// None if the column does not hold such a value.
    fn from_value(value: &Value) -> Option<Self>;
}

/// The values of a statement, in the order of `$1`, `$2` and so on.
macro_rules! values {
    ($($value:expr),* $(,)?) => {
        &[$($crate::store::sql::IntoValue::to_value(&$value)),*]
    };
}
pub(crate) use values;

impl<T: IntoValue + ?Sized> IntoValue for &T {
    fn to_value(&self) -> Value {
        (**self).to_value()
    }
}

impl<T: IntoValue> IntoValue for Option<T> {
    fn to_value(&self) -> Value {
        self.as_ref().map_or(Value::Null, T::to_value)
    }
}

impl<T: FromValue> FromValue for Option<T> {
    fn from_value(value: &Value) -> Option<Self> {
        if *value == Value::Null { Some(None) } else { T::from_value(value).map(Some) }
    }
}

impl IntoValue for bool {
    fn to_value(&self) -> Value {
        Value::Flag(*self)
    }
}

impl FromValue for bool {
    fn from_value(value: &Value) -> Option<Self> {
        match (value, value.integer()) {
            (Value::Flag(flag), _) => Some(*flag),
            (_, Some(0)) => Some(false),
            (_, Some(1)) => Some(true),
            (_, Some(_) | None) => None,
        }
    }
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl IntoValue for $type {
            fn to_value(&self) -> Value {
                Value::Integer(i64::from(*self))
            }
        }

        impl FromValue for $type {
            fn from_value(value: &Value) -> Option<Self> {
                value.integer().and_then(|number| Self::try_from(number).ok())
            }
        }
    )*};
}
integers!(i64, u32, u16, u8);

impl IntoValue for u64 {
    fn to_value(&self) -> Value {
        i64::try_from(*self).map_or(Value::TooLarge(*self), Value::Integer)
    }
}

impl FromValue for u64 {
    fn from_value(value: &Value) -> Option<Self> {
        value.integer().and_then(|number| Self::try_from(number).ok())
    }
}

/// A limit of rows; more than any table has is as good as the largest.
impl IntoValue for usize {
    fn to_value(&self) -> Value {
        Value::Integer(i64::try_from(*self).unwrap_or(i64::MAX))
    }
}

impl IntoValue for str {
    fn to_value(&self) -> Value {
        Value::Text(self.to_owned())
    }
}

impl IntoValue for String {
    fn to_value(&self) -> Value {
        Value::Text(self.clone())
    }
}

impl FromValue for String {
    fn from_value(value: &Value) -> Option<Self> {
        value.text().map(str::to_owned)
    }
}

impl IntoValue for [u8] {
    fn to_value(&self) -> Value {
        Value::Bytes(self.to_vec())
    }
}

impl IntoValue for Vec<u8> {
    fn to_value(&self) -> Value {
        Value::Bytes(self.clone())
    }
}

impl<const N: usize> IntoValue for [u8; N] {
    fn to_value(&self) -> Value {
        Value::Bytes(self.to_vec())
    }
}

impl FromValue for Vec<u8> {
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Bytes(bytes) = value { Some(bytes.clone()) } else { None }
    }
}

impl<const N: usize> FromValue for [u8; N] {
    fn from_value(value: &Value) -> Option<Self> {
        Vec::from_value(value)?.try_into().ok()
    }
}

impl IntoValue for Timestamp {
    fn to_value(&self) -> Value {
        Value::Time(*self)
    }
}

impl FromValue for Timestamp {
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Time(at) = value {
            return Some(*at);
        }
        value.integer().map(Self::from_micros)
    }
}

impl IntoValue for Quantity {
    fn to_value(&self) -> Value {
        Value::Decimal(*self)
    }
}

impl FromValue for Quantity {
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Decimal(quantity) = value {
            return Some(*quantity);
        }
        value.text().and_then(Self::parse_stored)
    }
}

impl IntoValue for TenantNo {
    fn to_value(&self) -> Value {
        self.0.to_value()
    }
}

impl FromValue for TenantNo {
    fn from_value(value: &Value) -> Option<Self> {
        u32::from_value(value).map(Self)
    }
}

impl IntoValue for MeterNo {
    fn to_value(&self) -> Value {
        self.0.to_value()
    }
}

impl FromValue for MeterNo {
    fn from_value(value: &Value) -> Option<Self> {
        u16::from_value(value).map(Self)
    }
}

macro_rules! names {
    ($($type:ty),* $(,)?) => {$(
        impl IntoValue for $type {
            fn to_value(&self) -> Value {
                self.name().to_value()
            }
        }

        impl FromValue for $type {
            fn from_value(value: &Value) -> Option<Self> {
                value.text().and_then(Self::from_name)
            }
        }
    )*};
}
names!(
    AlertKind,
    ChangeKind,
    Class,
    ConflictState,
    FindingKind,
    Floor,
    Mark,
    Mode,
    NoticeEvent,
    ObjectKind,
    Origin,
    PassKind,
    PassState,
    Pool,
    PushState,
    QuarantineState,
    Queue,
    Reason,
    SagaKind,
    SagaState,
    Severity,
    Stage,
    ThresholdKind,
    ThresholdPeriod,
    Verdict,
    WebhookSource,
    WebhookStatus
);

macro_rules! text_ids {
    ($($type:ty),*) => {$(
        impl IntoValue for $type {
            fn to_value(&self) -> Value {
                self.as_str().to_value()
            }
        }

        impl FromValue for $type {
            fn from_value(value: &Value) -> Option<Self> {
                value.text().and_then(|text| Self::parse(text).ok())
            }
        }
    )*};
}
text_ids!(AccountName, TenantId, OnceKey, EventId, CustomerId, SubscriptionId, MeterSlug, Unit);
