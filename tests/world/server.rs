//! The router of a server, in process, and the requests that tests send to it.

use super::ground::Ground;
use super::store_faults::StoreFaults;
use super::{World, at};
use axum::body::Body;
use counterfoil::clock::Clock;
use counterfoil::config::{self, Config};
use counterfoil::http::{App, Routes, auth};
use counterfoil::jobs::Context;
use counterfoil::jobs::ingest::Ingest;
use counterfoil::jobs::webhook::WebhookInbox;
use counterfoil::provider::Provider;
use counterfoil::store::Store;
use http::{HeaderMap, Method, Request};
use http_body_util::BodyExt;
use serde_json::Value;
use std::sync::Arc;

pub const NOW: &str = "2026-11-15T12:00:00Z";

pub struct Server {
    pub app: Arc<App>,
    pub routes: Routes,
    pub store: Arc<dyn Store>,
    pub faults: Arc<StoreFaults>,
    pub admin: String,
    pub clock: Clock,
    pub ground: Arc<Ground>,
}

pub fn default_config() -> Config {
    config::load(None).unwrap()
}

/// The default settings but for what is changed.
pub fn configured(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = default_config();
    change(&mut config);
    config
}

impl Server {
    /// With the meter `calls`.
    pub async fn start(ground: Ground) -> Self {
        Self::start_with(ground, &default_config()).await
    }

    pub async fn start_with(ground: Ground, config: &Config) -> Self {
        let server = Self::start_empty(ground, config).await;
        let sum =
            server.put("/v1/meters/calls", r#"{"aggregation":"sum","dimensions":["region"]}"#);
        assert_eq!(sum.await.status, 201);
        server
    }

    /// A server that was asked nothing yet.
    pub async fn start_empty(ground: Ground, config: &Config) -> Self {
        Self::start_towards(ground, None, config).await
    }

    /// The same, that pushes to this provider.
    pub async fn start_towards(
        ground: Ground,
        provider: Option<Arc<dyn Provider>>,
        config: &Config,
    ) -> Self {
        let clock = Clock::by_hand(at(NOW));
        let (store, faults) = StoreFaults::around(ground.open(None).await);
        let admin = create_admin(&store, &clock).await;
        let app = new_app(&store, &clock, provider, config);
        let routes = Routes::new(Arc::clone(&app));
        Self { routes, app, store, faults, admin, clock, ground: Arc::new(ground) }
    }

    /// On the store and the clock of a world.
    pub async fn over(world: &World) -> Self {
        let World { store, clock, config, .. } = world;
        let app = new_app(store, clock, Some(Arc::clone(&world.provider)), config);
        Self {
            routes: Routes::new(Arc::clone(&app)),
            app,
            store: Arc::clone(store),
            faults: Arc::clone(&world.store_faults),
            admin: create_admin(store, clock).await,
            clock: clock.clone(),
            ground: Arc::clone(&world.ground),
        }
    }

    /// What its jobs work with, by the default settings but for what is changed.
    pub fn context(&self, change: impl FnOnce(&mut Config)) -> Context {
        let config = configured(change);
        Context::new(self.store.clone(), self.clock.clone(), &config, "test".into(), 1)
    }

    /// Makes a key and returns its token.
    pub async fn key(&self, scope: &str, tenant: Option<&str>) -> String {
        let body = serde_json::json!({"name": "test", "scopes": [scope], "tenant": tenant});
        let made = self.post_to("/v1/keys", &body.to_string()).await.ok(201);
        made["token"].as_str().unwrap().to_owned()
    }

    pub async fn call(&self, method: Method, path: &str, key: &str, body: &str) -> Answer {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("authorization", format!("Bearer {key}"))
            .header("content-type", "application/json");
        self.send(request.body(Body::from(body.to_owned())).unwrap()).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.get_as(&self.admin, path).await
    }

    /// The same by whoever has the key.
    pub async fn get_as(&self, key: &str, path: &str) -> Answer {
        self.call(Method::GET, path, key, "").await
    }

    pub async fn put(&self, path: &str, body: &str) -> Answer {
        self.call(Method::PUT, path, &self.admin, body).await
    }

    pub async fn post_to(&self, path: &str, body: &str) -> Answer {
        self.call(Method::POST, path, &self.admin, body).await
    }

    /// Sends events.
    pub async fn post(&self, body: &str) -> Answer {
        self.post_to("/v1/events", body).await
    }

    /// The same with the given headers.
    pub async fn post_with(&self, headers: &[(&str, &str)], body: impl Into<Body>) -> Answer {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri("/v1/events")
            .header("authorization", format!("Bearer {}", self.admin));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(body.into()).unwrap()).await
    }

