//! Summaries: alignment, grouping, formulas, pre-aggregated meters, lag and doubles.

use super::{DAY, HOUR, NOON, World, refusal};
use stripe_sim::{FaultKind, FaultPlan, FaultRule};

/// Start times and values of the rows.
fn rows(world: &mut World, query: &str) -> Vec<(i64, f64)> {
    let response = world.summaries(query);
    assert_eq!(response.status, 200, "{}", response.json());
    let row = |row: &serde_json::Value| {
        assert_eq!(row["object"], "billing.meter_event_summary");
        assert!(row.get("customer").is_none(), "a row does not say whose it is");
        (row["start_time"].as_i64().unwrap(), row["aggregated_value"].as_f64().unwrap())
    };
    response.json()["data"].as_array().unwrap().iter().map(row).collect()
}

fn between(start: i64, end: i64) -> String {
    format!("start_time={start}&end_time={end}")
}

#[test]
fn one_total_or_one_for_each_hour_or_day() {
    let mut world = World::new();
    for (number, (offset, value)) in
        [(-1, "1.5"), (-HOUR, "2"), (-HOUR - 1, "4"), (-DAY, "8")].into_iter().enumerate()
    {
        world.send(&format!("id-{number}"), value, NOON + offset);
    }
    let all = between(NOON - 2 * DAY, NOON);
    assert_eq!(rows(&mut world, &all), [(NOON - 2 * DAY, 15.5)]);
    let hourly = format!("{all}&value_grouping_window=hour");
    let expected = [(NOON - HOUR, 3.5), (NOON - 2 * HOUR, 4.0), (NOON - DAY, 8.0)];
    assert_eq!(rows(&mut world, &hourly), expected, "no row for an hour without events");
    let midnight = NOON - 12 * HOUR;
    let daily = between(midnight - DAY, midnight + DAY) + "&value_grouping_window=day";
    assert_eq!(rows(&mut world, &daily), [(midnight, 7.5), (midnight - DAY, 8.0)]);
    // The end is excluded, the start included.
    assert_eq!(rows(&mut world, &between(NOON - HOUR, NOON - 60)), [(NOON - HOUR, 2.0)]);
    assert_eq!(rows(&mut world, &between(NOON, NOON + 60)), []);
}

#[test]
fn refusals() {
    let mut world = World::new();
    let mut check = |query: &str, part: &str| {
        let (status, kind, _, message) = refusal(&world.summaries(query));
        assert_eq!((status, kind.as_str()), (400, "invalid_request_error"), "{query}");
        assert!(message.contains(part), "{query}: {message}");
    };
    check("start_time=0", "end_time");
    check(&between(NOON + 1, NOON + 60), "start_time must be aligned with minute");
    check(&between(NOON, NOON + 61), "end_time must be aligned with minute");
    check(&between(NOON, NOON), "after start_time");
    let grouped = |start, end, window| between(start, end) + "&value_grouping_window=" + window;
    check(&grouped(NOON + 60, NOON + HOUR, "hour"), "aligned with hour");
    check(&grouped(NOON, NOON + DAY, "day"), "aligned with day");
    check(&grouped(NOON, NOON + DAY, "week"), "must be one of hour, day");
    check(&(between(NOON, NOON + 60) + "&limit=101"), "limit");
}

#[test]
fn pages() {
    let mut world = World::new();
    for hour in 0..25 {
        world.send(&format!("id-{hour}"), "1", NOON - hour * HOUR);
    }
    let query = between(NOON - 2 * DAY, NOON + HOUR) + "&value_grouping_window=hour";
    let first = world.summaries(&query).json();
    assert_eq!(first["data"].as_array().unwrap().len(), 10, "ten rows unless told otherwise");
    assert_eq!(first["has_more"], true);
    let last = first["data"][9]["id"].as_str().unwrap();
    let rest = world.summaries(&format!("{query}&limit=100&starting_after={last}")).json();
    assert_eq!(rest["data"].as_array().unwrap().len(), 15);
    assert_eq!(rest["has_more"], false);
}

#[test]
fn formulas_and_pre_aggregated_meters() {
    let check = |formula: &str, window: Option<&str>, expected: f64| {
        let mut world = World::new();
        world.meter = world.add_meter("m", formula, window);
        // Received in this order; the timestamps are in another, and in two hours.
        for (identifier, value, offset) in
            [("a", "10", -1), ("b", "20", -60), ("c", "40", -HOUR), ("d", "80", -HOUR - 1)]
        {
            let request = world.event_of("m", identifier, value, NOON + offset);
            assert_eq!(world.simulator.handle(&request).status, 200);
        }
        let found = rows(&mut world, &between(NOON - DAY, NOON));
        assert_eq!(found[0].1, expected, "{formula} {window:?}");
    };
    check("sum", None, 150.0);
    check("count", None, 4.0);
    check("last", None, 10.0);
    check("sum", Some("hour"), 120.0);
    check("sum", Some("day"), 80.0);
    check("count", Some("hour"), 2.0);
}

#[test]
fn a_cancelled_event_is_gone() {
    let mut world = World::new();
    world.send("a", "5", NOON - 1);
    world.post(
        "/v1/billing/meter_event_adjustments",
        &[("event_name", "calls"), ("type", "cancel"), ("cancel[identifier]", "a")],
    );
    assert_eq!(rows(&mut world, &between(NOON - HOUR, NOON)), []);
}

#[test]
fn lag() {
    let mut world = World::new();
    world.simulator.set_summary_lag(600);
    world.send("a", "5", NOON - 1);
    let query = between(NOON - HOUR, NOON);
    assert_eq!(rows(&mut world, &query), []);
    assert_eq!(world.exact(NOON - HOUR), "5", "the exact total does not lag");
    world.advance(600);
    assert_eq!(rows(&mut world, &query), [(NOON - HOUR, 5.0)]);

    world.simulator.set_summary_lag(0);
    let rule = FaultRule::new(FaultKind::SummaryLag).on_path("event_summaries");
    world.simulator.set_faults(FaultPlan::of_rules(vec![rule]));
    assert_eq!(rows(&mut world, &query), [], "lagging once, by an hour");
    assert_eq!(rows(&mut world, &query), [(NOON - HOUR, 5.0)]);
    assert_eq!(world.simulator.faults_injected()[&FaultKind::SummaryLag], 1);
}

#[test]
fn doubles_only_in_the_answer() {
    let mut world = World::new();
    for number in 0..10 {
        world.send(&format!("id-{number}"), "0.1", NOON - 1);
    }
    assert_eq!(rows(&mut world, &between(NOON - HOUR, NOON)), [(NOON - HOUR, 1.0)]);
    world.send("big", "123456789012345", NOON - 1);
    world.send("small", "0.000000000001", NOON - 1);
    assert_eq!(world.exact(NOON - HOUR), "123456789012346.000000000001");
    let value = world.summaries(&between(NOON - HOUR, NOON)).json()["data"][0].clone();
    assert_eq!(value["aggregated_value"].to_string(), "123456789012346.0");
}
