//! API keys, secrets and the high-water mark.

use crate::fixture::{Fixture, call, tenant_id};
use counterfoil::store::ApiKey;

pub async fn api_keys_live_and_die(mut f: Fixture) {
    let key = ApiKey {
        id: "k1".into(),
        name: "first".into(),
        digest: [7; 32],
        scopes: vec!["ingest".into(), "read".into()],
        tenant: Some(tenant_id("acme")),
        created_at: f.now,
        revoked_at: None,
    };
    f.store.create_api_key(key.clone()).await.unwrap();
    assert!(f.store.create_api_key(key.clone()).await.is_err(), "an id is used once");
    f.restart().await;
    assert_eq!(f.store.list_api_keys().await.unwrap(), std::slice::from_ref(&key));
    assert!(!f.store.revoke_api_key("k2", f.now).await.unwrap());
    assert!(f.store.revoke_api_key("k1", f.now).await.unwrap());
    assert!(!f.store.revoke_api_key("k1", f.now).await.unwrap());
    let revoked = ApiKey { revoked_at: Some(f.now), ..key };
    assert_eq!(f.store.list_api_keys().await.unwrap(), [revoked]);
}

pub async fn secrets_and_the_clock_survive_a_restart(mut f: Fixture) {
    f.store.ping().await.unwrap();
    let secret = f.store.token_secret();
    assert_ne!(secret, [0; 32]);
    f.deliver_one(&call("e1", "1")).await;
    f.restart().await;
    assert_eq!(f.store.token_secret(), secret);
    assert_eq!(f.store.high_water(), f.now);
}

/// A clock that was ahead has moved the marks; the next cut then looks at everything again.
pub async fn marks_of_a_wrong_clock_are_reset(mut f: Fixture) {
    let right = f.now;
    f.now = right.saturating_add_micros(87_600 * 3_600_000_000);
    f.deliver_one(&call("e1", "1")).await;
    let until = f.now.saturating_add_micros(60_000_000);
    let lease = f.store.claim_lease("cut", "wrong", f.now, until).await.unwrap().unwrap();
    let (meter, _) = f.store.load_catalog().await.unwrap().find("calls").unwrap();
    assert!(f.store.record_cut_mark(&lease, meter, f.now).await.unwrap());
    assert_eq!(f.store.read_time_marks().await.unwrap().high_water, Some(f.now));
    f.store.lower_time_marks(right).await.unwrap();
    f.store.lower_time_marks(right).await.unwrap();
    let marks = f.store.read_time_marks().await.unwrap();
    assert_eq!((marks.high_water, marks.newest_cut), (Some(right), None));
    f.now = right;
    f.restart().await;
    assert_eq!(f.store.high_water(), right);
    let until = right.saturating_add_micros(60_000_000);
    assert!(f.store.claim_lease("cut", "right", right, until).await.unwrap().is_some());
    assert_eq!(f.store.read_cut_marks().await.unwrap(), []);
    f.deliver_one(&call("e2", "1")).await;
    f.restart().await;
    assert_eq!(f.store.high_water(), right);
}
