//! What a person decides about `/v1/conflicts` and `/v1/quarantine`, one by one and in bulk.
//!
//! Invariant: a record is decided once. The same ruling again is answered as it was decided,
//! another one is a conflict that says what was decided. A key that is bound to a tenant decides
//! about that tenant's records only. A bulk request decides about a bounded number of records,
//! tenant by tenant; if it fails between two of them, sending it again does the rest.

use super::App;
use super::auth::{Caller, Scope};
use super::extract::{Answer, Call, Limit, Path, Request, read_json};
use super::inboxes::{
    answer_conflict, answer_quarantine, check_after, find_conflict, find_quarantined, parse_filter,
    parse_reason,
};
use super::problem::{Kind, Problem};
use crate::api::inboxes::{
    ConflictAnswer, ConflictDecideSpec, ConflictTotal, ConflictsDecided, DecisionSpec, LeftAnswer,
    QuarantineAnswer, QuarantineDecideSpec, QuarantineDecided, QuarantineTotal,
};
use crate::jobs::ingest::admissions::{ADMISSIONS_MAX, Admitted, read_record};
use crate::rules::decision::{
    ConflictRuling, Decision, InboxKey, QuarantineRuling, QuarantineState,
};
use crate::rules::event::{Event, Item, parse_event};
use crate::rules::ids::{MeterNo, TenantId};
use crate::rules::meter::Catalog;
use crate::rules::quantity::Quantity;
use crate::rules::refusal::Refusal;
use crate::store::decision::{ConflictRecord, QuarantineFilter, QuarantineRecord};
use std::collections::BTreeMap;

/// How often a record is looked at: before its decision and after, and once more in between if
/// somebody else decides at that moment.
const LOOKS_MAX: usize = 3;
/// Records that a bulk request decides unless asked otherwise.
const DECIDED_DEFAULT: usize = 100;

/// Admit a quarantined event
///
/// Counts it once, under its own id and at its own time, however old it is. If its id was counted
/// before, nothing is counted and the state says so: `duplicate`, or `conflict` for another
/// payload.
#[utoipa::path(
    post, path = "/v1/quarantine/{number}/admit", tag = "inboxes", request_body = DecisionSpec,
    params(("number" = u64, Path, description = "The record's number")),
    responses(
        (status = 200, description = "It is decided, now or before", body = QuarantineAnswer),
        (status = 404, description = "There is no such event in quarantine"),
        (status = 409, description = "It was discarded, or cannot be counted now: see `code`"),
        (status = 422, description = "The reason or the author is refused"),
    )
)]
pub async fn admit_quarantined(
    Call { app, caller }: Call,
    Path(number): Path<u64>,
    request: Request,
) -> Answer<QuarantineAnswer> {
    decide_one_quarantined(&app, &caller, number, QuarantineRuling::Admit, request).await
}

/// Discard a quarantined event
///
/// It is never counted from here. Sent again inside the accept horizon it is a delivery like any
/// other.
#[utoipa::path(
    post, path = "/v1/quarantine/{number}/discard", tag = "inboxes", request_body = DecisionSpec,
    params(("number" = u64, Path, description = "The record's number")),
    responses(
        (status = 200, description = "It is decided, now or before", body = QuarantineAnswer),
        (status = 404, description = "There is no such event in quarantine"),
        (status = 409, description = "It was admitted before"),
        (status = 422, description = "The reason or the author is refused"),
    )
)]
pub async fn discard_quarantined(
    Call { app, caller }: Call,
    Path(number): Path<u64>,
    request: Request,
) -> Answer<QuarantineAnswer> {
    decide_one_quarantined(&app, &caller, number, QuarantineRuling::Discard, request).await
}

/// Keep the counted payload of a conflict
///
/// Says that the payload that was counted is right. What is counted stays as it is.
#[utoipa::path(
    post, path = "/v1/conflicts/{number}/keep-standing", tag = "inboxes",
    request_body = DecisionSpec,
    params(("number" = u64, Path, description = "The record's number")),
    responses(
        (status = 200, description = "It is decided, now or before", body = ConflictAnswer),
        (status = 404, description = "There is no such conflict"),
        (status = 409, description = "It was dismissed before"),
        (status = 422, description = "The reason or the author is refused"),
    )
)]
pub async fn keep_standing(
    Call { app, caller }: Call,
    Path(number): Path<u64>,
    request: Request,
) -> Answer<ConflictAnswer> {
    decide_one_conflict(&app, &caller, number, ConflictRuling::KeepStanding, request).await
}

