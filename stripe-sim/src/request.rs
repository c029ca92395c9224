//! Requests, responses, refusals, and how much of a response a client receives.
//!
//! Invariant: a response is complete as Stripe would have sent it; [`Transport`] alone says how
//! much of it a client receives. A crash leaves nothing.

use serde_json::Value;
use std::collections::BTreeMap;

/// The API version of a request that names none.
pub const API_VERSION: &str = "2026-10-28.dahlia";

/// The body of a success, or a refusal.
pub type Answer = Result<Value, ApiError>;

/// A key that every simulator accepts unless [`Options::api_key`](crate::Options::api_key) is set.
pub const TEST_KEY: &str = "sk_test_simulator";

/// An HTTP request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimRequest {
    /// The method, in upper case.
    pub method: String,
    /// The path, without the query.
    pub path: String,
    /// The query without its question mark, still encoded.
    pub query: String,
    /// The headers; names are in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body: a form for version 1, JSON for version 2.
    pub body: Vec<u8>,
}

impl SimRequest {
    /// A request without a body, with [`TEST_KEY`]. `target` is a path with or without a query.
    pub fn new(method: &str, target: &str) -> Self {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let request = Self {
            method: method.to_owned(),
            path: path.to_owned(),
            query: query.to_owned(),
            headers: BTreeMap::new(),
            body: Vec::new(),
        };
        request.with_header("authorization", &format!("Bearer {TEST_KEY}"))
    }

    /// A GET.
    pub fn get(target: &str) -> Self {
        Self::new("GET", target)
    }

    /// A POST for version 1 of the API, with a form.
    pub fn form(path: &str, fields: &[(&str, &str)]) -> Self {
        let pairs: Vec<String> = fields
            .iter()
            .map(|(name, value)| format!("{}={}", encode(name), encode(value)))
            .collect();
        let mut request = Self::new("POST", path)
            .with_header("content-type", "application/x-www-form-urlencoded");
        request.body = pairs.join("&").into_bytes();
        request
    }

    /// A POST for version 2 of the API, with JSON.
    pub fn json(path: &str, body: &Value) -> Self {
        let mut request = Self::new("POST", path).with_header("content-type", "application/json");
        request.body = body.to_string().into_bytes();
        request
    }

    /// Adds or replaces a header.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.insert(name.to_ascii_lowercase(), value.to_owned());
        self
    }

    /// Sets the Idempotency-Key.
    #[must_use]
    pub fn with_key(self, idempotency_key: &str) -> Self {
        self.with_header("idempotency-key", idempotency_key)
    }

    /// A header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// The key or token of the Authorization header.
    pub fn bearer(&self) -> Option<&str> {
        self.header("authorization")?.strip_prefix("Bearer ").map(str::trim)
    }

    /// The API key: the Bearer token, or the user name of Basic authentication.
    pub(crate) fn api_key(&self) -> Option<String> {
        let Some(basic) = self.header("authorization")?.strip_prefix("Basic ") else {
            return self.bearer().map(str::to_owned);
        };
        let text = String::from_utf8(from_base64(basic.trim())?).ok()?;
        Some(text.split_once(':').map_or(text.as_str(), |(key, _)| key).to_owned())
    }

    pub(crate) fn is_v2(&self) -> bool {
        self.path.starts_with("/v2/")
    }
}

/// How much of a response the client receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// All of it, at once.
    Whole,
    /// Nothing: the connection is closed.
    Closed,
    /// Nothing: the connection stays open until the client gives up.
    Silent,
    /// Half of the body, then the connection is closed.
    Half,
    /// All of it, one byte at a time.
    Trickle,
    /// All of it, after a delay during which the call counts as in progress.
    Delayed,
}

/// An HTTP response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimResponse {
    /// The status; 0 if the client receives nothing and nothing was executed.
    pub status: u16,
    /// The headers; names are in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// The whole body, even if the client receives only a part.
    pub body: Vec<u8>,
    /// How much of the response the client receives.
    pub transport: Transport,
}

impl SimResponse {
    pub(crate) fn of(status: u16, body: &Value) -> Self {
        Self {
            status,
            headers: vec![("content-type", "application/json".to_owned())],
            body: body.to_string().into_bytes(),
            transport: Transport::Whole,
        }
    }

    /// A header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The body as JSON; null if it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// Whether the client receives the whole response.
    pub fn arrives(&self) -> bool {
        match self.transport {
            Transport::Whole | Transport::Trickle | Transport::Delayed => true,
            Transport::Closed | Transport::Silent | Transport::Half => false,
        }
    }
}

/// When a refusal was made, which decides whether it is kept under the Idempotency-Key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    BeforeExecution,
    Executing,
}

/// A refusal in Stripe's form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    pub status: u16,
    pub kind: &'static str,
    pub code: Option<&'static str>,
    pub param: Option<String>,
    pub message: String,
    pub headers: Vec<(&'static str, String)>,
    pub stage: Stage,
}

impl ApiError {
    pub fn new(status: u16, kind: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            kind,
            code: None,
            param: None,
            message: message.into(),
            headers: Vec::new(),
            stage: Stage::BeforeExecution,
        }
    }

    /// A parameter that cannot be read; nothing was executed.
    pub fn parameter(name: &str, message: impl Into<String>) -> Self {
        let mut error = Self::new(400, "invalid_request_error", message);
        error.param = Some(name.to_owned());
        error
    }

    /// A refusal by the execution.
    pub fn refused(message: impl Into<String>) -> Self {
        let mut error = Self::new(400, "invalid_request_error", message);
        error.stage = Stage::Executing;
        error
    }

    pub fn unauthorized(message: &str) -> Self {
        Self::new(401, "invalid_request_error", message)
    }

    /// No such object; `noun` is Stripe's name for its kind.
    pub fn missing(noun: &str, id: &str) -> Self {
        let mut error = Self::refused(format!("No such {noun}: '{id}'"));
        error.code = Some("resource_missing");
        error.param = Some("id".to_owned());
        error.status = 404;
        error
    }

    /// The same for an object that a parameter names, and not the path.
    #[must_use]
    pub fn referenced(mut self, name: &str) -> Self {
        self.status = 400;
        self.with_param(name)
    }

    #[must_use]
    pub fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    #[must_use]
    pub fn with_param(mut self, name: &str) -> Self {
        self.param = Some(name.to_owned());
        self
    }

    #[must_use]
    pub fn with_header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub fn response(&self) -> SimResponse {
        let mut error = serde_json::json!({ "type": self.kind, "message": self.message });
        if let Some(code) = self.code {
            error["code"] = code.into();
        }
        if let Some(param) = &self.param {
            error["param"] = param.as_str().into();
        }
        let mut response = SimResponse::of(self.status, &serde_json::json!({ "error": error }));
        response.headers.extend(self.headers.iter().cloned());
        response
    }
}

/// Decodes base64 with or without padding.
fn from_base64(text: &str) -> Option<Vec<u8>> {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::with_capacity(text.len());
    let (mut bits, mut held) = (0u32, 0u32);
    for character in text.trim_end_matches('=').bytes() {
        let place = ALPHABET.iter().position(|known| *known == character)?;
        bits = (bits << 6) | u32::try_from(place).ok()?;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push(u8::try_from((bits >> held) & 0xff).ok()?);
            bits &= (1 << held) - 1;
        }
    }
    Some(bytes)
}

/// Percent-encodes everything but unreserved characters and brackets.
pub fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~[]".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}
