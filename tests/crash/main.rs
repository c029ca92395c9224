//! Crashes of the real binary: killed, stopped, at named points, with a failing disk and with a
//! connection that is cut at the commit. Whatever happens, what was acknowledged is counted, and
//! after everything is sent again every event is counted once.
//!
//! Run with `--features failpoints`. PostgreSQL is taken from COUNTERFOIL_TEST_POSTGRES (`cargo
//! xtask test` starts one); without it, or without strace, those tests say that they were skipped,
//! unless COUNTERFOIL_TEST_REQUIRE_POSTGRES is set.

#![cfg(feature = "failpoints")]
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

#[path = "../world/database.rs"]
mod database;
#[path = "../world/dice.rs"]
mod dice;

mod admissions;
mod bindings;
mod clocks;
mod credits;
mod cut_connection;
mod damage;
mod disk;
mod folding;
mod inbound;
mod kills;
mod load;
mod lost_files;
mod model;
mod named_points;
mod planted_bugs;
mod sagas;
mod self_check;
mod server;
mod stage;
mod stop;
mod traffic;
