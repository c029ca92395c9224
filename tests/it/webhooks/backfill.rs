//! Backfill: what was never delivered is found in the provider's list, once, wherever a pass was
//! cut.

use super::world::{DAY, Dice, Ground, SIM_SECRET, World, each, id_of};
use counterfoil::jobs::Job;
use counterfoil::rules::mirror::{ObjectKind, Snapshot};
use futures_util::future::join_all;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use stripe_sim::{FaultKind, FaultPlan, FaultRule};

const HOUR: i64 = 3_600;
const HALF_HOUR: i64 = 1_800;

/// Sends what is due by now, as it is due, and tells the simulator what was answered.
async fn deliver_due(world: &World) -> usize {
    let due = world.stripe.lock().due_webhooks();
    // A burst, and yet no more than the queue holds.
    for chunk in due.chunks(1_000) {
        let sent = chunk.iter().map(|one| world.post_hook(&one.signature, one.body.as_bytes()));
        for (one, answer) in chunk.iter().zip(join_all(sent).await) {
            answer.ok(200);
            world.stripe.lock().webhook_answered(one.delivery, Some(200));
        }
    }
    due.len()
}

async fn known_ids(world: &World) -> BTreeMap<String, u64> {
    let hooks = world.webhooks().await;
    let count = hooks.len();
    let deliveries = hooks.iter().map(|hook| hook["deliveries"].as_u64().unwrap());
    let known: BTreeMap<String, u64> =
        each(&hooks, "event_id").into_iter().zip(deliveries).collect();
    assert_eq!(known.len(), count, "an event has one webhook");
    known
}

/// Checks that every mirror shows what the provider shows.
async fn check_mirrors(world: &World) -> usize {
    let mut checked = 0;
    for mirror in world.mirrors(ObjectKind::Subscription).await {
        let shown = world.stripe.get(&format!("/v1/subscriptions/{}", mirror.name.id));
        let Snapshot::Subscription(state) = mirror.snapshot else { panic!("no subscription") };
        assert_eq!(state.status, shown["status"], "{}", mirror.name.id);
        assert_eq!(state.prices[0], shown["items"]["data"][0]["price"]["id"].as_str().unwrap());
        assert_eq!(state.cancel_at_period_end, shown["cancel_at_period_end"]);
        let end = state.period.unwrap().end.micros() / 1_000_000;
        assert_eq!(end, shown["items"]["data"][0]["current_period_end"]);
        checked += 1;
    }
    for mirror in world.mirrors(ObjectKind::Invoice).await {
        let shown = world.stripe.get(&format!("/v1/invoices/{}", mirror.name.id));
        let Snapshot::Invoice(invoice) = mirror.snapshot else { panic!("no invoice") };
        assert_eq!(invoice.status, shown["status"], "{}", mirror.name.id);
        assert_eq!(invoice.total, shown["total"]);
        assert_eq!(i64::from(invoice.attempt_count), shown["attempt_count"]);
        checked += 1;
    }
    checked
}

/// 40 subscriptions over a month, with changes, cycles and payments that fail.
async fn month(world: &World, seed: u64) -> Vec<String> {
    let dice = &mut Dice::new(seed);
    let prices: Vec<String> = ["1", "2", "3"].map(|cents| world.price("calls", cents)).into();
    let mut subscriptions = Vec::new();
    for number in 0..40 {
        let customer = world.tenant(&format!("tenant-{number}")).await;
        let price = &prices[dice.below(3)];
        let fields = [("customer", customer.as_str()), ("items[0][price]", price)];
        let subscription = id_of(&world.stripe.ask("/v1/subscriptions", &fields));
        subscriptions.push((customer, subscription));
    }
    for day in 0..27 {
        world.pass_seconds(DAY);
        world.payments_fail(day % 3 == 0);
        for (customer, subscription) in &subscriptions {
            let path = format!("/v1/subscriptions/{subscription}");
            let shown = world.stripe.get(&path);
            let item = id_of(&shown["items"]["data"][0]);
            world.use_at_provider(customer, "calls", "5");
            let price = prices[dice.below(3)].clone();
            if dice.below(2) == 0 {
                world.stripe.ask(&path, &[("items[0][id]", &item), ("items[0][price]", &price)]);
            } else {
                world.stripe.ask(&path, &[("metadata[day]", &day.to_string())]);
            }
        }
        deliver_due(world).await;
        world.jobs.mirror.pass().await.unwrap();
    }
    world.pass_seconds(HOUR);
    deliver_due(world).await;
    subscriptions.into_iter().map(|(_, subscription)| subscription).collect()
}

