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

/// A text as one part of a path.
pub fn segment(text: &str) -> String {
    let mut part = String::with_capacity(text.len());
    escape(&mut part, text, b"");
    part
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

    #[test]
    fn a_part_of_a_path_stays_one() {
        assert_eq!(super::segment("cus_1"), "cus_1");
        assert_eq!(super::segment("a/b?c[d]#e"), "a%2Fb%3Fc%5Bd%5D%23e");
    }
}
