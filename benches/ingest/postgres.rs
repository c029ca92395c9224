//! PostgreSQL without the product: the floor (binary COPY into a keyed table) and what most teams
//! build (one transaction for each event).

use crate::embedded::next_fresh;
use crate::load::{Driver, Run, Shape, percentiles_ms};
use crate::process::{Watched, own_usage, parent_of};
use crate::workload::{Fact, Stream};
use anyhow::{Context, Result, ensure};
use bytes::{BufMut, BytesMut};
use counterfoil::rules::timestamp::MICROS_PER_HOUR;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, NoTls};

/// Microseconds from 1970 to 2000, from which PostgreSQL counts.
const POSTGRES_EPOCH: i64 = 946_684_800_000_000;

/// A database of its own for each run, on the server that the environment names.
pub struct Postgres {
    runtime: Runtime,
    url: String,
    admin: Client,
    pub watched: Watched,
}

impl Postgres {
    pub fn connect(url: &str) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let admin = runtime.block_on(open(url))?;
        let row = runtime.block_on(admin.query_one("SELECT pg_backend_pid()", &[]))?;
        let postmaster = parent_of(u32::try_from(row.get::<_, i32>(0))?);
        let watched = Watched { pids: Vec::new(), postmaster };
        Ok(Self { runtime, url: url.to_owned(), admin, watched })
    }

    /// The URL of an empty database.
    pub fn fresh_database(&self, name: &str) -> Result<String> {
        let (base, _) = self.url.rsplit_once('/').context("the URL names a database")?;
        self.drop_database(name)?;
        let create = format!("CREATE DATABASE {name}");
        self.runtime.block_on(self.admin.batch_execute(&create))?;
        Ok(format!("{base}/{name}"))
    }

    pub fn drop_database(&self, name: &str) -> Result<()> {
        let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
        Ok(self.runtime.block_on(self.admin.batch_execute(&drop))?)
    }

    /// Binary COPY of events that are all new into a table keyed like the product's.
    pub fn copy_floor(&self, driver: &Driver, lasting: Duration) -> Result<Run> {
        let url = self.fresh_database("bench_copy")?;
        let shape = Shape { batch: 1000, connections: 1, repeats_percent: 0 };
        let mut stream = driver.streams(shape).remove(0);
        let (server, client) = (self.watched.usage(), own_usage());
        let (events, seconds, mut latencies) = self.runtime.block_on(async {
            let client = open(&url).await?;
            client.batch_execute(EVENTS_TABLE).await?;
            let started = Instant::now();
            let (mut events, mut seconds, mut latencies) = (0u64, 0.0, Vec::new());
            while started.elapsed() < lasting {
                let mut facts: Vec<Fact> =
                    (0..shape.batch).map(|_| next_fresh(&mut stream)).collect();
                facts.sort_unstable_by_key(|fact| (fact.tenant, fact.id()));
                let sent = Instant::now();
                copy_batch(&client, &facts).await?;
                seconds += sent.elapsed().as_secs_f64();
                latencies.push(sent.elapsed().as_micros() as u32);
                events += facts.len() as u64;
            }
            let row = client.query_one("SELECT count(*) FROM events", &[]).await?;
            ensure!(row.get::<_, i64>(0) as u64 == events, "COPY lost events");
            Ok((events, seconds, latencies))
        })?;
        let mut run = self.report("floor: PostgreSQL binary COPY", shape, events, seconds);
        run.server = self.watched.usage().since(server);
        run.client = own_usage().since(client);
        (run.p50_ms, run.p99_ms) = percentiles_ms(&mut latencies);
        self.drop_database("bench_copy")?;
        Ok(run)
    }

    /// Eight connections, each event in a transaction of its own.
    pub fn baseline(&self, driver: &Driver, lasting: Duration) -> Result<Run> {
        let url = self.fresh_database("bench_baseline")?;
        let shape = Shape { batch: 1, connections: 8, repeats_percent: 5 };
        let streams = driver.streams(shape);
        let (server, client) = (self.watched.usage(), own_usage());
        let (events, seconds, mut latencies) = self.runtime.block_on(async {
            let checker = open(&url).await?;
            checker.batch_execute(BASELINE_TABLES).await?;
            let started = Instant::now();
            let url: Arc<str> = url.as_str().into();
            let insert =
                |stream| tokio::spawn(insert_alone(Arc::clone(&url), stream, started + lasting));
            let workers: Vec<_> = streams.into_iter().map(insert).collect();
            let (mut events, mut truth, mut latencies) = (0, 0, Vec::new());
            for worker in workers {
                let (stream, spent) = worker.await??;
                events += stream.truth.counts.total();
                truth += stream.truth.sum_of_all();
                latencies.extend(spent);
            }
            let seconds = started.elapsed().as_secs_f64();
            let row = checker.query_one("SELECT sum(total)::bigint FROM rollups", &[]).await?;
            ensure!(i128::from(row.get::<_, i64>(0)) == truth, "the baseline lost a sum");
            Ok((events, seconds, latencies))
        })?;
        let mut run =
            self.report("baseline: PostgreSQL, a transaction each", shape, events, seconds);
        run.server = self.watched.usage().since(server);
        run.client = own_usage().since(client);
        (run.p50_ms, run.p99_ms) = percentiles_ms(&mut latencies);
        self.drop_database("bench_baseline")?;
        Ok(run)
    }

    fn report(&self, name: &str, shape: Shape, events: u64, seconds: f64) -> Run {
        Run {
            name: name.to_owned(),
            batch: shape.batch,
            connections: shape.connections,
            repeats_percent: shape.repeats_percent,
            events,
            seconds,
            ..Run::default()
        }
    }
}

