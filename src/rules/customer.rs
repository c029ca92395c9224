//! The customer that a window belongs to.
//!
//! Invariant: all of a window that may have counted is at one customer, so no part of it is billed
//! to two. Mapping a tenant to another customer takes effect for windows of which nothing may have
//! counted yet. The stores' `customer_of_window` and `read_standing` ask the same of their tables.

use super::drift::WindowPush;
use super::ids::CustomerId;
use super::submission::{DeadClass, PushState};

/// The customer of the window's first push that counted or may have counted, given all pushes of
/// the window. None while nothing of it may have counted: it then goes to the tenant's customer.
pub fn customer_of_window(pushes: &[WindowPush]) -> Option<&CustomerId> {
    let may_count = |push: &&WindowPush| match push.state {
        PushState::Submitted | PushState::Confirmed | PushState::Reconciled => true,
        PushState::Observed => push.attempts > 0,
        PushState::Dead => match push.class.of_dead() {
            DeadClass::Undecidable | DeadClass::Unreadable | DeadClass::Absent => true,
            DeadClass::Refused => push.attempts > 1,
            DeadClass::TooOld | DeadClass::Other => false,
        },
        PushState::Discarded => true,
        PushState::Waiting | PushState::Replaced => false,
    };
    let owning = pushes.iter().filter(may_count).filter(|push| push.customer.is_some());
    owning.min_by_key(|push| push.revision).and_then(|push| push.customer.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::billing::Mode;
    use crate::rules::quantity::Quantity;
    use crate::rules::samples::customer;
    use crate::rules::submission::Class;
    use crate::rules::timestamp::Timestamp;
    use crate::rules::window::Window;

    fn push(state: PushState, class: Class, attempts: u32) -> WindowPush {
        let at = Timestamp::from_micros(0);
        WindowPush {
            number: 1,
            window: Window { start: at, end: Timestamp::from_micros(3_600_000_000) },
            revision: 1,
            shadow: false,
            mode: Mode::Delta,
            quantity: Quantity::ONE,
            value: Quantity::ONE,
            stamped_at: at,
            state,
            class,
            customer: (attempts > 0).then(|| customer("cus_a")),
            attempts,
            state_at: at,
        }
    }

    #[test]
    fn a_window_belongs_to_the_customer_that_may_have_it() {
        use Class::{Absent, Accepted, Cut, Discarded, Refused, Undecidable, Unknown};
        use PushState::{Dead, Observed, Replaced, Submitted};
        let check = |state, class, attempts, expected: Option<&str>| {
            let first = push(state, class, attempts);
            let second = WindowPush { revision: 2, ..push(Submitted, Accepted, 1) };
            let second = WindowPush { customer: Some(customer("cus_b")), ..second };
            let found = customer_of_window(std::slice::from_ref(&first));
            assert_eq!(found.map(CustomerId::as_str), expected, "{state:?} {class:?}");
            let found = [second, first];
            let found = customer_of_window(&found).map(CustomerId::as_str);
            assert_eq!(found, Some(expected.unwrap_or("cus_b")), "{state:?} {class:?}");
        };
        let own = Some("cus_a");
        check(Submitted, Accepted, 1, own);
        check(PushState::Confirmed, Class::Confirmed, 1, own);
        check(PushState::Reconciled, Class::Lost, 1, own);
        check(Observed, Unknown, 1, own);
        check(Observed, Cut, 0, None);
        check(Dead, Undecidable, 1, own);
        check(Dead, Absent, 1, own);
        check(PushState::Discarded, Discarded, 1, own);
        check(Dead, Refused, 2, own);
        check(Dead, Refused, 1, None);
        check(Dead, Class::TooOld, 0, None);
        check(Replaced, Class::Retried, 1, None);
    }
}
