//! Events: one immutable fact of usage each, read from JSON in one pass.
//!
//! Invariant: an `Event` that exists is valid for its meter and holds its fields in canonical form,
//! so two deliveries of one fact are equal field by field. A malformed item becomes a refusal of
//! that item alone; only text that is not JSON at all spoils its neighbours, since nobody can tell
//! where the next item starts.

pub mod plain;

use super::event_id::derive_event_id;
use super::ids::{EventId, MeterNo, MeterSlug, SubscriptionId, TenantId};
use super::meter::{Catalog, Meter};
use super::properties::{Pairs, Properties, Text, push_json_string, text_of};
use super::quantity::Quantity;
use super::refusal::Refusal;
use super::rollup::Group;
use super::timestamp::Timestamp;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// One fact of usage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub tenant: TenantId,
    pub id: EventId,
    pub meter: MeterNo,
    pub quantity: Quantity,
    pub occurred_at: Timestamp,
    pub properties: Properties,
    /// Subscription at the time of use.
    pub subscription: Option<SubscriptionId>,
    /// Whether the usage fell into a trial, which is counted and never billed.
    pub trial: bool,
}

impl Event {
    /// The event as JSON, in the form in which events are sent: [`parse_event`] reads it back.
    pub fn to_json(&self, meter: &MeterSlug) -> String {
        let mut json = String::with_capacity(256);
        let mut field = |name: &str, value: &str| {
            json.push(if json.is_empty() { '{' } else { ',' });
            push_json_string(&mut json, name);
            json.push(':');
            json.push_str(value);
        };
        let quoted = |text: &str| {
            let mut json = String::with_capacity(text.len() + 2);
            push_json_string(&mut json, text);
            json
        };
        field("tenant", &quoted(self.tenant.as_str()));
        field("id", &quoted(self.id.as_str()));
        field("meter", &quoted(meter.as_str()));
        field("quantity", &quoted(&self.quantity.to_string()));
        field("occurred_at", &quoted(&self.occurred_at.to_string()));
        field("properties", self.properties.as_json());
        if let Some(subscription) = &self.subscription {
            field("subscription", &quoted(subscription.as_str()));
        }
        if self.trial {
            field("trial", "true");
        }
        json.push('}');
        json
    }
}

/// An item that is not an event, with as much of its name as could be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedItem {
    pub tenant: Option<Box<str>>,
    pub id: Option<Box<str>>,
    pub refusal: Refusal,
}

/// One JSON value where an event is expected: its fields as they are written, not looked at yet.
#[derive(Debug, Default)]
pub struct Item<'a> {
    tenant: Option<&'a str>,
    id: Option<&'a str>,
    correlation_id: Option<&'a str>,
    meter: Option<&'a str>,
    quantity: Option<&'a str>,
    occurred_at: Option<&'a str>,
    properties: Option<&'a str>,
    subscription: Option<&'a str>,
    trial: Option<&'a str>,
    cloud: Option<Box<CloudEvent<'a>>>,
    fault: Option<Refusal>,
}

/// The attributes of a CloudEvents envelope that are read; `id` is shared with the native form.
#[derive(Debug, Default)]
struct CloudEvent<'a> {
    specversion: Option<&'a str>,
    source: Option<&'a str>,
    kind: Option<&'a str>,
    subject: Option<&'a str>,
    time: Option<&'a str>,
    data: Option<&'a str>,
}

/// Reads an item as an event of a declared meter.
pub fn parse_event(item: &Item<'_>, catalog: &Catalog) -> Result<Event, RefusedItem> {
    let read = match &item.cloud {
        Some(cloud) if cloud.specversion.is_some() => parse_cloud_event(item, cloud, catalog),
        _ => parse_native(item, catalog),
    };
    read.map_err(|refusal| {
        let subject = item.cloud.as_ref().and_then(|cloud| cloud.subject);
        let name = |raw: Option<&str>| {
            let text = raw.and_then(text_of)?;
            (text.len() <= 255).then(|| text.into())
        };
        RefusedItem { tenant: name(item.tenant.or(subject)), id: name(item.id), refusal }
    })
}

