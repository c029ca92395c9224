//! Outages, the pace of calls, and what happens when a server stops.

use crate::world::{CALLS, Ground, World};
use counterfoil::jobs::binding::Gate;
use counterfoil::jobs::webhook::WebhookInbox;
use counterfoil::jobs::{Job, Jobs, Stopper};
use counterfoil::rules::submission::{Class, PushState};
use std::time::Duration;
use stripe_sim::{FaultKind, Options};

const HOUR: &str = "2026-11-15T12:00:00Z";

/// With the windows, more than one claim takes.
const TENANTS: usize = 15;
const WINDOWS: usize = 10;
const PUSHES: usize = TENANTS * WINDOWS;

/// Windows of every tenant, waiting to be sent.
async fn backlog(world: &World) -> Vec<String> {
    world.meter("calls", CALLS).await;
    let mut customers = Vec::new();
    for number in 0..TENANTS {
        customers.push(world.tenant(&format!("tenant{number}")).await);
    }
    for _ in 0..WINDOWS {
        let now = world.clock.now().to_string();
        for number in 0..TENANTS {
            world.used(&format!("tenant{number}"), "1.5", &now).await;
        }
        world.pass_hours(1);
    }
    world.pass_hours(2);
    customers
}

pub async fn an_outage_of_an_hour_loses_nothing_and_makes_no_storm_of_alerts(ground: Ground) {
    let mut world = World::on(ground).await;
    let customers = backlog(&world).await;
    world.stripe.handle.stop().await.unwrap();
    assert_eq!(world.cut().await.pushes, u64::try_from(PUSHES).unwrap());
    let mut warnings = 0;
    // A look every ten seconds of the hour, and sending all the while.
    for look in 0..360 {
        if look % 6 == 0 {
            world.push().await;
        }
        warnings += world.jobs.watcher.pass().await.unwrap();
        world.pass_seconds(10);
    }
    assert!((1..=2).contains(&warnings), "{warnings}");
    let waiting = world.pushes().await;
    assert_eq!(waiting.len(), PUSHES);
    assert!(waiting.iter().all(|push| push.state == PushState::Observed));
    assert!(waiting.iter().all(|push| push.attempts < 40), "pauses grow");
    world.stripe.handle.restart().await.unwrap();
    for _ in 0..10 {
        world.pass_seconds(60);
        world.push().await;
    }
    let sent = world.pushes().await;
    assert!(sent.iter().all(|push| push.state == PushState::Submitted));
    for customer in &customers {
        assert_eq!(world.stripe.sum(customer), "15");
    }
    assert_eq!(world.stripe.lock().accepted_events(), PUSHES);
    assert_eq!(world.jobs.watcher.pass().await.unwrap(), 0, "all is well again");
    world.pass_hours(1);
    assert_eq!(world.confirm().await, PUSHES);
}

/// One tenant that nobody mapped must not hide that the provider takes nothing from the others.
pub async fn a_tenant_without_a_customer_hides_no_outage(ground: Ground) {
    let mut world = World::on(ground).await;
    world.meter("calls", CALLS).await;
    world.used("nobody", "1", HOUR).await;
    world.go_to("2026-11-15T14:00:00Z");
    world.cut().await;
    assert_eq!(world.jobs.watcher.pass().await.unwrap(), 1, "it waits for its customer");
    world.pass_seconds(600);
    assert_eq!(world.jobs.watcher.pass().await.unwrap(), 0, "that is not the provider's fault");
    world.tenant("acme").await;
    world.stripe.handle.stop().await.unwrap();
    world.used("acme", "1", HOUR).await;
    world.cut().await;
    world.push().await;
    world.pass_seconds(600);
    assert_eq!(world.jobs.watcher.pass().await.unwrap(), 1, "the provider takes nothing");
}

pub async fn a_dead_letter_is_warned_of_once(ground: Ground) {
    let (world, _) = World::usual(ground).await;
    let push = world.planned("5").await;
    let meter = world.stripe.find_meter("calls").unwrap();
    world.stripe.ask(&format!("/v1/billing/meters/{meter}/deactivate"), &[]);
    world.push().await;
    world.check(push.number, PushState::Dead, Class::Refused).await;
    assert_eq!(world.jobs.watcher.pass().await.unwrap(), 1);
    assert_eq!(world.jobs.watcher.pass().await.unwrap(), 0);
}

