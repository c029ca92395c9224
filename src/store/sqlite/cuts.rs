//! Cuts: windows are measured, covered by credits, planned by `rules::push` and written with their
//! pushes.
//!
//! The writer's thread reads a window's exact total from memory and tables and writes in the same
//! transaction; as it alone changes either, nothing can come between.
//!
//! Meters billed by event: an event was cut if a push names it (`pushes.event_id`) or, where its
//! quantity was zero or is carried, if it stands in `carried_events`. A reader first finds those
//! that were not, so that the writer only looks at those to be cut. `cuts.count` is the number of
//! events that were looked at, trials included: all that the window had when the reader began, or
//! fewer as long as some are left, so that equal counts always mean that nothing is left.
//!
//! A crash leaves a call of `record_cuts` done in full or not at all; the next call finds out.

use super::credits::{Credit, Usage};
use super::leases::holds_lease;
use super::push_rows::{NewPush, Owner, get, insert_push, quantity_of};
use super::sagas::read_terms;
use super::segment::overflow;
use super::{Shared, SqliteStore, corrupt, events, rollups, sql_error};
use crate::rules::billing::{Billing, Granularity};
use crate::rules::event::Event;
use crate::rules::ids::{EventId, MeterNo, TenantId, TenantNo};
use crate::rules::meter::{Aggregation, Meter};
use crate::rules::push::{
    CutPlan, CutState, Precision, Standing, WindowUsage, plan_cut, plan_following,
};
use crate::rules::quantity::Quantity;
use crate::rules::stamp::{Term, stamp_event, stamp_window};
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::push::{
    CutOrder, CutReport, CutTerms, Cuts, Lease, TransitionLine, log_transition,
};
use crate::store::{EventQuery, Result};
use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::collections::VecDeque;
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
                if !holds_lease(connection, &lease)? {
                    return Ok((CutReport { lease_lost: true, ..Default::default() }, Vec::new()));
                }
                let shared = &*shared;
                let (report, lines, credit) = Default::default();
                let mut cutting = Cutting {
                    shared,
                    connection,
                    steps_done,
                    secret,
                    terms,
                    credit,
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
                let held = holds_lease(connection, &lease)?;
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
    CutEvents(CutOrder, WindowEvents),
}

/// The events of a window, as a reader saw them.
struct WindowEvents {
    /// How many there were when the reader began, trials included.
    seen: u64,
    /// Those to be cut now, oldest first.
    due: Vec<Event>,
    /// How many of those to be cut are left for a later call.
    left: u64,
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
    let (due, left) = find_uncut(shared, connection, (tenant, &order), (missing, events_max))?;
    Ok(Task::CutEvents(order, WindowEvents { seen: usage.count, due, left }))
}

/// The oldest events of a window that were not cut, oldest first, and how many more there are. The
/// window is read in pages from its newest event down, and no further than `missing` events that
/// were not cut; so what is held is bounded, and a window that only grows is not read again.
fn find_uncut(
    shared: &Shared,
    connection: &Connection,
    (tenant, order): (TenantNo, &CutOrder),
    (missing, events_max): (u64, usize),
) -> Result<(Vec<Event>, u64)> {
    let place = (tenant, order.meter, order.window.start);
    let mut query = EventQuery {
        tenant: order.tenant.clone(),
        meter: Some(order.meter),
        range: Some(order.window),
        before: None,
        limit: EVENTS_PAGE,
        searched_max: usize::MAX,
    };
    let (mut oldest, mut found) = (VecDeque::new(), 0u64);
    while found < missing {
        let page = events::list_events(shared, connection, &query)?.events;
        end_snapshot(connection)?;
        let Some(last) = page.last() else { break };
        query.before = Some((last.event.occurred_at, last.event.id.clone()));
        for event in page.into_iter().map(|stored| stored.event) {
            if found == missing || event.trial || was_cut(connection, place, &event.id)? {
                continue;
            }
            found += 1;
            oldest.push_back(event);
            if oldest.len() > events_max {
                oldest.pop_front();
            }
        }
    }
    let kept = u64::try_from(oldest.len()).expect("a length fits 64 bits");
    Ok((oldest.into_iter().rev().collect(), found - kept))
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
    credit: Credit,
    report: CutReport,
    lines: Vec<TransitionLine>,
}

