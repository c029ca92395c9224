//! Delivery: each push counts once, whatever becomes of its calls. The numbers of tests are rows of
//! bugs that others have had.

use crate::world::{ABSOLUTE, CALLS, Ground, World, serve_on_loopback};
use axum::extract::State;
use counterfoil::config::Secret;
use counterfoil::jobs::Job;
use counterfoil::rules::submission::{Class, PushState};
use counterfoil::store::push::Ruling;
use http::{HeaderMap, Method, Uri};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use stripe_sim::{FaultKind, FaultPlan, FaultRule, SimRequest, Simulator};

const HOUR: &str = "2026-11-15T12:00:00Z";

/// E 7 and 9: what failed for one customer is sent again for that one alone.
pub async fn of_ten_customers_the_seventh_fails_and_a_rerun_leaves_the_other_nine_alone(
    ground: Ground,
) {
    let world = World::on(ground).await;
    world.meter("calls", CALLS).await;
    let mut customers = Vec::new();
    for number in 0..10 {
        let tenant = format!("tenant{number}");
        customers.push(world.tenant(&tenant).await);
        world.used(&tenant, "5", HOUR).await;
    }
    let seventh =
        FaultRule { customer: Some(customers[6].clone()), ..FaultRule::new(FaultKind::Error503) };
    world.stripe.faults(vec![seventh]);
    world.go_to("2026-11-15T14:00:00Z");
    assert_eq!(world.cut().await.pushes, 10);
    world.push().await;
    let submitted = world.pushes().await;
    let waiting: Vec<&str> = submitted
        .iter()
        .filter(|push| push.state == PushState::Observed)
        .map(|push| push.tenant.as_str())
        .collect();
    assert_eq!(waiting, ["tenant6"]);
    world.pass_hours(1);
    assert_eq!(world.push().await, 1);
    assert_eq!(world.posts(), 11);
    for customer in &customers {
        assert_eq!(world.stripe.total(customer, HOUR), "5");
    }
    // Running everything again, at once and later, calls nobody.
    for _ in 0..3 {
        world.pass_hours(1);
        assert_eq!((world.cut().await.pushes, world.push().await), (0, 0));
    }
    assert_eq!(world.posts(), 11);
}

/// E 8.
pub async fn replaying_a_completed_push_changes_nothing(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    let push = world.planned("5").await;
    world.push().await;
    world.pass_hours(1);
    world.confirm().await;
    let push = world.check(push.number, PushState::Confirmed, Class::Confirmed).await;
    // As after the restore of a backup: the push is observed again, and its first attempt too.
    let sql = "UPDATE pushes SET state = 'observed', class = 'unknown', due_at = stamped_at";
    world.ground.plant(sql).await;
    world.push().await;
    world.check(push.number, PushState::Submitted, Class::Accepted).await;
    world.pass_hours(1);
    world.confirm().await;
    world.check(push.number, PushState::Confirmed, Class::Confirmed).await;
    assert_eq!(world.stripe.total(&customer, HOUR), "5");
    assert_eq!(world.stripe.lock().accepted_events(), 1);
}

/// E 8: with a request key that the provider does not know, the identifier still counts once.
pub async fn a_duplicate_rejection_counts_as_delivered(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    let push = world.planned("5").await;
    world.stripe.fault(FaultKind::Error500Executed, 1);
    world.push().await;
    world.check(push.number, PushState::Observed, Class::Unknown).await;
    world.pass_hours(1);
    world.push().await;
    world.check(push.number, PushState::Submitted, Class::AlreadyThere).await;
    assert_eq!(world.stripe.total(&customer, HOUR), "5");
    world.pass_hours(1);
    world.confirm().await;
    world.check(push.number, PushState::Confirmed, Class::Confirmed).await;
}

/// E 10: the answer came, and its record did not reach the disk.
pub async fn a_crash_between_the_post_and_its_result_makes_exactly_one_usage(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    let push = world.planned("5").await;
    world.ground.break_writes("BEFORE INSERT ON push_transitions", "NEW.class = 'accepted'").await;
    assert_eq!(world.push().await, 0);
    let unsettled = world.check(push.number, PushState::Observed, Class::Attempt).await;
    assert_eq!((unsettled.attempts, world.posts()), (1, 1));
    assert_eq!(world.push().await, 0, "whoever claimed it holds it for a while");
    world.ground.repair_writes().await;
    world.pass_seconds(120);
    // Another server, which never saw the first attempt.
    let other = world.other_server(|_| {});
    assert_eq!(other.submitter.pass().await.unwrap(), 1);
    let settled = world.check(push.number, PushState::Submitted, Class::Accepted).await;
    assert_eq!((settled.attempts, world.posts()), (2, 2));
    assert_eq!(world.stripe.lock().accepted_events(), 1);
    assert_eq!(world.stripe.total(&customer, HOUR), "5");
}

