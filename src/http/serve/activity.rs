//! What happens on a connection, and for how long the server puts up with nothing.
//!
//! Invariant: a connection counts as active while a request is at work, when one has come, or while
//! more bytes are written than pings need. Everything else, such as answers that nobody reads, ends
//! after the idle timeout.

use crate::config::ServerConfig;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::Instant;

/// Fewer bytes within the idle timeout are no activity: pings are 17 bytes each.
const ACTIVE_BYTES_MIN: u64 = 4096;
/// Between two looks at a connection.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(2);
const LOOKS_PER_LIMIT: u32 = 8;

/// What was seen of a connection.
#[derive(Debug, Default)]
pub struct Activity {
    /// Requests that came, and those of them that are at work.
    begun: AtomicU64,
    at_work: AtomicUsize,
    /// Bytes that were written.
    bytes: AtomicU64,
}

/// A request at work.
pub struct Work(Arc<Activity>);

impl Drop for Work {
    fn drop(&mut self) {
        self.0.at_work.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Activity {
    pub fn begin(activity: &Arc<Self>) -> Work {
        activity.begun.fetch_add(1, Ordering::Relaxed);
        activity.at_work.fetch_add(1, Ordering::Relaxed);
        Work(Arc::clone(activity))
    }

    fn wrote(&self, bytes: usize) {
        self.bytes.fetch_add(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// Why a connection is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// No request came in time.
    Silent,
    Idle,
    Old,
    Stopping,
}

/// The limits of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    pub header_max: Duration,
    idle_max: Duration,
    age_max: Duration,
}

impl Patience {
    pub fn of(config: &ServerConfig) -> Self {
        Self {
            header_max: Duration::from_millis(config.header_timeout_ms),
            idle_max: Duration::from_millis(config.idle_timeout_ms),
            age_max: Duration::from_millis(config.connection_age_max_ms),
        }
    }

    /// Returns when the connection has to end. The sender of `open` is dropped when the server
    /// stops.
    pub async fn watch(&self, activity: &Activity, open: &mut watch::Receiver<()>) -> Ending {
        let look_every = self.header_max.min(self.idle_max).min(self.age_max) / LOOKS_PER_LIMIT;
        let look_every = look_every.clamp(Duration::from_millis(1), LOOK_EVERY_MAX);
        let began = Instant::now();
        let (mut active_at, mut begun, mut bytes) = (began, 0, 0);
        loop {
            tokio::select! {
                _ = open.changed() => return Ending::Stopping,
                () = tokio::time::sleep(look_every) => {}
            }
            let now = Instant::now();
            let come = activity.begun.load(Ordering::Relaxed);
            if come == 0 && now - began >= self.header_max {
                return Ending::Silent;
            }
            if now - began >= self.age_max {
                return Ending::Old;
            }
            let seen = activity.bytes.load(Ordering::Relaxed);
            let at_work = activity.at_work.load(Ordering::Relaxed) > 0;
            if at_work || come > begun || seen - bytes >= ACTIVE_BYTES_MIN {
                (active_at, begun, bytes) = (now, come, seen);
            }
            if now - active_at >= self.idle_max {
                return Ending::Idle;
            }
        }
    }
}

/// A stream whose written bytes are counted.
pub struct Observed<S> {
    stream: S,
    activity: Arc<Activity>,
}

impl<S> Observed<S> {
    pub fn new(stream: S, activity: Arc<Activity>) -> Self {
        Self { stream, activity }
    }

    fn note(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &written {
            self.activity.wrote(*bytes);
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Observed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Observed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
