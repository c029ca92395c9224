//! Sagas with their logs; holds and subscription records beside them.
//!
//! Invariant: lines are written under the saga's current fence only, while it is leased, and with
//! the saga's new standing in one transaction. A tenant has one open saga at most: by what is
//! looked at before, and by a unique index. A crash leaves a saga with its last line and a lease
//! that ends.

mod holds;
mod subscriptions;

pub use subscriptions::{follow_reading, read_terms};

use super::outbox::{append_changes, tenants_of};
use super::push_rows::{get, moment};
use super::statements::Statements;
use super::{SqliteStore, corrupt, damaged, push_listing};
use crate::rules::ids::{OnceKey, SubscriptionId, TenantId, TenantNo};
use crate::rules::plan::Plan;
use crate::rules::saga::lifecycle::{ResumedSaga, answer_begun, plan_begin, plan_resume};
use crate::rules::saga::{LogLine, Mark, Saga, SagaKind, SagaState};
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
use rusqlite::{Connection, Params, Row, params};

#[async_trait]
impl Sagas for SqliteStore {
    async fn begin_saga(
        &self,
        new: NewSaga,
        at: Timestamp,
        completing: Option<&Completing<Begun>>,
    ) -> Result<Begun> {
        self.write_ending(completing, at, move |writer, finish| {
            writer.write_for(&new.tenant, at, |connection, tenant| {
                let begun = begin_saga(connection, tenant, &new, at)?;
                finish.end(connection, begun)
            })
        })
        .await
    }

    async fn claim_sagas(
        &self,
        now: Timestamp,
        lease_until: Timestamp,
        limit: usize,
    ) -> Result<Vec<ClaimedSaga>> {
        // A reader looks first, so that a claim of nothing costs no transaction.
        let found = self.read(move |_, connection| find_due(connection, now, limit)).await?;
        if found.is_empty() {
            return Ok(Vec::new());
        }
        self.write(move |writer| {
            writer.write(|connection| {
                let due = find_due(connection, now, limit)?;
                due.into_iter().map(|number| lease(connection, number, lease_until)).collect()
            })
        })
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
        self.write(move |writer| {
            let tenants = tenants_of(&changes);
            writer.write_for_all(&tenants, at, |connection, numbers| {
                let current = move_saga(connection, claim, &standing, at)?;
                if current {
                    append_lines(connection, claim.0, &lines)?;
                    append_changes(connection, &changes, numbers, at)?;
                }
                Ok(current)
            })
        })
        .await
    }

    async fn find_saga(&self, id: &str) -> Result<Option<(Saga, Vec<LogLine>)>> {
        let id = id.to_owned();
        self.read(move |_, connection| {
            push_listing::begin_snapshot(connection)?;
            find_with_log(connection, &id)
        })
        .await
    }

    async fn list_sagas(&self, query: SagaQuery) -> Result<Vec<Saga>> {
        self.read(move |_, connection| list_sagas(connection, &query)).await
    }

    async fn resume_saga(&self, id: &str, at: Timestamp) -> Result<Resumed> {
        let id = id.to_owned();
        self.write(move |writer| writer.write(|c| resume_saga(c, &id, at))).await
    }

    async fn put_hold(&self, claim: (u64, u64), from: Timestamp, at: Timestamp) -> Result<bool> {
        self.write(move |writer| writer.write(|c| holds::put_hold(c, claim, (from, at)))).await
    }

    async fn release_hold(&self, saga: &str) -> Result<bool> {
        let saga = saga.to_owned();
        self.write(move |writer| writer.write(|c| holds::release_hold(c, &saga))).await
    }

    async fn count_pushes_before(&self, tenant: &TenantId, before: Timestamp) -> Result<u64> {
        let Some(tenant) = self.shared.read_memory().tenants.find(tenant) else { return Ok(0) };
        self.read(move |_, connection| holds::count_pushes_before(connection, tenant, before)).await
    }

    async fn list_unconfirmed_before(
        &self,
        tenant: &TenantId,
        before: Timestamp,
        limit: usize,
    ) -> Result<Vec<SubmittedWindow>> {
        let found = self.shared.read_memory().tenants.find(tenant);
        let Some(tenant) = found else { return Ok(Vec::new()) };
        self.read(move |_, c| push_listing::list_unconfirmed_before(c, tenant, before, limit)).await
    }

