//! The simulator behind a port: requests, responses, faults of the transport, and webhooks.
//!
//! Invariant: the state outlives the port. Stopping closes every connection at once, as an outage
//! does; a restart finds the state unchanged. A crash leaves nothing.

use crate::{SimRequest, SimResponse, Simulator, Ticket, Transport};
use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use http_body_util::{BodyExt, Full, Limited, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How often due work and webhooks are looked for.
const TICK: Duration = Duration::from_millis(20);
/// The pause between half a response and the end of its connection, so that the half is sent.
const HALF_PAUSE: Duration = Duration::from_millis(20);
/// A limit on concurrent webhooks, so that ten thousand due ones do not need as many sockets.
const WEBHOOKS_IN_FLIGHT_MAX: usize = 128;
const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(10);

type Body = UnsyncBoxBody<Bytes, io::Error>;
type Shared = Arc<Mutex<Simulator>>;

/// A simulator behind a port, which sends its webhooks too. Dropping it closes the port.
#[derive(Debug)]
pub struct Handle {
    address: SocketAddr,
    simulator: Shared,
    running: Option<(oneshot::Sender<()>, JoinHandle<io::Result<()>>)>,
}

impl Handle {
    /// Serves on this address; port 0 picks a free port.
    ///
    /// # Errors
    ///
    /// If the address cannot be bound.
    pub async fn start(listen: SocketAddr, simulator: Shared) -> io::Result<Self> {
        let mut handle = Self { address: listen, simulator, running: None };
        handle.restart().await?;
        Ok(handle)
    }

    /// The base URL, for a client of the API.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The address that it serves on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The simulator behind the port.
    pub fn simulator(&self) -> Arc<Mutex<Simulator>> {
        Arc::clone(&self.simulator)
    }

    /// Closes the port and every connection, as an outage does. The state stays.
    ///
    /// # Errors
    ///
    /// If serving had failed.
    pub async fn stop(&mut self) -> io::Result<()> {
        let Some((stop, task)) = self.running.take() else { return Ok(()) };
        // The task may have ended already.
        let _ = stop.send(());
        task.await.map_err(io::Error::other)?
    }

    /// Serves on the same port again.
    ///
    /// # Errors
    ///
    /// If the port cannot be bound.
    pub async fn restart(&mut self) -> io::Result<()> {
        self.stop().await?;
        let listener = TcpListener::bind(self.address).await?;
        self.address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let simulator = Arc::clone(&self.simulator);
        let task = tokio::spawn(serve(listener, simulator, async move {
            let _ = stopped.await;
        }));
        self.running = Some((stop, task));
        Ok(())
    }
}

/// Serves until `shutdown` completes, then closes every connection at once.
///
/// # Errors
///
/// If the client for webhooks cannot be built.
pub async fn serve(
    listener: TcpListener,
    simulator: Arc<Mutex<Simulator>>,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    // It fails only if a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(WEBHOOK_TIMEOUT)
        .build()
        .map_err(io::Error::other)?;
    let mut tasks = JoinSet::new();
    let mut tick = tokio::time::interval(TICK);
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => {
                match accepted {
                    Ok((stream, _)) => {
                        tasks.spawn(serve_connection(stream, Arc::clone(&simulator)));
                    }
                    // Most often a lack of file handles, which is temporary.
                    Err(_) => tokio::time::sleep(TICK).await,
                }
            }
            Some(_) = tasks.join_next() => {}
            _ = tick.tick() => {
                for webhook in due(&simulator) {
                    tasks.spawn(deliver(client.clone(), Arc::clone(&simulator), webhook));
                }
            }
        }
    }
    drop(listener);
    tasks.shutdown().await;
    Ok(())
}

/// A lock that a panicking test poisoned must not hide that panic.
fn lock(simulator: &Shared) -> MutexGuard<'_, Simulator> {
    simulator.lock().unwrap_or_else(PoisonError::into_inner)
}

fn due(simulator: &Shared) -> Vec<crate::Outgoing> {
    let mut simulator = lock(simulator);
    simulator.tick();
    simulator.due_webhooks_max(WEBHOOKS_IN_FLIGHT_MAX)
}

/// A webhook in flight. Its result is recorded however it ends, also if the port is closed.
struct Sending {
    simulator: Shared,
    delivery: usize,
    status: Option<u16>,
}

impl Drop for Sending {
    fn drop(&mut self) {
        lock(&self.simulator).webhook_answered(self.delivery, self.status);
    }
}

