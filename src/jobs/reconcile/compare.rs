//! The comparison itself: both halves of windows and days, judged and acted on.
//!
//! Windows are compared where something has moved lately. Further back days are compared, and only
//! the windows of a day that differs; so one call reads a tenant's weeks.
//!
//! Both are compared by customer: what was sent for a customer with that customer's total. A tenant
//! that was mapped to another customer has windows of both.
//!
//! Invariant: a total counts only if this pass has read it. Windows of which nothing is known on
//! either side are left out; every other one gets a verdict. Windows before `billing.from`, and
//! those that were first cut under the other value of shadow, are not compared: their usage is not
//! meant to be there. It is shown beside the rest, and a day with such usage is never called equal.

use super::halves::{Part, too_large};
use super::ranges::{
    begins_in, billed_part, days_of, is_read, read_windows, window_length, windows_of,
};
use super::snapshot::{Readings, group_windows};
use super::unbilled::Aside;
use super::{NIGHTLY_DAYS, PassError, ReconcileJob, Running, Work, ended_day};
use crate::faults::planted;
use crate::jobs::unbilled::note_discards;
use crate::jobs::{sure_time, unless_fault};
use crate::rules::drift::{Halves, Reason, Summary, Terms, Verdict, is_followed, judge_drift};
use crate::rules::finding::{FindingKind, Observation};
use crate::rules::ids::{CustomerId, MeterNo, TenantId};
use crate::rules::pass::{DriftWindow, PassKind, PassRow};
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::{MICROS_PER_DAY, Timestamp};
use crate::rules::window::Window;
use crate::store;
use crate::store::push::Ruling;
use crate::store::reconciliation::{Pair, ReissueOrder};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long after a first reading a second one counts as another.
const READ_AGAIN_AFTER: Duration = Duration::from_millis(1_100);
/// What a pass says of a window that cannot be corrected for what is stored of it.
const FAULTY: &str =
    "what is stored of the window contradicts itself; see the alert internal_fault";

/// What a pass found of one tenant and meter.
pub struct Compared {
    pub pair: Pair,
    pub rows: Vec<PassRow>,
    pub observations: Vec<Observation>,
    /// The windows and days that were judged, as findings name them.
    pub subjects: BTreeSet<String>,
    pub windows: u64,
    pub verdicts: BTreeMap<Verdict, u64>,
}

/// A window or a day of one customer with its verdict.
struct Judged {
    customer: CustomerId,
    /// Whether it is the customer that the window, or the first window of the day, belongs to.
    own: bool,
    halves: Halves,
    verdict: Verdict,
    reason: Reason,
    action: Option<String>,
}

/// A day with the verdicts of its customers.
struct JudgedDay {
    day: Window,
    parts: Vec<Judged>,
    /// Usage that is not compared.
    aside: Aside,
}

/// What a day comes to over all its customers.
struct DaySums {
    counted: Quantity,
    /// What was handed to billing and not written off.
    billed: Quantity,
    written_off: Quantity,
    /// None if a part of it was not read.
    provider: Option<Quantity>,
}

impl Compared {
    fn new(work: &Work) -> Self {
        Self {
            pair: work.pair.clone(),
            rows: Vec::new(),
            observations: Vec::new(),
            subjects: BTreeSet::new(),
            windows: 0,
            verdicts: BTreeMap::new(),
        }
    }

    fn count(&mut self, verdict: Verdict, windows: u64) {
        self.windows += windows;
        *self.verdicts.entry(verdict).or_default() += windows;
    }

    /// Counts windows that are not compared.
    pub fn add_aside(&mut self, aside: &Aside) {
        let kinds = [
            (Verdict::NotBilled, aside.not_billed_windows),
            (Verdict::Shadow, aside.shadow_windows),
        ];
        for (verdict, windows) in kinds.into_iter().filter(|(_, windows)| *windows > 0) {
            self.count(verdict, windows);
        }
    }

    fn observe(&mut self, judged: &Judged) {
        let Judged { halves, verdict, reason, action, .. } = judged;
        // What was not read leaves findings as they are.
        if *verdict == Verdict::Unread {
            return;
        }
        self.subjects.insert(judged.name());
        if !is_followed(*verdict, *reason) {
            return;
        }
        let (settled, provider) = (halves.pushes.settled, halves.provider());
        let done = action.as_ref().map_or_else(String::new, |action| format!("; {action}"));
        let waiting = &halves.pushes.dropped;
        let lacking = if *reason == Reason::Dropped { *waiting } else { Quantity::ZERO };
        let sent = settled.checked_add(lacking).unwrap_or(settled);
        let ledger = if *reason == Reason::Uncut { halves.counted } else { sent };
        self.observations.push(Observation {
            kind: FindingKind::Usage,
            tenant: Some(self.pair.tenant.clone()),
            meter: Some(self.pair.meter),
            subject: judged.name(),
            verdict: *verdict,
            reason: *reason,
            ledger,
            provider,
            detail: format!("{}{done}", reason.advice()),
        });
    }
}

