//! Sagas create, change and cancel subscriptions while the provider fails and aggregates slowly.
//! Every unit that was used before a boundary must be on an invoice at the price of its time, and
//! none twice. Events come some minutes late, within what a last cut waits for.

use crate::orders::{Order, SagaParams};
use crate::world::{AMOUNTS, CHANCES, DAY, HOUR, MINUTE, World};
use counterfoil::rules::quantity::Quantity;
use serde_json::Value;
use std::collections::BTreeMap;
use stripe_sim::{FaultKind, FaultPlan, FaultRule, SimRequest};

/// Meters with prices. The one that is billed by event is none of them.
const PRICED: [&str; 2] = ["adding", "standing"];
const STEP: i64 = 3 * MINUTE;
/// An event that is used before a boundary comes at most this late.
const LATE: i64 = 12 * MINUTE;
/// Steps after which a saga is said not to end.
const STEPS_MAX: u64 = 400;

/// A tenant's subscription as the story knows it.
#[derive(Debug, Clone)]
struct Subscriber {
    tenant: &'static str,
    customer: String,
    subscription: String,
    /// By the price's number, in the order of time: when it began to be charged.
    prices: Vec<(usize, i64)>,
    /// When usage ended.
    until: i64,
    used: Vec<(usize, i64, Quantity)>,
    /// Events that are used and not sent yet, with when to send them.
    waiting: Vec<(i64, String)>,
}

/// Prices of the meters, at one cent and at two.
type Prices = [[String; PRICED.len()]; 2];

pub fn live(world: &mut World<'_>) -> Result<(), String> {
    let prices = make_prices(world, PRICED);
    undo_creation(world, &prices)?;
    world.lag = 60 + i64::try_from(world.dice.below(240)).unwrap();
    let mut subscribers = Vec::new();
    for tenant in ["acme", "globex", "late-mapped"] {
        let minutes = i64::try_from(world.dice.below(50)).unwrap();
        world.advance(minutes * MINUTE);
        subscribers.push(subscribe(world, tenant, &prices)?);
    }
    use_for(world, &mut subscribers, 2 * HOUR)?;
    change(world, &mut subscribers, &prices)?;
    use_for(world, &mut subscribers, HOUR)?;
    cancel(world, &mut subscribers)?;
    use_for(world, &mut subscribers, HOUR)?;
    world.lag = 0;
    for subscriber in &mut subscribers {
        let rest = std::mem::take(&mut subscriber.waiting);
        world.send(rest.into_iter().map(|(_, event)| event).collect());
    }
    world.calm("after subscriptions")?;
    // The periods end and their invoices are finalized.
    world.advance(34 * DAY);
    check_invoices(world, &subscribers, &prices)
}

/// Calls the provider as a person does, without faults.
pub fn ask(world: &World<'_>, request: &SimRequest) -> Value {
    let mut simulator = world.simulator.lock().unwrap();
    let plan = simulator.faults().clone();
    simulator.set_faults(FaultPlan::default());
    let answer = simulator.handle(request);
    simulator.set_faults(plan);
    assert_eq!(answer.status, 200, "{}", answer.json());
    answer.json()
}

/// Prices of these meters, at one cent and at two.
pub fn make_prices<const N: usize>(world: &World<'_>, priced: [&str; N]) -> [[String; N]; 2] {
    let meters = ask(world, &SimRequest::get("/v1/billing/meters?limit=100"));
    ["1", "2"].map(|cents| {
        priced.map(|name| {
            let all = meters["data"].as_array().unwrap();
            let meter = all.iter().find(|meter| meter["event_name"] == name).unwrap();
            let fields = [
                ("currency", "usd"),
                ("unit_amount_decimal", cents),
                ("recurring[interval]", "month"),
                ("recurring[usage_type]", "metered"),
                ("recurring[meter]", meter["id"].as_str().unwrap()),
                ("product_data[name]", name),
            ];
            let price = ask(world, &SimRequest::form("/v1/prices", &fields));
            price["id"].as_str().unwrap().to_owned()
        })
    })
}

