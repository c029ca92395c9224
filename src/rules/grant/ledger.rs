//! The ledger of one transaction: grants that it holds, and the changes of them that it makes.
//!
//! A store holds grants, plans changes one after the other, and applies what is planned: it writes
//! each change's row, which gives the change its number, and then what belongs to it
//! ([`RecordedChange`]).
//!
//! Invariant: every change is planned on what the changes before it have left. Its row, what it
//! leaves in its grant's row, its entry and its change are written in one transaction; a crash
//! leaves all of them or none.

use super::{check_grant, remaining_after};
use crate::rules::account::{Entry, Floor, NewAccount, NewEntry, NewPosting};
use crate::rules::change::FeedChange;
use crate::rules::credit::covering::{CoverOrder, Covering, Draw, plan_covering, standing_draws};
use crate::rules::credit::{
    ChangeKind, Covered, CreditChange, DrawOrder, Grant, GrantTerms, Pool, cost_of,
};
use crate::rules::fault::{Fault, must, shown};
use crate::rules::ids::{AccountName, OnceKey, TenantId, TenantNo, Unit};
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use std::collections::BTreeMap;

/// A change of a grant that is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewChange {
    pub grant: u64,
    pub kind: ChangeKind,
    /// In the grant's unit.
    pub amount: Quantity,
    pub covered: Option<Covered>,
    pub key: Option<OnceKey>,
    pub memo: String,
}

/// A change that is planned: its row, but for its number and time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedChange {
    pub tenant_no: TenantNo,
    tenant: TenantId,
    pool: Pool,
    unit: Unit,
    pub new: NewChange,
    /// What the grant has left before it, and after.
    pub before: Quantity,
    pub remaining: Quantity,
}

/// A change whose row was written: the number that the store gave it, and the row's grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrittenChange {
    pub number: u64,
    pub grant: u64,
}

/// A change with its number, and what is written with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedChange {
    pub tenant_no: TenantNo,
    pub change: CreditChange,
    /// Accounts that the entry moves between, to be created if they are missing.
    pub accounts: [NewAccount; 2],
    pub entry: NewEntry,
    pub published: Option<FeedChange>,
}

/// Grants by tenant, as the planned changes leave them.
#[derive(Debug, Default)]
pub struct Ledger {
    grants: BTreeMap<TenantNo, Vec<Grant>>,
    planned: Vec<PlannedChange>,
}

impl Ledger {
    /// Holds a grant that the transaction has read and nobody else changes before its end.
    pub fn hold(&mut self, tenant_no: TenantNo, grant: Grant) -> Result<(), Fault> {
        check_grant(&grant)?;
        let number = grant.number;
        let grants = self.grants.entry(tenant_no).or_default();
        must!(
            grants.iter().all(|held| held.number != number),
            "a transaction holds a grant once",
            "grant={number}"
        );
        must!(
            grants.iter().all(|held| held.terms.tenant == grant.terms.tenant),
            "grants held together are of one tenant",
            "grant={number} tenant={}",
            grant.terms.tenant
        );
        grants.push(grant);
        Ok(())
    }

    pub fn holds(&self, tenant_no: TenantNo, grant: u64) -> bool {
        self.grants(tenant_no).iter().any(|held| held.number == grant)
    }

    /// A tenant's grants, as the planned changes leave them.
    pub fn grants(&self, tenant_no: TenantNo) -> &[Grant] {
        self.grants.get(&tenant_no).map_or(&[], Vec::as_slice)
    }

    /// Plans the change that fills a grant whose row was just written with nothing in it, and
    /// returns the grant as it is then.
    pub fn issue(
        &mut self,
        tenant_no: TenantNo,
        number: u64,
        terms: GrantTerms,
        at: Timestamp,
    ) -> Result<Grant, Fault> {
        let (amount, memo) = (terms.amount, terms.memo.clone());
        let empty = Grant { number, terms, remaining: Quantity::ZERO, created_at: at };
        self.hold(tenant_no, empty.clone())?;
        let kind = ChangeKind::Issued;
        let change = NewChange { grant: number, kind, amount, covered: None, key: None, memo };
        self.plan(tenant_no, change)?;
        Ok(Grant { remaining: amount, ..empty })
    }

