//! The bugs that can be planted. Each is old or wrong behaviour in `src` under `bug.NAME`, and must
//! be found by a story that has its accident.

use crate::stories::Story;

pub struct Bug {
    pub name: &'static str,
    pub what: &'static str,
    /// Lives of other stories cannot find it; none if all can.
    pub story: Option<Story>,
}

impl Bug {
    const fn new(name: &'static str, story: Option<Story>, what: &'static str) -> Self {
        Self { name, what, story }
    }

    pub fn named(name: &str) -> Option<&'static Self> {
        BUGS.iter().find(|bug| bug.name == name)
    }
}

use Story::{Clocks, Credits, Customers, Faults, Readings, Restores, Subscriptions, Workers};

pub const BUGS: [Bug; 20] = [
    Bug::new("random_key_per_try", None, "a push gets another identifier with each attempt"),
    Bug::new("key_without_revision", None, "all revisions of a window have one key"),
    Bug::new("resend_past_24h", Some(Faults), "a push is sent again after its key was forgotten"),
    Bug::new("new_key_after_500", None, "a 500 is answered with a new identifier"),
    Bug::new("state_saved_before_send", None, "a push is called submitted before it is sent"),
    Bug::new("two_unresolved", None, "a second push of a window is begun beside an open one"),
    Bug::new("report_proves_refusal", Some(Faults), "an error report overrides an unknown attempt"),
    Bug::new("balance_overstates", Some(Credits), "a balance is read across a cut"),
    Bug::new("take_back_ignores_pending", Some(Credits), "credits that usage needs are taken back"),
    Bug::new("expired_grants_end_early", Some(Credits), "expired credits do not cover late usage"),
    Bug::new("drained_means_sent", Some(Subscriptions), "a cancellation cuts off uncounted usage"),
    Bug::new(
        "no_grace_before_last_cut",
        Some(Subscriptions),
        "the last cut waits for no late event",
    ),
    Bug::new(
        "stamp_outside_subscription",
        Some(Subscriptions),
        "usage is stamped before its sign-up",
    ),
    Bug::new(
        "no_look_after_restore",
        Some(Restores),
        "a restored store sends what was sent before",
    ),
    Bug::new("resend_on_stale_reading", Some(Readings), "an old reading calls a push dropped"),
    Bug::new("customer_of_today", Some(Customers), "a window is billed to two customers"),
    Bug::new(
        "push_without_customer",
        Some(Customers),
        "usage without a customer ends in dead letters",
    ),
    Bug::new(
        "trust_wall_clock",
        Some(Clocks),
        "a wrong wall clock decides what is sent and dropped",
    ),
    Bug::new("send_after_lease", Some(Workers), "a worker that slept for a day sends what it held"),
    Bug::new("undo_keeps_the_money", Some(Subscriptions), "an undone subscription stays paid"),
];
