//! Keys from fields, against the vectors that every SDK must meet.

use counterfoil_idempotency::{Key, key};
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct Vector {
    operation: String,
    customer: Option<String>,
    subscription: Option<String>,
    plan: Option<String>,
    period: Option<String>,
    request: Option<String>,
    key: String,
}

impl Vector {
    fn build(&self) -> Key {
        type Setter = fn(Key, &str) -> Key;
        let fields: [(&Option<String>, Setter); 5] = [
            // In another order than that of the tags: it must not matter.
            (&self.request, Key::request),
            (&self.period, Key::period),
            (&self.plan, Key::plan),
            (&self.subscription, Key::subscription),
            (&self.customer, Key::customer),
        ];
        fields.into_iter().fold(key(&self.operation), |key, (field, set)| match field {
            Some(text) => set(key, text),
            None => key,
        })
    }
}

#[test]
fn keys_meet_the_vectors_of_every_sdk() {
    let text = include_str!("../vectors/keys.json");
    let vectors: Vec<Vector> = serde_json::from_str(text).unwrap();
    assert!(vectors.len() >= 20);
    let mut seen: BTreeMap<String, String> = BTreeMap::new();
    for vector in &vectors {
        let built = vector.build();
        assert_eq!(built.to_string(), vector.key, "{built:?}");
        let twin = seen.insert(vector.key.clone(), format!("{built:?}"));
        assert_eq!(twin, None, "two vectors have one key");
    }
}
