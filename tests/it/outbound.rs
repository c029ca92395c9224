//! The outbound half: the jobs that cut, push and confirm, under a clock that is moved by hand,
//! with the real Stripe client and the Stripe simulator behind a port. Each test is one promise.

mod bindings;
mod clocks;
mod cuts;
mod decisions;
mod delivery;
mod faults;
mod outage;
mod restores;
mod shadow;
mod sink;
mod steps;
mod unmapped;
mod walks;

on_every_store! {
    bindings {
        gate_opens_for_the_account_that_the_store_is_bound_to,
        gate_stays_shut_and_an_alert_opens_for_another_account,
        gate_stays_shut_while_the_account_cannot_be_read,
        restricted_key_is_bound_by_its_mode,
    }
    clocks {
        a_clock_ahead_calls_no_fresh_push_absent,
        a_clock_in_doubt_cuts_and_sends_nothing_and_goes_on_once_it_is_right,
        work_goes_on_at_once_after_the_time_went_back,
    }
    cuts {
        a_window_is_cut_when_it_has_settled_and_not_before,
        windows_are_billed_from_the_moment_that_billing_names,
        billing_that_is_added_later_starts_then,
        a_late_event_makes_a_revision_and_leaves_the_first_push_as_it_was,
        an_event_that_is_very_late_is_billed_too,
        cuts_come_no_more_often_than_cut_every,
        a_cutter_that_was_down_for_days_catches_up,
        a_tenant_that_fell_silent_is_cut_too,
        trial_usage_is_never_pushed,
        a_day_is_one_push,
        each_event_is_one_push_where_events_are_billed,
        what_is_too_small_for_the_provider_is_carried_and_nothing_is_lost,
        a_store_error_stops_the_cut_mark,
        a_window_of_many_events_is_cut_to_its_end,
        two_servers_cut_each_change_once,
        spans_that_become_shorter_leave_nothing_behind,
    }
    decisions {
        for_22_hours_the_same_key_is_sent_and_then_nothing_for_four,
        a_push_that_the_summary_shows_has_counted,
        a_push_that_the_summary_lacks_gets_a_new_revision,
        a_push_on_which_the_summary_fits_neither_needs_a_person,
        a_summary_that_cannot_be_read_decides_nothing,
        what_was_taken_and_dropped_is_found_after_26_hours_and_retried_by_a_person,
        one_of_three_that_was_dropped_is_told_from_the_others,
        a_push_is_confirmed_only_when_the_summary_shows_it,
        a_summary_that_falls_back_harms_nothing,
        a_summary_that_is_never_readable_ends_in_a_decision,
        confirmation_leaves_a_window_alone_that_changed_after_it_was_listed,
    }
    delivery {
        of_ten_customers_the_seventh_fails_and_a_rerun_leaves_the_other_nine_alone,
        replaying_a_completed_push_changes_nothing,
        a_duplicate_rejection_counts_as_delivered,
        a_crash_between_the_post_and_its_result_makes_exactly_one_usage,
        nothing_leaves_before_the_attempt_is_written_down,
        two_different_calls_never_share_a_key,
        after_a_stored_500_the_identifier_stays_and_only_the_request_key_changes,
        a_retry_with_a_rotated_credential_keeps_key_and_bytes,
        a_push_that_was_begun_keeps_its_bytes_whatever_changes_meanwhile,
        an_unresolved_push_blocks_the_next_of_its_window,
        a_key_that_is_not_accepted_makes_no_dead_letters,
        retry_after_is_honoured,
        what_is_too_old_for_the_provider_is_dead_and_says_so,
        just_before_the_edge_it_is_sent,
        what_the_provider_refuses_is_dead_with_its_words_and_can_be_retried,
        pushes_wait_for_a_customer,
        absolute_totals_overwrite,
    }
    faults {
        unanswered_executed_call_counts_once,
        unanswered_lost_call_counts_once,
        truncated_answer_counts_once,
        unreadable_success_counts_once,
        gateway_errors_count_once,
        rate_limits_and_conflicts_count_once,
        an_answer_that_trickles_is_given_up,
        an_answer_that_trickles_fast_enough_is_taken,
        never_two_calls_at_once_for_one_customer_and_meter,
        a_refusal_after_an_unknown_attempt_is_left_to_the_summary,
        fifteen_digits_are_sent_and_the_rest_is_carried,
    }
    outage {
        an_outage_of_an_hour_loses_nothing_and_makes_no_storm_of_alerts,
        a_tenant_without_a_customer_hides_no_outage,
        a_dead_letter_is_warned_of_once,
        no_more_calls_than_the_pace_until_the_clock_moves,
        stopping_settles_what_is_on_its_way_and_starts_nothing_more,
        a_call_that_hangs_holds_up_its_own_customer_only,
        the_jobs_of_a_server_work_together_and_end_together,
        what_cannot_be_read_is_put_off,
    }
    shadow {
        shadow_nowhere_sends_nothing_and_says_so,
        a_window_first_cut_in_shadow_is_never_billed_and_the_next_one_is,
        what_waits_live_is_not_sent_by_a_server_in_shadow,
        shadow_in_a_sandbox_is_sent_and_confirmed_and_stays_apart,
        shadow_in_a_sandbox_with_a_live_key_is_refused,
    }
    sink {
        what_the_receiver_verified_and_took_is_confirmed,
        a_long_stop_makes_no_dead_letter_where_no_total_can_be_compared,
        a_receiver_in_trouble_gets_the_same_id_and_bytes_until_it_takes_them,
        what_the_receiver_refuses_is_dead_and_can_be_retried,
        a_refusal_after_trouble_needs_a_person,
        a_wrong_secret_is_no_refusal_of_the_push,
    }
    unmapped {
        usage_without_a_customer_pages_after_a_day,
        usage_of_a_late_customer_is_sent_or_reported_as_one_figure,
    }
    walks {
        a_window_that_cannot_be_cut_stops_neither_its_batch_nor_the_pass,
    }
}

// Restores put back real files; those of PostgreSQL are in the simulation, with processes that die.
// The walk is about time that passes between its steps, whatever the store does in them.
on_one_store! {
    restores {
        a_restored_store_sends_only_what_the_provider_lacks,
        a_store_restored_after_a_day_does_not_bill_the_same_again,
        a_restored_store_waits_for_its_producers,
        a_replaced_database_file_is_recognised,
        usage_is_sent_minutes_after_a_long_stop,
        a_copy_of_the_machine_is_billed_once_though_the_total_lags,
        restores_at_random_moments_end_exact,
    }
    walks {
        a_walk_longer_than_its_lease_cuts_every_tenant_and_meter,
    }
}
