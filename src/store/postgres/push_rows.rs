//! Rows of `pushes` and `push_transitions`: how they are written and read.
//!
//! Invariant: what a cut planned of a push is written once, by [`insert_pushes`], and never
//! changed. A change of a push adds a row to its history in the same transaction
//! ([`record_lines`]), which is logged after the commit ([`log_lines`]).
//!
//! A crash leaves a push with its history or neither of the two; at worst a line of the log is
//! missing.

use super::numeric::SqlQuantity;
use super::scalars::{
    SqlTimestamp, column, damaged, instant, instant_if_any, meter_number, read_count,
    read_meter_no, read_ordinal, read_tenant_no, tenant_number, write_count, write_ordinal,
};
use super::statements::Statements;
use super::transaction::Done;
use crate::rules::billing::Mode;
use crate::rules::ids::{CustomerId, EventId, TenantId};
use crate::rules::push::{NewPush, Push, StoredPush};
use crate::rules::restore::Reading;
use crate::rules::settlement::Change;
use crate::rules::submission::{Class, PushState};
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::push::{TransitionLine, key_of, log_transition};
use crate::store::{Error, Result};
use deadpool_postgres::ClientWrapper;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

/// Writes pushes, due at once, in their order, inside the caller's transaction.
pub async fn insert_pushes(
    client: &ClientWrapper,
    secret: &[u8; 32],
    pushes: &[NewPush],
    at: Timestamp,
) -> Done<Vec<TransitionLine>> {
    if pushes.is_empty() {
        return Ok(Vec::new());
    }
    let sql = "-- insert_pushes
        INSERT INTO pushes (tenant_no, meter_no, window_start, window_end, revision, shadow, mode,
            quantity, value, key, stamped_at, subscriptions, event_id, detail, state, class,
            customer, attempts, request_keys, due_at, fence, created_at, state_at)
        SELECT tenant_no, meter_no, window_start, window_end, revision, shadow, mode, quantity,
            value, key, stamped_at, subscriptions, event_id, detail, state, class, customer, 0,
            0, $18, 0, $18, $18
        FROM unnest($1::int4[], $2::int2[], $3::timestamptz[], $4::timestamptz[], $5::int4[],
            $6::bool[], $7::text[], $8::numeric[], $9::numeric[], $10::text[],
            $11::timestamptz[], $12::text[], $13::text[], $14::text[], $15::text[], $16::text[],
            $17::text[])
            WITH ORDINALITY AS given (tenant_no, meter_no, window_start, window_end, revision,
            shadow, mode, quantity, value, key, stamped_at, subscriptions, event_id, detail, state,
            class, customer, place)
        ORDER BY place
        RETURNING push_no, key";
    let revisions: Result<Vec<i32>> =
        pushes.iter().map(|new| write_ordinal(new.planned.revision)).collect();
    let keys = each(pushes, |new| key_of(secret, new));
    let parameters: [&(dyn ToSql + Sync); 18] = [
        &each(pushes, |new| tenant_number(new.tenant_no)),
        &each(pushes, |new| meter_number(new.meter)),
        &each(pushes, |new| SqlTimestamp(new.window.start)),
        &each(pushes, |new| SqlTimestamp(new.window.end)),
        &revisions?,
        &each(pushes, |new| new.shadow),
        &each(pushes, |new| new.mode.name()),
        &each(pushes, |new| SqlQuantity(new.planned.quantity)),
        &each(pushes, |new| SqlQuantity(new.planned.value)),
        &keys,
        &each(pushes, |new| SqlTimestamp(new.stamped_at)),
        &each(pushes, |new| new.subscriptions.as_str()),
        &each(pushes, |new| new.event.as_ref().map(EventId::as_str)),
        &each(pushes, |new| new.detail.as_deref()),
        &each(pushes, |new| new.state.name()),
        &each(pushes, |new| new.class.name()),
        &each(pushes, |new| new.customer.as_ref().map(CustomerId::as_str)),
        &SqlTimestamp(at),
    ];
    let rows = client.read_all(sql, &parameters).await?;
    let mut lines = Vec::with_capacity(rows.len());
    for (row, (new, made)) in rows.iter().zip(pushes.iter().zip(keys)) {
        let (number, key): (i64, String) = (column(row, 0)?, column(row, 1)?);
        if key != made {
            let what = "pushes were not written in their order".into();
            return Err(Error::Internal { what }.into());
        }
        lines.push(TransitionLine::of_new(read_count(number)?, key, new));
    }
    record_lines(client, &lines, at).await?;
    Ok(lines)
}

