//! Pushes: claimed, begun, settled, ruled on, as `rules::settlement` plans it.
//!
//! A reader finds what could be claimed, so that the writer only looks at those few; the writer's
//! transaction then decides, and only it leases.
//!
//! Invariant: a verb that begins or settles a claimed push holds its lease under its last fence.
//! The lowest observed revision of a window goes first, so of those begun only one is unresolved.
//! A crash leaves a lease that ends by itself; the push is then due as before, with the customer
//! and the bytes of its first attempt.

use super::cuts::{read_cut, write_revision};
use super::push_rows::{
    begin_attempt, change_push, fetch_known, fetch_push, insert_push, quantity_of,
};
use super::rollups::sum_before;
use super::segment::overflow;
use super::session::SqliteSession;
use super::statements::Statements;
use super::waiting::planned_state;
use super::writer::Writer;
use super::{SqliteStore, corrupt, epochs, sql_error, waiting};
use crate::faults::planted;
use crate::rules::billing::Mode;
use crate::rules::ids::{CustomerId, MeterNo, TenantNo};
use crate::rules::push::{CutState, NewPush, StoredPush};
use crate::rules::quantity::Quantity;
use crate::rules::settlement::{
    Change, Replacing, Ruled, Settled, Then, is_current, plan_attempt, plan_discard,
    plan_overtaking, plan_replacing, plan_retry, plan_settlement, rests_on_window,
};
use crate::rules::submission::Next;
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::Result;
use crate::store::push::{
    AttemptIntent, ClaimedPush, Push, PushClaim, Pushes, Right, Ruling, Settlement, TransitionLine,
    UnbilledSums, log_transition, may_resend,
};
use crate::store::sql::{find_summary, read_window_pushes, sum_held, sum_shadow};
use async_trait::async_trait;
use hashbrown::{HashMap, HashSet};
use rusqlite::{Connection, params};

#[async_trait]
impl Pushes for SqliteStore {
    async fn claim_pushes(&self, claim: PushClaim) -> Result<Vec<ClaimedPush>> {
        let wanted = claim.clone();
        let (found, unmapped) =
            self.read(move |_, connection| find_claimable(connection, &wanted)).await?;
        if !unmapped.is_empty() && !planted("bug.push_without_customer") {
            let at = claim.now;
            self.write(move |writer| {
                let lines = writer.write(|c| waiting::withhold(c, &unmapped, at))?;
                lines.iter().for_each(log_transition);
                Ok(())
            })
            .await?;
        }
        if found.is_empty() {
            return Ok(Vec::new());
        }
        self.write(move |writer| writer.write(|c| lease_pushes(c, &found, &claim))).await
    }

    async fn begin_attempts(&self, intents: Vec<AttemptIntent>, at: Timestamp) -> Result<Vec<u64>> {
        let marks = self.marks_attempts();
        let work = move |writer: &mut Writer| {
            let (lines, mark) = writer.write(|connection| {
                let begun = intents.iter().map(|intent| begin(connection, intent, at));
                let begun: Result<Vec<TransitionLine>> =
                    begun.filter_map(Result::transpose).collect();
                Ok((begun?, marks.then(|| epochs::move_mark(connection)).transpose()?))
            })?;
            lines.iter().for_each(log_transition);
            Ok((lines.into_iter().map(|line| line.push).collect(), mark))
        };
        let (begun, mark) = self.write(work).await?;
        if let Some(mark) = mark {
            self.write_mark(&mark);
        }
        Ok(begun)
    }

    async fn settle_pushes(&self, settlements: Vec<Settlement>, at: Timestamp) -> Result<usize> {
        let secret = self.push_secret;
        self.write(move |writer| {
            change_pushes(writer, secret, at, |changes| {
                // Judged before any is applied: the first may change what the next rests on. The
                // first settlement of a push ends its lease, so a second one is not current.
                let (mut current, mut seen) = (Vec::new(), HashSet::new());
                for settlement in &settlements {
                    let found = find_current(changes.connection, settlement)?;
                    let found = found.filter(|found| seen.insert(found.push.number));
                    current.extend(found.map(|found| (found, settlement)));
                }
                for (found, settlement) in &current {
                    changes.settle(found, settlement)?;
                }
                Ok(current.len())
            })
        })
        .await
    }

