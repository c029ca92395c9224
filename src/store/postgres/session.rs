//! Sessions on PostgreSQL: the verbs that are written once are plain functions, so they run on a
//! thread that may block, and wait there for each statement.
//!
//! Bound: a statement that the server does not answer fails after the store's time limit.

use super::PostgresStore;
use super::connection::{Connector, Snapshot};
use super::numeric::SqlQuantity;
use super::scalars::{SqlTimestamp, column, corrupt};
use super::statements::Statements;
use super::transaction::Transaction;
use super::{cuts, unbilled};
use crate::rules::attribution::{Layout, StretchSums};
use crate::rules::cut::OpenEvents;
use crate::rules::ids::{MeterNo, TenantId, TenantNo};
use crate::rules::push::WindowUsage;
use crate::rules::timestamp::Timestamp;
use crate::store::idempotency::{Ended, completion_error, millis};
use crate::store::push::UnbilledSums;
use crate::store::sql::{
    CutWindow, Done, Failure, Listed, PushPair, Row, Session, SqlStore, Sum, Value, WindowKey,
    values,
};
use crate::store::{Error, Result};
use bytes::{BufMut, BytesMut};
use counterfoil_idempotency::{Claim, postgres};
use deadpool_postgres::{ClientWrapper, Object, Pool};
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as StdError;
use std::ops::Deref;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio_postgres::Client;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

struct PostgresSession<'c> {
    client: &'c ClientWrapper,
    connector: &'c Connector,
    runtime: Handle,
    /// A statement that was cancelled exceeded the time limit of a read.
    reads: bool,
}

impl PostgresSession<'_> {
    fn wait<T, E: Into<Failure>>(
        &self,
        statement: impl Future<Output = std::result::Result<T, E>>,
    ) -> Done<T> {
        let answer = self.runtime.block_on(self.connector.within(statement))?;
        answer.map_err(Into::into)
    }

    fn failure(&self, error: tokio_postgres::Error) -> Failure {
        if self.reads { Error::from(error).into() } else { error.into() }
    }
}

impl Session for PostgresSession<'_> {
    fn run(&self, sql: &str, values: &[Value]) -> Done<u64> {
        let values = parameters(values);
        let run =
            async { self.client.run(sql, &values).await.map_err(|error| self.failure(error)) };
        self.wait(run)
    }

    fn rows(&self, sql: &str, values: &[Value]) -> Done<Vec<Row>> {
        let values = parameters(values);
        let read =
            async { self.client.read_all(sql, &values).await.map_err(|error| self.failure(error)) };
        let rows = self.wait(read)?;
        let Some(first) = rows.first() else { return Ok(Vec::new()) };
        let names: Arc<[String]> =
            first.columns().iter().map(|column| column.name().to_owned()).collect();
        let read = |row: &tokio_postgres::Row| -> Result<Row> {
            let value = |place| column::<Value>(row, place);
            Ok(Row::new(Arc::clone(&names), (0..names.len()).map(value).collect::<Result<_>>()?))
        };
        Ok(rows.iter().map(read).collect::<Result<_>>()?)
    }

    fn number_tenant(&self, tenant: &TenantId, at: Timestamp) -> Done<TenantNo> {
        let session: &dyn Session = self;
        if let Some(number) = session.find_tenant(tenant)? {
            return Ok(number);
        }
        // Not tried first: each try takes a number.
        let sql = "-- number_tenant
            INSERT INTO tenants (tenant, created_at) VALUES ($1, $2)
            ON CONFLICT (tenant) DO NOTHING";
        session.run(sql, values![tenant, at])?;
        Ok(session
            .find_tenant(tenant)?
            .ok_or_else(|| corrupt("tenants row vanished mid-transaction"))?)
    }

    fn lock(&self, number: i64) -> Done<()> {
        self.run("SELECT pg_advisory_xact_lock($1)", values![number]).map(|_| ())
    }

    fn end_key(&self, claim: &Claim, ended: &Ended, at: Timestamp) -> Done<()> {
        let Ended { answer, ending, keep } = ended;
        let end = async {
            let client: &Client = self.client;
            let done = postgres::end(client, claim, answer, *ending, *keep, millis(at)).await;
            done.map_err(completion_error)
        };
        self.wait(end)
    }

    fn sum_by_number(&self, sql: &str, values: &[Value]) -> Done<BTreeMap<u64, Sum>> {
        let session: &dyn Session = self;
        let sql = format!(
            "-- sum_by_number
            SELECT number, count(*) AS added, sum(pushes)::int8 AS pushes,
                sum(quantity) AS quantity
            FROM ({sql}) AS added GROUP BY number"
        );
        let sums = session.read_all(&sql, values, |row| {
            let (rows, pushes) = (row.get("added")?, row.get("pushes")?);
            Ok((row.get("number")?, Sum { rows, pushes, quantity: row.get("quantity")? }))
        })?;
        Ok(sums.into_iter().collect())
    }

    fn try_lock_pairs(&self, pairs: BTreeSet<PushPair>) -> Done<BTreeSet<PushPair>> {
        let session: &dyn Session = self;
        let sql = "-- try_lock_pairs
            WITH given (tenant_no, meter_no) AS (VALUES ($::int4, $::int2), ...)
            SELECT tenant_no, meter_no FROM given
            WHERE pg_try_advisory_xact_lock(tenant_no, meter_no)";
        let rows = pairs.iter().map(|(tenant, meter)| values![tenant, meter].to_vec());
        let locked = session
            .read_batch(sql, rows, |row| Ok((row.get("tenant_no")?, row.get("meter_no")?)))?;
        Ok(locked.into_iter().collect())
    }

    fn measure_windows(&self, windows: &[CutWindow]) -> Done<Vec<WindowUsage>> {
        cuts::measure_windows(self, windows)
    }

    fn read_open_events(
        &self,
        windows: &[(&CutWindow, u64)],
        _: &Listed,
        events_max: usize,
    ) -> Done<BTreeMap<WindowKey, OpenEvents>> {
        cuts::read_open_events(self, windows, events_max, self.connector.distributed)
    }

    fn sum_stretches(
        &self,
        windows: &[(&CutWindow, &Layout)],
        _: &Listed,
    ) -> Done<BTreeMap<WindowKey, StretchSums>> {
        cuts::sum_stretches(self, windows)
    }
}

