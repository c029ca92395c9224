//! Accounts: double entry. An entry moves amounts between accounts of one tenant and sums to zero
//! in every unit, so value is moved and never made.
//!
//! Invariant: over a tenant's accounts of one unit, balances sum to zero. An account that may not
//! fall below zero never does. Every entry that touches an account raises its version by one; a
//! writer that saw an older version starts again from a fresh look (never "the latest row": the
//! account's own row carries balance and version).

use super::fault::{Fault, must, shown};
use super::ids::{AccountName, OnceKey, TenantId, Unit};
use super::named::named_enum;
use super::plan::Plan;
use super::quantity::Quantity;
use super::refusal::Refusal;
use super::timestamp::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// Postings of one entry.
pub const POSTINGS_MAX: usize = 100;
/// How names begin of accounts, and keys of entries, that are the server's own.
const RESERVED_PREFIX: &str = "credits.";

named_enum! {
    /// How low a balance may go.
    #[derive(Default)]
    pub enum Floor {
        /// Never below zero.
        Zero = "zero",
        #[default]
        None = "none",
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    pub tenant: TenantId,
    pub name: AccountName,
    pub unit: Unit,
    pub floor: Floor,
    pub balance: Quantity,
    /// How many entries have touched it.
    pub version: u64,
    pub created_at: Timestamp,
}

/// What an account is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewAccount {
    pub tenant: TenantId,
    pub name: AccountName,
    pub unit: Unit,
    pub floor: Floor,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccountPut {
    Created(Account),
    /// It exists already, and is the same.
    Unchanged(Account),
    /// One of another unit or floor has this name.
    Refused(Account),
}

/// One line of an entry that is to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPosting {
    pub account: AccountName,
    /// What the account gains; negative where it loses.
    pub amount: Quantity,
    /// The version its sender has seen; the entry is refused if it has moved on.
    pub expected_version: Option<u64>,
}

/// An entry that is to be written, once under its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEntry {
    pub tenant: TenantId,
    pub key: OnceKey,
    /// Why, for readers of the statement.
    pub memo: String,
    pub postings: Vec<NewPosting>,
}

/// One stored line of an entry, with the balance it left on its account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Posting {
    pub account: AccountName,
    pub unit: Unit,
    pub amount: Quantity,
    pub balance: Quantity,
    pub version: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Order of creation.
    pub number: u64,
    pub tenant: TenantId,
    pub key: OnceKey,
    pub memo: String,
    /// In the order in which they were given.
    pub postings: Vec<Posting>,
    pub at: Timestamp,
}

impl Entry {
    /// Whether it says the same as one that is sent under its key. Expected versions do not count:
    /// its own writing has moved them.
    pub fn says(&self, new: &NewEntry) -> bool {
        let ours = self.postings.iter().map(|posting| (&posting.account, posting.amount));
        let theirs = new.postings.iter().map(|posting| (&posting.account, posting.amount));
        self.memo == new.memo && ours.eq(theirs)
    }
}

/// The answer to an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Posted {
    Recorded(Entry),
    /// It was written before, under this key.
    Repeated(Entry),
    /// Another entry has this key; nothing was written.
    KeyTaken(Entry),
    /// Nothing was written.
    Refused(PostRefusal),
}

/// One line of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatementLine {
    /// The account's version after it: lines of an account are numbered without gaps.
    pub version: u64,
    pub entry: u64,
    pub key: OnceKey,
    pub memo: String,
    pub amount: Quantity,
    pub balance: Quantity,
    pub at: Timestamp,
}

/// Why an entry was not written; nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PostRefusal {
    /// No posting, or more than [`POSTINGS_MAX`].
    Postings,
    /// An account comes twice; one posting says the same.
    Repeated(AccountName),
    /// A posting of nothing.
    Nothing(AccountName),
    Unknown(AccountName),
    /// The postings of a unit do not sum to zero but to this.
    Unbalanced(Unit, Quantity),
    /// The account holds this much, which is less than the entry takes.
    BelowZero(AccountName, Quantity),
    /// The account has moved on to this version.
    Moved(AccountName, u64),
    /// Larger than can be held exactly.
    TooLarge,
}

impl PostRefusal {
    pub fn to_refusal(&self) -> Refusal {
        match self {
            Self::Postings => Refusal::new(
                "invalid_postings",
                format!("an entry has 2 to {POSTINGS_MAX} postings"),
            ),
            Self::Repeated(name) => Refusal::new(
                "account_repeated",
                format!("account {name} comes twice; add its amounts up into one posting"),
            ),
            Self::Nothing(name) => Refusal::new(
                "amount_zero",
                format!("the posting to account {name} moves nothing; leave it out"),
            ),
            Self::Unknown(name) => Refusal::new(
                "unknown_account",
                format!("there is no account {name} of this tenant; create it first"),
            ),
            Self::Unbalanced(unit, sum) => Refusal::new(
                "entry_unbalanced",
                format!("the postings in {unit} sum to {sum}; they must sum to 0"),
            ),
            Self::BelowZero(name, balance) => Refusal::new(
                "balance_too_low",
                format!("account {name} holds {balance} and may not fall below 0"),
            ),
            Self::Moved(name, version) => Refusal::new(
                "version_moved",
                format!("account {name} is at version {version}; read it again and decide anew"),
            ),
            Self::TooLarge => Refusal::new(
                "amount_too_large",
                "an amount or a balance would be larger than can be held exactly",
            ),
        }
    }
}

