//! Counted events: found by their key, inserted, listed.
//!
//! Invariant: an event's claim lies at the fingerprint of its key or, where other claims lie there,
//! at the first one after it that was free when it came. Claims are never deleted one by one, so a
//! reader that looks from the key's own fingerprint onwards finds the claim before the first gap.
//! The primary key of `event_claims` refuses a second claim at one place; the transaction that
//! meets it is redone. The event itself is in the ledger, in the partition of the day that its
//! claim names; both are written in one transaction.

use super::copy::CopyRows;
use super::failure::Failure;
use super::judgement::Accepted;
use super::numeric::SqlQuantity;
use super::partitions::Day;
use super::scalars::{
    SqlDay, SqlHash, SqlTimestamp, column, corrupt, damaged, instant, meter_number, read_meter_no,
    read_tenant_no, tenant_number, write_limit,
};
use super::statements::Statements;
use crate::rules::event::Event;
use crate::rules::ids::{EventId, SubscriptionId, TenantId, TenantNo};
use crate::rules::properties::Properties;
use crate::rules::timestamp::{MICROS_PER_DAY, Timestamp};
use crate::store::{Error, EventFilter, EventPage, EventQuery, Result, StoredEvent};
use deadpool_postgres::ClientWrapper;
use futures_util::future::join;
use hashbrown::HashMap;
use std::collections::BTreeMap;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement};

/// Numbers of the events of one batch: a batch holds fewer events.
const BATCH_NUMBERS: i64 = 1 << 20;

/// Places to look at: tenants and fingerprints, side by side.
pub struct Probe {
    tenants: Vec<i32>,
    slots: Vec<SqlHash>,
}

/// Claims that lie at the places that were looked at, by tenant and number of the event.
pub struct Claims {
    slots: HashMap<(TenantNo, i64), u128>,
    /// Tenants and numbers of the events, by the day that holds them.
    days: BTreeMap<Day, (Vec<i32>, Vec<i64>)>,
}

/// Events that lie at the places that were looked at.
pub struct Found(HashMap<(TenantNo, u128), Row>);

impl Probe {
    pub fn new(places: impl Iterator<Item = (TenantNo, u128)>) -> Self {
        let (tenants, slots) =
            places.map(|(tenant, slot)| (tenant_number(tenant), SqlHash(slot))).unzip();
        Self { tenants, slots }
    }

    pub async fn prepare(
        client: &ClientWrapper,
    ) -> std::result::Result<Statement, tokio_postgres::Error> {
        let sql = "-- probe
            SELECT c.tenant_no, c.key_hash, c.received_on, c.event_no
            FROM unnest($1::int4[], $2::uuid[]) AS place (tenant_no, key_hash)
            JOIN event_claims c ON c.tenant_no = place.tenant_no AND c.key_hash = place.key_hash";
        client.prepare_cached(sql).await
    }

    pub async fn run(
        &self,
        client: &ClientWrapper,
        statement: &Statement,
    ) -> std::result::Result<Claims, Failure> {
        let mut claims = Claims { slots: HashMap::new(), days: BTreeMap::new() };
        if self.tenants.is_empty() {
            return Ok(claims);
        }
        for row in client.query(statement, &[&self.tenants, &self.slots]).await? {
            let (number, SqlHash(slot)) = (column(&row, 0)?, column(&row, 1)?);
            let (SqlDay(day), event_no) = (column(&row, 2)?, column(&row, 3)?);
            claims.slots.insert((read_tenant_no(number)?, event_no), slot);
            let (tenants, numbers) = claims.days.entry(day).or_default();
            tenants.push(number);
            numbers.push(event_no);
        }
        Ok(claims)
    }
}

impl Claims {
    /// The fingerprint that the claim of an event lies at.
    pub fn at(&self, tenant: TenantNo, event_no: i64) -> Option<u128> {
        self.slots.get(&(tenant, event_no)).copied()
    }

    /// Reads the events that the claims name, in a statement for each day.
    pub async fn read_events(&self, client: &ClientWrapper) -> std::result::Result<Found, Failure> {
        let mut found = HashMap::with_capacity(self.slots.len());
        for (day, (tenants, numbers)) in &self.days {
            // With the day in its text, the statement is planned for one partition.
            let sql = format!(
                "-- read_events
                SELECT e.tenant_no, e.event_no, e.meter_no, e.trial, e.occurred_at, e.received_at,
                    e.quantity, e.id, e.properties, e.subscription
                FROM unnest($1::int4[], $2::int8[]) AS place (tenant_no, event_no)
                JOIN events e ON e.tenant_no = place.tenant_no AND e.event_no = place.event_no
                WHERE {}",
                day.condition()
            );
            for row in client.read_all(&sql, &[tenants, numbers]).await? {
                let key = (read_tenant_no(column(&row, 0)?)?, column(&row, 1)?);
                let slot = self.slots.get(&key);
                found.insert((key.0, *slot.ok_or_else(|| corrupt("events.event_no"))?), row);
            }
        }
        if found.len() != self.slots.len() {
            return Err(corrupt("an event_claims row names an event that is not there").into());
        }
        Ok(Found(found))
    }
}

