//! The outbound half in process: a real store, the real jobs under a clock that is moved by hand,
//! the real Stripe client, and the Stripe simulator behind a port. Each test is one promise.

#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

#[path = "../shared/stripe.rs"]
mod stripe;

mod bindings;
mod clocks;
mod cuts;
mod decisions;
mod delivery;
mod faults;
mod outage;
mod restores;
mod shadow;
mod sink;
mod unmapped;
mod walks;
mod world;
