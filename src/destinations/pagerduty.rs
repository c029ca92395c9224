//! PagerDuty's Events API v2: an alert that opens triggers an incident, its end resolves it.
//!
//! Invariant: `dedup_key` is the alert's and not the notice's, so a notice that is sent twice makes
//! one incident, and the resolving one finds it.

use super::guard::{Outlet, Reply};
use super::{Destination, Notice, Sending, one_line, shorten};
use crate::config::{AlertsConfig, Secret};
use crate::rules::alert::{Alert, NoticeEvent, Severity};
use async_trait::async_trait;
use serde_json::{Value, json};

/// PagerDuty refuses a longer summary.
const SUMMARY_CHARS_MAX: usize = 1_024;

pub struct PagerDuty {
    outlet: Outlet,
    key: Secret,
}

impl PagerDuty {
    /// None if the settings do not name one.
    pub fn connect(config: &AlertsConfig) -> Result<Option<Self>, String> {
        if config.pagerduty_key.is_empty() {
            return Ok(None);
        }
        let key = config.pagerduty_key.clone();
        let url = Secret::new(&config.pagerduty_url);
        let outlet = Outlet::connect("alerts.pagerduty_url", &url, config)?.hiding(key.expose());
        Ok(Some(Self { outlet, key }))
    }
}

#[async_trait]
impl Destination for PagerDuty {
    fn name(&self) -> &'static str {
        "pagerduty"
    }

    async fn send(&self, notice: &Notice<'_>) -> Sending {
        let body = encode(notice, &self.key).to_string().into_bytes();
        match self.outlet.post(&[], body).await {
            Ok(reply) => judge(&reply),
            Err(sending) => sending,
        }
    }
}

fn encode(notice: &Notice<'_>, key: &Secret) -> Value {
    let alert = notice.alert;
    let (routing_key, dedup_key) = (key.expose(), dedup_key(alert));
    match notice.event {
        NoticeEvent::Opened => json!({
            "routing_key": routing_key,
            "event_action": "trigger",
            "dedup_key": dedup_key,
            "payload": encode_alert(alert),
        }),
        // PagerDuty reads nothing else of it.
        NoticeEvent::Resolved => json!({
            "routing_key": routing_key,
            "event_action": "resolve",
            "dedup_key": dedup_key,
        }),
    }
}

/// The time is in it because two installations may share a PagerDuty service: one must not resolve
/// the other's incident of the same number.
fn dedup_key(alert: &Alert) -> String {
    format!("counterfoil-alert-{}-{}", alert.number, alert.opened_at.micros())
}

fn encode_alert(alert: &Alert) -> Value {
    let severity = match alert.kind.severity() {
        Severity::Page => "critical",
        Severity::Notice => "warning",
    };
    let component = if alert.subject.is_empty() { "counterfoil" } else { &alert.subject };
    json!({
        "summary": shorten(&one_line(&alert.summary), SUMMARY_CHARS_MAX),
        "source": "counterfoil",
        "severity": severity,
        "timestamp": alert.opened_at.to_string(),
        "component": component,
        "class": alert.kind.name(),
        "custom_details": {
            "number": alert.number,
            "subject": alert.subject,
            "command": alert.command,
        },
    })
}

/// 202 is PagerDuty's word that it has the event; another 2xx comes from something else.
fn judge(reply: &Reply) -> Sending {
    match reply.status {
        202 => Sending::Sent,
        400 => Sending::Refused { detail: reply.describe("PagerDuty") },
        _ => Sending::Later { detail: reply.describe("PagerDuty") },
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{alert, notice};
    use super::*;

    #[test]
    fn the_end_closes_what_the_beginning_opened() {
        let alert = alert(&"é".repeat(2_000));
        let key = Secret::new("routing");
        let opened = encode(&notice(&alert, NoticeEvent::Opened), &key);
        let resolved = encode(&notice(&alert, NoticeEvent::Resolved), &key);
        assert_eq!(opened["dedup_key"], resolved["dedup_key"]);
        assert_eq!(opened["event_action"], "trigger");
        assert_eq!(resolved["event_action"], "resolve");
        assert_eq!(opened["payload"]["severity"], "critical");
        assert_eq!(opened["payload"]["class"], "dead_letters");
        assert_eq!(opened["payload"]["component"], "acme");
        assert_eq!(opened["payload"]["timestamp"], "2026-11-15T12:30:00Z");
        let summary = opened["payload"]["summary"].as_str().expect("a text");
        assert_eq!(summary.chars().count(), 1_024);
    }
}
