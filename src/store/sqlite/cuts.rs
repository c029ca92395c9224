//! Cuts: windows are measured, planned by `rules::cut`, covered by credits as the plan asks, and
//! written with their pushes.
//!
//! The writer's thread reads a window's exact total from memory and tables and writes in the same
//! transaction; as it alone changes either, nothing can come between.
//!
//! Meters billed by event: an event was cut if a push names it (`pushes.event_id`) or, where its
//! quantity was zero or is carried, if it is in `carried_events`. A reader first finds those
//! that were not, so that the writer only looks at those to be cut.
//!
//! A crash leaves a call of `record_cuts` done in full or not at all; the next call finds out.

use super::push_rows::{get, insert_push, quantity_of};
use super::segment::overflow;
use super::session::SqliteSession;
use super::statements::Statements;
use super::waiting::planned_state;
use super::{Shared, SqliteStore, corrupt, damaged, events, rollups, sql_error};
use crate::rules::billing::Granularity;
use crate::rules::cut::{
    OpenEvent, OpenEvents, PriorPushes, Revision, Subject, WindowCut, draws_credits,
    events_give_back, plan_events, plan_window, window_gives_back,
};
use crate::rules::ids::{EventId, MeterNo, TenantId, TenantNo};
use crate::rules::push::{CutState, WindowUsage};
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::push::{
    CutOrder, CutReport, CutTerms, Cuts, Lease, TransitionLine, log_transition,
};
use crate::store::sql::{Coverings, WindowKey, hold_lease, read_terms, read_window_pushes};
use crate::store::{EventFilter, Query, Result};
use async_trait::async_trait;
use rusqlite::{Connection, Row, params};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// Events of a window that are read at a time.
const EVENTS_PAGE: usize = 1_000;

#[async_trait]
impl Cuts for SqliteStore {
    async fn read_cuts(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        range: Window,
    ) -> Result<Vec<(Timestamp, CutState)>> {
        let Some(tenant) = self.shared.read_memory().tenants.find(tenant) else {
            return Ok(Vec::new());
        };
        self.read(move |_, connection| read_cuts(connection, tenant, meter, range)).await
    }

    async fn record_cuts(
        &self,
        lease: &Lease,
        orders: Vec<CutOrder>,
        terms: CutTerms,
    ) -> Result<CutReport> {
        let (lease, secret) = (lease.clone(), self.push_secret);
        let look = move |shared: &Shared, connection: &Connection| {
            orders
                .into_iter()
                .map(|order| look_at_order(shared, connection, order, terms.events_max))
                .collect::<Result<Vec<Task>>>()
        };
        let tasks = self.read(look).await?;
        self.write(move |writer| {
            let (shared, steps_done) = (Arc::clone(&writer.shared), writer.fold.steps_done);
            let (report, lines) = writer.write(|connection| {
                let held = hold_lease(&SqliteSession::on(connection), &lease);
                if !held? {
                    return Ok((CutReport { lease_lost: true, ..Default::default() }, Vec::new()));
                }
                let (shared, coverings) = (&*shared, Coverings::default());
                let (report, lines) = Default::default();
                let mut cutting = Cutting {
                    shared,
                    connection,
                    steps_done,
                    secret,
                    terms,
                    coverings,
                    report,
                    lines,
                };
                tasks.into_iter().try_for_each(|task| cutting.cut(task))?;
                Ok((cutting.report, cutting.lines))
            })?;
            lines.iter().for_each(log_transition);
            Ok(report)
        })
        .await
    }

    async fn read_cut_marks(&self) -> Result<Vec<(MeterNo, Timestamp)>> {
        self.read(|_, connection| read_cut_marks(connection)).await
    }

    async fn record_cut_mark(
        &self,
        lease: &Lease,
        meter: MeterNo,
        mark: Timestamp,
    ) -> Result<bool> {
        let lease = lease.clone();
        self.write(move |writer| {
            writer.write(|connection| {
                let held = hold_lease(&SqliteSession::on(connection), &lease)?;
                if held {
                    write_cut_mark(connection, meter, mark)?;
                }
                Ok(held)
            })
        })
        .await
    }
}

/// What is to be done about an order.
enum Task {
    Nothing,
    CutWindow(CutOrder),
    CutEvents(CutOrder, OpenEvents),
}

