//! `POST /v1/events`: deliveries in any of the four shapes, verdicts out.
//!
//! Invariant: the answer is sent after the commit that holds the events, names every item's
//! outcome, and a malformed item never harms its neighbours. A request that is refused as a whole
//! counted nothing.

pub mod items;
mod reply;

use super::App;
use super::admission::{self, Peer};
use super::auth::{Caller, Scope};
use super::body::WholeBody;
use super::extract::{Call, Query, media_type};
use super::problem::{Kind, Problem};
use super::request_id;
use super::telemetry;
use crate::heavy::{HeavyThreads, give_way};
use crate::rules::event::{Event, RefusedItem, parse_event};
use crate::rules::ids::TenantId;
use crate::rules::meter::Catalog;
use crate::rules::refusal::Refusal;
use axum::body::HttpBody;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, Uri};
use items::{Format, Items, ReadItem};
use reply::{Names, Reply, Show};
use serde::Deserialize;
use std::sync::Arc;

/// Reading a larger body takes so long that small requests are to go first.
const IN_PLACE_BYTES_MAX: usize = 64 * 1024;
/// The same for bodies with more items: two bytes of a body can be an item that is refused, and
/// then the answer has a hundred times the bytes. Honest events have a few of these commas each.
const IN_PLACE_COMMAS_MAX: usize = 4096;
/// Answers that list more items are written with lower priority.
const IN_PLACE_ITEMS_MAX: usize = 512;
const ITEMS_BETWEEN_PAUSES: usize = 64;

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PostQuery {
    /// Which items the answer lists: `all`, or only `problems`, which leaves out accepted events
    /// and plain duplicates. The counts are always complete. All if it is left out.
    #[serde(default)]
    #[param(inline)]
    results: Show,
}

type Delivery = Result<Event, RefusedItem>;

/// Send events
///
/// Counts each event exactly once in effect. The answer comes after the events are durable; an
/// event may be sent again any number of times.
#[utoipa::path(
    post, path = "/v1/events", tag = "events", params(PostQuery), request_body = String,
    responses(
        (status = 200, description = "A batch was judged, item by item; or a single event was \
            counted, now (`accepted`) or before (`duplicate`)"),
        (status = 202, description = "A single event is quarantined: kept and not counted"),
        (status = 409, description = "Another payload was counted under the single event's id; \
            it still counts, and this one is kept for review"),
        (status = 422, description = "The single event is rejected: nothing of it was kept"),
    )
)]
pub async fn post_events(Call { app, caller }: Call, request: Request) -> Answer {
    let (parts, body) = request.into_parts();
    deliver(&app, &caller, &parts, body).await
}

/// Whether a request sends events. Those do not pass the router, which knows their route only to
/// describe it and to name it in `Allow`.
pub fn is_delivery<B>(request: &http::Request<B>) -> bool {
    request.method() == Method::POST && request.uri().path() == "/v1/events"
}

/// Everything from a request to its answer.
pub async fn answer<B>(app: &Arc<App>, peer: Option<Peer>, request: http::Request<B>) -> Response
where
    B: HttpBody<Data = Bytes> + Unpin,
{
    let (parts, body) = request.into_parts();
    let id = request_id::choose(&parts.headers);
    telemetry::observe_events(id, admission::admit_events(app, peer, &parts, body)).await
}

type Answer = Result<Response, Problem>;

/// Counts the events of a request that was admitted.
pub async fn deliver<B>(app: &Arc<App>, caller: &Caller, parts: &Parts, body: B) -> Answer
where
    B: HttpBody<Data = Bytes> + Unpin,
{
    caller.require(Scope::Ingest)?;
    let show = read_show(&parts.uri)?;
    let format = read_format(&parts.headers)?;
    let body = app.bodies.read_from(Some(caller), &parts.headers, body).await?;
    let ReadBatch { deliveries, names, single } = read_batch(app, caller, body, format).await?;
    let verdicts = app.ingest.submit(deliveries).await?;
    let listed = verdicts.iter().filter(|verdict| show.lists(verdict)).count();
    let (horizon_hours, large) = (app.accept_horizon_hours, listed > IN_PLACE_ITEMS_MAX);
    let write = move || (Reply::write(&names, &verdicts, show, horizon_hours), verdicts);
    let (reply, verdicts) = run_by_weight(large, write).await?;
    reply.count();
    Ok(match verdicts.as_slice() {
        [verdict] if single => reply.into_single_response(verdict),
        _ => reply.into_response(),
    })
}

