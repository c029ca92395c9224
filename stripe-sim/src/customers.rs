//! Customers.
//!
//! Invariant: a deleted customer can still be retrieved as deleted; it takes no usage and has no
//! subscription. A crash leaves nothing.

use crate::Simulator;
use crate::lists::{PAGING, Range, page_of};
use crate::metadata;
use crate::params::Params;
use crate::request::{Answer, ApiError};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

const FIELDS: [&str; 4] = ["name", "email", "description", "metadata"];
const TEXT_CHARACTERS_MAX: usize = 5_000;

/// Customers by id; ids ascend with time.
#[derive(Debug, Default)]
pub struct Customers {
    all: BTreeMap<String, Value>,
}

impl Customers {
    /// Whether usage can be recorded for it.
    pub fn is_live(&self, id: &str) -> bool {
        self.all.get(id).is_some_and(|customer| customer["deleted"].is_null())
    }

    pub fn all(&self) -> impl Iterator<Item = &Value> {
        self.all.values()
    }

    pub fn ids(&self) -> Vec<&str> {
        self.all.keys().map(String::as_str).filter(|id| self.is_live(id)).collect()
    }

    /// A customer that a parameter names.
    pub fn referenced(&self, id: &str) -> Result<&Value, ApiError> {
        self.live(id).map_err(|error| error.referenced("customer"))
    }

    fn live(&self, id: &str) -> Result<&Value, ApiError> {
        let found = self.all.get(id).filter(|customer| customer["deleted"].is_null());
        found.ok_or_else(|| ApiError::missing("customer", id))
    }
}

pub fn create(simulator: &mut Simulator, params: &Params) -> Answer {
    params.only(&FIELDS)?;
    let id = simulator.next_id("cus");
    let mut customer = json!({
        "id": id, "object": "customer", "created": simulator.now_seconds(), "livemode": false,
        "name": null, "email": null, "description": null, "metadata": {}, "balance": 0,
        "address": null, "currency": null, "default_source": null, "delinquent": false,
        "phone": null, "preferred_locales": [], "shipping": null, "tax_exempt": "none",
        "test_clock": null,
    });
    fill(&mut customer, params)?;
    simulator.customers.all.insert(id, customer.clone());
    simulator.emit("customer.created", &customer);
    Ok(customer)
}

pub fn update(simulator: &mut Simulator, id: &str, params: &Params) -> Answer {
    params.only(&FIELDS)?;
    let before = simulator.customers.live(id)?.clone();
    let mut customer = before.clone();
    fill(&mut customer, params)?;
    simulator.customers.all.insert(id.to_owned(), customer.clone());
    simulator.emit_change("customer.updated", &before, &customer);
    Ok(customer)
}

fn fill(customer: &mut Value, params: &Params) -> Result<(), ApiError> {
    for name in ["name", "email", "description"] {
        if let Some(text) = params.text(name, TEXT_CHARACTERS_MAX)? {
            customer[name] = text.into();
        } else if params.is_emptied(name) {
            customer[name] = Value::Null;
        }
    }
    check_email(&customer["email"])?;
    let mut metadata: Map<String, Value> =
        customer["metadata"].as_object().cloned().unwrap_or_default();
    metadata::merge(&mut metadata, params)?;
    customer["metadata"] = Value::Object(metadata);
    Ok(())
}

fn check_email(email: &Value) -> Result<(), ApiError> {
    let Some(email) = email.as_str() else { return Ok(()) };
    let parts = email.split_once('@').filter(|(name, host)| !name.is_empty() && !host.is_empty());
    if parts.is_none() || email.contains(char::is_whitespace) {
        let message = format!("Invalid email address: {email}");
        return Err(ApiError::parameter("email", message).with_code("email_invalid"));
    }
    Ok(())
}

pub fn retrieve(simulator: &Simulator, id: &str) -> Answer {
    let found = simulator.customers.all.get(id).cloned();
    found.ok_or_else(|| ApiError::missing("customer", id))
}

pub fn delete(simulator: &mut Simulator, id: &str) -> Answer {
    let before = simulator.customers.live(id)?.clone();
    let deleted = json!({ "id": id, "object": "customer", "deleted": true });
    simulator.customers.all.insert(id.to_owned(), deleted.clone());
    crate::subscriptions::cancel_all(simulator, id);
    simulator.emit("customer.deleted", &before);
    Ok(deleted)
}

pub fn list(simulator: &Simulator, params: &Params) -> Answer {
    params.only(&[&PAGING[..], &["email", "created"]].concat())?;
    let email = params.text("email", TEXT_CHARACTERS_MAX)?;
    let created = Range::read(params, "created")?;
    let wanted = |(_, customer): &(&String, &Value)| {
        customer["deleted"].is_null()
            && customer["created"].as_i64().is_some_and(|at| created.contains(at))
            && email.as_ref().is_none_or(|email| customer["email"] == email.as_str())
    };
    let rows: Vec<(&String, &Value)> =
        simulator.customers.all.iter().rev().filter(wanted).collect();
    page_of(&rows, |(id, _)| id, |(_, shown)| Value::clone(shown), params, "/v1/customers")
}
