//! Rows of pushes and of their history: written, changed and read one at a time.
//!
//! Invariant: each function here that changes a push adds a row to its history, in the caller's
//! transaction, and returns the line to be logged once that transaction is committed. A crash
//! before the commit leaves neither.

use super::epochs::secret_now;
use super::waiting::{count_waiting, planned_state};
use super::{corrupt, sql_error};
use crate::faults::planted;
use crate::rules::billing::Mode;
use crate::rules::delivery::{Class, PushState};
use crate::rules::ids::{CustomerId, EventId, MeterNo, TenantId, TenantNo};
use crate::rules::meter::Meter;
use crate::rules::push::{KeyParts, PlannedPush, push_key};
use crate::rules::quantity::Quantity;
use crate::rules::restore::Reading;
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::Result;
use crate::store::push::{Push, Transition, TransitionLine};
use rusqlite::types::FromSql;
use rusqlite::{Connection, Row, params};

/// A push with what only the store needs to know of it.
pub struct PushRow {
    pub push: Push,
    pub tenant_no: TenantNo,
    pub fence: u64,
    pub leased_until: Option<Timestamp>,
    pub request: Option<Vec<u8>>,
    pub request_keys: u32,
    pub unreadable_since: Option<Timestamp>,
    /// The provider's total of its window as it was last read after a restore.
    pub looked: Option<Reading>,
}

/// Whose usage of what.
#[derive(Clone, Copy)]
pub struct Owner<'a> {
    pub tenant_no: TenantNo,
    pub tenant: &'a TenantId,
    pub meter_no: MeterNo,
    pub meter: &'a Meter,
}

/// A push that is to be written.
pub struct NewPush<'a> {
    pub owner: Owner<'a>,
    pub window: Window,
    pub plan: PlannedPush,
    pub shadow: bool,
    pub mode: Mode,
    pub stamped_at: Timestamp,
    pub subscriptions: &'a str,
    pub event: Option<&'a EventId>,
    pub detail: Option<&'a str>,
    pub at: Timestamp,
}

/// Where a push stands when it is written.
#[derive(Clone, Copy)]
pub struct Standing<'a> {
    pub state: PushState,
    pub class: Class,
    /// Only for one that the provider was told of in another way than by sending it.
    pub customer: Option<&'a CustomerId>,
}

/// What a push is changed to; its lease ends with it.
pub struct Change {
    pub state: PushState,
    pub class: Class,
    pub detail: Option<String>,
    pub due_at: Timestamp,
    pub request_keys: u32,
}

pub fn fetch_push(connection: &Connection, number: u64) -> Result<Option<PushRow>> {
    let mut select = connection
        .prepare_cached(
            "-- fetch_push
             SELECT push_no, tenant, pushes.tenant_no, meter_no, window_start, window_end, revision,
                    shadow, mode, quantity, value, key, stamped_at, subscriptions, event_id, state,
                    class, detail, pushes.customer, request, attempts, request_keys,
                    first_attempt_at, due_at, fence, leased_until, pushes.created_at, state_at,
                    unreadable_since, looked_total, looked_at
             FROM pushes JOIN tenants ON tenants.tenant_no = pushes.tenant_no
             WHERE push_no = ?",
        )
        .map_err(sql_error)?;
    let mut rows = select.query([number]).map_err(sql_error)?;
    rows.next().map_err(sql_error)?.map(decode_push).transpose()
}

/// The push of a number that was just read from another row.
pub fn fetch_known(connection: &Connection, number: u64) -> Result<PushRow> {
    fetch_push(connection, number)?.ok_or_else(|| corrupt("a push's number"))
}

/// Writes a push that a cut planned: due at once, or waiting for its tenant's customer.
pub fn insert_push(
    connection: &Connection,
    secret: &[u8; 32],
    push: &NewPush<'_>,
) -> Result<TransitionLine> {
    let owner = push.owner;
    let state = planned_state(connection, owner.tenant_no)?;
    if state == PushState::Waiting && !push.shadow {
        count_waiting(connection, (owner.tenant_no, owner.meter_no), push.plan.quantity)?;
    }
    insert_standing(connection, secret, push, Standing { state, class: Class::Cut, customer: None })
}