    async fn record_subscription(&self, record: SubscriptionRecord) -> Result<()> {
        self.write(move |writer| {
            writer.write_for(&record.tenant, record.began_at, |connection, tenant| {
                subscriptions::record_subscription(connection, tenant, &record)
            })
        })
        .await
    }

    async fn charge_from(&self, saga: &str, at: Timestamp) -> Result<()> {
        let saga = saga.to_owned();
        self.write(move |writer| {
            writer.write(|connection| {
                subscriptions::charge_from(connection, &saga, at)?;
                holds::stamp_held(connection, &saga, first_charged(at))
            })
        })
        .await
    }

    async fn set_access(&self, saga: &str, access: bool) -> Result<()> {
        let saga = saga.to_owned();
        self.write(move |writer| writer.write(|c| subscriptions::set_access(c, &saga, access)))
            .await
    }

    async fn withdraw_subscription(&self, saga: &str) -> Result<()> {
        let saga = saga.to_owned();
        self.write(move |writer| writer.write(|c| subscriptions::withdraw_subscription(c, &saga)))
            .await
    }

    async fn end_subscription(&self, subscription: &SubscriptionId, at: Timestamp) -> Result<()> {
        let subscription = subscription.clone();
        self.write(move |writer| {
            writer.write(|c| subscriptions::end_subscription(c, &subscription, at))
        })
        .await
    }

    async fn find_subscription_record(
        &self,
        subscription: &SubscriptionId,
    ) -> Result<Option<SubscriptionRecord>> {
        let subscription = subscription.clone();
        self.read(move |_, connection| {
            subscriptions::find_subscription_record(connection, &subscription)
        })
        .await
    }

    async fn list_subscription_records(
        &self,
        tenant: &TenantId,
        limit: usize,
    ) -> Result<Vec<SubscriptionRecord>> {
        let tenant = tenant.clone();
        self.read(move |shared, connection| {
            let Some(number) = shared.read_memory().tenants.find(&tenant) else {
                return Ok(Vec::new());
            };
            subscriptions::list_subscription_records(connection, (number, &tenant), limit)
        })
        .await
    }
}

fn begin_saga(
    connection: &Connection,
    tenant: TenantNo,
    new: &NewSaga,
    at: Timestamp,
) -> Result<Begun> {
    let standing = find_by_key(connection, tenant, &new.key)?;
    let open = find_open(connection, tenant)?;
    let saga = match plan_begin(new, standing, open, at)? {
        Plan::Write(saga) => saga,
        Plan::Answer(begun) => return Ok(begun),
    };
    let Saga { id, kind, key, params, state, generation, tries, .. } = &saga;
    connection.run(
        "-- begin_saga
         INSERT INTO sagas (id, kind, tenant_no, key, params, state, generation, tries, due_at,
                            fence, created_at, state_at)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?)",
        params![
            id,
            kind.name(),
            tenant.0,
            key.as_str(),
            params,
            state.name(),
            generation,
            tries,
            saga.due_at.micros(),
            saga.created_at.micros(),
            saga.state_at.micros()
        ],
    )?;
    let number = u64::try_from(connection.last_insert_rowid()).expect("numbers begin at 1");
    Ok(answer_begun(number, saga)?)
}

/// Numbers of moving sagas that could be claimed now, longest due first.
fn find_due(connection: &Connection, now: Timestamp, limit: usize) -> Result<Vec<u64>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    connection.read_all(
        "-- find_due
         SELECT saga_no FROM sagas INDEXED BY sagas_due
         WHERE state IN ('running', 'compensating') AND due_at <= ?1
             AND (leased_until IS NULL OR leased_until <= ?1)
         ORDER BY due_at, saga_no LIMIT ?2",
        params![now.micros(), limit],
        |row| Ok(row.get(0)?),
    )
}

fn lease(connection: &Connection, number: u64, until: Timestamp) -> Result<ClaimedSaga> {
    let fence = connection.read_one(
        "-- lease
         UPDATE sagas SET leased_until = ?, fence = fence + 1 WHERE saga_no = ?
         RETURNING fence",
        params![until.micros(), number],
        |row| Ok(row.get(0)?),
    )?;
    let sql = "-- lease
        SELECT saga_no, id, kind, tenant, key, params, state, generation, tries, due_at, detail,
               sagas.created_at AS begun_at, state_at
        FROM sagas JOIN tenants ON tenants.tenant_no = sagas.tenant_no WHERE saga_no = ?";
    let saga = find_one(connection, sql, [number])?;
    let saga = saga.ok_or_else(|| corrupt("sagas row"))?;
    Ok(ClaimedSaga { saga, fence, log: read_log(connection, number)? })
}

