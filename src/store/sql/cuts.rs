//! Cuts: windows handed to billing, each change of a window once.
//!
//! Invariant: a window's state, its pushes and the remainder of its tenant and meter change in one
//! transaction, which holds the lease, then the tenant's and meter's row in `remainders` (that of
//! billed windows covers both), then the windows' rows in `cuts`, always in the order of
//! tenant, meter and window. So two servers never cut one window from the same state, and never
//! wait in a circle. Totals are read after those locks, so a later cut never sees less.
//!
//! What credits cover of a window changes in the same transaction. The order of all locks that
//! concern money is: lease, remainders, cuts, grants by number, accounts (those that are missing by
//! tenant and name, then by number), keys of entries, messages, the request's key. Verbs of tenants
//! (`credits`, `sagas`, `quotes`) lock the tenant's row before all of these; so does a cut with the
//! rows of tenants without a customer (`waiting`), in the order of their numbers.
//!
//! Meters billed by event: an event was cut if a push names it (`pushes.event_id`) or, where its
//! quantity was zero or is carried, if it is in `carried_events`; both are written in the
//! transaction that adds it to its window's total. A push that is replaced hands its event on to
//! the push that takes its place.
//!
//! A window is divided by the timeline of its tenant, which is read inside the transaction. Where
//! something changes inside the window, its events are read and not its total alone.
//!
//! A crash leaves all of a call or nothing. A call that is repeated because its outcome was lost
//! finds the windows as they were cut, unchanged, and writes nothing.

use super::coverings::Coverings;
use super::cut_rows::{
    Remainders, States, WindowKey, insert_carried, lock_remainders, lock_states, read_cuts,
    read_last_revisions, read_revisions, write_remainders, write_states,
};
use super::declarations::read_meters;
use super::leases::hold_lease;
use super::recuts::{finish_recut, list_recuts, request_recut};
use super::subscriptions::read_attributions;
use super::waiting::lock_unmapped;
use super::{Done, Row, Session, SqlStore, values};
use crate::faults::planted;
use crate::rules::attribution::{Attribution, Divided, Layout, Outside, StretchSums};
use crate::rules::billing::{Billing, Granularity, Mode};
use crate::rules::credit::covering::CoverOrder;
use crate::rules::cut::{
    OpenEvents, PriorPushes, Subject, WindowCut, check_billable, draws_credits, events_give_back,
    plan_events, plan_window, window_gives_back,
};
use crate::rules::ids::{EventId, MeterNo, TenantId, TenantNo};
use crate::rules::meter::Meter;
use crate::rules::push::{CutState, NewPush, Place, WindowUsage};
use crate::rules::timestamp::Timestamp;
use crate::rules::waiting::judge_planned;
use crate::rules::window::Window;
use crate::store::Result;
use crate::store::push::{
    CutOrder, CutReport, CutTerms, Cuts, Lease, Recut, TransitionLine, log_transition,
};
use async_trait::async_trait;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A window that is to be cut.
pub struct CutWindow {
    pub tenant_no: TenantNo,
    pub tenant: TenantId,
    pub meter_no: MeterNo,
    pub meter: Arc<Meter>,
    /// How the meter is billed.
    pub billing: Billing,
    pub window: Window,
    /// Whether it is cut also if it has as many events as at its last cut.
    pub recut: bool,
}

impl CutWindow {
    pub fn key(&self) -> WindowKey {
        WindowKey { tenant_no: self.tenant_no, meter: self.meter_no, start: self.window.start }
    }

    fn place(&self) -> Place<'_> {
        Place { tenant: &self.tenant, meter: self.meter.slug.as_str(), window: self.window }
    }

    /// As it is named before tenants have numbers.
    pub fn name(&self) -> WindowName {
        (self.tenant.clone(), self.meter_no, self.window.start)
    }

    fn order(&self) -> CutOrder {
        let Self { window, recut, meter_no: meter, .. } = *self;
        CutOrder { tenant: self.tenant.clone(), meter, window, recut }
    }

    fn is_by_event(&self) -> bool {
        self.billing.granularity == Granularity::Event
    }

    fn divide(&self, attribution: &Attribution) -> Layout {
        divide_window(&self.billing, self.window, attribution)
    }
}

