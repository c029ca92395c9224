//! `POST /v1/events`: outcomes, shapes of bodies, and neighbours that stay unharmed.

use crate::world::{Ground, NOW, Server, event};
use serde_json::Value;

pub async fn a_single_event_and_each_outcome(ground: Ground) {
    let server = Server::start(ground).await;
    let first = server.post(&event("acme", "e1", "1.50", NOW)).await;
    insta::assert_snapshot!(first.show(), @r#"200 {"accepted":1,"duplicates":0,"conflicts":0,"quarantined":0,"rejected":0,"results":[{"index":0,"tenant":"acme","id":"e1","outcome":"accepted"}]}"#);
    let again = server.post(&event("acme", "e1", "1.5", "2026-11-15T13:00:00+01:00")).await;
    insta::assert_snapshot!(again.show(), @r#"200 {"accepted":0,"duplicates":1,"conflicts":0,"quarantined":0,"rejected":0,"results":[{"index":0,"tenant":"acme","id":"e1","outcome":"duplicate"}]}"#);
    let restamped = server.post(&event("acme", "e1", "1.5", "2026-11-15T11:59:59Z")).await;
    insta::assert_snapshot!(restamped.show(), @r#"200 {"accepted":0,"duplicates":1,"conflicts":0,"quarantined":0,"rejected":0,"results":[{"index":0,"tenant":"acme","id":"e1","outcome":"duplicate","code":"restamped","detail":"counted before with another occurred_at, which is kept; send the event's own time on every retry"}]}"#);
    let conflict = server.post(&event("acme", "e1", "2", NOW)).await;
    conflict.problem(409, "payload_conflict");
    insta::assert_snapshot!(conflict.show(), @r#"409 {"type":"urn:counterfoil:problem:payload_conflict","title":"Conflict with an existing resource","status":409,"code":"payload_conflict","detail":"another payload was counted under this id; it differs in quantity; send a new fact under a new id","accepted":0,"duplicates":0,"conflicts":1,"quarantined":0,"rejected":0,"results":[{"index":0,"tenant":"acme","id":"e1","outcome":"conflict","code":"payload_conflict","detail":"another payload was counted under this id; it differs in quantity; send a new fact under a new id"}],"request_id":"test"}"#);
    let old = server.post(&event("acme", "e2", "1", "2026-11-08T11:59:59Z")).await;
    insta::assert_snapshot!(old.show(), @r#"202 {"accepted":0,"duplicates":0,"conflicts":0,"quarantined":1,"rejected":0,"results":[{"index":0,"tenant":"acme","id":"e2","outcome":"quarantined","code":"too_old","detail":"occurred_at is more than 168 hours ago; the event is quarantined and not counted; an operator can admit it (counterfoil quarantine)"}]}"#);
    let ahead = server.post(&event("acme", "e3", "1", "2026-11-15T12:05:01Z")).await;
    assert_eq!(ahead.status, 202);
    assert_eq!(ahead.json()["results"][0]["code"], "too_far_ahead");
    let rejected = server.post(&event("acme", "e4", "NaN", NOW)).await;
    rejected.problem(422, "quantity_not_a_number");
    insta::assert_snapshot!(rejected.show(), @r#"422 {"type":"urn:counterfoil:problem:quantity_not_a_number","title":"The request was refused","status":422,"code":"quantity_not_a_number","detail":"quantity must be a plain decimal number such as 12 or \"0.25\"","accepted":0,"duplicates":0,"conflicts":0,"quarantined":0,"rejected":1,"results":[{"index":0,"tenant":"acme","id":"e4","outcome":"rejected","code":"quantity_not_a_number","detail":"quantity must be a plain decimal number such as 12 or \"0.25\""}],"request_id":"test"}"#);
    let usage = server.get("/v1/usage?tenant=acme&meter=calls").await;
    assert_eq!(usage.json()["total"], "1.5");
}

pub async fn a_batch_is_always_200_and_neighbours_stay_unharmed(ground: Ground) {
    let server = Server::start(ground).await;
    server.post(&event("acme", "old", "1", NOW)).await;
    let batch = format!(
        r#"[{}, 7, {{"tenant":"acme","id":"x"}}, {}, {}, 1e999, "\ud800", {}, {{"meter":"none","tenant":"acme","id":"y"}}]"#,
        event("acme", "a", "1", NOW),
        event("acme", "old", "9", NOW),
        event("acme", "late", "1", "2026-01-01T00:00:00Z"),
        event("acme", "b", "2", NOW),
    );
    let answer = server.post(&batch).await;
    let (json, results) = (answer.json(), answer.rows("results"));
    let outcome = |result: &Value| {
        let code = result["code"].as_str().map(|code| format!(" {code}")).unwrap_or_default();
        format!("{}{code}", result["outcome"].as_str().unwrap())
    };
    let expected = [
        "accepted",
        "rejected not_an_object",
        "rejected missing_field",
        "conflict payload_conflict",
        "quarantined too_old",
        "rejected invalid_json",
        "rejected invalid_json",
        "accepted",
        "rejected unknown_meter",
    ];
    assert_eq!(results.iter().map(outcome).collect::<Vec<_>>(), expected);
    assert_eq!((&json["accepted"], &json["rejected"]), (&2.into(), &5.into()));
    assert_eq!(json["results"][2]["tenant"], "acme");
    assert_eq!(server.get("/v1/usage?tenant=acme&meter=calls").await.json()["total"], "4");
}

pub async fn an_array_of_one_is_a_batch_and_an_empty_one_is_fine(ground: Ground) {
    let server = Server::start(ground).await;
    let answer = server.post(&format!("[{}]", event("acme", "e1", "x", NOW))).await;
    assert_eq!((answer.status, &answer.json()["rejected"]), (200, &1.into()));
    let empty = server.post("[]").await;
    insta::assert_snapshot!(empty.show(), @r#"200 {"accepted":0,"duplicates":0,"conflicts":0,"quarantined":0,"rejected":0,"results":[]}"#);
}

pub async fn only_problems_are_listed_on_request(ground: Ground) {
    let server = Server::start(ground).await;
    let send =
        async |body: &str, query: &str| server.post_to(&format!("/v1/events{query}"), body).await;
    server.post(&event("acme", "e1", "1", NOW)).await;
    let batch = format!(
        "[{},{},{},{}]",
        event("acme", "e1", "1", NOW),
        event("acme", "e2", "1", NOW),
        event("acme", "e1", "1", "2026-11-15T11:00:00Z"),
        event("acme", "e3", "-1", NOW)
    );
    let answer = send(&batch, "?results=problems").await;
    insta::assert_snapshot!(answer.show(), @r#"200 {"accepted":1,"duplicates":2,"conflicts":0,"quarantined":0,"rejected":1,"results":[{"index":2,"tenant":"acme","id":"e1","outcome":"duplicate","code":"restamped","detail":"counted before with another occurred_at, which is kept; send the event's own time on every retry"},{"index":3,"tenant":"acme","id":"e3","outcome":"rejected","code":"quantity_negative","detail":"quantity is negative and the meter is not signed; declare a meter with \"signed\": true under another slug for usage that can be reversed"}]}"#);
    send("[]", "?results=some").await.problem(400, "invalid_query");
    send("[]", "?result=problems").await.problem(400, "invalid_query");
}

pub async fn lines_are_judged_each_on_its_own(ground: Ground) {
    let server = Server::start(ground).await;
    let mut body = format!(
        "{}\n\n{{\"tenant\":\n{}\r\n",
        event("acme", "e1", "1", NOW),
        event("acme", "e2", "2", NOW)
    )
    .into_bytes();
    body.extend_from_slice(b"\"\xff\"\n");
    let kinds = ["application/x-ndjson", "application/ndjson", "application/jsonl; charset=utf-8"];
    for kind in kinds {
        let json = server.post_with(&[("content-type", kind)], body.clone()).await.ok(200);
        assert_eq!(json["rejected"], 2);
        assert_eq!(json["results"][1]["code"], "invalid_json");
        assert!(json["results"][1]["detail"].as_str().unwrap().starts_with("line 3 is not JSON"));
        assert!(json["results"][3]["detail"].as_str().unwrap().starts_with("line 5 is not UTF-8"));
    }
    assert_eq!(server.get("/v1/usage?tenant=acme&meter=calls").await.json()["total"], "3");
}

pub async fn cloud_events(ground: Ground) {
    let server = Server::start(ground).await;
    let one = r#"{"specversion":"1.0","id":"e1","source":"/gw","type":"calls","subject":"acme","time":"2026-11-15T12:00:00Z","data":{"quantity":2}}"#;
    let kind = [("content-type", "application/cloudevents+json")];
    let answer = server.post_with(&kind, one).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["results"][0]["id"], r#"["/gw","e1"]"#);
    server.post_with(&kind, format!("[{one}]")).await.problem(422, "not_an_object");
    let batch = [("content-type", "application/cloudevents-batch+json")];
    let answer = server.post_with(&batch, format!("[{one},{one}]")).await;
    assert_eq!((answer.status, &answer.json()["duplicates"]), (200, &2.into()));
    server.post_with(&batch, one).await.problem(400, "invalid_json");
    let trace = server.get("/v1/events/acme/%5B%22%2Fgw%22%2C%22e1%22%5D").await;
    assert_eq!(trace.json()["counted"]["event"]["quantity"], "2");
    let same = server.get("/v1/events/acme/e1?source=%2Fgw").await;
    assert_eq!(same.json(), trace.json(), "by its own id and source");
    let bare = server.get("/v1/events/acme/e1").await.problem(404, "unknown_event");
    assert!(bare["detail"].as_str().unwrap().contains("?source="), "{bare}");
    server.get("/v1/events/acme/e1?source=%2Fother").await.problem(404, "unknown_event");
    server.get("/v1/events/acme/e1?sauce=%2Fgw").await.problem(400, "invalid_query");
}

pub async fn a_body_that_is_not_json_counts_nothing(ground: Ground) {
    let server = Server::start(ground).await;
    let broken = format!("[{},\n {{]", event("acme", "e1", "1", NOW));
    let problem = server.post(&broken).await.problem(400, "invalid_json");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("line 2 column 3"), "{detail}");
    assert!(detail.contains("nothing of this request was counted"), "{detail}");
    server.post("").await.problem(400, "invalid_json");
    server.post_with(&[], &b"[\"\xff\"]"[..]).await.problem(400, "invalid_json");
    server.get("/v1/events/acme/e1").await.problem(404, "unknown_event");
}

pub async fn a_meter_is_known_as_soon_as_it_is_declared(ground: Ground) {
    let server = Server::start(ground).await;
    let one = event("acme", "e1", "1", NOW).replace("calls", "fresh");
    let problem = server.post(&one).await.problem(422, "unknown_meter");
    assert!(problem["detail"].as_str().unwrap().contains("PUT /v1/meters/"));
    assert_eq!(server.put("/v1/meters/fresh", r#"{"aggregation":"sum"}"#).await.status, 201);
    assert_eq!(server.post(&one).await.status, 200);
}

pub async fn many_tenths_are_exact(ground: Ground) {
    let server = Server::start(ground).await;
    for batch in 0..10 {
        let events: Vec<_> =
            (0..1000).map(|n| event("acme", &format!("{batch}-{n}"), "0.1", NOW)).collect();
        let answer = server.post(&format!("[{}]", events.join(","))).await;
        assert_eq!(answer.json()["accepted"], 1000);
    }
    let usage = server.get("/v1/usage?tenant=acme&meter=calls").await.json();
    assert_eq!((&usage["total"], &usage["count"]), (&"1000".into(), &10_000.into()));
}

/// Damages a body in many ways; whatever arrives, each item is judged or the whole is refused.
pub async fn damaged_bodies_never_fail_the_server(ground: Ground) {
    let server = Server::start(ground).await;
    let events: Vec<_> = (0..4).map(|n| event("acme", &format!("e{n}"), "1", NOW)).collect();
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).unwrap() % below
    };
    let kinds = ["application/json", "application/x-ndjson", "application/cloudevents-batch+json"];
    for round in 0..600 {
        let kind = kinds[round % kinds.len()];
        let lines = kind == "application/x-ndjson";
        let joined = if lines { events.join("\n") } else { format!("[{}]", events.join(",")) };
        let mut body = joined.into_bytes();
        for _ in 0..=random(3) {
            let place = random(body.len());
            match random(4) {
                0 => body[place] = b"\"\\{}[],:\n0e-\0\xff"[random(14)],
                1 if body.len() > 1 => drop(body.remove(place)),
                2 => body.insert(place, b"\"\\{}[],:\n"[random(9)]),
                _ => body.truncate(place.max(1)),
            }
        }
        let answer = server.post_with(&[("content-type", kind)], body.clone()).await;
        let shown = || format!("{} for {}", answer.show(), String::from_utf8_lossy(&body));
        if answer.status == 200 {
            let json = answer.json();
            let counts = ["accepted", "duplicates", "conflicts", "quarantined", "rejected"];
            let sum: u64 = counts.iter().map(|name| json[*name].as_u64().unwrap()).sum();
            let listed = json["results"].as_array().unwrap().len();
            assert_eq!(usize::try_from(sum).unwrap(), listed, "{}", shown());
        } else {
            assert!(matches!(answer.status, 400 | 422), "{}", shown());
        }
    }
}

pub async fn two_tenants_with_identical_ids_see_nothing_of_each_other(ground: Ground) {
    let server = Server::start(ground).await;
    for (tenant, quantity) in [("a", "1"), ("b", "2")] {
        let answer = server.post(&event(tenant, "same", quantity, NOW)).await;
        assert_eq!(answer.json()["accepted"], 1);
        let late = server.post(&event(tenant, "late", quantity, "2026-01-01T00:00:00Z")).await;
        assert_eq!(late.json()["quarantined"], 1);
        assert_eq!(server.post(&event(tenant, "same", "9", NOW)).await.status, 409);
    }
    for (tenant, quantity) in [("a", "1"), ("b", "2")] {
        let key = server.key("read", Some(tenant)).await;
        let get = async |path: String| server.call(http::Method::GET, &path, &key, "").await.json();
        let usage = get(format!("/v1/usage?tenant={tenant}&meter=calls")).await;
        assert_eq!(usage["total"], quantity);
        let trace = get(format!("/v1/events/{tenant}/same")).await;
        assert_eq!(trace["counted"]["event"]["quantity"], quantity);
        assert_eq!(trace["conflicts"].as_array().unwrap().len(), 1);
        let events = get(format!("/v1/events?tenant={tenant}")).await;
        assert_eq!(events["events"].as_array().unwrap().len(), 1);
        for list in ["conflicts", "quarantine"] {
            let listed = get(format!("/v1/{list}")).await.to_string();
            let names = |tenant: &str| listed.contains(&format!(r#""tenant":"{tenant}""#));
            assert_eq!((names("a"), names("b")), (tenant == "a", tenant == "b"), "{listed}");
        }
        let counters = get("/v1/counters".into()).await;
        let rows = counters["counters"].as_array().unwrap();
        assert_eq!(rows.len(), 1);
        assert_eq!((&rows[0]["tenant"], &rows[0]["received"]), (&tenant.into(), &3.into()));
    }
}
