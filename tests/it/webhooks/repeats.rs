//! Repeats: one fact is one webhook and one effect, however often, under whichever name and by how
//! many connections it comes.

use super::world::{Ground, World, hook, send};
use counterfoil::rules::mirror::{ObjectKind, Snapshot};
use futures_util::future::join_all;
use stripe_sim::sign;

/// Rows of a table.
fn count(rows: &[String], table: &str) -> usize {
    rows.iter().filter(|row| row.split(' ').next() == Some(table)).count()
}

pub async fn concurrent_copies_of_an_event_are_one_webhook(ground: Ground) {
    let (world, subscription, event) = World::subscribed(ground).await;
    let body = event.to_string();
    // Two servers, so that on a shared store two transactions meet.
    let routers = [world.server.routes.clone(), world.other_routes(super::world::SECRET)];
    let mut tasks = Vec::new();
    for number in 0..5 {
        let router = routers[number % 2].clone();
        let signature = sign(super::world::SECRET, world.seconds(), &body);
        let request = hook(Some(&signature), body.as_bytes());
        tasks.push(tokio::spawn(async move { send(&router, request).await }));
    }
    let mut fresh = 0;
    for task in tasks {
        fresh += usize::from(task.await.unwrap().ok(200)["duplicate"] == false);
    }
    assert_eq!(fresh, 1);
    let told = world.webhooks().await;
    assert_eq!(told.len(), 1);
    assert_eq!((&told[0]["deliveries"], &told[0]["status"]), (&5.into(), &"waiting".into()));
    assert_eq!(count(&world.rows().await, "timeline_entries"), 1);
    assert_eq!(world.read_all().await, 1, "one reading is wanted");
    let read = world.mirror(ObjectKind::Subscription, &subscription).await.unwrap();
    assert_eq!(read.version, 1);
    let before = world.rows().await;
    for _ in 0..3 {
        assert!(world.taken(&event).await.1);
    }
    assert_eq!(world.read_all().await, 0, "a repeat asks for nothing");
    let after = world.rows().await;
    assert_eq!(count(&before, "timeline_entries"), count(&after, "timeline_entries"));
    assert_eq!(world.webhooks().await[0]["deliveries"], 8);
    assert_eq!(world.webhooks().await[0]["status"], "applied");
}

pub async fn snapshot_and_thin_event_are_one_fact_in_any_order(ground: Ground) {
    let (world, subscription, first) = World::subscribed(ground).await;
    let path = format!("/v1/subscriptions/{subscription}");
    let mut numbers = Vec::new();
    for round in 0..3 {
        let event = if round == 0 {
            first.clone()
        } else {
            world.pass_seconds(60);
            let ends = if round == 1 { "true" } else { "false" };
            world.stripe.ask(&path, &[("cancel_at_period_end", ends)]);
            world.events_of(&subscription).pop().unwrap()
        };
        let twin = world.twin(&event);
        let pairs = match round {
            0 => vec![world.taken(&event).await, world.taken(&twin).await],
            1 => vec![world.taken(&twin).await, world.taken(&event).await],
            _ => join_all([world.taken(&event), world.taken(&twin)]).await,
        };
        assert_eq!(pairs[0].0, pairs[1].0, "round {round}: one webhook");
        assert_eq!(pairs.iter().filter(|(_, known)| !known).count(), 1, "round {round}");
        numbers.push(pairs[0].0);
        assert_eq!(world.read_all().await, 1, "round {round}");
        let rows = world.rows().await;
        let told = rows.iter().filter(|row| row.starts_with("timeline_entries"));
        let told = told.filter(|row| row.contains("created") || row.contains("updated")).count();
        assert_eq!(told, round + 1, "each fact is once in the timeline, whoever told it first");
        // Both come once more, each under its own name.
        assert!(world.taken(&twin).await.1 && world.taken(&event).await.1);
        assert_eq!(world.read_all().await, 0);
    }
    let told = world.webhooks().await;
    assert_eq!(told.len(), 3);
    assert!(told.iter().all(|hook| hook["deliveries"] == 4), "{told:#?}");
    assert!(told.iter().all(|hook| hook["status"] == "applied"), "{told:#?}");
}

pub async fn events_with_equal_content_are_one_webhook(ground: Ground) {
    let (world, _, event) = World::subscribed(ground).await;
    let mut other = event.clone();
    other["id"] = "evt_made_again".into();
    other["pending_webhooks"] = 3.into();
    let (number, known) = world.taken(&event).await;
    assert!(!known);
    assert_eq!(world.taken(&other).await, (number, true));
    assert_eq!(count(&world.rows().await, "timeline_entries"), 1);
    world.read_all().await;
    // Later it is known by its own name, too, whatever its payload says.
    other["data"]["object"]["metadata"]["late"] = "yes".into();
    assert_eq!(world.taken(&other).await, (number, true));
    // What differs in content is another fact.
    other["id"] = "evt_of_its_own".into();
    other["data"]["object"]["metadata"]["late"] = "very".into();
    assert!(!world.taken(&other).await.1);
    assert_eq!(world.webhooks().await.len(), 2);
    // Two made at once, delivered at once.
    let mut pair = [other.clone(), other.clone()];
    for (place, event) in pair.iter_mut().enumerate() {
        event["id"] = format!("evt_pair_{place}").into();
        event["data"]["object"]["metadata"]["late"] = "no".into();
    }
    let answers = join_all(pair.iter().map(|event| world.taken(event))).await;
    assert_eq!(answers[0].0, answers[1].0);
    assert_eq!(answers.iter().filter(|(_, known)| !known).count(), 1);
    assert_eq!(world.webhooks().await.len(), 3);
}

/// Turned on, off and on again in one second: the third event has the content of the first, and
/// still there must be a reading that was begun after it.
pub async fn state_that_returns_within_a_second_is_kept(ground: Ground) {
    let (world, subscription, event) = World::subscribed(ground).await;
    world.taken(&event).await;
    world.read_all().await;
    let path = format!("/v1/subscriptions/{subscription}");
    for turned in ["true", "false", "true"] {
        world.stripe.ask(&path, &[("cancel_at_period_end", turned)]);
        let event = world.events_of(&subscription).pop().unwrap();
        world.taken(&event).await;
        world.read_all().await;
    }
    let read = world.snapshot(ObjectKind::Subscription, &subscription).await;
    assert!(
        matches!(&read, Snapshot::Subscription(state) if state.cancel_at_period_end),
        "{read:?}"
    );
}