/// What lies at a place, as seen by one who looks for an event id.
pub enum Slot {
    Free,
    /// Another event whose key has the same fingerprint; look at the next place.
    Other,
    Same(Box<StoredEvent>),
}

impl Found {
    pub fn at(
        &self,
        tenant_no: TenantNo,
        slot: u128,
        tenant: &TenantId,
        id: &EventId,
    ) -> Result<Slot> {
        let Some(row) = self.0.get(&(tenant_no, slot)) else { return Ok(Slot::Free) };
        let found: &str = row.try_get(7).map_err(|_| corrupt("events.id is not valid"))?;
        if found != id.as_str() {
            return Ok(Slot::Other);
        }
        Ok(Slot::Same(Box::new(stored_event(row, tenant.clone())?)))
    }

    /// The meters of all that was found.
    pub fn meters(&self) -> Result<Vec<crate::rules::ids::MeterNo>> {
        self.0.values().map(|row| read_meter_no(column(row, 2)?)).collect()
    }
}

/// Reads the columns that [`Claims::read_events`] names, in their order.
pub fn stored_event(row: &Row, tenant: TenantId) -> Result<StoredEvent> {
    let damaged = || corrupt("events row is not valid");
    let text = |place: usize| row.try_get::<_, &str>(place).map_err(|_| damaged());
    let subscription: Option<&str> = row.try_get(9).map_err(|_| damaged())?;
    let subscription = subscription.map(SubscriptionId::parse).transpose();
    let SqlQuantity(quantity) = column(row, 6)?;
    let event = Event {
        tenant,
        id: EventId::parse(text(7)?).map_err(|_| damaged())?,
        meter: read_meter_no(column(row, 2)?)?,
        quantity,
        occurred_at: instant(row, 4)?,
        properties: Properties::from_stored(text(8)?),
        subscription: subscription.map_err(|_| damaged())?,
        trial: column(row, 3)?,
    };
    Ok(StoredEvent { event, received_at: instant(row, 5)? })
}

/// The claims and the events of a batch, as rows of their tables.
pub struct EventRows {
    claims: CopyRows,
    events: CopyRows,
}

