//! Tenants that get their customer late: usage the provider still takes is sent, the rest is one
//! figure.

use crate::world::{CALLS, Ground, World};
use counterfoil::jobs::Job;
use counterfoil::rules::submission::PushState;
use counterfoil::store::Query;
use counterfoil::store::alert::AlertFilter;

/// Kinds, subjects and summaries of the alerts that are open.
async fn alerts(world: &World) -> Vec<(&'static str, String, String)> {
    // An alert that is open for long is looked at once more.
    world.jobs.alerter.pass().await.unwrap();
    world.jobs.alerter.pass().await.unwrap();
    let query = Query::first(AlertFilter { open: Some(true), ..AlertFilter::default() }, 100);
    let open = world.store.list_alerts(query).await.unwrap();
    let usage = open.into_iter().filter(|alert| alert.kind.name().starts_with("usage_un"));
    usage.map(|alert| (alert.kind.name(), alert.subject, alert.summary)).collect()
}

pub async fn usage_without_a_customer_pages_after_a_day(ground: Ground) {
    let world = World::on(ground).await;
    world.meter("calls", CALLS).await;
    world.used("free", "7", "2026-11-15T12:00:00Z").await;
    world.pass_hours(3);
    world.cut().await;
    let kinds = async || -> Vec<&'static str> {
        let mut kinds: Vec<_> = alerts(&world).await.into_iter().map(|(kind, ..)| kind).collect();
        kinds.sort_unstable();
        kinds
    };
    assert_eq!(kinds().await, ["usage_unmapped"]);
    world.pass_hours(23);
    assert_eq!(kinds().await, ["usage_unmapped"]);
    world.pass_hours(1);
    assert_eq!(kinds().await, ["usage_unmapped", "usage_unmapped_long"]);
    world.tenant("free").await;
    world.push().await;
    assert_eq!(kinds().await, Vec::<&str>::new());
}

pub async fn usage_of_a_late_customer_is_sent_or_reported_as_one_figure(ground: Ground) {
    let world = World::on(ground).await;
    world.meter("calls", CALLS).await;
    let start = "2026-11-15T12:00:00Z";
    world.used("free", "1", start).await;
    for _ in 0..39 {
        world.pass_hours(24);
        world.used("free", "1", world.clock.now()).await;
        world.cut().await;
    }
    world.pass_hours(2);
    world.cut().await;
    assert!(world.pushes().await.iter().all(|push| push.state == PushState::Waiting));
    assert_eq!(world.push().await, 0);
    let summary = "40 of calls by 1 tenants without a customer is not sent".to_owned();
    assert_eq!(alerts(&world).await, [("usage_unmapped", "calls".to_owned(), summary)]);
    let customer = world.tenant("free").await;
    // Days 0 to 5 are stamped at half past twelve, more than 34 days ago.
    assert_eq!(world.push().await, 34);
    assert_eq!(world.stripe.sum(&customer), "34");
    let dead = world.pushes().await.iter().filter(|push| push.state == PushState::Dead).count();
    assert_eq!(dead, 0);
    let summary = "6 of calls by free (6 pushes) was too old to be sent when the tenant got a \
                   customer"
        .to_owned();
    assert_eq!(alerts(&world).await, [("usage_unsent", "free/calls".to_owned(), summary)]);
}
