//! Tables of items and what they are read as.

use super::*;
use crate::rules::ids::MeterSlug;
use crate::rules::meter::MeterSpec;
use proptest::prelude::*;
use std::sync::Arc;

fn catalog() -> Catalog {
    let mut catalog = Catalog::default();
    let specs = [("calls", r#"{"aggregation":"sum"}"#), ("logins", r#"{"aggregation":"count"}"#)];
    for (number, (slug, spec)) in (1u16..).zip(specs) {
        let spec: MeterSpec = serde_json::from_str(spec).expect("well-formed");
        let slug = MeterSlug::parse(slug).expect("valid");
        let meter = Meter::declare(slug, spec).expect("valid");
        catalog.insert(MeterNo(number), Arc::new(meter));
    }
    catalog
}

fn parse(json: &str) -> Result<Event, RefusedItem> {
    let item: Item<'_> = serde_json::from_str(json).expect("JSON");
    parse_event(&item, &catalog())
}

fn check_refused(json: &str, code: &str) {
    assert_eq!(parse(json).map(|e| e.id).map_err(|r| r.refusal.code), Err(code), "{json}");
}

const PLAIN: &str = r#"{"tenant":"acme","id":"e1","meter":"calls","quantity":"1","occurred_at":"2026-11-15T12:00:00Z"}"#;

#[test]
fn spellings_of_one_event_are_equal() {
    let plain = parse(PLAIN).expect("valid");
    for json in [
        r#"{"tenant":"acme","id":"e1","meter":"calls","quantity":1.0,"occurred_at":"2026-11-15T12:00:00+00:00"}"#,
        r#"{"quantity":1e0,"occurred_at":"2026-11-15T14:00:00+02:00","meter":"calls","id":"\u0065\u0031","tenant":"acme"}"#,
        r#"{"tenant":"acme","id":"e1","meter":"calls","quantity":"1","occurred_at":"2026-11-15T12:00:00Z","properties":{},"trial":false,"subscription":null}"#,
    ] {
        assert_eq!(parse(json), Ok(plain.clone()), "{json}");
    }
}

#[test]
fn quantity_may_be_left_out_where_events_are_counted() {
    let json =
        r#"{"tenant":"acme","id":"e1","meter":"logins","occurred_at":"2026-11-15T12:00:00Z"}"#;
    assert_eq!(parse(json).map(|e| e.quantity), Ok(Quantity::ONE));
}

#[test]
fn refusals() {
    for (from, to, code) in [
        (r#""tenant":"acme","#, "", "missing_field"),
        (r#""id":"e1","#, "", "missing_id"),
        (r#""meter":"calls","#, "", "missing_field"),
        (r#","quantity":"1""#, "", "missing_field"),
        (r#","occurred_at":"2026-11-15T12:00:00Z""#, "", "missing_field"),
        (r#""acme""#, "7", "not_a_string"),
        (r#""acme""#, r#""""#, "invalid_tenant"),
        (r#""acme""#, r#""a\u0000""#, "invalid_tenant"),
        (r#""e1""#, "null", "missing_field"),
        (r#""calls""#, r#""unknown""#, "unknown_meter"),
        (r#""1""#, r#""NaN""#, "quantity_not_a_number"),
        (r#""1""#, "true", "quantity_not_a_number"),
        (r#""1""#, "[1]", "quantity_not_a_number"),
        (r#""1""#, "-1", "quantity_negative"),
        ("12:00:00Z", "12:00:00", "invalid_timestamp"),
        (r#""1""#, r#""1","quanity":2"#, "unknown_field"),
        (r#""1""#, r#""1","quantity":"1""#, "duplicate_field"),
        (r#""1""#, r#""1","trial":1"#, "invalid_trial"),
        (r#""1""#, r#""1","properties":[]"#, "invalid_property"),
        (r#""1""#, r#""1","properties":{"a":{"b":1}}"#, "invalid_property"),
    ] {
        check_refused(&PLAIN.replacen(from, to, 1), code);
    }
    for json in ["1", "1.5", "-1", "\"a\"", "[]", "[1,{}]", "null", "true"] {
        check_refused(json, "not_an_object");
    }
}

#[test]
fn an_event_written_as_json_reads_back() {
    let json = PLAIN.replace(
        r#""quantity":"1""#,
        r#""quantity":"1","trial":true,"subscription":"s\"1","properties":{"b":1.50,"a":"x\ny"}"#,
    );
    let event = parse(&json).expect("valid");
    let slug = MeterSlug::parse("calls").expect("valid");
    assert_eq!(parse(&event.to_json(&slug)), Ok(event));
}

#[test]
fn a_refused_item_still_says_its_name() {
    let refused = parse(&PLAIN.replace("calls", "other")).expect_err("refused");
    assert_eq!((refused.tenant.as_deref(), refused.id.as_deref()), (Some("acme"), Some("e1")));
}

#[test]
fn a_correlation_id_gives_a_deterministic_id() {
    let json = PLAIN.replace(r#""id":"e1""#, r#""correlation_id":"req-1""#);
    let id = parse(&json).expect("valid").id;
    assert_eq!(id.as_str().len(), 64);
    assert_eq!(parse(&json.replace("12:00:00Z", "12:00:00.000+00:00")).expect("valid").id, id);
}

const CLOUD: &str = r#"{"specversion":"1.0","id":"e1","source":"/gateway","type":"calls","subject":"acme","time":"2026-11-15T12:00:00Z","datacontenttype":"application/json","data":{"quantity":"2.5","region":"eu"}}"#;

#[test]
fn cloud_events() {
    let event = parse(CLOUD).expect("valid");
    assert_eq!(event.id.as_str(), r#"["/gateway","e1"]"#);
    assert_eq!(event.tenant.as_str(), "acme");
    assert_eq!(event.quantity.to_string(), "2.5");
    assert_eq!(event.properties.as_text(), r#"{"region":"eu"}"#);
    check_refused(&CLOUD.replace("\"1.0\"", "\"0.3\""), "invalid_cloud_event");
    check_refused(&CLOUD.replace(r#""source":"/gateway","#, ""), "missing_field");
    check_refused(&CLOUD.replace(r#""subject":"acme","#, ""), "missing_field");
    check_refused(
        &CLOUD.replace(r#""quantity":"2.5""#, r#""quantity":"2.5","quantity":3"#),
        "duplicate_field",
    );
}

#[test]
fn cloud_events_carry_stamps_as_extensions() {
    let with = |stamps: &str| CLOUD.replace(r#""source""#, &format!(r#"{stamps},"source""#));
    let event = parse(&with(r#""subscription":"sub_1","trial":true"#)).expect("valid");
    assert_eq!(event.subscription.expect("stamped").as_str(), "sub_1");
    assert!(event.trial);
    let event = parse(&with(r#""trial":false"#)).expect("valid");
    assert_eq!((event.subscription, event.trial), (None, false));
    check_refused(&with(r#""trial":"yes""#), "invalid_trial");
    check_refused(&with(r#""subscription":1"#), "not_a_string");
}

#[test]
fn cloud_events_with_doubled_attributes_are_refused() {
    let double = |first: &str, second: &str| {
        check_refused(&CLOUD.replace(first, &format!("{first},{second}")), "duplicate_field");
    };
    double(r#""subject":"acme""#, r#""subject":"evil""#);
    double(r#""type":"calls""#, r#""type":"other""#);
    double(r#""source":"/gateway""#, r#""source":"/other""#);
    double(r#""id":"e1""#, r#""id":"e2""#);
    double(r#""specversion":"1.0""#, r#""specversion":"1.0""#);
    // After an extension attribute, which alone is allowed.
    double(r#""subject":"acme""#, r#""traceparent":"00-1","subject":"acme""#);
}

#[test]
fn cloud_event_ids_do_not_collide_over_the_border() {
    let one = CLOUD.replace("/gateway", "a").replace("\"e1\"", r#""b\",\"c""#);
    let two = CLOUD.replace("/gateway", r#"a\",\"b"#).replace("\"e1\"", r#""c""#);
    assert_ne!(parse(&one).expect("valid").id, parse(&two).expect("valid").id);
}

proptest! {
    #[test]
    fn any_object_is_read_or_refused(json in r#"\{("(tenant|id|meter|quantity|occurred_at|properties|x)":("\PC{0,4}"|[0-9]{1,3}|null|\{\}),?){0,8}"#) {
        let json = format!("{}}}", json.trim_end_matches(','));
        if let Ok(item) = serde_json::from_str::<Item<'_>>(&json) {
            let _ = parse_event(&item, &catalog());
        }
    }
}
