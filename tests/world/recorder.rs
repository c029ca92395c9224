//! Destinations of alerts that record what they are sent.

use async_trait::async_trait;
use counterfoil::destinations::{Destination, Notice, Sending};
use counterfoil::rules::alert::{Alert, AlertKind, NoticeEvent};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    pub number: u64,
    pub event: NoticeEvent,
    pub kind: AlertKind,
    pub subject: String,
    pub summary: String,
    pub taken: bool,
}

/// Records every notice, and fails as often as a test sets.
#[derive(Default)]
pub struct Recorder {
    pub heard: Mutex<Vec<Heard>>,
    pub failures: AtomicU64,
}

/// A recorder under the name of a destination.
pub struct Recorded(pub &'static str, pub Arc<Recorder>);

#[async_trait]
impl Destination for Recorded {
    fn name(&self) -> &'static str {
        self.0
    }

    async fn send(&self, notice: &Notice<'_>) -> Sending {
        let fails = |left: u64| left.checked_sub(1);
        let failed = self.1.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails);
        let Alert { kind, subject, summary, .. } = notice.alert;
        self.1.heard.lock().unwrap().push(Heard {
            number: notice.number,
            event: notice.event,
            kind: *kind,
            subject: subject.clone(),
            summary: summary.clone(),
            taken: failed.is_err(),
        });
        match failed {
            Ok(_) => Sending::Later { detail: "not now".into() },
            Err(_) => Sending::Sent,
        }
    }
}
