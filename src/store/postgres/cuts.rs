//! Cuts: windows handed to billing, each change of a window once.
//!
//! Invariant: a window's state, its pushes and the remainder of its tenant and meter change in one
//! transaction, which holds the lease, then the tenant's and meter's row in `remainders` (that of
//! billed windows stands for both), then the windows' rows in `cuts`, always in the order of
//! tenant, meter and window. So two servers never cut one window from the same state, and never
//! wait in a circle. Totals are read after those locks, so a later cut never sees less.
//!
//! What credits cover of a window changes in the same transaction. The order of all locks that
//! concern money is: lease, remainders, cuts, grants by number, accounts (those that are missing by
//! tenant and name, then by number), keys of entries, messages, the request's key. Verbs of tenants
//! (`credits`, `sagas`, `quotes`) lock the tenant's row before all of these; so does a cut with the
//! rows of tenants without a customer (`waiting`), in the order of their numbers.
//!
//! A crash leaves all of a call or nothing. A call that is repeated because its outcome was lost
//! finds the windows as they were cut, unchanged, and writes nothing.

use super::PostgresStore;
use super::agreements::read_terms;
use super::coverings::Coverings;
use super::cut_events::{Carried, OpenEvent, insert_carried, read_open_events};
use super::declarations::{Creation, read_catalog};
use super::epochs::secret_now;
use super::leases::hold_lease;
use super::numeric::SqlQuantity;
use super::push_rows::{Change, NewPush, insert_pushes, key_of, log_changes};
use super::rollups::usage_row;
use super::scalars::{
    SqlTimestamp, column, corrupt, instant, meter_number, read_count, read_meter_no, read_ordinal,
    tenant_number, write_count, write_ordinal,
};
use super::transaction::{Done, Transaction};
use super::waiting::{count_waiting, lock_unmapped};
use crate::rules::billing::{Granularity, Mode};
use crate::rules::credit::CoverOrder;
use crate::rules::delivery::{Class, PushState};
use crate::rules::ids::{EventId, MeterNo, MeterSlug, TenantId};
use crate::rules::meter::{Aggregation, Catalog, Meter};
use crate::rules::push::{
    CutState, PlannedPush, Precision, Standing, WindowUsage, plan_cut, plan_following,
};
use crate::rules::quantity::Quantity;
use crate::rules::rollup::FoldError;
use crate::rules::stamp::{Term, stamp_event, stamp_window};
use crate::rules::timestamp::Timestamp;
use crate::rules::usage::UsageRow;
use crate::rules::window::Window;
use crate::store::push::{CutOrder, CutReport, CutTerms, Cuts, Lease};
use crate::store::{Error, Result};
use async_trait::async_trait;
use deadpool_postgres::ClientWrapper;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

/// A window that is to be cut, with the terms of its meter.
pub struct Order {
    pub tenant_no: i32,
    pub tenant: TenantId,
    pub meter: MeterNo,
    pub window: Window,
    pub meter_terms: MeterTerms,
}

/// How a meter is billed.
#[derive(Clone)]
pub struct MeterTerms {
    slug: MeterSlug,
    pub aggregation: Aggregation,
    granularity: Granularity,
    mode: Mode,
    /// Decimal places the provider gets.
    scale: u32,
    /// Decimal places of the usage itself.
    usage_scale: u32,
}

/// A window that has changed since its last cut.
struct Changed<'o> {
    order: &'o Order,
    usage: &'o WindowUsage,
    /// Its events that are to be added, if its meter is billed event by event.
    events: Option<Vec<OpenEvent>>,
}

/// A window's row in `cuts`, in the order of locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WindowKey {
    pub tenant_no: i32,
    pub meter: MeterNo,
    pub start: Timestamp,
}

/// Where windows stand.
pub type States = BTreeMap<WindowKey, CutState>;
/// By tenant, meter and whether it is of shadow windows.
type Remainders = BTreeMap<(i32, MeterNo, bool), Quantity>;

