//! Settlements and rulings, as `rules::settlement` plans them, and windows of a restored store as
//! `rules::restore` judges them.
//!
//! Invariant: pushes are locked first, in the order of their numbers, then the rows of their
//! windows in `cuts`, in the order of tenant, meter and window. Where a push may be replaced, its
//! tenant's lack of a customer is locked before both. A comparison after a restore is judged under
//! the locks of all of its window, and what follows is written in the same transaction; so what was
//! planned for the window stays the sum of its pushes.
//!
//! A crash leaves all of a call or nothing. A settlement that is repeated because its outcome was
//! lost finds the lease ended and is left alone; for a submitted push it writes the same again. A
//! ruling that is repeated finds the push no longer dead, or discarded, and is refused.

use super::claims::{customer_to_send_for, read_standing, sum_settled, take};
use super::cut_rows::{States, WindowKey, lock_states, write_revisions};
use super::epochs::read_epoch;
use super::push_history::read_window_pushes;
use super::reissues::lock_window;
use super::summaries::find_summary;
use super::waiting::lock_unmapped;
use super::{Done, Session, values};
use crate::faults::planted;
use crate::rules::billing::Mode;
use crate::rules::ids::{CustomerId, TenantNo};
use crate::rules::push::{CutState, Push, StoredPush};
use crate::rules::quantity::Quantity;
use crate::rules::settlement::{
    Adopting, ComparedWindow, Followed, Replacing, Right, Ruled, Settled, Settlement, Then,
    is_current, plan_comparison, plan_discard, plan_overtaking, plan_replacing, plan_retry,
    plan_settlement, rests_on_window,
};
use crate::rules::submission::Next;
use crate::rules::timestamp::Timestamp;
use crate::rules::waiting::judge_planned;
use crate::rules::window::Window;
use crate::store::Error;
use crate::store::push::{Ruling, TransitionLine, may_resend};
use std::collections::{BTreeMap, BTreeSet};

/// Changes of pushes in one transaction.
pub struct Settling<'s> {
    pub session: &'s dyn Session,
    pub secret: [u8; 32],
    pub at: Timestamp,
    /// Logged after the commit.
    pub lines: Vec<TransitionLine>,
}