/// A window that is being cut, with what is stored of it.
struct Subject<'a> {
    owner: Owner<'a>,
    billing: &'a Billing,
    window: Window,
    state: CutState,
    remainder: Quantity,
    /// Under which subscriptions the tenant's usage is charged.
    charged: Vec<Term>,
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
        let tenant_no = tenant_no.ok_or_else(|| corrupt("a tenant that was known"))?;
        let meter = catalog.get(order.meter).ok_or_else(|| corrupt("a cut's meter"))?;
        let billing = meter.spec.billing.as_ref().ok_or_else(|| corrupt("a meter's billing"))?;
        let owner = Owner { tenant_no, tenant: &order.tenant, meter_no: order.meter, meter };
        let window = order.window;
        let state = read_cut(self.connection, tenant_no, order.meter, window.start)?;
        let state = state.unwrap_or_else(|| CutState::new(self.terms.shadow));
        let remainder = read_remainder(self.connection, tenant_no, order.meter, state.shadow)?;
        let charged = read_terms(self.connection, (tenant_no, &order.tenant))?;
        let subject = Subject { owner, billing, window, state, remainder, charged };
        match events {
            None => self.cut_window(subject),
            Some(events) => {
                if events.left > 0 {
                    self.report.unfinished.push(order.clone());
                }
                self.cut_events(subject, &events)
            }
        }
    }

    fn cut_window(&mut self, subject: Subject<'_>) -> Result<()> {
        let Subject { owner, window, .. } = &subject;
        let place = (owner.tenant_no, owner.meter_no, *window);
        let rows =
            rollups::read_usage_writing(self.shared, self.connection, self.steps_done, place)?;
        let usage = WindowUsage::measure(&rows).map_err(|_| overflow())?;
        if usage.count == subject.state.count {
            return Ok(());
        }
        let stamped_at = stamp_window(*window, &subject.charged);
        let plan = self.plan(&subject, (usage.count, usage.billable), *window)?;
        if let Some(planned) = &plan.push {
            let push = NewPush {
                owner: *owner,
                window: *window,
                plan: planned.clone(),
                shadow: subject.state.shadow,
                mode: subject.billing.mode,
                stamped_at,
                subscriptions: &usage.subscriptions_json(),
                event: None,
                detail: None,
                at: self.terms.at,
            };
            self.insert(&push)?;
        }
        self.store(&Subject { state: plan.state, remainder: plan.remainder, ..subject })
    }

    /// Each event is a cut of its own, on top of those before it.
    fn cut_events(&mut self, mut subject: Subject<'_>, events: &WindowEvents) -> Result<()> {
        let before = (subject.state.clone(), subject.remainder);
        for event in &events.due {
            let place = (subject.owner.tenant_no, subject.owner.meter_no, subject.window.start);
            // Another call may have cut it since the reader looked.
            if !was_cut(self.connection, place, &event.id)? {
                self.cut_event(&mut subject, event)?;
            }
        }
        // Both numbers are of events that were looked at; another call may have been further.
        let looked_at = events.seen.saturating_sub(events.left);
        subject.state.count = subject.state.count.max(looked_at);
        if before == (subject.state.clone(), subject.remainder) {
            return Ok(());
        }
        self.store(&subject)
    }

    fn cut_event(&mut self, subject: &mut Subject<'_>, event: &Event) -> Result<()> {
        let quantity = billed_quantity(event, subject.owner.meter)?;
        let total = subject.state.total.checked_add(quantity).ok_or_else(overflow)?;
        let stamped_at = stamp_event(subject.window, event.occurred_at, &subject.charged);
        let plan =
            self.plan(subject, (subject.state.count, total), Window::moment(event.occurred_at))?;
        let Owner { tenant_no, meter_no, .. } = subject.owner;
        match &plan.push {
            None => insert_carried(
                self.connection,
                (tenant_no, meter_no, subject.window.start),
                &event.id,
            )?,
            Some(planned) => {
                let subscription = event.subscription.as_ref().map(|name| name.as_str().to_owned());
                let mut usage = WindowUsage::default();
                usage.by_subscription.insert(subscription, quantity);
                let push = NewPush {
                    owner: subject.owner,
                    window: subject.window,
                    plan: planned.clone(),
                    shadow: subject.state.shadow,
                    mode: subject.billing.mode,
                    stamped_at,
                    subscriptions: &usage.subscriptions_json(),
                    event: Some(&event.id),
                    detail: None,
                    at: self.terms.at,
                };
                self.insert(&push)?;
            }
        }
        (subject.state, subject.remainder) = (plan.state, plan.remainder);
        Ok(())
    }

    /// Covers what it can of a window's usage, and plans the rest.
    fn plan(
        &mut self,
        subject: &Subject<'_>,
        (count, billable): (u64, Quantity),
        during: Window,
    ) -> Result<CutPlan> {
        let Subject { owner, billing, window, state, remainder, .. } = subject;
        let follows = state.shadow != self.terms.shadow;
        // What is only compared or gets no push draws on nothing.
        let covered = if follows || state.shadow {
            state.covered
        } else {
            let usage = Usage { owner: *owner, window: *window, state, during, now: billable };
            let order = (self.terms.draw_order, self.terms.at);
            self.credit.cover(self.connection, usage, order)?
        };
        let standing = Standing { count, billable, covered };
        let plan = if follows {
            plan_following(state, *remainder, standing)
        } else {
            let scale = owner.meter.billing_scale();
            let precision = Precision { scale, digits_max: self.terms.digits_max };
            plan_cut(state, *remainder, standing, billing.mode, precision)
        };
        plan.map_err(|_| overflow())
    }

    fn insert(&mut self, push: &NewPush<'_>) -> Result<()> {
        self.lines.push(insert_push(self.connection, &self.secret, push)?);
        self.report.pushes += 1;
        Ok(())
    }

    fn store(&self, subject: &Subject<'_>) -> Result<()> {
        let Subject { owner, window, state, remainder, .. } = subject;
        let (tenant, meter) = (owner.tenant_no, owner.meter_no);
        write_cut(self.connection, (tenant, meter, window.start), state, self.terms.at)?;
        write_remainder(self.connection, (tenant, meter, state.shadow), *remainder)
    }
}

