//! Shadow mode: everything but billing. What was cut in shadow is never billed, whatever follows.

use crate::world::{Ground, World, at};
use counterfoil::config::{Secret, Shadow};
use counterfoil::jobs::Job;
use counterfoil::provider;
use counterfoil::rules::submission::{Class, PushState};

const HOUR: &str = "2026-11-15T12:00:00Z";

pub async fn shadow_nowhere_sends_nothing_and_says_so(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    let shadow = world.other_server(|config| config.provider.shadow = Shadow::Nowhere);
    world.used("acme", "5", HOUR).await;
    world.go_to("2026-11-15T14:00:00Z");
    assert_eq!(shadow.cutter.pass().await.unwrap().pushes, 1);
    shadow.submitter.pass().await.unwrap();
    let push = world.pushes().await.pop().unwrap();
    assert_eq!((push.state, push.class, push.shadow), (PushState::Confirmed, Class::NotSent, true));
    world.pass_hours(1);
    assert_eq!(shadow.confirmer.pass().await.unwrap(), 0);
    assert_eq!((world.posts(), world.stripe.sum(&customer)), (0, "0".to_owned()));
}

pub async fn a_window_first_cut_in_shadow_is_never_billed_and_the_next_one_is(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    let shadow = world.other_server(|config| config.provider.shadow = Shadow::Nowhere);
    world.used("acme", "5", HOUR).await;
    world.go_to("2026-11-15T13:30:00Z");
    world.used("acme", "7", "2026-11-15T13:30:00Z").await;
    world.go_to("2026-11-15T14:00:00Z");
    assert_eq!(shadow.cutter.pass().await.unwrap().pushes, 1);
    shadow.submitter.pass().await.unwrap();
    // From here on the server is live; a late event comes for the window of the shadow.
    world.used("acme", "2", "2026-11-15T12:20:00Z").await;
    world.pass_hours(1);
    assert_eq!(world.cut().await.pushes, 1, "of the next window only");
    world.push().await;
    world.used("acme", "1", "2026-11-15T12:40:00Z").await;
    world.pass_hours(1);
    assert_eq!(world.cut().await.pushes, 0);
    world.push().await;
    assert_eq!(world.stripe.total(&customer, HOUR), "0");
    assert_eq!(world.stripe.sum(&customer), "7");
    let billed = world.pushes().await.pop().unwrap();
    assert_eq!((billed.shadow, billed.window.start), (false, at("2026-11-15T13:00:00Z")));
}

pub async fn what_waits_live_is_not_sent_by_a_server_in_shadow(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    let push = world.planned("5").await;
    let shadow = world.other_server(|config| config.provider.shadow = Shadow::Nowhere);
    shadow.submitter.pass().await.unwrap();
    world.check(push.number, PushState::Observed, Class::Cut).await;
    // Late usage meanwhile is followed, and billed when the server is live again.
    world.used("acme", "2", HOUR).await;
    world.pass_hours(1);
    assert_eq!(shadow.cutter.pass().await.unwrap().pushes, 0);
    world.push().await;
    assert_eq!(world.stripe.sum(&customer), "5");
    world.used("acme", "4", world.clock.now()).await;
    world.pass_hours(3);
    world.cut().await;
    world.push().await;
    assert_eq!(world.stripe.sum(&customer), "11", "what was followed went into the next push");
}

pub async fn shadow_in_a_sandbox_is_sent_and_confirmed_and_stays_apart(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    let sandbox = world.other_server(|config| config.provider.shadow = Shadow::Sandbox);
    world.used("acme", "5", HOUR).await;
    world.go_to("2026-11-15T14:00:00Z");
    sandbox.cutter.pass().await.unwrap();
    assert_eq!(world.push().await, 0, "a live server does not send it");
    assert_eq!(sandbox.submitter.pass().await.unwrap(), 1);
    assert_eq!(world.stripe.total(&customer, HOUR), "5");
    world.pass_hours(1);
    assert_eq!(world.confirm().await, 0);
    assert_eq!(sandbox.confirmer.pass().await.unwrap(), 1);
}

pub async fn shadow_in_a_sandbox_with_a_live_key_is_refused(ground: Ground) {
    let world = World::on(ground).await;
    let mut config = world.config.clone();
    for (key, shadow, refused) in [
        ("sk_live_1", Shadow::Sandbox, true),
        ("rk_live_1", Shadow::Sandbox, true),
        ("sk_test_1", Shadow::Sandbox, false),
        ("sk_live_1", Shadow::Nowhere, false),
        ("sk_live_1", Shadow::Off, false),
    ] {
        config.stripe.api_key = Secret::new(key);
        config.provider.shadow = shadow;
        let connected = provider::connect(&config.provider, &config.stripe, &config.sink);
        let why = connected.err();
        assert_eq!(why.is_some(), refused, "{key} {shadow:?}");
        assert!(why.is_none_or(|why| why.contains("live key") && !why.contains("live_1")));
    }
}