/// The intent is durable before a byte is sent, or no byte is sent.
pub async fn nothing_leaves_before_the_attempt_is_written_down(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    world.planned("5").await;
    world.ground.break_writes("BEFORE INSERT ON push_transitions", "NEW.class = 'attempt'").await;
    world.jobs.submitter.pass().await.expect("pushes of others would go on");
    assert_eq!(world.posts(), 0);
    assert_eq!(world.store.health().faults.len(), 1, "an alert names it");
    world.ground.repair_writes().await;
    world.pass_seconds(120);
    assert_eq!(world.push().await, 1);
    assert_eq!(world.stripe.total(&customer, HOUR), "5");
}

/// What reached the provider, as it was sent.
#[derive(Debug, Clone)]
struct Recorded {
    request_key: String,
    bearer: String,
    body: String,
}

struct Recorder {
    simulator: Arc<Mutex<Simulator>>,
    posts: Mutex<Vec<Recorded>>,
}

/// Unchanged before the simulator and keeps every meter event that is posted; returns its address.
async fn record(world: &World) -> (Arc<Recorder>, String) {
    let posts = Mutex::default();
    let recorder = Arc::new(Recorder { simulator: world.stripe.handle.simulator(), posts });
    let router = axum::Router::new().fallback(keep).with_state(Arc::clone(&recorder));
    (recorder, serve_on_loopback(router).await)
}

