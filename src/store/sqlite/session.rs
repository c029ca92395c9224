//! Sessions of the embedded store: on the writer's thread inside its transaction, or on a
//! connection that only reads.
//!
//! Invariant: a tenant that a transaction creates is known in memory after its commit, and only
//! then.

use super::rollups::sum_before;
use super::segment::overflow;
use super::statements::Statements;
use super::writer::{CommitPoints, TABLES, Writer};
use super::{Shared, SqliteStore, cuts, damaged, declarations, sql_error};
use crate::rules::attribution::{Layout, StretchSums};
use crate::rules::cut::OpenEvents;
use crate::rules::ids::{MeterNo, TenantId, TenantNo};
use crate::rules::push::WindowUsage;
use crate::rules::quantity::Quantity;
use crate::rules::restore::Mark;
use crate::rules::timestamp::Timestamp;
use crate::store::idempotency::{Ended, completion_error, millis};
use crate::store::push::{CutOrder, UnbilledSums};
use crate::store::sql::{
    CutWindow, Done, Failure, Listed, PushPair, Row, Session, SqlStore, Sum, Value, WindowKey,
    sum_held, sum_outside, sum_shadow,
};
use crate::store::{Error, Result};
use counterfoil_idempotency::{Claim, sqlite};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ToSql, params_from_iter};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub struct SqliteSession<'c> {
    connection: &'c Connection,
    /// None where all tenants are known, and nothing is cut.
    writing: Option<Writing<'c>>,
}

/// The writer's own, inside its transaction.
struct Writing<'c> {
    shared: &'c Shared,
    ledger: &'c Connection,
    /// Tenants that the transaction creates.
    created: RefCell<Vec<(TenantNo, TenantId)>>,
}

impl Session for SqliteSession<'_> {
    fn run(&self, sql: &str, values: &[Value]) -> Done<u64> {
        let changed = self.connection.run(&translate(sql), params_from_iter(values))?;
        Ok(u64::try_from(changed).expect("a length fits 64 bits"))
    }

    fn rows(&self, sql: &str, values: &[Value]) -> Done<Vec<Row>> {
        let mut statement = self.connection.prepare_cached(&translate(sql)).map_err(Error::from)?;
        let names: Arc<[String]> = statement.column_names().map(str::to_owned).collect();
        let mut rows = statement.query(params_from_iter(values)).map_err(Error::from)?;
        let mut found = Vec::new();
        while let Some(row) = rows.next().map_err(Error::from)? {
            let value = |place| row.get_ref(place).map_err(Error::from).and_then(read_value);
            let values = (0..names.len()).map(value).collect::<Result<_>>()?;
            found.push(Row::new(Arc::clone(&names), values));
        }
        Ok(found)
    }

    fn number_tenant(&self, tenant: &TenantId, at: Timestamp) -> Done<TenantNo> {
        let Some(writing) = &self.writing else {
            let sql = "-- number_tenant\nSELECT tenant_no FROM tenants WHERE tenant = ?";
            let number = self.connection.read_one(sql, [tenant.as_str()], |row| Ok(row.get(0)?))?;
            return Ok(TenantNo(number));
        };
        let memory = writing.shared.read_memory();
        let mut created = writing.created.borrow_mut();
        let own = || created.iter().find(|(_, name)| name == tenant).map(|(own, _)| *own);
        if let Some(number) = memory.tenants.find(tenant).or_else(own) {
            return Ok(number);
        }
        let before = u32::try_from(created.len()).expect("a call names few tenants");
        let number = TenantNo(memory.tenants.next() + before);
        declarations::insert_tenant(self.connection, number, tenant, at)?;
        created.push((number, tenant.clone()));
        Ok(number)
    }

    /// There is one writer.
    fn lock(&self, _: i64) -> Done<()> {
        Ok(())
    }

    fn end_key(&self, claim: &Claim, ended: &Ended, at: Timestamp) -> Done<()> {
        let Ended { answer, ending, keep } = ended;
        let done = sqlite::end(self.connection, claim, answer, *ending, *keep, millis(at));
        Ok(done.map_err(completion_error)?)
    }

    fn sum_by_number(&self, sql: &str, values: &[Value]) -> Done<BTreeMap<u64, Sum>> {
        Ok(sum_rows(self.connection, &translate(sql), values)?)
    }

    /// There is one writer.
    fn try_lock_pairs(&self, pairs: BTreeSet<PushPair>) -> Done<BTreeSet<PushPair>> {
        Ok(pairs)
    }

    fn measure_windows(&self, windows: &[CutWindow]) -> Done<Vec<WindowUsage>> {
        let Some(Writing { shared, ledger, .. }) = &self.writing else {
            let what = "only the writer measures windows".into();
            return Err(Error::Internal { what }.into());
        };
        Ok(cuts::measure_windows(shared, ledger, windows)?)
    }

    fn read_open_events(
        &self,
        windows: &[(&CutWindow, u64)],
        listed: &Listed,
        _: usize,
    ) -> Done<BTreeMap<WindowKey, OpenEvents>> {
        Ok(cuts::read_open_events(self.connection, windows, listed)?)
    }

    fn sum_stretches(
        &self,
        windows: &[(&CutWindow, &Layout)],
        listed: &Listed,
    ) -> Done<BTreeMap<WindowKey, StretchSums>> {
        Ok(cuts::find_stretches(windows, listed))
    }
}

