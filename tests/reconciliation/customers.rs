//! A customer that was deleted at the provider.

use crate::world::{Ground, World, lock};
use counterfoil::rules::alert::{AlertKind, NoticeEvent};
use counterfoil::rules::delivery::{Class, PushState};
use counterfoil::simulator::{CustomerCheck, SimRequest};

const POSTS: &str = "POST /v1/billing/meter_events";

pub async fn a_deleted_customer_is_a_page_and_its_usage_is_shown(ground: Ground) {
    check(ground, CustomerCheck::Synchronous).await;
}

pub async fn a_deleted_customer_that_is_told_of_later(ground: Ground) {
    check(ground, CustomerCheck::Asynchronous).await;
}

async fn check(ground: Ground, told: CustomerCheck) {
    let (world, customer) = World::usual_with(ground, |c| c.reconcile.correct = true).await;
    lock(&world.simulator()).set_customer_check(told);
    world.used("30", "2026-11-15T11:10:00Z").await;
    world.hours(3).await;
    world.answer(&SimRequest::new("DELETE", &format!("/v1/customers/{customer}")));
    world.used("400", "2026-11-15T14:10:00Z").await;
    world.hours(1).await;
    assert_eq!(world.told(AlertKind::CustomerDeleted), [NoticeEvent::Opened]);
    // Usage goes on; none of it vanishes.
    world.used("5000", "2026-11-15T15:10:00Z").await;
    world.hours(2).await;
    world
        .check_pushes(&[
            ("30", PushState::Confirmed, Class::Confirmed),
            ("400", PushState::Dead, Class::Refused),
            ("5000", PushState::Dead, Class::Refused),
        ])
        .await;
    let alerts = world.alerts().await;
    let unbilled = alerts.iter().filter(|alert| alert.kind == AlertKind::Unbilled);
    assert_eq!(unbilled.count(), 1);
    assert!(world.pages().contains(&AlertKind::DeadLetters));
    assert_eq!(world.provider_sum(&customer), "30");
    // The tenant becomes another customer, and what is dead is sent for that one.
    let next = world.tenant("acme").await;
    for push in world.pushes().await.iter().filter(|push| push.state == PushState::Dead) {
        world.store.retry_push(push.number, world.clock.now()).await.unwrap();
    }
    world.hours(6).await;
    assert_eq!(world.provider_sum(&next), "5400", "and not what the first has paid for");
    assert_eq!(world.provider_sum(&customer), "30");
    assert_eq!((world.planned_sum().await, world.calls(POSTS)), ("5430".into(), 5));
    let told = world.told(AlertKind::CustomerDeleted);
    assert_eq!(told, [NoticeEvent::Opened, NoticeEvent::Resolved]);
    assert_eq!(world.alerted(AlertKind::DeadLetters).await.1, 0);
}