    async fn retry_push(&self, number: u64, at: Timestamp) -> Result<Ruling> {
        let secret = self.push_secret;
        self.write(move |writer| change_pushes(writer, secret, at, |changes| changes.retry(number)))
            .await
    }

    async fn discard_push(&self, number: u64, reason: &str, at: Timestamp) -> Result<Ruling> {
        let (secret, reason) = (self.push_secret, reason.to_owned());
        self.write(move |writer| {
            change_pushes(writer, secret, at, |changes| changes.discard(number, &reason))
        })
        .await
    }

    async fn sum_unbilled(&self, meters: Vec<(MeterNo, Timestamp)>) -> Result<UnbilledSums> {
        self.read(move |shared, connection| {
            // It begins the transaction that the others read in.
            let before_from = sum_before(shared, connection, &meters)?;
            let session = SqliteSession::on(connection);
            let (shadow, held) = (sum_shadow(&session)?, sum_held(&session)?);
            Ok(UnbilledSums { shadow, before_from, held })
        })
        .await
    }
}

type Stream = (TenantNo, MeterNo);

/// Numbers of pushes that could be claimed now, in the order of claims, and tenants without a
/// customer that it met: pushes of those were written before such pushes waited. It stops at
/// `limit`, and asks for the rest of a window or a tenant only once, so that a long queue of one
/// tenant is passed over quickly.
fn find_claimable(connection: &Connection, claim: &PushClaim) -> Result<(Vec<u64>, Vec<TenantNo>)> {
    let PushClaim { now, limit, shadow, .. } = *claim;
    let mut taken = streams_in_flight(connection, now)?;
    let holds = read_holds(connection)?;
    let mut lowest: HashMap<(Stream, i64), Option<u64>> = HashMap::new();
    let mut with_customer: HashMap<TenantNo, bool> = HashMap::new();
    let mut select = connection.prepare_cached(
        "-- find_claimable
         SELECT push_no, tenant_no, meter_no, window_start FROM pushes
         WHERE state = 'observed' AND due_at <= ? AND shadow = ? ORDER BY due_at, push_no",
    )?;
    let mut rows = select.query(params![now.micros(), shadow])?;
    let mut found = Vec::new();
    while found.len() < limit
        && let Some(row) = rows.next()?
    {
        let (number, tenant, meter, window_start): (u64, u32, u16, i64) = row.try_into()?;
        let stream = (TenantNo(tenant), MeterNo(meter));
        let held = holds.get(&stream.0).is_some_and(|from| window_start >= *from);
        if held || taken.contains(&stream) {
            continue;
        }
        let window = (stream, window_start);
        if !lowest.contains_key(&window) {
            lowest.insert(window, lowest_observed(connection, window)?);
        }
        let first = lowest[&window] == Some(number) || planted("bug.two_unresolved");
        if !first {
            continue;
        }
        if !with_customer.contains_key(&stream.0) {
            let customer = customer_of(connection, stream.0)?;
            with_customer.insert(stream.0, customer.is_some());
        }
        // Without a customer, nothing of this tenant can be claimed.
        taken.insert(stream);
        if with_customer[&stream.0] {
            found.push(number);
        }
    }
    let unmapped = with_customer.into_iter().filter(|(_, mapped)| !mapped);
    Ok((found, unmapped.map(|(tenant, _)| tenant).collect()))
}

/// From which window on each tenant's pushes wait, where they do. There are few holds, and mostly
/// none: one for each plan that is being changed.
fn read_holds(connection: &Connection) -> Result<HashMap<TenantNo, i64>> {
    let sql = "-- read_holds
        SELECT tenant_no, MIN(held_from) FROM holds GROUP BY tenant_no";
    let holds = connection.read_all(sql, [], |row| Ok((TenantNo(row.get(0)?), row.get(1)?)))?;
    Ok(holds.into_iter().collect())
}

