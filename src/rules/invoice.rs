//! Invoices: what the provider bills, compared with what was counted, and whether it was paid.
//!
//! Invariant: quantities are compared with quantities, and money before tax with money before tax.
//! Tax may come late and change totals; it never makes a difference here. What comes of payments is
//! reported once for each invoice, which is one cycle.

use super::attribution::Divided;
use super::ids::CustomerId;
use super::quantity::{Quantity, SCALE};
use super::timestamp::Timestamp;
use super::window::Window;
use serde::{Deserialize, Serialize};

/// An invoice; amounts are of the currency's smallest unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invoice {
    pub customer: CustomerId,
    pub subscription: Option<String>,
    /// draft, open, paid, void or uncollectible.
    pub status: String,
    /// Such as subscription_cycle.
    pub reason: Option<String>,
    pub currency: String,
    pub created_at: Timestamp,
    pub period: Window,
    /// When a draft will be fixed; what is reported later is on no invoice.
    pub finalizes_at: Option<Timestamp>,
    /// Before tax and before credits.
    pub subtotal: i64,
    pub total_excluding_tax: i64,
    pub tax: i64,
    pub total: i64,
    pub amount_due: i64,
    pub attempt_count: u32,
    pub next_attempt_at: Option<Timestamp>,
    pub lines: Vec<InvoiceLine>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvoiceLine {
    pub id: String,
    pub price: Option<String>,
    /// The name of the meter it bills; none for what is not metered.
    pub event_name: Option<String>,
    pub quantity: Quantity,
    pub unit_amount: Option<Quantity>,
    /// Before discounts and tax.
    pub subtotal: i64,
    pub period: Window,
}

/// The state of an invoice's payment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dunning {
    /// Nothing has failed.
    None,
    /// A payment failed and the invoice is still owed.
    Failing,
    /// A payment had failed, and then one succeeded.
    Recovered,
    /// It was given up.
    Lost,
}

/// Derived from the invoice as it is now, so the order of events about it plays no part.
pub fn judge_dunning(invoice: &Invoice) -> Dunning {
    match (invoice.status.as_str(), invoice.attempt_count) {
        ("open", 1..) => Dunning::Failing,
        ("paid", 2..) => Dunning::Recovered,
        ("uncollectible", 1..) => Dunning::Lost,
        (_, _) => Dunning::None,
    }
}

/// What is wrong with an invoice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mismatch {
    /// The lines of a price bill another quantity than was pushed for their period.
    Quantity { lines: Vec<String>, event_name: String, pushed: Quantity, billed: Quantity },
    /// Of a window that holds a period's border, another quantity was pushed into the period than
    /// was used in it.
    Side { event_name: String, window: Window, used: Quantity, pushed: Quantity },
    /// A line's money is not its quantity times its price.
    Amount { line: String, expected: i64, billed: i64 },
    /// The invoice's subtotal is not the sum of its lines.
    Subtotal { expected: i64, billed: i64 },
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Quantity { lines, event_name, pushed, billed } => {
                let named = match &lines[..] {
                    [line] => format!("line {line} bills"),
                    lines => format!("lines {} bill", lines.join(", ")),
                };
                write!(f, "{named} {billed} of {event_name}, and {pushed} were counted")
            }
            Self::Side { event_name, window, used, pushed } => {
                let start = window.start;
                write!(
                    f,
                    "of {event_name} in the window of {start}, {used} were used within the period \
                     and {pushed} were pushed into it"
                )
            }
            Self::Amount { line, expected, billed } => {
                write!(f, "line {line} bills {billed} before tax instead of {expected}")
            }
            Self::Subtotal { expected, billed } => {
                write!(f, "the subtotal is {billed}, and its lines make {expected}")
            }
        }
    }
}

/// Compares an invoice that is fixed with what was handed to billing; `pushed` tells the sum for
/// a meter's name and a period, or none where we do not bill that meter. A tiered price has a line
/// for each tier, so the quantities of its lines of one period are summed before they are compared.
pub fn judge_invoice(
    invoice: &Invoice,
    pushed: impl Fn(&str, Window) -> Option<Quantity>,
) -> Vec<Mismatch> {
    let mut found = judge_quantities(invoice, pushed);
    let mut sum = 0i64;
    for line in &invoice.lines {
        sum = sum.saturating_add(line.subtotal);
        let expected = line.unit_amount.and_then(|price| multiply(line.quantity, price));
        if let Some(expected) = expected.filter(|expected| *expected != line.subtotal)
            && line.event_name.is_some()
        {
            let line_id = line.id.clone();
            found.push(Mismatch::Amount { line: line_id, expected, billed: line.subtotal });
        }
    }
    if sum != invoice.subtotal {
        found.push(Mismatch::Subtotal { expected: sum, billed: invoice.subtotal });
    }
    found
}

