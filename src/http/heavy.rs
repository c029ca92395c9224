//! Threads for work that takes milliseconds: reading large bodies and writing large answers. They
//! have a lower priority than the threads that serve requests and the one that writes to the store.
//!
//! Invariant: however many large requests there are, a small one and a commit find a core. There
//! are as many of these threads as cores, for the whole process. What waits for them is bounded by
//! the budget of bodies, which every large request holds a share of.

use super::problem::Problem;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use tokio::sync::oneshot;

/// Against a thread of normal priority, one of these gets a tenth of a core.
const NICENESS: i32 = 10;

type HeavyWork = Box<dyn FnOnce() + Send>;

/// Runs work on one of the threads. Work that panics ends its own request only.
pub async fn run<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    let (reply, answer) = oneshot::channel();
    let work = move || {
        // A request that is gone needs no answer, and those behind it wait.
        if !reply.is_closed() {
            let _ = reply.send(work());
        }
    };
    threads().send(Box::new(work)).expect("the threads live as long as the process");
    answer.await.map_err(|_| Problem::panicked())
}

fn threads() -> &'static Sender<HeavyWork> {
    static THREADS: OnceLock<Sender<HeavyWork>> = OnceLock::new();
    THREADS.get_or_init(|| {
        let (sender, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        for number in 0..cores {
            let receiver = Arc::clone(&receiver);
            let thread = std::thread::Builder::new().name(format!("heavy-{number}"));
            thread.spawn(move || work_for_ever(&receiver)).expect("a process may have threads");
        }
        sender
    })
}

fn work_for_ever(receiver: &Mutex<Receiver<HeavyWork>>) {
    if let Err(error) = rustix::process::nice(NICENESS) {
        tracing::warn!(%error, "large requests are not kept at a lower priority");
    }
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

    #[tokio::test]
    async fn work_that_panics_leaves_the_threads_to_others() {
        for _ in 0..100 {
            let nothing: Result<(), Problem> = run(|| panic!("planted")).await;
            assert!(nothing.is_err());
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