    /// Plans a change after those that were planned before it.
    pub fn plan(&mut self, tenant_no: TenantNo, new: NewChange) -> Result<(), Fault> {
        let grants = self.grants.get_mut(&tenant_no);
        let grant = grants.and_then(|grants| grants.iter_mut().find(|one| one.number == new.grant));
        let Some(grant) = grant else {
            let fact = "a change is of a grant that the transaction holds";
            return Err(Fault { fact, ids: format!("grant={}", new.grant) });
        };
        let before = grant.remaining;
        let Some(remaining) = remaining_after(grant, new.kind, new.amount) else {
            let fact = "a change leaves a grant between nothing and its amount";
            let NewChange { grant, kind, amount, .. } = &new;
            let ids = format!("grant={grant} {}={amount} remaining={before}", kind.name());
            return Err(Fault { fact, ids });
        };
        check_change(grant, &new, remaining)?;
        grant.remaining = remaining;
        let GrantTerms { tenant, pool, unit, .. } = &grant.terms;
        let (tenant, pool, unit) = (tenant.clone(), *pool, unit.clone());
        let planned = PlannedChange { tenant_no, tenant, pool, unit, new, before, remaining };
        self.planned.push(planned);
        Ok(())
    }

    /// Plans what a window draws or gives back. `changes` are what the window has drawn and given
    /// back so far, oldest first; they are needed where it shrinks below what is covered of it.
    pub fn cover(
        &mut self,
        tenant_no: TenantNo,
        window: Window,
        order: &CoverOrder,
        changes: &[(ChangeKind, Draw)],
        draw_order: DrawOrder,
    ) -> Result<Covering, Fault> {
        let grants = self.grants(tenant_no);
        if grants.is_empty() && order.covered == Quantity::ZERO {
            return Ok(Covering::default());
        }
        must!(
            window.start <= order.during.start && order.during.end <= window.end,
            "usage lies in its window",
            "meter={} window={} usage={}",
            order.meter.0,
            window.start,
            order.during.start
        );
        let standing = match order.now < order.covered {
            true => standing_draws(changes)?,
            false => Vec::new(),
        };
        let covering = plan_covering(order, grants, &standing, draw_order)?;
        let drawn = covering.drawn.iter().map(|draw| (ChangeKind::Drawn, draw));
        let given_back = covering.given_back.iter().map(|draw| (ChangeKind::GivenBack, draw));
        for (kind, draw) in drawn.chain(given_back) {
            let covered = Covered { meter: order.meter, window, quantity: draw.quantity };
            self.plan(
                tenant_no,
                NewChange {
                    grant: draw.grant,
                    kind,
                    amount: draw.cost,
                    covered: Some(covered),
                    key: None,
                    memo: String::new(),
                },
            )?;
        }
        Ok(covering)
    }

    /// Takes what is planned, in its order; the grants stay held.
    pub fn take_planned(&mut self) -> Vec<PlannedChange> {
        std::mem::take(&mut self.planned)
    }
}

/// The facts that must hold of a change before it is written.
fn check_change(grant: &Grant, new: &NewChange, remaining: Quantity) -> Result<(), Fault> {
    let (number, kind, amount) = (grant.number, new.kind.name(), new.amount);
    let pool = grant.terms.pool;
    must!(amount > Quantity::ZERO, "a change is of something", "grant={number} kind={kind}");
    match new.kind {
        ChangeKind::Issued => {
            must!(
                grant.remaining == Quantity::ZERO && remaining == grant.terms.amount,
                "a grant is issued whole and once",
                "grant={number} amount={amount} before={}",
                grant.remaining
            );
        }
        ChangeKind::Drawn | ChangeKind::GivenBack => return check_covered(grant, new),
        ChangeKind::Expired => must!(
            remaining == Quantity::ZERO,
            "an expired grant has nothing left",
            "grant={number} remaining={remaining}"
        ),
        ChangeKind::Refunded => {
            must!(pool == Pool::Purchased, "only what was paid for is refunded", "grant={number}");
        }
        ChangeKind::Voided => {
            must!(pool == Pool::Granted, "only what was given is voided", "grant={number}");
        }
    }
    must!(new.covered.is_none(), "only draws cover usage", "grant={number} kind={kind}");
    must!(
        new.key.is_some() == matches!(new.kind, ChangeKind::Refunded | ChangeKind::Voided),
        "a change that a caller asks for has a key",
        "grant={number} kind={kind}"
    );
    Ok(())
}

