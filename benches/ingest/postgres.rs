//! PostgreSQL without the product: the floor (binary COPY into a keyed table) and what most teams
//! build (one transaction for each event). Both make their events while the time runs, as the
//! client of the product does.

use crate::load::{Driver, Run, drive_threads};
use crate::process::{database_usage, parent_of, settle};
use crate::workload::{Fact, Kind, Stream, Workload};
use anyhow::{Context, Result, ensure};
use bytes::{BufMut, BytesMut};
use counterfoil::rules::timestamp::MICROS_PER_HOUR;
use std::pin::pin;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, NoTls, Statement};

/// Microseconds from 1970 to 2000, from which PostgreSQL counts.
const POSTGRES_EPOCH: i64 = 946_684_800_000_000;

/// A database of its own for each run, on the server that the environment names.
pub struct Postgres {
    node: Node,
    /// The workers of a Citus cluster, if the server coordinates one.
    workers: Vec<Node>,
    /// Of all nodes.
    pub postmasters: Vec<u32>,
}

/// A server on which databases may be made.
struct Node {
    /// Without the name of a database.
    base: String,
    admin: Session,
}

impl Node {
    fn connect(url: &str) -> Result<Self> {
        let (base, _) = url.rsplit_once('/').context("the URL names a database")?;
        Ok(Self { base: base.to_owned(), admin: Session::open(url)? })
    }

    fn postmaster(&self) -> Result<Option<u32>> {
        let backend = self.admin.number("SELECT pg_backend_pid()::bigint")?;
        Ok(parent_of(u32::try_from(backend)?))
    }

    fn open(&self, database: &str) -> Result<Session> {
        Session::open(&format!("{}/{database}", self.base))
    }

    /// As Citus names it.
    fn address(&self) -> Result<String> {
        let (_, port) = self.base.rsplit_once(':').context("the URL names a port")?;
        Ok(format!("'127.0.0.1', {port}"))
    }
}

/// A connection and what drives it while it is used.
pub struct Session {
    runtime: Runtime,
    client: Client,
}

impl Session {
    pub fn open(url: &str) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let client = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
            tokio::spawn(connection);
            anyhow::Ok(client)
        })?;
        Ok(Self { runtime, client })
    }

    pub fn execute(&self, sql: &str) -> Result<()> {
        Ok(self.runtime.block_on(self.client.batch_execute(sql))?)
    }

    fn number(&self, sql: &str) -> Result<i64> {
        Ok(self.runtime.block_on(self.client.query_one(sql, &[]))?.get(0))
    }

    fn prepare(&self, sql: &str) -> Result<Statement> {
        Ok(self.runtime.block_on(self.client.prepare(sql))?)
    }
}

impl Postgres {
    pub fn connect(url: &str, workers: &[String]) -> Result<Self> {
        let node = Node::connect(url)?;
        let workers = workers.iter().map(|url| Node::connect(url)).collect::<Result<Vec<_>>>()?;
        let mut postmasters = Vec::new();
        for node in workers.iter().chain([&node]) {
            postmasters.extend(node.postmaster()?);
        }
        Ok(Self { node, workers, postmasters })
    }

    fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.workers.iter().chain([&self.node])
    }

    /// The URL of an empty database.
    pub fn fresh_database(&self, name: &str) -> Result<String> {
        self.drop_database(name)?;
        for node in self.nodes() {
            node.admin.execute(&format!("CREATE DATABASE {name}"))?;
        }
        Ok(format!("{}/{name}", self.node.base))
    }

    /// The URL of an empty database that Citus may distribute; none without a cluster.
    pub fn fresh_cluster(&self, name: &str) -> Result<Option<String>> {
        if self.workers.is_empty() {
            return Ok(None);
        }
        let url = self.fresh_database(name)?;
        for node in self.nodes() {
            node.open(name)?.execute("CREATE EXTENSION citus")?;
        }
        let coordinator = self.node.open(name)?;
        let address = self.node.address()?;
        coordinator.execute(&format!("SELECT citus_set_coordinator_host({address})"))?;
        for worker in &self.workers {
            let address = worker.address()?;
            coordinator.execute(&format!("SELECT citus_add_node({address})"))?;
        }
        Ok(Some(url))
    }

    pub fn drop_database(&self, name: &str) -> Result<()> {
        self.nodes().try_for_each(|node| {
            node.admin.execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
        })
    }

    /// Binary COPY of the rows that the product would keep of the same events, into a table with
    /// its columns and its primary key. Which events are repeats, it knows from the stream.
    pub fn copy_floor(
        &self,
        driver: &Driver,
        name: &str,
        workload: Workload,
        lasting: Duration,
    ) -> Result<Run> {
        let url = self.fresh_database("bench_copy")?;
        let checker = Session::open(&url)?;
        checker.execute(EVENTS_TABLE)?;
        let before = database_usage(&self.postmasters);
        let open = || Session::open(&url);
        let streams = driver.streams(workload);
        let copy = |session: &mut Session, stream: &mut Stream| {
            let mut facts: Vec<Fact> = (0..workload.batch)
                .filter_map(|_| match stream.next_fact() {
                    (Kind::Fresh, fact) => Some(fact),
                    (Kind::Repeat | Kind::Conflict, _) => None,
                })
                .collect();
            facts.sort_unstable_by_key(|fact| (fact.tenant, fact.id()));
            session.runtime.block_on(copy_batch(&session.client, &facts))
        };
        let (mut run, truth) = drive_threads(name, workload, streams, lasting, open, copy)?;
        run.settle_seconds = settle(|| database_usage(&self.postmasters));
        run.database = database_usage(&self.postmasters).since(before);
        let rows = checker.number("SELECT count(*) FROM events")?;
        ensure!(rows as u64 == truth.counts.accepted, "COPY lost events");
        self.drop_database("bench_copy")?;
        Ok(run)
    }

    /// Each event in a transaction of its own.
    pub fn baseline(
        &self,
        driver: &Driver,
        name: &str,
        workload: Workload,
        lasting: Duration,
    ) -> Result<Run> {
        let url = self.fresh_database("bench_baseline")?;
        let checker = Session::open(&url)?;
        checker.execute(BASELINE_TABLES)?;
        let before = database_usage(&self.postmasters);
        let open = || {
            let session = Session::open(&url)?;
            let (insert, upsert) = (session.prepare(INSERT)?, session.prepare(UPSERT)?);
            Ok((session, insert, upsert))
        };
        let streams = driver.streams(workload);
        let send = |(session, insert, upsert): &mut (Session, Statement, Statement),
                    stream: &mut Stream| {
            let (_, fact) = stream.next_fact();
            session.runtime.block_on(insert_alone(&mut session.client, insert, upsert, &fact))
        };
        let (mut run, truth) = drive_threads(name, workload, streams, lasting, open, send)?;
        run.settle_seconds = settle(|| database_usage(&self.postmasters));
        run.database = database_usage(&self.postmasters).since(before);
        let sum = checker.number("SELECT sum(total)::bigint FROM rollups")?;
        ensure!(i128::from(sum) == truth.sum_of_all, "the baseline lost a sum");
        self.drop_database("bench_baseline")?;
        Ok(run)
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

const INSERT: &str = "INSERT INTO events VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING";

const UPSERT: &str = "INSERT INTO rollups VALUES ($1, $2, $3, $4)
    ON CONFLICT (tenant, meter, hour) DO UPDATE SET total = rollups.total + excluded.total";

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
                &(fact.tenant as i32),
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
    client: &mut Client,
    insert: &Statement,
    upsert: &Statement,
    fact: &Fact,
) -> Result<()> {
    let (tenant, meter) = (fact.tenant_name(), fact.meter_slug());
    let units = i64::try_from(fact.micro_units)?;
    let hour = fact.occurred_at / MICROS_PER_HOUR;
    let mut properties = Vec::with_capacity(128);
    fact.write_properties(&mut properties);
    let transaction = client.transaction().await?;
    let row: [&(dyn ToSql + Sync); 6] =
        [&tenant, &fact.id_text(), &meter, &units, &fact.occurred_at, &Wire(properties)];
    if transaction.execute(insert, &row).await? == 1 {
        transaction.execute(upsert, &[&tenant, &meter, &hour, &units]).await?;
    }
    Ok(transaction.commit().await?)
}
