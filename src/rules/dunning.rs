//! Dunning: at which stage an invoice that was not paid is.
//!
//! Invariant: a function of the invoice as it is and of the time; an invoice is one billing cycle,
//! and stages only follow one another in the order below, so each is published once per cycle.

use super::invoice::{Dunning, Invoice, judge_dunning};
use super::named::named_enum;
use super::span::Span;
use super::timestamp::Timestamp;

/// How long after it was made an unpaid invoice is urgent, also if it was tried once only.
const URGENT_AFTER: Span = Span::from_hours(7 * 24);
/// From so many failed attempts on it is.
const URGENT_ATTEMPTS: u32 = 3;

named_enum! {
    pub enum Stage {
        /// A payment failed; it is tried again.
        Reminder = "reminder",
        /// Several have, or it has been long.
        Urgent = "urgent",
        /// Nothing will be tried again.
        Final = "final",
        /// It was given up.
        Lost = "lost",
        /// It was paid after all.
        Recovered = "recovered",
    }
}

impl Stage {
    /// Whether nothing comes after it.
    pub fn is_end(self) -> bool {
        match self {
            Self::Reminder | Self::Urgent | Self::Final => false,
            Self::Lost | Self::Recovered => true,
        }
    }

    /// The kind of the change that tells of it.
    pub fn change_kind(self) -> &'static str {
        match self {
            Self::Reminder => "dunning.reminder",
            Self::Urgent => "dunning.urgent",
            Self::Final => "dunning.final",
            Self::Lost => "dunning.lost",
            Self::Recovered => "dunning.recovered",
        }
    }
}

/// The stage an invoice is at; none if nothing is wrong with its payment.
pub fn judge_stage(invoice: &Invoice, now: Timestamp) -> Option<Stage> {
    match judge_dunning(invoice) {
        Dunning::None => None,
        Dunning::Recovered => Some(Stage::Recovered),
        Dunning::Lost => Some(Stage::Lost),
        Dunning::Failing if invoice.next_attempt_at.is_none() => Some(Stage::Final),
        Dunning::Failing => {
            let long = URGENT_AFTER.after(invoice.created_at) <= now;
            let urgent = long || invoice.attempt_count >= URGENT_ATTEMPTS;
            Some(if urgent { Stage::Urgent } else { Stage::Reminder })
        }
    }
}

/// How the payment of an invoice in dunning ended; none while it is owed. Whether it was
/// paid by itself or by hand plays no part.
pub fn judge_end(invoice: &Invoice) -> Option<Stage> {
    match invoice.status.as_str() {
        "paid" => Some(Stage::Recovered),
        "uncollectible" | "void" => Some(Stage::Lost),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::ids::CustomerId;
    use crate::rules::window::Window;

    fn at(hours: u32) -> Timestamp {
        Span::from_hours(hours).after(Timestamp::from_micros(0))
    }

    #[test]
    fn stages_follow_from_the_invoice() {
        let check = |status: &str, attempts, next: Option<u32>, now, expected: Option<Stage>| {
            let invoice = Invoice {
                customer: CustomerId::parse("cus_1").expect("valid"),
                subscription: None,
                status: status.into(),
                reason: None,
                currency: "eur".into(),
                created_at: at(0),
                period: Window { start: at(0), end: at(1) },
                finalizes_at: None,
                subtotal: 100,
                total_excluding_tax: 100,
                tax: 0,
                total: 100,
                amount_due: 100,
                attempt_count: attempts,
                next_attempt_at: next.map(at),
                lines: Vec::new(),
            };
            assert_eq!(judge_stage(&invoice, at(now)), expected);
        };
        check("open", 0, Some(10), 5, None);
        check("open", 1, Some(10), 5, Some(Stage::Reminder));
        check("open", 1, Some(200), 167, Some(Stage::Reminder));
        check("open", 1, Some(200), 168, Some(Stage::Urgent));
        check("open", 3, Some(10), 5, Some(Stage::Urgent));
        check("open", 4, None, 5, Some(Stage::Final));
        check("uncollectible", 4, None, 5, Some(Stage::Lost));
        check("paid", 4, None, 5, Some(Stage::Recovered));
        check("paid", 1, None, 5, None);
        check("void", 2, None, 5, None);
    }
}
