//! Grants: how they are issued, voided and expire, as plans that both stores apply.
//!
//! A grant changes in no other way than through [`ledger::Ledger`], which plans a change after all
//! changes before it and makes everything that is written with it: the entry between the tenant's
//! credit accounts and the change.
//!
//! Invariant: a grant's amount equals what is left of it plus all that was drawn and not given
//! back, expired or voided: each change moves what is left by its amount, and what is left is
//! what the change before left. A plan that contradicts this returns a `Fault`, and the store
//! writes nothing.

pub mod ledger;

use super::credit::{ChangeKind, CreditChange, GRANTS_MAX, Grant, GrantTerms, PRIORITY_MAX, Pool};
use super::fault::{Fault, must, shown};
use super::ids::{OnceKey, TenantId, TenantNo};
use super::plan::Plan;
use super::quantity::Quantity;
use super::timestamp::Timestamp;
use ledger::{Ledger, NewChange};
use std::collections::BTreeMap;

/// The memo of the change that takes away what is left of an expired grant.
const EXPIRED_MEMO: &str = "expired";

/// The answer to a grant that was to be issued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Issued {
    Created(Grant),
    /// It was issued before, under this key.
    Repeated(Grant),
    /// Another one was issued under the key; nothing was written.
    KeyTaken(Grant),
    /// The tenant has `GRANTS_MAX` with anything left.
    TooMany,
}

/// Takes what is left of a grant, or a part of it, away again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VoidGrant {
    pub tenant: TenantId,
    pub grant: u64,
    /// Under which it happens once.
    pub key: OnceKey,
    /// None for all that is left.
    pub amount: Option<Quantity>,
    /// What usage that was counted and not cut yet will draw on the grant; it stays there.
    pub reserved: Quantity,
    pub memo: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Voided {
    /// A refund of what was purchased, or a void of what was granted.
    Done(CreditChange),
    /// It was done before, under this key.
    Repeated(CreditChange),
    /// Something else was done under the key; nothing was written.
    KeyTaken(CreditChange),
    /// Only this is left besides what is reserved: less than asked for, or nothing.
    TooLittle(Quantity),
    NotFound,
}

/// Plans the issue of a grant: `standing` is the grant under its key, `live` the number of the
/// tenant's grants with anything left. The plan is the terms to write; the change that fills the
/// grant is planned by [`ledger::Ledger::issue`], once its number is known.
pub fn plan_issue(
    terms: GrantTerms,
    standing: Option<Grant>,
    live: usize,
) -> Result<Plan<GrantTerms, Issued>, Fault> {
    // Terms that no new grant may have can still be a repeat: its moment is then later than its
    // expiry.
    let Some(standing) = standing else {
        check_terms(&terms)?;
        return Ok(match live < GRANTS_MAX {
            true => Plan::Write(terms),
            false => Plan::Answer(Issued::TooMany),
        });
    };
    check_grant(&standing)?;
    must!(
        standing.terms.tenant == terms.tenant && standing.terms.key == terms.key,
        "a grant is found under its tenant and key",
        "tenant={} key={} grant={}",
        terms.tenant,
        terms.key,
        standing.number
    );
    Ok(Plan::Answer(match standing.terms.says(&terms) {
        true => Issued::Repeated(standing),
        false => Issued::KeyTaken(standing),
    }))
}

/// Plans a refund or void: `standing` is the change under its key, `grant` the one it names with
/// what the grant's last change left.
pub fn plan_void(
    order: &VoidGrant,
    standing: Option<CreditChange>,
    grant: Option<(&Grant, Option<Quantity>)>,
) -> Result<Plan<NewChange, Voided>, Fault> {
    let VoidGrant { tenant, key, reserved, .. } = order;
    must!(
        *reserved >= Quantity::ZERO,
        "what is reserved of a grant is not negative",
        "tenant={tenant} grant={} reserved={reserved}",
        order.grant
    );
    if let Some(standing) = standing {
        check_keyed(&standing, tenant, key)?;
        // How much all was, only the change knows.
        let same = standing.grant == order.grant
            && standing.memo == order.memo
            && order.amount.is_none_or(|amount| amount == standing.amount);
        return Ok(Plan::Answer(match same {
            true => Voided::Repeated(standing),
            false => Voided::KeyTaken(standing),
        }));
    }
    let Some((grant, last)) = grant else { return Ok(Plan::Answer(Voided::NotFound)) };
    check_grant(grant)?;
    must!(
        grant.number == order.grant && grant.terms.tenant == *tenant,
        "a grant is found under its tenant and number",
        "tenant={tenant} asked={} grant={}",
        order.grant,
        grant.number
    );
    check_last(grant, last)?;
    let free = grant.remaining.checked_sub(*reserved).unwrap_or_default().max(Quantity::ZERO);
    let amount = order.amount.unwrap_or(free);
    if amount <= Quantity::ZERO || amount > free {
        return Ok(Plan::Answer(Voided::TooLittle(free)));
    }
    let kind = match grant.terms.pool {
        Pool::Purchased => ChangeKind::Refunded,
        Pool::Granted => ChangeKind::Voided,
    };
    let (key, memo) = (Some(key.clone()), order.memo.clone());
    Ok(Plan::Write(NewChange { grant: grant.number, kind, amount, covered: None, key, memo }))
}