/// Sees what an order asks for; for a meter billed by event, lists the window's events.
fn look_at_order(
    shared: &Shared,
    connection: &Connection,
    order: CutOrder,
    events_max: usize,
) -> Result<Task> {
    let (tenant, catalog) = {
        let memory = shared.read_memory();
        (memory.tenants.find(&order.tenant), Arc::clone(&memory.catalog))
    };
    let billing = catalog.get(order.meter).and_then(|meter| meter.spec.billing.as_ref());
    let (Some(tenant), Some(billing)) = (tenant, billing) else { return Ok(Task::Nothing) };
    match billing.granularity {
        Granularity::Window | Granularity::Day => return Ok(Task::CutWindow(order)),
        Granularity::Event => {}
    }
    let rows = rollups::read_usage(
        shared,
        connection,
        (&order.tenant, order.meter, order.window),
        usize::MAX,
    )?;
    let cut = read_cut(connection, tenant, order.meter, order.window.start)?;
    end_snapshot(connection)?;
    let usage = WindowUsage::measure(&rows).map_err(|_| overflow())?;
    let looked_at = cut.map_or(0, |state| state.count);
    if usage.count == looked_at {
        return Ok(Task::Nothing);
    }
    let missing = usage.count.saturating_sub(looked_at);
    let (due, unfinished) =
        find_uncut(shared, connection, (tenant, &order), (missing, events_max))?;
    Ok(Task::CutEvents(order, OpenEvents { seen: usage.count, due, unfinished }))
}

