//! The inboxes as they are looked at: by page, and by event key. Nothing is written here.

use super::reconciliation::within_column;
use super::{Done, Filter, Row, Session, values};
use crate::rules::ids::{EventId, TenantId};
use crate::rules::verdict::Quarantine;
use crate::store::{
    ConflictRecord, EventTrace, INBOX_PAYLOADS_MAX, InboxPage, InboxQuery, QuarantineRecord,
    Result, damaged,
};

/// How the records of one inbox are read.
struct Inbox<T> {
    select: &'static str,
    /// The column by which records are numbered, oldest first.
    number: &'static str,
    decode: fn(&Row) -> Result<T>,
}

const CONFLICTS: Inbox<ConflictRecord> = Inbox {
    select: "-- list_conflicts
        SELECT conflict_no, tenant, id, first_received_at, last_received_at, deliveries, standing,
            arriving
        FROM conflicts JOIN tenants USING (tenant_no)",
    number: "conflicts.conflict_no",
    decode: decode_conflict,
};

const QUARANTINE: Inbox<QuarantineRecord> = Inbox {
    select: "-- list_quarantine
        SELECT quarantine_no, tenant, id, first_received_at, last_received_at, deliveries, payload,
            reason
        FROM quarantine JOIN tenants USING (tenant_no)",
    number: "quarantine.quarantine_no",
    decode: decode_quarantine,
};

const OF_TENANT: &str = "tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $)";

/// A page of the conflicts, oldest first.
pub fn list_conflicts(
    session: &dyn Session,
    query: &InboxQuery,
) -> Done<InboxPage<ConflictRecord>> {
    CONFLICTS.list(session, query)
}

/// A page of the quarantine, oldest first.
pub fn list_quarantine(
    session: &dyn Session,
    query: &InboxQuery,
) -> Done<InboxPage<QuarantineRecord>> {
    QUARANTINE.list(session, query)
}

/// What the inboxes hold of one event key; the event itself is left out.
pub fn trace_inboxes(session: &dyn Session, tenant: &TenantId, id: &EventId) -> Done<EventTrace> {
    let mut trace = EventTrace {
        conflicts: CONFLICTS.find(session, tenant, id)?,
        quarantined: QUARANTINE.find(session, tenant, id)?,
        ..EventTrace::default()
    };
    let sql = "-- trace_inboxes
        SELECT inbox, deliveries FROM inbox_overflow
        WHERE tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1) AND id = $2";
    for row in session.rows(sql, values![tenant, id])? {
        let inbox: String = row.get("inbox_overflow.inbox")?;
        let not_kept = match inbox.as_str() {
            "conflicts" => &mut trace.conflicts_not_kept,
            "quarantine" => &mut trace.quarantined_not_kept,
            _ => return Err(damaged("inbox_overflow.inbox", &inbox).into()),
        };
        *not_kept = row.get("inbox_overflow.deliveries")?;
    }
    Ok(trace)
}

impl<T> Inbox<T> {
    fn list(&self, session: &dyn Session, query: &InboxQuery) -> Done<InboxPage<T>> {
        let after = within_column(query.after.unwrap_or(0));
        let (sql, values) = Filter::new(self.select)
            .and(&format!("{} > $", self.number), after)
            .and_if(OF_TENANT, query.filter.as_ref())
            .order(self.number, query.limit);
        session.read_all(&sql, &values, |row| Ok((row.get(self.number)?, (self.decode)(row)?)))
    }

    fn find(&self, session: &dyn Session, tenant: &TenantId, id: &EventId) -> Done<Vec<T>> {
        // The sum keeps the database from walking all records of the tenant in this order.
        let (sql, values) = Filter::new(self.select)
            .and(OF_TENANT, tenant)
            .and("id = $", id)
            .order(&format!("{} + 0", self.number), INBOX_PAYLOADS_MAX);
        session.read_all(&sql, &values, self.decode)
    }
}

fn decode_conflict(row: &Row) -> Result<ConflictRecord> {
    Ok(ConflictRecord {
        tenant: row.get("tenants.tenant")?,
        id: row.get("conflicts.id")?,
        standing: row.get("conflicts.standing")?,
        arriving: row.get("conflicts.arriving")?,
        first_received_at: row.get("conflicts.first_received_at")?,
        last_received_at: row.get("conflicts.last_received_at")?,
        deliveries: row.get("conflicts.deliveries")?,
    })
}

fn decode_quarantine(row: &Row) -> Result<QuarantineRecord> {
    let reason: String = row.get("quarantine.reason")?;
    Ok(QuarantineRecord {
        tenant: row.get("tenants.tenant")?,
        id: row.get("quarantine.id")?,
        payload: row.get("quarantine.payload")?,
        reason: Quarantine::from_code(&reason)
            .ok_or_else(|| damaged("quarantine.reason", &reason))?,
        first_received_at: row.get("quarantine.first_received_at")?,
        last_received_at: row.get("quarantine.last_received_at")?,
        deliveries: row.get("quarantine.deliveries")?,
    })
}
