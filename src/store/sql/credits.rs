//! Credits: grants that are issued, voided and expire, as their verbs.
//!
//! Invariant: `rules::grant` plans and `credit_changes` writes. Locks are taken in the order of
//! tenant, grants by number, accounts, changes, the request's key; expiry takes no tenant, and
//! grants that another works on are left to its next round. Issuing and voiding hold the tenant
//! first, so what they look up (keys, the number of live grants) holds until they have written.
//!
//! A crash leaves a change whole or not at all. What is issued or voided again because its
//! outcome was lost is found under its key; expiry that is repeated finds nothing left.

use super::credit_changes::{find_change, list_changes, read_last, write_changes};
use super::grants::{
    HeldGrant, any_expired, find_grant, insert_grant, list_grants, live_grants, lock_expired,
    lock_grants,
};
use super::{Done, Session, SqlStore};
use crate::rules::credit::{CreditChange, Grant, GrantTerms};
use crate::rules::grant::ledger::Ledger;
use crate::rules::grant::{check_history, plan_expiries, plan_issue, plan_void};
use crate::rules::ids::{OnceKey, TenantId};
use crate::rules::plan::Plan;
use crate::rules::timestamp::Timestamp;
use crate::store::credit::{ChangeFilter, Credits, GrantFilter, Issued, VoidGrant, Voided};
use crate::store::idempotency::Completing;
use crate::store::{Error, Query, Result};
use async_trait::async_trait;

#[async_trait]
impl<S: SqlStore> Credits for S {
    async fn issue_grant(
        &self,
        terms: GrantTerms,
        at: Timestamp,
        completing: Option<&Completing<Issued>>,
    ) -> Result<Issued> {
        self.in_transaction_ending(completing, at, move |session| issue_grant(session, &terms, at))
            .await
    }

    async fn void_grant(
        &self,
        order: VoidGrant,
        at: Timestamp,
        completing: Option<&Completing<Voided>>,
    ) -> Result<Voided> {
        self.in_transaction_ending(completing, at, move |session| void_grant(session, &order, at))
            .await
    }

    async fn expire_grants(
        &self,
        expired_by: Timestamp,
        at: Timestamp,
        limit: usize,
    ) -> Result<usize> {
        self.in_transaction_if(
            move |session| any_expired(session, expired_by),
            move |session| expire_grants(session, expired_by, at, limit),
        )
        .await
    }

    async fn find_grant(&self, tenant: &TenantId, key: &OnceKey) -> Result<Option<Grant>> {
        let (tenant, key) = (tenant.clone(), key.clone());
        self.in_reader(move |session| match session.find_tenant(&tenant)? {
            Some(tenant) => find_grant(session, tenant, &key),
            None => Ok(None),
        })
        .await
    }

    async fn list_grants(&self, query: Query<GrantFilter>) -> Result<Vec<Grant>> {
        self.in_reader(move |session| list_grants(session, &query)).await
    }

    async fn list_credit_changes(&self, query: Query<ChangeFilter>) -> Result<Vec<CreditChange>> {
        self.in_reader(move |session| {
            let changes = list_changes(session, &query)?;
            check_history(&changes)?;
            Ok(changes)
        })
        .await
    }
}

fn issue_grant(session: &dyn Session, terms: &GrantTerms, at: Timestamp) -> Done<Issued> {
    let tenant = session.hold_tenant(&terms.tenant, at)?;
    let standing = find_grant(session, tenant, &terms.key)?;
    let live = live_grants(session, &[tenant])?.len();
    let terms = match plan_issue(terms.clone(), standing, live)? {
        Plan::Write(terms) => terms,
        Plan::Answer(issued) => return Ok(issued),
    };
    let number = insert_grant(session, tenant, &terms, at)?;
    let mut ledger = Ledger::default();
    let grant = ledger.issue(tenant, number, terms, at)?;
    write_changes(session, ledger.take_planned(), at)?;
    Ok(Issued::Created(grant))
}

fn void_grant(session: &dyn Session, order: &VoidGrant, at: Timestamp) -> Done<Voided> {
    let Some(tenant) = session.find_tenant(&order.tenant)? else { return Ok(Voided::NotFound) };
    session.lock_tenant(tenant)?;
    let standing = find_change(session, tenant, &order.key)?;
    // No grant has a number that no column can hold.
    let number = Some(order.grant).filter(|number| *number < 1 << 63);
    let mut held = lock_grants(session, &number.into_iter().collect())?;
    held.retain(|held| held.tenant_no == tenant);
    let last = read_last(session, &held)?;
    let found = held.first().map(|held| (&held.grant, last.get(&held.grant.number).copied()));
    let change = match plan_void(order, standing, found)? {
        Plan::Write(change) => change,
        Plan::Answer(voided) => return Ok(voided),
    };
    let mut ledger = Ledger::default();
    for HeldGrant { tenant_no, grant } in held {
        ledger.hold(tenant_no, grant)?;
    }
    ledger.plan(tenant, change)?;
    let written = write_changes(session, ledger.take_planned(), at)?.pop();
    Ok(Voided::Done(written.ok_or_else(|| Error::Corrupt {
        what: "credit_changes row vanished mid-transaction".into(),
    })?))
}

fn expire_grants(
    session: &dyn Session,
    expired_by: Timestamp,
    at: Timestamp,
    limit: usize,
) -> Done<usize> {
    let held = lock_expired(session, expired_by, limit)?;
    let last = read_last(session, &held)?;
    let with_last = |HeldGrant { tenant_no, grant }| {
        let left = last.get(&grant.number).copied();
        (tenant_no, grant, left)
    };
    let expired = held.into_iter().map(with_last).collect();
    let mut ledger = Ledger::default();
    for fault in plan_expiries(&mut ledger, expired, expired_by) {
        tracing::error!("an expired grant stays as it is: {fault}");
    }
    Ok(write_changes(session, ledger.take_planned(), at)?.len())
}
