//! Request bodies: read within a size and a time, then decompressed within the same size.
//!
//! Invariant: no request makes the server hold more than `body_bytes_max` bytes as sent and as
//! many decompressed, whatever its headers say. All requests together hold no more than
//! [`BODIES_IN_MEMORY_MAX`] times that, and those with keys of one tenant no more than
//! [`TENANT_PART`] of it; beyond it, 503. Webhooks, for which nobody shows a key, have a small
//! budget of their own. A body in one frame is not copied.

pub mod budget;

use super::auth::Caller;
use super::problem::{Kind, Problem};
use crate::config::ServerConfig;
use crate::heavy::HeavyThreads;
use axum::body::{Body, HttpBody};
use budget::{Budget, Full, Share};
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use http_body_util::BodyExt;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Bodies of the largest size that are held at once. Small ones come far more often, so this
/// many of the largest is room for thousands of the usual.
const BODIES_IN_MEMORY_MAX: usize = 16;
/// Keys that are bound to one tenant hold at most one in so many of the bytes.
const TENANT_PART: usize = 4;
/// What is set aside for a body before its bytes arrive: its header may lie.
const CAPACITY_FIRST: usize = 256 * 1024;
/// Largest zstd window: 8 MiB, the default limit of every encoder.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;
/// Larger compressed bodies are decompressed on a thread that may take its time.
const IN_PLACE_BYTES_MAX: usize = 4 * 1024;
/// Largest webhook that is taken; Stripe's have some kilobytes.
const WEBHOOK_BYTES_MAX: usize = 256 * 1024;
const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(5);
/// Webhooks that are read at once, and what they hold together.
const WEBHOOKS_MAX: usize = 64;
const WEBHOOKS_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Reads bodies within their limits.
#[derive(Clone)]
pub struct BodyReader {
    bytes_max: usize,
    timeout: Duration,
    budget: Arc<Budget>,
    /// How many are read at once.
    places: Arc<Semaphore>,
}

/// A whole body. While it lives, its size counts against the limit of all.
pub struct WholeBody {
    pub bytes: Bytes,
    share: Share,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Identity,
    Gzip,
    Zstd,
}

impl BodyReader {
    pub fn new(config: &ServerConfig) -> Self {
        let all = config.body_bytes_max.saturating_mul(BODIES_IN_MEMORY_MAX);
        Self {
            bytes_max: config.body_bytes_max,
            timeout: Duration::from_millis(config.body_timeout_ms),
            budget: Budget::new(all, all / TENANT_PART),
            places: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
        }
    }

    /// For bodies that come without a key.
    pub fn for_webhooks(config: &ServerConfig) -> Self {
        Self {
            bytes_max: WEBHOOK_BYTES_MAX.min(config.body_bytes_max),
            timeout: WEBHOOK_TIMEOUT.min(Duration::from_millis(config.body_timeout_ms)),
            budget: Budget::new(WEBHOOKS_BYTES_MAX, WEBHOOKS_BYTES_MAX),
            places: Arc::new(Semaphore::new(WEBHOOKS_MAX)),
        }
    }

    /// The same budget for bodies of at most so many bytes.
    pub fn up_to(&self, bytes_max: usize) -> Self {
        Self { bytes_max: bytes_max.min(self.bytes_max), ..self.clone() }
    }

    pub async fn read(&self, parts: &Parts, body: Body) -> Result<WholeBody, Problem> {
        self.read_from(caller_of(parts), &parts.headers, body).await
    }

    /// The body of a request that this caller sends.
    pub async fn read_from<B>(
        &self,
        caller: Option<&Caller>,
        headers: &HeaderMap,
        body: B,
    ) -> Result<WholeBody, Problem>
    where
        B: HttpBody<Data = Bytes> + Unpin,
    {
        let encoding = read_encoding(headers)?;
        let WholeBody { bytes: sent, share } = self.receive_from(caller, headers, body).await?;
        if encoding == Encoding::Identity {
            forbid_compressed(&sent)?;
        }
        if encoding == Encoding::Identity || sent.len() <= IN_PLACE_BYTES_MAX {
            return self.unpack(encoding, sent, share);
        }
        let reader = self.clone();
        HeavyThreads::of_requests().run(move || reader.unpack(encoding, sent, share)).await?
    }

    /// A body as it was sent, not decompressed.
    pub async fn receive(&self, parts: &Parts, body: Body) -> Result<WholeBody, Problem> {
        self.receive_from(caller_of(parts), &parts.headers, body).await
    }