/// A window as findings name it.
fn name(window: Window) -> String {
    format!("{}/{}", window.start, window.end)
}

/// The window that a finding names, with or without a customer.
fn parse_name(subject: &str) -> Option<Window> {
    let window = subject.split_once(' ').map_or(subject, |(window, _)| window);
    let (start, end) = window.split_once('/')?;
    Some(Window { start: Timestamp::parse(start).ok()?, end: Timestamp::parse(end).ok()? })
}

impl Running {
    /// What lies further back than the pass and is looked at all the same: what open findings name,
    /// and windows with a push that waits for readings before it is sent again.
    fn old_windows(&self, work: &Work) -> Vec<Window> {
        let key = (work.pair.tenant.clone(), work.pair.meter);
        let findings = self.findings.get(&key).into_iter().flatten();
        let named = findings.filter_map(|finding| parse_name(&finding.seen.subject));
        let dropped = self.dropped.get(&key).into_iter().flatten().copied();
        let old: BTreeMap<(Timestamp, Timestamp), Window> = named
            .chain(dropped)
            .filter(|window| window.start < self.pass.order.range.start)
            .map(|window| ((window.start, window.end), window))
            .collect();
        old.into_values().collect()
    }
}

impl ReconcileJob {
    /// Compares the windows of the pass's range, and the days of findings that lie further back.
    pub(super) async fn compare_windows(
        &self,
        running: &mut Running,
        works: &[Work],
    ) -> Result<Vec<Compared>, PassError> {
        let range = running.pass.order.range;
        let mut asked = Vec::new();
        for work in works {
            asked.extend(self.ask(work, &windows_of(work, range)).await?);
        }
        self.read_totals(running, asked).await?;
        let old: Vec<Vec<Window>> = works.iter().map(|work| running.old_windows(work)).collect();
        let mut asked = Vec::new();
        for (work, old) in works.iter().zip(&old) {
            let (parts, whole): (Vec<_>, Vec<_>) =
                old.iter().copied().partition(|window| begins_in(work, *window));
            for group in group_windows(whole) {
                asked.extend(self.ask(work, &group).await?);
            }
            for day in parts {
                asked.extend(self.ask(work, &windows_of(work, day)).await?);
            }
        }
        self.read_totals(running, asked).await?;
        let mut compared = Vec::with_capacity(works.len());
        for (work, old) in works.iter().zip(old) {
            let mut one = Compared::new(work);
            self.keep_lease(running).await?;
            let windows = self.judge_windows(&running.readings, work, range).await?;
            self.close_ended(running, work, &windows).await?;
            for judged in windows {
                let judged = self.act(running, work, judged).await?;
                one.count(judged.verdict, u64::from(judged.own || differs(&judged)));
                one.observe(&judged);
            }
            // A window that was judged is cleared even if nothing is left of it.
            one.subjects.extend(read_windows(&running.readings, work, range).map(name));
            for window in old {
                let whole = self.judge_whole(&running.readings, work, window).await?;
                self.close_ended(running, work, &whole).await?;
                for judged in whole {
                    let judged = self.act(running, work, judged).await?;
                    one.count(judged.verdict, 1);
                    one.observe(&judged);
                }
                if is_read(&running.readings, work, window) {
                    one.subjects.insert(name(window));
                }
            }
            compared.push(one);
        }
        Ok(compared)
    }