/// Moves a saga if the claimant still has it; false if not.
fn move_saga(
    connection: &Connection,
    (number, fence): (u64, u64),
    standing: &SagaProgress,
    at: Timestamp,
) -> Result<bool> {
    let SagaProgress { state, tries, due_at, detail, lease_until } = standing;
    let (due_at, until) = (due_at.micros(), lease_until.map(Timestamp::micros));
    let (state, at) = (state.name(), at.micros());
    let moved = connection.run(
        "-- move_saga
         UPDATE sagas SET state = ?3, tries = ?4, due_at = ?5, detail = ?6, leased_until = ?7,
             state_at = CASE WHEN state = ?3 THEN state_at ELSE ?8 END
         WHERE saga_no = ?1 AND fence = ?2 AND leased_until IS NOT NULL
             AND state IN ('running', 'compensating')",
        params![number, fence, state, tries, due_at, detail, until, at],
    )?;
    Ok(moved == 1)
}

fn append_lines(connection: &Connection, saga: u64, lines: &[LogLine]) -> Result<()> {
    for line in lines {
        connection.run(
            "-- append_lines
             INSERT INTO saga_lines (saga_no, line, generation, step, name, mark, result,
                                     detail, at)
             SELECT ?1, COALESCE(MAX(line), 0) + 1, ?2, ?3, ?4, ?5, ?6, ?7, ?8
             FROM saga_lines WHERE saga_no = ?1",
            params![
                saga,
                line.generation,
                line.step,
                line.name,
                line.mark.name(),
                line.result,
                line.detail,
                line.at.micros()
            ],
        )?;
    }
    Ok(())
}

fn resume_saga(connection: &Connection, id: &str, at: Timestamp) -> Result<Resumed> {
    let Some((saga, log)) = find_with_log(connection, id)? else { return Ok(Resumed::NotFound) };
    let other = find_other_open(connection, &saga)?;
    let fence = read_fence(connection, saga.number)?;
    let resumed = match plan_resume(ClaimedSaga { saga, fence, log }, other, at)? {
        Plan::Write(resumed) => resumed,
        Plan::Answer(answer) => return Ok(answer),
    };
    let ResumedSaga { saga, fence_before, fence, line } = resumed;
    let written = connection
        .prepare_cached(
            "-- resume_saga
             UPDATE sagas SET state = ?3, generation = ?4, tries = ?5, due_at = ?6, detail = ?7,
                 leased_until = NULL, fence = ?8, state_at = ?9
             WHERE saga_no = ?1 AND fence = ?2",
        )
        .and_then(|mut update| {
            let Saga { number, generation, tries, detail, .. } = &saga;
            let (state, due_at) = (saga.state.name(), saga.due_at.micros());
            let moved = params![
                number,
                fence_before,
                state,
                generation,
                tries,
                due_at,
                detail,
                fence,
                saga.state_at.micros()
            ];
            update.execute(moved)
        })?;
    if written != 1 {
        return Err(corrupt("sagas row locked by this transaction"));
    }
    append_lines(connection, saga.number, &[line])?;
    Ok(Resumed::Done(saga))
}

fn read_fence(connection: &Connection, saga: u64) -> Result<u64> {
    connection.read_one(
        "-- read_fence
         SELECT fence FROM sagas WHERE saga_no = ?",
        [saga],
        |row| Ok(row.get(0)?),
    )
}

/// An open saga of the same tenant's that is not this one.
fn find_other_open(connection: &Connection, saga: &Saga) -> Result<Option<Saga>> {
    let sql = "-- find_other_open
        SELECT saga_no, id, kind, tenant, key, params, state, generation, tries, due_at, detail,
               sagas.created_at AS begun_at, state_at
        FROM sagas JOIN tenants ON tenants.tenant_no = sagas.tenant_no
        WHERE sagas.tenant_no = (SELECT tenant_no FROM sagas WHERE saga_no = ?1)
            AND state IN ('running', 'compensating', 'needs_attention') AND saga_no <> ?1";
    find_one(connection, sql, [saga.number])
}

