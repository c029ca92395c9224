//! Work that goes on beside requests. A job takes no input: it looks at what is stored, does what
//! is due, and may be run again at once, on any number of servers.

pub mod alerts;
pub mod backfill;
pub mod binding;
pub mod clocks;
pub mod confirm;
pub mod credits;
pub mod cut;
pub mod dunning;
pub mod inbound;
pub mod ingest;
mod keeper;
pub mod messages;
pub mod mirror;
pub mod money;
pub mod notices;
pub mod outbound;
pub mod push;
pub mod reconcile;
pub mod restore;
pub mod sagas;
pub mod thresholds;
pub mod unbilled;
pub mod watch;
pub mod webhook;

use crate::clock::Clock;
use crate::rules::timestamp::Timestamp;
use std::future::Future;
use std::time::Duration;
use tokio::sync::watch as channel;

/// Told to jobs when the server stops.
#[derive(Debug, Clone)]
pub struct Stop(channel::Receiver<bool>);

/// Tells them.
#[derive(Debug)]
pub struct Stopper(channel::Sender<bool>);

impl Stopper {
    pub fn new() -> (Self, Stop) {
        let (sender, receiver) = channel::channel(false);
        (Self(sender), Stop(receiver))
    }

    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Stop {
    pub fn is_told(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the server stops, at most for the given time.
    pub async fn wait(&mut self, pause: Duration) {
        let told = self.0.wait_for(|stop| *stop);
        let _ = tokio::time::timeout(pause, told).await;
    }
}

/// The time, for a job that sends, decides, expires or removes anything; none while clocks
/// contradict each other, or while no other clock has confirmed ours lately. The job then does
/// nothing, and looks again at its next turn. [`clocks::ClockKeeper`] says why.
pub(crate) fn sure_time(clock: &Clock, job: &'static str) -> Option<Timestamp> {
    match clock.sure() {
        Ok(now) => Some(now),
        Err(doubt) => {
            metrics::counter!("counterfoil_jobs_held_total", "job" => job).increment(1);
            tracing::debug!(job, %doubt, "the job {job} waits: {doubt}");
            None
        }
    }
}

/// Runs a job again and again, with a pause in between, until the server stops. A failure is
/// logged here and nowhere else; the next run sees what is stored then.
async fn repeat<F, E>(
    name: &'static str,
    pause: Duration,
    mut stop: Stop,
    mut run: impl FnMut() -> F,
) where
    F: Future<Output = Result<(), E>>,
    E: std::fmt::Display,
{
    while !stop.is_told() {
        if let Err(error) = run().await {
            tracing::warn!(job = name, %error, "the job {name} failed and will run again");
        }
        stop.wait(pause).await;
    }
}
