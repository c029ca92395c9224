//! Changes of grants, and all that belongs to them, inside the caller's transaction.
//!
//! Invariant: a change's row, what it leaves in its grant's row, its entry between the tenant's
//! credit accounts and its change in the feed are written together, here and nowhere else, as
//! `rules::grant` planned them. The caller holds the grants; accounts come after them, changes of
//! the feed last. What is read of a window's draws holds while the caller holds the window.
//!
//! A crash leaves all of the caller's transaction or nothing.

use super::cut_rows::WindowKey;
use super::entries::Book;
use super::grants::{HeldGrant, write_grants};
use super::outbox::append_numbered;
use super::reconciliation::within_column;
use super::{Done, Filter, Row, Session, values};
use crate::rules::credit::covering::Draw;
use crate::rules::credit::{ChangeKind, Covered, CreditChange};
use crate::rules::grant::ledger::{PlannedChange, RecordedChange, WrittenChange, record_changes};
use crate::rules::ids::{OnceKey, TenantNo};
use crate::rules::plan::Plan;
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::credit::ChangeFilter;
use crate::store::{Error, Query, Result};
use std::collections::{BTreeMap, BTreeSet};

/// The columns that [`decode_change`] reads, for every statement that returns rows of changes.
const COLUMNS: &str = "change_no, grant_no, kind, amount, remaining, meter_no, window_start,
    window_end, quantity, key, memo, at,
    (SELECT tenant FROM tenants WHERE tenants.tenant_no = credit_changes.tenant_no) AS tenant";

/// A window's draws and what was given back of them, oldest first.
pub type WindowChanges = BTreeMap<WindowKey, Vec<(ChangeKind, Draw)>>;

/// Writes planned changes and all that belongs to them, in their order.
pub fn write_changes(
    session: &dyn Session,
    planned: Vec<PlannedChange>,
    at: Timestamp,
) -> Done<Vec<CreditChange>> {
    let written = insert_changes(session, &planned, at)?;
    write_grants(session, &planned)?;
    let recorded = record_changes(planned, &written, at)?;
    post_entries(session, &recorded, at)?;
    let published =
        |one: &RecordedChange| one.published.clone().map(|change| (Some(one.tenant_no), change));
    append_numbered(session, &recorded.iter().filter_map(published).collect::<Vec<_>>(), at)?;
    Ok(recorded.into_iter().map(|recorded| recorded.change).collect())
}

fn insert_changes(
    session: &dyn Session,
    planned: &[PlannedChange],
    at: Timestamp,
) -> Done<Vec<WrittenChange>> {
    let sql = "-- insert_changes
        INSERT INTO credit_changes (tenant_no, grant_no, kind, amount, remaining, meter_no,
            window_start, window_end, quantity, key, memo, at)
        VALUES ($, $, $, $, $, $, $, $, $, $, $, $), ...
        RETURNING change_no, grant_no";
    let rows = planned.iter().map(|PlannedChange { tenant_no, new, remaining, .. }| {
        let covered = new.covered.as_ref();
        values![
            tenant_no,
            new.grant,
            new.kind,
            new.amount,
            remaining,
            covered.map(|covered| covered.meter),
            covered.map(|covered| covered.window.start),
            covered.map(|covered| covered.window.end),
            covered.map(|covered| covered.quantity),
            new.key,
            new.memo,
            at,
        ]
        .to_vec()
    });
    session.read_batch(sql, rows, |row| {
        let number = row.get("credit_changes.change_no")?;
        Ok(WrittenChange { number, grant: row.get("credit_changes.grant_no")? })
    })
}

/// Moves each change's amount between the tenant's credit accounts.
fn post_entries(session: &dyn Session, recorded: &[RecordedChange], at: Timestamp) -> Done<()> {
    let accounts = recorded
        .iter()
        .flat_map(|one| one.accounts.iter().map(|new| ((one.tenant_no, &new.name), new)))
        .collect();
    let mut book = Book::hold(session, &accounts, at)?;
    for RecordedChange { tenant_no, change, entry, .. } in recorded {
        if let Plan::Answer(refusal) = book.plan(*tenant_no, entry.clone())? {
            let (number, why) = (change.number, refusal.to_refusal().detail);
            let what = format!("credit_changes.change_no={number}: its entry is refused: {why}");
            return Err(Error::Corrupt { what }.into());
        }
    }
    for (recorded, entry) in recorded.iter().zip(&book.write(session, at)?) {
        recorded.check_entry(entry)?;
    }
    Ok(())
}

