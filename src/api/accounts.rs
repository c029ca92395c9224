//! Accounts of double entry, their statements and entries.

use super::{Decimal, Timestamp};
use crate::rules::account::{Account, Entry, Floor, Posting, StatementLine};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"unit": "eur", "floor": "zero"}))]
pub struct AccountSpec {
    /// A currency or another unit, such as `eur` or `credits`.
    #[schema(min_length = 1, max_length = 32, pattern = "^[a-z0-9][a-z0-9_.-]*$")]
    pub unit: String,
    /// `zero` if its balance may not fall below 0.
    #[serde(default)]
    pub floor: Floor,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct AccountAnswer {
    pub name: String,
    pub unit: String,
    pub floor: Floor,
    /// An exact decimal number.
    pub balance: Decimal,
    /// How many entries have touched it.
    pub version: u64,
    pub created_at: Timestamp,
}

page!(AccountList, accounts: AccountAnswer, next_after: String);

#[derive(Serialize, Deserialize, ToSchema)]
pub struct StatementLineAnswer {
    /// Lines of an account are numbered without gaps.
    pub version: u64,
    pub entry: u64,
    pub key: String,
    pub memo: String,
    pub amount: Decimal,
    /// The balance after this posting.
    pub balance: Decimal,
    pub at: Timestamp,
}

page!(Statement, lines: StatementLineAnswer ("Newest first."), next_before: u64);

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PostingSpec {
    #[schema(min_length = 1, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub account: String,
    /// What the account gains, as a decimal number; negative where it loses.
    #[schema(pattern = r"^-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,12})?$")]
    pub amount: String,
    /// Refuse the entry if the account has another version by now.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991i64)]
    pub expected_version: Option<u64>,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "memo": "top-up of 2026-11",
    "postings": [
        {"account": "wallet", "amount": "25.00"}, {"account": "payments", "amount": "-25.00"}
    ]
}))]
pub struct EntrySpec {
    /// Why, for readers of the statement.
    #[serde(default)]
    #[schema(max_length = 500, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
    pub memo: String,
    /// They sum to 0 in each unit.
    #[schema(min_items = 2, max_items = 100)]
    pub postings: Vec<PostingSpec>,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct PostingAnswer {
    pub account: String,
    pub unit: String,
    pub amount: Decimal,
    /// The balance after this posting.
    pub balance: Decimal,
    pub version: u64,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct EntryAnswer {
    pub number: u64,
    /// The idempotency key it was written under.
    pub key: String,
    pub memo: String,
    pub postings: Vec<PostingAnswer>,
    pub at: Timestamp,
}

impl From<Account> for AccountAnswer {
    fn from(account: Account) -> Self {
        let Account { name, unit, floor, balance, version, created_at, .. } = account;
        let (name, unit) = (name.to_string(), unit.to_string());
        Self { name, unit, floor, balance, version, created_at }
    }
}

impl From<StatementLine> for StatementLineAnswer {
    fn from(line: StatementLine) -> Self {
        let StatementLine { version, entry, key, memo, amount, balance, at } = line;
        Self { version, entry, key: key.to_string(), memo, amount, balance, at }
    }
}

impl From<&Entry> for EntryAnswer {
    fn from(entry: &Entry) -> Self {
        let Entry { number, key, memo, postings, at, .. } = entry.clone();
        let postings = postings.into_iter().map(PostingAnswer::from).collect();
        Self { number, key: key.to_string(), memo, postings, at }
    }
}

impl From<Posting> for PostingAnswer {
    fn from(posting: Posting) -> Self {
        let Posting { account, unit, amount, balance, version } = posting;
        let (account, unit) = (account.to_string(), unit.to_string());
        Self { account, unit, amount, balance, version }
    }
}
