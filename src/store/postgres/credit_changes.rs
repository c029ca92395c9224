//! Changes of grants, and all that belongs to them, inside the caller's transaction.
//!
//! Invariant: a change's row, what it leaves in its grant's row, its entry between the tenant's
//! credit accounts and its message are written together, here and nowhere else. The caller holds
//! the grants; accounts come after them, messages last.
//!
//! A crash leaves all of the caller's transaction or nothing.

use super::entries::{Book, Look, create_accounts};
use super::messages::insert_messages;
use super::numeric::SqlQuantity;
use super::push_rows::each;
use super::scalars::{SqlTimestamp, column, corrupt, meter_number, read_count, write_count};
use super::transaction::Done;
use crate::rules::account::NewEntry;
use crate::rules::credit::{
    ChangeKind, Covered, CreditChange, Grant, entry_key, postings_of, remaining_after,
};
use crate::rules::ids::{AccountName, OnceKey};
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;
use crate::store::account::NewAccount;
use crate::store::message::NewMessage;
use crate::store::{Error, Result};
use deadpool_postgres::ClientWrapper;
use std::collections::{BTreeMap, BTreeSet};
use tokio_postgres::types::ToSql;

/// Grants that the caller holds, and the changes of them that are planned.
#[derive(Default)]
pub struct Ledger {
    /// By tenant, as the planned changes leave them.
    grants: BTreeMap<i32, Vec<Grant>>,
    planned: Vec<Planned>,
}

/// A change that is to be made.
pub struct NewChange {
    pub grant: u64,
    pub kind: ChangeKind,
    /// In the grant's unit.
    pub amount: Quantity,
    pub covered: Option<Covered>,
    pub key: Option<OnceKey>,
    pub memo: String,
}

impl NewChange {
    /// One that covers no usage and has neither a key nor a memo.
    pub fn of(grant: u64, kind: ChangeKind, amount: Quantity) -> Self {
        Self { grant, kind, amount, covered: None, key: None, memo: String::new() }
    }
}

struct Planned {
    tenant_no: i32,
    new: NewChange,
    /// What it leaves of the grant.
    remaining: Quantity,
}

impl Ledger {
    pub fn new(held: Vec<(i32, Grant)>) -> Self {
        let mut grants: BTreeMap<i32, Vec<Grant>> = BTreeMap::new();
        for (tenant_no, grant) in held {
            grants.entry(tenant_no).or_default().push(grant);
        }
        Self { grants, planned: Vec::new() }
    }

    /// A tenant's grants, as the planned changes leave them.
    pub fn grants(&self, tenant_no: i32) -> &[Grant] {
        self.grants.get(&tenant_no).map_or(&[], Vec::as_slice)
    }

    /// Plans a change after those that were planned before it.
    pub fn plan(&mut self, tenant_no: i32, new: NewChange) -> Result<()> {
        let grants = self.grants.get_mut(&tenant_no);
        let grant = grants.and_then(|grants| grants.iter_mut().find(|one| one.number == new.grant));
        let grant = grant.ok_or_else(|| corrupt(format!("grant {} is missing", new.grant)))?;
        let remaining = remaining_after(grant, new.kind, new.amount).ok_or_else(|| {
            let (number, kind, amount) = (grant.number, new.kind.name(), new.amount);
            let left = grant.remaining;
            corrupt(format!("{amount} of grant {number} cannot be {kind} while it has {left}"))
        })?;
        grant.remaining = remaining;
        self.planned.push(Planned { tenant_no, new, remaining });
        Ok(())
    }

    /// Writes what is planned; the changes are in the order in which they were planned.
    pub async fn write(self, client: &ClientWrapper, at: Timestamp) -> Done<Vec<CreditChange>> {
        if self.planned.is_empty() {
            return Ok(Vec::new());
        }
        let numbers = self.insert_changes(client, at).await?;
        self.write_grants(client).await?;
        self.post_entries(client, &numbers, at).await?;
        let (mut changes, mut messages) = (Vec::new(), Vec::new());
        for (number, planned) in numbers.into_iter().zip(&self.planned) {
            let grant = self.grant(planned)?;
            let NewChange { kind, amount, covered, key, memo, .. } = &planned.new;
            let change = CreditChange {
                number,
                tenant: grant.terms.tenant.clone(),
                grant: grant.number,
                kind: *kind,
                amount: *amount,
                remaining: planned.remaining,
                covered: covered.clone(),
                key: key.clone(),
                memo: memo.clone(),
                at,
            };
            messages.extend(message_of(&change, grant));
            changes.push(change);
        }
        insert_messages(client, &messages, at).await?;
        Ok(changes)
    }

    fn grant(&self, planned: &Planned) -> Result<&Grant> {
        let mut grants = self.grants(planned.tenant_no).iter();
        let found = grants.find(|grant| grant.number == planned.new.grant);
        found.ok_or_else(|| corrupt("a grant is there and is not"))
    }

