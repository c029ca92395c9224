//! An HTTP receiver on loopback: keeps what it was sent and answers by a script.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, Uri};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

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

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

pub struct Receiver {
    pub base: String,
    script: Mutex<VecDeque<Scripted>>,
    calls: Mutex<Vec<Call>>,
}

impl Receiver {
    /// Answers with `otherwise` when the script is empty.
    pub async fn start(otherwise: u16) -> Arc<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let (script, calls) = (Mutex::default(), Mutex::default());
        let receiver = Arc::new(Self { base, script, calls });
        let state = (Arc::clone(&receiver), otherwise);
        let router = axum::Router::new().fallback(receive).with_state(state);
        tokio::spawn(async move { axum::serve(listener, router).await });
        receiver
    }

    pub fn answers(&self, status: u16, body: &str) {
        let scripted = Scripted { status, body: body.to_owned(), location: None };
        self.script.lock().unwrap().push_back(scripted);
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
    State((receiver, otherwise)): State<(Arc<Receiver>, u16)>,
    uri: Uri,
    headers: HeaderMap,
    body: String,
) -> Response {
    let call = Call { path: uri.path().to_owned(), headers, body };
    receiver.calls.lock().unwrap().push(call);
    let plain = Scripted { status: otherwise, body: String::new(), location: None };
    let scripted = receiver.script.lock().unwrap().pop_front().unwrap_or(plain);
    let status = StatusCode::from_u16(scripted.status).unwrap();
    match scripted.location {
        Some(location) => (status, [("location", location)], scripted.body).into_response(),
        None => (status, scripted.body).into_response(),
    }
}
