//! The answer to deliveries, written by hand into one buffer.
//!
//! Invariant: the counts cover every item, whatever is listed. What the answer will print of an
//! item is written down before its event moves into the queue, in one text for all.

use super::super::problem::{Kind, Problem};
use super::Delivery;
use crate::rules::properties::push_json_string;
use crate::rules::refusal::Refusal;
use crate::rules::verdict::{Quarantine, Tally, Verdict};
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use metrics::Counter;
use serde::Deserialize;
use std::borrow::Cow;
use std::fmt::Write;
use std::sync::OnceLock;

/// Which items an answer lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Show {
    #[default]
    All,
    Problems,
}

impl Show {
    pub fn lists(self, verdict: &Verdict) -> bool {
        self == Self::All || !is_plain(verdict)
    }
}

/// The members `"tenant":…,"id":…` of every item.
pub struct Names {
    text: String,
    ends: Vec<usize>,
}

impl Names {
    pub fn of(deliveries: &[Delivery]) -> Self {
        let mut text = String::with_capacity(deliveries.len() * 64);
        let mut ends = Vec::with_capacity(deliveries.len());
        for delivery in deliveries {
            let (tenant, id) = match delivery {
                Ok(event) => (Some(event.tenant.as_str()), Some(event.id.as_str())),
                Err(refused) => (refused.tenant.as_deref(), refused.id.as_deref()),
            };
            text.push_str("\"tenant\":");
            push_text_or_null(&mut text, tenant);
            text.push_str(",\"id\":");
            push_text_or_null(&mut text, id);
            ends.push(text.len());
        }
        Self { text, ends }
    }

    fn get(&self, place: usize) -> &str {
        let start = if place == 0 { 0 } else { self.ends[place - 1] };
        &self.text[start..self.ends[place]]
    }
}

fn push_text_or_null(json: &mut String, text: Option<&str>) {
    match text {
        Some(text) => push_json_string(json, text),
        None => json.push_str("null"),
    }
}

/// What the answer says: a JSON object that lacks its closing brace, so that it can be sent on its
/// own or as the members of a problem without being moved.
pub struct Reply {
    tally: Tally,
    open: String,
}

impl Reply {
    pub fn write(names: &Names, verdicts: &[Verdict], show: Show, horizon_hours: u32) -> Self {
        let mut tally = Tally::default();
        verdicts.iter().for_each(|verdict| tally.add(verdict));
        let listed = match show {
            Show::All => names.text.len() + verdicts.len() * 48,
            Show::Problems => 0,
        };
        let mut open = String::with_capacity(160 + listed);
        let Tally { accepted, admitted: _, duplicates, conflicts, quarantined, rejected } = tally;
        let _ = write!(
            open,
            "{{\"accepted\":{accepted},\"duplicates\":{duplicates},\"conflicts\":{conflicts},\
             \"quarantined\":{quarantined},\"rejected\":{rejected},\"results\":["
        );
        let mut first = true;
        for (place, verdict) in verdicts.iter().enumerate() {
            if !show.lists(verdict) {
                continue;
            }
            if !first {
                open.push(',');
            }
            first = false;
            let _ = write!(open, "{{\"index\":{place},{},", names.get(place));
            push_verdict(&mut open, verdict, horizon_hours);
            open.push('}');
        }
        open.push(']');
        Self { tally, open }
    }

    /// Adds the outcomes to the metrics.
    pub fn count(&self) {
        static ACCEPTED: OnceLock<Counter> = OnceLock::new();
        let counter = |outcome| metrics::counter!("counterfoil_events_total", "outcome" => outcome);
        let Tally { accepted, admitted: _, duplicates, conflicts, quarantined, rejected } =
            self.tally;
        if accepted > 0 {
            // The usual outcome, looked up once and not for each request.
            ACCEPTED.get_or_init(|| counter("accepted")).increment(accepted);
        }
        for (outcome, count) in [
            ("duplicate", duplicates),
            ("conflict", conflicts),
            ("quarantined", quarantined),
            ("rejected", rejected),
        ] {
            if count > 0 {
                counter(outcome).increment(count);
            }
        }
    }

    pub fn into_response(self) -> Response {
        self.with_status(StatusCode::OK)
    }

