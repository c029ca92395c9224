//! Bodies, encodings, limits, connections and shutdown.

use crate::world::{Answer, Ground, NOW, Server, configured, event};
use axum::body::Body;
use counterfoil::config::{Config, Secret};
use counterfoil::http::serve;
use futures_util::stream;
use http::{Method, Request};
use std::io::Write;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstandard(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).unwrap()
}

pub async fn compressed_bodies(ground: Ground) {
    let server = Server::start(ground).await;
    let one = event("acme", "e1", "1", NOW).into_bytes();
    for (encoding, body) in [("gzip", gzip(&one)), ("zstd", zstandard(&one)), ("GZIP", gzip(&one))]
    {
        let answer = server.post_with(&[("content-encoding", encoding)], body).await;
        assert_eq!(answer.status, 200, "{encoding}: {}", answer.body);
    }
    assert_eq!(server.get("/v1/usage?tenant=acme&meter=calls").await.json()["total"], "1");
    for encoding in ["br", "gzip, gzip", "deflate", ""] {
        let answer = server.post_with(&[("content-encoding", encoding)], one.clone()).await;
        answer.problem(415, "unsupported_encoding");
    }
    let twice = [("content-encoding", "gzip"), ("content-encoding", "gzip")];
    server.post_with(&twice, gzip(&gzip(&one))).await.problem(415, "unsupported_encoding");
    let mut cut = gzip(&one);
    cut.truncate(cut.len() - 9);
    let gzipped = [("content-encoding", "gzip")];
    server.post_with(&gzipped, cut).await.problem(400, "invalid_encoding");
    for (magic, name) in [(&b"\x1f\x8b\x08"[..], "gzip"), (&b"\x28\xb5\x2f\xfd\x04"[..], "zstd")] {
        let unsaid = server.post_with(&[], magic.to_vec()).await;
        let wanted = format!("send Content-Encoding: {name};");
        unsaid.problem_saying(400, "invalid_encoding", &wanted);
    }
    server.post_with(&gzipped, one.clone()).await.problem(400, "invalid_encoding");
    let mut cut = zstandard(&one);
    cut.truncate(cut.len() - 3);
    let answer = server.post_with(&[("content-encoding", "zstd")], cut).await;
    answer.problem(400, "invalid_encoding");
}

pub async fn bombs_stop_at_the_limit(ground: Ground) {
    let server = Server::start(ground).await;
    let zeros = vec![b' '; 64 * 1024 * 1024];
    for (encoding, body) in [("gzip", gzip(&zeros)), ("zstd", zstandard(&zeros))] {
        assert!(body.len() < 100_000);
        let answer = server.post_with(&[("content-encoding", encoding)], body).await;
        answer.problem(413, "body_too_large");
    }
    // A frame that asks for a window of 2 GiB.
    let window = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa8, 0x01, 0x00, 0x00];
    let answer = server.post_with(&[("content-encoding", "zstd")], window.to_vec()).await;
    answer.problem(400, "invalid_encoding");
}

pub async fn limits(ground: Ground) {
    let mut config = short_bodies(50);
    config.server.batch_events_max = 3;
    let server = Server::start_with(ground, &config).await;
    let exact = format!("[{}]", " ".repeat(998));
    assert_eq!(server.post(&exact).await.status, 200);
    server.post(&format!("{exact} ")).await.problem(413, "body_too_large");
    let gzipped = [("content-encoding", "gzip")];
    assert_eq!(server.post_with(&gzipped, gzip(exact.as_bytes())).await.status, 200);
    let more = gzip(format!("{exact} ").as_bytes());
    server.post_with(&gzipped, more).await.problem(413, "body_too_large");
    let chunks = stream::iter((0..5).map(|_| Ok::<_, std::io::Error>(vec![b' '; 300])));
    server.post_with(&[], Body::from_stream(chunks)).await.problem(413, "body_too_large");
    assert_eq!(server.post("[1,1,1]").await.status, 200);
    server.post("[1,1,1,1]").await.problem(413, "too_many_events");
    let lines = [("content-type", "application/x-ndjson")];
    server.post_with(&lines, "1\n1\n1\n1\n").await.problem(413, "too_many_events");
    let silent = stream::pending::<Result<Vec<u8>, std::io::Error>>();
    server.post_with(&[], Body::from_stream(silent)).await.problem(408, "body_timeout");
    let parts = ["[", "1", ",2", "]"].map(|part| Ok::<_, std::io::Error>(part.to_owned()));
    let answer = server.post_with(&[], Body::from_stream(stream::iter(parts))).await;
    assert_eq!(answer.json()["rejected"], 2);
}

/// Settings of bodies of at most a thousand bytes, which come in so much time.
pub fn short_bodies(timeout_ms: u64) -> Config {
    configured(|config| {
        config.server.body_bytes_max = 1000;
        config.server.body_timeout_ms = timeout_ms;
    })
}

