//! The comparison itself: both halves of windows and days, judged and acted on.
//!
//! Windows are compared where something has moved lately. Further back days are compared, and only
//! the windows of a day that differs; so one call reads a tenant's weeks.
//!
//! Invariant: windows of which nothing is known on either side are left out; every other one gets
//! a verdict. Windows that were first cut under the other value of shadow are left out too: their
//! usage is not meant to be there.

use super::{NIGHTLY_DAYS, PassError, Reconciler, Running, Work};
use crate::faults::planted;
use crate::rules::drift::{
    Halves, PushSums, Reason, Summary, Terms, Verdict, WindowPush, is_followed, judge_drift,
};
use crate::rules::finding::{FindingKind, Observation};
use crate::rules::pass::{DriftWindow, PassKind, PassRow};
use crate::rules::push::{CutState, WindowUsage};
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::{MICROS_PER_DAY, Timestamp};
use crate::rules::usage::UsageRow;
use crate::rules::window::Window;
use crate::store;
use crate::store::push::Ruling;
use crate::store::reconciliation::{CorrectionOrder, Pair};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long after a first reading a second one counts as another.
const READ_AGAIN_AFTER: Duration = Duration::from_millis(1_100);

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

/// A window or a day with its verdict.
struct Judged {
    halves: Halves,
    verdict: Verdict,
    reason: Reason,
    action: Option<String>,
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

    fn count(&mut self, judged: &Judged, windows: u64) {
        self.windows += windows;
        *self.verdicts.entry(judged.verdict).or_default() += windows;
    }

