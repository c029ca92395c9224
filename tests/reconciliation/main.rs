//! Reconciliation from end to end: what befalls usage between this server and its provider, and
//! what passes, findings, corrections and alerts make of it, on every store.
//!
//! Each test is a plain function over a [`world::Ground`]; the list below makes it a named test for
//! each store. With warnings denied, a function that is written and not listed does not compile.
//! PostgreSQL is taken from COUNTERFOIL_TEST_POSTGRES, as in `tests/store_conformance`.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::wildcard_enum_match_arm)]

#[path = "../shared/database.rs"]
mod database;
#[path = "../shared/plant.rs"]
mod plant;
#[path = "../shared/stripe.rs"]
mod stripe;

mod alarms;
mod bindings;
mod budget;
mod bypass;
mod customers;
mod finalization;
mod invoices;
mod lag;
mod lost;
mod nightly;
mod numbers;
mod rejections;
mod subscriptions;
mod unbilled;
mod unread;
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
        no_push_is_resent_on_a_reading_from_before_its_death,
        one_reading_that_is_behind_calls_nothing_absent,
    }
    bindings {
        usage_of_the_former_account_is_not_sent_to_the_next,
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
    rejections {
        a_reported_push_is_dead_until_the_cause_is_mended,
        a_report_that_was_missed_is_found,
        a_report_about_what_was_confirmed_changes_nothing,
        both_shapes_of_samples_and_what_is_not_sampled,
    }
    customers {
        a_deleted_customer_is_a_page_and_its_usage_is_shown,
        a_deleted_customer_that_is_told_of_later,
        a_window_stays_with_the_customer_it_was_sent_to,
        an_absolute_window_stays_with_the_customer_it_was_sent_to,
        findings_of_an_old_customer_end,
    }
    finalization {
        a_draft_hurries_its_windows,
        open_pushes_call_somebody_before_the_invoice_is_fixed,
        a_period_that_ends_within_an_hour,
    }
    invoices {
        tax_that_comes_late_is_no_difference,
        lines_of_tiers_are_compared_together,
        an_invoice_that_no_webhook_told_of_is_compared,
        an_invoice_with_usage_of_somebody_else,
        an_invoice_that_lacks_what_was_lost,
        usage_that_comes_after_the_invoice_is_on_none,
        a_line_that_agrees_closes_its_pushes,
    }
    subscriptions {
        all_pages_and_states_are_looked_at,
        a_subscription_of_nobody,
        an_unknown_subscription_of_a_tenant_pages,
        an_unknown_subscription_that_is_accepted_is_quiet,
        a_subscription_of_a_saga_under_way_is_not_unknown,
        a_subscription_that_the_list_lacks_is_read_again,
        a_plan_that_changes_on_its_first_day,
    }
    nightly {
        one_row_for_everyone_drift_or_not,
        rows_are_chained_from_day_to_day,
        a_changed_audit_row_is_named,
        days_that_were_missed_are_caught_up,
        two_servers_run_one_pass,
        a_pass_that_was_cut_off_is_begun_anew,
        a_pass_that_was_left_running_is_ended,
        the_day_on_which_billing_began,
        usage_that_nobody_cuts_is_found,
        what_cannot_be_read_is_said_so,
        late_revisions_are_reconciled,
        a_day_that_agrees_later_is_reconciled,
        hourly_passes_do_not_keep_a_nightly_one_waiting,
        days_out_of_reach_are_shown_as_skipped,
    }
    unread {
        a_pass_that_reads_nothing_calls_nothing_equal,
        an_earlier_reading_is_not_shown_as_read_now,
        a_finding_advances_only_on_a_fresh_reading,
        an_unread_night_is_no_link_of_the_chain,
        an_incomplete_night_is_taken_up_again,
        a_list_that_cannot_be_read_makes_a_pass_incomplete,
    }
    unbilled {
        written_off_usage_names_who_and_why,
        usage_before_billing_began_is_not_called_equal,
        windows_of_a_shadow_are_marked,
        a_server_in_shadow_calls_nothing_equal,
        a_tenant_without_a_customer_has_its_row,
        everything_unbilled_is_one_number,
    }
    numbers {
        the_three_numbers_return_to_zero,
        what_is_within_tolerance_is_no_finding,
        more_digits_than_a_double_holds,
    }
    alarms {
        a_fault_pages_while_others_are_billed,
        dead_letters_are_told_once_and_ended,
        a_destination_that_fails_is_told_again,
        an_opening_that_nobody_heard_is_given_up,
        conflicts_beyond_the_usual,
        silence_is_not_the_same_as_nothing,
        quarantined_events_alert_and_are_no_sign_of_life,
        webhooks_that_wait,
        thresholds_are_told_once_in_a_period,
    }
    budget {
        no_more_reads_than_an_hour_allows,
        every_tenant_has_its_turn,
    }
}
