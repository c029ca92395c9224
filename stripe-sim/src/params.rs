//! Parameters: forms, queries and JSON bodies in one form, with strict access.
//!
//! Invariant: a parameter that an endpoint does not know is refused, as at Stripe. A crash leaves
//! nothing.

use crate::request::{ApiError, SimRequest};
use serde_json::{Map, Value};

/// The parameters of one request or of one nested object of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Params {
    values: Map<String, Value>,
    /// `payload[value]` and so on, for messages.
    prefix: String,
}

impl Params {
    /// Reads the query or the body, by the request's method and version.
    pub fn of(request: &SimRequest) -> Result<Self, ApiError> {
        if request.method != "POST" {
            return Ok(Self::from_pairs(&request.query));
        }
        if request.is_v2() || request.path.starts_with("/_sim/") {
            return Self::from_json(&request.body);
        }
        let text = std::str::from_utf8(&request.body).map_err(|_| {
            ApiError::new(400, "invalid_request_error", "Invalid request body: not UTF-8")
        })?;
        Ok(Self::from_pairs(text))
    }

    fn from_json(body: &[u8]) -> Result<Self, ApiError> {
        let body: &[u8] = if body.is_empty() { b"{}" } else { body };
        let refusal = || {
            ApiError::new(400, "invalid_request_error", "Invalid request body: not a JSON object")
        };
        match serde_json::from_slice(body).map_err(|_| refusal())? {
            Value::Object(values) => Ok(Self { values, prefix: String::new() }),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_) => Err(refusal()),
        }
    }

    /// `a=1&b[c]=2&d[]=3`, as forms and queries spell it.
    fn from_pairs(text: &str) -> Self {
        let mut root = Value::Object(Map::new());
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            insert(&mut root, &decode(name), decode(value));
        }
        let values = match listed(root) {
            Value::Object(values) => values,
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_) => Map::new(),
        };
        Self { values, prefix: String::new() }
    }

    /// Refuses whatever is not among these.
    pub fn only(&self, allowed: &[&str]) -> Result<(), ApiError> {
        let unknown = self.values.keys().find(|name| {
            let always = self.prefix.is_empty() && *name == "expand";
            !always && !allowed.contains(&name.as_str())
        });
        match unknown {
            None => Ok(()),
            Some(name) => {
                let name = self.full_name(name);
                let message = format!("Received unknown parameter: {name}");
                Err(ApiError::parameter(&name, message).with_code("parameter_unknown"))
            }
        }
    }

    /// A text of at most this many characters; empty is the same as not given.
    pub fn text(&self, name: &str, characters_max: usize) -> Result<Option<String>, ApiError> {
        let text = match self.values.get(name) {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::String(text)) => text,
            Some(Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
                return Err(self.invalid(name, "string"));
            }
        };
        if text.chars().count() > characters_max {
            let name = self.full_name(name);
            let message =
                format!("Invalid string: {name} must be at most {characters_max} characters");
            return Err(ApiError::parameter(&name, message));
        }
        Ok(Some(text.clone()).filter(|text| !text.is_empty()))
    }

    pub fn required_text(&self, name: &str, characters_max: usize) -> Result<String, ApiError> {
        self.text(name, characters_max)?.ok_or_else(|| self.missing(name))
    }

    pub fn integer(&self, name: &str) -> Result<Option<i64>, ApiError> {
        let number = match self.values.get(name) {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::String(text)) if text.is_empty() => return Ok(None),
            Some(Value::String(text)) => text.parse().ok(),
            Some(Value::Number(number)) => number.as_i64(),
            Some(Value::Bool(_) | Value::Array(_) | Value::Object(_)) => None,
        };
        number.map(Some).ok_or_else(|| {
            let name = self.full_name(name);
            ApiError::parameter(&name, format!("Invalid integer: {name}"))
                .with_code("parameter_invalid_integer")
        })
    }

    pub fn required_integer(&self, name: &str) -> Result<i64, ApiError> {
        self.integer(name)?.ok_or_else(|| self.missing(name))
    }

    pub fn boolean(&self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.values.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(Value::String(text)) if text == "true" => Ok(Some(true)),
            Some(Value::String(text)) if text == "false" => Ok(Some(false)),
            Some(Value::String(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
                Err(self.invalid(name, "boolean"))
            }
        }
    }

    /// One of a few words.
    pub fn choice(&self, name: &str, choices: &[&str]) -> Result<Option<String>, ApiError> {
        let Some(text) = self.text(name, usize::MAX)? else { return Ok(None) };
        if choices.contains(&text.as_str()) {
            return Ok(Some(text));
        }
        let name = self.full_name(name);
        let message = format!("Invalid {name}: must be one of {}", choices.join(", "));
        Err(ApiError::parameter(&name, message))
    }

    pub fn nested(&self, name: &str) -> Result<Option<Self>, ApiError> {
        match self.values.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(values)) => {
                Ok(Some(Self { values: values.clone(), prefix: self.full_name(name) }))
            }
            Some(Value::String(_) | Value::Bool(_) | Value::Number(_) | Value::Array(_)) => {
                Err(self.invalid(name, "object"))
            }
        }
    }

    pub fn required_nested(&self, name: &str) -> Result<Self, ApiError> {
        self.nested(name)?.ok_or_else(|| self.missing(name))
    }

    /// The objects of a list.
    pub fn objects(&self, name: &str) -> Result<Vec<Self>, ApiError> {
        let items = match self.values.get(name) {
            None | Some(Value::Null) => return Ok(Vec::new()),
            Some(Value::Array(items)) => items,
            Some(Value::String(_) | Value::Bool(_) | Value::Number(_) | Value::Object(_)) => {
                return Err(self.invalid(name, "array"));
            }
        };
        let mut objects = Vec::with_capacity(items.len());
        for (place, item) in items.iter().enumerate() {
            let Value::Object(values) = item else { return Err(self.invalid(name, "array")) };
            let prefix = format!("{}[{place}]", self.full_name(name));
            objects.push(Self { values: values.clone(), prefix });
        }
        Ok(objects)
    }

    /// The texts of a list; one text alone is a list of one.
    pub fn texts(&self, name: &str) -> Result<Vec<String>, ApiError> {
        match self.values.get(name) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::String(text)) => Ok(vec![text.clone()]),
            Some(Value::Array(items)) => items
                .iter()
                .map(|item| {
                    item.as_str().map(str::to_owned).ok_or_else(|| self.invalid(name, "array"))
                })
                .collect(),
            Some(Value::Bool(_) | Value::Number(_) | Value::Object(_)) => {
                Err(self.invalid(name, "array"))
            }
        }
    }

    /// A flat object of texts.
    pub fn text_map(&self, name: &str) -> Result<Map<String, Value>, ApiError> {
        let Some(nested) = self.nested(name)? else { return Ok(Map::new()) };
        for (key, value) in &nested.values {
            if !value.is_string() {
                return Err(nested.invalid(key, "string"));
            }
        }
        Ok(nested.values)
    }

    /// Everything, in one spelling: equal parameters have equal texts.
    pub fn spelling(&self) -> String {
        Value::Object(self.values.clone()).to_string()
    }

    /// Names and values as a query spells them.
    pub fn pairs(&self) -> Vec<(String, String)> {
        let mut pairs = Vec::new();
        for (name, value) in &self.values {
            spell(name, value, &mut pairs);
        }
        pairs
    }

    pub fn into_value(self) -> Value {
        Value::Object(self.values)
    }

    /// Whether it was given, even if empty.
    pub fn is_given(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// Whether it was given as an empty text, which removes the stored value.
    pub fn is_emptied(&self, name: &str) -> bool {
        self.values.get(name).is_some_and(|value| value == "")
    }

    pub fn missing(&self, name: &str) -> ApiError {
        let name = self.full_name(name);
        ApiError::parameter(&name, format!("Missing required param: {name}."))
            .with_code("parameter_missing")
    }

    fn invalid(&self, name: &str, expected: &str) -> ApiError {
        let name = self.full_name(name);
        ApiError::parameter(&name, format!("Invalid {expected}: {name}"))
    }

    fn full_name(&self, name: &str) -> String {
        if self.prefix.is_empty() { name.to_owned() } else { format!("{}[{name}]", self.prefix) }
    }
}