/// A subscription with a flat price is made and paid, and its saga cannot go on because the tenant
/// was mapped meanwhile: the money must be given back.
fn undo_creation(world: &mut World<'_>, prices: &Prices) -> Result<(), String> {
    let tenant = "late-mapped";
    let fields = [
        ("currency", "usd"),
        ("unit_amount_decimal", "500"),
        ("recurring[interval]", "month"),
        ("recurring[usage_type]", "licensed"),
        ("product_data[name]", "Seat"),
    ];
    let flat = ask(world, &SimRequest::form("/v1/prices", &fields));
    let prices = vec![prices[0][0].clone(), flat["id"].as_str().unwrap().to_owned()];
    let saga = SagaParams::Create { prices };
    let id = world.order(&Order::Begin { tenant: tenant.into(), key: "undone".into(), saga });
    let unread = FaultRule::new(FaultKind::Error503).on_call("GET /v1/subscriptions").times(4);
    let lost = FaultRule::new(FaultKind::LostAfter).on_call("POST /v1/subscriptions").times(1);
    world.simulator.lock().unwrap().set_faults(FaultPlan::of_rules(vec![lost, unread]));
    world.order(&Order::Sagas);
    world.map(tenant);
    for _ in 0..STEPS_MAX {
        step(world, &mut [])?;
        let found = world.order(&Order::SagaState { id: id.clone() });
        let (state, _): (String, Vec<String>) = serde_json::from_str(&found).unwrap();
        match state.as_str() {
            "compensated" => return check_paid_back(world),
            "completed" => return Err(format!("a saga was not undone: {found}")),
            "needs_attention" => drop(world.order(&Order::Resume { id: id.clone() })),
            _ => {}
        }
    }
    Err("a saga was never undone".to_owned())
}

/// Nobody has a subscription, so nothing may be paid.
fn check_paid_back(world: &World<'_>) -> Result<(), String> {
    let invoices = ask(world, &SimRequest::get("/v1/invoices?limit=100"));
    for invoice in invoices["data"].as_array().unwrap() {
        let amount = |name: &str| invoice[name].as_i64().unwrap_or(0);
        let paid = amount("amount_paid") - amount("post_payment_credit_notes_amount");
        if paid != 0 {
            let customer = &invoice["customer"];
            return Err(format!("{customer} has paid {paid} for a subscription that was undone"));
        }
    }
    Ok(())
}

/// One step of time: events that are due, and the jobs.
fn step(world: &mut World<'_>, subscribers: &mut [Subscriber]) -> Result<(), String> {
    let quiet = world.dice.percent(40);
    world.set_faults(if quiet { &[] } else { &CHANCES });
    world.advance(STEP);
    let mut due = Vec::new();
    for subscriber in subscribers {
        use_some(world, subscriber);
        let now = world.now;
        due.extend(subscriber.waiting.extract_if(.., |(at, _)| *at <= now).map(|(_, event)| event));
    }
    world.send(due);
    for order in [Order::Cut, Order::Push, Order::Sagas, Order::Confirm] {
        world.order(&order);
    }
    world.audit()
}

fn use_some(world: &mut World<'_>, subscriber: &mut Subscriber) {
    if world.now >= subscriber.until || world.dice.percent(50) {
        return;
    }
    let place = usize::try_from(world.dice.below(2)).unwrap();
    let quantity = *world.dice.pick(&AMOUNTS);
    let at = world.now;
    let event = world.make_event((subscriber.tenant, PRICED[place]), quantity, at, false);
    subscriber.used.push((place, at, Quantity::parse_stored(quantity).unwrap()));
    let late = *world.dice.pick(&[0, LATE / 2, LATE, LATE]);
    subscriber.waiting.push((at + late, event));
}

/// Usage right before a boundary that arrives when it has passed.
fn use_late(world: &mut World<'_>, subscriber: &mut Subscriber, boundary: i64) {
    let at = boundary - MINUTE;
    for (place, meter) in PRICED.into_iter().enumerate() {
        let event = world.make_event((subscriber.tenant, meter), "5", at, false);
        subscriber.used.push((place, at, Quantity::parse_stored("5").unwrap()));
        subscriber.waiting.push((at + LATE, event));
    }
}

fn use_for(
    world: &mut World<'_>,
    subscribers: &mut [Subscriber],
    micros: i64,
) -> Result<(), String> {
    let end = world.now + micros;
    while world.now < end {
        step(world, subscribers)?;
    }
    Ok(())
}

/// Runs a saga to its end; whether it was completed. A person resumes one that needs attention.
fn run_saga(
    world: &mut World<'_>,
    subscribers: &mut [Subscriber],
    (tenant, saga): (&str, SagaParams),
) -> Result<bool, String> {
    let key = format!("saga-{}-{}", world.sent.len(), world.now);
    let id = world.order(&Order::Begin { tenant: tenant.into(), key, saga });
    for _ in 0..STEPS_MAX {
        step(world, subscribers)?;
        let found = world.order(&Order::SagaState { id: id.clone() });
        let (state, _): (String, Vec<String>) = serde_json::from_str(&found).unwrap();
        match state.as_str() {
            "completed" => return Ok(true),
            "compensated" => return Ok(false),
            "needs_attention" => drop(world.order(&Order::Resume { id: id.clone() })),
            _ => {}
        }
    }
    let found = world.order(&Order::SagaState { id });
    Err(format!("a saga of {tenant} did not end: {found}"))
}

