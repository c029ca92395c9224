//! What cuts read of the ledger in this store: the totals of windows, and the events of meters that
//! are billed event by event; see `sql/cuts.rs`. Nothing is written here, so a crash leaves
//! nothing.

use crate::rules::attribution::{Layout, StretchSums};
use crate::rules::cut::{OpenEvent, OpenEvents};
use crate::rules::meter::Aggregation;
use crate::rules::push::WindowUsage;
use crate::rules::quantity::Quantity;
use crate::rules::rollup::{Accumulator, FoldError, Group, Rollup};
use crate::rules::usage::UsageRow;
use crate::rules::window::Window;
use crate::store::Error;
use crate::store::sql::{CutWindow, Done, Session, Value, WindowKey, values};
use std::collections::BTreeMap;

/// The totals of windows and what is not folded into them yet, each window in one statement and so
/// of one moment: a delta is in one of the two. Citus sends the union whole to each shard; as two
/// joins it would be two statements, of two moments. Only sums and counts are billed, so the
/// columns of other totals are not read.
pub fn measure_windows(session: &dyn Session, windows: &[CutWindow]) -> Done<Vec<WindowUsage>> {
    let sql = "-- measure_windows
        WITH given (number, meter, window_start, ends_at) AS (
            VALUES ($::int4, $::int2, $::timestamptz, $::timestamptz), ...
        )
        SELECT tenant_no, meter_no, window_start, bucket_start, grp, count, total
        FROM given JOIN (
            SELECT tenant_no, meter_no, bucket_start, COALESCE(grp_text, grp) AS grp, count, total
            FROM rollups
            UNION ALL
            SELECT tenant_no, meter_no, bucket_start, grp, count, total FROM rollup_deltas
        ) AS parts ON tenant_no = number AND meter_no = meter
            AND bucket_start >= window_start AND bucket_start < ends_at";
    let mut rows: BTreeMap<WindowKey, (Aggregation, Vec<UsageRow>)> =
        windows.iter().map(|one| (one.key(), (one.meter.spec.aggregation, Vec::new()))).collect();
    session.read_batch(sql, windows.iter().map(bounds), |row| {
        let Some((aggregation, rows)) = rows.get_mut(&WindowKey::decode(row)?) else {
            return Ok(());
        };
        let value = match *aggregation == Aggregation::Count {
            true => Accumulator::Count,
            false => Accumulator::Sum(row.get("rollups.total")?),
        };
        rows.push(UsageRow {
            bucket_start: row.get("rollups.bucket_start")?,
            group: Group::from_stored(&row.get::<String>("rollups.grp")?),
            rollup: Rollup { count: row.get("rollups.count")?, value },
        });
        Ok(())
    })?;
    let measured: std::result::Result<_, FoldError> =
        rows.values().map(|(_, rows)| WindowUsage::measure(rows)).collect();
    Ok(measured.map_err(|_| too_large())?)
}

/// The events of windows that are to be added, for each window oldest first and at most
/// `events_max`; trials are left out. The number with a window is that of its events.
pub fn read_open_events(
    session: &dyn Session,
    windows: &[(&CutWindow, u64)],
    events_max: usize,
    distributed: bool,
) -> Done<BTreeMap<WindowKey, OpenEvents>> {
    let sql = "-- read_open_events
        WITH given (tenant_no, meter_no, window_start, ends_at) AS (
            VALUES ($::int4, $::int2, $::timestamptz, $::timestamptz), ...
        )
        SELECT given.tenant_no, given.meter_no, given.window_start, e.id, e.occurred_at,
            e.quantity, e.subscription, e.trial
        FROM given CROSS JOIN LATERAL (
            SELECT e.id, e.occurred_at, e.quantity, e.subscription, e.trial
            FROM events e
            WHERE e.tenant_no = given.tenant_no AND e.meter_no = given.meter_no
                AND e.occurred_at >= given.window_start AND e.occurred_at < given.ends_at
                AND e.received_at >= given.window_start - interval '1 day'
                AND NOT e.trial
                AND NOT EXISTS (
                    SELECT FROM pushes p
                    WHERE p.tenant_no = e.tenant_no AND p.meter_no = e.meter_no
                        AND p.event_id = e.id
                )
                AND NOT EXISTS (
                    SELECT FROM carried_events c
                    WHERE c.tenant_no = e.tenant_no AND c.meter_no = e.meter_no
                        AND c.window_start = given.window_start AND c.event_id = e.id
                )
            ORDER BY e.occurred_at, e.id
            LIMIT $1
        ) AS e
        ORDER BY given.tenant_no, given.meter_no, given.window_start, e.occurred_at, e.id";
    let open = |(window, seen): &(&CutWindow, u64)| {
        (window.key(), OpenEvents { seen: *seen, due: Vec::new(), unfinished: false })
    };
    let mut found: BTreeMap<WindowKey, OpenEvents> = windows.iter().map(open).collect();
    // One more than may be cut tells whether some are left.
    let limit = values![events_max.saturating_add(1)];
    let rows = windows.iter().map(|(window, _)| bounds(window));
    let sql = if distributed { OPEN_EVENTS_DISTRIBUTED } else { sql };
    session.read_batch_with(sql, limit, rows, |row| {
        let Some(open) = found.get_mut(&WindowKey::decode(row)?) else { return Ok(()) };
        open.unfinished = open.due.len() == events_max;
        if !open.unfinished {
            open.due.push(OpenEvent {
                id: row.get("events.id")?,
                occurred_at: row.get("events.occurred_at")?,
                quantity: row.get("events.quantity")?,
                subscription: row.get("events.subscription")?,
                trial: row.get("events.trial")?,
            });
        }
        Ok(())
    })?;
    Ok(found)
}