/// Changes pushes as planned, and ends their leases.
pub async fn change_pushes(
    client: &ClientWrapper,
    changes: &[Change],
    at: Timestamp,
) -> Done<Vec<TransitionLine>> {
    if changes.is_empty() {
        return Ok(Vec::new());
    }
    let sql = "-- change_pushes
        UPDATE pushes p SET state = given.state, class = given.class, detail = given.detail,
            due_at = given.due_at, request_keys = given.request_keys, state_at = given.state_at,
            unreadable_since = given.unreadable_since, looked_total = given.looked_total,
            looked_at = given.looked_at, leased_until = NULL
        FROM unnest($1::int8[], $2::text[], $3::text[], $4::text[], $5::timestamptz[], $6::int4[],
            $7::timestamptz[], $8::timestamptz[], $9::numeric[], $10::timestamptz[])
            AS given (push_no, state, class, detail, due_at, request_keys, state_at,
            unreadable_since, looked_total, looked_at)
        WHERE p.push_no = given.push_no";
    let numbers: Result<Vec<i64>> = changes.iter().map(|one| write_count(one.push)).collect();
    let keys: Result<Vec<i32>> =
        changes.iter().map(|one| write_ordinal(one.request_keys)).collect();
    let parameters: [&(dyn ToSql + Sync); 10] = [
        &numbers?,
        &each(changes, |change| change.state.name()),
        &each(changes, |change| change.class.name()),
        &each(changes, |change| change.detail.as_deref()),
        &each(changes, |change| SqlTimestamp(change.due_at)),
        &keys?,
        &each(changes, |change| SqlTimestamp(change.state_at)),
        &each(changes, |change| change.unreadable_since.map(SqlTimestamp)),
        &each(changes, |change| change.looked.map(|looked| SqlQuantity(looked.total))),
        &each(changes, |change| change.looked.map(|looked| SqlTimestamp(looked.at))),
    ];
    client.run(sql, &parameters).await?;
    let lines = each(changes, TransitionLine::of_change);
    record_lines(client, &lines, at).await?;
    Ok(lines)
}

/// One field of every row, as a statement takes it.
pub fn each<'p, T, R>(rows: &'p [T], field: impl Fn(&'p T) -> R) -> Vec<R> {
    rows.iter().map(field).collect()
}

/// Adds rows to the history of pushes, in their order.
pub async fn record_lines(
    client: &ClientWrapper,
    lines: &[TransitionLine],
    at: Timestamp,
) -> Done<()> {
    if lines.is_empty() {
        return Ok(());
    }
    let sql = "-- record_lines
        INSERT INTO push_transitions (push_no, at, state, class, attempt, request_id, detail)
        SELECT push_no, $7, state, class, attempt, request_id, detail
        FROM unnest($1::int8[], $2::text[], $3::text[], $4::int4[], $5::text[], $6::text[])
            WITH ORDINALITY AS given (push_no, state, class, attempt, request_id, detail, place)
        ORDER BY place";
    let numbers: Result<Vec<i64>> = lines.iter().map(|line| write_count(line.push)).collect();
    let attempts: Result<Vec<i32>> = lines.iter().map(|line| write_ordinal(line.attempt)).collect();
    let parameters: [&(dyn ToSql + Sync); 7] = [
        &numbers?,
        &each(lines, |line| line.state.name()),
        &each(lines, |line| line.class.name()),
        &attempts?,
        &each(lines, |line| line.request_id.as_deref()),
        &each(lines, |line| line.detail.as_deref()),
        &SqlTimestamp(at),
    ];
    client.run(sql, &parameters).await?;
    Ok(())
}

/// Called after the commit.
pub fn log_lines(lines: &[TransitionLine]) {
    lines.iter().for_each(log_transition);
}

/// Locks pushes until the caller's transaction ends, in the order of their numbers.
pub async fn lock_pushes(client: &ClientWrapper, numbers: &[i64]) -> Done<()> {
    let sql = "-- lock_pushes
        SELECT push_no FROM pushes WHERE push_no = ANY ($1) ORDER BY push_no FOR UPDATE";
    client.read_all(sql, &[&numbers]).await?;
    Ok(())
}