fn find_by_key(connection: &Connection, tenant: TenantNo, key: &OnceKey) -> Result<Option<Saga>> {
    let sql = "-- find_by_key
        SELECT saga_no, id, kind, tenant, key, params, state, generation, tries, due_at, detail,
               sagas.created_at AS begun_at, state_at
        FROM sagas JOIN tenants ON tenants.tenant_no = sagas.tenant_no
        WHERE sagas.tenant_no = ? AND key = ?";
    find_one(connection, sql, params![tenant.0, key.as_str()])
}

fn find_open(connection: &Connection, tenant: TenantNo) -> Result<Option<Saga>> {
    let sql = "-- find_open
        SELECT saga_no, id, kind, tenant, key, params, state, generation, tries, due_at, detail,
               sagas.created_at AS begun_at, state_at
        FROM sagas JOIN tenants ON tenants.tenant_no = sagas.tenant_no
        WHERE sagas.tenant_no = ? AND state IN ('running', 'compensating', 'needs_attention')";
    find_one(connection, sql, [tenant.0])
}

fn find_with_log(connection: &Connection, id: &str) -> Result<Option<(Saga, Vec<LogLine>)>> {
    let sql = "-- find_with_log
        SELECT saga_no, id, kind, tenant, key, params, state, generation, tries, due_at, detail,
               sagas.created_at AS begun_at, state_at
        FROM sagas JOIN tenants ON tenants.tenant_no = sagas.tenant_no WHERE id = ?";
    let Some(saga) = find_one(connection, sql, [id])? else { return Ok(None) };
    let log = read_log(connection, saga.number)?;
    Ok(Some((saga, log)))
}

fn find_one(connection: &Connection, sql: &str, asked: impl Params) -> Result<Option<Saga>> {
    connection.read_optional(sql, asked, decode_saga)
}

fn list_sagas(connection: &Connection, query: &SagaQuery) -> Result<Vec<Saga>> {
    let tenant = query.tenant.as_ref().map(TenantId::as_str);
    let before = query.before.and_then(|before| i64::try_from(before).ok()).unwrap_or(i64::MAX);
    let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
    let asked = params![tenant, query.state.map(SagaState::name), before, limit];
    connection.read_all(
        "-- list_sagas
         SELECT saga_no, id, kind, tenant, key, params, state, generation, tries, due_at,
                detail, sagas.created_at AS begun_at, state_at
         FROM sagas JOIN tenants ON tenants.tenant_no = sagas.tenant_no
         WHERE (?1 IS NULL OR tenant = ?1) AND (?2 IS NULL OR state = ?2) AND saga_no < ?3
         ORDER BY saga_no DESC LIMIT ?4",
        asked,
        decode_saga,
    )
}

fn decode_saga(row: &Row<'_>) -> Result<Saga> {
    let (kind, state): (String, String) = (get(row, "kind")?, get(row, "state")?);
    let (tenant, key): (String, String) = (get(row, "tenant")?, get(row, "key")?);
    Ok(Saga {
        number: get(row, "saga_no")?,
        id: get(row, "id")?,
        kind: SagaKind::from_name(&kind).ok_or_else(|| damaged("sagas.kind", &kind))?,
        tenant: TenantId::parse(&tenant).map_err(|_| damaged("tenants.tenant", &tenant))?,
        key: OnceKey::parse(&key).map_err(|_| damaged("sagas.key", &key))?,
        params: get(row, "params")?,
        state: SagaState::from_name(&state).ok_or_else(|| damaged("sagas.state", &state))?,
        generation: get(row, "generation")?,
        tries: get(row, "tries")?,
        due_at: moment(row, "due_at")?,
        detail: get(row, "detail")?,
        created_at: moment(row, "begun_at")?,
        state_at: moment(row, "state_at")?,
    })
}

/// A saga's whole log, oldest first.
fn read_log(connection: &Connection, saga: u64) -> Result<Vec<LogLine>> {
    connection.read_all(
        "-- read_log
         SELECT generation, step, name, mark, result, detail, at FROM saga_lines
         WHERE saga_no = ? ORDER BY line",
        [saga],
        |row| {
            let mark: String = get(row, "mark")?;
            Ok(LogLine {
                generation: get(row, "generation")?,
                step: get(row, "step")?,
                name: get(row, "name")?,
                mark: Mark::from_name(&mark).ok_or_else(|| damaged("saga_lines.mark", &mark))?,
                result: get(row, "result")?,
                detail: get(row, "detail")?,
                at: moment(row, "at")?,
            })
        },
    )
}