/// What one event adds to a billed total.
fn billed_quantity(event: &Event, meter: &Meter) -> Result<Quantity> {
    match meter.spec.aggregation {
        Aggregation::Sum => Ok(event.quantity),
        Aggregation::Count => Ok(Quantity::ONE),
        Aggregation::Min | Aggregation::Max | Aggregation::Latest | Aggregation::Unique => {
            Err(corrupt("the billing of a meter that cannot be billed"))
        }
    }
}

/// Whether a push or a carried quantity stands for the event.
fn was_cut(
    connection: &Connection,
    (tenant, meter, window_start): (TenantNo, MeterNo, Timestamp),
    event: &EventId,
) -> Result<bool> {
    connection
        .prepare_cached(
            "-- was_cut
             SELECT EXISTS (
                 SELECT 1 FROM pushes WHERE tenant_no = ?1 AND meter_no = ?2 AND event_id = ?4
             ) OR EXISTS (
                 SELECT 1 FROM carried_events
                 WHERE tenant_no = ?1 AND meter_no = ?2 AND window_start = ?3 AND event_id = ?4
             )",
        )
        .and_then(|mut select| {
            let place = params![tenant.0, meter.0, window_start.micros(), event.as_str()];
            select.query_row(place, |row| row.get(0))
        })
        .map_err(sql_error)
}

fn insert_carried(
    connection: &Connection,
    (tenant, meter, window_start): (TenantNo, MeterNo, Timestamp),
    event: &EventId,
) -> Result<()> {
    connection
        .prepare_cached(
            "-- insert_carried
             INSERT INTO carried_events (tenant_no, meter_no, window_start, event_id)
             VALUES (?, ?, ?, ?)",
        )
        .and_then(|mut insert| {
            insert.execute(params![tenant.0, meter.0, window_start.micros(), event.as_str()])
        })
        .map_err(sql_error)?;
    Ok(())
}

