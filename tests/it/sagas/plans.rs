//! A change of plan and the money: what was used before the boundary is invoiced at the old price,
//! what was used after it at the new one.

use super::check::check_finish;
use super::stories::{Cancel, Case, Change, Create, Story, id_of, subscriber};
use super::world::{Ground, World, at};
use counterfoil::jobs::Job;
use counterfoil::jobs::sagas::{ChangeParams, PlanTerms};
use counterfoil::rules::saga::{Mark, SagaKind, SagaState};
use counterfoil::rules::submission::PushState;
use serde_json::Value;
use std::sync::Arc;
use stripe_sim::{FaultKind, FaultRule};

fn go_to(world: &World, text: &str) {
    world.go_to(text);
    world.stripe.lock().tick();
}

async fn send(world: &World) {
    world.jobs.cutter.pass().await.unwrap();
    world.jobs.submitter.pass().await.unwrap();
}

/// The same at this moment.
async fn send_at(world: &World, text: &str) {
    go_to(world, text);
    send(world).await;
}

/// What a customer's invoices come to, oldest first.
fn invoiced(world: &World, case: &Case) -> Vec<i64> {
    let all = world.stripe.invoices();
    let customer = &case.customer.as_ref().unwrap()["id"];
    let own = all.iter().filter(|one: &&Value| one["customer"] == *customer);
    own.map(|one| one["total"].as_i64().unwrap()).collect()
}

pub async fn usage_is_charged_by_the_price_of_its_time(ground: Ground) {
    let world = World::on(ground).await;
    let case = Change.begin(&world).await;
    assert_eq!(world.runner(&Arc::default()).pass().await.unwrap(), 1);
    go_to(&world, "2026-11-15T13:10:00Z");
    world.used(&case.tenant, "50", world.clock.now()).await;
    // A late one, of the window before the boundary.
    world.used(&case.tenant, "2", at("2026-11-15T12:40:00Z")).await;
    assert_eq!(world.finish(&case.saga).await, SagaState::Completed);
    send_at(&world, "2026-11-15T14:00:00Z").await;
    send_at(&world, "2026-11-15T15:00:00Z").await;
    let pushes = world.pushes(&case.tenant).await;
    assert!(pushes.iter().all(|push| push.state != PushState::Observed), "{pushes:#?}");
    go_to(&world, "2026-12-16T12:00:00Z");
    // Nine at one cent until the change, fifty at two cents from then on.
    assert_eq!(invoiced(&world, &case), [9, 100]);
}

/// The provider bills at a change what it has aggregated by then.
pub async fn plan_change_waits_for_aggregated_usage(ground: Ground) {
    let world = World::on(ground).await;
    world.stripe.lock().set_summary_lag(240);
    let case = Change.begin(&world).await;
    check_finish(&world, &Change, &case, SagaState::Completed).await;
    go_to(&world, "2026-11-15T15:00:00Z");
    assert_eq!(invoiced(&world, &case), [7]);
}

/// Usage that is not aggregated in time stays at the old price, and none of it is dropped.
pub async fn plan_change_is_undone_if_usage_is_not_aggregated_in_time(ground: Ground) {
    let world = World::on(ground).await;
    world.stripe.lock().set_summary_lag(7_200);
    let case = Change.begin(&world).await;
    check_finish(&world, &Change, &case, SagaState::Compensated).await;
    go_to(&world, "2026-12-16T12:00:00Z");
    assert_eq!(invoiced(&world, &case), [7]);
}

/// The provider bills at a cancellation what it has aggregated by then, however long that takes.
pub async fn cancellation_waits_for_aggregated_usage(ground: Ground) {
    let world = World::on(ground).await;
    world.stripe.lock().set_summary_lag(9 * 3_600);
    let story = Cancel { at_once: true };
    let case = story.begin(&world).await;
    check_finish(&world, &story, &case, SagaState::Completed).await;
    go_to(&world, "2026-11-16T15:00:00Z");
    assert_eq!(invoiced(&world, &case), [7]);
}

/// Events that are on their way at the boundary are in the last cut.
pub async fn cancellation_waits_for_late_events(ground: Ground) {
    let world = World::on(ground).await;
    let story = Cancel { at_once: true };
    let case = story.begin(&world).await;
    assert_eq!(world.runner(&Arc::default()).pass().await.unwrap(), 1);
    for (received, used) in [("13:00:10", "12:50:00"), ("13:55:00", "12:59:59")] {
        go_to(&world, &format!("2026-11-15T{received}Z"));
        // Each runner is a new one, as after a crash.
        world.runner(&Arc::default()).pass().await.unwrap();
        world.used(&case.tenant, "10", at(&format!("2026-11-15T{used}Z"))).await;
    }
    assert_eq!(world.finish(&case.saga).await, SagaState::Completed);
    go_to(&world, "2026-11-15T18:00:00Z");
    assert_eq!(invoiced(&world, &case), [27]);
}

