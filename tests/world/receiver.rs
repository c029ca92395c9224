//! An HTTP receiver on loopback: keeps what it was sent and answers by a script.

use super::standard_webhooks::standard_signature;
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, Uri};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;

/// An answer of the script.
#[derive(Clone)]
pub struct Scripted {
    pub status: u16,
    pub body: String,
    pub location: Option<String>,
}

/// One request as it came.
#[derive(Clone)]
pub struct Call {
    pub path: String,
    pub headers: HeaderMap,
    pub body: String,
}

impl Call {
    pub fn header(&self, name: &str) -> String {
        self.headers.get(name).unwrap().to_str().unwrap().to_owned()
    }

    /// Checks its signature by Standard Webhooks.
    pub fn verify(&self, secret: &[u8]) {
        let (id, timestamp) = (self.header("webhook-id"), self.header("webhook-timestamp"));
        let expected = standard_signature(secret, &id, &timestamp, &self.body);
        assert_eq!(self.header("webhook-signature"), expected);
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

pub struct Receiver {
    pub base: String,
    script: Mutex<VecDeque<Scripted>>,
    /// What it answers when the script is empty.
    otherwise: Mutex<u16>,
    calls: Mutex<Vec<Call>>,
}

impl Receiver {
    pub async fn start(otherwise: u16) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let (script, calls, otherwise) = (Mutex::default(), Mutex::default(), otherwise.into());
        let receiver = Arc::new(Self { base, script, otherwise, calls });
        let router = Router::new().fallback(receive).with_state(Arc::clone(&receiver));
        tokio::spawn(async move { axum::serve(listener, router).await });
        receiver
    }

    pub fn answers(&self, status: u16, body: &str) {
        let scripted = Scripted { status, body: body.to_owned(), location: None };
        self.script.lock().unwrap().push_back(scripted);
    }

    /// Answers like this from now on.
    pub fn always_answers(&self, status: u16) {
        *self.otherwise.lock().unwrap() = status;
    }

    pub fn redirects(&self, status: u16, location: &str) {
        let location = Some(location.to_owned());
        let scripted = Scripted { status, body: String::new(), location };
        self.script.lock().unwrap().push_back(scripted);
    }

    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }
}

async fn receive(
    State(receiver): State<Arc<Receiver>>,
    uri: Uri,
    headers: HeaderMap,
    body: String,
) -> Response {
    let call = Call { path: uri.path().to_owned(), headers, body };
    receiver.calls.lock().unwrap().push(call);
    let status = *receiver.otherwise.lock().unwrap();
    let plain = Scripted { status, body: String::new(), location: None };
    let scripted = receiver.script.lock().unwrap().pop_front().unwrap_or(plain);
    let status = StatusCode::from_u16(scripted.status).unwrap();
    match scripted.location {
        Some(location) => (status, [("location", location)], scripted.body).into_response(),
        None => (status, scripted.body).into_response(),
    }
}

/// Serves a router on a free port of loopback until the test ends; returns its URL.
pub async fn serve_on_loopback(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}
