//! A record as the value of a Redis key.
//!
//! Invariant: a value is read whole or not at all: the mark, the number of fields, their lengths
//! and the scope must all be right. What anybody else wrote there is [`StoreError::Unreadable`].
//!
//! The value is `cfi1` and then thirteen fields: tenant, route, key, fingerprint, state, owner,
//! fence, lease_until, lease_ms, recovery_point, status, headers, body. A field is one byte 0 if it
//! is absent; or one byte 1, eight bytes of length, most significant first, and its bytes. Numbers
//! are decimal texts.

use crate::judge::Stored;
use crate::record::{Scope, StoreError};

const MARK: &[u8] = b"cfi1";

pub(super) fn write(scope: &Scope, stored: &Stored) -> Vec<u8> {
    let number = |number: i64| number.to_string().into_bytes();
    let fields: [Option<Vec<u8>>; 13] = [
        Some(scope.tenant.clone().into_bytes()),
        Some(scope.route.clone().into_bytes()),
        Some(scope.key.clone().into_bytes()),
        Some(stored.fingerprint.clone()),
        Some(stored.state.clone().into_bytes()),
        Some(stored.owner.clone()),
        Some(number(stored.fence)),
        stored.lease_until.map(number),
        Some(number(stored.lease_ms)),
        stored.recovery_point.clone().map(String::into_bytes),
        stored.status.map(number),
        stored.headers.clone().map(String::into_bytes),
        stored.body.clone(),
    ];
    let mut value = MARK.to_vec();
    for field in fields {
        let Some(bytes) = field else {
            value.push(0);
            continue;
        };
        value.push(1);
        let length = u64::try_from(bytes.len()).expect("a length fits into 64 bits");
        value.extend_from_slice(&length.to_be_bytes());
        value.extend_from_slice(&bytes);
    }
    value
}

pub(super) fn read(scope: &Scope, value: &[u8]) -> Result<Stored, StoreError> {
    let stored = read_fields(scope, value);
    stored.ok_or_else(|| StoreError::Unreadable("a value that is no record of this key".to_owned()))
}

fn read_fields(scope: &Scope, value: &[u8]) -> Option<Stored> {
    let mut fields = Fields(value.strip_prefix(MARK)?);
    let own = fields.text()?? == scope.tenant
        && fields.text()?? == scope.route
        && fields.text()?? == scope.key;
    let stored = Stored {
        fingerprint: fields.bytes()??,
        state: fields.text()??,
        owner: fields.bytes()??,
        fence: fields.number()??,
        lease_until: fields.number()?,
        lease_ms: fields.number()??,
        recovery_point: fields.text()?,
        status: fields.number()?,
        headers: fields.text()?,
        body: fields.bytes()?,
    };
    (own && fields.0.is_empty()).then_some(stored)
}

/// What is left of a value. Of its answers, the outer is none if the value is broken and the inner
/// if the field is absent.
struct Fields<'v>(&'v [u8]);

impl Fields<'_> {
    fn bytes(&mut self) -> Option<Option<Vec<u8>>> {
        let (mark, rest) = self.0.split_first()?;
        match mark {
            0 => {
                self.0 = rest;
                Some(None)
            }
            1 => {
                let (length, rest) = rest.split_first_chunk::<8>()?;
                let length = usize::try_from(u64::from_be_bytes(*length)).ok()?;
                let (bytes, rest) = rest.split_at_checked(length)?;
                self.0 = rest;
                Some(Some(bytes.to_vec()))
            }
            _ => None,
        }
    }

    fn text(&mut self) -> Option<Option<String>> {
        let bytes = self.bytes()?;
        bytes.map(|bytes| String::from_utf8(bytes).ok()).map_or(Some(None), |text| text.map(Some))
    }

    fn number(&mut self) -> Option<Option<i64>> {
        let text = self.text()?;
        text.map(|text| text.parse().ok()).map_or(Some(None), |number| number.map(Some))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn scope(tenant: &str) -> Scope {
        Scope { tenant: tenant.to_owned(), route: "r".to_owned(), key: "k".to_owned() }
    }

    fn stored() -> impl Strategy<Value = Stored> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..40);
        let first = (bytes(), ".*", bytes(), any::<i64>(), any::<Option<i64>>());
        let second = (any::<i64>(), any::<Option<String>>(), any::<Option<i64>>());
        let third = (any::<Option<String>>(), prop::option::of(bytes()));
        (first, second, third).prop_map(|(first, second, third)| Stored {
            fingerprint: first.0,
            state: first.1,
            owner: first.2,
            fence: first.3,
            lease_until: first.4,
            lease_ms: second.0,
            recovery_point: second.1,
            status: second.2,
            headers: third.0,
            body: third.1,
        })
    }

    proptest! {
        #[test]
        fn a_record_comes_back_as_it_was(stored in stored(), tenant in ".*") {
            let value = write(&scope(&tenant), &stored);
            prop_assert_eq!(read(&scope(&tenant), &value), Ok(stored));
        }

        #[test]
        fn a_broken_record_is_unreadable(stored in stored(), cut in any::<prop::sample::Index>()) {
            let whole = write(&scope("t"), &stored);
            let short = &whole[..cut.index(whole.len())];
            prop_assert!(read(&scope("t"), short).is_err());
            prop_assert!(read(&scope("t"), &[whole.as_slice(), b"x"].concat()).is_err());
            prop_assert!(read(&scope("u"), &whole).is_err());
        }
    }
}