#[async_trait]
impl Cuts for PostgresStore {
    async fn read_cuts(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        range: Window,
    ) -> Result<Vec<(Timestamp, CutState)>> {
        let client = self.reader().await?;
        let sql = "-- read_cuts
            SELECT window_start, count, total, covered, planned, revision, shadow FROM cuts
            WHERE tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1)
                AND meter_no = $2 AND window_start >= $3 AND window_start < $4";
        let statement = client.prepare_cached(sql).await?;
        let (start, end) = (SqlTimestamp(range.start), SqlTimestamp(range.end));
        let rows = client
            .query(&statement, &[&tenant.as_str(), &meter_number(meter), &start, &end])
            .await?;
        rows.iter().map(|row| Ok((instant(row, 0)?, cut_state(row, 1)?))).collect()
    }

    async fn record_cuts(
        &self,
        lease: &Lease,
        orders: Vec<CutOrder>,
        terms: CutTerms,
    ) -> Result<CutReport> {
        self.number_tenants(orders.iter().map(|order| &order.tenant), Creation::Never).await?;
        let orders = orders.as_slice();
        let work = move |client: Arc<Transaction>| async move {
            self.cut_windows(&client, lease, orders, terms).await
        };
        let (report, changes) = self.transact(work).await?;
        log_changes(changes);
        Ok(report)
    }

    async fn read_cut_marks(&self) -> Result<Vec<(MeterNo, Timestamp)>> {
        let client = self.reader().await?;
        let sql = "-- read_cut_marks
            SELECT meter_no, mark FROM cut_marks ORDER BY meter_no";
        let rows = client.query(sql, &[]).await?;
        rows.iter().map(|row| Ok((read_meter_no(column(row, 0)?)?, instant(row, 1)?))).collect()
    }

    async fn record_cut_mark(
        &self,
        lease: &Lease,
        meter: MeterNo,
        mark: Timestamp,
    ) -> Result<bool> {
        let work = move |client: Arc<Transaction>| async move {
            if !hold_lease(&client, lease).await? {
                return Ok(false);
            }
            let sql = "-- record_cut_mark
                INSERT INTO cut_marks (meter_no, mark) VALUES ($1, $2)
                ON CONFLICT (meter_no) DO UPDATE SET mark = excluded.mark";
            client.execute(sql, &[&meter_number(meter), &SqlTimestamp(mark)]).await?;
            Ok(true)
        };
        self.transact(work).await
    }
}

impl PostgresStore {
    /// Everything but the COMMIT.
    async fn cut_windows(
        &self,
        client: &ClientWrapper,
        lease: &Lease,
        orders: &[CutOrder],
        terms: CutTerms,
    ) -> Done<(CutReport, Vec<Change>)> {
        let tenants: Vec<i32> =
            orders.iter().filter_map(|o| self.tenant_no(&o.tenant)).map(tenant_number).collect();
        let waiting = lock_unmapped(client, &tenants).await?;
        if !hold_lease(client, lease).await? {
            return Ok((CutReport { lease_lost: true, ..CutReport::default() }, Vec::new()));
        }
        // Not the one in memory: another server may have added billing since it was loaded.
        let catalog = read_catalog(client).await?;
        let orders = self.sort_orders(orders, &catalog);
        if orders.is_empty() {
            return Ok((CutReport::default(), Vec::new()));
        }
        let remainders = lock_remainders(client, &orders).await?;
        let keys: BTreeSet<WindowKey> = orders.iter().map(Order::key).collect();
        let states = lock_states(client, &keys).await?;
        let usages = measure_windows(client, &orders).await?;
        let secret = secret_now(client, &self.push_secret).await?;
        let mut cutting = Cutting::new(&secret, terms, states, remainders);
        cutting.waiting = waiting;
        let changed: Vec<(&Order, &WindowUsage)> =
            orders.iter().zip(&usages).filter(|(o, usage)| cutting.has_changed(o, usage)).collect();
        let by_event: Vec<&Order> =
            changed.iter().map(|(order, _)| *order).filter(|order| order.is_by_event()).collect();
        // One more than may be cut tells whether some are left.
        let events = read_open_events(client, &by_event, terms.events_max.saturating_add(1));
        let mut events = events.await?.into_iter();
        let changed: Vec<Changed<'_>> = changed
            .into_iter()
            .map(|(order, usage)| {
                let events = order.is_by_event().then(|| events.next().unwrap_or_default());
                Changed { order, usage, events }
            })
            .collect();
        cutting.hold_credits(client, &changed).await?;
        let tenants: BTreeSet<i32> = changed.iter().map(|one| one.order.tenant_no).collect();
        cutting.charged = read_terms(client, &Vec::from_iter(tenants)).await?;
        for Changed { order, usage, events } in changed {
            match events {
                Some(events) => cutting.cut_events(order, usage, events)?,
                None => cutting.cut_window(order, usage)?,
            }
        }
        cutting.write(client).await
    }

