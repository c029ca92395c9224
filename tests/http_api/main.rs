//! The HTTP interface, in process: every route, every outcome, every refusal.
#![allow(clippy::unwrap_used)]

mod auth;
mod description;
mod events;
mod failing_inbound;
mod failing_money;
mod failing_store;
mod pushes;
mod queries;
mod server;
mod transport;
mod watch;
