//! `GET /v1/events`: the events that were counted, and the trace of one event key.
//!
//! Invariant: every query names its tenant, and a cursor holds only a place in time, so a cursor
//! taken from another tenant reaches nothing of it.

use super::App;
use super::auth::Scope;
use super::extract::{Answer, Call, Limit, Path, Query, list_query};
use super::inboxes::{answer_conflict, answer_quarantine};
use super::problem::{Kind, Problem};
use crate::api::events::{EventAnswer, EventList, TraceAnswer};
use crate::rules::event::cloud_event_id;
use crate::rules::ids::EventId;
use crate::rules::meter::Catalog;
use crate::rules::timestamp::Timestamp;
use crate::rules::window::{Window, parse_border};
use crate::store::{EventFilter, EventPage, EventTrace, StoredEvent};
use jiff::tz::TimeZone;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::sync::Arc;

list_query!(RecordsQuery, "`next_cursor` of the page before.", cursor: String, {
    tenant: String,
    /// The slug of the one meter to list.
    meter: Option<String>,
    /// First instant of occurred_at (RFC 3339, or a date in UTC).
    #[param(example = "2026-11-01T00:00:00Z")]
    from: Option<String>,
    /// First instant that is no longer included.
    #[param(example = "2026-12-01T00:00:00Z")]
    to: Option<String>,
});

/// Events that one request looks at.
const EVENTS_SEARCHED_MAX: usize = 50_000;

/// List counted events
#[utoipa::path(
    get, path = "/v1/events", tag = "events", params(RecordsQuery),
    responses(
        (status = 200, description = "A page of events", body = EventList),
        (status = 404, description = "There is no such meter"),
    )
)]
pub async fn list_events(
    Call { app, caller }: Call,
    Query(query): Query<RecordsQuery>,
) -> Answer<EventList> {
    let tenant = caller.tenant_for(Scope::Read, &query.tenant)?;
    let limit = Limit::parse(query.limit)?;
    let range = parse_range(query.from.as_deref(), query.to.as_deref())?;
    let before = query.cursor.as_deref().map(parse_cursor).transpose()?;
    let meter = match &query.meter {
        Some(slug) => Some(app.catalog.find(slug).await?.0),
        None => None,
    };
    let filter = EventFilter { tenant, meter, range, searched_max: EVENTS_SEARCHED_MAX };
    let asked = limit.query(filter, before);
    let EventPage { mut events, searched_to } = app.store.list_events(asked).await?;
    let catalog = catalog_of(&app, &events).await?;
    let answers = events.iter().map(|event| answer_event(event, &catalog));
    let mut answers: Vec<EventAnswer> = answers.collect::<Result<_, _>>()?;
    let fitting = limit.fitting(answers.iter().map(|answer| answer.event.get().len()));
    let cursor = |last: &StoredEvent| write_cursor(last.event.occurred_at, &last.event.id);
    let next = fitting.trim(&mut events, cursor);
    answers.truncate(events.len());
    let next_cursor = next.or_else(|| searched_to.map(|(at, id)| write_cursor(at, &id)));
    Ok(axum::Json(EventList { events: answers, next_cursor }))
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TraceQuery {
    /// The `source` of a CloudEvent, whose event id is the JSON array of source and id.
    #[param(min_length = 1, max_length = 255, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    source: Option<String>,
}

/// Trace an event
///
/// Why was this counted, or why not: the counted event, other payloads under its id, and what is
/// kept in quarantine. Name a CloudEvent by its own id and `source`.
#[utoipa::path(
    get, path = "/v1/events/{tenant}/{id}", tag = "events",
    params(
        ("tenant" = String, Path, description = "The tenant's id"),
        ("id" = String, Path, description = "The event's id"),
        TraceQuery,
    ),
    responses(
        (status = 200, description = "What is known of the event", body = TraceAnswer),
        (status = 404, description = "Nothing is known of it"),
    )
)]
pub async fn trace_event(
    Call { app, caller }: Call,
    Path((tenant, id)): Path<(String, String)>,
    Query(query): Query<TraceQuery>,
) -> Answer<TraceAnswer> {
    let tenant = caller.tenant_for(Scope::Read, &tenant)?;
    let id = match &query.source {
        Some(source) => cloud_event_id(source, &id)?,
        None => EventId::parse(&id)?,
    };
    let trace = app.store.trace_event(&tenant, &id).await?;
    if trace == EventTrace::default() {
        return Err(Problem::new(
            Kind::NotFound,
            "unknown_event",
            "nothing is known under this tenant and id; an event that was sent and not \
             acknowledged should be sent again; a CloudEvent is named by its id and ?source=",
        ));
    }
    let summary = summarise(&trace);
    let (conflicts_not_kept, quarantined_not_kept) =
        (trace.conflicts_not_kept, trace.quarantined_not_kept);
    let counted = match &trace.counted {
        Some(event) => {
            let catalog = catalog_of(&app, std::slice::from_ref(event)).await?;
            Some(answer_event(event, &catalog)?)
        }
        None => None,
    };
    let conflicts = trace.conflicts.into_iter().map(answer_conflict).collect::<Result<_, _>>()?;
    let quarantined =
        trace.quarantined.into_iter().map(answer_quarantine).collect::<Result<_, _>>()?;
    Ok(axum::Json(TraceAnswer {
        summary,
        counted,
        conflicts,
        quarantined,
        conflicts_not_kept,
        quarantined_not_kept,
    }))
}

