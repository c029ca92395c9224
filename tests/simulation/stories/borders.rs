//! Subscriptions that are made, changed and cancelled at the provider itself, at any second, while
//! webhooks about them are lost, doubled, late and out of order. Usage comes from right before each
//! border to right after it, some of it late. Every line of every invoice must hold exactly what
//! was used in its half-open period at its price, and usage of a trial must be nowhere.

use crate::orders::Order;
use crate::stories::subscriptions::{ask, make_prices};
use crate::world::{AMOUNTS, CHANCES, DAY, HOUR, MINUTE, TENANTS, World};
use counterfoil::rules::quantity::Quantity;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use stripe_sim::SimRequest;

/// Meters with prices. The other one is billed by its totals, which cannot be divided.
const PRICED: [&str; 2] = ["adding", "single"];
const SECOND: i64 = 1_000_000;
const STEP: i64 = 5 * MINUTE;
/// An event comes at most this late: it must be pushed before its invoice is finalized.
const LATE: i64 = 12 * MINUTE;
/// Nothing is used for so long before prices change or a subscription is cancelled, so that all is
/// aggregated: what the provider has not aggregated by then is on no invoice.
const QUIET: i64 = 150 * MINUTE;
/// The provider is well from a border on until the invoice about it is finalized.
const UNTROUBLED: i64 = 75 * MINUTE;
/// A border is so many seconds away from each end of its hour: what lies between them has no room
/// for a stamp of its own.
const ROOM: u64 = 5;

/// A subscription as the provider has it.
struct Subscriber {
    tenant: &'static str,
    customer: String,
    id: String,
    /// The end of the trial, if there is one.
    trial_end: Option<i64>,
    /// Where its periods are counted from.
    anchor: i64,
    /// The moment at which its first paid period ends.
    period_end: i64,
    /// When prices change or it is cancelled.
    turn: i64,
    turns: Turns,
    /// Usage of a meter by its moment.
    used: Vec<(usize, i64, Quantity)>,
    /// Events that are used and not sent yet, with when to send them.
    waiting: Vec<(i64, String)>,
}

/// What becomes of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turns {
    Dearer,
    Cancelled,
    Same,
}

/// By price: the meters at one cent and at two.
type Prices = [[String; PRICED.len()]; 2];

/// Webhooks on their way, and those that were seen.
#[derive(Default)]
struct Post {
    /// Before it nothing arrives, and the provider's list cannot be read.
    opens: i64,
    seen: BTreeSet<String>,
    under_way: Vec<(i64, String)>,
}

pub fn live(world: &mut World<'_>) -> Result<(), String> {
    let prices = make_prices(world, PRICED);
    world.map("late-mapped");
    world.lag = 30 + i64::try_from(world.dice.below(120)).unwrap();
    let (mut post, mut subscribers) = (Post::default(), Vec::new());
    for tenant in TENANTS {
        let seconds = i64::try_from(world.dice.below(90 * 60)).unwrap();
        world.advance(seconds * SECOND);
        world.advance_into_room();
        subscribers.push(subscribe(world, tenant, &prices));
    }
    if world.dice.percent(50) {
        // Windows are cut before anything is known of the subscriptions; an invoice is not final.
        let paid = subscribers.iter().filter(|one| one.trial_end.is_none());
        let first = paid.map(|one| one.anchor).filter(|anchor| *anchor > world.now).min();
        post.opens = first.unwrap_or(i64::MAX).min(world.now + 4 * HOUR) - 2 * STEP;
    }
    live_until(world, &mut post, &mut subscribers, world.now + 6 * HOUR)?;
    turn(world, &mut post, &mut subscribers, &prices)?;
    let first = subscribers.iter().map(|one| one.period_end).min().unwrap();
    let last = subscribers.iter().map(|one| one.period_end).max().unwrap();
    catch_up(world, &mut post, &mut subscribers)?;
    world.calm("before the periods end")?;
    world.advance((first - 2 * HOUR - world.now).max(0));
    live_until(world, &mut post, &mut subscribers, last + 2 * HOUR)?;
    catch_up(world, &mut post, &mut subscribers)?;
    world.calm("after the periods ended")?;
    world.advance(34 * DAY);
    check_invoices(world, &subscribers)
}

