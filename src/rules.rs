//! Pure decisions: no async, no clock, no IO. Every decision about money is in this folder,
//! so that it can be read in one place and tested with tables and properties.
//!
//! Invariant: nothing here depends on any other module of the crate (`tests/tidy.rs` checks it).

pub mod access;
pub mod account;
pub mod activity;
pub mod alert;
pub mod attribution;
pub mod base64;
pub mod batch;
pub mod billing;
pub mod binding;
pub mod chain;
pub mod change;
pub mod command;
pub mod credit;
pub mod customer;
pub mod cut;
pub mod decision;
pub mod digest;
pub mod drain;
pub mod drift;
pub mod dunning;
pub mod event;
pub mod event_id;
pub mod evidence;
pub mod fault;
pub mod finding;
pub mod fingerprint;
pub mod given;
pub mod grant;
pub mod ids;
pub mod invoice;
pub mod latency;
pub mod meter;
pub mod mirror;
pub mod named;
pub mod pace;
pub mod pass;
pub mod plan;
pub mod properties;
pub mod push;
pub mod quantity;
pub mod refusal;
pub mod reissue;
pub mod rejection;
pub mod restore;
pub mod rollup;
pub mod saga;
#[cfg(test)]
mod samples;
pub mod self_check;
pub mod settlement;
pub mod signature;
pub mod span;
pub mod stamp;
pub mod submission;
pub mod subscription;
pub mod tax;
pub mod time_source;
pub mod timestamp;
pub mod usage;
pub mod verdict;
pub mod waiting;
pub mod webhook;
pub mod window;
pub mod window_life;
