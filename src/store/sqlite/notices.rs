//! Notices of alerts: an outbox.
//!
//! Invariant: whoever settles a notice holds its lease under its last fence. A notice that was
//! sent or given up never changes. A crash leaves a lease that ends by itself; the notice is then
//! sent again under the same number.

use super::alerts::decode_alert;
use super::push_rows::{get, moment};
use super::{corrupt, sql_error};
use crate::rules::alert::NoticeEvent;
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::alert::{ClaimedNotice, NoticeOutcome};
use rusqlite::{Connection, Row, params};

/// Writes that a destination is to be told of an alert.
pub fn insert_notice(
    connection: &Connection,
    (alert, destination): (u64, &str),
    event: NoticeEvent,
    (at, due_at): (Timestamp, Timestamp),
) -> Result<()> {
    connection
        .prepare_cached(
            "-- insert_notice
             INSERT INTO notices (alert_no, destination, event, state, attempts, due_at, fence,
                                  created_at)
             VALUES (?, ?, ?, 'waiting', 0, ?, 0, ?)",
        )
        .and_then(|mut insert| {
            let (due_at, at) = (due_at.micros(), at.micros());
            insert.execute(params![alert, destination, event.name(), due_at, at])
        })
        .map_err(sql_error)?;
    Ok(())
}

/// An opening that is not told any more.
pub struct GivenUp {
    pub destination: String,
    /// How often it was claimed: it may have been taken all the same.
    pub attempts: u32,
    pub leased_until: Option<Timestamp>,
}

/// Gives up the openings of an alert that still wait.
pub fn give_up_openings(
    connection: &Connection,
    alert: u64,
    at: Timestamp,
) -> Result<Vec<GivenUp>> {
    let waiting = connection
        .prepare_cached(
            "-- give_up_openings
             SELECT destination, attempts, leased_until FROM notices
             WHERE alert_no = ? AND event = 'opened' AND state = 'waiting'",
        )
        .and_then(|mut select| {
            let rows = select.query_map([alert], |row| {
                let until: Option<i64> = row.get(2)?;
                let leased_until = until.map(Timestamp::from_micros);
                Ok(GivenUp { destination: row.get(0)?, attempts: row.get(1)?, leased_until })
            })?;
            rows.collect()
        })
        .map_err(sql_error)?;
    connection
        .prepare_cached(
            "-- give_up_openings
             UPDATE notices SET state = 'given_up', settled_at = ?, leased_until = NULL,
                 detail = 'the alert was over before it was told'
             WHERE alert_no = ? AND event = 'opened' AND state = 'waiting'",
        )
        .and_then(|mut update| update.execute(params![at.micros(), alert]))
        .map_err(sql_error)?;
    Ok(waiting)
}

/// Numbers of notices that could be claimed now, longest due first.
pub fn find_due(connection: &Connection, now: Timestamp, limit: usize) -> Result<Vec<u64>> {
    connection
        .prepare_cached(
            "-- find_due
             SELECT notice_no FROM notices
             WHERE state = 'waiting' AND due_at <= ?1
                 AND (leased_until IS NULL OR leased_until <= ?1)
             ORDER BY due_at, notice_no LIMIT ?2",
        )
        .and_then(|mut select| {
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            select.query_map(params![now.micros(), limit], |row| row.get(0))?.collect()
        })
        .map_err(sql_error)
}

pub fn claim_notices(
    connection: &Connection,
    now: Timestamp,
    lease_until: Timestamp,
    limit: usize,
) -> Result<Vec<ClaimedNotice>> {
    let mut claimed = Vec::new();
    for number in find_due(connection, now, limit)? {
        lease_notice(connection, number, lease_until)?;
        claimed.push(fetch_claimed(connection, number)?);
    }
    Ok(claimed)
}

/// A claim counts as an attempt: nobody knows how far a claimant came that was not heard of again.
fn lease_notice(connection: &Connection, number: u64, until: Timestamp) -> Result<()> {
    connection
        .prepare_cached(
            "-- lease_notice
             UPDATE notices SET leased_until = ?, fence = fence + 1, attempts = attempts + 1
             WHERE notice_no = ?",
        )
        .and_then(|mut update| update.execute(params![until.micros(), number]))
        .map_err(sql_error)?;
    Ok(())
}

fn fetch_claimed(connection: &Connection, number: u64) -> Result<ClaimedNotice> {
    let mut select = connection
        .prepare_cached(
            "-- fetch_claimed
             SELECT notice_no, fence, destination, event, attempts - 1 AS attempts, created_at,
                    alerts.alert_no, kind, subject, summary, command, opened_at, resolved_at
             FROM notices JOIN alerts ON alerts.alert_no = notices.alert_no
             WHERE notice_no = ?",
        )
        .map_err(sql_error)?;
    let mut rows = select.query([number]).map_err(sql_error)?;
    let row = rows.next().map_err(sql_error)?.ok_or_else(|| corrupt("a notice's alert"))?;
    decode_claimed(row)
}

fn decode_claimed(row: &Row<'_>) -> Result<ClaimedNotice> {
    let event: String = get(row, "event")?;
    Ok(ClaimedNotice {
        number: get(row, "notice_no")?,
        fence: get(row, "fence")?,
        destination: get(row, "destination")?,
        event: NoticeEvent::from_name(&event).ok_or_else(|| corrupt("a notice's event"))?,
        alert: decode_alert(row)?,
        attempts: get(row, "attempts")?,
        created_at: moment(row, "created_at")?,
    })
}

pub fn settle_notice(
    connection: &Connection,
    (number, fence): (u64, u64),
    outcome: &NoticeOutcome,
    at: Timestamp,
) -> Result<bool> {
    let (state, due_at, detail) = outcome.parts();
    let settled_at = due_at.is_none().then_some(at);
    let settled = connection
        .prepare_cached(
            "-- settle_notice
             UPDATE notices SET state = ?, due_at = COALESCE(?, due_at), settled_at = ?,
                 detail = ?, leased_until = NULL
             WHERE notice_no = ? AND fence = ? AND state = 'waiting' AND leased_until IS NOT NULL",
        )
        .and_then(|mut update| {
            let (due_at, settled_at) =
                (due_at.map(Timestamp::micros), settled_at.map(Timestamp::micros));
            update.execute(params![state, due_at, settled_at, detail, number, fence])
        })
        .map_err(sql_error)?;
    Ok(settled == 1)
}
