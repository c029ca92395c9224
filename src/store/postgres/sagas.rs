//! Sagas and their logs; holds are in `holds`, subscription records in `subscriptions`.
//!
//! Invariant: a saga's row and the lines that explain it change in one transaction, under the fence
//! of its last claim and while that claim has not been given back, by the number of rows affected.
//! The verb that opens a saga locks its tenant first, so that it sees every other open one; the
//! unique index `sagas_open` is there to prove the rule. Locks are taken in the order of tenant,
//! saga, changes, the request's key.
//!
//! A crash leaves a saga with its last line. A beginning that is repeated because its outcome was
//! lost is found under its key; a claim passes over what the lost one leased; lines that were
//! written are found in the log by the next claimant; resuming is refused, since the
//! saga is under way.

use super::PostgresStore;
use super::connection::Snapshot;
use super::declarations::{hold_tenant, lock_tenant};
use super::holds;
use super::idempotency::end_request;
use super::outbox::append_changes;
use super::push_history;
use super::push_rows::each;
use super::saga_rows::{find_by_key, find_open, lock_saga, read_log, read_logs, saga};
use super::scalars::{
    SqlTimestamp, column, corrupt, read_count, write_count, write_limit, write_ordinal,
};
use super::statements::Statements;
use super::subscriptions;
use super::transaction::{Done, Transaction};
use crate::rules::ids::{SubscriptionId, TenantId};
use crate::rules::plan::Plan;
use crate::rules::saga::lifecycle::{ResumedSaga, answer_begun, plan_begin, plan_resume};
use crate::rules::saga::{LogLine, Saga, SagaState};
use crate::rules::stamp::first_charged;
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::idempotency::Completing;
use crate::store::outbox::FeedChange;
use crate::store::push::SubmittedWindow;
use crate::store::saga::{
    Begun, ClaimedSaga, NewSaga, Resumed, SagaProgress, SagaQuery, Sagas, SubscriptionRecord,
};
use async_trait::async_trait;
use deadpool_postgres::ClientWrapper;
use std::sync::Arc;
use tokio_postgres::types::ToSql;

#[async_trait]
impl Sagas for PostgresStore {
    async fn begin_saga(
        &self,
        new: NewSaga,
        at: Timestamp,
        completing: Option<&Completing<Begun>>,
    ) -> Result<Begun> {
        let new = &new;
        let work = move |client: Arc<Transaction>| async move {
            let begun = begin(&client, new, at).await?;
            end_request(&client, completing, &begun, at).await?;
            Ok(begun)
        };
        self.transact(work).await
    }

    async fn claim_sagas(
        &self,
        now: Timestamp,
        lease_until: Timestamp,
        limit: usize,
    ) -> Result<Vec<ClaimedSaga>> {
        let work = move |client: Arc<Transaction>| async move {
            claim_due(&client, now, lease_until, limit).await
        };
        self.transact(work).await
    }

    async fn record_saga(
        &self,
        claim: (u64, u64),
        lines: Vec<LogLine>,
        standing: SagaProgress,
        changes: Vec<FeedChange>,
        at: Timestamp,
    ) -> Result<bool> {
        self.number_tenants_of(&changes, at).await?;
        let (lines, standing, changes) = (lines.as_slice(), &standing, changes.as_slice());
        let work = move |client: Arc<Transaction>| async move {
            let Some(number) = move_saga(&client, claim, standing, at).await? else {
                return Ok(false);
            };
            append_lines(&client, number, lines).await?;
            append_changes(&client, changes, at).await?;
            Ok(true)
        };
        self.transact(work).await
    }

    async fn find_saga(&self, id: &str) -> Result<Option<(Saga, Vec<LogLine>)>> {
        let snapshot = Snapshot::begin(self.reader().await?).await?;
        let sql = "-- find_saga
            SELECT s.saga_no, s.id, s.kind, t.tenant, s.key, s.params, s.state, s.generation,
                s.tries, s.due_at, s.detail, s.created_at, s.state_at
            FROM sagas s JOIN tenants t ON t.tenant_no = s.tenant_no
            WHERE s.id = $1";
        let found = match snapshot.read_optional(sql, &[&id]).await? {
            Some(row) => Some((saga(&row, 0)?, read_log(&snapshot, column(&row, 0)?).await?)),
            None => None,
        };
        snapshot.end().await?;
        Ok(found)
    }

