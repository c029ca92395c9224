//! `/webhooks/stripe`, where the provider tells what has happened, and `/v1/webhooks`, the log of
//! it.
//!
//! Invariant: nothing is read of a body whose signature is not good, and such a request leaves no
//! trace but a counter. A webhook is answered with 200 only after the commit that holds it; if the
//! store cannot write, with 503, so that the provider sends it again.

use super::App;
use super::auth::Scope;
use super::extract::{Answer, Call, Limit, Path, Query, Request, list_query};
use super::problem::{Kind, Problem};
use super::records::raw_json;
use crate::api::webhooks::{
    ReceivedAnswer, ReplayAnswer, WebhookAnswer, WebhookList, WebhookTrace,
};
use crate::provider::stripe::signature::{self, Forgery};
use crate::provider::stripe::webhook::{is_plain, parse_webhook};
use crate::rules::webhook::{WebhookSource, WebhookStatus};
use crate::store::webhook::{Receipted, WebhookFilter, WebhookReceipt, WebhookRecord};
use axum::extract::State;
use http::header::CONTENT_LENGTH;
use std::sync::Arc;

/// Receive a Stripe webhook
///
/// For Stripe alone: signed with one of `stripe.webhook_secrets` over the bytes of the body, within
/// five minutes. Needs no key.
#[utoipa::path(
    post, path = "/webhooks/stripe", tag = "webhooks", security(()),
    request_body(content = String, content_type = "application/json"),
    responses(
        (status = 200, description = "It is stored", body = ReceivedAnswer),
        (status = 400, description = "The signature is invalid, or the event has no id"),
        (status = 413, description = "It has more than 256 KiB"),
        (status = 500, description = "The server failed; its log says why"),
        (status = 503, description = "It cannot be stored now, or no secret is set; send it again"),
    )
)]
pub async fn receive_stripe(
    State(app): State<Arc<App>>,
    request: Request,
) -> Answer<ReceivedAnswer> {
    if app.webhook_secrets.is_empty() {
        let detail = "no webhook secret is set; set COUNTERFOIL_STRIPE_WEBHOOK_SECRETS to the \
                      endpoint's signing secret";
        return Err(Problem::new(Kind::Unavailable, "webhooks_not_set_up", detail));
    }
    let (mut parts, body) = request.into_parts();
    let length = parts.headers.remove(CONTENT_LENGTH);
    let header = parts.headers.remove("stripe-signature");
    // Without the other headers: the signature is over the bytes as they are.
    parts.headers.clear();
    parts.headers.extend(length.map(|length| (CONTENT_LENGTH, length)));
    let body = app.webhook_bodies.read(&parts, body).await.inspect_err(|problem| {
        count_refused(if problem.is_too_large() { "too_large" } else { "body" });
    })?;
    let received_at = app.clock.now();
    let header = header.as_ref().and_then(|value| value.to_str().ok()).unwrap_or_default();
    let judged = signature::verify(&app.webhook_secrets, header, &body.bytes, received_at);
    if let Err(forgery) = judged {
        count_refused(forgery.name());
        let detail = match forgery {
            Forgery::Unsigned => {
                "there is no Stripe-Signature header of the form t=…,v1=…; only Stripe sends here"
            }
            Forgery::Mismatch => {
                "no active secret has signed these bytes; compare stripe.webhook_secrets with the \
                 endpoint's signing secret, and leave the body unchanged in proxies"
            }
            Forgery::Expired => {
                "it was signed more than five minutes ago or ahead of this server's clock; compare \
                 the clocks"
            }
        };
        return Err(Problem::new(Kind::Invalid, "invalid_signature", detail));
    }
    let facts = parse_webhook(&body.bytes).map_err(|refusal| {
        count_refused(refusal.code);
        Problem::new(Kind::Invalid, refusal.code, refusal.detail)
    })?;
    let (payload, source) = (body.bytes.to_vec(), WebhookSource::Delivered);
    let receipt = WebhookReceipt { facts, payload, source, received_at };
    let Receipted { number, fresh } = app.inbox.submit(receipt).await?;
    let known = if fresh { "fresh" } else { "duplicate" };
    metrics::counter!("counterfoil_webhooks_total", "known" => known).increment(1);
    Ok(axum::Json(ReceivedAnswer { id: number, duplicate: !fresh }))
}

