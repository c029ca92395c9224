//! Credit grants, which pay for metered usage when an invoice is finalized.
//!
//! Invariant: a grant never pays more than its amount, nor before it is effective, nor after it
//! has expired or was voided. A crash leaves nothing.

use crate::Simulator;
use crate::lists::{PAGING, page_of};
use crate::params::Params;
use crate::request::{Answer, ApiError};
use serde_json::{Map, Value, json};
use std::cmp::Reverse;
use std::collections::BTreeMap;

const PRIORITY_DEFAULT: i64 = 50;
const PRIORITY_MAX: i64 = 100;

#[derive(Debug, Clone)]
struct CreditGrant {
    id: String,
    customer: String,
    currency: String,
    amount: i64,
    left: i64,
    category: String,
    name: Option<String>,
    priority: i64,
    created: i64,
    effective: i64,
    expires: Option<i64>,
    updated: i64,
    voided: Option<i64>,
    metadata: Map<String, Value>,
}

impl CreditGrant {
    fn is_usable(&self, at: i64) -> bool {
        self.left > 0
            && self.effective <= at
            && self.voided.is_none()
            && self.expires.is_none_or(|expires| at < expires)
    }

    fn to_json(&self) -> Value {
        json!({
            "id": self.id, "object": "billing.credit_grant", "livemode": false,
            "amount": {
                "type": "monetary",
                "monetary": { "currency": self.currency, "value": self.amount },
            },
            "applicability_config": { "scope": { "price_type": "metered" } },
            "category": self.category, "created": self.created, "updated": self.updated,
            "customer": self.customer, "effective_at": self.effective,
            "expires_at": self.expires, "metadata": self.metadata, "name": self.name,
            "priority": self.priority, "voided_at": self.voided,
        })
    }
}

/// Grants by id; ids ascend with time.
#[derive(Debug, Default)]
pub struct CreditGrants {
    all: BTreeMap<String, CreditGrant>,
}

pub fn create(simulator: &mut Simulator, params: &Params) -> Answer {
    params.only(&[
        "customer",
        "amount",
        "applicability_config",
        "category",
        "name",
        "priority",
        "effective_at",
        "expires_at",
        "metadata",
    ])?;
    let customer = params.required_text("customer", usize::MAX)?;
    simulator.customers.referenced(&customer)?;
    let amount = params.required_nested("amount")?;
    amount.choice("type", &["monetary"])?.ok_or_else(|| amount.missing("type"))?;
    let monetary = amount.required_nested("monetary")?;
    let scope = params.required_nested("applicability_config")?.required_nested("scope")?;
    scope.choice("price_type", &["metered"])?.ok_or_else(|| scope.missing("price_type"))?;
    let priority = params.integer("priority")?.unwrap_or(PRIORITY_DEFAULT);
    if !(0..=PRIORITY_MAX).contains(&priority) {
        return Err(ApiError::parameter("priority", "priority must be between 0 and 100"));
    }
    let (value, now) = (monetary.required_integer("value")?, simulator.now_seconds());
    if value <= 0 {
        return Err(ApiError::parameter("amount[monetary][value]", "the value must be positive"));
    }
    let category = params.choice("category", &["paid", "promotional"])?;
    let grant = CreditGrant {
        customer,
        currency: monetary.required_text("currency", 3)?,
        amount: value,
        left: value,
        category: category.unwrap_or_else(|| "paid".to_owned()),
        name: params.text("name", 100)?,
        priority,
        created: now,
        effective: params.integer("effective_at")?.unwrap_or(now),
        expires: params.integer("expires_at")?,
        updated: now,
        voided: None,
        metadata: params.text_map("metadata")?,
        id: simulator.next_id("credgr_test"),
    };
    Ok(store(simulator, grant, "billing.credit_grant.created"))
}

pub fn retrieve(simulator: &Simulator, id: &str) -> Answer {
    Ok(find(simulator, id)?.to_json())
}

pub fn list(simulator: &Simulator, params: &Params) -> Answer {
    params.only(&[&PAGING[..], &["customer"]].concat())?;
    let customer = params.text("customer", usize::MAX)?;
    let wanted = |grant: &&CreditGrant| customer.as_ref().is_none_or(|id| grant.customer == *id);
    let found: Vec<&CreditGrant> =
        simulator.credit_grants.all.values().rev().filter(wanted).collect();
    let url = "/v1/billing/credit_grants";
    page_of(&found, |grant| &grant.id, |grant| grant.to_json(), params, url)
}

/// Changes the expiry (an empty text removes it) and the metadata.
pub fn update(simulator: &mut Simulator, id: &str, params: &Params) -> Answer {
    params.only(&["expires_at", "metadata"])?;
    let mut grant = find(simulator, id)?.clone();
    if params.is_given("expires_at") {
        grant.expires = params.integer("expires_at")?;
    }
    grant.metadata.extend(params.text_map("metadata")?);
    Ok(store(simulator, grant, "billing.credit_grant.updated"))
}

pub fn expire(simulator: &mut Simulator, id: &str) -> Answer {
    let mut grant = find(simulator, id)?.clone();
    grant.expires = Some(simulator.now_seconds());
    Ok(store(simulator, grant, "billing.credit_grant.updated"))
}

pub fn void(simulator: &mut Simulator, id: &str) -> Answer {
    let mut grant = find(simulator, id)?.clone();
    if grant.left < grant.amount {
        return Err(ApiError::refused("A credit grant that was used cannot be voided."));
    }
    grant.voided = Some(simulator.now_seconds());
    Ok(store(simulator, grant, "billing.credit_grant.updated"))
}

/// Pays as much of an amount as the customer's grants can; returns the grants with what each paid.
/// The order is priority, earlier expiry, promotional before paid, earlier effective, earlier
/// created.
pub fn apply(
    simulator: &mut Simulator,
    customer: &str,
    currency: &str,
    amount: i64,
    at: i64,
) -> Vec<(String, i64)> {
    let mut usable: Vec<&mut CreditGrant> = simulator
        .credit_grants
        .all
        .values_mut()
        .filter(|grant| grant.customer == customer && grant.currency == currency)
        .filter(|grant| grant.is_usable(at))
        .collect();
    usable.sort_by_key(|grant| {
        let expires = grant.expires.unwrap_or(i64::MAX);
        let promotional = grant.category == "promotional";
        (grant.priority, expires, Reverse(promotional), grant.effective, grant.id.clone())
    });
    let (mut unpaid, mut paid) = (amount, Vec::new());
    for grant in usable {
        let part = grant.left.min(unpaid);
        if part > 0 {
            grant.left -= part;
            unpaid -= part;
            paid.push((grant.id.clone(), part));
        }
    }
    paid
}

/// Gives back what a grant paid, as voiding an invoice does.
pub fn give_back(simulator: &mut Simulator, grant: &str, amount: i64) {
    if let Some(grant) = simulator.credit_grants.all.get_mut(grant) {
        grant.left = grant.amount.min(grant.left + amount);
    }
}

fn find<'s>(simulator: &'s Simulator, id: &str) -> Result<&'s CreditGrant, ApiError> {
    let found = simulator.credit_grants.all.get(id);
    found.ok_or_else(|| ApiError::missing("credit grant", id))
}

fn store(simulator: &mut Simulator, mut grant: CreditGrant, event: &str) -> Value {
    grant.updated = simulator.now_seconds();
    let shown = grant.to_json();
    match simulator.credit_grants.all.insert(grant.id.clone(), grant) {
        Some(before) => simulator.emit_change(event, &before.to_json(), &shown),
        None => {
            simulator.emit(event, &shown);
        }
    }
    shown
}
