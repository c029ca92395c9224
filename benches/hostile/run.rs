//! The order of a run: for each store and attack a fresh server, the victim alone, then the victim
//! under attack, and what the server took meanwhile.

use crate::attacks::{self, ATTACKS, Attack, Means};
use crate::http1::{Connection, Request, VICTIM};
use crate::process::{Server, folder_bytes, resident_bytes};
use crate::victim::{Latency, Victim};
use anyhow::{Context, Result, ensure};
use comfy_table::{Table, presets::ASCII_MARKDOWN};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio_postgres::NoTls;

const ADMIN: &str = "bench-admin-key-of-the-hostile-run";
const PEAK_EVERY: Duration = Duration::from_millis(20);
/// What was prepared is folded and written before anything is measured.
const REST: Duration = Duration::from_secs(2);

pub struct Settings {
    /// Of each half of a measurement.
    pub seconds: u64,
    pub only: Option<String>,
    pub json: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { seconds: 10, only: None, json: None }
    }
}

#[derive(Serialize)]
struct Row {
    store: &'static str,
    attack: &'static str,
    what: &'static str,
    alone: Latency,
    attacked: Latency,
    resident_peak_mib: u64,
    disk_growth_mib: i64,
    attacker: serde_json::Value,
}

pub async fn run(settings: &Settings) -> Result<()> {
    let postgres = std::env::var("COUNTERFOIL_TEST_POSTGRES").ok();
    if postgres.is_none() {
        println!("postgres: left out; `cargo xtask bench hostile` starts one");
    }
    let mut rows = Vec::new();
    for attack in &ATTACKS {
        if settings.only.as_ref().is_some_and(|only| only != attack.number) {
            continue;
        }
        let folder = tempfile::tempdir()?;
        rows.push(measure(attack, Place::Folder(folder.path()), settings).await?);
        if let Some(url) = &postgres {
            let database = fresh_database(url, attack.number).await?;
            rows.push(measure(attack, Place::Postgres(&database), settings).await?);
        }
    }
    print(&rows);
    if let Some(path) = &settings.json {
        std::fs::write(path, serde_json::to_string_pretty(&rows)?)?;
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Place<'a> {
    Folder(&'a Path),
    Postgres(&'a str),
}

impl Place<'_> {
    fn name(self) -> &'static str {
        match self {
            Place::Folder(_) => "sqlite",
            Place::Postgres(_) => "postgres",
        }
    }

    fn serve(self) -> Result<Server> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_counterfoil"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--log", "json"]);
        command.env("COUNTERFOIL_ADMIN_KEY", ADMIN).env("COUNTERFOIL_LOG_LEVEL", "error");
        // Without a secret no webhook is taken, and none can be in the way.
        command.env("COUNTERFOIL_STRIPE_WEBHOOK_SECRETS", "whsec_bench");
        match self {
            Place::Folder(folder) => command.arg("--data").arg(folder),
            Place::Postgres(url) => command.args(["--store", url]),
        };
        Server::start(command.stderr(Stdio::inherit()))
    }

    async fn bytes(self) -> Result<i64> {
        match self {
            Place::Folder(folder) => Ok(i64::try_from(folder_bytes(folder))?),
            Place::Postgres(url) => {
                let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
                tokio::spawn(connection);
                let size = "SELECT pg_database_size(current_database())";
                Ok(client.query_one(size, &[]).await?.get(0))
            }
        }
    }
}

async fn fresh_database(url: &str, number: &str) -> Result<String> {
    let name = format!("hostile_{}", number.to_lowercase());
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await?;
    client.batch_execute(&format!("CREATE DATABASE {name}")).await?;
    let (base, _) = url.rsplit_once('/').context("the URL names a database")?;
    Ok(format!("{base}/{name}"))
}

