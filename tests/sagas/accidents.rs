//! Every saga through the check of its calls.

use super::check::{check_back, check_refusals, check_there};
use super::stories::{Cancel, Change, Create};
use super::world::Ground;

pub async fn a_customer_and_a_subscription(ground: Ground) {
    check_there(ground, &Create { with_customer: false }).await;
}

pub async fn a_subscription_for_a_customer(ground: Ground) {
    check_there(ground, &Create { with_customer: true }).await;
}

pub async fn another_plan(ground: Ground) {
    check_there(ground, &Change).await;
}

pub async fn the_end_at_once(ground: Ground) {
    check_there(ground, &Cancel { at_once: true }).await;
}

pub async fn the_end_with_the_period(ground: Ground) {
    check_there(ground, &Cancel { at_once: false }).await;
}

pub async fn a_subscription_is_taken_back(ground: Ground) {
    check_back(ground, &Create { with_customer: false }).await;
}

pub async fn a_subscription_is_taken_back_from_a_customer(ground: Ground) {
    check_back(ground, &Create { with_customer: true }).await;
}

pub async fn another_plan_is_taken_back(ground: Ground) {
    check_back(ground, &Change).await;
}

pub async fn no_end_at_once(ground: Ground) {
    check_back(ground, &Cancel { at_once: true }).await;
}

pub async fn no_end_with_the_period(ground: Ground) {
    check_back(ground, &Cancel { at_once: false }).await;
}

pub async fn a_new_customer_is_refused(ground: Ground) {
    check_refusals(ground, &Create { with_customer: false }).await;
}

pub async fn a_subscription_is_refused(ground: Ground) {
    check_refusals(ground, &Create { with_customer: true }).await;
}

pub async fn other_prices_are_refused(ground: Ground) {
    check_refusals(ground, &Change).await;
}

pub async fn an_end_is_refused(ground: Ground) {
    check_refusals(ground, &Cancel { at_once: true }).await;
}