impl World<'_> {
    /// Moves on to a whole second that is well inside its hour.
    fn advance_into_room(&mut self) {
        let whole = self.now.div_euclid(SECOND) * SECOND + SECOND;
        self.advance(whole - self.now);
        let room = i64::try_from(ROOM).unwrap() * SECOND;
        let into = self.now.rem_euclid(HOUR);
        let ahead = if into < room { room - into } else { 0 };
        let beyond = if into > HOUR - room { HOUR - into + room } else { 0 };
        self.advance(ahead + beyond);
    }
}

fn subscribe(world: &mut World<'_>, tenant: &'static str, prices: &Prices) -> Subscriber {
    let customer = world.customers.iter().find(|(_, owner)| **owner == tenant);
    let customer = customer.expect("every tenant is mapped").0.clone();
    let seconds = world.now / SECOND;
    let mut fields = vec![
        ("customer", customer.clone()),
        ("items[0][price]", prices[0][0].clone()),
        ("items[1][price]", prices[0][1].clone()),
    ];
    let dice = i64::try_from(world.dice.below(4 * 3_600)).unwrap();
    let ahead = into_room(seconds + 1_800 + dice);
    let trial_end = match world.dice.below(3) {
        0 => {
            fields.push(("trial_end", ahead.to_string()));
            Some(ahead * SECOND)
        }
        1 => {
            fields.push(("billing_cycle_anchor", ahead.to_string()));
            None
        }
        _ => None,
    };
    let fields: Vec<(&str, &str)> =
        fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let made = ask(world, &SimRequest::form("/v1/subscriptions", &fields));
    let anchor = made["billing_cycle_anchor"].as_i64().unwrap();
    let month_later = |second: i64| {
        let at = jiff::Timestamp::from_second(second).unwrap().to_zoned(jiff::tz::TimeZone::UTC);
        at.checked_add(jiff::Span::new().months(1)).unwrap().timestamp().as_second() * SECOND
    };
    let turns = *world.dice.pick(&[Turns::Dearer, Turns::Cancelled, Turns::Same]);
    let minutes = i64::try_from(world.dice.below(60)).unwrap();
    Subscriber {
        tenant,
        customer,
        id: made["id"].as_str().unwrap().to_owned(),
        trial_end,
        anchor: anchor * SECOND,
        period_end: month_later(anchor),
        turn: into_room((world.now + 10 * HOUR + minutes * MINUTE) / SECOND) * SECOND,
        turns,
        used: Vec::new(),
        waiting: Vec::new(),
    }
}

/// The same second, or one well inside the hour.
fn into_room(second: i64) -> i64 {
    let room = i64::try_from(ROOM).unwrap();
    let into = second.rem_euclid(3_600);
    second + (room - into).max(0) + if into > 3_600 - room { 2 * room } else { 0 }
}

impl Subscriber {
    /// Moments at which billing changes.
    fn borders(&self) -> Vec<i64> {
        let turn = (self.turns != Turns::Same).then_some(self.turn);
        [Some(self.anchor), Some(self.period_end), turn].into_iter().flatten().collect()
    }

    fn is_quiet(&self, at: i64) -> bool {
        self.turns != Turns::Same && (self.turn - QUIET..self.turn).contains(&at)
    }

    fn in_trial(&self, at: i64) -> bool {
        self.trial_end.is_some_and(|end| at < end)
    }
}

/// Steps of time in which everything happens.
fn live_until(
    world: &mut World<'_>,
    post: &mut Post,
    subscribers: &mut [Subscriber],
    end: i64,
) -> Result<(), String> {
    while world.now < end {
        let before = world.now;
        world.advance(STEP);
        for subscriber in subscribers.iter_mut() {
            use_some(world, subscriber, before);
        }
        step(world, post, subscribers)?;
    }
    Ok(())
}

