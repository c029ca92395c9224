//! The names things have: tenants, events, meters, subscriptions. Each is its own type, so that
//! two of them cannot be swapped.
//!
//! Invariant: a value of these types is never empty, never longer than its bound, and holds no
//! control character (a line break in an id forges log lines; a NUL is refused by PostgreSQL and
//! cuts a text short in SQLite's `length`). Nothing else is normalised: ids that differ only in
//! case, in a trailing space or in Unicode composition are different ids, as their producer wrote.
//! Tenants with blanks at their ends are refused where they would be created.

use super::refusal::Refusal;
use std::fmt;

/// Longest tenant id, in bytes of UTF-8.
pub const TENANT_BYTES_MAX: usize = 128;
/// Longest event id, in bytes of UTF-8: room for a SHA-256 in hex and for URIs.
pub const EVENT_ID_BYTES_MAX: usize = 255;
/// Longest meter slug.
pub const METER_SLUG_BYTES_MAX: usize = 64;
/// Longest subscription id, in bytes of UTF-8.
pub const SUBSCRIPTION_BYTES_MAX: usize = 128;

/// Longest name of an account, in bytes of UTF-8.
pub const ACCOUNT_BYTES_MAX: usize = 128;
/// Longest key of what happens once, in bytes of UTF-8.
pub const ONCE_KEY_BYTES_MAX: usize = 255;
/// Longest name of a unit.
pub const UNIT_BYTES_MAX: usize = 32;

/// Longest id of a customer at a provider, in bytes of UTF-8.
pub const CUSTOMER_BYTES_MAX: usize = 255;

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $code:literal, $max:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Box<str>);

        impl $name {
            pub fn parse(text: &str) -> Result<Self, Refusal> {
                check_text($what, $code, text, $max)?;
                Ok(Self(text.into()))
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(&self.0)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(from)?;
                Self::parse(&text).map_err(|refusal| serde::de::Error::custom(refusal.detail))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_id!(
    /// Who is billed.
    TenantId, "tenant", "invalid_tenant", TENANT_BYTES_MAX
);
impl TenantId {
    /// Reads the name of a tenant that may be created by it. Blanks at its ends are a mistake of
    /// the sender: the two names look the same to people, and their usage would be billed apart.
    pub fn parse_new(text: &str) -> Result<Self, Refusal> {
        if text.trim() != text {
            let detail = "tenant begins or ends with a blank; send it without";
            return Err(Refusal::new("invalid_tenant", detail));
        }
        Self::parse(text)
    }
}

text_id!(
    /// The producer's name for one event; unique within its tenant.
    EventId, "id", "invalid_id", EVENT_ID_BYTES_MAX
);
text_id!(
    /// The subscription an event was used under.
    SubscriptionId, "subscription", "invalid_subscription", SUBSCRIPTION_BYTES_MAX
);

text_id!(
    /// The billing provider's name for a tenant.
    CustomerId, "customer", "invalid_customer", CUSTOMER_BYTES_MAX
);

text_id!(
    /// An account of a tenant's.
    AccountName, "account", "invalid_account", ACCOUNT_BYTES_MAX
);
text_id!(
    /// The name under which something happens once: an entry, a grant, a quote, a saga.
    OnceKey, "key", "invalid_key", ONCE_KEY_BYTES_MAX
);

/// What an amount is of: a currency such as `eur`, or units such as `credits`, as
/// `[a-z0-9][a-z0-9_.-]*`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Unit(Box<str>);

impl Unit {
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        if !is_slug(text, UNIT_BYTES_MAX) {
            return Err(Refusal::new(
                "invalid_unit",
                format!(
                    "a unit is 1 to {UNIT_BYTES_MAX} characters of a-z, 0-9, '_', '.' and '-', \
                     starting with a letter or digit, such as eur or credits"
                ),
            ));
        }
        Ok(Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_slug(text: &str, bytes_max: usize) -> bool {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_.-".contains(&b);
    let starts_well = text.bytes().next().is_some_and(|b| !b"_.-".contains(&b));
    text.len() <= bytes_max && starts_well && text.bytes().all(allowed)
}

/// What is counted, by its slug: `[a-z0-9][a-z0-9_.-]*`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MeterSlug(Box<str>);

impl MeterSlug {
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        if !is_slug(text, METER_SLUG_BYTES_MAX) {
            return Err(Refusal::new(
                "invalid_meter",
                format!(
                    "a meter slug is 1 to {METER_SLUG_BYTES_MAX} characters of a-z, 0-9, '_', '.' \
                     and '-', starting with a letter or digit"
                ),
            ));
        }
        Ok(Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for MeterSlug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A tenant's number in the store's dictionary; never leaves the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantNo(pub u32);

/// A meter's number in the store's dictionary; never leaves the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MeterNo(pub u16);

pub(crate) fn check_text(
    what: &str,
    code: &'static str,
    text: &str,
    bytes_max: usize,
) -> Result<(), Refusal> {
    if text.is_empty() {
        return Err(Refusal::new(code, format!("{what} is empty")));
    }
    if text.len() > bytes_max {
        let bytes = text.len();
        return Err(Refusal::new(
            code,
            format!("{what} has {bytes} bytes; at most {bytes_max} are allowed"),
        ));
    }
    // Nearly every text is plain ASCII, which is found out without taking it apart.
    let plain = text.bytes().fold(true, |plain, byte| plain & (b' '..=b'~').contains(&byte));
    if !plain && text.chars().any(char::is_control) {
        return Err(Refusal::new(
            code,
            format!("{what} contains a control character; remove line breaks, tabs and NULs"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_are_ids() {
        let long = "x".repeat(EVENT_ID_BYTES_MAX);
        for text in
            ["a", " a", "a ", "A", "é", "e\u{301}", "a:b|c", "'; drop", "../x", "${jndi}", &long]
        {
            assert_eq!(EventId::parse(text).map(|id| id.as_str().to_owned()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn texts_that_are_not_ids() {
        let long = "x".repeat(EVENT_ID_BYTES_MAX + 1);
        for text in ["", "a\nb", "a\r", "\0", "a\tb", "\u{7f}", &long] {
            assert_eq!(EventId::parse(text).map_err(|r| r.code), Err("invalid_id"), "{text:?}");
        }
    }

    #[test]
    fn slugs() {
        for text in ["a", "api_calls", "gpu.a100-hours", "9lives"] {
            assert!(MeterSlug::parse(text).is_ok(), "{text}");
        }
        let long = "a".repeat(METER_SLUG_BYTES_MAX + 1);
        for text in ["", "_a", "-a", ".a", "A", "a b", "a/b", "é", &long] {
            assert_eq!(MeterSlug::parse(text).map_err(|r| r.code), Err("invalid_meter"), "{text}");
        }
    }
}
