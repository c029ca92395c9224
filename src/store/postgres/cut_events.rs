//! Events of meters that are billed event by event: which of them are not billed yet.
//!
//! Invariant: an event is added to its window's total exactly once. It then has a push that names
//! it or, where what it is worth was carried into the remainder (less than the provider can hold,
//! or nothing), a row in `carried_events`; both are written in the transaction that adds it. A push
//! that is replaced hands its event on to the push that takes its place.
//!
//! A crash leaves an event added with its push or its row, or not added at all.

use super::cuts::{Order, WindowKey, place_of};
use super::numeric::SqlQuantity;
use super::scalars::{
    SqlTimestamp, column, damaged, instant, meter_number, tenant_number, write_limit,
};
use super::statements::Statements;
use super::transaction::Done;
use crate::rules::cut::OpenEvent;
use crate::rules::ids::EventId;
use deadpool_postgres::ClientWrapper;

/// An event that was added without a push.
pub struct Carried {
    pub window: WindowKey,
    pub event: EventId,
}

/// The events of the windows that are to be added, for each window oldest first and at most
/// `limit`; trials are left out.
pub async fn read_open_events(
    client: &ClientWrapper,
    orders: &[&Order],
    limit: usize,
) -> Done<Vec<Vec<OpenEvent>>> {
    let mut found: Vec<Vec<OpenEvent>> = orders.iter().map(|_| Vec::new()).collect();
    if orders.is_empty() {
        return Ok(found);
    }
    let sql = "-- read_open_events
        SELECT ordered.place, e.id, e.occurred_at, e.quantity, e.subscription, e.trial
        FROM unnest($1::int4[], $2::int2[], $3::timestamptz[], $4::timestamptz[])
            WITH ORDINALITY AS ordered (tenant_no, meter_no, starts_at, ends_at, place)
        CROSS JOIN LATERAL (
            SELECT e.id, e.occurred_at, e.quantity, e.subscription, e.trial
            FROM events e
            WHERE e.tenant_no = ordered.tenant_no AND e.meter_no = ordered.meter_no
                AND e.occurred_at >= ordered.starts_at AND e.occurred_at < ordered.ends_at
                AND NOT e.trial
                AND NOT EXISTS (
                    SELECT FROM pushes p
                    WHERE p.tenant_no = e.tenant_no AND p.meter_no = e.meter_no
                        AND p.event_id = e.id
                )
                AND NOT EXISTS (
                    SELECT FROM carried_events c
                    WHERE c.tenant_no = e.tenant_no AND c.meter_no = e.meter_no
                        AND c.window_start = ordered.starts_at AND c.event_id = e.id
                )
            ORDER BY e.occurred_at, e.id
            LIMIT $5
        ) AS e
        ORDER BY ordered.place, e.occurred_at, e.id";
    let statement = client.prepare_cached(sql).await?;
    let tenants: Vec<i32> = orders.iter().map(|order| tenant_number(order.tenant_no)).collect();
    let meters: Vec<i16> = orders.iter().map(|order| meter_number(order.meter_no)).collect();
    let starts: Vec<_> = orders.iter().map(|order| SqlTimestamp(order.window.start)).collect();
    let ends: Vec<_> = orders.iter().map(|order| SqlTimestamp(order.window.end)).collect();
    let limit = write_limit(limit);
    for row in client.query(&statement, &[&tenants, &meters, &starts, &ends, &limit]).await? {
        let place = place_of(&row, orders.len())?;
        let id: String = column(&row, 1)?;
        found[place].push(OpenEvent {
            id: EventId::parse(&id).map_err(|_| damaged("events.id", &id))?,
            occurred_at: instant(&row, 2)?,
            quantity: column::<SqlQuantity>(&row, 3)?.0,
            subscription: column(&row, 4)?,
            trial: column(&row, 5)?,
        });
    }
    Ok(found)
}

/// Marks events as added without a push.
pub async fn insert_carried(client: &ClientWrapper, carried: &[Carried]) -> Done<()> {
    if carried.is_empty() {
        return Ok(());
    }
    let sql = "-- insert_carried
        INSERT INTO carried_events (tenant_no, meter_no, window_start, event_id)
        SELECT * FROM unnest($1::int4[], $2::int2[], $3::timestamptz[], $4::text[])";
    let tenants: Vec<i32> = carried.iter().map(|one| tenant_number(one.window.tenant_no)).collect();
    let meters: Vec<i16> = carried.iter().map(|one| meter_number(one.window.meter)).collect();
    let starts: Vec<_> = carried.iter().map(|one| SqlTimestamp(one.window.start)).collect();
    let events: Vec<&str> = carried.iter().map(|one| one.event.as_str()).collect();
    client.run(sql, &[&tenants, &meters, &starts, &events]).await?;
    Ok(())
}
