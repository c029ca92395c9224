//! The inboxes: conflicts and quarantine.
//!
//! Invariant: whatever was delivered and not counted is here, once for each different payload,
//! with the number of its deliveries. Rows are written in the transaction that gave the verdict.

use super::judge::{NewConflict, NewQuarantine};
use super::{corrupt, sql_error};
use crate::rules::ids::{EventId, TenantId};
use crate::rules::meter::Catalog;
use crate::rules::timestamp::Timestamp;
use crate::rules::verdict::Quarantine;
use crate::store::{ConflictRecord, Error, InboxPage, InboxQuery, QuarantineRecord, Result};
use rusqlite::{Connection, Row, ToSql, params};

pub fn record_conflict(
    connection: &Connection,
    catalog: &Catalog,
    conflict: &NewConflict,
    received_at: Timestamp,
) -> Result<()> {
    let json = |event: &crate::rules::event::Event| event_json(event, catalog);
    let (standing, arriving) = (json(&conflict.standing)?, json(&conflict.arriving)?);
    let id = conflict.arriving.id.as_str();
    let seen = connection
        .prepare_cached(
            "-- record_conflict
             UPDATE conflicts SET deliveries = deliveries + 1, last_received_at = ?
             WHERE tenant_no = ? AND id = ? AND arriving = ?",
        )
        .and_then(|mut update| {
            update.execute(params![received_at.micros(), conflict.tenant.0, id, arriving])
        })
        .map_err(sql_error)?;
    if seen == 0 {
        connection
            .prepare_cached(
                "-- record_conflict
                 INSERT INTO conflicts (tenant_no, id, standing, arriving, first_received_at,
                                        last_received_at, deliveries)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?5, 1)",
            )
            .and_then(|mut insert| {
                let at = received_at.micros();
                insert.execute(params![conflict.tenant.0, id, standing, arriving, at])
            })
            .map_err(sql_error)?;
    }
    Ok(())
}

pub fn record_quarantine(
    connection: &Connection,
    catalog: &Catalog,
    quarantined: &NewQuarantine,
    received_at: Timestamp,
) -> Result<()> {
    let payload = event_json(&quarantined.event, catalog)?;
    let (tenant, id) = (quarantined.tenant.0, quarantined.event.id.as_str());
    let seen = connection
        .prepare_cached(
            "-- record_quarantine
             UPDATE quarantine SET deliveries = deliveries + 1, last_received_at = ?
             WHERE tenant_no = ? AND id = ? AND payload = ?",
        )
        .and_then(|mut update| update.execute(params![received_at.micros(), tenant, id, payload]))
        .map_err(sql_error)?;
    if seen == 0 {
        connection
            .prepare_cached(
                "-- record_quarantine
                 INSERT INTO quarantine (tenant_no, id, payload, reason, first_received_at,
                                         last_received_at, deliveries)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?5, 1)",
            )
            .and_then(|mut insert| {
                let (reason, at) = (quarantined.reason.code(), received_at.micros());
                insert.execute(params![tenant, id, payload, reason, at])
            })
            .map_err(sql_error)?;
    }
    Ok(())
}

pub fn list_conflicts(
    connection: &Connection,
    query: &InboxQuery,
) -> Result<InboxPage<ConflictRecord>> {
    let sql = "-- list_conflicts
        SELECT conflict_no, tenant, id, first_received_at, last_received_at, deliveries, standing,
               arriving
        FROM conflicts JOIN tenants USING (tenant_no)
        WHERE conflict_no > ?1 AND (?2 IS NULL OR tenant = ?2) ORDER BY conflict_no LIMIT ?3";
    let tenant = query.tenant.as_ref().map(TenantId::as_str);
    read_inbox(connection, sql, params![query.after, tenant, query.limit], decode_conflict)
}

pub fn list_quarantine(
    connection: &Connection,
    query: &InboxQuery,
) -> Result<InboxPage<QuarantineRecord>> {
    let sql = "-- list_quarantine
        SELECT quarantine_no, tenant, id, first_received_at, last_received_at, deliveries, payload,
               reason
        FROM quarantine JOIN tenants USING (tenant_no)
        WHERE quarantine_no > ?1 AND (?2 IS NULL OR tenant = ?2) ORDER BY quarantine_no LIMIT ?3";
    let tenant = query.tenant.as_ref().map(TenantId::as_str);
    read_inbox(connection, sql, params![query.after, tenant, query.limit], decode_quarantine)
}

