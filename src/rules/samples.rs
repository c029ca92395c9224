//! What the tests of the rules are made of.

use super::fault::Fault;
use super::ids::{CustomerId, OnceKey, TenantId, Unit};
use super::quantity::Quantity;
use super::timestamp::{MICROS_PER_HOUR, Timestamp};

pub fn quantity(text: &str) -> Quantity {
    Quantity::parse_stored(text).expect("valid")
}

/// So many minutes after the epoch.
pub fn minute(number: i64) -> Timestamp {
    Timestamp::from_micros(number * MICROS_PER_HOUR / 60)
}

pub fn hour(number: i64) -> Timestamp {
    minute(number * 60)
}

pub fn acme() -> TenantId {
    TenantId::parse("acme").expect("valid")
}

pub fn customer(id: &str) -> CustomerId {
    CustomerId::parse(id).expect("valid")
}

pub fn key(text: &str) -> OnceKey {
    OnceKey::parse(text).expect("valid")
}

pub fn unit(text: &str) -> Unit {
    Unit::parse(text).expect("valid")
}

/// The fact that a plan names.
pub fn fact<T: std::fmt::Debug>(outcome: Result<T, Fault>) -> &'static str {
    outcome.expect_err("it contradicts a fact").fact
}