impl SqlStore for PostgresStore {
    fn push_secret(&self) -> [u8; 32] {
        self.push_secret
    }

    async fn add_unbilled(&self, meters: Vec<(MeterNo, Timestamp)>) -> Result<UnbilledSums> {
        unbilled::sum_unbilled(self.reader().await?, &self.connector, &meters).await
    }

    async fn sum_window(&self, window: CutWindow, layout: Layout) -> Result<StretchSums> {
        self.in_reader(move |session| {
            let sums = cuts::sum_stretches(session, &[(&window, &layout)])?;
            Ok(sums.into_values().next().unwrap_or_else(|| StretchSums::new(&layout)))
        })
        .await
    }

    async fn in_transaction<T: Send + 'static>(
        &self,
        work: impl Fn(&dyn Session) -> Done<T> + Send + Sync + 'static,
    ) -> Result<T> {
        self.write_session(&self.outbound, work).await
    }

    async fn in_control<T: Send + 'static>(
        &self,
        work: impl Fn(&dyn Session) -> Done<T> + Send + Sync + 'static,
    ) -> Result<T> {
        self.write_session(&self.control, work).await
    }

    async fn in_snapshot<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Session) -> Done<T> + Send + 'static,
    ) -> Result<T> {
        let snapshot = Snapshot::begin(self.reader().await?).await?;
        self.faults.note(read_snapshot(snapshot, &self.connector, work).await)
    }

    async fn in_reader<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Session) -> Done<T> + Send + 'static,
    ) -> Result<T> {
        self.read_session(self.reader().await?, work).await
    }
}

impl PostgresStore {
    /// Runs `work`, which only reads, on this connection.
    pub(super) async fn read_session<T: Send + 'static>(
        &self,
        client: Object,
        work: impl FnOnce(&dyn Session) -> Done<T> + Send + 'static,
    ) -> Result<T> {
        let connector = self.connector.clone();
        let answer = block(move |runtime| {
            let (client, connector) = (&*client, &connector);
            work(&PostgresSession { client, connector, runtime, reads: true })
        })
        .await;
        self.faults.note(answer.map_err(Failure::into_error))
    }

    async fn write_session<T: Send + 'static>(
        &self,
        pool: &Pool,
        work: impl Fn(&dyn Session) -> Done<T> + Send + Sync + 'static,
    ) -> Result<T> {
        let work = Arc::new(work);
        self.transact_on(pool, move |client: Arc<Transaction>| {
            let work = Arc::clone(&work);
            self.in_session(client, move |session| work(session))
        })
        .await
    }

    /// Runs work inside a transaction that the caller has begun.
    pub(super) async fn in_session<T: Send + 'static>(
        &self,
        client: Arc<impl Deref<Target = ClientWrapper> + Send + Sync + 'static>,
        work: impl FnOnce(&dyn Session) -> Done<T> + Send + 'static,
    ) -> Done<T> {
        let connector = self.connector.clone();
        block(move |runtime| {
            let (client, connector) = (&**client, &connector);
            work(&PostgresSession { client, connector, runtime, reads: false })
        })
        .await
    }
}

