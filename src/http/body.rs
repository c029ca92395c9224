//! Request bodies: read within a size and a time, then decompressed within the same size.
//!
//! Invariant: no request makes the server hold more than `body_bytes_max` bytes as sent and as
//! many decompressed, whatever its headers say, and all requests together hold no more than
//! [`BODIES_IN_MEMORY_MAX`] times that; beyond it, 503. A body in one frame is not copied.

use super::problem::{Kind, Problem};
use crate::config::ServerConfig;
use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use http::{HeaderMap, HeaderValue};
use http_body_util::BodyExt;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Bodies of the largest size that are held at once. Small ones come far more often, so this
/// many of the largest is room for thousands of the usual.
const BODIES_IN_MEMORY_MAX: usize = 16;
/// What is set aside for a body before its bytes arrive: its header may lie.
const CAPACITY_FIRST: usize = 256 * 1024;
/// Largest zstd window: 8 MiB, which every encoder keeps to unless told otherwise.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// Reads bodies within their limits.
pub struct BodyReader {
    bytes_max: usize,
    timeout: Duration,
    held: Arc<AtomicUsize>,
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
        Self {
            bytes_max: config.body_bytes_max,
            timeout: Duration::from_millis(config.body_timeout_ms),
            held: Arc::default(),
        }
    }

    pub async fn read(&self, headers: &HeaderMap, body: Body) -> Result<WholeBody, Problem> {
        let encoding = read_encoding(headers)?;
        let WholeBody { bytes: sent, share } = self.receive(headers, body).await?;
        self.unpack(encoding, sent, share)
    }

    /// A body as it was sent, not decompressed.
    pub async fn receive(&self, headers: &HeaderMap, body: Body) -> Result<WholeBody, Problem> {
        let announced = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse().ok());
        if announced.is_some_and(|length: usize| length > self.bytes_max) {
            return Err(too_large(self.bytes_max));
        }
        let mut share =
            Share { held: Arc::clone(&self.held), bytes: 0, held_max: self.total_max() };
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

    fn total_max(&self) -> usize {
        self.bytes_max.saturating_mul(BODIES_IN_MEMORY_MAX)
    }

    async fn collect(
        &self,
        mut body: Body,
        announced: Option<usize>,
        share: &mut Share,
    ) -> Result<Bytes, Problem> {
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
            share.take(chunk.len())?;
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
            share.take(count)?;
        }
    }
}

/// What one body takes of the memory for all; given back when it is dropped.
struct Share {
    held: Arc<AtomicUsize>,
    bytes: usize,
    held_max: usize,
}

impl Share {
    fn take(&mut self, bytes: usize) -> Result<(), Problem> {
        let before = self.held.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
        if before.saturating_add(bytes) > self.held_max {
            return Err(Problem::new(
                Kind::Unavailable,
                "bodies_full",
                "the server holds as many request bodies as it may; nothing of this request was \
                 counted; send it again after the time in Retry-After",
            ));
        }
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
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
