//! Conservation counters, from their blocks and from the segments that are not folded yet.
//!
//! Invariant: the same as for totals: one moment, nothing missing, nothing twice. Names come from
//! the snapshot, which holds every tenant that memory counts; so the lock on memory is held only
//! while the open segment's counters are copied.

use super::counter_blocks::{find_counter, visit_counters};
use super::segment::{CounterKey, hour_of};
use super::statements::Statements;
use super::{Shared, corrupt, damaged};
use crate::rules::ids::{TenantId, TenantNo};
use crate::rules::timestamp::{MICROS_PER_HOUR, Timestamp};
use crate::rules::verdict::Tally;
use crate::rules::window::Window;
use crate::store::{CounterQuery, CounterRow, Result};
use hashbrown::HashMap;
use rusqlite::Connection;
use std::collections::BTreeMap;

/// The counters of every tenant in hours that start in `range`.
pub fn read_counters(
    shared: &Shared,
    connection: &Connection,
    range: Window,
) -> Result<Vec<CounterRow>> {
    let inside = |hour: &Timestamp| (range.start..range.end).contains(hour);
    let (snapshot, open) = shared.consistent_snapshot(connection, |memory| {
        let open = memory.open.counters().iter().filter(|((_, hour), _)| inside(hour));
        open.map(|(key, tally)| (*key, *tally)).collect::<Vec<_>>()
    })?;
    let mut totals: BTreeMap<(TenantNo, Timestamp), Tally> = BTreeMap::new();
    let sealed = snapshot.sealed.iter().flat_map(|segment| segment.counters());
    let sealed = sealed.filter(|((_, hour), _)| inside(hour)).map(|(key, tally)| (*key, *tally));
    for (key, tally) in sealed.chain(open).chain(read_folded(connection, range)?) {
        totals.entry(key).or_default().merge(&tally);
    }
    let names = all_names(connection)?;
    let name = |number: TenantNo| match number.0 {
        0 => Ok(None),
        _ => {
            names.get(&number).cloned().map(Some).ok_or_else(|| corrupt("tenants row of a counter"))
        }
    };
    let row = |((number, hour), tally)| Ok(CounterRow { tenant: name(number)?, hour, tally });
    totals.into_iter().map(row).collect()
}

/// A page of counters. Reads a page of the ledger and what memory adds to it, however many tenants
/// and hours there are.
pub fn list_counters(
    shared: &Shared,
    connection: &Connection,
    query: &CounterQuery,
) -> Result<Vec<CounterRow>> {
    let (snapshot, (place, open)) = shared.consistent_snapshot(connection, |memory| {
        let Some(place) = CounterPlace::of(query, |name| memory.tenants.find(name)) else {
            return (None, Vec::new());
        };
        let open = place.select(memory.open.counters());
        (Some(place), open)
    })?;
    let Some(place) = place else { return Ok(Vec::new()) };
    let sealed = snapshot.sealed.iter().flat_map(|segment| place.select(segment.counters()));
    let folded = place.read_page(connection, query.limit)?;
    // Behind a full page of the ledger there may be more of it before what memory has there.
    let end =
        folded.last().filter(|_| folded.len() == query.limit).map(|((t, hour), _)| (*hour, *t));
    let mut totals: BTreeMap<(Timestamp, TenantNo), Tally> = BTreeMap::new();
    for ((tenant, hour), tally) in sealed.chain(open).chain(folded) {
        if end.is_none_or(|end| (hour, tenant) <= end) {
            totals.entry((hour, tenant)).or_default().merge(&tally);
        }
    }
    let page = totals.into_iter().take(query.limit);
    page.map(|((hour, number), tally)| {
        Ok(CounterRow { tenant: find_name(connection, number)?, hour, tally })
    })
    .collect()
}

/// What a query asks for, in numbers.
struct CounterPlace {
    range: Window,
    tenant: Option<TenantNo>,
    /// Rows after this hour and tenant.
    after: (Timestamp, u32),
    /// Whether the row of `after` itself is meant too.
    first: bool,
}