/// The change that was made under a key.
pub fn find_change(
    session: &dyn Session,
    tenant: TenantNo,
    key: &OnceKey,
) -> Done<Option<CreditChange>> {
    let sql = format!(
        "-- find_change
        SELECT {COLUMNS} FROM credit_changes WHERE tenant_no = $1 AND key = $2"
    );
    session.read_optional(&sql, values![tenant, key], decode_change)
}

/// Changes, newest first.
pub fn list_changes(session: &dyn Session, query: &Query<ChangeFilter>) -> Done<Vec<CreditChange>> {
    let ChangeFilter { tenant, grant } = &query.filter;
    // No grant has the number -1.
    let grant = grant.map(|grant| i64::try_from(grant).unwrap_or(-1));
    let select = format!("-- list_changes\nSELECT {COLUMNS} FROM credit_changes");
    let (sql, values) = Filter::new(&select)
        .and("tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $)", tenant)
        .and_if("grant_no = $", grant)
        .and_if("change_no < $", query.after.map(within_column))
        .order("change_no DESC", query.limit);
    session.read_all(&sql, &values, decode_change)
}

/// What the last change of each grant left of it. The caller holds the grants, and asks only then:
/// a look before the lock could be older than the grant.
pub fn read_last(session: &dyn Session, grants: &[HeldGrant]) -> Done<BTreeMap<u64, Quantity>> {
    let sql = "-- read_last
        WITH given (grant_no) AS (VALUES ($::int8), ...)
        SELECT given.grant_no, (
            SELECT remaining FROM credit_changes WHERE credit_changes.grant_no = given.grant_no
            ORDER BY change_no DESC LIMIT 1
        ) AS remaining
        FROM given";
    let rows = grants.iter().map(|held| values![held.grant.number].to_vec());
    let last = session.read_batch(sql, rows, |row| {
        let remaining: Option<Quantity> = row.get("credit_changes.remaining")?;
        Ok((row.get("credit_changes.grant_no")?, remaining))
    })?;
    Ok(last.into_iter().filter_map(|(grant, left)| left.map(|left| (grant, left))).collect())
}

/// What windows have drawn and given back.
pub fn read_window_changes(
    session: &dyn Session,
    windows: &BTreeSet<WindowKey>,
) -> Done<WindowChanges> {
    let sql = "-- read_window_changes
        WITH given (tenant_no, meter_no, window_start) AS (
            VALUES ($::int4, $::int2, $::timestamptz), ...
        )
        SELECT given.tenant_no, given.meter_no, given.window_start, kind, grant_no, quantity, amount
        FROM given JOIN credit_changes ON credit_changes.tenant_no = given.tenant_no
            AND credit_changes.meter_no = given.meter_no
            AND credit_changes.window_start = given.window_start
        ORDER BY change_no";
    let rows = windows.iter().map(WindowKey::values);
    let mut changes = WindowChanges::new();
    session.read_batch(sql, rows, |row| {
        let window = WindowKey::decode(row)?;
        let draw = Draw {
            grant: row.get("credit_changes.grant_no")?,
            quantity: row.get("credit_changes.quantity")?,
            cost: row.get("credit_changes.amount")?,
        };
        changes.entry(window).or_default().push((row.get("credit_changes.kind")?, draw));
        Ok(())
    })?;
    Ok(changes)
}

fn decode_change(row: &Row) -> Result<CreditChange> {
    Ok(CreditChange {
        number: row.get("credit_changes.change_no")?,
        tenant: row.get("tenants.tenant")?,
        grant: row.get("credit_changes.grant_no")?,
        kind: row.get("credit_changes.kind")?,
        amount: row.get("credit_changes.amount")?,
        remaining: row.get("credit_changes.remaining")?,
        covered: decode_covered(row)?,
        key: row.get("credit_changes.key")?,
        memo: row.get("credit_changes.memo")?,
        at: row.get("credit_changes.at")?,
    })
}

/// The usage that a draw covers; none where there is no meter.
fn decode_covered(row: &Row) -> Result<Option<Covered>> {
    let Some(meter) = row.get("credit_changes.meter_no")? else { return Ok(None) };
    let (start, end) =
        (row.get("credit_changes.window_start")?, row.get("credit_changes.window_end")?);
    let quantity = row.get("credit_changes.quantity")?;
    Ok(Some(Covered { meter, window: Window { start, end }, quantity }))
}
