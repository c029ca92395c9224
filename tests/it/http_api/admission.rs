//! What one key, tenant or address may take of the server: requests, queries, answers, connections.

use super::pushes::Scripted;
use super::transport::listen;
use crate::world::{Answer, Ground, NOW, Server, configured, default_config, event};
use axum::body::Body;
use http::{Method, Request};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

fn number(answer: &Answer, header: &str) -> u64 {
    answer.headers[header].to_str().unwrap().parse().unwrap()
}

pub async fn a_key_beyond_its_rate_is_put_off_and_others_are_served(ground: Ground) {
    let config = configured(|config| config.limits.requests_per_second = 3);
    let server = Server::start_empty(ground, &config).await;
    let key = server.key("read", Some("acme")).await;
    let mut answers = Vec::new();
    for _ in 0..100 {
        answers.push(server.get_as(&key, "/v1/meters").await);
    }
    assert_eq!((answers[0].status, number(&answers[0], "ratelimit-limit")), (200, 3));
    assert!(number(&answers[0], "ratelimit-remaining") <= 5);
    let refused = answers.iter().find(|answer| answer.status != 200).expect("one too many");
    refused.problem(429, "rate_limited");
    assert_eq!(number(refused, "ratelimit-remaining"), 0);
    assert!(number(refused, "ratelimit-reset") >= 1 && number(refused, "retry-after") >= 1);
    assert_eq!(server.get("/v1/meters").await.status, 200);
    // Deliveries are counted apart.
    let ingest = server.key("ingest", None).await;
    for _ in 0..20 {
        assert_eq!(server.call(Method::POST, "/v1/events", &ingest, "[]").await.status, 200);
    }
}

pub async fn deliveries_have_a_rate_of_their_own(ground: Ground) {
    let config = configured(|config| config.limits.event_requests_per_second = 1);
    let server = Server::start_with(ground, &config).await;
    let key = server.key("ingest", None).await;
    let body = event("acme", "e1", "1", NOW);
    let mut statuses = Vec::new();
    for _ in 0..8 {
        statuses.push(server.call(Method::POST, "/v1/events", &key, &body).await.status);
    }
    assert_eq!((statuses[0], statuses.contains(&429)), (200, true), "{statuses:?}");
}

/// One request over a connection of its own.
async fn ask(address: SocketAddr, key: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "GET /v1/meters HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    tokio::time::timeout(PATIENCE, read).await.expect("answered in time").unwrap();
    String::from_utf8(answer).unwrap()
}

pub async fn wrong_keys_from_one_address_are_put_off(ground: Ground) {
    let config = configured(|config| config.limits.unknown_keys_per_second = 1);
    let server = Server::start_empty(ground, &config).await;
    let (address, _stop, _task) = listen(&server).await;
    let mut answers = Vec::new();
    for guess in 0..8 {
        answers.push(ask(address, &format!("cf_{guess}")).await);
    }
    assert!(answers[0].starts_with("HTTP/1.1 401"), "{}", answers[0]);
    assert!(answers.iter().any(|answer| answer.starts_with("HTTP/1.1 429")), "{answers:?}");
    // Those who have a key and share the address, for example behind a proxy, go on.
    assert!(ask(address, &server.admin).await.starts_with("HTTP/1.1 200"));
}

pub async fn an_address_beyond_its_rate_is_put_off(ground: Ground) {
    let config = configured(|config| config.limits.address_per_second = 1);
    let server = Server::start_empty(ground, &config).await;
    let (address, _stop, _task) = listen(&server).await;
    let mut answers = Vec::new();
    for _ in 0..8 {
        answers.push(ask(address, &server.admin).await);
    }
    assert!(answers[0].starts_with("HTTP/1.1 200"), "{}", answers[0]);
    assert!(answers.iter().any(|answer| answer.starts_with("HTTP/1.1 429")), "{answers:?}");
}

