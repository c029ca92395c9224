//! What a handler knows of its claim.
//!
//! Invariant: an attempt can be held for longer than its claim lasts; whatever it writes is refused
//! then.

use crate::record::{Answer, Claim, StoreError};
use crate::store::Store;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode};
use std::fmt;
use std::sync::Arc;

/// In the extensions of every request that runs under a claim.
#[derive(Clone)]
pub struct Attempt {
    store: Arc<dyn Store>,
    claim: Arc<Claim>,
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt").field("claim", &self.claim).finish_non_exhaustive()
    }
}

/// Marks an answer whose claim the handler has ended itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct EndedByHandler;

/// Marks an answer of a request that was refused before it began: its body cannot be read, or the
/// caller may not do this. Put it into the extensions of the response, and the key is as if it had
/// never been used, so that the corrected request can be sent under it.
#[derive(Debug, Clone, Copy)]
pub struct NothingBegan;

impl Attempt {
    pub(super) fn new(store: Arc<dyn Store>, claim: Claim) -> Self {
        Self { store, claim: Arc::new(claim) }
    }

    /// To be ended in the transaction of the effect.
    pub fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Where the attempt before this one got to. If there is one, the handler goes on from there
    /// and does nothing again that lies before it.
    pub fn recovery_point(&self) -> Option<&str> {
        self.claim.recovery_point.as_deref()
    }

    /// Notes that everything up to this point has been done, or has been begun under a key that
    /// makes it harmless to do again. On an error the handler must stop, and answer with a 5xx: if
    /// the claim is [`StoreError::Fenced`], somebody else is at it.
    pub async fn reach(&self, point: &str) -> Result<(), StoreError> {
        self.store.reach(&self.claim, point).await
    }

    /// The response of a handler that has committed its effect and the end of its claim in one
    /// transaction, with this answer. The layer then ends nothing.
    ///
    /// # Panics
    ///
    /// If the answer is none that a store would have taken.
    pub fn ended<B: From<Bytes>>(answer: Answer) -> Response<B> {
        let mut response = respond(answer);
        response.extensions_mut().insert(EndedByHandler);
        response
    }
}

/// An answer as a response.
pub(super) fn respond<B: From<Bytes>>(answer: Answer) -> Response<B> {
    let mut response = Response::new(B::from(answer.body));
    *response.status_mut() =
        StatusCode::from_u16(answer.status).expect("stores take valid answers only");
    for (name, value) in answer.headers {
        let name = HeaderName::try_from(name).expect("stores take valid answers only");
        let value = HeaderValue::try_from(value).expect("stores take valid answers only");
        response.headers_mut().append(name, value);
    }
    response
}
