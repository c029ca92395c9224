//! The deterministic event id of an event that has a correlation id and no id of its own.
//!
//! Version 1: SHA-256, in lower-case hex, over five fields, each preceded by its length in bytes
//! as eight big-endian bytes: the domain tag, tenant, meter slug, canonical occurred_at (UTC, six
//! decimals, `Z`), correlation id. Lengths, not separators: joined texts collide ("a:b" and "c"
//! read like "a" and "b:c"). `sdk/vectors/event_ids.json` holds the vectors every SDK must meet.

use super::digest::{digest_fields, hex};
use super::ids::EventId;
use super::timestamp::{CanonicalTimestamp, Timestamp};

const DOMAIN_TAG: &str = "counterfoil/event-id/v1";

pub fn derive_event_id(
    tenant: &str,
    meter: &str,
    occurred_at: Timestamp,
    correlation_id: &str,
) -> EventId {
    let moment = CanonicalTimestamp(occurred_at).to_string();
    let fields = [DOMAIN_TAG, tenant, meter, &moment, correlation_id];
    EventId::parse(&hex(&digest_fields(fields.map(str::as_bytes))))
        .expect("64 hex digits are an event id")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn vectors_shared_with_every_sdk() {
        #[derive(serde::Deserialize)]
        struct Vector {
            tenant: String,
            meter: String,
            occurred_at: String,
            correlation_id: String,
            event_id: String,
        }
        let text = include_str!("../../sdk/vectors/event_ids.json");
        let vectors: Vec<Vector> = serde_json::from_str(text).expect("valid JSON");
        assert!(vectors.len() >= 8);
        for v in vectors {
            let at = Timestamp::parse(&v.occurred_at).expect("valid");
            let derived = derive_event_id(&v.tenant, &v.meter, at, &v.correlation_id);
            assert_eq!(derived.as_str(), v.event_id, "{} {}", v.tenant, v.correlation_id);
        }
    }

    proptest! {
        #[test]
        fn moving_a_character_over_a_field_border_changes_the_id(
            tenant in "[a-z:|]{1,6}", moved in "[a-z:|]", correlation in "[a-z:|]{1,6}"
        ) {
            let at = Timestamp::from_micros(0);
            let one = derive_event_id(&format!("{tenant}{moved}"), "m", at, &correlation);
            let two = derive_event_id(&tenant, "m", at, &format!("{moved}{correlation}"));
            prop_assert_ne!(one, two);
        }
    }
}
