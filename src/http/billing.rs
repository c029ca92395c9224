//! `/v1/health/billing` and `/v1/comparison`: whether what was counted has reached the provider.
//!
//! Invariant: quantities are exact decimals; the provider's are rounded to the decimals that it was
//! sent.

use super::App;
use super::auth::Scope;
use super::extract::{Answer, Call, LIMIT_MAX, Query, parse_days};
use super::problem::{Kind, Problem};
use crate::api::comparison::{ComparedWindow, ComparisonAnswer, WindowVerdict};
use crate::api::health::{
    BillingHealth, LastPasses, Pages, SelfCheckHealth, UnbilledUsage, UnmappedUsage,
};
use crate::jobs::unbilled::{Cause, Slow, Unbilled, note_discards};
use crate::jobs::watch::{OBSERVED_LONG, SUBMITTED_LONG};
use crate::provider::{Provider, TotalsQuery};
use crate::rules::billing::Billing;
use crate::rules::drift::{PushSums, WindowPush};
use crate::rules::ids::{CustomerId, MeterNo};
use crate::rules::meter::{Catalog, Meter};
use crate::rules::pass::{PassKind, PassState};
use crate::rules::push::{CutState, WindowUsage, billed_of};
use crate::rules::quantity::Quantity;
use crate::rules::rollup::FoldError;
use crate::rules::span::Span;
use crate::rules::timestamp::Timestamp;
use crate::rules::usage::UsageRow;
use crate::rules::window::Window;
use crate::rules::window_life::WindowState;
use crate::store;
use crate::store::alert::{AlertFilter, PageCounts};
use crate::store::push::{PushAges, PushCounts, UnmappedSum};
use crate::store::reconciliation::{FindingFilter, PassFilter};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

fn name_unbilled(
    unbilled: &Unbilled,
    catalog: &Catalog,
) -> Result<BTreeMap<String, UnbilledUsage>, Problem> {
    let mut named = BTreeMap::new();
    for (meter, causes) in &unbilled.by_meter {
        if let Some(meter) = catalog.get(*meter) {
            named.insert(meter.slug.to_string(), sort_causes(causes)?);
        }
    }
    Ok(named)
}

fn sort_causes(causes: &BTreeMap<Cause, Quantity>) -> Result<UnbilledUsage, Problem> {
    let of = |cause| causes.get(&cause).copied();
    Ok(UnbilledUsage {
        total: Unbilled::total(causes).ok_or(FoldError)?,
        dead: of(Cause::Dead),
        no_customer: of(Cause::NoCustomer),
        too_old: of(Cause::TooOld),
        quarantined: of(Cause::Quarantined),
        shadow: of(Cause::Shadow),
        before_from: of(Cause::BeforeFrom),
        held: of(Cause::Held),
        outside: of(Cause::Outside),
    })
}

/// What takes long to add up is kept for this time.
const SLOW_KEPT: Span = Span::from_minutes(1);

/// Everything unbilled; what takes long to add up may be a minute old.
async fn read_unbilled(
    app: &App,
    catalog: &Catalog,
    counts: &PushCounts,
) -> Result<Unbilled, Problem> {
    let now = app.clock.now();
    let mut kept = app.unbilled.lock().await;
    let young = |at: Timestamp| at <= now && now < SLOW_KEPT.after(at);
    let slow = match kept.take().filter(|(at, _)| young(*at)) {
        Some(kept) => kept,
        None => (now, Slow::read(&*app.store, catalog).await?),
    };
    let unbilled = Unbilled::of(counts, &slow.1)?;
    *kept = Some(slow);
    Ok(unbilled)
}