fn parse_native(item: &Item<'_>, catalog: &Catalog) -> Result<Event, Refusal> {
    if let Some(fault) = &item.fault {
        return Err(fault.clone());
    }
    let tenant = TenantId::parse_new(&required("tenant", item.tenant)?)?;
    let (number, meter) = find_meter(&required("meter", item.meter)?, catalog)?;
    let occurred_at =
        Timestamp::parse_field("occurred_at", &required("occurred_at", item.occurred_at)?)?;
    let id = match (item.id, item.correlation_id) {
        (Some(_), _) => EventId::parse(&required("id", item.id)?)?,
        (None, Some(_)) => {
            let correlation = required("correlation_id", item.correlation_id)?;
            EventId::parse(&correlation)?;
            derive_event_id(tenant.as_str(), meter.slug.as_str(), occurred_at, &correlation)
        }
        (None, None) => {
            return Err(Refusal::new(
                "missing_id",
                "id is missing; give the event's own stable id (or correlation_id), the same on \
                 every retry; the server never invents one",
            ));
        }
    };
    let properties = match item.properties {
        Some(raw) if raw != "null" => Properties::parse(raw)?,
        _ => Properties::default(),
    };
    let properties = grouped(properties, number, meter);
    let (subscription, trial) = parse_stamps(item)?;
    let quantity = parse_quantity(item.quantity, meter)?;
    let meter = number;
    Ok(Event { tenant, id, meter, quantity, occurred_at, properties, subscription, trial })
}

/// CloudEvents name an event by source and id together, so the event id is the JSON array of both:
/// readable, and no two pairs share one text.
pub fn cloud_event_id(source: &str, id: &str) -> Result<EventId, Refusal> {
    EventId::parse(source)?;
    let mut pair = String::from("[");
    push_json_string(&mut pair, source);
    pair.push(',');
    push_json_string(&mut pair, id);
    pair.push(']');
    EventId::parse(&pair)
}

fn parse_cloud_event(
    item: &Item<'_>,
    cloud: &CloudEvent<'_>,
    catalog: &Catalog,
) -> Result<Event, Refusal> {
    // Other faults are unknown names, which a CloudEvent may carry as extensions.
    if let Some(fault) = item.fault.as_ref().filter(|fault| fault.code == DUPLICATE_FIELD) {
        return Err(fault.clone());
    }
    if required("specversion", cloud.specversion)? != "1.0" {
        return Err(Refusal::new("invalid_cloud_event", "specversion must be \"1.0\""));
    }
    let tenant = TenantId::parse_new(&required("subject", cloud.subject)?)?;
    let (number, meter) = find_meter(&required("type", cloud.kind)?, catalog)?;
    let id = cloud_event_id(&required("source", cloud.source)?, &required("id", item.id)?)?;
    let occurred_at = Timestamp::parse_field("time", &required("time", cloud.time)?)?;
    let mut quantity = None;
    let mut pairs = match cloud.data {
        Some(raw) if raw != "null" => serde_json::from_str::<Pairs<'_>>(raw)
            .map_err(|_| Refusal::new("invalid_cloud_event", "data must be a flat JSON object"))?,
        _ => Pairs::default(),
    };
    pairs.0.retain(|(name, raw)| {
        let is_quantity = name == "quantity" && quantity.is_none();
        if is_quantity {
            quantity = Some(raw.get());
        }
        !is_quantity
    });
    if pairs.0.iter().any(|(name, _)| name == "quantity") {
        return Err(Refusal::new("duplicate_field", "data has quantity twice"));
    }
    let properties = grouped(Properties::from_pairs(pairs.0)?, number, meter);
    let quantity = parse_quantity(quantity, meter)?;
    let meter = number;
    let (subscription, trial) = parse_stamps(item)?;
    Ok(Event { tenant, id, meter, quantity, occurred_at, properties, subscription, trial })
}

/// The stamps that the producer gives; a CloudEvent has them as extension attributes.
fn parse_stamps(item: &Item<'_>) -> Result<(Option<SubscriptionId>, bool), Refusal> {
    let subscription = match item.subscription {
        Some(raw) if raw != "null" => {
            Some(SubscriptionId::parse(&required("subscription", Some(raw))?)?)
        }
        _ => None,
    };
    let trial = match item.trial {
        None | Some("null" | "false") => false,
        Some("true") => true,
        Some(_) => return Err(Refusal::new("invalid_trial", "trial must be true or false")),
    };
    Ok((subscription, trial))
}

/// The properties with the group that the meter's dimensions make of them: it is found out here,
/// where requests are read side by side, and not by the one writer of the store.
fn grouped(mut properties: Properties, number: MeterNo, meter: &Meter) -> Properties {
    if !meter.spec.dimensions.is_empty() {
        properties.remember_group(number, Group::of_properties(&properties, meter));
    }
    properties
}

fn find_meter<'c>(slug: &str, catalog: &'c Catalog) -> Result<(MeterNo, &'c Meter), Refusal> {
    let found = catalog.find(slug).map(|(number, meter)| (number, meter.as_ref()));
    let (number, meter) = found.ok_or_else(|| {
        let shown: String = slug.chars().take(64).collect();
        let detail = format!(
            "there is no meter {shown:?}; declare it with PUT /v1/meters/{{slug}} and send the \
             event again"
        );
        Refusal::new("unknown_meter", detail)
    })?;
    if meter.spec.archived {
        let detail = format!(
            "meter {slug} is archived and counts nothing more; PUT /v1/meters/{slug} with \
             \"archived\": false reopens it"
        );
        return Err(Refusal::new("meter_archived", detail));
    }
    Ok((number, meter))
}

