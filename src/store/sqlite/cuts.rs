//! What cuts read of the ledger in this store, from memory and tables; see `sql/cuts.rs`.
//!
//! The writer's thread measures a window while its transaction that cuts the window is open; as it
//! alone commits events, none can come between. Events of meters billed by event are listed by a
//! reader before, so that the writer only looks at those to be cut. Nothing is written here, so a
//! crash leaves nothing.

use super::segment::overflow;
use super::session::SqliteSession;
use super::{Shared, events, rollups, sql_error};
use crate::rules::attribution::{Layout, StretchSums};
use crate::rules::billing::Granularity;
use crate::rules::cut::{OpenEvent, OpenEvents};
use crate::rules::ids::{EventId, MeterNo, TenantId, TenantNo};
use crate::rules::meter::{Aggregation, Meter};
use crate::rules::push::WindowUsage;
use crate::rules::window::Window;
use crate::store::push::CutOrder;
use crate::store::sql::{
    CutWindow, Failure, Listed, Row, Session, WindowKey, divide_window, read_attributions,
    read_cuts, values,
};
use crate::store::{EventFilter, Query, Result};
use rusqlite::Connection;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Events of a window that are read at a time.
const EVENTS_PAGE: usize = 1_000;

/// The totals of windows, on the writer's thread; `ledger` is outside of any transaction.
pub fn measure_windows(
    shared: &Shared,
    ledger: &Connection,
    windows: &[CutWindow],
) -> Result<Vec<WindowUsage>> {
    let (snapshot, ()) = shared.consistent_snapshot(ledger, |_| ())?;
    let measure = |one: &CutWindow| {
        let place = (one.tenant_no, one.meter_no, one.window);
        let rows = rollups::read_usage_writing(shared, ledger, &snapshot, place)?;
        WindowUsage::measure(&rows).map_err(|_| overflow())
    };
    let measured = windows.iter().map(measure).collect();
    end_snapshot(ledger)?;
    measured
}

/// Lists the events to be cut of windows that are billed by event and have changed, and adds up
/// the events of windows in which something changes.
pub fn list_before_cut(
    shared: &Shared,
    connection: &Connection,
    orders: Vec<CutOrder>,
    events_max: usize,
) -> Result<Listed> {
    let mut listed = Listed::default();
    let (tenants, catalog) = {
        let memory = shared.read_memory();
        let number =
            |order: &CutOrder| Some((order.tenant.clone(), memory.tenants.find(&order.tenant)?));
        let numbers: BTreeMap<TenantId, TenantNo> = orders.iter().filter_map(number).collect();
        (numbers, Arc::clone(&memory.catalog))
    };
    let session = SqliteSession::on(connection);
    let all = tenants.values().copied().collect();
    let attributions = read_attributions(&session, &all).map_err(Failure::into_error)?;
    for order in orders {
        let Some(tenant_no) = tenants.get(&order.tenant).copied() else { continue };
        let meter = catalog.get(order.meter);
        let Some((meter, billing)) =
            meter.and_then(|meter| Some((meter, meter.spec.billing.as_ref()?)))
        else {
            continue;
        };
        let name = (order.tenant.clone(), order.meter, order.window.start);
        if billing.granularity == Granularity::Event {
            let key = WindowKey { tenant_no, meter: order.meter, start: order.window.start };
            if let Some(open) = list_window(shared, connection, (key, &order), events_max)? {
                listed.events.insert(name.clone(), open);
            }
            if !order.recut {
                continue;
            }
        }
        let attribution = attributions.get(&tenant_no).cloned().unwrap_or_default();
        let layout = divide_window(billing, order.window, &attribution);
        if layout.needs_events() {
            let place = (&order.tenant, order.meter, order.window);
            let sums = sum_window(shared, connection, place, (meter, &layout))?;
            end_snapshot(connection)?;
            listed.stretches.insert(name, (layout, sums));
        }
    }
    Ok(listed)
}

/// Adds up the events of a window. The transaction stays open.
pub fn sum_window(
    shared: &Shared,
    connection: &Connection,
    (tenant, number, window): (&TenantId, MeterNo, Window),
    (meter, layout): (&Meter, &Layout),
) -> Result<StretchSums> {
    let filter = EventFilter {
        tenant: tenant.clone(),
        meter: Some(number),
        range: Some(window),
        searched_max: usize::MAX,
    };
    let of_one = meter.spec.aggregation == Aggregation::Count;
    let query = Query::first(filter, usize::MAX);
    events::sum_stretches(shared, connection, &query, layout, of_one)
}

