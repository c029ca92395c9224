//! Bodies in canonical form, so that a client which writes the same JSON in another order or with
//! other spaces is not told that it sent something else.
//!
//! Invariant: two bodies with the same form mean the same to every reader. Names are sorted at each
//! level and spaces outside of texts dropped; numbers and texts stay exactly as they were written,
//! and nothing passes through a float. A body that is no JSON, that has a name twice in one object
//! (readers differ on which one counts), or that is nested deeper than 32 levels is its own form.

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// Each level is read once more than the one above it, which bounds the work by this factor.
const DEPTH_MAX: u32 = 32;

/// A body's form.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Canonical<'b> {
    Json(Vec<u8>),
    Raw(Cow<'b, [u8]>),
}

impl Canonical<'_> {
    /// Part of the fingerprint: JSON and a text that looks like it are not the same request.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Json(_) => "json",
            Self::Raw(_) => "raw",
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Json(bytes) => bytes,
            Self::Raw(bytes) => bytes,
        }
    }
}

/// The form of a body that came with these headers.
pub(crate) fn of_body<'b>(headers: &HeaderMap, body: &'b [u8]) -> Canonical<'b> {
    let json = if is_json(headers) { of_json(body) } else { None };
    json.map_or(Canonical::Raw(Cow::Borrowed(body)), Canonical::Json)
}

/// None if it has to be taken as it is.
fn of_json(body: &[u8]) -> Option<Vec<u8>> {
    let raw: &RawValue = serde_json::from_slice(body).ok()?;
    let mut form = Vec::with_capacity(body.len());
    write(raw, 0, &mut form)?;
    Some(form)
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(Ok(value)) = headers.get(CONTENT_TYPE).map(|value| value.to_str()) else {
        return false;
    };
    let kind = value.split(';').next().unwrap_or(value).trim().to_ascii_lowercase();
    kind == "application/json" || (kind.contains('/') && kind.ends_with("+json"))
}

fn write(raw: &RawValue, depth: u32, form: &mut Vec<u8>) -> Option<()> {
    let text = raw.get().trim_ascii();
    match text.as_bytes().first()? {
        b'{' | b'[' if depth >= DEPTH_MAX => return None,
        b'{' => {
            let object: Object<'_> = serde_json::from_str(text).ok()?;
            form.push(b'{');
            for (at, (name, value)) in object.0.values().enumerate() {
                if at > 0 {
                    form.push(b',');
                }
                form.extend_from_slice(name.get().trim_ascii().as_bytes());
                form.push(b':');
                write(value, depth + 1, form)?;
            }
            form.push(b'}');
        }
        b'[' => {
            let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            form.push(b'[');
            for (at, item) in items.into_iter().enumerate() {
                if at > 0 {
                    form.push(b',');
                }
                write(item, depth + 1, form)?;
            }
            form.push(b']');
        }
        _ => form.extend_from_slice(text.as_bytes()),
    }
    Some(())
}

/// Members by name, each with its name as it was written. Names are compared as they read: `"a"`
/// and `"\u0061"` are one name.
struct Object<'b>(BTreeMap<String, (&'b RawValue, &'b RawValue)>);

impl<'de: 'b, 'b> Deserialize<'de> for Object<'b> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Members)
    }
}

struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Object<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Object<'de>, A::Error> {
        use serde::de::Error;
        let mut object = BTreeMap::new();
        while let Some((raw, value)) = members.next_entry::<&RawValue, &RawValue>()? {
            let name: String = serde_json::from_str(raw.get()).map_err(Error::custom)?;
            if object.insert(name, (raw, value)).is_some() {
                return Err(Error::custom("a name that is there twice"));
            }
        }
        Ok(Object(object))
    }
}
