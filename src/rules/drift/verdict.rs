//! What a comparison can say, and why.
//!
//! Invariant: verdicts are in the order of how bad they are; the worst part of a day is the day's.

use crate::rules::named::named_enum;

named_enum! {
    /// What a comparison says.
    pub enum Verdict {
        Equal = "equal",
        /// They differ by no more than the meter's `drift_tolerance`.
        Tolerance = "tolerance",
        /// They match but for what an operator wrote off; it is never billed.
        WrittenOff = "written_off",
        /// Used before the meter's `billing.from`; it is never billed.
        NotBilled = "not_billed",
        /// Counted in shadow mode; it is never billed.
        Shadow = "shadow",
        /// They differ, and will not once what is on its way has arrived.
        Waiting = "waiting",
        /// The provider's total was not read in this pass; nothing is known of it.
        Unread = "unread",
        /// The tenant has no customer at the provider; its usage is not billed.
        Unmapped = "unmapped",
        /// The ledger is higher, and what is missing may safely be sent again.
        Replay = "replay",
        /// The provider is higher: something bypasses the ledger. Never corrected by us.
        Bypass = "bypass",
        /// What is known fits several stories; a person must look.
        Undecidable = "undecidable",
    }
}

impl Verdict {
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

named_enum! {
    /// Why.
    pub enum Reason {
        /// Both sides show the same, or nearly.
        Matches = "matches",
        /// Usage that no cut has handed to billing yet.
        Uncut = "uncut",
        /// Pushes that were not sent yet, or whose outcome is not known yet.
        Unsent = "unsent",
        /// The provider's total was not read, or not since the last push of the window.
        Unread = "unread",
        /// The provider's total was read once only; another reading decides.
        ReadOnce = "read_once",
        /// Taken by the provider less than an hour ago.
        Lag = "lag",
        /// Taken by the provider more than an hour ago; its summary may still be late.
        LongLag = "long_lag",
        /// Pushes that the provider took and surely did not count.
        Dropped = "dropped",
        /// Pushes that the provider refused.
        Refused = "refused",
        /// The provider had shown it, or had time to, and shows less.
        Lost = "lost",
        /// The provider shows more than was ever sent.
        ProviderHigher = "provider_higher",
        /// The provider shows what a push would make that is given up.
        Doubtful = "doubtful",
        /// More digits than a double holds exactly.
        Digits = "digits",
        /// The other side has no such thing.
        OneSided = "one_sided",
        /// Another state than was known.
        Status = "status",
        /// Another quantity or amount than was counted.
        Amount = "amount",
        /// A person wrote it off.
        Discarded = "discarded",
        /// It lies before the meter's `billing.from`.
        BeforeFrom = "before_from",
        /// It was cut in shadow mode.
        Shadow = "shadow",
        /// No subscription was in force, and it is held.
        Outside = "outside",
        /// The tenant has no customer.
        NoCustomer = "no_customer",
    }
}

impl Reason {
    /// The likely cause, or what an operator should do.
    pub fn advice(self) -> &'static str {
        match self {
            Self::Matches => "ledger and provider match",
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
                "the provider refused it; counterfoil pushes --state dead says why; fix the \
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
                "a failed push may have been counted; compare with the provider, then discard it \
                 with a reason"
            }
            Self::Digits => "the total has more digits than the provider's numbers hold exactly",
            Self::OneSided => "the provider has it and nothing here belongs to it",
            Self::Status => "it was taken over from the provider",
            Self::Amount => "compare the invoice with counterfoil stripe compare",
            Self::Discarded => {
                "an operator wrote it off, and it is never billed; the note says why"
            }
            Self::BeforeFrom => "it was used before the meter's billing.from, and is never billed",
            Self::Shadow => "it was counted in shadow mode, and is never billed",
            Self::Outside => {
                "no subscription was in force, and billing.outside is \"hold\"; it is pushed once \
                 a subscription is known that was"
            }
            Self::NoCustomer => {
                "the tenant has no customer, so its usage is not billed; PUT /v1/tenants/{id} with \
                 \"customer\""
            }
        }
    }
}
