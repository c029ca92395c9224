//! The accept loop: HTTP/1.1 and HTTP/2 on one port, with every resource of a connection bounded.
//!
//! Invariant: a connection that says nothing useful is closed within the header timeout, from its
//! first byte on. One on which no request is at work and no answer is read is closed after the idle
//! timeout, every connection after its greatest age, and one address has only its part of the
//! places. On shutdown nothing new is accepted, requests in progress end within the drain time, and
//! what is left then is cut off; what was answered is durable, what was not can be sent again.
mod activity;
mod tls;

use super::admission::Peer;
use super::{App, Routes};
use activity::{Activity, Ending, Observed, Patience};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tls::Tls;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

const HEADERS_MAX: usize = 64;
/// Bytes of a request's head, and of what is read ahead of a body.
const BUFFER_BYTES_MAX: usize = 128 * 1024;
const HEADER_LIST_BYTES_MAX: u32 = 32 * 1024;
/// Requests side by side on one HTTP/2 connection.
const STREAMS_MAX: u32 = 32;
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
/// How long a connection that was idle or too old has to end its requests.
const FAREWELL: Duration = Duration::from_secs(5);

/// Serves until `shutdown` completes, then drains.
pub async fn serve(
    listener: TcpListener,
    app: Arc<App>,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let drain_max = Duration::from_millis(app.config.drain_timeout_ms);
    let gate =
        ConnectionGate::new(app.config.connections_max, app.config.connections_per_address_max);
    let metrics = app.metrics.clone();
    let patience = Patience::of(&app.config);
    let tls = Tls::load(&app.config).map_err(io::Error::other)?;
    let (closing, open) = watch::channel(());
    let acceptor = Acceptor {
        builder: Arc::new(connection_builder(patience.header_max)),
        routes: Routes::new(app),
        patience,
        tls,
        open,
    };
    let mut connections = JoinSet::new();
    let mut upkeep = tokio::time::interval(METRICS_UPKEEP_EVERY);
    let mut certificate = tokio::time::interval(tls::LOOK_EVERY);
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            (stream, peer, place) = gate.accept(&listener) => {
                connections.spawn(acceptor.clone().run(stream, peer, place));
            }
            Some(_) = connections.join_next() => {}
            _ = upkeep.tick() => metrics.run_upkeep(),
            _ = certificate.tick() => acceptor.refresh_certificate(),
        }
    }
    drop(listener);
    drop(acceptor);
    drop(closing);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(drain_max, drained).await.is_err() {
        let open = connections.len();
        tracing::warn!(open, "requests did not end within the drain time and are cut off");
    }
    connections.shutdown().await;
    Ok(())
}

/// Places for connections: in all, and of one address.
struct ConnectionGate {
    places: Arc<Semaphore>,
    addresses: Arc<Mutex<HashMap<IpAddr, usize>>>,
    /// 0 for no limit.
    address_max: usize,
}

/// A connection's place, given back when it is dropped.
struct ConnectionPlace {
    _place: OwnedSemaphorePermit,
    addresses: Arc<Mutex<HashMap<IpAddr, usize>>>,
    address: IpAddr,
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let mut addresses = self.addresses.lock().expect("no holder of it panics");
        if let Entry::Occupied(mut open) = addresses.entry(self.address) {
            *open.get_mut() -= 1;
            if *open.get() == 0 {
                open.remove();
            }
        }
    }
}

impl ConnectionGate {
    fn new(connections_max: usize, address_max: usize) -> Self {
        let places = Arc::new(Semaphore::new(connections_max.min(Semaphore::MAX_PERMITS)));
        Self { places, addresses: Arc::default(), address_max }
    }

    /// Waits for a free place first, so that connections beyond the limit wait in the system's
    /// queue. One of an address that has its part already is closed at once: it must not keep
    /// those behind it waiting.
    async fn accept(&self, listener: &TcpListener) -> (TcpStream, Peer, ConnectionPlace) {
        let places = Arc::clone(&self.places);
        let mut permit = Some(places.acquire_owned().await.expect("the semaphore is never closed"));
        loop {
            let (stream, address) = accept(listener).await;
            let peer = Peer::of(address.ip());
            if self.enter(peer.0)
                && let Some(permit) = permit.take()
            {
                let addresses = Arc::clone(&self.addresses);
                return (
                    stream,
                    peer,
                    ConnectionPlace { _place: permit, addresses, address: peer.0 },
                );
            }
            metrics::counter!("counterfoil_connections_refused_total").increment(1);
            tracing::debug!(address = %peer.0, "an address has as many connections as it may");
        }
    }

    fn enter(&self, address: IpAddr) -> bool {
        let mut addresses = self.addresses.lock().expect("no holder of it panics");
        let open = addresses.entry(address).or_default();
        let free = self.address_max == 0 || *open < self.address_max;
        *open += usize::from(free);
        free
    }
}

async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
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
    routes: Routes,
    patience: Patience,
    /// None for HTTP in clear text.
    tls: Option<Arc<Tls>>,
    /// Closed when the server stops.
    open: watch::Receiver<()>,
}

impl Acceptor {
    /// Looks at the files on a thread that may wait for the disk.
    fn refresh_certificate(&self) {
        if let Some(tls) = self.tls.clone() {
            drop(tokio::task::spawn_blocking(move || tls.refresh()));
        }
    }

    async fn run(self, stream: TcpStream, peer: Peer, place: ConnectionPlace) {
        let _place = place;
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection ended before it was served");
            return;
        }
        let Some(tls) = self.tls.as_ref().map(|tls| tls.acceptor()) else {
            return self.serve(stream, peer).await;
        };
        match tokio::time::timeout(self.patience.header_max, tls.accept(stream)).await {
            Ok(Ok(stream)) => self.serve(stream, peer).await,
            Ok(Err(error)) => tracing::debug!(%error, "a connection did not agree on TLS"),
            Err(_) => tracing::debug!("a connection did not agree on TLS in time"),
        }
    }

    async fn serve(
        mut self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: Peer,
    ) {
        let activity = Arc::new(Activity::default());
        let handler = {
            let (activity, routes) = (Arc::clone(&activity), self.routes);
            hyper::service::service_fn(move |request: hyper::Request<_>| {
                let work = Activity::begin(&activity);
                let answer = routes.answer(Some(peer), request);
                async move {
                    let answer = answer.await;
                    drop(work);
                    Ok::<_, Infallible>(answer)
                }
            })
        };
        let io = TokioIo::new(Observed::new(stream, Arc::clone(&activity)));
        let connection = self.builder.serve_connection(io, handler).into_owned();
        let mut connection = std::pin::pin!(connection);
        let ending = tokio::select! {
            outcome = connection.as_mut() => return log(outcome),
            ending = self.patience.watch(&activity, &mut self.open) => ending,
        };
        let farewell = match ending {
            Ending::Silent => return,
            Ending::Idle | Ending::Old => FAREWELL,
            // The accept loop cuts off what is left after the drain time.
            Ending::Stopping => Duration::MAX,
        };
        connection.as_mut().graceful_shutdown();
        if let Ok(outcome) = tokio::time::timeout(farewell, connection).await {
            log(outcome);
        }
    }
}

fn log(outcome: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = outcome {
        tracing::debug!(%error, "a connection ended early");
    }
}