    fn observe(&mut self, judged: &Judged) {
        let Judged { halves, verdict, reason, action } = judged;
        self.subjects.insert(name(halves.window));
        if !is_followed(*verdict, *reason) {
            return;
        }
        let (settled, provider) = (halves.pushes.settled, halves.provider());
        let done = action.as_ref().map_or_else(String::new, |action| format!("; {action}"));
        let waiting = &halves.pushes.dropped;
        let lacking = if *reason == Reason::Dropped { *waiting } else { Quantity::ZERO };
        let told = settled.checked_add(lacking).unwrap_or(settled);
        let ledger = if *reason == Reason::Uncut { halves.counted } else { told };
        self.observations.push(Observation {
            kind: FindingKind::Usage,
            tenant: Some(self.pair.tenant.clone()),
            meter: Some(self.pair.meter),
            subject: name(halves.window),
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

/// The window that a finding names.
fn parse_name(subject: &str) -> Option<Window> {
    let (start, end) = subject.split_once('/')?;
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

impl Reconciler {
    /// Compares the windows of the pass's range, and the days of findings that lie further back.
    pub(super) async fn compare_windows(
        &self,
        running: &mut Running,
        works: &[Work],
    ) -> Result<Vec<Compared>, PassError> {
        let (kind, range) = (running.pass.order.kind, running.pass.order.range);
        let asked = works.iter().map(|work| (work.clone(), windows_of(work, range))).collect();
        running.progress.reads += self.read_totals(kind, asked).await?;
        let old: Vec<Vec<Window>> = works.iter().map(|work| running.old_windows(work)).collect();
        let asked = works.iter().zip(&old).flat_map(|(work, old)| {
            old.iter().map(|window| (work.clone(), vec![*window])).collect::<Vec<_>>()
        });
        let asked = asked.collect();
        running.progress.reads += self.read_totals(kind, asked).await?;
        let mut compared = Vec::with_capacity(works.len());
        for (work, old) in works.iter().zip(old) {
            let mut one = Compared::new(work);
            for judged in self.judge_windows(work, range).await? {
                let judged = self.act(running, work, judged).await?;
                one.count(&judged, 1);
                one.observe(&judged);
            }
            // A window that was judged is cleared even if nothing is left of it.
            one.subjects.extend(windows_of(work, range).into_iter().map(name));
            for window in old {
                if let Some(judged) = self.judge_whole(work, window).await? {
                    let judged = self.act(running, work, judged).await?;
                    one.count(&judged, 1);
                    one.observe(&judged);
                }
                one.subjects.insert(name(window));
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
            asked.push((work.clone(), whole));
            asked.extend(parts.into_iter().map(|day| (work.clone(), windows_of(work, day))));
        }
        running.progress.reads += self.read_totals(kind, asked).await?;
        // Of days that differ, and are in question, the windows are read too.
        let mut judged_days = Vec::with_capacity(works.len());
        let mut asked = Vec::new();
        for work in works {
            let judged = self.judge_days(work, &days(work)).await?;
            for day in judged.iter().filter(|day| differs(day) && focus.contains(day.start())) {
                let windows = windows_of(work, day.halves.window);
                asked.push((work.clone(), windows));
            }
            judged_days.push(judged);
        }
        running.progress.reads += self.read_totals(kind, asked.clone()).await?;
        if kind == PassKind::OneShot && !asked.is_empty() {
            // Whoever waits for the answer shall not have to ask twice.
            tokio::time::sleep(READ_AGAIN_AFTER).await;
            running.progress.reads += self.read_totals(kind, asked).await?;
        }
        let mut compared = Vec::with_capacity(works.len());
        for (work, days) in works.iter().zip(judged_days) {
            let mut one = Compared::new(work);
            for day in days {
                self.finish_day(running, work, day, &mut one).await?;
            }
            compared.push(one);
        }
        Ok(compared)
    }

    /// The row of a day, with the windows that differ; what is confirmed in an equal one is closed.
    async fn finish_day(
        &self,
        running: &mut Running,
        work: &Work,
        day: Judged,
        one: &mut Compared,
    ) -> Result<(), PassError> {
        let focus = running.pass.order.range;
        let windows = u64::try_from(windows_of(work, day.halves.window).len()).unwrap_or(u64::MAX);
        if !focus.contains(day.start()) {
            let day = self.act(running, work, day).await?;
            one.count(&day, windows);
            one.observe(&day);
            return Ok(());
        }
        let (mut verdict, mut reason, mut drifting) = (day.verdict, day.reason, Vec::new());
        if differs(&day) {
            let judged = self.judge_windows(work, day.halves.window).await?;
            let equal = judged.iter().filter(|window| !differs(window)).count();
            let unseen = windows - u64::try_from(judged.len()).unwrap_or(windows).min(windows);
            let equal = unseen + u64::try_from(equal).unwrap_or(0);
            one.windows += equal;
            *one.verdicts.entry(Verdict::Equal).or_default() += equal;
            for window in judged.into_iter().filter(differs) {
                let window = self.act(running, work, window).await?;
                one.count(&window, 1);
                one.observe(&window);
                if drifting.is_empty() || window.verdict > verdict {
                    (verdict, reason) = (window.verdict, window.reason);
                }
                drifting.push(drift_window(window));
            }
        } else {
            one.count(&day, windows);
        }
        if drifting.is_empty() {
            one.observe(&day);
        }
        one.subjects.extend(windows_of(work, day.halves.window).into_iter().map(name));
        let Halves { window, counted, planned, .. } = day.halves;
        if verdict == Verdict::Equal && running.pass.order.kind == PassKind::Nightly {
            let Pair { tenant, meter, .. } = &work.pair;
            self.store.close_pushes(tenant, *meter, window, self.clock.now()).await?;
        }
        one.rows.push(PassRow {
            tenant: work.pair.tenant.clone(),
            meter: work.pair.meter,
            day: window,
            ledger: counted,
            pushed: planned,
            provider: day.halves.provider(),
            verdict,
            reason,
            windows: drifting,
            hash: [0; 32],
        });
        Ok(())
    }

    /// Windows with anything on either side, each with its verdict.
    async fn judge_windows(&self, work: &Work, range: Window) -> store::Result<Vec<Judged>> {
        let length = window_length(work, range);
        let Pair { tenant, meter, customer } = &work.pair;
        let whose = (tenant, customer);
        let summaries = self.store.read_summaries(whose, *meter, range, length).await?;
        let mut halves = self.load_halves(work, range, &summaries).await?;
        halves.retain(|halves| !halves.is_empty());
        Ok(halves.into_iter().map(|halves| self.judge(work, halves)).collect())
    }

    /// Every one of the days with its verdict.
    async fn judge_days(&self, work: &Work, days: &[Window]) -> store::Result<Vec<Judged>> {
        let (Some(first), Some(last)) = (days.first(), days.last()) else { return Ok(Vec::new()) };
        let range = Window { start: first.start, end: last.end };
        let Pair { tenant, meter, customer } = &work.pair;
        let whose = (tenant, customer);
        let summaries = self.store.read_summaries(whose, *meter, range, MICROS_PER_DAY).await?;
        let windows = self.load_halves(work, range, &[]).await?;
        let mut judged = Vec::with_capacity(days.len());
        for day in days {
            let inside: Vec<Halves> = windows
                .iter()
                .filter(|halves| day.contains(halves.window.start))
                .cloned()
                .collect();
            let summary = if begins_in(work, *day) {
                self.sum_windows(work, *day).await?
            } else {
                summaries.iter().find(|summary| summary.window == *day).copied()
            };
            let whole = Halves::together(*day, &inside, summary).ok_or_else(too_large)?;
            judged.push(self.judge(work, whole));
        }
        Ok(judged)
    }

    /// What the provider shows of the billed windows of the day on which billing began.
    async fn sum_windows(&self, work: &Work, day: Window) -> store::Result<Option<Summary>> {
        let billed = Window { start: work.billing().start(), end: day.end };
        let length = window_length(work, day);
        let Pair { tenant, meter, customer } = &work.pair;
        let parts = self.store.read_summaries((tenant, customer), *meter, billed, length).await?;
        let mut all: Option<Summary> = None;
        for part in parts {
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
    async fn judge_whole(&self, work: &Work, window: Window) -> store::Result<Option<Judged>> {
        if window.micros() == MICROS_PER_DAY {
            return Ok(self.judge_days(work, &[window]).await?.pop());
        }
        Ok(self.judge_windows(work, window).await?.pop())
    }

    fn judge(&self, work: &Work, halves: Halves) -> Judged {
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
        Judged { halves, verdict, reason, action: None }
    }

    /// Both halves of every window of the range that has anything on our side, or a summary.
    async fn load_halves(
        &self,
        work: &Work,
        range: Window,
        summaries: &[Summary],
    ) -> store::Result<Vec<Halves>> {
        let Pair { tenant, meter, .. } = &work.pair;
        let billing = work.billing();
        let around = |at: Timestamp| billing.window_around(at, work.meter.spec.bucket);
        let mut usage: BTreeMap<Timestamp, Vec<UsageRow>> = BTreeMap::new();
        for row in self.store.read_usage(tenant, *meter, range).await? {
            usage.entry(around(row.bucket_start).start).or_default().push(row);
        }
        let cuts: BTreeMap<Timestamp, CutState> =
            self.store.read_cuts(tenant, *meter, range).await?.into_iter().collect();
        let mut pushes: BTreeMap<Timestamp, Vec<WindowPush>> = BTreeMap::new();
        for push in self.store.read_window_pushes(tenant, *meter, range).await? {
            if push.shadow == self.shadow {
                pushes.entry(push.window.start).or_default().push(push);
            }
        }
        let read = |summary: &Summary| (summary.window.start, *summary);
        let summaries: BTreeMap<Timestamp, Summary> = summaries.iter().map(read).collect();
        let starts: BTreeSet<Timestamp> = usage
            .keys()
            .chain(cuts.keys())
            .chain(pushes.keys())
            .chain(summaries.keys())
            .copied()
            .filter(|start| *start >= billing.start())
            .filter(|start| cuts.get(start).is_none_or(|cut| cut.shadow == self.shadow))
            .collect();
        let mut halves = Vec::with_capacity(starts.len());
        for start in starts {
            let rows = usage.get(&start).map(Vec::as_slice).unwrap_or_default();
            let usage = WindowUsage::measure(rows).map_err(|_| too_large())?;
            let own = pushes.get(&start).map(Vec::as_slice).unwrap_or_default();
            let sums = PushSums::of_window(own).ok_or_else(too_large)?;
            let counted = (usage.billable, usage.count);
            let summary = summaries.get(&start).copied();
            halves.push(Halves::new(around(start), counted, cuts.get(&start), sums, summary));
        }
        Ok(halves)
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
        let now = self.clock.now();
        match (judged.verdict, judged.reason) {
            (Verdict::Replay, Reason::Dropped) if wanted(self.settings.replay) => {
                for push in &judged.halves.pushes.dropped_pushes {
                    if let Ruling::Done(Some(next)) = self.store.retry_push(*push, now).await? {
                        running.progress.replayed += 1;
                        judged.action = Some(format!("push {push} is sent again as push {next}"));
                    }
                }
            }
            // Of a day it is not known in which window it was lost.
            (Verdict::Replay, Reason::Lost)
                if wanted(self.settings.correct)
                    && judged.halves.window.micros()
                        == window_length(work, judged.halves.window) =>
            {
                if !judged.halves.is_loss_proved() {
                    let what = "the difference is sent once the provider has shown it for an hour";
                    judged.action = Some(what.to_owned());
                    return Ok(judged);
                }
                let order = CorrectionOrder {
                    tenant: work.pair.tenant.clone(),
                    meter: work.pair.meter,
                    window: judged.halves.window,
                    settled: judged.halves.pushes.settled,
                    provider: judged.halves.provider(),
                    pass: running.pass.number,
                };
                match self.store.record_correction(order, now).await? {
                    Ruling::Done(next) => {
                        running.progress.corrected += 1;
                        let push = next.map_or_else(String::new, |next| format!(" by push {next}"));
                        judged.action = Some(format!("the difference is sent{push}"));
                    }
                    Ruling::Refused(why) => judged.action = Some(why.to_owned()),
                    Ruling::NotFound => {}
                }
            }
            (_, _) => {}
        }
        Ok(judged)
    }
}

impl Judged {
    fn start(&self) -> Timestamp {
        self.halves.window.start
    }
}

fn differs(judged: &Judged) -> bool {
    match judged.verdict {
        Verdict::Equal => false,
        Verdict::Tolerance
        | Verdict::Waiting
        | Verdict::Replay
        | Verdict::Bypass
        | Verdict::Undecidable => true,
    }
}

fn drift_window(judged: Judged) -> DriftWindow {
    let Judged { halves, verdict, reason, action } = judged;
    DriftWindow {
        start: halves.window.start,
        end: halves.window.end,
        ledger: halves.counted,
        pushed: halves.planned,
        provider: halves.provider(),
        verdict,
        reason,
        action,
    }
}

/// The part of a range from which on the meter is billed.
fn billed_part(work: &Work, range: Window) -> Window {
    let first = work.billing().window_around(work.billing().start(), work.meter.spec.bucket);
    Window { start: range.start.max(first.start), end: range.end }
}

/// Whether billing began within the day, after its start.
fn begins_in(work: &Work, day: Window) -> bool {
    let start = work.billing().start();
    day.start < start && start < day.end
}

/// The windows of a range that are billed, oldest first.
fn windows_of(work: &Work, range: Window) -> Vec<Window> {
    let range = billed_part(work, range);
    let around = |at: Timestamp| work.billing().window_around(at, work.meter.spec.bucket);
    let mut windows = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let window = around(at);
        at = window.end;
        windows.push(window);
    }
    windows
}

fn days_of(range: Window) -> Vec<Window> {
    let mut start = range.start.micros().div_euclid(MICROS_PER_DAY) * MICROS_PER_DAY;
    let mut days = Vec::new();
    while start < range.end.micros() {
        let end = start + MICROS_PER_DAY;
        days.push(Window {
            start: Timestamp::from_micros(start),
            end: Timestamp::from_micros(end),
        });
        start = end;
    }
    days
}

fn window_length(work: &Work, range: Window) -> i64 {
    work.billing().window_around(range.start, work.meter.spec.bucket).micros()
}

fn too_large() -> store::Error {
    store::Error::Corrupt { what: "totals of a tenant cannot be added up".into() }
}