/// Read billing health
#[utoipa::path(
    get, path = "/v1/health/billing", tag = "pushes",
    responses((status = 200, description = "The numbers", body = BillingHealth))
)]
pub async fn get_billing_health(Call { app, caller }: Call) -> Answer<BillingHealth> {
    caller.require_unbound(Scope::Read)?;
    let now = app.clock.now();
    let ages = PushAges {
        observed_before: OBSERVED_LONG.before(now),
        submitted_before: SUBMITTED_LONG.before(now),
    };
    let counts = app.store.count_pushes(ages).await?;
    let catalog = app.catalog.reload().await?;
    let unbilled = read_unbilled(&app, &catalog, &counts).await?;
    let slug = |meter: MeterNo| catalog.get(meter).map(|meter| meter.slug.to_string());
    let dead = counts.unbilled.into_iter().filter_map(|(meter, sum)| Some((slug(meter)?, sum)));
    let by_slug = |sums: BTreeMap<MeterNo, UnmappedSum>| {
        let named = sums.into_iter().filter_map(|(meter, sum)| {
            let UnmappedSum { tenants, pushes, quantity } = sum;
            Some((slug(meter)?, UnmappedUsage { tenants, pushes, quantity }))
        });
        named.collect::<BTreeMap<String, UnmappedUsage>>()
    };
    let PageCounts { open, day, week, week_before } = app.store.count_pages(now).await?;
    let pages = Pages { open, day, week, week_before };
    let hourly = last_pass(&app, PassKind::Hourly).await?;
    let nightly = last_pass(&app, PassKind::Nightly).await?;
    let open = Some(true);
    let findings =
        store::Query::first(FindingFilter { open, ..FindingFilter::default() }, LIMIT_MAX);
    let alerts = store::Query::first(AlertFilter { open, kind: None }, LIMIT_MAX);
    Ok(axum::Json(BillingHealth {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        provider: app.provider.as_ref().map(|provider| provider.name().to_owned()),
        shadow: match (app.shadow, has_sandbox(&app)) {
            (false, _) => "off",
            (true, true) => "sandbox",
            (true, false) => "nowhere",
        }
        .to_owned(),
        unbilled: name_unbilled(&unbilled, &catalog)?,
        quarantined_more: unbilled.quarantined_more,
        drifting_tenants: app.store.count_drifting_tenants().await?,
        findings_open: app.store.list_findings(findings).await?.len(),
        alerts_open: app.store.list_alerts(alerts).await?.len(),
        webhooks_waiting: app.store.count_webhooks().await?.waiting,
        pages,
        last_pass: LastPasses {
            hourly: hourly.map(|(at, _)| at),
            hourly_incomplete: hourly.is_some_and(|(_, incomplete)| incomplete),
            nightly: nightly.map(|(at, _)| at),
            nightly_incomplete: nightly.is_some_and(|(_, incomplete)| incomplete),
        },
        self_check: read_self_check(&app, now).await?,
        unbilled_quantity: dead.collect(),
        observed: counts.observed,
        observed_long: counts.observed_long,
        without_customer: counts.without_customer.values().map(|sum| sum.pushes).sum(),
        without_customer_usage: by_slug(counts.without_customer),
        unsent_usage: by_slug(counts.unsent),
        submitted: counts.submitted,
        submitted_long: counts.submitted_long,
        dead: counts.dead,
    }))
}

/// What the self-check knows.
async fn read_self_check(app: &App, now: Timestamp) -> Result<SelfCheckHealth, Problem> {
    let check = app.store.read_self_check().await?;
    let walk = check.walk.as_ref();
    Ok(SelfCheckHealth {
        mismatches: app.store.count_mismatches().await?,
        not_done: check.not_done(now),
        complete_since: check.complete.as_ref().map(|walk| walk.started_at),
        last_walk: check.complete.as_ref().and_then(|walk| walk.ended_at),
        walk_started: walk.filter(|walk| walk.ended_at.is_none()).map(|walk| walk.started_at),
        walk_events: walk.map_or(0, |walk| walk.events),
        last_sample: check.sample.at,
    })
}