/// Which items the answer lists; the usual queries are not taken apart.
fn read_show(uri: &Uri) -> Result<Show, Problem> {
    match uri.query() {
        None => Ok(Show::All),
        Some("results=problems") => Ok(Show::Problems),
        Some(_) => Query::<PostQuery>::read(uri).map(|Query(query)| query.results),
    }
}

fn read_format(headers: &HeaderMap) -> Result<Format, Problem> {
    match media_type(headers).as_deref() {
        None | Some("application/json") => Ok(Format::Json),
        Some("application/x-ndjson" | "application/ndjson" | "application/jsonl") => {
            Ok(Format::Lines)
        }
        Some("application/cloudevents+json") => Ok(Format::CloudEvent),
        Some("application/cloudevents-batch+json") => Ok(Format::CloudEvents),
        Some(_) => Err(Problem::new(
            Kind::UnsupportedType,
            "unsupported_type",
            "Content-Type is application/json, application/x-ndjson (or jsonl), \
             application/cloudevents+json or application/cloudevents-batch+json (with curl, use \
             --json); nothing of this request was counted",
        )),
    }
}

/// A body as deliveries.
struct ReadBatch {
    deliveries: Vec<Delivery>,
    names: Names,
    /// Whether the body is one event rather than a batch of one.
    single: bool,
}

async fn read_batch(
    app: &App,
    caller: &Caller,
    body: WholeBody,
    format: Format,
) -> Result<ReadBatch, Problem> {
    let (body, events_max) = (Arc::new(body), app.config.batch_events_max);
    let large = is_large(&body.bytes);
    let parse = async |catalog: Arc<Catalog>| {
        // The work keeps the body's share of memory until it is done, also if the request is gone.
        let held = Arc::clone(&body);
        let work = move || parse_batch(&held.bytes, format, &catalog, events_max);
        run_by_weight(large, work).await?
    };
    let mut batch = parse(app.catalog.current().await?).await?;
    // A meter that is not known may have been declared elsewhere a moment ago, so the catalog is
    // read again before its events are refused.
    let unknown = |delivery: &Delivery| {
        delivery.as_ref().is_err_and(|refused| refused.refusal.code == "unknown_meter")
    };
    if batch.deliveries.iter().any(unknown)
        && let Some(catalog) = app.catalog.renewed().await?
    {
        batch = parse(catalog).await?;
    }
    if let Some(tenant) = caller.bound_to() {
        forbid_other_tenants(&mut batch.deliveries, tenant);
    }
    Ok(batch)
}

fn parse_batch(
    body: &[u8],
    format: Format,
    catalog: &Catalog,
    events_max: usize,
) -> Result<ReadBatch, Problem> {
    let Items { items, single } = items::parse_items(body, format, events_max)?;
    let parse = |(number, item): (usize, &ReadItem)| {
        if number.is_multiple_of(ITEMS_BETWEEN_PAUSES) {
            give_way();
        }
        parse_item(item, catalog)
    };
    let deliveries: Vec<_> = items.iter().enumerate().map(parse).collect();
    Ok(ReadBatch { names: Names::of(&deliveries), deliveries, single })
}

/// Runs work here, or with lower priority if it is large.
async fn run_by_weight<T: Send + 'static>(
    large: bool,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    if large { Ok(HeavyThreads::of_requests().run(work).await?) } else { Ok(work()) }
}

fn is_large(body: &[u8]) -> bool {
    let commas = || body.iter().filter(|byte| **byte == b',').count();
    body.len() > IN_PLACE_BYTES_MAX || commas() > IN_PLACE_COMMAS_MAX
}

fn parse_item(item: &ReadItem<'_>, catalog: &Catalog) -> Delivery {
    match item {
        Ok(item) => parse_event(item, catalog),
        Err(refusal) => Err(RefusedItem { tenant: None, id: None, refusal: refusal.clone() }),
    }
}

/// What a bound key may not send is refused, and counted under the key's own tenant: it must leave
/// no trace with another one.
fn forbid_other_tenants(deliveries: &mut [Delivery], tenant: &TenantId) {
    for delivery in deliveries {
        let refusal = match delivery {
            Ok(event) if event.tenant == *tenant => continue,
            Ok(_) => Refusal::new(
                "tenant_forbidden",
                "this key is bound to another tenant; send the event with a key for its tenant",
            ),
            Err(refused) => refused.refusal.clone(),
        };
        *delivery = Err(RefusedItem { tenant: Some(tenant.as_str().into()), id: None, refusal });
    }
}