/// What was added up of these windows by these layouts.
pub fn find_stretches(
    windows: &[(&CutWindow, &Layout)],
    listed: &Listed,
) -> BTreeMap<WindowKey, StretchSums> {
    let find = |(window, layout): &(&CutWindow, &Layout)| {
        let (by, sums) = listed.stretches.get(&window.name())?;
        (by == *layout).then(|| (window.key(), sums.clone()))
    };
    windows.iter().filter_map(find).collect()
}

/// The events of a window that are to be cut; none if it has not changed.
fn list_window(
    shared: &Shared,
    connection: &Connection,
    (key, order): (WindowKey, &CutOrder),
    events_max: usize,
) -> Result<Option<OpenEvents>> {
    let CutOrder { tenant, meter, window, .. } = order;
    let rows = rollups::read_usage(shared, connection, (tenant, *meter, *window), usize::MAX)?;
    let session = SqliteSession::on(connection);
    let cut = read_cuts(&session, tenant, *meter, Window::moment(window.start))?.pop();
    end_snapshot(connection)?;
    let seen = WindowUsage::measure(&rows).map_err(|_| overflow())?.count;
    let looked_at = cut.map_or(0, |(_, state)| state.count);
    if seen == looked_at {
        return Ok(None);
    }
    let missing = seen.saturating_sub(looked_at);
    let (due, unfinished) = find_uncut(shared, connection, (key, order), (missing, events_max))?;
    Ok(Some(OpenEvents { seen, due, unfinished }))
}

/// The oldest events of a window that were not cut, oldest first, and whether there are more. The
/// window is read in pages from its newest event down, and no further than `missing` events that
/// were not cut; so what is held is bounded, and a window that only grows is not read again.
fn find_uncut(
    shared: &Shared,
    connection: &Connection,
    (key, order): (WindowKey, &CutOrder),
    (missing, events_max): (u64, usize),
) -> Result<(Vec<OpenEvent>, bool)> {
    let filter = EventFilter {
        tenant: order.tenant.clone(),
        meter: Some(order.meter),
        range: Some(order.window),
        searched_max: usize::MAX,
    };
    let mut query = Query::first(filter, EVENTS_PAGE);
    let (mut oldest, mut found): (VecDeque<OpenEvent>, _) = (VecDeque::new(), 0u64);
    while found < missing {
        let page = events::list_events(shared, connection, &query)?.events;
        end_snapshot(connection)?;
        let Some(last) = page.last() else { break };
        query.after = Some((last.event.occurred_at, last.event.id.clone()));
        let cut = find_cut(connection, key, page.iter().map(|stored| &stored.event.id))?;
        for event in page.into_iter().map(|stored| stored.event) {
            if found == missing || event.trial || cut.contains(&event.id) {
                continue;
            }
            found += 1;
            oldest.push_back(event.into());
            if oldest.len() > events_max {
                oldest.pop_front();
            }
        }
    }
    let kept = u64::try_from(oldest.len()).expect("a length fits 64 bits");
    Ok((oldest.into_iter().rev().collect(), found > kept))
}

fn end_snapshot(connection: &Connection) -> Result<()> {
    connection.execute_batch("ROLLBACK").map_err(sql_error)
}

/// The events that were listed of these windows, without those that were cut since then.
pub fn read_open_events(
    connection: &Connection,
    windows: &[(&CutWindow, u64)],
    listed: &Listed,
) -> Result<BTreeMap<WindowKey, OpenEvents>> {
    let mut found = BTreeMap::new();
    for (window, _) in windows {
        let Some(mut open) = listed.events.get(&window.name()).cloned() else { continue };
        let cut = find_cut(connection, window.key(), open.due.iter().map(|event| &event.id))?;
        open.due.retain(|event| !cut.contains(&event.id));
        found.insert(window.key(), open);
    }
    Ok(found)
}

/// Those of the events that have a push or a carried quantity.
fn find_cut<'e>(
    connection: &Connection,
    key: WindowKey,
    events: impl Iterator<Item = &'e EventId>,
) -> Result<BTreeSet<EventId>> {
    let session: &dyn Session = &SqliteSession::on(connection);
    let sql = "-- find_cut
        WITH given (id) AS (VALUES ($), ...)
        SELECT id FROM given WHERE EXISTS (
            SELECT 1 FROM pushes WHERE tenant_no = $1 AND meter_no = $2 AND event_id = id
        ) OR EXISTS (
            SELECT 1 FROM carried_events
            WHERE tenant_no = $1 AND meter_no = $2 AND window_start = $3 AND event_id = id
        )";
    let rows = events.map(|id| values![id].to_vec());
    let cut = session.read_batch_with(sql, &key.values(), rows, Row::only)?;
    Ok(cut.into_iter().collect())
}
