//! The bugs that can be planted. Each is old or wrong behaviour in `src` under `bug.NAME`, and must
//! be found by a story that has its accident.

use crate::stories::Story;

pub struct Bug {
    pub name: &'static str,
    pub what: &'static str,
    /// Lives of other stories cannot find it; none if all can.
    pub story: Option<Story>,
    pub place: CodePlace,
}

/// Where the code of a bug is, and so on which store a test looks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodePlace {
    /// In code that both stores share: on one of them.
    Shared,
    /// In both stores: on each.
    Stores,
    /// In both stores, and not found on PostgreSQL: by its schema, a unique index refuses the write
    /// and the push is left out. Whether that is all has not been shown by a test.
    Sqlite,
}

impl Bug {
    const fn shared(name: &'static str, story: Option<Story>, what: &'static str) -> Self {
        Self { name, what, story, place: CodePlace::Shared }
    }

    const fn in_stores(name: &'static str, story: Option<Story>, what: &'static str) -> Self {
        Self { name, what, story, place: CodePlace::Stores }
    }

    const fn in_sqlite(name: &'static str, story: Option<Story>, what: &'static str) -> Self {
        Self { name, what, story, place: CodePlace::Sqlite }
    }

    pub fn named(name: &str) -> Option<&'static Self> {
        BUGS.iter().find(|bug| bug.name == name)
    }
}

use Story::{
    Borders, Clocks, Credits, Customers, Faults, Readings, Restores, Subscriptions, Workers,
};

pub const BUGS: [Bug; 24] = [
    Bug::shared("random_key_per_try", None, "a push gets another identifier with each attempt"),
    Bug::in_stores("key_without_revision", None, "all revisions of a window have one key"),
    Bug::shared(
        "resend_past_24h",
        Some(Faults),
        "a push is sent again after its key was forgotten",
    ),
    Bug::shared("new_key_after_500", None, "a 500 is answered with a new identifier"),
    Bug::shared("state_saved_before_send", None, "a push is called submitted before it is sent"),
    Bug::in_sqlite("two_unresolved", None, "a second push of a window is begun beside an open one"),
    Bug::in_stores(
        "report_proves_refusal",
        Some(Faults),
        "an error report overrides an unknown attempt",
    ),
    Bug::shared("balance_overstates", Some(Credits), "a balance is read across a cut"),
    Bug::shared("void_ignores_pending", Some(Credits), "credits that usage needs are voided"),
    Bug::shared(
        "expired_grants_end_early",
        Some(Credits),
        "expired credits do not cover late usage",
    ),
    Bug::shared(
        "drained_means_sent",
        Some(Subscriptions),
        "a cancellation cuts off uncounted usage",
    ),
    Bug::shared(
        "no_grace_before_last_cut",
        Some(Subscriptions),
        "the last cut waits for no late event",
    ),
    Bug::in_stores(
        "stamp_outside_subscription",
        Some(Subscriptions),
        "usage is stamped before its sign-up",
    ),
    Bug::in_stores(
        "no_look_after_restore",
        Some(Restores),
        "a restored store sends what was sent before",
    ),
    Bug::in_stores(
        "resend_on_stale_reading",
        Some(Readings),
        "an old reading calls a push dropped",
    ),
    Bug::in_stores("customer_of_today", Some(Customers), "a window is billed to two customers"),
    Bug::in_stores(
        "push_without_customer",
        Some(Customers),
        "usage without a customer ends in dead letters",
    ),
    Bug::shared(
        "trust_wall_clock",
        Some(Clocks),
        "a wrong wall clock decides what is sent and dropped",
    ),
    Bug::shared(
        "send_after_lease",
        Some(Workers),
        "a worker that slept for a day sends what it held",
    ),
    Bug::shared("undo_keeps_the_money", Some(Subscriptions), "an undone subscription stays paid"),
    Bug::shared("windows_undivided", Some(Borders), "a window with a border goes to one side"),
    Bug::shared("trials_are_billed", Some(Borders), "usage of a trial is billed"),
    Bug::shared(
        "timeline_changes_nothing",
        Some(Borders),
        "what is learnt late of a subscription divides nothing anew",
    ),
    Bug::shared(
        "webhook_without_effect",
        Some(Borders),
        "a webhook is known, and what it tells is not",
    ),
];