    /// The orders of billed meters in the order of locks, each window once.
    fn sort_orders(&self, orders: &[CutOrder], catalog: &Catalog) -> Vec<Order> {
        let mut sorted = BTreeMap::new();
        for CutOrder { tenant, meter, window } in orders {
            let meter_terms = catalog.get(*meter).and_then(|meter| MeterTerms::of(meter));
            let (Some(number), Some(meter_terms)) = (self.tenant_no(tenant), meter_terms) else {
                continue;
            };
            let (tenant_no, tenant) = (tenant_number(number), tenant.clone());
            let order = Order { tenant_no, tenant, meter: *meter, window: *window, meter_terms };
            sorted.insert(order.key(), order);
        }
        sorted.into_values().collect()
    }
}

impl MeterTerms {
    /// None if the meter is not billed.
    fn of(meter: &Meter) -> Option<Self> {
        let billing = meter.spec.billing.as_ref()?;
        Some(Self {
            slug: meter.slug.clone(),
            aggregation: meter.spec.aggregation,
            granularity: billing.granularity,
            mode: billing.mode,
            scale: meter.billing_scale(),
            usage_scale: meter.usage_scale(),
        })
    }
}

impl Order {
    fn key(&self) -> WindowKey {
        WindowKey { tenant_no: self.tenant_no, meter: self.meter, start: self.window.start }
    }

    fn is_by_event(&self) -> bool {
        match self.meter_terms.granularity {
            Granularity::Event => true,
            Granularity::Window | Granularity::Day => false,
        }
    }
}

/// What a call has planned so far.
struct Cutting<'s> {
    secret: &'s [u8; 32],
    terms: CutTerms,
    states: States,
    remainders: Remainders,
    changed_states: BTreeSet<WindowKey>,
    changed_remainders: BTreeSet<(i32, MeterNo, bool)>,
    pushes: Vec<NewPush>,
    carried: Vec<Carried>,
    coverings: Coverings,
    unfinished: Vec<CutOrder>,
    /// Under which subscriptions each tenant's usage is charged.
    charged: BTreeMap<i32, Vec<Term>>,
    /// Tenants whose pushes wait for a customer.
    waiting: BTreeSet<i32>,
}

impl<'s> Cutting<'s> {
    fn new(secret: &'s [u8; 32], terms: CutTerms, states: States, remainders: Remainders) -> Self {
        Self {
            secret,
            terms,
            states,
            remainders,
            changed_states: BTreeSet::new(),
            changed_remainders: BTreeSet::new(),
            pushes: Vec::new(),
            carried: Vec::new(),
            coverings: Coverings::default(),
            unfinished: Vec::new(),
            charged: BTreeMap::new(),
            waiting: BTreeSet::new(),
        }
    }

    fn charged(&self, order: &Order) -> &[Term] {
        self.charged.get(&order.tenant_no).map_or(&[], Vec::as_slice)
    }

    fn state(&self, order: &Order) -> CutState {
        let standing = self.states.get(&order.key()).cloned();
        standing.unwrap_or_else(|| CutState::new(self.terms.shadow))
    }