/// When the last pass of a kind ended, and whether it is incomplete.
async fn last_pass(app: &App, kind: PassKind) -> Result<Option<(Timestamp, bool)>, Problem> {
    let mut last = None;
    for state in [PassState::Closed, PassState::Incomplete] {
        let of_kind = PassFilter { kind: Some(kind), state: Some(state) };
        let newest = app.store.list_passes(store::Query::first(of_kind, 1)).await?.pop();
        let ended = newest.and_then(|pass| pass.ended_at);
        last = last.max(ended.map(|at| (at, state == PassState::Incomplete)));
    }
    Ok(last)
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ComparisonQuery {
    tenant: String,
    /// The meter's slug.
    meter: String,
    /// First instant (RFC 3339, or a date in UTC); a day before `to` if it is left out.
    #[param(example = "2026-11-15T00:00:00Z")]
    from: Option<String>,
    /// First instant that is no longer included; now if it is left out.
    #[param(example = "2026-11-16T00:00:00Z")]
    to: Option<String>,
}

/// Compare ledger and provider
///
/// What was counted of a tenant, what was pushed, and what the provider shows, window by window.
/// The provider is asked each time, one comparison after the other; for keys that are bound to no
/// tenant.
#[utoipa::path(
    get, path = "/v1/comparison", tag = "pushes", params(ComparisonQuery),
    responses(
        (status = 200, description = "The windows", body = ComparisonAnswer),
        (status = 404, description = "There is no such meter"),
        (status = 409, description = "There is nothing to compare with; `detail` says why"),
        (status = 422, description = "More totals would be read than one query may"),
    )
)]
pub async fn get_comparison(
    Call { app, caller }: Call,
    Query(query): Query<ComparisonQuery>,
) -> Answer<ComparisonAnswer> {
    let tenant = caller.any_tenant_for(Scope::Read, &query.tenant)?;
    // The provider's limit is the account's, and pushes need it too.
    let _only = app.comparing.lock().await;
    let (number, meter) = app.catalog.find(&query.meter).await?;
    let cannot = |why: &'static str| Problem::new(Kind::Conflict, "nothing_to_compare", why);
    let billing = meter.spec.billing.as_ref().ok_or_else(|| cannot("the meter is not billed"))?;
    let provider = app
        .provider
        .as_ref()
        .ok_or_else(|| cannot("there is no billing provider; set provider.kind in the settings"))?;
    let found = app.store.find_tenant(&tenant).await?;
    let customer = found.and_then(|tenant| tenant.customer).ok_or_else(|| {
        cannot("the tenant has no customer; PUT /v1/tenants/{id} with \"customer\"")
    })?;
    let range = parse_days(query.from.as_deref(), query.to.as_deref(), app.clock.now())?;
    let windows = cover(range, &meter, billing);
    let span = Window { start: windows[0].start, end: windows[windows.len() - 1].end };
    let rows = app.store.read_usage(&tenant, number, span, app.query_rows_max).await?;
    let cuts: BTreeMap<Timestamp, CutState> =
        app.store.read_cuts(&tenant, number, span).await?.into_iter().collect();
    let pushes = app.store.read_window_pushes(&tenant, number, span).await?;
    let customers = customers_of(&customer, &pushes);
    let totals = read_totals(&**provider, &meter, (&customers, &pushes), &windows).await?;
    let mut compared = Vec::new();
    for (window, total) in windows.into_iter().zip(totals) {
        let halves = WindowHalves {
            window,
            ledger: billed_of(cuts.get(&window.start), measure(&rows, window)?).ok_or(FoldError)?,
            total,
            cut: cuts.get(&window.start),
            pushes: pushes.iter().filter(|push| push.window.start == window.start).collect(),
        };
        compared.extend(halves.compare(&meter, billing, &app).await?);
    }
    let differs = |window: &&ComparedWindow| {
        window.verdict == WindowVerdict::Differs && window.state != WindowState::Open
    };
    Ok(axum::Json(ComparisonAnswer {
        tenant: query.tenant,
        customer: customer.to_string(),
        customers: customers.iter().map(ToString::to_string).collect(),
        meter: query.meter,
        differing: compared.iter().filter(differs).count(),
        windows: compared,
    }))
}

/// The tenant's customer, then every other one that something of these windows was sent for.
fn customers_of<'a>(customer: &'a CustomerId, pushes: &'a [WindowPush]) -> Vec<&'a CustomerId> {
    let sent_for = pushes.iter().filter_map(|push| push.customer.as_ref());
    let others: BTreeSet<&CustomerId> = sent_for.filter(|one| *one != customer).collect();
    [customer].into_iter().chain(others).collect()
}

/// Both sides of a window that is compared.
struct WindowHalves<'a> {
    window: Window,
    ledger: Quantity,
    total: Quantity,
    cut: Option<&'a CutState>,
    /// Oldest revision first.
    pushes: Vec<&'a WindowPush>,
}

