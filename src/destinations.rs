//! How alerts leave the process: a notice goes to each destination that the settings name.
//!
//! Invariant: a destination tries once and returns the outcome; the caller decides whether to
//! try again, by what is stored. A notice looks the same on every try, so that a receiver can tell
//! that it has it. No secret is in an answer. Nothing is kept here: a crash leaves what the caller
//! wrote down, and a notice that was on its way is sent again.

mod email;
mod guard;
mod pagerduty;
mod slack;
mod webhook;

pub use webhook::{ChangeWebhook, OutgoingChange};

use crate::config::AlertsConfig;
use crate::rules::alert::{Alert, NoticeEvent};
use crate::rules::timestamp::Timestamp;
use async_trait::async_trait;
use std::sync::Arc;

/// Most characters of a summary in a text for people.
const SUMMARY_CHARS_MAX: usize = 1_000;

/// What is sent to a destination.
#[derive(Debug, Clone, Copy)]
pub struct Notice<'a> {
    pub alert: &'a Alert,
    pub event: NoticeEvent,
    /// The notice's own number: the same on every retry.
    pub number: u64,
    /// The time of this try.
    pub at: Timestamp,
}

/// The outcome of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sending {
    Sent,
    /// It may work later.
    Later {
        detail: String,
    },
    /// Trying again is pointless.
    Refused {
        detail: String,
    },
}

#[async_trait]
pub trait Destination: Send + Sync {
    /// "webhook", "slack", "pagerduty" or "email".
    fn name(&self) -> &'static str;

    /// One try, which ends within `alerts.timeout_ms`.
    async fn send(&self, notice: &Notice<'_>) -> Sending;
}

/// The destinations that the settings name. A refusal says what to set.
pub fn connect(config: &AlertsConfig) -> Result<Vec<Arc<dyn Destination>>, String> {
    let mut destinations: Vec<Arc<dyn Destination>> = Vec::new();
    if let Some(webhook) = webhook::Webhook::connect(config)? {
        destinations.push(Arc::new(webhook));
    }
    if let Some(slack) = slack::Slack::connect(config)? {
        destinations.push(Arc::new(slack));
    }
    if let Some(pagerduty) = pagerduty::PagerDuty::connect(config)? {
        destinations.push(Arc::new(pagerduty));
    }
    if let Some(email) = email::Email::connect(config)? {
        destinations.push(Arc::new(email));
    }
    Ok(destinations)
}

impl Notice<'_> {
    /// The notice's name for receivers. The number alone would not do: two installations may tell
    /// one receiver, and a store that was restored gives its numbers again.
    fn key(&self) -> String {
        format!("counterfoil-notice-{}-{}", self.number, self.alert.opened_at.micros())
    }

    /// When that happened which the notice tells.
    fn happened_at(&self) -> Timestamp {
        match self.event {
            NoticeEvent::Opened => self.alert.opened_at,
            NoticeEvent::Resolved => self.alert.resolved_at.unwrap_or(self.at),
        }
    }

    /// One line for people, such as `[page] 3 pushes need an operator`.
    fn headline(&self) -> String {
        let severity = self.alert.kind.severity().name();
        let mark = match self.event {
            NoticeEvent::Opened => severity.to_owned(),
            NoticeEvent::Resolved => format!("{severity} resolved"),
        };
        format!("[{mark}] {}", shorten(&one_line(&self.alert.summary), SUMMARY_CHARS_MAX))
    }
}

/// Without line ends and other control characters, which could forge headers and log lines.
fn one_line(text: &str) -> String {
    let breaks = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    text.chars().map(|c| if breaks(c) { ' ' } else { c }).collect()
}

/// At most so many characters, the last of them `…` if something is left out.
fn shorten(text: &str, chars_max: usize) -> String {
    if text.chars().count() <= chars_max {
        return text.to_owned();
    }
    let kept: String = text.chars().take(chars_max.saturating_sub(1)).collect();
    format!("{kept}…")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Secret};
    use crate::rules::alert::AlertKind;

    pub fn settings() -> AlertsConfig {
        config::load(None).expect("the defaults are valid").alerts
    }

    pub fn alert(summary: &str) -> Alert {
        Alert {
            number: 7,
            kind: AlertKind::DeadLetters,
            subject: "acme".into(),
            summary: summary.into(),
            command: "counterfoil pushes --state dead".into(),
            opened_at: Timestamp::parse("2026-11-15T12:30:00Z").expect("an instant"),
            resolved_at: None,
        }
    }

    pub fn notice(alert: &Alert, event: NoticeEvent) -> Notice<'_> {
        let at = Timestamp::parse("2026-11-15T13:00:00Z").expect("an instant");
        Notice { alert, event, number: 41, at }
    }

    #[test]
    fn nothing_is_named_by_default() {
        assert_eq!(connect(&settings()).map(|all| all.len()), Ok(0));
    }

    #[test]
    fn half_a_setting_is_refused_with_what_to_set() {
        let check = |change: fn(&mut AlertsConfig), expected: &str| {
            let mut config = settings();
            change(&mut config);
            let error = connect(&config).err().expect("refused");
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        };
        let url = "https://example.com/hunter2";
        check(|c| c.webhook_url = Secret::new("https://a.example/hunter2"), "webhook_secret");
        check(|c| c.webhook_secret = Secret::new("hunter2"), "set alerts.webhook_url");
        check(
            |c| {
                c.webhook_url = Secret::new("https://a.example/hunter2");
                c.webhook_secret = Secret::new("hunter2");
            },
            "alerts.webhook_secret is base64",
        );
        check(|c| c.slack_url = Secret::new("ftp://a.example/hunter2"), "alerts.slack_url");
        check(|c| c.slack_url = Secret::new("hunter2"), "alerts.slack_url");
        check(|c| c.slack_url = Secret::new("http://127.0.0.1/hunter2"), "alerts.allow_private");
        check(|c| c.email_to = "a@b.example".into(), "alerts.smtp_url");
        check(|c| c.smtp_url = Secret::new("smtps://a:hunter2@mail"), "alerts.email_to");
        check(
            |c| {
                c.pagerduty_key = Secret::new("hunter2");
                c.pagerduty_url = String::new();
            },
            "alerts.pagerduty_url",
        );
        let mut config = settings();
        config.slack_url = Secret::new(url);
        assert_eq!(connect(&config).map(|all| all.len()), Ok(1));
    }

    #[test]
    fn texts_are_one_line_and_short() {
        assert_eq!(one_line("a\r\nBcc: b\u{2028}c\u{85}d\te"), "a  Bcc: b c d e");
        assert_eq!(shorten("ééé", 3), "ééé");
        assert_eq!(shorten("éééé", 3), "éé…");
        let alert = alert("3 pushes\nneed an operator");
        let opened = notice(&alert, NoticeEvent::Opened);
        assert_eq!(opened.headline(), "[page] 3 pushes need an operator");
        let resolved = notice(&alert, NoticeEvent::Resolved);
        assert_eq!(resolved.headline(), "[page resolved] 3 pushes need an operator");
    }

    #[test]
    fn a_notice_has_the_same_key_at_any_time() {
        let alert = alert("");
        let first = notice(&alert, NoticeEvent::Opened);
        let again = Notice { at: first.at.saturating_add_micros(1), ..first };
        assert_eq!(first.key(), again.key());
        assert_ne!(first.key(), Notice { number: 42, ..first }.key());
    }
}
