//! Sessions of the embedded store: on the writer's thread inside its transaction, or on a
//! connection that only reads.
//!
//! Invariant: a tenant that a transaction creates is known in memory after its commit, and only
//! then.

use super::push_rows::{get, quantity_of};
use super::segment::overflow;
use super::statements::Statements;
use super::writer::{CommitPoints, TABLES, Writer};
use super::{Shared, SqliteStore, declarations, push_rows, sql_error};
use crate::rules::ids::{MeterNo, TenantId, TenantNo};
use crate::rules::push::{NewPush, StoredPush};
use crate::rules::settlement::Change;
use crate::rules::timestamp::Timestamp;
use crate::store::idempotency::{Ended, completion_error, millis};
use crate::store::push::TransitionLine;
use crate::store::sql::{Done, Failure, MeterSum, Row, Session, SqlStore, Value};
use crate::store::{Error, Result};
use counterfoil_idempotency::{Claim, sqlite};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ToSql, params_from_iter};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub struct SqliteSession<'c> {
    connection: &'c Connection,
    /// None where all tenants are known.
    tenants: Option<NewTenants<'c>>,
}

/// Tenants that the transaction creates.
struct NewTenants<'c> {
    shared: &'c Shared,
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
        let Some(tenants) = &self.tenants else {
            let sql = "-- number_tenant\nSELECT tenant_no FROM tenants WHERE tenant = ?";
            let number = self.connection.read_one(sql, [tenant.as_str()], |row| Ok(row.get(0)?))?;
            return Ok(TenantNo(number));
        };
        let memory = tenants.shared.read_memory();
        let mut created = tenants.created.borrow_mut();
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

    fn sum_by_meter(&self, sql: &str) -> Done<BTreeMap<MeterNo, MeterSum>> {
        Ok(sum_rows(self.connection, &translate(sql))?)
    }

    fn read_pushes(&self, numbers: &[u64]) -> Done<Vec<StoredPush>> {
        // A number that no column can hold names no push.
        let numbers: BTreeSet<u64> =
            numbers.iter().copied().filter(|number| i64::try_from(*number).is_ok()).collect();
        let found =
            numbers.into_iter().map(|number| push_rows::fetch_push(self.connection, number));
        Ok(found.filter_map(Result::transpose).collect::<Result<_>>()?)
    }

    /// There is one writer.
    fn lock_pushes(&self, numbers: &[u64]) -> Done<Vec<StoredPush>> {
        self.read_pushes(numbers)
    }

    fn insert_pushes(
        &self,
        secret: &[u8; 32],
        pushes: &[NewPush],
        at: Timestamp,
    ) -> Done<Vec<TransitionLine>> {
        let lines =
            pushes.iter().map(|push| push_rows::insert_push(self.connection, secret, push, at));
        Ok(lines.collect::<Result<_>>()?)
    }

    fn change_pushes(&self, changes: &[Change], at: Timestamp) -> Done<Vec<TransitionLine>> {
        let lines =
            changes.iter().map(|change| push_rows::change_push(self.connection, change, at));
        Ok(lines.collect::<Result<_>>()?)
    }
}

fn sum_rows(connection: &Connection, sql: &str) -> Result<BTreeMap<MeterNo, MeterSum>> {
    let mut sums: BTreeMap<MeterNo, MeterSum> = BTreeMap::new();
    let mut select = connection.prepare_cached(sql)?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let sum = sums.entry(MeterNo(get(row, "meter_no")?)).or_default();
        sum.rows += 1;
        sum.pushes += get::<u64>(row, "pushes")?;
        let quantity = quantity_of(row, "quantity")?;
        sum.quantity = sum.quantity.checked_add(quantity).ok_or_else(overflow)?;
    }
    Ok(sums)
}

impl SqlStore for SqliteStore {
    fn push_secret(&self) -> [u8; 32] {
        self.push_secret
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
        Self { connection, tenants: None }
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
            let connection = &writer.connection;
            let tenants = NewTenants { shared: &shared, created: RefCell::default() };
            let session = SqliteSession { connection, tenants: Some(tenants) };
            let answer = work(&session)?;
            let created = session.tenants.map(|tenants| tenants.created.into_inner());
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
    [" SKIP LOCKED", " FOR UPDATE OF ", " FOR NO KEY UPDATE", " FOR UPDATE", " FOR SHARE"];

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
        assert_eq!(translate("FROM t /*+ INDEXED BY i */ WHERE a"), "FROM t INDEXED BY i WHERE a");
    }
}
