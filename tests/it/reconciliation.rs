//! Reconciliation from end to end: what befalls usage between this server and its provider, and
//! what passes, findings, reissues and alerts make of it.

mod admissions;
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

on_every_store! {
    admissions {
        an_admitted_event_makes_a_revision_of_its_window,
    }
    lag {
        lagging_summary_pages_nobody,
        dropped_push_is_sent_again,
        late_event_after_a_replay_is_billed_once,
        no_push_is_resent_on_a_reading_from_before_its_death,
        one_lagging_reading_decides_nothing,
    }
    bindings {
        usage_of_the_former_account_is_not_sent_to_the_next,
    }
    lost {
        lost_usage_pages_and_is_not_sent_again,
        lost_usage_is_corrected_once_where_configured,
        lost_usage_is_corrected_on_demand,
        lost_absolute_total_is_sent_again,
        partial_loss_and_a_late_event_are_told_apart,
        stale_reading_corrects_nothing,
        one_lagging_summary_corrects_nothing,
    }
    bypass {
        foreign_usage_is_never_corrected,
        foreign_usage_of_an_unused_meter_is_found,
        foreign_usage_of_past_days_is_found,
    }
    rejections {
        reported_push_is_dead_until_the_cause_is_fixed,
        a_report_that_was_missed_is_found,
        a_report_about_what_was_confirmed_changes_nothing,
        reports_name_pushes_in_both_shapes,
    }
    customers {
        a_deleted_customer_is_a_page_and_its_usage_is_shown,
        customer_deletion_reported_late_is_found,
        a_window_stays_with_the_customer_it_was_sent_to,
        an_absolute_window_stays_with_the_customer_it_was_sent_to,
        findings_of_a_former_customer_are_cleared,
    }
    finalization {
        draft_invoice_flushes_its_windows,
        open_pushes_page_before_finalization,
        period_ending_within_the_hour_is_invoiced_whole,
    }
    invoices {
        late_tax_is_no_discrepancy,
        lines_of_tiers_are_compared_together,
        invoice_without_a_webhook_is_compared,
        invoice_with_foreign_usage_is_found,
        invoice_that_lacks_usage_is_found,
        usage_after_finalization_is_reported_unbilled,
        matching_invoice_line_closes_its_pushes,
        each_side_of_a_border_is_on_its_invoice,
        usage_on_the_wrong_side_of_a_border_is_found,
    }
    subscriptions {
        all_pages_and_states_are_looked_at,
        subscription_without_a_tenant_is_found,
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
        first_day_of_billing_is_compared_from_its_start,
        usage_that_nobody_cuts_is_found,
        unreadable_totals_are_reported,
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
        dead_letter_alert_opens_once_and_resolves,
        failed_notice_is_sent_again,
        undelivered_opening_is_dropped_with_its_alert,
        unusual_number_of_conflicts_alerts,
        silence_alerts_only_where_usage_was_regular,
        quarantined_events_alert_and_are_no_sign_of_life,
        waiting_webhooks_alert,
        threshold_alerts_once_a_period,
    }
    budget {
        no_more_reads_than_an_hour_allows,
        every_tenant_has_its_turn,
    }
}
