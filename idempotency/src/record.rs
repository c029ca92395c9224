//! What a store remembers of a key, in types: whose it is, who is at it, what was answered.
//!
//! Invariant: a [`Claim`] is a permission and not a copy of a record. It is good for as long as the
//! store still has its fence and its owner, and every write is checked against both.

use crate::digest::digest_fields;
use bytes::Bytes;
use std::fmt;
use std::time::Duration;

/// A moment: milliseconds since 1970, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub i64);

impl Millis {
    /// Later by so much; the end of time if that is too much.
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(whole_millis(wait)))
    }
}

/// A duration as stores keep it.
pub(crate) fn whole_millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Where a key means something: the same key of another tenant, or on another route, is another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Scope {
    /// Who is calling, as authentication says and never the request's own text.
    pub tenant: String,
    /// The operation, such as `POST /orders`.
    pub route: String,
    /// What the caller sent.
    pub key: String,
}

/// SHA-256 of a request: its method, its path with the query, and its body in canonical form.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// Of a request whose body is given as it came. A body whose content type is JSON is compared
    /// in a form of its own: names are sorted at each level and spaces dropped, while numbers and
    /// texts stay exactly as they were written. What is no JSON, has a name twice in one object, is
    /// nested deeper than 32 levels or has more than 64 KiB is compared byte for byte, as is
    /// everything else.
    pub fn of(parts: &http::request::Parts, body: &[u8]) -> Self {
        let path = parts.uri.path_and_query().map_or("", |path| path.as_str());
        let canonical = crate::canonical::of_body(&parts.headers, body);
        Self(digest_fields([
            b"counterfoil idempotency request 1".as_slice(),
            parts.method.as_str().as_bytes(),
            path.as_bytes(),
            canonical.kind().as_bytes(),
            canonical.bytes(),
        ]))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({})", crate::digest::hex(&self.0))
    }
}

/// The right to work on a key until somebody else has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub scope: Scope,
    /// Random, so that two claims never look alike, whatever happened to the record in between.
    pub owner: [u8; 16],
    /// 1 for the first owner of a record, and one more for each after. Put it beside an effect that
    /// is kept elsewhere than the key, and a slow earlier owner can be refused there too.
    pub fence: i64,
    /// How far the previous owner got; none if it had no effect yet.
    pub recovery_point: Option<String>,
}

/// A store's answer to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// The caller owns the key.
    Owned(Claim),
    /// The request was executed before; this was its answer.
    Ended(Answer),
    /// Another owner holds the lease, which expires after this time unless it is renewed.
    Busy { retry_after: Duration },
    /// The key was used for another request.
    Mismatch,
}

/// A stored answer, which retries get again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    /// In the order in which they were sent; names in lower case.
    pub headers: Vec<(String, Vec<u8>)>,
    pub body: Bytes,
}

/// How a key ended; decides how long its answer is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The effect took place.
    Completed,
    /// It was refused permanently; the same request would be refused again.
    Failed,
}

/// Why a store could not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Whether it was done is unknown.
    #[error("the store of idempotency keys did not answer: {0}")]
    Unavailable(String),
    /// There is a record, and it cannot be understood. It must never be taken for none.
    #[error("the record of an idempotency key cannot be read: {0}")]
    Unreadable(String),
    /// The claim is another's now, or has ended; nothing was written.
    #[error("the idempotency key is no longer claimed by this caller")]
    Fenced,
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn of(method: &str, path: &str, body: &str) -> Fingerprint {
        let request = Request::builder().method(method).uri(path).body(()).expect("a request");
        Fingerprint::of(&request.into_parts().0, body.as_bytes())
    }

    #[test]
    fn every_part_of_a_request_counts() {
        let first = of("POST", "/a?b=1", "c");
        assert_eq!(first, of("POST", "/a?b=1", "c"));
        let others = [
            of("PUT", "/a?b=1", "c"),
            of("POST", "/a?b=2", "c"),
            of("POST", "/a", "c"),
            of("POST", "/a?b=1c", ""),
            of("POST", "/a?b=1", "C"),
        ];
        assert!(others.into_iter().all(|other| other != first));
    }

    #[test]
    fn the_end_of_time_is_not_passed() {
        assert_eq!(Millis(5).after(Duration::from_millis(7)), Millis(12));
        assert_eq!(Millis(5).after(Duration::MAX), Millis(i64::MAX));
    }
}
