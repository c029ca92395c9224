//! Reissues: what the provider lost of a window is sent again.
//!
//! Invariant: a reissue is a pair of revisions that cancel out, planned only if the window's
//! pushes and the provider's total are still as they were judged; so the sum of a window's pushes
//! never changes here. A store writes the pair and the window's revision in one transaction.

use super::customer::customer_of_window;
use super::drift::{PushSums, Summary, WindowPush};
use super::evidence::proves_loss;
use super::fault::{Fault, must};
use super::ids::{CustomerId, MeterNo, TenantId};
use super::push::{CutState, NewPush, Place, Reissue, StoredPush, plan_reissue};
use super::quantity::Quantity;
use super::submission::{Class, PushState};
use super::timestamp::Timestamp;
use super::window::Window;

/// Asks to send what the provider lacks of a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReissueOrder {
    pub tenant: TenantId,
    pub meter: MeterNo,
    pub window: Window,
    /// Whose total was read.
    pub customer: CustomerId,
    /// What the provider said that it has, when the window was judged.
    pub settled: Quantity,
    /// What it shows instead, which is less.
    pub provider: Quantity,
    /// The pass that found it, for the history.
    pub pass: u64,
}

/// A planned reissue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reissuing {
    /// The window's state after both.
    pub state: CutState,
    /// What was lost, which is never sent, and what is sent again.
    pub pushes: [NewPush; 2],
}

/// Whether what the provider lacks of a window may be sent again, given all pushes of the window
/// now and the customer's total: only if they are still as they were judged, nothing of it is on
/// its way or in doubt, and the readings prove it.
pub fn judge_reissue(
    pushes: &[WindowPush],
    customer: &CustomerId,
    (settled, provider): (Quantity, Quantity),
    summary: Option<&Summary>,
) -> Result<(), &'static str> {
    // The provider's total is of one customer; what another received is not lost.
    let elsewhere = |push: &WindowPush| {
        push.state.settled() && push.customer.as_ref().is_some_and(|sent_for| sent_for != customer)
    };
    let owner = customer_of_window(pushes);
    if owner.is_some_and(|owner| owner != customer) || pushes.iter().any(elsewhere) {
        return Err("a push of the window was sent for another customer");
    }
    let Some(sums) = PushSums::of_window(pushes) else {
        return Err("the window's pushes make more than can be held exactly");
    };
    let never = Timestamp::from_micros(i64::MIN);
    if sums.settled != settled {
        Err("something of the window was sent to the provider since it was judged")
    } else if sums.unsent_count + sums.unresolved_count > 0 {
        Err("a push of the window is still to be sent, or its outcome is not known yet")
    } else if sums.doubtful_count > 0 {
        Err("it is unknown whether a dead push of the window counted")
    } else if provider >= settled {
        Err("the provider lacks nothing of the window")
    } else if summary.is_none_or(|summary| summary.value != provider) {
        Err("the provider's total is not what the window was judged by")
    } else if !proves_loss(summary, sums.moved_at.unwrap_or(never)) {
        Err("the provider's total was not read twice, an hour apart, since the window's last push")
    } else {
        Ok(())
    }
}

/// Plans a reissue by the window's pushes, oldest revision first, and its customer's total as
/// they are stored now; the error of the inner result is why it is refused.
pub fn plan_reissuing(
    order: &ReissueOrder,
    state: &CutState,
    pushes: &[StoredPush],
    summary: Option<&Summary>,
) -> Result<Result<Reissuing, &'static str>, Fault> {
    let seen: Vec<WindowPush> = pushes.iter().map(|one| WindowPush::from(&one.push)).collect();
    let halves = (order.settled, order.provider);
    if let Err(refusal) = judge_reissue(&seen, &order.customer, halves, summary) {
        return Ok(Err(refusal));
    }
    let slug = pushes.last().map_or("", |last| last.slug.as_str());
    let place = Place { tenant: &order.tenant, meter: slug, window: order.window };
    let last = check_window(order, state, pushes).map_err(|fault| fault.of(&place))?;
    let plan = plan_reissue(state, halves, last.push.mode);
    let Reissue { state: after, lost, again } = plan.map_err(|fault| fault.of(&place))?;
    must!(
        after.planned == state.planned && (after.count, after.total) == (state.count, state.total),
        "a reissue leaves what was planned for its window",
        "{place} planned={} planned_after={}",
        state.planned,
        after.planned
    );
    must!(
        state.revision < lost.revision && lost.revision < again.revision,
        "a reissue has later revisions than every push of its window",
        "{place} revision={} lost={} again={}",
        state.revision,
        lost.revision,
        again.revision
    );
    let detail = Some(format!("found by pass {}", order.pass));
    let lost = NewPush {
        customer: Some(order.customer.clone()),
        state: PushState::Reconciled,
        class: Class::Lost,
        detail: detail.clone(),
        ..NewPush::beside(last, lost)
    };
    let again = NewPush { class: Class::Reissue, detail, ..NewPush::beside(last, again) };
    Ok(Ok(Reissuing { state: after, pushes: [lost, again] }))
}

/// Checks what was read of the window; its push of the highest revision.
fn check_window<'p>(
    order: &ReissueOrder,
    state: &CutState,
    pushes: &'p [StoredPush],
) -> Result<&'p StoredPush, Fault> {
    for found in pushes {
        let (push, number) = (&found.push, found.push.number);
        found.check()?;
        must!(
            (&push.tenant, push.meter, push.window) == (&order.tenant, order.meter, order.window),
            "a reissue is planned with the pushes of its window",
            "push={number}"
        );
        must!(
            push.shadow == state.shadow,
            "all pushes of a window are shadow, or none is",
            "push={number} shadow={}",
            push.shadow
        );
    }
    let ascending = pushes.is_sorted_by(|a, b| a.push.revision < b.push.revision);
    must!(ascending, "pushes of a window are read by revision", "pushes={}", pushes.len());
    let Some(last) = pushes.last() else {
        return Err(Fault { fact: "a window that lost something has pushes", ids: String::new() });
    };
    must!(
        last.push.revision == state.revision,
        "a window that is corrected has the revision of its last push",
        "window_revision={} push_revision={}",
        state.revision,
        last.push.revision
    );
    Ok(last)
}

#[cfg(test)]
mod tests;
