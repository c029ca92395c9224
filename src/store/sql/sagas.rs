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

use super::outbox::append_changes;
use super::reconciliation::within_column;
use super::{Done, Filter, Row, Session, SqlStore, Value, holds, subscriptions, values};
use crate::rules::ids::{SubscriptionId, TenantId, TenantNo};
use crate::rules::plan::Plan;
use crate::rules::saga::lifecycle::{ResumedSaga, answer_begun, plan_begin, plan_resume};
use crate::rules::saga::{LogLine, Saga};
use crate::rules::stamp::first_charged;
use crate::rules::timestamp::Timestamp;
use crate::store::idempotency::Completing;
use crate::store::outbox::FeedChange;
use crate::store::push::SubmittedWindow;
use crate::store::saga::{
    Begun, ClaimedSaga, NewSaga, Resumed, SagaFilter, SagaProgress, Sagas, SubscriptionRecord,
};
use crate::store::{Error, Query, Result};
use async_trait::async_trait;

/// The columns that [`decode_saga`] reads, for every statement that returns rows of sagas.
const COLUMNS: &str = "sagas.saga_no, id, kind, key, params, state, generation, tries, due_at,
    detail, created_at, state_at, fence,
    (SELECT tenant FROM tenants WHERE tenants.tenant_no = sagas.tenant_no) AS tenant";

#[async_trait]
impl<S: SqlStore> Sagas for S {
    async fn begin_saga(
        &self,
        new: NewSaga,
        at: Timestamp,
        completing: Option<&Completing<Begun>>,
    ) -> Result<Begun> {
        self.in_transaction_ending(completing, at, move |session| begin_saga(session, &new, at))
            .await
    }

    async fn claim_sagas(
        &self,
        now: Timestamp,
        lease_until: Timestamp,
        limit: usize,
    ) -> Result<Vec<ClaimedSaga>> {
        self.in_transaction_if(
            move |session| any_due(session, now),
            move |session| claim_due(session, now, lease_until, limit),
        )
        .await
    }

    async fn record_saga(
        &self,
        claim: (u64, u64),
        lines: Vec<LogLine>,
        standing: SagaProgress,
        changes: Vec<FeedChange>,
        at: Timestamp,
    ) -> Result<bool> {
        self.in_transaction(move |session| {
            let current = move_saga(session, claim, &standing, at)?;
            if current {
                append_lines(session, claim.0, &lines)?;
                append_changes(session, &changes, at)?;
            }
            Ok(current)
        })
        .await
    }

    async fn find_saga(&self, id: &str) -> Result<Option<(Saga, Vec<LogLine>)>> {
        let id = id.to_owned();
        self.in_snapshot(move |session| {
            let Some(saga) = find_one(session, "id = $1", values![id])? else { return Ok(None) };
            let log = read_log(session, saga.number)?;
            Ok(Some((saga, log)))
        })
        .await
    }

    async fn list_sagas(&self, query: Query<SagaFilter>) -> Result<Vec<Saga>> {
        let SagaFilter { tenant, state } = query.filter;
        let select = format!("-- list_sagas\nSELECT {COLUMNS} FROM sagas");
        let (sql, values) = Filter::new(&select)
            .and_if("tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $)", tenant)
            .and_if("state = $", state)
            .and_if("saga_no < $", query.after.map(within_column))
            .order("saga_no DESC", query.limit);
        self.in_reader(move |session| session.read_all(&sql, &values, decode_saga)).await
    }

    async fn resume_saga(&self, id: &str, at: Timestamp) -> Result<Resumed> {
        let id = id.to_owned();
        self.in_transaction(move |session| resume_saga(session, &id, at)).await
    }

    async fn put_hold(&self, claim: (u64, u64), from: Timestamp, at: Timestamp) -> Result<bool> {
        self.in_transaction(move |session| holds::put_hold(session, claim, from, at)).await
    }

    async fn release_hold(&self, saga: &str) -> Result<bool> {
        let saga = saga.to_owned();
        self.in_transaction(move |session| holds::release_hold(session, &saga)).await
    }

    async fn count_pushes_before(&self, tenant: &TenantId, before: Timestamp) -> Result<u64> {
        let tenant = tenant.clone();
        self.in_reader(move |session| holds::count_pushes_before(session, &tenant, before)).await
    }

    async fn list_unconfirmed_before(
        &self,
        tenant: &TenantId,
        before: Timestamp,
        limit: usize,
    ) -> Result<Vec<SubmittedWindow>> {
        let tenant = tenant.clone();
        self.in_reader(move |session| {
            holds::list_unconfirmed_before(session, &tenant, before, limit)
        })
        .await
    }

    async fn record_subscription(&self, record: SubscriptionRecord) -> Result<()> {
        self.in_transaction(move |session| subscriptions::record_subscription(session, &record))
            .await
    }

