//! Rows of pushes and of their history: written, changed and read one at a time.
//!
//! Invariant: each function here that changes a push adds a row to its history, in the caller's
//! transaction, and returns the line to be logged once that transaction is committed. A crash
//! before the commit leaves neither.

use super::epochs::secret_now;
use super::statements::Statements;
use super::waiting::count_waiting;
use super::{corrupt, damaged, sql_error};
use crate::rules::billing::Mode;
use crate::rules::ids::{CustomerId, EventId, MeterNo, TenantId, TenantNo};
use crate::rules::push::{NewPush, Push, StoredPush};
use crate::rules::quantity::Quantity;
use crate::rules::restore::Reading;
use crate::rules::settlement::Change;
use crate::rules::submission::{Class, PushState};
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::Result;
use crate::store::push::{TransitionLine, key_of};
use rusqlite::types::FromSql;
use rusqlite::{Connection, Row, params};

pub fn fetch_push(connection: &Connection, number: u64) -> Result<Option<StoredPush>> {
    connection.read_optional(
        "-- fetch_push
         SELECT push_no, tenant, pushes.tenant_no, pushes.meter_no, slug,
                tenants.customer AS tenant_customer, window_start, window_end, revision,
                shadow, mode, quantity, value, key, stamped_at, subscriptions, event_id, state,
                class, detail, pushes.customer, request, attempts, request_keys,
                first_attempt_at, due_at, fence, leased_until, pushes.created_at, state_at,
                unreadable_since, looked_total, looked_at
         FROM pushes JOIN tenants ON tenants.tenant_no = pushes.tenant_no
         JOIN meters ON meters.meter_no = pushes.meter_no
         WHERE push_no = ?",
        [number],
        decode_push,
    )
}

/// The push of a number that was just read from another row.
pub fn fetch_known(connection: &Connection, number: u64) -> Result<StoredPush> {
    fetch_push(connection, number)?.ok_or_else(|| corrupt("pushes row"))
}

/// All pushes of a window, oldest revision first.
pub fn fetch_window(
    connection: &Connection,
    (tenant, meter, start): (TenantNo, MeterNo, Timestamp),
) -> Result<Vec<StoredPush>> {
    let window = params![tenant.0, meter.0, start.micros()];
    let numbers: Vec<u64> = connection.read_all(
        "-- fetch_window
         SELECT push_no FROM pushes INDEXED BY pushes_by_window
         WHERE tenant_no = ? AND meter_no = ? AND window_start = ?
         ORDER BY revision",
        window,
        |row| Ok(row.get(0)?),
    )?;
    numbers.into_iter().map(|number| fetch_known(connection, number)).collect()
}

/// Writes a push, due at once, as it was planned.
pub fn insert_push(
    connection: &Connection,
    secret: &[u8; 32],
    push: &NewPush,
    at: Timestamp,
) -> Result<TransitionLine> {
    if push.state == PushState::Waiting && !push.shadow {
        count_waiting(connection, push.tenant_no, push.meter, push.planned.quantity)?;
    }
    let key = key_of(&secret_now(connection, secret)?, push);
    connection.run(
        "-- insert_push
         INSERT INTO pushes (tenant_no, meter_no, window_start, window_end, revision, shadow,
             mode, quantity, value, key, stamped_at, subscriptions, event_id, state, class,
             detail, customer, attempts, request_keys, due_at, fence, created_at, state_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17,
             0, 0, ?18, 0, ?18, ?18)",
        params![
            push.tenant_no.0,
            push.meter.0,
            push.window.start.micros(),
            push.window.end.micros(),
            push.planned.revision,
            push.shadow,
            push.mode.name(),
            push.planned.quantity.to_string(),
            push.planned.value.to_string(),
            key,
            push.stamped_at.micros(),
            push.subscriptions,
            push.event.as_ref().map(EventId::as_str),
            push.state.name(),
            push.class.name(),
            push.detail,
            push.customer.as_ref().map(CustomerId::as_str),
            at.micros()
        ],
    )?;
    let number = u64::try_from(connection.last_insert_rowid()).expect("numbers begin at 1");
    let line = TransitionLine::of_new(number, key, push);
    insert_transition(connection, &line, at)?;
    Ok(line)
}

/// Changes a push as planned, and ends its lease.
pub fn change_push(
    connection: &Connection,
    change: &Change,
    at: Timestamp,
) -> Result<TransitionLine> {
    connection.run(
        "-- change_push
         UPDATE pushes SET state = ?, class = ?, detail = ?, due_at = ?, request_keys = ?,
             state_at = ?, unreadable_since = ?, looked_total = ?, looked_at = ?,
             leased_until = NULL
         WHERE push_no = ?",
        params![
            change.state.name(),
            change.class.name(),
            change.detail,
            change.due_at.micros(),
            change.request_keys,
            change.state_at.micros(),
            change.unreadable_since.map(Timestamp::micros),
            change.looked.map(|looked| looked.total.to_string()),
            change.looked.map(|looked| looked.at.micros()),
            change.push
        ],
    )?;
    let line = TransitionLine::of_change(change);
    insert_transition(connection, &line, at)?;
    Ok(line)
}

