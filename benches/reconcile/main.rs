//! The reconciliation benchmark: 100,580 windows compared with the simulated Stripe in one hourly
//! pass, and 10,000 webhooks, each sent three times in a random order, with their effects.
//!
//! Invariant: the exit code says whether every window was found equal and every webhook had its
//! effect once, and never how fast it was.

#![allow(
    clippy::unwrap_used,
    clippy::as_conversions,
    clippy::float_arithmetic,
    clippy::disallowed_methods,
    reason = "measurements are not money"
)]

mod webhooks;
mod windows;

use anyhow::Result;
use counterfoil::config;
use counterfoil::store::Store;
use counterfoil::store::postgres::PostgresStore;
use counterfoil::store::sqlite::SqliteStore;
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    match runtime.block_on(run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let config = config::load(None)?;
    measure("sqlite", SqliteStore::open(directory.path(), &config.sqlite)?).await?;
    match std::env::var("COUNTERFOIL_TEST_POSTGRES") {
        Ok(url) => measure("postgres", PostgresStore::open(&url, &config.postgres).await?).await,
        Err(_) => {
            println!("postgres: left out; `cargo xtask bench reconcile` starts one");
            Ok(())
        }
    }
}

async fn measure(name: &str, store: Arc<dyn Store>) -> Result<()> {
    webhooks::measure(name, &store).await?;
    windows::measure(name, &store).await?;
    store.close().await;
    Ok(())
}
