//! Totals.

use crate::fixture::{Fixture, between, call, event, tenant_id};
use counterfoil::rules::meter::Aggregation;
use counterfoil::rules::rollup::GroupParts;
use counterfoil::rules::usage::UsageShape;
use counterfoil::rules::verdict::Verdict;
use counterfoil::rules::window::Window;
use counterfoil::store::Error;

pub async fn all_aggregations_are_exact(mut f: Fixture) {
    let at = |n: usize| format!("2026-11-15T{:02}:{:02}:00Z", 8 + n % 3, n % 60);
    let mut batch = Vec::new();
    for n in 0..90usize {
        let properties = format!(r#"{{"user":"u{}"}}"#, n % 7);
        let signed = format!("{}.5", n as i64 - 45);
        for (meter, quantity) in [
            ("calls", "0.1"),
            ("logins", "1"),
            ("lowest", &signed),
            ("highest", &signed),
            ("users", "1"),
        ] {
            batch.push(event("acme", &format!("{meter}{n}"), meter, quantity, &at(n), &properties));
        }
        batch.push(event("acme", &format!("seats{n}"), "seats", &n.to_string(), &at(n), "{}"));
    }
    for part in batch.chunks(37) {
        assert!(f.deliver(part).await.iter().all(|v| *v == Verdict::Accepted));
    }
    for _ in 0..2 {
        assert_eq!(f.total("acme", "calls").await, "9");
        assert_eq!(f.total("acme", "logins").await, "90");
        assert_eq!(f.total("acme", "lowest").await, "-45.5");
        assert_eq!(f.total("acme", "highest").await, "44.5");
        // The latest is at 10:59, which only n = 59 has.
        assert_eq!(f.total("acme", "seats").await, "59");
        assert_eq!(f.total("acme", "users").await, "7");
        assert_eq!(f.usage("acme", "users").await.count, 90);
        f.check().await;
        f.restart().await;
    }
}

pub async fn totals_are_visible_at_once(f: Fixture) {
    for n in 1..=100u32 {
        f.deliver_one(&call(&format!("e{n}"), "1")).await;
        assert_eq!(f.total("acme", "calls").await, n.to_string());
    }
}

pub async fn dimensions_and_stamps_are_kept_apart(mut f: Fixture) {
    let traffic = |id: &str, properties: &str| {
        event("acme", id, "traffic", "1", "2026-11-15T11:00:00Z", properties)
    };
    let stamped = traffic("e4", r#"{"region":"eu"}"#)
        .replace(r#""properties""#, r#""subscription":"sub_1","trial":true,"properties""#);
    let batch = [
        traffic("e1", r#"{"region":"eu","tier":"gold","other":"x"}"#),
        traffic("e2", r#"{"region":"eu","tier":"gold","other":"y"}"#),
        traffic("e3", r#"{"region":"us"}"#),
        stamped,
    ];
    f.deliver(&batch).await;
    f.restart().await;
    let range = between("2026-11-15T11:00:00Z", "2026-11-15T12:00:00Z");
    let meter = f.meter_no("traffic").await;
    let rows = f.store.read_usage(&tenant_id("acme"), meter, range, usize::MAX).await.unwrap();
    let mut found: Vec<(GroupParts, String)> = rows
        .iter()
        .map(|row| (row.group.parts().unwrap(), row.rollup.answer().unwrap().to_string()))
        .collect();
    found.sort_by_key(|(parts, value)| (parts.trial, parts.dimensions.clone(), value.clone()));
    let parts = |subscription: Option<&str>, trial, dimensions: [Option<&str>; 2]| GroupParts {
        subscription: subscription.map(str::to_owned),
        trial,
        dimensions: dimensions.map(|d| d.map(str::to_owned)).to_vec(),
    };
    let expected = [
        (parts(None, false, [Some("eu"), Some("gold")]), "2".to_owned()),
        (parts(None, false, [Some("us"), None]), "1".to_owned()),
        (parts(Some("sub_1"), true, [Some("eu"), None]), "1".to_owned()),
    ];
    assert_eq!(found, expected);
    f.check().await;
}

pub async fn buckets_are_half_open(f: Fixture) {
    for (id, at) in [
        ("before", "2026-11-15T09:59:59.999999Z"),
        ("start", "2026-11-15T10:00:00Z"),
        ("end", "2026-11-15T10:59:59.999999Z"),
        ("after", "2026-11-15T11:00:00Z"),
    ] {
        f.deliver_one(&event("acme", id, "calls", "1", at, "{}")).await;
    }
    let range = between("2026-11-15T10:00:00Z", "2026-11-15T11:00:00Z");
    let meter = f.meter_no("calls").await;
    let rows = f.store.read_usage(&tenant_id("acme"), meter, range, usize::MAX).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.rollup.count).sum::<u64>(), 2);
}

pub async fn a_million_tenths(f: Fixture) {
    // A thousand events of a thousand tenths: the same sum without a million deliveries.
    let batch: Vec<String> = (0..1_000).map(|n| call(&format!("e{n}"), "\"0.1\"")).collect();
    for part in batch.chunks(250) {
        f.deliver(part).await;
    }
    assert_eq!(f.total("acme", "calls").await, "100");
    let (largest, at) = ("\"999999999999999.999999999999\"", "2026-11-15T11:00:00Z");
    let large = |n| event("big", &format!("e{n}"), "wide", largest, at, "{}");
    f.deliver(&(0..100).map(large).collect::<Vec<_>>()).await;
    assert_eq!(f.total("big", "wide").await, "99999999999999999.9999999999");
    f.check().await;
}

pub async fn unknown_tenants_have_no_usage(f: Fixture) {
    assert_eq!(f.total("nobody", "calls").await, "0");
}

pub async fn a_query_of_too_many_totals_is_refused(mut f: Fixture) {
    let of = |meter: &str, name: &str, n: u32| {
        let properties = format!(r#"{{"{name}":"{name}-{n}"}}"#);
        event("acme", &format!("{meter}{n}"), meter, "1", "2026-11-15T11:00:00Z", &properties)
    };
    f.deliver(&(0..100).map(|n| of("traffic", "region", n)).collect::<Vec<_>>()).await;
    f.deliver(&(0..99).map(|n| of("users", "user", n)).collect::<Vec<_>>()).await;
    let range = between("2026-11-15T00:00:00Z", "2026-11-16T00:00:00Z");
    let acme = tenant_id("acme");
    for _ in 0..2 {
        for (meter, aggregation, total) in
            [("traffic", Aggregation::Sum, "100"), ("users", Aggregation::Unique, "99")]
        {
            let meter = f.meter_no(meter).await;
            let (windows, group_by) = (vec![range], Vec::new());
            let mut shape = UsageShape { windows, group_by, aggregation, rows_max: 50 };
            let refused = f.store.compose_usage(&acme, meter, range, shape.clone()).await;
            assert!(matches!(refused, Err(Error::TooLarge { .. })), "{refused:?}");
            // A total that is not folded yet comes in several rows.
            shape.rows_max = 200;
            let usage = f.store.compose_usage(&acme, meter, range, shape).await.unwrap();
            assert_eq!(usage.total.to_string(), total);
        }
        f.restart().await;
    }
}

pub async fn unique_values_of_windows_and_of_all_of_them(mut f: Fixture) {
    let login = |id: &str, user: &str, hour: u32| {
        let at = format!("2026-11-15T{hour:02}:30:00Z");
        event("acme", id, "users", "1", &at, &format!(r#"{{"user":"{user}"}}"#))
    };
    let batch =
        [("1", "ann", 9), ("2", "bob", 9), ("3", "ann", 10), ("4", "ann", 10), ("5", "eve", 11)];
    f.deliver(&batch.map(|(id, user, hour)| login(id, user, hour))).await;
    let at = |hour: u32| format!("2026-11-15T{hour:02}:00:00Z");
    let windows: Vec<Window> = (9..12).map(|hour| between(&at(hour), &at(hour + 1))).collect();
    let range = between(&at(9), &at(12));
    let meter = f.meter_no("users").await;
    for _ in 0..2 {
        let shape = UsageShape {
            windows: windows.clone(),
            group_by: Vec::new(),
            aggregation: Aggregation::Unique,
            rows_max: 100,
        };
        let usage = f.store.compose_usage(&tenant_id("acme"), meter, range, shape).await.unwrap();
        let values: Vec<String> = usage.windows.iter().map(|w| w.value.to_string()).collect();
        assert_eq!(values, ["2", "1", "1"]);
        assert_eq!((usage.total.to_string().as_str(), usage.count), ("3", 5));
        f.restart().await;
    }
}

/// More values in one bucket than one step of folding adds.
pub async fn many_unique_values_of_a_bucket_count_exactly(mut f: Fixture) {
    let login = |n: u32| {
        let properties = format!(r#"{{"user":"u{}"}}"#, n % 200);
        event("acme", &format!("e{n}"), "users", "1", "2026-11-15T11:00:00Z", &properties)
    };
    for first in [0, 90, 180, 270] {
        f.deliver(&(first..first + 90).map(login).collect::<Vec<_>>()).await;
        let expected = (first + 90).min(200).to_string();
        assert_eq!(f.total("acme", "users").await, expected);
        f.restart().await;
        assert_eq!(f.total("acme", "users").await, expected);
        assert_eq!(f.usage("acme", "users").await.count, u64::from(first + 90));
        f.check().await;
    }
}
