//! An event's properties: a flat object of strings, numbers and booleans, held as canonical JSON.
//!
//! Invariant: equal properties have equal text. Names are sorted and unique, numbers are in the
//! canonical form of `quantity`, strings in serde_json's shortest escaping, and a null is the same
//! as an absent property. A number that cannot be held exactly is refused: send it as a string.
//!
//! Most senders write their properties in this form already: `canonical` finds out in one pass,
//! and what it does not recognise is read by serde_json. Both have the same outcome.

mod canonical;

use super::ids::{MeterNo, check_text};
use super::quantity::Quantity;
use super::refusal::Refusal;
use super::rollup::Group;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

pub const PROPERTIES_MAX: usize = 32;
pub const NAME_BYTES_MAX: usize = 64;
pub const VALUE_BYTES_MAX: usize = 512;
pub const TEXT_BYTES_MAX: usize = 4096;

/// Canonical JSON text of an object; the empty text means no properties.
#[derive(Debug, Clone, Default)]
pub struct Properties {
    text: Box<str>,
    /// What the dimensions of a meter make of the text, if that was found out before.
    group: Option<(MeterNo, Group)>,
}

/// The group follows from the text.
impl PartialEq for Properties {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Properties {}

impl Properties {
    /// Reads a JSON object.
    pub fn parse(json: &str) -> Result<Self, Refusal> {
        if canonical::is_canonical(json) {
            return Ok(Self::from_stored(json));
        }
        Self::parse_any(json)
    }

    fn parse_any(json: &str) -> Result<Self, Refusal> {
        let pairs: Pairs<'_> = serde_json::from_str(json)
            .map_err(|_| invalid("properties must be a flat JSON object"))?;
        Self::from_pairs(pairs.0)
    }

    pub fn from_pairs(mut pairs: Vec<(Cow<'_, str>, &RawValue)>) -> Result<Self, Refusal> {
        if pairs.len() > PROPERTIES_MAX {
            return Err(invalid(format!("an event has at most {PROPERTIES_MAX} properties")));
        }
        pairs.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        if pairs.windows(2).any(|two| two[0].0 == two[1].0) {
            return Err(invalid("properties name the same property twice"));
        }
        let mut text = String::with_capacity(128);
        for (name, value) in pairs {
            if value.get() == "null" {
                continue;
            }
            check_name(&name)?;
            text.push(if text.is_empty() { '{' } else { ',' });
            push_json_string(&mut text, &name);
            text.push(':');
            push_value(&mut text, &name, value.get())?;
        }
        if !text.is_empty() {
            text.push('}');
        }
        if text.len() > TEXT_BYTES_MAX {
            return Err(invalid(format!("properties take more than {TEXT_BYTES_MAX} bytes")));
        }
        Ok(Self::from_stored(&text))
    }

    /// Reads a text that [`Self::as_text`] wrote.
    pub fn from_stored(text: &str) -> Self {
        Self { text: text.into(), group: None }
    }

    /// The canonical text: empty, or a JSON object.
    pub fn as_text(&self) -> &str {
        &self.text
    }

    /// The canonical text as JSON: `{}` when there are none.
    pub fn as_json(&self) -> &str {
        if self.text.is_empty() { "{}" } else { &self.text }
    }

    /// The value of a property as text.
    pub fn value(&self, name: &str) -> Option<Cow<'_, str>> {
        let (_, raw) =
            canonical::pairs(&self.text).find(|(found, _)| canonical::is_name(found, name))?;
        Some(text_of(raw).unwrap_or(Cow::Borrowed(raw)))
    }

    /// The canonical JSON of the values of the named properties, in the order asked.
    pub fn raw_values<const N: usize>(&self, names: &[String]) -> [Option<&str>; N] {
        let mut values = [None; N];
        for (found, value) in canonical::pairs(&self.text) {
            for (name, place) in names.iter().zip(&mut values) {
                if canonical::is_name(found, name) {
                    *place = Some(value);
                }
            }
        }
        values
    }

    /// Keeps the group that the dimensions of this meter put an event without stamps in, so that
    /// the store does not look for it again.
    pub fn remember_group(&mut self, meter: MeterNo, group: Group) {
        self.group = Some((meter, group));
    }

