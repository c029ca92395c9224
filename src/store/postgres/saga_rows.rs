//! Rows of sagas and of their logs, read and locked.
//!
//! Invariant: a log is read in the order in which it was written, whole.

use super::scalars::{column, corrupt, damaged, instant, read_count, read_ordinal};
use super::statements::Statements;
use super::transaction::Done;
use crate::rules::ids::{OnceKey, TenantId};
use crate::rules::saga::{LogLine, Mark, Saga, SagaKind, SagaState};
use crate::store::Result;
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeMap;
use tokio_postgres::Row;

/// The saga that was begun under a key.
pub async fn find_by_key(
    client: &ClientWrapper,
    tenant_no: i32,
    key: &OnceKey,
) -> Done<Option<Saga>> {
    let sql = "-- find_by_key
        SELECT s.saga_no, s.id, s.kind, t.tenant, s.key, s.params, s.state, s.generation, s.tries,
            s.due_at, s.detail, s.created_at, s.state_at
        FROM sagas s JOIN tenants t ON t.tenant_no = s.tenant_no
        WHERE s.tenant_no = $1 AND s.key = $2";
    let row = client.read_optional(sql, &[&tenant_no, &key.as_str()]).await?;
    Ok(row.map(|row| saga(&row, 0)).transpose()?)
}

/// The tenant's open saga.
pub async fn find_open(client: &ClientWrapper, tenant_no: i32) -> Done<Option<Saga>> {
    let sql = "-- find_open
        SELECT s.saga_no, s.id, s.kind, t.tenant, s.key, s.params, s.state, s.generation, s.tries,
            s.due_at, s.detail, s.created_at, s.state_at
        FROM sagas s JOIN tenants t ON t.tenant_no = s.tenant_no
        WHERE s.tenant_no = $1 AND s.state IN ('running', 'compensating', 'needs_attention')";
    let row = client.read_optional(sql, &[&tenant_no]).await?;
    Ok(row.map(|row| saga(&row, 0)).transpose()?)
}

/// Locks a saga that is there, and reads it and its fence.
pub async fn lock_saga(client: &ClientWrapper, number: i64) -> Done<(Saga, u64)> {
    let sql = "-- lock_saga
        SELECT s.saga_no, s.id, s.kind, t.tenant, s.key, s.params, s.state, s.generation, s.tries,
            s.due_at, s.detail, s.created_at, s.state_at, s.fence
        FROM sagas s JOIN tenants t ON t.tenant_no = s.tenant_no
        WHERE s.saga_no = $1
        FOR UPDATE OF s";
    let row = client.read_optional(sql, &[&number]).await?;
    let row = row.ok_or_else(|| corrupt("sagas row vanished mid-transaction"))?;
    Ok((saga(&row, 0)?, read_count(column(&row, 13)?)?))
}

pub async fn read_log(client: &ClientWrapper, number: i64) -> Result<Vec<LogLine>> {
    Ok(read_logs(client, &[number]).await?.remove(&number).unwrap_or_default())
}

/// Logs by the numbers of their sagas; those without a line are left out.
pub async fn read_logs(
    client: &ClientWrapper,
    numbers: &[i64],
) -> Result<BTreeMap<i64, Vec<LogLine>>> {
    let mut logs: BTreeMap<i64, Vec<LogLine>> = BTreeMap::new();
    if numbers.is_empty() {
        return Ok(logs);
    }
    let sql = "-- read_logs
        SELECT saga_no, generation, step, name, mark, result, detail, at
        FROM saga_lines WHERE saga_no = ANY ($1)
        ORDER BY saga_no, line";
    let statement = client.prepare_cached(sql).await?;
    for row in client.query(&statement, &[&numbers]).await? {
        let mark: String = column(&row, 4)?;
        let line = LogLine {
            generation: read_ordinal(column(&row, 1)?)?,
            step: read_ordinal(column(&row, 2)?)?,
            name: column(&row, 3)?,
            mark: Mark::from_name(&mark).ok_or_else(|| damaged("saga_lines.mark", &mark))?,
            result: column(&row, 5)?,
            detail: column(&row, 6)?,
            at: instant(&row, 7)?,
        };
        logs.entry(column(&row, 0)?).or_default().push(line);
    }
    Ok(logs)
}

/// Reads number, id, kind, tenant, key, parameters, state, generation, tries, when it is due,
/// detail, and when it was begun and came into its state, in this order.
pub fn saga(row: &Row, from: usize) -> Result<Saga> {
    let (kind, tenant): (String, String) = (column(row, from + 2)?, column(row, from + 3)?);
    let (key, state): (String, String) = (column(row, from + 4)?, column(row, from + 6)?);
    Ok(Saga {
        number: read_count(column(row, from)?)?,
        id: column(row, from + 1)?,
        kind: SagaKind::from_name(&kind).ok_or_else(|| damaged("sagas.kind", &kind))?,
        tenant: TenantId::parse(&tenant).map_err(|_| damaged("tenants.tenant", &tenant))?,
        key: OnceKey::parse(&key).map_err(|_| damaged("sagas.key", &key))?,
        params: column(row, from + 5)?,
        state: SagaState::from_name(&state).ok_or_else(|| damaged("sagas.state", &state))?,
        generation: read_ordinal(column(row, from + 7)?)?,
        tries: read_ordinal(column(row, from + 8)?)?,
        due_at: instant(row, from + 9)?,
        detail: column(row, from + 10)?,
        created_at: instant(row, from + 11)?,
        state_at: instant(row, from + 12)?,
    })
}