/// Windows after the boundary are stamped half an hour after it: prices that change later than that
/// are not changed at all.
pub async fn plan_change_that_comes_too_late_is_undone(ground: Ground) {
    let world = World::on(ground).await;
    let case = Change.begin(&world).await;
    assert_eq!(world.runner(&Arc::default()).pass().await.unwrap(), 1);
    go_to(&world, "2026-11-15T13:10:00Z");
    world.used(&case.tenant, "50", world.clock.now()).await;
    go_to(&world, "2026-11-15T13:26:00Z");
    check_finish(&world, &Change, &case, SagaState::Compensated).await;
    // Nor is its moment there for a new start.
    world.store.resume_saga(&case.saga, world.clock.now()).await.unwrap();
    check_finish(&world, &Change, &case, SagaState::Compensated).await;
    send_at(&world, "2026-11-15T15:00:00Z").await;
    go_to(&world, "2026-12-16T12:00:00Z");
    assert_eq!(invoiced(&world, &case), [57], "all at the old price");
}

/// While the hold stands, what was sent before the boundary goes out and nothing after it.
pub async fn later_pushes_wait_for_the_change(ground: Ground) {
    let world = World::on(ground).await;
    let held = subscriber(&world, "held").await;
    let free = subscriber(&world, "free").await;
    let boundary = world.boundary().await;
    let now = world.clock.now();
    let saga = world.begin(&held.tenant, SagaKind::ChangePlan, &serde_json::json!({})).await;
    let until = now.saturating_add_micros(86_400_000_000);
    let claimed = world.store.claim_sagas(now, until, 1).await.unwrap().remove(0);
    let claim = (claimed.saga.number, claimed.fence);
    assert!(world.store.put_hold(claim, boundary, now).await.unwrap());
    for minutes in ["13:10", "14:10"] {
        go_to(&world, &format!("2026-11-15T{minutes}:00Z"));
        for case in [&held, &free] {
            world.used(&case.tenant, "1", world.clock.now()).await;
        }
        send(&world).await;
    }
    send_at(&world, "2026-11-15T16:30:00Z").await;
    let waiting = |pushes: Vec<counterfoil::store::push::Push>| {
        let observed = pushes.iter().filter(|push| push.state == PushState::Observed);
        observed.map(|push| push.window.start).collect::<Vec<_>>()
    };
    let later = [at("2026-11-15T13:00:00Z"), at("2026-11-15T14:00:00Z")];
    assert_eq!(waiting(world.pushes(&held.tenant).await), later);
    assert_eq!(waiting(world.pushes(&free.tenant).await), []);
    assert!(world.store.release_hold(&saga).await.unwrap());
    send(&world).await;
    assert_eq!(waiting(world.pushes(&held.tenant).await), []);
}

/// The middle of the hour lies before the subscription.
pub async fn usage_of_the_sign_up_hour_is_invoiced(ground: Ground) {
    let world = World::on(ground).await;
    go_to(&world, "2026-11-15T12:40:00Z");
    let case = Create { with_customer: true }.begin(&world).await;
    assert_eq!(world.finish(&case.saga).await, SagaState::Completed);
    go_to(&world, "2026-11-15T12:45:00Z");
    world.used(&case.tenant, "100", world.clock.now()).await;
    send_at(&world, "2026-11-15T15:00:00Z").await;
    go_to(&world, "2026-12-16T12:00:00Z");
    // The flat price of two months, and 100 at one cent.
    assert_eq!(invoiced(&world, &case), [500, 500 + 100]);
}

/// The middle of the hour lies after the end of the subscription, at 12:20.
pub async fn usage_of_the_last_hour_is_stamped_inside_the_subscription(ground: Ground) {
    let world = World::on(ground).await;
    let story = Cancel { at_once: false };
    let case = story.begin(&world).await;
    assert_eq!(world.finish(&case.saga).await, SagaState::Completed);
    go_to(&world, "2026-12-15T12:10:00Z");
    world.used(&case.tenant, "3", world.clock.now()).await;
    send_at(&world, "2026-12-15T15:00:00Z").await;
    let pushes = world.pushes(&case.tenant).await;
    assert_eq!(pushes.last().unwrap().stamped_at, at("2026-12-15T12:10:00Z"));
}

