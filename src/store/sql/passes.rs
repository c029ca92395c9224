//! Passes: comparisons of both halves, and the rows that stay of each.
//!
//! Invariant: a writer of a pass holds the lease until the commit, and then the pass's own row; so
//! rows are added only while it runs, and a closed pass never changes. Of nightly passes there is
//! one for each range, by a unique index.
//!
//! A crash leaves all of a call or nothing, and a pass running, which the next holder of the lease
//! takes up. Calls that are repeated because their outcome was lost write the same again, but for a
//! pass that is ordered: unless it is nightly, it is ordered twice.

use super::leases::hold_lease;
use super::reconciliation::within_column;
use super::{Done, Filter, Row, Session, values};
use crate::rules::pass::{Pass, PassKind, PassOrder, PassProgress, PassRow};
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::push::Lease;
use crate::store::reconciliation::{PassFilter, PassRowCursor, PassUpdate};
use crate::store::{Error, Query, Result, damaged};
use serde::Serialize;
use serde::de::DeserializeOwned;

const PASSES: &str = "-- passes
    SELECT pass_no, kind, range_start, range_end, tenant, apply, state, created_at, ended_at,
        progress, hash, detail
    FROM passes";

pub fn create_pass(session: &dyn Session, order: &PassOrder, at: Timestamp) -> Done<u64> {
    // Looked for first: an attempt to write it again would use up a number. Of two servers that
    // order it at once, the later is run again, and finds it then.
    if let Some(number) = find_nightly(session, order)? {
        return Ok(number);
    }
    let PassOrder { kind, range: Window { start, end }, tenant, apply } = order;
    let sql = "-- create_pass
        INSERT INTO passes
            (kind, range_start, range_end, tenant, apply, state, created_at, progress)
        VALUES ($1, $2, $3, $4, $5, 'waiting', $6, $7)
        RETURNING pass_no";
    let progress = to_json(&PassProgress::default());
    let values = values![kind, start, end, tenant, apply, at, progress];
    session.read_one(sql, values, |row| row.get("passes.pass_no"))
}

fn find_nightly(session: &dyn Session, order: &PassOrder) -> Done<Option<u64>> {
    match order.kind {
        PassKind::Nightly => {}
        PassKind::Hourly | PassKind::OneShot => return Ok(None),
    }
    let sql = "-- find_nightly
        SELECT pass_no FROM passes
        WHERE kind = 'nightly' AND range_start = $1 AND range_end = $2";
    let range = values![order.range.start, order.range.end];
    session.read_optional(sql, range, |row| row.get("passes.pass_no"))
}

pub fn update_pass(
    session: &dyn Session,
    lease: &Lease,
    update: &PassUpdate,
    at: Timestamp,
) -> Done<bool> {
    if !hold_lease(session, lease)? {
        return Ok(false);
    }
    let PassUpdate { number, state, progress, hash, detail } = update;
    let ended_at = state.has_ended().then_some(at);
    let sql = "-- update_pass
        UPDATE passes SET state = $2, progress = $3, hash = $4, detail = $5, ended_at = $6
        WHERE pass_no = $1 AND state <> 'closed'";
    let values = values![within_column(*number), state, to_json(progress), hash, detail, ended_at];
    Ok(session.run(sql, values)? == 1)
}

pub fn list_passes(session: &dyn Session, query: &Query<PassFilter>) -> Done<Vec<Pass>> {
    let PassFilter { kind, state } = query.filter;
    let mut filter = Filter::new(PASSES)
        .and_if("kind = $", kind)
        .and_if("state = $", state)
        .and_if("pass_no < $", query.after.map(within_column));
    // Those that have not ended are few and have an index of their own; jobs ask for them all the
    // time.
    if state.is_some_and(|state| !state.has_ended()) {
        filter = filter.and_always("state IN ('waiting', 'running')");
    }
    let (sql, values) = filter.order("pass_no DESC", query.limit);
    session.read_all(&sql, &values, decode_pass)
}

pub fn find_pass(session: &dyn Session, number: u64) -> Done<Option<Pass>> {
    let sql = format!("{PASSES} WHERE pass_no = $1");
    session.read_optional(&sql, values![within_column(number)], decode_pass)
}

fn decode_pass(row: &Row) -> Result<Pass> {
    let order = PassOrder {
        kind: row.get("passes.kind")?,
        range: Window { start: row.get("passes.range_start")?, end: row.get("passes.range_end")? },
        tenant: row.get("passes.tenant")?,
        apply: row.get("passes.apply")?,
    };
    Ok(Pass {
        number: row.get("passes.pass_no")?,
        order,
        state: row.get("passes.state")?,
        created_at: row.get("passes.created_at")?,
        ended_at: row.get("passes.ended_at")?,
        progress: parse_json("passes.progress", &row.get::<String>("passes.progress")?)?,
        hash: row.get("passes.hash")?,
        detail: row.get("passes.detail")?,
    })
}

