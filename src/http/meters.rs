//! `/v1/meters`: declaring what is counted, and reading it back.
//!
//! Invariant: a definition never changes, since every stored total depends on it; declaring
//! it again is harmless and may change the description only.

use super::auth::Scope;
use super::catalog::unknown_meter;
use super::extract::{Answer, Call, Path, Request, read_json};
use super::problem::{Kind, Problem};
use crate::api::meters::{MeterAnswer, MeterList};
use crate::rules::ids::MeterSlug;
use crate::rules::meter::{Meter, MeterDraft, MeterSpec};
use crate::store::Declaration;
use http::StatusCode;

/// Declare a meter
///
/// Creates the meter, or changes what may change of the existing one: description, spans,
/// tolerance, `archived`, and billing once. What is left out stays as it is; null brings the
/// default back. An archived meter refuses events; what it counted stays, and is billed.
#[utoipa::path(
    put, path = "/v1/meters/{slug}", tag = "meters", request_body = MeterSpec,
    params(("slug" = String, Path, description = "The meter's slug")),
    responses(
        (status = 200, description = "It was declared before", body = MeterAnswer),
        (status = 201, description = "It is declared", body = MeterAnswer),
        (status = 409, description = "A meter of this slug counts differently; it is unchanged"),
        (status = 422, description = "The definition is refused"),
    )
)]
pub async fn put_meter(
    Call { app, caller }: Call,
    Path(slug): Path<String>,
    request: Request,
) -> Result<(StatusCode, axum::Json<MeterAnswer>), Problem> {
    caller.require_unbound(Scope::Admin)?;
    let slug = MeterSlug::parse(&slug)?;
    let draft = read_json::<MeterDraft>(request, &app).await?;
    let catalog = app.catalog.reload().await?;
    let standing = catalog.find(slug.as_str()).map(|(_, meter)| &meter.spec);
    let spec = draft.onto(standing).map_err(Problem::refused)?;
    let meter = Meter::declare(slug, spec).map_err(Problem::refused)?;
    let declared = app.store.declare_meter(meter.clone(), app.clock.now()).await?;
    let status = match declared {
        Declaration::Created => StatusCode::CREATED,
        Declaration::Updated => StatusCode::OK,
        Declaration::EventNameTaken(other) => {
            return Err(Problem::new(
                Kind::Conflict,
                "event_name_taken",
                format!(
                    "meter {other} is billed under this event_name, and the provider could not \
                     tell the two apart; set another billing.event_name"
                ),
            ));
        }
        Declaration::Refused(standing) => {
            let standing = serde_json::to_string(&standing.spec).unwrap_or_default();
            return Err(Problem::new(
                Kind::Conflict,
                "meter_differs",
                "a meter of this slug counts differently; since it has totals, only description, \
                 settle_after, late_until, cut_every, drift_tolerance and archived can change, and \
                 billing can be added once; declare the new meter under another slug",
            )
            .with_members(format!("\"existing\":{standing}")));
        }
    };
    // What is stored may say more than what was asked for: when billing began, and billing itself.
    let catalog = app.catalog.reload().await?;
    let (_, standing) = catalog.find(meter.slug.as_str()).ok_or_else(unknown_meter)?;
    Ok((status, axum::Json(standing.as_ref().into())))
}

/// Read a meter
#[utoipa::path(
    get, path = "/v1/meters/{slug}", tag = "meters",
    params(("slug" = String, Path, description = "The meter's slug")),
    responses(
        (status = 200, description = "The meter", body = MeterAnswer),
        (status = 404, description = "There is no such meter"),
    )
)]
pub async fn get_meter(
    Call { app, caller }: Call,
    Path(slug): Path<String>,
) -> Answer<MeterAnswer> {
    caller.require(Scope::Read)?;
    let slug = MeterSlug::parse(&slug)?;
    // The description may have changed elsewhere, so the store is asked.
    let catalog = app.catalog.reload().await?;
    let (_, meter) = catalog.find(slug.as_str()).ok_or_else(unknown_meter)?;
    Ok(axum::Json(meter.as_ref().into()))
}

/// List meters
#[utoipa::path(
    get, path = "/v1/meters", tag = "meters",
    responses((status = 200, description = "Every meter, in the order of slugs", body = MeterList))
)]
pub async fn list_meters(Call { app, caller }: Call) -> Answer<MeterList> {
    caller.require(Scope::Read)?;
    let catalog = app.catalog.reload().await?;
    let meters = catalog.list().iter().map(|meter| meter.as_ref().into()).collect();
    Ok(axum::Json(MeterList { meters }))
}
