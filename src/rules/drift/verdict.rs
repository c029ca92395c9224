//! What a comparison can say, and why.
//!
//! Invariant: verdicts are in the order of how bad they are; the worst part of a day is the day's.

use serde::{Deserialize, Serialize};

/// What a comparison says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Equal,
    /// They differ by no more than the meter's threshold.
    Tolerance,
    /// They match but for what a person wrote off; it is never billed.
    WrittenOff,
    /// Used before the meter's `billing.from`; it is never billed.
    NotBilled,
    /// Counted in shadow mode; it is never billed.
    Shadow,
    /// They differ, and will not once what is on its way has arrived.
    Waiting,
    /// The provider's total was not read in this pass; nothing is known of it.
    Unread,
    /// The tenant has no customer at the provider; its usage is billed to nobody.
    Unmapped,
    /// The ledger is higher, and what is missing may safely be sent again.
    Replay,
    /// The provider is higher: something bypasses the ledger. Never corrected by us.
    Bypass,
    /// What is known fits several stories; a person must look.
    Undecidable,
}

impl Verdict {
    pub const ALL: [Self; 11] = [
        Self::Equal,
        Self::Tolerance,
        Self::WrittenOff,
        Self::NotBilled,
        Self::Shadow,
        Self::Waiting,
        Self::Unread,
        Self::Unmapped,
        Self::Replay,
        Self::Bypass,
        Self::Undecidable,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::Tolerance => "tolerance",
            Self::WrittenOff => "written_off",
            Self::NotBilled => "not_billed",
            Self::Shadow => "shadow",
            Self::Waiting => "waiting",
            Self::Unread => "unread",
            Self::Unmapped => "unmapped",
            Self::Replay => "replay",
            Self::Bypass => "bypass",
            Self::Undecidable => "undecidable",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verdict| verdict.name() == name)
    }

    /// Whether it stays wrong unless somebody does something.
    pub fn is_drift(self) -> bool {
        match self {
            Self::Replay | Self::Bypass | Self::Undecidable => true,
            Self::Equal
            | Self::Tolerance
            | Self::WrittenOff
            | Self::NotBilled
            | Self::Shadow
            | Self::Waiting
            | Self::Unread
            | Self::Unmapped => false,
        }
    }

    /// Whether both sides were compared and are not the same.
    pub fn differs(self) -> bool {
        match self {
            Self::Tolerance | Self::Waiting | Self::Replay | Self::Bypass | Self::Undecidable => {
                true
            }
            Self::Equal
            | Self::WrittenOff
            | Self::NotBilled
            | Self::Shadow
            | Self::Unread
            | Self::Unmapped => false,
        }
    }

    /// Whether it says nothing of the provider, so that a row is complete without its total.
    pub fn needs_no_reading(self) -> bool {
        match self {
            Self::NotBilled | Self::Shadow | Self::Unmapped => true,
            Self::Equal
            | Self::Tolerance
            | Self::WrittenOff
            | Self::Waiting
            | Self::Unread
            | Self::Replay
            | Self::Bypass
            | Self::Undecidable => false,
        }
    }
}

/// Why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Both sides show the same, or nearly.
    Matches,
    /// Usage that no cut has handed to billing yet.
    Uncut,
    /// Pushes that were not sent yet, or whose outcome is not known yet.
    Unsent,
    /// The provider's total was not read, or not since the last push of the window.
    Unread,
    /// The provider's total was read once only; another reading decides.
    ReadOnce,
    /// Taken by the provider less than an hour ago.
    Lag,
    /// Taken by the provider more than an hour ago; its summary may still be late.
    LongLag,
    /// Pushes that the provider took and surely did not count.
    Dropped,
    /// Pushes that the provider refused.
    Refused,
    /// The provider had shown it, or had time to, and shows less.
    Lost,
    /// The provider shows more than was ever sent.
    ProviderHigher,
    /// The provider shows what a push would make that is given up.
    Doubtful,
    /// More digits than a double holds exactly.
    Digits,
    /// The other side has no such thing.
    OneSided,
    /// Another state than was known.
    Status,
    /// Another quantity or amount than was counted.
    Amount,
    /// A person wrote it off.
    Discarded,
    /// It lies before the meter's `billing.from`.
    BeforeFrom,
    /// It was cut in shadow mode.
    Shadow,
    /// The tenant has no customer.
    NoCustomer,
}

