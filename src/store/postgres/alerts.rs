//! Alerts: opened once and ended once.
//!
//! Invariant: at most one alert of a kind and subject is open, by a unique index: of two servers
//! that open it at once, the later finds it open. Openings and ends are written together with their
//! notices. Locks are taken on alerts first, then on notices, each in the order of numbers.
//!
//! A crash leaves all of a call or nothing. A call that is repeated because its outcome was lost
//! finds its alerts open, or resolved, and changes nothing.

use super::PostgresStore;
use super::outbox::{give_up_openings, insert_notices};
use super::push_rows::each;
use super::scalars::{
    SqlTimestamp, column, corrupt, instant, instant_if_any, read_count, write_count, write_limit,
};
use super::statements::Statements;
use super::thresholds;
use super::transaction::{Done, Transaction};
use crate::rules::alert::{Alert, AlertChange, AlertKind, Condition, Severity};
use crate::rules::ids::{MeterNo, TenantId};
use crate::rules::span::Span;
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::alert::{
    AlertQuery, Alerts, PageCounts, Threshold, ThresholdKind, ThresholdPeriod, ThresholdQuery,
};
use async_trait::async_trait;
use deadpool_postgres::ClientWrapper;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

const DAY: Span = Span::from_hours(24);
const WEEK: Span = Span::from_hours(7 * 24);
const TWO_WEEKS: Span = Span::from_hours(14 * 24);