    async fn insert_changes(&self, client: &ClientWrapper, at: Timestamp) -> Done<Vec<u64>> {
        let sql = "-- insert_changes
            INSERT INTO credit_changes (tenant_no, grant_no, kind, amount, remaining, meter_no,
                window_start, window_end, quantity, key, memo, at)
            SELECT tenant_no, grant_no, kind, amount, remaining, meter_no, window_start,
                window_end, quantity, key, memo, $12
            FROM unnest($1::int4[], $2::int8[], $3::text[], $4::numeric[], $5::numeric[],
                $6::int2[], $7::timestamptz[], $8::timestamptz[], $9::numeric[], $10::text[],
                $11::text[])
                WITH ORDINALITY AS given (tenant_no, grant_no, kind, amount, remaining, meter_no,
                window_start, window_end, quantity, key, memo, place)
            ORDER BY place
            RETURNING change_no, grant_no";
        let statement = client.prepare_cached(sql).await?;
        let planned = &self.planned;
        let covered = |of: fn(&Covered) -> SqlTimestamp| {
            each(planned, move |planned| planned.new.covered.as_ref().map(of))
        };
        let grants: Vec<i64> =
            planned.iter().map(|planned| write_count(planned.new.grant)).collect::<Result<_>>()?;
        let parameters: [&(dyn ToSql + Sync); 12] = [
            &each(planned, |planned| planned.tenant_no),
            &grants,
            &each(planned, |planned| planned.new.kind.name()),
            &each(planned, |planned| SqlQuantity(planned.new.amount)),
            &each(planned, |planned| SqlQuantity(planned.remaining)),
            &each(planned, |planned| planned.new.covered.as_ref().map(|c| meter_number(c.meter))),
            &covered(|covered| SqlTimestamp(covered.window.start)),
            &covered(|covered| SqlTimestamp(covered.window.end)),
            &each(planned, |planned| planned.new.covered.as_ref().map(|c| SqlQuantity(c.quantity))),
            &each(planned, |planned| planned.new.key.as_ref().map(OnceKey::as_str)),
            &each(planned, |planned| planned.new.memo.as_str()),
            &SqlTimestamp(at),
        ];
        let rows = client.query(&statement, &parameters).await?;
        let mut numbers = Vec::with_capacity(rows.len());
        for (row, grant) in rows.iter().zip(grants) {
            if column::<i64>(row, 1)? != grant {
                let what = "changes of credits were not written in their order".into();
                return Err(Error::Internal { what }.into());
            }
            numbers.push(read_count(column(row, 0)?)?);
        }
        Ok(numbers)
    }

    /// Writes what the last change of each grant leaves.
    async fn write_grants(&self, client: &ClientWrapper) -> Done<()> {
        let sql = "-- write_grants
            UPDATE grants g SET remaining = given.remaining
            FROM unnest($1::int8[], $2::int4[], $3::numeric[])
                AS given (grant_no, tenant_no, remaining)
            WHERE g.grant_no = given.grant_no AND g.tenant_no = given.tenant_no";
        let last: BTreeMap<u64, &Planned> =
            self.planned.iter().map(|planned| (planned.new.grant, planned)).collect();
        let numbers: Vec<i64> =
            last.keys().map(|number| write_count(*number)).collect::<Result<_>>()?;
        let tenants: Vec<i32> = last.values().map(|planned| planned.tenant_no).collect();
        let remaining: Vec<_> = last.values().map(|one| SqlQuantity(one.remaining)).collect();
        let statement = client.prepare_cached(sql).await?;
        let written = client.execute(&statement, &[&numbers, &tenants, &remaining]).await?;
        match usize::try_from(written) == Ok(numbers.len()) {
            true => Ok(()),
            false => Err(corrupt("a grant that is held is not there").into()),
        }
    }

    /// Moves each change's amount between the tenant's credit accounts.
    async fn post_entries(
        &self,
        client: &ClientWrapper,
        numbers: &[u64],
        at: Timestamp,
    ) -> Done<()> {
        let mut accounts: BTreeMap<(i32, AccountName), NewAccount> = BTreeMap::new();
        let mut entries = Vec::with_capacity(self.planned.len());
        for (number, planned) in numbers.iter().zip(&self.planned) {
            let terms = &self.grant(planned)?.terms;
            let NewChange { grant, kind, amount, .. } = &planned.new;
            let posted = postings_of(terms, *kind, *amount)
                .map_err(|error| Error::Internal { what: error.to_string() })?;
            let mut postings = Vec::with_capacity(posted.len());
            for (posting, floor) in posted {
                let (tenant, name) = (terms.tenant.clone(), posting.account.clone());
                let account = NewAccount { tenant, name, unit: terms.unit.clone(), floor };
                accounts.insert((planned.tenant_no, account.name.clone()), account);
                postings.push(posting);
            }
            let (tenant, key) = (terms.tenant.clone(), entry_key(*number));
            let memo = format!("grant {grant}: {}", kind.name());
            entries.push((planned.tenant_no, NewEntry { tenant, key, memo, postings }));
        }
        let wanted: Vec<(i32, NewAccount)> =
            accounts.iter().map(|((tenant_no, _), new)| (*tenant_no, new.clone())).collect();
        create_accounts(client, &wanted, at).await?;
        let names: BTreeSet<(i32, &AccountName)> =
            accounts.keys().map(|(tenant_no, name)| (*tenant_no, name)).collect();
        let mut book = Book::open(client, &names, Look::Locked).await?;
        for (tenant_no, entry) in entries {
            let (tenant, key) = (entry.tenant.clone(), entry.key.clone());
            book.plan(tenant_no, entry).map_err(|refusal| {
                let why = refusal.to_refusal().detail;
                corrupt(format!("entry {key} of tenant {tenant} contradicts its grant: {why}"))
            })?;
        }
        book.write(client, at).await?;
        Ok(())
    }
}

/// What others are told of a change. Draws are part of every cut; only the one that leaves nothing
/// is worth a word.
fn message_of(change: &CreditChange, grant: &Grant) -> Option<NewMessage> {
    let kind = match change.kind {
        ChangeKind::Issued => "credits.issued",
        ChangeKind::Refunded | ChangeKind::Voided => "credits.taken_back",
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
        "unit": grant.terms.unit.as_str(),
        "at": change.at,
    });
    Some(NewMessage {
        key: format!("credit:{}", change.number),
        kind,
        tenant: Some(change.tenant.clone()),
        payload: payload.to_string(),
    })
}
