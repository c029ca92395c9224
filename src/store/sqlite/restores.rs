//! Windows of a restored store, compared with what the provider holds.
//!
//! Invariant: a comparison is judged by `rules::restore` with the window as it is inside the
//! writer's transaction, and what follows is written in the same one; so what was planned for the
//! window stays the sum of its pushes. A crash leaves a comparison done in full or not at all; the
//! push is then compared again.

use super::corrupt;
use super::cuts::{read_cut, write_revision};
use super::push_listing::{DueWindow, settled_total};
use super::push_rows::{NewPush, Owner, PushRow, Standing, fetch_known, insert_standing};
use super::pushes::{Changes, customer_to_send_for, is_doubtful};
use super::segment::overflow;
use super::{epochs, sql_error};
use crate::rules::billing::Mode;
use crate::rules::delivery::{Class, Next, PushState};
use crate::rules::ids::CustomerId;
use crate::rules::push::{PlannedPush, plan_adoption};
use crate::rules::quantity::Quantity;
use crate::rules::restore::{Comparison, Known, judge_comparison};
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::push::Settlement;
use rusqlite::{Connection, params};

/// What a comparison says, and the words for it.
pub struct Compared {
    pub comparison: Comparison,
    pub detail: String,
    customer: CustomerId,
    /// The window's pushes that are not settled, oldest revision first.
    open: Vec<PushRow>,
}

impl Changes<'_> {
    /// Compares the window of a claimed push and does what follows.
    pub fn compare(
        &mut self,
        row: &PushRow,
        settlement: &Settlement,
        (total, look_at): (Quantity, Timestamp),
    ) -> Result<()> {
        let compared = compare(self.connection, row, total, self.at)?;
        let begun = row.push.attempts > 0;
        let (class, next) = match compared.comparison {
            Comparison::Missing if begun => (Class::Absent, Next::Replaced),
            Comparison::Missing => {
                verify(self.connection, row)?;
                let next = Next::Wait { until: self.at, fresh_request_key: false };
                (Class::Absent, next)
            }
            Comparison::Present => (Class::Present, Next::Submitted { look_at }),
            Comparison::Wait { until } => (Class::Unknown, Next::Looked { total, until }),
            Comparison::Undecidable => (Class::Undecidable, Next::Dead),
            Comparison::Adopt { adopted, rest } => {
                return self.adopt(&compared, (adopted, rest), total);
            }
        };
        let detail = Some(compared.detail);
        let followed = Settlement { class, next, detail, ..settlement.clone() };
        self.settle(&followed).map(drop)
    }

    /// Writes what the provider holds as a settled revision, and the rest as one to be sent; both
    /// take the place of everything of the window that is not settled.
    fn adopt(
        &mut self,
        compared: &Compared,
        parts: (Quantity, Quantity),
        total: Quantity,
    ) -> Result<()> {
        let last = compared.open.last().ok_or_else(|| corrupt("a push that is compared"))?;
        let place = (last.tenant_no, last.push.meter, last.push.window.start);
        let state = read_cut(self.connection, place.0, place.1, place.2)?;
        let state = state.ok_or_else(|| corrupt("the cut of a push"))?;
        let plan = plan_adoption(&state, parts, total, last.push.mode).map_err(|_| overflow())?;
        for row in &compared.open {
            self.turn(row, (PushState::Replaced, Class::Adopted), Some(&compared.detail))?;
        }
        write_revision(self.connection, place, &plan.state)?;
        let settled = Standing {
            state: PushState::Confirmed,
            class: Class::Adopted,
            customer: Some(&compared.customer),
        };
        self.insert_part(last, &plan.adopted, settled, &compared.detail)?;
        if let Some(rest) = &plan.rest {
            let observed =
                Standing { state: PushState::Observed, class: Class::Cut, customer: None };
            self.insert_part(last, rest, observed, &compared.detail)?;
        }
        Ok(())
    }

    fn insert_part(
        &mut self,
        last: &PushRow,
        plan: &PlannedPush,
        standing: Standing<'_>,
        detail: &str,
    ) -> Result<()> {
        let push = &last.push;
        let meter = self.catalog.get(push.meter).ok_or_else(|| corrupt("a push's meter"))?;
        let owner =
            Owner { tenant_no: last.tenant_no, tenant: &push.tenant, meter_no: push.meter, meter };
        let part = NewPush {
            owner,
            window: push.window,
            plan: plan.clone(),
            shadow: push.shadow,
            mode: push.mode,
            stamped_at: push.stamped_at,
            subscriptions: &push.subscriptions,
            event: None,
            detail: Some(detail),
            at: self.at,
        };
        let line = insert_standing(self.connection, &self.secret, &part, standing)?;
        self.lines.push(line);
        Ok(())
    }
}

