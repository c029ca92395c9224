//! Mirrors: the provider's objects as they were last read.
//!
//! A webhook does not say what an object is now, only that it has changed: deliveries come in any
//! order, and their second-long stamps do not tell it. So it asks for a reading. Each request takes
//! a ticket, the next number of that object; a reading is begun for the highest ticket, and is
//! written with it as its version.
//!
//! Invariant: an object's version only grows, and a reading that was begun for a lower ticket than
//! the version is stale and is not written. After the last webhook of an object there is a reading
//! that was begun later; so the mirror ends as the provider's object did, whatever the order and
//! number of deliveries.

use super::ids::CustomerId;
use super::invoice::Invoice;
use super::subscription::Subscription;
use super::timestamp::Timestamp;
use super::window::Window;
use serde::{Deserialize, Serialize};

/// What is mirrored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectKind {
    Subscription,
    Invoice,
    CreditGrant,
    Customer,
    /// The provider's report of pushes that it took and then refused.
    ErrorReport,
}

impl ObjectKind {
    pub const ALL: [Self; 5] =
        [Self::Subscription, Self::Invoice, Self::CreditGrant, Self::Customer, Self::ErrorReport];

    pub fn name(self) -> &'static str {
        match self {
            Self::Subscription => "subscription",
            Self::Invoice => "invoice",
            Self::CreditGrant => "credit_grant",
            Self::Customer => "customer",
            Self::ErrorReport => "error_report",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Which object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    pub kind: ObjectKind,
    /// The provider's id of it.
    pub id: String,
}

/// What was read of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Snapshot {
    Subscription(Subscription),
    Invoice(Invoice),
    CreditGrant(CreditGrant),
    Customer(Customer),
    ErrorReport(ErrorReport),
    /// The provider does not know it.
    Gone,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreditGrant {
    pub customer: CustomerId,
    /// paid or promotional.
    pub category: String,
    pub currency: String,
    /// Of the currency's smallest unit.
    pub amount: i64,
    pub effective_at: Option<Timestamp>,
    pub expires_at: Option<Timestamp>,
    pub voided_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Customer {
    pub deleted: bool,
}

/// Pushes that the provider took and then refused; it names only samples.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorReport {
    /// The meter's name at the provider; none where it found no meter.
    pub event_name: Option<String>,
    /// When the refused ones came in.
    pub validated_in: Window,
    pub error_count: u64,
    pub samples: Vec<ErrorSample>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorSample {
    /// The key of the push.
    pub key: String,
    pub code: String,
    pub message: String,
}

impl Snapshot {
    /// Whose it is.
    pub fn customer(&self) -> Option<&CustomerId> {
        match self {
            Self::Subscription(subscription) => Some(&subscription.customer),
            Self::Invoice(invoice) => Some(&invoice.customer),
            Self::CreditGrant(grant) => Some(&grant.customer),
            Self::Customer(_) | Self::ErrorReport(_) | Self::Gone => None,
        }
    }

    /// One word by which mirrors are searched for.
    pub fn status(&self) -> &str {
        match self {
            Self::Subscription(subscription) => &subscription.status,
            Self::Invoice(invoice) => &invoice.status,
            Self::CreditGrant(grant) if grant.voided_at.is_some() => "voided",
            Self::CreditGrant(_) => "granted",
            Self::Customer(Customer { deleted: true }) => "deleted",
            Self::Customer(_) => "active",
            Self::ErrorReport(_) => "reported",
            Self::Gone => "gone",
        }
    }

    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a snapshot is valid JSON")
    }

    pub fn from_json(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}
