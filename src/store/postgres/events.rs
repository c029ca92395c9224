//! Counted events: found by their key, inserted, listed.
//!
//! Invariant: an event lies at the fingerprint of its key or, where other events lie there, at the
//! first one after it that was free when it came. Events are never deleted one by one, so a reader
//! that looks from the key's own fingerprint onwards finds the event before the first gap. The
//! primary key refuses a second event at one place; the transaction that meets it is redone.

use super::failure::Failure;
use super::judgement::Accepted;
use super::numeric::SqlQuantity;
use super::scalars::{
    SqlHash, SqlTimestamp, column, corrupt, damaged, instant, meter_number, read_meter_no,
    tenant_number, write_limit,
};
use super::statements::Statements;
use crate::rules::event::Event;
use crate::rules::ids::{EventId, SubscriptionId, TenantId, TenantNo};
use crate::rules::properties::Properties;
use crate::rules::timestamp::Timestamp;
use crate::store::{Error, EventFilter, EventPage, EventQuery, Result, StoredEvent};
use bytes::{BufMut, Bytes, BytesMut};
use deadpool_postgres::ClientWrapper;
use futures_util::SinkExt;
use hashbrown::HashMap;
use std::pin::pin;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement};

/// Places to look at: tenants and fingerprints, side by side.
pub struct Probe {
    tenants: Vec<i32>,
    slots: Vec<SqlHash>,
}

/// What lies at the places that were looked at.
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
            SELECT e.tenant_no, e.key_hash, e.meter_no, e.trial, e.occurred_at, e.received_at,
                e.quantity, e.id, e.properties, e.subscription
            FROM unnest($1::int4[], $2::uuid[]) AS place (tenant_no, key_hash)
            JOIN events e ON e.tenant_no = place.tenant_no AND e.key_hash = place.key_hash";
        client.prepare_cached(sql).await
    }

    pub async fn run(
        &self,
        client: &ClientWrapper,
        statement: &Statement,
    ) -> std::result::Result<Found, Failure> {
        if self.tenants.is_empty() {
            return Ok(Found(HashMap::new()));
        }
        let rows = client.query(statement, &[&self.tenants, &self.slots]).await?;
        let mut found = HashMap::with_capacity(rows.len());
        for row in rows {
            let tenant = super::scalars::read_tenant_no(column(&row, 0)?)?;
            let SqlHash(slot) = column(&row, 1)?;
            found.insert((tenant, slot), row);
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

/// Reads the columns that [`Probe::prepare`] names, in their order.
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

/// Inserts accepted events, in the order of the primary key, inside the caller's transaction.
pub async fn insert_events(
    client: &ClientWrapper,
    accepted: &[Accepted<'_>],
    received_at: Timestamp,
) -> std::result::Result<(), Failure> {
    if accepted.is_empty() {
        return Ok(());
    }
    let sql = "-- insert_events
        COPY events (tenant_no, key_hash, meter_no, trial, occurred_at, received_at, quantity, id,
            properties, subscription)
        FROM STDIN (FORMAT binary)";
    let statement = client.prepare_cached(sql).await?;
    let rows = encode_rows(accepted, received_at)?;
    let mut sink = pin!(client.copy_in::<_, Bytes>(&statement).await?);
    sink.send(rows).await?;
    let written = sink.finish().await?;
    if usize::try_from(written).ok() != Some(accepted.len()) {
        return Err(Error::Internal { what: "an event was not written".into() }.into());
    }
    Ok(())
}

/// The rows in the binary form of COPY: for each the number of fields, then length and bytes.
fn encode_rows(accepted: &[Accepted<'_>], received_at: Timestamp) -> Result<Bytes> {
    const FIELDS: i16 = 10;
    let mut out = BytesMut::with_capacity(64 + accepted.len() * 320);
    out.put_slice(b"PGCOPY\n\xff\r\n\0");
    // No flags, no header extension.
    out.put_i64(0);
    let received_at = SqlTimestamp(received_at).to_wire();
    for Accepted { tenant, slot, event } in accepted {
        out.put_i16(FIELDS);
        out.put_i32(4);
        out.put_i32(tenant_number(*tenant));
        out.put_i32(16);
        out.put_u128(*slot);
        out.put_i32(2);
        out.put_i16(meter_number(event.meter));
        out.put_i32(1);
        out.put_u8(u8::from(event.trial));
        out.put_i32(8);
        out.put_i64(SqlTimestamp(event.occurred_at).to_wire());
        out.put_i32(8);
        out.put_i64(received_at);
        put_quantity(&mut out, SqlQuantity(event.quantity))?;
        put_text(&mut out, event.id.as_str())?;
        put_text(&mut out, event.properties.as_text())?;
        match &event.subscription {
            Some(subscription) => put_text(&mut out, subscription.as_str())?,
            None => out.put_i32(-1),
        }
    }
    // The end of the rows.
    out.put_i16(-1);
    Ok(out.freeze())
}

fn put_quantity(out: &mut BytesMut, quantity: SqlQuantity) -> Result<()> {
    let length_at = out.len();
    out.put_i32(0);
    quantity.write(out);
    let length = wire_length(out.len() - length_at - 4)?;
    out[length_at..length_at + 4].copy_from_slice(&length.to_be_bytes());
    Ok(())
}

fn put_text(out: &mut BytesMut, text: &str) -> Result<()> {
    out.put_i32(wire_length(text.len())?);
    out.put_slice(text.as_bytes());
    Ok(())
}

fn wire_length(bytes: usize) -> Result<i32> {
    i32::try_from(bytes).map_err(|_| Error::Internal { what: "a field is too long".into() })
}

/// A page of a tenant's events, newest first. With a meter it looks at `searched_max` of them.
pub async fn list_events(client: &ClientWrapper, query: &EventQuery) -> Result<EventPage> {
    let sql = "-- list_events
        SELECT e.* FROM (
            SELECT e.tenant_no, e.key_hash, e.meter_no, e.trial, e.occurred_at, e.received_at,
                e.quantity, e.id, e.properties, e.subscription
            FROM events e
            WHERE e.tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1)
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
        WHERE e.tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1)
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
    let (first, last) = (SqlTimestamp(first), SqlTimestamp(last));
    // Without a meter every event that is looked at is on the page.
    let searched_max = write_limit(if meter.is_some() { *searched_max } else { query.limit });
    let (number, limit) = (meter.map(meter_number), write_limit(query.limit));
    let place: [&(dyn ToSql + Sync); 7] =
        [&tenant.as_str(), &first, &last, &before_id, &number, &limit, &searched_max];
    let rows = client.read_all(sql, &place).await?;
    let events: Result<Vec<StoredEvent>> =
        rows.iter().map(|row| stored_event(row, tenant.clone())).collect();
    let mut page = EventPage { events: events?, searched_to: None };
    if meter.is_none() || page.events.len() >= query.limit {
        return Ok(page);
    }
    let place: [&(dyn ToSql + Sync); 5] =
        [&tenant.as_str(), &first, &last, &before_id, &searched_max];
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
        let found = match probe.run(client, &statement).await {
            Ok(found) => found,
            Err(failure) => return Err(failure.into_error()),
        };
        match found.at(tenant_no, slot, tenant, id)? {
            Slot::Free => return Ok(None),
            Slot::Same(stored) => return Ok(Some(*stored)),
            Slot::Other => slot = slot.wrapping_add(1),
        }
    }
}
