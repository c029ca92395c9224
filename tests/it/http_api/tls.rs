//! TLS on the listener.

use super::transport::listen;
use crate::world::{Ground, Server, default_config};
use counterfoil::http::serve;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

const PATIENCE: Duration = Duration::from_secs(60);

fn file(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name)
}

/// Asks over TLS, trusting one certificate.
async fn ask(address: SocketAddr, trusted: &str) -> std::io::Result<String> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file(trusted)).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

pub async fn a_certificate_is_served_and_read_again_when_it_changes(ground: Ground) {
    let directory = tempfile::tempdir().unwrap();
    let (certificate, key) = (directory.path().join("cert.pem"), directory.path().join("key.pem"));
    let install = |name: &str| {
        std::fs::copy(file(&format!("{name}.key")), &key).unwrap();
        std::fs::copy(file(&format!("{name}.pem")), &certificate).unwrap();
    };
    install("one");
    let mut config = default_config();
    config.server.tls_cert = certificate.to_str().unwrap().to_owned();
    config.server.tls_key = key.to_str().unwrap().to_owned();
    let server = Server::start_empty(ground, &config).await;
    let (address, _stop, _task) = listen(&server).await;
    assert!(ask(address, "one.pem").await.unwrap().starts_with("HTTP/1.1 200 OK"));
    assert!(ask(address, "two.pem").await.is_err(), "another certificate is not trusted");
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    plain.read_to_end(&mut answer).await.ok();
    assert!(!answer.starts_with(b"HTTP"), "nothing is served in clear text");
    // A file that cannot be used changes nothing; the right ones do.
    std::fs::write(&certificate, "spoilt").unwrap();
    install("two");
    let changed = async {
        while ask(address, "two.pem").await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, changed).await.expect("read again in time");
}

pub async fn a_certificate_that_cannot_be_used_stops_the_start(ground: Ground) {
    let (one, two) = (file("one.pem"), file("two.key"));
    let (one, two) = (one.to_str().unwrap(), two.to_str().unwrap());
    for (certificate, key, why) in [
        (one, "", "set together"),
        (one, two, "cannot be used"),
        ("/nonexistent", two, "server.tls_cert"),
        (one, one, "server.tls_key"),
    ] {
        let mut config = default_config();
        config.server.tls_cert = certificate.to_owned();
        config.server.tls_key = key.to_owned();
        let server = Server::start_empty(ground.another().await, &config).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let refused = serve(listener, server.app.clone(), std::future::pending()).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
}