/// Dismiss a conflict
///
/// Takes it off the list of open conflicts and says nothing of either payload. What is counted
/// stays as it is.
#[utoipa::path(
    post, path = "/v1/conflicts/{number}/dismiss", tag = "inboxes", request_body = DecisionSpec,
    params(("number" = u64, Path, description = "The record's number")),
    responses(
        (status = 200, description = "It is decided, now or before", body = ConflictAnswer),
        (status = 404, description = "There is no such conflict"),
        (status = 409, description = "It was decided otherwise before"),
        (status = 422, description = "The reason or the author is refused"),
    )
)]
pub async fn dismiss_conflict(
    Call { app, caller }: Call,
    Path(number): Path<u64>,
    request: Request,
) -> Answer<ConflictAnswer> {
    decide_one_conflict(&app, &caller, number, ConflictRuling::Dismiss, request).await
}

/// Decide about quarantined events
///
/// Admits or discards what the filter finds among the undecided, oldest first. With `dry_run` it
/// only says how many these are and what they add up to.
#[utoipa::path(
    post, path = "/v1/quarantine/decide", tag = "inboxes", request_body = QuarantineDecideSpec,
    responses(
        (status = 200, description = "The outcome", body = QuarantineDecided),
        (status = 422, description = "The reason, the author or the filter is refused"),
    )
)]
pub async fn decide_quarantined(
    Call { app, caller }: Call,
    request: Request,
) -> Answer<QuarantineDecided> {
    caller.require(Scope::Operate)?;
    let spec: QuarantineDecideSpec = read_json(request, &app).await?;
    let decision = decision_of(&app, spec.reason, spec.author)?;
    let wanted = spec.filter;
    let borders = (wanted.from.as_deref(), wanted.to.as_deref());
    let (tenant, id) = (wanted.tenant.as_deref(), wanted.id.as_deref());
    let of = parse_filter(&caller, tenant, id, borders, Some(false))?;
    let filter = QuarantineFilter { of, reason: parse_reason(wanted.reason.as_deref())? };
    let limit = Limit::within(spec.limit, DECIDED_DEFAULT, ADMISSIONS_MAX)?;
    let mut found =
        app.store.list_quarantine(limit.query(filter, check_after(spec.after)?)).await?;
    let next_after = limit.trim(&mut found, |record| record.number);
    let catalog = app.catalog.reload().await?;
    let mut answer = QuarantineDecided {
        dry_run: spec.dry_run,
        selected: count(found.len()),
        admitted: 0,
        duplicates: 0,
        conflicts: 0,
        discarded: 0,
        left: Vec::new(),
        totals: sum_quarantined(&found, &catalog)?,
        next_after,
    };
    match (spec.dry_run, spec.ruling) {
        (true, QuarantineRuling::Admit) => {
            for record in found {
                answer
                    .left
                    .extend(read_record(&record, &catalog).err().map(|why| left(record, why)));
            }
        }
        (true, QuarantineRuling::Discard) => {}
        (false, QuarantineRuling::Admit) => {
            admit_all(&app, found, &catalog, &decision, &mut answer).await?;
        }
        (false, QuarantineRuling::Discard) => {
            let keys = found.iter().map(|record| key(&record.tenant, record.number)).collect();
            answer.discarded = app.store.discard_quarantined(keys, decision).await?;
        }
    }
    Ok(axum::Json(answer))
}