    /// The group that was kept for this meter.
    pub fn remembered_group(&self, meter: MeterNo) -> Option<&Group> {
        self.group.as_ref().filter(|(number, _)| *number == meter).map(|(_, group)| group)
    }
}

/// The pairs of a JSON object in the order written, duplicates and all.
#[derive(Default)]
pub struct Pairs<'a>(pub Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairsVisitor;
        impl<'de> Visitor<'de> for PairsVisitor {
            type Value = Pairs<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::with_capacity(8);
                while let Some(name) = map.next_key::<Text<'de>>()? {
                    pairs.push((name.0, map.next_value::<&'de RawValue>()?));
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(PairsVisitor)
    }
}

/// A JSON string, borrowed from the input where it holds no escapes.
pub struct Text<'a>(pub Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// The text of a JSON value if it is a string.
pub fn text_of(raw: &str) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') {
        serde_json::from_str::<String>(raw).ok().map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(inner))
    }
}

pub fn check_name(name: &str) -> Result<(), Refusal> {
    check_text("a property's name", "invalid_property", name, NAME_BYTES_MAX)
}

fn push_value(text: &mut String, name: &str, raw: &str) -> Result<(), Refusal> {
    match raw.as_bytes().first() {
        Some(b'"') => {
            let inner = &raw[1..raw.len() - 1];
            if inner.len() > VALUE_BYTES_MAX {
                return Err(invalid(format!(
                    "property {name} has a value of more than {VALUE_BYTES_MAX} bytes"
                )));
            }
            if inner.contains('\\') {
                let value: String = serde_json::from_str(raw)
                    .map_err(|_| invalid(format!("property {name} is not a valid string")))?;
                if value.contains('\0') {
                    return Err(invalid(format!("property {name} contains a NUL character")));
                }
                push_json_string(text, &value);
            } else {
                text.push_str(raw);
            }
        }
        Some(b't' | b'f') => text.push_str(raw),
        Some(b'{' | b'[') => {
            return Err(invalid(format!(
                "property {name} is nested; properties are strings, numbers or booleans"
            )));
        }
        _ => {
            let number = Quantity::parse_stored(raw).ok_or_else(|| {
                invalid(format!("property {name} is a number too large or too precise to keep exactly; send it as a string"))
            })?;
            text.push_str(&number.to_string());
        }
    }
    Ok(())
}

pub(crate) fn push_json_string(text: &mut String, value: &str) {
    if value.bytes().all(|b| b >= 0x20 && b != b'"' && b != b'\\') {
        text.push('"');
        text.push_str(value);
        text.push('"');
    } else {
        text.push_str(&serde_json::to_string(value).expect("a string always serialises"));
    }
}

