//! Cuts: which windows are handed to billing, when, and with what quantity.

use crate::world::{CALLS, Ground, World, at, calls_with};
use counterfoil::jobs::Job;
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::submission::{Class, PushState};
use counterfoil::rules::window::Window;
use counterfoil::store::push::Push;

const HOUR: &str = "2026-11-15T12:00:00Z";

fn quantities(pushes: &[Push]) -> Vec<String> {
    pushes.iter().map(|push| push.quantity.to_string()).collect()
}

pub async fn a_window_is_cut_when_it_has_settled_and_not_before(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    world.go_to("2026-11-15T13:00:00Z");
    world.used("acme", "2.5", "2026-11-15T12:59:59.999999Z").await;
    world.go_to("2026-11-15T13:59:59.999999Z");
    assert_eq!(world.cut().await.pushes, 0);
    world.pass_seconds(600);
    assert_eq!(world.cut().await.pushes, 1);
    let pushes = world.pushes().await;
    assert_eq!((pushes[0].revision, quantities(&pushes)), (1, vec!["2.5".to_owned()]));
    assert_eq!(pushes[0].window, Window { start: at(HOUR), end: at("2026-11-15T13:00:00Z") });
    assert!(pushes[0].window.start < pushes[0].stamped_at);
    assert!(pushes[0].stamped_at < pushes[0].window.end);
    // Looking again, with nothing new, plans nothing.
    world.pass_hours(1);
    assert_eq!(world.cut().await.pushes, 0);
    world.push().await;
    assert_eq!(world.stripe.total(&customer, HOUR), "2.5");
}

pub async fn windows_are_billed_from_the_moment_that_billing_names(ground: Ground) {
    let spec = CALLS.replace("15T00:00:00Z", "15T12:30:00Z");
    let (world, customer) = World::metered(ground, &spec).await;
    for moment in ["2026-11-15T11:00:00Z", "2026-11-15T12:45:00Z"] {
        world.go_to(if moment < NOON_45 { HOUR } else { moment });
        world.used("acme", "1", moment).await;
    }
    world.go_to("2026-11-15T13:30:00Z");
    world.used("acme", "4", "2026-11-15T13:30:00Z").await;
    world.pass_hours(24);
    assert_eq!(world.cut().await.pushes, 1, "only the window that starts after it");
    world.push().await;
    assert_eq!(world.stripe.sum(&customer), "4");
}

const NOON_45: &str = "2026-11-15T12:45:00Z";

