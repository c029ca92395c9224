//! What the provider's reading of a subscription means for the subscription record that belongs to
//! it.
//!
//! | status | access |
//! |---|---|
//! | active, trialing, past_due, incomplete | as the sagas gave it |
//! | unpaid, paused | suspended, until a reading shows one of those above |
//! | canceled, incomplete_expired | ended for good, at the moment that the provider names |
//! | anything else, or a subscription that the provider does not know | unchanged |
//!
//! A subscription that is past due is in dunning: the provider still tries to collect, so the
//! access stays until it gives up.
//!
//! Invariant: suspension follows from the newest reading alone, and an end only moves to an earlier
//! moment. So readings and steps of sagas, in whatever order, lead to the same subscription record.
//! Whether the features were opened is for sagas to say and is not touched.

use super::subscription::Subscription;
use super::timestamp::Timestamp;

/// A subscription record, as far as a reading can change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessState {
    pub suspended: bool,
    pub ended_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessChange {
    Suspend,
    Resume,
    /// What has ended is not suspended any more.
    End {
        at: Timestamp,
    },
}

impl AccessChange {
    /// The kind of change that tells of it.
    pub fn change_kind(self) -> &'static str {
        match self {
            Self::Suspend => "access.suspended",
            Self::Resume => "access.resumed",
            Self::End { .. } => "access.ended",
        }
    }
}

/// What a reading that was begun at `read_at` changes; none if nothing.
pub fn judge_access(
    reading: &Subscription,
    read_at: Timestamp,
    record: AccessState,
) -> Option<AccessChange> {
    let in_force_at = |at: Timestamp| record.ended_at.is_none_or(|end| at < end);
    match reading.status.as_str() {
        "canceled" | "incomplete_expired" => {
            let at = reading.ended_at.unwrap_or(read_at);
            in_force_at(at).then_some(AccessChange::End { at })
        }
        "unpaid" | "paused" if !record.suspended => {
            in_force_at(read_at).then_some(AccessChange::Suspend)
        }
        "active" | "trialing" | "past_due" | "incomplete" if record.suspended => {
            in_force_at(read_at).then_some(AccessChange::Resume)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::ids::CustomerId;
    use crate::rules::samples::minute as at;

    fn reading(status: &str, ended_at: Option<Timestamp>) -> Subscription {
        Subscription {
            customer: CustomerId::parse("cus_1").expect("valid"),
            status: status.into(),
            prices: Vec::new(),
            period: None,
            trial: None,
            cancel_at_period_end: false,
            ended_at,
        }
    }

    const OPEN: AccessState = AccessState { suspended: false, ended_at: None };
    const SUSPENDED: AccessState = AccessState { suspended: true, ended_at: None };

    #[test]
    fn access_follows_the_status() {
        let check = |status: &str, record: AccessState, expected: Option<AccessChange>| {
            let found = judge_access(&reading(status, Some(at(5))), at(9), record);
            assert_eq!(found, expected, "{status} {record:?}");
        };
        let ended = |minute: i64| AccessState { ended_at: Some(at(minute)), ..OPEN };
        for status in ["active", "trialing", "past_due", "incomplete"] {
            check(status, OPEN, None);
            check(status, SUSPENDED, Some(AccessChange::Resume));
            check(status, ended(8), None);
        }
        for status in ["unpaid", "paused"] {
            check(status, OPEN, Some(AccessChange::Suspend));
            check(status, SUSPENDED, None);
            check(status, ended(8), None);
            // It ends with its period, which is ahead.
            check(status, ended(10), Some(AccessChange::Suspend));
        }
        for status in ["canceled", "incomplete_expired"] {
            check(status, OPEN, Some(AccessChange::End { at: at(5) }));
            check(status, SUSPENDED, Some(AccessChange::End { at: at(5) }));
            check(status, ended(8), Some(AccessChange::End { at: at(5) }));
            check(status, ended(5), None);
            check(status, ended(3), None);
        }
        check("on_the_moon", OPEN, None);
        check("on_the_moon", SUSPENDED, None);
    }

    #[test]
    fn an_end_without_a_moment_is_that_of_the_reading() {
        let found = judge_access(&reading("canceled", None), at(9), OPEN);
        assert_eq!(found, Some(AccessChange::End { at: at(9) }));
    }
}