/// Runs work that only reads, and ends the snapshot that it read.
pub async fn read_snapshot<T: Send + 'static>(
    snapshot: Snapshot,
    connector: &Connector,
    work: impl FnOnce(&dyn Session) -> Done<T> + Send + 'static,
) -> Result<T> {
    let connector = connector.clone();
    let (snapshot, answer) = block(move |runtime| {
        let (client, connector) = (&*snapshot, &connector);
        let answer = work(&PostgresSession { client, connector, runtime, reads: true })?;
        Ok((snapshot, answer))
    })
    .await?;
    snapshot.end().await?;
    Ok(answer)
}

/// Runs work that waits for statements, on a thread that does nothing else meanwhile. Waiting on
/// the caller's own thread could take the wake-ups of other futures that the caller runs beside it.
async fn block<T: Send + 'static>(
    work: impl FnOnce(Handle) -> Done<T> + Send + 'static,
) -> Done<T> {
    let runtime = Handle::current();
    let done = tokio::task::spawn_blocking(move || work(runtime)).await;
    done.map_err(|error| Error::Internal { what: error.to_string() })?
}

fn parameters(values: &[Value]) -> Vec<&(dyn ToSql + Sync)> {
    let mut parameters: Vec<&(dyn ToSql + Sync)> = Vec::with_capacity(values.len());
    for value in values {
        parameters.push(value);
    }
    parameters
}

type Conversion<T> = std::result::Result<T, Box<dyn StdError + Sync + Send>>;

impl ToSql for Value {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Conversion<IsNull> {
        match (self, kind) {
            (Self::Null, _) => return Ok(IsNull::Yes),
            (Self::Flag(flag), &Type::BOOL) => out.put_u8(u8::from(*flag)),
            (Self::Integer(number), &Type::INT2) => out.put_i16((*number).try_into()?),
            (Self::Integer(number), &Type::INT4) => out.put_i32((*number).try_into()?),
            (Self::Integer(number), &Type::INT8) => out.put_i64(*number),
            (Self::Text(text), &Type::TEXT) => out.put_slice(text.as_bytes()),
            (Self::Bytes(bytes), &Type::BYTEA) => out.put_slice(bytes),
            (Self::Time(at), &Type::TIMESTAMPTZ) => out.put_i64(SqlTimestamp(*at).to_wire()),
            (Self::Decimal(quantity), &Type::NUMERIC) => SqlQuantity(*quantity).write(out),
            (value, kind) => return Err(format!("{value} is no {kind}").into()),
        }
        Ok(IsNull::No)
    }

    /// Whether a value suits the type is decided in `to_sql`.
    fn accepts(kind: &Type) -> bool {
        KINDS.contains(kind)
    }

    to_sql_checked!();
}

const KINDS: [Type; 8] = [
    Type::BOOL,
    Type::INT2,
    Type::INT4,
    Type::INT8,
    Type::TEXT,
    Type::BYTEA,
    Type::TIMESTAMPTZ,
    Type::NUMERIC,
];

impl<'a> FromSql<'a> for Value {
    fn from_sql(kind: &Type, raw: &'a [u8]) -> Conversion<Self> {
        Ok(match *kind {
            Type::BOOL => Self::Flag(bool::from_sql(kind, raw)?),
            Type::INT2 => Self::Integer(i16::from_sql(kind, raw)?.into()),
            Type::INT4 => Self::Integer(i32::from_sql(kind, raw)?.into()),
            Type::INT8 => Self::Integer(i64::from_sql(kind, raw)?),
            Type::BYTEA => Self::Bytes(raw.to_vec()),
            Type::TIMESTAMPTZ => Self::Time(SqlTimestamp::from_sql(kind, raw)?.0),
            Type::NUMERIC => Self::Decimal(SqlQuantity::from_sql(kind, raw)?.0),
            _ => Self::Text(std::str::from_utf8(raw)?.to_owned()),
        })
    }

    fn from_sql_null(_: &Type) -> Conversion<Self> {
        Ok(Self::Null)
    }

    fn accepts(kind: &Type) -> bool {
        KINDS.contains(kind)
    }
}