    /// Compares the days of the pass, and those of the weeks before a nightly one.
    pub(super) async fn compare_days(
        &self,
        running: &mut Running,
        works: &[Work],
    ) -> Result<Vec<Compared>, PassError> {
        let (kind, focus) = (running.pass.order.kind, running.pass.order.range);
        let reach = match kind {
            PassKind::Nightly => {
                let micros = -(NIGHTLY_DAYS - 1) * MICROS_PER_DAY;
                Window { start: focus.start.saturating_add_micros(micros), end: focus.end }
            }
            PassKind::Hourly | PassKind::OneShot => focus,
        };
        // The day on which billing began is another program's in part: it is compared by what its
        // billed windows make, and once.
        let days = |work: &Work| {
            let mut days = days_of(billed_part(work, reach));
            days.retain(|day| !begins_in(work, *day) || focus.contains(day.start));
            days
        };
        let mut asked = Vec::new();
        for work in works {
            let (parts, whole): (Vec<_>, Vec<_>) =
                days(work).into_iter().partition(|day| begins_in(work, *day));
            asked.extend(self.ask(work, &whole).await?);
            for day in parts {
                asked.extend(self.ask(work, &windows_of(work, day)).await?);
            }
        }
        self.read_totals(running, asked).await?;
        // Of days that differ, and are in question, the windows are read too.
        let mut judged_days = Vec::with_capacity(works.len());
        let mut asked = Vec::new();
        for work in works {
            self.keep_lease(running).await?;
            let judged = self.judge_days(&running.readings, work, &days(work)).await?;
            for day in judged.iter().filter(|day| day.differs() && focus.contains(day.day.start)) {
                asked.extend(self.ask(work, &windows_of(work, day.day)).await?);
            }
            judged_days.push(judged);
        }
        self.read_totals(running, asked.clone()).await?;
        if kind == PassKind::OneShot && !asked.is_empty() {
            // The caller that waits for the answer must not have to ask twice.
            tokio::time::sleep(READ_AGAIN_AFTER).await;
            self.read_totals(running, asked).await?;
        }
        let mut compared = Vec::with_capacity(works.len());
        for (work, days) in works.iter().zip(judged_days) {
            let mut one = Compared::new(work);
            self.keep_lease(running).await?;
            for day in days {
                self.finish_day(running, work, day, &mut one).await?;
            }
            self.add_days_before(running, work, &mut one).await?;
            compared.push(one);
        }
        Ok(compared)
    }

    /// The row of a day, with the windows that differ; what is confirmed in an equal day is closed.
    async fn finish_day(
        &self,
        running: &mut Running,
        work: &Work,
        day: JudgedDay,
        one: &mut Compared,
    ) -> Result<(), PassError> {
        let focus = running.pass.order.range;
        let windows = u64::try_from(windows_of(work, day.day).len()).unwrap_or(u64::MAX);
        if !focus.contains(day.day.start) {
            self.close_equal(running, work, &day).await?;
            for part in day.parts {
                let part = self.act(running, work, part).await?;
                one.count(part.verdict, if part.own { windows } else { 0 });
                one.observe(&part);
            }
            return Ok(());
        }
        let shadow_windows = day.aside.shadow_windows.min(windows);
        one.add_aside(&day.aside);
        let (mut verdict, mut reason) = day.verdict();
        let mut drifting = Vec::new();
        let read = read_windows(&running.readings, work, day.day).count();
        let by_window = day.differs() && u64::try_from(read).unwrap_or(0) == windows;
        if by_window {
            let judged = self.judge_windows(&running.readings, work, day.day).await?;
            let seen =
                u64::try_from(judged.len()).unwrap_or(windows).saturating_add(shadow_windows);
            let (unequal, equal): (Vec<_>, Vec<_>) = judged.into_iter().partition(differs);
            let equal = u64::try_from(equal.len()).unwrap_or(0) + windows - seen.min(windows);
            one.count(Verdict::Equal, equal);
            for window in unequal {
                let window = self.finish_window(running, work, window, one).await?;
                if drifting.is_empty() || window.verdict > verdict {
                    (verdict, reason) = (window.verdict, window.reason);
                }
                drifting.push(window);
            }
        } else {
            one.count(verdict, windows - shadow_windows);
        }
        if verdict != Verdict::Unread && by_window == day.differs() {
            if drifting.is_empty() {
                day.parts.iter().for_each(|part| one.observe(part));
            }
            one.subjects.extend(windows_of(work, day.day).into_iter().map(name));
        }
        self.close_equal(running, work, &day).await?;
        (verdict, reason) = day.aside.qualify((verdict, reason));
        let row = self.day_row(work, &day, (verdict, reason), drifting).await?;
        one.rows.push(row);
        Ok(())
    }

    /// Acts on a window of a day, and counts it.
    async fn finish_window(
        &self,
        running: &mut Running,
        work: &Work,
        window: Judged,
        one: &mut Compared,
    ) -> store::Result<DriftWindow> {
        let mut window = self.act(running, work, window).await?;
        if window.verdict == Verdict::WrittenOff {
            window.action =
                note_discards(&*self.store, &window.halves.pushes.written_off_pushes).await?;
        }
        one.count(window.verdict, 1);
        one.observe(&window);
        drift_window(window)
    }