/// Tenants and meters with a push whose claimant is at work.
fn streams_in_flight(connection: &Connection, now: Timestamp) -> Result<HashSet<Stream>> {
    connection
        .prepare_cached(
            "-- streams_in_flight
             SELECT tenant_no, meter_no FROM pushes
             WHERE leased_until IS NOT NULL AND leased_until > ?",
        )
        .and_then(|mut select| {
            select
                .query_map([now.micros()], |row| Ok((TenantNo(row.get(0)?), MeterNo(row.get(1)?))))?
                .collect()
        })
        .map_err(sql_error)
}

fn lowest_observed(
    connection: &Connection,
    ((tenant, meter), window_start): (Stream, i64),
) -> Result<Option<u64>> {
    connection.read_optional(
        "-- lowest_observed
         SELECT push_no FROM pushes
         WHERE tenant_no = ? AND meter_no = ? AND window_start = ? AND state = 'observed'
         ORDER BY revision LIMIT 1",
        params![tenant.0, meter.0, window_start],
        |row| Ok(row.get(0)?),
    )
}

/// The tenant's own customer.
pub fn customer_of(connection: &Connection, tenant: TenantNo) -> Result<Option<CustomerId>> {
    let customer: Option<String> = connection.read_one(
        "-- customer_of\nSELECT customer FROM tenants WHERE tenant_no = ?",
        [tenant.0],
        |row| Ok(row.get(0)?),
    )?;
    let customer = customer.as_deref().map(CustomerId::parse).transpose();
    customer.map_err(|_| corrupt("tenants.customer"))
}

/// Leases those that can still be claimed, inside the writer's transaction.
fn lease_pushes(
    connection: &Connection,
    found: &[u64],
    claim: &PushClaim,
) -> Result<Vec<ClaimedPush>> {
    end_leases(connection, claim.now)?;
    let mut claimed = Vec::new();
    for number in found {
        if lease_push(connection, *number, claim)? {
            claimed.push(describe_claimed(connection, fetch_known(connection, *number)?)?);
        }
    }
    Ok(claimed)
}

/// Takes off leases that ended; their pushes stay observed.
fn end_leases(connection: &Connection, now: Timestamp) -> Result<()> {
    connection.run(
        "-- end_leases
         UPDATE pushes SET leased_until = NULL
         WHERE leased_until IS NOT NULL AND leased_until <= ?",
        [now.micros()],
    )?;
    Ok(())
}

fn lease_push(connection: &Connection, number: u64, claim: &PushClaim) -> Result<bool> {
    let (until, now) = (claim.lease_until.micros(), claim.now.micros());
    let changed = connection.run(
        "-- lease_push
         UPDATE pushes SET leased_until = ?2, fence = fence + 1
         WHERE push_no = ?1 AND state = 'observed' AND due_at <= ?3
             AND NOT EXISTS (
                 SELECT 1 FROM pushes AS other
                 WHERE other.tenant_no = pushes.tenant_no AND other.meter_no = pushes.meter_no
                     AND other.leased_until IS NOT NULL
             )
             AND (?4 OR NOT EXISTS (
                 SELECT 1 FROM pushes AS lower
                 WHERE lower.tenant_no = pushes.tenant_no AND lower.meter_no = pushes.meter_no
                     AND lower.window_start = pushes.window_start
                     AND lower.revision < pushes.revision AND lower.state = 'observed'
             ))
             AND NOT EXISTS (
                 SELECT 1 FROM holds
                 WHERE holds.tenant_no = pushes.tenant_no
                     AND holds.held_from <= pushes.window_start
             )
             AND EXISTS (
                 SELECT 1 FROM tenants
                 WHERE tenants.tenant_no = pushes.tenant_no AND tenants.customer IS NOT NULL
             )",
        params![number, until, now, planted("bug.two_unresolved")],
    )?;
    Ok(changed == 1)
}

