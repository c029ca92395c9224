//! The HTTP interface, in process: every route, every outcome, every refusal.
#![allow(clippy::unwrap_used)]

#[path = "../shared/store_faults.rs"]
mod store_faults;

mod accounts;
mod admission;
mod auth;
mod balances;
mod changes;
mod credits;
mod description;
mod events;
mod first_hour;
mod idempotency;
mod permissions;
mod pushes;
mod queries;
mod quotes;
mod server;
mod tls;
mod transport;
mod watch;