    async fn day_row(
        &self,
        work: &Work,
        day: &JudgedDay,
        (verdict, reason): (Verdict, Reason),
        windows: Vec<DriftWindow>,
    ) -> store::Result<PassRow> {
        let sums = day.sums()?;
        let mut marks = day.aside.marks();
        if self.shadow && sums.counted != Quantity::ZERO {
            marks.shadow = Some(sums.counted);
        }
        let pushes: Vec<u64> = day
            .parts
            .iter()
            .flat_map(|part| part.halves.pushes.written_off_pushes.iter().copied())
            .collect();
        marks.written_off = (!pushes.is_empty()).then_some(sums.written_off);
        marks.note = note_discards(&*self.store, &pushes).await?;
        let ledger = sums.counted.checked_add(day.aside.sum()?).ok_or_else(too_large)?;
        Ok(PassRow {
            tenant: work.pair.tenant.clone(),
            meter: work.pair.meter,
            day: day.day,
            ledger,
            pushed: sums.billed,
            provider: sums.provider,
            verdict,
            reason,
            windows,
            marks,
            hash: None,
        })
    }

    /// Confirmed pushes of a day that is equal for each of its customers become reconciled.
    async fn close_equal(
        &self,
        running: &Running,
        work: &Work,
        day: &JudgedDay,
    ) -> Result<(), PassError> {
        let confirmed = day.parts.iter().any(|part| part.halves.pushes.confirmed > 0);
        let equal = day.parts.iter().all(agrees);
        if confirmed && equal && running.pass.order.apply {
            self.close(&work.pair.tenant, work.pair.meter, day.day).await?;
        }
        Ok(())
    }

    /// Confirmed pushes of the window become reconciled.
    pub(super) async fn close(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        window: Window,
    ) -> store::Result<()> {
        let closed = self.store.close_pushes(tenant, meter, window, self.clock.now()).await;
        unless_fault(closed).map(drop)
    }

    /// The same for windows, and days of findings, once the day is old enough for a nightly pass:
    /// what a nightly pass found waiting or different, and late revisions, agree in a later pass.
    async fn close_ended(
        &self,
        running: &Running,
        work: &Work,
        judged: &[Judged],
    ) -> Result<(), PassError> {
        let ended = ended_day(self.clock.now());
        let ended = judged.iter().filter(|part| part.halves.window.end <= ended);
        let windows: BTreeSet<(Timestamp, Timestamp)> = ended
            .filter(|part| part.halves.pushes.confirmed > 0)
            .map(|part| (part.halves.window.start, part.halves.window.end))
            .collect();
        for (start, end) in windows {
            let whole = Window { start, end };
            let mut parts = judged.iter().filter(|part| part.halves.window == whole);
            if running.pass.order.apply && parts.all(agrees) {
                self.close(&work.pair.tenant, work.pair.meter, whole).await?;
            }
        }
        Ok(())
    }

    /// Windows with anything on either side, each with its verdict, by customer.
    async fn judge_windows(
        &self,
        readings: &Readings,
        work: &Work,
        range: Window,
    ) -> store::Result<Vec<Judged>> {
        let length = window_length(work, range);
        let (mut parts, _) = self.load_parts(readings, work, range, Some(length)).await?;
        parts.retain(|part| !part.halves.is_empty());
        Ok(parts.into_iter().map(|part| self.judge(work, part)).collect())
    }

