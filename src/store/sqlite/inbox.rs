//! The inboxes: conflicts and quarantine.
//!
//! Invariant: each payload that was delivered and not counted has one row with the number of its
//! deliveries, for at most [`INBOX_PAYLOADS_MAX`] payloads of one id. Deliveries of further
//! payloads are counted in `inbox_overflow`. Rows are written in the transaction that gave the
//! verdict.
//!
//! A payload is found by the fingerprint of its text and compared by the text. Where another
//! payload has the fingerprint, it has the next free one. So recording a payload reads a bounded
//! number of rows, however many payloads came under its id.

use super::judge::{NewConflict, NewQuarantine};
use super::sql_error;
use super::statements::Statements;
use crate::rules::event::Event;
use crate::rules::fingerprint::Fingerprinter;
use crate::rules::ids::TenantNo;
use crate::rules::meter::Catalog;
use crate::rules::timestamp::Timestamp;
use crate::store::{Error, INBOX_PAYLOADS_MAX, Result};
use rusqlite::{Connection, OptionalExtension, Row, ToSql, params};

/// Rows that get their fingerprint in one transaction, after the column was added.
const MARKED_AT_ONCE: usize = 1000;

/// The statements of one inbox.
struct Inbox {
    /// As in `inbox_overflow`.
    name: &'static str,
    find: &'static str,
    repeat: &'static str,
    count_kept: &'static str,
    insert: &'static str,
    unmarked: &'static str,
    mark: &'static str,
}

const CONFLICTS: Inbox = Inbox {
    name: "conflicts",
    find: "-- find
        SELECT conflict_no, arriving = ?4 FROM conflicts
        WHERE tenant_no = ?1 AND id = ?2 AND fingerprint = ?3",
    repeat: "-- repeat
        UPDATE conflicts SET deliveries = deliveries + 1, last_received_at = ?2
        WHERE conflict_no = ?1",
    count_kept: "-- count_kept
        SELECT count(*) FROM (SELECT 1 FROM conflicts WHERE tenant_no = ? AND id = ? LIMIT ?)",
    insert: "-- insert
        INSERT INTO conflicts (tenant_no, id, fingerprint, arriving, standing, first_received_at,
                               last_received_at, deliveries)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6, 1)",
    unmarked: "-- unmarked
        SELECT conflict_no, tenant_no, id, arriving FROM conflicts
        WHERE fingerprint IS NULL AND conflict_no > ? ORDER BY conflict_no LIMIT ?",
    mark: "-- mark
        UPDATE conflicts SET fingerprint = ?2 WHERE conflict_no = ?1",
};

const QUARANTINE: Inbox = Inbox {
    name: "quarantine",
    find: "-- find
        SELECT quarantine_no, payload = ?4 FROM quarantine
        WHERE tenant_no = ?1 AND id = ?2 AND fingerprint = ?3",
    repeat: "-- repeat
        UPDATE quarantine SET deliveries = deliveries + 1, last_received_at = ?2
        WHERE quarantine_no = ?1",
    count_kept: "-- count_kept
        SELECT count(*) FROM (SELECT 1 FROM quarantine WHERE tenant_no = ? AND id = ? LIMIT ?)",
    insert: "-- insert
        INSERT INTO quarantine (tenant_no, id, fingerprint, payload, reason, first_received_at,
                                last_received_at, deliveries)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6, 1)",
    unmarked: "-- unmarked
        SELECT quarantine_no, tenant_no, id, payload FROM quarantine
        WHERE fingerprint IS NULL AND quarantine_no > ? ORDER BY quarantine_no LIMIT ?",
    mark: "-- mark
        UPDATE quarantine SET fingerprint = ?2 WHERE quarantine_no = ?1",
};

/// A payload under an id.
struct Payload<'p> {
    tenant: TenantNo,
    id: &'p str,
    text: &'p str,
    /// The standing payload of a conflict, the reason of a quarantine.
    context: &'p str,
}

pub fn record_conflict(
    connection: &Connection,
    catalog: &Catalog,
    fingerprinter: &Fingerprinter,
    conflict: &NewConflict,
    received_at: Timestamp,
) -> Result<()> {
    let standing = event_json(&conflict.standing, catalog)?;
    let arriving = event_json(&conflict.arriving, catalog)?;
    let id = conflict.arriving.id.as_str();
    let payload = Payload { tenant: conflict.tenant, id, text: &arriving, context: &standing };
    CONFLICTS.record(connection, fingerprinter, &payload, received_at)
}