    async fn list_sagas(&self, query: SagaQuery) -> Result<Vec<Saga>> {
        let client = self.reader().await?;
        // Not kept prepared: planned for what is asked, each question can use its own index.
        let sql = "-- list_sagas
            SELECT s.saga_no, s.id, s.kind, t.tenant, s.key, s.params, s.state, s.generation,
                s.tries, s.due_at, s.detail, s.created_at, s.state_at
            FROM sagas s JOIN tenants t ON t.tenant_no = s.tenant_no
            WHERE ($1::text IS NULL
                    OR s.tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1))
                AND ($2::text IS NULL OR s.state = $2) AND s.saga_no < $3
            ORDER BY s.saga_no DESC LIMIT $4";
        // No saga has a number that no column can hold.
        let before = query.before.and_then(|before| i64::try_from(before).ok());
        let parameters: [&(dyn ToSql + Sync); 4] = [
            &query.tenant.as_ref().map(TenantId::as_str),
            &query.state.map(SagaState::name),
            &before.unwrap_or(i64::MAX),
            &write_limit(query.limit),
        ];
        client.query(sql, &parameters).await?.iter().map(|row| saga(row, 0)).collect()
    }

    async fn resume_saga(&self, id: &str, at: Timestamp) -> Result<Resumed> {
        let work = move |client: Arc<Transaction>| async move { resume(&client, id, at).await };
        self.transact(work).await
    }

    async fn put_hold(&self, claim: (u64, u64), from: Timestamp, at: Timestamp) -> Result<bool> {
        let work = move |client: Arc<Transaction>| async move {
            holds::put_hold(&client, claim, from, at).await
        };
        self.transact(work).await
    }

    async fn release_hold(&self, saga: &str) -> Result<bool> {
        let work =
            move |client: Arc<Transaction>| async move { holds::release(&client, saga).await };
        self.transact(work).await
    }

    async fn count_pushes_before(&self, tenant: &TenantId, before: Timestamp) -> Result<u64> {
        let client = self.reader().await?;
        holds::count_pushes_before(&client, tenant, before).await
    }

    async fn list_unconfirmed_before(
        &self,
        tenant: &TenantId,
        before: Timestamp,
        limit: usize,
    ) -> Result<Vec<SubmittedWindow>> {
        let client = self.reader().await?;
        push_history::list_unconfirmed_before(&client, tenant, before, limit).await
    }

    async fn record_subscription(&self, record: SubscriptionRecord) -> Result<()> {
        let record = &record;
        let work = move |client: Arc<Transaction>| async move {
            subscriptions::record(&client, record).await
        };
        self.transact(work).await
    }

    async fn charge_from(&self, saga: &str, at: Timestamp) -> Result<()> {
        let work = move |client: Arc<Transaction>| async move {
            subscriptions::charge_from(&client, saga, at).await?;
            holds::stamp_held(&client, saga, first_charged(at)).await
        };
        self.transact(work).await
    }

    async fn set_access(&self, saga: &str, access: bool) -> Result<()> {
        let work = move |client: Arc<Transaction>| async move {
            subscriptions::set_access(&client, saga, access).await
        };
        self.transact(work).await
    }

    async fn withdraw_subscription(&self, saga: &str) -> Result<()> {
        let work = move |client: Arc<Transaction>| async move {
            subscriptions::withdraw(&client, saga).await
        };
        self.transact(work).await
    }

    async fn end_subscription(&self, subscription: &SubscriptionId, at: Timestamp) -> Result<()> {
        let work = move |client: Arc<Transaction>| async move {
            subscriptions::end(&client, subscription, at).await
        };
        self.transact(work).await
    }

    async fn find_subscription_record(
        &self,
        subscription: &SubscriptionId,
    ) -> Result<Option<SubscriptionRecord>> {
        let client = self.reader().await?;
        subscriptions::find(&client, subscription).await
    }

    async fn list_subscription_records(
        &self,
        tenant: &TenantId,
        limit: usize,
    ) -> Result<Vec<SubscriptionRecord>> {
        let client = self.reader().await?;
        subscriptions::list(&client, tenant, limit).await
    }
}

