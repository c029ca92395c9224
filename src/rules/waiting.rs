//! Pushes of tenants without a customer.
//!
//! Invariant: nothing is sent for a tenant without a customer. When there is one, its pushes go out
//! in the order in which they were planned; what the provider would refuse for its age is closed,
//! and never sent.

use super::span::Span;
use super::submission::{Class, PushState, is_too_old};
use super::timestamp::Timestamp;

/// Where a push begins. It waits while its tenant has no customer, and also while earlier ones of
/// the tenant are still to be released, so that revisions are sent in their order.
pub fn judge_planned(has_customer: bool, releasing: bool) -> PushState {
    if has_customer && !releasing { PushState::Observed } else { PushState::Waiting }
}

/// What becomes of a push that waited, now that its tenant has a customer: it is due, or it is
/// closed because the provider would refuse its stamp.
pub fn judge_waiting(
    stamped_at: Timestamp,
    stamp_age_max: Option<Span>,
    now: Timestamp,
) -> (PushState, Class) {
    if is_too_old(stamped_at, stamp_age_max, now) {
        (PushState::Replaced, Class::NotSent)
    } else {
        (PushState::Observed, Class::Cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pushes_wait_for_a_customer_and_in_their_order() {
        assert_eq!(judge_planned(true, false), PushState::Observed);
        assert_eq!(judge_planned(false, false), PushState::Waiting);
        assert_eq!(judge_planned(true, true), PushState::Waiting, "earlier ones go first");
    }

    #[test]
    fn what_waited_is_sent_unless_its_stamp_is_too_old() {
        let (stamped_at, max) = (Timestamp::from_micros(0), Span::from_hours(34 * 24));
        let judge = |age_max, now| judge_waiting(stamped_at, age_max, now);
        let (sent, closed) =
            ((PushState::Observed, Class::Cut), (PushState::Replaced, Class::NotSent));
        let border = max.after(stamped_at);
        assert_eq!(judge(Some(max), border.saturating_add_micros(-1)), sent);
        assert_eq!(judge(Some(max), border), closed);
        assert_eq!(judge(None, border), sent, "this provider takes everything");
    }
}