    async fn receive_from<B>(
        &self,
        caller: Option<&Caller>,
        headers: &HeaderMap,
        body: B,
    ) -> Result<WholeBody, Problem>
    where
        B: HttpBody<Data = Bytes> + Unpin,
    {
        let announced = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse().ok());
        if announced.is_some_and(|length: usize| length > self.bytes_max) {
            return Err(too_large(self.bytes_max));
        }
        let Ok(_place) = self.places.try_acquire() else { return Err(full(Full::All)) };
        let bound_to = caller.and_then(Caller::bound_to);
        let mut share = self.budget.share(bound_to.map(|tenant| tenant.as_str()));
        let collected =
            tokio::time::timeout(self.timeout, self.collect(body, announced, &mut share));
        let bytes = collected.await.map_err(|_| {
            Problem::new(
                Kind::Timeout,
                "body_timeout",
                "the body did not arrive in time; nothing of it was counted; send it again",
            )
        })??;
        Ok(WholeBody { bytes, share })
    }

    fn unpack(
        &self,
        encoding: Encoding,
        sent: Bytes,
        mut share: Share,
    ) -> Result<WholeBody, Problem> {
        let bytes = match encoding {
            Encoding::Identity => sent,
            Encoding::Gzip => self.decode(
                flate2::bufread::MultiGzDecoder::new(&sent[..]),
                sent.len(),
                &mut share,
            )?,
            Encoding::Zstd => {
                let mut decoder =
                    zstd::stream::read::Decoder::with_buffer(&sent[..]).map_err(undecodable)?;
                let window_log = self.bytes_max.max(1024).ilog2().min(ZSTD_WINDOW_LOG_MAX);
                decoder.window_log_max(window_log).map_err(undecodable)?;
                self.decode(decoder, sent.len(), &mut share)?
            }
        };
        Ok(WholeBody { bytes, share })
    }

    async fn collect<B>(
        &self,
        mut body: B,
        announced: Option<usize>,
        share: &mut Share,
    ) -> Result<Bytes, Problem>
    where
        B: HttpBody<Data = Bytes> + Unpin,
    {
        let mut first: Option<Bytes> = None;
        let mut gathered = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| {
                Problem::new(Kind::Invalid, "body_broken", "the body broke off; send it again")
            })?;
            let Ok(chunk) = frame.into_data() else { continue };
            let length = first.as_ref().map_or(0, Bytes::len) + gathered.len();
            if chunk.len() > self.bytes_max - length {
                return Err(too_large(self.bytes_max));
            }
            share.take(chunk.len()).map_err(full)?;
            match (&first, gathered.is_empty()) {
                (None, true) => first = Some(chunk),
                (Some(_), _) | (None, false) => {
                    if let Some(first) = first.take() {
                        gathered.reserve(announced.unwrap_or(0).min(CAPACITY_FIRST));
                        gathered.extend_from_slice(&first);
                    }
                    gathered.extend_from_slice(&chunk);
                }
            }
        }
        Ok(first.unwrap_or_else(|| gathered.freeze()))
    }

    /// Decodes step by step and never holds more than the limit.
    fn decode(
        &self,
        mut decoder: impl Read,
        sent: usize,
        share: &mut Share,
    ) -> Result<Bytes, Problem> {
        const STEP: usize = 64 * 1024;
        let mut decoded = Vec::with_capacity(sent.saturating_mul(4).min(self.bytes_max));
        loop {
            let length = decoded.len();
            let room = STEP.min(self.bytes_max - length);
            if room == 0 {
                let more = decoder.read(&mut [0u8]).map_err(undecodable)?;
                return if more == 0 { Ok(decoded.into()) } else { Err(too_large(self.bytes_max)) };
            }
            if decoded.capacity() < length + room {
                decoded.reserve_exact(length.max(room).min(self.bytes_max - length));
            }
            decoded.resize(length + room, 0);
            let count = decoder.read(&mut decoded[length..]).map_err(undecodable)?;
            decoded.truncate(length + count);
            if count == 0 {
                return Ok(decoded.into());
            }
            share.take(count).map_err(full)?;
        }
    }
}

/// The caller that admission has found.
fn caller_of(parts: &Parts) -> Option<&Caller> {
    parts.extensions.get::<Caller>()
}

fn full(which: Full) -> Problem {
    let detail = match which {
        Full::All => {
            "the server holds as many request bodies as it may; nothing of this request was \
             counted; send it again after the time in Retry-After"
        }
        Full::Holder => {
            "the server holds as many request bodies of this tenant as it may; nothing of this \
             request was counted; send fewer at once, and this one again after the time in \
             Retry-After"
        }
    };
    Problem::new(Kind::Unavailable, "bodies_full", detail)
}

fn read_encoding(headers: &HeaderMap) -> Result<Encoding, Problem> {
    let mut values = headers.get_all(CONTENT_ENCODING).iter();
    let encoding = match (values.next(), values.next()) {
        (None, _) => Some(Encoding::Identity),
        (Some(value), None) => name_encoding(value),
        (Some(_), Some(_)) => None,
    };
    encoding.ok_or_else(|| {
        Problem::new(
            Kind::UnsupportedType,
            "unsupported_encoding",
            "Content-Encoding is gzip, zstd or absent, and only one of them",
        )
    })
}

fn name_encoding(value: &HeaderValue) -> Option<Encoding> {
    match value.to_str().ok()?.trim().to_ascii_lowercase().as_str() {
        "identity" => Some(Encoding::Identity),
        "gzip" | "x-gzip" => Some(Encoding::Gzip),
        "zstd" => Some(Encoding::Zstd),
        _ => None,
    }
}

/// No JSON begins with these bytes, and what would be said of it otherwise helps nobody.
fn forbid_compressed(sent: &[u8]) -> Result<(), Problem> {
    let name = match sent {
        [0x1f, 0x8b, ..] => "gzip",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "zstd",
        _ => return Ok(()),
    };
    Err(Problem::new(
        Kind::Invalid,
        "invalid_encoding",
        format!(
            "the body is compressed and no header says so; send Content-Encoding: {name}; nothing \
             of this request was counted"
        ),
    ))
}

fn undecodable(_: std::io::Error) -> Problem {
    Problem::new(
        Kind::Invalid,
        "invalid_encoding",
        "the body cannot be decompressed as its Content-Encoding says; nothing of this request \
         was counted",
    )
}

fn too_large(bytes_max: usize) -> Problem {
    Problem::new(
        Kind::TooLarge,
        "body_too_large",
        format!(
            "a body has at most {bytes_max} bytes, as sent and decompressed; nothing of this \
             request was counted; send smaller batches"
        ),
    )
}