/// Writes down that a push is about to be sent; what was sent first stays.
pub fn begin_attempt(
    connection: &Connection,
    row: &StoredPush,
    (customer, request): (&CustomerId, &[u8]),
    at: Timestamp,
) -> Result<TransitionLine> {
    connection
        .prepare_cached(
            "-- begin_attempt
             UPDATE pushes SET attempts = attempts + 1, class = ?,
                 first_attempt_at = COALESCE(first_attempt_at, ?),
                 customer = COALESCE(customer, ?), request = COALESCE(request, ?)
             WHERE push_no = ?",
        )
        .and_then(|mut update| {
            let class = Class::Attempt.name();
            let customer = customer.as_str();
            update.execute(params![class, at.micros(), customer, request, row.push.number])
        })?;
    let line = TransitionLine {
        push: row.push.number,
        tenant: row.push.tenant.clone(),
        key: row.push.key.clone(),
        state: row.push.state,
        class: Class::Attempt,
        attempt: row.push.attempts + 1,
        request_id: None,
        detail: None,
    };
    insert_transition(connection, &line, at)?;
    Ok(line)
}

fn insert_transition(connection: &Connection, row: &TransitionLine, at: Timestamp) -> Result<()> {
    connection.run(
        "-- insert_transition
         INSERT INTO push_transitions (push_no, at, state, class, attempt, request_id, detail)
         VALUES (?, ?, ?, ?, ?, ?, ?)",
        params![
            row.push,
            at.micros(),
            row.state.name(),
            row.class.name(),
            row.attempt,
            row.request_id,
            row.detail
        ],
    )?;
    Ok(())
}

fn decode_push(row: &Row<'_>) -> Result<StoredPush> {
    let tenant: String = get(row, "tenant")?;
    let mode: String = get(row, "mode")?;
    let customer: Option<String> = get(row, "customer")?;
    let customer = customer.as_deref().map(CustomerId::parse).transpose();
    let tenant_customer: Option<String> = get(row, "tenant_customer")?;
    let tenant_customer = tenant_customer.as_deref().map(CustomerId::parse).transpose();
    let event: Option<String> = get(row, "event_id")?;
    let event = event.as_deref().map(EventId::parse).transpose();
    let push = Push {
        number: get(row, "push_no")?,
        tenant: TenantId::parse(&tenant).map_err(|_| damaged("tenants.tenant", &tenant))?,
        meter: MeterNo(get(row, "meter_no")?),
        window: Window { start: moment(row, "window_start")?, end: moment(row, "window_end")? },
        revision: get(row, "revision")?,
        shadow: get(row, "shadow")?,
        mode: Mode::from_name(&mode).ok_or_else(|| damaged("pushes.mode", &mode))?,
        quantity: quantity_of(row, "quantity")?,
        value: quantity_of(row, "value")?,
        key: get(row, "key")?,
        stamped_at: moment(row, "stamped_at")?,
        subscriptions: get(row, "subscriptions")?,
        event: event.map_err(|_| corrupt("pushes.event_id"))?,
        state: state_of(row)?,
        class: class_of(row)?,
        detail: get(row, "detail")?,
        customer: customer.map_err(|_| corrupt("pushes.customer"))?,
        attempts: get(row, "attempts")?,
        first_attempt_at: get::<Option<i64>>(row, "first_attempt_at")?.map(Timestamp::from_micros),
        due_at: moment(row, "due_at")?,
        created_at: moment(row, "created_at")?,
        state_at: moment(row, "state_at")?,
    };
    Ok(StoredPush {
        push,
        tenant_no: TenantNo(get(row, "tenant_no")?),
        slug: get(row, "slug")?,
        tenant_customer: tenant_customer.map_err(|_| corrupt("tenants.customer"))?,
        fence: get(row, "fence")?,
        leased_until: get::<Option<i64>>(row, "leased_until")?.map(Timestamp::from_micros),
        request: get(row, "request")?,
        request_keys: get(row, "request_keys")?,
        unreadable_since: get::<Option<i64>>(row, "unreadable_since")?.map(Timestamp::from_micros),
        looked: looked_of(row)?,
    })
}

fn looked_of(row: &Row<'_>) -> Result<Option<Reading>> {
    let Some(at) = get::<Option<i64>>(row, "looked_at")? else { return Ok(None) };
    let total = quantity_of(row, "looked_total")?;
    Ok(Some(Reading { total, at: Timestamp::from_micros(at) }))
}

/// An exact decimal in the column of this name.
pub fn quantity_of(row: &Row<'_>, column: &str) -> Result<Quantity> {
    let text: String = get(row, column)?;
    Quantity::parse_stored(&text).ok_or_else(|| damaged(column, &text))
}

pub fn moment(row: &Row<'_>, column: &str) -> Result<Timestamp> {
    get(row, column).map(Timestamp::from_micros)
}

pub fn get<T: FromSql>(row: &Row<'_>, column: &str) -> Result<T> {
    row.get(column).map_err(sql_error)
}

fn state_of(row: &Row<'_>) -> Result<PushState> {
    let name: String = get(row, "state")?;
    PushState::from_name(&name).ok_or_else(|| damaged("pushes.state", &name))
}

fn class_of(row: &Row<'_>) -> Result<Class> {
    let name: String = get(row, "class")?;
    Class::from_name(&name).ok_or_else(|| damaged("pushes.class", &name))
}
