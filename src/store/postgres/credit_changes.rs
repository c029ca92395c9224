//! Changes of grants, and all that belongs to them, inside the caller's transaction.
//!
//! Invariant: a change's row, what it leaves in its grant's row, its entry between the tenant's
//! credit accounts and its change are written together, here and nowhere else, as `rules::grant`
//! planned them. The caller holds the grants; accounts come after them, changes last.
//!
//! A crash leaves all of the caller's transaction or nothing.

use super::entries::{Book, Look, create_accounts};
use super::numeric::SqlQuantity;
use super::outbox::append_changes;
use super::push_rows::each;
use super::scalars::{SqlTimestamp, column, corrupt, meter_number, read_count, write_count};
use super::statements::Statements;
use super::transaction::Done;
use crate::rules::credit::{Covered, CreditChange};
use crate::rules::grant::ledger::{PlannedChange, RecordedChange, WrittenChange, record_changes};
use crate::rules::ids::{AccountName, OnceKey};
use crate::rules::plan::Plan;
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::account::NewAccount;
use deadpool_postgres::ClientWrapper;
use std::collections::{BTreeMap, BTreeSet};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

/// Writes planned changes and all that belongs to them, in their order.
pub async fn write_changes(
    client: &ClientWrapper,
    planned: Vec<PlannedChange<i32>>,
    at: Timestamp,
) -> Done<Vec<CreditChange>> {
    if planned.is_empty() {
        return Ok(Vec::new());
    }
    let written = insert_changes(client, &planned, at).await?;
    write_grants(client, &planned).await?;
    let recorded = record_changes(planned, &written, at)?;
    post_entries(client, &recorded, at).await?;
    let changes: Vec<_> = recorded.iter().filter_map(|one| one.published.clone()).collect();
    append_changes(client, &changes, at).await?;
    Ok(recorded.into_iter().map(|recorded| recorded.change).collect())
}

async fn insert_changes(
    client: &ClientWrapper,
    planned: &[PlannedChange<i32>],
    at: Timestamp,
) -> Done<Vec<WrittenChange>> {
    let sql = "-- insert_changes
        INSERT INTO credit_changes (tenant_no, grant_no, kind, amount, remaining, meter_no,
            window_start, window_end, quantity, key, memo, at)
        SELECT tenant_no, grant_no, kind, amount, remaining, meter_no, window_start,
            window_end, quantity, key, memo, $12
        FROM unnest($1::int4[], $2::int8[], $3::text[], $4::numeric[], $5::numeric[],
            $6::int2[], $7::timestamptz[], $8::timestamptz[], $9::numeric[], $10::text[],
            $11::text[])
            WITH ORDINALITY AS given (tenant_no, grant_no, kind, amount, remaining, meter_no,
            window_start, window_end, quantity, key, memo, place)
        ORDER BY place
        RETURNING change_no, grant_no";
    let covered = |of: fn(&Covered) -> SqlTimestamp| {
        each(planned, move |planned| planned.new.covered.as_ref().map(of))
    };
    let grants: Vec<i64> =
        planned.iter().map(|planned| write_count(planned.new.grant)).collect::<Result<_>>()?;
    let parameters: [&(dyn ToSql + Sync); 12] = [
        &each(planned, |planned| planned.tenant_no),
        &grants,
        &each(planned, |planned| planned.new.kind.name()),
        &each(planned, |planned| SqlQuantity(planned.new.amount)),
        &each(planned, |planned| SqlQuantity(planned.remaining)),
        &each(planned, |planned| planned.new.covered.as_ref().map(|c| meter_number(c.meter))),
        &covered(|covered| SqlTimestamp(covered.window.start)),
        &covered(|covered| SqlTimestamp(covered.window.end)),
        &each(planned, |planned| planned.new.covered.as_ref().map(|c| SqlQuantity(c.quantity))),
        &each(planned, |planned| planned.new.key.as_ref().map(OnceKey::as_str)),
        &each(planned, |planned| planned.new.memo.as_str()),
        &SqlTimestamp(at),
    ];
    let rows = client.read_all(sql, &parameters).await?;
    let written = |row: &Row| {
        let (number, grant) = (read_count(column(row, 0)?)?, read_count(column(row, 1)?)?);
        Ok(WrittenChange { number, grant })
    };
    Ok(rows.iter().map(written).collect::<Result<_>>()?)
}

/// Writes what the last change of each grant leaves, if the grant is as it was read.
async fn write_grants(client: &ClientWrapper, planned: &[PlannedChange<i32>]) -> Done<()> {
    let sql = "-- write_grants
        UPDATE grants g SET remaining = given.remaining
        FROM unnest($1::int8[], $2::int4[], $3::numeric[], $4::numeric[])
            AS given (grant_no, tenant_no, before, remaining)
        WHERE g.grant_no = given.grant_no AND g.tenant_no = given.tenant_no
            AND g.remaining = given.before";
    let mut moved: BTreeMap<u64, (i32, SqlQuantity, SqlQuantity)> = BTreeMap::new();
    for PlannedChange { tenant_no, new, before, remaining, .. } in planned {
        let first = (*tenant_no, SqlQuantity(*before), SqlQuantity(*before));
        moved.entry(new.grant).or_insert(first).2 = SqlQuantity(*remaining);
    }
    let numbers: Vec<i64> =
        moved.keys().map(|number| write_count(*number)).collect::<Result<_>>()?;
    let moved: Vec<_> = moved.into_values().collect();
    let parameters: [&(dyn ToSql + Sync); 4] = [
        &numbers,
        &each(&moved, |(tenant_no, _, _)| *tenant_no),
        &each(&moved, |(_, before, _)| *before),
        &each(&moved, |(_, _, remaining)| *remaining),
    ];
    let written = client.run(sql, &parameters).await?;
    match usize::try_from(written) == Ok(numbers.len()) {
        true => Ok(()),
        false => Err(corrupt("locked grants row changed mid-transaction").into()),
    }
}

/// Moves each change's amount between the tenant's credit accounts.
async fn post_entries(
    client: &ClientWrapper,
    recorded: &[RecordedChange<i32>],
    at: Timestamp,
) -> Done<()> {
    let accounts: BTreeMap<(i32, &AccountName), &NewAccount> = recorded
        .iter()
        .flat_map(|one| one.accounts.iter().map(|new| ((one.tenant_no, &new.name), new)))
        .collect();
    let wanted: Vec<(i32, NewAccount)> =
        accounts.iter().map(|((tenant_no, _), new)| (*tenant_no, (*new).clone())).collect();
    create_accounts(client, &wanted, at).await?;
    let names: BTreeSet<(i32, &AccountName)> = accounts.into_keys().collect();
    let mut book = Book::open(client, &names, Look::Locked).await?;
    for RecordedChange { tenant_no, change, entry, .. } in recorded {
        if let Plan::Answer(refusal) = book.plan(*tenant_no, entry.clone())? {
            let (number, why) = (change.number, refusal.to_refusal().detail);
            return Err(corrupt(format!(
                "credit_changes.change_no={number}: its entry is refused: {why}"
            ))
            .into());
        }
    }
    let entries = book.write(client, at).await?;
    for (recorded, entry) in recorded.iter().zip(&entries) {
        recorded.check_entry(entry)?;
    }
    Ok(())
}