fn summarise(trace: &EventTrace) -> String {
    let mut summary = match &trace.counted {
        Some(event) => format!("counted once, received at {}", event.received_at),
        None => "not counted".to_owned(),
    };
    let open = trace.conflicts.iter().filter(|one| one.decision.is_none()).count();
    match trace.conflicts.len() {
        0 => {}
        1 => summary.push_str("; 1 other payload came under this id and was not counted"),
        many => summary
            .push_str(&format!("; {many} other payloads came under this id and were not counted")),
    }
    if open < trace.conflicts.len() {
        summary.push_str(&format!(", {open} of them undecided"));
    }
    for record in &trace.quarantined {
        summary.push_str(&format!(
            "; quarantined as {} since {}",
            record.reason.code(),
            record.first_received_at
        ));
        if let Some(decision) = &record.decision {
            let (state, at) = (record.state.name(), decision.at);
            let author = &decision.author;
            summary.push_str(&format!(", decided by {author} at {at}: {state}"));
        }
    }
    let not_kept = trace.conflicts_not_kept.saturating_add(trace.quarantined_not_kept);
    if not_kept > 0 {
        summary.push_str(&format!(
            "; {not_kept} deliveries of further payloads were not counted and their payloads not \
             kept"
        ));
    }
    summary
}

/// A catalog that has the meters of these events, some of which may be declared elsewhere.
async fn catalog_of(app: &App, events: &[StoredEvent]) -> Result<Arc<Catalog>, Problem> {
    let catalog = app.catalog.current().await?;
    if events.iter().all(|stored| catalog.get(stored.event.meter).is_some()) {
        return Ok(catalog);
    }
    Ok(app.catalog.reload().await?)
}

fn answer_event(stored: &StoredEvent, catalog: &Catalog) -> Result<EventAnswer, Problem> {
    let meter = catalog
        .get(stored.event.meter)
        .ok_or_else(|| Problem::corrupt("an event has a meter that the catalog lacks"))?;
    let event = raw_json(stored.event.to_json(&meter.slug))?;
    Ok(EventAnswer { event, received_at: stored.received_at })
}

/// JSON text that was stored, to be sent as it is.
pub fn raw_json(text: String) -> Result<Box<RawValue>, Problem> {
    RawValue::from_string(text).map_err(|_| Problem::corrupt("a stored payload is not JSON"))
}

fn parse_range(from: Option<&str>, to: Option<&str>) -> Result<Option<Window>, Problem> {
    if from.is_none() && to.is_none() {
        return Ok(None);
    }
    let border = |text: Option<&str>, otherwise: i64| match text {
        Some(text) => parse_border(text, &TimeZone::UTC),
        None => Ok(Timestamp::from_micros(otherwise)),
    };
    let range = Window { start: border(from, i64::MIN)?, end: border(to, i64::MAX)? };
    if range.end <= range.start {
        return Err(Problem::new(Kind::Invalid, "invalid_range", "from must lie before to"));
    }
    Ok(Some(range))
}

/// The place after an event, in hex: its instant in eight bytes, then its id.
pub fn write_cursor(at: Timestamp, id: &EventId) -> String {
    let instant = at.micros().to_be_bytes();
    let bytes = instant.iter().chain(id.as_str().as_bytes());
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

pub fn parse_cursor(text: &str) -> Result<(Timestamp, EventId), Problem> {
    let read = || {
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|d| u8::try_from(d).ok());
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let bytes: Option<Vec<u8>> =
            pairs.iter().map(|[high, low]| Some(digit(*high)? * 16 + digit(*low)?)).collect();
        let bytes = bytes.filter(|_| rest.is_empty())?;
        let (instant, id) = bytes.split_first_chunk::<8>()?;
        let id = EventId::parse(std::str::from_utf8(id).ok()?).ok()?;
        Some((Timestamp::from_micros(i64::from_be_bytes(*instant)), id))
    };
    read().ok_or_else(|| {
        Problem::new(
            Kind::Invalid,
            "invalid_cursor",
            "cursor is next_cursor of the page before, unchanged; leave it out for the first page",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_that_nobody_wrote_are_refused() {
        for text in ["", "00", "zz", "000000000000000", "0000000000000000", "00000000000000000a"] {
            assert!(parse_cursor(text).is_err(), "{text}");
        }
        let (at, id) = parse_cursor("ffffffffffffffff6531").expect("valid");
        assert_eq!((at.micros(), id.as_str()), (-1, "e1"));
    }
}