/// How many were put off with this code.
pub fn count_refused(answers: &[Answer], code: &str) -> usize {
    let refused: Vec<_> = answers.iter().filter(|answer| answer.status == 503).collect();
    for answer in &refused {
        answer.problem(503, code);
    }
    refused.len()
}

pub async fn all_bodies_together_are_bounded(ground: Ground) {
    let server = Server::start_with(ground, &short_bodies(300)).await;
    let hold = |_| server.post_with(&[], held(900));
    let answers = futures_util::future::join_all((0..20).map(hold)).await;
    let refused = count_refused(&answers, "bodies_full");
    assert!((1..=4).contains(&refused), "{refused}");
    assert_eq!(server.post(&format!("[{}]", " ".repeat(900))).await.status, 200, "all given back");
}

/// A body that sends so much and then nothing.
pub fn held(bytes: usize) -> Body {
    let chunk = stream::iter([Ok::<_, std::io::Error>(vec![b' '; bytes])]);
    Body::from_stream(futures_util::StreamExt::chain(chunk, stream::pending()))
}

/// Nobody shows a key for a webhook, so its bodies have a budget of their own.
pub async fn webhook_bodies_leave_ingest_its_room(ground: Ground) {
    let mut config = short_bodies(2_000);
    config.stripe.webhook_secrets = Secret::new("whsec_x");
    let server = Server::start_with(ground, &config).await;
    let webhooks = (0..40).map(|_| {
        let request = Request::post("/webhooks/stripe").body(held(900)).unwrap();
        Box::pin(server.send(request))
    });
    let mut webhooks = futures_util::future::join_all(webhooks);
    assert!(futures_util::poll!(&mut webhooks).is_pending(), "all are being read");
    assert_eq!(server.post(&format!("[{}]", " ".repeat(900))).await.status, 200);
    for answer in webhooks.await {
        answer.problem(408, "body_timeout");
    }
    let large = Request::post("/webhooks/stripe").body(Body::from(vec![b' '; 1001])).unwrap();
    server.send(large).await.problem(413, "body_too_large");
}

pub async fn webhooks_beyond_their_number_are_put_off(ground: Ground) {
    let config = configured(|config| {
        config.server.body_timeout_ms = 500;
        config.stripe.webhook_secrets = Secret::new("whsec_x");
    });
    let server = Server::start_with(ground, &config).await;
    let webhooks =
        (0..70).map(|_| server.send(Request::post("/webhooks/stripe").body(held(9)).unwrap()));
    let answers = futures_util::future::join_all(webhooks).await;
    assert_eq!(count_refused(&answers, "bodies_full"), 70 - 64);
}

pub async fn bodies_of_one_tenant_leave_room_for_others(ground: Ground) {
    let server = Server::start_with(ground, &short_bodies(2_000)).await;
    let acme = server.key("ingest", Some("acme")).await;
    let globex = server.key("ingest", Some("globex")).await;
    let send = |key: &str, body: Body| {
        let request = Request::post("/v1/events").header("authorization", format!("Bearer {key}"));
        Box::pin(server.send(request.body(body).unwrap()))
    };
    let mut flood = futures_util::future::join_all((0..30).map(|_| send(&acme, held(900))));
    assert!(futures_util::poll!(&mut flood).is_pending());
    send(&globex, Body::from(format!("[{}]", " ".repeat(900)))).await.ok(200);
    let answers = flood.await;
    let held = answers.iter().filter(|answer| answer.status == 408).count();
    assert_eq!((held, count_refused(&answers, "bodies_full")), (4, 26), "a quarter of sixteen");
}

pub async fn a_queue_that_is_full_is_503(ground: Ground) {
    let config = configured(|config| config.ingest.queue_events_max = 1);
    let server = Server::start_with(ground, &config).await;
    let batch: Vec<_> = (0..50).map(|n| event("acme", &format!("e{n}"), "1", NOW)).collect();
    let batch = format!("[{}]", batch.join(","));
    let many = futures_util::future::join_all((0..20).map(|_| server.post(&batch))).await;
    assert!(count_refused(&many, "queue_full") > 0);
    assert_eq!(server.get("/v1/usage?tenant=acme&meter=calls").await.json()["total"], "50");
}

pub async fn types_paths_and_methods_that_do_not_exist(ground: Ground) {
    let server = Server::start(ground).await;
    for kind in ["text/plain", "application/xml", "application/jsonn", "\u{e9}"] {
        let answer = server.post_with(&[("content-type", kind)], "[]").await;
        answer.problem(415, "unsupported_type");
    }
    assert_eq!(server.post_with(&[], "[]").await.status, 200, "no type is JSON");
    let answer = server.call(Method::PATCH, "/v1/events", &server.admin, "").await;
    answer.problem(405, "method_not_allowed");
    assert_eq!(answer.headers["allow"], "POST,GET,HEAD");
    server.get("/v2/events").await.problem(404, "unknown_route");
    server.get("/v1/events/acme").await.problem(404, "unknown_route");
    let slash = server.get("/v1/meters/").await;
    slash.problem_saying(404, "unknown_route", "no path ends with a slash");
    let root = server.get("/").await;
    assert_eq!((root.status, &root.headers["location"]), (307, &"/docs".parse().unwrap()));
    assert_eq!(root.headers["x-content-type-options"], "nosniff");
    let put = Request::put("/v1/meters/m")
        .header("authorization", format!("Bearer {}", server.admin))
        .header("content-type", "text/plain")
        .body(Body::from("{}"));
    server.send(put.unwrap()).await.problem(415, "unsupported_type");
}

