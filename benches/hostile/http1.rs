//! One HTTP/1.1 connection that may come from any loopback address, and what it takes to misuse it.

use anyhow::{Context, Result, ensure};
use std::borrow::Cow;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// Longer than a server that works keeps anybody waiting.
const PATIENCE: Duration = Duration::from_secs(60);

/// Attackers have an address of their own, so that limits of an address meet only them.
pub const VICTIM: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
pub const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

pub struct Connection {
    pub stream: TcpStream,
    answer: Vec<u8>,
}

pub struct Request<'a> {
    pub method: &'static str,
    pub path: &'static str,
    pub key: &'a str,
    /// Further lines, each with its end.
    pub headers: String,
    pub body: Cow<'a, [u8]>,
}

impl<'a> Request<'a> {
    pub fn get(path: &'static str, key: &'a str) -> Self {
        let (headers, body) = (String::new(), Cow::default());
        Self { method: "GET", path, key, headers, body }
    }

    pub fn post(path: &'static str, key: &'a str, body: impl Into<Cow<'a, [u8]>>) -> Self {
        Self { method: "POST", path, key, headers: String::new(), body: body.into() }
    }

    pub fn head(&self) -> String {
        format!(
            "{} {} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {}\r\n{}\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.method,
            self.path,
            self.key,
            self.headers,
            self.body.len()
        )
    }
}

impl Connection {
    pub async fn open(server: SocketAddr, from: Ipv4Addr) -> Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((from, 0).into())?;
        let stream = tokio::time::timeout(PATIENCE, socket.connect(server)).await??;
        stream.set_nodelay(true)?;
        Ok(Self { stream, answer: Vec::new() })
    }

    /// The status and the body of the answer.
    pub async fn exchange(&mut self, request: &Request<'_>) -> Result<(u16, &[u8])> {
        let work = async {
            self.stream.write_all(request.head().as_bytes()).await?;
            self.stream.write_all(&request.body).await?;
            self.read_answer().await
        };
        let (status, start) = tokio::time::timeout(PATIENCE, work).await.context("no answer")??;
        Ok((status, &self.answer[start..]))
    }

    async fn read_answer(&mut self) -> Result<(u16, usize)> {
        self.answer.clear();
        let (mut status, mut start, mut end) = (0, 0, usize::MAX);
        while self.answer.len() < end {
            let count = self.stream.read_buf(&mut self.answer).await?;
            ensure!(count > 0, "the server closed the connection");
            let place = self.answer.windows(4).position(|part| part == b"\r\n\r\n");
            if let (0, Some(place)) = (start, place) {
                start = place + 4;
                let head = std::str::from_utf8(&self.answer[..place])?.to_ascii_lowercase();
                status = head.get(9..12).and_then(|text| text.parse().ok()).context("no status")?;
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                end = start + length.context("an answer without its length")?.parse::<usize>()?;
            }
        }
        Ok((status, start))
    }
}