/// Whether only the server itself posts to such an account.
pub fn is_reserved(name: &AccountName) -> bool {
    name.as_str().starts_with(RESERVED_PREFIX)
}

/// Whether only the server itself writes entries under such a key.
pub fn is_reserved_key(key: &OnceKey) -> bool {
    key.as_str().starts_with(RESERVED_PREFIX)
}

/// Answers a request for an account: `account` is what has the name after the attempt to
/// create it, `created` whether the attempt did.
pub fn answer_put(new: &NewAccount, account: Account, created: bool) -> Result<AccountPut, Fault> {
    check_account(&account)?;
    must!(
        account.tenant == new.tenant && account.name == new.name,
        "an account is found under its tenant and name",
        "tenant={} name={} found={}",
        new.tenant,
        new.name,
        account.name
    );
    let same = account.unit == new.unit && account.floor == new.floor;
    if !created {
        return Ok(match same {
            true => AccountPut::Unchanged(account),
            false => AccountPut::Refused(account),
        });
    }
    must!(
        same && account.version == 0,
        "an account is created as it was asked for, and empty",
        "account={} version={}",
        account.name,
        account.version
    );
    Ok(AccountPut::Created(account))
}

/// Answers an entry whose key another entry has.
pub fn answer_standing(standing: Entry, new: &NewEntry) -> Result<Posted, Fault> {
    let Entry { number, tenant, key, postings, .. } = &standing;
    must!(
        *tenant == new.tenant && *key == new.key,
        "an entry is found under its tenant and key",
        "tenant={} key={} entry={number}",
        new.tenant,
        new.key
    );
    must!(
        postings.len() >= 2,
        "an entry moves between accounts",
        "entry={number} postings={}",
        postings.len()
    );
    must!(
        postings.iter().all(|posting| posting.version > 0),
        "a posting raises its account's version above zero",
        "entry={number}"
    );
    check_sums(&standing.tenant, &standing.key, postings)?;
    Ok(match standing.says(new) {
        true => Posted::Repeated(standing),
        false => Posted::KeyTaken(standing),
    })
}

/// Plans an entry between accounts as they were read: the postings to write, with what each leaves
/// on its account, in order; or why there is none.
pub fn plan_entry(
    accounts: &BTreeMap<AccountName, Account>,
    new: &NewEntry,
) -> Result<Plan<Vec<Posting>, PostRefusal>, Fault> {
    for account in accounts.values() {
        check_account(account)?;
        must!(
            account.tenant == new.tenant,
            "an entry moves between accounts of one tenant",
            "tenant={} key={} account={}",
            new.tenant,
            new.key,
            account.name
        );
    }
    let postings = match judge_entry(accounts, &new.postings) {
        Ok(postings) => postings,
        Err(refusal) => return Ok(Plan::Answer(refusal)),
    };
    check_postings(accounts, new, &postings)?;
    Ok(Plan::Write(postings))
}

/// Answers an entry of a tenant that is not known, and so has no accounts.
pub fn answer_unknown_tenant(new: &NewEntry) -> Result<Posted, Fault> {
    match plan_entry(&BTreeMap::new(), new)? {
        Plan::Answer(refusal) => Ok(Posted::Refused(refusal)),
        Plan::Write(_) => Err(Fault {
            fact: "an entry between no accounts is refused",
            ids: format!("tenant={} key={}", new.tenant, new.key),
        }),
    }
}

/// The facts that must hold of an account that was read.
fn check_account(account: &Account) -> Result<(), Fault> {
    let Account { tenant, name, floor, balance, version, .. } = account;
    must!(
        *floor == Floor::None || *balance >= Quantity::ZERO,
        "a balance does not fall below its account's floor",
        "tenant={tenant} account={name} balance={balance}"
    );
    must!(
        *version > 0 || *balance == Quantity::ZERO,
        "an account that no entry has touched is empty",
        "tenant={tenant} account={name} balance={balance}"
    );
    Ok(())
}