fn invalid(detail: impl Into<Cow<'static, str>>) -> Refusal {
    Refusal::new("invalid_property", detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(json: &str, expected: Result<&str, &str>) {
        let found = Properties::parse(json).map(|p| p.as_text().to_owned()).map_err(|r| r.code);
        assert_eq!(found.as_deref().map_err(|c| *c), expected, "{json}");
    }

    #[test]
    fn equal_properties_have_equal_text() {
        check("{}", Ok(""));
        check(r#"{"a":null}"#, Ok(""));
        let canonical = r#"{"a":"x","b":1.5,"c":true}"#;
        check(r#"{"a":"x","b":1.5,"c":true}"#, Ok(canonical));
        check(r#"{ "c" : true, "b":15e-1 , "a":"\u0078" }"#, Ok(canonical));
        check(r#"{"a":"A\"\n"}"#, Ok(r#"{"a":"A\"\n"}"#));
        check(r#"{"a":"\/"}"#, Ok(r#"{"a":"/"}"#));
    }

    #[test]
    fn refused() {
        for json in [
            "[]",
            "1",
            "\"a\"",
            r#"{"a":{}}"#,
            r#"{"a":[1]}"#,
            r#"{"a":1,"a":1}"#,
            r#"{"":1}"#,
            r#"{"a":1e400}"#,
            r#"{"a":0.0000000000001}"#,
            r#"{"a":"\u0000"}"#,
            r#"{"a\n":1}"#,
        ] {
            check(json, Err("invalid_property"));
        }
    }

    #[test]
    fn values_by_name() {
        let properties = Properties::parse(r#"{"a":"x","b":1.50,"c":true}"#).expect("valid");
        for (name, expected) in
            [("a", Some("x")), ("b", Some("1.5")), ("c", Some("true")), ("missing", None)]
        {
            assert_eq!(properties.value(name).as_deref(), expected, "{name}");
        }
        let odd = r#"{"a\"b":"c\\d","e":"{\"f\":1}","f":"é"}"#;
        let properties = Properties::parse(odd).expect("valid");
        for (name, expected) in
            [("a\"b", Some("c\\d")), ("e", Some(r#"{"f":1}"#)), ("f", Some("é")), ("a", None)]
        {
            assert_eq!(properties.value(name).as_deref(), expected, "{name}");
        }
    }

    /// What the values were read by before: any JSON, and no names twice.
    fn value_by_serde(properties: &Properties, name: &str) -> Option<String> {
        let pairs: Pairs<'_> = serde_json::from_str(properties.as_json()).expect("valid JSON");
        let (_, raw) = pairs.0.iter().find(|(found, _)| found == name)?;
        Some(text_of(raw.get()).map_or_else(|| raw.get().to_owned(), Cow::into_owned))
    }

    /// JSON texts of values, canonical and not.
    fn any_value() -> impl Strategy<Value = String> {
        let string = "\\PC{0,12}".prop_map(|text| serde_json::to_string(&text).expect("a string"));
        let escaped = "[a-z\"\\\\\n\u{7f}\u{85}é]{0,8}"
            .prop_map(|text| serde_json::to_string(&text).expect("a string"));
        let fixed = prop::sample::select(vec![
            "null",
            "true",
            "false",
            "-0",
            "0",
            "7",
            "-7",
            "1.0",
            "1.5",
            "1e3",
            "0.10",
            "12345678901",
            "999999999999999",
            "9999999999999999",
            "1e400",
            "{}",
            "[1]",
            "\"\\u0078\"",
            "\"\\/\"",
            "\"\\u0000\"",
            "\"\"",
        ]);
        prop_oneof![string, escaped, fixed.prop_map(str::to_owned)]
    }

    /// JSON texts of objects, in any order, with names twice, and with blanks in some.
    fn any_object() -> impl Strategy<Value = String> {
        let name = prop_oneof![
            "[a-d]{0,2}".prop_map(|name| format!("{name:?}")),
            "\\PC{1,4}".prop_map(|name| serde_json::to_string(&name).expect("a string")),
        ];
        let pairs = proptest::collection::vec((name, any_value()), 0..6);
        (pairs, any::<bool>(), any::<bool>()).prop_map(|(mut pairs, sorted, blanks)| {
            if sorted {
                pairs.sort();
                pairs.dedup_by(|a, b| a.0 == b.0);
            }
            let pairs: Vec<String> = pairs.iter().map(|(n, v)| format!("{n}:{v}")).collect();
            let comma = if blanks { " , " } else { "," };
            format!("{{{}}}", pairs.join(comma))
        })
    }

    proptest! {
        #[test]
        fn what_is_recognised_is_what_would_be_written(json in any_object()) {
            prop_assert_eq!(Properties::parse(&json), Properties::parse_any(&json));
        }

        #[test]
        fn values_are_those_that_serde_finds(json in any_object(), other in "[a-d]{0,2}") {
            if let Ok(properties) = Properties::parse(&json) {
                let pairs: Pairs<'_> = serde_json::from_str(properties.as_json()).expect("JSON");
                let names = pairs.0.iter().map(|(name, _)| name.as_ref()).chain([other.as_str()]);
                for name in names {
                    let expected = value_by_serde(&properties, name);
                    prop_assert_eq!(properties.value(name).map(Cow::into_owned), expected);
                }
            }
        }

        #[test]
        fn damaged_texts_never_panic(text in "[a{}\":,\\\\é]{0,20}") {
            let _ = Properties::from_stored(&text).value("a");
        }

        #[test]
        fn canonical_text_is_its_own_canonical_text(
            map in proptest::collection::btree_map("[a-z]{1,8}", "\\PC{0,20}", 0..6)
        ) {
            let json = serde_json::to_string(&map).expect("serialises");
            let once = Properties::parse(&json).expect("valid");
            prop_assert_eq!(Properties::parse(once.as_json()), Ok(once.clone()));
            let back: std::collections::BTreeMap<String, String> =
                serde_json::from_str(once.as_json()).expect("valid JSON");
            prop_assert_eq!(back, map);
        }
    }
}