/// What was used since `before`: at any moment, and around borders at the very instants.
fn use_some(world: &mut World<'_>, subscriber: &mut Subscriber, before: i64) {
    let mut moments = Vec::new();
    if world.dice.percent(40) {
        let into = i64::try_from(world.dice.below(u64::try_from(STEP).unwrap())).unwrap();
        moments.push(before + into);
    }
    for border in subscriber.borders() {
        if (before..world.now).contains(&border) {
            moments.extend([border - 1, border, border + 1, border + 30 * SECOND]);
        }
    }
    let now = world.now;
    moments.retain(|at| *at <= now && !subscriber.is_quiet(*at));
    for at in moments {
        let place = usize::try_from(world.dice.below(2)).unwrap();
        let quantity = *world.dice.pick(&AMOUNTS);
        let whose = (subscriber.tenant, PRICED[place]);
        let event = match subscriber.in_trial(at) {
            true => world.make_unbilled_event(whose, quantity, at),
            false => world.make_event(whose, quantity, at, false),
        };
        subscriber.used.push((place, at, Quantity::parse_stored(quantity).unwrap()));
        let late = *world.dice.pick(&[0, 0, LATE / 2, LATE]);
        subscriber.waiting.push((at + late, event));
    }
}

fn step(
    world: &mut World<'_>,
    post: &mut Post,
    subscribers: &mut [Subscriber],
) -> Result<(), String> {
    let now = world.now;
    let borders = || subscribers.iter().flat_map(Subscriber::borders);
    let troubled = borders().all(|border| !(border - QUIET..border + UNTROUBLED).contains(&now));
    let unwell = troubled && world.dice.percent(60);
    world.set_faults(if unwell { &CHANCES } else { &[] });
    let mut due = Vec::new();
    for subscriber in subscribers.iter_mut() {
        due.extend(subscriber.waiting.extract_if(.., |(at, _)| *at <= now).map(|(_, event)| event));
    }
    world.send_again();
    world.send(due);
    if now >= post.opens {
        deliver(world, post);
        world.order(&Order::Backfill);
        world.order(&Order::Mirror);
    }
    for order in [Order::Cut, Order::Push, Order::Confirm] {
        world.order(&order);
    }
    world.audit()
}

/// The provider's webhooks: some are lost, some come twice, in any order.
fn deliver(world: &mut World<'_>, post: &mut Post) {
    let listed = ask(world, &SimRequest::get("/v1/events?limit=100"));
    for event in listed["data"].as_array().unwrap().iter().rev() {
        if !post.seen.insert(event["id"].as_str().unwrap().to_owned()) {
            continue;
        }
        for _ in 0..*world.dice.pick(&[0, 1, 1, 1, 2]) {
            let late = *world.dice.pick(&[0, 0, 0, STEP, 2 * STEP, 3 * STEP]);
            post.under_way.push((world.now + late, event.to_string()));
        }
    }
    let now = world.now;
    let mut payloads: Vec<String> =
        post.under_way.extract_if(.., |(at, _)| *at <= now).map(|(_, payload)| payload).collect();
    if world.dice.percent(50) {
        payloads.reverse();
    }
    if !payloads.is_empty() {
        world.order(&Order::Hear { payloads });
    }
}

/// Prices change and a subscription is cancelled, at the provider.
fn turn(
    world: &mut World<'_>,
    post: &mut Post,
    subscribers: &mut [Subscriber],
    prices: &Prices,
) -> Result<(), String> {
    let mut order: Vec<usize> = (0..subscribers.len()).collect();
    order.sort_by_key(|place| subscribers[*place].turn);
    for place in order {
        let at = subscribers[place].turn;
        if world.now < at - STEP {
            live_until(world, post, subscribers, at - STEP)?;
        }
        world.advance((at - world.now).max(0));
        let Subscriber { id, turns, .. } = &subscribers[place];
        let path = format!("/v1/subscriptions/{id}");
        match turns {
            Turns::Same => {}
            Turns::Cancelled => {
                let request = SimRequest::new("DELETE", &format!("{path}?invoice_now=true"));
                ask(world, &request);
            }
            Turns::Dearer => {
                let shown = ask(world, &SimRequest::get(&path));
                let items = shown["items"]["data"].as_array().unwrap().clone();
                let mut fields = Vec::new();
                for (number, item) in items.iter().enumerate() {
                    let old = item["price"]["id"].as_str().unwrap();
                    let place = prices[0].iter().position(|price| price == old).unwrap();
                    let own = item["id"].as_str().unwrap().to_owned();
                    fields.push((format!("items[{number}][id]"), own));
                    fields.push((format!("items[{number}][price]"), prices[1][place].clone()));
                }
                let fields: Vec<(&str, &str)> =
                    fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
                ask(world, &SimRequest::form(&path, &fields));
            }
        }
    }
    live_until(world, post, subscribers, world.now + 3 * HOUR)
}

