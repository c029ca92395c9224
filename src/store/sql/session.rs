//! What a store gives to the verbs that are written once: statements inside a transaction, and the
//! transactions themselves.

use super::cut_rows::WindowKey;
use super::cuts::{CutWindow, Listed};
use super::failure::Done;
use super::row::Row;
use super::value::{Value, values};
use crate::rules::attribution::{Layout, StretchSums};
use crate::rules::cut::OpenEvents;
use crate::rules::ids::{MeterNo, TenantId, TenantNo};
use crate::rules::push::WindowUsage;
use crate::rules::quantity::Quantity;
use crate::rules::restore::Mark;
use crate::rules::timestamp::Timestamp;
use crate::store::idempotency::{Completing, Ended};
use crate::store::push::{CutOrder, UnbilledSums};
use crate::store::{Error, Result, damaged};
use counterfoil_idempotency::Claim;
use std::collections::{BTreeMap, BTreeSet};
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

    /// Adds up the rows of a statement that returns `number`, `pushes` and `quantity`, by number,
    /// however many there are. SQLite has no exact sum of decimals.
    fn sum_by_number(&self, sql: &str, values: &[Value]) -> Done<BTreeMap<u64, Sum>>;

    /// Those of the tenants and meters that no other claim of pushes works on; they are this one's
    /// until the transaction ends. Nobody is waited for.
    fn try_lock_pairs(&self, pairs: BTreeSet<PushPair>) -> Done<BTreeSet<PushPair>>;

    /// The totals of windows, in their order, each of one moment.
    fn measure_windows(&self, windows: &[CutWindow]) -> Done<Vec<WindowUsage>>;

    /// The events to be added of windows that are billed by event, for each window oldest first and
    /// at most `events_max`; trials are left out. With each window is how many events it has.
    /// `listed` is what the store listed before ([`SqlStore::list_before_cut`]); a window is left
    /// out if its events were to be listed then, and were not.
    fn read_open_events(
        &self,
        windows: &[(&CutWindow, u64)],
        listed: &Listed,
        events_max: usize,
    ) -> Done<BTreeMap<WindowKey, OpenEvents>>;

    /// What the events of windows add up to in each stretch of their layouts. No event is left out
    /// that is counted now, unless it came after they were listed. A window is left out if its
    /// events were to be added up before by this layout, and were not.
    fn sum_stretches(
        &self,
        windows: &[(&CutWindow, &Layout)],
        listed: &Listed,
    ) -> Done<BTreeMap<WindowKey, StretchSums>>;
}

/// A tenant and a meter.
pub type PushPair = (TenantNo, MeterNo);

/// The sum of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sum {
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

    /// As [`Session::sum_by_number`], for a statement whose numbers are those of meters.
    pub fn sum_by_meter(&self, sql: &str) -> Done<BTreeMap<MeterNo, Sum>> {
        let of_meter = |(number, sum): (u64, Sum)| {
            let number = u16::try_from(number).map_err(|_| damaged("meters.meter_no", number))?;
            Ok((MeterNo(number), sum))
        };
        self.sum_by_number(sql, &[])?.into_iter().map(of_meter).collect()
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

    /// Whether the store's mark moves with each batch of attempts.
    fn marks_attempts(&self) -> bool {
        false
    }

    /// Writes a mark that was moved to where it is kept outside of the database.
    fn write_mark(&self, _: &Mark) {}

    /// See [`crate::store::push::Pushes::sum_unbilled`]: a store has its own way to its totals.
    fn add_unbilled(
        &self,
        meters: Vec<(MeterNo, Timestamp)>,
    ) -> impl Future<Output = Result<UnbilledSums>> + Send;

    /// Reads events of windows, where that is done before the transaction that cuts them, so that
    /// others do not wait for it.
    fn list_before_cut(
        &self,
        _: Vec<CutOrder>,
        _: usize,
    ) -> impl Future<Output = Result<Listed>> + Send {
        async { Ok(Listed::default()) }
    }

    /// What the events of a window add up to in each stretch.
    fn sum_window(
        &self,
        window: CutWindow,
        layout: Layout,
    ) -> impl Future<Output = Result<StretchSums>> + Send;

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