    pub async fn send(&self, mut request: Request<Body>) -> Answer {
        // One for all, so that snapshots do not depend on the order of tests.
        let id = http::HeaderValue::from_static("test");
        request.headers_mut().entry("x-request-id").or_insert(id);
        send(&self.routes, request).await
    }
}

async fn create_admin(store: &Arc<dyn Store>, clock: &Clock) -> String {
    auth::create_first_admin_key(&**store, clock, None).await.unwrap().unwrap()
}

pub fn new_app(
    store: &Arc<dyn Store>,
    clock: &Clock,
    provider: Option<Arc<dyn Provider>>,
    config: &Config,
) -> Arc<App> {
    let (own_store, own_clock) = (|| Arc::clone(store), || clock.clone());
    let strict = config.tenants.strict;
    let ingest = Ingest::start(own_store(), own_clock(), config.ingest.clone(), strict);
    let inbox = WebhookInbox::start(own_store());
    App::new(own_store(), ingest, inbox, own_clock(), provider, config)
}

pub async fn send(routes: &Routes, request: Request<Body>) -> Answer {
    let response = routes.answer(None, request).await;
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let body = String::from_utf8(body.to_vec()).unwrap();
    Answer { status: parts.status.as_u16(), headers: parts.headers, body }
}

pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.body))
    }

    /// Checks the status, and returns the body.
    #[track_caller]
    pub fn ok(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.body);
        self.json()
    }

    /// The rows of a list under their name.
    #[track_caller]
    pub fn rows(&self, name: &str) -> Vec<Value> {
        self.ok(200)[name].as_array().unwrap().clone()
    }

    /// Status and body in one text, for snapshots.
    pub fn show(&self) -> String {
        format!("{} {}", self.status, self.body)
    }

    /// The same, whose detail has these words.
    #[track_caller]
    pub fn problem_saying(&self, status: u16, code: &str, words: &str) {
        let problem = self.problem(status, code);
        assert!(problem["detail"].as_str().unwrap().contains(words), "{problem}");
    }

    /// Checks that this is a well-formed problem with the code.
    #[track_caller]
    pub fn problem(&self, status: u16, code: &str) -> Value {
        assert_eq!(self.status, status, "{}", self.body);
        assert_eq!(self.headers["content-type"], "application/problem+json");
        let problem = self.json();
        assert_eq!(problem["status"], status);
        assert_eq!(problem["code"], code, "{}", self.body);
        assert_eq!(problem["type"], format!("urn:counterfoil:problem:{code}"));
        assert!(problem["title"].is_string() && problem["detail"].is_string());
        assert_eq!(self.headers.contains_key("retry-after"), [429, 503].contains(&status));
        problem
    }
}

/// A member of each row.
pub fn each(rows: &[Value], member: &str) -> Vec<String> {
    rows.iter().map(|row| row[member].as_str().unwrap().to_owned()).collect()
}

/// One event of the meter `calls` as JSON.
pub fn event(tenant: &str, id: &str, quantity: &str, occurred_at: &str) -> String {
    format!(
        r#"{{"tenant":"{tenant}","id":"{id}","meter":"calls","quantity":"{quantity}","occurred_at":"{occurred_at}"}}"#
    )
}
