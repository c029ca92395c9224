//! A Stripe simulator: stateful, deterministic, with faults on demand.
//!
//! It implements the part of Stripe's API that usage-based billing needs: meters, meter events and
//! their summaries, customers, prices, subscriptions, invoices, payments, credit grants, events and
//! webhooks. It behaves as Stripe does where that hurts, such as idempotency keys that are
//! forgotten after 24 hours and meter events that are accepted and dropped later. The README lists
//! the endpoints and the behaviour.
//!
//! [`Simulator`] is a state machine without input or output. [`Handle`] puts it behind a port for a
//! client over HTTP. A test starts one, plans faults, runs the code under test, and compares the
//! simulator's exact totals with what it sent:
//!
//! ```
//! use std::sync::{Arc, Mutex};
//! use stripe_sim::{FaultKind, FaultPlan, FaultRule, Handle, Options, SimRequest, Simulator};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut simulator = Simulator::new("2026-11-15T12:00:00Z".parse()?, Options::default());
//! let customer = simulator.handle(&SimRequest::form("/v1/customers", &[])).json();
//!
//! // The first meter event is counted, and its connection closed without a response.
//! let lost = FaultRule::new(FaultKind::LostAfter).on_path("/meter_events");
//! simulator.set_faults(FaultPlan::of_rules(vec![lost]));
//!
//! let stripe = Handle::start("127.0.0.1:0".parse()?, Arc::new(Mutex::new(simulator))).await?;
//! // Run the code under test against stripe.url(), with a key that begins with sk_test_.
//! # assert!(stripe.url().starts_with("http://127.0.0.1:"));
//!
//! let simulator = stripe.simulator();
//! let totals = simulator.lock().unwrap().exact_totals();
//! # assert!(totals.is_empty() && customer["id"].is_string());
//! # Ok(())
//! # }
//! ```
//!
//! Invariant: the same calls at the same times under the same plan of faults get the same answers.
//! Everything is in memory, so a crash leaves nothing.

#![warn(missing_docs)]

mod account;
mod clock;
mod credit_grants;
mod credit_notes;
mod customers;
mod decimal;
mod events;
mod faults;
mod idempotency;
mod inspect;
mod invoices;
mod limits;
mod lists;
mod metadata;
mod meter_events;
mod meters;
mod options;
mod params;
mod payments;
mod prices;
mod rates;
mod request;
mod routes;
mod schedule;
mod serve;
mod simulator;
mod subscriptions;
mod summaries;
mod tax;
mod timestamp;
mod usage;
mod webhooks;

pub use decimal::Decimal;
pub use faults::{FaultKind, FaultPlan, FaultRule};
pub use limits::{RateClock, RateLimit};
pub use meter_events::{CustomerCheck, ReceivedEvent, ReceivedState};
pub use options::Options;
pub use payments::PaymentOutcome;
pub use request::{SimRequest, SimResponse, TEST_KEY, Transport};
pub use serve::{Handle, serve};
pub use simulator::{Repeats, Simulator, Ticket};
pub use timestamp::Timestamp;
pub use usage::ForeignUsage;
pub use webhooks::{Outgoing, sign};

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