    /// Every one of the days with its verdicts.
    async fn judge_days(
        &self,
        readings: &Readings,
        work: &Work,
        days: &[Window],
    ) -> store::Result<Vec<JudgedDay>> {
        let (Some(first), Some(last)) = (days.first(), days.last()) else { return Ok(Vec::new()) };
        let range = Window { start: first.start, end: last.end };
        let (parts, aside) = self.load_parts(readings, work, range, None).await?;
        let empty =
            |day: &Window| JudgedDay { day: *day, parts: Vec::new(), aside: Aside::default() };
        let mut judged: Vec<JudgedDay> = days.iter().map(empty).collect();
        for (start, cause, usage) in aside {
            if let Some(one) = judged.iter_mut().find(|one| one.day.contains(start)) {
                one.aside.add(cause, usage)?;
            }
        }
        for customer in work.customers() {
            let whose = (&work.pair.tenant, customer);
            let meter = work.pair.meter;
            let read = self.store.read_summaries(whose, meter, range, MICROS_PER_DAY).await?;
            for one in &mut judged {
                let day = one.day;
                let inside = || parts.iter().filter(|part| day.contains(part.halves.window.start));
                let of_it: Vec<Halves> = inside()
                    .filter(|part| part.customer == *customer)
                    .map(|part| part.halves.clone())
                    .collect();
                let today = *customer == work.pair.customer;
                if of_it.is_empty() && !today {
                    continue;
                }
                let summary = if begins_in(work, day) {
                    self.sum_windows(readings, work, (customer, day)).await?
                } else {
                    let stored = read.iter().find(|summary| summary.window == day).copied();
                    readings.of_this_pass(work, customer, stored)
                };
                let halves = Halves::together(day, &of_it, summary).ok_or_else(too_large)?;
                let mut owners = inside().filter(|part| part.own && !part.halves.is_empty());
                let owner = owners.next().map_or(&work.pair.customer, |part| &part.customer);
                let part = Part { customer: customer.clone(), own: owner == customer, halves };
                one.parts.push(self.judge(work, part));
            }
        }
        Ok(judged)
    }

    /// What the provider shows of the billed windows of the day on which billing began; none if one
    /// of them was not read in this pass.
    async fn sum_windows(
        &self,
        readings: &Readings,
        work: &Work,
        (customer, day): (&CustomerId, Window),
    ) -> store::Result<Option<Summary>> {
        let billed = Window { start: work.start(), end: day.end };
        let length = window_length(work, day);
        let whose = (&work.pair.tenant, customer);
        let parts = self.store.read_summaries(whose, work.pair.meter, billed, length).await?;
        let mut all: Option<Summary> = None;
        for part in parts {
            if !readings.has_read(work, customer, part.window) {
                return Ok(None);
            }
            let sum = all.unwrap_or(Summary { window: day, value: Quantity::ZERO, ..part });
            all = Some(Summary {
                window: day,
                value: sum.value.checked_add(part.value).ok_or_else(too_large)?,
                read_at: sum.read_at.min(part.read_at),
                read_before: sum.read_before.min(part.read_before),
                since: sum.since.max(part.since),
                reads: sum.reads.min(part.reads),
            });
        }
        Ok(all)
    }

    /// A window or a day that a finding names.
    async fn judge_whole(
        &self,
        readings: &Readings,
        work: &Work,
        window: Window,
    ) -> store::Result<Vec<Judged>> {
        if window.micros() == MICROS_PER_DAY {
            let days = self.judge_days(readings, work, &[window]).await?;
            return Ok(days.into_iter().flat_map(|day| day.parts).collect());
        }
        self.judge_windows(readings, work, window).await
    }

    fn judge(&self, work: &Work, Part { customer, own, halves }: Part) -> Judged {
        let terms = Terms {
            now: self.clock.now(),
            decide: self.provider.limits().horizons.decide,
            tolerance: work.meter.spec.drift_tolerance,
        };
        let (mut verdict, mut reason) = judge_drift(&halves, terms);
        if planted("bug.resend_on_stale_reading")
            && !halves.pushes.dropped_pushes.is_empty()
            && halves.delta() == Some(Quantity::ZERO)
        {
            (verdict, reason) = (Verdict::Replay, Reason::Dropped);
        }
        let (verdict, reason) = self.judge_shadow(&halves, (verdict, reason));
        Judged { customer, own, halves, verdict, reason, action: None }
    }

    /// In shadow mode nothing is billed, so nothing is equal: what is sent nowhere is not compared,
    /// and what a sandbox shows agrees at most.
    fn judge_shadow(&self, halves: &Halves, verdict: (Verdict, Reason)) -> (Verdict, Reason) {
        let agreed = verdict.0 == Verdict::Equal && !halves.is_empty();
        if self.shadow && !self.provider.limits().sends {
            (Verdict::Shadow, Reason::Shadow)
        } else if self.shadow && agreed {
            (Verdict::Shadow, Reason::Matches)
        } else {
            verdict
        }
    }