/// A value under its name, and nested values under names like `a[b]`.
fn spell(name: &str, value: &Value, pairs: &mut Vec<(String, String)>) {
    match value {
        Value::Null => {}
        Value::String(text) => pairs.push((name.to_owned(), text.clone())),
        Value::Bool(_) | Value::Number(_) => pairs.push((name.to_owned(), value.to_string())),
        Value::Array(items) => {
            for (place, item) in items.iter().enumerate() {
                spell(&format!("{name}[{place}]"), item, pairs);
            }
        }
        Value::Object(object) => {
            for (key, item) in object {
                spell(&format!("{name}[{key}]"), item, pairs);
            }
        }
    }
}

/// Puts a value at the path `a[b][c]`. A list without numbers, `a[]`, gets the next number, and so
/// does a repeated name, which is how version 2 writes lists.
fn insert(root: &mut Value, name: &str, value: String) {
    let (first, rest) = match name.split_once('[') {
        Some((first, rest)) => (first, rest.strip_suffix(']').unwrap_or(rest)),
        None => (name, ""),
    };
    let mut keys = vec![first];
    if name.contains('[') {
        keys.extend(rest.split("]["));
    }
    let mut place = root;
    for key in keys {
        if !place.is_object() {
            *place = Value::Object(Map::new());
        }
        let Value::Object(object) = place else { return };
        let key = if key.is_empty() { object.len().to_string() } else { key.to_owned() };
        place = object.entry(key).or_insert(Value::Null);
    }
    match place {
        Value::String(first) => {
            let first = std::mem::take(first);
            *place = Value::Array(vec![first.into(), value.into()]);
        }
        Value::Array(items) => items.push(value.into()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            *place = Value::String(value);
        }
    }
}

