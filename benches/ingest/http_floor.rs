//! The floor of HTTP and parsing: the product's HTTP stack and JSON, no rules and no store.
//!
//! It runs as a child of its own, like the server, and answers that all events are accepted.

use anyhow::Result;
use axum::Router;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::routing::post;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::sync::Arc;

/// The fields of an event, where they are in the body.
#[derive(Deserialize)]
#[expect(dead_code, reason = "reading them is what is measured")]
struct Item<'a> {
    tenant: &'a str,
    id: &'a str,
    meter: &'a str,
    quantity: &'a str,
    occurred_at: &'a str,
    #[serde(borrow)]
    properties: &'a RawValue,
}

/// Serves until it is killed.
pub fn serve() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("{{\"url\":\"http://{}\"}}", listener.local_addr()?);
        let router = Router::new()
            .route("/v1/events", post(count_events))
            .layer(DefaultBodyLimit::disable());
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

async fn count_events(body: Bytes) -> String {
    let items: Vec<Item<'_>> = if body.starts_with(b"[") {
        serde_json::from_slice(&body).unwrap_or_default()
    } else {
        serde_json::from_slice(&body).into_iter().collect()
    };
    let accepted = items.len();
    format!(
        "{{\"accepted\":{accepted},\"duplicates\":0,\"conflicts\":0,\"quarantined\":0,\
         \"rejected\":0,\"results\":[]}}"
    )
}
