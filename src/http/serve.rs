//! The accept loop: HTTP/1.1 and HTTP/2 on one port, with every resource of a connection bounded.
//!
//! Invariant: a connection that says nothing useful is closed within the header timeout, from its
//! first byte on. On shutdown nothing new is accepted, requests in progress end within the drain
//! time, and what is left then is cut off; what was answered is durable, what was not can be sent
//! again.

use super::App;
use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tower::Service;

const HEADERS_MAX: usize = 64;
/// Bytes of a request's head, and of what is read ahead of a body.
const BUFFER_BYTES_MAX: usize = 128 * 1024;
const HEADER_LIST_BYTES_MAX: u32 = 32 * 1024;
/// Requests side by side on one HTTP/2 connection.
const STREAMS_MAX: u32 = 128;
/// Bytes of a stream and of a connection that may be under way: batches are large.
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// A peer that is gone is found by pings in this rhythm.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_ANSWER_MAX: Duration = Duration::from_secs(20);
/// Pause after a failed accept, which is most often a lack of file handles.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How often what histograms gathered is folded, so that it does not pile up unread.
const METRICS_UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// Serves until `shutdown` completes, then drains.
pub async fn serve(
    listener: TcpListener,
    app: Arc<App>,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let places = Arc::new(Semaphore::new(app.config.connections_max.min(Semaphore::MAX_PERMITS)));
    let drain_max = Duration::from_millis(app.config.drain_timeout_ms);
    let header_max = Duration::from_millis(app.config.header_timeout_ms);
    let metrics = app.metrics.clone();
    let graceful = GracefulShutdown::new();
    let acceptor = Acceptor {
        builder: Arc::new(connection_builder(header_max)),
        router: super::router(app),
        header_max,
    };
    let mut connections = JoinSet::new();
    let mut upkeep = tokio::time::interval(METRICS_UPKEEP_EVERY);
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            accepted = accept(&listener, &places) => {
                let (stream, place) = accepted;
                connections.spawn(acceptor.clone().run(stream, place, graceful.watcher()));
            }
            Some(_) = connections.join_next() => {}
            _ = upkeep.tick() => metrics.run_upkeep(),
        }
    }
    drop(listener);
    let open = connections.len();
    if tokio::time::timeout(drain_max, graceful.shutdown()).await.is_err() {
        tracing::warn!(open, "requests did not end within the drain time and are cut off");
    }
    connections.shutdown().await;
    Ok(())
}

/// Waits for a free place first, so that connections beyond the limit wait in the system's queue.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> (TcpStream, OwnedSemaphorePermit) {
    let place = Arc::clone(places).acquire_owned().await.expect("the semaphore is never closed");
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, place),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn connection_builder(header_max: Duration) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(header_max)
        .max_headers(HEADERS_MAX)
        .max_buf_size(BUFFER_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADER_LIST_BYTES_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_ANSWER_MAX);
    builder
}

#[derive(Clone)]
struct Acceptor {
    builder: Arc<auto::Builder<TokioExecutor>>,
    router: Router,
    header_max: Duration,
}

impl Acceptor {
    async fn run(
        self,
        stream: TcpStream,
        place: OwnedSemaphorePermit,
        watcher: hyper_util::server::graceful::Watcher,
    ) {
        let _place = place;
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection ended before it was served");
            return;
        }
        let spoke = Arc::new(AtomicBool::new(false));
        let handler = {
            let (spoke, router) = (Arc::clone(&spoke), self.router);
            hyper::service::service_fn(move |request| {
                spoke.store(true, Ordering::Relaxed);
                router.clone().call(request)
            })
        };
        let connection = self.builder.serve_connection(TokioIo::new(stream), handler).into_owned();
        let mut connection = std::pin::pin!(watcher.watch(connection));
        // The protocol is told from the first bytes, and nothing else limits their time.
        let outcome = match tokio::time::timeout(self.header_max, &mut connection).await {
            Ok(outcome) => outcome,
            Err(_) if !spoke.load(Ordering::Relaxed) => return,
            Err(_) => connection.await,
        };
        if let Err(error) = outcome {
            tracing::debug!(%error, "a connection ended early");
        }
    }
}
