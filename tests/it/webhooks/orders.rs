//! Orders: whatever the order and number of deliveries, and whenever objects are read in between,
//! the end is the same.

use super::world::{DAY, Dice, Ground, World, each, id_of};
use counterfoil::jobs::Job;
use counterfoil::rules::mirror::{ObjectKind, Snapshot};
use counterfoil::rules::timestamp::Timestamp;
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use stripe_sim::SimRequest;

const HOUR: i64 = 3_600;

/// A subscription that was tried, changed, not paid for, paid for, and perhaps ended.
struct Life {
    tenant: String,
    customer: String,
    subscription: String,
    /// The invoice whose payment failed twice.
    invoice: String,
    /// Bodies of webhooks, in the order in which things happened.
    subscription_events: Vec<Arc<str>>,
    /// Created, updated, finalized, failed, failed, paid.
    invoice_events: Vec<Arc<str>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Deleted,
    Active,
}

fn told(body: &str) -> Value {
    serde_json::from_str(body).unwrap()
}

const TYPES: [&str; 8] = [
    "customer.subscription.created",
    "customer.subscription.updated",
    "customer.subscription.deleted",
    "invoice.created",
    "invoice.updated",
    "invoice.finalized",
    "invoice.payment_failed",
    "invoice.paid",
];

/// Lets time pass and takes the webhooks that are due then, by the id of their object.
fn pass(world: &World, seconds: i64, taken: &mut BTreeMap<String, Vec<Arc<str>>>) {
    world.pass_seconds(seconds);
    let mut simulator = world.stripe.lock();
    for due in simulator.due_webhooks() {
        simulator.webhook_answered(due.delivery, Some(200));
        let id = id_of(&told(&due.body)["data"]["object"]);
        taken.entry(id).or_default().push(due.body.into());
    }
}

/// So many lives at the same moments. Every event of a life has a second of its own.
async fn live(world: &mut World, count: usize, end: End) -> Vec<Life> {
    // With its port closed the simulator sends nothing by itself.
    world.stripe.handle.stop().await.unwrap();
    let mut fields = vec![("url", "http://127.0.0.1:9/hook")];
    fields.extend(TYPES.map(|kind| ("enabled_events[]", kind)));
    world.stripe.ask("/v1/webhook_endpoints", &fields);
    let (small, large) = (world.price("calls", "2"), world.price("calls", "3"));
    let (mut begun, mut taken) = (Vec::new(), BTreeMap::new());
    for number in 0..count {
        let tenant = format!("tenant-{number}");
        let customer = world.tenant(&tenant).await;
        let fields = [
            ("customer", customer.as_str()),
            ("items[0][price]", &small),
            ("trial_period_days", "3"),
        ];
        let subscription = world.stripe.ask("/v1/subscriptions", &fields);
        let item = id_of(&subscription["items"]["data"][0]);
        begun.push((tenant, customer, id_of(&subscription), item));
    }
    pass(world, 3 * DAY, &mut taken);
    pass(world, 2 * HOUR, &mut taken);
    for (_, customer, _, _) in &begun {
        world.use_at_provider(customer, "calls", "10");
    }
    pass(world, HOUR, &mut taken);
    world.payments_fail(true);
    let mut invoices = Vec::new();
    for (_, _, subscription, item) in &begun {
        let fields = [("items[0][id]", item.as_str()), ("items[0][price]", &large)];
        let changed = world.stripe.ask(&format!("/v1/subscriptions/{subscription}"), &fields);
        invoices.push(changed["latest_invoice"].as_str().unwrap().to_owned());
    }
    pass(world, 1, &mut taken);
    pass(world, HOUR, &mut taken);
    pass(world, 3 * DAY, &mut taken);
    world.payments_fail(false);
    pass(world, 5 * DAY, &mut taken);
    if end == End::Deleted {
        pass(world, HOUR, &mut taken);
        for (_, _, subscription, _) in &begun {
            world
                .stripe
                .answer(&SimRequest::new("DELETE", &format!("/v1/subscriptions/{subscription}")));
        }
    }
    pass(world, HOUR, &mut taken);
    world.stripe.handle.restart().await.unwrap();
    let born = |((tenant, customer, subscription, _), invoice): (_, String)| {
        let subscription: String = subscription;
        let subscription_events = taken[&subscription].clone();
        let invoice_events = choose_invoice_events(&taken[&invoice]);
        Life { tenant, customer, subscription, invoice, subscription_events, invoice_events }
    };
    begun.into_iter().zip(invoices).map(born).collect()
}