/// The same where events are distributed and pushes are not: what was cut is sent to the shards,
/// all of a tenant and meter. So it costs more with each event that was ever cut.
const OPEN_EVENTS_DISTRIBUTED: &str = "-- read_open_events
    WITH given (tenant_no, meter_no, window_start, ends_at) AS (
        VALUES ($::int4, $::int2, $::timestamptz, $::timestamptz), ...
    ), cut AS MATERIALIZED (
        SELECT p.tenant_no, p.meter_no, given.window_start, p.event_id
        FROM given JOIN pushes p ON p.tenant_no = given.tenant_no AND p.meter_no = given.meter_no
        WHERE p.event_id IS NOT NULL
        UNION
        SELECT c.tenant_no, c.meter_no, c.window_start, c.event_id
        FROM given JOIN carried_events c ON c.tenant_no = given.tenant_no
            AND c.meter_no = given.meter_no AND c.window_start = given.window_start
    )
    SELECT tenant_no, meter_no, window_start, id, occurred_at, quantity, subscription, trial
    FROM (
        SELECT e.tenant_no, e.meter_no, given.window_start, e.id, e.occurred_at, e.quantity,
            e.subscription, e.trial, row_number() OVER (
                PARTITION BY e.tenant_no, e.meter_no, given.window_start
                ORDER BY e.occurred_at, e.id
            ) AS place
        FROM given JOIN events e ON e.tenant_no = given.tenant_no
            AND e.meter_no = given.meter_no
            AND e.occurred_at >= given.window_start AND e.occurred_at < given.ends_at
            AND e.received_at >= given.window_start - interval '1 day' AND NOT e.trial
        LEFT JOIN cut ON cut.tenant_no = e.tenant_no AND cut.meter_no = e.meter_no
            AND cut.window_start = given.window_start AND cut.event_id = e.id
        WHERE cut.event_id IS NULL
    ) AS found
    WHERE place <= $1
    ORDER BY tenant_no, meter_no, window_start, occurred_at, id";

/// What the events of windows add up to in each stretch.
///
/// A window's stretches may be read in two statements, of two moments. Events are only added, so
/// what is left out is what came last, and the window then has more events than its cut.
pub fn sum_stretches(
    session: &dyn Session,
    windows: &[(&CutWindow, &Layout)],
) -> Done<BTreeMap<WindowKey, StretchSums>> {
    let sql = "-- sum_stretches
        WITH given (number, meter, window_start, place, from_at, until_at) AS (
            VALUES ($::int4, $::int2, $::timestamptz, $::int8, $::timestamptz, $::timestamptz), ...
        )
        SELECT e.tenant_no, e.meter_no, window_start, place, e.subscription, e.trial,
            count(*) AS count, sum(e.quantity) AS total
        FROM given JOIN events e ON e.tenant_no = number AND e.meter_no = meter
            AND e.occurred_at >= from_at AND e.occurred_at < until_at
            AND e.received_at >= window_start - interval '1 day'
        GROUP BY e.tenant_no, e.meter_no, window_start, place, e.subscription, e.trial";
    let key = |one: &CutWindow| one.key();
    let mut found: BTreeMap<WindowKey, (Aggregation, StretchSums)> = windows
        .iter()
        .map(|(one, layout)| (key(one), (one.meter.spec.aggregation, StretchSums::new(layout))))
        .collect();
    let rows = windows.iter().flat_map(|(one, layout)| {
        layout.stretches().iter().enumerate().map(|(place, stretch)| {
            let Window { start, end } = stretch.during;
            let (tenant, meter, window) = (one.tenant_no, one.meter_no, one.window.start);
            values![tenant, meter, window, place, start, end].to_vec()
        })
    });
    session.read_batch(sql, rows, |row| {
        let Some((aggregation, sums)) = found.get_mut(&WindowKey::decode(row)?) else {
            return Ok(());
        };
        let count: u64 = row.get("count")?;
        let quantity = match *aggregation == Aggregation::Count {
            true => Quantity::from_count(count).ok_or_else(too_large)?,
            false => row.get("total")?,
        };
        sums.count = sums.count.checked_add(count).ok_or_else(too_large)?;
        if row.get::<bool>("events.trial")? {
            return Ok(());
        }
        let place: u32 = row.get("place")?;
        let place = usize::try_from(place).unwrap_or(usize::MAX);
        let subscription = row.get("events.subscription")?;
        sums.add_sum(place, subscription, quantity).map_err(|_| too_large())
    })?;
    Ok(found.into_iter().map(|(key, (_, sums))| (key, sums)).collect())
}

fn too_large() -> Error {
    Error::Internal { what: FoldError.to_string() }
}

fn bounds(one: &CutWindow) -> Vec<Value> {
    values![one.tenant_no, one.meter_no, one.window.start, one.window.end].to_vec()
}
