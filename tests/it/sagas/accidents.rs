//! Every saga through the check of its calls.

use super::check::{check_back, check_refusals, check_there};
use super::stories::{Cancel, Change, Create};
use super::world::Ground;

pub async fn sign_up_completes_despite_an_accident_at_any_call(ground: Ground) {
    check_there(ground, &Create { with_customer: false }).await;
}

pub async fn subscription_completes_despite_an_accident_at_any_call(ground: Ground) {
    check_there(ground, &Create { with_customer: true }).await;
}

pub async fn plan_change_completes_despite_an_accident_at_any_call(ground: Ground) {
    check_there(ground, &Change).await;
}

pub async fn immediate_cancellation_completes_despite_an_accident_at_any_call(ground: Ground) {
    check_there(ground, &Cancel { at_once: true }).await;
}

pub async fn cancellation_at_period_end_completes_despite_an_accident_at_any_call(ground: Ground) {
    check_there(ground, &Cancel { at_once: false }).await;
}

pub async fn sign_up_is_undone_despite_an_accident_at_any_call(ground: Ground) {
    check_back(ground, &Create { with_customer: false }).await;
}

pub async fn subscription_is_undone_despite_an_accident_at_any_call(ground: Ground) {
    check_back(ground, &Create { with_customer: true }).await;
}

pub async fn plan_change_is_undone_despite_an_accident_at_any_call(ground: Ground) {
    check_back(ground, &Change).await;
}

pub async fn immediate_cancellation_is_undone_despite_an_accident_at_any_call(ground: Ground) {
    check_back(ground, &Cancel { at_once: true }).await;
}

pub async fn cancellation_at_period_end_is_undone_despite_an_accident_at_any_call(ground: Ground) {
    check_back(ground, &Cancel { at_once: false }).await;
}

pub async fn refused_call_undoes_the_sign_up(ground: Ground) {
    check_refusals(ground, &Create { with_customer: false }).await;
}

pub async fn refused_call_undoes_the_subscription(ground: Ground) {
    check_refusals(ground, &Create { with_customer: true }).await;
}

pub async fn refused_call_undoes_the_plan_change(ground: Ground) {
    check_refusals(ground, &Change).await;
}

pub async fn refused_call_undoes_the_cancellation(ground: Ground) {
    check_refusals(ground, &Cancel { at_once: true }).await;
}