fn register(world: &World) {
    let fields = [("url", "http://127.0.0.1:9/hook"), ("enabled_events[]", "*")];
    let endpoint = world.stripe.ask("/v1/webhook_endpoints", &fields);
    assert_eq!(endpoint["secret"], SIM_SECRET);
}

/// Accidents of webhooks: 2 % are lost, some come twice, and those of one moment in any order.
fn accidents(world: &World, seed: u64, rules: Vec<FaultRule>) {
    let mut plan = FaultPlan { seed, webhooks_shuffled: true, rules, ..FaultPlan::default() };
    plan.paths = vec!["webhook".into()];
    plan.per_mille.insert(FaultKind::WebhookLost, 20);
    plan.per_mille.insert(FaultKind::WebhookDuplicated, 50);
    world.stripe.lock().set_faults(plan);
}

pub async fn backfill_finds_lost_webhooks(ground: Ground) {
    let mut world = World::with(ground, SIM_SECRET).await;
    // With its port closed the simulator sends nothing by itself.
    world.stripe.handle.stop().await.unwrap();
    register(&world);
    accidents(&world, 4, Vec::new());
    let subscriptions = month(&world, 1).await;
    let lost = world.stripe.lock().faults_injected()[&FaultKind::WebhookLost];
    let listed: BTreeSet<String> = world.events().iter().map(id_of).collect();
    assert!(listed.len() > 2_000, "{}", listed.len());
    let known = known_ids(&world).await;
    assert!(lost > 20, "{lost}");
    assert!(known.values().any(|deliveries| *deliveries == 2));
    world.stripe.handle.restart().await.unwrap();
    // The last hour was just now: what is young may still come.
    world.pass_seconds(HALF_HOUR);
    let missed = world.jobs.backfill.pass().await.unwrap();
    assert!(missed >= lost, "{missed} of {lost}");
    let after = known_ids(&world).await;
    let found: BTreeSet<String> = after.keys().cloned().collect();
    assert_eq!(found, listed, "every event of the list is in the log");
    let told = world.webhooks().await;
    let backfilled = told.iter().filter(|hook| hook["source"] == "backfilled").count();
    assert_eq!(u64::try_from(backfilled).unwrap(), missed);
    // What had been put off while the port was closed is due again.
    world.pass_seconds(6 * HOUR);
    world.read_all().await;
    assert_eq!(check_mirrors(&world).await, {
        let invoices = told.iter().filter(|hook| hook["object_kind"] == "invoice");
        let invoices: BTreeSet<&str> =
            invoices.map(|hook| hook["object_id"].as_str().unwrap()).collect();
        subscriptions.len() + invoices.len()
    });
    assert_eq!(world.jobs.backfill.pass().await.unwrap(), 0, "and nothing is found twice");
    assert_eq!(world.get("/v1/health/billing").await["webhooks_waiting"], 0);
}

/// A pass is cut at each of its pages and goes on, here and on another server.
pub async fn interrupted_backfill_resumes(ground: Ground) {
    let world = World::on(ground).await;
    for number in 0..450 {
        world.stripe.ask("/v1/customers", &[("name", &format!("customer {number}"))]);
        if number % 90 == 0 {
            world.pass_seconds(HOUR);
        }
    }
    world.pass_seconds(HALF_HOUR);
    let listed: Vec<String> = world.events().iter().map(id_of).collect();
    let calls = || world.stripe.lock().calls().get("GET /v1/events").copied().unwrap_or(0);
    let before = calls();
    let pages = listed.len().div_ceil(100);
    for page in 2..=pages {
        // The first call goes through, the second fails; so each attempt gets one page further.
        let rule = FaultRule::new(FaultKind::Error503).on_path("/v1/events");
        world.stripe.faults(vec![FaultRule { nth: 2, times: 100, ..rule }]);
        assert!(world.jobs.backfill.pass().await.is_err(), "page {page}");
        let known = known_ids(&world).await;
        assert_eq!(known.len(), (page - 1) * 100, "each attempt is one page further");
        // New events come in at the head of the list, which moves nothing.
        world.stripe.ask("/v1/customers", &[]);
        let other = world.other_backfill("server-2");
        assert_eq!(other.pass().await.unwrap(), 0, "the lease is another's");
    }
    world.stripe.faults(Vec::new());
    world.pass_seconds(301);
    world.other_backfill("server-2").pass().await.unwrap();
    let known = known_ids(&world).await;
    assert_eq!(known.len(), listed.len());
    assert!(listed.iter().all(|id| known.contains_key(id)));
    assert!(known.values().all(|deliveries| *deliveries == 0), "nothing was delivered");
    assert!(calls() - before < u64::try_from(3 * pages).unwrap() + 10, "no page is read in vain");
    // What came at the head meanwhile is the next pass's.
    assert_eq!(world.jobs.backfill.pass().await.unwrap(), 0, "it rests");
    world.pass_seconds(HALF_HOUR);
    world.jobs.backfill.pass().await.unwrap();
    let all: BTreeSet<String> = world.events().iter().map(id_of).collect();
    assert_eq!(known_ids(&world).await.into_keys().collect::<BTreeSet<_>>(), all);
}

