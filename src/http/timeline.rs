//! `/v1/timeline`: which subscription, plan and trial a tenant had, and when; and its invoices and
//! grants of credit as the provider showed them last.
//!
//! Invariant: what is answered of a moment does not depend on the order in which webhooks came. A
//! key that is bound to a tenant sees that tenant's only.

use super::auth::Scope;
use super::extract::{Answer, Call, Query};
use crate::api::tenants::{
    CreditGrantAnswer, InvoiceAnswer, StampAnswer, StretchAnswer, TimelineAnswer,
};
use crate::rules::invoice::judge_dunning;
use crate::rules::mirror::{ObjectKind, Snapshot};
use crate::rules::subscription::{stamps_at, unroll};
use crate::rules::window::parse_border;
use crate::store::{self, webhook::MirrorFilter};
use jiff::tz::TimeZone;
use serde::Deserialize;

/// Invoices and grants that are shown of a tenant.
const OBJECTS_MAX: usize = 1_000;

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TimelineQuery {
    tenant: String,
    /// The moment that is asked about (RFC 3339, or a date in UTC); now if it is left out.
    #[param(format = DateTime, example = "2026-11-15T12:00:00Z")]
    at: Option<String>,
}

/// Read a tenant's timeline
///
/// The tenant's subscriptions over time, with its Stripe invoices and credit grants.
#[utoipa::path(
    get, path = "/v1/timeline", tag = "tenants", params(TimelineQuery),
    responses((status = 200, description = "What is known", body = TimelineAnswer))
)]
pub async fn get_timeline(
    Call { app, caller }: Call,
    Query(query): Query<TimelineQuery>,
) -> Answer<TimelineAnswer> {
    let tenant = caller.tenant_for(Scope::Read, &query.tenant)?;
    let at = query.at.as_deref().map(|text| parse_border(text, &TimeZone::UTC)).transpose()?;
    let at = at.unwrap_or_else(|| app.clock.now());
    let stretches = unroll(&app.store.read_timeline(&tenant).await?);
    let (mut invoices, mut credit_grants) = (Vec::new(), Vec::new());
    let customer = app.store.find_tenant(&tenant).await?.and_then(|tenant| tenant.customer);
    if let Some(customer) = customer {
        for kind in [ObjectKind::Invoice, ObjectKind::CreditGrant] {
            let filter = MirrorFilter { kind, status: None, customer: Some(customer.clone()) };
            for mirror in app.store.list_mirrors(store::Query::first(filter, OBJECTS_MAX)).await? {
                let (id, snapshot) = (mirror.name.id, mirror.snapshot);
                invoices.extend(answer_invoice(&id, &snapshot));
                credit_grants.extend(answer_grant(&id, &snapshot));
            }
        }
    }
    Ok(axum::Json(TimelineAnswer {
        tenant: query.tenant,
        at,
        stamps: stamps_at(&stretches, at).into_iter().map(StampAnswer::from).collect(),
        stretches: stretches.into_iter().map(StretchAnswer::from).collect(),
        invoices,
        credit_grants,
    }))
}

fn answer_invoice(id: &str, snapshot: &Snapshot) -> Option<InvoiceAnswer> {
    let Snapshot::Invoice(invoice) = snapshot else { return None };
    Some(InvoiceAnswer {
        id: id.to_owned(),
        status: invoice.status.clone(),
        from: invoice.period.start,
        to: invoice.period.end,
        currency: invoice.currency.clone(),
        subtotal: invoice.subtotal,
        tax: invoice.tax,
        total: invoice.total,
        dunning: judge_dunning(invoice),
        finalizes_at: invoice.finalizes_at,
    })
}

fn answer_grant(id: &str, snapshot: &Snapshot) -> Option<CreditGrantAnswer> {
    let Snapshot::CreditGrant(grant) = snapshot else { return None };
    Some(CreditGrantAnswer {
        id: id.to_owned(),
        category: grant.category.clone(),
        currency: grant.currency.clone(),
        amount: grant.amount,
        status: snapshot.status().to_owned(),
        expires_at: grant.expires_at,
    })
}