#[async_trait]
impl Alerts for PostgresStore {
    async fn record_alerts(
        &self,
        changes: Vec<AlertChange>,
        destinations: &[&'static str],
        at: Timestamp,
    ) -> Result<usize> {
        let changes = changes.as_slice();
        let work = move |client: Arc<Transaction>| async move {
            record_all(&client, changes, destinations, at).await
        };
        self.transact(work).await
    }

    async fn list_alerts(&self, query: AlertQuery) -> Result<Vec<Alert>> {
        let client = self.reader().await?;
        // Not kept prepared: planned for what is asked, each question can use its own index.
        let sql = "-- list_alerts
            SELECT alert_no, kind, subject, summary, command, opened_at, resolved_at FROM alerts
            WHERE ($1::bool IS NULL OR (resolved_at IS NULL) = $1)
                AND ($2::text IS NULL OR kind = $2)
                AND ($3::int8 IS NULL OR alert_no < $3)
            ORDER BY alert_no DESC LIMIT $4";
        let before = query.before.and_then(|number| write_count(number).ok());
        let parameters: [&(dyn ToSql + Sync); 4] =
            [&query.open, &query.kind.map(AlertKind::name), &before, &write_limit(query.limit)];
        client.query(sql, &parameters).await?.iter().map(read_alert).collect()
    }

    async fn count_pages(&self, now: Timestamp) -> Result<PageCounts> {
        let client = self.reader().await?;
        let sql = "-- count_pages
            SELECT count(*) FILTER (WHERE resolved_at IS NULL),
                count(*) FILTER (WHERE opened_at >= $1),
                count(*) FILTER (WHERE opened_at >= $2),
                count(*) FILTER (WHERE opened_at >= $3 AND opened_at < $2)
            FROM alerts WHERE page AND (resolved_at IS NULL OR opened_at >= $3)";
        let ago = |span: Span| SqlTimestamp(span.before(now));
        let row = client.query_one(sql, &[&ago(DAY), &ago(WEEK), &ago(TWO_WEEKS)]).await?;
        Ok(PageCounts {
            open: read_count(column(&row, 0)?)?,
            day: read_count(column(&row, 1)?)?,
            week: read_count(column(&row, 2)?)?,
            week_before: read_count(column(&row, 3)?)?,
        })
    }

    async fn put_threshold(&self, threshold: Threshold) -> Result<()> {
        self.set_threshold(&threshold).await
    }

    async fn delete_threshold(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        kind: ThresholdKind,
        period: ThresholdPeriod,
    ) -> Result<bool> {
        let work = move |client: Arc<Transaction>| async move {
            thresholds::delete_threshold(&client, (tenant, meter), kind, period).await
        };
        self.transact(work).await
    }

    async fn list_thresholds(&self, query: ThresholdQuery) -> Result<Vec<Threshold>> {
        let client = self.reader().await?;
        thresholds::list_thresholds(&client, &query).await
    }
}

/// Everything but the COMMIT.
async fn record_all(
    client: &ClientWrapper,
    changes: &[AlertChange],
    destinations: &[&'static str],
    at: Timestamp,
) -> Done<usize> {
    let (mut over, mut begun, mut subjects) = (BTreeSet::new(), Vec::new(), BTreeSet::new());
    let mut restated = BTreeMap::new();
    for change in changes {
        match change {
            // A number that no column can hold names no alert.
            AlertChange::Resolve(number) => over.extend(write_count(*number)),
            AlertChange::Restate(number, condition) => {
                restated.extend(write_count(*number).map(|number| (number, condition)));
            }
            AlertChange::Open(condition) => {
                if subjects.insert((condition.kind, condition.subject.as_str())) {
                    begun.push(condition);
                }
            }
        }
    }
    // What is over goes first: the same may have begun again.
    let over: Vec<i64> = over.into_iter().collect();
    restate_alerts(client, &restated, &over).await?;
    let ended = resolve_alerts(client, &over, at).await?;
    let opened = open_alerts(client, &begun, at).await?;
    let unsent =
        if ended.is_empty() { Vec::new() } else { give_up_openings(client, &over, at).await? };
    let ends = ended.iter().flat_map(|alert| alert.tell_end(destinations, &unsent, at));
    let openings = opened.iter().flat_map(|alert| alert.tell_opening(destinations));
    insert_notices(client, &ends.chain(openings).collect::<Vec<_>>(), at).await?;
    Ok(ended.len() + opened.len())
}

/// Gives open alerts the text of their conditions. Rows that are ended afterwards are locked along
/// with them, in the order of numbers, so that nobody waits in a circle.
async fn restate_alerts(
    client: &ClientWrapper,
    restated: &BTreeMap<i64, &Condition>,
    over: &[i64],
) -> Done<()> {
    if restated.is_empty() {
        return Ok(());
    }
    let touched: Vec<i64> = restated.keys().chain(over).copied().collect();
    let lock = "-- lock_alerts
        SELECT FROM alerts WHERE alert_no = ANY ($1) ORDER BY alert_no FOR UPDATE";
    client.execute(lock, &[&touched]).await?;
    let sql = "-- restate_alert
        UPDATE alerts SET summary = $2, command = $3
        WHERE alert_no = $1 AND resolved_at IS NULL";
    for (number, Condition { summary, command, .. }) in restated {
        client.execute(sql, &[number, summary, command]).await?;
    }
    Ok(())
}

/// Ends those that are open; the alerts, in the order of numbers.
async fn resolve_alerts(client: &ClientWrapper, over: &[i64], at: Timestamp) -> Done<Vec<Alert>> {
    if over.is_empty() {
        return Ok(Vec::new());
    }
    let sql = "-- resolve_alerts
        WITH over AS MATERIALIZED (
            SELECT alert_no FROM alerts
            WHERE alert_no = ANY ($1) AND resolved_at IS NULL
            ORDER BY alert_no
            FOR UPDATE
        )
        UPDATE alerts a SET resolved_at = $2 FROM over WHERE a.alert_no = over.alert_no
        RETURNING a.alert_no, a.kind, a.subject, a.summary, a.command, a.opened_at, a.resolved_at";
    let rows = client.read_all(sql, &[&over, &SqlTimestamp(at)]).await?;
    Ok(in_order(&rows)?)
}

/// Opens those that are not open; the alerts, in the order of numbers. Numbers are given in the
/// order in which they came, and rows are written in the order of the index, so that nobody waits
/// in a circle.
async fn open_alerts(
    client: &ClientWrapper,
    begun: &[&Condition],
    at: Timestamp,
) -> Done<Vec<Alert>> {
    if begun.is_empty() {
        return Ok(Vec::new());
    }
    // Those that are open are left out first: an attempt to write them would use up a number.
    let sql = "-- open_alerts
        WITH given AS (
            SELECT * FROM unnest($1::text[], $2::text[], $3::bool[], $4::text[], $5::text[])
                WITH ORDINALITY AS given (kind, subject, page, summary, command, place)
            WHERE NOT EXISTS (
                SELECT FROM alerts a
                WHERE a.kind = given.kind AND a.subject = given.subject AND a.resolved_at IS NULL
            )
            ORDER BY place
        ), numbered AS MATERIALIZED (
            SELECT nextval(pg_get_serial_sequence('alerts', 'alert_no')) AS alert_no, given.*
            FROM given
        )
        INSERT INTO alerts (alert_no, kind, subject, page, summary, command, opened_at)
        OVERRIDING SYSTEM VALUE
        SELECT alert_no, kind, subject, page, summary, command, $6
        FROM numbered
        ORDER BY kind COLLATE \"C\", subject COLLATE \"C\"
        ON CONFLICT (kind, subject) WHERE resolved_at IS NULL DO NOTHING
        RETURNING alert_no, kind, subject, summary, command, opened_at, resolved_at";
    let pages = |condition: &&Condition| match condition.kind.severity() {
        Severity::Page => true,
        Severity::Notice => false,
    };
    let parameters: [&(dyn ToSql + Sync); 6] = [
        &each(begun, |condition| condition.kind.name()),
        &each(begun, |condition| condition.subject.as_str()),
        &each(begun, pages),
        &each(begun, |condition| condition.summary.as_str()),
        &each(begun, |condition| condition.command.as_str()),
        &SqlTimestamp(at),
    ];
    let rows = client.read_all(sql, &parameters).await?;
    Ok(in_order(&rows)?)
}

fn in_order(rows: &[Row]) -> Result<Vec<Alert>> {
    let mut alerts: Vec<Alert> = rows.iter().map(read_alert).collect::<Result<_>>()?;
    alerts.sort_unstable_by_key(|alert| alert.number);
    Ok(alerts)
}

/// Reads number, kind, subject, summary, command, opening and end, in this order.
fn read_alert(row: &Row) -> Result<Alert> {
    let kind: String = column(row, 1)?;
    Ok(Alert {
        number: read_count(column(row, 0)?)?,
        kind: AlertKind::from_name(&kind).ok_or_else(|| corrupt("an alert is of no known kind"))?,
        subject: column(row, 2)?,
        summary: column(row, 3)?,
        command: column(row, 4)?,
        opened_at: instant(row, 5)?,
        resolved_at: instant_if_any(row, 6)?,
    })
}
