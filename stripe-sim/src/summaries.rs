//! Meter event summaries, and the exact totals behind them.
//!
//! Invariant: totals are exact; only the response has a double, as at Stripe. Events younger than
//! the lag are not aggregated: no summary and no invoice includes them, and every exact total does.
//! A crash leaves nothing.

use crate::Simulator;
use crate::decimal::Decimal;
use crate::faults::FaultKind;
use crate::lists::{PAGING, page};
use crate::meter_events::{MeterEvents, ReceivedEvent, ReceivedState};
use crate::meters::{Formula, Meter};
use crate::params::Params;
use crate::request::{Answer, ApiError};
use crate::timestamp::{MICROS_PER_SECOND, Timestamp};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const MINUTE: i64 = 60;
const HOUR: i64 = 3_600;
const DAY: i64 = 86_400;

/// A half-open interval, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Interval {
    pub start: i64,
    pub end: i64,
}

pub fn list(simulator: &mut Simulator, meter_id: &str, params: &Params) -> Answer {
    let own = ["customer", "start_time", "end_time", "value_grouping_window"];
    params.only(&[&PAGING[..], &own].concat())?;
    let customer = params.required_text("customer", usize::MAX)?;
    let start = params.required_integer("start_time")?;
    let end = params.required_integer("end_time")?;
    let window = params.choice("value_grouping_window", &["hour", "day"])?;
    let (step, unit) = match window.as_deref() {
        Some("hour") => (HOUR, "hour"),
        Some(_) => (DAY, "day"),
        None => (MINUTE, "minute"),
    };
    check_alignment(start, end, step, unit)?;
    let meter = simulator.meters.get(meter_id)?.clone();
    // A deleted customer still has its usage.
    crate::customers::retrieve(simulator, &customer).map_err(|e| e.referenced("customer"))?;
    let visible = visible_until(simulator);
    let asked = Interval { start, end };
    let events = counted(&simulator.meter_events, &meter, &customer, asked, visible);
    let group = if window.is_some() { step } else { end - start };
    let mut buckets: BTreeMap<i64, Vec<&ReceivedEvent>> = BTreeMap::new();
    for event in events {
        let place = start + (event.timestamp - start).div_euclid(group) * group;
        buckets.entry(place).or_default().push(event);
    }
    // Latest first. An interval without events has no row, so that clients do not rely on one.
    let mut rows = Vec::new();
    for (place, events) in buckets.into_iter().rev() {
        let total = aggregate(meter.formula, &events);
        rows.push(json!({
            "id": format!("mtrusg_test_{}_{customer}_{place}_{group}", meter.id),
            "object": "billing.meter_event_summary", "livemode": false, "meter": meter.id,
            "aggregated_value": double(total), "start_time": place, "end_time": place + group,
        }));
    }
    page(&rows, params, &format!("/v1/billing/meters/{meter_id}/event_summaries"))
}

fn check_alignment(start: i64, end: i64, step: i64, unit: &str) -> Result<(), ApiError> {
    for (name, time) in [("start_time", start), ("end_time", end)] {
        if time.rem_euclid(step) != 0 {
            let message = format!("{name} must be aligned with {unit} boundaries in UTC: {time}");
            return Err(ApiError::parameter(name, message));
        }
    }
    if start >= end {
        return Err(ApiError::parameter("end_time", "end_time must be after start_time"));
    }
    Ok(())
}

/// Events that were received until this instant are in summaries.
fn visible_until(simulator: &mut Simulator) -> Timestamp {
    let mut lag_seconds = simulator.options.summary_lag_seconds;
    if simulator.take_fault(FaultKind::SummaryLag) {
        lag_seconds = lag_seconds.max(simulator.faults.plan().summary_lag_seconds);
    }
    simulator.now().saturating_add_micros(lag_seconds.saturating_mul(-MICROS_PER_SECOND))
}

