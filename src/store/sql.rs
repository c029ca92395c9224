//! Verbs of both stores that are written once.
//!
//! A verb here is a function over a [`Session`]: it reads rows, asks `rules` for a plan and applies
//! the plan. Its statements are PostgreSQL's; `sqlite/session.rs` removes what SQLite does not need
//! and does not know (casts and row locks). Each store says how a transaction runs ([`SqlStore`]).
//! What has to be fast (deliveries, judgements, rollups, events, counters) is written for each
//! store; a session reads of it what cuts need, by methods of its own.
//!
//! Invariant: the statements of a function are one transaction, which the store commits after the
//! function has returned. PostgreSQL runs a function again if another transaction was in the way,
//! so a function changes nothing but its session. A crash before the commit leaves nothing of it.

mod accounts;
mod alerts;
mod api_keys;
mod batch;
mod bindings;
mod chain;
mod claims;
mod clock;
mod coverings;
mod credit_changes;
mod credits;
mod cut_rows;
mod cuts;
mod decisions;
mod declarations;
mod entries;
mod epochs;
mod failure;
mod filter;
mod findings;
mod grants;
mod holds;
mod inbox;
mod leases;
mod mirrors;
mod outbox;
mod passes;
mod push_changes;
mod push_history;
mod push_rows;
mod pushes;
mod quotes;
mod reconciliation;
mod recuts;
mod reissues;
mod rejections;
mod row;
mod sagas;
mod self_checks;
mod session;
mod settlements;
mod subscriptions;
mod summaries;
mod thresholds;
mod timelines;
mod unbilled;
mod value;
mod waiting;
mod webhooks;

pub use api_keys::{create_api_key, list_api_keys, revoke_api_key};
pub use chain::verify_passes;
pub use clock::lower_tables;
pub use cut_rows::{WindowKey, read_cuts};
pub use cuts::{CutWindow, Listed, divide_window};
pub use decisions::Admissions;
pub use declarations::{declare_meter, put_tenant, read_catalog};
pub use epochs::{move_mark, read_epoch, record_restore};
pub use failure::{Done, Failure};
pub use filter::Filter;
pub use inbox::{list_conflicts, list_quarantine, trace_inboxes};
pub use row::Row;
pub use session::{PushPair, Session, SqlStore, Sum};
pub use subscriptions::read_attributions;
pub use unbilled::{sum_held, sum_outside, sum_shadow};
pub(crate) use value::values;
pub use value::{IntoValue, Value};
