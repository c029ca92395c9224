//! What a webhook, Slack and PagerDuty are sent, and what their answers mean.

use super::{alert, later, only, opened, refused, resolved, settings};
use crate::world::{Receiver, at};
use counterfoil::config::{AlertsConfig, Secret};
use counterfoil::destinations::{Notice, Sending};
use serde_json::json;
use std::time::{Duration, Instant};

/// Base64 of the secret `counterfoil-alert-secret-for-tests!!`, as `base64` prints it.
const SECRET: &str = "whsec_Y291bnRlcmZvaWwtYWxlcnQtc2VjcmV0LWZvci10ZXN0cyEh";
const SECRET_BYTES: &[u8] = b"counterfoil-alert-secret-for-tests!!";

fn webhook(url: &str) -> AlertsConfig {
    let (webhook_url, webhook_secret) = (Secret::new(url), Secret::new(SECRET));
    AlertsConfig { webhook_url, webhook_secret, ..settings() }
}

fn slack(url: &str) -> AlertsConfig {
    AlertsConfig { slack_url: Secret::new(url), ..settings() }
}

fn pagerduty(url: &str) -> AlertsConfig {
    let pagerduty_key = Secret::new("canary-routing-key");
    AlertsConfig { pagerduty_key, pagerduty_url: url.to_owned(), ..settings() }
}

#[tokio::test]
async fn a_webhook_is_signed_and_says_what_happened() {
    let receiver = Receiver::start(204).await;
    let destination = only(&webhook(&format!("{}/hooks?a=b", receiver.base)));
    assert_eq!(destination.name(), "webhook");
    let mut alert = alert();
    assert_eq!(destination.send(&opened(&alert)).await, Sending::Sent);
    alert.resolved_at = Some(at("2026-11-15T12:45:00Z"));
    assert_eq!(destination.send(&resolved(&alert)).await, Sending::Sent);
    let calls = receiver.calls();
    calls.iter().for_each(|call| call.verify(SECRET_BYTES));
    assert_eq!(calls[0].header("content-type"), "application/json");
    assert_eq!(calls[0].header("webhook-timestamp"), "1794745860");
    assert_ne!(calls[0].header("webhook-id"), calls[1].header("webhook-id"));
    let expected = json!({
        "type": "alert.opened", "timestamp": "2026-11-15T12:30:00Z",
        "data": {
            "number": 7, "kind": "dead_letters", "severity": "page", "subject": "acme",
            "summary": "3 pushes of <acme> & others need an operator",
            "command": "counterfoil pushes list --state dead",
            "opened_at": "2026-11-15T12:30:00Z", "resolved_at": null,
        },
    });
    assert_eq!(calls[0].json(), expected);
    assert_eq!(calls[1].json()["type"], "alert.resolved");
    assert_eq!(calls[1].json()["timestamp"], "2026-11-15T12:45:00Z");
    assert_eq!(calls[1].json()["data"]["resolved_at"], "2026-11-15T12:45:00Z");
}

#[tokio::test]
async fn a_receiver_in_trouble_gets_the_same_id_and_body_again() {
    let receiver = Receiver::start(200).await;
    receiver.answers(500, "out of\norder");
    let destination = only(&webhook(&receiver.base));
    let alert = alert();
    let first = opened(&alert);
    let detail = later(destination.send(&first).await);
    assert_eq!(detail, "the receiver answered 500: out of order");
    let again = Notice { at: at("2026-11-15T12:40:00Z"), ..first };
    assert_eq!(destination.send(&again).await, Sending::Sent);
    let calls = receiver.calls();
    calls.iter().for_each(|call| call.verify(SECRET_BYTES));
    assert_eq!(calls[0].header("webhook-id"), calls[1].header("webhook-id"));
    assert_eq!(calls[0].body, calls[1].body);
    assert_eq!(calls[1].header("webhook-timestamp"), "1794746400");
}

