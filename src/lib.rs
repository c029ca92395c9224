//! Counterfoil: counts usage events exactly once in effect and keeps exact totals.
//! Modules in the order of dependency; each knows only those above it.

pub mod rules;

pub mod api;

pub mod clock;
pub mod config;
pub mod faults;
pub mod heavy;
pub mod telemetry;

pub mod store;

pub mod destinations;
pub mod provider;
pub mod tax;

pub mod jobs;

pub mod http;

pub mod cli;

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
