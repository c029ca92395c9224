//! Notices: the outbox of alerts.
//!
//! Invariant: a notice is sent by whoever holds its lease under its last fence, and settled by
//! nobody else; one that was sent or given up never changes. An opening is never sent again once
//! its alert has ended, and a destination that may have taken it is told of the end.
//!
//! A crash leaves a notice waiting, or leased until its lease ends. A claim that is repeated
//! because its outcome was lost passes over what the lost one leased; a settlement that is repeated
//! finds no lease and is refused.

use super::alerts::read_alert;
use super::scalars::{
    SqlTimestamp, column, corrupt, instant, read_count, read_ordinal, write_count, write_limit,
};
use super::transaction::Done;
use crate::rules::alert::NoticeEvent;
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::alert::{ClaimedNotice, NoticeOutcome};
use deadpool_postgres::ClientWrapper;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

/// Writes a notice for each destination of each alert that was opened.
pub async fn tell_openings(
    client: &ClientWrapper,
    opened: &[i64],
    destinations: &[&'static str],
    at: Timestamp,
) -> Done<()> {
    if opened.is_empty() || destinations.is_empty() {
        return Ok(());
    }
    let sql = "-- tell_openings
        INSERT INTO notices
            (alert_no, destination, event, state, attempts, due_at, fence, created_at)
        SELECT alert_no, destination, 'opened', 'waiting', 0, $3, 0, $3
        FROM unnest($1::int8[]) WITH ORDINALITY AS opened (alert_no, opening),
            unnest($2::text[]) WITH ORDINALITY AS told (destination, place)
        ORDER BY opening, place";
    let statement = client.prepare_cached(sql).await?;
    client.execute(&statement, &[&opened, &destinations, &SqlTimestamp(at)]).await?;
    Ok(())
}

/// Gives up the openings that still wait, and tells the ends. A destination that never heard of the
/// beginning need not hear of the end; while an opening is being sent, its end does not come first.
pub async fn tell_ends(
    client: &ClientWrapper,
    ended: &[i64],
    destinations: &[&'static str],
    at: Timestamp,
) -> Done<()> {
    if ended.is_empty() {
        return Ok(());
    }
    let sql = "-- tell_ends
        WITH untold AS MATERIALIZED (
            SELECT notice_no, alert_no, destination, attempts, leased_until FROM notices
            WHERE alert_no = ANY ($1) AND event = 'opened' AND state = 'waiting'
            ORDER BY notice_no
            FOR UPDATE
        ), given_up AS (
            UPDATE notices n SET state = 'given_up', settled_at = $3, leased_until = NULL,
                detail = 'the alert was over before it was told'
            FROM untold WHERE n.notice_no = untold.notice_no
        )
        INSERT INTO notices
            (alert_no, destination, event, state, attempts, due_at, fence, created_at)
        SELECT ended.alert_no, told.destination, 'resolved', 'waiting', 0,
            GREATEST(untold.leased_until, $3), 0, $3
        FROM unnest($1::int8[]) WITH ORDINALITY AS ended (alert_no, ending)
        CROSS JOIN unnest($2::text[]) WITH ORDINALITY AS told (destination, place)
        LEFT JOIN untold ON untold.alert_no = ended.alert_no
            AND untold.destination = told.destination
        WHERE untold.attempts IS NULL OR untold.attempts > 0
        ORDER BY ending, place";
    let statement = client.prepare_cached(sql).await?;
    client.execute(&statement, &[&ended, &destinations, &SqlTimestamp(at)]).await?;
    Ok(())
}

/// Leases notices that are due; those that another server is claiming are passed over. Each claim
/// is an attempt: nobody knows how far a claimant came that was not heard of again.
pub async fn claim_due(
    client: &ClientWrapper,
    now: Timestamp,
    lease_until: Timestamp,
    limit: usize,
) -> Done<Vec<ClaimedNotice>> {
    let sql = "-- claim_due
        WITH due AS MATERIALIZED (
            SELECT notice_no FROM notices
            WHERE state = 'waiting' AND due_at <= $1
                AND (leased_until IS NULL OR leased_until <= $1)
            ORDER BY due_at, notice_no
            LIMIT $3
            FOR UPDATE SKIP LOCKED
        ), claimed AS (
            UPDATE notices n SET leased_until = $2, fence = n.fence + 1, attempts = n.attempts + 1
            FROM due WHERE n.notice_no = due.notice_no
            RETURNING n.notice_no, n.fence, n.destination, n.event, n.attempts, n.created_at,
                n.due_at, n.alert_no
        )
        SELECT c.notice_no, c.fence, c.destination, c.event, c.attempts - 1, c.created_at,
            a.alert_no, a.kind, a.subject, a.summary, a.command, a.opened_at, a.resolved_at
        FROM claimed c JOIN alerts a ON a.alert_no = c.alert_no
        ORDER BY c.due_at, c.notice_no";
    let statement = client.prepare_cached(sql).await?;
    let (now, until) = (SqlTimestamp(now), SqlTimestamp(lease_until));
    let rows = client.query(&statement, &[&now, &until, &write_limit(limit)]).await?;
    Ok(rows.iter().map(claimed_notice).collect::<Result<_>>()?)
}

/// False if the fence is not current.
pub async fn settle(
    client: &ClientWrapper,
    (number, fence): (u64, u64),
    outcome: &NoticeOutcome,
    at: Timestamp,
) -> Done<bool> {
    // Numbers that no column can hold name no notice and no claim.
    let (Ok(number), Ok(fence)) = (write_count(number), write_count(fence)) else {
        return Ok(false);
    };
    let (state, due_at, detail) = outcome.parts();
    let due_at = due_at.map(SqlTimestamp);
    let sql = "-- settle
        UPDATE notices SET state = $3, due_at = COALESCE($4, due_at), detail = $5,
            leased_until = NULL,
            settled_at = CASE WHEN $3::text = 'waiting' THEN NULL ELSE $6::timestamptz END
        WHERE notice_no = $1 AND fence = $2 AND state = 'waiting' AND leased_until IS NOT NULL";
    let statement = client.prepare_cached(sql).await?;
    let parameters: [&(dyn ToSql + Sync); 6] =
        [&number, &fence, &state, &due_at, &detail, &SqlTimestamp(at)];
    Ok(client.execute(&statement, &parameters).await? == 1)
}

fn claimed_notice(row: &Row) -> Result<ClaimedNotice> {
    let event: String = column(row, 3)?;
    Ok(ClaimedNotice {
        number: read_count(column(row, 0)?)?,
        fence: read_count(column(row, 1)?)?,
        destination: column(row, 2)?,
        event: NoticeEvent::from_name(&event)
            .ok_or_else(|| corrupt("a notice is of no known event"))?,
        alert: read_alert(row, 6)?,
        attempts: read_ordinal(column(row, 4)?)?,
        created_at: instant(row, 5)?,
    })
}