impl Settling<'_> {
    /// Settles the pushes whose rights hold; how many. All are judged before any is applied: the
    /// first may change what the next rests on.
    pub fn settle(&mut self, settlements: &[Settlement]) -> Done<usize> {
        let may_replace = |given: &&Settlement| match given.next {
            Next::Replaced | Next::Compared { .. } => true,
            Next::Wait { .. }
            | Next::Unread { .. }
            | Next::Looked { .. }
            | Next::Submitted { .. }
            | Next::Confirmed
            | Next::Dead => false,
        };
        let replaceable = settlements.iter().filter(may_replace).map(|given| given.push);
        let waiting = self.lock_waiting(&replaceable.collect::<Vec<_>>())?;
        let numbers: Vec<u64> = settlements.iter().map(|given| given.push).collect();
        let stored = self.session.lock_pushes(&numbers)?;
        let stored: BTreeMap<u64, &StoredPush> =
            stored.iter().map(|found| (found.push.number, found)).collect();
        let expected = read_expected(self.session, settlements, &stored)?;
        let (mut current, mut seen) = (Vec::new(), BTreeSet::new());
        for settlement in settlements {
            let Some(found) = stored.get(&settlement.push).copied() else { continue };
            let settled = expected.get(&settlement.push).copied();
            // The first settlement of a push ends its lease, so a second one is not current.
            if is_current(found, settlement, settled) && seen.insert(settlement.push) {
                current.push((found, settlement));
            }
        }
        let (mut changes, mut replaced, mut overtaking) = (Vec::new(), Vec::new(), Vec::new());
        for (found, settlement) in &current {
            let Some(settlement) = self.compare(found, settlement)? else { continue };
            let Settled { change, then } = plan_settlement(found, &settlement, self.at)?;
            changes.push(change);
            match then {
                Then::Nothing => {}
                Then::Replace => replaced.push(*found),
                Then::Overtake => overtaking.push(*found),
            }
        }
        self.lines.extend(self.session.change_pushes(&changes, self.at)?);
        self.overtake(&overtaking)?;
        self.replace(&replaced, &waiting)?;
        Ok(current.len())
    }

    /// Those of the tenants of pushes whose pushes wait.
    fn lock_waiting(&self, pushes: &[u64]) -> Done<BTreeSet<TenantNo>> {
        let found = self.session.read_pushes(pushes)?;
        lock_unmapped(self.session, &found.iter().map(|found| found.tenant_no).collect())
    }

    /// Compares the window of a claimed push after a restore, if that is asked for, and does what
    /// follows beyond the push. Returns by what the push is settled; none if the window's open
    /// pushes were replaced.
    fn compare(&mut self, found: &StoredPush, settlement: &Settlement) -> Done<Option<Settlement>> {
        let Next::Compared { total, look_at } = settlement.next else {
            return Ok(Some(settlement.clone()));
        };
        let key = WindowKey::of(found);
        let (pushes, state) = lock_window(self.session, key)?;
        let state = state.ok_or_else(without_cut)?;
        let number = found.push.number;
        let standing = take(&mut read_standing(self.session, &[number])?, number)?;
        let window = ComparedWindow {
            pushes: &pushes,
            customer: &customer_to_send_for(found, standing.customer)?,
            doubtful: standing.doubtful,
            restored_at: read_epoch(self.session)?.map(|epoch| epoch.restored_at),
            state: &state,
        };
        match plan_comparison(found, window, settlement, (total, look_at), self.at)? {
            Followed::Settle(settlement) => Ok(Some(settlement)),
            Followed::Verify(settlement) => {
                let sql = "-- verify
                    UPDATE pushes SET verified_epoch = (SELECT max(epoch) FROM epochs)
                    WHERE push_no = $1";
                self.session.run(sql, values![number])?;
                Ok(Some(settlement))
            }
            Followed::Adopt(Adopting { changes, state, pushes }) => {
                self.lines.extend(self.session.change_pushes(&changes, self.at)?);
                write_revisions(self.session, &States::from([(key, state)]))?;
                self.lines.extend(self.session.insert_pushes(&self.secret, &pushes, self.at)?);
                Ok(None)
            }
        }
    }

    /// Replaces the earlier dead totals of the windows of totals that the provider took.
    fn overtake(&mut self, overtaking: &[&StoredPush]) -> Done<()> {
        let sql = "-- overtake
            WITH given (number) AS (VALUES ($::int8), ...)
            SELECT dead.push_no AS dead_no, number
            FROM given JOIN pushes AS taken ON taken.push_no = number
            JOIN pushes AS dead ON dead.tenant_no = taken.tenant_no
                AND dead.meter_no = taken.meter_no AND dead.window_start = taken.window_start
                AND dead.revision < taken.revision AND dead.state IN ('dead', 'discarded')
            ORDER BY dead.push_no FOR UPDATE OF dead";
        let taken: BTreeMap<u64, &Push> =
            overtaking.iter().map(|found| (found.push.number, &found.push)).collect();
        let rows = taken.keys().map(|number| values![number].to_vec());
        let pairs: Vec<(u64, u64)> = self
            .session
            .read_batch(sql, rows, |row| Ok((row.get("dead_no")?, row.get("number")?)))?;
        let pairs: BTreeMap<u64, u64> = pairs.into_iter().collect();
        let dead = self.session.read_pushes(&pairs.keys().copied().collect::<Vec<_>>())?;
        let mut changes = Vec::with_capacity(dead.len());
        for found in &dead {
            if let Some(taken) = pairs.get(&found.push.number).and_then(|by| taken.get(by)) {
                changes.push(plan_overtaking(found, taken, self.at)?);
            }
        }
        self.lines.extend(self.session.change_pushes(&changes, self.at)?);
        Ok(())
    }

    /// Writes the pushes that take the place of those that surely never counted, in their order;
    /// the number of the last. `waiting` are the tenants whose pushes wait.
    fn replace(
        &mut self,
        replaced: &[&StoredPush],
        waiting: &BTreeSet<TenantNo>,
    ) -> Done<Option<u64>> {
        let windows = replaced.iter().map(|found| WindowKey::of(found)).collect();
        let mut states = lock_states(self.session, &windows)?;
        let mut pushes = Vec::with_capacity(replaced.len());
        for found in replaced {
            let state: &mut CutState =
                states.get_mut(&WindowKey::of(found)).ok_or_else(without_cut)?;
            let begins = judge_planned(!waiting.contains(&found.tenant_no), false);
            let Replacing { state: after, push } = plan_replacing(found, state, begins)?;
            *state = after;
            pushes.push(push);
        }
        write_revisions(self.session, &states)?;
        let written = self.session.insert_pushes(&self.secret, &pushes, self.at)?;
        let last = written.last().map(|line| line.push);
        self.lines.extend(written);
        Ok(last)
    }

    pub fn retry(&mut self, number: u64) -> Done<Ruling> {
        let waiting = self.lock_waiting(&[number])?;
        let Some(found) = self.session.lock_pushes(&[number])?.pop() else {
            return Ok(Ruling::NotFound);
        };
        let Push { tenant, meter, window, customer, .. } = &found.push;
        let range = Window::moment(window.start);
        let pushes = read_window_pushes(self.session, tenant, *meter, range)?;
        let summary = match customer {
            Some(customer) => find_summary(self.session, (tenant, customer), *meter, *window)?,
            None => None,
        };
        let may = may_resend(&found.push, &pushes, summary.as_ref());
        match plan_retry(&found, may, &pushes, self.at)? {
            Ruled::Refused(refusal) => Ok(Ruling::Refused(refusal)),
            // It competes with one of its window that is begun at the same time: the unique index
            // `pushes_unresolved` lets one of the two through.
            Ruled::Changed(change) => {
                self.lines.extend(self.session.change_pushes(&[change], self.at)?);
                Ok(Ruling::Done(Some(number)))
            }
            Ruled::Replaced(change) => {
                self.lines.extend(self.session.change_pushes(&[change], self.at)?);
                Ok(Ruling::Done(self.replace(&[&found], &waiting)?))
            }
        }
    }

    pub fn discard(&mut self, number: u64, reason: &str) -> Done<Ruling> {
        let Some(found) = self.session.lock_pushes(&[number])?.pop() else {
            return Ok(Ruling::NotFound);
        };
        match plan_discard(&found, reason, self.at)? {
            Ruled::Refused(refusal) => Ok(Ruling::Refused(refusal)),
            Ruled::Changed(change) | Ruled::Replaced(change) => {
                self.lines.extend(self.session.change_pushes(&[change], self.at)?);
                Ok(Ruling::Done(None))
            }
        }
    }
}