/// Adds rows up as they come: there may be more than memory should hold.
fn sum_rows(connection: &Connection, sql: &str, values: &[Value]) -> Result<BTreeMap<u64, Sum>> {
    let mut sums: BTreeMap<u64, Sum> = BTreeMap::new();
    let mut select = connection.prepare_cached(sql)?;
    let mut rows = select.query(params_from_iter(values))?;
    while let Some(row) = rows.next()? {
        let sum = sums.entry(row.get("number")?).or_default();
        sum.rows += 1;
        sum.pushes += row.get::<_, u64>("pushes")?;
        let text: String = row.get("quantity")?;
        let quantity = Quantity::parse_stored(&text).ok_or_else(|| damaged("quantity", &text))?;
        sum.quantity = sum.quantity.checked_add(quantity).ok_or_else(overflow)?;
    }
    Ok(sums)
}

impl SqlStore for SqliteStore {
    fn push_secret(&self) -> [u8; 32] {
        self.push_secret
    }

    fn marks_attempts(&self) -> bool {
        self.marks.in_use()
    }

    fn write_mark(&self, mark: &Mark) {
        self.marks.write(mark);
    }

    async fn add_unbilled(&self, meters: Vec<(MeterNo, Timestamp)>) -> Result<UnbilledSums> {
        self.read(move |shared, connection| {
            // It begins the transaction that the others read in.
            let before_from = sum_before(shared, connection, &meters)?;
            let session = SqliteSession::on(connection);
            let (shadow, held) = (sum_shadow(&session)?, sum_held(&session)?);
            let outside = sum_outside(&session)?;
            Ok(UnbilledSums { shadow, before_from, held, outside })
        })
        .await
    }

    async fn list_before_cut(&self, orders: Vec<CutOrder>, events_max: usize) -> Result<Listed> {
        let list = move |shared: &Shared, connection: &Connection| {
            cuts::list_before_cut(shared, connection, orders, events_max)
        };
        self.read(list).await
    }

    async fn sum_window(&self, window: CutWindow, layout: Layout) -> Result<StretchSums> {
        self.read(move |shared, connection| {
            let CutWindow { tenant, meter_no, meter, window, .. } = &window;
            cuts::sum_window(shared, connection, (tenant, *meter_no, *window), (meter, &layout))
        })
        .await
    }

    async fn in_transaction<T: Send + 'static>(
        &self,
        work: impl Fn(&dyn Session) -> Done<T> + Send + Sync + 'static,
    ) -> Result<T> {
        self.write(move |writer| writer.write_session(&TABLES, work)).await
    }

    async fn in_snapshot<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Session) -> Done<T> + Send + 'static,
    ) -> Result<T> {
        self.read(move |_, connection| {
            // The reader that lent the connection ends it.
            connection.execute_batch("BEGIN").map_err(sql_error)?;
            work(&SqliteSession::on(connection)).map_err(Failure::into_error)
        })
        .await
    }

    async fn in_reader<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Session) -> Done<T> + Send + 'static,
    ) -> Result<T> {
        self.read(move |_, connection| {
            work(&SqliteSession::on(connection)).map_err(Failure::into_error)
        })
        .await
    }
}

impl<'c> SqliteSession<'c> {
    /// On a connection whose transaction is the caller's, for work about tenants that are known.
    pub fn on(connection: &'c Connection) -> Self {
        Self { connection, writing: None }
    }
}