    /// Sends again what may safely be sent again, if that is wanted. A total that fell may rise by
    /// itself, since summaries are consistent only in the end; so a loss has to last.
    async fn act(
        &self,
        running: &mut Running,
        work: &Work,
        mut judged: Judged,
    ) -> store::Result<Judged> {
        let by_person = running.pass.order.kind == PassKind::OneShot;
        let apply = running.pass.order.apply;
        let wanted = |setting: bool| apply && (by_person || setting);
        let Some(now) = sure_time(&self.clock, "reconcile") else { return Ok(judged) };
        match (judged.verdict, judged.reason) {
            (Verdict::Replay, Reason::Dropped) if wanted(self.settings.replay) => {
                for push in &judged.halves.pushes.dropped_pushes {
                    let ruling = unless_fault(self.store.retry_push(*push, now).await)?;
                    if let Some(Ruling::Done(Some(next))) = ruling {
                        running.progress.replayed += 1;
                        judged.action = Some(format!("push {push} is sent again as push {next}"));
                    }
                }
            }
            // Of a day it is not known in which window it was lost.
            (Verdict::Replay, Reason::Lost)
                if wanted(self.settings.reissue)
                    && judged.halves.window.micros()
                        == window_length(work, judged.halves.window) =>
            {
                if !judged.halves.is_loss_proved() {
                    let what = "the difference is sent once the provider has shown it for an hour";
                    judged.action = Some(what.to_owned());
                    return Ok(judged);
                }
                let order = ReissueOrder {
                    tenant: work.pair.tenant.clone(),
                    meter: work.pair.meter,
                    window: judged.halves.window,
                    customer: judged.customer.clone(),
                    settled: judged.halves.pushes.settled,
                    provider: judged.halves.provider(),
                    pass: running.pass.number,
                };
                match unless_fault(self.store.record_reissue(order, now).await)? {
                    Some(Ruling::Done(next)) => {
                        running.progress.reissued += 1;
                        let push = next.map_or_else(String::new, |next| format!(" by push {next}"));
                        judged.action = Some(format!("the difference is sent{push}"));
                    }
                    Some(Ruling::Refused(why)) => judged.action = Some(why.to_owned()),
                    Some(Ruling::NotFound) => {}
                    None => judged.action = Some(FAULTY.to_owned()),
                }
            }
            (_, _) => {}
        }
        Ok(judged)
    }
}

impl Judged {
    /// As findings name it: by the window, and by the customer where the window is another's.
    fn name(&self) -> String {
        let window = name(self.halves.window);
        if self.own { window } else { format!("{window} {}", self.customer) }
    }
}

impl JudgedDay {
    fn differs(&self) -> bool {
        self.parts.iter().any(differs)
    }

    /// The worst of its parts.
    fn verdict(&self) -> (Verdict, Reason) {
        let verdicts = self.parts.iter().map(|part| (part.verdict, part.reason));
        verdicts.max_by_key(|(verdict, _)| *verdict).unwrap_or((Verdict::Equal, Reason::Matches))
    }

    fn sums(&self) -> store::Result<DaySums> {
        let zero = Quantity::ZERO;
        let mut sums =
            DaySums { counted: zero, billed: zero, written_off: zero, provider: Some(zero) };
        for Judged { halves, .. } in &self.parts {
            let add = |sum: Quantity, part| sum.checked_add(part).ok_or_else(too_large);
            sums.counted = add(sums.counted, halves.counted)?;
            sums.billed = add(sums.billed, halves.billed().ok_or_else(too_large)?)?;
            sums.written_off = add(sums.written_off, halves.pushes.written_off)?;
            sums.provider = match (sums.provider, halves.summary) {
                (Some(sum), Some(part)) => Some(add(sum, part.value)?),
                (None, _) | (_, None) => None,
            };
        }
        Ok(sums)
    }
}

/// Whether its windows are worth a look: both sides are known, and not the same.
fn differs(judged: &Judged) -> bool {
    judged.verdict == Verdict::WrittenOff || judged.verdict.differs()
}

/// Whether both sides agree, so that nothing of it has to be looked at again.
fn agrees(judged: &Judged) -> bool {
    match judged.verdict {
        Verdict::Equal | Verdict::WrittenOff => true,
        Verdict::Shadow => judged.reason == Reason::Matches,
        Verdict::Tolerance
        | Verdict::NotBilled
        | Verdict::Waiting
        | Verdict::Unread
        | Verdict::Unmapped
        | Verdict::Replay
        | Verdict::Bypass
        | Verdict::Undecidable => false,
    }
}

fn drift_window(judged: Judged) -> store::Result<DriftWindow> {
    let Judged { halves, verdict, reason, action, .. } = judged;
    Ok(DriftWindow {
        start: halves.window.start,
        end: halves.window.end,
        ledger: halves.counted,
        pushed: halves.billed().ok_or_else(too_large)?,
        provider: halves.summary.map(|summary| summary.value),
        verdict,
        reason,
        action,
    })
}
