//! Signatures as Standard Webhooks asks for them: `v1,` and base64 of HMAC-SHA256 over the id, the
//! second of sending and the body.
//!
//! Invariant: the key is shown nowhere, and the same id, second and body give the same signature.

use super::base64;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;

/// Fewest bytes of a key; a shorter one could be guessed.
const KEY_BYTES_MIN: usize = 16;

pub struct SigningKey(Vec<u8>);

impl SigningKey {
    /// Reads base64, with or without `whsec_` before it. None if it is not that, or too short.
    pub fn read(text: &str) -> Option<Self> {
        let coded = text.strip_prefix("whsec_").unwrap_or(text);
        base64::decode(coded).filter(|bytes| bytes.len() >= KEY_BYTES_MIN).map(Self)
    }

    /// The value of `webhook-signature`.
    pub fn sign(&self, id: &str, sent_at_seconds: i64, body: &[u8]) -> String {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key may have any length");
        mac.update(format!("{id}.{sent_at_seconds}.").as_bytes());
        mac.update(body);
        format!("v1,{}", base64::encode(&mac.finalize().into_bytes()))
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected value is openssl's:
    ///
    /// ```text
    /// printf 'cf1-test.1794744000.{"value":"5"}' |
    ///     openssl dgst -sha256 -hmac counterfoil-sink-secret-for-tests -binary | base64
    /// ```
    #[test]
    fn signs_as_openssl_does() {
        let coded = "Y291bnRlcmZvaWwtc2luay1zZWNyZXQtZm9yLXRlc3Rz";
        for text in [coded.to_owned(), format!("whsec_{coded}")] {
            let key = SigningKey::read(&text).expect("long enough");
            let signed = key.sign("cf1-test", 1_794_744_000, br#"{"value":"5"}"#);
            assert_eq!(signed, "v1,/cobyPRIkYa1iTqSYpaptedHCE/LPjp8WHqQfyTkIek=");
            assert_eq!(format!("{key:?}"), "SigningKey(…)");
        }
    }

    #[test]
    fn short_keys_and_other_texts_are_refused() {
        for text in ["", "whsec_", "c2hvcnQ=", "not base64 at all, whatever"] {
            assert!(SigningKey::read(text).is_none(), "{text}");
        }
    }
}