/// Writes rows over those of the same tenant, meter and day.
pub fn record_pass_rows(
    session: &dyn Session,
    lease: &Lease,
    pass: u64,
    rows: &[PassRow],
) -> Done<bool> {
    if !hold_lease(session, lease)? {
        return Ok(false);
    }
    let sql = "-- record_pass_rows
        SELECT pass_no FROM passes WHERE pass_no = $1 AND state = 'running' FOR UPDATE";
    if session.rows(sql, values![within_column(pass)])?.is_empty() {
        return Ok(false);
    }
    write_pass_rows(session, pass, rows)?;
    Ok(true)
}

fn write_pass_rows(session: &dyn Session, pass: u64, rows: &[PassRow]) -> Done<()> {
    let sql = "-- write_pass_rows
        WITH given (tenant, meter_no, day_start, day_end, ledger, pushed, provider, verdict, reason,
            windows, hash, marks) AS (
            VALUES ($::text, $::int2, $::timestamptz, $::timestamptz, $::numeric, $::numeric,
                $::numeric, $::text, $::text, $::text, $::bytea, $::text), ...
        )
        INSERT INTO pass_rows (pass_no, tenant_no, meter_no, day_start, day_end, ledger, pushed,
            provider, verdict, reason, windows, hash, marks)
        SELECT $1::int8, tenant_no, meter_no, day_start, day_end, ledger, pushed, provider, verdict,
            reason, windows, hash, marks
        FROM given, tenants WHERE tenants.tenant = given.tenant
        ON CONFLICT (pass_no, tenant_no, meter_no, day_start) DO UPDATE SET
            day_end = excluded.day_end, ledger = excluded.ledger, pushed = excluded.pushed,
            provider = excluded.provider, verdict = excluded.verdict, reason = excluded.reason,
            windows = excluded.windows, hash = excluded.hash, marks = excluded.marks";
    let values = rows.iter().map(|row| {
        let PassRow { tenant, meter, day, ledger, pushed, provider, verdict, reason, .. } = row;
        let (windows, marks) = (to_json(&row.windows), row.marks.text());
        values![
            tenant, meter, day.start, day.end, ledger, pushed, provider, verdict, reason, windows,
            row.hash, marks,
        ]
        .to_vec()
    });
    match usize::try_from(session.run_batch_with(sql, values![pass], values)?) == Ok(rows.len()) {
        true => Ok(()),
        false => Err(Error::Corrupt { what: "tenants has no row for a pass row".into() }.into()),
    }
}

/// Tenants are gone through in the order of their names; so a page costs what it holds, and not
/// what the pass does. SQLite takes the tables of a `CROSS JOIN` in the order in which they stand.
pub fn list_pass_rows(
    session: &dyn Session,
    query: &Query<u64, PassRowCursor>,
) -> Done<Vec<PassRow>> {
    let sql = "-- list_pass_rows
        SELECT tenant, meter_no, day_start, day_end, ledger, pushed, provider, verdict, reason,
            windows, hash, marks
        FROM tenants CROSS JOIN pass_rows
        WHERE pass_no = $1 AND pass_rows.tenant_no = tenants.tenant_no AND tenant >= $2
            AND (tenant > $2 OR (meter_no, day_start) > ($3::smallint, $4::timestamptz))
        ORDER BY tenant, meter_no, day_start LIMIT $5";
    let after = query.after.as_ref();
    // Every tenant comes after the empty text.
    let values = values![
        within_column(query.filter),
        after.map_or("", |(tenant, _, _)| tenant.as_str()),
        after.map(|(_, meter, _)| *meter),
        after.map(|(_, _, day)| *day),
        query.limit,
    ];
    session.read_all(sql, values, decode_pass_row)
}

fn decode_pass_row(row: &Row) -> Result<PassRow> {
    let marks: Option<String> = row.get("pass_rows.marks")?;
    let marks = marks.map(|text| parse_json("pass_rows.marks", &text)).transpose()?;
    Ok(PassRow {
        tenant: row.get("tenants.tenant")?,
        meter: row.get("pass_rows.meter_no")?,
        day: Window { start: row.get("pass_rows.day_start")?, end: row.get("pass_rows.day_end")? },
        ledger: row.get("pass_rows.ledger")?,
        pushed: row.get("pass_rows.pushed")?,
        provider: row.get("pass_rows.provider")?,
        verdict: row.get("pass_rows.verdict")?,
        reason: row.get("pass_rows.reason")?,
        windows: parse_json("pass_rows.windows", &row.get::<String>("pass_rows.windows")?)?,
        marks: marks.unwrap_or_default(),
        hash: row.get("pass_rows.hash")?,
    })
}

fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("progress and windows are valid JSON")
}

fn parse_json<T: DeserializeOwned>(column: &str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|_| damaged(column, text))
}