fn describe_claimed(connection: &Connection, row: StoredPush) -> Result<ClaimedPush> {
    let customer = match &row.push.customer {
        Some(customer) => customer.clone(),
        None => customer_to_send_for(connection, &row)?,
    };
    Ok(ClaimedPush {
        fence: row.fence,
        settled: sum_settled(connection, &row, &customer)?,
        doubtful: is_doubtful(connection, &row)?,
        unreadable_since: row.unreadable_since,
        uncompared: epochs::find_uncompared(connection, &row)?,
        customer,
        request: row.request,
        request_keys: row.request_keys,
        push: row.push,
    })
}

/// The customer that a push without an attempt is sent for.
pub fn customer_to_send_for(connection: &Connection, row: &StoredPush) -> Result<CustomerId> {
    if !planted("bug.customer_of_today")
        && let Some(customer) = customer_of_window(connection, row)?
    {
        return Ok(customer);
    }
    customer_of(connection, row.tenant_no)?
        .ok_or_else(|| corrupt("tenants.customer of a claimed push"))
}

/// The customer that the window of a push belongs to, as `rules::customer::customer_of_window` has
/// it; the first push of the window mostly tells.
fn customer_of_window(connection: &Connection, row: &StoredPush) -> Result<Option<CustomerId>> {
    let (tenant, meter, start) = place_of(row);
    let customer: Option<String> = connection.read_optional(
        "-- customer_of_window
         SELECT customer FROM pushes INDEXED BY pushes_by_window
         WHERE tenant_no = ? AND meter_no = ? AND window_start = ? AND customer IS NOT NULL
             AND (state IN ('submitted', 'confirmed', 'reconciled')
                 OR (state = 'observed' AND attempts > 0)
                 OR (state = 'dead' AND class IN ('undecidable', 'unreadable', 'absent'))
                 OR state = 'discarded'
                 OR (state = 'dead' AND class = 'refused' AND attempts > 1))
         ORDER BY revision LIMIT 1",
        params![tenant.0, meter.0, start.micros()],
        |row| Ok(row.get(0)?),
    )?;
    let customer = customer.as_deref().map(CustomerId::parse).transpose();
    customer.map_err(|_| corrupt("pushes.customer"))
}

/// The sum of what the provider has of the window, for this customer: its summary is by customer.
fn sum_settled(
    connection: &Connection,
    row: &StoredPush,
    customer: &CustomerId,
) -> Result<Quantity> {
    let Push { meter, window, .. } = &row.push;
    let mut select = connection.prepare_cached(
        "-- sum_settled
         SELECT quantity FROM pushes
         WHERE tenant_no = ?1 AND meter_no = ?2 AND window_start = ?3
             AND state IN ('submitted', 'confirmed', 'reconciled')
             AND COALESCE(customer, ?4) = ?4",
    )?;
    let window = params![row.tenant_no.0, meter.0, window.start.micros(), customer.as_str()];
    let mut rows = select.query(window)?;
    let mut sum = Quantity::ZERO;
    while let Some(row) = rows.next()? {
        sum = sum.checked_add(quantity_of(row, "quantity")?).ok_or_else(overflow)?;
    }
    Ok(sum)
}

/// Whether nobody knows if some dead push of the window counted.
pub fn is_doubtful(connection: &Connection, row: &StoredPush) -> Result<bool> {
    let Push { meter, window, .. } = &row.push;
    let window = params![row.tenant_no.0, meter.0, window.start.micros()];
    connection.read_one(
        "-- is_doubtful
         SELECT EXISTS (
             SELECT 1 FROM pushes
             WHERE tenant_no = ? AND meter_no = ? AND window_start = ?
                 AND ((state = 'dead' AND class IN ('undecidable', 'unreadable'))
                     OR (state = 'discarded' AND EXISTS (
                         SELECT 1 FROM push_transitions AS past
                         WHERE past.push_no = pushes.push_no
                             AND past.class IN ('undecidable', 'unreadable')
                     )))
         )",
        window,
        |row| Ok(row.get(0)?),
    )
}

