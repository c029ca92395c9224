//! Meters and tenants.

use crate::fixture::{Fixture, tenant_id};
use counterfoil::rules::ids::{CustomerId, MeterSlug};
use counterfoil::rules::meter::{Meter, MeterSpec};
use counterfoil::store::{Declaration, Query, TenantFields, TenantPut};

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

pub async fn an_event_name_is_of_one_meter(f: Fixture) {
    let declare = |meter| f.store.declare_meter(meter, f.now);
    let billed = |slug: &str, name: &str| {
        meter(slug, &format!(r#"{{"aggregation":"sum","billing":{{"event_name":"{name}"}}}}"#))
    };
    assert_eq!(declare(billed("one", "told")).await.unwrap(), Declaration::Created);
    assert_eq!(declare(billed("one", "told")).await.unwrap(), Declaration::Updated);
    let taken = Declaration::EventNameTaken(MeterSlug::parse("one").unwrap());
    assert_eq!(declare(billed("two", "told")).await.unwrap(), taken);
    let by_slug = meter("told", r#"{"aggregation":"sum","billing":{}}"#);
    assert_eq!(declare(by_slug).await.unwrap(), taken);
    assert_eq!(declare(billed("two", "other")).await.unwrap(), Declaration::Created);
    assert!(f.catalog().await.find("told").is_none());
}

pub async fn tenants_are_created_and_renamed(mut f: Fixture) {
    for name in ["b", "a", "c"] {
        f.store.put_tenant(&tenant_id(name), TenantFields::default(), f.now).await.unwrap();
    }
    f.deliver_one(&crate::fixture::call("e1", "1")).await;
    let fields = |name: &str, customer: Option<&str>| TenantFields {
        name: Some(name.into()),
        customer: customer.map(|id| CustomerId::parse(id).unwrap()),
        unmap: false,
    };
    let put =
        async |id: &str, fields| f.store.put_tenant(&tenant_id(id), fields, f.now).await.unwrap();
    let TenantPut::Stored(renamed) = put("b", fields("Bea", Some("cus_b"))).await else {
        panic!("the customer is free")
    };
    assert_eq!(renamed.customer.as_ref().map(CustomerId::as_str), Some("cus_b"));
    let taken = put("a", fields("A", Some("cus_b"))).await;
    assert_eq!(taken, TenantPut::CustomerTaken(tenant_id("b")));
    assert!(matches!(put("b", fields("Bee", None)).await, TenantPut::Stored(_)));
    f.restart().await;
    let ids = |tenants: Vec<counterfoil::store::Tenant>| {
        tenants.into_iter().map(|t| t.id.to_string()).collect::<Vec<_>>()
    };
    let all = f.store.list_tenants(Query::first((), 10)).await.unwrap();
    assert_eq!(ids(all), ["a", "acme", "b", "c"]);
    let query = Query { filter: (), after: Some(tenant_id("acme")), limit: 1 };
    let page = f.store.list_tenants(query).await.unwrap();
    assert_eq!(ids(page), ["b"]);
    let found = f.store.find_tenant(&tenant_id("b")).await.unwrap().unwrap();
    assert_eq!(found.name.as_deref(), Some("Bee"));
    assert_eq!(found.customer.as_ref().map(CustomerId::as_str), Some("cus_b"));
    assert_eq!(f.store.find_tenant(&tenant_id("nobody")).await.unwrap(), None);
}

pub async fn fields_of_a_tenant_stay_unless_they_are_given(f: Fixture) {
    let put = async |fields| {
        let put = f.store.put_tenant(&tenant_id("b"), fields, f.now).await.unwrap();
        let TenantPut::Stored(tenant) = put else { panic!("the customer is free") };
        (tenant.name, tenant.customer.map(|customer| customer.to_string()))
    };
    let fields = TenantFields::default;
    let customer = Some(CustomerId::parse("cus_b").unwrap());
    let named = TenantFields { name: Some("Bea".into()), ..fields() };
    assert_eq!(put(named).await, (Some("Bea".into()), None));
    let mapped = (Some("Bea".into()), Some("cus_b".into()));
    assert_eq!(put(TenantFields { customer, ..fields() }).await, mapped);
    assert_eq!(put(fields()).await, mapped);
    let unmapped = (Some("Bea".into()), None);
    assert_eq!(put(TenantFields { unmap: true, ..fields() }).await, unmapped);
    assert_eq!(put(TenantFields { unmap: true, ..fields() }).await, unmapped);
    assert_eq!(put(TenantFields { name: Some(String::new()), ..fields() }).await, (None, None));
}
