//! Meters and tenants.

use crate::fixture::{Fixture, tenant_id};
use counterfoil::rules::ids::MeterSlug;
use counterfoil::rules::meter::{Meter, MeterSpec};
use counterfoil::store::Declaration;

fn meter(slug: &str, spec: &str) -> Meter {
    let spec: MeterSpec = serde_json::from_str(spec).unwrap();
    Meter::declare(MeterSlug::parse(slug).unwrap(), spec).unwrap()
}

pub async fn meters_are_declared_once(mut f: Fixture) {
    let first = meter("new", r#"{"aggregation":"sum","dimensions":["a"]}"#);
    let declare = |m: &Meter| f.store.declare_meter(m.clone(), f.now);
    assert_eq!(declare(&first).await.unwrap(), Declaration::Created);
    assert_eq!(declare(&first).await.unwrap(), Declaration::Updated);
    let described = meter("new", r#"{"aggregation":"sum","dimensions":["a"],"description":"x"}"#);
    assert_eq!(declare(&described).await.unwrap(), Declaration::Updated);
    let other = meter("new", r#"{"aggregation":"max","dimensions":["a"]}"#);
    assert_eq!(declare(&other).await.unwrap(), Declaration::Refused(described.clone()));
    f.restart().await;
    let catalog = f.catalog().await;
    assert_eq!(*catalog.find("new").unwrap().1.as_ref(), described);
    assert!(catalog.find("unknown").is_none());
}

pub async fn tenants_are_created_and_renamed(mut f: Fixture) {
    for name in ["b", "a", "c"] {
        f.store.put_tenant(&tenant_id(name), None, f.now).await.unwrap();
    }
    f.deliver_one(&crate::fixture::call("e1", "1")).await;
    let renamed = f.store.put_tenant(&tenant_id("b"), Some("Bee"), f.now).await.unwrap();
    assert_eq!(renamed.name.as_deref(), Some("Bee"));
    f.restart().await;
    let ids = |tenants: Vec<counterfoil::store::Tenant>| {
        tenants.into_iter().map(|t| t.id.to_string()).collect::<Vec<_>>()
    };
    let all = f.store.list_tenants(None, 10).await.unwrap();
    assert_eq!(ids(all), ["a", "acme", "b", "c"]);
    let page = f.store.list_tenants(Some(&tenant_id("acme")), 1).await.unwrap();
    assert_eq!(ids(page), ["b"]);
    let found = f.store.find_tenant(&tenant_id("b")).await.unwrap().unwrap();
    assert_eq!(found.name.as_deref(), Some("Bee"));
    assert_eq!(f.store.find_tenant(&tenant_id("nobody")).await.unwrap(), None);
}
