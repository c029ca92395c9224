//! The HTTP interface, in process: every route, every outcome, every refusal.

mod accounts;
mod admission;
mod auth;
mod balances;
mod changes;
mod credits;
mod decisions;
mod description;
mod events;
mod first_hour;
mod idempotency;
mod permissions;
mod pushes;
mod queries;
mod quotes;
mod tls;
mod transport;
mod watch;

on_every_store! {
    accounts {
        an_account_is_created_and_stays_what_it_is,
        names_and_units_are_checked,
        what_does_not_add_up_is_refused_whole,
        an_entry_may_hold_several_units,
        an_entry_holds_to_the_versions_it_was_decided_on,
        a_statement_is_read_page_by_page,
        accounts_are_listed_by_name,
        an_entry_is_found_by_its_key,
        who_may_look_and_who_may_write,
    }
    auth {
        a_key_is_needed_and_must_be_valid,
        a_revoked_key_is_refused_at_once,
        each_scope_opens_its_own_doors,
        a_bound_key_reaches_nothing_of_another_tenant,
        keys_are_checked_when_they_are_made,
        a_store_that_is_down_is_503_and_never_a_guess,
        keys_that_were_never_read_are_503,
        the_first_admin_key,
        another_admin_key_in_the_environment_ends_the_former_one,
    }
    balances {
        balance_read_while_a_cut_draws_does_not_overstate,
        void_leaves_what_uncut_usage_will_draw,
        expired_grant_covers_late_usage_within_the_accept_horizon,
        expired_grant_is_kept_until_usage_from_before_is_cut,
        balance_of_usage_billed_by_event_assumes_the_dearest_draw,
    }
    changes {
        all_that_happens_to_credits_is_told_in_its_order,
        whoever_remembers_the_last_number_misses_nothing,
        the_webhook_is_told_what_the_list_tells,
        a_receiver_in_trouble_gets_the_same_id_again,
        what_was_sent_and_not_settled_is_sent_again,
        what_nobody_takes_is_given_up_and_stays_listed,
        each_stage_of_dunning_is_told_once,
        dunning_is_not_published_again_when_its_changes_are_gone,
    }
    credits {
        a_grant_is_issued_and_shown,
        a_repeat_that_comes_after_the_expiry_is_still_a_repeat,
        what_a_grant_cannot_be,
        a_tenant_has_so_many_grants_and_no_more,
        what_is_left_is_voided,
        credits_cover_first_and_the_rest_is_pushed,
        what_shrinks_is_given_back,
        a_balance_is_what_the_next_cut_leaves,
        a_balance_goes_by_the_order_that_is_set,
        what_is_only_compared_draws_nothing,
        a_balance_holds_usage_of_this_moment,
        an_entitlement_is_exact_after_every_event,
        what_has_expired_is_taken_away_after_a_while,
        changes_are_read_page_by_page,
        who_may_look_and_who_may_give,
    }
    decisions {
        an_event_is_admitted_and_shown,
        a_record_is_decided_once,
        what_cannot_be_admitted_says_why,
        many_are_decided_by_a_filter,
        conflicts_are_kept_or_dismissed,
        who_may_decide,
    }
    events {
        a_single_event_and_each_outcome,
        a_batch_is_always_200_and_neighbours_stay_unharmed,
        an_array_of_one_is_a_batch_and_an_empty_one_is_fine,
        only_problems_are_listed_on_request,
        lines_are_judged_each_on_its_own,
        cloud_events,
        a_body_that_is_not_json_counts_nothing,
        a_meter_is_known_as_soon_as_it_is_declared,
        many_tenths_are_exact,
        damaged_bodies_never_fail_the_server,
        two_tenants_with_identical_ids_see_nothing_of_each_other,
    }
    first_hour {
        scale_alone_or_precision_alone_is_enough,
        a_declaration_keeps_what_it_leaves_out,
        an_archived_meter_refuses_events_until_it_is_reopened,
        a_tenant_keeps_what_is_left_out_and_null_removes,
        unknown_tenants_are_said_to_be_unknown,
        blanks_around_a_tenant_are_refused,
        refusals_name_the_field_and_the_fix,
        usage_of_all_tenants_is_one_list,
    }
    idempotency {
        where_money_moves_a_key_is_required,
        elsewhere_a_key_is_welcome,
        a_retry_gets_the_first_answer_byte_for_byte,
        others_neither_see_nor_spoil_it,
        a_refusal_for_another_tenant_is_no_answer_of_the_tenants_own,
        without_the_store_nothing_is_done,
        a_caller_who_is_recognised_too_late_is_put_off,
        bodies_have_their_limits_under_a_key_too,
        a_body_under_a_key_has_at_most_a_mebibyte,
        answers_about_events_are_never_kept,
        callers_without_the_right_are_refused_before_anything_is_claimed,
        a_request_refused_by_validation_leaves_its_key_unused,
        a_hundred_at_once_are_one,
        what_happened_once_stays_so_after_its_key_is_forgotten,
        the_effect_and_its_answer_are_both_there_or_neither,
        a_record_that_cannot_be_read_is_never_taken_for_none,
    }
    pushes {
        pushes_are_listed_by_every_filter,
        pushes_come_page_by_page_newest_first,
        a_push_is_shown_with_all_that_happened_to_it,
        a_dead_push_is_retried_only_if_that_cannot_bill_twice,
        a_dead_push_is_written_off_with_a_reason,
        scopes_and_bound_keys,
        health_and_metrics_show_what_is_unbilled_until_it_is_written_off,
        latencies_say_whether_windows_wait_long_enough,
        a_customer_is_one_tenant,
        billing_is_added_once_and_never_changes,
        billing_that_cannot_be_exact_is_refused,
        without_a_store_there_is_no_answer,
        windows_are_open_then_settling_then_final,
        a_comparison_names_every_customer_and_who_wrote_off,
        a_comparison_needs_something_to_compare_with,
    }
    queries {
        usage_of_the_current_month_by_default,
        days_begin_where_the_zone_says,
        the_day_summer_time_ends_has_25_hours,
        usage_by_dimension,
        the_smallest_of_nothing_is_nothing,
        events_page_by_page_newest_first,
        the_trace_says_what_became_of_an_event,
        inboxes_page_by_page_and_counters_that_add_up,
        meters,
        tenants,
        counters_thresholds_and_rates_have_pages,
        an_answer_of_too_many_groups_is_refused,
    }
    quotes {
        a_quote_is_shown_whole,
        the_place_and_the_moment_decide,
        what_cannot_be_quoted,
        rates_never_overlap_and_can_be_ended,
        rates_that_cannot_be_are_refused,
        a_coupon_counts_once_in_a_cycle,
        of_quotes_at_once_one_has_the_coupon,
        coupons_are_made_once,
        figures_stay_whatever_rates_hold_by_then,
        an_engine_elsewhere_is_asked_once,
        an_engine_that_cannot_be_believed_is_tried_again,
        a_request_that_is_at_work_is_not_begun_again,
        a_caller_who_hangs_up_finds_the_answer_later,
        who_may_ask,
    }
    watch {
        a_pass_needs_a_provider_that_shows_totals,
        a_pass_is_ordered_and_shown,
        a_range_is_whole_days,
        rows_of_a_pass_are_paged,
        findings_are_listed_and_filtered,
        an_unknown_subscription_is_accepted,
        alerts_are_listed_and_filtered,
        thresholds_are_set_listed_and_taken_away,
        a_threshold_has_a_limit_that_can_be_reached,
        scopes_and_bound_keys,
        a_store_that_is_down_is_503,
        a_timeline_of_nothing,
        health_tells_of_passes_and_pages,
    }
}

