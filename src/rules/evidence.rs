//! Evidence: what readings of the provider's totals must show before anything is sent again.
//!
//! Invariant: a push is sent again, or a loss corrected, only on two readings of one value that
//! were both taken after the last push in question came into its state, the later one at least
//! [`LAG`] after that moment, and both of the customer that the push was sent for. A window that
//! was not read in this situation is unread, and nothing follows from it. A push that the provider
//! refused at its only attempt never counted, and needs no reading.

use super::billing::Mode;
use super::drift::{PushSums, Summary, WindowPush};
use super::span::Span;
use super::submission::{Class, Retry, judge_retry};
use super::timestamp::Timestamp;

/// How long a total may lack what the provider took.
pub const LAG: Span = Span::from_hours(1);

/// How much the readings of a total tell about what happened up to a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// No reading was taken after the moment.
    Unread,
    /// One reading was taken after it, or two that are too close to it.
    ReadOnce,
    Proved,
}

/// What the readings tell about what happened up to `after`.
pub fn weigh_readings(summary: Option<&Summary>, after: Timestamp) -> Evidence {
    let Some(summary) = summary else { return Evidence::Unread };
    if summary.read_at <= after {
        return Evidence::Unread;
    }
    let twice = read_twice_from(summary, after.saturating_add_micros(1));
    if twice && LAG.after(after) <= summary.read_at { Evidence::Proved } else { Evidence::ReadOnce }
}

/// Whether the last two readings are both from this moment or later, with the same value.
pub fn read_twice_from(summary: &Summary, from: Timestamp) -> bool {
    summary.read_before.is_some_and(|before| before >= from) && summary.read_at >= from
}

/// Whether a total that is too low has been so for longer than totals lag, `after` everything of
/// the window came into its state.
pub fn proves_loss(summary: Option<&Summary>, after: Timestamp) -> bool {
    let lasts = |summary: &Summary| LAG.after(summary.since) <= summary.read_at;
    weigh_readings(summary, after) == Evidence::Proved && summary.is_some_and(lasts)
}

