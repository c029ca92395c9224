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
//! A crash leaves all of a call or nothing. A call that is repeated because its outcome was lost
//! finds the windows as they were cut, unchanged, and writes nothing.

use super::PostgresStore;
use super::cut_events::{Carried, insert_carried, read_open_events};
use super::declarations::{Creation, read_catalog};
use super::epochs::secret_now;
use super::leases::hold_lease;
use super::numeric::SqlQuantity;
use super::push_rows::{insert_pushes, log_lines, read_class, read_state};
use super::rollups::usage_row;
use super::scalars::{
    SqlTimestamp, column, corrupt, damaged, instant, meter_number, read_count, read_meter_no,
    read_ordinal, read_tenant_no, tenant_number, write_count, write_ordinal,
};
use super::statements::Statements;
use super::subscriptions::read_terms;
use super::transaction::{Done, Transaction};
use super::waiting::{count_waiting, lock_unmapped};
use crate::rules::billing::{Billing, Granularity, Mode};
use crate::rules::credit::covering::CoverOrder;
use crate::rules::cut::{
    OpenEvents, PriorPushes, Revision, Subject, WindowCut, check_billable, draws_credits,
    events_give_back, plan_events, plan_window, window_gives_back,
};
use crate::rules::ids::{MeterNo, TenantId, TenantNo};
use crate::rules::meter::{Catalog, Meter};
use crate::rules::push::{CutState, NewPush, Place, WindowUsage};
use crate::rules::quantity::Quantity;
use crate::rules::rollup::FoldError;
use crate::rules::stamp::Term;
use crate::rules::submission::PushState;
use crate::rules::timestamp::Timestamp;
use crate::rules::usage::UsageRow;
use crate::rules::window::Window;
use crate::store::push::{CutOrder, CutReport, CutTerms, Cuts, Lease, TransitionLine};
pub use crate::store::sql::WindowKey;
use crate::store::sql::{Coverings, Session};
use crate::store::{Error, Result};
use async_trait::async_trait;
use deadpool_postgres::ClientWrapper;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

/// A window that is to be cut.
pub struct Order {
    pub tenant_no: TenantNo,
    pub tenant: TenantId,
    pub meter_no: MeterNo,
    pub meter: Arc<Meter>,
    /// How the meter is billed.
    pub billing: Billing,
    pub window: Window,
}

/// A window that has changed since its last cut.
struct ChangedWindows<'o> {
    order: &'o Order,
    usage: &'o WindowUsage,
    /// Its events that are to be added, if its meter is billed event by event.
    events: Option<OpenEvents>,
}