/// Decide about conflicts
///
/// Keeps the counted payloads of, or dismisses, what the filter finds among the undecided, oldest
/// first. With `dry_run` it only says how many these are and what they add up to.
#[utoipa::path(
    post, path = "/v1/conflicts/decide", tag = "inboxes", request_body = ConflictDecideSpec,
    responses(
        (status = 200, description = "The outcome", body = ConflictsDecided),
        (status = 422, description = "The reason, the author or the filter is refused"),
    )
)]
pub async fn decide_conflicts(
    Call { app, caller }: Call,
    request: Request,
) -> Answer<ConflictsDecided> {
    caller.require(Scope::Operate)?;
    let spec: ConflictDecideSpec = read_json(request, &app).await?;
    let decision = decision_of(&app, spec.reason, spec.author)?;
    let wanted = spec.filter;
    let borders = (wanted.from.as_deref(), wanted.to.as_deref());
    let (tenant, id) = (wanted.tenant.as_deref(), wanted.id.as_deref());
    let filter = parse_filter(&caller, tenant, id, borders, Some(false))?;
    let limit = Limit::within(spec.limit, DECIDED_DEFAULT, ADMISSIONS_MAX)?;
    let mut found = app.store.list_conflicts(limit.query(filter, check_after(spec.after)?)).await?;
    let next_after = limit.trim(&mut found, |record| record.number);
    let totals = sum_conflicts(&found, &*app.catalog.reload().await?)?;
    let selected = count(found.len());
    let keys = found.iter().map(|record| key(&record.tenant, record.number)).collect();
    let decided = match spec.dry_run {
        true => 0,
        false => app.store.decide_conflicts(keys, spec.ruling, decision).await?,
    };
    let dry_run = spec.dry_run;
    Ok(axum::Json(ConflictsDecided { dry_run, selected, decided, totals, next_after }))
}

async fn decide_one_quarantined(
    app: &App,
    caller: &Caller,
    number: u64,
    ruling: QuarantineRuling,
    request: Request,
) -> Answer<QuarantineAnswer> {
    caller.require(Scope::Operate)?;
    let DecisionSpec { reason, author } = read_json(request, app).await?;
    let decision = decision_of(app, reason, author)?;
    // It is undecided at the first look at most, since it is decided then or refused.
    for _ in 0..LOOKS_MAX {
        let record = find_quarantined(app, caller, number).await?;
        match record.state.ruling() {
            Some(before) if before == ruling => return Ok(axum::Json(answer_quarantine(record)?)),
            Some(_) => return Err(decided_before(record.state.name(), record.decision.as_ref())),
            None => {}
        }
        match ruling {
            QuarantineRuling::Discard => {
                let keys = vec![key(&record.tenant, number)];
                app.store.discard_quarantined(keys, decision.clone()).await?;
            }
            QuarantineRuling::Admit => {
                let catalog = app.catalog.reload().await?;
                let admitted = app.ingest.admit(&[record], &catalog, &decision).await?;
                if let Some(Admitted::Left(why)) = admitted.into_iter().flatten().next() {
                    return Err(Problem::new(Kind::Conflict, why.code, why.detail));
                }
            }
        }
    }
    Err(Problem::corrupt("a quarantined event cannot be decided"))
}

async fn decide_one_conflict(
    app: &App,
    caller: &Caller,
    number: u64,
    ruling: ConflictRuling,
    request: Request,
) -> Answer<ConflictAnswer> {
    caller.require(Scope::Operate)?;
    let DecisionSpec { reason, author } = read_json(request, app).await?;
    let decision = decision_of(app, reason, author)?;
    let mut record = find_conflict(app, caller, number).await?;
    if record.decision.is_none() {
        let keys = vec![key(&record.tenant, number)];
        app.store.decide_conflicts(keys, ruling, decision).await?;
        record = find_conflict(app, caller, number).await?;
    }
    match record.state.ruling() {
        Some(before) if before == ruling => Ok(axum::Json(answer_conflict(record)?)),
        Some(_) | None => Err(decided_before(record.state.name(), record.decision.as_ref())),
    }
}

/// Admits what was found, tenant by tenant. What somebody else decides meanwhile is left out.
async fn admit_all(
    app: &App,
    found: Vec<QuarantineRecord>,
    catalog: &Catalog,
    decision: &Decision,
    answer: &mut QuarantineDecided,
) -> Result<(), Problem> {
    let mut of_tenants: BTreeMap<TenantId, Vec<QuarantineRecord>> = BTreeMap::new();
    for record in found {
        of_tenants.entry(record.tenant.clone()).or_default().push(record);
    }
    for mut records in of_tenants.into_values() {
        // Each round has fewer records than the one before.
        let admitted = loop {
            if let Some(admitted) = app.ingest.admit(&records, catalog, decision).await? {
                break admitted;
            }
            let before = records.len();
            let mut undecided = Vec::new();
            for record in records {
                let now = app.store.find_quarantined(record.number).await?;
                undecided.extend(now.filter(|now| now.decision.is_none()));
            }
            if undecided.len() == before {
                return Err(Problem::corrupt("quarantined events cannot be decided"));
            }
            records = undecided;
        };
        for (record, admitted) in records.into_iter().zip(admitted) {
            match admitted {
                Admitted::Decided(QuarantineState::Admitted) => answer.admitted += 1,
                Admitted::Decided(QuarantineState::Duplicate) => answer.duplicates += 1,
                Admitted::Decided(QuarantineState::Conflict) => answer.conflicts += 1,
                Admitted::Decided(QuarantineState::Discarded | QuarantineState::Undecided) => {}
                Admitted::Left(why) => answer.left.push(left(record, why)),
            }
        }
    }
    Ok(())
}