/// The facts that must hold of a draw, or of what is given back, before it is written.
fn check_covered(grant: &Grant, new: &NewChange) -> Result<(), Fault> {
    let (number, cost) = (grant.number, new.amount);
    let Some(Covered { meter, window, quantity }) = &new.covered else {
        let fact = "a draw says which usage it covers";
        return Err(Fault { fact, ids: format!("grant={number}") });
    };
    must!(window.start < window.end, "a draw's window is not empty", "grant={number}");
    must!(new.key.is_none(), "a draw has no key", "grant={number}");
    let rate = grant.terms.rates.get(meter).copied();
    let price = rate.and_then(|rate| cost_of(*quantity, rate).ok());
    must!(
        price == Some(cost),
        "credits move by usage times the grant's rate",
        "grant={number} meter={} quantity={quantity} rate={} cost={cost}",
        meter.0,
        shown(rate)
    );
    Ok(())
}

/// Makes what is written with changes whose rows were written, in their order.
pub fn record_changes(
    planned: Vec<PlannedChange>,
    written: &[WrittenChange],
    at: Timestamp,
) -> Result<Vec<RecordedChange>, Fault> {
    must!(
        written.len() == planned.len(),
        "each change that is planned is written",
        "planned={} written={}",
        planned.len(),
        written.len()
    );
    must!(
        written.is_sorted_by(|a, b| a.number < b.number),
        "changes are numbered in the order in which they were planned",
        "{written:?}"
    );
    planned
        .into_iter()
        .zip(written)
        .map(|(planned, written)| planned.record(*written, at))
        .collect()
}

impl PlannedChange {
    fn record(self, written: WrittenChange, at: Timestamp) -> Result<RecordedChange, Fault> {
        let Self { tenant_no, tenant, pool, unit, new, remaining, .. } = self;
        let NewChange { grant, kind, amount, covered, key, memo } = new;
        let number = written.number;
        must!(number > 0, "a change has a number", "grant={grant}");
        must!(
            written.grant == grant,
            "a change's row is of its grant",
            "change={number} grant={grant} written={}",
            written.grant
        );
        let sides = sides(kind, pool);
        let accounts = sides.map(|side| NewAccount {
            tenant: tenant.clone(),
            name: side.name(&unit),
            unit: unit.clone(),
            floor: side.floor(),
        });
        let Some(taken) = Quantity::ZERO.checked_sub(amount) else {
            let fact = "an amount of credits has its negative";
            return Err(Fault { fact, ids: format!("change={number} amount={amount}") });
        };
        let posting = |account: &NewAccount, amount| NewPosting {
            account: account.name.clone(),
            amount,
            expected_version: None,
        };
        let entry = NewEntry {
            tenant: tenant.clone(),
            key: OnceKey::parse(&format!("credits.{number}")).expect("a short key"),
            memo: format!("grant {grant}: {}", kind.name()),
            postings: vec![posting(&accounts[0], taken), posting(&accounts[1], amount)],
        };
        let change =
            CreditChange { number, tenant, grant, kind, amount, remaining, covered, key, memo, at };
        let published = published_of(&change, &unit);
        Ok(RecordedChange { tenant_no, change, accounts, entry, published })
    }
}