/// Writes a push that stands somewhere already, or that something else than a cut planned.
pub fn insert_standing(
    connection: &Connection,
    secret: &[u8; 32],
    push: &NewPush<'_>,
    Standing { state, class, customer }: Standing<'_>,
) -> Result<TransitionLine> {
    let key = key_of(&secret_now(connection, secret)?, push);
    let (owner, at) = (push.owner, push.at.micros());
    connection
        .prepare_cached(
            "-- insert_push
             INSERT INTO pushes (tenant_no, meter_no, window_start, window_end, revision, shadow,
                 mode, quantity, value, key, stamped_at, subscriptions, event_id, state, class,
                 detail, customer, attempts, request_keys, due_at, fence, created_at, state_at)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, ?, 0, ?, ?)",
        )
        .and_then(|mut insert| {
            insert.execute(params![
                owner.tenant_no.0,
                owner.meter_no.0,
                push.window.start.micros(),
                push.window.end.micros(),
                push.plan.revision,
                push.shadow,
                push.mode.name(),
                push.plan.quantity.to_string(),
                push.plan.value.to_string(),
                key,
                push.stamped_at.micros(),
                push.subscriptions,
                push.event.map(EventId::as_str),
                state.name(),
                class.name(),
                push.detail,
                customer.map(CustomerId::as_str),
                at,
                at,
                at
            ])
        })
        .map_err(sql_error)?;
    let number = u64::try_from(connection.last_insert_rowid()).expect("numbers begin at 1");
    let transition = Transition {
        at: push.at,
        state,
        class,
        attempt: 0,
        request_id: None,
        detail: push.detail.map(str::to_owned),
    };
    insert_transition(connection, number, &transition)?;
    Ok(line(number, owner.tenant, &key, transition))
}

fn key_of(secret: &[u8; 32], push: &NewPush<'_>) -> String {
    let parts = KeyParts {
        tenant: push.owner.tenant.as_str(),
        meter: push.owner.meter.slug.as_str(),
        window_start: push.window.start,
        revision: push.plan.revision,
        value: push.plan.value,
    };
    if planted("bug.key_without_revision") {
        return push_key(secret, KeyParts { revision: 1, value: Quantity::ZERO, ..parts });
    }
    push_key(secret, parts)
}

/// Changes what became of a push, and ends its lease. `said` goes into its history.
pub fn change_push(
    connection: &Connection,
    row: &PushRow,
    change: &Change,
    (class, request_id, said): (Class, Option<&str>, Option<&str>),
    at: Timestamp,
) -> Result<TransitionLine> {
    let state_at = if change.state == row.push.state { row.push.state_at } else { at };
    connection
        .prepare_cached(
            "-- change_push
             UPDATE pushes SET state = ?, class = ?, detail = ?, due_at = ?, request_keys = ?,
                 state_at = ?, leased_until = NULL
             WHERE push_no = ?",
        )
        .and_then(|mut update| {
            update.execute(params![
                change.state.name(),
                change.class.name(),
                change.detail,
                change.due_at.micros(),
                change.request_keys,
                state_at.micros(),
                row.push.number
            ])
        })
        .map_err(sql_error)?;
    let transition = Transition {
        at,
        state: change.state,
        class,
        attempt: row.push.attempts,
        request_id: request_id.map(str::to_owned),
        detail: said.map(str::to_owned),
    };
    insert_transition(connection, row.push.number, &transition)?;
    Ok(line(row.push.number, &row.push.tenant, &row.push.key, transition))
}

/// Writes down that a push is about to be sent; what was sent first stays.
pub fn begin_attempt(
    connection: &Connection,
    row: &PushRow,
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
        })
        .map_err(sql_error)?;
    let transition = Transition {
        at,
        state: row.push.state,
        class: Class::Attempt,
        attempt: row.push.attempts + 1,
        request_id: None,
        detail: None,
    };
    insert_transition(connection, row.push.number, &transition)?;
    Ok(line(row.push.number, &row.push.tenant, &row.push.key, transition))
}

fn insert_transition(connection: &Connection, push: u64, row: &Transition) -> Result<()> {
    connection
        .prepare_cached(
            "-- insert_transition
             INSERT INTO push_transitions (push_no, at, state, class, attempt, request_id, detail)
             VALUES (?, ?, ?, ?, ?, ?, ?)",
        )
        .and_then(|mut insert| {
            insert.execute(params![
                push,
                row.at.micros(),
                row.state.name(),
                row.class.name(),
                row.attempt,
                row.request_id,
                row.detail
            ])
        })
        .map_err(sql_error)?;
    Ok(())
}

