//! Properties that are in canonical form already: recognised and taken apart without serde_json.
//!
//! Invariant: what [`is_canonical`] recognises is valid JSON, obeys every limit, and is the very
//! text that serde_json and the slow path would make of it. It recognises the usual and not all: no
//! escapes, no exponents, no names beyond ASCII. What it does not recognise is read the slow way.

use super::{NAME_BYTES_MAX, PROPERTIES_MAX, TEXT_BYTES_MAX, VALUE_BYTES_MAX};

/// Digits of a whole number that is held exactly, whatever they are.
const PLAIN_DIGITS_MAX: usize = 15;

/// Whether a JSON text is the canonical text of the properties that it names; they are not none.
pub fn is_canonical(json: &str) -> bool {
    let within = |inner: &[u8]| has_canonical_pairs(inner, json.len());
    let inner = json.as_bytes().strip_prefix(b"{").and_then(|rest| rest.strip_suffix(b"}"));
    inner.is_some_and(within)
}

fn has_canonical_pairs(mut rest: &[u8], text_bytes: usize) -> bool {
    if text_bytes > TEXT_BYTES_MAX {
        return false;
    }
    let mut before: Option<&[u8]> = None;
    for _ in 0..PROPERTIES_MAX {
        let Some((name, after)) = plain_string(rest) else { return false };
        let named = (1..=NAME_BYTES_MAX).contains(&name.len()) && name.iter().all(is_plain_name);
        // Strings of bytes sort as strings of characters do.
        if !named || before.is_some_and(|before| before >= name) {
            return false;
        }
        before = Some(name);
        let Some(value) = after.strip_prefix(b":") else { return false };
        match plain_value(value) {
            Some([]) => return true,
            Some([b',', more @ ..]) => rest = more,
            Some(_) | None => return false,
        }
    }
    false
}

/// What follows a value in canonical form.
fn plain_value(text: &[u8]) -> Option<&[u8]> {
    match text.first()? {
        b'"' => {
            let (value, rest) = plain_string(text)?;
            (value.len() <= VALUE_BYTES_MAX).then_some(rest)
        }
        b't' => text.strip_prefix(b"true"),
        b'f' => text.strip_prefix(b"false"),
        b'0'..=b'9' => {
            let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let leading_zero = text[0] == b'0' && digits > 1;
            // A point or an exponent is no end of a value: those numbers are read the slow way.
            (!leading_zero && digits <= PLAIN_DIGITS_MAX).then(|| &text[digits..])
        }
        _ => None,
    }
}

/// The content of a string without escapes and control characters, and what follows it.
fn plain_string(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let inner = text.strip_prefix(b"\"")?;
    let end = inner.iter().position(|byte| *byte < b' ' || *byte == b'"' || *byte == b'\\')?;
    (inner[end] == b'"').then(|| (&inner[..end], &inner[end + 1..]))
}

/// Control characters beyond ASCII are two bytes, so only ASCII is plain.
fn is_plain_name(byte: &u8) -> bool {
    (b' '..=b'~').contains(byte)
}

/// The names, with their escapes, and the values of a canonical text. Of a text that is not
/// canonical, some or none.
pub fn pairs(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut rest = text.strip_prefix('{').unwrap_or_default();
    std::iter::from_fn(move || {
        let (name, after) = take_string(rest)?;
        let value = after.strip_prefix(':')?;
        let length = match value.starts_with('"') {
            true => take_string(value)?.0.len() + 2,
            false => value.find([',', '}'])?,
        };
        rest = value.get(length + 1..)?;
        Some((name, &value[..length]))
    })
}

/// Whether a name in canonical form means this name. An escape is longer than what it means.
pub fn is_name(raw: &str, name: &str) -> bool {
    if raw.len() <= name.len() {
        return raw == name && !raw.contains('\\');
    }
    let unescape = || serde_json::from_str::<String>(&format!("\"{raw}\""));
    raw.contains('\\') && unescape().is_ok_and(|raw| raw == name)
}

/// The content of a string, escapes and all, and what follows it.
fn take_string(text: &str) -> Option<(&str, &str)> {
    let inner = text.strip_prefix('"')?;
    let mut escaped = false;
    let end = inner.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })?;
    Some((&inner[..end], &inner[end + 1..]))
}
