//! Alerts: opened once and ended once.
//!
//! Invariant: at most one alert of a kind and subject is open, by a unique index: of two servers
//! that open it at once, the later finds it open. Openings and ends are written together with their
//! notices. Locks are taken on alerts first, in the order of numbers, then on notices.
//!
//! A crash leaves all of a call or nothing. A call that is repeated because its outcome was lost
//! finds its alerts open, or resolved, and changes nothing.

use super::outbox::{give_up_openings, write_notices};
use super::reconciliation::within_column;
use super::thresholds;
use super::{Done, Filter, Row, Session, SqlStore, values};
use crate::rules::alert::{Alert, AlertChange, Condition, Severity};
use crate::rules::ids::{MeterNo, TenantId};
use crate::rules::timestamp::{MICROS_PER_DAY, Timestamp};
use crate::store::alert::{
    AlertFilter, Alerts, PageCounts, Threshold, ThresholdKey, ThresholdKind, ThresholdPeriod,
};
use crate::store::{Query, Result};
use async_trait::async_trait;

#[async_trait]
impl<S: SqlStore> Alerts for S {
    async fn record_alerts(
        &self,
        changes: Vec<AlertChange>,
        destinations: &[&'static str],
        at: Timestamp,
    ) -> Result<usize> {
        let destinations = destinations.to_vec();
        self.in_transaction(move |session| record_alerts(session, &changes, &destinations, at))
            .await
    }

    async fn list_alerts(&self, query: Query<AlertFilter>) -> Result<Vec<Alert>> {
        let AlertFilter { open, kind } = query.filter;
        let select = "-- list_alerts
            SELECT alert_no, kind, subject, summary, command, opened_at, resolved_at FROM alerts";
        let mut filter = Filter::new(select)
            .and_if("kind = $", kind)
            .and_if("alert_no < $", query.after.map(within_column));
        filter = match open {
            Some(true) => filter.and_always("resolved_at IS NULL"),
            Some(false) => filter.and_always("resolved_at IS NOT NULL"),
            None => filter,
        };
        let (sql, values) = filter.order("alert_no DESC", query.limit);
        self.in_reader(move |session| session.read_all(&sql, &values, decode_alert)).await
    }

    async fn count_pages(&self, now: Timestamp) -> Result<PageCounts> {
        self.in_reader(move |session| count_pages(session, now)).await
    }

    async fn put_threshold(&self, threshold: Threshold) -> Result<()> {
        self.in_transaction(move |session| thresholds::put_threshold(session, &threshold)).await
    }

    async fn delete_threshold(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        kind: ThresholdKind,
        period: ThresholdPeriod,
    ) -> Result<bool> {
        let tenant = tenant.clone();
        self.in_transaction(move |session| {
            let sql = "-- delete_threshold
                DELETE FROM thresholds
                WHERE tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1)
                    AND meter_no = $2 AND kind = $3 AND period = $4";
            Ok(session.run(sql, values![tenant, meter, kind, period])? == 1)
        })
        .await
    }

    async fn list_thresholds(
        &self,
        query: Query<Option<TenantId>, ThresholdKey>,
    ) -> Result<Vec<Threshold>> {
        self.in_reader(move |session| thresholds::list_thresholds(session, &query)).await
    }
}