impl WindowHalves<'_> {
    fn is_shadow(&self, app: &App) -> bool {
        self.cut.map_or(app.shadow, |cut| cut.shadow)
    }

    /// None if there is nothing on either side.
    async fn compare(
        &self,
        meter: &Meter,
        billing: &Billing,
        app: &App,
    ) -> Result<Option<ComparedWindow>, Problem> {
        let (pushed, sums) = self.pushed(app)?;
        let written_off = sums.written_off;
        let aside = self.cut.map_or([Quantity::ZERO; 2], |cut| [cut.trial, cut.outside]);
        let all = [[self.ledger, pushed], [self.total, written_off], aside];
        if all.iter().flatten().all(|one| *one == Quantity::ZERO) {
            return Ok(None);
        }
        let shown = |part: fn(&CutState) -> Quantity| {
            self.cut.map(part).filter(|quantity| *quantity != Quantity::ZERO)
        };
        let before_from = self.window.start < billing.start();
        let verdict = self.judge((pushed, written_off), before_from, app);
        Ok(Some(ComparedWindow {
            start: self.window.start,
            end: self.window.end,
            state: meter.window_life().state(self.window.end, app.clock.now()),
            equal: verdict == WindowVerdict::Equal,
            verdict,
            written_off: (written_off != Quantity::ZERO).then_some(written_off),
            note: note_discards(&*app.store, &sums.written_off_pushes).await?,
            ledger: self.ledger,
            pushed,
            provider: self.total,
            trial: shown(|cut| cut.trial),
            outside: shown(|cut| cut.outside),
        }))
    }

    /// What was handed to billing and not written off, and the sums of the pushes.
    fn pushed(&self, app: &App) -> Result<(Quantity, PushSums), Problem> {
        if self.is_shadow(app) && !has_sandbox(app) {
            return Ok((Quantity::ZERO, PushSums::default()));
        }
        let own: Vec<WindowPush> = self.pushes.iter().copied().cloned().collect();
        let sums = PushSums::of_window(&own).ok_or(FoldError)?;
        let planned = self.cut.map_or(Quantity::ZERO, |cut| cut.planned);
        Ok((planned.checked_sub(sums.written_off).ok_or(FoldError)?, sums))
    }

    fn judge(
        &self,
        (pushed, written_off): (Quantity, Quantity),
        before_from: bool,
        app: &App,
    ) -> WindowVerdict {
        let used = self.ledger != Quantity::ZERO;
        let same = self.total == pushed;
        if before_from && used {
            WindowVerdict::NotBilled
        } else if self.is_shadow(app) && used && (same || !has_sandbox(app)) {
            WindowVerdict::Shadow
        } else if same && written_off != Quantity::ZERO {
            WindowVerdict::WrittenOff
        } else if same && self.cut.is_some_and(|cut| cut.outside != Quantity::ZERO) {
            WindowVerdict::Outside
        } else if same || self.total == self.ledger {
            WindowVerdict::Equal
        } else {
            WindowVerdict::Differs
        }
    }
}

/// Whether shadow usage is sent somewhere, so that it can be compared.
fn has_sandbox(app: &App) -> bool {
    app.shadow && app.provider.as_ref().is_some_and(|provider| provider.limits().sends)
}

/// What the provider shows of each window: of the tenant's customer, which is the first, and of
/// each other one that something of the window was sent for.
async fn read_totals(
    provider: &dyn Provider,
    meter: &Meter,
    (customers, pushes): (&[&CustomerId], &[WindowPush]),
    windows: &[Window],
) -> Result<Vec<Quantity>, Problem> {
    let mut sums = vec![Quantity::ZERO; windows.len()];
    for (place, one) in customers.iter().copied().enumerate() {
        let asked = TotalsQuery::new(one, meter, windows);
        let totals = provider.read_totals(&asked).await.map_err(|error| {
            Problem::new(Kind::Unavailable, "provider_unavailable", error.to_string())
        })?;
        for ((sum, window), total) in sums.iter_mut().zip(windows).zip(totals) {
            let sent = |push: &WindowPush| {
                push.customer.as_ref() == Some(one) && push.window.start == window.start
            };
            if place == 0 || pushes.iter().any(sent) {
                *sum = sum.checked_add(total).ok_or(FoldError)?;
            }
        }
    }
    Ok(sums)
}

/// The billed windows that hold any of the range; at least one.
fn cover(range: Window, meter: &Meter, billing: &Billing) -> Vec<Window> {
    let mut windows = vec![billing.window_around(range.start, meter.spec.bucket)];
    while windows[windows.len() - 1].end < range.end {
        windows.push(billing.window_around(windows[windows.len() - 1].end, meter.spec.bucket));
    }
    windows
}

fn measure(rows: &[UsageRow], window: Window) -> Result<Quantity, Problem> {
    let inside = |row: &&UsageRow| (window.start..window.end).contains(&row.bucket_start);
    let own: Vec<UsageRow> = rows.iter().filter(inside).cloned().collect();
    Ok(WindowUsage::measure(&own)?.billable)
}
