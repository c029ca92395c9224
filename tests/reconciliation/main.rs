//! Reconciliation from end to end: what befalls usage between this server and its provider, and
//! what passes, findings, corrections and alerts make of it, on every store.
//!
//! Each test is a plain function over a [`world::Ground`]; the list below makes it a named test for
//! each store. With warnings denied, a function that is written and not listed does not compile.
//! PostgreSQL is taken from COUNTERFOIL_TEST_POSTGRES, as in `tests/store_conformance`.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm, dead_code)]

mod bypass;
mod lag;
mod lost;
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
    lag {
        what_the_summary_shows_late_pages_nobody,
        a_push_that_was_dropped_is_sent_again,
        a_late_event_after_a_replay,
    }
    lost {
        what_the_provider_lost_pages_and_is_not_sent,
        what_was_lost_is_sent_once_where_that_is_set,
        a_person_has_what_was_lost_sent,
        an_absolute_total_that_was_lost_is_sent_again,
        a_part_that_was_lost_and_a_late_event,
        nothing_is_sent_on_the_word_of_an_old_reading,
        one_summary_that_is_behind_moves_nothing,
    }
    bypass {
        usage_behind_our_back_is_never_corrected,
        usage_of_a_pair_that_has_none_here,
        usage_of_days_ago,
    }
}
