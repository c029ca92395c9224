//! What the layer needs of a store.
//!
//! Invariant: every verb is one step that happens wholly or not at all, and every verb on a claim
//! compares the record's fence and owner with the claim's as it writes. A crash between two verbs
//! leaves a claim, whose lease runs out.

use crate::record::{Answer, Claim, Claimed, Ending, Fingerprint, Scope, StoreError};
use async_trait::async_trait;
use std::time::Duration;

/// Keeps keys. When a verb has returned without an error, what it wrote survives a crash (but see
/// the limits of [`crate::RedisStore`]). [`StoreError::Unavailable`] means that it is unknown
/// whether it was written.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Claims a key for this request, or says why not. A record whose lease has run out, or that
    /// was released, goes to the caller with the next fence and its recovery point. A record that
    /// has ended is [`Claimed::Ended`] until a sweep removes it, however old it is.
    async fn claim(
        &self,
        scope: &Scope,
        fingerprint: &Fingerprint,
        lease: Duration,
    ) -> Result<Claimed, StoreError>;

    /// The owner is alive: the lease runs from now.
    async fn renew(&self, claim: &Claim, lease: Duration) -> Result<(), StoreError>;

    /// Notes where the work has got to, 1 to 1,024 characters; the next owner, if there has to be
    /// one, goes on from there. From the first such note on the record never expires unless it
    /// ends.
    async fn reach(&self, claim: &Claim, point: &str) -> Result<(), StoreError>;

    /// Ends the claim with an answer, which is given to everybody who comes with the key for at
    /// least the time of `keep`. A second end of the same claim is [`StoreError::Fenced`].
    async fn end(
        &self,
        claim: &Claim,
        answer: &Answer,
        ending: Ending,
        keep: Duration,
    ) -> Result<(), StoreError>;

    /// Gives the claim up: the next caller starts at once, at the recovery point if one was
    /// reached. Without one nothing was done, and the record may be swept an hour later.
    async fn release(&self, claim: &Claim) -> Result<(), StoreError>;

    /// Gives the claim up as if the key had never been used: the next caller may send another
    /// request under it. For a request that was refused before it began. If an earlier owner may
    /// have begun, or a recovery point was reached, this is [`Store::release`].
    async fn forget(&self, claim: &Claim) -> Result<(), StoreError>;

    /// Removes records that may be forgotten, at most `limit`, and says how many. Never one that is
    /// claimed, nor one that was released after a recovery point.
    async fn sweep(&self, limit: u32) -> Result<u32, StoreError>;
}
