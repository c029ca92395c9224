//! Whether a webhook is Stripe's: a signature over the raw bytes.
//!
//! Invariant: every signature in the header is compared with that of every active secret, in
//! constant time each; a moment further away than five minutes, in either direction, is refused.
//! Nothing is read of a body before its signature was found good.

use crate::config::Secret;
use crate::rules::named::named_enum;
use crate::rules::timestamp::{MICROS_PER_SECOND, Timestamp};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::{Choice, ConstantTimeEq};

const TOLERANCE_SECONDS: u64 = 300;
/// Signatures of a header that are looked at; there is one for each secret that is active at
/// Stripe.
const SIGNATURES_MAX: usize = 16;

named_enum! {
    /// Why a webhook is not taken.
    pub enum Forgery {
        /// There is no signature that can be read.
        Unsigned = "unsigned",
        /// No signature is that of an active secret over these bytes.
        Mismatch = "mismatch",
        /// It was signed too long ago, or in the future.
        Expired = "expired",
    }
}

/// Judges the value of `Stripe-Signature`.
pub fn verify(
    secrets: &[Secret],
    header: &str,
    body: &[u8],
    now: Timestamp,
) -> Result<(), Forgery> {
    let (signed_at, signatures) = read_header(header).ok_or(Forgery::Unsigned)?;
    let mut good = Choice::from(0);
    for secret in secrets {
        let mut mac: Hmac<Sha256> =
            Hmac::new_from_slice(secret.expose().as_bytes()).expect("HMAC takes any key");
        mac.update(signed_at.as_bytes());
        mac.update(b".");
        mac.update(body);
        let expected = mac.finalize().into_bytes();
        for signature in &signatures {
            good |= expected.as_slice().ct_eq(signature);
        }
    }
    if !bool::from(good) {
        return Err(Forgery::Mismatch);
    }
    let signed_at: i64 = signed_at.parse().map_err(|_| Forgery::Unsigned)?;
    let now = now.micros().div_euclid(MICROS_PER_SECOND);
    if now.abs_diff(signed_at) > TOLERANCE_SECONDS {
        return Err(Forgery::Expired);
    }
    Ok(())
}

/// The moment, as its text, and the signatures of scheme v1; other schemes are passed over.
fn read_header(header: &str) -> Option<(&str, Vec<[u8; 32]>)> {
    let mut signed_at = None;
    let mut signatures = Vec::new();
    for part in header.split(',') {
        match part.trim().split_once('=')? {
            ("t", text) => signed_at = signed_at.or(Some(text)),
            ("v1", text) if signatures.len() < SIGNATURES_MAX => signatures.extend(read_hex(text)),
            (_, _) => {}
        }
    }
    let digits = |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (!signatures.is_empty()).then_some((signed_at.filter(digits)?, signatures))
}

/// Lower-case hex of 32 bytes, as Stripe writes it.
fn read_hex(text: &str) -> Option<[u8; 32]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; 32];
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != bytes.len() || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = br#"{"id":"evt_1"}"#;
    const GOOD: &str = "c89214b5b5da833daed6f0b8c5bb6bd58cea9022bd80ccc78230f3942d632925";
    const SIGNED_AT: i64 = 1_700_000_000;

    #[test]
    fn only_what_stripe_signed_is_taken() {
        let check = |secrets: &[&str], header: &str, body: &[u8], offset: i64, expected| {
            let secrets: Vec<Secret> = secrets.iter().map(|text| Secret::new(text)).collect();
            let now = Timestamp::from_micros((SIGNED_AT + offset) * MICROS_PER_SECOND);
            assert_eq!(verify(&secrets, header, body, now), expected, "{header} {offset}");
        };
        let header = format!("t={SIGNED_AT},v1={GOOD}");
        let several = format!("t={SIGNED_AT},v1={},v0=abc,v1={GOOD}", "0".repeat(64));
        let one: &[&str] = &["whsec_test"];
        check(one, &header, BODY, 0, Ok(()));
        check(one, &several, BODY, 0, Ok(()));
        check(&["whsec_new", "whsec_test"], &header, BODY, 0, Ok(()));
        check(one, &header, BODY, 300, Ok(()));
        check(one, &header, BODY, -300, Ok(()));
        check(one, &header, BODY, 301, Err(Forgery::Expired));
        check(one, &header, BODY, -301, Err(Forgery::Expired));
        check(&["whsec_other"], &header, BODY, 0, Err(Forgery::Mismatch));
        check(&[], &header, BODY, 0, Err(Forgery::Mismatch));
        check(one, &header, br#"{"id": "evt_1"}"#, 0, Err(Forgery::Mismatch));
        check(one, &header, br#"{"id":"evt_2"}"#, 0, Err(Forgery::Mismatch));
        let later = format!("t={},v1={GOOD}", SIGNED_AT + 1);
        check(one, &later, BODY, 0, Err(Forgery::Mismatch));
        let upper = format!("t={SIGNED_AT},v1={}", GOOD.to_uppercase());
        for unsigned in ["", "t=1", &upper, &format!("v1={GOOD}"), "t=1,v1=00", "nonsense", "t=,"] {
            check(one, unsigned, BODY, 0, Err(Forgery::Unsigned));
        }
    }
}
