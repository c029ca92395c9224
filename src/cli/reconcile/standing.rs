//! What is not billed at this moment, as the server tells it: by meter and cause, of all tenants.
//!
//! Invariant: quantities are read from their text into exact numbers, never through a float.

use super::super::client::{Client, Request};
use crate::rules::quantity::Quantity;
use anyhow::Context;
use reqwest::Method;
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Debug, Default, Deserialize)]
pub struct Standing {
    /// Not every server tells.
    #[serde(default)]
    unbilled: BTreeMap<String, BTreeMap<String, Option<Quantity>>>,
    /// Whether there are more quarantined events than were added up.
    #[serde(default)]
    pub quarantined_more: bool,
}

impl Standing {
    pub async fn read(client: &Client) -> anyhow::Result<Self> {
        let body = client.call(&Request::new(Method::GET, &["v1", "health", "billing"])).await?;
        serde_json::from_slice(&body).context("the server's answer cannot be read")
    }

    /// Meter, cause and quantity, the total of a meter last.
    pub fn rows(&self) -> Vec<(&str, String, Quantity)> {
        let mut rows = Vec::new();
        for (meter, causes) in &self.unbilled {
            let (totals, parts): (Vec<_>, Vec<_>) =
                causes.iter().partition(|(cause, _)| *cause == "total");
            for (cause, quantity) in parts.into_iter().chain(totals) {
                if let Some(quantity) = quantity {
                    rows.push((meter.as_str(), cause.replace('_', " "), *quantity));
                }
            }
        }
        rows
    }
}
