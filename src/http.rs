//! The edge: HTTP in, verdicts and totals out.
//!
//! Invariant: a 2xx about events is sent only after the commit that holds them. Every request
//! except for health and documentation needs a key, and a key that is bound to a tenant reaches
//! nothing of another one. Every failure leaves as a problem (`problem`).

mod access;
mod accounts;
mod admission;
pub(crate) mod alerts;
pub mod auth;
mod billing;
mod body;
mod catalog;
mod changes;
pub(crate) mod counters;
mod credits;
mod decisions;
pub(crate) mod events;
mod extract;
mod idempotency;
mod inboxes;
mod keys;
mod latency;
mod meters;
mod openapi;
mod pages;
pub(crate) mod passes;
mod problem;
mod pushes;
pub(crate) mod quotes;
pub(crate) mod records;
mod request_id;
mod sagas;
mod serve;
mod telemetry;
mod tenants;
mod timeline;
mod totals;
mod usage;
mod webhooks;

pub use admission::Peer;
pub use serve::serve;
pub use telemetry::install_recorder;

use crate::clock::Clock;
use crate::config::{Config, Secret, ServerConfig};
use crate::jobs::ingest::Ingest;
use crate::jobs::unbilled::Slow;
use crate::jobs::webhook::WebhookInbox;
use crate::provider::Provider;
use crate::rules::credit::DrawOrder;
use crate::rules::timestamp::Timestamp;
use crate::store::Store;
use crate::tax::{self, TaxEngine};
use admission::Admission;
use auth::KeyCache;
use axum::Router;
use axum::body::HttpBody;
use axum::response::Response;
use body::BodyReader;
use bytes::Bytes;
use catalog::CatalogCache;
use counterfoil_idempotency::KeyPolicy;
use futures_util::FutureExt;
use futures_util::future::Either;
use metrics_exporter_prometheus::PrometheusHandle;
use std::future::Future;
use std::sync::Arc;
use tower::Service;

/// What all requests share.
pub struct App {
    store: Arc<dyn Store>,
    ingest: Arc<Ingest>,
    clock: Clock,
    started_at: Timestamp,
    config: ServerConfig,
    accept_horizon_hours: u32,
    /// Totals and unique values that one request reads of a tenant and meter.
    query_rows_max: usize,
    catalog: CatalogCache,
    keys: KeyCache,
    admission: Admission,
    bodies: BodyReader,
    webhook_bodies: BodyReader,
    metrics: PrometheusHandle,
    /// Whom totals are pushed to.
    provider: Option<Arc<dyn Provider>>,
    inbox: Arc<WebhookInbox>,
    /// Any of them may have signed a webhook.
    webhook_secrets: Vec<Secret>,
    taxes: Arc<dyn TaxEngine>,
    /// Which credits are drawn on first.
    draw_order: DrawOrder,
    /// Whether usage is only compared and never billed.
    shadow: bool,
    /// Held by the one comparison with the provider that is at work.
    comparing: tokio::sync::Mutex<()>,
    /// What is not billed, as far as adding it up takes long, and when it was read.
    unbilled: tokio::sync::Mutex<Option<(Timestamp, Slow)>>,
    /// The description of this interface, made once.
    openapi: Bytes,
}

impl App {
    pub fn new(
        store: Arc<dyn Store>,
        ingest: Arc<Ingest>,
        inbox: Arc<WebhookInbox>,
        clock: Clock,
        provider: Option<Arc<dyn Provider>>,
        config: &Config,
    ) -> Arc<Self> {
        Arc::new(Self {
            catalog: CatalogCache::new(store.clone()),
            keys: KeyCache::new(store.clone()),
            admission: Admission::new(&config.server, &config.limits),
            bodies: BodyReader::new(&config.server),
            webhook_bodies: BodyReader::for_webhooks(&config.server),
            metrics: telemetry::install_recorder(),
            openapi: openapi::document(&config.server).into(),
            webhook_secrets: config.stripe.webhook_secrets.split(),
            taxes: tax::connect(&config.tax).expect("settings are checked when they are read"),
            draw_order: config.credits.order,
            comparing: tokio::sync::Mutex::new(()),
            shadow: config.provider.is_shadow(),
            unbilled: tokio::sync::Mutex::default(),
            store,
            provider,
            ingest,
            inbox,
            started_at: clock.now(),
            clock,
            config: config.server.clone(),
            accept_horizon_hours: config.ingest.accept_horizon_hours,
            query_rows_max: config.limits.query_rows_max,
        })
    }
}

/// Everything that the server answers.
#[derive(Clone)]
pub struct Routes {
    app: Arc<App>,
    router: Router,
}

impl Routes {
    pub fn new(app: Arc<App>) -> Self {
        Self { router: router(Arc::clone(&app)), app }
    }

    /// Answers a request; `peer` is the one that sent it over a socket. Events do not take the way
    /// through the router: its layers and their boxes cost more than counting an event does.
    pub fn answer<B>(
        &self,
        peer: Option<Peer>,
        mut request: http::Request<B>,
    ) -> impl Future<Output = Response> + Send + use<B>
    where
        B: HttpBody<Data = Bytes, Error: Into<axum::BoxError>> + Unpin + Send + 'static,
    {
        if events::is_delivery(&request) {
            let app = Arc::clone(&self.app);
            return Either::Left(async move { events::answer(&app, peer, request).await });
        }
        if let Some(peer) = peer {
            request.extensions_mut().insert(peer);
        }
        let answer = self.router.clone().call(request);
        Either::Right(answer.map(|Ok(response)| response))
    }
}

/// Every route, with what all of them share.
fn router(app: Arc<App>) -> Router {
    let (routes, _) = openapi::routes().split_for_parts();
    let (money, _) = openapi::money_routes().split_for_parts();
    let money = money.layer(idempotency::layer(&app, KeyPolicy::Required));
    routes
        .route("/", axum::routing::get(pages::root))
        .layer(idempotency::layer(&app, KeyPolicy::Optional))
        .merge(money)
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&app), admission::admit))
        .fallback(problem::not_found)
        .method_not_allowed_fallback(problem::method_not_allowed)
        .layer(axum::middleware::from_fn(telemetry::observe))
        .with_state(app)
}
