//! What a newcomer tries in the first hour: partial declarations, misspelt names, wrong fields.

use crate::world::{Ground, NOW, Server, each, event};

pub async fn scale_alone_or_precision_alone_is_enough(ground: Ground) {
    let server = Server::start(ground).await;
    for (slug, spec, scale, precision) in [
        ("whole", r#"{"aggregation":"count","scale":0}"#, 0, 12),
        ("cents", r#"{"aggregation":"sum","scale":2}"#, 2, 14),
        ("small", r#"{"aggregation":"sum","precision":5}"#, 0, 5),
        ("large", r#"{"aggregation":"sum","precision":27}"#, 12, 27),
        ("plain", r#"{"aggregation":"sum"}"#, 6, 18),
    ] {
        let meter = server.put(&format!("/v1/meters/{slug}"), spec).await.ok(201);
        assert_eq!((&meter["scale"], &meter["precision"]), (&scale.into(), &precision.into()));
    }
}

pub async fn a_declaration_keeps_what_it_leaves_out(ground: Ground) {
    let server = Server::start(ground).await;
    let first = r#"{"aggregation":"sum","scale":2,"settle_after":"1m","cut_every":"10s",
                    "description":"calls"}"#;
    assert_eq!(server.put("/v1/meters/m", first).await.status, 201);
    let meter = server.put("/v1/meters/m", r#"{"late_until":"2h"}"#).await.ok(200);
    assert_eq!((&meter["settle_after"], &meter["cut_every"]), (&"1m".into(), &"10s".into()));
    assert_eq!((&meter["late_until"], &meter["description"]), (&"2h".into(), &"calls".into()));
    let cleared = r#"{"description":null,"settle_after":null}"#;
    let third = server.put("/v1/meters/m", cleared).await.json();
    assert_eq!(third["settle_after"], "1h");
    assert!(third.get("description").is_none());
    server.put("/v1/meters/new", "{}").await.problem(422, "invalid_body");
    for digits in [r#"{"scale":3}"#, r#"{"scale":0}"#, r#"{"precision":4}"#] {
        server.put("/v1/meters/m", digits).await.problem(409, "meter_differs");
    }
}

pub async fn an_archived_meter_refuses_events_until_it_is_reopened(ground: Ground) {
    let server = Server::start(ground).await;
    assert_eq!(server.post(&event("acme", "e1", "1", NOW)).await.status, 200);
    let archived = server.put("/v1/meters/calls", r#"{"archived":true}"#).await;
    assert_eq!(archived.json()["archived"], true, "{}", archived.body);
    server.post(&event("acme", "e2", "1", NOW)).await.problem(422, "meter_archived");
    let usage = server.get("/v1/usage?tenant=acme&meter=calls").await;
    assert_eq!(usage.json()["total"], "1");
    assert_eq!(server.put("/v1/meters/calls", r#"{"archived":false}"#).await.status, 200);
    assert_eq!(server.post(&event("acme", "e2", "1", NOW)).await.status, 200);
}

pub async fn a_tenant_keeps_what_is_left_out_and_null_removes(ground: Ground) {
    let server = Server::start(ground).await;
    let put = async |body: &str| server.put("/v1/tenants/acme", body).await.json();
    put(r#"{"name":"Acme Inc."}"#).await;
    let mapped = put(r#"{"customer":"cus_1"}"#).await;
    assert_eq!((&mapped["name"], &mapped["customer"]), (&"Acme Inc.".into(), &"cus_1".into()));
    let unmapped = put(r#"{"customer":null}"#).await;
    assert_eq!(unmapped["name"], "Acme Inc.");
    assert!(unmapped["customer"].is_null());
    assert!(put(r#"{"name":null}"#).await["name"].is_null());
}

pub async fn unknown_tenants_are_said_to_be_unknown(ground: Ground) {
    let server = Server::start(ground).await;
    server.post(&event("acme", "e1", "1", NOW)).await;
    let known = async |path: &str| server.get(path).await.json()["known"].clone();
    assert_eq!(known("/v1/usage?tenant=acme&meter=calls").await, true);
    assert_eq!(known("/v1/usage?tenant=acmee&meter=calls").await, false);
    assert_eq!(known("/v1/tenants/acme/entitlements/calls").await, true);
    assert_eq!(known("/v1/tenants/acmee/entitlements/calls").await, false);
}

pub async fn blanks_around_a_tenant_are_refused(ground: Ground) {
    let server = Server::start(ground).await;
    server.post(&event("acme ", "e1", "1", NOW)).await.problem(422, "invalid_tenant");
    server.post(&event(" acme", "e1", "1", NOW)).await.problem(422, "invalid_tenant");
    server.put("/v1/tenants/acme%20", "{}").await.problem(400, "invalid_tenant");
    assert_eq!(server.get("/v1/tenants").await.json()["tenants"], serde_json::json!([]));
}

pub async fn refusals_name_the_field_and_the_fix(ground: Ground) {
    let server = Server::start(ground).await;
    let detail = async |body: &str| {
        let answer = server.post(body).await.json();
        let of_item = answer["results"][0]["detail"].as_str().map(str::to_owned);
        of_item.unwrap_or_else(|| answer["detail"].to_string())
    };
    let wrapped = format!(r#"{{"events":[{}]}}"#, event("acme", "e1", "1", NOW));
    assert!(detail(&wrapped).await.contains("send the array itself"));
    let misspelt = event("acme", "e1", "1", NOW).replace("occurred_at", "timestamp");
    assert!(detail(&misspelt).await.contains("its fields are tenant, id"));
    let unix = r#"{"tenant":"a","id":"e","meter":"calls","quantity":1,"occurred_at":1794744000}"#;
    assert!(detail(unix).await.contains("such as \"2026-"));
    let negative = detail(&event("acme", "e1", "-1", NOW)).await;
    assert!(negative.contains("signed") && !negative.contains("correction"), "{negative}");
    let quote = r#"{"currency":"eur","jurisdiction":"de","prices":"exclusive","cycle":"soon",
                    "lines":[{"id":"a","amount":"1"}]}"#;
    server.post_to("/v1/tenants/acme/quotes", quote).await.ok(400);
    let billed = r#"{"aggregation":"sum","billing":{"from":"soon"}}"#;
    let answer = server.put("/v1/meters/billed", billed).await;
    assert!(!answer.body.contains("occurred_at"), "{}", answer.body);
}

pub async fn usage_of_all_tenants_is_one_list(ground: Ground) {
    let server = Server::start(ground).await;
    for (tenant, id, quantity) in [("acme", "a", "0.1"), ("acme", "b", "0.2"), ("best", "a", "5")] {
        server.post(&event(tenant, id, quantity, NOW)).await;
    }
    server.put("/v1/tenants/idle", "{}").await;
    let key = server.key("read", None).await;
    let get = async |query: &str| server.get_as(&key, &format!("/v1/usage/totals{query}")).await;
    let all = get("").await;
    let rows = all.rows("totals");
    assert_eq!(each(&rows, "tenant"), ["acme", "best"]);
    assert_eq!(each(&rows, "total"), ["0.3", "5"]);
    assert!(all.json()["next_after"].is_null());
    let first = get("?limit=1&from=2026-11-01&to=2026-12-01").await.json();
    assert_eq!(first["next_after"], "acme");
    let second = get("?limit=1&after=acme").await.json();
    assert_eq!(second["totals"][0]["tenant"], "best");
    get("?limit=101").await.problem(400, "invalid_limit");
}