/// Begins an attempt if its claimant still holds the push.
fn begin(
    connection: &Connection,
    intent: &AttemptIntent,
    at: Timestamp,
) -> Result<Option<TransitionLine>> {
    let Some(row) = fetch_push(connection, intent.push)? else { return Ok(None) };
    if !plan_attempt(&row, intent, at)? {
        return Ok(None);
    }
    begin_attempt(connection, &row, (&intent.customer, &intent.request), at).map(Some)
}

/// Changes of pushes inside the writer's transaction.
pub struct Changes<'a> {
    pub connection: &'a Connection,
    pub secret: [u8; 32],
    pub at: Timestamp,
    pub lines: Vec<TransitionLine>,
}

/// Runs `work` in one transaction and logs what it changed.
fn change_pushes<T>(
    writer: &mut Writer,
    secret: [u8; 32],
    at: Timestamp,
    work: impl FnOnce(&mut Changes<'_>) -> Result<T>,
) -> Result<T> {
    let (answer, lines) = writer.write(|connection| {
        let mut changes = Changes { connection, secret, at, lines: Vec::new() };
        let answer = work(&mut changes)?;
        Ok((answer, changes.lines))
    })?;
    lines.iter().for_each(log_transition);
    Ok(answer)
}

impl Changes<'_> {
    /// Does what a current settlement leads to.
    pub fn settle(&mut self, found: &StoredPush, settlement: &Settlement) -> Result<()> {
        if let Next::Compared { total, look_at } = settlement.next {
            return self.compare(found, settlement, (total, look_at));
        }
        let Settled { change, then } = plan_settlement(found, settlement, self.at)?;
        self.apply(&change)?;
        match then {
            Then::Nothing => Ok(()),
            Then::Replace => self.replace(found).map(drop),
            Then::Overtake => self.overtake(found),
        }
    }

    pub fn apply(&mut self, change: &Change) -> Result<()> {
        self.lines.push(change_push(self.connection, change, self.at)?);
        Ok(())
    }

    pub fn insert(&mut self, push: &NewPush) -> Result<u64> {
        let line = insert_push(self.connection, &self.secret, push, self.at)?;
        let number = line.push;
        self.lines.push(line);
        Ok(number)
    }

    /// Writes the push that takes the place of one that surely never counted.
    fn replace(&mut self, found: &StoredPush) -> Result<u64> {
        let state = window_state(self.connection, found)?;
        let begins = planned_state(self.connection, found.tenant_no)?;
        let Replacing { state, push } = plan_replacing(found, &state, begins)?;
        write_revision(self.connection, place_of(found), &state)?;
        self.insert(&push)
    }

    /// Replaces the window's earlier dead totals.
    fn overtake(&mut self, taken: &StoredPush) -> Result<()> {
        for number in list_dead_below(self.connection, taken)? {
            let dead = fetch_known(self.connection, number)?;
            self.apply(&plan_overtaking(&dead, &taken.push, self.at)?)?;
        }
        Ok(())
    }

    fn retry(&mut self, number: u64) -> Result<Ruling> {
        let Some(found) = fetch_push(self.connection, number)? else { return Ok(Ruling::NotFound) };
        let Push { tenant, meter, window, customer, .. } = &found.push;
        let (session, range) = (SqliteSession::on(self.connection), Window::moment(window.start));
        let pushes = read_window_pushes(&session, tenant, *meter, range)?;
        let summary = match customer {
            Some(customer) => find_summary(&session, (tenant, customer), *meter, *window)?,
            None => None,
        };
        let may = may_resend(&found.push, &pushes, summary.as_ref());
        let ruled = plan_retry(&found, may, &pushes, self.at)?;
        self.rule(&found, ruled, Some(number))
    }

    fn discard(&mut self, number: u64, reason: &str) -> Result<Ruling> {
        let Some(found) = fetch_push(self.connection, number)? else { return Ok(Ruling::NotFound) };
        let ruled = plan_discard(&found, reason, self.at)?;
        self.rule(&found, ruled, None)
    }

    /// Does what a ruling leads to; `stays` is answered if the push stays.
    fn rule(&mut self, found: &StoredPush, ruled: Ruled, stays: Option<u64>) -> Result<Ruling> {
        match ruled {
            Ruled::Refused(refusal) => Ok(Ruling::Refused(refusal)),
            Ruled::Changed(change) => self.apply(&change).map(|()| Ruling::Done(stays)),
            Ruled::Replaced(change) => {
                self.apply(&change)?;
                self.replace(found).map(|replacement| Ruling::Done(Some(replacement)))
            }
        }
    }
}

