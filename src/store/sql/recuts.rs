//! Recuts: windows that must be cut again although no event came.
//!
//! Invariant: a request is a row from the transaction that changed what is billed until its windows
//! are cut. Rows are only added and removed, so a request that comes while another of the same
//! tenant is worked on is not lost. A crash leaves the row, and its windows are cut again; a window
//! of which nothing has changed gets no push.

use super::{Done, Session, values};
use crate::rules::ids::TenantNo;
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::push::Recut;

pub fn request_recut(
    session: &dyn Session,
    tenant: TenantNo,
    range: Window,
    at: Timestamp,
) -> Done<()> {
    insert(session, (tenant, range), false, at)
}

/// The same, also for windows that are open.
pub fn request_expedited(
    session: &dyn Session,
    tenant: TenantNo,
    range: Window,
    at: Timestamp,
) -> Done<()> {
    insert(session, (tenant, range), true, at)
}

fn insert(
    session: &dyn Session,
    (tenant, range): (TenantNo, Window),
    expedited: bool,
    at: Timestamp,
) -> Done<()> {
    let sql = "-- insert
        INSERT INTO recuts (tenant_no, from_at, until_at, expedited, requested_at)
        VALUES ($1, $2, $3, $4, $5)";
    session.run(sql, values![tenant, range.start, range.end, expedited, at])?;
    Ok(())
}

pub fn list_recuts(session: &dyn Session, limit: usize) -> Done<Vec<Recut>> {
    let sql = "-- list_recuts
        SELECT recut_no, tenant, from_at, until_at, expedited
        FROM recuts JOIN tenants ON tenants.tenant_no = recuts.tenant_no
        ORDER BY recut_no LIMIT $1";
    session.read_all(sql, values![limit], |row| {
        let (start, end) = (row.get("recuts.from_at")?, row.get("recuts.until_at")?);
        Ok(Recut {
            number: row.get("recuts.recut_no")?,
            tenant: row.get("tenants.tenant")?,
            range: Window { start, end },
            expedited: row.get("recuts.expedited")?,
        })
    })
}

pub fn finish_recut(session: &dyn Session, number: u64) -> Done<()> {
    session.run("-- finish_recut\nDELETE FROM recuts WHERE recut_no = $1", values![number])?;
    Ok(())
}
