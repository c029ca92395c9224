//! Slack's incoming webhooks, and whatever else takes a POST of `{"text": …}`.
//!
//! Invariant: nothing in an alert's text is read by Slack as a link, a mention or a channel call.
//! Slack knows no key of a message: one whose answer was lost is shown twice.

use super::guard::{Outlet, Reply};
use super::{Destination, Notice, Sending, one_line};
use crate::config::AlertsConfig;
use async_trait::async_trait;

pub struct Slack {
    outlet: Outlet,
}

impl Slack {
    /// None if the settings do not name one.
    pub fn connect(config: &AlertsConfig) -> Result<Option<Self>, String> {
        if config.slack_url.is_empty() {
            return Ok(None);
        }
        let outlet = Outlet::connect("alerts.slack_url", &config.slack_url, config)?;
        Ok(Some(Self { outlet }))
    }
}

#[async_trait]
impl Destination for Slack {
    fn name(&self) -> &'static str {
        "slack"
    }

    async fn send(&self, notice: &Notice<'_>) -> Sending {
        let body = serde_json::json!({ "text": write_text(notice) }).to_string().into_bytes();
        match self.outlet.post(&[], body).await {
            Ok(reply) => judge(&reply),
            Err(sending) => sending,
        }
    }
}

fn write_text(notice: &Notice<'_>) -> String {
    let headline = escape(&notice.headline());
    // A backtick would end the code, and cannot be escaped in it.
    let command = escape(&one_line(&notice.alert.command)).replace('`', "'");
    if command.is_empty() { headline } else { format!("{headline}\n`{command}`") }
}

/// The three characters that Slack reads as its own.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// 403, 404 and 410 are Slack's words for a webhook or channel that is gone.
fn judge(reply: &Reply) -> Sending {
    match reply.status {
        200..=299 => Sending::Sent,
        400 | 403 | 404 | 410 => Sending::Refused { detail: reply.describe("Slack") },
        _ => Sending::Later { detail: reply.describe("Slack") },
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{alert, notice};
    use super::*;
    use crate::rules::alert::NoticeEvent;

    #[test]
    fn nothing_is_read_as_slacks_own() {
        let mut alert = alert("<!channel> a & b > c");
        alert.command = "counterfoil usage `x` <y>".into();
        let text = write_text(&notice(&alert, NoticeEvent::Opened));
        assert_eq!(
            text,
            "[page] &lt;!channel&gt; a &amp; b &gt; c\n`counterfoil usage 'x' &lt;y&gt;`"
        );
        alert.command = String::new();
        let text = write_text(&notice(&alert, NoticeEvent::Resolved));
        assert_eq!(text, "[page resolved] &lt;!channel&gt; a &amp; b &gt; c");
    }

    #[test]
    fn long_texts_are_cut_before_they_are_escaped() {
        let alert = alert(&"&".repeat(5_000));
        let text = write_text(&notice(&alert, NoticeEvent::Opened));
        assert_eq!(text.matches("&amp;").count(), 999);
    }
}