    async fn charge_from(&self, saga: &str, at: Timestamp) -> Result<()> {
        let saga = saga.to_owned();
        self.in_transaction(move |session| {
            subscriptions::charge_from(session, &saga, at)?;
            holds::stamp_held(session, &saga, first_charged(at))
        })
        .await
    }

    async fn set_access(&self, saga: &str, access: bool) -> Result<()> {
        let saga = saga.to_owned();
        self.in_transaction(move |session| subscriptions::set_access(session, &saga, access)).await
    }

    async fn withdraw_subscription(&self, saga: &str) -> Result<()> {
        let saga = saga.to_owned();
        self.in_transaction(move |session| subscriptions::withdraw_subscription(session, &saga))
            .await
    }

    async fn end_subscription(&self, id: &SubscriptionId, at: Timestamp) -> Result<()> {
        let id = id.clone();
        self.in_transaction(move |session| subscriptions::end_subscription(session, &id, at)).await
    }

    async fn find_subscription_record(
        &self,
        subscription: &SubscriptionId,
    ) -> Result<Option<SubscriptionRecord>> {
        let subscription = subscription.clone();
        self.in_reader(move |session| {
            subscriptions::find_subscription_record(session, &subscription)
        })
        .await
    }

    async fn list_subscription_records(
        &self,
        tenant: &TenantId,
        limit: usize,
    ) -> Result<Vec<SubscriptionRecord>> {
        let tenant = tenant.clone();
        self.in_reader(move |session| {
            subscriptions::list_subscription_records(session, &tenant, limit)
        })
        .await
    }
}

fn begin_saga(session: &dyn Session, new: &NewSaga, at: Timestamp) -> Done<Begun> {
    let tenant = session.hold_tenant(&new.tenant, at)?;
    let standing = find_one(session, "tenant_no = $1 AND key = $2", values![tenant, new.key])?;
    let open = find_open(session, tenant)?;
    let saga = match plan_begin(new, standing, open, at)? {
        Plan::Write(saga) => saga,
        Plan::Answer(begun) => return Ok(begun),
    };
    let sql = "-- begin_saga
        INSERT INTO sagas (id, kind, tenant_no, key, params, state, generation, tries, due_at,
            fence, created_at, state_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 0, $10, $11)
        RETURNING saga_no";
    let values = values![
        saga.id,
        saga.kind,
        tenant,
        saga.key,
        saga.params,
        saga.state,
        saga.generation,
        saga.tries,
        saga.due_at,
        saga.created_at,
        saga.state_at,
    ];
    let number = session.read_one(sql, values, Row::only)?;
    Ok(answer_begun(number, saga)?)
}

fn any_due(session: &dyn Session, now: Timestamp) -> Done<bool> {
    let sql = "-- any_due
        SELECT saga_no FROM sagas
        WHERE state IN ('running', 'compensating') AND due_at <= $1
            AND (leased_until IS NULL OR leased_until <= $1)
        LIMIT 1";
    Ok(session.read_optional(sql, values![now], |_| Ok(()))?.is_some())
}

/// Leases sagas that are due; those that another server is claiming are passed over.
fn claim_due(
    session: &dyn Session,
    now: Timestamp,
    lease_until: Timestamp,
    limit: usize,
) -> Done<Vec<ClaimedSaga>> {
    let sql = format!(
        "-- claim_due
        WITH due AS MATERIALIZED (
            SELECT saga_no FROM sagas
            WHERE state IN ('running', 'compensating') AND due_at <= $1
                AND (leased_until IS NULL OR leased_until <= $1)
            ORDER BY due_at, saga_no LIMIT $3
            FOR UPDATE SKIP LOCKED
        )
        UPDATE sagas SET leased_until = $2, fence = fence + 1
        FROM due WHERE sagas.saga_no = due.saga_no
        RETURNING {COLUMNS}"
    );
    let mut claimed =
        session.read_all(&sql, values![now, lease_until, limit], decode_with_fence)?;
    claimed.sort_by_key(|(saga, _)| (saga.due_at, saga.number));
    let with_log = |(saga, fence): (Saga, u64)| -> Done<ClaimedSaga> {
        let log = read_log(session, saga.number)?;
        Ok(ClaimedSaga { saga, fence, log })
    };
    claimed.into_iter().map(with_log).collect()
}

/// Moves a saga that its claimant still holds; false if the fence is not current. A lease that is
/// over counts until another claims: the fence tells.
fn move_saga(
    session: &dyn Session,
    (number, fence): (u64, u64),
    standing: &SagaProgress,
    at: Timestamp,
) -> Done<bool> {
    let SagaProgress { state, tries, due_at, detail, lease_until } = standing;
    let sql = "-- move_saga
        UPDATE sagas SET state = $3, tries = $4, due_at = $5, detail = $6, leased_until = $7,
            state_at = CASE WHEN state = $3::text THEN state_at ELSE $8::timestamptz END
        WHERE saga_no = $1 AND fence = $2 AND leased_until IS NOT NULL
            AND state IN ('running', 'compensating')";
    let values = values![number, fence, state, tries, due_at, detail, lease_until, at];
    Ok(session.run(sql, values)? == 1)
}