/// Where windows stand.
pub type States = BTreeMap<WindowKey, CutState>;
/// By tenant, meter and whether it is of shadow windows.
type Remainders = BTreeMap<(TenantNo, MeterNo, bool), Quantity>;

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
        let (start, end) = (SqlTimestamp(range.start), SqlTimestamp(range.end));
        let rows =
            client.read_all(sql, &[&tenant.as_str(), &meter_number(meter), &start, &end]).await?;
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
        let (report, lines) = self.transact(work).await?;
        log_lines(&lines);
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
        client: &Arc<Transaction>,
        lease: &Lease,
        orders: &[CutOrder],
        terms: CutTerms,
    ) -> Done<(CutReport, Vec<TransitionLine>)> {
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
        for order in &orders {
            check_billable(&order.meter).map_err(|fault| fault.of(&order.place()))?;
        }
        let remainders = lock_remainders(client, &orders).await?;
        let keys: BTreeSet<WindowKey> = orders.iter().map(Order::key).collect();
        let states = lock_states(client, &keys).await?;
        let usages = measure_windows(client, &orders).await?;
        let mut cutting = Cutting { terms, states, remainders, waiting, ..Cutting::new(terms) };
        let changed: Vec<(&Order, &WindowUsage)> = orders
            .iter()
            .zip(&usages)
            .filter(|(order, usage)| cutting.state(order).count != usage.count)
            .collect();
        let changed = list_events(client, changed, terms).await?;
        let (tenants, giving_back) = cutting.list_covered(&changed);
        let hold = move |session: &dyn Session| {
            let mut coverings = Coverings::default();
            coverings.hold(session, &tenants, &giving_back)?;
            Ok(coverings)
        };
        cutting.coverings = self.in_session(Arc::clone(client), hold).await?;
        let windows: Vec<&Order> = changed.iter().map(|one| one.order).collect();
        cutting.prior = read_prior(client, &windows).await?;
        let tenants: BTreeSet<i32> =
            windows.iter().map(|order| tenant_number(order.tenant_no)).collect();
        cutting.charged = read_terms(client, &Vec::from_iter(tenants)).await?;
        for changed in changed {
            cutting.cut(changed)?;
        }
        let secret = secret_now(client, &self.push_secret).await?;
        let mut coverings = std::mem::take(&mut cutting.coverings);
        let written = cutting.write(client, &secret).await?;
        let cover = move |session: &dyn Session| coverings.write(session, terms.at);
        self.in_session(Arc::clone(client), cover).await?;
        Ok(written)
    }

    /// The orders of billed meters in the order of locks, each window once.
    fn sort_orders(&self, orders: &[CutOrder], catalog: &Catalog) -> Vec<Order> {
        let mut sorted = BTreeMap::new();
        for CutOrder { tenant, meter, window } in orders {
            let found = catalog.get(*meter);
            let billing = found.and_then(|meter| meter.spec.billing.clone());
            let (Some(number), Some(found), Some(billing)) =
                (self.tenant_no(tenant), found, billing)
            else {
                continue;
            };
            let order = Order {
                tenant_no: number,
                tenant: tenant.clone(),
                meter_no: *meter,
                meter: Arc::clone(found),
                billing,
                window: *window,
            };
            sorted.insert(order.key(), order);
        }
        sorted.into_values().collect()
    }
}

impl Order {
    pub fn key(&self) -> WindowKey {
        WindowKey { tenant_no: self.tenant_no, meter: self.meter_no, start: self.window.start }
    }

    fn place(&self) -> Place<'_> {
        Place { tenant: &self.tenant, meter: self.meter.slug.as_str(), window: self.window }
    }

    fn is_by_event(&self) -> bool {
        self.billing.granularity == Granularity::Event
    }
}

/// Lists the events to be added of windows that are billed by event.
async fn list_events<'o>(
    client: &ClientWrapper,
    changed: Vec<(&'o Order, &'o WindowUsage)>,
    terms: CutTerms,
) -> Done<Vec<ChangedWindows<'o>>> {
    let by_event: Vec<&Order> =
        changed.iter().map(|(order, _)| *order).filter(|order| order.is_by_event()).collect();
    // One more than may be cut tells whether some are left.
    let found = read_open_events(client, &by_event, terms.events_max.saturating_add(1)).await?;
    let mut found = found.into_iter();
    let list = |(order, usage): (&'o Order, &'o WindowUsage)| {
        let events = order.is_by_event().then(|| {
            let mut due = found.next().unwrap_or_default();
            let unfinished = due.len() > terms.events_max;
            due.truncate(terms.events_max);
            OpenEvents { seen: usage.count, due, unfinished }
        });
        ChangedWindows { order, usage, events }
    };
    Ok(changed.into_iter().map(list).collect())
}

/// What a call has planned so far.
struct Cutting {
    terms: CutTerms,
    states: States,
    remainders: Remainders,
    /// The pushes of each window that has changed.
    prior: BTreeMap<WindowKey, PriorPushes>,
    changed_states: BTreeSet<WindowKey>,
    changed_remainders: BTreeSet<(TenantNo, MeterNo, bool)>,
    pushes: Vec<NewPush>,
    carried: Vec<Carried>,
    coverings: Coverings,
    unfinished: Vec<CutOrder>,
    /// Under which subscriptions each tenant's usage is charged.
    charged: BTreeMap<i32, Vec<Term>>,
    /// Tenants whose pushes wait for a customer.
    waiting: BTreeSet<i32>,
}

