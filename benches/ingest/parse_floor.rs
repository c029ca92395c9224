//! The floor of HTTP and parsing: the product's HTTP stack and its reading of events, no store.
//!
//! It runs as a child of its own, like the server, and answers that all events are accepted.

use anyhow::Result;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::routing::post;
use counterfoil::rules::event::{Item, parse_event};
use counterfoil::rules::ids::{MeterNo, MeterSlug};
use counterfoil::rules::meter::{Catalog, Meter};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;

use crate::workload::{METERS, meter_slug};

pub fn catalog() -> Catalog {
    let mut catalog = Catalog::default();
    for number in 0..METERS {
        let slug = MeterSlug::parse(&meter_slug(number)).expect("a valid slug");
        let spec = serde_json::from_str(r#"{"aggregation":"sum","scale":6}"#);
        let meter = Meter::declare(slug, spec.expect("a valid meter")).expect("a valid meter");
        catalog.insert(MeterNo(number as u16 + 1), Arc::new(meter));
    }
    catalog
}

/// Serves until it is killed.
pub fn serve() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("{{\"url\":\"http://{}\"}}", listener.local_addr()?);
        let router = Router::new()
            .route("/v1/events", post(count_events))
            .layer(DefaultBodyLimit::disable())
            .with_state(Arc::new(catalog()));
        let builder = Arc::new(auto::Builder::new(TokioExecutor::new()));
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let (builder, router) = (Arc::clone(&builder), router.clone());
            tokio::spawn(async move {
                let answering = TowerToHyperService::new(router);
                let _ = builder.serve_connection(TokioIo::new(stream), answering).await;
            });
        }
    })
}

async fn count_events(State(catalog): State<Arc<Catalog>>, body: Bytes) -> String {
    let text = std::str::from_utf8(&body).unwrap_or_default();
    let items: Vec<Item<'_>> = if text.starts_with('[') {
        serde_json::from_str(text).unwrap_or_default()
    } else {
        serde_json::from_str(text).into_iter().collect()
    };
    let events: Vec<_> = items.iter().map(|item| parse_event(item, &catalog)).collect();
    let accepted = events.iter().filter(|event| event.is_ok()).count();
    let rejected = events.len() - accepted;
    format!(
        "{{\"accepted\":{accepted},\"duplicates\":0,\"conflicts\":0,\"quarantined\":0,\
         \"rejected\":{rejected},\"results\":[]}}"
    )
}
