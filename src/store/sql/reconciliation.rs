//! Reconciliation as the jobs see it: each verb, by the file of its noun.
//!
//! Invariant: every verb that writes is one transaction, so a crash leaves all of it or nothing;
//! what its repetition does is said in its file. Who writes under a lease locks the lease's row
//! first, so that a new holder waits for the last write of the one before, and later ones are
//! refused.

use super::{Done, Session, SqlStore, findings, passes, summaries, values};
use crate::rules::drift::Summary;
use crate::rules::finding::{Finding, FindingChange};
use crate::rules::ids::{CustomerId, MeterNo, TenantId};
use crate::rules::pass::{Pass, PassOrder, PassRow};
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::push::{Lease, Ruling};
use crate::store::reconciliation::{
    FindingFilter, Pair, PassFilter, PassRowCursor, PassUpdate, Reconciliation, SummaryReading,
};
use crate::store::{Query, Result};
use async_trait::async_trait;

#[async_trait]
impl<S: SqlStore> Reconciliation for S {
    async fn record_summaries(
        &self,
        readings: Vec<SummaryReading>,
        read_at: Timestamp,
    ) -> Result<()> {
        if readings.is_empty() {
            return Ok(());
        }
        self.in_transaction(move |session| summaries::record_summaries(session, &readings, read_at))
            .await
    }

    async fn read_summaries(
        &self,
        (tenant, customer): (&TenantId, &CustomerId),
        meter: MeterNo,
        range: Window,
        length_micros: i64,
    ) -> Result<Vec<Summary>> {
        let (tenant, customer) = (tenant.clone(), customer.clone());
        self.in_reader(move |session| {
            let whose = (&tenant, &customer);
            summaries::read_summaries(session, whose, meter, range, length_micros)
        })
        .await
    }

    async fn list_restless_pairs(&self, since: Timestamp, shadow: bool) -> Result<Vec<Pair>> {
        self.in_reader(move |session| list_restless_pairs(session, since, shadow)).await
    }

    async fn list_former_customers(&self) -> Result<Vec<(TenantId, CustomerId)>> {
        self.in_reader(list_former_customers).await
    }

    async fn create_pass(&self, order: PassOrder, at: Timestamp) -> Result<u64> {
        self.in_transaction(move |session| passes::create_pass(session, &order, at)).await
    }

    async fn update_pass(&self, lease: &Lease, update: PassUpdate, at: Timestamp) -> Result<bool> {
        let lease = lease.clone();
        self.in_transaction(move |session| passes::update_pass(session, &lease, &update, at)).await
    }

    async fn list_passes(&self, query: Query<PassFilter>) -> Result<Vec<Pass>> {
        self.in_reader(move |session| passes::list_passes(session, &query)).await
    }

    async fn find_pass(&self, number: u64) -> Result<Option<Pass>> {
        self.in_reader(move |session| passes::find_pass(session, number)).await
    }

    async fn record_pass_rows(&self, lease: &Lease, pass: u64, rows: Vec<PassRow>) -> Result<bool> {
        let lease = lease.clone();
        self.in_transaction(move |session| passes::record_pass_rows(session, &lease, pass, &rows))
            .await
    }

    async fn list_pass_rows(&self, query: Query<u64, PassRowCursor>) -> Result<Vec<PassRow>> {
        self.in_reader(move |session| passes::list_pass_rows(session, &query)).await
    }

    async fn list_findings(&self, query: Query<FindingFilter>) -> Result<Vec<Finding>> {
        self.in_reader(move |session| findings::list_findings(session, &query)).await
    }

    async fn record_findings(
        &self,
        lease: &Lease,
        pass: u64,
        changes: Vec<FindingChange>,
        at: Timestamp,
    ) -> Result<bool> {
        let lease = lease.clone();
        self.in_transaction(move |session| {
            findings::record_findings(session, &lease, pass, &changes, at)
        })
        .await
    }

    async fn accept_finding(&self, number: u64, at: Timestamp) -> Result<Ruling> {
        self.in_transaction(move |session| findings::accept_finding(session, number, at)).await
    }

    async fn is_accepted(&self, subscription: &str) -> Result<bool> {
        let subscription = subscription.to_owned();
        self.in_reader(move |session| findings::is_accepted(session, &subscription)).await
    }

    async fn count_drifting_tenants(&self) -> Result<u64> {
        self.in_reader(findings::count_drifting_tenants).await
    }
}

/// The number of a row to look for: one that no column can hold is as good as the largest.
pub fn within_column(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Tenants with a customer, and meters, of which something has changed or is not settled. Each part
/// has an index that holds only such rows, or is ordered by the change.
fn list_restless_pairs(session: &dyn Session, since: Timestamp, shadow: bool) -> Done<Vec<Pair>> {
    let sql = "-- list_restless_pairs
        SELECT tenant, meter_no, customer FROM (
            SELECT tenant_no, meter_no FROM pushes WHERE state_at >= $1 AND shadow = $2
            UNION
            SELECT tenant_no, meter_no FROM pushes WHERE state = 'observed' AND shadow = $2
            UNION
            SELECT tenant_no, meter_no FROM pushes WHERE state = 'submitted' AND shadow = $2
            UNION
            SELECT tenant_no, meter_no FROM pushes WHERE state = 'dead' AND shadow = $2
            UNION
            SELECT tenant_no, meter_no FROM findings
            WHERE cleared_at IS NULL AND kind = 'usage' AND meter_no IS NOT NULL
        ) AS restless JOIN tenants ON tenants.tenant_no = restless.tenant_no
        WHERE customer IS NOT NULL
        ORDER BY tenant, meter_no";
    session.read_all(sql, values![since, shadow], |row| {
        Ok(Pair {
            tenant: row.get("tenants.tenant")?,
            meter: row.get("pushes.meter_no")?,
            customer: row.get("tenants.customer")?,
        })
    })
}

fn list_former_customers(session: &dyn Session) -> Done<Vec<(TenantId, CustomerId)>> {
    let sql = "-- list_former_customers
        SELECT tenant, former_customers.customer AS customer
        FROM former_customers JOIN tenants ON tenants.tenant_no = former_customers.tenant_no
        WHERE former_customers.customer IS DISTINCT FROM tenants.customer";
    session.read_all(sql, &[], |row| {
        Ok((row.get("tenants.tenant")?, row.get("former_customers.customer")?))
    })
}
