//! One suite for every store. Each test is a plain function over a [`Fixture`]; the list below
//! makes it a named test for each store. With warnings denied, a function that is written and not
//! listed does not compile, so the list cannot rot.
//!
//! PostgreSQL is taken from COUNTERFOIL_TEST_POSTGRES (`cargo xtask test` starts one); without it
//! those tests say that they were skipped, unless COUNTERFOIL_TEST_REQUIRE_POSTGRES is set.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::as_conversions,
    clippy::wildcard_enum_match_arm
)]

mod declarations;
mod deliveries;
mod fixture;
mod history;
mod keys;
mod listing;
mod two_senders;
mod two_servers;
mod usage;

macro_rules! on_every_store {
    ($($module:ident { $($test:ident),* $(,)? })*) => {
        mod sqlite { $(mod $module { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                crate::$module::$test(crate::fixture::Fixture::sqlite().await).await;
            }
        )* })* }
        mod postgres { $(mod $module { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                let Some(fixture) = crate::fixture::Fixture::postgres().await else { return };
                crate::$module::$test(fixture).await;
            }
        )* })* }
    };
}

on_every_store! {
    deliveries {
        same_event_twice_counts_once,
        spellings_of_one_quantity_are_one_payload,
        a_restamped_retry_is_a_duplicate,
        a_conflict_is_kept_and_not_counted,
        a_conflict_delivered_again_is_one_record,
        events_outside_the_horizon_are_quarantined,
        a_known_event_is_a_duplicate_however_old,
        repeats_within_a_batch,
        strict_tenants_refuse_the_unknown,
        tenants_with_equal_ids_are_apart,
        counters_conserve_what_was_received,
        event_keys_that_collide_are_still_apart,
        digits_of_the_total_count_each_event,
        awkward_texts_are_kept_exactly,
        an_empty_batch_is_nothing,
    }
    usage {
        all_aggregations_are_exact,
        totals_are_visible_at_once,
        dimensions_and_stamps_are_kept_apart,
        buckets_are_half_open,
        a_million_tenths,
        unknown_tenants_have_no_usage,
    }
    listing {
        pages_hold_every_event_once,
        ranges_and_meters_filter,
        a_trace_tells_everything,
        inbox_pages,
    }
    declarations {
        meters_are_declared_once,
        tenants_are_created_and_renamed,
    }
    keys {
        api_keys_live_and_die,
        secrets_and_the_clock_survive_a_restart,
    }
    history {
        random_histories_match_the_model,
        order_and_batching_do_not_matter,
        readers_never_see_a_wrong_total,
    }
}
