//! A server whose wall clock is wrong beside a provider whose clock is right.

use crate::world::{Ground, Jobs, World, connect};
use counterfoil::clock::Clock;
use counterfoil::jobs::Job;
use counterfoil::rules::submission::{Class, PushState};
use counterfoil::rules::timestamp::{MICROS_PER_HOUR, MICROS_PER_SECOND};

const AHEAD: i64 = 27 * MICROS_PER_HOUR;

/// The jobs of another server on the same store, whose machine's clock is ahead by so much.
fn wrong_server(world: &World, ahead: i64) -> (Jobs, Clock) {
    let clock = world.clock.of_machine_ahead(ahead);
    let provider = connect(&world.config, &clock);
    (Jobs::new(&provider, &world.store, &clock, &world.config, &world.recorders), clock)
}

/// The push was taken a minute ago and the provider's totals lag. To a clock that is 27 hours ahead
/// it looks lost.
pub async fn a_clock_ahead_calls_no_fresh_push_absent(ground: Ground) {
    for confirmed in [true, false] {
        let (world, customer) = World::usual(ground.another().await).await;
        world.stripe.lock().set_summary_lag(3_600);
        world.used("acme", "10", "2026-11-15T10:30:00Z").await;
        world.go_to("2026-11-15T14:00:00Z");
        world.cut().await;
        world.push().await;
        world.pass_seconds(60);
        let (wrong, clock) = wrong_server(&world, AHEAD);
        if confirmed {
            clock.require_confirmation();
        }
        // Even a first answer that shows the totals also shows that the clock is wrong.
        assert_eq!(wrong.confirmer.pass().await.unwrap(), 0);
        world.check(1, PushState::Submitted, Class::Accepted).await;
        assert_eq!(world.stripe.sum(&customer), "10");
    }
}

pub async fn a_clock_in_doubt_cuts_and_sends_nothing_and_goes_on_once_it_is_right(ground: Ground) {
    for ahead in [AHEAD, -AHEAD, 87_600 * MICROS_PER_HOUR] {
        let (world, customer) = World::usual(ground.another().await).await;
        world.used("acme", "10", "2026-11-15T10:30:00Z").await;
        world.go_to("2026-11-15T14:00:00Z");
        let (server, clock) = wrong_server(&world, 0);
        server.cutter.pass().await.unwrap();
        clock.set_wall_ahead(ahead);
        assert_eq!(server.submitter.pass().await.unwrap(), 0);
        world.used("acme", "5", "2026-11-15T11:30:00Z").await;
        world.pass_seconds(3_600);
        assert_eq!(server.cutter.pass().await.unwrap().windows, 0);
        assert_eq!(world.stripe.sum(&customer), "0");
        clock.set_wall_ahead(0);
        assert_eq!(server.cutter.pass().await.unwrap().windows, 1);
        server.submitter.pass().await.unwrap();
        world.pass_seconds(1);
        server.submitter.pass().await.unwrap();
        assert_eq!(world.stripe.sum(&customer), "15");
    }
}

/// A clock that was ahead from the start is set right: pace, waits and cuts go on at once.
pub async fn work_goes_on_at_once_after_the_time_went_back(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    world.go_to("2026-11-15T14:00:00Z");
    let (server, clock) = wrong_server(&world, AHEAD);
    server.cutter.pass().await.unwrap();
    server.submitter.pass().await.unwrap();
    clock.set_wall_ahead(0);
    clock.witness(
        counterfoil::rules::time_source::Witness::Provider,
        world.clock.now(),
        clock.tick(),
    );
    for hour in 0..12 {
        world.used("acme", "1", &format!("2026-11-15T{hour:02}:30:00Z")).await;
    }
    world.clock.advance(MICROS_PER_SECOND);
    world.store.lower_time_marks(clock.sure().unwrap()).await.unwrap();
    server.cutter.pass().await.unwrap();
    for _ in 0..12 {
        server.submitter.pass().await.unwrap();
        world.pass_seconds(1);
    }
    assert_eq!(world.stripe.sum(&customer), "12");
}
