//! Threads for work that takes milliseconds: reading large bodies, writing large answers and
//! running large queries. They have a lower priority than the threads that serve requests and the
//! one that writes to the store.
//!
//! Invariant: however many large requests there are, a small one and a commit find a core. What
//! waits for the threads is bounded by who uses them: large bodies and answers by the budget of
//! bytes that each holds a share of, queries by the number of connections that read.

use std::cell::Cell;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use tokio::sync::oneshot;

/// Against a thread of normal priority, one of these gets a tenth of a core.
const NICENESS: i32 = 10;

type HeavyWork = Box<dyn FnOnce() + Send>;

/// Threads of low priority that share one queue. They end when this is dropped.
pub struct HeavyThreads(Sender<HeavyWork>);

/// The work panicked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Panicked;

impl HeavyThreads {
    pub fn start(name: &str, count: usize) -> Self {
        let (sender, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        for number in 0..count {
            let receiver = Arc::clone(&receiver);
            let thread = std::thread::Builder::new().name(format!("{name}-{number}"));
            thread.spawn(move || work_until_closed(&receiver)).expect("a process may have threads");
        }
        Self(sender)
    }

    /// Those of large bodies and answers, as many as cores, for the whole process.
    pub fn of_requests() -> &'static Self {
        static THREADS: OnceLock<HeavyThreads> = OnceLock::new();
        let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        THREADS.get_or_init(|| Self::start("heavy", cores()))
    }

    /// Runs work on one of the threads. Work that panics ends its own request only.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Panicked> {
        let (reply, answer) = oneshot::channel();
        let work = move || {
            // A request that is gone needs no answer, and those behind it wait.
            if !reply.is_closed() {
                let _ = reply.send(work());
            }
        };
        self.0.send(Box::new(work)).expect("the threads live as long as their sender");
        answer.await.map_err(|_| Panicked)
    }
}

thread_local! {
    static LOWERED: Cell<bool> = const { Cell::new(false) };
}

/// Gives the calling thread a lower priority than those that serve requests, for good.
pub fn lower_priority() {
    LOWERED.set(true);
    if let Err(error) = rustix::process::nice(NICENESS) {
        tracing::warn!(%error, "could not lower a thread's priority; large requests may delay small ones");
    }
}

/// Lets waiting threads of higher priority run, if this one is of low priority. A kernel leaves
/// even such a thread a core for milliseconds at a time, so long work calls this a few times for
/// each.
pub fn give_way() {
    if LOWERED.get() {
        std::thread::yield_now();
    }
}

fn work_until_closed(receiver: &Mutex<Receiver<HeavyWork>>) {
    lower_priority();
    loop {
        let work = receiver.lock().expect("no work runs under the lock").recv();
        let Ok(work) = work else { return };
        // The reply is dropped with the work, which tells its request.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    async fn run<T: Send + 'static>(
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Panicked> {
        HeavyThreads::of_requests().run(work).await
    }

    #[tokio::test]
    async fn work_that_panics_leaves_the_threads_to_others() {
        for _ in 0..100 {
            let nothing: Result<(), Panicked> = run(|| panic!("planted")).await;
            assert_eq!(nothing, Err(Panicked));
        }
        assert_eq!(run(|| 7).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn work_of_a_request_that_is_gone_is_not_done() {
        let (begin, begun) = channel::<()>();
        let begun = Arc::new(Mutex::new(begun));
        // Every thread waits, so that what comes behind is still queued when its request ends.
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let busy: Vec<_> = (0..cores)
            .map(|_| {
                let begun = Arc::clone(&begun);
                tokio::spawn(run(move || begun.lock().map(|begun| begun.recv().is_ok()).is_ok()))
            })
            .collect();
        tokio::task::yield_now().await;
        let done = Arc::new(Mutex::new(false));
        let written = Arc::clone(&done);
        let mut gone = Box::pin(run(move || *written.lock().unwrap() = true));
        assert!(futures_util::poll!(&mut gone).is_pending());
        drop(gone);
        (0..cores).for_each(|_| begin.send(()).unwrap());
        for thread in busy {
            assert!(thread.await.unwrap().unwrap());
        }
        run(|| ()).await.unwrap();
        assert!(!*done.lock().unwrap());
    }

    #[tokio::test]
    async fn work_has_a_lower_priority_than_requests() {
        let priority = || rustix::process::getpriority_process(None).unwrap();
        let own = priority();
        assert_eq!(run(priority).await.unwrap(), (own + NICENESS).min(19));
        assert_eq!(priority(), own);
    }
}
