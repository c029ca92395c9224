//! Webhooks end to end: the router, the store, the jobs that read objects and lists, and a Stripe
//! simulator. Each test is a plain function over a [`world::World`]; the list below makes it
//! a named test for each store. With warnings denied, a function that is written and not listed
//! does not compile, so the list cannot rot.
//!
//! PostgreSQL is taken from COUNTERFOIL_TEST_POSTGRES (`cargo xtask test` starts one); without it
//! those tests say that they were skipped, unless COUNTERFOIL_TEST_REQUIRE_POSTGRES is set.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::as_conversions,
    clippy::wildcard_enum_match_arm
)]

#[path = "../shared/database.rs"]
mod database;
#[path = "../shared/store_faults.rs"]
mod store_faults;
#[path = "../shared/stripe.rs"]
mod stripe;

mod access;
mod awkward;
mod backfill;
mod log;
mod objects;
mod orders;
mod outages;
mod readings;
mod refusals;
mod repeats;
mod signatures;
mod world;

macro_rules! on_every_store {
    ($($module:ident { $($test:ident),* $(,)? })*) => {
        mod sqlite { $(mod $module { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                crate::$module::$test(crate::world::Place::sqlite()).await;
            }
        )* })* }
        mod postgres { $(mod $module { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                let Some(place) = crate::world::Place::postgres().await else { return };
                crate::$module::$test(place).await;
            }
        )* })* }
    };
}

on_every_store! {
    access {
        access_follows_the_subscription,
    }
    signatures {
        forgeries_leave_no_trace,
        two_secrets_during_a_rotation,
        a_revoked_secret_signs_nothing,
        without_a_secret_nothing_is_taken,
        the_edges_of_five_minutes,
    }
    refusals {
        without_an_id_nothing_is_stored,
        what_is_no_event_is_refused,
        unknown_types_are_kept_and_acknowledged,
    }
    awkward {
        bytes_that_are_no_text_are_refused,
        a_moment_without_a_spelling_hurts_nobody,
        a_payload_with_nul_is_kept,
        a_type_with_control_characters_is_refused,
    }
    repeats {
        the_same_event_five_times_at_once,
        twins_in_both_orders_and_at_once,
        two_events_of_one_fact,
        a_state_that_comes_back_within_a_second,
    }
    orders {
        all_orders_of_a_subscription_and_its_invoice,
        all_orders_within_one_second,
        long_lives_of_several_subscriptions,
        dunning_is_told_once_a_cycle,
    }
    readings {
        what_is_older_than_what_was_read_is_stale,
        a_lower_ticket_never_overwrites,
        two_readers_at_every_step,
        two_readers_at_once,
    }
    outages {
        a_store_that_is_down,
        a_queue_that_is_full,
        a_provider_that_is_down,
    }
    log {
        filters_and_pages,
        a_payload_as_it_came,
        replays,
        scopes,
    }
    backfill {
        losses_are_made_up_for,
        a_pass_goes_on_where_it_was_cut,
        a_cursor_that_has_grown_too_old,
        what_is_older_than_thirty_days_is_not_asked_for,
        what_may_still_be_delivered_is_left,
    }
    objects {
        credit_grants_in_any_order,
        a_customer_that_is_deleted,
        an_invoice_of_many_lines,
        a_tenant_that_is_named_later,
        reports_of_refused_pushes,
    }
}
