//! A webhook of the user's own, signed as Standard Webhooks asks.
//!
//! Invariant: `webhook-id` and the body are the same on every try of a notice; `webhook-timestamp`
//! is the time of the try, so that a receiver may refuse what is replayed late.

use super::guard::{Outlet, Reply};
use super::{Destination, Notice, Sending};
use crate::config::AlertsConfig;
use crate::rules::signature::SigningKey;
use crate::rules::timestamp::{MICROS_PER_SECOND, Timestamp};
use async_trait::async_trait;

pub struct Webhook {
    outlet: Outlet,
    key: SigningKey,
}

impl Webhook {
    /// None if the settings do not name one.
    pub fn connect(config: &AlertsConfig) -> Result<Option<Self>, String> {
        let (url, secret) = (&config.webhook_url, &config.webhook_secret);
        match (url.is_empty(), secret.is_empty()) {
            (true, true) => return Ok(None),
            (true, false) => {
                return Err("alerts.webhook_secret is given: set alerts.webhook_url too".into());
            }
            (false, true) => {
                return Err("alerts.webhook_url is given: set alerts.webhook_secret too, which \
                            signs what is sent"
                    .into());
            }
            (false, false) => {}
        }
        let key = SigningKey::read(secret.expose()).ok_or(
            "alerts.webhook_secret is base64 of at least 16 bytes, with or without whsec_ before \
             it",
        )?;
        let coded = secret.expose().trim_start_matches("whsec_");
        let outlet = Outlet::connect("alerts.webhook_url", url, config)?.hiding(coded);
        Ok(Some(Self { outlet, key }))
    }
}

#[async_trait]
impl Destination for Webhook {
    fn name(&self) -> &'static str {
        "webhook"
    }

    async fn send(&self, notice: &Notice<'_>) -> Sending {
        self.post(notice.key(), encode(notice), notice.at).await
    }
}

impl Webhook {
    async fn post(&self, id: String, body: Vec<u8>, at: Timestamp) -> Sending {
        let seconds = at.micros().div_euclid(MICROS_PER_SECOND);
        let signature = self.key.sign(&id, seconds, &body);
        let headers = [
            ("webhook-id", id),
            ("webhook-timestamp", seconds.to_string()),
            ("webhook-signature", signature),
        ];
        match self.outlet.post(&headers, body).await {
            Ok(reply) => judge(&reply),
            Err(sending) => sending,
        }
    }
}

/// The webhook receiver, for changes.
pub struct ChangeWebhook(Webhook);

impl ChangeWebhook {
    /// None if the settings do not ask for it.
    pub fn connect(config: &AlertsConfig) -> Result<Option<Self>, String> {
        if !config.webhook_changes {
            return Ok(None);
        }
        match Webhook::connect(config)? {
            Some(webhook) => Ok(Some(Self(webhook))),
            None => Err("alerts.webhook_changes is true: set alerts.webhook_url and \
                         alerts.webhook_secret"
                .into()),
        }
    }

    /// One try, which ends within `alerts.timeout_ms`.
    pub async fn tell(&self, change: &OutgoingChange<'_>) -> Sending {
        self.0.post(change.id.to_owned(), encode_change(change), change.now).await
    }
}

/// A change as it is sent; the same on every attempt, except for its time.
#[derive(Debug, Clone, Copy)]
pub struct OutgoingChange<'a> {
    pub id: &'a str,
    pub kind: &'a str,
    /// A JSON object.
    pub payload: &'a str,
    /// When it happened.
    pub at: Timestamp,
    /// The time of this try.
    pub now: Timestamp,
}

fn encode_change(change: &OutgoingChange<'_>) -> Vec<u8> {
    let data: serde_json::Value = serde_json::from_str(change.payload).unwrap_or_default();
    let (kind, at) = (change.kind, change.at.to_string());
    serde_json::json!({"type": kind, "timestamp": at, "data": data}).to_string().into_bytes()
}

fn encode(notice: &Notice<'_>) -> Vec<u8> {
    let alert = notice.alert;
    serde_json::json!({
        "type": format!("alert.{}", notice.event.name()),
        "timestamp": notice.happened_at().to_string(),
        "data": {
            "number": alert.number,
            "kind": alert.kind.name(),
            "severity": alert.kind.severity().name(),
            "subject": alert.subject,
            "summary": alert.summary,
            "command": alert.command,
            "opened_at": alert.opened_at.to_string(),
            "resolved_at": alert.resolved_at.map(|at| at.to_string()),
        },
    })
    .to_string()
    .into_bytes()
}

/// A redirect, a wrong secret or a wrong path can be put right at the receiver, so they are tried
/// again; what says that this notice is not wanted is not.
fn judge(reply: &Reply) -> Sending {
    match reply.status {
        200..=299 => Sending::Sent,
        400 | 410 | 413 | 422 => Sending::Refused { detail: reply.describe("the receiver") },
        _ => Sending::Later { detail: reply.describe("the receiver") },
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{alert, notice};
    use super::*;
    use crate::rules::alert::NoticeEvent;

    #[test]
    fn a_notice_that_is_tried_again_has_the_same_body() {
        let mut alert = alert("3 pushes need an operator");
        alert.resolved_at = Some(Timestamp::parse("2026-11-15T12:45:00Z").expect("an instant"));
        let first = notice(&alert, NoticeEvent::Resolved);
        let again = Notice { at: first.at.saturating_add_micros(1), ..first };
        assert_eq!(encode(&first), encode(&again));
        let body: serde_json::Value = serde_json::from_slice(&encode(&first)).expect("JSON");
        assert_eq!(body["type"], "alert.resolved");
        assert_eq!(body["timestamp"], "2026-11-15T12:45:00Z");
        assert_eq!(body["data"]["resolved_at"], "2026-11-15T12:45:00Z");
    }

    #[test]
    fn answers_are_sorted() {
        let check = |status: u16, expected: &str| {
            let name = match judge(&Reply { status, text: String::new() }) {
                Sending::Sent => "sent",
                Sending::Later { .. } => "later",
                Sending::Refused { .. } => "refused",
            };
            assert_eq!(name, expected, "{status}");
        };
        for status in [200, 202, 204] {
            check(status, "sent");
        }
        for status in [301, 302, 401, 403, 404, 408, 429, 500, 503] {
            check(status, "later");
        }
        for status in [400, 410, 413, 422] {
            check(status, "refused");
        }
    }
}