pub async fn billing_that_is_added_later_starts_then(ground: Ground) {
    let world = World::on(ground).await;
    world.declare("calls", r#"{"aggregation":"sum"}"#).await;
    let customer = world.tenant("acme").await;
    world.used("acme", "1", "2026-11-15T12:00:00Z").await;
    world.go_to("2026-11-15T12:30:00Z");
    world.meter("calls", r#"{"aggregation":"sum","billing":{}}"#).await;
    world.go_to("2026-11-15T13:10:00Z");
    world.used("acme", "2", "2026-11-15T13:10:00Z").await;
    world.pass_hours(10);
    assert_eq!(world.cut().await.pushes, 1);
    world.push().await;
    assert_eq!(world.stripe.sum(&customer), "2");
}

pub async fn a_late_event_makes_a_revision_and_leaves_the_first_push_as_it_was(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    let first = world.planned("3").await;
    world.push().await;
    let second = world.planned("0.25").await;
    world.push().await;
    assert_eq!((second.revision, second.quantity.to_string()), (2, "0.25".to_owned()));
    let kept = world.trace(first.number).await.push;
    assert_eq!((&kept.key, kept.quantity, kept.revision), (&first.key, first.quantity, 1));
    assert_ne!(first.key, second.key);
    assert_eq!(world.stripe.total(&customer, HOUR), "3.25");
    world.pass_hours(1);
    world.confirm().await;
    world.check(first.number, PushState::Confirmed, Class::Confirmed).await;
    world.check(second.number, PushState::Confirmed, Class::Confirmed).await;
}

pub async fn an_event_that_is_very_late_is_billed_too(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    world.planned("3").await;
    world.pass_hours(24 * 6);
    world.cut().await;
    world.used("acme", "4", "2026-11-15T12:10:00Z").await;
    world.pass_seconds(600);
    assert_eq!(world.cut().await.pushes, 1);
    world.push().await;
    assert_eq!(world.stripe.total(&customer, HOUR), "7");
}

pub async fn cuts_come_no_more_often_than_cut_every(ground: Ground) {
    let (world, _) = World::usual(ground).await;
    world.planned("1").await;
    world.used("acme", "1", "2026-11-15T12:40:00Z").await;
    world.pass_seconds(599);
    assert_eq!(world.cut().await.pushes, 0, "ten minutes have not passed");
    world.pass_seconds(1);
    assert_eq!(world.cut().await.pushes, 1);
}

pub async fn a_cutter_that_was_down_for_days_catches_up(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    world.cut().await;
    for hour in 0..72 {
        if hour % 7 == 0 {
            world.used("acme", "1", world.clock.now()).await;
        }
        world.pass_hours(1);
    }
    world.pass_hours(24 * 6);
    let pass = world.cut().await;
    assert_eq!((pass.windows, pass.pushes), (11, 11));
    world.push().await;
    assert_eq!(world.stripe.sum(&customer), "11");
}

pub async fn a_tenant_that_fell_silent_is_cut_too(ground: Ground) {
    let slow = r#""settle_after":"3d","late_until":"5d","billing""#;
    let spec = CALLS.replace(r#""billing""#, slow);
    let (world, customer) = World::metered(ground, &spec).await;
    world.used("acme", "1", "2026-11-15T12:00:00Z").await;
    for _ in 0..24 * 3 {
        world.pass_hours(1);
        assert_eq!(world.cut().await.pushes, 0);
    }
    world.pass_hours(1);
    assert_eq!(world.cut().await.pushes, 1);
    world.push().await;
    assert_eq!(world.stripe.sum(&customer), "1");
}

async fn trial(world: &World, quantity: &str, occurred_at: &str) {
    let fields = format!(r#""quantity":"{quantity}","trial":true"#);
    world.used_with("calls", "acme", &[fields], occurred_at).await;
}

pub async fn trial_usage_is_never_pushed(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    trial(&world, "9", "2026-11-15T12:00:00Z").await;
    world.go_to("2026-11-15T14:00:00Z");
    assert_eq!(world.cut().await.pushes, 0);
    world.used("acme", "2", "2026-11-15T12:10:00Z").await;
    let paid = r#""quantity":"3","subscription":"sub_1""#;
    world.used_with("calls", "acme", &[paid.into()], "2026-11-15T12:20:00Z").await;
    trial(&world, "7", "2026-11-15T12:30:00Z").await;
    world.pass_hours(1);
    assert_eq!(world.cut().await.pushes, 1);
    let pushes = world.pushes().await;
    assert_eq!(pushes[0].subscriptions, r#"{"":"2","sub_1":"3"}"#);
    world.push().await;
    assert_eq!(world.stripe.sum(&customer), "5");
}

pub async fn a_day_is_one_push(ground: Ground) {
    let (world, customer) = World::metered(ground, &calls_with(r#""granularity":"day""#)).await;
    for hour in [12, 15, 23] {
        world.go_to(&format!("2026-11-15T{hour}:30:00Z"));
        world.used("acme", "1.5", &format!("2026-11-15T{hour}:30:00Z")).await;
        assert_eq!(world.cut().await.pushes, 0, "the day is not over");
    }
    world.go_to("2026-11-16T01:00:00Z");
    assert_eq!(world.cut().await.pushes, 1);
    world.push().await;
    let push = world.pushes().await.pop().unwrap();
    assert_eq!(push.window.start, at("2026-11-15T00:00:00Z"));
    assert_eq!(push.window.end, at("2026-11-16T00:00:00Z"));
    assert_eq!(world.stripe.sum(&customer), "4.5");
    world.pass_hours(1);
    assert_eq!(world.confirm().await, 1);
}

pub async fn each_event_is_one_push_where_events_are_billed(ground: Ground) {
    let (world, customer) = World::metered(ground, &calls_with(r#""granularity":"event""#)).await;
    for (quantity, second) in [("1", 0), ("2", 1), ("0", 2), ("4", 3)] {
        world.used("acme", quantity, &format!("2026-11-15T12:00:0{second}Z")).await;
    }
    trial(&world, "9", "2026-11-15T12:00:04Z").await;
    assert_eq!(world.cut().await.pushes, 3, "events do not wait for the end of their hour");
    world.push().await;
    let pushes = world.pushes().await;
    assert_eq!(quantities(&pushes), ["1", "2", "4"]);
    let events: Vec<&str> =
        pushes.iter().map(|push| push.event.as_ref().unwrap().as_str()).collect();
    assert_eq!(events, ["e0", "e1", "e3"]);
    world.pass_seconds(600);
    world.used("acme", "8", "2026-11-15T12:09:00Z").await;
    assert_eq!(world.cut().await.pushes, 1);
    world.push().await;
    assert_eq!(world.stripe.sum(&customer), "15");
    world.pass_hours(1);
    assert_eq!(world.confirm().await, 4);
}

/// E 15: rounded one by one, each of these would bill nothing, for ever.
pub async fn what_is_too_small_for_the_provider_is_carried_and_nothing_is_lost(ground: Ground) {
    let (world, customer) = World::metered(ground, &calls_with(r#""scale":0"#)).await;
    for _ in 0..58 {
        world.used("acme", "0.768", world.clock.now()).await;
        world.pass_hours(1);
        world.cut().await;
        world.push().await;
    }
    world.pass_hours(2);
    world.cut().await;
    world.push().await;
    // 58 times 0.768 is 44.544.
    assert_eq!(world.stripe.sum(&customer), "44");
    let remainder = world.ground.read("SELECT CAST(remainder AS text) FROM remainders").await;
    assert_eq!(Quantity::parse_stored(&remainder), Quantity::parse_stored("0.544"));
    world.pass_hours(1);
    world.confirm().await;
    let unconfirmed = |push: &&Push| push.state != PushState::Confirmed;
    assert_eq!(world.pushes().await.iter().filter(unconfirmed).count(), 0);
}

/// E 34: a mark that moves past what could not be written would lose it.
pub async fn a_store_error_stops_the_cut_mark(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    world.used("acme", "1", "2026-11-15T12:00:00Z").await;
    world.cut().await;
    let before = world.store.read_cut_marks().await.unwrap();
    world.go_to("2026-11-15T14:00:00Z");
    world.ground.break_writes("BEFORE INSERT ON pushes", "true").await;
    assert_eq!(world.cut().await.pushes, 0);
    world.pass_seconds(600);
    assert_eq!(world.cut().await.pushes, 0);
    assert_eq!(world.store.read_cut_marks().await.unwrap(), before);
    world.ground.repair_writes().await;
    world.pass_seconds(600);
    assert_eq!(world.cut().await.pushes, 1);
    assert_ne!(world.store.read_cut_marks().await.unwrap(), before);
    world.push().await;
    assert_eq!(world.stripe.sum(&customer), "1");
}

/// More events of one window than one transaction takes.
pub async fn a_window_of_many_events_is_cut_to_its_end(ground: Ground) {
    let (world, _) = World::metered(ground, &calls_with(r#""granularity":"event""#)).await;
    let fields = vec![r#""quantity":"0.5""#.to_owned(); 2_005];
    world.used_with("calls", "acme", &fields, "2026-11-15T12:00:00Z").await;
    assert_eq!(world.cut().await.pushes, 2_005);
    world.pass_hours(1);
    assert_eq!(world.cut().await.pushes, 0);
    let pushes = world.pushes().await;
    let keys: std::collections::BTreeSet<&str> = pushes.iter().map(|push| &*push.key).collect();
    assert_eq!(keys.len(), 2_005);
}

pub async fn two_servers_cut_each_change_once(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    let other = world.other_server(|_| {});
    for _ in 0..6 {
        world.used("acme", "1", world.clock.now()).await;
        world.pass_hours(1);
        let (one, two) = tokio::join!(world.jobs.cutter.pass(), other.cutter.pass());
        assert!(one.unwrap().pushes + two.unwrap().pushes <= 1);
    }
    world.pass_hours(1);
    let (one, two) = tokio::join!(world.jobs.cutter.pass(), other.cutter.pass());
    assert_eq!(one.unwrap().pushes + two.unwrap().pushes, 1);
    let (one, two) = tokio::join!(world.jobs.submitter.pass(), other.submitter.pass());
    assert_eq!(one.unwrap() + two.unwrap(), 6);
    assert_eq!((world.stripe.sum(&customer), world.posts()), ("6".to_owned(), 6));
}
pub async fn spans_that_become_shorter_leave_nothing_behind(ground: Ground) {
    let world = World::on(ground).await;
    let long = r#""settle_after":"9d","late_until":"9d","billing""#;
    world.meter("calls", &CALLS.replace(r#""billing""#, long)).await;
    let customer = world.tenant("acme").await;
    world.used("acme", "1", "2026-11-15T12:00:00Z").await;
    for _ in 0..5 {
        world.pass_hours(24);
        assert_eq!(world.cut().await.pushes, 0);
    }
    world.declare("calls", CALLS).await;
    world.pass_hours(1);
    assert_eq!(world.cut().await.pushes, 1, "the tenant is silent, and its window has settled");
    world.push().await;
    assert_eq!(world.stripe.sum(&customer), "1");
}
