//! Sagas from end to end, against the Stripe simulator over a real socket: each call failed,
//! repeated and cut off; accidents of the provider by seed; what a person does; and requests over
//! HTTP.

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

on_every_store! {
    accidents {
        sign_up_completes_despite_an_accident_at_any_call,
        subscription_completes_despite_an_accident_at_any_call,
        plan_change_completes_despite_an_accident_at_any_call,
        immediate_cancellation_completes_despite_an_accident_at_any_call,
        cancellation_at_period_end_completes_despite_an_accident_at_any_call,
        sign_up_is_undone_despite_an_accident_at_any_call,
        subscription_is_undone_despite_an_accident_at_any_call,
        plan_change_is_undone_despite_an_accident_at_any_call,
        immediate_cancellation_is_undone_despite_an_accident_at_any_call,
        cancellation_at_period_end_is_undone_despite_an_accident_at_any_call,
        refused_call_undoes_the_sign_up,
        refused_call_undoes_the_subscription,
        refused_call_undoes_the_plan_change,
        refused_call_undoes_the_cancellation,
    }
    faults {
        sagas_complete_despite_seeded_provider_faults,
        sagas_are_undone_despite_seeded_provider_faults,
    }
    persons {
        failed_undo_needs_a_person,
        saga_is_not_restarted_before_the_refund,
        unknown_outcome_needs_a_person,
        undo_needs_the_customer_of_the_change,
        undone_saga_can_be_restarted,
        concurrent_runners_do_each_step_once,
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
        plan_change_that_comes_too_late_is_undone,
        later_pushes_wait_for_the_change,
        plan_change_is_refused_where_replaced_usage_is_dropped,
        late_call_of_an_abandoned_change_is_undone,
    }
    http {
        saga_runs_from_its_request_to_completion,
        undone_saga_is_resumed_over_http,
        billing_periods_are_aligned_to_windows,
        a_subscription_whose_alignment_has_passed_is_refused,
    }
}