fn read_cuts(
    connection: &Connection,
    tenant: TenantNo,
    meter: MeterNo,
    range: Window,
) -> Result<Vec<(Timestamp, CutState)>> {
    let mut select = connection
        .prepare_cached(
            "-- read_cuts
             SELECT window_start, count, total, covered, planned, revision, shadow FROM cuts
             WHERE tenant_no = ? AND meter_no = ? AND window_start >= ? AND window_start < ?",
        )
        .map_err(sql_error)?;
    let range = params![tenant.0, meter.0, range.start.micros(), range.end.micros()];
    let mut rows = select.query(range).map_err(sql_error)?;
    let mut cuts = Vec::new();
    while let Some(row) = rows.next().map_err(sql_error)? {
        cuts.push((Timestamp::from_micros(get(row, "window_start")?), decode_cut(row)?));
    }
    Ok(cuts)
}

/// Where one window stands.
pub fn read_cut(
    connection: &Connection,
    tenant: TenantNo,
    meter: MeterNo,
    window_start: Timestamp,
) -> Result<Option<CutState>> {
    let mut select = connection
        .prepare_cached(
            "-- read_cut
             SELECT count, total, covered, planned, revision, shadow FROM cuts
             WHERE tenant_no = ? AND meter_no = ? AND window_start = ?",
        )
        .map_err(sql_error)?;
    let mut rows =
        select.query(params![tenant.0, meter.0, window_start.micros()]).map_err(sql_error)?;
    rows.next().map_err(sql_error)?.map(decode_cut).transpose()
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
    connection
        .prepare_cached(
            "-- write_cut
             INSERT INTO cuts (tenant_no, meter_no, window_start, count, total, covered, planned,
                               revision, shadow, cut_at)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
             ON CONFLICT DO UPDATE SET count = excluded.count, total = excluded.total,
                 covered = excluded.covered, planned = excluded.planned,
                 revision = excluded.revision, cut_at = excluded.cut_at",
        )
        .and_then(|mut upsert| {
            upsert.execute(params![
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
            ])
        })
        .map_err(sql_error)?;
    Ok(())
}

/// Writes the revision of a push that takes another's place; the window is not cut by that.
pub fn write_revision(
    connection: &Connection,
    (tenant, meter, window_start): (TenantNo, MeterNo, Timestamp),
    state: &CutState,
) -> Result<()> {
    connection
        .prepare_cached(
            "-- write_revision
             UPDATE cuts SET revision = ?
             WHERE tenant_no = ? AND meter_no = ? AND window_start = ?",
        )
        .and_then(|mut update| {
            update.execute(params![state.revision, tenant.0, meter.0, window_start.micros()])
        })
        .map_err(sql_error)?;
    Ok(())
}

fn read_remainder(
    connection: &Connection,
    tenant: TenantNo,
    meter: MeterNo,
    shadow: bool,
) -> Result<Quantity> {
    let text: Option<String> = connection
        .prepare_cached(
            "-- read_remainder
             SELECT remainder FROM remainders WHERE tenant_no = ? AND meter_no = ? AND shadow = ?",
        )
        .and_then(|mut select| {
            select.query_row(params![tenant.0, meter.0, shadow], |row| row.get(0)).optional()
        })
        .map_err(sql_error)?;
    let Some(text) = text else { return Ok(Quantity::ZERO) };
    Quantity::parse_stored(&text).ok_or_else(|| corrupt("a remainder"))
}

fn write_remainder(
    connection: &Connection,
    (tenant, meter, shadow): (TenantNo, MeterNo, bool),
    remainder: Quantity,
) -> Result<()> {
    connection
        .prepare_cached(
            "-- write_remainder
             INSERT INTO remainders (tenant_no, meter_no, shadow, remainder) VALUES (?, ?, ?, ?)
             ON CONFLICT DO UPDATE SET remainder = excluded.remainder",
        )
        .and_then(|mut upsert| {
            upsert.execute(params![tenant.0, meter.0, shadow, remainder.to_string()])
        })
        .map_err(sql_error)?;
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
    connection
        .prepare_cached(
            "-- write_cut_mark
             INSERT INTO cut_marks (meter_no, mark) VALUES (?, ?)
             ON CONFLICT DO UPDATE SET mark = excluded.mark",
        )
        .and_then(|mut upsert| upsert.execute(params![meter.0, mark.micros()]))
        .map_err(sql_error)?;
    Ok(())
}
