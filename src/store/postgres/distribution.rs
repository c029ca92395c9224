//! The layout on a Citus cluster: the tables of the ingest transaction, and what is folded from
//! them, are distributed by tenant and colocated. All others stay on the coordinator.
//!
//! Invariant: all rows of a tenant in these tables are on one node, and every key begins with the
//! tenant or contains it. So what a batch adds to a tenant is written there in one transaction, and
//! a fold changes it there in one transaction. The commits on several nodes are prepared first, and
//! the coordinator decides. A statement that must see a tenant at one moment sends all of its parts
//! to the node at once: a union lies inside a subquery, where Citus does not take it apart.
//!
//! A crash leaves a table distributed or not; the next start goes on with the others.

use super::scalars::column;
use crate::store::{Error, Result};
use deadpool_postgres::ClientWrapper;

/// Any number that no other lock has.
const DISTRIBUTION_LOCK: i64 = 0x636f_756e_7465_7264;
/// More shards cost more statements for each batch; fewer could not be moved to more nodes.
const SHARDS_OF_NODE: i64 = 4;

/// In this order: the others are colocated with the first.
const TABLES: [&str; 11] = [
    "event_claims",
    "events",
    "rollups",
    "rollup_uniques",
    "rollup_deltas",
    "counters",
    "counter_deltas",
    "conflicts",
    "quarantine",
    "day_groups",
    "inbox_overflow",
];

/// Whether the tables of this database are distributed.
pub async fn is_distributed(client: &ClientWrapper) -> Result<bool> {
    let known = "-- is_distributed\nSELECT to_regclass('pg_dist_partition') IS NOT NULL";
    if !column::<bool>(&client.query_one(known, &[]).await?, 0)? {
        return Ok(false);
    }
    is_table_distributed(client, TABLES[0]).await
}

async fn is_table_distributed(client: &ClientWrapper, table: &str) -> Result<bool> {
    let sql = "-- is_table_distributed
        SELECT EXISTS (SELECT FROM pg_dist_partition WHERE logicalrelid = to_regclass($1))";
    column(&client.query_one(sql, &[&table]).await?, 0)
}

/// Distributes what is not distributed yet.
pub async fn distribute(client: &ClientWrapper) -> Result<()> {
    let missing = "-- distribute\nSELECT to_regclass('pg_dist_partition') IS NULL";
    if column(&client.query_one(missing, &[]).await?, 0)? {
        let what = "store.layout is \"citus\" and this database has no extension citus: create it \
                    there and on every node, and add the nodes (docs/scaling.md)";
        return Err(Error::Unavailable { what: what.into() });
    }
    client.batch_execute("SET statement_timeout = 0").await?;
    client.execute("SELECT pg_advisory_lock($1)", &[&DISTRIBUTION_LOCK]).await?;
    let sql = "-- distribute
        SELECT count(*) FROM pg_dist_node WHERE isactive AND shouldhaveshards";
    let nodes: i64 = column(&client.query_one(sql, &[]).await?, 0)?;
    let shards = nodes.max(1).saturating_mul(SHARDS_OF_NODE);
    client.batch_execute(&format!("SET citus.shard_count = {shards}")).await?;
    for table in TABLES {
        if is_table_distributed(client, table).await? {
            continue;
        }
        let with = if table == TABLES[0] { "none" } else { TABLES[0] };
        let sql = "-- distribute
            SELECT create_distributed_table($1::text::regclass, 'tenant_no', colocate_with => $2)";
        client.execute(sql, &[&table, &with]).await?;
    }
    // The lock belongs to the session, which ends here after a failure too.
    client.execute("SELECT pg_advisory_unlock($1)", &[&DISTRIBUTION_LOCK]).await?;
    Ok(())
}
