//! The account that the key belongs to.
//!
//! Invariant: the id is the same for every key. A restricted key cannot read it, since Stripe gives
//! it only the permissions that were selected. A crash leaves nothing.

use crate::Simulator;
use crate::request::{Answer, ApiError, SimRequest};
use serde_json::json;

pub fn retrieve(simulator: &Simulator, request: &SimRequest) -> Answer {
    let key = request.api_key().unwrap_or_default();
    let id = &simulator.options.account;
    if key.starts_with("rk_") {
        let message = format!(
            "The provided key '{}***' does not have the required permissions for this endpoint on \
             account '{id}'.",
            key.get(..8).unwrap_or("rk_")
        );
        return Err(ApiError::new(403, "invalid_request_error", message));
    }
    Ok(json!({
        "id": id, "object": "account", "business_type": null, "capabilities": {},
        "charges_enabled": true, "country": "US", "default_currency": "usd",
        "details_submitted": true, "email": null, "metadata": {}, "payouts_enabled": true,
        "settings": {}, "type": "standard",
    }))
}
