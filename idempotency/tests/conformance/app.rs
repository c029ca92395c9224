//! An application under the layer: axum, a simple authentication, a provider that counts.

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, MatchedPath, Request};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use bytes::Bytes;
use counterfoil_idempotency::{Attempt, IdempotencyLayer, Identity, Settings, Store};
use http_body_util::BodyExt;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use tower::ServiceExt;

/// Who called, as authentication says.
#[derive(Clone)]
struct Tenant(String);

/// A provider outside, which knows keys of its own: a second charge under a key is none.
#[derive(Default)]
pub struct Provider {
    asked_by_key: Mutex<BTreeMap<String, u32>>,
}

impl Provider {
    pub fn charge(&self, key: &str) -> String {
        *self.asked_by_key.lock().unwrap().entry(key.to_owned()).or_default() += 1;
        format!("ch_{}", key.replace('/', "_"))
    }

    /// How often money moved.
    pub fn charges(&self) -> usize {
        self.asked_by_key.lock().unwrap().len()
    }

    /// How often it was asked to.
    pub fn asked(&self) -> u32 {
        self.asked_by_key.lock().unwrap().values().sum()
    }
}

#[derive(Clone)]
pub struct App {
    pub router: Router,
    pub provider: Arc<Provider>,
}

impl App {
    /// Any handler.
    pub fn new<F>(
        store: Arc<dyn Store>,
        settings: Settings,
        handler: impl Fn(Option<Attempt>, Bytes) -> F + Clone + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Response> + Send + 'static,
    {
        Self::layered(IdempotencyLayer::new(store, settings, identify), handler)
    }

    pub fn layered<F>(
        layer: IdempotencyLayer,
        handler: impl Fn(Option<Attempt>, Bytes) -> F + Clone + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Response> + Send + 'static,
    {
        let handler = move |attempt: Option<Extension<Attempt>>, body: Bytes| {
            handler(attempt.map(|Extension(attempt)| attempt), body)
        };
        let router = Router::new()
            .route("/orders", any(handler.clone()))
            .route("/refunds/{id}", any(handler))
            .layer(layer)
            .layer(from_fn(authenticate));
        Self { router, provider: Arc::new(Provider::default()) }
    }

    /// A handler that charges, in steps, and knows how to go on.
    pub fn charging(store: Arc<dyn Store>, settings: Settings) -> Self {
        Self::charging_at(Arc::new(Provider::default()), store, settings)
    }

    pub fn charging_at(provider: Arc<Provider>, store: Arc<dyn Store>, settings: Settings) -> Self {
        let asked = Arc::clone(&provider);
        let app = Self::new(store, settings, move |attempt, _| {
            charge(attempt.expect("it runs under a claim"), Arc::clone(&asked))
        });
        Self { provider, ..app }
    }

    pub async fn call(&self, call: Call) -> Reply {
        let response = self.router.clone().oneshot(call.request()).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Reply { status: parts.status, headers: parts.headers, body }
    }
}

pub fn identify(parts: &axum::http::request::Parts) -> Option<Identity> {
    let Tenant(tenant) = parts.extensions.get::<Tenant>()?.clone();
    let path = parts.extensions.get::<MatchedPath>()?.as_str();
    Some(Identity { tenant, route: format!("{} {path}", parts.method) })
}

async fn authenticate(mut request: Request, next: Next) -> Response {
    let tenant = request.headers().get(header::AUTHORIZATION);
    if let Some(tenant) = tenant.and_then(|value| value.to_str().ok()) {
        let tenant = Tenant(tenant.to_owned());
        request.extensions_mut().insert(tenant);
    }
    next.run(request).await
}

async fn charge(attempt: Attempt, provider: Arc<Provider>) -> Response {
    let scope = &attempt.claim().scope;
    let before = attempt.recovery_point().and_then(|point| point.strip_prefix("charged "));
    let charge = match before {
        Some(charge) => charge.to_owned(),
        None => {
            if attempt.reach("charging").await.is_err() {
                return StatusCode::BAD_GATEWAY.into_response();
            }
            let charge = provider.charge(&format!("{}/{}", scope.tenant, scope.key));
            if attempt.reach(&format!("charged {charge}")).await.is_err() {
                return StatusCode::BAD_GATEWAY.into_response();
            }
            charge
        }
    };
    let headers = [(header::LOCATION, format!("/orders/{charge}"))];
    (StatusCode::CREATED, headers, format!("{charge}\n")).into_response()
}

/// One call.
#[derive(Clone)]
pub struct Call {
    pub method: Method,
    pub path: String,
    pub tenant: Option<String>,
    pub keys: Vec<Vec<u8>>,
    pub content_type: &'static str,
    pub body: Bytes,
}

impl Call {
    pub fn new(tenant: &str, key: &str, body: &'static str) -> Self {
        Self {
            method: Method::POST,
            path: "/orders".to_owned(),
            tenant: Some(tenant.to_owned()),
            keys: vec![key.as_bytes().to_vec()],
            content_type: "application/json",
            body: Bytes::from_static(body.as_bytes()),
        }
    }

    pub fn request(self) -> Request {
        let mut request = Request::builder().method(self.method).uri(self.path);
        request = request.header(header::CONTENT_TYPE, self.content_type);
        for key in self.keys {
            request = request.header("Idempotency-Key", key);
        }
        if let Some(tenant) = self.tenant {
            request = request.header(header::AUTHORIZATION, tenant);
        }
        request.body(Body::from(self.body)).unwrap()
    }
}

/// What came back.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Reply {
    pub fn replayed(&self) -> bool {
        self.headers.get("idempotency-replayed").is_some_and(|value| value == "true")
    }

    pub fn retry_after(&self) -> Option<u64> {
        self.headers.get(header::RETRY_AFTER)?.to_str().unwrap().parse().ok()
    }

    /// The code of a problem, whose other members are looked at too.
    pub fn code(&self) -> String {
        assert_eq!(self.headers[header::CONTENT_TYPE], "application/problem+json");
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem["status"], self.status.as_u16());
        let code = problem["code"].as_str().unwrap();
        assert_eq!(problem["type"], format!("urn:counterfoil:problem:{code}"));
        assert!(!problem["title"].as_str().unwrap().is_empty());
        assert!(!problem["detail"].as_str().unwrap().is_empty());
        code.to_owned()
    }
}