fn compare(
    connection: &Connection,
    row: &PushRow,
    total: Quantity,
    at: Timestamp,
) -> Result<Compared> {
    let push = &row.push;
    let customer = match &push.customer {
        Some(customer) => customer.clone(),
        None => customer_to_send_for(connection, row)?,
    };
    let window = DueWindow {
        tenant_no: row.tenant_no,
        meter: push.meter,
        start: push.window.start.micros(),
        customer: customer.as_str().to_owned(),
    };
    let settled = settled_total(connection, &window, push.mode)?;
    let open = list_open(connection, row)?;
    let mut planned = settled;
    for row in &open {
        planned = told(planned, row)?;
    }
    let restored_at = epochs::read_epoch(connection)?.map(|epoch| epoch.restored_at);
    let known = Known {
        settled,
        with_push: told(settled, row)?,
        planned,
        doubtful: is_doubtful(connection, row)?,
        since: push.created_at.max(restored_at.unwrap_or(push.created_at)),
    };
    let comparison = judge_comparison(known, total, at);
    let detail = format!(
        "compared after a restore: the provider's total of the window is {total}; the store knows \
         of {settled}, and of {planned} with what is to be sent"
    );
    Ok(Compared { comparison, detail, customer, open })
}

/// What the provider holds once it has taken this push too.
fn told(before: Quantity, row: &PushRow) -> Result<Quantity> {
    match row.push.mode {
        Mode::Delta => before.checked_add(row.push.quantity).ok_or_else(overflow),
        Mode::Absolute => Ok(row.push.value),
    }
}

fn list_open(connection: &Connection, row: &PushRow) -> Result<Vec<PushRow>> {
    let numbers: Vec<u64> = connection
        .prepare_cached(
            "-- list_open
             SELECT push_no FROM pushes
             WHERE tenant_no = ? AND meter_no = ? AND window_start = ? AND state = 'observed'
             ORDER BY revision",
        )
        .and_then(|mut select| {
            let window = params![row.tenant_no.0, row.push.meter.0, row.push.window.start.micros()];
            select.query_map(window, |row| row.get(0))?.collect()
        })
        .map_err(sql_error)?;
    numbers.into_iter().map(|number| fetch_known(connection, number)).collect()
}

/// Keeps that the window was compared in this epoch.
fn verify(connection: &Connection, row: &PushRow) -> Result<()> {
    connection
        .prepare_cached(
            "-- verify
             UPDATE pushes SET verified_epoch = (SELECT MAX(epoch) FROM epochs) WHERE push_no = ?",
        )
        .and_then(|mut update| update.execute([row.push.number]))
        .map_err(sql_error)?;
    Ok(())
}

/// Keeps the total that was read for a push.
pub fn record_look(
    connection: &Connection,
    row: &PushRow,
    total: Quantity,
    at: Timestamp,
) -> Result<()> {
    connection
        .prepare_cached(
            "-- record_look\nUPDATE pushes SET looked_total = ?, looked_at = ? WHERE push_no = ?",
        )
        .and_then(|mut update| {
            update.execute(params![total.to_string(), at.micros(), row.push.number])
        })
        .map_err(sql_error)?;
    Ok(())
}