fn without_cut() -> Error {
    Error::Corrupt { what: "pushes row without its cuts row".into() }
}

/// What the settled pushes of each push's window make for its customer; none where a push of the
/// window was begun and is not resolved. Only what rests on its window is looked at. No lock is
/// needed: a push that is begun after this was begun after the reading, which therefore does not
/// show it.
fn read_expected(
    session: &dyn Session,
    settlements: &[Settlement],
    stored: &BTreeMap<u64, &StoredPush>,
) -> Done<BTreeMap<u64, Quantity>> {
    if planted("bug.confirm_settles_unlisted") {
        let believed = settlements.iter().filter_map(|given| match given.right {
            Right::Reading { expected } => Some((given.push, expected)),
            Right::Lease(_) => None,
        });
        return Ok(believed.collect());
    }
    let resting = settlements.iter().filter(|given| rests_on_window(given));
    let resting: BTreeMap<u64, &StoredPush> =
        resting.filter_map(|given| Some((given.push, *stored.get(&given.push)?))).collect();
    let rows = || {
        resting.iter().map(|(number, found)| {
            let customer = found.push.customer.as_ref().or(found.tenant_customer.as_ref());
            values![number, customer.map_or("", CustomerId::as_str)].to_vec()
        })
    };
    let sql = "-- read_expected
        WITH given (number, customer) AS (VALUES ($::int8, $::text), ...)
        SELECT push_no, (
            SELECT sent.value FROM pushes AS sent
            WHERE sent.tenant_no = pushes.tenant_no AND sent.meter_no = pushes.meter_no
                AND sent.window_start = pushes.window_start
                AND sent.state IN ('submitted', 'confirmed', 'reconciled')
                AND COALESCE(sent.customer, given.customer) = given.customer
            ORDER BY sent.revision DESC LIMIT 1
        ) AS last_value
        FROM given JOIN pushes ON push_no = number
        WHERE NOT EXISTS (
            SELECT 1 FROM pushes AS begun
            WHERE begun.tenant_no = pushes.tenant_no AND begun.meter_no = pushes.meter_no
                AND begun.window_start = pushes.window_start
                AND begun.state = 'observed' AND begun.attempts > 0
        )";
    let resolved: Vec<(u64, Option<Quantity>)> = session
        .read_batch(sql, rows(), |row| Ok((row.get("pushes.push_no")?, row.get("last_value")?)))?;
    let sums = sum_settled(session, rows())?;
    let expected = |(number, last): (u64, Option<Quantity>)| {
        let made = match resting.get(&number).map(|found| found.push.mode) {
            Some(Mode::Absolute) => last,
            Some(Mode::Delta) | None => sums.get(&number).map(|sum| sum.quantity),
        };
        (number, made.unwrap_or_default())
    };
    Ok(resolved.into_iter().map(expected).collect())
}
