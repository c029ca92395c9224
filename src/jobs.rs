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
use crate::store;
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

/// What became of a verb that a job does for one row of many. A fault in that row is logged and
/// shown by the store; the job leaves the row out and goes on with the others.
pub(crate) fn unless_fault<T>(outcome: store::Result<T>) -> store::Result<Option<T>> {
    match outcome {
        Err(store::Error::Internal { .. }) => Ok(None),
        outcome => outcome.map(Some),
    }
}

/// Does a verb for a batch. If it is refused for what is stored of some row, that row is found by
/// halving and left out; the others are done. Returns the answers of all batches that were done.
pub(crate) async fn do_all_but_faulty<T: Clone, R, F>(
    batch: Vec<T>,
    verb: impl Fn(Vec<T>) -> F,
) -> store::Result<Vec<R>>
where
    F: Future<Output = store::Result<R>>,
{
    let (mut batches, mut done) = (vec![batch], Vec::new());
    while let Some(mut batch) = batches.pop() {
        match verb(batch.clone()).await {
            Ok(answer) => done.push(answer),
            Err(error) if error.is_of_data() => {
                let rest = batch.split_off(batch.len() / 2);
                if batch.is_empty() {
                    tracing::warn!(%error, "a row was left out of its batch: {error}");
                } else {
                    batches.extend([rest, batch]);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(done)
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
