//! Sagas as they are asked for: begun once under a key, told step by step, refused while another is
//! open, and resumed.

use super::script::{Accident, Script};
use super::world::{Ground, World};
use crate::world::{Answer, Server};
use ::http::Request;
use axum::body::Body;
use counterfoil::rules::saga::SagaState;
use serde_json::{Value, json};
use std::sync::Arc;

async fn post(server: &Server, path: &str, key: &str, body: &Value) -> (u16, Value) {
    let request = Request::post(path)
        .header("authorization", format!("Bearer {}", server.admin))
        .header("content-type", "application/json")
        .header("idempotency-key", key)
        .body(Body::from(body.to_string()));
    read(&server.send(request.unwrap()).await)
}

async fn get(server: &Server, path: &str) -> (u16, Value) {
    read(&server.get(path).await)
}

fn read(answer: &Answer) -> (u16, Value) {
    (answer.status, answer.json())
}

const SUBSCRIPTIONS: &str = "/v1/tenants/acme/subscriptions";

pub async fn saga_runs_from_its_request_to_completion(ground: Ground) {
    let world = World::on(ground).await;
    let server = Server::over(&world).await;
    let body = json!({"plan": "pro", "prices": [world.prices[0]], "features": ["exports"]});
    let (status, begun) = post(&server, SUBSCRIPTIONS, "first", &body).await;
    assert_eq!((status, &begun["state"]), (202, &json!("running")), "{begun}");
    assert_eq!(post(&server, SUBSCRIPTIONS, "first", &body).await, (202, begun.clone()));
    let other = json!({"plan": "max", "prices": [world.prices[0]]});
    let (status, refused) = post(&server, SUBSCRIPTIONS, "first", &other).await;
    assert!([409, 422].contains(&status), "{status} {refused}");
    let (status, refused) = post(&server, SUBSCRIPTIONS, "second", &body).await;
    assert_eq!((status, &refused["code"]), (409, &json!("saga_open")), "{refused}");
    let id = begun["id"].as_str().unwrap();
    let told = format!("/v1/sagas/{id}");
    let (status, story) = get(&server, &told).await;
    assert_eq!((status, &story["log"]), (200, &json!([])));
    assert_eq!(world.finish(id).await, SagaState::Completed);
    let (_, story) = get(&server, &told).await;
    let lines = story["log"].as_array().unwrap();
    let marks: Vec<String> = lines
        .iter()
        .map(|line| {
            format!("{} {}", line["step"].as_str().unwrap(), line["mark"].as_str().unwrap())
        })
        .collect();
    let steps = ["customer", "subscription", "record", "access"];
    let expected: Vec<String> =
        steps.iter().flat_map(|step| [format!("{step} intent"), format!("{step} done")]).collect();
    assert_eq!((marks, &story["saga"]["state"]), (expected, &json!("completed")));
    let (status, refused) = post(&server, &format!("{told}/resume"), "r1", &json!({})).await;
    assert_eq!((status, &refused["code"]), (409, &json!("saga_not_resumable")), "{refused}");
    let (_, agreed) = get(&server, "/v1/tenants/acme/subscriptions").await;
    assert_eq!(agreed["features"], json!(["exports"]));
    assert_eq!(get(&server, "/v1/sagas/saga_of_nobody").await.0, 404);
    let subscription = agreed["subscriptions"][0]["subscription"].as_str().unwrap().to_owned();
    change_and_cancel(&world, &server, &subscription).await;
}

