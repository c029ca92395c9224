//! Destinations over real sockets: a receiver that verifies, what Slack and PagerDuty are sent, a
//! mail server that speaks the protocol, what the guard refuses, and that no secret is told.

mod guard;
mod mail;
mod mail_server;
mod posts;

use crate::world::{at, default_config};
use counterfoil::config::AlertsConfig;
use counterfoil::destinations::{Destination, Notice, Sending, connect};
use counterfoil::rules::alert::{Alert, AlertKind, NoticeEvent};
use std::sync::Arc;

/// The defaults, with loopback allowed and little patience.
fn settings() -> AlertsConfig {
    let mut config = default_config().alerts;
    config.allow_private = true;
    config.timeout_ms = 5_000;
    config
}

/// The one destination that the settings name.
fn only(config: &AlertsConfig) -> Arc<dyn Destination> {
    let mut all = connect(config).unwrap_or_else(|refusal| panic!("{refusal}"));
    assert_eq!(all.len(), 1);
    all.remove(0)
}

fn alert() -> Alert {
    Alert {
        number: 7,
        kind: AlertKind::DeadLetters,
        subject: "acme".into(),
        summary: "3 pushes of <acme> & others need an operator".into(),
        command: "counterfoil pushes list --state dead".into(),
        opened_at: at("2026-11-15T12:30:00Z"),
        resolved_at: None,
    }
}

fn opened(alert: &Alert) -> Notice<'_> {
    Notice { alert, event: NoticeEvent::Opened, number: 41, at: at("2026-11-15T12:31:00Z") }
}

fn resolved(alert: &Alert) -> Notice<'_> {
    Notice { alert, event: NoticeEvent::Resolved, number: 42, at: at("2026-11-15T12:46:00Z") }
}

fn later(sending: Sending) -> String {
    match sending {
        Sending::Later { detail } => detail,
        other => panic!("{other:?}"),
    }
}

fn refused(sending: Sending) -> String {
    match sending {
        Sending::Refused { detail } => detail,
        other => panic!("{other:?}"),
    }
}
