//! The table of rates that is kept here.

use super::{NoQuote, TaxEngine};
use crate::rules::quantity::Quantity;
use crate::rules::tax::{Quote, QuoteRequest, TaxRate, quote};
use async_trait::async_trait;

pub struct Table;

#[async_trait]
impl TaxEngine for Table {
    fn name(&self) -> &'static str {
        "table"
    }

    async fn quote(
        &self,
        request: &QuoteRequest,
        discounts: &[Quantity],
        rates: &[TaxRate],
        _: &str,
    ) -> Result<Quote, NoQuote> {
        quote(request, discounts, rates).map_err(NoQuote::Refused)
    }
}
