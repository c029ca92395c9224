//! What the guard refuses when private addresses are not allowed.

use super::{alert, only, opened, settings};
use crate::world::Receiver;
use counterfoil::config::{AlertsConfig, Secret};
use counterfoil::destinations::{Sending, connect};

fn public_only() -> AlertsConfig {
    AlertsConfig { allow_private: false, ..settings() }
}

#[test]
fn addresses_inside_are_refused_at_the_start() {
    let hosts = [
        "127.0.0.1",
        "2130706433",
        "0x7f.1",
        "0177.0.0.1",
        "[::1]",
        "[::ffff:10.0.0.1]",
        "169.254.169.254",
        "metadata.internal",
        "localhost",
    ];
    for host in hosts {
        let url = format!("http://{host}/canary");
        let secret = "whsec_Y291bnRlcmZvaWwtYWxlcnQtc2VjcmV0LWZvci10ZXN0cyEh";
        let of_webhook = AlertsConfig {
            webhook_url: Secret::new(&url),
            webhook_secret: Secret::new(secret),
            ..public_only()
        };
        let of_slack = AlertsConfig { slack_url: Secret::new(&url), ..public_only() };
        let of_pagerduty = AlertsConfig {
            pagerduty_key: Secret::new("canary"),
            pagerduty_url: url.clone(),
            ..public_only()
        };
        for (setting, config) in [
            ("alerts.webhook_url", of_webhook),
            ("alerts.slack_url", of_slack),
            ("alerts.pagerduty_url", of_pagerduty),
        ] {
            let refusal = connect(&config).err().unwrap();
            assert!(refusal.starts_with(setting), "{host}: {refusal}");
            assert!(refusal.contains("alerts.allow_private"), "{host}: {refusal}");
            assert!(!refusal.contains("canary"), "{refusal}");
            let allowed = AlertsConfig { allow_private: true, ..config };
            assert!(connect(&allowed).is_ok(), "{host}");
        }
    }
}

/// The other half: `src/destinations/guard.rs` tests names that lead inside and are refused.
#[tokio::test]
async fn a_name_inside_is_reached_if_it_is_allowed() {
    let receiver = Receiver::start(200).await;
    let url = receiver.base.replace("127.0.0.1", "localhost");
    let config = AlertsConfig { slack_url: Secret::new(&url), ..settings() };
    assert_eq!(only(&config).send(&opened(&alert())).await, Sending::Sent);
    assert_eq!(receiver.calls().len(), 1);
}