/// Plans the end of a grant that expired by `expired_by` with something left; `last` is what its
/// last change left.
fn plan_expiry(
    grant: &Grant,
    last: Option<Quantity>,
    expired_by: Timestamp,
) -> Result<NewChange, Fault> {
    check_grant(grant)?;
    let (number, amount) = (grant.number, grant.remaining);
    let end = grant.terms.expires_at;
    must!(
        end.is_some_and(|end| end <= expired_by),
        "only a grant that has expired is ended",
        "grant={number} expires_at={} expired_by={expired_by}",
        shown(end)
    );
    must!(amount > Quantity::ZERO, "a grant is ended once", "grant={number}");
    check_last(grant, last)?;
    let (kind, memo) = (ChangeKind::Expired, EXPIRED_MEMO.to_owned());
    Ok(NewChange { grant: number, kind, amount, covered: None, key: None, memo })
}

/// Plans the end of grants that expired by `expired_by`, each with what its last change left. A
/// grant that contradicts a fact stays as it is, so that it keeps no other from its end; returns
/// the faults.
pub fn plan_expiries(
    ledger: &mut Ledger,
    expired: Vec<(TenantNo, Grant, Option<Quantity>)>,
    expired_by: Timestamp,
) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (tenant_no, grant, last) in expired {
        let planned = plan_expiry(&grant, last, expired_by).and_then(|change| {
            ledger.hold(tenant_no, grant)?;
            ledger.plan(tenant_no, change)
        });
        faults.extend(planned.err());
    }
    faults
}

/// What a grant has left after a change; none if it would be negative or above its amount.
pub fn remaining_after(grant: &Grant, kind: ChangeKind, amount: Quantity) -> Option<Quantity> {
    let after = match kind.raises() {
        true => grant.remaining.checked_add(amount)?,
        false => grant.remaining.checked_sub(amount)?,
    };
    (Quantity::ZERO <= after && after <= grant.terms.amount).then_some(after)
}

/// The facts that must hold of a grant that was read.
pub fn check_grant(grant: &Grant) -> Result<(), Fault> {
    let Grant { number, terms, remaining, .. } = grant;
    must!(*number > 0, "a grant has a number", "tenant={} key={}", terms.tenant, terms.key);
    must!(
        *remaining >= Quantity::ZERO,
        "what is left of a grant is not negative",
        "grant={number} remaining={remaining}"
    );
    must!(
        *remaining <= terms.amount,
        "no more is left of a grant than was issued",
        "grant={number} remaining={remaining} amount={}",
        terms.amount
    );
    check_terms(terms)
}

/// The facts that must hold of a grant's terms; `GrantTerms::check` has refused what a caller got
/// wrong.
fn check_terms(terms: &GrantTerms) -> Result<(), Fault> {
    let GrantTerms { tenant, key, amount, priority, effective_at, .. } = terms;
    must!(*amount > Quantity::ZERO, "a grant is of something", "tenant={tenant} key={key}");
    must!(!terms.rates.is_empty(), "a grant pays for some meter", "tenant={tenant} key={key}");
    for (meter, rate) in &terms.rates {
        must!(
            *rate > Quantity::ZERO,
            "a rate is above zero",
            "tenant={tenant} key={key} meter={} rate={rate}",
            meter.0
        );
    }
    must!(
        *priority <= PRIORITY_MAX,
        "a grant's priority is within its bounds",
        "tenant={tenant} key={key} priority={priority}"
    );
    must!(
        terms.expires_at.is_none_or(|end| *effective_at < end),
        "a grant expires after it takes effect",
        "tenant={tenant} key={key} effective_at={effective_at}"
    );
    Ok(())
}

/// The facts that must hold of a change that was read under a key.
fn check_keyed(change: &CreditChange, tenant: &TenantId, key: &OnceKey) -> Result<(), Fault> {
    let number = change.number;
    must!(
        change.tenant == *tenant && change.key.as_ref() == Some(key),
        "a change is found under its tenant and key",
        "tenant={tenant} key={key} change={number}"
    );
    must!(
        matches!(change.kind, ChangeKind::Refunded | ChangeKind::Voided),
        "only refunds and voids have keys",
        "change={number} kind={}",
        change.kind.name()
    );
    must!(change.amount > Quantity::ZERO, "a refund is of something", "change={number}");
    must!(
        change.remaining >= Quantity::ZERO,
        "a change leaves nothing negative",
        "change={number} remaining={}",
        change.remaining
    );
    Ok(())
}

/// A grant's row and the history that explains it agree.
fn check_last(grant: &Grant, last: Option<Quantity>) -> Result<(), Fault> {
    must!(
        last == Some(grant.remaining),
        "what is left of a grant is what its last change left",
        "grant={} remaining={} last={}",
        grant.number,
        grant.remaining,
        shown(last)
    );
    Ok(())
}

/// The facts that must hold of a page of changes, newest first: each change moves what the change
/// before it left of the grant.
pub fn check_history(changes: &[CreditChange]) -> Result<(), Fault> {
    let mut after: BTreeMap<u64, &CreditChange> = BTreeMap::new();
    for change in changes {
        let number = change.number;
        must!(change.amount > Quantity::ZERO, "a change moves something", "change={number}");
        let Some(later) = after.insert(change.grant, change) else { continue };
        must!(
            number < later.number,
            "changes are read newest first",
            "change={number} after={}",
            later.number
        );
        let moved = match later.kind.raises() {
            true => change.remaining.checked_add(later.amount),
            false => change.remaining.checked_sub(later.amount),
        };
        must!(
            moved == Some(later.remaining),
            "a change moves what the change before it left",
            "grant={} change={number} then={}",
            change.grant,
            later.number
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests;