/// Divides a window of a meter that is billed like this.
pub fn divide_window(billing: &Billing, window: Window, attribution: &Attribution) -> Layout {
    let one_total = billing.mode == Mode::Absolute || planted("bug.windows_undivided");
    attribution.divide(window, one_total)
}

/// A window by its tenant, its meter and its start.
pub type WindowName = (TenantId, MeterNo, Timestamp);

/// What was read of windows before the transaction, by stores whose transactions must be short.
#[derive(Default)]
pub struct Listed {
    /// Events that are to be cut one by one.
    pub events: BTreeMap<WindowName, OpenEvents>,
    /// Sums of windows in which something changes, and by which layout.
    pub stretches: BTreeMap<WindowName, (Layout, StretchSums)>,
}

/// A window that has changed since its last cut, or is cut again.
struct ChangedWindow<'w> {
    window: &'w CutWindow,
    content: Content,
}

/// What a window is cut by.
enum Content {
    Whole(Divided),
    /// Its meter is billed event by event, and these are to be added.
    Events(OpenEvents),
}

#[async_trait]
impl<S: SqlStore> Cuts for S {
    async fn read_cuts(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        range: Window,
    ) -> Result<Vec<(Timestamp, CutState)>> {
        let tenant = tenant.clone();
        self.in_reader(move |session| read_cuts(session, &tenant, meter, range)).await
    }

    async fn record_cuts(
        &self,
        lease: &Lease,
        orders: Vec<CutOrder>,
        terms: CutTerms,
    ) -> Result<CutReport> {
        let listed = self.list_before_cut(orders.clone(), terms.events_max).await?;
        let (lease, secret) = (lease.clone(), self.push_secret());
        let work = move |session: &dyn Session| {
            cut_windows(session, &secret, &lease, (&orders, &listed), terms)
        };
        let (report, lines) = self.in_transaction(work).await?;
        lines.iter().for_each(log_transition);
        Ok(report)
    }

    async fn read_cut_marks(&self) -> Result<Vec<(MeterNo, Timestamp)>> {
        let sql = "-- read_cut_marks\nSELECT meter_no, mark FROM cut_marks ORDER BY meter_no";
        let decode = |row: &Row| Ok((row.get("cut_marks.meter_no")?, row.get("cut_marks.mark")?));
        self.in_reader(move |session| session.read_all(sql, &[], decode)).await
    }

    async fn record_cut_mark(
        &self,
        lease: &Lease,
        meter: MeterNo,
        mark: Timestamp,
    ) -> Result<bool> {
        let lease = lease.clone();
        self.in_transaction(move |session| {
            let held = hold_lease(session, &lease)?;
            if held {
                let sql = "-- record_cut_mark
                    INSERT INTO cut_marks (meter_no, mark) VALUES ($1, $2)
                    ON CONFLICT (meter_no) DO UPDATE SET mark = excluded.mark";
                session.run(sql, values![meter, mark])?;
            }
            Ok(held)
        })
        .await
    }

    async fn divide_usage(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        window: Window,
        borders: &[Timestamp],
        outside: Outside,
    ) -> Result<Option<Divided>> {
        let order = CutOrder { tenant: tenant.clone(), meter, window, recut: true };
        let found = self
            .in_reader(move |session| {
                let orders = [order];
                let tenants = number_tenants(session, &orders)?;
                let window = sort_orders(session, &orders, &tenants)?.pop();
                let all = tenants.into_values().collect();
                let attribution = read_attributions(session, &all)?.into_values().next();
                Ok(window.map(|window| (window, attribution.unwrap_or_default())))
            })
            .await?;
        let Some((window, attribution)) = found else { return Ok(None) };
        let layout = attribution.with_borders(borders).divide(window.window, false);
        let place = window.place().to_string();
        let sums = self.sum_window(window, layout.clone()).await?;
        let divided = layout.attribute(&sums.by_stretch, sums.count, outside);
        Ok(Some(divided.map_err(|fault| fault.of(&place))?))
    }

