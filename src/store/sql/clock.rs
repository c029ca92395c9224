//! What a clock that was ahead has moved in tables that both stores have alike.
//!
//! A crash leaves all of the caller's transaction or nothing; lowering again changes nothing more.

use super::{Done, Session, values};
use crate::rules::timestamp::{MICROS_PER_HOUR, MICROS_PER_MINUTE, Timestamp};

/// No lease is longer, in microseconds.
const LEASE_MICROS_MAX: i64 = MICROS_PER_HOUR;
/// Nothing is put off for longer: a push waits at most until its summary decides.
const WAIT_MICROS_MAX: i64 = 27 * MICROS_PER_HOUR;
/// A push that was first sent so long ago is sent no more.
const RESEND_MICROS_MAX: i64 = 22 * MICROS_PER_HOUR;
/// Tables whose rows are leased until a time and due at a time.
const LEASED_TABLES: [&str; 4] = ["pushes", "mirrors", "outbox", "sagas"];

/// Resets marks of cuts, leases, and times at which something is due.
pub fn lower_tables(session: &dyn Session, now: Timestamp) -> Done<()> {
    let later = |micros: i64| now.saturating_add_micros(micros);
    let lower = |table: &str, column: &str, to: Timestamp, beyond: Timestamp| {
        let sql = format!("-- lower\nUPDATE {table} SET {column} = $1 WHERE {column} > $2");
        session.run(&sql, values![to, beyond])
    };
    session.run("-- lower\nDELETE FROM cut_marks WHERE mark > $1", values![now])?;
    lower("leases", "until", now, later(LEASE_MICROS_MAX))?;
    for table in LEASED_TABLES {
        lower(table, "leased_until", now, later(LEASE_MICROS_MAX))?;
        lower(table, "due_at", now, later(WAIT_MICROS_MAX))?;
    }
    let sent = later(-RESEND_MICROS_MAX);
    lower("pushes", "first_attempt_at", sent, later(5 * MICROS_PER_MINUTE))?;
    Ok(())
}