pub async fn metrics_are_counted_by_route_and_outcome(ground: Ground) {
    let server = Server::start(ground).await;
    server.post(&event("acme", "e1", "1", NOW)).await;
    server.get("/v1/events/acme/some-id-of-a-tenant").await;
    let metrics = server.get("/metrics").await;
    assert!(metrics.headers["content-type"].to_str().unwrap().starts_with("text/plain"));
    for line in [
        r#"counterfoil_events_total{outcome="accepted"}"#,
        r#"counterfoil_http_requests_total{route="/v1/events/{tenant}/{id}",method="GET",status="404"}"#,
        r#"counterfoil_http_request_seconds_bucket{route="/v1/events","#,
        "counterfoil_commit_seconds_bucket",
    ] {
        assert!(metrics.body.contains(line), "{line} is not in\n{}", metrics.body);
    }
    assert!(!metrics.body.contains("some-id-of-a-tenant"));
}

/// Serves on a real socket; the second value stops the server.
pub async fn listen(
    server: &Server,
) -> (std::net::SocketAddr, tokio::sync::oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let app = server.app.clone();
    let task = tokio::spawn(async move {
        serve(listener, app, async { drop(stopped.await) }).await.unwrap();
    });
    (address, stop, task)
}

async fn read_all(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    tokio::time::timeout(Duration::from_secs(5), read).await.expect("closed in time").unwrap();
    String::from_utf8(answer).unwrap()
}

pub async fn a_connection_that_says_nothing_is_closed(ground: Ground) {
    let config = configured(|config| config.server.header_timeout_ms = 200);
    let server = Server::start_with(ground, &config).await;
    let (address, _stop, _task) = listen(&server).await;
    // Nothing; the first letter of POST and of HTTP/2; half a head.
    for said in
        ["", "P", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET /healthz HTTP/1.1\r\nHost: x\r\n"]
    {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(said.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        tokio::time::timeout(Duration::from_secs(5), read).await.expect("closed in time").ok();
    }
}

pub async fn http_2_without_tls(ground: Ground) {
    let server = Server::start(ground).await;
    let (address, _stop, _task) = listen(&server).await;
    let stream = TcpStream::connect(address).await.unwrap();
    let io = hyper_util::rt::TokioIo::new(stream);
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(executor, io).await.unwrap();
    tokio::spawn(connection);
    let answers = (0..20).map(|n| {
        let request = Request::post(format!("http://{address}/v1/events"))
            .header("authorization", format!("Bearer {}", server.admin))
            .body(Body::from(event("acme", &format!("e{n}"), "1", NOW)));
        sender.send_request(request.unwrap())
    });
    for answer in futures_util::future::join_all(answers).await {
        assert_eq!(answer.unwrap().status(), 200);
    }
    assert_eq!(server.get("/v1/usage?tenant=acme&meter=calls").await.json()["total"], "20");
}

pub async fn connections_beyond_the_limit_wait(ground: Ground) {
    let config = configured(|config| config.server.connections_max = 1);
    let server = Server::start_with(ground, &config).await;
    let (address, _stop, _task) = listen(&server).await;
    let request = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let first = TcpStream::connect(address).await.unwrap();
    let mut second = TcpStream::connect(address).await.unwrap();
    second.write_all(request).await.unwrap();
    let mut byte = [0];
    let early = tokio::time::timeout(Duration::from_millis(200), second.read(&mut byte)).await;
    assert!(early.is_err(), "the second connection waits");
    drop(first);
    assert!(read_all(&mut second).await.starts_with("HTTP/1.1 200 OK"));
}

pub async fn shutdown_ends_requests_in_progress_and_takes_no_more(ground: Ground) {
    let server = Server::start(ground).await;
    let (address, stop, task) = listen(&server).await;
    let body = event("acme", "e1", "1", NOW);
    let head = format!(
        "POST /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n\r\n",
        server.admin,
        body.len()
    );
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut idle = TcpStream::connect(address).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    stop.send(()).unwrap();
    // Nothing new is accepted, soon.
    while TcpStream::connect(address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stream.write_all(body.as_bytes()).await.unwrap();
    let answer = read_all(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert_eq!(read_all(&mut idle).await, "");
    tokio::time::timeout(Duration::from_secs(5), task).await.expect("ends in time").unwrap();
}