async fn deliver(client: reqwest::Client, simulator: Shared, webhook: crate::Outgoing) {
    let mut sending = Sending { simulator, delivery: webhook.delivery, status: None };
    let sent = client
        .post(&webhook.url)
        .header("content-type", "application/json; charset=utf-8")
        .header("stripe-signature", webhook.signature)
        .body(webhook.body)
        .send()
        .await;
    sending.status = sent.ok().map(|response| response.status().as_u16());
}

async fn serve_connection(stream: TcpStream, simulator: Shared) {
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let handler = hyper::service::service_fn(|request| answer(request, Arc::clone(&simulator)));
    let connection =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), handler);
    // A fault may end it early.
    let _ = connection.await;
}

/// A call in progress, which ends also if the client disconnects.
struct InProgress {
    simulator: Shared,
    ticket: Ticket,
}

impl Drop for InProgress {
    fn drop(&mut self) {
        lock(&self.simulator).end(&self.ticket);
    }
}

/// An error closes the connection without a response.
async fn answer(
    request: hyper::Request<Incoming>,
    simulator: Shared,
) -> Result<hyper::Response<Body>, io::Error> {
    let request = read(request).await?;
    let (response, in_progress, pauses) = begin(&request, &simulator);
    if !pauses.before.is_zero() {
        tokio::time::sleep(pauses.before).await;
    }
    drop(in_progress);
    match response.transport {
        Transport::Whole | Transport::Delayed => Ok(build(&response, whole(response.body.clone()))),
        Transport::Closed => Err(io::Error::other("closed as planned")),
        Transport::Silent => std::future::pending().await,
        Transport::Half => Ok(build(&response, half(&response.body))),
        Transport::Trickle => {
            Ok(build(&response, trickle(response.body.clone(), pauses.between_bytes)))
        }
    }
}

struct Pauses {
    before: Duration,
    between_bytes: Duration,
}

/// Executes the call. Without a delay it ends before the lock is released, so that calls which only
/// arrive together do not meet the limit of one at a time.
fn begin(request: &SimRequest, shared: &Shared) -> (SimResponse, Option<InProgress>, Pauses) {
    let mut simulator = lock(shared);
    let (response, ticket) = simulator.begin(request);
    let mut before_ms = simulator.options().latency_ms;
    if response.transport == Transport::Delayed {
        before_ms = before_ms.saturating_add(simulator.faults().delay_ms);
    }
    let pauses = Pauses {
        before: Duration::from_millis(before_ms),
        between_bytes: Duration::from_millis(simulator.faults().slow_byte_ms),
    };
    if pauses.before.is_zero() {
        simulator.end(&ticket);
        return (response, None, pauses);
    }
    (response, Some(InProgress { simulator: Arc::clone(shared), ticket }), pauses)
}

async fn read(request: hyper::Request<Incoming>) -> io::Result<SimRequest> {
    let (head, body) = request.into_parts();
    let body = Limited::new(body, BODY_BYTES_MAX).collect().await.map_err(io::Error::other)?;
    let headers = head.headers.iter().filter_map(|(name, value)| {
        Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
    });
    Ok(SimRequest {
        method: head.method.as_str().to_owned(),
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        headers: headers.collect(),
        body: body.to_bytes().to_vec(),
    })
}

fn build(response: &SimResponse, body: Body) -> hyper::Response<Body> {
    let mut built = hyper::Response::builder()
        .status(response.status)
        .header("content-length", response.body.len());
    for (name, value) in &response.headers {
        built = built.header(*name, value);
    }
    built.body(body).expect("status and headers of an answer are valid")
}

fn whole(body: Vec<u8>) -> Body {
    Full::new(Bytes::from(body)).map_err(|never: Infallible| match never {}).boxed_unsync()
}

fn half(body: &[u8]) -> Body {
    let first = Bytes::copy_from_slice(&body[..body.len() / 2]);
    let frames = stream::iter([Ok(first), Err(())]).then(|part| async {
        match part {
            Ok(bytes) => Ok(Frame::data(bytes)),
            Err(()) => {
                tokio::time::sleep(HALF_PAUSE).await;
                Err(io::Error::other("closed as planned"))
            }
        }
    });
    BodyExt::boxed_unsync(StreamBody::new(frames))
}

fn trickle(body: Vec<u8>, pause: Duration) -> Body {
    let frames = stream::iter(body).then(move |byte| async move {
        tokio::time::sleep(pause).await;
        Ok(Frame::data(Bytes::copy_from_slice(&[byte])))
    });
    BodyExt::boxed_unsync(StreamBody::new(frames))
}