async fn keep(
    State(recorder): State<Arc<Recorder>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: String,
) -> (http::StatusCode, [(&'static str, String); 1], String) {
    let mut request = SimRequest::new(method.as_str(), &uri.to_string());
    for (name, value) in &headers {
        request = request.with_header(name.as_str(), value.to_str().unwrap());
    }
    request.body = body.clone().into_bytes();
    if method == Method::POST {
        recorder.posts.lock().unwrap().push(Recorded {
            request_key: request.header("idempotency-key").unwrap().to_owned(),
            bearer: request.bearer().unwrap().to_owned(),
            body,
        });
    }
    let response = recorder.simulator.lock().unwrap().handle(&request);
    let status = http::StatusCode::from_u16(response.status).unwrap();
    let date = response.headers.iter().find(|(name, _)| *name == "date").unwrap();
    (status, [date.clone()], String::from_utf8(response.body).unwrap())
}

fn identifier(recorded: &Recorded) -> String {
    let field = recorded.body.split('&').find(|field| field.starts_with("identifier=")).unwrap();
    field.to_owned()
}

/// E 28: a key of one call that is used for another would swallow the other.
pub async fn two_different_calls_never_share_a_key(ground: Ground) {
    let (world, _) = World::usual(ground).await;
    world.tenant("other").await;
    let (recorder, url) = record(&world).await;
    let server = world.other_server(|config| config.stripe.api_base = url);
    for round in 0..4 {
        for tenant in ["acme", "other"] {
            // The same numbers in every window, and late ones in the first.
            world.used(tenant, "5", HOUR).await;
            world.used(tenant, "5", world.clock.now()).await;
        }
        world.pass_hours(3);
        world.cut().await;
        world.stripe.fault(FaultKind::Error500NotExecuted, round);
        server.submitter.pass().await.unwrap();
    }
    world.pass_hours(1);
    server.submitter.pass().await.unwrap();
    let mut bodies: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut identifiers: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let posts = recorder.posts.lock().unwrap().clone();
    for post in &posts {
        bodies.entry(post.request_key.clone()).or_default().insert(post.body.clone());
        identifiers.entry(identifier(post)).or_default().insert(post.body.clone());
    }
    assert_eq!(posts.len(), 14 + 6, "fourteen pushes, of which six met a 500");
    assert_eq!(identifiers.len(), 14);
    assert!(bodies.values().all(|bodies| bodies.len() == 1), "{bodies:#?}");
    assert!(identifiers.values().all(|bodies| bodies.len() == 1), "{identifiers:#?}");
}

/// E 30: the provider would repeat its stored 500 for a day under the same request key.
pub async fn after_a_stored_500_the_identifier_stays_and_only_the_request_key_changes(
    ground: Ground,
) {
    for (kind, class) in [
        (FaultKind::Error500Executed, Class::AlreadyThere),
        (FaultKind::Error500NotExecuted, Class::Accepted),
    ] {
        let (world, customer) = World::usual(ground.another().await).await;
        let (recorder, url) = record(&world).await;
        let server = world.other_server(|config| config.stripe.api_base = url);
        let push = world.planned("5").await;
        world.stripe.fault(kind, 1);
        server.submitter.pass().await.unwrap();
        world.pass_hours(1);
        server.submitter.pass().await.unwrap();
        world.check(push.number, PushState::Submitted, class).await;
        let posts = recorder.posts.lock().unwrap().clone();
        assert_eq!(posts.len(), 2);
        assert_eq!(posts[0].body, posts[1].body);
        assert_eq!(posts[0].request_key, push.key);
        assert_eq!(posts[1].request_key, format!("{}.1", push.key));
        assert_eq!(world.stripe.total(&customer, HOUR), "5");
    }
}

/// E 29: what changes from call to call is no part of a key.
pub async fn a_retry_with_a_rotated_credential_keeps_key_and_bytes(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    let (recorder, url) = record(&world).await;
    world.planned("5").await;
    world.stripe.fault(FaultKind::Error503, 1);
    let old = world.other_server(|config| config.stripe.api_base.clone_from(&url));
    old.submitter.pass().await.unwrap();
    world.pass_hours(1);
    let new = world.other_server(|config| {
        config.stripe.api_base = url;
        config.stripe.api_key = Secret::new("sk_test_rotated");
    });
    new.submitter.pass().await.unwrap();
    let posts = recorder.posts.lock().unwrap().clone();
    assert_eq!([&posts[0].bearer, &posts[1].bearer], ["sk_test_world", "sk_test_rotated"]);
    assert_eq!((&posts[0].body, identifier(&posts[0])), (&posts[1].body, identifier(&posts[1])));
    assert_eq!(world.stripe.total(&customer, HOUR), "5");
}

/// E 27: a body that changed under its key would be refused today and counted twice tomorrow.
pub async fn a_push_that_was_begun_keeps_its_bytes_whatever_changes_meanwhile(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    let (recorder, url) = record(&world).await;
    let server = world.other_server(|config| config.stripe.api_base = url);
    let push = world.planned("5").await;
    world.stripe.fault(FaultKind::Error500Executed, 1);
    server.submitter.pass().await.unwrap();
    // More usage comes, and the tenant becomes another customer.
    world.used("acme", "2", HOUR).await;
    let other = world.tenant("acme").await;
    world.pass_hours(1);
    world.cut().await;
    server.submitter.pass().await.unwrap();
    let begun = world.check(push.number, PushState::Submitted, Class::AlreadyThere).await;
    assert_eq!(begun.customer.unwrap().as_str(), customer);
    let posts = recorder.posts.lock().unwrap().clone();
    assert_eq!(posts.len(), 3);
    assert_eq!(posts[0].body, posts[1].body);
    assert_eq!(world.stripe.total(&customer, HOUR), "7", "the window keeps its customer");
    assert_eq!(world.stripe.total(&other, HOUR), "0");
    world.pass_hours(1);
    assert_eq!(world.confirm().await, 2, "both are looked for where they were sent");
}

/// E 32.
pub async fn an_unresolved_push_blocks_the_next_of_its_window(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    let first = world.planned("5").await;
    world.stripe.fault(FaultKind::LostAfter, 3);
    world.push().await;
    world.check(first.number, PushState::Observed, Class::Unknown).await;
    let second = world.planned("2").await;
    for expected in [2, 3] {
        world.push().await;
        assert_eq!(world.posts(), expected, "only the first is tried again");
        let second = world.check(second.number, PushState::Observed, Class::Cut).await;
        assert_eq!(second.attempts, 0);
        world.pass_hours(1);
    }
    world.push().await;
    world.check(first.number, PushState::Submitted, Class::Accepted).await;
    world.check(second.number, PushState::Submitted, Class::Accepted).await;
    assert_eq!(world.stripe.total(&customer, HOUR), "7");
}

pub async fn a_key_that_is_not_accepted_makes_no_dead_letters(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    let push = world.planned("5").await;
    let wrong = world.other_server(|config| config.stripe.api_key = Secret::new("sk_wrong"));
    for _ in 0..20 {
        wrong.submitter.pass().await.unwrap();
        world.pass_hours(1);
    }
    let waiting = world.check(push.number, PushState::Observed, Class::Unknown).await;
    assert!(waiting.detail.unwrap().starts_with("401"), "it says what is wrong");
    assert_eq!(world.push().await, 1, "with the right key it goes out");
    assert_eq!(world.stripe.total(&customer, HOUR), "5");
    // And beyond the time in which a key is remembered, the summary decides.
    let second = world.planned("1").await;
    for _ in 0..30 {
        wrong.submitter.pass().await.unwrap();
        world.pass_hours(1);
    }
    world.check(second.number, PushState::Observed, Class::Unknown).await;
    world.push().await;
    world.pass_hours(1);
    world.push().await;
    world.check(second.number, PushState::Replaced, Class::Absent).await;
    assert_eq!(world.stripe.total(&customer, HOUR), "6");
}

pub async fn retry_after_is_honoured(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    world.planned("5").await;
    let rule = FaultRule::new(FaultKind::RateLimited429).on_path(crate::world::EVENTS);
    let plan = FaultPlan { retry_after_seconds: 900, ..FaultPlan::of_rules(vec![rule]) };
    world.stripe.lock().set_faults(plan);
    world.push().await;
    world.pass_seconds(899);
    assert_eq!((world.push().await, world.posts()), (0, 1));
    world.pass_seconds(1);
    assert_eq!((world.push().await, world.posts()), (1, 2));
    assert_eq!(world.stripe.total(&customer, HOUR), "5");
}

/// C 5: the provider takes 35 days; what lies further back is dead at once, and its amount shown.
pub async fn what_is_too_old_for_the_provider_is_dead_and_says_so(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    let push = world.planned("5.5").await;
    world.pass_hours(24 * 34);
    world.push().await;
    let dead = world.check(push.number, PushState::Dead, Class::TooOld).await;
    assert!(dead.detail.unwrap().contains("further back than the provider takes"));
    assert_eq!(world.posts(), 0, "it was not even tried");
    let counts = world.count_pushes().await;
    assert_eq!((counts.dead, counts.unbilled[0].1.to_string()), (1, "5.5".to_owned()));
    let refused = world.retry(push.number).await;
    assert!(format!("{refused:?}").contains("bill it by hand"), "{refused:?}");
    assert_eq!(world.stripe.sum(&customer), "0");
}

pub async fn just_before_the_edge_it_is_sent(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    world.planned("5").await;
    world.go_to("2026-12-19T12:29:59Z");
    world.push().await;
    assert_eq!(world.stripe.sum(&customer), "5");
}

pub async fn what_the_provider_refuses_is_dead_with_its_words_and_can_be_retried(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    let push = world.planned("5").await;
    let (meter, path) = (world.stripe.find_meter("calls").unwrap(), "/v1/billing/meters");
    world.stripe.ask(&format!("{path}/{meter}/deactivate"), &[]);
    world.push().await;
    let dead = world.check(push.number, PushState::Dead, Class::Refused).await;
    assert!(dead.detail.unwrap().contains("archived_meter"), "the provider's own words");
    world.pass_hours(10);
    assert_eq!(world.push().await, 0, "it is not tried for ever");
    world.stripe.ask(&format!("{path}/{meter}/reactivate"), &[]);
    let Ruling::Done(Some(next)) = world.retry(push.number).await else { panic!("refused") };
    world.push().await;
    world.check(push.number, PushState::Replaced, Class::Retried).await;
    let next = world.check(next, PushState::Submitted, Class::Accepted).await;
    assert_eq!(next.revision, 2);
    assert_eq!(world.stripe.total(&customer, HOUR), "5");
}

pub async fn pushes_wait_for_a_customer(ground: Ground) {
    let world = World::on(ground).await;
    world.meter("calls", CALLS).await;
    world.used("acme", "5", HOUR).await;
    world.go_to("2026-11-15T14:00:00Z");
    world.cut().await;
    assert_eq!((world.push().await, world.posts()), (0, 0));
    let customer = world.tenant("acme").await;
    assert_eq!(world.push().await, 1);
    assert_eq!(world.stripe.total(&customer, HOUR), "5");
}

pub async fn absolute_totals_overwrite(ground: Ground) {
    let (world, customer) = World::metered(ground, ABSOLUTE).await;
    let first = world.planned("5").await;
    world.push().await;
    let second = world.planned("2").await;
    assert_eq!((second.quantity.to_string(), second.value.to_string()), ("2".into(), "7".into()));
    world.stripe.fault(FaultKind::LostAfter, 1);
    world.push().await;
    world.pass_hours(1);
    world.push().await;
    assert_eq!(world.stripe.total(&customer, HOUR), "7");
    world.pass_hours(1);
    assert_eq!(world.confirm().await, 2);
    world.check(first.number, PushState::Confirmed, Class::Confirmed).await;
}
