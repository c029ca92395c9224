//! Sagas as they are asked for: begun once under a key, told step by step, refused while another is
//! open, and revived.

use super::script::{Accident, Script};
use super::world::{Ground, World};
use ::http::Request;
use axum::Router;
use axum::body::Body;
use counterfoil::http::{App, auth, router};
use counterfoil::jobs::ingest::Ingest;
use counterfoil::jobs::webhook::WebhookInbox;
use counterfoil::rules::saga::SagaState;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::sync::Arc;
use tower::ServiceExt;

struct Server {
    router: Router,
    key: String,
}

impl Server {
    async fn start(world: &World) -> Self {
        let store = || Arc::clone(&world.store);
        let ingest =
            Ingest::start(store(), world.clock.clone(), world.config.ingest.clone(), false);
        let key = auth::create_first_admin_key(&*world.store, &world.clock, None).await;
        let inbox = WebhookInbox::start(store());
        let provider = Some(Arc::clone(&world.provider));
        let app = App::new(store(), ingest, inbox, world.clock.clone(), provider, &world.config);
        Self { router: router(app), key: key.unwrap().unwrap() }
    }

    async fn post(&self, path: &str, key: &str, body: &Value) -> (u16, Value) {
        let request = Request::post(path).header("idempotency-key", key);
        self.send(request, body.to_string()).await
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.send(Request::get(path), String::new()).await
    }

    async fn send(&self, request: ::http::request::Builder, body: String) -> (u16, Value) {
        let request = request
            .header("authorization", format!("Bearer {}", self.key))
            .header("content-type", "application/json")
            .body(Body::from(body))
            .unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&bytes).unwrap_or_default())
    }
}

const SUBSCRIPTIONS: &str = "/v1/tenants/acme/subscriptions";

pub async fn from_the_request_to_the_end(ground: Ground) {
    let world = World::on(ground).await;
    let server = Server::start(&world).await;
    let body = json!({"plan": "pro", "prices": [world.prices[0]], "features": ["exports"]});
    let (status, begun) = server.post(SUBSCRIPTIONS, "first", &body).await;
    assert_eq!((status, &begun["state"]), (202, &json!("running")), "{begun}");
    assert_eq!(server.post(SUBSCRIPTIONS, "first", &body).await, (202, begun.clone()));
    let other = json!({"plan": "max", "prices": [world.prices[0]]});
    let (status, refused) = server.post(SUBSCRIPTIONS, "first", &other).await;
    assert!([409, 422].contains(&status), "{status} {refused}");
    let (status, refused) = server.post(SUBSCRIPTIONS, "second", &body).await;
    assert_eq!((status, &refused["code"]), (409, &json!("saga_open")), "{refused}");
    let id = begun["id"].as_str().unwrap();
    let told = format!("/v1/sagas/{id}");
    let (status, story) = server.get(&told).await;
    assert_eq!((status, &story["log"]), (200, &json!([])));
    assert_eq!(world.finish(id).await, SagaState::Completed);
    let (_, story) = server.get(&told).await;
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
    let (status, refused) = server.post(&format!("{told}/revive"), "r1", &json!({})).await;
    assert_eq!((status, &refused["code"]), (409, &json!("saga_not_stuck")), "{refused}");
    let (_, agreed) = server.get("/v1/tenants/acme/agreements").await;
    assert_eq!(agreed["features"], json!(["exports"]));
    assert_eq!(server.get("/v1/sagas/saga_of_nobody").await.0, 404);
    let subscription = agreed["agreements"][0]["subscription"].as_str().unwrap().to_owned();
    change_and_cancel(&world, &server, &subscription).await;
}

async fn change_and_cancel(world: &World, server: &Server, subscription: &str) {
    let of_it = format!("{SUBSCRIPTIONS}/{subscription}");
    let body = json!({"plan": "scale", "prices": [world.prices[1]], "features": ["sso"]});
    let (status, begun) = server.post(&format!("{of_it}/plan"), "third", &body).await;
    assert_eq!(status, 202, "{begun}");
    // The boundary of a repeat is that of the first time, although it has passed.
    world.clock.advance(2_460_000_000);
    assert_eq!(server.post(&format!("{of_it}/plan"), "third", &body).await.0, 202);
    let id = begun["id"].as_str().unwrap();
    assert_eq!(world.finish(id).await, SagaState::Completed);
    let (_, agreed) = server.get("/v1/tenants/acme/agreements").await;
    assert_eq!(agreed["features"], json!(["sso"]));
    let body = json!({"when": "period_end"});
    let (status, begun) = server.post(&format!("{of_it}/cancel"), "fourth", &body).await;
    assert_eq!(status, 202, "{begun}");
    assert_eq!(world.finish(begun["id"].as_str().unwrap()).await, SagaState::Completed);
    let (_, agreed) = server.get("/v1/tenants/acme/agreements").await;
    assert_eq!(agreed["features"], json!(["sso"]), "until the period ends");
    world.clock.advance(32 * 86_400_000_000);
    let (_, agreed) = server.get("/v1/tenants/acme/agreements").await;
    assert_eq!(agreed["features"], json!([]));
}

pub async fn what_was_undone_is_revived(ground: Ground) {
    let world = World::on(ground).await;
    let server = Server::start(&world).await;
    let body = json!({"plan": "pro", "prices": [world.prices[0]]});
    let (_, begun) = server.post(SUBSCRIPTIONS, "first", &body).await;
    let id = begun["id"].as_str().unwrap();
    let script = Script::default();
    script.obstruct(Some(("create_subscription", Accident::Refuse)));
    assert_eq!(world.drive(id, &Arc::new(script)).await, SagaState::Compensated);
    let (_, story) = server.get(&format!("/v1/sagas/{id}")).await;
    assert_eq!(story["saga"]["detail"], "refused by the test");
    // The key's answer stays what it was: a new start is a person's decision.
    assert_eq!(server.post(SUBSCRIPTIONS, "first", &body).await, (202, begun.clone()));
    let (status, revived) = server.post(&format!("/v1/sagas/{id}/revive"), "r", &json!({})).await;
    assert_eq!((status, &revived["generation"]), (200, &json!(2)), "{revived}");
    assert_eq!(world.finish(id).await, SagaState::Completed);
}
