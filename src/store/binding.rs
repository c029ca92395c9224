//! The store's bindings to accounts of the provider: the one that holds, and those that ended.
//!
//! Invariant: at most one binding has not ended, also if two servers bind at once. A crash leaves a
//! store bound or not; the next start binds it then.

use super::Result;
use super::faulty::verbs;
use crate::rules::binding::{BillingAccount, Binding, Unbinding};
use crate::rules::timestamp::Timestamp;

verbs! {
    pub trait Bindings: Send + Sync {
        /// The binding that holds; none before the first account was met.
        async fn read_binding(&self) -> Result<Option<Binding>>;
        /// Binds the store to an account if it is bound to none, and keeps an id that was not known
        /// of the account before. Returns the binding that holds, which may be to another account.
        async fn bind(&self, account: &BillingAccount, at: Timestamp) -> Result<Binding>;
        /// Ends the binding, unless pushes are on their way to its account. The next account that
        /// is met is bound.
        async fn end_binding(&self, at: Timestamp) -> Result<Unbinding>;
    }
}
