//! Who says what tax is due: the table of rates that is kept here, or an engine of the user's own.
//!
//! Invariant: an engine is asked once for each quote that is answered, under a key that tells a
//! repeat. Discounts are taken off before it is asked, by our own rule. What it says is checked: a
//! figure that is no whole number of the currency's smallest unit is refused, not rounded.

mod http;
mod table;

use crate::config::{TaxConfig, TaxEngineKind};
use crate::rules::quantity::Quantity;
use crate::rules::refusal::Refusal;
use crate::rules::tax::{Quote, QuoteRequest, TaxRate};
use async_trait::async_trait;
use std::sync::Arc;

/// Why there is no quote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoQuote {
    /// The same request will always be refused.
    Refused(Refusal),
    /// It may work later.
    Unavailable(String),
}

#[async_trait]
pub trait TaxEngine: Send + Sync {
    fn name(&self) -> &'static str;
    /// Quotes a request. `discounts` are of its lines, `rates` all that are kept here, `key` the
    /// same for the same request.
    async fn quote(
        &self,
        request: &QuoteRequest,
        discounts: &[Quantity],
        rates: &[TaxRate],
        key: &str,
    ) -> Result<Quote, NoQuote>;
}

/// The engine that the settings name.
pub fn connect(config: &TaxConfig) -> Result<Arc<dyn TaxEngine>, String> {
    match config.engine {
        TaxEngineKind::Table => Ok(Arc::new(table::Table)),
        TaxEngineKind::Http => Ok(Arc::new(http::HttpEngine::connect(config)?)),
    }
}
