//! Until when a caller may change something at the provider.
//!
//! A key keeps a call from taking effect twice, and the provider forgets keys after a day. A
//! process that was suspended with a call in hand and woke up days later would make it again. So a
//! caller under a lease says until when it holds, and a call that would leave later is not made:
//! another server may have made it long ago.
//!
//! Invariant: the check is the last thing before a changing request is handed to the connection.
//! Reading calls are not held back. A crash leaves nothing.

use crate::clock::Clock;
use crate::faults::planted;
use crate::rules::timestamp::Timestamp;
use std::future::Future;

/// Until when, by the monotonic clock, which goes on while the machine is suspended.
#[derive(Debug, Clone)]
struct Deadline {
    clock: Clock,
    until: Timestamp,
}

tokio::task_local! {
    static DEADLINE: Deadline;
}

/// Does work that changes something at the provider only until then by [`Clock::monotonic`].
pub async fn within<T>(clock: &Clock, until: Timestamp, work: impl Future<Output = T>) -> T {
    DEADLINE.scope(Deadline { clock: clock.clone(), until }, work).await
}

/// Whether a changing request may leave; an error says why not.
pub(super) fn check() -> Result<(), String> {
    let is_over = |deadline: &Deadline| deadline.clock.monotonic() >= deadline.until;
    let late = DEADLINE.try_with(is_over).unwrap_or(false);
    if late && !planted("bug.send_after_lease") {
        return Err("nothing was sent: the lease of this attempt has ended".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nothing_leaves_after_the_deadline() {
        let clock = Clock::by_hand(Timestamp::from_micros(1_000_000));
        let until = clock.monotonic().saturating_add_micros(10);
        let checked = || within(&clock, until, async { check().is_ok() });
        assert!(checked().await);
        clock.advance(10);
        assert!(!checked().await);
        assert_eq!(check(), Ok(()), "without a lease there is no deadline");
    }
}
