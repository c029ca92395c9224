//! Credit notes: refunds of invoices that were paid.
//!
//! Invariant: the refunds of an invoice never exceed what was paid. Credit notes for unpaid
//! invoices, and credit notes that are not refunded in full, are not implemented. A crash leaves
//! nothing.

use crate::lists::{PAGING, page_of};
use crate::metadata;
use crate::params::Params;
use crate::request::{Answer, ApiError};
use crate::{Simulator, invoices};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Credit notes by id; ids ascend with time.
#[derive(Debug, Default)]
pub struct CreditNotes {
    all: BTreeMap<String, Value>,
}

pub fn create(simulator: &mut Simulator, params: &Params) -> Answer {
    params.only(&["invoice", "amount", "refund_amount", "reason", "memo", "metadata"])?;
    let reasons = ["duplicate", "fraudulent", "order_change", "product_unsatisfactory"];
    let reason = params.choice("reason", &reasons)?;
    let id = params.required_text("invoice", usize::MAX)?;
    let invoice = simulator.invoices.get(&id).map_err(|error| error.referenced("invoice"))?;
    let customer = invoice.customer.clone();
    let Some(sheet) = invoice.fixed.clone().filter(|sheet| sheet.status() == "paid") else {
        let message = "This simulator knows credit notes of paid invoices only.";
        return Err(ApiError::parameter("invoice", message));
    };
    let amount = params.required_integer("amount")?;
    if params.required_integer("refund_amount")? != amount {
        let message = "This simulator knows credit notes only that are refunded in full.";
        return Err(ApiError::parameter("refund_amount", message));
    }
    let left = sheet.amount("amount_paid") - sheet.amount("post_payment_credit_notes_amount");
    if amount <= 0 || amount > left {
        let message =
            format!("The amount must be between 1 and {left}, what is left of the payment.");
        return Err(ApiError::parameter("amount", message));
    }
    let mut own = Map::new();
    metadata::merge(&mut own, params)?;
    invoices::change(simulator, &id, |sheet| {
        let credited = sheet.amount("post_payment_credit_notes_amount") + amount;
        sheet.header["post_payment_credit_notes_amount"] = credited.into();
    });
    let (note, refund) = (simulator.next_id("cn"), simulator.next_id("re"));
    let shown = json!({
        "id": note, "object": "credit_note", "amount": amount, "total": amount,
        "created": simulator.now_seconds(), "currency": sheet.header["currency"],
        "customer": customer, "invoice": id, "livemode": false, "metadata": own,
        "reason": reason, "status": "issued", "type": "post_payment",
        "refunds": [{ "amount_refunded": amount, "refund": refund }],
    });
    simulator.credit_notes.all.insert(note, shown.clone());
    simulator.emit("credit_note.created", &shown);
    Ok(shown)
}

pub fn list(simulator: &Simulator, params: &Params) -> Answer {
    params.only(&[&PAGING[..], &["invoice", "customer"]].concat())?;
    let invoice = params.text("invoice", usize::MAX)?;
    let customer = params.text("customer", usize::MAX)?;
    let wanted = |(_, note): &(&String, &Value)| {
        invoice.as_ref().is_none_or(|id| note["invoice"] == **id)
            && customer.as_ref().is_none_or(|id| note["customer"] == **id)
    };
    let found: Vec<_> = simulator.credit_notes.all.iter().rev().filter(wanted).collect();
    let show = |(_, note): &(&String, &Value)| (*note).clone();
    page_of(&found, |row| row.0.as_str(), show, params, "/v1/credit_notes")
}