impl Cutting {
    fn new(terms: CutTerms) -> Self {
        Self {
            terms,
            states: States::new(),
            remainders: Remainders::new(),
            prior: BTreeMap::new(),
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

    fn state(&self, order: &Order) -> CutState {
        let standing = self.states.get(&order.key()).cloned();
        standing.unwrap_or_else(|| CutState::new(self.terms.shadow))
    }

    /// The tenants whose credits may cover the windows, and the windows that may give back; those
    /// that get no push now have no credits.
    fn list_covered(
        &self,
        changed: &[ChangedWindows<'_>],
    ) -> (BTreeSet<TenantNo>, BTreeSet<WindowKey>) {
        let (mut tenants, mut giving_back) = (BTreeSet::new(), BTreeSet::new());
        for ChangedWindows { order, usage, events } in changed {
            let state = self.state(order);
            if !draws_credits(&state, self.terms) {
                continue;
            }
            tenants.insert(order.tenant_no);
            let gives_back = match events {
                Some(events) => events_give_back(&state, events),
                None => window_gives_back(&state, usage.billable),
            };
            if gives_back {
                giving_back.insert(order.key());
            }
        }
        (tenants, giving_back)
    }

    /// Plans the cut of a window, and keeps what it changes.
    fn cut(&mut self, ChangedWindows { order, usage, events }: ChangedWindows<'_>) -> Result<()> {
        let (key, state, terms) = (order.key(), self.state(order), self.terms);
        let pair = (order.tenant_no, order.meter_no, state.shadow);
        let remainder = self.remainders.get(&pair).copied().unwrap_or_default();
        let tenant_no = tenant_number(order.tenant_no);
        let begins = match self.waiting.contains(&tenant_no) {
            true => PushState::Waiting,
            false => PushState::Observed,
        };
        let prior = self.prior.remove(&key).unwrap_or(PriorPushes::Last(0));
        let subject = Subject {
            tenant_no: order.tenant_no,
            tenant: &order.tenant,
            meter_no: order.meter_no,
            meter: &order.meter,
            billing: &order.billing,
            window: order.window,
            state: &state,
            remainder,
            charged: self.charged.get(&tenant_no).map_or(&[], Vec::as_slice),
            prior: &prior,
            begins,
        };
        let coverings = &mut self.coverings;
        let cover =
            |asked: &CoverOrder| coverings.cover(key, order.window, asked, terms.draw_order);
        let plan = match events {
            None => plan_window(&subject, usage, terms, cover)?,
            Some(events) => {
                if events.unfinished {
                    let (tenant, meter) = (order.tenant.clone(), order.meter_no);
                    self.unfinished.push(CutOrder { tenant, meter, window: order.window });
                }
                plan_events(&subject, events, terms, cover)?
            }
        };
        let Some(WindowCut { state, remainder: left, pushes, carried }) = plan else {
            return Ok(());
        };
        if left != remainder {
            self.remainders.insert(pair, left);
            self.changed_remainders.insert(pair);
        }
        self.states.insert(key, state);
        self.changed_states.insert(key);
        self.pushes.extend(pushes);
        self.carried.extend(carried.into_iter().map(|event| Carried { window: key, event }));
        Ok(())
    }

    /// Writes all but what the credits of the windows have changed.
    async fn write(
        self,
        client: &ClientWrapper,
        secret: &[u8; 32],
    ) -> Done<(CutReport, Vec<TransitionLine>)> {
        let at = self.terms.at;
        let lines = insert_pushes(client, secret, &self.pushes, at).await?;
        count_waiting(client, &lines).await?;
        insert_carried(client, &self.carried).await?;
        let changed = |(key, _): &(&WindowKey, &CutState)| self.changed_states.contains(key);
        let states: Vec<_> = self.states.iter().filter(changed).collect();
        write_states(client, &states, at).await?;
        let changed = |(pair, _): &(_, _)| self.changed_remainders.contains(pair);
        let remainders = self.remainders.into_iter().filter(changed).collect();
        write_remainders(client, &remainders).await?;
        let pushes = u64::try_from(lines.len()).unwrap_or(u64::MAX);
        let report = CutReport { pushes, unfinished: self.unfinished, lease_lost: false };
        Ok((report, lines))
    }
}

/// The pushes of windows; of windows that are billed by event only the last revision.
async fn read_prior(
    client: &ClientWrapper,
    orders: &[&Order],
) -> Done<BTreeMap<WindowKey, PriorPushes>> {
    let sql = "-- read_prior
        SELECT given.place, p.revision, p.mode, p.quantity, p.value, p.state, p.class, p.attempts
        FROM unnest($1::int4[], $2::int2[], $3::timestamptz[], $4::bool[])
            WITH ORDINALITY AS given (tenant_no, meter_no, window_start, last, place)
        CROSS JOIN LATERAL (
            SELECT * FROM pushes p
            WHERE p.tenant_no = given.tenant_no AND p.meter_no = given.meter_no
                AND p.window_start = given.window_start
            ORDER BY p.revision DESC
            LIMIT CASE WHEN given.last THEN 1 END
        ) AS p
        ORDER BY given.place, p.revision";
    let statement = client.prepare_cached(sql).await?;
    let tenants: Vec<i32> = orders.iter().map(|order| tenant_number(order.tenant_no)).collect();
    let meters: Vec<i16> = orders.iter().map(|order| meter_number(order.meter_no)).collect();
    let starts: Vec<_> = orders.iter().map(|order| SqlTimestamp(order.window.start)).collect();
    let last: Vec<bool> = orders.iter().map(|order| order.is_by_event()).collect();
    let mut revisions: Vec<Vec<Revision>> = orders.iter().map(|_| Vec::new()).collect();
    for row in client.query(&statement, &[&tenants, &meters, &starts, &last]).await? {
        let mode: String = column(&row, 2)?;
        let place = place_of(&row, revisions.len())?;
        revisions[place].push(Revision {
            revision: read_ordinal(column(&row, 1)?)?,
            mode: Mode::from_name(&mode).ok_or_else(|| damaged("pushes.mode", &mode))?,
            quantity: column::<SqlQuantity>(&row, 3)?.0,
            value: column::<SqlQuantity>(&row, 4)?.0,
            state: read_state(&row, 5)?,
            class: read_class(&row, 6)?,
            attempts: read_ordinal(column(&row, 7)?)?,
        });
    }
    let prior = |(order, all): (&&Order, Vec<Revision>)| match order.is_by_event() {
        true => (order.key(), PriorPushes::Last(all.last().map_or(0, |push| push.revision))),
        false => (order.key(), PriorPushes::All(all)),
    };
    Ok(orders.iter().zip(revisions).map(prior).collect())
}

/// The place of a row's window among those that were asked for.
pub fn place_of(row: &Row, windows: usize) -> Result<usize> {
    let place: i64 = column(row, 0)?;
    let place = usize::try_from(place - 1).ok().filter(|place| *place < windows);
    place.ok_or_else(|| corrupt("pushes row outside of the windows that were read"))
}

fn unfit(error: FoldError) -> Error {
    Error::Internal { what: error.to_string() }
}

/// Locks the tenants and meters of the orders, and reads what is carried of each.
async fn lock_remainders(client: &ClientWrapper, orders: &[Order]) -> Done<Remainders> {
    let pairs: BTreeSet<(TenantNo, MeterNo)> =
        orders.iter().map(|order| (order.tenant_no, order.meter_no)).collect();
    let tenants: Vec<i32> = pairs.iter().map(|(tenant, _)| tenant_number(*tenant)).collect();
    let meters: Vec<i16> = pairs.iter().map(|(_, meter)| meter_number(*meter)).collect();
    let sql = "-- lock_remainders
        INSERT INTO remainders (tenant_no, meter_no, shadow, remainder)
        SELECT tenant_no, meter_no, false, 0
        FROM unnest($1::int4[], $2::int2[]) AS given (tenant_no, meter_no)
        ORDER BY tenant_no, meter_no
        ON CONFLICT DO NOTHING";
    client.run(sql, &[&tenants, &meters]).await?;
    let sql = "-- lock_remainders
        SELECT r.tenant_no, r.meter_no, r.shadow, r.remainder
        FROM unnest($1::int4[], $2::int2[]) AS given (tenant_no, meter_no)
        JOIN remainders r ON r.tenant_no = given.tenant_no AND r.meter_no = given.meter_no
        ORDER BY r.tenant_no, r.meter_no, r.shadow
        FOR UPDATE OF r";
    let statement = client.prepare_cached(sql).await?;
    let mut remainders = Remainders::new();
    for row in client.query(&statement, &[&tenants, &meters]).await? {
        let tenant_no = read_tenant_no(column(&row, 0)?)?;
        let pair = (tenant_no, read_meter_no(column(&row, 1)?)?, column(&row, 2)?);
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
    let tenants: Vec<i32> = keys.iter().map(|key| tenant_number(key.tenant_no)).collect();
    let meters: Vec<i16> = keys.iter().map(|key| meter_number(key.meter)).collect();
    let starts: Vec<_> = keys.iter().map(|key| SqlTimestamp(key.start)).collect();
    let mut states = States::new();
    for row in client.query(&statement, &[&tenants, &meters, &starts]).await? {
        let (tenant_no, start) = (read_tenant_no(column(&row, 0)?)?, instant(&row, 2)?);
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
    let tenants: Vec<i32> = orders.iter().map(|order| tenant_number(order.tenant_no)).collect();
    let meters: Vec<i16> = orders.iter().map(|order| meter_number(order.meter_no)).collect();
    let starts: Vec<_> = orders.iter().map(|order| SqlTimestamp(order.window.start)).collect();
    let ends: Vec<_> = orders.iter().map(|order| SqlTimestamp(order.window.end)).collect();
    let mut rows: Vec<Vec<UsageRow>> = orders.iter().map(|_| Vec::new()).collect();
    for row in client.query(&statement, &[&tenants, &meters, &starts, &ends]).await? {
        let place = place_of(&row, orders.len())?;
        // Only sums and counts are billed, so the columns of other totals are not read.
        rows[place].push(usage_row(&row, 1, orders[place].meter.spec.aggregation)?);
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
    let counts: Result<Vec<i64>> = states.iter().map(|(_, s)| write_count(s.count)).collect();
    let revisions: Result<Vec<i32>> =
        states.iter().map(|(_, state)| write_ordinal(state.revision)).collect();
    let tenants: Vec<i32> = states.iter().map(|(key, _)| tenant_number(key.tenant_no)).collect();
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
    client.run(sql, &parameters).await?;
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
    let tenants: Vec<i32> =
        remainders.keys().map(|(tenant, _, _)| tenant_number(*tenant)).collect();
    let meters: Vec<i16> = remainders.keys().map(|(_, meter, _)| meter_number(*meter)).collect();
    let shadows: Vec<bool> = remainders.keys().map(|(_, _, shadow)| *shadow).collect();
    let quantities: Vec<_> = remainders.values().map(|left| SqlQuantity(*left)).collect();
    client.run(sql, &[&tenants, &meters, &shadows, &quantities]).await?;
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

/// Writes the revisions of windows; the windows are not cut by that.
pub async fn write_revisions(client: &ClientWrapper, states: &States) -> Done<()> {
    let sql = "-- write_revisions
        UPDATE cuts c SET revision = given.revision
        FROM unnest($1::int4[], $2::int2[], $3::timestamptz[], $4::int4[])
            AS given (tenant_no, meter_no, window_start, revision)
        WHERE c.tenant_no = given.tenant_no AND c.meter_no = given.meter_no
            AND c.window_start = given.window_start";
    let tenants: Vec<i32> = states.keys().map(|key| tenant_number(key.tenant_no)).collect();
    let meters: Vec<i16> = states.keys().map(|key| meter_number(key.meter)).collect();
    let starts: Vec<_> = states.keys().map(|key| SqlTimestamp(key.start)).collect();
    let revisions: Vec<i32> =
        states.values().map(|state| write_ordinal(state.revision)).collect::<Result<_>>()?;
    client.run(sql, &[&tenants, &meters, &starts, &revisions]).await?;
    Ok(())
}