/// The history of a push, oldest first.
pub fn read_transitions(connection: &Connection, push: u64) -> Result<Vec<Transition>> {
    let mut select = connection
        .prepare_cached(
            "-- read_transitions
             SELECT at, state, class, attempt, request_id, detail FROM push_transitions
             WHERE push_no = ? ORDER BY transition_no",
        )
        .map_err(sql_error)?;
    let mut rows = select.query([push]).map_err(sql_error)?;
    let mut transitions = Vec::new();
    while let Some(row) = rows.next().map_err(sql_error)? {
        transitions.push(Transition {
            at: Timestamp::from_micros(get(row, "at")?),
            state: state_of(row)?,
            class: class_of(row)?,
            attempt: get(row, "attempt")?,
            request_id: get(row, "request_id")?,
            detail: get(row, "detail")?,
        });
    }
    Ok(transitions)
}

fn line(push: u64, tenant: &TenantId, key: &str, transition: Transition) -> TransitionLine {
    TransitionLine {
        push,
        tenant: tenant.clone(),
        key: key.to_owned(),
        state: transition.state,
        class: transition.class,
        attempt: transition.attempt,
        request_id: transition.request_id,
    }
}

fn decode_push(row: &Row<'_>) -> Result<PushRow> {
    let tenant: String = get(row, "tenant")?;
    let mode: String = get(row, "mode")?;
    let customer: Option<String> = get(row, "customer")?;
    let customer = customer.as_deref().map(CustomerId::parse).transpose();
    let event: Option<String> = get(row, "event_id")?;
    let event = event.as_deref().map(EventId::parse).transpose();
    let push = Push {
        number: get(row, "push_no")?,
        tenant: TenantId::parse(&tenant).map_err(|_| corrupt("a push's tenant"))?,
        meter: MeterNo(get(row, "meter_no")?),
        window: Window { start: moment(row, "window_start")?, end: moment(row, "window_end")? },
        revision: get(row, "revision")?,
        shadow: get(row, "shadow")?,
        mode: Mode::from_name(&mode).ok_or_else(|| corrupt("a push's mode"))?,
        quantity: quantity_of(row, "quantity")?,
        value: quantity_of(row, "value")?,
        key: get(row, "key")?,
        stamped_at: moment(row, "stamped_at")?,
        subscriptions: get(row, "subscriptions")?,
        event: event.map_err(|_| corrupt("a push's event"))?,
        state: state_of(row)?,
        class: class_of(row)?,
        detail: get(row, "detail")?,
        customer: customer.map_err(|_| corrupt("a push's customer"))?,
        attempts: get(row, "attempts")?,
        first_attempt_at: get::<Option<i64>>(row, "first_attempt_at")?.map(Timestamp::from_micros),
        due_at: moment(row, "due_at")?,
        created_at: moment(row, "created_at")?,
        state_at: moment(row, "state_at")?,
    };
    Ok(PushRow {
        push,
        tenant_no: TenantNo(get(row, "tenant_no")?),
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
    Quantity::parse_stored(&text).ok_or_else(|| corrupt("a quantity"))
}

/// The same, of a column that may be null.
pub fn quantity_if_any(row: &Row<'_>, column: &str) -> Result<Option<Quantity>> {
    let text: Option<String> = get(row, column)?;
    let parse = |text: String| Quantity::parse_stored(&text).ok_or_else(|| corrupt("a quantity"));
    text.map(parse).transpose()
}

pub fn moment(row: &Row<'_>, column: &str) -> Result<Timestamp> {
    get(row, column).map(Timestamp::from_micros)
}

pub fn get<T: FromSql>(row: &Row<'_>, column: &str) -> Result<T> {
    row.get(column).map_err(sql_error)
}

pub fn state_of(row: &Row<'_>) -> Result<PushState> {
    let name: String = get(row, "state")?;
    PushState::from_name(&name).ok_or_else(|| corrupt("a push's state"))
}

pub fn class_of(row: &Row<'_>) -> Result<Class> {
    let name: String = get(row, "class")?;
    Class::from_name(&name).ok_or_else(|| corrupt("a push's class"))
}
