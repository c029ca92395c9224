//! Request ids: one for each request, in the answer's `X-Request-Id`, in the body of a problem and
//! in the log, so that a report of a failure leads to its line.
//!
//! Invariant: an id consists of letters, digits, `.`, `_`, `:` and `-`, so that it forges neither a
//! header nor a line of the log. A client's own id is kept if it is such.

use http::{HeaderMap, HeaderValue};
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

pub const HEADER: &str = "x-request-id";
/// Longest id that is taken over from a client.
const BYTES_MAX: usize = 64;

/// A request's id. One that is made here is written out only where it is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestId {
    Given(Arc<str>),
    /// The process's own random part, and this number.
    Made(u64),
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Given(id) => f.write_str(id),
            Self::Made(number) => write!(f, "{}-{number}", *PROCESS),
        }
    }
}

impl RequestId {
    pub fn to_header(&self) -> HeaderValue {
        HeaderValue::try_from(self.to_string()).expect("an id consists of visible ASCII")
    }
}

static PROCESS: LazyLock<String> = LazyLock::new(|| {
    let mut bytes = [0_u8; 6];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
});

tokio::task_local! {
    static CURRENT: RequestId;
}

/// The id of the request that this task answers.
pub fn current() -> Option<RequestId> {
    CURRENT.try_with(Clone::clone).ok()
}

/// Runs the work for a request under its id.
pub fn scope<T>(id: RequestId, work: impl Future<Output = T>) -> impl Future<Output = T> {
    CURRENT.scope(id, work)
}

/// The client's own id, if it can be used, or a new one.
pub fn choose(headers: &HeaderMap) -> RequestId {
    let given = headers.get(HEADER).and_then(|value| value.to_str().ok());
    let given = given.filter(|id| is_usable(id));
    given.map_or_else(new_id, |id| RequestId::Given(id.into()))
}

fn is_usable(id: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    (1..=BYTES_MAX).contains(&id.len()) && id.bytes().all(allowed)
}

fn new_id() -> RequestId {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    RequestId::Made(NUMBER.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_clients_are_kept_if_they_are_plain() {
        let chosen = |given: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(HEADER, given.parse().expect("a header"));
            choose(&headers).to_string()
        };
        assert_eq!(chosen("req_1:a.b-2"), "req_1:a.b-2");
        for bad in ["", "a b", "a\"b", &"x".repeat(65)] {
            let made = chosen(bad);
            assert!(made != bad && is_usable(&made), "{made}");
        }
        assert_ne!(new_id(), new_id());
    }
}
