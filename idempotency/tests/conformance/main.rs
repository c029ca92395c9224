//! One suite for every store. Each test is a plain function over a [`place::Place`]; the list below
//! makes it a named test for each store. With warnings denied, a function that is written and not
//! listed does not compile, so the list cannot rot.
//!
//! PostgreSQL is taken from COUNTERFOIL_TEST_POSTGRES (`cargo xtask test` starts one), and Redis is
//! started by each test from the program `redis-server`. Without them those tests say that they
//! were skipped, unless COUNTERFOIL_TEST_REQUIRE_POSTGRES or COUNTERFOIL_TEST_REQUIRE_REDIS is set.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::wildcard_enum_match_arm)]

#[path = "../shared/database.rs"]
mod database;

mod answers;
mod app;
mod callers;
mod checks;
mod deaths;
mod keys;
mod outages;
mod place;
mod planted;
mod processes;
mod redis_alone;
mod redis_server;
mod time;
mod transactions;
mod unreadable;
mod verbs;

macro_rules! on_every_store {
    ($($module:ident { $($test:ident),* $(,)? })*) => {
        mod sqlite { $(mod $module { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                crate::$module::$test(crate::place::Place::sqlite()).await;
            }
        )* })* }
        mod postgres { $(mod $module { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                let Some(place) = crate::place::Place::postgres().await else { return };
                crate::$module::$test(place).await;
            }
        )* })* }
        mod redis { $(mod $module { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                let Some(place) = crate::place::Place::redis() else { return };
                crate::$module::$test(place).await;
            }
        )* })* }
    };
}

on_every_store! {
    verbs {
        a_key_is_claimed_once,
        an_end_is_kept_byte_for_byte,
        any_answer_comes_back_as_it_was,
        an_answer_that_could_not_be_given_again_is_refused,
        a_dead_owner_is_taken_over_and_shut_out,
        a_lease_that_is_renewed_holds,
        a_released_key_goes_to_the_next_at_once,
        a_forgotten_key_is_as_if_never_used,
        tenants_routes_and_keys_are_apart,
        of_many_claims_at_once_one_is_granted,
        a_recovery_point_has_a_length,
    }
    time {
        an_ended_record_is_replayed_until_it_is_swept,
        only_what_may_be_forgotten_is_forgotten,
        a_clock_set_forward_forgets_nothing,
        a_clock_set_back_does_not_lock_a_key,
        a_sweep_that_races_a_claim_is_harmless,
    }
    unreadable {
        a_record_that_is_not_understood_is_never_run,
    }
    callers {
        a_hundred_callers_have_one_effect,
        a_caller_who_hangs_up_does_not_cut_the_handler,
        the_checks_hold,
    }
    answers {
        statuses_decide_what_is_kept,
        a_request_that_never_began_leaves_its_key_unused,
        effects_are_kept_for_longer_than_refusals,
        after_a_recovery_point_a_failure_is_resumed,
        a_stream_is_refused_and_its_effect_is_on_record,
        bodies_and_headers_are_given_again,
        another_request_under_the_key_is_refused,
        a_request_that_is_too_large_claims_nothing,
    }
    deaths {
        an_owner_may_die_anywhere,
    }
    outages {
        a_store_that_fails_before_or_after_each_verb,
    }
}