impl RecordedChange {
    /// The facts that must hold of the entry that was posted for it, with what it left.
    pub fn check_entry(&self, entry: &Entry) -> Result<(), Fault> {
        let CreditChange { number, kind, amount, remaining, .. } = &self.change;
        must!(
            entry.says(&self.entry) && entry.key == self.entry.key,
            "a change's entry moves what the change says",
            "change={number} entry={}",
            entry.number
        );
        for (posting, account) in entry.postings.iter().zip(&self.accounts) {
            let (name, balance) = (&posting.account, posting.balance);
            must!(
                posting.unit == account.unit,
                "an account of credits is of its grants' unit",
                "change={number} account={name} unit={}",
                posting.unit
            );
            must!(
                account.floor == Floor::None || balance >= *remaining,
                "a pool holds at least what is left of each of its grants",
                "change={number} account={name} balance={balance} remaining={remaining}"
            );
            must!(
                posting.amount < Quantity::ZERO || balance >= *amount,
                "an account of credits holds at least what it just took",
                "change={number} account={name} balance={balance} amount={amount}"
            );
            let source = posting.amount < Quantity::ZERO;
            must!(
                !source || *kind != ChangeKind::GivenBack || balance >= Quantity::ZERO,
                "no more is given back of a unit than was spent",
                "change={number} account={name} balance={balance}"
            );
            must!(
                !source
                    || *kind != ChangeKind::Issued
                    || balance.checked_add(*amount).is_some_and(|before| before <= Quantity::ZERO),
                "what was issued of a unit is not negative",
                "change={number} account={name} balance={balance}"
            );
        }
        Ok(())
    }
}

/// The published form of a change. Draws are part of every cut, so only the one that leaves nothing
/// of its grant is published.
fn published_of(change: &CreditChange, unit: &Unit) -> Option<FeedChange> {
    let kind = match change.kind {
        ChangeKind::Issued => "credits.issued",
        ChangeKind::Refunded | ChangeKind::Voided => "credits.voided",
        ChangeKind::Expired => "credits.expired",
        ChangeKind::Drawn if change.remaining == Quantity::ZERO => "credits.exhausted",
        ChangeKind::Drawn | ChangeKind::GivenBack => return None,
    };
    let payload = serde_json::json!({
        "tenant": change.tenant,
        "grant": change.grant,
        "kind": change.kind,
        "amount": change.amount,
        "remaining": change.remaining,
        "unit": unit.as_str(),
        "at": change.at,
    });
    let (key, tenant) = (format!("credit:{}", change.number), Some(change.tenant.clone()));
    Some(FeedChange { key, kind, tenant, payload: payload.to_string() })
}

/// An account that credits move through, for one tenant and unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CreditAccount {
    /// The other side of all that was issued.
    Issued,
    Pool(Pool),
    Spent,
    Expired,
    Voided,
}

/// The accounts that a change moves from and to.
fn sides(kind: ChangeKind, pool: Pool) -> [CreditAccount; 2] {
    let pool = CreditAccount::Pool(pool);
    match kind {
        ChangeKind::Issued => [CreditAccount::Issued, pool],
        ChangeKind::Drawn => [pool, CreditAccount::Spent],
        ChangeKind::GivenBack => [CreditAccount::Spent, pool],
        ChangeKind::Expired => [pool, CreditAccount::Expired],
        ChangeKind::Refunded | ChangeKind::Voided => [pool, CreditAccount::Voided],
    }
}

impl CreditAccount {
    fn name(self, unit: &Unit) -> AccountName {
        let side = match self {
            Self::Issued => "issued",
            Self::Pool(pool) => pool.name(),
            Self::Spent => "spent",
            Self::Expired => "expired",
            Self::Voided => "voided",
        };
        AccountName::parse(&format!("credits.{unit}.{side}")).expect("a short name of units")
    }

    fn floor(self) -> Floor {
        match self {
            Self::Pool(_) => Floor::Zero,
            Self::Issued | Self::Spent | Self::Expired | Self::Voided => Floor::None,
        }
    }
}