/// Objects whose keys are all numbers are lists.
fn listed(value: Value) -> Value {
    let Value::Object(object) = value else { return value };
    let numbers: Option<Vec<usize>> = object.keys().map(|key| key.parse().ok()).collect();
    match numbers {
        Some(numbers) if !numbers.is_empty() => {
            let mut items: Vec<(usize, Value)> =
                numbers.into_iter().zip(object.into_iter().map(|(_, item)| listed(item))).collect();
            items.sort_by_key(|(number, _)| *number);
            Value::Array(items.into_iter().map(|(_, item)| item).collect())
        }
        Some(_) | None => {
            Value::Object(object.into_iter().map(|(key, item)| (key, listed(item))).collect())
        }
    }
}

fn decode(text: &str) -> String {
    let mut decoded = Vec::with_capacity(text.len());
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let escaped = text.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (bytes[at], escaped) {
            (b'%', Some(byte)) => {
                decoded.push(byte);
                at += 2;
            }
            (b'+', _) => decoded.push(b' '),
            (byte, _) => decoded.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn forms_and_queries() {
        let check = |text: &str, expected: Value| {
            assert_eq!(Params::from_pairs(text).into_value(), expected, "{text}");
        };
        check("", json!({}));
        check("a=1&b=x+y%2Fz", json!({ "a": "1", "b": "x y/z" }));
        check(
            "p[value]=12.5&p%5Bcustomer%5D=c",
            json!({ "p": { "value": "12.5", "customer": "c" } }),
        );
        check("t[]=a&t[]=b", json!({ "t": ["a", "b"] }));
        check("t=a&t=b&t=c", json!({ "t": ["a", "b", "c"] }));
        check("i[1][p]=b&i[0][p]=a", json!({ "i": [{ "p": "a" }, { "p": "b" }] }));
        check("a=%zz&b", json!({ "a": "%zz", "b": "" }));
        check("a=1&a[b]=2", json!({ "a": { "b": "2" } }));
    }
}
