//! TLS to a PostgreSQL that has it: what each `sslmode` accepts, refuses and encrypts.

use crate::database::Database;
use crate::ground::POSTGRES;
use counterfoil::store::Store;
use counterfoil::store::postgres::PostgresStore;
use std::path::Path;
use tokio_postgres::NoTls;

/// The server's certificate, which is for `localhost`, and another one.
const SERVER: &str = "one.pem";
const OTHER: &str = "two.pem";

fn certificate(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name);
    path.to_str().unwrap().replace('/', "%2F")
}

/// Opens the store, and tells how many of its connections are encrypted and how many are not. They
/// have a name: the server may not have ended others yet.
async fn open(plain: &str, host: &str, parameters: &str) -> Result<(i64, i64), String> {
    let name = format!("{host} {parameters}").replace(|c: char| !c.is_alphanumeric(), "_");
    let name = &name[..name.len().min(63)];
    let parameters = format!("{}&application_name={name}", parameters.trim_end_matches('&'));
    let url = format!("{}?{parameters}", plain.replace("127.0.0.1", host));
    let store = PostgresStore::open(&url, &POSTGRES).await.map_err(|error| error.to_string())?;
    store.ping().await.map_err(|error| error.to_string())?;
    let (client, connection) = tokio_postgres::connect(plain, NoTls).await.unwrap();
    tokio::spawn(connection);
    let count = "SELECT count(*) FILTER (WHERE ssl), count(*) FILTER (WHERE NOT ssl)
                 FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
                 WHERE datname = current_database() AND application_name = $1";
    let row = client.query_one(count, &[&name]).await.unwrap();
    Ok((row.get(0), row.get(1)))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_mode_encrypts_and_checks_what_it_says() {
    let Some(url) = Database::create_on("COUNTERFOIL_TEST_POSTGRES_TLS", "tls").await else {
        return;
    };
    let root = |name| format!("sslrootcert={}", certificate(name));
    let (server, other) = (root(SERVER), root(OTHER));
    for (host, mode, root, encrypted) in [
        ("127.0.0.1", "sslmode=disable", "", Some(false)),
        ("127.0.0.1", "sslmode=prefer", "", Some(true)),
        ("localhost", "sslmode=require", &server, Some(true)),
        ("localhost", "sslmode=verify-full", &server, Some(true)),
        ("127.0.0.1", "sslmode=verify-ca", &server, Some(true)),
        ("127.0.0.1", "sslmode=verify-full", &server, None),
        ("localhost", "sslmode=verify-full", &other, None),
        ("127.0.0.1", "sslmode=verify-ca", &other, None),
        // No public authority has signed the certificate.
        ("localhost", "sslmode=require", "", None),
    ] {
        let opened = open(&url, host, &format!("{mode}&{root}")).await;
        match (encrypted, &opened) {
            (Some(true), Ok((1.., 0))) | (Some(false), Ok((0, 1..))) | (None, Err(_)) => {}
            _ => panic!("{host} {mode} {root}: {opened:?}"),
        }
        if let Err(error) = opened {
            assert!(error.contains("certificate"), "{host} {mode} {root}: {error}");
        }
    }
}