/// All that is on its way arrives.
fn catch_up(
    world: &mut World<'_>,
    post: &mut Post,
    subscribers: &mut [Subscriber],
) -> Result<(), String> {
    for _ in 0..12 {
        world.advance(STEP);
        step(world, post, subscribers)?;
    }
    Ok(())
}

/// What the lines of all invoices of a customer bill, by price and period.
type Billed = BTreeMap<(String, i64, i64), Quantity>;

fn check_invoices(world: &World<'_>, subscribers: &[Subscriber]) -> Result<(), String> {
    for subscriber in subscribers {
        let target = format!("/v1/invoices?limit=100&customer={}", subscriber.customer);
        let invoices = ask(world, &SimRequest::get(&target));
        let lines = |invoice: &Value| invoice["lines"]["data"].as_array().unwrap().clone();
        let all: Vec<Value> = invoices["data"].as_array().unwrap().iter().flat_map(lines).collect();
        let mut billed = Billed::new();
        for line in &all {
            let price = line["pricing"]["price_details"]["price"].as_str().unwrap().to_owned();
            let of = |name: &str| line["period"][name].as_i64().unwrap() * SECOND;
            let quantity = Quantity::parse_stored(line["quantity_decimal"].as_str().unwrap());
            let sum = billed.entry((price, of("start"), of("end"))).or_default();
            *sum = sum.checked_add(quantity.unwrap()).unwrap();
        }
        for ((price, start, end), quantity) in &billed {
            let place = meter_of(world, price);
            let inside = subscriber.used.iter().filter(|(meter, at, _)| {
                *meter == place && (*start..*end).contains(at) && !subscriber.in_trial(*at)
            });
            let expected = inside.map(|(_, _, one)| *one);
            let expected = expected.fold(Quantity::ZERO, |a, b| a.checked_add(b).unwrap());
            if expected != *quantity {
                return Err(format!(
                    "{} used {expected} of {} from {start} to {end} and is billed {quantity}; \
                     trial until {:?}, period until {}, {:?} at {}, used {:?}\n{}",
                    subscriber.tenant,
                    PRICED[place],
                    subscriber.trial_end,
                    subscriber.period_end,
                    subscriber.turns,
                    subscriber.turn,
                    subscriber.used,
                    received(world, subscriber, (PRICED[place], start - HOUR, end + HOUR))
                ));
            }
        }
        if billed.is_empty() {
            return Err(format!("{} was never invoiced", subscriber.tenant));
        }
    }
    Ok(())
}

/// What the provider has received of a meter around a period, for whoever looks at a violation.
fn received(
    world: &World<'_>,
    subscriber: &Subscriber,
    (meter, start, end): (&str, i64, i64),
) -> String {
    let simulator = world.simulator.lock().unwrap();
    let own = simulator.events_received().iter().filter(|event| {
        let at = event.timestamp * SECOND;
        event.customer == subscriber.customer
            && event.event_name == meter
            && (start..end).contains(&at)
    });
    let lines = own.map(|event| {
        let (value, at, received) = (&event.value, event.timestamp, event.received);
        format!("{value} stamped at {at}, received at {received}, {:?}", event.state)
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The place of the meter that a price bills.
fn meter_of(world: &World<'_>, price: &str) -> usize {
    let shown = ask(world, &SimRequest::get(&format!("/v1/prices/{price}")));
    let meter = shown["recurring"]["meter"].as_str().unwrap().to_owned();
    let meter = ask(world, &SimRequest::get(&format!("/v1/billing/meters/{meter}")));
    PRICED.iter().position(|name| meter["event_name"] == *name).unwrap()
}
