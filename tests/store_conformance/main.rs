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

#[path = "../world/database.rs"]
mod database;
#[path = "../world/ground.rs"]
mod ground;
#[path = "../world/plant.rs"]
mod plant;
#[path = "../world/scratch.rs"]
mod scratch;

mod access;
mod accounts;
mod alerts;
mod answers;
mod billed;
mod bindings;
mod borders;
mod credits;
mod cut_history;
mod cuts;
mod decisions;
mod declarations;
mod deliveries;
mod findings;
mod fixture;
mod history;
mod inbound;
mod keys;
mod leases;
mod listing;
mod messages;
mod mirrors;
mod money_races;
mod pair;
mod passes;
mod plans;
mod push_listing;
mod pushes;
mod quotes;
mod reissues;
mod rejections;
mod request_keys;
mod restores;
mod sagas;
mod self_check;
mod summaries;
mod tls;
mod two_receivers;
mod two_senders;
mod two_servers;
mod usage;
mod waiting;
mod webhooks;

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
    decisions {
        an_admitted_event_is_counted_once,
        an_admission_of_what_was_counted_says_so,
        admissions_at_once_count_once,
        a_delivery_and_an_admission_at_once_count_once,
        a_group_too_many_stays_undecided,
        windows_of_admitted_events_are_cut_again,
        what_is_discarded_stays_discarded,
        an_admission_with_a_decided_record_has_no_effect,
        a_conflict_is_decided_once,
        inboxes_are_filtered,
    }
    deliveries {
        same_event_twice_counts_once,
        spellings_of_one_quantity_are_one_payload,
        a_restamped_retry_is_a_duplicate,
        a_conflict_is_kept_and_not_counted,
        a_conflict_delivered_again_is_one_record,
        an_inbox_keeps_a_hundred_payloads_of_an_id,
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
        a_group_too_many_of_a_day_is_quarantined,
        groups_of_one_batch_are_bounded_too,
        pages_of_counters_hold_every_row_once,
        counters_of_one_tenant_are_its_own,
    }
    usage {
        all_aggregations_are_exact,
        many_unique_values_of_a_bucket_count_exactly,
        a_query_of_too_many_totals_is_refused,
        unique_values_of_windows_and_of_all_of_them,
        totals_are_visible_at_once,
        dimensions_and_stamps_are_kept_apart,
        buckets_are_half_open,
        a_million_tenths,
        unknown_tenants_have_no_usage,
    }
    listing {
        pages_hold_every_event_once,
        a_search_for_a_rare_meter_goes_on_where_it_ended,
        ranges_and_meters_filter,
        a_trace_tells_everything,
        a_trace_is_of_one_moment,
        inbox_pages,
    }
    declarations {
        meters_are_declared_once,
        an_event_name_is_of_one_meter,
        tenants_are_created_and_renamed,
        fields_of_a_tenant_stay_unless_they_are_given,
    }
    keys {
        api_keys_live_and_die,
        secrets_and_the_clock_survive_a_restart,
        marks_of_a_wrong_clock_are_reset,
    }
    history {
        random_histories_match_the_model,
        order_and_batching_do_not_matter,
        readers_never_see_a_wrong_total,
    }
    waiting {
        usage_without_a_customer_waits_and_is_summed,
        usage_too_old_to_be_sent_is_one_figure,
        revisions_are_released_in_their_order,
        a_customer_given_while_windows_are_cut_leaves_nothing_waiting,
    }
    leases {
        a_lease_has_one_holder,
        three_cutters_at_once,
        a_stale_fence_writes_nothing,
    }
    borders {
        usage_is_pushed_on_its_side_of_a_border,
        a_late_event_goes_to_its_own_side,
        a_timeline_that_is_learnt_late_makes_exact_revisions,
        usage_in_no_subscription_is_held_until_one_is_known,
        a_producers_own_stamp_wins,
        events_that_are_billed_one_by_one_are_attributed_too,
        a_day_is_divided_like_an_hour,
        a_window_billed_by_its_total_is_stamped_where_it_is_charged,
        usage_is_divided_at_borders_that_are_asked_for,
        a_mapping_divides_what_was_cut_before,
        usage_under_a_former_customer_stays_divided_by_its_subscriptions,
    }
    cuts {
        three_calls_with_one_lease,
        a_late_event_makes_a_revision,
        trials_are_not_billed,
        absolute_totals_are_sent_whole,
        remainders_are_carried_over_windows,
        days_are_cut_as_one,
        each_event_is_a_push,
        carried_events_are_added_once,
        events_beyond_the_limit_are_left,
        shadow_is_decided_by_the_first_cut,
        what_is_not_billed_is_not_cut,
        marks_move_and_stay,
    }
    plans {
        histories_and_refusals_have_one_text,
        a_count_is_of_the_events_that_were_cut,
        a_contradicting_window_is_refused_alone,
        a_contradicting_push_is_changed_by_nothing,
    }
    cut_history {
        random_histories_bill_exactly_what_was_used,
    }
    pushes {
        one_of_a_tenant_and_meter_is_in_flight,
        the_lowest_revision_goes_first,
        without_a_customer_nothing_is_claimed,
        an_expired_lease_is_claimed_again,
        the_first_attempt_stays,
        a_history_is_complete_and_in_order,
        a_settlement_counts_once,
        a_reading_settles_only_what_was_listed,
        an_unreadable_push_is_looked_at_again,
        the_next_revision_takes_the_place,
        absolute_totals_overtake_dead_ones,
        retries_and_refusals,
        discards_and_refusals,
        a_claim_tells_what_is_settled_and_doubtful,
        claimants_at_once_share_nothing,
    }
    push_listing {
        pages_and_filters,
        counts_and_unbilled_sums,
        discarded_pushes_are_no_longer_among_the_dead,
        submitted_windows_come_up_when_due,
        windows_with_a_begun_push_are_left_out,
        a_window_keeps_the_customer_that_may_have_it,
    }
    webhooks {
        a_webhook_is_kept_as_it_came,
        five_at_once_are_one,
        batches_at_once_share_nothing,
        twins_are_one_in_either_order,
        twins_within_a_batch_are_one,
        names_of_a_twin_are_learned,
        a_snapshot_after_a_thin_twin_adds_its_state,
        unknown_types_are_kept,
        a_replay_waits_once,
        pages_and_filters,
        those_waiting_are_counted,
        cursors_are_kept,
    }
    mirrors {
        each_request_takes_the_next_ticket,
        claims_respect_leases_and_dues,
        claimants_at_once_share_nothing,
        a_stale_reading_is_not_written,
        readings_of_one_call_are_in_order,
        webhooks_above_the_ticket_keep_waiting,
        a_reading_judges_what_was_told,
        what_cannot_be_read_is_put_off,
        readings_add_only_new_states,
        a_timeline_is_the_same_in_any_order,
        pages_and_filters,
    }
    rejections {
        a_submitted_push_becomes_dead,
        one_that_is_being_sent_is_busy,
        a_lease_that_ended_protects_nothing,
        what_a_summary_has_shown_is_left_alone,
        others_of_the_meter_are_looked_for_at_once,
        a_report_after_several_attempts_proves_nothing,
    }
    summaries {
        equal_readings_are_counted,
        hours_and_days_are_apart,
        pushes_are_read_by_window,
        pairs_are_restless_until_all_is_settled,
        shadow_pairs_are_apart,
        an_open_finding_makes_a_pair_restless,
    }
    passes {
        a_nightly_pass_is_one_for_each_range,
        a_pass_is_kept_as_it_stands,
        passes_are_listed_newest_first,
        rows_are_written_over_while_a_pass_runs,
        a_lost_lease_writes_nothing,
        rows_are_paged_by_tenant_meter_and_day,
    }
    self_check {
        a_slice_of_any_size_is_compared_in_bounded_memory,
        slices_and_windows_have_the_same_totals_together,
        a_mismatch_is_kept_until_its_slice_agrees,
    }
    findings {
        a_finding_is_followed_until_it_is_cleared,
        one_of_a_kind_and_subject_is_open,
        changes_of_one_call_are_in_order,
        pages_and_filters,
        drifting_tenants_are_counted,
    }
    reissues {
        what_is_lacking_is_sent_again,
        a_reissue_is_sent_and_confirmed,
        asked_twice_it_is_done_once,
        what_is_in_doubt_is_not_corrected,
        a_loss_is_corrected_on_two_readings_after_the_last_push,
        what_another_customer_was_told_is_not_lost,
        submitted_and_dead_ones_are_taken_for_what_they_are,
        absolute_totals_are_told_whole,
        shadow_and_single_events_are_corrected_alike,
        confirmed_pushes_are_closed,
    }
    alerts {
        an_alert_opens_once,
        an_open_alert_is_restated_without_a_notice,
        openings_at_once_are_one,
        an_alert_ends_once,
        who_never_heard_of_it_does_not_hear_of_its_end,
        who_may_have_heard_of_it_hears_of_its_end,
        a_refused_opening_is_not_tried_again,
        notices_are_leased_and_fenced,
        claimants_at_once_share_nothing,
        pages_and_filters,
        pages_are_counted_by_day_and_week,
        a_threshold_has_one_limit,
        a_threshold_creates_its_tenant,
        pages_of_thresholds_hold_every_one_once,
    }
    accounts {
        an_account_is_created_once,
        accounts_are_listed_in_byte_order,
        an_entry_is_written_once,
        refusals_write_nothing,
        a_statement_is_read_in_pages,
        postings_at_once_lose_nothing,
        takers_at_once_stop_at_the_floor,
        one_key_at_once_is_one_entry,
        transfers_at_once_equal_some_order,
        tenants_with_equal_names_are_apart,
        random_entries_match_the_model,
    }
    credits {
        a_grant_is_issued_once,
        issuers_at_once_issue_one,
        live_grants_have_a_limit,
        void_keeps_what_is_reserved,
        what_is_left_is_voided_once,
        takers_at_once_never_overdraw,
        what_expired_is_taken_once,
        expirers_at_once_take_once,
        usage_is_covered_before_it_is_billed,
        windows_of_one_call_see_each_other,
        cuts_at_once_never_overdraw,
        a_taker_and_cuts_share_a_grant,
        grants_are_drawn_in_the_order_that_is_set,
        only_what_holds_at_the_window_covers_it,
        a_window_that_shrinks_gives_back_in_reverse,
        what_is_given_back_after_expiry_expires,
        rates_are_exact,
        single_events_are_covered,
        absolute_totals_leave_out_what_is_covered,
        shadow_windows_draw_nothing,
        tenants_with_equal_keys_are_apart,
        random_histories_match_the_model,
    }
    answers {
        changes_of_credits_read_alike,
        published_credits_read_alike,
        entries_of_credits_read_alike,
        refusals_of_credits_read_alike,
        refusals_of_entries_read_alike,
        answers_about_sagas_read_alike,
        verdicts_read_alike,
        resuming_raises_the_fence,
        growth_of_a_window_that_was_followed_is_covered_once,
        grants_that_contradict_their_history_stay_as_they_are,
        accounts_that_contradict_themselves_take_no_entry,
        sagas_that_contradict_themselves_are_not_resumed,
    }
    sagas {
        a_saga_is_begun_once,
        beginners_at_once_begin_one,
        a_log_is_written_under_the_fence,
        a_stale_claimant_is_refused,
        a_saga_ends_with_its_change,
        claimants_at_once_share_nothing,
        those_longest_due_go_first,
        a_saga_is_resumed,
        resumes_and_beginnings_at_once_open_one,
        pages_and_filters,
        a_hold_keeps_later_pushes_back,
        an_earlier_window_passes_a_held_one,
        a_hold_needs_a_current_claim,
        held_usage_is_among_what_is_not_billed,
        pushes_to_be_sent_are_counted,
        a_subscription_record_is_written_once,
        a_subscription_record_replaces_another,
        a_subscription_record_ends_once,
        stamps_lie_inside_the_subscription,
        held_pushes_are_stamped_when_the_prices_changed,
        unconfirmed_windows_before_a_boundary_are_listed,
    }
    access {
        a_reading_suspends_and_ends_the_record_of_its_subscription,
        a_published_change_says_what_may_be_used,
        a_stale_reading_and_one_of_nothing_change_no_access,
        readings_and_sagas_in_any_order_end_alike,
        a_plan_changed_while_unpaid_stays_suspended,
        a_record_and_a_reading_at_once_do_not_miss_each_other,
        the_newest_record_of_a_subscription,
    }
    quotes {
        rates_of_one_name_never_overlap,
        a_rate_ends,
        rates_at_once_never_overlap,
        coupons_are_written_once,
        a_quote_is_kept_as_it_was_answered,
        a_coupon_is_used_once_in_a_cycle,
        a_coupon_at_once_is_used_once,
        cycles_at_once_keep_the_limit,
        one_key_at_once_is_one_quote,
    }
    messages {
        a_message_is_written_once,
        writers_at_once_write_one,
        claims_are_leased_and_fenced,
        claimants_at_once_share_nothing,
        old_messages_are_pruned,
    }
    bindings {
        the_first_account_is_bound,
        an_ended_binding_is_followed_by_the_next,
        a_binding_does_not_end_while_pushes_are_on_their_way,
        two_that_bind_at_once_find_one_binding,
    }
    restores {
        a_store_knows_its_life,
        after_a_restore_the_rest_is_sent,
        after_a_restore_what_is_there_is_not_sent,
    }
    request_keys {
        a_key_has_one_owner,
        claimants_at_once_are_one,
        what_is_kept_long_enough_is_swept,
        a_key_ends_with_its_effect,
        a_fenced_claim_undoes_the_effect,
        owners_at_once_have_one_effect,
        a_caller_that_leaves_leaves_no_half,
    }
}