async fn change_and_cancel(world: &World, server: &Server, subscription: &str) {
    let of_it = format!("{SUBSCRIPTIONS}/{subscription}");
    let body = json!({"plan": "scale", "prices": [world.prices[1]], "features": ["sso"]});
    let (status, begun) = post(server, &format!("{of_it}/plan"), "third", &body).await;
    assert_eq!(status, 202, "{begun}");
    // The boundary of a repeat is that of the first time, although it has passed.
    world.clock.advance(2_460_000_000);
    assert_eq!(post(server, &format!("{of_it}/plan"), "third", &body).await.0, 202);
    let id = begun["id"].as_str().unwrap();
    assert_eq!(world.finish(id).await, SagaState::Completed);
    let (_, agreed) = get(server, "/v1/tenants/acme/subscriptions").await;
    assert_eq!(agreed["features"], json!(["sso"]));
    let body = json!({"when": "period_end"});
    let (status, begun) = post(server, &format!("{of_it}/cancel"), "fourth", &body).await;
    assert_eq!(status, 202, "{begun}");
    assert_eq!(world.finish(begun["id"].as_str().unwrap()).await, SagaState::Completed);
    let (_, agreed) = get(server, "/v1/tenants/acme/subscriptions").await;
    assert_eq!(agreed["features"], json!(["sso"]), "until the period ends");
    world.clock.advance(32 * 86_400_000_000);
    let (_, agreed) = get(server, "/v1/tenants/acme/subscriptions").await;
    assert_eq!(agreed["features"], json!([]));
}

pub async fn undone_saga_is_resumed_over_http(ground: Ground) {
    let world = World::on(ground).await;
    let server = Server::over(&world).await;
    let body = json!({"plan": "pro", "prices": [world.prices[0]]});
    let (_, begun) = post(&server, SUBSCRIPTIONS, "first", &body).await;
    let id = begun["id"].as_str().unwrap();
    let script = Script::default();
    script.obstruct(Some(("create_subscription", Accident::Refuse)));
    assert_eq!(world.drive(id, &Arc::new(script)).await, SagaState::Compensated);
    let (_, story) = get(&server, &format!("/v1/sagas/{id}")).await;
    assert_eq!(story["saga"]["detail"], "refused by the test");
    // The key's answer stays what it was: a new start is a person's decision.
    assert_eq!(post(&server, SUBSCRIPTIONS, "first", &body).await, (202, begun.clone()));
    let (status, resumed) = post(&server, &format!("/v1/sagas/{id}/resume"), "r", &json!({})).await;
    assert_eq!((status, &resumed["generation"]), (200, &json!(2)), "{resumed}");
    assert_eq!(world.finish(id).await, SagaState::Completed);
}

pub async fn billing_periods_are_aligned_to_windows(ground: Ground) {
    let world = World::on(ground).await;
    let server = Server::over(&world).await;
    let now = world.clock.now().micros();
    let hour = 3_600_000_000;
    // Four minutes before the hour is too late for it.
    let next = (now.div_euclid(hour) + 1) * hour;
    world.clock.advance(next - 4 * 60_000_000 - now);
    let body = json!({"plan": "pro", "prices": [world.prices[0]], "align": true});
    let (status, begun) = post(&server, SUBSCRIPTIONS, "first", &body).await;
    assert_eq!(status, 202, "{begun}");
    let id = begun["id"].as_str().unwrap();
    assert_eq!(world.finish(id).await, SagaState::Completed);
    let (_, agreed) = get(&server, SUBSCRIPTIONS).await;
    let subscription = agreed["subscriptions"][0]["subscription"].as_str().unwrap();
    let shown = world.stripe.get(&format!("/v1/subscriptions/{subscription}"));
    assert_eq!(shown["billing_cycle_anchor"], (next + hour) / 1_000_000);
    assert_eq!(shown["items"]["data"][0]["current_period_end"], (next + hour) / 1_000_000);
}

pub async fn a_subscription_whose_alignment_has_passed_is_refused(ground: Ground) {
    let world = World::on(ground).await;
    let server = Server::over(&world).await;
    let body = json!({"plan": "pro", "prices": [world.prices[0]], "align": true});
    let (_, begun) = post(&server, SUBSCRIPTIONS, "first", &body).await;
    world.clock.advance(2 * 3_600_000_000);
    let id = begun["id"].as_str().unwrap();
    assert_eq!(world.finish(id).await, SagaState::Compensated);
    let (_, story) = get(&server, &format!("/v1/sagas/{id}")).await;
    let detail = story["saga"]["detail"].as_str().unwrap();
    assert!(detail.contains("request the subscription again"), "{detail}");
    assert_eq!(get(&server, SUBSCRIPTIONS).await.1["subscriptions"], json!([]));
}