impl Reason {
    pub const ALL: [Self; 20] = [
        Self::Matches,
        Self::Uncut,
        Self::Unsent,
        Self::Unread,
        Self::ReadOnce,
        Self::Lag,
        Self::LongLag,
        Self::Dropped,
        Self::Refused,
        Self::Lost,
        Self::ProviderHigher,
        Self::Doubtful,
        Self::Digits,
        Self::OneSided,
        Self::Status,
        Self::Amount,
        Self::Discarded,
        Self::BeforeFrom,
        Self::Shadow,
        Self::NoCustomer,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Matches => "matches",
            Self::Uncut => "uncut",
            Self::Unsent => "unsent",
            Self::Unread => "unread",
            Self::ReadOnce => "read_once",
            Self::Lag => "lag",
            Self::LongLag => "long_lag",
            Self::Dropped => "dropped",
            Self::Refused => "refused",
            Self::Lost => "lost",
            Self::ProviderHigher => "provider_higher",
            Self::Doubtful => "doubtful",
            Self::Digits => "digits",
            Self::OneSided => "one_sided",
            Self::Status => "status",
            Self::Amount => "amount",
            Self::Discarded => "discarded",
            Self::BeforeFrom => "before_from",
            Self::Shadow => "shadow",
            Self::NoCustomer => "no_customer",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.name() == name)
    }

    /// What to do, or what it could be, for the person who reads it.
    pub fn advice(self) -> &'static str {
        match self {
            Self::Matches => "both halves match",
            Self::Uncut => {
                "the next cut hands it to billing; if it stays, the job that cuts is held up, and \
                 the log says by what"
            }
            Self::Unsent => "it is being sent; counterfoil pushes --state observed",
            Self::Unread => {
                "the provider's total could not be read, or was not read since the last push; the \
                 next pass reads it"
            }
            Self::ReadOnce => "the next pass reads the provider's total again",
            Self::Lag | Self::LongLag => "the provider's summary is behind; it is looked at again",
            Self::Dropped => "the provider took it and did not count it; it is sent again",
            Self::Refused => {
                "the provider refused it; counterfoil pushes --state dead says why; mend the \
                 cause, then counterfoil pushes retry"
            }
            Self::Lost => {
                "the provider counted it and shows it no more: a meter event adjustment, or a \
                 fault of its own; counterfoil reconcile --apply sends the difference"
            }
            Self::ProviderHigher => {
                "something besides this server reports usage for the customer: another program \
                 with the account's key, a second server with another store, a negative usage that \
                 was lost, or an entry made by hand; find it, it is never corrected from here"
            }
            Self::Doubtful => {
                "a push that was given up may have counted; compare by hand, then retry or discard \
                 it"
            }
            Self::Digits => "the total has more digits than the provider's numbers hold exactly",
            Self::OneSided => "the provider has it and nothing here belongs to it",
            Self::Status => "it was taken over from the provider",
            Self::Amount => "compare the invoice with counterfoil stripe compare",
            Self::Discarded => "a person wrote it off, and it is never billed; the note says why",
            Self::BeforeFrom => "it was used before the meter's billing.from, and is never billed",
            Self::Shadow => "it was counted in shadow mode, and is never billed",
            Self::NoCustomer => {
                "the tenant has no customer, so its usage is billed to nobody; PUT \
                 /v1/tenants/{id} with \"customer\""
            }
        }
    }
}
