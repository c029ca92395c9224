//! The inboxes as they are looked at: by page, and by event key. Nothing is written here.

use super::reconciliation::within_column;
use super::{Done, Filter, Row, Session, values};
use crate::rules::decision::{ConflictState, Decision, QuarantineState};
use crate::rules::ids::{EventId, TenantId};
use crate::rules::verdict::Quarantine;
use crate::store::decision::{
    ConflictQuery, ConflictRecord, InboxFilter, QuarantineQuery, QuarantineRecord,
};
use crate::store::{EventTrace, INBOX_PAYLOADS_MAX, Result, damaged};

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
            arriving, state, decision_reason, decided_by, decided_at
        FROM conflicts JOIN tenants USING (tenant_no)",
    number: "conflicts.conflict_no",
    decode: decode_conflict,
};

const QUARANTINE: Inbox<QuarantineRecord> = Inbox {
    select: "-- list_quarantine
        SELECT quarantine_no, tenant, id, first_received_at, last_received_at, deliveries, payload,
            reason, state, decision_reason, decided_by, decided_at
        FROM quarantine JOIN tenants USING (tenant_no)",
    number: "quarantine.quarantine_no",
    decode: decode_quarantine,
};

const OF_TENANT: &str = "tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $)";

/// A page of the conflicts, oldest first.
pub fn list_conflicts(session: &dyn Session, query: &ConflictQuery) -> Done<Vec<ConflictRecord>> {
    let filter = CONFLICTS.filter(&query.filter, query.after);
    CONFLICTS.read(session, filter, query.limit)
}

/// A page of the quarantine, oldest first.
pub fn list_quarantine(
    session: &dyn Session,
    query: &QuarantineQuery,
) -> Done<Vec<QuarantineRecord>> {
    let filter = QUARANTINE.filter(&query.filter.of, query.after);
    let filter = filter.and_if("reason = $", query.filter.reason.map(Quarantine::code));
    QUARANTINE.read(session, filter, query.limit)
}

pub fn find_conflict(session: &dyn Session, number: u64) -> Done<Option<ConflictRecord>> {
    CONFLICTS.find_one(session, number)
}

pub fn find_quarantined(session: &dyn Session, number: u64) -> Done<Option<QuarantineRecord>> {
    QUARANTINE.find_one(session, number)
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
    fn filter(&self, wanted: &InboxFilter, after: Option<u64>) -> Filter {
        let InboxFilter { tenant, id, received, decided } = wanted;
        let filter = Filter::new(self.select)
            .and(&format!("{} > $", self.number), within_column(after.unwrap_or(0)))
            .and_if(OF_TENANT, tenant.as_ref())
            .and_if("id = $", id.as_ref())
            .and_if("first_received_at >= $", received.map(|range| range.start))
            .and_if("first_received_at < $", received.map(|range| range.end));
        // As in the index of what is open.
        match decided {
            None => filter,
            Some(false) => filter.and_always("state = 'undecided'"),
            Some(true) => filter.and_always("state <> 'undecided'"),
        }
    }

    fn read(&self, session: &dyn Session, filter: Filter, limit: usize) -> Done<Vec<T>> {
        let (sql, values) = filter.order(self.number, limit);
        session.read_all(&sql, &values, self.decode)
    }

    fn find_one(&self, session: &dyn Session, number: u64) -> Done<Option<T>> {
        let filter = Filter::new(self.select);
        let filter = filter.and(&format!("{} = $", self.number), within_column(number));
        Ok(self.read(session, filter, 1)?.pop())
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
    let state = row.get("conflicts.state")?;
    Ok(ConflictRecord {
        number: row.get("conflicts.conflict_no")?,
        tenant: row.get("tenants.tenant")?,
        id: row.get("conflicts.id")?,
        standing: row.get("conflicts.standing")?,
        arriving: row.get("conflicts.arriving")?,
        first_received_at: row.get("conflicts.first_received_at")?,
        last_received_at: row.get("conflicts.last_received_at")?,
        deliveries: row.get("conflicts.deliveries")?,
        state,
        decision: decode_decision(row, "conflicts", state == ConflictState::Undecided)?,
    })
}

fn decode_quarantine(row: &Row) -> Result<QuarantineRecord> {
    let reason: String = row.get("quarantine.reason")?;
    let state = row.get("quarantine.state")?;
    Ok(QuarantineRecord {
        number: row.get("quarantine.quarantine_no")?,
        tenant: row.get("tenants.tenant")?,
        id: row.get("quarantine.id")?,
        payload: row.get("quarantine.payload")?,
        reason: Quarantine::from_code(&reason)
            .ok_or_else(|| damaged("quarantine.reason", &reason))?,
        first_received_at: row.get("quarantine.first_received_at")?,
        last_received_at: row.get("quarantine.last_received_at")?,
        deliveries: row.get("quarantine.deliveries")?,
        state,
        decision: decode_decision(row, "quarantine", state == QuarantineState::Undecided)?,
    })
}

/// What a row says of its decision: all of it, or nothing while it is undecided.
fn decode_decision(row: &Row, table: &str, undecided: bool) -> Result<Option<Decision>> {
    if undecided {
        return Ok(None);
    }
    let column = |name: &str| format!("{table}.{name}");
    Ok(Some(Decision {
        reason: row.get(&column("decision_reason"))?,
        author: row.get(&column("decided_by"))?,
        at: row.get(&column("decided_at"))?,
    }))
}
