//! Form encoding as Stripe takes it: `payload[value]=12.5&identifier=…`.
//!
//! Invariant: the same pairs always make the same bytes.

/// Encodes pairs in their order. Brackets of names stay readable, as in Stripe's own clients.
pub fn encode(pairs: &[(&str, &str)]) -> String {
    let mut form = String::with_capacity(128);
    for (name, value) in pairs {
        if !form.is_empty() {
            form.push('&');
        }
        escape(&mut form, name, b"[]");
        form.push('=');
        escape(&mut form, value, b"");
    }
    form
}

fn escape(form: &mut String, text: &str, also_plain: &[u8]) {
    for byte in text.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
        if plain || also_plain.contains(&byte) {
            form.push(char::from(byte));
        } else {
            form.push_str(&format!("%{byte:02X}"));
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn pairs_become_a_form() {
        let form = super::encode(&[("payload[value]", "12.5"), ("identifier", "a b&c=d/é")]);
        assert_eq!(form, "payload[value]=12.5&identifier=a%20b%26c%3Dd%2F%C3%A9");
    }
}