pub fn record_quarantine(
    connection: &Connection,
    catalog: &Catalog,
    fingerprinter: &Fingerprinter,
    quarantined: &NewQuarantine,
    received_at: Timestamp,
) -> Result<()> {
    let text = event_json(&quarantined.event, catalog)?;
    let (tenant, id) = (quarantined.tenant, quarantined.event.id.as_str());
    let payload = Payload { tenant, id, text: &text, context: quarantined.reason.code() };
    QUARANTINE.record(connection, fingerprinter, &payload, received_at)
}

/// Gives rows their fingerprint that were written before there were fingerprints.
pub fn mark_old_rows(connection: &mut Connection, fingerprinter: &Fingerprinter) -> Result<()> {
    for inbox in [CONFLICTS, QUARANTINE] {
        let mut marked = Some(0);
        while let Some(after) = marked {
            marked = inbox.mark_some(connection, fingerprinter, after)?;
        }
    }
    Ok(())
}

/// Where a payload is, or where it would be.
enum InboxPlace {
    /// The number of its row.
    Kept(i64),
    Free([u8; 16]),
}

impl Inbox {
    fn record(
        &self,
        connection: &Connection,
        fingerprinter: &Fingerprinter,
        payload: &Payload<'_>,
        received_at: Timestamp,
    ) -> Result<()> {
        let Payload { tenant, id, text, context } = payload;
        let at = received_at.micros();
        let run = |sql: &str, values: &[&dyn ToSql]| -> Result<()> {
            let mut statement = connection.prepare_cached(sql)?;
            statement.execute(values).map(|_| ()).map_err(sql_error)
        };
        let kept = self.count_kept(connection, *tenant, id)?;
        let place = match kept {
            // Most ids are new to the inbox: there is nothing to look for.
            0 => InboxPlace::Free(fingerprinter.text(text).to_be_bytes()),
            _ => self.find(connection, fingerprinter, *tenant, id, text)?,
        };
        match place {
            InboxPlace::Kept(number) => run(self.repeat, params![number, at]),
            InboxPlace::Free(slot) if kept < INBOX_PAYLOADS_MAX => {
                run(self.insert, params![tenant.0, id, slot, text, context, at])
            }
            InboxPlace::Free(_) => run(
                "-- record
                 INSERT INTO inbox_overflow (tenant_no, id, inbox, deliveries, first_received_at,
                                             last_received_at)
                 VALUES (?1, ?2, ?3, 1, ?4, ?4)
                 ON CONFLICT DO UPDATE SET deliveries = deliveries + 1, last_received_at = ?4",
                params![tenant.0, id, self.name, at],
            ),
        }
    }

    fn find(
        &self,
        connection: &Connection,
        fingerprinter: &Fingerprinter,
        tenant: TenantNo,
        id: &str,
        text: &str,
    ) -> Result<InboxPlace> {
        let mut select = connection.prepare_cached(self.find)?;
        let mut slot = fingerprinter.text(text);
        loop {
            let bytes = slot.to_be_bytes();
            let found: Option<(i64, bool)> = select
                .query_row(params![tenant.0, id, bytes, text], |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()?;
            match found {
                None => return Ok(InboxPlace::Free(bytes)),
                Some((number, true)) => return Ok(InboxPlace::Kept(number)),
                Some((_, false)) => slot = slot.wrapping_add(1),
            }
        }
    }

    /// Payloads kept of an id, counted no further than the limit.
    fn count_kept(&self, connection: &Connection, tenant: TenantNo, id: &str) -> Result<usize> {
        let mut select = connection.prepare_cached(self.count_kept)?;
        let values = params![tenant.0, id, INBOX_PAYLOADS_MAX];
        select.query_row(values, |row| row.get(0)).map_err(sql_error)
    }

    /// Returns the last row it looked at, if there may be more.
    fn mark_some(
        &self,
        connection: &mut Connection,
        by: &Fingerprinter,
        after: i64,
    ) -> Result<Option<i64>> {
        let transaction = connection.transaction()?;
        let decode = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
        let rows: Vec<(i64, u32, String, String)> =
            transaction.read_all(self.unmarked, params![after, MARKED_AT_ONCE], decode)?;
        for (number, tenant, id, text) in &rows {
            // An inbox never held a payload twice, so the place is free.
            if let InboxPlace::Free(slot) =
                self.find(&transaction, by, TenantNo(*tenant), id, text)?
            {
                let mut update = transaction.prepare_cached(self.mark)?;
                update.execute(params![number, slot])?;
            }
        }
        transaction.commit()?;
        Ok(rows.last().map(|(number, ..)| *number))
    }
}

fn event_json(event: &Event, catalog: &Catalog) -> Result<String> {
    let meter = catalog.get(event.meter).ok_or_else(|| Error::Internal {
        what: format!("an event names meter number {}, which is not declared", event.meter.0),
    })?;
    Ok(event.to_json(&meter.slug))
}
