//! Webhooks end to end: the router, the store, the jobs that read objects and lists, and a Stripe
//! simulator.

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

on_every_store! {
    access {
        access_follows_the_subscription,
    }
    signatures {
        forgeries_leave_no_trace,
        both_secrets_are_accepted_during_a_rotation,
        revoked_secret_is_refused,
        webhooks_are_refused_without_a_secret,
        signature_is_valid_for_five_minutes,
    }
    refusals {
        webhook_without_an_id_is_refused,
        body_that_is_no_event_is_refused,
        unknown_types_are_kept_and_acknowledged,
    }
    awkward {
        body_that_is_not_utf8_is_refused,
        timestamp_out_of_range_harms_nothing,
        a_payload_with_nul_is_kept,
        a_type_with_control_characters_is_refused,
    }
    repeats {
        concurrent_copies_of_an_event_are_one_webhook,
        snapshot_and_thin_event_are_one_fact_in_any_order,
        events_with_equal_content_are_one_webhook,
        state_that_returns_within_a_second_is_kept,
    }
    orders {
        every_order_of_delivery_ends_in_the_same_state,
        every_order_within_one_second_ends_in_the_same_state,
        shuffled_lives_of_several_subscriptions_end_in_the_same_state,
        dunning_alerts_once_a_cycle,
    }
    readings {
        webhook_older_than_the_mirror_is_stale,
        a_lower_ticket_never_overwrites,
        every_order_of_two_readers_keeps_the_newest_reading,
        concurrent_readers_read_each_object_once,
    }
    outages {
        webhooks_wait_while_the_store_is_down,
        full_queue_refuses_webhooks,
        objects_are_read_after_a_provider_outage,
    }
    log {
        log_is_filtered_and_paged,
        payload_is_kept_byte_for_byte,
        replayed_webhook_is_read_again,
        log_needs_a_key_with_its_scope,
    }
    backfill {
        backfill_finds_lost_webhooks,
        interrupted_backfill_resumes,
        backfill_with_an_expired_cursor_starts_over,
        backfill_reads_thirty_days_at_most,
        backfill_leaves_recent_events_to_delivery,
    }
    objects {
        credit_grants_are_mirrored_in_any_order,
        deleted_customer_is_mirrored,
        every_line_of_a_long_invoice_is_mirrored,
        tenant_mapped_later_gets_its_timeline,
        error_reports_are_mirrored,
    }
}
