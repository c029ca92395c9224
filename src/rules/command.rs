//! Commands that people paste into a shell, with names of others in them.
//!
//! Invariant: whatever a name holds, a shell reads it as one word, and the server's address as one
//! value of its query.

/// A name as one word of a POSIX shell.
pub fn shell_word(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// An option with its value. A value that looks like an option is joined to its name.
pub fn shell_option(name: &str, value: &str) -> String {
    let joint = if value.starts_with('-') { '=' } else { ' ' };
    format!("{name}{joint}{}", shell_word(value))
}

/// A name as part of an address.
pub fn url_part(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// Asks the server for a path whose names went through [`url_part`].
pub fn curl(path: &str) -> String {
    format!("curl -H \"Authorization: Bearer $COUNTERFOIL_KEY\" \"$COUNTERFOIL_URL{path}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_a_shell() {
        for (name, word) in [
            ("acme", "acme"),
            ("acme/eu-1@x", "acme/eu-1@x"),
            ("", "''"),
            ("a b", "'a b'"),
            ("x;touch$IFS/tmp/PWNED;#", "'x;touch$IFS/tmp/PWNED;#'"),
            ("it's", r"'it'\''s'"),
            ("`id`", "'`id`'"),
            ("caf\u{e9}", "'caf\u{e9}'"),
        ] {
            assert_eq!(shell_word(name), word);
        }
        assert_eq!(shell_option("--tenant", "acme"), "--tenant acme");
        assert_eq!(shell_option("--tenant", "--all"), "--tenant=--all");
    }

    #[test]
    fn names_in_addresses() {
        assert_eq!(url_part("acme-1.x_~"), "acme-1.x_~");
        assert_eq!(url_part("a&b=c d\"$(x)"), "a%26b%3Dc%20d%22%24%28x%29");
        assert_eq!(url_part("\u{e9}"), "%C3%A9");
    }
}