/// A pass was cut at an event that the provider has forgotten since. It must not fail for ever.
pub async fn backfill_with_an_expired_cursor_starts_over(ground: Ground) {
    let world = World::on(ground).await;
    for number in 0..250 {
        world.stripe.ask("/v1/customers", &[("name", &format!("customer {number}"))]);
    }
    // All of them are in the list for an hour and a half more.
    world.pass_seconds(30 * DAY - 5_400);
    let rule = FaultRule::new(FaultKind::Error503).on_path("/v1/events");
    world.stripe.faults(vec![FaultRule { nth: 2, times: 100, ..rule }]);
    assert!(world.jobs.backfill.pass().await.is_err());
    assert_eq!(known_ids(&world).await.len(), 100);
    world.stripe.faults(Vec::new());
    world.pass_seconds(5_000);
    world.stripe.ask("/v1/customers", &[("name", "the one that is lost")]);
    for _ in 0..3 {
        world.pass_seconds(HOUR);
        let _ = world.jobs.backfill.pass().await;
    }
    let newest = id_of(world.events().last().unwrap());
    assert!(known_ids(&world).await.contains_key(&newest), "backfill is stuck");
}

pub async fn backfill_reads_thirty_days_at_most(ground: Ground) {
    let world = World::on(ground).await;
    let old = id_of(&world.stripe.ask("/v1/customers", &[("name", "old")]));
    world.pass_seconds(DAY);
    let young = id_of(&world.stripe.ask("/v1/customers", &[("name", "young")]));
    world.pass_seconds(29 * DAY + HOUR);
    assert_eq!(world.jobs.backfill.pass().await.unwrap(), 1);
    let told = world.webhooks().await;
    let payload = world.get(&format!("/v1/webhooks/{}", told[0]["id"])).await["payload"].clone();
    assert_eq!(payload["data"]["object"]["id"], young.as_str());
    assert_ne!(payload["data"]["object"]["id"], old.as_str());
    // A server that was away for two months asks for no more than the list has.
    world.pass_seconds(60 * DAY);
    world.stripe.ask("/v1/customers", &[("name", "new")]);
    world.pass_seconds(HALF_HOUR);
    assert_eq!(world.jobs.backfill.pass().await.unwrap(), 1);
}

pub async fn backfill_leaves_recent_events_to_delivery(ground: Ground) {
    let world = World::on(ground).await;
    world.stripe.ask("/v1/customers", &[]);
    world.pass_seconds(600);
    let found = world.jobs.backfill.pass().await.unwrap();
    assert_eq!(found, 0, "ten minutes old: it may be on its way");
    let event = world.events().remove(0);
    world.pass_seconds(HALF_HOUR);
    let (number, _) = world.taken(&event).await;
    assert_eq!(world.jobs.backfill.pass().await.unwrap(), 0, "it came");
    let shown = world.get(&format!("/v1/webhooks/{number}")).await;
    assert_eq!(shown["source"], "delivered");
    // The other way round: found first, delivered later, still one.
    world.stripe.ask("/v1/customers", &[]);
    world.pass_seconds(HALF_HOUR);
    assert_eq!(world.jobs.backfill.pass().await.unwrap(), 1);
    let late: Value = world.events().pop().unwrap();
    assert!(world.taken(&late).await.1);
    assert_eq!(world.webhook(&late).await["source"], "backfilled");
}
