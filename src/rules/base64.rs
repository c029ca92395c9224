//! Base64, for the secrets and signatures of Standard Webhooks.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut group = [0u8; 4];
        group[1..=chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes(group);
        for place in 0..4 {
            let index = usize::try_from((bits >> (18 - 6 * place)) & 63).expect("below 64");
            text.push(if place > chunk.len() { '=' } else { char::from(ALPHABET[index]) });
        }
    }
    text
}

/// None if it is not base64 with its padding.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for (place, chunk) in text.as_bytes().chunks(4).enumerate() {
        let last = (place + 1) * 4 == text.len();
        let padding = chunk.iter().rev().take_while(|byte| **byte == b'=').count();
        if padding > 2 || (padding > 0 && !last) {
            return None;
        }
        let mut bits = 0u32;
        for byte in &chunk[..4 - padding] {
            let index = ALPHABET.iter().position(|known| known == byte)?;
            bits = (bits << 6) | u32::try_from(index).ok()?;
        }
        bits <<= 6 * u32::try_from(padding).ok()?;
        bytes.extend_from_slice(&bits.to_be_bytes()[1..4 - padding]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_vectors() {
        for (plain, coded) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(encode(plain.as_bytes()), coded);
            assert_eq!(decode(coded).as_deref(), Some(plain.as_bytes()));
        }
        for bad in ["Z", "Zg=", "Zg==Zg==", "Z===", "Zm9v!A==", "é==="] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }
}