fn parse_quantity(raw: Option<&str>, meter: &Meter) -> Result<Quantity, Refusal> {
    match raw {
        None if meter.quantity_optional() => Ok(Quantity::ONE),
        None => Err(Refusal::new("missing_field", "quantity is missing")),
        Some(raw) => match text_of(raw) {
            Some(text) => Quantity::parse(&text, meter.quantity_range()),
            None => Quantity::parse(raw, meter.quantity_range()),
        },
    }
}

fn required<'a>(name: &str, raw: Option<&'a str>) -> Result<Cow<'a, str>, Refusal> {
    let raw = raw
        .filter(|raw| *raw != "null")
        .ok_or_else(|| Refusal::new("missing_field", format!("{name} is missing")))?;
    text_of(raw).ok_or_else(|| {
        let example = match name {
            "occurred_at" | "time" => ", such as \"2026-11-15T12:30:00Z\"",
            _ => "",
        };
        Refusal::new("not_a_string", format!("{name} must be a JSON string{example}"))
    })
}

impl<'de: 'a, 'a> Deserialize<'de> for Item<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ItemVisitor)
    }
}

/// Takes any JSON value, so that one wrong item never fails its array.
struct ItemVisitor;

impl ItemVisitor {
    fn not_an_object<'a>() -> Item<'a> {
        let fault = Some(Refusal::new("not_an_object", "an event must be a JSON object"));
        Item { fault, ..Item::default() }
    }
}

impl<'de> Visitor<'de> for ItemVisitor {
    type Value = Item<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an event")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Self::not_an_object())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(Self::not_an_object())
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(Self::not_an_object())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Self::not_an_object())
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(Self::not_an_object())
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Self::not_an_object())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Self::not_an_object())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut item = Item::default();
        while let Some(Text(name)) = map.next_key::<Text<'de>>()? {
            let value = map.next_value::<&'de RawValue>()?;
            item.take(&name, value.get());
        }
        Ok(item)
    }
}

fn unknown_field(name: &str) -> String {
    if name == "events" {
        return "\"events\" is not a field of an event; send the array itself as the body"
            .to_owned();
    }
    format!(
        "{name:?} is not a field of an event; its fields are tenant, id, correlation_id, meter, \
         quantity, occurred_at, properties, subscription and trial"
    )
}

impl<'a> Item<'a> {
    fn take(&mut self, name: &str, value: &'a str) {
        let place = match name {
            "tenant" => &mut self.tenant,
            "id" => &mut self.id,
            "correlation_id" => &mut self.correlation_id,
            "meter" => &mut self.meter,
            "quantity" => &mut self.quantity,
            "occurred_at" => &mut self.occurred_at,
            "properties" => &mut self.properties,
            "subscription" => &mut self.subscription,
            "trial" => &mut self.trial,
            _ => return self.take_cloud(name, value),
        };
        if place.replace(value).is_some() {
            self.take_duplicate(name);
        }
    }

    fn take_cloud(&mut self, name: &str, value: &'a str) {
        let cloud = self.cloud.get_or_insert_default();
        let place = match name {
            "specversion" => &mut cloud.specversion,
            "source" => &mut cloud.source,
            "type" => &mut cloud.kind,
            "subject" => &mut cloud.subject,
            "time" => &mut cloud.time,
            "data" => &mut cloud.data,
            // An unknown name is a fault of a native event (a misspelt "quanity" must not count as
            // 1) and an extension attribute of a CloudEvent.
            _ => {
                let shown: String = name.chars().take(64).collect();
                self.fault
                    .get_or_insert_with(|| Refusal::new("unknown_field", unknown_field(&shown)));
                return;
            }
        };
        if place.replace(value).is_some() {
            self.take_duplicate(name);
        }
    }

    /// A doubled field outranks an unknown one, which only a native event is refused for.
    fn take_duplicate(&mut self, name: &str) {
        if self.fault.as_ref().is_none_or(|fault| fault.code != DUPLICATE_FIELD) {
            let detail = format!("{name} is given twice");
            self.fault = Some(Refusal::new(DUPLICATE_FIELD, detail));
        }
    }
}

/// The code of an item that has a field twice: which of the values is meant is unknown.
const DUPLICATE_FIELD: &str = "duplicate_field";

#[cfg(test)]
mod tests;