/// Everything but the end of the request and the COMMIT.
async fn begin(client: &ClientWrapper, new: &NewSaga, at: Timestamp) -> Done<Begun> {
    let tenant_no = hold_tenant(client, &new.tenant, at).await?;
    let standing = find_by_key(client, tenant_no, &new.key).await?;
    let open = find_open(client, tenant_no).await?;
    let saga = match plan_begin(new, standing, open, at)? {
        Plan::Write(saga) => saga,
        Plan::Answer(begun) => return Ok(begun),
    };
    let sql = "-- begin
        INSERT INTO sagas (id, kind, tenant_no, key, params, state, generation, tries, due_at,
            fence, created_at, state_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 0, $10, $11)
        RETURNING saga_no";
    let parameters: [&(dyn ToSql + Sync); 11] = [
        &saga.id,
        &saga.kind.name(),
        &tenant_no,
        &saga.key.as_str(),
        &saga.params,
        &saga.state.name(),
        &write_ordinal(saga.generation)?,
        &write_ordinal(saga.tries)?,
        &SqlTimestamp(saga.due_at),
        &SqlTimestamp(saga.created_at),
        &SqlTimestamp(saga.state_at),
    ];
    let row = client.query_one(sql, &parameters).await?;
    Ok(answer_begun(read_count(column(&row, 0)?)?, saga)?)
}

/// Leases sagas that are due; those that another server is claiming are passed over.
async fn claim_due(
    client: &ClientWrapper,
    now: Timestamp,
    lease_until: Timestamp,
    limit: usize,
) -> Done<Vec<ClaimedSaga>> {
    let sql = "-- claim_due
        WITH due AS MATERIALIZED (
            SELECT saga_no FROM sagas
            WHERE state IN ('running', 'compensating') AND due_at <= $1
                AND (leased_until IS NULL OR leased_until <= $1)
            ORDER BY due_at, saga_no
            LIMIT $3
            FOR UPDATE SKIP LOCKED
        ), claimed AS (
            UPDATE sagas s SET leased_until = $2, fence = s.fence + 1
            FROM due WHERE s.saga_no = due.saga_no
            RETURNING s.*
        )
        SELECT s.fence, s.saga_no, s.id, s.kind, t.tenant, s.key, s.params, s.state, s.generation,
            s.tries, s.due_at, s.detail, s.created_at, s.state_at
        FROM claimed s JOIN tenants t ON t.tenant_no = s.tenant_no
        ORDER BY s.due_at, s.saga_no";
    let (now, until) = (SqlTimestamp(now), SqlTimestamp(lease_until));
    let rows = client.read_all(sql, &[&now, &until, &write_limit(limit)]).await?;
    let numbers: Vec<i64> = rows.iter().map(|row| column(row, 1)).collect::<Result<_>>()?;
    let mut logs = read_logs(client, &numbers).await?;
    let mut claimed = Vec::with_capacity(rows.len());
    for (row, number) in rows.iter().zip(&numbers) {
        let log = logs.remove(number).unwrap_or_default();
        let fence = read_count(column(row, 0)?)?;
        claimed.push(ClaimedSaga { saga: saga(row, 1)?, fence, log });
    }
    Ok(claimed)
}