fn choose_invoice_events(all: &[Arc<str>]) -> Vec<Arc<str>> {
    let of = |kind: &str| -> Vec<Arc<str>> {
        all.iter().filter(|body| told(body)["type"] == kind).cloned().collect()
    };
    let failed = of("invoice.payment_failed");
    assert_eq!(failed.len(), 2, "{all:#?}");
    let mut chosen = vec![of("invoice.created").remove(0), of("invoice.updated").remove(0)];
    chosen.push(of("invoice.finalized").remove(0));
    chosen.extend(failed);
    chosen.push(of("invoice.paid").remove(0));
    chosen
}

/// The order with this number among all orders of so many things.
fn permutation(mut number: usize, length: usize) -> Vec<usize> {
    let mut left: Vec<usize> = (0..length).collect();
    let mut order = Vec::with_capacity(length);
    for rest in (1..=length).rev() {
        let block: usize = (1..rest).product();
        order.push(left.remove(number / block % rest));
        number %= block;
    }
    order
}

/// The events in this order, each once to three times; a repeat comes anywhere after the first.
fn deliveries(events: &[Arc<str>], order: &[usize], dice: &mut Dice) -> Vec<Arc<str>> {
    let mut places = order.to_vec();
    for place in order {
        for _ in 0..dice.below(5).saturating_sub(2) {
            let first = places.iter().position(|known| known == place).unwrap();
            let after = first + 1 + dice.below(places.len() - first);
            places.insert(after, *place);
        }
    }
    places.into_iter().map(|place| Arc::clone(&events[place])).collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Time {
    Passes,
    Unchanged,
}

/// Delivers each list in its order, all lists side by side, with readings at random moments.
async fn deliver_all(world: &World, lists: Vec<Vec<Arc<str>>>, dice: &mut Dice, time: Time) {
    let rounds = lists.iter().map(Vec::len).max().unwrap_or(0);
    for round in 0..rounds {
        let now = lists.iter().filter_map(|list| list.get(round));
        for answer in join_all(now.map(|body| world.deliver_text(body))).await {
            answer.ok(200);
        }
        for _ in 0..dice.below(3) {
            if time == Time::Passes {
                world.pass_seconds(1);
            }
            world.jobs.mirror.pass().await.unwrap();
        }
    }
    world.read_all().await;
}

/// What is known of a life in the end, with names that are the same for all lives.
async fn outcome(world: &World, life: &Life, moments: &[String]) -> String {
    let mut told: Vec<String> = Vec::new();
    if let Some(mirror) = world.mirror(ObjectKind::Subscription, &life.subscription).await {
        told.push(mirror.snapshot.to_json());
    }
    if let Some(mirror) = world.mirror(ObjectKind::Invoice, &life.invoice).await {
        told.push(mirror.snapshot.to_json());
    }
    for moment in moments {
        told.push(world.timeline(&life.tenant, moment).await.to_string());
    }
    let mut told = told.join("\n");
    for (own, common) in [
        (&life.tenant, "TENANT"),
        (&life.customer, "CUSTOMER"),
        (&life.subscription, "SUBSCRIPTION"),
        (&life.invoice, "INVOICE"),
    ] {
        told = told.replace(&format!("{own}\""), &format!("{common}\""));
        told = told.replace(&format!("il_{own}"), &format!("il_{common}"));
    }
    told
}

/// Checks that all lives came out the same; returns how.
async fn same_outcome(world: &World, lives: &[Life], moments: &[String]) -> String {
    let first = outcome(world, &lives[0], moments).await;
    for (number, life) in lives.iter().enumerate() {
        let order = permutation(number, life.subscription_events.len());
        assert_eq!(outcome(world, life, moments).await, first, "order {number}: {order:?}");
    }
    first
}

/// A little after each event, and now.
fn moments_of(world: &World, events: &[Arc<str>]) -> Vec<String> {
    let text = |seconds: i64| Timestamp::from_seconds(seconds).unwrap().to_string();
    let after = events.iter().map(|body| text(told(body)["created"].as_i64().unwrap() + 30));
    after.chain([text(world.seconds())]).collect()
}

/// Puts one list between the other, each in its own order.
fn merge(mut one: Vec<Arc<str>>, other: Vec<Arc<str>>, dice: &mut Dice) -> Vec<Arc<str>> {
    let mut place = 0;
    for body in other {
        place += dice.below(one.len() - place + 1);
        one.insert(place, body);
        place += 1;
    }
    one
}

pub async fn every_order_of_delivery_ends_in_the_same_state(ground: Ground) {
    let mut world = World::on(ground).await;
    // Orders are independent; on a slower store fewer of them say as much.
    let count = if world.is_postgres() { 240 } else { 720 };
    let lives = live(&mut world, count, End::Deleted).await;
    let events = &lives[0].subscription_events;
    let kinds: Vec<Value> = events.iter().map(|body| told(body)["type"].clone()).collect();
    assert_eq!((&kinds[0], &kinds[5]), (&TYPES[0].into(), &TYPES[2].into()));
    assert_eq!(kinds.len(), 6);
    let dice = &mut Dice::new(6);
    let mut lists = Vec::new();
    for (number, life) in lives.iter().enumerate() {
        let (order, other) = (number * (720 / count), (number * 7 + 3) % 720);
        let own = deliveries(&life.subscription_events, &permutation(order, 6), dice);
        let bills = match number % 3 {
            0 => deliveries(&life.invoice_events, &permutation(other, 6), dice),
            _ => vec![Arc::clone(&life.invoice_events[dice.below(6)])],
        };
        lists.push(merge(own, bills, dice));
    }
    deliver_all(&world, lists, &mut Dice::new(7), Time::Passes).await;
    let moments = moments_of(&world, &lives[0].subscription_events);
    let outcome = same_outcome(&world, &lives, &moments[6..]).await;
    assert!(outcome.contains(r#""dunning":"recovered""#), "{outcome}");
    assert!(outcome.contains(r#""status":"paid""#), "{outcome}");
    check_stamps(&world, &lives[0].tenant, &moments).await;
    let hooks = world.webhooks().await;
    assert_eq!(hooks.len(), count * 6 + count / 3 * (6 + 1 + 1), "one webhook for each event");
    for life in [&lives[0], &lives[count - 1]] {
        let own = hooks.iter().filter(|hook| hook["object_id"] == life.subscription.as_str());
        for hook in own {
            let last = hook["type"] == TYPES[2];
            assert_eq!(hook["status"], if last { "applied" } else { "stale" }, "{hook}");
        }
    }
    // All had been paid before the first word of it came: nobody is called.
    world.jobs.alerter.pass().await.unwrap();
    assert!(world.alerts("payment_failed").await.is_empty());
}

/// What the timeline says of the times between the events.
async fn check_stamps(world: &World, tenant: &str, moments: &[String]) {
    let expected = ["trialing", "active", "active", "past_due", "active", "canceled"];
    let whole = world.timeline(tenant, &moments[0]).await;
    let stretches = whole["stretches"].as_array().unwrap();
    assert_eq!(each(stretches, "status"), expected);
    assert_eq!(stretches[5]["until"], Value::Null);
    for (moment, expected) in moments.iter().zip(expected) {
        let stamps = world.timeline(tenant, moment).await["stamps"].clone();
        let found = stamps.as_array().unwrap().first().map(|stamp| stamp["status"].clone());
        let expected = (expected != "canceled").then(|| json!(expected));
        assert_eq!(found, expected, "{moment}");
    }
}

pub async fn every_order_within_one_second_ends_in_the_same_state(ground: Ground) {
    let mut world = World::on(ground).await;
    let mut lives = live(&mut world, 120, End::Active).await;
    let second = world.seconds() - 10;
    for body in lives.iter_mut().flat_map(|life| &mut life.subscription_events) {
        let mut event = told(body);
        event["created"] = second.into();
        *body = event.to_string().into();
    }
    let dice = &mut Dice::new(8);
    let mut lists = Vec::new();
    for (number, life) in lives.iter().enumerate() {
        assert_eq!(life.subscription_events.len(), 5);
        lists.push(deliveries(&life.subscription_events, &permutation(number, 5), dice));
    }
    deliver_all(&world, lists, &mut Dice::new(9), Time::Unchanged).await;
    let moments = moments_of(&world, &lives[0].subscription_events);
    let outcome = same_outcome(&world, &lives, &moments[4..]).await;
    let stamps = world.timeline(&lives[0].tenant, moments.last().unwrap()).await;
    assert_eq!(stamps["stamps"][0]["status"], "active", "what was read decides: {outcome}");
}

pub async fn dunning_alerts_once_a_cycle(ground: Ground) {
    let world = World::on(ground).await;
    let customer = world.tenant("acme").await;
    let price = world.price("calls", "100");
    world.stripe.subscribe(&customer, &price);
    let dice = &mut Dice::new(12);
    for cycle in 1..=2 {
        // To the end of the month, then to the hour of finalization, while payments fail.
        world.pass_seconds(DAY);
        world.use_at_provider(&customer, "calls", "7");
        world.payments_fail(true);
        let steps = [28 * DAY, DAY, 2 * HOUR, DAY, 3 * DAY, HOUR];
        for step in steps {
            world.pass_seconds(step);
            tell_and_look(&world, dice).await;
        }
        let failing = world.alerts("payment_failed").await;
        // Two attempts failed, and one alert is open.
        assert_eq!(failing.len(), cycle, "{failing:#?}");
        assert_eq!(failing[cycle - 1]["resolved_at"], Value::Null);
        world.payments_fail(false);
        for step in [5 * DAY, HOUR, HOUR] {
            world.pass_seconds(step);
            tell_and_look(&world, dice).await;
        }
        let ended = world.alerts("payment_failed").await;
        assert_eq!(ended.len(), cycle);
        assert!(ended.iter().all(|alert| alert["resolved_at"].is_string()), "{ended:#?}");
    }
    let timeline = world.get("/v1/timeline?tenant=acme").await;
    let dunning = timeline["invoices"].as_array().unwrap().iter().map(|i| i["dunning"].clone());
    assert_eq!(dunning.filter(|state| state == "recovered").count(), 2, "{timeline:#}");
}

/// Delivers everything that happened lately, old and new, in any order, and looks in between.
async fn tell_and_look(world: &World, dice: &mut Dice) {
    let mut events = world.events();
    dice.shuffle(&mut events);
    for event in events.iter().take(60) {
        world.taken(event).await;
        if dice.below(4) == 0 {
            world.jobs.mirror.pass().await.unwrap();
        }
        if dice.below(8) == 0 {
            world.jobs.alerter.pass().await.unwrap();
        }
    }
    world.read_all().await;
    world.jobs.alerter.pass().await.unwrap();
}

/// What a subscription's events say when they are read in the order in which they were made.
fn expected_stretches(events: &[Value]) -> Vec<(i64, String, Vec<String>)> {
    let mut stretches: Vec<(i64, String, Vec<String>)> = Vec::new();
    for event in events {
        let object = &event["data"]["object"];
        let items = object["items"]["data"].as_array().unwrap();
        let mut prices: Vec<String> = items.iter().map(|item| id_of(&item["price"])).collect();
        prices.sort();
        let status = object["status"].as_str().unwrap().to_owned();
        let like = |last: &(i64, String, Vec<String>)| last.1 == status && last.2 == prices;
        if !stretches.last().is_some_and(like) {
            stretches.push((event["created"].as_i64().unwrap(), status, prices));
        }
    }
    stretches
}

pub async fn shuffled_lives_of_several_subscriptions_end_in_the_same_state(ground: Ground) {
    let world = World::on(ground).await;
    for seed in 0..3 {
        println!("seed {seed}");
        long_life(&world, seed).await;
    }
}

/// Things happen, are told and are read, all mixed up; only the provider's own order counts.
async fn long_life(world: &World, seed: u64) {
    let dice = &mut Dice::new(seed + 100);
    let tenant = format!("long-{seed}");
    let customer = world.tenant(&tenant).await;
    let prices: Vec<String> = ["1", "2", "3"].map(|cents| world.price("calls", cents)).into();
    let mut subscriptions: Vec<String> = Vec::new();
    for step in 0..45 {
        world.pass_seconds(1 + i64::try_from(dice.below(20_000)).unwrap());
        // A trial may just have ended; what happens now has a second of its own.
        world.pass_seconds(1);
        if subscriptions.len() < 3 {
            let price = &prices[dice.below(3)];
            let mut fields = vec![("customer", customer.as_str()), ("items[0][price]", price)];
            if dice.below(2) == 0 {
                fields.push(("trial_period_days", "1"));
            }
            subscriptions.push(id_of(&world.stripe.ask("/v1/subscriptions", &fields)));
            world.pass_seconds(1);
        }
        let id = &subscriptions[dice.below(3.min(subscriptions.len()))];
        let path = format!("/v1/subscriptions/{id}");
        let shown = world.stripe.get(&path);
        if shown["status"] != "canceled" {
            let item = id_of(&shown["items"]["data"][0]);
            match dice.below(12) {
                0 if step > 30 => drop(world.stripe.answer(&SimRequest::new("DELETE", &path))),
                1 | 2 => drop(world.stripe.ask(&path, &[("metadata[step]", &step.to_string())])),
                _ => {
                    let price = &prices[dice.below(3)];
                    let fields = [("items[0][id]", item.as_str()), ("items[0][price]", price)];
                    world.stripe.ask(&path, &fields);
                }
            }
        }
        if dice.below(3) == 0 {
            let told = world.events_of(id);
            for _ in 0..dice.below(4) {
                world.taken(&told[dice.below(told.len())]).await;
            }
        }
        if dice.below(3) == 0 {
            world.jobs.mirror.pass().await.unwrap();
        }
    }
    let mut events: Vec<Value> = Vec::new();
    for id in &subscriptions {
        let own = world.events_of(id);
        events.extend(own.iter().cloned().chain(own.iter().take(dice.below(5)).cloned()));
    }
    assert!(events.len() >= 20, "{}", events.len());
    dice.shuffle(&mut events);
    for event in &events {
        world.taken(event).await;
        if dice.below(10) == 0 {
            world.pass_seconds(1);
            world.jobs.mirror.pass().await.unwrap();
        }
    }
    world.read_all().await;
    check_long_life(world, seed, &tenant, &subscriptions).await;
}

/// Compares timeline and mirrors with what the provider says happened.
async fn check_long_life(world: &World, seed: u64, tenant: &str, subscriptions: &[String]) {
    let timeline = world.get(&format!("/v1/timeline?tenant={tenant}")).await;
    for id in subscriptions {
        let all = timeline["stretches"].as_array().unwrap();
        let own = all.iter().filter(|stretch| stretch["subscription"] == id.as_str());
        let found: Vec<(i64, String, Vec<String>)> = own
            .map(|stretch| {
                let from = super::world::at(stretch["from"].as_str().unwrap()).micros() / 1_000_000;
                let prices = stretch["prices"].as_array().unwrap().iter();
                let prices = prices.map(|price| price.as_str().unwrap().to_owned()).collect();
                (from, stretch["status"].as_str().unwrap().to_owned(), prices)
            })
            .collect();
        assert_eq!(found, expected_stretches(&world.events_of(id)), "seed {seed}, {id}");
        let shown = world.stripe.get(&format!("/v1/subscriptions/{id}"));
        match world.snapshot(ObjectKind::Subscription, id).await {
            Snapshot::Subscription(state) => assert_eq!(state.status, shown["status"]),
            other => panic!("{other:?}"),
        }
    }
}
