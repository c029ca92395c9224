//! Request ids: one for each request, in the answer's `X-Request-Id`, in the body of a problem and
//! in the log, so that a report of a failure leads to its line.
//!
//! Invariant: an id consists of letters, digits, `.`, `_`, `:` and `-`, so that it forges neither a
//! header nor a line of the log. A client's own id is kept if it is such.

use http::HeaderMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

pub const HEADER: &str = "x-request-id";
/// Longest id that is taken over from a client.
const BYTES_MAX: usize = 64;

tokio::task_local! {
    static CURRENT: Arc<str>;
}

/// The id of the request that this task answers.
pub fn current() -> Option<Arc<str>> {
    CURRENT.try_with(Arc::clone).ok()
}

/// Runs the work for a request under its id.
pub async fn scope<T>(id: Arc<str>, work: impl Future<Output = T>) -> T {
    CURRENT.scope(id, work).await
}

/// The client's own id, if it can be used, or a new one.
pub fn choose(headers: &HeaderMap) -> Arc<str> {
    let given = headers.get(HEADER).and_then(|value| value.to_str().ok());
    given.filter(|id| is_usable(id)).map_or_else(new_id, Arc::from)
}

fn is_usable(id: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    (1..=BYTES_MAX).contains(&id.len()) && id.bytes().all(allowed)
}

/// The process's own random part, and a number.
fn new_id() -> Arc<str> {
    static PROCESS: LazyLock<String> = LazyLock::new(|| {
        let mut bytes = [0_u8; 6];
        getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    });
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    format!("{}-{}", *PROCESS, NUMBER.fetch_add(1, Ordering::Relaxed)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_clients_are_kept_if_they_are_plain() {
        let chosen = |given: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(HEADER, given.parse().expect("a header"));
            choose(&headers)
        };
        assert_eq!(&*chosen("req_1:a.b-2"), "req_1:a.b-2");
        for bad in ["", "a b", "a\"b", &"x".repeat(65)] {
            assert_ne!(&*chosen(bad), bad);
        }
        assert_ne!(new_id(), new_id());
    }
}