impl EventRows {
    /// `accepted` is in the order of the claims' primary key, which every writer keeps.
    pub fn encode(
        accepted: &[Accepted<'_>],
        batch_no: i64,
        received_at: Timestamp,
    ) -> Result<Self> {
        let mut claims = CopyRows::with_capacity(accepted.len(), 50);
        let mut events = CopyRows::with_capacity(accepted.len(), 300);
        let received_on = Day::of(received_at).to_wire();
        let numbers = event_numbers(batch_no, accepted.len())?;
        for (Accepted { tenant, slot, event }, event_no) in accepted.iter().zip(numbers) {
            claims.row(4);
            claims.int4(tenant_number(*tenant));
            claims.int4(received_on);
            claims.hash(*slot);
            claims.int8(event_no);
            events.row(10);
            events.int8(event_no);
            events.instant(event.occurred_at);
            events.instant(received_at);
            events.int4(tenant_number(*tenant));
            events.int2(meter_number(event.meter));
            events.flag(event.trial);
            events.quantity(event.quantity)?;
            events.text(event.id.as_str())?;
            events.text(event.properties.as_text())?;
            match &event.subscription {
                Some(subscription) => events.text(subscription.as_str())?,
                None => events.null(),
            }
        }
        Ok(Self { claims, events })
    }

    /// Prepares what [`Self::send`] needs.
    pub async fn prepare(
        client: &ClientWrapper,
    ) -> std::result::Result<[Statement; 2], tokio_postgres::Error> {
        let claims = "-- insert_claims
            COPY event_claims (tenant_no, received_on, key_hash, event_no)
            FROM STDIN (FORMAT binary)";
        let events = "-- insert_events
            COPY events (event_no, occurred_at, received_at, tenant_no, meter_no, trial, quantity,
                id, properties, subscription)
            FROM STDIN (FORMAT binary)";
        Ok([client.prepare_cached(claims).await?, client.prepare_cached(events).await?])
    }

    /// Inserts them inside the caller's transaction.
    pub async fn send(
        self,
        client: &ClientWrapper,
        [claims, events]: &[Statement; 2],
    ) -> std::result::Result<(), Failure> {
        let sent = join(self.claims.send(client, claims), self.events.send(client, events)).await;
        // Where the claims were refused, the events were refused for that.
        sent.0?;
        sent.1
    }
}

/// The numbers of a batch's events.
fn event_numbers(batch_no: i64, events: usize) -> Result<std::ops::Range<i64>> {
    let outgrown = || Error::Internal { what: "the numbers of events ran out".into() };
    let first = batch_no.checked_mul(BATCH_NUMBERS).ok_or_else(outgrown)?;
    let events = i64::try_from(events).ok().filter(|events| *events <= BATCH_NUMBERS);
    let end = events.and_then(|events| first.checked_add(events)).ok_or_else(outgrown)?;
    Ok(first..end)
}

/// A page of a tenant's events, newest first. With a meter it looks at `searched_max` of them.
pub async fn list_events(
    client: &ClientWrapper,
    tenant_no: TenantNo,
    query: &EventQuery,
) -> Result<EventPage> {
    let sql = "-- list_events
        SELECT e.* FROM (
            SELECT e.tenant_no, e.event_no, e.meter_no, e.trial, e.occurred_at, e.received_at,
                e.quantity, e.id, e.properties, e.subscription
            FROM events e
            WHERE e.tenant_no = $1 AND e.received_at >= $8
                AND e.occurred_at >= $2 AND e.occurred_at <= $3
                AND ($4::text IS NULL OR e.occurred_at < $3 OR e.id < $4)
            ORDER BY e.occurred_at DESC, e.id DESC
            LIMIT $7) AS e
        WHERE $5::int2 IS NULL OR e.meter_no = $5
        ORDER BY e.occurred_at DESC, e.id DESC
        LIMIT $6";
    let end_sql = "-- list_events
        SELECT e.occurred_at, e.id
        FROM events e
        WHERE e.tenant_no = $1 AND e.received_at >= $6
            AND e.occurred_at >= $2 AND e.occurred_at <= $3
            AND ($4::text IS NULL OR e.occurred_at < $3 OR e.id < $4)
        ORDER BY e.occurred_at DESC, e.id DESC
        LIMIT 1 OFFSET $5::int8 - 1";
    let EventFilter { tenant, meter, range, searched_max } = &query.filter;
    let everything = (Timestamp::from_micros(i64::MIN), Timestamp::from_micros(i64::MAX));
    let (first, mut last) = range.map_or(everything, |range| {
        // The range is half-open and instants are whole microseconds.
        (range.start, range.end.saturating_add_micros(-1))
    });
    // The id of the page before only matters at its very instant.
    let mut before_id = None;
    if let Some((at, id)) = &query.after
        && *at <= last
    {
        last = *at;
        before_id = Some(id.as_str());
    }
    // No event is received long before it is used, so earlier partitions need not be looked at.
    let received = SqlTimestamp(first.saturating_add_micros(-MICROS_PER_DAY));
    let (first, last) = (SqlTimestamp(first), SqlTimestamp(last));
    let tenant_no = tenant_number(tenant_no);
    // Without a meter every event that is looked at is on the page.
    let searched_max = write_limit(if meter.is_some() { *searched_max } else { query.limit });
    let (number, limit) = (meter.map(meter_number), write_limit(query.limit));
    let place: [&(dyn ToSql + Sync); 8] =
        [&tenant_no, &first, &last, &before_id, &number, &limit, &searched_max, &received];
    let rows = client.read_all(sql, &place).await?;
    let events: Result<Vec<StoredEvent>> =
        rows.iter().map(|row| stored_event(row, tenant.clone())).collect();
    let mut page = EventPage { events: events?, searched_to: None };
    if meter.is_none() || page.events.len() >= query.limit {
        return Ok(page);
    }
    let place: [&(dyn ToSql + Sync); 6] =
        [&tenant_no, &first, &last, &before_id, &searched_max, &received];
    if let Some(row) = client.read_optional(end_sql, &place).await? {
        let id: String = column(&row, 1)?;
        let id = EventId::parse(&id).map_err(|_| damaged("events.id", &id))?;
        let at = instant(&row, 0)?;
        // Events that came between the two statements may have moved the end to a newer one.
        let rank = |stored: &StoredEvent| (stored.event.occurred_at, stored.event.id.clone());
        page.events.retain(|stored| rank(stored) >= (at, id.clone()));
        page.searched_to = Some((at, id));
    }
    Ok(page)
}

/// Looks for one event from its key's own fingerprint onwards.
pub async fn find_event(
    client: &ClientWrapper,
    tenant_no: TenantNo,
    home: u128,
    tenant: &TenantId,
    id: &EventId,
) -> Result<Option<StoredEvent>> {
    let statement = Probe::prepare(client).await?;
    let mut slot = home;
    loop {
        let probe = Probe::new(std::iter::once((tenant_no, slot)));
        let claims = probe.run(client, &statement).await.map_err(Failure::into_error)?;
        let found = claims.read_events(client).await.map_err(Failure::into_error)?;
        match found.at(tenant_no, slot, tenant, id)? {
            Slot::Free => return Ok(None),
            Slot::Same(stored) => return Ok(Some(*stored)),
            Slot::Other => slot = slot.wrapping_add(1),
        }
    }
}