fn decision_of(app: &App, reason: String, author: String) -> Result<Decision, Problem> {
    Decision::new(reason, author, app.clock.now()).map_err(Problem::refused)
}

fn decided_before(state: &str, decision: Option<&Decision>) -> Problem {
    let Some(Decision { reason, author, at }) = decision else {
        return Problem::corrupt("a record is decided and has no decision");
    };
    let detail = format!("it was decided at {at} by {author}: {state}, because: {reason}");
    let text = |value: &str| serde_json::Value::from(value).to_string();
    Problem::new(Kind::Conflict, "already_decided", detail).with_members(format!(
        "\"state\":{},\"author\":{},\"reason\":{},\"decided_at\":{}",
        text(state),
        text(author),
        text(reason),
        text(&at.to_string())
    ))
}

fn key(tenant: &TenantId, number: u64) -> InboxKey {
    InboxKey { tenant: tenant.clone(), number }
}

fn left(record: QuarantineRecord, why: Refusal) -> LeftAnswer {
    LeftAnswer {
        number: record.number,
        tenant: record.tenant.to_string(),
        id: record.id.to_string(),
        code: why.code.to_owned(),
        detail: why.detail.into_owned(),
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// What events add up to, by tenant and meter.
type Sums<T> = BTreeMap<(TenantId, MeterNo), T>;

/// Payloads that no meter knows any more have no quantity; they cannot be admitted either.
fn sum_quarantined(
    found: &[QuarantineRecord],
    catalog: &Catalog,
) -> Result<Vec<QuarantineTotal>, Problem> {
    let mut sums: Sums<(u64, Quantity)> = Sums::new();
    for record in found {
        let Ok(event) = read_record(record, catalog) else { continue };
        let sum = sums.entry((record.tenant.clone(), event.meter)).or_default();
        sum.0 += 1;
        add(&mut sum.1, &event)?;
    }
    let total = |((tenant, meter), (events, quantity)): ((TenantId, MeterNo), (u64, Quantity))| {
        let meter = catalog.get(meter)?.slug.to_string();
        Some(QuarantineTotal { tenant: tenant.to_string(), meter, events, quantity })
    };
    Ok(sums.into_iter().filter_map(total).collect())
}

fn sum_conflicts(
    found: &[ConflictRecord],
    catalog: &Catalog,
) -> Result<Vec<ConflictTotal>, Problem> {
    let read = |payload: &str| {
        let item: Item<'_> = serde_json::from_str(payload).ok()?;
        parse_event(&item, catalog).ok()
    };
    let mut sums: Sums<(u64, Quantity, Quantity)> = Sums::new();
    for record in found {
        let Some(counted) = read(&record.standing) else { continue };
        let sum = sums.entry((record.tenant.clone(), counted.meter)).or_default();
        sum.0 += 1;
        add(&mut sum.1, &counted)?;
        if let Some(received) = read(&record.arriving) {
            add(&mut sum.2, &received)?;
        }
    }
    let total = |((tenant, meter), (conflicts, counted, received))| {
        let meter: &MeterNo = &meter;
        let tenant: TenantId = tenant;
        let (meter, tenant) = (catalog.get(*meter)?.slug.to_string(), tenant.to_string());
        Some(ConflictTotal { tenant, meter, conflicts, counted, received })
    };
    Ok(sums.into_iter().filter_map(total).collect())
}

fn add(sum: &mut Quantity, event: &Event) -> Result<(), Problem> {
    let too_large = || {
        let detail = "the quantities add up to more than can be held; use a lower limit";
        Problem::new(Kind::Refused, "answer_too_large", detail)
    };
    *sum = sum.checked_add(event.quantity).ok_or_else(too_large)?;
    Ok(())
}