/// Moves a saga that its claimant still holds; its number, or none if the fence is not current.
async fn move_saga(
    client: &ClientWrapper,
    (number, fence): (u64, u64),
    standing: &SagaProgress,
    at: Timestamp,
) -> Done<Option<i64>> {
    // Numbers that no column can hold name no saga and no claim.
    let (Ok(number), Ok(fence)) = (write_count(number), write_count(fence)) else {
        return Ok(None);
    };
    // A lease that is over counts until another claims: the fence tells.
    let sql = "-- move_saga
        UPDATE sagas SET state = $3, tries = $4, due_at = $5, detail = $6, leased_until = $7,
            state_at = CASE WHEN state = $3::text THEN state_at ELSE $8::timestamptz END
        WHERE saga_no = $1 AND fence = $2 AND leased_until IS NOT NULL
            AND state IN ('running', 'compensating')";
    let parameters: [&(dyn ToSql + Sync); 8] = [
        &number,
        &fence,
        &standing.state.name(),
        &write_ordinal(standing.tries)?,
        &SqlTimestamp(standing.due_at),
        &standing.detail,
        &standing.lease_until.map(SqlTimestamp),
        &SqlTimestamp(at),
    ];
    let moved = client.run(sql, &parameters).await? == 1;
    Ok(moved.then_some(number))
}

/// Appends lines to the log of a saga whose row the caller holds.
async fn append_lines(client: &ClientWrapper, number: i64, lines: &[LogLine]) -> Done<()> {
    if lines.is_empty() {
        return Ok(());
    }
    let sql = "-- append_lines
        INSERT INTO saga_lines (saga_no, line, generation, step, name, mark, result, detail, at)
        SELECT $1, given.place + (
                SELECT COALESCE(max(line), 0) FROM saga_lines WHERE saga_no = $1
            ), given.generation, given.step, given.name, given.mark, given.result, given.detail,
            given.at
        FROM unnest($2::int4[], $3::int4[], $4::text[], $5::text[], $6::text[], $7::text[],
            $8::timestamptz[])
            WITH ORDINALITY AS given (generation, step, name, mark, result, detail, at, place)";
    let generations: Vec<i32> =
        lines.iter().map(|line| write_ordinal(line.generation)).collect::<Result<_>>()?;
    let steps: Vec<i32> =
        lines.iter().map(|line| write_ordinal(line.step)).collect::<Result<_>>()?;
    let parameters: [&(dyn ToSql + Sync); 8] = [
        &number,
        &generations,
        &steps,
        &each(lines, |line| line.name.as_str()),
        &each(lines, |line| line.mark.name()),
        &each(lines, |line| line.result.as_deref()),
        &each(lines, |line| line.detail.as_deref()),
        &each(lines, |line| SqlTimestamp(line.at)),
    ];
    client.run(sql, &parameters).await?;
    Ok(())
}

/// Everything but the COMMIT.
async fn resume(client: &ClientWrapper, id: &str, at: Timestamp) -> Done<Resumed> {
    let sql = "-- resume
        SELECT saga_no, tenant_no FROM sagas WHERE id = $1";
    let Some(row) = client.query_opt(sql, &[&id]).await? else { return Ok(Resumed::NotFound) };
    let (number, tenant_no): (i64, i32) = (column(&row, 0)?, column(&row, 1)?);
    lock_tenant(client, tenant_no).await?;
    let (saga, fence) = lock_saga(client, number).await?;
    let log = read_log(client, number).await?;
    let open = find_open(client, tenant_no).await?;
    let other = open.filter(|open| open.number != saga.number);
    let resumed = match plan_resume(ClaimedSaga { saga, fence, log }, other, at)? {
        Plan::Write(resumed) => resumed,
        Plan::Answer(answer) => return Ok(answer),
    };
    let ResumedSaga { saga, fence_before, fence, line } = resumed;
    let sql = "-- resume
        UPDATE sagas SET state = $3, generation = $4, tries = $5, due_at = $6, detail = $7,
            leased_until = NULL, fence = $8, state_at = $9
        WHERE saga_no = $1 AND fence = $2";
    let parameters: [&(dyn ToSql + Sync); 9] = [
        &number,
        &write_count(fence_before)?,
        &saga.state.name(),
        &write_ordinal(saga.generation)?,
        &write_ordinal(saga.tries)?,
        &SqlTimestamp(saga.due_at),
        &saga.detail,
        &write_count(fence)?,
        &SqlTimestamp(saga.state_at),
    ];
    if client.execute(sql, &parameters).await? != 1 {
        return Err(corrupt("locked sagas row changed mid-transaction").into());
    }
    append_lines(client, number, &[line]).await?;
    Ok(Resumed::Done(saga))
}
