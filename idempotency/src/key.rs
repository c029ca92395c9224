//! Keys that a client can compute again after a crash, from what the operation is about.
//!
//! Invariant: two operations that differ in any field have different keys; a field that is absent
//! differs from one that is empty, and no text in a field can look like another field.
//!
//! # The bytes
//!
//! A key is `cfk1-` followed by the lower-case hex of a SHA-256, 69 characters in all. These bytes
//! are hashed, one after the other, so that an SDK in another language can do the same:
//!
//! 1. the 18 bytes of the ASCII text `counterfoil-key-v1`, and one zero byte;
//! 2. for each field that is present, in the order of the table: one byte, its tag; eight bytes,
//!    the length of its text in bytes, most significant first; then the text in UTF-8, as it is,
//!    neither trimmed nor normalised.
//!
//! | field | tag | what it holds |
//! |---|---|---|
//! | operation | `0x01` | what is done, such as `subscription.create`; always present |
//! | customer | `0x02` | for whom |
//! | subscription | `0x03` | to which subscription |
//! | plan | `0x04` | on which plan |
//! | period | `0x05` | for which period, such as `2026-11` |
//! | request | `0x06` | which request, where the same may be wanted twice |

use sha2::{Digest, Sha256};

/// Begins every hash: nothing else that is hashed in the project begins like this.
const DOMAIN: &[u8; 19] = b"counterfoil-key-v1\0";

/// Begins the key of an operation.
///
/// ```
/// let key = counterfoil_idempotency::key("subscription.create")
///     .customer("cus_17")
///     .plan("pro")
///     .request("order-42")
///     .to_string();
/// assert!(key.starts_with("cfk1-") && key.len() == 69);
/// ```
pub fn key(operation: &str) -> Key {
    Key { fields: [Some(operation.to_owned()), None, None, None, None, None] }
}

/// A key in the making; [`ToString::to_string`] makes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// In the order of their tags.
    fields: [Option<String>; 6],
}

impl Key {
    /// For whom.
    #[must_use]
    pub fn customer(self, text: &str) -> Self {
        self.with(1, text)
    }

    /// To which subscription.
    #[must_use]
    pub fn subscription(self, text: &str) -> Self {
        self.with(2, text)
    }

    /// On which plan.
    #[must_use]
    pub fn plan(self, text: &str) -> Self {
        self.with(3, text)
    }

    /// For which period.
    #[must_use]
    pub fn period(self, text: &str) -> Self {
        self.with(4, text)
    }

    /// Which request, where the same operation may be wanted twice.
    #[must_use]
    pub fn request(self, text: &str) -> Self {
        self.with(5, text)
    }

    fn with(mut self, at: usize, text: &str) -> Self {
        self.fields[at] = Some(text.to_owned());
        self
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut digest = Sha256::new();
        digest.update(DOMAIN);
        for (field, tag) in self.fields.iter().zip(1_u8..) {
            if let Some(text) = field {
                let length = u64::try_from(text.len()).expect("a length fits into 64 bits");
                digest.update([tag]);
                digest.update(length.to_be_bytes());
                digest.update(text.as_bytes());
            }
        }
        write!(f, "cfk1-{}", crate::digest::hex(&digest.finalize()))
    }
}