    /// The answer to a single event, whose outcome is also the status.
    pub fn into_single_response(mut self, verdict: &Verdict) -> Response {
        match verdict {
            Verdict::Accepted | Verdict::Duplicate { .. } => self.with_status(StatusCode::OK),
            Verdict::Quarantined(_) => self.with_status(StatusCode::ACCEPTED),
            Verdict::Conflict { differing } => {
                Problem::new(Kind::Conflict, PAYLOAD_CONFLICT, conflict_detail(differing))
                    .with_members(self.open.split_off(1))
                    .into_response()
            }
            Verdict::Rejected(refusal) => Problem::refused(refusal.clone())
                .with_members(self.open.split_off(1))
                .into_response(),
        }
    }

    fn with_status(self, status: StatusCode) -> Response {
        let mut body = self.open;
        body.push('}');
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, json);
        response
    }
}

const PAYLOAD_CONFLICT: &str = "payload_conflict";

/// Whether the sender has nothing to look at.
fn is_plain(verdict: &Verdict) -> bool {
    match verdict {
        Verdict::Accepted | Verdict::Duplicate { restamped: false } => true,
        Verdict::Duplicate { restamped: true }
        | Verdict::Conflict { .. }
        | Verdict::Quarantined(_)
        | Verdict::Rejected(_) => false,
    }
}

fn push_verdict(json: &mut String, verdict: &Verdict, horizon_hours: u32) {
    let (outcome, code, detail): (_, _, Cow<'_, str>) = match verdict {
        Verdict::Accepted => return json.push_str("\"outcome\":\"accepted\""),
        Verdict::Duplicate { restamped: false } => {
            return json.push_str("\"outcome\":\"duplicate\"");
        }
        Verdict::Duplicate { restamped: true } => (
            "duplicate",
            "restamped",
            "counted before with another occurred_at, which is kept; send the event's own time on \
             every retry"
                .into(),
        ),
        Verdict::Conflict { differing } => {
            ("conflict", PAYLOAD_CONFLICT, conflict_detail(differing).into())
        }
        Verdict::Quarantined(reason) => {
            ("quarantined", reason.code(), quarantine_detail(*reason, horizon_hours).into())
        }
        Verdict::Rejected(Refusal { code, detail }) => ("rejected", *code, detail.as_ref().into()),
    };
    let _ = write!(json, "\"outcome\":\"{outcome}\",\"code\":\"{code}\",\"detail\":");
    push_json_string(json, &detail);
}

fn conflict_detail(differing: &[&'static str]) -> String {
    format!(
        "another payload was counted under this id; it differs in {}; send a new fact \
         under a new id",
        differing.join(", ")
    )
}

fn quarantine_detail(reason: Quarantine, horizon_hours: u32) -> String {
    match reason {
        Quarantine::TooOld => format!(
            "occurred_at is more than {horizon_hours} hours ago; the event is quarantined and not \
             counted; an operator can admit it (counterfoil quarantine)"
        ),
        Quarantine::TooFarAhead => {
            "occurred_at is more than 5 minutes ahead of the server's clock; the event is \
             quarantined and not counted; check the sender's clock and send it again with the \
             right time"
                .to_owned()
        }
        Quarantine::TooManyGroups => {
            "the meter has as many groups of this tenant on that day as it may have; the event is \
             kept and not counted; send dimensions of fewer values, or raise ingest.groups_per_day \
             and send it again"
                .to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::event::RefusedItem;

    #[test]
    fn any_text_gives_valid_json() {
        let nasty = "a\"\\\u{7}\n\u{2028}é";
        let refusal = Refusal::new("code", nasty);
        let refused =
            RefusedItem { tenant: Some(nasty.into()), id: None, refusal: refusal.clone() };
        let names = Names::of(&[Err(refused.clone()), Err(refused)]);
        let verdicts = [Verdict::Rejected(refusal), Verdict::Duplicate { restamped: true }];
        let reply = Reply::write(&names, &verdicts, Show::All, 168);
        let value: serde_json::Value =
            serde_json::from_str(&format!("{}}}", reply.open)).expect("valid JSON");
        assert_eq!(value["results"][0]["tenant"], nasty);
        assert_eq!(value["results"][0]["detail"], nasty);
        assert_eq!(value["results"][1]["index"], 1);
        assert_eq!(value["results"][1]["id"], serde_json::Value::Null);
    }
}