async fn measure(attack: &'static Attack, place: Place<'_>, settings: &Settings) -> Result<Row> {
    let server = place.serve()?;
    let address = server.url.trim_start_matches("http://").parse()?;
    let (means, victim) = set_up(address).await?;
    attacks::prepare(attack.prepared, &means, ADMIN).await?;
    tokio::time::sleep(REST).await;
    let mut victim = Victim::new(address, victim);
    let lasting = Duration::from_secs(settings.seconds);
    let alone = victim.send_for(lasting).await?;
    let before = place.bytes().await?;
    let attacker = start_attacker(attack.number, &means, settings.seconds + 1)?;
    // The attack is under way before the victim is measured again.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (attacked, peak) = tokio::join!(victim.send_for(lasting), peak(server.pid(), lasting));
    let seen = tokio::task::spawn_blocking(|| attacker.wait_with_output()).await??;
    let disk_growth_mib = (place.bytes().await? - before) / (1 << 20);
    victim.verify().await.with_context(|| format!("{} {}", place.name(), attack.number))?;
    let row = Row {
        store: place.name(),
        attack: attack.number,
        what: attack.what,
        alone,
        attacked: attacked?,
        resident_peak_mib: peak >> 20,
        disk_growth_mib,
        attacker: serde_json::from_slice(&seen.stdout).context("what the attacker saw")?,
    };
    print_row(&row);
    Ok(row)
}

/// Meters, and the keys of both tenants.
async fn set_up(address: std::net::SocketAddr) -> Result<(Means, String)> {
    let mut connection = Connection::open(address, VICTIM).await?;
    let declare = |path, body: &'static str| Request {
        method: "PUT",
        ..Request::post(path, ADMIN, body.as_bytes())
    };
    let calls = declare("/v1/meters/calls", r#"{"aggregation":"sum"}"#);
    let logins = declare("/v1/meters/logins", r#"{"aggregation":"count","dimensions":["user"]}"#);
    for request in [calls, logins] {
        let (status, body) = connection.exchange(&request).await?;
        ensure!(status == 201, "status {status}: {}", String::from_utf8_lossy(body));
    }
    let mut keys = Vec::new();
    for (scopes, tenant) in [("ingest", "evil"), ("read", "evil"), ("ingest,read", "victim")] {
        let scopes: Vec<&str> = scopes.split(',').collect();
        let body = serde_json::json!({"name": tenant, "scopes": scopes, "tenant": tenant});
        let request = Request::post("/v1/keys", ADMIN, body.to_string().into_bytes());
        let (status, answer) = connection.exchange(&request).await?;
        ensure!(status == 201, "status {status}: {}", String::from_utf8_lossy(answer));
        let answer: serde_json::Value = serde_json::from_slice(answer)?;
        keys.push(answer["token"].as_str().context("a token")?.to_owned());
    }
    let [ingest, read, victim] = keys.try_into().map_err(|_| anyhow::anyhow!("three keys"))?;
    Ok((Means { server: address, ingest, read }, victim))
}

/// Another process at the lowest priority.
fn start_attacker(number: &str, means: &Means, seconds: u64) -> Result<std::process::Child> {
    let mut command = Command::new("nice");
    command.args(["-n", "19"]).arg(std::env::current_exe()?).args(["--child", number]);
    command.env("HOSTILE_MEANS", serde_json::to_string(means)?);
    command.env("HOSTILE_SECONDS", seconds.to_string());
    Ok(command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn()?)
}

/// The most memory that the server had resident meanwhile.
async fn peak(pid: u32, lasting: Duration) -> u64 {
    let (end, mut peak) = (tokio::time::Instant::now() + lasting, 0);
    while tokio::time::Instant::now() < end {
        peak = peak.max(resident_bytes(pid));
        tokio::time::sleep(PEAK_EVERY).await;
    }
    peak
}

fn ratio(row: &Row) -> f64 {
    row.attacked.p99 / row.alone.p99
}

fn print_row(row: &Row) {
    let (store, attack) = (row.store, row.attack);
    println!(
        "{attack:<6} {store:<9} p99 {:>8.1} -> {:>8.1} ms ({:>5.1} x)  {:>5} MiB  {} {}",
        row.alone.p99,
        row.attacked.p99,
        ratio(row),
        row.resident_peak_mib,
        row.attacker,
        row.attacked.refused,
    );
}

fn print(rows: &[Row]) {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "attack",
        "what",
        "store",
        "p99 alone, ms",
        "p99 attacked, ms",
        "ratio",
        "victim refused",
        "memory, MiB",
        "disk, MiB",
    ]);
    for row in rows {
        table.add_row([
            row.attack.to_owned(),
            row.what.to_owned(),
            row.store.to_owned(),
            format!("{:.1}", row.alone.p99),
            format!("{:.1}", row.attacked.p99),
            format!("{:.1}", ratio(row)),
            row.attacked.refused.to_string(),
            row.resident_peak_mib.to_string(),
            format!("{:+}", row.disk_growth_mib),
        ]);
    }
    println!("\n{table}");
}