fn subscribe(
    world: &mut World<'_>,
    tenant: &'static str,
    prices: &Prices,
) -> Result<Subscriber, String> {
    let mut tries = 0;
    while !run_saga(world, &mut [], (tenant, SagaParams::Create { prices: prices[0].to_vec() }))? {
        tries += 1;
        if tries > 8 {
            return Err(format!("{tenant} could not subscribe"));
        }
    }
    for customer in world.simulator.lock().unwrap().customers() {
        if customer["metadata"]["counterfoil_tenant"] == tenant {
            let id = customer["id"].as_str().unwrap().to_owned();
            world.customers.insert(id, tenant);
        }
    }
    let live: Vec<Value> = world.simulator.lock().unwrap().subscriptions();
    let own = |one: &&Value| {
        let customer = one["customer"].as_str().unwrap();
        world.customers.get(customer) == Some(&tenant) && one["status"] != "canceled"
    };
    let live: Vec<&Value> = live.iter().filter(own).collect();
    let [subscription] = live[..] else { return Err(format!("{tenant} has {live:#?}")) };
    Ok(Subscriber {
        tenant,
        customer: subscription["customer"].as_str().unwrap().to_owned(),
        subscription: subscription["id"].as_str().unwrap().to_owned(),
        prices: vec![(0, i64::MIN)],
        until: i64::MAX,
        used: Vec::new(),
        waiting: Vec::new(),
    })
}

fn next_boundary(world: &World<'_>) -> i64 {
    (world.now.div_euclid(HOUR) + 1) * HOUR
}

/// One of them changes to the second prices, or the change is undone.
fn change(
    world: &mut World<'_>,
    subscribers: &mut [Subscriber],
    prices: &Prices,
) -> Result<(), String> {
    let place = usize::try_from(world.dice.below(3)).unwrap();
    let (tenant, boundary) = (subscribers[place].tenant, next_boundary(world));
    let subscription = subscribers[place].subscription.clone();
    use_late(world, &mut subscribers[place], boundary);
    let saga = SagaParams::Change { subscription, prices: prices[1].to_vec(), boundary };
    if run_saga(world, subscribers, (tenant, saga))? {
        subscribers[place].prices.push((1, boundary));
    }
    Ok(())
}

/// One of them ends its subscription and uses nothing after the boundary.
fn cancel(world: &mut World<'_>, subscribers: &mut [Subscriber]) -> Result<(), String> {
    let place = usize::try_from(world.dice.below(3)).unwrap();
    let (tenant, boundary) = (subscribers[place].tenant, next_boundary(world));
    let subscription = subscribers[place].subscription.clone();
    subscribers[place].until = boundary;
    use_late(world, &mut subscribers[place], boundary);
    let saga = SagaParams::Cancel { subscription, boundary };
    if !run_saga(world, subscribers, (tenant, saga))? {
        subscribers[place].until = i64::MAX;
    }
    Ok(())
}

fn check_invoices(
    world: &World<'_>,
    subscribers: &[Subscriber],
    prices: &Prices,
) -> Result<(), String> {
    for subscriber in subscribers {
        let mut expected: BTreeMap<&str, Quantity> = BTreeMap::new();
        for (meter, at, quantity) in &subscriber.used {
            let charged = subscriber.prices.iter().rev().find(|(_, since)| since <= at);
            let price = &prices[charged.unwrap().0][*meter];
            let sum = expected.entry(price).or_default();
            *sum = sum.checked_add(*quantity).unwrap();
        }
        let target = format!("/v1/invoices?limit=100&customer={}", subscriber.customer);
        let invoices = ask(world, &SimRequest::get(&target));
        let mut invoiced: BTreeMap<&str, Quantity> = BTreeMap::new();
        let lines = |invoice: &Value| invoice["lines"]["data"].as_array().unwrap().clone();
        let all: Vec<Value> = invoices["data"].as_array().unwrap().iter().flat_map(lines).collect();
        for line in &all {
            let price = line["pricing"]["price_details"]["price"].as_str().unwrap();
            let quantity = Quantity::parse_stored(line["quantity_decimal"].as_str().unwrap());
            let sum = invoiced.entry(price).or_default();
            *sum = sum.checked_add(quantity.unwrap()).unwrap();
        }
        invoiced.retain(|_, sum| *sum != Quantity::ZERO);
        if invoiced != expected {
            return Err(format!(
                "{} used {expected:?} by price and is invoiced {invoiced:?}: {subscriber:?}",
                subscriber.tenant
            ));
        }
    }
    Ok(())
}
