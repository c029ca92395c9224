//! Accounts: double entry. An entry moves amounts between accounts of one tenant and sums to zero
//! in every unit, so value is moved and never made.
//!
//! Invariant: over a tenant's accounts of one unit, balances sum to zero. An account that may not
//! fall below zero never does. Every entry that touches an account raises its version by one; a
//! writer that saw an older version starts again from a fresh look (never "the latest row": the
//! account's own row carries balance and version).

use super::ids::{AccountName, OnceKey, TenantId, Unit};
use super::quantity::Quantity;
use super::refusal::Refusal;
use super::timestamp::Timestamp;
use std::collections::BTreeMap;

/// Postings of one entry.
pub const POSTINGS_MAX: usize = 100;
/// How names begin of accounts, and keys of entries, that are the server's own.
const RESERVED_PREFIX: &str = "credits.";

/// How low a balance may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Floor {
    /// Never below zero.
    Zero,
    None,
}

impl Floor {
    pub fn name(self) -> &'static str {
        match self {
            Self::Zero => "zero",
            Self::None => "none",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Zero, Self::None].into_iter().find(|floor| floor.name() == name)
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
    /// Why, for whoever reads the statement.
    pub memo: String,
    pub postings: Vec<NewPosting>,
}

/// One line of an entry as it stands, with what it left on its account.
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
                "account_unknown",
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

/// Judges an entry against its accounts as they stand; the postings are what it leaves, in order.
pub fn judge_entry(
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
mod tests {
    use super::*;

    fn quantity(text: &str) -> Quantity {
        Quantity::parse_stored(text).expect("valid")
    }

    fn name(text: &str) -> AccountName {
        AccountName::parse(text).expect("valid")
    }

    fn accounts() -> BTreeMap<AccountName, Account> {
        let account = |text: &str, unit: &str, floor, balance: &str| {
            let account = Account {
                tenant: TenantId::parse("acme").expect("valid"),
                name: name(text),
                unit: Unit::parse(unit).expect("valid"),
                floor,
                balance: quantity(balance),
                version: 3,
                created_at: Timestamp::from_micros(0),
            };
            (account.name.clone(), account)
        };
        BTreeMap::from([
            account("wallet", "eur", Floor::Zero, "10"),
            account("sales", "eur", Floor::None, "-10"),
            account("points", "points", Floor::None, "0"),
        ])
    }

    fn judge(postings: &[(&str, &str)]) -> Result<Vec<(String, u64)>, PostRefusal> {
        let postings: Vec<NewPosting> = postings
            .iter()
            .map(|(account, amount)| NewPosting {
                account: name(account),
                amount: quantity(amount),
                expected_version: None,
            })
            .collect();
        let judged = judge_entry(&accounts(), &postings)?;
        Ok(judged.into_iter().map(|p| (p.balance.to_string(), p.version)).collect())
    }

    #[test]
    fn an_entry_moves_and_never_makes() {
        let moved = judge(&[("wallet", "-10"), ("sales", "10")]).expect("allowed");
        assert_eq!(moved, [("0".to_owned(), 4), ("0".to_owned(), 4)]);
        let sum = PostRefusal::Unbalanced(Unit::parse("eur").expect("valid"), quantity("0.01"));
        assert_eq!(judge(&[("wallet", "-9.99"), ("sales", "10")]), Err(sum));
        // Equal amounts of different units do not balance.
        assert!(matches!(
            judge(&[("wallet", "-1"), ("points", "1")]),
            Err(PostRefusal::Unbalanced(..))
        ));
    }

    #[test]
    fn refusals_leave_the_reason() {
        let low = PostRefusal::BelowZero(name("wallet"), quantity("10"));
        assert_eq!(judge(&[("wallet", "-10.000001"), ("sales", "10.000001")]), Err(low));
        assert_eq!(judge(&[("wallet", "1")]), Err(PostRefusal::Postings));
        let twice = [("wallet", "1"), ("wallet", "-1")];
        assert_eq!(judge(&twice), Err(PostRefusal::Repeated(name("wallet"))));
        let nothing = [("wallet", "0"), ("sales", "0")];
        assert_eq!(judge(&nothing), Err(PostRefusal::Nothing(name("wallet"))));
        let unknown = [("walle", "1"), ("sales", "-1")];
        assert_eq!(judge(&unknown), Err(PostRefusal::Unknown(name("walle"))));
    }

    #[test]
    fn a_version_that_moved_on_refuses() {
        let posting = |account: &str, amount: &str, version| NewPosting {
            account: name(account),
            amount: quantity(amount),
            expected_version: version,
        };
        let check = |version, expected: Result<(), PostRefusal>| {
            let postings = [posting("wallet", "-1", version), posting("sales", "1", None)];
            assert_eq!(judge_entry(&accounts(), &postings).map(drop), expected);
        };
        check(Some(3), Ok(()));
        check(Some(2), Err(PostRefusal::Moved(name("wallet"), 3)));
        check(None, Ok(()));
    }
}