/// Events that were received until this instant are aggregated at the end of this second.
pub fn aggregated_until(simulator: &Simulator, second: i64) -> Timestamp {
    let until = second.saturating_add(1).saturating_sub(simulator.options.summary_lag_seconds);
    Timestamp::from_seconds(until)
}

/// The events of an interval that count, in the order of their timestamps.
pub fn counted<'e>(
    events: &'e MeterEvents,
    meter: &Meter,
    customer: &str,
    asked: Interval,
    visible_until: Timestamp,
) -> Vec<&'e ReceivedEvent> {
    let series = (customer.to_owned(), meter.event_name.clone());
    let live = |event: &ReceivedEvent| {
        event.received <= visible_until && event.state == ReceivedState::Counted
    };
    let Some(window) = meter.window else {
        let all = events.between(&series, asked.start, asked.end);
        return all.map(|(_, event)| event).filter(|event| live(event)).collect();
    };
    // The whole window decides which of its events is the last.
    let step = window.seconds();
    let start = asked.start.div_euclid(step) * step;
    let end = (asked.end + step - 1).div_euclid(step) * step;
    let mut last: BTreeMap<i64, (usize, &ReceivedEvent)> = BTreeMap::new();
    for (position, event) in events.between(&series, start, end).filter(|(_, event)| live(event)) {
        let newest = last.entry(event.timestamp.div_euclid(step)).or_insert((position, event));
        if position > newest.0 {
            *newest = (position, event);
        }
    }
    let inside = asked.start..asked.end;
    last.into_values()
        .map(|(_, event)| event)
        .filter(|event| inside.contains(&event.timestamp))
        .collect()
}

/// The aggregate of events, which are in the order of their timestamps.
pub fn aggregate(formula: Formula, events: &[&ReceivedEvent]) -> Decimal {
    match formula {
        Formula::Sum => events.iter().map(|event| event.value).sum(),
        Formula::Count => {
            let count = i128::try_from(events.len()).expect("a count fits into 64 bits");
            Decimal::from_units(count * Decimal::ONE.units())
        }
        Formula::Last => events.last().map_or(Decimal::ZERO, |event| event.value),
    }
}

/// The nearest double, read from the decimal text: nothing is computed in doubles.
fn double(total: Decimal) -> Value {
    let value: f64 = total.to_string().parse().expect("a decimal text is a number");
    Value::from(value)
}

/// The exact total of every customer, event name and UTC hour that has events.
pub fn exact_totals(simulator: &Simulator) -> BTreeMap<(String, String, Timestamp), Decimal> {
    let mut totals = BTreeMap::new();
    let all_time = Interval { start: i64::MIN / 2, end: i64::MAX / 2 };
    let always = Timestamp::from_micros(i64::MAX);
    for (customer, event_name) in simulator.meter_events.series() {
        let Some(meter) = simulator.meters.named(event_name) else { continue };
        let events = counted(&simulator.meter_events, meter, customer, all_time, always);
        let mut hours: BTreeMap<i64, Vec<&ReceivedEvent>> = BTreeMap::new();
        for event in events {
            hours.entry(event.timestamp.div_euclid(HOUR) * HOUR).or_default().push(event);
        }
        for (hour, events) in hours {
            let hour = Timestamp::from_seconds(hour);
            let total = aggregate(meter.formula, &events);
            totals.insert((customer.clone(), event_name.clone(), hour), total);
        }
    }
    totals
}

/// The exact total of one customer, event name and UTC hour.
pub fn exact_total(
    simulator: &Simulator,
    customer: &str,
    event_name: &str,
    hour_start: Timestamp,
) -> Decimal {
    let Some(meter) = simulator.meters.named(event_name) else { return Decimal::ZERO };
    let start = hour_start.seconds();
    let asked = Interval { start, end: start + HOUR };
    let always = Timestamp::from_micros(i64::MAX);
    aggregate(meter.formula, &counted(&simulator.meter_events, meter, customer, asked, always))
}
