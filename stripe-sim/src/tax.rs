//! Tax, which may be added late, and the totals of an invoice.
//!
//! Invariant: tax changes the amount due and never a subtotal or a total that excludes it. It is
//! computed line by line, after credit. A crash leaves nothing.

use crate::Simulator;
use crate::decimal::Decimal;
use crate::invoices::{self, Sheet};
use crate::params::Params;
use crate::request::{Answer, ApiError};
use serde_json::{Value, json};

impl Simulator {
    /// Sets the tax of an invoice that is a draft or open.
    ///
    /// # Errors
    ///
    /// The message of the refusal, if the invoice is unknown or no longer open.
    pub fn add_tax(&mut self, invoice: &str, rate_percent: Decimal) -> Result<(), String> {
        add(self, invoice, rate_percent).map(|_| ()).map_err(|error| error.message)
    }
}

/// `POST /_sim/tax`.
pub fn set(simulator: &mut Simulator, params: &Params) -> Answer {
    params.only(&["invoice", "rate_percent"])?;
    let invoice = params.required_text("invoice", usize::MAX)?;
    let text = params.required_text("rate_percent", usize::MAX)?;
    let percent = text.parse::<Decimal>().ok().filter(|percent| *percent >= Decimal::ZERO);
    let refused = || ApiError::parameter("rate_percent", format!("Invalid decimal: {text}"));
    add(simulator, &invoice, percent.ok_or_else(refused)?)
}

fn add(simulator: &mut Simulator, invoice: &str, percent: Decimal) -> Answer {
    let status = simulator.invoices.get(invoice)?.status();
    if status != "draft" && status != "open" {
        let message = format!("The invoice is {status}; tax can be added to a draft or open one.");
        return Err(ApiError::refused(message));
    }
    invoices::set_tax(simulator, invoice, percent)
}

/// Computes taxes and totals of an invoice from its lines.
pub fn total(sheet: &mut Sheet, percent: Option<Decimal>) {
    let (mut subtotal, mut untaxed, mut tax) = (0, 0, 0);
    for line in &mut sheet.lines {
        let amount = line["amount"].as_i64().unwrap_or(0);
        let taxable = amount - credit_of(line);
        subtotal += amount;
        untaxed += taxable;
        if let Some(percent) = percent {
            let part = share(taxable, percent);
            tax += part;
            line["taxes"] = taxes(part, taxable, percent);
        }
    }
    let header = &mut sheet.header;
    header["total_taxes"] = percent.map_or_else(|| json!([]), |rate| taxes(tax, untaxed, rate));
    let paid = header["amount_paid"].as_i64().unwrap_or(0);
    for (name, amount) in [
        ("subtotal", subtotal),
        ("subtotal_excluding_tax", subtotal),
        ("total_excluding_tax", untaxed),
        ("total", untaxed + tax),
        ("amount_due", untaxed + tax),
        ("amount_remaining", untaxed + tax - paid),
    ] {
        header[name] = amount.into();
    }
}

fn credit_of(line: &Value) -> i64 {
    let credits = line["pretax_credit_amounts"].as_array();
    let amounts = credits.into_iter().flatten().filter_map(|credit| credit["amount"].as_i64());
    amounts.sum()
}

fn taxes(amount: i64, taxable: i64, percent: Decimal) -> Value {
    let rate = format!("txr_{}", percent.to_string().replace('.', "_"));
    json!([{
        "amount": amount, "taxable_amount": taxable, "tax_behavior": "exclusive",
        "taxability_reason": "standard_rated", "type": "tax_rate_details",
        "tax_rate_details": { "tax_rate": rate },
    }])
}

/// A percentage of an amount, rounded to the smallest unit, halves up.
fn share(amount: i64, percent: Decimal) -> i64 {
    let whole = 100 * Decimal::ONE.units();
    let exact =
        i128::from(amount).checked_mul(percent.units()).expect("a simulated tax fits into an i128");
    i64::try_from((exact + whole / 2).div_euclid(whole)).expect("a simulated tax fits into 64 bits")
}
