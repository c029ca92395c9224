//! The check of the account: before anything is sent, the account of the key must be the one that
//! the store is bound to.
//!
//! A server that meets another account does not start. One that cannot read the account starts and
//! takes events; its jobs that work with the provider wait behind the [`Gate`] until the account
//! was read. An account that proves to be another then is alerted, and the gate stays shut.
//!
//! Invariant: the gate opens only after the store is bound to the account of the key. A crash
//! leaves the binding written or not; the next start reads the account again. In shadow mode
//! nothing is billed, so nothing is bound and the gate is open.

use super::alerts::AlertBook;
use super::{Context, Job, Stop};
use crate::clock::Clock;
use crate::provider::Provider;
use crate::rules::alert::{AlertKind, Condition, Scope};
use crate::store::{self, binding::Bindings};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// A provider that does not answer must not hold up the start for longer.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens once the account is known to be the right one.
#[derive(Debug, Clone)]
pub struct Gate(watch::Receiver<bool>);

impl Gate {
    /// One that is open from the beginning.
    pub fn open() -> Self {
        Self(watch::channel(true).1)
    }

    /// Runs a job once the gate is open; not at all if the server stops before.
    pub async fn pass(mut self, mut stop: Stop, job: impl Future<Output = ()>) {
        let opened = tokio::select! {
            opened = self.0.wait_for(|open| *open) => opened.is_ok(),
            () = stop.wait(Duration::MAX) => false,
        };
        if opened {
            job.await;
        }
    }
}

/// What a look at the account found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    Bound,
    /// It is another account; the text says what to do.
    Other(String),
    /// It could not be read, for this reason.
    Unread(String),
}

pub struct BindingJob {
    store: Arc<dyn Bindings>,
    alerts: AlertBook,
    provider: Arc<dyn Provider>,
    clock: Clock,
    gate: watch::Sender<bool>,
}

impl BindingJob {
    pub fn new(context: &Context, provider: &Arc<dyn Provider>) -> (Self, Gate) {
        let Context { store, clock, .. } = context.clone();
        let (gate, opened) = watch::channel(false);
        let (alerts, provider) = (AlertBook::new(context), Arc::clone(provider));
        (Self { store, alerts, provider, clock, gate }, Gate(opened))
    }

    /// Reads the account, binds the store to it if it is bound to none, and opens the gate if it
    /// is bound to this one.
    pub async fn check(&self) -> store::Result<Finding> {
        let read = tokio::time::timeout(READ_TIMEOUT, self.provider.read_account()).await;
        let found = match read {
            Ok(Ok(found)) => found,
            Ok(Err(unreadable)) => return Ok(Finding::Unread(unreadable.message)),
            Err(_) => return Ok(Finding::Unread("no answer in time".into())),
        };
        let binding = self.store.bind(&found, self.clock.now()).await?;
        if !binding.account.admits(&found) {
            return Ok(Finding::Other(binding.explain_refusal(&found)));
        }
        tracing::info!("usage goes to {}", binding.account);
        self.gate.send_replace(true);
        Ok(Finding::Bound)
    }
}

impl Job for BindingJob {
    const NAME: &'static str = "binding";
    const PAUSE: Duration = Duration::from_secs(10);
    type Done = Finding;
    type Error = store::Error;

    /// Checks the account while the server runs, with an alert if it is another one.
    async fn pass(&self) -> store::Result<Finding> {
        let finding = self.check().await?;
        let condition = match &finding {
            Finding::Bound => None,
            Finding::Unread(why) => {
                tracing::debug!("the account is unread: {why}");
                return Ok(finding);
            }
            Finding::Other(explained) => Some(Condition {
                kind: AlertKind::AccountChanged,
                subject: String::new(),
                summary: format!("nothing is sent: {explained}"),
                command: "counterfoil store rebind".into(),
            }),
        };
        let mut open = self.alerts.list_open().await?;
        open.retain(|alert| alert.kind == AlertKind::AccountChanged);
        let scopes = [Scope::all(AlertKind::AccountChanged)];
        let conditions: Vec<Condition> = condition.into_iter().collect();
        self.alerts.record(&open, &scopes, conditions, self.clock.now()).await?;
        Ok(finding)
    }

    /// Once the gate is open there is nothing left to do.
    async fn rest(&self, found: Option<&Finding>, stop: &mut Stop) {
        let bound = found == Some(&Finding::Bound);
        stop.wait(if bound { Duration::MAX } else { Self::PAUSE }).await;
    }
}