    async fn request_recut(&self, tenant: &TenantId, range: Window, at: Timestamp) -> Result<()> {
        let tenant = tenant.clone();
        self.in_transaction(move |session| {
            let Some(number) = session.find_tenant(&tenant)? else { return Ok(()) };
            request_recut(session, number, range, at)
        })
        .await
    }

    async fn list_recuts(&self, limit: usize) -> Result<Vec<Recut>> {
        self.in_reader(move |session| list_recuts(session, limit)).await
    }

    async fn finish_recut(&self, lease: &Lease, number: u64) -> Result<bool> {
        let lease = lease.clone();
        self.in_transaction(move |session| {
            let held = hold_lease(session, &lease)?;
            if held {
                finish_recut(session, number)?;
            }
            Ok(held)
        })
        .await
    }
}

/// Everything but the commit.
fn cut_windows(
    session: &dyn Session,
    secret: &[u8; 32],
    lease: &Lease,
    (orders, listed): (&[CutOrder], &Listed),
    terms: CutTerms,
) -> Done<(CutReport, Vec<TransitionLine>)> {
    let tenants = number_tenants(session, orders)?;
    let waiting = lock_unmapped(session, &tenants.values().copied().collect())?;
    if !hold_lease(session, lease)? {
        return Ok((CutReport { lease_lost: true, ..CutReport::default() }, Vec::new()));
    }
    let windows = sort_orders(session, orders, &tenants)?;
    for window in &windows {
        check_billable(&window.meter).map_err(|fault| fault.of(&window.place()))?;
    }
    let pairs = windows.iter().map(|window| (window.tenant_no, window.meter_no)).collect();
    let remainders = lock_remainders(session, &pairs)?;
    let keys = windows.iter().map(CutWindow::key).collect();
    let states = lock_states(session, &keys)?;
    let attributions = read_attributions(session, &tenants.values().copied().collect())?;
    let new = Cutting::new(terms);
    let mut cutting = Cutting { waiting, remainders, states, attributions, ..new };
    let changed = cutting.list_changed(session, &windows, listed)?;
    cutting.read(session, &changed)?;
    for one in changed {
        cutting.cut(one)?;
    }
    cutting.write(session, secret)
}

/// The numbers of those of the tenants that are known.
fn number_tenants(
    session: &dyn Session,
    orders: &[CutOrder],
) -> Done<BTreeMap<TenantId, TenantNo>> {
    let sql = "-- number_tenants
        WITH given (id) AS (VALUES ($::text), ...)
        SELECT tenant, tenant_no FROM given JOIN tenants ON tenant = id";
    let ids: BTreeSet<&TenantId> = orders.iter().map(|order| &order.tenant).collect();
    let rows = ids.into_iter().map(|id| values![id].to_vec());
    let numbered = session.read_batch(sql, rows, |row| {
        Ok((row.get("tenants.tenant")?, row.get("tenants.tenant_no")?))
    })?;
    Ok(numbered.into_iter().collect())
}

/// The orders of billed meters in the order of locks, each window once. Meters are read here:
/// another server may have added billing since they were last loaded.
fn sort_orders(
    session: &dyn Session,
    orders: &[CutOrder],
    tenants: &BTreeMap<TenantId, TenantNo>,
) -> Done<Vec<CutWindow>> {
    let catalog = read_meters(session, &orders.iter().map(|order| order.meter).collect())?;
    let mut sorted = BTreeMap::new();
    for CutOrder { tenant, meter: meter_no, window, recut } in orders {
        let meter = catalog.get(*meter_no);
        let billing = meter.and_then(|meter| meter.spec.billing.clone());
        let (Some(tenant_no), Some(meter), Some(billing)) = (tenants.get(tenant), meter, billing)
        else {
            continue;
        };
        let window = CutWindow {
            tenant_no: *tenant_no,
            tenant: tenant.clone(),
            meter_no: *meter_no,
            meter: Arc::clone(meter),
            billing,
            window: *window,
            recut: *recut,
        };
        sorted.insert(window.key(), window);
    }
    Ok(sorted.into_values().collect())
}

