//! The provider's account that a store's usage goes to.
//!
//! Usage that an account took counts as billed and is never sent again. If the key of another
//! account, or of the test mode, took its place unnoticed, usage would count as billed where nobody
//! pays for it. So a store is bound to the account that it first met.
//!
//! Invariant: a store has one binding at a time, and nothing is sent to an account that the binding
//! does not admit. An account whose id cannot be read is known by its provider and mode only.

use super::timestamp::Timestamp;
use super::window::Window;
use std::fmt;

/// What identifies an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BillingAccount {
    /// The provider's name.
    pub provider: String,
    /// The provider's name of the account; none if it tells none, or not to this key.
    pub id: Option<String>,
    /// Whether money is moved there.
    pub live: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// 1, 2, …
    pub number: u32,
    pub account: BillingAccount,
    pub bound_at: Timestamp,
}

/// What came of the wish to end a binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unbinding {
    Ended(Binding),
    /// So many pushes were sent to the account, and it is not known if they count there.
    Unsettled(u64),
    /// There was none.
    Unbound,
}

impl BillingAccount {
    /// Whether what is bound to this account may be sent to the other: it is the same one, as far
    /// as both are known.
    pub fn admits(&self, other: &Self) -> bool {
        let same_id = match (&self.id, &other.id) {
            (Some(own), Some(other)) => own == other,
            (None, _) | (_, None) => true,
        };
        self.provider == other.provider && self.live == other.live && same_id
    }
}

impl fmt::Display for BillingAccount {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.provider)?;
        if let Some(id) = &self.id {
            write!(formatter, " account {id}")?;
        }
        formatter.write_str(if self.live { " (live)" } else { " (test mode)" })
    }
}

impl Binding {
    /// The first moment whose usage this account alone was sent; none if there was no other.
    ///
    /// Windows from before have usage in two accounts, and neither's total can be compared.
    pub fn comparable_from(
        &self,
        window_around: impl Fn(Timestamp) -> Window,
    ) -> Option<Timestamp> {
        if self.number <= 1 {
            return None;
        }
        let window = window_around(self.bound_at);
        Some(if window.start == self.bound_at { window.start } else { window.end })
    }

    /// Why nothing is sent to another account, and what to do.
    pub fn explain_refusal(&self, found: &BillingAccount) -> String {
        format!(
            "this store is bound to {} since {}, and the key is of {found}: what was sent there \
             counts as billed and would not be sent here. Put the old key back, use another store \
             for this account, or accept the change with `counterfoil store rebind`",
            self.account, self.bound_at
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(provider: &str, id: Option<&str>, live: bool) -> BillingAccount {
        BillingAccount { provider: provider.into(), id: id.map(str::to_owned), live }
    }

    #[test]
    fn an_account_admits_itself_as_far_as_it_is_known() {
        let bound = account("stripe", Some("acct_1"), true);
        assert!(bound.admits(&bound));
        assert!(bound.admits(&account("stripe", None, true)));
        assert!(account("stripe", None, true).admits(&bound));
        assert!(!bound.admits(&account("stripe", Some("acct_2"), true)));
        assert!(!bound.admits(&account("stripe", Some("acct_1"), false)));
        assert!(!bound.admits(&account("stripe", None, false)));
        assert!(!bound.admits(&account("sink", Some("acct_1"), true)));
        assert_eq!(bound.to_string(), "stripe account acct_1 (live)");
        assert_eq!(account("stripe", None, false).to_string(), "stripe (test mode)");
    }

    #[test]
    fn only_a_later_binding_limits_what_is_compared() {
        let at = |text: &str| Timestamp::parse(text).expect("valid");
        let hour = Window { start: at("2026-11-01T10:00:00Z"), end: at("2026-11-01T11:00:00Z") };
        let bound = |number, moment: &str| Binding {
            number,
            account: account("stripe", None, true),
            bound_at: at(moment),
        };
        let from = |binding: Binding| binding.comparable_from(|_| hour);
        assert_eq!(from(bound(1, "2026-11-01T10:30:00Z")), None);
        assert_eq!(from(bound(2, "2026-11-01T10:30:00Z")), Some(hour.end));
        assert_eq!(from(bound(2, "2026-11-01T10:00:00Z")), Some(hour.start));
    }
}