/// Events are stamped with their own moment, and the prices change after the boundary.
pub async fn events_after_the_boundary_are_charged_by_the_new_price(ground: Ground) {
    let world = World::on(ground).await;
    let spec =
        r#"{"aggregation":"sum","billing":{"granularity":"event","from":"2026-11-15T00:00:00Z"}}"#;
    world.meter("clicks", spec).await;
    let prices = ["1", "100"].map(|cents| world.stripe.price("clicks", cents, "month"));
    let mut case = subscriber(&world, "events").await;
    let fields = [("customer", case.customer_id()), ("items[0][price]", &prices[0])];
    let subscription = id_of(&world.stripe.ask("/v1/subscriptions", &fields));
    let boundary = world.boundary().await;
    let (plan, prices) = ("dear".to_owned(), prices[1..].to_vec());
    let terms = PlanTerms { plan, prices, features: Vec::new() };
    let params = ChangeParams { subscription, terms, boundary };
    case.saga = world.begin(&case.tenant, SagaKind::ChangePlan, &params).await;
    assert_eq!(world.runner(&Arc::default()).pass().await.unwrap(), 1);
    go_to(&world, "2026-11-15T13:00:03Z");
    world.used_of("clicks", &case.tenant, "50", world.clock.now()).await;
    send(&world).await;
    assert_eq!(world.finish(&case.saga).await, SagaState::Completed);
    go_to(&world, "2026-11-15T13:40:00Z");
    world.used_of("clicks", &case.tenant, "1", at("2026-11-15T13:00:05Z")).await;
    send_at(&world, "2026-11-15T15:00:00Z").await;
    go_to(&world, "2026-12-16T12:00:00Z");
    let total: i64 = invoiced(&world, &case).iter().sum();
    // With the seven calls at one cent of the other subscription.
    assert_eq!(total, 51 * 100 + 7);
}

/// The call was never answered, and takes effect when the saga has turned back.
pub async fn late_call_of_an_abandoned_change_is_undone(ground: Ground) {
    let world = World::on(ground).await;
    let case = Change.begin(&world).await;
    let silent = FaultRule::new(FaultKind::Error503).on_call("POST /v1/subscriptions/:id");
    world.stripe.faults(vec![silent.times(1_000)]);
    let turned = |mark: Mark| mark == Mark::TurnedBack;
    while !world.saga(&case.saga).await.1.iter().any(|line| turned(line.mark)) {
        world.runner(&Arc::default()).pass().await.unwrap();
        world.jobs.submitter.pass().await.unwrap();
        world.wait_for(&case.saga).await;
    }
    world.stripe.faults(Vec::new());
    let before = case.subscription_now(&world);
    let item = before["items"]["data"][0]["id"].as_str().unwrap();
    let fields = [
        ("items[0][id]", item),
        ("items[0][deleted]", "true"),
        ("items[1][price]", &world.prices[1]),
    ];
    world.stripe.ask(&format!("/v1/subscriptions/{}", before["id"].as_str().unwrap()), &fields);
    check_finish(&world, &Change, &case, SagaState::Compensated).await;
}

/// In the older billing mode the provider drops the usage of the period when prices change.
pub async fn plan_change_is_refused_where_replaced_usage_is_dropped(ground: Ground) {
    let world = World::on(ground).await;
    let tenant = world.fresh("classic");
    let customer = world.tenant(&tenant).await;
    let fields = [
        ("customer", customer.as_str()),
        ("items[0][price]", &world.prices[0]),
        ("billing_mode[type]", "classic"),
    ];
    let subscription = id_of(&world.stripe.ask("/v1/subscriptions", &fields));
    world.used(&tenant, "7", world.clock.now()).await;
    let (plan, prices) = ("scale".to_owned(), world.prices[1..2].to_vec());
    let terms = PlanTerms { plan, prices, features: Vec::new() };
    let params = ChangeParams { subscription, terms, boundary: world.boundary().await };
    let saga = world.begin(&tenant, SagaKind::ChangePlan, &params).await;
    assert_eq!(world.finish(&saga).await, SagaState::Compensated);
    send_at(&world, "2026-11-15T15:00:00Z").await;
    go_to(&world, "2026-12-16T12:00:00Z");
    assert_eq!(world.kept(&customer), 7);
}