/// A push's window, as rows name it.
pub fn place_of(found: &StoredPush) -> (TenantNo, MeterNo, Timestamp) {
    (found.tenant_no, found.push.meter, found.push.window.start)
}

/// The state of a push's window.
pub fn window_state(connection: &Connection, found: &StoredPush) -> Result<CutState> {
    let (tenant, meter, start) = place_of(found);
    read_cut(connection, tenant, meter, start)?.ok_or_else(|| corrupt("cuts row of a push"))
}

/// The push of a settlement whose right holds now.
fn find_current(connection: &Connection, settlement: &Settlement) -> Result<Option<StoredPush>> {
    let Some(found) = fetch_push(connection, settlement.push)? else { return Ok(None) };
    let settled = match settlement.right {
        Right::Reading { .. } if !rests_on_window(settlement) => None,
        Right::Reading { expected } if planted("bug.confirm_settles_unlisted") => Some(expected),
        Right::Reading { .. } => read_settled(connection, &found)?,
        Right::Lease(_) => None,
    };
    Ok(Some(found).filter(|found| is_current(found, settlement, settled)))
}

/// What the settled pushes of a push's window make for its customer; none where a push of the
/// window was begun and is not resolved.
fn read_settled(connection: &Connection, found: &StoredPush) -> Result<Option<Quantity>> {
    if is_unresolved(connection, found)? {
        return Ok(None);
    }
    let customer = found.push.customer.as_ref().or(found.tenant_customer.as_ref());
    let (tenant, meter, start) = place_of(found);
    let customer = customer.map_or("", CustomerId::as_str);
    let settled: Vec<(Quantity, Quantity)> = connection.read_all(
        "-- read_settled
         SELECT quantity, value FROM pushes
         WHERE tenant_no = ?1 AND meter_no = ?2 AND window_start = ?3
             AND state IN ('submitted', 'confirmed', 'reconciled')
             AND COALESCE(customer, ?4) = ?4
         ORDER BY revision",
        params![tenant.0, meter.0, start.micros(), customer],
        |row| Ok((quantity_of(row, "quantity")?, quantity_of(row, "value")?)),
    )?;
    let total = match found.push.mode {
        Mode::Delta => settled.iter().try_fold(Quantity::ZERO, |sum, (quantity, _)| {
            sum.checked_add(*quantity).ok_or_else(overflow)
        })?,
        Mode::Absolute => settled.last().map_or(Quantity::ZERO, |(_, value)| *value),
    };
    Ok(Some(total))
}

/// Whether a push of the window was begun and is not resolved.
fn is_unresolved(connection: &Connection, row: &StoredPush) -> Result<bool> {
    let Push { meter, window, .. } = &row.push;
    let window = params![row.tenant_no.0, meter.0, window.start.micros()];
    connection.read_one(
        "-- is_unresolved
         SELECT EXISTS (
             SELECT 1 FROM pushes
             WHERE tenant_no = ? AND meter_no = ? AND window_start = ?
                 AND state = 'observed' AND attempts > 0
         )",
        window,
        |row| Ok(row.get(0)?),
    )
}

/// Dead pushes of lower revisions of the same window, and discarded ones.
fn list_dead_below(connection: &Connection, row: &StoredPush) -> Result<Vec<u64>> {
    let Push { meter, window, revision, .. } = &row.push;
    let below = params![row.tenant_no.0, meter.0, window.start.micros(), revision];
    connection.read_all(
        "-- list_dead_below
         SELECT push_no FROM pushes
         WHERE tenant_no = ? AND meter_no = ? AND window_start = ? AND revision < ?
             AND state IN ('dead', 'discarded')
         ORDER BY revision",
        below,
        |row| Ok(row.get(0)?),
    )
}