/// A window that holds a border of an invoice's period.
#[derive(Debug, Clone, Copy)]
pub struct Side {
    pub window: Window,
    pub period: Window,
    /// What was pushed of the window, stamped within the period.
    pub pushed: Quantity,
    /// Decimal places that are pushed.
    pub scale: u32,
}

/// Compares one side of a window with what was pushed; `usage` is divided at the period's borders.
/// Digits that are carried make up to one of the smallest units for each charge. None if a total
/// is too large.
pub fn judge_side(
    event_name: &str,
    usage: &Divided,
    covered: Quantity,
    side: Side,
) -> Option<Option<Mismatch>> {
    let Side { window, period, pushed, scale } = side;
    let charges = usage.charges.iter().zip(usage.less(covered).ok()?);
    let within = charges.filter(|(charge, _)| period.contains(charge.stamps.start));
    let used = within.map(|(_, net)| net).try_fold(Quantity::ZERO, Quantity::checked_add)?;
    let unit = 10i128.checked_pow(SCALE.checked_sub(scale)?)?;
    let carried = unit.checked_mul(i128::try_from(usage.charges.len()).ok()?)?;
    let differs = used.checked_sub(pushed)?.units().abs() >= carried;
    let event_name = event_name.to_owned();
    Some(differs.then_some(Mismatch::Side { event_name, window, used, pushed }))
}

fn judge_quantities(
    invoice: &Invoice,
    pushed: impl Fn(&str, Window) -> Option<Quantity>,
) -> Vec<Mismatch> {
    let mut groups: Vec<Vec<&InvoiceLine>> = Vec::new();
    for line in invoice.lines.iter().filter(|line| line.event_name.is_some()) {
        match groups.iter_mut().find(|group| line.is_billed_with(group[0])) {
            Some(group) => group.push(line),
            None => groups.push(vec![line]),
        }
    }
    let judge = |group: Vec<&InvoiceLine>| {
        let event_name = group[0].event_name.clone()?;
        let ours = pushed(&event_name, group[0].period)?;
        let units = group.iter().map(|line| line.quantity.units()).fold(0, i128::saturating_add);
        let billed = Quantity::from_units(units);
        // A negative total is billed as nothing.
        let differs = ours.max(Quantity::ZERO) != billed;
        let lines = group.iter().map(|line| line.id.clone()).collect();
        differs.then_some(Mismatch::Quantity { lines, event_name, pushed: ours, billed })
    };
    groups.into_iter().filter_map(judge).collect()
}

impl InvoiceLine {
    /// Whether both are of one price and period, such as the tiers of a price.
    fn is_billed_with(&self, other: &Self) -> bool {
        self.price.is_some() && (&self.price, self.period) == (&other.price, other.period)
    }
}