#[tokio::test]
async fn what_a_receiver_refuses_is_refused() {
    let receiver = Receiver::start(200).await;
    let destination = only(&webhook(&receiver.base));
    for status in [400, 410, 413, 422] {
        receiver.answers(status, "");
        let detail = refused(destination.send(&opened(&alert())).await);
        assert_eq!(detail, format!("the receiver answered {status}"));
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let (receiver, other) = (Receiver::start(200).await, Receiver::start(200).await);
    for status in [301, 302, 303, 307, 308] {
        for config in [webhook(&receiver.base), slack(&receiver.base), pagerduty(&receiver.base)] {
            receiver.redirects(status, &format!("{}/elsewhere", other.base));
            let detail = later(only(&config).send(&opened(&alert())).await);
            assert!(detail.contains(&status.to_string()), "{detail}");
        }
    }
    assert_eq!((receiver.calls().len(), other.calls().len()), (15, 0));
}

#[tokio::test]
async fn slack_gets_a_short_text() {
    let receiver = Receiver::start(200).await;
    let destination = only(&slack(&format!("{}/services/T1/B1/canary", receiver.base)));
    assert_eq!(destination.name(), "slack");
    let alert = alert();
    assert_eq!(destination.send(&opened(&alert)).await, Sending::Sent);
    assert_eq!(destination.send(&resolved(&alert)).await, Sending::Sent);
    let calls = receiver.calls();
    assert_eq!(calls[0].path, "/services/T1/B1/canary");
    let summary = "3 pushes of &lt;acme&gt; &amp; others need an operator";
    let command = "`counterfoil pushes list --state dead`";
    assert_eq!(calls[0].json(), json!({ "text": format!("[page] {summary}\n{command}") }));
    let text = format!("[page resolved] {summary}\n{command}");
    assert_eq!(calls[1].json(), json!({ "text": text }));
}

#[tokio::test]
async fn slacks_answers_are_told_apart() {
    let receiver = Receiver::start(200).await;
    let destination = only(&slack(&receiver.base));
    for (status, body) in [(404, "no_service"), (410, "channel_is_archived"), (400, "bad")] {
        receiver.answers(status, body);
        let detail = refused(destination.send(&opened(&alert())).await);
        assert_eq!(detail, format!("Slack answered {status}: {body}"));
    }
    for status in [429, 500, 503] {
        receiver.answers(status, "");
        later(destination.send(&opened(&alert())).await);
    }
}

#[tokio::test]
async fn pagerduty_gets_a_trigger_and_its_resolution() {
    let receiver = Receiver::start(202).await;
    let destination = only(&pagerduty(&format!("{}/v2/enqueue", receiver.base)));
    assert_eq!(destination.name(), "pagerduty");
    let alert = alert();
    assert_eq!(destination.send(&opened(&alert)).await, Sending::Sent);
    assert_eq!(destination.send(&resolved(&alert)).await, Sending::Sent);
    let calls = receiver.calls();
    let expected = json!({
        "routing_key": "canary-routing-key", "event_action": "trigger",
        "dedup_key": "counterfoil-alert-7-1794745800000000",
        "payload": {
            "summary": "3 pushes of <acme> & others need an operator",
            "source": "counterfoil", "severity": "critical", "timestamp": "2026-11-15T12:30:00Z",
            "component": "acme", "class": "dead_letters",
            "custom_details": {
                "number": 7, "subject": "acme", "command": "counterfoil pushes list --state dead",
            },
        },
    });
    assert_eq!(calls[0].json(), expected);
    let expected = json!({
        "routing_key": "canary-routing-key", "event_action": "resolve",
        "dedup_key": "counterfoil-alert-7-1794745800000000",
    });
    assert_eq!(calls[1].json(), expected);
}

#[tokio::test]
async fn pagerdutys_answers_are_told_apart() {
    let receiver = Receiver::start(202).await;
    let destination = only(&pagerduty(&receiver.base));
    receiver.answers(400, r#"{"status":"invalid event","errors":["no summary"]}"#);
    let detail = refused(destination.send(&opened(&alert())).await);
    assert!(detail.starts_with("PagerDuty answered 400: ") && detail.contains("no summary"));
    for status in [429, 500, 503, 200] {
        receiver.answers(status, "");
        later(destination.send(&opened(&alert())).await);
    }
}

/// A receiver that repeats what it was sent, as many do in their errors.
#[tokio::test]
async fn no_secret_is_told_by_any_answer() {
    let receiver = Receiver::start(500).await;
    let url = format!("{}/services/canary-in-the-path?token=canary-query", receiver.base);
    let coded = SECRET.strip_prefix("whsec_").unwrap();
    let cases = [
        (webhook(&url), vec!["/services/canary-in-the-path", "token=canary-query", SECRET, coded]),
        (slack(&url), vec!["/services/canary-in-the-path", "token=canary-query"]),
        (pagerduty(&receiver.base), vec!["canary-routing-key"]),
    ];
    for (config, secrets) in cases {
        let destination = only(&config);
        for secret in secrets {
            for status in [400, 500] {
                receiver.answers(status, &format!("what is {secret}?"));
                let told = format!("{:?}", destination.send(&opened(&alert())).await);
                assert!(told.contains(&status.to_string()), "{told}");
                assert!(!told.contains("canary") && !told.contains(coded), "{told}");
            }
        }
        let shown = format!("{config:?}");
        assert!(!shown.contains("canary") && !shown.contains(coded), "{shown}");
    }
}

#[tokio::test]
async fn an_endless_answer_is_read_a_little() {
    let receiver = Receiver::start(500).await;
    receiver.answers(500, &"a".repeat(64 * 1024 * 1024));
    let detail = later(only(&slack(&receiver.base)).send(&opened(&alert())).await);
    assert!(detail.chars().count() < 300, "{}", detail.len());
}

/// Nobody listens; somebody listens and says nothing; somebody speaks another language.
#[tokio::test]
async fn a_receiver_that_does_not_answer_is_tried_later() {
    use tokio::io::AsyncWriteExt;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let config = AlertsConfig { timeout_ms: 300, ..slack(&format!("http://{address}/canary")) };
    let destination = only(&config);
    let before = Instant::now();
    let detail = later(destination.send(&opened(&alert())).await);
    assert!(detail.starts_with("no answer in time") && !detail.contains("canary"), "{detail}");
    assert!(before.elapsed() < Duration::from_secs(4));
    drop(listener);
    let detail = later(destination.send(&opened(&alert())).await);
    assert!(detail.starts_with("no answer: ") && !detail.contains("canary"), "{detail}");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"220 mail.example.com ready\r\n").await.unwrap();
    });
    let destination = only(&slack(&format!("http://{address}/canary")));
    let detail = later(destination.send(&opened(&alert())).await);
    assert!(!detail.contains("canary"), "{detail}");
}