    fn has_changed(&self, order: &Order, usage: &WindowUsage) -> bool {
        self.state(order).count != usage.count
    }

    /// Holds the credits that may cover the windows; those that get no push now have none.
    async fn hold_credits(&mut self, client: &ClientWrapper, changed: &[Changed<'_>]) -> Done<()> {
        let (mut tenants, mut giving_back) = (BTreeSet::new(), BTreeSet::new());
        for Changed { order, usage, events } in changed {
            let state = self.state(order);
            if !self.covers(&state) {
                continue;
            }
            tenants.insert(order.tenant_no);
            let shrinks = match events {
                Some(events) => events.iter().any(|event| event.quantity < Quantity::ZERO),
                None => usage.billable < state.covered,
            };
            if shrinks && state.covered > Quantity::ZERO {
                giving_back.insert(order.key());
            }
        }
        self.coverings = Coverings::hold(client, &tenants, &giving_back).await?;
        Ok(())
    }

    /// Whether credits cover a window in this state.
    fn covers(&self, state: &CutState) -> bool {
        !state.shadow && !self.terms.shadow
    }

    /// Cuts a window as a whole.
    fn cut_window(&mut self, order: &Order, usage: &WindowUsage) -> Result<()> {
        let stamped_at = stamp_window(order.window, self.charged(order));
        let planned = self.plan(order, (usage.count, usage.billable), order.window)?;
        if let Some(planned) = planned {
            self.add_push(order, planned, stamped_at, usage.subscriptions_json(), None);
        }
        Ok(())
    }

    /// Cuts events of a window one by one; `events` holds one more than may be cut if some are
    /// left after them.
    fn cut_events(
        &mut self,
        order: &Order,
        usage: &WindowUsage,
        mut events: Vec<OpenEvent>,
    ) -> Result<()> {
        let unfinished = events.len() > self.terms.events_max;
        events.truncate(self.terms.events_max);
        let mut standing = self.state(order);
        // While events are left, fewer are counted than the window has, so that it has changed.
        let count = match unfinished {
            true => standing.count + u64::try_from(events.len()).map_err(|_| unfit(FoldError))?,
            false => usage.count,
        };
        let mut total = standing.total;
        // Also where no event is to be added: trials, too, change the window.
        standing.count = count;
        self.states.insert(order.key(), standing);
        self.changed_states.insert(order.key());
        for event in events {
            total = total.checked_add(event.quantity).ok_or_else(|| unfit(FoldError))?;
            let during = Window::moment(event.occurred_at);
            let Some(planned) = self.plan(order, (count, total), during)? else {
                self.carried.push(Carried { window: order.key(), event: event.id });
                continue;
            };
            let by_subscription = BTreeMap::from([(event.subscription, event.quantity)]);
            let own = WindowUsage { count: 1, billable: event.quantity, by_subscription };
            let subscriptions = own.subscriptions_json();
            let stamped_at = stamp_event(order.window, event.occurred_at, self.charged(order));
            self.add_push(order, planned, stamped_at, subscriptions, Some(event.id));
        }
        if unfinished {
            let (tenant, meter, window) = (order.tenant.clone(), order.meter, order.window);
            self.unfinished.push(CutOrder { tenant, meter, window });
        }
        Ok(())
    }

    /// Moves the window to a new count and total, and what is covered of it and the remainder with
    /// it. What has changed was used in `during`.
    fn plan(
        &mut self,
        order: &Order,
        usage: (u64, Quantity),
        during: Window,
    ) -> Result<Option<PlannedPush>> {
        let state = self.state(order);
        let pair = (order.tenant_no, order.meter, state.shadow);
        let remainder = self.remainders.get(&pair).copied().unwrap_or_default();
        let MeterTerms { mode, scale, .. } = order.meter_terms;
        let (count, billable) = usage;
        let covered = match self.covers(&state) {
            true => self.cover(order, &state, billable, during)?,
            false => state.covered,
        };
        let usage = Standing { count, billable, covered };
        let precision = Precision { scale, digits_max: self.terms.digits_max };
        let plan = match state.shadow == self.terms.shadow {
            true => plan_cut(&state, remainder, usage, mode, precision),
            false => plan_following(&state, remainder, usage),
        };
        let plan = plan.map_err(unfit)?;
        if plan.remainder != remainder {
            self.remainders.insert(pair, plan.remainder);
            self.changed_remainders.insert(pair);
        }
        self.states.insert(order.key(), plan.state);
        self.changed_states.insert(order.key());
        Ok(plan.push)
    }

    /// How much of the window credits cover when it holds `billable`.
    fn cover(
        &mut self,
        order: &Order,
        state: &CutState,
        billable: Quantity,
        during: Window,
    ) -> Result<Quantity> {
        let cover = CoverOrder {
            meter: order.meter,
            scale: order.meter_terms.usage_scale,
            during,
            before: state.total,
            now: billable,
            covered: state.covered,
        };
        self.coverings.cover(order.key(), order.window, &cover, self.terms.draw_order)
    }

    fn add_push(
        &mut self,
        order: &Order,
        planned: PlannedPush,
        stamped_at: Timestamp,
        subscriptions: String,
        event: Option<EventId>,
    ) {
        let slug = order.meter_terms.slug.as_str();
        self.pushes.push(NewPush {
            tenant_no: order.tenant_no,
            tenant: order.tenant.clone(),
            meter: order.meter,
            window: order.window,
            shadow: self.terms.shadow,
            mode: order.meter_terms.mode,
            key: key_of(self.secret, (&order.tenant, slug), order.window, &planned),
            planned,
            stamped_at,
            subscriptions,
            event,
            detail: None,
            customer: None,
            state: match self.waiting.contains(&order.tenant_no) {
                true => PushState::Waiting,
                false => PushState::Observed,
            },
            class: Class::Cut,
        });
    }

    async fn write(self, client: &ClientWrapper) -> Done<(CutReport, Vec<Change>)> {
        let at = self.terms.at;
        let changes = insert_pushes(client, &self.pushes, at).await?;
        count_waiting(client, &changes).await?;
        insert_carried(client, &self.carried).await?;
        let changed = |(key, _): &(&WindowKey, &CutState)| self.changed_states.contains(key);
        let states: Vec<_> = self.states.iter().filter(changed).collect();
        write_states(client, &states, at).await?;
        let changed = |(pair, _): &(_, _)| self.changed_remainders.contains(pair);
        let remainders = self.remainders.into_iter().filter(changed).collect();
        write_remainders(client, &remainders).await?;
        self.coverings.write(client, at).await?;
        let pushes = u64::try_from(changes.len()).unwrap_or(u64::MAX);
        let report = CutReport { pushes, unfinished: self.unfinished, lease_lost: false };
        Ok((report, changes))
    }
}

fn unfit(error: FoldError) -> Error {
    Error::Internal { what: error.to_string() }
}

/// Locks the tenants and meters of the orders, and reads what is carried of each.
async fn lock_remainders(client: &ClientWrapper, orders: &[Order]) -> Done<Remainders> {
    let pairs: BTreeSet<(i32, MeterNo)> =
        orders.iter().map(|order| (order.tenant_no, order.meter)).collect();
    let tenants: Vec<i32> = pairs.iter().map(|(tenant, _)| *tenant).collect();
    let meters: Vec<i16> = pairs.iter().map(|(_, meter)| meter_number(*meter)).collect();
    let sql = "-- lock_remainders
        INSERT INTO remainders (tenant_no, meter_no, shadow, remainder)
        SELECT tenant_no, meter_no, false, 0
        FROM unnest($1::int4[], $2::int2[]) AS given (tenant_no, meter_no)
        ORDER BY tenant_no, meter_no
        ON CONFLICT DO NOTHING";
    let statement = client.prepare_cached(sql).await?;
    client.execute(&statement, &[&tenants, &meters]).await?;
    let sql = "-- lock_remainders
        SELECT r.tenant_no, r.meter_no, r.shadow, r.remainder
        FROM unnest($1::int4[], $2::int2[]) AS given (tenant_no, meter_no)
        JOIN remainders r ON r.tenant_no = given.tenant_no AND r.meter_no = given.meter_no
        ORDER BY r.tenant_no, r.meter_no, r.shadow
        FOR UPDATE OF r";
    let statement = client.prepare_cached(sql).await?;
    let mut remainders = Remainders::new();
    for row in client.query(&statement, &[&tenants, &meters]).await? {
        let pair = (column(&row, 0)?, read_meter_no(column(&row, 1)?)?, column(&row, 2)?);
        remainders.insert(pair, column::<SqlQuantity>(&row, 3)?.0);
    }
    Ok(remainders)
}

/// Locks the windows that were cut before, and reads where they stand.
pub async fn lock_states(client: &ClientWrapper, keys: &BTreeSet<WindowKey>) -> Done<States> {
    let sql = "-- lock_states
        SELECT c.tenant_no, c.meter_no, c.window_start, c.count, c.total, c.covered, c.planned,
            c.revision, c.shadow
        FROM unnest($1::int4[], $2::int2[], $3::timestamptz[])
            AS given (tenant_no, meter_no, window_start)
        JOIN cuts c ON c.tenant_no = given.tenant_no AND c.meter_no = given.meter_no
            AND c.window_start = given.window_start
        ORDER BY c.tenant_no, c.meter_no, c.window_start
        FOR UPDATE OF c";
    let statement = client.prepare_cached(sql).await?;
    let tenants: Vec<i32> = keys.iter().map(|key| key.tenant_no).collect();
    let meters: Vec<i16> = keys.iter().map(|key| meter_number(key.meter)).collect();
    let starts: Vec<_> = keys.iter().map(|key| SqlTimestamp(key.start)).collect();
    let mut states = States::new();
    for row in client.query(&statement, &[&tenants, &meters, &starts]).await? {
        let (tenant_no, start) = (column(&row, 0)?, instant(&row, 2)?);
        let meter = read_meter_no(column(&row, 1)?)?;
        states.insert(WindowKey { tenant_no, meter, start }, cut_state(&row, 3)?);
    }
    Ok(states)
}

/// The totals of all windows at one moment.
async fn measure_windows(client: &ClientWrapper, orders: &[Order]) -> Done<Vec<WindowUsage>> {
    let sql = "-- measure_windows
        SELECT ordered.place, r.bucket_start, COALESCE(r.grp_text, r.grp), r.count, r.total
        FROM unnest($1::int4[], $2::int2[], $3::timestamptz[], $4::timestamptz[])
            WITH ORDINALITY AS ordered (tenant_no, meter_no, starts_at, ends_at, place)
        JOIN rollups r ON r.tenant_no = ordered.tenant_no AND r.meter_no = ordered.meter_no
            AND r.bucket_start >= ordered.starts_at AND r.bucket_start < ordered.ends_at";
    let statement = client.prepare_cached(sql).await?;
    let tenants: Vec<i32> = orders.iter().map(|order| order.tenant_no).collect();
    let meters: Vec<i16> = orders.iter().map(|order| meter_number(order.meter)).collect();
    let starts: Vec<_> = orders.iter().map(|order| SqlTimestamp(order.window.start)).collect();
    let ends: Vec<_> = orders.iter().map(|order| SqlTimestamp(order.window.end)).collect();
    let mut rows: Vec<Vec<UsageRow>> = orders.iter().map(|_| Vec::new()).collect();
    for row in client.query(&statement, &[&tenants, &meters, &starts, &ends]).await? {
        let place: i64 = column(&row, 0)?;
        let place = usize::try_from(place - 1).ok().filter(|place| *place < orders.len());
        let place = place.ok_or_else(|| corrupt("a total lies in no window"))?;
        // Only sums and counts are billed, so the columns of other totals are not read.
        rows[place].push(usage_row(&row, 1, orders[place].meter_terms.aggregation)?);
    }
    let measured: std::result::Result<_, FoldError> =
        rows.iter().map(|rows| WindowUsage::measure(rows)).collect();
    Ok(measured.map_err(unfit)?)
}

async fn write_states(
    client: &ClientWrapper,
    states: &[(&WindowKey, &CutState)],
    at: Timestamp,
) -> Done<()> {
    if states.is_empty() {
        return Ok(());
    }
    let sql = "-- write_states
        INSERT INTO cuts (tenant_no, meter_no, window_start, count, total, covered, planned,
            revision, shadow, cut_at)
        SELECT given.*, $10::timestamptz FROM unnest($1::int4[], $2::int2[], $3::timestamptz[],
            $4::int8[], $5::numeric[], $6::numeric[], $7::numeric[], $8::int4[], $9::bool[])
            AS given
        ON CONFLICT (tenant_no, meter_no, window_start) DO UPDATE SET
            count = excluded.count, total = excluded.total, covered = excluded.covered,
            planned = excluded.planned, revision = excluded.revision, cut_at = excluded.cut_at";
    let statement = client.prepare_cached(sql).await?;
    let counts: Result<Vec<i64>> = states.iter().map(|(_, s)| write_count(s.count)).collect();
    let revisions: Result<Vec<i32>> =
        states.iter().map(|(_, state)| write_ordinal(state.revision)).collect();
    let tenants: Vec<i32> = states.iter().map(|(key, _)| key.tenant_no).collect();
    let meters: Vec<i16> = states.iter().map(|(key, _)| meter_number(key.meter)).collect();
    let starts: Vec<_> = states.iter().map(|(key, _)| SqlTimestamp(key.start)).collect();
    let totals: Vec<_> = states.iter().map(|(_, state)| SqlQuantity(state.total)).collect();
    let covered: Vec<_> = states.iter().map(|(_, state)| SqlQuantity(state.covered)).collect();
    let planned: Vec<_> = states.iter().map(|(_, state)| SqlQuantity(state.planned)).collect();
    let shadows: Vec<bool> = states.iter().map(|(_, state)| state.shadow).collect();
    let parameters: [&(dyn ToSql + Sync); 10] = [
        &tenants,
        &meters,
        &starts,
        &counts?,
        &totals,
        &covered,
        &planned,
        &revisions?,
        &shadows,
        &SqlTimestamp(at),
    ];
    client.execute(&statement, &parameters).await?;
    Ok(())
}

async fn write_remainders(client: &ClientWrapper, remainders: &Remainders) -> Done<()> {
    if remainders.is_empty() {
        return Ok(());
    }
    let sql = "-- write_remainders
        INSERT INTO remainders (tenant_no, meter_no, shadow, remainder)
        SELECT * FROM unnest($1::int4[], $2::int2[], $3::bool[], $4::numeric[])
        ON CONFLICT (tenant_no, meter_no, shadow) DO UPDATE SET remainder = excluded.remainder";
    let statement = client.prepare_cached(sql).await?;
    let tenants: Vec<i32> = remainders.keys().map(|(tenant, _, _)| *tenant).collect();
    let meters: Vec<i16> = remainders.keys().map(|(_, meter, _)| meter_number(*meter)).collect();
    let shadows: Vec<bool> = remainders.keys().map(|(_, _, shadow)| *shadow).collect();
    let quantities: Vec<_> = remainders.values().map(|left| SqlQuantity(*left)).collect();
    client.execute(&statement, &[&tenants, &meters, &shadows, &quantities]).await?;
    Ok(())
}

/// Reads count, total, covered, planned, revision and shadow, in this order.
fn cut_state(row: &Row, from: usize) -> Result<CutState> {
    Ok(CutState {
        count: read_count(column(row, from)?)?,
        total: column::<SqlQuantity>(row, from + 1)?.0,
        covered: column::<SqlQuantity>(row, from + 2)?.0,
        planned: column::<SqlQuantity>(row, from + 3)?.0,
        revision: read_ordinal(column(row, from + 4)?)?,
        shadow: column(row, from + 5)?,
    })
}
