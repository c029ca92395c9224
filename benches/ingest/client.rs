//! A minimal HTTP/1.1 client: one blocking keep-alive connection, no allocation for a request.
//!
//! It understands what the server sends (Content-Length, no chunks) and nothing else, so that the
//! client takes as little as possible of the cores it shares with the server.

use crate::workload::Counts;
use anyhow::{Context, Result, bail, ensure};
use std::io::{IoSlice, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

pub struct Connection {
    stream: TcpStream,
    key: String,
    head: Vec<u8>,
    answer: Vec<u8>,
}

impl Connection {
    /// `url` is `http://address:port`.
    pub fn open(url: &str, key: &str) -> Result<Self> {
        let address = url.trim_start_matches("http://").trim_end_matches('/');
        let stream = TcpStream::connect(address).with_context(|| format!("connecting to {url}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(Self { stream, key: key.to_owned(), head: Vec::new(), answer: Vec::new() })
    }

    /// Sends events without waiting for the answer.
    pub fn send_events(&mut self, body: &[u8]) -> Result<()> {
        self.send("POST", "/v1/events?results=problems", body)
    }

    /// Waits for the answer to events: the status and the verdicts in numbers.
    pub fn receive_counts(&mut self) -> Result<(u16, Counts)> {
        let (status, start) = self.read_answer()?;
        let answer = &self.answer[start..];
        let counts = Counts {
            accepted: number_after(answer, b"\"accepted\":").unwrap_or(0),
            duplicates: number_after(answer, b"\"duplicates\":").unwrap_or(0),
            conflicts: number_after(answer, b"\"conflicts\":").unwrap_or(0),
            others: number_after(answer, b"\"quarantined\":").unwrap_or(0)
                + number_after(answer, b"\"rejected\":").unwrap_or(0),
        };
        if counts.total() == 0 && status != 503 {
            bail!("status {status}: {}", String::from_utf8_lossy(answer));
        }
        Ok((status, counts))
    }

    /// Sends anything else; a status other than 2xx is an error.
    pub fn exchange(&mut self, method: &str, path: &str, body: &str) -> Result<&str> {
        self.send(method, path, body.as_bytes())?;
        let (status, start) = self.read_answer()?;
        let answer = std::str::from_utf8(&self.answer[start..])?;
        ensure!((200..300).contains(&status), "{method} {path}: status {status}: {answer}");
        Ok(answer)
    }

    fn send(&mut self, method: &str, path: &str, body: &[u8]) -> Result<()> {
        self.head.clear();
        write!(
            self.head,
            "{method} {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.key,
            body.len()
        )?;
        let parts = [IoSlice::new(&self.head), IoSlice::new(body)];
        let written = self.stream.write_vectored(&parts)?;
        if written < self.head.len() {
            self.stream.write_all(&self.head[written..])?;
            self.stream.write_all(body)?;
        } else {
            self.stream.write_all(&body[written - self.head.len()..])?;
        }
        Ok(())
    }

    /// Returns the status and where the answer's body starts in `answer`.
    fn read_answer(&mut self) -> Result<(u16, usize)> {
        self.answer.clear();
        let mut chunk = [0u8; 16 * 1024];
        let (mut status, mut start, mut end) = (0, 0, usize::MAX);
        while self.answer.len() < end {
            let count = self.stream.read(&mut chunk).context("reading an answer")?;
            ensure!(count > 0, "the server closed the connection");
            self.answer.extend_from_slice(&chunk[..count]);
            if start == 0
                && let Some(place) = find(&self.answer, b"\r\n\r\n")
            {
                start = place + 4;
                let head = std::str::from_utf8(&self.answer[..place])?;
                status = head.get(9..12).and_then(|s| s.parse().ok()).context("no status")?;
                end = start + content_length(head)?;
            }
        }
        Ok((status, start))
    }
}

fn content_length(head: &str) -> Result<usize> {
    for line in head.split("\r\n") {
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            return Ok(value.trim().parse()?);
        }
    }
    bail!("an answer without Content-Length: {head}")
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|part| part == wanted)
}

fn number_after(text: &[u8], name: &[u8]) -> Option<u64> {
    let digits = &text[find(text, name)? + name.len()..];
    let length = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&digits[..length]).ok()?.parse().ok()
}