impl CounterPlace {
    /// None if there can be no such row.
    fn of(query: &CounterQuery, find: impl Fn(&TenantId) -> Option<TenantNo>) -> Option<Self> {
        let tenant = match &query.filter.tenant {
            Some(name) => Some(find(name)?),
            None => None,
        };
        let range = query.filter.range;
        let after = query.after.as_ref().filter(|(hour, _)| *hour >= range.start);
        let Some((hour, name)) = after else {
            return Some(Self { range, tenant, after: (range.start, 0), first: true });
        };
        let number = name.as_ref().map_or(Some(TenantNo(0)), find);
        let number = number.map_or(u32::MAX, |number| number.0);
        Some(Self { range, tenant, after: (*hour, number), first: false })
    }

    fn holds(&self, (tenant, hour): CounterKey) -> bool {
        let place = (hour, tenant.0);
        let behind = if self.first { place >= self.after } else { place > self.after };
        behind && hour < self.range.end && self.tenant.is_none_or(|one| one == tenant)
    }

    fn select(&self, counters: &HashMap<CounterKey, Tally>) -> Vec<(CounterKey, Tally)> {
        let Some(tenant) = self.tenant else {
            let held = counters.iter().filter(|(key, _)| self.holds(**key));
            return held.map(|(key, tally)| (*key, *tally)).collect();
        };
        let own = self.hours().map(|hour| (tenant, hour)).filter(|key| self.holds(*key));
        own.filter_map(|key| counters.get(&key).map(|tally| (key, *tally))).collect()
    }

    /// The hours that are left of the range.
    fn hours(&self) -> impl Iterator<Item = Timestamp> + use<> {
        let end = self.range.end;
        let next = |hour: &Timestamp| Some(hour.saturating_add_micros(MICROS_PER_HOUR));
        std::iter::successors(Some(hour_of(self.after.0)), next).take_while(move |hour| *hour < end)
    }

    /// Counters of the ledger in their order.
    fn read_page(&self, connection: &Connection, limit: usize) -> Result<Vec<(CounterKey, Tally)>> {
        let mut page = Vec::new();
        if let Some(tenant) = self.tenant {
            // Blocks are in the order of hours: one tenant's is looked up in each of them.
            for hour in self.hours().filter(|hour| self.holds((tenant, *hour))) {
                page.extend(find_counter(connection, (tenant, hour))?);
                if page.len() == limit {
                    break;
                }
            }
            return Ok(page);
        }
        let start = (self.after.0, TenantNo(self.after.1));
        visit_counters(connection, start, self.range.end, |key, tally| {
            if self.holds(key) {
                page.push((key, tally));
            }
            page.len() < limit
        })?;
        Ok(page)
    }
}

/// The counters of the ledger in hours that start in `range`.
pub fn read_folded(connection: &Connection, range: Window) -> Result<Vec<(CounterKey, Tally)>> {
    let mut counters = Vec::new();
    visit_counters(connection, (range.start, TenantNo(0)), range.end, |key, tally| {
        counters.push((key, tally));
        true
    })?;
    Ok(counters)
}

/// Every tenant by its number.
pub fn all_names(connection: &Connection) -> Result<HashMap<TenantNo, TenantId>> {
    let mut select =
        connection.prepare_cached("-- all_names\nSELECT tenant_no, tenant FROM tenants")?;
    let rows = select.query_map([], |row| Ok((TenantNo(row.get(0)?), row.get::<_, String>(1)?)))?;
    rows.map(|row| {
        let (number, name) = row?;
        Ok((number, parse_name(&name)?))
    })
    .collect()
}

fn find_name(connection: &Connection, number: TenantNo) -> Result<Option<TenantId>> {
    if number.0 == 0 {
        return Ok(None);
    }
    let name: Option<String> = connection.read_optional(
        "-- find_name\nSELECT tenant FROM tenants WHERE tenant_no = ?",
        [number.0],
        |row| Ok(row.get(0)?),
    )?;
    let name = name.ok_or_else(|| corrupt("tenants row of a counter"))?;
    parse_name(&name).map(Some)
}

fn parse_name(name: &str) -> Result<TenantId> {
    TenantId::parse(name).map_err(|_| damaged("tenants.tenant", name))
}