/// What is over goes first: the same may have begun again.
fn record_alerts(
    session: &dyn Session,
    changes: &[AlertChange],
    destinations: &[&'static str],
    at: Timestamp,
) -> Done<usize> {
    let mut begun = Vec::new();
    let mut known = Vec::new();
    for change in changes {
        match change {
            AlertChange::Open(condition) => begun.push(condition),
            AlertChange::Restate(number, condition) => known.push((*number, Some(condition))),
            AlertChange::Resolve(number) => known.push((*number, None)),
        }
    }
    known.sort_unstable_by_key(|(number, _)| *number);
    begun.sort_by_key(|condition| (condition.kind, &condition.subject));
    let mut changed = 0;
    for (number, restated) in known {
        match restated {
            Some(condition) => restate_alert(session, number, condition)?,
            None => changed += resolve_alert(session, number, destinations, at)?,
        }
    }
    for condition in begun {
        changed += open_alert(session, condition, destinations, at)?;
    }
    Ok(changed)
}

/// 0 if one of its kind and subject is open.
fn open_alert(
    session: &dyn Session,
    condition: &Condition,
    destinations: &[&'static str],
    at: Timestamp,
) -> Done<usize> {
    let Condition { kind, subject, summary, command } = condition;
    let page = kind.severity() == Severity::Page;
    // One that is open is found first: an attempt to write it again would use up a number.
    let sql = "-- open_alert
        INSERT INTO alerts (kind, subject, page, summary, command, opened_at)
        SELECT $1::text, $2::text, $3::boolean, $4::text, $5::text, $6::timestamptz
        WHERE NOT EXISTS (
            SELECT 1 FROM alerts WHERE kind = $1 AND subject = $2 AND resolved_at IS NULL
        )
        ON CONFLICT DO NOTHING
        RETURNING alert_no, kind, subject, summary, command, opened_at, resolved_at";
    let values = values![kind, subject, page, summary, command, at];
    let Some(opened) = session.read_optional(sql, values, decode_alert)? else { return Ok(0) };
    write_notices(session, &opened.tell_opening(destinations), at)?;
    Ok(1)
}

fn restate_alert(session: &dyn Session, number: u64, condition: &Condition) -> Done<()> {
    let Condition { summary, command, .. } = condition;
    let sql = "-- restate_alert
        UPDATE alerts SET summary = $2, command = $3
        WHERE alert_no = $1 AND resolved_at IS NULL";
    session.run(sql, values![number, summary, command])?;
    Ok(())
}

/// 0 if it is resolved.
fn resolve_alert(
    session: &dyn Session,
    number: u64,
    destinations: &[&'static str],
    at: Timestamp,
) -> Done<usize> {
    let sql = "-- resolve_alert
        UPDATE alerts SET resolved_at = $2 WHERE alert_no = $1 AND resolved_at IS NULL
        RETURNING alert_no, kind, subject, summary, command, opened_at, resolved_at";
    let resolved = session.read_optional(sql, values![number, at], decode_alert)?;
    let Some(resolved) = resolved else { return Ok(0) };
    let unsent = give_up_openings(session, number, at)?;
    write_notices(session, &resolved.tell_end(destinations, &unsent, at), at)?;
    Ok(1)
}

fn decode_alert(row: &Row) -> Result<Alert> {
    Ok(Alert {
        number: row.get("alerts.alert_no")?,
        kind: row.get("alerts.kind")?,
        subject: row.get("alerts.subject")?,
        summary: row.get("alerts.summary")?,
        command: row.get("alerts.command")?,
        opened_at: row.get("alerts.opened_at")?,
        resolved_at: row.get("alerts.resolved_at")?,
    })
}

fn count_pages(session: &dyn Session, now: Timestamp) -> Done<PageCounts> {
    let ago = |days: i64| now.saturating_add_micros(-days * MICROS_PER_DAY);
    let sql = "-- count_pages
        SELECT (SELECT COUNT(*) FROM alerts WHERE resolved_at IS NULL AND page) AS open,
            COUNT(*) FILTER (WHERE opened_at >= $1) AS day,
            COUNT(*) FILTER (WHERE opened_at >= $2) AS week,
            COUNT(*) FILTER (WHERE opened_at < $2) AS week_before
        FROM alerts WHERE opened_at >= $3 AND page";
    session.read_one(sql, values![ago(1), ago(7), ago(14)], |row| {
        Ok(PageCounts {
            open: row.get("open")?,
            day: row.get("day")?,
            week: row.get("week")?,
            week_before: row.get("week_before")?,
        })
    })
}