/// Whether and how a dead push may be tried again. `pushes` are all of its window, `summary` is the
/// total of the customer that it was sent for.
pub fn judge_resend(
    push: &WindowPush,
    pushes: &[WindowPush],
    summary: Option<&Summary>,
) -> Result<Retry, &'static str> {
    let retry = judge_retry(push.state, push.class)?;
    if retry == Retry::Look || (push.class == Class::Refused && push.attempts <= 1) {
        return Ok(retry);
    }
    let own: Vec<WindowPush> =
        pushes.iter().filter(|other| other.customer == push.customer).cloned().collect();
    let Some(sums) = PushSums::of_window(&own) else {
        return Err("the window's pushes make more than can be held exactly");
    };
    let after = sums.moved_at.map_or(push.state_at, |moved_at| moved_at.max(push.state_at));
    let Some(summary) = summary.filter(|s| weigh_readings(Some(s), after) == Evidence::Proved)
    else {
        return Err("the provider's total of the window was not read twice since, the second \
                    time an hour later; the next hourly passes read it, and then it can be retried");
    };
    // An absolute total that is sent again can only make the provider's total right.
    if push.mode == Mode::Delta && summary.value != sums.settled {
        return Err(
            "the provider's total is not what the window's other pushes make, so this one \
                    may have counted; compare them by hand, and discard it with the reason",
        );
    }
    Ok(retry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::ids::CustomerId;
    use crate::rules::quantity::Quantity;
    use crate::rules::submission::PushState;
    use crate::rules::window::Window;

    const WINDOW: Window =
        Window { start: Timestamp::from_micros(0), end: Timestamp::from_micros(3_600_000_000) };

    fn minute(minute: i64) -> Timestamp {
        Timestamp::from_micros(minute * 60_000_000)
    }

    /// A total that was read at these minutes with the same value.
    fn summary(value: i64, before: Option<i64>, last: i64) -> Summary {
        Summary {
            window: WINDOW,
            value: Quantity::from_units(i128::from(value)),
            read_at: minute(last),
            read_before: before.map(minute),
            since: minute(before.unwrap_or(last)),
            reads: if before.is_some() { 2 } else { 1 },
        }
    }

    fn push(quantity: i64, state: PushState, class: Class, state_at: i64) -> WindowPush {
        let quantity = Quantity::from_units(i128::from(quantity));
        WindowPush {
            number: 1,
            window: WINDOW,
            revision: 1,
            shadow: false,
            mode: Mode::Delta,
            quantity,
            value: quantity,
            stamped_at: minute(30),
            state,
            class,
            customer: CustomerId::parse("cus_a").ok(),
            attempts: 1,
            state_at: minute(state_at),
        }
    }

    #[test]
    fn two_readings_after_the_moment_prove() {
        let check = |before: Option<i64>, last: i64, expected: Evidence| {
            let readings = summary(0, before, last);
            assert_eq!(weigh_readings(Some(&readings), minute(100)), expected, "{before:?} {last}");
        };
        assert_eq!(weigh_readings(None, minute(100)), Evidence::Unread);
        check(None, 99, Evidence::Unread);
        check(Some(40), 100, Evidence::Unread);
        check(None, 200, Evidence::ReadOnce);
        check(Some(99), 500, Evidence::ReadOnce);
        check(Some(100), 500, Evidence::ReadOnce);
        check(Some(101), 159, Evidence::ReadOnce);
        check(Some(101), 160, Evidence::Proved);
        check(Some(159), 160, Evidence::Proved);
    }

    #[test]
    fn a_loss_lasts_longer_than_the_lag() {
        assert!(proves_loss(Some(&summary(0, Some(101), 161)), minute(100)));
        assert!(!proves_loss(Some(&summary(0, Some(150), 161)), minute(100)));
        assert!(!proves_loss(Some(&summary(0, Some(90), 161)), minute(100)));
        assert!(!proves_loss(None, minute(100)));
    }

    #[test]
    fn a_push_is_sent_again_only_on_readings_after_its_death() {
        use PushState::{Dead, Submitted};
        let proved = summary(0, Some(101), 200);
        let check = |dead: &WindowPush, others: &[WindowPush], read: Option<Summary>, ok: bool| {
            let mut all = others.to_vec();
            all.push(dead.clone());
            let judged = judge_resend(dead, &all, read.as_ref());
            assert_eq!(judged.is_ok(), ok, "{dead:?} {others:?} {read:?}: {judged:?}");
        };
        let absent = push(5, Dead, Class::Absent, 100);
        check(&absent, &[], Some(proved), true);
        check(&absent, &[], None, false);
        check(&absent, &[], Some(summary(0, Some(50), 200)), false);
        check(&absent, &[], Some(summary(0, Some(50), 90)), false);
        check(&absent, &[], Some(summary(5, Some(101), 200)), false);
        // What came later to the same window must have had its time too.
        let later = push(3, Submitted, Class::Accepted, 150);
        check(&absent, std::slice::from_ref(&later), Some(summary(3, Some(101), 200)), false);
        check(&absent, std::slice::from_ref(&later), Some(summary(3, Some(151), 211)), true);
        // What another customer was sent is no part of this customer's total.
        let elsewhere = WindowPush { customer: CustomerId::parse("cus_b").ok(), ..later };
        check(&absent, &[elsewhere], Some(proved), true);
        let refused = push(5, Dead, Class::Refused, 100);
        check(&refused, &[], None, true);
        let unsure = WindowPush { attempts: 2, ..refused };
        check(&unsure, &[], None, false);
        check(&unsure, &[], Some(proved), true);
        let absolute = WindowPush { mode: Mode::Absolute, ..absent };
        check(&absolute, &[], Some(summary(5, Some(101), 200)), true);
        check(&absolute, &[], None, false);
        check(&push(5, Dead, Class::Undecidable, 100), &[], Some(proved), false);
        check(&push(5, Submitted, Class::Accepted, 100), &[], Some(proved), false);
    }
}
