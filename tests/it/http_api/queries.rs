//! Usage, events, inboxes, counters, meters and tenants.

use crate::world::{Ground, NOW, Server, each, event};
use serde_json::Value;

fn in_region(id: &str, quantity: &str, region: &str, at: &str) -> String {
    event("acme", id, quantity, at)
        .replace(r#""quantity""#, &format!(r#""properties":{{"region":"{region}"}},"quantity""#))
}

pub async fn usage_of_the_current_month_by_default(ground: Ground) {
    let server = Server::start(ground).await;
    server.post(&event("acme", "e1", "0.1", NOW)).await;
    server.post(&event("acme", "e2", "0.2", "2026-11-14T23:30:00Z")).await;
    let usage = server.get("/v1/usage?tenant=acme&meter=calls").await;
    insta::assert_snapshot!(usage.show(), @r#"200 {"tenant":"acme","meter":"calls","from":"2026-11-01T00:00:00Z","to":"2026-12-01T00:00:00Z","total":"0.3","count":2,"known":true,"windows":[{"start":"2026-11-01T00:00:00Z","end":"2026-12-01T00:00:00Z","value":"0.3","count":2,"state":"open"}]}"#);
    let unknown = server.get("/v1/usage?tenant=nobody&meter=calls").await;
    assert_eq!(unknown.json()["total"], "0");
}

pub async fn days_begin_where_the_zone_says(ground: Ground) {
    let server = Server::start(ground).await;
    server.post(&event("acme", "e1", "1", "2026-11-13T22:30:00Z")).await;
    server.post(&event("acme", "e2", "2", "2026-11-13T23:30:00Z")).await;
    let usage = server
        .get("/v1/usage?tenant=acme&meter=calls&from=2026-11-13&to=2026-11-15&window=day&tz=Europe/Paris")
        .await;
    insta::assert_snapshot!(usage.show(), @r#"200 {"tenant":"acme","meter":"calls","from":"2026-11-12T23:00:00Z","to":"2026-11-14T23:00:00Z","total":"3","count":2,"known":true,"windows":[{"start":"2026-11-12T23:00:00Z","end":"2026-11-13T23:00:00Z","value":"1","count":1,"state":"final"},{"start":"2026-11-13T23:00:00Z","end":"2026-11-14T23:00:00Z","value":"2","count":1,"state":"final"}]}"#);
    let half = "/v1/usage?tenant=acme&meter=calls&from=2026-11-13&to=2026-11-15&tz=Asia/Kolkata";
    server.get(half).await.problem(400, "window_not_exact");
}

pub async fn the_day_summer_time_ends_has_25_hours(ground: Ground) {
    let server = Server::start(ground).await;
    let usage = server
        .get("/v1/usage?tenant=acme&meter=calls&from=2026-10-25&to=2026-10-26&window=hour&tz=Europe/Paris")
        .await;
    assert_eq!(usage.rows("windows").len(), 25);
    assert_eq!(usage.json()["from"], "2026-10-24T22:00:00Z");
    assert_eq!(usage.json()["to"], "2026-10-25T23:00:00Z");
}

pub async fn usage_by_dimension(ground: Ground) {
    let server = Server::start(ground).await;
    server.post(&in_region("e1", "1", "eu", NOW)).await;
    server.post(&in_region("e2", "2", "us", NOW)).await;
    server.post(&event("acme", "e3", "4", NOW)).await;
    let usage = server.get("/v1/usage?tenant=acme&meter=calls&group_by=region,trial").await.json();
    insta::assert_snapshot!(usage["windows"], @r#"[{"count":1,"end":"2026-12-01T00:00:00Z","group":{"region":null,"trial":"false"},"start":"2026-11-01T00:00:00Z","state":"open","value":"4"},{"count":1,"end":"2026-12-01T00:00:00Z","group":{"region":"eu","trial":"false"},"start":"2026-11-01T00:00:00Z","state":"open","value":"1"},{"count":1,"end":"2026-12-01T00:00:00Z","group":{"region":"us","trial":"false"},"start":"2026-11-01T00:00:00Z","state":"open","value":"2"}]"#);
    assert_eq!(usage["total"], "7");
    for (query, code) in [
        ("group_by=tier", "unknown_dimension"),
        ("group_by=", "unknown_dimension"),
        ("group_by=trial,trial", "duplicate_dimension"),
        ("tz=Mars/Olympus", "unknown_zone"),
        ("tz=../../etc/passwd", "unknown_zone"),
        ("window=year", "invalid_query"),
        ("from=2026-11-01", "invalid_range"),
        ("from=2026-11-02&to=2026-11-01", "invalid_range"),
        ("from=yesterday&to=today", "invalid_range"),
        ("from=2000-01-01&to=2026-01-01&window=hour", "too_many_windows"),
        ("tenent=x", "invalid_query"),
        ("tenant=x", "invalid_query"),
    ] {
        let path = format!("/v1/usage?tenant=acme&meter=calls&{query}");
        server.get(&path).await.problem(400, code);
    }
    server.get("/v1/usage?meter=calls").await.problem(400, "invalid_query");
    server.get("/v1/usage?tenant=&meter=calls").await.problem(400, "invalid_tenant");
    server.get("/v1/usage?tenant=acme&meter=none").await.problem(404, "unknown_meter");
}

pub async fn the_smallest_of_nothing_is_nothing(ground: Ground) {
    let server = Server::start(ground).await;
    server.put("/v1/meters/low", r#"{"aggregation":"min"}"#).await;
    let usage = server.get("/v1/usage?tenant=acme&meter=low&window=day").await.json();
    assert_eq!(usage["total"], Value::Null);
    assert_eq!(usage["windows"], serde_json::json!([]));
}

pub async fn events_page_by_page_newest_first(ground: Ground) {
    let server = Server::start(ground).await;
    for n in 0..7 {
        // Two events of each instant, so that pages end between equals.
        let at = format!("2026-11-15T11:0{}:00Z", n / 2);
        assert_eq!(server.post(&event("acme", &format!("é{n}"), "1", &at)).await.status, 200);
    }
    let mut ids = Vec::new();
    let mut path = "/v1/events?tenant=acme&limit=3".to_owned();
    loop {
        let page = server.get(&path).await.json();
        let events = page["events"].as_array().unwrap();
        ids.extend(events.iter().map(|e| e["event"]["id"].as_str().unwrap().to_owned()));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        path = format!("/v1/events?tenant=acme&limit=3&cursor={cursor}");
    }
    assert_eq!(ids, ["é6", "é5", "é4", "é3", "é2", "é1", "é0"]);
    let range =
        "/v1/events?tenant=acme&from=2026-11-15T11:01:00Z&to=2026-11-15T11:02:00Z&meter=calls";
    assert_eq!(server.get(range).await.rows("events").len(), 2);
    let one = server.get("/v1/events?tenant=acme&from=2026-11-15T11:03:00Z").await;
    insta::assert_snapshot!(one.show(), @r#"200 {"events":[{"event":{"tenant":"acme","id":"é6","meter":"calls","quantity":"1","occurred_at":"2026-11-15T11:03:00Z","properties":{}},"received_at":"2026-11-15T12:00:00Z"}],"next_cursor":null}"#);
    for (query, status, code) in [
        ("tenant=acme&limit=0", 400, "invalid_limit"),
        ("tenant=acme&limit=1001", 400, "invalid_limit"),
        ("tenant=acme&limit=-1", 400, "invalid_query"),
        ("tenant=acme&cursor=xyz", 400, "invalid_cursor"),
        ("tenant=acme&meter=none", 404, "unknown_meter"),
        ("tenant=%ff", 400, "invalid_query"),
        ("limit=1", 400, "invalid_query"),
    ] {
        server.get(&format!("/v1/events?{query}")).await.problem(status, code);
    }
}

pub async fn the_trace_says_what_became_of_an_event(ground: Ground) {
    let server = Server::start(ground).await;
    server.post(&event("acme", "a/b c", "1", NOW)).await;
    for quantity in ["2", "3", "3"] {
        server.post(&event("acme", "a/b c", quantity, NOW)).await;
    }
    let trace = server.get("/v1/events/acme/a%2Fb%20c").await.json();
    insta::assert_snapshot!(trace["summary"], @r#""counted once, received at 2026-11-15T12:00:00Z; 2 other payloads came under this id and were not counted""#);
    assert_eq!(trace["conflicts"][1]["deliveries"], 2);
    assert_eq!(trace["conflicts"][1]["received"]["quantity"], "3");
    assert_eq!(trace["conflicts"][1]["counted"]["quantity"], "1");
    server.post(&event("acme", "old", "1", "2026-01-01T00:00:00Z")).await;
    let trace = server.get("/v1/events/acme/old").await.json();
    insta::assert_snapshot!(trace["summary"], @r#""not counted; quarantined as too_old since 2026-11-15T12:00:00Z""#);
    assert_eq!(trace["counted"], Value::Null);
    server.get("/v1/events/acme/none").await.problem(404, "unknown_event");
    server.get("/v1/events/acme/a%0ab").await.problem(400, "invalid_id");
    server.get("/v1/events/acme/%ff").await.problem(400, "invalid_path");
}

pub async fn inboxes_page_by_page_and_counters_that_add_up(ground: Ground) {
    let server = Server::start(ground).await;
    server.post(&event("acme", "e", "1", NOW)).await;
    for n in 2..5 {
        server.post(&event("acme", "e", &n.to_string(), NOW)).await;
        server.post(&event("acme", &format!("q{n}"), "1", "2026-01-01T00:00:00Z")).await;
    }
    server.post("{}").await.problem(422, "missing_field");
    for (path, name) in [("/v1/conflicts", "conflicts"), ("/v1/quarantine", "quarantined")] {
        let first = server.get(&format!("{path}?limit=2&tenant=acme")).await;
        assert_eq!(first.rows(name).len(), 2);
        let after = first.json()["next_after"].as_u64().unwrap();
        let last = server.get(&format!("{path}?limit=2&after={after}")).await;
        assert_eq!((last.rows(name).len(), &last.json()["next_after"]), (1, &Value::Null));
        let other = server.get(&format!("{path}?tenant=other")).await;
        assert_eq!(other.rows(name).len(), 0);
    }
    let beyond = server.get("/v1/conflicts?after=9007199254740992").await;
    beyond.problem(400, "invalid_after");
    let counters = server.get("/v1/counters").await;
    insta::assert_snapshot!(counters.show(), @r#"200 {"counters":[{"tenant":null,"hour":"2026-11-15T12:00:00Z","received":1,"accepted":0,"duplicates":0,"conflicts":0,"quarantined":0,"rejected":1,"admitted":0},{"tenant":"acme","hour":"2026-11-15T12:00:00Z","received":7,"accepted":1,"duplicates":0,"conflicts":3,"quarantined":3,"rejected":0,"admitted":0}],"next_after":null}"#);
    let before = server.get("/v1/counters?from=2026-11-14&to=2026-11-15").await.json();
    assert_eq!(before["counters"], serde_json::json!([]));
    let long = server.get("/v1/counters?from=2026-01-01&to=2026-11-15").await;
    long.problem(400, "invalid_range");
}

pub async fn meters(ground: Ground) {
    let server = Server::start(ground).await;
    let spec = r#"{"aggregation":"unique","unique_property":"user","bucket":"15m"}"#;
    let made = server.put("/v1/meters/users", spec).await;
    insta::assert_snapshot!(made.show(), @r#"201 {"slug":"users","aggregation":"unique","scale":6,"precision":18,"signed":false,"bucket":"15m","dimensions":[],"unique_property":"user","settle_after":"1h","late_until":"4h","cut_every":"10m"}"#);
    let described = spec.replace('}', r#","description":"people"}"#);
    assert_eq!(server.put("/v1/meters/users", &described).await.status, 200);
    assert_eq!(server.get("/v1/meters/users").await.json()["description"], "people");
    let other = server.put("/v1/meters/users", r#"{"aggregation":"sum"}"#).await;
    let problem = other.problem(409, "meter_differs");
    assert_eq!(problem["existing"]["aggregation"], "unique");
    assert_eq!(server.get("/v1/meters").await.rows("meters").len(), 2);
    server.get("/v1/meters/none").await.problem(404, "unknown_meter");
    server.get("/v1/meters/Bad").await.problem(400, "invalid_meter");
    for (spec, status, code) in [
        (r#"{"aggregation":"sum","scale":13}"#, 422, "invalid_meter_definition"),
        (r#"{"aggregation":"median"}"#, 422, "invalid_body"),
        (r#"{"aggregation":"sum","scael":1}"#, 422, "invalid_body"),
        ("[]", 422, "invalid_body"),
        (r#"["sum",6,18,false,"1h",[],null,null]"#, 422, "invalid_body"),
        ("{", 400, "invalid_json"),
    ] {
        server.put("/v1/meters/m", spec).await.problem(status, code);
    }
}

pub async fn tenants(ground: Ground) {
    let server = Server::start(ground).await;
    for id in ["c", "a", "b%2F1"] {
        let answer = server.put(&format!("/v1/tenants/{id}"), r#"{"name":"N"}"#).await;
        assert_eq!(answer.status, 200);
    }
    let one = server.get("/v1/tenants/b%2F1").await;
    insta::assert_snapshot!(one.show(), @r#"200 {"id":"b/1","name":"N","customer":null,"created_at":"2026-11-15T12:00:00Z"}"#);
    let first = server.get("/v1/tenants?limit=2").await.json();
    assert_eq!(first["tenants"][0]["id"], "a");
    assert_eq!(first["next_after"], "b/1");
    let last = server.get("/v1/tenants?limit=2&after=b/1").await.json();
    assert_eq!((&last["tenants"][0]["id"], &last["next_after"]), (&"c".into(), &Value::Null));
    server.get("/v1/tenants/none").await.problem(404, "unknown_tenant");
    server.put("/v1/tenants/a", r#"{"name":"a\nb"}"#).await.problem(422, "invalid_name");
    let bound = server.key("read", Some("a")).await;
    server.get_as(&bound, "/v1/tenants/a").await.problem(403, "tenant_forbidden");
}

/// Follows `next_after` until the end; every page has as many rows as were asked for, or fewer.
async fn walk(server: &Server, key: &str, path: &str, name: &str) -> Vec<Value> {
    let (mut rows, mut next) = (Vec::new(), String::new());
    loop {
        let answer = server.get_as(key, &format!("{path}?limit=2{next}")).await;
        let page = answer.rows(name);
        assert!(page.len() <= 2);
        rows.extend(page);
        let answer = answer.json();
        let Some(after) = answer["next_after"].as_str() else { return rows };
        next = format!("&after={}", after.replace('/', "%2F").replace(' ', "%20"));
    }
}

pub async fn counters_thresholds_and_rates_have_pages(ground: Ground) {
    let server = Server::start(ground).await;
    for tenant in ["a/1", "b 2", "c", "d", "e"] {
        server.post(&event(tenant, "e1", "1", NOW)).await;
        let quota = serde_json::json!({
            "tenant": tenant, "meter": "calls", "kind": "quota", "period": "day", "limit": "5",
        });
        assert_eq!(server.put("/v1/thresholds", &quota.to_string()).await.status, 200);
        let rate = serde_json::json!({
            "jurisdiction": "de", "name": tenant, "percent": "1",
            "valid_from": "2021-01-01T00:00:00Z",
        });
        assert_eq!(server.put("/v1/tax/rates", &rate.to_string()).await.status, 200);
    }
    let own = server.key("read", Some("b 2")).await;
    for (path, name, member) in [
        ("/v1/counters", "counters", "tenant"),
        ("/v1/thresholds", "thresholds", "tenant"),
        ("/v1/tax/rates", "rates", "name"),
    ] {
        let rows = walk(&server, &server.admin, path, name).await;
        assert_eq!(each(&rows, member), ["a/1", "b 2", "c", "d", "e"], "{path}");
        if member == "tenant" {
            let rows = walk(&server, &own, path, name).await;
            assert_eq!(each(&rows, member), ["b 2"], "{path}");
        }
        server.get(&format!("{path}?limit=0")).await.problem(400, "invalid_limit");
        server.get(&format!("{path}?after=x")).await.problem(400, "invalid_cursor");
    }
}

pub async fn an_answer_of_too_many_groups_is_refused(ground: Ground) {
    let server = Server::start(ground).await;
    for first in (0..10_002).step_by(1_667) {
        let one = |n: u32| in_region(&format!("e{n}"), "1", &format!("r{n}"), NOW);
        let batch: Vec<String> = (first..first + 1_667).map(one).collect();
        let answer = server.post(&format!("[{}]", batch.join(","))).await;
        assert_eq!(answer.json()["accepted"], 1_667, "{}", answer.body);
    }
    let grouped = server.get("/v1/usage?tenant=acme&meter=calls&group_by=region").await;
    let problem = grouped.problem(422, "answer_too_large");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("shorter range or fewer dimensions in group_by"), "{detail}");
    let whole = server.get("/v1/usage?tenant=acme&meter=calls").await.json();
    assert_eq!((&whole["total"], &whole["count"]), (&"10002".into(), &10_002.into()));
}