/// The oldest events of a window that were not cut, oldest first, and whether there are more. The
/// window is read in pages from its newest event down, and no further than `missing` events that
/// were not cut; so what is held is bounded, and a window that only grows is not read again.
fn find_uncut(
    shared: &Shared,
    connection: &Connection,
    (tenant, order): (TenantNo, &CutOrder),
    (missing, events_max): (u64, usize),
) -> Result<(Vec<OpenEvent>, bool)> {
    let place = (tenant, order.meter, order.window.start);
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
        for event in page.into_iter().map(|stored| stored.event) {
            if found == missing || event.trial || was_cut(connection, place, &event.id)? {
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

/// A call of `record_cuts` inside the writer's transaction.
struct Cutting<'a> {
    shared: &'a Shared,
    connection: &'a Connection,
    steps_done: usize,
    secret: [u8; 32],
    terms: CutTerms,
    coverings: Coverings,
    report: CutReport,
    lines: Vec<TransitionLine>,
}

impl Cutting<'_> {
    fn cut(&mut self, task: Task) -> Result<()> {
        let (order, events) = match task {
            Task::Nothing => return Ok(()),
            Task::CutWindow(order) => (order, None),
            Task::CutEvents(order, events) => (order, Some(events)),
        };
        let (tenant_no, catalog) = {
            let memory = self.shared.read_memory();
            (memory.tenants.find(&order.tenant), Arc::clone(&memory.catalog))
        };
        let tenant_no = tenant_no.ok_or_else(|| corrupt("tenants row of a cut"))?;
        let meter = catalog.get(order.meter).ok_or_else(|| corrupt("meters row of a cut"))?;
        let billing =
            meter.spec.billing.as_ref().ok_or_else(|| corrupt("billing in meters.definition"))?;
        let (connection, window) = (self.connection, order.window);
        let place = (tenant_no, order.meter, window.start);
        let state = read_cut(connection, tenant_no, order.meter, window.start)?;
        let state = state.unwrap_or_else(|| CutState::new(self.terms.shadow));
        let session = SqliteSession::on(connection);
        let charged = read_terms(&session, tenant_no, &order.tenant)?;
        let subject = Subject {
            tenant_no,
            tenant: &order.tenant,
            meter_no: order.meter,
            meter,
            billing,
            window,
            state: &state,
            remainder: read_remainder(connection, tenant_no, order.meter, state.shadow)?,
            charged: &charged,
            prior: &read_prior(connection, (&order.tenant, place), billing.granularity)?,
            begins: planned_state(connection, tenant_no)?,
        };
        let plan = match events {
            None => self.plan_window(&subject)?,
            Some(events) => {
                if events.unfinished {
                    self.report.unfinished.push(order.clone());
                }
                self.plan_events(&subject, events)?
            }
        };
        self.coverings.write(&session, self.terms.at)?;
        plan.map_or(Ok(()), |plan| self.apply(place, &plan))
    }

    fn plan_window(&mut self, subject: &Subject<'_>) -> Result<Option<WindowCut>> {
        let place = (subject.tenant_no, subject.meter_no, subject.window);
        let (connection, terms) = (self.connection, self.terms);
        let rows = rollups::read_usage_writing(self.shared, connection, self.steps_done, place)?;
        let usage = WindowUsage::measure(&rows).map_err(|_| overflow())?;
        let key = window_key(subject);
        let gives_back = window_gives_back(subject.state, usage.billable);
        self.hold_credits(subject, gives_back.then_some(key))?;
        plan_window(subject, &usage, terms, |order| {
            self.coverings.cover(key, subject.window, order, terms.draw_order)
        })
    }

    fn plan_events(
        &mut self,
        subject: &Subject<'_>,
        mut events: OpenEvents,
    ) -> Result<Option<WindowCut>> {
        let (connection, terms) = (self.connection, self.terms);
        let place = (subject.tenant_no, subject.meter_no, subject.window.start);
        // Another call may have cut some since the reader looked.
        let mut due = Vec::with_capacity(events.due.len());
        for event in std::mem::take(&mut events.due) {
            if !was_cut(connection, place, &event.id)? {
                due.push(event);
            }
        }
        events.due = due;
        let key = window_key(subject);
        let gives_back = events_give_back(subject.state, &events);
        self.hold_credits(subject, gives_back.then_some(key))?;
        plan_events(subject, events, terms, |order| {
            self.coverings.cover(key, subject.window, order, terms.draw_order)
        })
    }

    /// Holds the credits that may cover a window, and those that it may give back to.
    fn hold_credits(
        &mut self,
        subject: &Subject<'_>,
        giving_back: Option<WindowKey>,
    ) -> Result<()> {
        if draws_credits(subject.state, self.terms) {
            let session = SqliteSession::on(self.connection);
            let tenants = BTreeSet::from([subject.tenant_no]);
            self.coverings.hold(&session, &tenants, &giving_back.into_iter().collect())?;
        }
        Ok(())
    }

    /// Writes a planned cut.
    fn apply(
        &mut self,
        (tenant, meter, start): (TenantNo, MeterNo, Timestamp),
        plan: &WindowCut,
    ) -> Result<()> {
        let (connection, at) = (self.connection, self.terms.at);
        for push in &plan.pushes {
            self.lines.push(insert_push(connection, &self.secret, push, at)?);
            self.report.pushes += 1;
        }
        for event in &plan.carried {
            insert_carried(connection, (tenant, meter, start), event)?;
        }
        write_cut(connection, (tenant, meter, start), &plan.state, at)?;
        write_remainder(connection, (tenant, meter, plan.state.shadow), plan.remainder)
    }
}

fn window_key(subject: &Subject<'_>) -> WindowKey {
    let Subject { tenant_no, meter_no: meter, window, .. } = *subject;
    WindowKey { tenant_no, meter, start: window.start }
}

/// The window's pushes; of a window that is billed by event only the last.
fn read_prior(
    connection: &Connection,
    (owner, (tenant, meter, start)): (&TenantId, (TenantNo, MeterNo, Timestamp)),
    granularity: Granularity,
) -> Result<PriorPushes> {
    if granularity == Granularity::Event {
        let revision = connection.read_one(
            "-- read_prior
             SELECT COALESCE(MAX(revision), 0) FROM pushes INDEXED BY pushes_by_window
             WHERE tenant_no = ? AND meter_no = ? AND window_start = ?",
            params![tenant.0, meter.0, start.micros()],
            |row| Ok(row.get(0)?),
        )?;
        return Ok(PriorPushes::Last(revision));
    }
    let session = SqliteSession::on(connection);
    let pushes = read_window_pushes(&session, owner, meter, Window::moment(start))?;
    Ok(PriorPushes::All(pushes.iter().map(Revision::from).collect()))
}

/// Whether the event has a push or a carried quantity.
fn was_cut(
    connection: &Connection,
    (tenant, meter, window_start): (TenantNo, MeterNo, Timestamp),
    event: &EventId,
) -> Result<bool> {
    let place = params![tenant.0, meter.0, window_start.micros(), event.as_str()];
    connection.read_one(
        "-- was_cut
         SELECT EXISTS (
             SELECT 1 FROM pushes WHERE tenant_no = ?1 AND meter_no = ?2 AND event_id = ?4
         ) OR EXISTS (
             SELECT 1 FROM carried_events
             WHERE tenant_no = ?1 AND meter_no = ?2 AND window_start = ?3 AND event_id = ?4
         )",
        place,
        |row| Ok(row.get(0)?),
    )
}

fn insert_carried(
    connection: &Connection,
    (tenant, meter, window_start): (TenantNo, MeterNo, Timestamp),
    event: &EventId,
) -> Result<()> {
    connection.run(
        "-- insert_carried
         INSERT INTO carried_events (tenant_no, meter_no, window_start, event_id)
         VALUES (?, ?, ?, ?)",
        params![tenant.0, meter.0, window_start.micros(), event.as_str()],
    )?;
    Ok(())
}

fn read_cuts(
    connection: &Connection,
    tenant: TenantNo,
    meter: MeterNo,
    range: Window,
) -> Result<Vec<(Timestamp, CutState)>> {
    let range = params![tenant.0, meter.0, range.start.micros(), range.end.micros()];
    connection.read_all(
        "-- read_cuts
         SELECT window_start, count, total, covered, planned, revision, shadow FROM cuts
         WHERE tenant_no = ? AND meter_no = ? AND window_start >= ? AND window_start < ?",
        range,
        |row| Ok((Timestamp::from_micros(get(row, "window_start")?), decode_cut(row)?)),
    )
}

/// The state of one window.
pub fn read_cut(
    connection: &Connection,
    tenant: TenantNo,
    meter: MeterNo,
    window_start: Timestamp,
) -> Result<Option<CutState>> {
    connection.read_optional(
        "-- read_cut
         SELECT count, total, covered, planned, revision, shadow FROM cuts
         WHERE tenant_no = ? AND meter_no = ? AND window_start = ?",
        params![tenant.0, meter.0, window_start.micros()],
        decode_cut,
    )
}

fn decode_cut(row: &Row<'_>) -> Result<CutState> {
    Ok(CutState {
        count: get(row, "count")?,
        total: quantity_of(row, "total")?,
        covered: quantity_of(row, "covered")?,
        planned: quantity_of(row, "planned")?,
        revision: get(row, "revision")?,
        shadow: get(row, "shadow")?,
    })
}

fn write_cut(
    connection: &Connection,
    (tenant, meter, window_start): (TenantNo, MeterNo, Timestamp),
    state: &CutState,
    at: Timestamp,
) -> Result<()> {
    connection.run(
        "-- write_cut
         INSERT INTO cuts (tenant_no, meter_no, window_start, count, total, covered, planned,
                           revision, shadow, cut_at)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT DO UPDATE SET count = excluded.count, total = excluded.total,
             covered = excluded.covered, planned = excluded.planned,
             revision = excluded.revision, cut_at = excluded.cut_at",
        params![
            tenant.0,
            meter.0,
            window_start.micros(),
            state.count,
            state.total.to_string(),
            state.covered.to_string(),
            state.planned.to_string(),
            state.revision,
            state.shadow,
            at.micros()
        ],
    )?;
    Ok(())
}

/// Writes the revision of a push that takes another's place; the window is not cut by that.
pub fn write_revision(
    connection: &Connection,
    (tenant, meter, window_start): (TenantNo, MeterNo, Timestamp),
    state: &CutState,
) -> Result<()> {
    connection.run(
        "-- write_revision
         UPDATE cuts SET revision = ?
         WHERE tenant_no = ? AND meter_no = ? AND window_start = ?",
        params![state.revision, tenant.0, meter.0, window_start.micros()],
    )?;
    Ok(())
}

fn read_remainder(
    connection: &Connection,
    tenant: TenantNo,
    meter: MeterNo,
    shadow: bool,
) -> Result<Quantity> {
    let text: Option<String> = connection.read_optional(
        "-- read_remainder
         SELECT remainder FROM remainders WHERE tenant_no = ? AND meter_no = ? AND shadow = ?",
        params![tenant.0, meter.0, shadow],
        |row| Ok(row.get(0)?),
    )?;
    let Some(text) = text else { return Ok(Quantity::ZERO) };
    Quantity::parse_stored(&text).ok_or_else(|| damaged("remainders.remainder", &text))
}

fn write_remainder(
    connection: &Connection,
    (tenant, meter, shadow): (TenantNo, MeterNo, bool),
    remainder: Quantity,
) -> Result<()> {
    connection.run(
        "-- write_remainder
         INSERT INTO remainders (tenant_no, meter_no, shadow, remainder) VALUES (?, ?, ?, ?)
         ON CONFLICT DO UPDATE SET remainder = excluded.remainder",
        params![tenant.0, meter.0, shadow, remainder.to_string()],
    )?;
    Ok(())
}

fn read_cut_marks(connection: &Connection) -> Result<Vec<(MeterNo, Timestamp)>> {
    connection
        .prepare_cached("-- read_cut_marks\nSELECT meter_no, mark FROM cut_marks ORDER BY meter_no")
        .and_then(|mut select| {
            select
                .query_map([], |row| {
                    Ok((MeterNo(row.get(0)?), Timestamp::from_micros(row.get(1)?)))
                })?
                .collect()
        })
        .map_err(sql_error)
}

fn write_cut_mark(connection: &Connection, meter: MeterNo, mark: Timestamp) -> Result<()> {
    connection.run(
        "-- write_cut_mark
         INSERT INTO cut_marks (meter_no, mark) VALUES (?, ?)
         ON CONFLICT DO UPDATE SET mark = excluded.mark",
        params![meter.0, mark.micros()],
    )?;
    Ok(())
}