/// Quantity times price, to the nearest smallest unit; a half goes up. None if it is too large.
fn multiply(quantity: Quantity, price: Quantity) -> Option<i64> {
    let one = 10i128.pow(SCALE);
    let (whole, part) = (quantity.units().div_euclid(one), quantity.units().rem_euclid(one));
    let exact = whole
        .checked_mul(price.units())?
        .checked_add(part.checked_mul(price.units())?.div_euclid(one))?;
    i64::try_from(exact.checked_add(one / 2)?.div_euclid(one)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::attribution::ChargedUsage;
    use crate::rules::samples::quantity;
    use std::collections::BTreeMap;

    fn invoice(quantity_billed: &str, subtotal: i64) -> Invoice {
        let period =
            Window { start: Timestamp::from_micros(0), end: Timestamp::from_micros(1_000_000) };
        Invoice {
            customer: CustomerId::parse("cus_1").expect("valid"),
            subscription: Some("sub_1".into()),
            status: "open".into(),
            reason: Some("subscription_cycle".into()),
            currency: "usd".into(),
            created_at: period.end,
            period,
            finalizes_at: None,
            subtotal,
            total_excluding_tax: subtotal,
            tax: 0,
            total: subtotal,
            amount_due: subtotal,
            attempt_count: 0,
            next_attempt_at: None,
            lines: vec![InvoiceLine {
                id: "il_1".into(),
                price: Some("price_1".into()),
                event_name: Some("calls".into()),
                quantity: quantity(quantity_billed),
                unit_amount: Some(quantity("0.2")),
                subtotal,
                period,
            }],
        }
    }

    #[test]
    fn lines_are_compared_before_tax() {
        let check = |billed: &str, subtotal: i64, pushed: &str, expected: usize| {
            let mut invoice = invoice(billed, subtotal);
            invoice.tax = 99;
            invoice.total += 99;
            let found = judge_invoice(&invoice, |_, _| Some(quantity(pushed)));
            assert_eq!(found.len(), expected, "{found:?}");
        };
        check("12.5", 3, "12.5", 0);
        check("12.4", 2, "12.4", 0);
        check("12.5", 3, "12", 1);
        check("12.5", 4, "12.5", 1);
        check("0", 0, "-3", 0);
        assert!(judge_invoice(&invoice("5", 1), |_, _| None).is_empty());
    }

    #[test]
    fn tiers_are_summed_by_price_and_period() {
        let tiers = |quantities: &[&str]| {
            let mut invoice = invoice("0", 0);
            let line = invoice.lines.remove(0);
            let numbered = quantities.iter().enumerate();
            invoice.lines.extend(numbered.map(|(place, text)| InvoiceLine {
                id: format!("il_{place}"),
                quantity: quantity(text),
                unit_amount: None,
                ..line.clone()
            }));
            invoice
        };
        let check = |invoice: &Invoice, pushed: &str, expected: &[&str]| {
            let found = judge_invoice(invoice, |_, _| Some(quantity(pushed)));
            let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
            assert_eq!(texts, expected);
        };
        check(&tiers(&["100", "0", "31"]), "131", &[]);
        check(
            &tiers(&["100", "31"]),
            "130",
            &["lines il_0, il_1 bill 131 of calls, and 130 were counted"],
        );
        let mut apart = tiers(&["100", "31"]);
        apart.lines[1].period.end = Timestamp::from_micros(2_000_000);
        let each = [
            "line il_0 bills 100 of calls, and 131 were counted",
            "line il_1 bills 31 of calls, and 131 were counted",
        ];
        check(&apart, "131", &each);
        let mut apart = tiers(&["100", "31"]);
        apart.lines[1].price = Some("price_2".into());
        check(&apart, "131", &each);
        // Lines without a price are compared one by one.
        let mut apart = tiers(&["100", "31"]);
        apart.lines.iter_mut().for_each(|line| line.price = None);
        check(&apart, "131", &each);
    }

    #[test]
    fn each_side_of_a_border_is_compared_by_when_it_was_used() {
        let second = |number: i64| Timestamp::from_micros(number * 1_000_000);
        let charge = |start: i64, end: i64, billable: &str| ChargedUsage {
            stamps: Window { start: second(start), end: second(end) },
            stamped_at: second(start + 1),
            closed_at: None,
            billable: quantity(billable),
            by_subscription: BTreeMap::from([(None, quantity(billable))]),
        };
        let zero = Quantity::ZERO;
        let usage = Divided {
            count: 3,
            billable: quantity("10.7"),
            charges: vec![charge(0, 600, "4.2"), charge(600, 3_600, "6.5")],
            trial: zero,
            outside: zero,
        };
        let window = Window { start: second(0), end: second(3_600) };
        let check = |period: (i64, i64), covered: &str, pushed: &str, used: Option<&str>| {
            let period = Window { start: second(period.0), end: second(period.1) };
            let side = Side { window, period, pushed: quantity(pushed), scale: 0 };
            let found = judge_side("calls", &usage, quantity(covered), side).expect("fits");
            let expected = used.map(|used| Mismatch::Side {
                event_name: "calls".into(),
                window,
                used: quantity(used),
                pushed: quantity(pushed),
            });
            assert_eq!(found, expected);
        };
        let (ends, begins) = ((-9_000, 600), (600, 9_000));
        check(ends, "0", "4", None);
        check(begins, "0", "6", None);
        // All of it went to one side.
        check(ends, "0", "10", Some("4.2"));
        check(begins, "0", "0", Some("6.5"));
        // Credits cover what was used first.
        check(ends, "3", "1", None);
        check(begins, "3", "6", None);
        check(ends, "3", "4", Some("1.2"));
    }

    #[test]
    fn dunning_follows_from_the_invoice() {
        let check = |status: &str, attempt_count: u32, expected: Dunning| {
            let invoice = Invoice { status: status.into(), attempt_count, ..invoice("1", 0) };
            assert_eq!(judge_dunning(&invoice), expected, "{status} {attempt_count}");
        };
        check("draft", 0, Dunning::None);
        check("open", 0, Dunning::None);
        check("open", 1, Dunning::Failing);
        check("open", 3, Dunning::Failing);
        check("paid", 1, Dunning::None);
        check("paid", 2, Dunning::Recovered);
        check("uncollectible", 4, Dunning::Lost);
        check("void", 1, Dunning::None);
    }
}