/// The columns and the primary key of the product's table.
const EVENTS_TABLE: &str = "CREATE TABLE events (
    tenant_no integer NOT NULL, key_hash uuid NOT NULL, meter_no smallint NOT NULL,
    trial boolean NOT NULL, occurred_at timestamptz NOT NULL, received_at timestamptz NOT NULL,
    quantity numeric NOT NULL, id text COLLATE \"C\" NOT NULL, properties text NOT NULL,
    subscription text, PRIMARY KEY (tenant_no, key_hash))";

const BASELINE_TABLES: &str = "
    CREATE TABLE events (tenant text NOT NULL, id text NOT NULL, meter text NOT NULL,
        quantity bigint NOT NULL, occurred_at bigint NOT NULL, properties text NOT NULL,
        PRIMARY KEY (tenant, id));
    CREATE TABLE rollups (tenant text NOT NULL, meter text NOT NULL, hour bigint NOT NULL,
        total bigint NOT NULL, PRIMARY KEY (tenant, meter, hour))";

async fn open(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn copy_batch(client: &Client, facts: &[Fact]) -> Result<()> {
    const COLUMNS: &str = "tenant_no, key_hash, meter_no, trial, occurred_at, received_at, \
                           quantity, id, properties, subscription";
    let types = [
        Type::INT4,
        Type::UUID,
        Type::INT2,
        Type::BOOL,
        Type::TIMESTAMPTZ,
        Type::TIMESTAMPTZ,
        Type::NUMERIC,
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
    ];
    let sink = client.copy_in(&format!("COPY events ({COLUMNS}) FROM STDIN BINARY")).await?;
    let mut writer = pin!(BinaryCopyInWriter::new(sink, &types));
    let received = Wire((crate::workload::now() - POSTGRES_EPOCH).to_be_bytes().to_vec());
    for fact in facts {
        let mut properties = Vec::with_capacity(128);
        fact.write_properties(&mut properties);
        let occurred = Wire((fact.occurred_at - POSTGRES_EPOCH).to_be_bytes().to_vec());
        writer
            .as_mut()
            .write(&[
                &i32::from(fact.tenant),
                &Wire(fact.id().to_be_bytes().to_vec()),
                &i16::from(fact.meter),
                &false,
                &occurred,
                &received,
                &Wire(numeric(fact.micro_units)),
                &fact.id_text(),
                &Wire(properties),
                &None::<&str>,
            ])
            .await?;
    }
    writer.finish().await?;
    Ok(())
}

/// A value that is in PostgreSQL's binary form already.
#[derive(Debug)]
struct Wire(Vec<u8>);

impl ToSql for Wire {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.put_slice(&self.0);
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// A number of less than 10,000 with six decimals, as groups of four digits.
fn numeric(micro_units: u64) -> Vec<u8> {
    let fraction = micro_units % 1_000_000 * 100;
    let groups = [micro_units / 1_000_000, fraction / 10_000, fraction % 10_000];
    let head: [i16; 4] = [3, 0, 0, 6];
    let digits = groups.map(|group| group as i16);
    head.into_iter().chain(digits).flat_map(i16::to_be_bytes).collect()
}

async fn insert_alone(
    url: Arc<str>,
    mut stream: Stream,
    until: Instant,
) -> Result<(Stream, Vec<u32>)> {
    let mut client = open(&url).await?;
    let insert = client
        .prepare("INSERT INTO events VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING")
        .await?;
    let upsert = client
        .prepare(
            "INSERT INTO rollups VALUES ($1, $2, $3, $4) ON CONFLICT (tenant, meter, hour)
             DO UPDATE SET total = rollups.total + excluded.total",
        )
        .await?;
    let mut latencies = Vec::new();
    while Instant::now() < until {
        let (_, fact) = stream.next_fact();
        let (tenant, meter) = (fact.tenant_name(), fact.meter_slug());
        let units = i64::try_from(fact.micro_units)?;
        let hour = fact.occurred_at / MICROS_PER_HOUR;
        let mut properties = Vec::with_capacity(128);
        fact.write_properties(&mut properties);
        let sent = Instant::now();
        let transaction = client.transaction().await?;
        let row: [&(dyn ToSql + Sync); 6] =
            [&tenant, &fact.id_text(), &meter, &units, &fact.occurred_at, &Wire(properties)];
        if transaction.execute(&insert, &row).await? == 1 {
            transaction.execute(&upsert, &[&tenant, &meter, &hour, &units]).await?;
        }
        transaction.commit().await?;
        latencies.push(sent.elapsed().as_micros() as u32);
    }
    Ok((stream, latencies))
}