pub fn conflicts_of_key(
    connection: &Connection,
    tenant: &TenantId,
    id: &EventId,
) -> Result<Vec<ConflictRecord>> {
    let sql = "-- conflicts_of_key
        SELECT conflict_no, tenant, id, first_received_at, last_received_at, deliveries, standing,
               arriving
        FROM conflicts JOIN tenants USING (tenant_no)
        WHERE tenant = ? AND id = ? ORDER BY conflict_no LIMIT 100";
    let page = read_inbox(connection, sql, params![tenant.as_str(), id.as_str()], decode_conflict)?;
    Ok(page.into_iter().map(|(_, record)| record).collect())
}

pub fn quarantine_of_key(
    connection: &Connection,
    tenant: &TenantId,
    id: &EventId,
) -> Result<Vec<QuarantineRecord>> {
    let sql = "-- quarantine_of_key
        SELECT quarantine_no, tenant, id, first_received_at, last_received_at, deliveries, payload,
               reason
        FROM quarantine JOIN tenants USING (tenant_no)
        WHERE tenant = ? AND id = ? ORDER BY quarantine_no LIMIT 100";
    let key = params![tenant.as_str(), id.as_str()];
    let page = read_inbox(connection, sql, key, decode_quarantine)?;
    Ok(page.into_iter().map(|(_, record)| record).collect())
}

fn read_inbox<T>(
    connection: &Connection,
    sql: &str,
    params: &[&dyn ToSql],
    decode: fn(&Row<'_>) -> Result<T>,
) -> Result<InboxPage<T>> {
    let mut select = connection.prepare_cached(sql).map_err(sql_error)?;
    let mut rows = select.query(params).map_err(sql_error)?;
    let mut page = Vec::new();
    while let Some(row) = rows.next().map_err(sql_error)? {
        page.push((row.get(0).map_err(sql_error)?, decode(row)?));
    }
    Ok(page)
}

fn decode_conflict(row: &Row<'_>) -> Result<ConflictRecord> {
    let (tenant, id) = decode_key(row)?;
    Ok(ConflictRecord {
        tenant,
        id,
        first_received_at: Timestamp::from_micros(row.get(3).map_err(sql_error)?),
        last_received_at: Timestamp::from_micros(row.get(4).map_err(sql_error)?),
        deliveries: row.get(5).map_err(sql_error)?,
        standing: row.get(6).map_err(sql_error)?,
        arriving: row.get(7).map_err(sql_error)?,
    })
}

fn decode_quarantine(row: &Row<'_>) -> Result<QuarantineRecord> {
    let (tenant, id) = decode_key(row)?;
    let reason: String = row.get(7).map_err(sql_error)?;
    Ok(QuarantineRecord {
        tenant,
        id,
        first_received_at: Timestamp::from_micros(row.get(3).map_err(sql_error)?),
        last_received_at: Timestamp::from_micros(row.get(4).map_err(sql_error)?),
        deliveries: row.get(5).map_err(sql_error)?,
        payload: row.get(6).map_err(sql_error)?,
        reason: Quarantine::from_code(&reason).ok_or_else(|| corrupt("a quarantine's reason"))?,
    })
}

fn decode_key(row: &Row<'_>) -> Result<(TenantId, EventId)> {
    let (tenant, id): (String, String) =
        (row.get(1).map_err(sql_error)?, row.get(2).map_err(sql_error)?);
    let tenant = TenantId::parse(&tenant).map_err(|_| corrupt("a tenant"))?;
    Ok((tenant, EventId::parse(&id).map_err(|_| corrupt("an event's id"))?))
}

fn event_json(event: &crate::rules::event::Event, catalog: &Catalog) -> Result<String> {
    let meter = catalog.get(event.meter).ok_or_else(|| Error::Internal {
        what: format!("an event names meter number {}, which is not declared", event.meter.0),
    })?;
    Ok(event.to_json(&meter.slug))
}