/// Those of the pushes that exist, in the order of their numbers.
pub async fn read_pushes(client: &ClientWrapper, numbers: &[i64]) -> Result<Vec<StoredPush>> {
    if numbers.is_empty() {
        return Ok(Vec::new());
    }
    let sql = "-- read_pushes
        SELECT p.push_no, p.tenant_no, t.tenant, t.customer, p.meter_no, m.slug, p.window_start,
            p.window_end, p.revision, p.shadow, p.mode, p.quantity, p.value, p.key, p.stamped_at,
            p.subscriptions, p.event_id, p.state, p.class, p.detail, p.customer, p.request,
            p.attempts, p.request_keys, p.first_attempt_at, p.due_at, p.fence,
            p.leased_until, p.created_at, p.state_at, p.unreadable_since,
            p.looked_total, p.looked_at
        FROM pushes p
        JOIN tenants t ON t.tenant_no = p.tenant_no
        JOIN meters m ON m.meter_no = p.meter_no
        WHERE p.push_no = ANY ($1)
        ORDER BY p.push_no";
    let rows = client.read_all(sql, &[&numbers]).await?;
    rows.iter().map(stored_push).collect()
}

fn stored_push(row: &Row) -> Result<StoredPush> {
    let tenant: String = column(row, 2)?;
    let event: Option<String> = column(row, 16)?;
    let SqlQuantity(quantity) = column(row, 11)?;
    let SqlQuantity(value) = column(row, 12)?;
    let mode: String = column(row, 10)?;
    let looked: Option<SqlQuantity> = column(row, 31)?;
    let looked_at = instant_if_any(row, 32)?;
    let push = Push {
        number: read_count(column(row, 0)?)?,
        tenant: TenantId::parse(&tenant).map_err(|_| damaged("tenants.tenant", &tenant))?,
        meter: read_meter_no(column(row, 4)?)?,
        window: Window { start: instant(row, 6)?, end: instant(row, 7)? },
        revision: read_ordinal(column(row, 8)?)?,
        shadow: column(row, 9)?,
        mode: Mode::from_name(&mode).ok_or_else(|| damaged("pushes.mode", &mode))?,
        quantity,
        value,
        key: column(row, 13)?,
        stamped_at: instant(row, 14)?,
        subscriptions: column(row, 15)?,
        event: event
            .map(|id| EventId::parse(&id).map_err(|_| damaged("pushes.event_id", &id)))
            .transpose()?,
        state: read_state(row, 17)?,
        class: read_class(row, 18)?,
        detail: column(row, 19)?,
        customer: read_customer(row, 20)?,
        attempts: read_ordinal(column(row, 22)?)?,
        first_attempt_at: instant_if_any(row, 24)?,
        due_at: instant(row, 25)?,
        created_at: instant(row, 28)?,
        state_at: instant(row, 29)?,
    };
    Ok(StoredPush {
        push,
        tenant_no: read_tenant_no(column(row, 1)?)?,
        slug: column(row, 5)?,
        tenant_customer: read_customer(row, 3)?,
        request: column(row, 21)?,
        request_keys: read_ordinal(column(row, 23)?)?,
        fence: read_count(column(row, 26)?)?,
        leased_until: instant_if_any(row, 27)?,
        unreadable_since: instant_if_any(row, 30)?,
        looked: looked.zip(looked_at).map(|(SqlQuantity(total), at)| Reading { total, at }),
    })
}

pub fn read_state(row: &Row, place: usize) -> Result<PushState> {
    let name: String = column(row, place)?;
    PushState::from_name(&name).ok_or_else(|| damaged("pushes.state", &name))
}

pub fn read_class(row: &Row, place: usize) -> Result<Class> {
    let name: String = column(row, place)?;
    Class::from_name(&name).ok_or_else(|| damaged("pushes.class", &name))
}

pub fn read_customer(row: &Row, place: usize) -> Result<Option<CustomerId>> {
    let id: Option<String> = column(row, place)?;
    id.map(|id| CustomerId::parse(&id).map_err(|_| damaged("tenants.customer", &id))).transpose()
}