/// A call of `record_cuts`: what it has read, and what it has planned so far.
struct Cutting {
    terms: CutTerms,
    /// Tenants whose pushes wait for a customer.
    waiting: BTreeSet<TenantNo>,
    states: States,
    remainders: Remainders,
    /// The pushes of each window that has changed.
    prior: BTreeMap<WindowKey, PriorPushes>,
    /// Under which subscriptions and trials each tenant's usage falls.
    attributions: BTreeMap<TenantNo, Attribution>,
    coverings: Coverings,
    changed_states: States,
    changed_remainders: Remainders,
    pushes: Vec<NewPush>,
    carried: Vec<(WindowKey, EventId)>,
    unfinished: Vec<CutOrder>,
}

impl Cutting {
    fn new(terms: CutTerms) -> Self {
        Self {
            terms,
            waiting: BTreeSet::new(),
            states: States::new(),
            remainders: Remainders::new(),
            prior: BTreeMap::new(),
            attributions: BTreeMap::new(),
            coverings: Coverings::default(),
            changed_states: States::new(),
            changed_remainders: Remainders::new(),
            pushes: Vec::new(),
            carried: Vec::new(),
            unfinished: Vec::new(),
        }
    }

    fn state(&self, window: &CutWindow) -> CutState {
        let standing = self.states.get(&window.key()).cloned();
        standing.unwrap_or_else(|| CutState::new(self.terms.shadow))
    }