/// The facts that must hold of postings before they are written.
fn check_postings(
    accounts: &BTreeMap<AccountName, Account>,
    new: &NewEntry,
    postings: &[Posting],
) -> Result<(), Fault> {
    let NewEntry { tenant, key, .. } = new;
    let asked = new.postings.iter().map(|posting| (&posting.account, posting.amount));
    must!(
        asked.eq(postings.iter().map(|posting| (&posting.account, posting.amount))),
        "an entry is written as it was asked for",
        "tenant={tenant} key={key}"
    );
    for Posting { account: name, unit, amount, balance, version } in postings {
        let Some(account) = accounts.get(name) else {
            let fact = "a posting is to an account that was read";
            return Err(Fault { fact, ids: format!("tenant={tenant} key={key} account={name}") });
        };
        must!(
            account.balance.checked_add(*amount) == Some(*balance),
            "a posting leaves the balance before it plus its amount",
            "tenant={tenant} key={key} account={name} amount={amount} balance={balance}"
        );
        must!(
            account.version.checked_add(1) == Some(*version),
            "a posting raises its account's version by one",
            "tenant={tenant} key={key} account={name} version={version}"
        );
        must!(
            account.unit == *unit,
            "a posting is in its account's unit",
            "tenant={tenant} key={key} account={name} unit={unit}"
        );
        must!(
            account.floor == Floor::None || *balance >= Quantity::ZERO,
            "a posting leaves no balance below its account's floor",
            "tenant={tenant} key={key} account={name} balance={balance}"
        );
    }
    check_sums(tenant, key, postings)
}

/// Value is moved and never made.
fn check_sums(tenant: &TenantId, key: &OnceKey, postings: &[Posting]) -> Result<(), Fault> {
    let mut sums: BTreeMap<&Unit, Option<Quantity>> = BTreeMap::new();
    let mut names: BTreeSet<&AccountName> = BTreeSet::new();
    for Posting { account, unit, amount, .. } in postings {
        must!(
            *amount != Quantity::ZERO,
            "a posting moves something",
            "tenant={tenant} key={key} account={account}"
        );
        must!(
            names.insert(account),
            "an entry has one posting for each account",
            "tenant={tenant} key={key} account={account}"
        );
        let sum = sums.entry(unit).or_insert(Some(Quantity::ZERO));
        *sum = sum.and_then(|sum| sum.checked_add(*amount));
    }
    for (unit, sum) in sums {
        must!(
            sum == Some(Quantity::ZERO),
            "the postings of an entry sum to zero in each unit",
            "tenant={tenant} key={key} unit={unit} sum={}",
            shown(sum)
        );
    }
    Ok(())
}

/// The facts that must hold of a page of an account's statement, newest first.
pub fn check_statement(account: &AccountName, lines: &[StatementLine]) -> Result<(), Fault> {
    for pair in lines.windows(2) {
        let [later, before] = pair else { continue };
        must!(
            before.version.checked_add(1) == Some(later.version),
            "lines of a statement are numbered without gaps",
            "account={account} version={} then={}",
            before.version,
            later.version
        );
        must!(
            before.balance.checked_add(later.amount) == Some(later.balance),
            "a line of a statement leaves the balance before it plus its amount",
            "account={account} version={}",
            later.version
        );
    }
    let first = lines.last().filter(|line| line.version == 1);
    must!(
        first.is_none_or(|line| line.amount == line.balance),
        "an account begins with nothing",
        "account={account}"
    );
    Ok(())
}

/// Judges an entry against its accounts as they stand; the postings are what it leaves, in order.
fn judge_entry(
    accounts: &BTreeMap<AccountName, Account>,
    postings: &[NewPosting],
) -> Result<Vec<Posting>, PostRefusal> {
    if !(2..=POSTINGS_MAX).contains(&postings.len()) {
        return Err(PostRefusal::Postings);
    }
    let mut judged: Vec<Posting> = Vec::with_capacity(postings.len());
    let mut sums: BTreeMap<&Unit, Quantity> = BTreeMap::new();
    for NewPosting { account: name, amount, expected_version } in postings {
        if judged.iter().any(|posting| posting.account == *name) {
            return Err(PostRefusal::Repeated(name.clone()));
        }
        if *amount == Quantity::ZERO {
            return Err(PostRefusal::Nothing(name.clone()));
        }
        let account = accounts.get(name).ok_or_else(|| PostRefusal::Unknown(name.clone()))?;
        if expected_version.is_some_and(|expected| expected != account.version) {
            return Err(PostRefusal::Moved(name.clone(), account.version));
        }
        let balance = account.balance.checked_add(*amount).ok_or(PostRefusal::TooLarge)?;
        // Only what takes away can be refused for what it leaves.
        if account.floor == Floor::Zero && balance < Quantity::ZERO && *amount < Quantity::ZERO {
            return Err(PostRefusal::BelowZero(name.clone(), account.balance));
        }
        let sum = sums.entry(&account.unit).or_default();
        *sum = sum.checked_add(*amount).ok_or(PostRefusal::TooLarge)?;
        judged.push(Posting {
            account: name.clone(),
            unit: account.unit.clone(),
            amount: *amount,
            balance,
            version: account.version + 1,
        });
    }
    match sums.into_iter().find(|(_, sum)| *sum != Quantity::ZERO) {
        Some((unit, sum)) => Err(PostRefusal::Unbalanced(unit.clone(), sum)),
        None => Ok(judged),
    }
}

#[cfg(test)]
mod tests;