/// Appends lines to the log of a saga whose row the caller holds.
fn append_lines(session: &dyn Session, saga: u64, lines: &[LogLine]) -> Done<()> {
    for LogLine { generation, step, name, mark, result, detail, at } in lines {
        let sql = "-- append_lines
            INSERT INTO saga_lines (saga_no, line, generation, step, name, mark, result, detail, at)
            VALUES ($1, (SELECT COALESCE(MAX(line), 0) + 1 FROM saga_lines WHERE saga_no = $1),
                $2, $3, $4, $5, $6, $7, $8)";
        session.run(sql, values![saga, generation, step, name, mark, result, detail, at])?;
    }
    Ok(())
}

fn resume_saga(session: &dyn Session, id: &str, at: Timestamp) -> Done<Resumed> {
    let sql = "-- resume_saga\nSELECT tenant_no FROM sagas WHERE id = $1";
    let found = session.read_optional(sql, values![id], Row::only::<TenantNo>)?;
    let Some(tenant) = found else { return Ok(Resumed::NotFound) };
    session.lock_tenant(tenant)?;
    let sql = format!("-- resume_saga\nSELECT {COLUMNS} FROM sagas WHERE id = $1 FOR UPDATE");
    let (saga, fence) = session.read_one(&sql, values![id], decode_with_fence)?;
    let log = read_log(session, saga.number)?;
    let other = find_open(session, tenant)?.filter(|open| open.number != saga.number);
    let resumed = match plan_resume(ClaimedSaga { saga, fence, log }, other, at)? {
        Plan::Write(resumed) => resumed,
        Plan::Answer(answer) => return Ok(answer),
    };
    let ResumedSaga { saga, fence_before, fence, line } = resumed;
    let sql = "-- resume_saga
        UPDATE sagas SET state = $3, generation = $4, tries = $5, due_at = $6, detail = $7,
            leased_until = NULL, fence = $8, state_at = $9
        WHERE saga_no = $1 AND fence = $2";
    let values = values![
        saga.number,
        fence_before,
        saga.state,
        saga.generation,
        saga.tries,
        saga.due_at,
        saga.detail,
        fence,
        saga.state_at,
    ];
    if session.run(sql, values)? != 1 {
        let what = "locked sagas row changed mid-transaction".into();
        return Err(Error::Corrupt { what }.into());
    }
    append_lines(session, saga.number, &[line])?;
    Ok(Resumed::Done(saga))
}

/// The tenant's open saga.
fn find_open(session: &dyn Session, tenant: TenantNo) -> Done<Option<Saga>> {
    let open = "tenant_no = $1 AND state IN ('running', 'compensating', 'needs_attention')";
    find_one(session, open, values![tenant])
}

fn find_one(session: &dyn Session, condition: &str, values: &[Value]) -> Done<Option<Saga>> {
    let sql = format!("-- find_one\nSELECT {COLUMNS} FROM sagas WHERE {condition}");
    session.read_optional(&sql, values, decode_saga)
}

fn decode_with_fence(row: &Row) -> Result<(Saga, u64)> {
    Ok((decode_saga(row)?, row.get("sagas.fence")?))
}

fn decode_saga(row: &Row) -> Result<Saga> {
    Ok(Saga {
        number: row.get("sagas.saga_no")?,
        id: row.get("sagas.id")?,
        kind: row.get("sagas.kind")?,
        tenant: row.get("tenants.tenant")?,
        key: row.get("sagas.key")?,
        params: row.get("sagas.params")?,
        state: row.get("sagas.state")?,
        generation: row.get("sagas.generation")?,
        tries: row.get("sagas.tries")?,
        due_at: row.get("sagas.due_at")?,
        detail: row.get("sagas.detail")?,
        created_at: row.get("sagas.created_at")?,
        state_at: row.get("sagas.state_at")?,
    })
}

/// A saga's whole log, oldest first.
fn read_log(session: &dyn Session, saga: u64) -> Done<Vec<LogLine>> {
    let sql = "-- read_log
        SELECT generation, step, name, mark, result, detail, at FROM saga_lines
        WHERE saga_no = $1 ORDER BY line";
    session.read_all(sql, values![saga], |row| {
        Ok(LogLine {
            generation: row.get("saga_lines.generation")?,
            step: row.get("saga_lines.step")?,
            name: row.get("saga_lines.name")?,
            mark: row.get("saga_lines.mark")?,
            result: row.get("saga_lines.result")?,
            detail: row.get("saga_lines.detail")?,
            at: row.get("saga_lines.at")?,
        })
    })
}
