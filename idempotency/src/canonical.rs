//! Bodies in canonical form, so that a client which writes the same JSON in another order or with
//! other spaces is not refused for reuse of its key.
//!
//! Invariant: two bodies with the same form mean the same to every reader. Names are sorted at each
//! level and spaces outside of texts dropped; numbers and texts stay exactly as they were written,
//! and nothing passes through a float. A body that is no JSON, that has a name twice in one object
//! (readers differ on which one counts), that is nested deeper than 32 levels, or that has more
//! than [`BYTES_MAX`] bytes is its own form.

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// Reading JSON level by level takes time and a multiple of its memory; larger bodies come from
/// programs, which write them the same way each time.
const BYTES_MAX: usize = 64 * 1024;
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
    let readable = body.len() <= BYTES_MAX && is_json(headers);
    let json = if readable { of_json(body) } else { None };
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

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;

    fn form(body: &str) -> String {
        let form = of_json(body.as_bytes()).expect("it has a form");
        String::from_utf8(form).expect("a form is text")
    }

    #[test]
    fn json_has_one_form() {
        let cases = [
            ("{}", "{}"),
            (" { \"b\" : 1 , \"a\" : [ 1 , { } ] }\n", r#"{"a":[1,{}],"b":1}"#),
            (r#"{"b":{"d":1,"c":2},"a":0}"#, r#"{"a":0,"b":{"c":2,"d":1}}"#),
            ("[1.0, 1, 1e0, -0, 0.10]", "[1.0,1,1e0,-0,0.10]"),
            (r#"" a\u0020b ""#, r#"" a\u0020b ""#),
            (
                "[12345678901234567890123456789.000000001]",
                "[12345678901234567890123456789.000000001]",
            ),
            (r#"{"\u0061":1}"#, r#"{"\u0061":1}"#),
            ("null", "null"),
        ];
        for (body, expected) in cases {
            assert_eq!(form(body), expected, "of {body}");
        }
        let deepest = format!("{}{}", "[".repeat(32), "]".repeat(32));
        assert_eq!(form(&deepest), deepest);
    }

    #[test]
    fn what_has_no_form_is_taken_as_it_is() {
        let deep = format!("{}{}", "[".repeat(33), "]".repeat(33));
        let cases = [
            "",
            "{",
            "{} {}",
            "{'a':1}",
            "01",
            "NaN",
            r#"{"a":1,"a":1}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"{"x":{"a":1,"a":2}}"#,
            "\u{feff}{}",
            &deep,
        ];
        for body in cases {
            assert_eq!(of_json(body.as_bytes()), None, "of {body}");
        }
        assert_eq!(of_json(b"\"\xff\""), None);
    }

    #[test]
    fn the_content_type_says_whether_it_is_json() {
        let json = ["application/json", "Application/JSON; charset=utf-8", "application/a+json"];
        let other =
            ["text/plain", "application/jsonl", "application/x-www-form-urlencoded", "+json"];
        let kind = |value: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            headers.extend(value.map(|value| (CONTENT_TYPE, HeaderValue::from_static(value))));
            of_body(&headers, b"{ }").kind()
        };
        assert!(json.into_iter().all(|value| kind(Some(value)) == "json"));
        assert!(other.into_iter().all(|value| kind(Some(value)) == "raw"));
        assert_eq!(kind(None), "raw");
    }

    /// JSON as texts: one value written in two ways, with other spaces and another order.
    fn written_twice() -> impl Strategy<Value = (String, String)> {
        let leaf = prop_oneof![
            "-?(0|[1-9][0-9]{0,30})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?",
            any::<String>().prop_map(|text| serde_json::to_string(&text).expect("a text is JSON")),
            "(true|false|null)",
        ];
        leaf.prop_map(|text| (text.clone(), text)).prop_recursive(4, 40, 6, |inner| {
            let list = (prop::collection::vec(inner.clone(), 0..6), "[ \t\r\n]{0,3}");
            let lists = list.prop_map(|(items, space)| {
                let (one, two): (Vec<String>, Vec<String>) = items.into_iter().unzip();
                let two = two.join(&format!("{space},{space}"));
                (format!("[{}]", one.join(",")), format!("{space}[{space}{two}{space}]{space}"))
            });
            let members = prop::collection::btree_map(any::<String>(), inner, 0..6);
            let objects = (members, "[ \t\r\n]{0,3}").prop_map(|(members, space)| {
                let write = |name: &String, value: &String, space: &str| {
                    let name = serde_json::to_string(name).expect("a text is JSON");
                    format!("{space}{name}{space}:{space}{value}{space}")
                };
                let one: Vec<String> = members.iter().map(|(n, v)| write(n, &v.0, "")).collect();
                let two: Vec<String> =
                    members.iter().rev().map(|(n, v)| write(n, &v.1, &space)).collect();
                (format!("{{{}}}", one.join(",")), format!("{{{}}}", two.join(",")))
            });
            prop_oneof![lists, objects]
        })
    }

    proptest! {
        #[test]
        fn the_way_of_writing_does_not_matter((one, two) in written_twice()) {
            prop_assert_eq!(form(&one), form(&two));
            // It is its own form, and says the same.
            prop_assert_eq!(form(&form(&two)), form(&one));
            let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
            prop_assert_eq!(read(&form(&two)), read(&two));
        }

        #[test]
        fn another_value_has_another_form(one in written_twice(), two in written_twice()) {
            let (one, two) = (one.0, two.0);
            prop_assert_eq!(form(&one) == form(&two), one == two);
        }

        #[test]
        fn any_bytes_are_taken(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let json = HeaderValue::from_static("application/json");
            let headers: HeaderMap = [(CONTENT_TYPE, json)].into_iter().collect();
            let form = of_body(&headers, &body);
            prop_assert!(form.kind() == "json" || form.bytes() == body);
        }
    }
}
