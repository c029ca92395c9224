//! Sagas from end to end, against the Stripe simulator over a real socket, on every store: each
//! call failed, repeated and cut off; accidents of the provider by seed; what a person does; and
//! how they are asked for over HTTP.
//!
//! Each test is a plain function over a [`world::Ground`]; the list below makes it a named test for
//! each store. PostgreSQL is taken from COUNTERFOIL_TEST_POSTGRES, as in `tests/store_conformance`.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::wildcard_enum_match_arm)]

#[path = "../shared/database.rs"]
mod database;
#[path = "../shared/stripe.rs"]
mod stripe;

mod accidents;
mod check;
mod faults;
mod http;
mod persons;
mod plans;
mod script;
mod scripted_provider;
mod stories;
mod world;

macro_rules! on_every_store {
    ($($module:ident { $($test:ident),* $(,)? })*) => {
        mod sqlite { $(mod $module { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                crate::$module::$test(crate::world::Ground::sqlite()).await;
            }
        )* })* }
        mod postgres { $(mod $module { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                let Some(ground) = crate::world::Ground::postgres().await else { return };
                crate::$module::$test(ground).await;
            }
        )* })* }
    };
}

on_every_store! {
    accidents {
        a_customer_and_a_subscription,
        a_subscription_for_a_customer,
        another_plan,
        the_end_at_once,
        the_end_with_the_period,
        a_subscription_is_taken_back,
        a_subscription_is_taken_back_from_a_customer,
        another_plan_is_taken_back,
        no_end_at_once,
        no_end_with_the_period,
        a_new_customer_is_refused,
        a_subscription_is_refused,
        other_prices_are_refused,
        an_end_is_refused,
    }
    faults {
        on_the_way_there,
        on_the_way_back,
    }
    persons {
        an_undoing_that_fails_needs_a_person,
        no_new_start_before_the_money_is_given_back,
        an_end_that_nobody_can_tell_needs_a_person,
        what_was_undone_starts_anew,
        runners_at_the_same_time,
    }
    plans {
        usage_is_charged_by_the_price_of_its_time,
        plan_change_waits_for_aggregated_usage,
        plan_change_is_undone_if_usage_is_not_aggregated_in_time,
        cancellation_waits_for_aggregated_usage,
        cancellation_waits_for_late_events,
        usage_of_the_sign_up_hour_is_invoiced,
        usage_of_the_last_hour_is_stamped_inside_the_subscription,
        events_after_the_boundary_are_charged_by_the_new_price,
        a_change_that_comes_too_late_turns_back,
        later_pushes_wait_for_the_change,
        plan_change_is_refused_where_replaced_usage_is_dropped,
        a_late_call_of_a_change_that_was_given_up_is_undone,
    }
    http {
        from_the_request_to_the_end,
        what_was_undone_is_revived,
    }
}