pub async fn queries_at_work_are_limited_by_key_and_by_time(ground: Ground) {
    let config = configured(|config| config.limits.request_timeout_ms = 400);
    let silent = Arc::new(Scripted { totals: None });
    let server = Server::start_towards(ground, Some(silent), &config).await;
    let billed = r#"{"aggregation":"sum","billing":{"from":"2026-11-01T00:00:00Z"}}"#;
    assert_eq!(server.put("/v1/meters/calls", billed).await.status, 201);
    assert_eq!(server.put("/v1/tenants/acme", r#"{"customer":"cus_1"}"#).await.status, 200);
    let (slow, other) = (server.key("read", None).await, server.key("read", None).await);
    let compare = "/v1/comparison?tenant=acme&meter=calls";
    let many = (0..5).map(|_| Box::pin(server.get_as(&slow, compare)));
    let mut hanging = futures_util::future::join_all(many);
    assert!(futures_util::poll!(&mut hanging).is_pending());
    assert_eq!(server.get_as(&other, "/v1/meters").await.status, 200, "another key is served");
    for answer in hanging.await {
        answer.problem(503, "request_timeout");
    }
    assert_eq!(server.get_as(&slow, "/v1/meters").await.status, 200, "the places are free again");
}

/// Counts events of 3.7 kilobytes each.
async fn fill(server: &Server, tenant: &str, events: usize) {
    let large = "x".repeat(500);
    let pairs: Vec<String> = (0..7).map(|name| format!(r#""{name}":"{large}""#)).collect();
    let properties = format!("{{{}}}", pairs.join(","));
    let items: Vec<String> = (0..events)
        .map(|number| {
            let plain = event(tenant, &format!("e{number}"), "1", NOW);
            plain.replacen('{', &format!("{{\"properties\":{properties},"), 1)
        })
        .collect();
    let answer = server.post(&format!("[{}]", items.join(","))).await;
    assert_eq!(answer.json()["accepted"], events, "{}", answer.body);
}

pub async fn a_page_ends_after_a_mebibyte(ground: Ground) {
    let server = Server::start(ground).await;
    fill(&server, "acme", 700).await;
    let (mut seen, mut cursor, mut pages) = (0, String::new(), 0);
    loop {
        let page = server.get(&format!("/v1/events?tenant=acme&limit=1000{cursor}")).await;
        assert!(page.body.len() < 1_200_000, "{}", page.body.len());
        let json = page.json();
        seen += json["events"].as_array().unwrap().len();
        pages += 1;
        match json["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!((seen, pages), (700, 3));
}

pub async fn answers_that_are_not_read_are_counted(ground: Ground) {
    let server = Server::start(ground).await;
    fill(&server, "acme", 280).await;
    let acme = server.key("read", Some("acme")).await;
    let ask = async |key: &str| {
        let request = Request::get("/v1/events?tenant=acme&limit=1000")
            .header("authorization", format!("Bearer {key}"));
        server.routes.answer(None, request.body(Body::empty()).unwrap()).await
    };
    let mut unread = Vec::new();
    while unread.len() < 100 {
        let response = ask(&acme).await;
        if response.status() != 200 {
            assert_eq!(response.status(), 503);
            break;
        }
        unread.push(response);
    }
    assert!((60..70).contains(&unread.len()), "64 MiB are held: {}", unread.len());
    let full = server.get_as(&acme, "/v1/events?tenant=acme&limit=1000").await;
    full.problem(503, "answers_full");
    assert_eq!(ask(&server.admin).await.status(), 200, "others have their own part");
    unread.clear();
    assert_eq!(ask(&acme).await.status(), 200, "what is read is given back");
}

/// Asks until the server has a free place for the connection.
async fn is_served(address: SocketAddr, server: &Server) -> bool {
    tokio::time::timeout(PATIENCE, ask(address, &server.admin)).await.is_ok()
}

pub async fn a_peer_that_does_not_read_loses_its_connection(ground: Ground) {
    let config = configured(|config| {
        config.server.connections_max = 2;
        config.server.idle_timeout_ms = 400;
    });
    let server = Server::start_empty(ground, &config).await;
    let (address, _stop, _task) = listen(&server).await;
    let mut deaf = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // More than the buffers between take.
        let request = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n".repeat(200);
        stream.write_all(&request).await.unwrap();
        deaf.push(stream);
    }
    assert!(is_served(address, &server).await, "the places are given back");
}

type Sender = hyper::client::conn::http2::SendRequest<Body>;

/// An HTTP/2 connection whose peer takes no byte of a body unless asked; and its end.
async fn open(address: SocketAddr, window: u32) -> (Sender, tokio::task::JoinHandle<()>) {
    let stream = TcpStream::connect(address).await.unwrap();
    let executor = hyper_util::rt::TokioExecutor::new();
    let (sender, connection) = hyper::client::conn::http2::Builder::new(executor)
        .initial_stream_window_size(window)
        .handshake(hyper_util::rt::TokioIo::new(stream))
        .await
        .unwrap();
    let ended = tokio::spawn(async move { drop(connection.await) });
    (sender, ended)
}

pub async fn http_2_with_nothing_to_do_is_closed(ground: Ground) {
    let config = configured(|config| config.server.idle_timeout_ms = 400);
    let server = Server::start_empty(ground, &config).await;
    let (address, _stop, _task) = listen(&server).await;
    for (path, window) in [("/healthz", 65_535), ("/openapi.json", 1)] {
        let (mut sender, ended) = open(address, window).await;
        let request = Request::get(format!("http://{address}{path}")).body(Body::empty());
        let response = sender.send_request(request.unwrap()).await.unwrap();
        assert_eq!(response.status(), 200);
        // Neither the connection nor the answer is let go of here.
        tokio::time::timeout(PATIENCE, ended).await.expect("closed in time").unwrap();
        drop((sender, response));
    }
}

pub async fn an_old_connection_is_closed_though_it_is_used(ground: Ground) {
    let config = configured(|config| config.server.connection_age_max_ms = 400);
    let server = Server::start_empty(ground, &config).await;
    let (address, _stop, _task) = listen(&server).await;
    let (mut sender, ended) = open(address, 65_535).await;
    let busy = async {
        loop {
            let request = Request::get(format!("http://{address}/healthz")).body(Body::empty());
            if sender.send_request(request.unwrap()).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, busy).await.expect("closed in time");
    tokio::time::timeout(PATIENCE, ended).await.expect("closed in time").unwrap();
}

pub async fn one_address_has_only_its_part_of_the_connections(ground: Ground) {
    let config = configured(|config| config.server.connections_per_address_max = 2);
    let server = Server::start_empty(ground, &config).await;
    let (address, _stop, _task) = listen(&server).await;
    let (first, second) = (open(address, 65_535).await, open(address, 65_535).await);
    let mut third = TcpStream::connect(address).await.unwrap();
    let mut byte = [0];
    let read = tokio::time::timeout(PATIENCE, third.read(&mut byte)).await;
    assert!(matches!(read.expect("closed at once"), Ok(0) | Err(_)));
    drop((first.0, second.0));
    first.1.await.unwrap();
    second.1.await.unwrap();
    // The server sees their end a moment later.
    for _ in 0..200 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        let mut answer = String::new();
        if stream.write_all(request).await.is_ok()
            && stream.read_to_string(&mut answer).await.is_ok()
            && answer.starts_with("HTTP/1.1 200")
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the places were not given back");
}

pub async fn control_characters_are_refused_in_names(ground: Ground) {
    let server = Server::start(ground).await;
    for control in ["\u{1}", "\u{7f}", "\u{85}", "\u{9b}", "\u{9d}"] {
        let name = format!("a{control}b");
        let escaped = format!("a\\u{:04x}b", u32::from(control.chars().next().unwrap()));
        for (tenant, id) in [(escaped.as_str(), "e1"), ("acme", &escaped)] {
            let answer = server.post(&event(tenant, id, "1", NOW)).await;
            assert_eq!(answer.status, 422, "{name:?}: {}", answer.body);
        }
        let body = format!(r#"{{"name":"{escaped}"}}"#);
        server.put("/v1/tenants/acme", &body).await.problem(422, "invalid_name");
    }
}

pub async fn a_cursor_that_nobody_wrote_is_refused(ground: Ground) {
    let provider = Arc::new(Scripted::UNFIT);
    let server = Server::start_towards(ground, Some(provider), &default_config()).await;
    server.post_to("/v1/passes", r#"{"from":"2026-11-13","to":"2026-11-14"}"#).await.ok(202);
    for cursor in ["65535/0/x", "32768/0/x", "-1/0/x"] {
        let answer = server.get(&format!("/v1/passes/1/rows?after={cursor}")).await;
        answer.problem(400, "invalid_cursor");
    }
    assert_eq!(server.get("/v1/passes/1/rows?after=32767/0/x").await.status, 200);
}

pub async fn requests_that_a_proxy_may_read_otherwise_are_refused(ground: Ground) {
    let server = Server::start_empty(ground, &default_config()).await;
    let (address, _stop, _task) = listen(&server).await;
    for head in ["Host: a\r\nHost: b\r\n", "Host: a\r\nTransfer-Encoding: identity, chunked\r\n"] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let key = &server.admin;
        let request = format!(
            "POST /v1/events HTTP/1.1\r\n{head}Authorization: Bearer {key}\r\nConnection: \
             close\r\n\r\n2\r\n[]\r\n0\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().ok();
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400"), "{head:?}: {answer}");
    }
}

pub async fn a_bound_key_cannot_try_coupons_at_will(ground: Ground) {
    let server = Server::start(ground).await;
    let bound = server.key("operate", Some("acme")).await;
    let body = r#"{"currency":"eur","jurisdiction":"de","prices":"exclusive","coupon":"guess","cycle":"2026-11-01T00:00:00Z","lines":[{"id":"x","amount":"1"}]}"#;
    let path = "/v1/tenants/acme/quotes";
    let mut codes = Vec::new();
    for _ in 0..50 {
        let answer = server.once_as(&bound, (Method::POST, path), "q1", body).await;
        codes.push(answer.json()["code"].as_str().unwrap().to_owned());
    }
    assert_eq!(codes[0], "unknown_coupon", "the key stays unused");
    assert!(codes.contains(&"rate_limited".to_owned()), "{codes:?}");
    // Who may list them may try them.
    for _ in 0..50 {
        let answer = server.once(path, "q2", body).await;
        answer.problem(422, "unknown_coupon");
    }
}

pub async fn a_bound_key_cannot_open_and_end_alerts_at_will(ground: Ground) {
    let server = Server::start(ground).await;
    let bound = server.key("operate", Some("acme")).await;
    let quota = r#"{"tenant":"acme","meter":"calls","kind":"quota","period":"day","limit":"5"}"#;
    let path = "/v1/thresholds?tenant=acme&meter=calls&kind=quota&period=day";
    let mut statuses = Vec::new();
    for _ in 0..25 {
        let put = server.call(Method::PUT, "/v1/thresholds", &bound, quota).await;
        let deleted = server.call(Method::DELETE, path, &bound, "").await;
        statuses.extend([put.status, deleted.status]);
    }
    assert_eq!(statuses[..4], [200, 204, 200, 204]);
    assert_eq!(statuses[49], 429, "{statuses:?}");
    for _ in 0..50 {
        assert_eq!(server.put("/v1/thresholds", quota).await.status, 200);
    }
}