pub async fn no_more_calls_than_the_pace_until_the_clock_moves(ground: Ground) {
    let world = World::with(ground, |config| config.push.rate_per_second = 50).await;
    backlog(&world).await;
    assert_eq!(world.cut().await.pushes, u64::try_from(PUSHES).unwrap());
    for _ in 0..5 {
        world.push().await;
        assert_eq!(world.posts(), 5, "a tenth of a second's worth at once");
    }
    for calls in [10, 15] {
        world.clock.advance(100_000);
        world.push().await;
        assert_eq!(world.posts(), calls);
    }
    world.clock.advance(40_000);
    world.push().await;
    assert_eq!(world.posts(), 17, "less time is fewer calls");
    // A long pause allows one burst, not more.
    world.pass_hours(1);
    world.push().await;
    assert_eq!(world.posts(), 22);
}

pub async fn stopping_settles_what_is_on_its_way_and_starts_nothing_more(ground: Ground) {
    let options = Options { latency_ms: 150, ..Options::default() };
    let world = World::with_stripe(ground, options, |_| {}).await;
    world.meter("calls", CALLS).await;
    let customer = world.tenant("acme").await;
    for _ in 0..3 {
        world.used("acme", "1", world.clock.now()).await;
        world.pass_hours(1);
    }
    world.pass_hours(1);
    assert_eq!(world.cut().await.pushes, 3);
    let (stopper, stop) = Stopper::new();
    let submitter = world.jobs.submitter.clone();
    let running = tokio::spawn(async move { submitter.run(stop).await });
    // The first is at the provider, and its answer is not.
    while world.posts() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    stopper.stop();
    running.await.unwrap();
    let pushes = world.pushes().await;
    let settled = pushes.iter().filter(|push| push.state == PushState::Submitted).count();
    let begun = pushes.iter().filter(|push| push.attempts > 0).count();
    let posts = usize::try_from(world.posts()).unwrap();
    assert_eq!((settled, begun), (posts, posts), "whatever was begun was settled");
    assert!(posts < 3, "the others were left for the next start");
    let next = world.other_server(|_| {});
    next.submitter.pass().await.unwrap();
    assert_eq!((world.posts(), world.stripe.sum(&customer)), (3, "3".to_owned()));
}

/// A push on its way does not keep the rest waiting.
pub async fn a_call_that_hangs_holds_up_its_own_customer_only(ground: Ground) {
    let world = World::with(ground, |config| config.stripe.timeout_ms = 300).await;
    world.meter("calls", CALLS).await;
    let mut customers = Vec::new();
    for number in 0..5 {
        customers.push(world.tenant(&format!("tenant{number}")).await);
        world.used(&format!("tenant{number}"), "1", HOUR).await;
    }
    world.stripe.fault(FaultKind::HangBefore, 1);
    world.go_to("2026-11-15T14:00:00Z");
    world.cut().await;
    world.push().await;
    let sums: Vec<String> = customers.iter().map(|customer| world.stripe.sum(customer)).collect();
    assert_eq!(sums.iter().filter(|sum| *sum == "1").count(), 4, "{sums:?}");
    world.pass_hours(1);
    world.push().await;
    assert_eq!(world.stripe.lock().accepted_events(), 5);
}

/// The jobs that work with the provider, as the server starts them.
pub async fn the_jobs_of_a_server_work_together_and_end_together(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    world.used("acme", "5", HOUR).await;
    world.go_to("2026-11-15T14:00:00Z");
    let (inbox, mut jobs) = (WebhookInbox::start(world.store.clone()), Jobs::default());
    jobs.start_billing(&world.jobs.context, &world.provider, &Gate::open(), &inbox);
    while world.posts() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    jobs.drain().await;
    let push = world.pushes().await.pop().unwrap();
    assert_eq!((push.state, push.class), (PushState::Submitted, Class::Accepted));
    assert_eq!(world.stripe.total(&customer, HOUR), "5");
}

/// Windows whose totals cannot be read come up again later, behind those that can.
pub async fn what_cannot_be_read_is_put_off(ground: Ground) {
    let (mut world, _) = World::usual(ground).await;
    let push = world.planned("5").await;
    world.push().await;
    world.pass_hours(1);
    world.stripe.handle.stop().await.unwrap();
    world.confirm().await;
    let put_off = world.check(push.number, PushState::Submitted, Class::Accepted).await;
    assert!(put_off.due_at > world.clock.now(), "it waits");
    assert_eq!(world.confirm().await, 0);
    world.stripe.handle.restart().await.unwrap();
    world.pass_hours(2);
    assert_eq!(world.confirm().await, 1);
    world.check(push.number, PushState::Confirmed, Class::Confirmed).await;
}
