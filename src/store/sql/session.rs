//! What a store gives to the verbs that are written once: statements inside a transaction, and the
//! transactions themselves.

use super::failure::Done;
use super::row::Row;
use super::value::{Value, values};
use crate::rules::ids::{MeterNo, TenantId, TenantNo};
use crate::rules::push::{NewPush, StoredPush};
use crate::rules::quantity::Quantity;
use crate::rules::settlement::Change;
use crate::rules::timestamp::Timestamp;
use crate::store::idempotency::{Completing, Ended};
use crate::store::push::TransitionLine;
use crate::store::{Error, Result};
use counterfoil_idempotency::Claim;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A connection inside a transaction.
pub trait Session {
    /// Runs a statement that returns no rows; returns how many it changed.
    fn run(&self, sql: &str, values: &[Value]) -> Done<u64>;

    /// Every row, in the statement's order.
    fn rows(&self, sql: &str, values: &[Value]) -> Done<Vec<Row>>;

    /// The number of a tenant, which is created with this transaction if it is not known.
    fn number_tenant(&self, tenant: &TenantId, at: Timestamp) -> Done<TenantNo>;

    /// Waits for the transactions that hold this lock, and holds it until this one ends.
    fn lock(&self, number: i64) -> Done<()>;

    /// Ends the key of a request in this transaction.
    fn end_key(&self, claim: &Claim, ended: &Ended, at: Timestamp) -> Done<()>;

    /// Adds up the rows of a statement that returns `meter_no`, `pushes` and `quantity`, however
    /// many there are. SQLite has no exact sum of decimals.
    fn sum_by_meter(&self, sql: &str) -> Done<BTreeMap<MeterNo, MeterSum>>;

    /// Those of the pushes that exist, in the order of their numbers.
    fn read_pushes(&self, numbers: &[u64]) -> Done<Vec<StoredPush>>;

    /// As [`Self::read_pushes`]; each is locked until the transaction ends, in that order.
    fn lock_pushes(&self, numbers: &[u64]) -> Done<Vec<StoredPush>>;

    /// Writes pushes, due at once, in their order, under keys that are made with the store's
    /// secret. What is returned is logged after the commit.
    fn insert_pushes(
        &self,
        secret: &[u8; 32],
        pushes: &[NewPush],
        at: Timestamp,
    ) -> Done<Vec<TransitionLine>>;

    /// Changes pushes as planned, and ends their leases. What is returned is logged after the
    /// commit.
    fn change_pushes(&self, changes: &[Change], at: Timestamp) -> Done<Vec<TransitionLine>>;
}

/// The sum of rows of one meter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MeterSum {
    pub rows: u64,
    pub pushes: u64,
    pub quantity: Quantity,
}

impl dyn Session + '_ {
    /// Every row, decoded, in the statement's order.
    pub fn read_all<T>(
        &self,
        sql: &str,
        values: &[Value],
        decode: impl FnMut(&Row) -> Result<T>,
    ) -> Done<Vec<T>> {
        Ok(self.rows(sql, values)?.iter().map(decode).collect::<Result<_>>()?)
    }

    /// The first row, if there is one.
    pub fn read_optional<T>(
        &self,
        sql: &str,
        values: &[Value],
        decode: impl FnOnce(&Row) -> Result<T>,
    ) -> Done<Option<T>> {
        Ok(self.rows(sql, values)?.first().map(decode).transpose()?)
    }

    /// The first row of a statement that always has one.
    pub fn read_one<T>(
        &self,
        sql: &str,
        values: &[Value],
        decode: impl FnOnce(&Row) -> Result<T>,
    ) -> Done<T> {
        let row = self.read_optional(sql, values, decode)?;
        Ok(row.ok_or_else(|| Error::Corrupt { what: format!("no row for: {sql:.80}") })?)
    }

    /// As [`Session::number_tenant`]; other transactions that hold the tenant wait until this one
    /// ends. It is the first lock of those that decide whether a tenant may have something more,
    /// such as a grant or a saga.
    pub fn hold_tenant(&self, tenant: &TenantId, at: Timestamp) -> Done<TenantNo> {
        let number = self.number_tenant(tenant, at)?;
        self.lock_tenant(number)?;
        Ok(number)
    }

    /// The number of a tenant, if it is known.
    pub fn find_tenant(&self, tenant: &TenantId) -> Done<Option<TenantNo>> {
        let sql = "-- find_tenant\nSELECT tenant_no FROM tenants WHERE tenant = $1";
        self.read_optional(sql, values![tenant], Row::only)
    }

    /// Holds a tenant that is known.
    pub fn lock_tenant(&self, number: TenantNo) -> Done<()> {
        let sql = "-- lock_tenant
            SELECT tenant_no FROM tenants WHERE tenant_no = $1 FOR NO KEY UPDATE";
        self.read_one(sql, values![number], |_| Ok(()))
    }
}

/// A store that runs the verbs that are written once.
pub trait SqlStore: Send + Sync {
    /// Keys of pushes are derived from it.
    fn push_secret(&self) -> [u8; 32];

    /// Runs `work` in one transaction, durable when this returns Ok.
    fn in_transaction<T: Send + 'static>(
        &self,
        work: impl Fn(&dyn Session) -> Done<T> + Send + Sync + 'static,
    ) -> impl Future<Output = Result<T>> + Send;

    /// As [`Self::in_transaction`], for what other writes must not keep waiting, such as leases.
    fn in_control<T: Send + 'static>(
        &self,
        work: impl Fn(&dyn Session) -> Done<T> + Send + Sync + 'static,
    ) -> impl Future<Output = Result<T>> + Send {
        self.in_transaction(work)
    }

    /// Runs `work`, which only reads and whose statements all see one moment.
    fn in_snapshot<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Session) -> Done<T> + Send + 'static,
    ) -> impl Future<Output = Result<T>> + Send;

    /// Runs `work`, which only reads. Each statement sees its own moment: for one statement.
    fn in_reader<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Session) -> Done<T> + Send + 'static,
    ) -> impl Future<Output = Result<T>> + Send;

    /// As [`Self::in_transaction`], if a look finds something to do; so that nothing to do costs no
    /// transaction.
    fn in_transaction_if<T: Default + Send + 'static>(
        &self,
        look: impl FnOnce(&dyn Session) -> Done<bool> + Send + 'static,
        work: impl Fn(&dyn Session) -> Done<T> + Send + Sync + 'static,
    ) -> impl Future<Output = Result<T>> + Send {
        async move {
            if self.in_reader(look).await? {
                self.in_transaction(work).await
            } else {
                Ok(T::default())
            }
        }
    }

    /// As [`Self::in_transaction`]; the key of the request ends with it.
    fn in_transaction_ending<T: Send + Sync + 'static>(
        &self,
        completing: Option<&Completing<T>>,
        at: Timestamp,
        work: impl Fn(&dyn Session) -> Done<T> + Send + Sync + 'static,
    ) -> impl Future<Output = Result<T>> + Send {
        let completing = completing.cloned();
        self.in_transaction(move |session| {
            let outcome = work(session)?;
            if let Some(completing) = &completing {
                // A fault in making the answer rolls back; it does not end the writer's thread.
                let rendered = catch_unwind(AssertUnwindSafe(|| completing.render(&outcome)));
                let ended = rendered
                    .map_err(|_| Error::Internal { what: "the answer could not be made".into() })?;
                session.end_key(completing.claim(), &ended, at)?;
            }
            Ok(outcome)
        })
    }
}
