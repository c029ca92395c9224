//! Keyed 128-bit fingerprints: how a store *finds* an event by its key, or one of several
//! payloads that were delivered under one key.
//!
//! Invariant: a fingerprint finds, it never judges. Code that finds something by fingerprint
//! compares the exact fields before calling two things equal, so that a collision can neither drop
//! an event nor merge two. The key is secret to the store, so that nobody can choose ids that
//! collide on purpose. SipHash is fixed by its specification: fingerprints may be stored.

use super::event::Event;
use super::ids::{EventId, TenantNo};
use super::rollup::Group;
use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;

/// Computes fingerprints under one store's secret key.
#[derive(Clone)]
pub struct Fingerprinter {
    key: [u8; 16],
    /// Bits that are kept; all of them, except where a test wants collisions.
    mask: u128,
}

impl Fingerprinter {
    pub fn new(key: [u8; 16]) -> Self {
        Self { key, mask: u128::MAX }
    }

    /// A fingerprinter with only `2^bits` different values, to make collisions happen.
    pub fn colliding(key: [u8; 16], bits: u32) -> Self {
        Self { key, mask: (1u128 << bits) - 1 }
    }

    /// Finds an event key: the same tenant and id always give the same value.
    pub fn event_key(&self, tenant: TenantNo, id: &EventId) -> u128 {
        let mut hasher = SipHasher13::new_with_key(&self.key);
        hasher.write(&tenant.0.to_le_bytes());
        hasher.write(id.as_str().as_bytes());
        self.finish(&hasher)
    }

    /// Finds a payload: every field that two deliveries of one event must agree on, and the time.
    pub fn payload(&self, event: &Event) -> u128 {
        let mut hasher = SipHasher13::new_with_key(&self.key);
        let mut field = |bytes: &[u8]| {
            let length = u64::try_from(bytes.len()).expect("a length fits 64 bits");
            hasher.write(&length.to_le_bytes());
            hasher.write(bytes);
        };
        field(&event.meter.0.to_le_bytes());
        field(&event.quantity.units().to_le_bytes());
        field(&event.occurred_at.micros().to_le_bytes());
        field(event.properties.as_text().as_bytes());
        field(event.subscription.as_ref().map_or("", |s| s.as_str()).as_bytes());
        field(&[u8::from(event.trial)]);
        self.finish(&hasher)
    }

    /// Finds a group among those of a day. Here alone a collision counts as equality: two groups
    /// are then one towards the limit of groups, and both are counted.
    pub fn group(&self, group: &Group) -> i64 {
        let mut hasher = SipHasher13::new_with_key(&self.key);
        hasher.write(group.as_text().as_bytes());
        let low = u64::try_from(self.finish(&hasher) & u128::from(u64::MAX)).expect("64 bits");
        i64::from_ne_bytes(low.to_ne_bytes())
    }

    /// Finds a payload by its text.
    pub fn text(&self, text: &str) -> u128 {
        let mut hasher = SipHasher13::new_with_key(&self.key);
        hasher.write(text.as_bytes());
        self.finish(&hasher)
    }

    fn finish(&self, hasher: &SipHasher13) -> u128 {
        hasher.finish128().as_u128() & self.mask
    }
}

impl std::fmt::Debug for Fingerprinter {
    /// Never shows the key: it is a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fingerprinter")
    }
}