// What they test ends before the store: connections, limits of requests, the description and the
// table of permissions. One looks for tokens in the bytes of the store's files.
on_one_store! {
    admission {
        a_key_beyond_its_rate_is_put_off_and_others_are_served,
        deliveries_have_a_rate_of_their_own,
        wrong_keys_from_one_address_are_put_off,
        an_address_beyond_its_rate_is_put_off,
        queries_at_work_are_limited_by_key_and_by_time,
        a_page_ends_after_a_mebibyte,
        answers_that_are_not_read_are_counted,
        a_peer_that_does_not_read_loses_its_connection,
        http_2_with_nothing_to_do_is_closed,
        an_old_connection_is_closed_though_it_is_used,
        one_address_has_only_its_part_of_the_connections,
        control_characters_are_refused_in_names,
        a_cursor_that_nobody_wrote_is_refused,
        requests_that_a_proxy_may_read_otherwise_are_refused,
        a_bound_key_cannot_try_coupons_at_will,
        a_bound_key_cannot_open_and_end_alerts_at_will,
    }
    auth {
        a_known_key_outlives_a_short_outage_and_an_unknown_one_is_not_judged,
    }
    description {
        every_reading_route_is_described_with_its_failures,
        every_changing_route_is_described_with_its_failures,
        references_lead_somewhere,
        no_schema_contradicts_itself,
        the_page_needs_nothing_from_elsewhere,
        operation_ids_are_unique,
        every_metric_has_a_help_text,
        request_ids_are_in_the_answer_and_in_the_problem,
        clients_of_stripe_see_an_error,
    }
    idempotency {
        a_token_is_never_stored,
        the_description_says_which_keys_are_needed,
    }
    permissions {
        every_operation_takes_the_keys_that_the_table_names,
    }
    tls {
        a_certificate_is_served_and_read_again_when_it_changes,
        a_certificate_that_cannot_be_used_stops_the_start,
    }
    transport {
        compressed_bodies,
        bombs_stop_at_the_limit,
        limits,
        all_bodies_together_are_bounded,
        webhook_bodies_leave_ingest_its_room,
        webhooks_beyond_their_number_are_put_off,
        bodies_of_one_tenant_leave_room_for_others,
        a_queue_that_is_full_is_503,
        types_paths_and_methods_that_do_not_exist,
        metrics_are_counted_by_route_and_outcome,
        a_connection_that_says_nothing_is_closed,
        http_2_without_tls,
        connections_beyond_the_limit_wait,
        shutdown_ends_requests_in_progress_and_takes_no_more,
    }
}