    /// Measures windows; those that are to be cut, with what they are cut by.
    fn list_changed<'w>(
        &mut self,
        session: &dyn Session,
        windows: &'w [CutWindow],
        listed: &Listed,
    ) -> Done<Vec<ChangedWindow<'w>>> {
        let usages = session.measure_windows(windows)?;
        let (mut whole, mut by_event) = (Vec::new(), Vec::new());
        for (window, usage) in windows.iter().zip(usages) {
            let grown = self.state(window).count != usage.count;
            match window.is_by_event() && grown {
                true => by_event.push((window, usage.count)),
                false if grown || window.recut => whole.push((window, usage)),
                false => {}
            }
        }
        let mut events = session.read_open_events(&by_event, listed, self.terms.events_max)?;
        let mut changed = self.divide(session, whole, listed)?;
        for (window, _) in by_event {
            // What came after its events were listed is left to the next call.
            let events = events.remove(&window.key());
            let unfinished = events.as_ref().is_some_and(|events| events.unfinished);
            if unfinished || window.recut {
                self.unfinished.push(window.order());
            }
            let Some(events) = events else { continue };
            changed.push(ChangedWindow { window, content: Content::Events(events) });
        }
        changed.sort_by_key(|one| one.window.key());
        Ok(changed)
    }

    /// Divides windows by the timelines of their tenants.
    fn divide<'w>(
        &mut self,
        session: &dyn Session,
        windows: Vec<(&'w CutWindow, WindowUsage)>,
        listed: &Listed,
    ) -> Done<Vec<ChangedWindow<'w>>> {
        let divided: Vec<(&CutWindow, WindowUsage, Layout)> = windows
            .into_iter()
            .map(|(window, usage)| {
                let none = Attribution::default();
                let attribution = self.attributions.get(&window.tenant_no).unwrap_or(&none);
                let layout = window.divide(attribution);
                (window, usage, layout)
            })
            .collect();
        let of_events = divided.iter().filter(|(_, _, layout)| layout.needs_events());
        let of_events: Vec<_> = of_events.map(|(window, _, layout)| (*window, layout)).collect();
        let mut sums = session.sum_stretches(&of_events, listed)?;
        let mut changed = Vec::new();
        for (window, usage, layout) in divided {
            let (count, by_stretch) = match layout.needs_events() {
                false => (usage.count, vec![usage.by_stamps]),
                true => match sums.remove(&window.key()).filter(|sums| self.fits(window, sums)) {
                    Some(sums) => (sums.count, sums.by_stretch),
                    // The timeline has changed, or events came or were cut, since they were added
                    // up.
                    None => {
                        self.unfinished.push(window.order());
                        continue;
                    }
                },
            };
            let content = layout.attribute(&by_stretch, count, self.terms.outside);
            let content = content.map_err(|fault| fault.of(&window.place()))?;
            changed.push(ChangedWindow { window, content: Content::Whole(content) });
        }
        Ok(changed)
    }

    /// Whether sums of a window go with its state: no event that was cut is left out, and of a
    /// meter that is billed by event no other is in them.
    fn fits(&self, window: &CutWindow, sums: &StretchSums) -> bool {
        let cut = self.state(window).count;
        sums.count == cut || (sums.count > cut && !window.is_by_event())
    }

    /// Reads what is stored of the windows, and holds the credits that may cover them and those
    /// that they may give back to; windows that get no push now have no credits.
    fn read(&mut self, session: &dyn Session, changed: &[ChangedWindow<'_>]) -> Done<()> {
        let (mut tenants, mut giving_back) = (BTreeSet::new(), BTreeSet::new());
        for ChangedWindow { window, content } in changed {
            let state = self.state(window);
            if !draws_credits(&state, self.terms) {
                continue;
            }
            tenants.insert(window.tenant_no);
            let gives_back = match content {
                Content::Events(events) => events_give_back(&state, events),
                Content::Whole(divided) => window_gives_back(&state, divided.billable),
            };
            if gives_back {
                giving_back.insert(window.key());
            }
        }
        self.coverings.hold(session, &tenants, &giving_back)?;
        let keys = |by_event: bool| {
            let by_event = move |one: &&ChangedWindow<'_>| {
                matches!(one.content, Content::Events(_)) == by_event
            };
            changed.iter().filter(by_event).map(|one| one.window.key())
        };
        self.prior = read_revisions(session, keys(false))?;
        self.prior.extend(read_last_revisions(session, keys(true))?);
        Ok(())
    }

    /// Plans the cut of a window, and keeps what it changes.
    fn cut(&mut self, ChangedWindow { window, content }: ChangedWindow<'_>) -> Result<()> {
        let (key, state, terms) = (window.key(), self.state(window), self.terms);
        let pair = (window.tenant_no, window.meter_no, state.shadow);
        let remainder = self.remainders.get(&pair).copied().unwrap_or_default();
        let none = Attribution::default();
        let subject = Subject {
            tenant_no: window.tenant_no,
            tenant: &window.tenant,
            meter_no: window.meter_no,
            meter: &window.meter,
            billing: &window.billing,
            window: window.window,
            state: &state,
            remainder,
            attribution: self.attributions.get(&window.tenant_no).unwrap_or(&none),
            prior: &self.prior.remove(&key).unwrap_or(PriorPushes::All(Vec::new())),
            begins: judge_planned(!self.waiting.contains(&window.tenant_no), false),
        };
        let coverings = &mut self.coverings;
        let cover =
            |asked: &CoverOrder| coverings.cover(key, window.window, asked, terms.draw_order);
        let plan = match content {
            Content::Whole(divided) => plan_window(&subject, &divided, terms, cover)?,
            Content::Events(events) => plan_events(&subject, events, terms, cover)?,
        };
        let Some(WindowCut { state, remainder: left, pushes, carried }) = plan else {
            return Ok(());
        };
        if left != remainder {
            self.remainders.insert(pair, left);
            self.changed_remainders.insert(pair, left);
        }
        self.changed_states.insert(key, state);
        self.pushes.extend(pushes);
        self.carried.extend(carried.into_iter().map(|event| (key, event)));
        Ok(())
    }

    fn write(
        mut self,
        session: &dyn Session,
        secret: &[u8; 32],
    ) -> Done<(CutReport, Vec<TransitionLine>)> {
        let at = self.terms.at;
        let lines = session.insert_pushes(secret, &self.pushes, at)?;
        insert_carried(session, &self.carried)?;
        write_states(session, &self.changed_states, at)?;
        write_remainders(session, &self.changed_remainders)?;
        self.coverings.write(session, at)?;
        let pushes = u64::try_from(lines.len()).unwrap_or(u64::MAX);
        Ok((CutReport { pushes, unfinished: self.unfinished, lease_lost: false }, lines))
    }
}
