//! Alerts, and the one implementation of what alerting asks of the store.
//!
//! Invariant: at most one alert of a kind and subject is open, which a unique index holds besides
//! the look before each row. An alert's opening and its end are written together with their
//! notices, so a crash leaves both or neither.

use super::push_rows::{get, moment};
use super::statements::Statements;
use super::{SqliteStore, corrupt, outbox, thresholds};
use crate::rules::alert::{Alert, AlertChange, AlertKind, Condition, Severity};
use crate::rules::ids::{MeterNo, TenantId};
use crate::rules::timestamp::{MICROS_PER_DAY, Timestamp};
use crate::store::Result;
use crate::store::alert::{
    AlertQuery, Alerts, PageCounts, Threshold, ThresholdKind, ThresholdPeriod, ThresholdQuery,
};
use async_trait::async_trait;
use rusqlite::{Connection, Row, params};

#[async_trait]
impl Alerts for SqliteStore {
    async fn record_alerts(
        &self,
        changes: Vec<AlertChange>,
        destinations: &[&'static str],
        at: Timestamp,
    ) -> Result<usize> {
        let destinations = destinations.to_vec();
        self.write(move |writer| {
            writer.write(|connection| {
                let made = changes.iter().map(|change| match change {
                    AlertChange::Open(condition) => {
                        open_alert(connection, condition, &destinations, at)
                    }
                    AlertChange::Restate(number, condition) => {
                        restate_alert(connection, *number, condition)
                    }
                    AlertChange::Resolve(number) => {
                        resolve_alert(connection, *number, &destinations, at)
                    }
                });
                let made: Vec<bool> = made.collect::<Result<_>>()?;
                Ok(made.into_iter().filter(|made| *made).count())
            })
        })
        .await
    }

    async fn list_alerts(&self, query: AlertQuery) -> Result<Vec<Alert>> {
        self.read(move |_, connection| list_alerts(connection, &query)).await
    }

    async fn count_pages(&self, now: Timestamp) -> Result<PageCounts> {
        self.read(move |_, connection| count_pages(connection, now)).await
    }

    async fn put_threshold(&self, threshold: Threshold) -> Result<()> {
        self.write(move |writer| writer.put_threshold(&threshold)).await
    }

    async fn delete_threshold(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        kind: ThresholdKind,
        period: ThresholdPeriod,
    ) -> Result<bool> {
        let Some(tenant) = self.shared.read_memory().tenants.find(tenant) else {
            return Ok(false);
        };
        self.write(move |writer| {
            writer.write(|c| thresholds::delete_threshold(c, (tenant, meter), kind, period))
        })
        .await
    }

    async fn list_thresholds(&self, query: ThresholdQuery) -> Result<Vec<Threshold>> {
        self.read(move |_, c| thresholds::list_thresholds(c, &query)).await
    }
}

fn open_alert(
    connection: &Connection,
    condition: &Condition,
    destinations: &[&'static str],
    at: Timestamp,
) -> Result<bool> {
    let Condition { kind, subject, summary, command } = condition;
    let page = kind.severity() == Severity::Page;
    let opened = connection.run(
        "-- open_alert
         INSERT INTO alerts (kind, subject, page, summary, command, opened_at)
         SELECT ?1, ?2, ?3, ?4, ?5, ?6
         WHERE NOT EXISTS (
             SELECT 1 FROM alerts WHERE kind = ?1 AND subject = ?2 AND resolved_at IS NULL
         )",
        params![kind.name(), subject, page, summary, command, at.micros()],
    )?;
    if opened == 0 {
        return Ok(false);
    }
    let number = u64::try_from(connection.last_insert_rowid()).expect("numbers begin at 1");
    let opened = find_alert(connection, number)?;
    outbox::write_notices(connection, &opened.tell_opening(destinations), at)?;
    Ok(true)
}

fn restate_alert(connection: &Connection, number: u64, condition: &Condition) -> Result<bool> {
    let Condition { summary, command, .. } = condition;
    connection.run(
        "-- restate_alert
         UPDATE alerts SET summary = ?, command = ?
         WHERE alert_no = ? AND resolved_at IS NULL",
        params![summary, command, number],
    )?;
    // It is the same alert.
    Ok(false)
}

fn resolve_alert(
    connection: &Connection,
    number: u64,
    destinations: &[&'static str],
    at: Timestamp,
) -> Result<bool> {
    let resolved = connection.run(
        "-- resolve_alert
         UPDATE alerts SET resolved_at = ? WHERE alert_no = ? AND resolved_at IS NULL",
        params![at.micros(), number],
    )?;
    if resolved == 0 {
        return Ok(false);
    }
    let unsent = outbox::give_up_openings(connection, number, at)?;
    let notices = find_alert(connection, number)?.tell_end(destinations, &unsent, at);
    outbox::write_notices(connection, &notices, at)?;
    Ok(true)
}

fn find_alert(connection: &Connection, number: u64) -> Result<Alert> {
    let mut select = connection.prepare_cached(
        "-- find_alert
         SELECT alert_no, kind, subject, summary, command, opened_at, resolved_at FROM alerts
         WHERE alert_no = ?",
    )?;
    let mut rows = select.query([number])?;
    decode_alert(rows.next()?.ok_or_else(|| corrupt("an alert's number"))?)
}

fn list_alerts(connection: &Connection, query: &AlertQuery) -> Result<Vec<Alert>> {
    // Those that are open are few, and every look at the store's state asks for them.
    let sql = match query.open {
        Some(true) => {
            "-- list_alerts
             SELECT alert_no, kind, subject, summary, command, opened_at, resolved_at
             FROM alerts INDEXED BY alerts_open
             WHERE ?1 AND resolved_at IS NULL AND (?2 IS NULL OR kind = ?2) AND alert_no < ?3
             ORDER BY alert_no DESC LIMIT ?4"
        }
        Some(false) | None => {
            "-- list_alerts
             SELECT alert_no, kind, subject, summary, command, opened_at, resolved_at FROM alerts
             WHERE (?1 IS NULL OR resolved_at IS NOT NULL) AND (?2 IS NULL OR kind = ?2)
                 AND alert_no < ?3
             ORDER BY alert_no DESC LIMIT ?4"
        }
    };
    let before = query.before.and_then(|number| i64::try_from(number).ok());
    let asked = params![
        query.open,
        query.kind.map(AlertKind::name),
        before.unwrap_or(i64::MAX),
        i64::try_from(query.limit).unwrap_or(i64::MAX)
    ];
    connection.read_all(sql, asked, decode_alert)
}

fn decode_alert(row: &Row<'_>) -> Result<Alert> {
    let kind: String = get(row, "kind")?;
    Ok(Alert {
        number: get(row, "alert_no")?,
        kind: AlertKind::from_name(&kind).ok_or_else(|| corrupt("an alert's kind"))?,
        subject: get(row, "subject")?,
        summary: get(row, "summary")?,
        command: get(row, "command")?,
        opened_at: moment(row, "opened_at")?,
        resolved_at: get::<Option<i64>>(row, "resolved_at")?.map(Timestamp::from_micros),
    })
}

fn count_pages(connection: &Connection, now: Timestamp) -> Result<PageCounts> {
    let ago = |days: i64| now.saturating_add_micros(-days * MICROS_PER_DAY).micros();
    connection.read_one(
        "-- count_pages
         SELECT (SELECT COUNT(*) FROM alerts WHERE resolved_at IS NULL AND page),
                COUNT(*) FILTER (WHERE opened_at >= ?1),
                COUNT(*) FILTER (WHERE opened_at >= ?2),
                COUNT(*) FILTER (WHERE opened_at < ?2)
         FROM alerts WHERE opened_at >= ?3 AND page",
        params![ago(1), ago(7), ago(14)],
        |row| {
            Ok(PageCounts {
                open: row.get(0)?,
                day: row.get(1)?,
                week: row.get(2)?,
                week_before: row.get(3)?,
            })
        },
    )
}
