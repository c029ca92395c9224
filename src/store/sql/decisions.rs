//! What a person decides about quarantined events and conflicts.
//!
//! Invariant: only records that are undecided are written, so a record keeps its first decision.
//! Records of one tenant are written at a time: on a cluster they are on one node.

use super::inbox;
use super::recuts::request_recut;
use super::{Done, Session, SqlStore, values};
use crate::rules::decision::{ConflictRuling, Decision, InboxKey, QuarantineState, hours_around};
use crate::rules::ids::{TenantId, TenantNo};
use crate::rules::timestamp::Timestamp;
use crate::rules::verdict::Verdict;
use crate::store::decision::{AdmissionBatch, ConflictRecord, Decisions, QuarantineRecord};
use crate::store::{Error, Result};
use async_trait::async_trait;
use std::collections::BTreeMap;

const DECIDE_QUARANTINED: &str = "-- decide_quarantined
    UPDATE quarantine SET state = $2, decision_reason = $3, decided_by = $4, decided_at = $5
    WHERE tenant_no = $1 AND state = 'undecided' AND quarantine_no IN (VALUES ($::int8), ...)";

const DECIDE_CONFLICTS: &str = "-- decide_conflicts
    UPDATE conflicts SET state = $2, decision_reason = $3, decided_by = $4, decided_at = $5
    WHERE tenant_no = $1 AND state = 'undecided' AND conflict_no IN (VALUES ($::int8), ...)";

#[async_trait]
impl<S: SqlStore> Decisions for S {
    async fn find_quarantined(&self, number: u64) -> Result<Option<QuarantineRecord>> {
        self.in_reader(move |session| inbox::find_quarantined(session, number)).await
    }

    async fn find_conflict(&self, number: u64) -> Result<Option<ConflictRecord>> {
        self.in_reader(move |session| inbox::find_conflict(session, number)).await
    }

    async fn discard_quarantined(&self, records: Vec<InboxKey>, decision: Decision) -> Result<u64> {
        self.in_transaction(move |session| {
            let state = QuarantineState::Discarded.name();
            decide(session, DECIDE_QUARANTINED, &records, state, &decision)
        })
        .await
    }

    async fn decide_conflicts(
        &self,
        records: Vec<InboxKey>,
        ruling: ConflictRuling,
        decision: Decision,
    ) -> Result<u64> {
        self.in_transaction(move |session| {
            decide(session, DECIDE_CONFLICTS, &records, ruling.state().name(), &decision)
        })
        .await
    }
}

/// Decides those of the records that are undecided, tenant by tenant; returns how many.
fn decide(
    session: &dyn Session,
    sql: &str,
    records: &[InboxKey],
    state: &str,
    decision: &Decision,
) -> Done<u64> {
    let mut of_tenants: BTreeMap<&TenantId, Vec<u64>> = BTreeMap::new();
    for InboxKey { tenant, number } in records {
        of_tenants.entry(tenant).or_default().push(*number);
    }
    let mut decided = 0;
    for (tenant, numbers) in of_tenants {
        let Some(tenant) = session.find_tenant(tenant)? else { continue };
        decided += write(session, sql, tenant, numbers, state, decision)?;
    }
    Ok(decided)
}

fn write(
    session: &dyn Session,
    sql: &str,
    tenant: TenantNo,
    mut numbers: Vec<u64>,
    state: &str,
    decision: &Decision,
) -> Done<u64> {
    numbers.sort_unstable();
    let Decision { reason, author, at } = decision;
    let rows = numbers.into_iter().map(|number| values![number].to_vec());
    session.run_batch_with(sql, values![tenant, state, reason, author, at], rows)
}

/// Events that a person admits, as the transaction that counts them needs to know them.
#[derive(Debug, Clone)]
pub struct Admissions {
    pub tenant: TenantId,
    numbers: Vec<u64>,
    occurred_at: Vec<Timestamp>,
    pub decision: Decision,
}

impl Admissions {
    pub fn of(batch: &AdmissionBatch) -> Result<Self> {
        let AdmissionBatch { tenant, numbers, events, decision, .. } = batch;
        if numbers.len() != events.len() || events.iter().any(|event| event.tenant != *tenant) {
            let what = "admissions are events of one tenant, each with its record".into();
            return Err(Error::Internal { what });
        }
        let occurred_at = events.iter().map(|event| event.occurred_at).collect();
        let (tenant, numbers, decision) = (tenant.clone(), numbers.clone(), decision.clone());
        Ok(Self { tenant, numbers, occurred_at, decision })
    }

    /// Decides the records by the verdicts on their events, and has the windows of those that are
    /// counted cut again. Returns how many are counted; none if a record is no longer undecided:
    /// then the transaction must not be committed.
    pub fn record(&self, session: &dyn Session, verdicts: &[Verdict]) -> Done<Option<u64>> {
        let missing = || Error::Internal { what: "an admission has no tenant".into() };
        let tenant = session.find_tenant(&self.tenant)?.ok_or_else(missing)?;
        let mut by_state: BTreeMap<QuarantineState, Vec<u64>> = BTreeMap::new();
        let mut counted = Vec::new();
        for (place, verdict) in verdicts.iter().enumerate() {
            let Some(state) = QuarantineState::of_admission(verdict) else { continue };
            by_state.entry(state).or_default().push(self.numbers[place]);
            if state == QuarantineState::Admitted {
                counted.push(self.occurred_at[place]);
            }
        }
        for (state, numbers) in by_state {
            let all = u64::try_from(numbers.len()).expect("a length fits 64 bits");
            let (sql, decision) = (DECIDE_QUARANTINED, &self.decision);
            if write(session, sql, tenant, numbers, state.name(), decision)? != all {
                return Ok(None);
            }
        }
        let count = u64::try_from(counted.len()).expect("a length fits 64 bits");
        for range in hours_around(counted) {
            request_recut(session, tenant, range, self.decision.at)?;
        }
        Ok(Some(count))
    }
}
