//! Signatures as the documentation of Standard Webhooks describes them, made apart from the
//! product.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The signature of a delivery, as it is in the header `webhook-signature`.
pub fn standard_signature(secret: &[u8], id: &str, timestamp: &str, body: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).unwrap();
    mac.update(format!("{id}.{timestamp}.{body}").as_bytes());
    format!("v1,{}", base64(&mac.finalize().into_bytes()))
}

fn base64(bytes: &[u8]) -> String {
    let alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/".as_bytes();
    let bits: String = bytes.iter().map(|byte| format!("{byte:08b}")).collect();
    let mut text = String::new();
    for six in bits.as_bytes().chunks(6) {
        let six = format!("{:0<6}", std::str::from_utf8(six).unwrap());
        text.push(char::from(alphabet[usize::from_str_radix(&six, 2).unwrap()]));
    }
    while !text.len().is_multiple_of(4) {
        text.push('=');
    }
    text
}

/// The arithmetic against another program's:
///
/// ```text
/// printf 'cf1-test.1794744000.{"value":"5"}' |
///     openssl dgst -sha256 -hmac counterfoil-sink-secret-for-tests -binary | base64
/// ```
#[test]
fn signatures_are_those_of_openssl() {
    let secret = b"counterfoil-sink-secret-for-tests";
    let signed = standard_signature(secret, "cf1-test", "1794744000", r#"{"value":"5"}"#);
    assert_eq!(signed, "v1,/cobyPRIkYa1iTqSYpaptedHCE/LPjp8WHqQfyTkIek=");
}