fn count_refused(reason: &'static str) {
    metrics::counter!("counterfoil_webhooks_refused_total", "reason" => reason).increment(1);
}

list_query!(WebhookParameters, before, {
    #[param(inline)]
    status: Option<WebhookStatus>,
    /// Only events of this type, such as `invoice.created`.
    #[serde(rename = "type")]
    #[param(min_length = 1, max_length = 255, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    event_type: Option<String>,
});

/// List webhooks
#[utoipa::path(
    get, path = "/v1/webhooks", tag = "webhooks", params(WebhookParameters),
    responses((status = 200, description = "A page of webhooks", body = WebhookList))
)]
pub async fn list_webhooks(
    Call { app, caller }: Call,
    Query(query): Query<WebhookParameters>,
) -> Answer<WebhookList> {
    caller.require_unbound(Scope::Read)?;
    let WebhookParameters { status, event_type, before, limit } = query;
    let limit = Limit::parse(limit)?;
    // A NUL would fail in one of the stores; no event that was taken has such a type.
    if event_type.as_ref().is_some_and(|text| !is_plain(text)) {
        let detail = "type has 1 to 255 bytes and no control characters";
        return Err(Problem::new(Kind::Invalid, "invalid_type", detail));
    }
    let filter = WebhookFilter { status, event_type };
    let found = app.store.list_webhooks(limit.query(filter, before)).await?;
    limit.page(found, |webhook| webhook.number, |webhook| Ok(webhook.into()))
}

/// Read a webhook
#[utoipa::path(
    get, path = "/v1/webhooks/{webhook}", tag = "webhooks",
    params(("webhook" = u64, Path, description = "The webhook's id in the log")),
    responses(
        (status = 200, description = "The webhook with its payload", body = WebhookTrace),
        (status = 404, description = "There is no such webhook"),
    )
)]
pub async fn get_webhook(
    Call { app, caller }: Call,
    Path(number): Path<u64>,
) -> Answer<WebhookTrace> {
    caller.require_unbound(Scope::Read)?;
    let found = app.store.find_webhook(number).await?;
    let (webhook, payload) = found.ok_or_else(unknown_webhook)?;
    let payload = String::from_utf8(payload);
    let payload = payload.map_err(|_| Problem::corrupt("a webhook's payload is not a text"))?;
    Ok(axum::Json(WebhookTrace { webhook: webhook.into(), payload: raw_json(payload)? }))
}

/// Replay a webhook
///
/// The server reads the webhook's object from the provider again. Repeating it is safe.
#[utoipa::path(
    post, path = "/v1/webhooks/{webhook}/replay", tag = "webhooks",
    params(("webhook" = u64, Path, description = "The webhook's id in the log")),
    responses(
        (status = 200, description = "Its object is read again", body = ReplayAnswer),
        (status = 404, description = "There is no such webhook"),
        (status = 409, description = "This event type has no effect to replay"),
    )
)]
pub async fn replay_webhook(
    Call { app, caller }: Call,
    Path(number): Path<u64>,
) -> Answer<ReplayAnswer> {
    caller.require_unbound(Scope::Operate)?;
    let ruling = app.store.replay_webhook(number, app.clock.now()).await?;
    Problem::unless_ruled(ruling, "webhook_not_replayed", unknown_webhook)?;
    app.inbox.arrived().notify_one();
    Ok(axum::Json(ReplayAnswer { id: number }))
}

fn unknown_webhook() -> Problem {
    let detail = "there is no webhook of this id; GET /v1/webhooks lists them";
    Problem::new(Kind::NotFound, "unknown_webhook", detail)
}

impl From<WebhookRecord> for WebhookAnswer {
    fn from(record: WebhookRecord) -> Self {
        let (object_kind, object_id) = record.object.map(|name| (name.kind, name.id)).unzip();
        Self {
            id: record.number,
            event_id: record.event_id,
            event_type: record.event_type,
            object_kind,
            object_id,
            source: record.source,
            status: record.status,
            created_at: record.created_at,
            received_at: record.received_at,
            settled_at: record.settled_at,
            deliveries: record.deliveries,
            detail: record.detail,
        }
    }
}