impl Writer {
    /// Runs `work` in one transaction; the tenants that it creates are known after its commit.
    pub fn write_session<T>(
        &mut self,
        points: &CommitPoints,
        work: impl FnOnce(&dyn Session) -> Done<T>,
    ) -> Result<T> {
        let shared = Arc::clone(&self.shared);
        let (answer, created) = self.transact_at(points, |writer| {
            let Writer { connection, ledger, .. } = writer;
            let writing = Writing { shared: &shared, ledger, created: RefCell::default() };
            let session = SqliteSession { connection, writing: Some(writing) };
            let answer = work(&session)?;
            let created = session.writing.map(|writing| writing.created.into_inner());
            Ok((answer, created.unwrap_or_default()))
        })?;
        let mut memory = self.shared.write_memory();
        for (number, tenant) in created {
            memory.tenants.insert(number, tenant);
        }
        Ok(answer)
    }
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Self::Null => ToSqlOutput::Borrowed(ValueRef::Null),
            Self::Flag(flag) => ToSqlOutput::Owned((*flag).into()),
            Self::Integer(number) => ToSqlOutput::Owned((*number).into()),
            Self::TooLarge(number) => {
                let error = format!("{number} outgrows 63 bits");
                return Err(rusqlite::Error::ToSqlConversionFailure(error.into()));
            }
            Self::Text(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
            Self::Bytes(bytes) => ToSqlOutput::Borrowed(ValueRef::Blob(bytes)),
            Self::Time(at) => ToSqlOutput::Owned(at.micros().into()),
            Self::Decimal(quantity) => ToSqlOutput::Owned(quantity.to_string().into()),
        })
    }
}

fn read_value(value: ValueRef<'_>) -> Result<Value> {
    Ok(match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => Value::Integer(number),
        ValueRef::Real(number) => {
            return Err(Error::Corrupt { what: format!("a column holds the float {number}") });
        }
        ValueRef::Text(text) => {
            let text = std::str::from_utf8(text);
            Value::Text(text.map_err(|_| super::corrupt("text that is not UTF-8"))?.to_owned())
        }
        ValueRef::Blob(bytes) => Value::Bytes(bytes.to_vec()),
    })
}

/// Row locks, which a database with one writer does not need.
const LOCKS: [&str; 5] =
    [" SKIP LOCKED", " FOR UPDATE OF ", " FOR NO KEY UPDATE", " FOR UPDATE", " FOR SHARE OF "];

/// Around words for SQLite alone, such as which index to take; a comment on PostgreSQL.
const HINT_MARKS: [&str; 2] = ["/*+ ", " */"];

/// A statement of PostgreSQL in SQLite's words: `?1` for `$1`, no casts, no row locks, and hints
/// that count.
fn translate(sql: &str) -> String {
    let mut translated = String::with_capacity(sql.len());
    let mut rest = sql;
    while let Some(character) = rest.chars().next() {
        if let Some(lock) = LOCKS.into_iter().find(|lock| rest.starts_with(lock)) {
            rest = &rest[lock.len()..];
            if lock.ends_with(' ') {
                rest = rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_');
            }
        } else if let Some(mark) = HINT_MARKS.into_iter().find(|mark| rest.starts_with(mark)) {
            rest = &rest[mark.len()..];
        } else if let Some(cast) = rest.strip_prefix("::") {
            rest = cast.trim_start_matches(|c: char| c.is_ascii_alphanumeric());
        } else {
            translated.push(if character == '$' { '?' } else { character });
            rest = &rest[character.len_utf8()..];
        }
    }
    translated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn casts_and_locks_are_removed() {
        let sql = "SELECT a FROM t WHERE $1::text IS NULL OR b = $1 ORDER BY a LIMIT $12 \
                   FOR UPDATE SKIP LOCKED";
        let expected = "SELECT a FROM t WHERE ?1 IS NULL OR b = ?1 ORDER BY a LIMIT ?12";
        assert_eq!(translate(sql), expected);
        assert_eq!(translate("(SELECT a FROM t FOR UPDATE OF t)"), "(SELECT a FROM t)");
        assert_eq!(translate("SELECT 1 FROM t FOR NO KEY UPDATE"), "SELECT 1 FROM t");
        assert_eq!(translate("SELECT 1 FROM t FOR SHARE OF t"), "SELECT 1 FROM t");
        assert_eq!(translate("FROM t /*+ INDEXED BY i */ WHERE a"), "FROM t INDEXED BY i WHERE a");
    }
}
