//! Settlements and rulings: how a push changes, and the push that takes its place.
//!
//! A store reads the pushes that are settled, has each change planned here, and writes it as it is.
//!
//! Invariant: a push moves only along the arrows of `is_legal`. It is settled under its lease's
//! last fence or, once submitted, by a reading of its window that is still current; each change
//! ends the lease and adds a row to the push's history. A push that surely never counted hands its
//! quantity on to the push that takes its place, so what was planned for the window stays. Nothing
//! is written here, so a crash leaves nothing.

use super::billing::Mode;
use super::drift::WindowPush;
use super::fault::{Fault, must};
use super::ids::{CustomerId, TenantId};
use super::push::{CutState, NewPush, Push, StoredPush, exact, plan_adoption, plan_replacement};
use super::quantity::Quantity;
use super::restore::{Comparison, Known, Reading, judge_comparison};
use super::span::Span;
use super::submission::{Class, Next, PushState, Retry, judge_discard};
use super::timestamp::Timestamp;
use super::waiting::judge_waiting;

/// Why a summary is not asked again for a dead push.
const UNRESOLVED: &str =
    "another push of its window is unresolved; retry this one when that is over";

/// The outcome of a claimed or submitted push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    pub push: u64,
    pub right: Right,
    pub class: Class,
    pub next: Next,
    pub request_id: Option<String>,
    pub detail: Option<String>,
}

/// By what right a push is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// A claimed push, by the fence of its lease.
    Lease(u64),
    /// A submitted push, by a reading of its window's total at the provider. The window's settled
    /// pushes must still make `expected`, and none may be begun and unresolved: otherwise the
    /// reading may show more or less than what was listed, and only a wait is written.
    Reading { expected: Quantity },
}

/// An attempt that is about to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptIntent {
    pub push: u64,
    pub fence: u64,
    pub customer: CustomerId,
    /// The request's bytes; those of the first attempt stay for ever.
    pub request: Vec<u8>,
}

/// What a push is changed to, and the row that its history gets. Its lease ends with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub push: u64,
    pub tenant: TenantId,
    pub key: String,
    /// The number of the attempt it belongs to.
    pub attempt: u32,
    pub state: PushState,
    pub class: Class,
    pub detail: Option<String>,
    pub due_at: Timestamp,
    pub state_at: Timestamp,
    pub request_keys: u32,
    pub unreadable_since: Option<Timestamp>,
    pub looked: Option<Reading>,
    pub note: Note,
}

/// What the history says of a change, where it differs from what the push says from then on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    pub class: Class,
    pub request_id: Option<String>,
    pub detail: Option<String>,
}

impl Change {
    /// A change to another state at `at`, with everything else as it was. It is checked last, so
    /// that callers may set what else changes.
    fn to(
        found: &StoredPush,
        (state, class): (PushState, Class),
        detail: Option<String>,
        at: Timestamp,
    ) -> Self {
        let push = &found.push;
        Self {
            push: push.number,
            tenant: push.tenant.clone(),
            key: push.key.clone(),
            attempt: push.attempts,
            state,
            class,
            detail: detail.clone(),
            due_at: push.due_at,
            state_at: if state == push.state { push.state_at } else { at },
            request_keys: found.request_keys,
            unreadable_since: found.unreadable_since,
            looked: found.looked,
            note: Note { class, request_id: None, detail },
        }
    }

    /// Checks a planned change against the row that it changes, before it is written.
    fn check(self, found: &StoredPush) -> Result<Self, Fault> {
        found.check()?;
        let (from, to) = (found.push.state, self.state);
        must!(
            is_legal(from, to),
            "a push moves along the arrows of its life",
            "{} from={} to={}",
            name(&found.push),
            from.name(),
            to.name()
        );
        must!(
            is_reason_for(to, self.class),
            "a push is in its state for a reason of that state",
            "{} state={} class={}",
            name(&found.push),
            to.name(),
            self.class.name()
        );
        must!(
            self.request_keys >= found.request_keys,
            "the number of request keys only grows",
            "{} request_keys={} before={}",
            name(&found.push),
            self.request_keys,
            found.request_keys
        );
        Ok(self)
    }
}

/// Names a push in faults.
fn name(push: &Push) -> String {
    let Push { tenant, number, .. } = push;
    format!("tenant={tenant} push={number}")
}

/// The life of a push: where it may go from each state.
fn is_legal(from: PushState, to: PushState) -> bool {
    use PushState::{
        Confirmed, Dead, Discarded, Observed, Reconciled, Replaced, Submitted, Waiting,
    };
    match from {
        Waiting => matches!(to, Waiting | Observed | Replaced),
        Observed => {
            matches!(to, Observed | Waiting | Submitted | Confirmed | Dead | Replaced)
        }
        Submitted => matches!(to, Submitted | Confirmed | Dead),
        Confirmed => to == Reconciled,
        Dead => matches!(to, Observed | Replaced | Discarded),
        // A later total that the provider took makes one that was written off pointless.
        Discarded => to == Replaced,
        Reconciled | Replaced => false,
    }
}

/// The reasons for which a push is in a state.
fn is_reason_for(state: PushState, class: Class) -> bool {
    use Class::{
        Absent, Accepted, Adopted, AlreadyThere, Attempt, Confirmed, Cut, Discarded, Lost, NotSent,
        Overtaken, Present, Reconciled, Refused, Reissue, Retried, TooOld, Undecidable, Unknown,
        Unreadable,
    };
    match state {
        PushState::Waiting => class == Cut,
        PushState::Observed => {
            matches!(class, Cut | Attempt | Unknown | Absent | Retried | Reissue)
        }
        PushState::Submitted => matches!(class, Accepted | AlreadyThere | Present),
        PushState::Confirmed => {
            // A destination without totals confirms by its answer.
            matches!(class, Confirmed | Accepted | AlreadyThere | NotSent | Adopted)
        }
        PushState::Reconciled => matches!(class, Reconciled | Lost),
        PushState::Dead => matches!(class, Refused | Absent | Undecidable | Unreadable | TooOld),
        PushState::Discarded => class == Discarded,
        PushState::Replaced => matches!(class, Absent | Retried | Overtaken | Adopted | NotSent),
    }
}

/// Whether a settlement rests on the window's pushes besides its own.
pub fn rests_on_window(settlement: &Settlement) -> bool {
    match (settlement.right, &settlement.next) {
        (Right::Lease(_), _) | (Right::Reading { .. }, Next::Wait { .. }) => false,
        (Right::Reading { .. }, _) => true,
    }
}

/// Whether a settlement's right holds now. `settled` is what the settled pushes of the window make
/// now for its customer; none where a push of the window was begun and is not resolved.
pub fn is_current(found: &StoredPush, settlement: &Settlement, settled: Option<Quantity>) -> bool {
    match settlement.right {
        Right::Lease(fence) => found.leased_until.is_some() && found.fence == fence,
        Right::Reading { .. } if found.push.state != PushState::Submitted => false,
        Right::Reading { expected } => !rests_on_window(settlement) || settled == Some(expected),
    }
}

/// What a settlement leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    pub change: Change,
    pub then: Then,
}

/// What follows from a settlement besides the change of its own push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    Nothing,
    /// Another push takes its place ([`plan_replacing`]).
    Replace,
    /// The window's earlier dead pushes are pointless ([`plan_overtaking`]).
    Overtake,
}

/// What a settlement makes of its push.
pub fn plan_settlement(
    found: &StoredPush,
    settlement: &Settlement,
    at: Timestamp,
) -> Result<Settled, Fault> {
    let Settlement { class, next, detail, request_id, .. } = settlement;
    let push = &found.push;
    let to = |state| Change::to(found, (state, *class), detail.clone(), at);
    let mut change = match next {
        Next::Wait { until, fresh_request_key } => Change {
            // A submitted one that waits for the summary is still submitted for the same reason.
            class: if push.state == PushState::Submitted { push.class } else { *class },
            detail: detail.clone().or_else(|| push.detail.clone()),
            due_at: *until,
            request_keys: found.request_keys.saturating_add(u32::from(*fresh_request_key)),
            ..to(push.state)
        },
        Next::Unread { until } => Change { due_at: *until, ..to(push.state) },
        Next::Looked { until, total } => {
            let looked = Some(Reading { total: *total, at });
            Change { due_at: *until, looked, ..to(push.state) }
        }
        Next::Compared { look_at, .. } => Change { due_at: *look_at, ..to(push.state) },
        Next::Submitted { look_at } => Change { due_at: *look_at, ..to(PushState::Submitted) },
        Next::Confirmed => to(PushState::Confirmed),
        Next::Dead => to(PushState::Dead),
        Next::Replaced => to(PushState::Replaced),
    };
    change.note = Note { class: *class, request_id: request_id.clone(), detail: detail.clone() };
    // Since when it could not be read is kept, and forgotten once it could.
    change.unreadable_since = match next {
        Next::Unread { .. } => Some(found.unreadable_since.unwrap_or(at)),
        Next::Wait { .. }
        | Next::Looked { .. }
        | Next::Compared { .. }
        | Next::Submitted { .. }
        | Next::Confirmed
        | Next::Dead
        | Next::Replaced => None,
    };
    let then = match next {
        Next::Replaced => Then::Replace,
        Next::Submitted { .. } if push.mode == Mode::Absolute => Then::Overtake,
        Next::Submitted { .. }
        | Next::Wait { .. }
        | Next::Unread { .. }
        | Next::Looked { .. }
        | Next::Compared { .. }
        | Next::Confirmed
        | Next::Dead => Then::Nothing,
    };
    must!(
        then != Then::Replace || *class == Class::Absent,
        "only a push that the provider's total lacks is replaced by a settlement",
        "{} class={}",
        name(push),
        class.name()
    );
    Ok(Settled { change: change.check(found)?, then })
}

/// A push that takes another's place, and the state of their window after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replacing {
    pub state: CutState,
    pub push: NewPush,
}

/// Plans the push that takes the place of one that surely never counted. `begins` is where a push
/// of the tenant begins.
pub fn plan_replacing(
    found: &StoredPush,
    window: &CutState,
    begins: PushState,
) -> Result<Replacing, Fault> {
    let push = &found.push;
    let named = |fault: Fault| fault.of(&name(push));
    found.check_window(window)?;
    let (state, planned) = plan_replacement(window, push.quantity, push.mode).map_err(named)?;
    must!(
        planned.quantity == push.quantity,
        "a push hands on exactly its quantity",
        "{} quantity={} replacement={}",
        name(push),
        push.quantity,
        planned.quantity
    );
    must!(
        planned.revision > push.revision && planned.revision > window.revision,
        "a replacement has a later revision than every push of its window",
        "{} revision={} replacement={}",
        name(push),
        push.revision,
        planned.revision
    );
    must!(
        state.planned == window.planned && state.total == window.total,
        "a replacement leaves what was planned for its window",
        "{} planned={} planned_after={}",
        name(push),
        window.planned,
        state.planned
    );
    let replacement = NewPush {
        event: push.event.clone(),
        detail: Some(format!("takes the place of push {}", push.number)),
        state: begins,
        ..NewPush::beside(found, planned)
    };
    Ok(Replacing { state, push: replacement })
}

/// A total that the provider took makes an earlier dead one of its window pointless.
pub fn plan_overtaking(dead: &StoredPush, taken: &Push, at: Timestamp) -> Result<Change, Fault> {
    let (old, number) = (&dead.push, taken.number);
    must!(
        (&old.tenant, old.meter, old.window.start)
            == (&taken.tenant, taken.meter, taken.window.start),
        "a push is overtaken within its window",
        "{} taken={number}",
        name(old)
    );
    must!(
        old.revision < taken.revision,
        "a push is overtaken by a later revision",
        "{} revision={} taken={number} taken_revision={}",
        name(old),
        old.revision,
        taken.revision
    );
    must!(
        old.mode == Mode::Absolute && taken.mode == Mode::Absolute,
        "only totals overtake each other",
        "{} taken={number}",
        name(old)
    );
    let to = (PushState::Replaced, Class::Overtaken);
    let detail = Some(format!("overtaken by push {number}"));
    Change::to(dead, to, detail, at).check(dead)
}

/// What a person's ruling on a push leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ruled {
    Refused(&'static str),
    /// It changes, and another push takes its place.
    Replaced(Change),
    /// It changes, and stays.
    Changed(Change),
}

/// Plans another try of a dead push. `may` says whether its window's pushes and readings allow it;
/// `pushes` are all of its window.
pub fn plan_retry(
    found: &StoredPush,
    may: Result<Retry, &'static str>,
    pushes: &[WindowPush],
    at: Timestamp,
) -> Result<Ruled, Fault> {
    let push = &found.push;
    match may {
        Err(refusal) => Ok(Ruled::Refused(refusal)),
        Ok(Retry::Replace) => {
            let to = (PushState::Replaced, Class::Retried);
            Ok(Ruled::Replaced(Change::to(found, to, push.detail.clone(), at).check(found)?))
        }
        Ok(Retry::Look) if pushes.iter().any(is_unresolved) => Ok(Ruled::Refused(UNRESOLVED)),
        Ok(Retry::Look) => {
            let to = (PushState::Observed, Class::Retried);
            let note = Note { class: Class::Retried, request_id: None, detail: None };
            let change = Change {
                due_at: at,
                unreadable_since: None,
                note,
                ..Change::to(found, to, push.detail.clone(), at)
            };
            Ok(Ruled::Changed(change.check(found)?))
        }
    }
}

/// Whether a push was begun and is not resolved.
fn is_unresolved(push: &WindowPush) -> bool {
    push.state == PushState::Observed && push.attempts > 0
}

/// Plans that a person writes a dead push off.
pub fn plan_discard(found: &StoredPush, reason: &str, at: Timestamp) -> Result<Ruled, Fault> {
    if let Err(refusal) = judge_discard(found.push.state) {
        return Ok(Ruled::Refused(refusal));
    }
    let to = (PushState::Discarded, Class::Discarded);
    Ok(Ruled::Changed(Change::to(found, to, Some(reason.to_owned()), at).check(found)?))
}

/// Plans that a push which both halves agree on is closed; it keeps the words it has.
pub fn plan_closing(found: &StoredPush, at: Timestamp) -> Result<Change, Fault> {
    let to = (PushState::Reconciled, Class::Reconciled);
    let note = Note { class: Class::Reconciled, request_id: None, detail: None };
    let change = Change::to(found, to, found.push.detail.clone(), at);
    Change { note, ..change }.check(found)
}

/// Plans that a push is refused by a report of the provider's, with what it said.
pub(super) fn plan_refused(found: &StoredPush, said: &str, at: Timestamp) -> Result<Change, Fault> {
    let to = (PushState::Dead, Class::Refused);
    Change::to(found, to, Some(said.to_owned()), at).check(found)
}

/// Plans that a push is looked for; it stays in its state for the same reason. A submitted one is
/// due at once; one whose outcome is unknown goes on as it would have.
pub(super) fn plan_looking(found: &StoredPush, said: &str, at: Timestamp) -> Result<Change, Fault> {
    let push = &found.push;
    let note = Note { class: Class::Unknown, request_id: None, detail: Some(said.to_owned()) };
    let due_at = if push.state == PushState::Submitted { at } else { push.due_at };
    let same = Change::to(found, (push.state, push.class), push.detail.clone(), at);
    Change { due_at, note, ..same }.check(found)
}

/// Plans what becomes of a push that waited, now that its tenant has a customer.
pub fn plan_release(
    found: &StoredPush,
    stamp_age_max: Option<Span>,
    now: Timestamp,
) -> Result<Change, Fault> {
    let push = &found.push;
    must!(
        push.state == PushState::Waiting,
        "only a push that waits is released",
        "{} state={}",
        name(push),
        push.state.name()
    );
    let (state, class) = judge_waiting(push.stamped_at, stamp_age_max, now);
    let detail = match class == Class::NotSent {
        true => "too old to be sent when its tenant got a customer",
        false => "its tenant has a customer now",
    };
    let change = Change::to(found, (state, class), Some(detail.to_owned()), now);
    Change { due_at: now, ..change }.check(found)
}

/// Plans that a push which was never sent waits for its tenant's customer.
pub fn plan_withholding(found: &StoredPush, at: Timestamp) -> Result<Change, Fault> {
    let to = (PushState::Waiting, Class::Cut);
    Change::to(found, to, Some("the tenant has no customer".to_owned()), at).check(found)
}

/// Whether an attempt may be made: its claimant still holds the push. A lease that is over may be
/// another's at any moment, even if it is not taken off yet.
pub fn plan_attempt(
    found: &StoredPush,
    intent: &AttemptIntent,
    at: Timestamp,
) -> Result<bool, Fault> {
    let push = &found.push;
    let held = found.leased_until.is_some_and(|until| until > at);
    if !held || found.fence != intent.fence || push.state != PushState::Observed {
        return Ok(false);
    }
    found.check()?;
    must!(
        push.attempts < u32::MAX,
        "a push has a next attempt",
        "{} attempts={}",
        name(push),
        push.attempts
    );
    Ok(true)
}

/// What a store knows of the window of a claimed push after a restore.
#[derive(Debug, Clone, Copy)]
pub struct ComparedWindow<'a> {
    /// All pushes of the window, oldest revision first.
    pub pushes: &'a [StoredPush],
    /// The customer that the push is sent for.
    pub customer: &'a CustomerId,
    /// Whether nobody knows if some dead push of the window counted.
    pub doubtful: bool,
    pub restored_at: Option<Timestamp>,
    /// The state of the window.
    pub state: &'a CutState,
}

/// What a comparison after a restore leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Followed {
    /// The push is settled by this.
    Settle(Settlement),
    /// The same, and the window counts as compared in this epoch.
    Verify(Settlement),
    /// What is open of the window is replaced by what the provider holds, and the rest.
    Adopt(Adopting),
}

/// Pushes that take the place of everything of a window that is not settled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adopting {
    pub changes: Vec<Change>,
    pub state: CutState,
    /// What the provider holds as a settled revision, and the rest as one to be sent.
    pub pushes: Vec<NewPush>,
}

/// Compares the window of a claimed push with the provider's total after a restore.
pub fn plan_comparison(
    found: &StoredPush,
    window: ComparedWindow<'_>,
    settlement: &Settlement,
    (total, look_at): (Quantity, Timestamp),
    at: Timestamp,
) -> Result<Followed, Fault> {
    let open: Vec<&StoredPush> =
        window.pushes.iter().filter(|one| one.push.state == PushState::Observed).collect();
    must!(
        open.iter().any(|one| one.push.number == found.push.number),
        "a push that is compared is open",
        "{} open={}",
        name(&found.push),
        open.len()
    );
    let known = add_up(found, &open, window)?;
    let detail = format!(
        "compared after a restore: the provider's total of the window is {total}; the store knows \
         of {}, and of {} with what is to be sent",
        known.settled, known.planned
    );
    let settle = |class, next| Settlement {
        class,
        next,
        detail: Some(detail.clone()),
        ..settlement.clone()
    };
    let begun = found.push.attempts > 0;
    Ok(match judge_comparison(known, total, at) {
        Comparison::Missing if begun => Followed::Settle(settle(Class::Absent, Next::Replaced)),
        Comparison::Missing => {
            let next = Next::Wait { until: at, fresh_request_key: false };
            Followed::Verify(settle(Class::Absent, next))
        }
        Comparison::Present => {
            Followed::Settle(settle(Class::Present, Next::Submitted { look_at }))
        }
        Comparison::Wait { until } => {
            Followed::Settle(settle(Class::Unknown, Next::Looked { total, until }))
        }
        Comparison::Undecidable => Followed::Settle(settle(Class::Undecidable, Next::Dead)),
        Comparison::Adopt { adopted, rest } => {
            let parts = AdoptedParts { adopted, rest, total, known };
            Followed::Adopt(plan_adopting((found, &open), window, parts, &detail, at)?)
        }
    })
}

/// What the provider holds of the window, as far as is known, and what it would with the pushes
/// that are not settled.
fn add_up(
    found: &StoredPush,
    open: &[&StoredPush],
    window: ComparedWindow<'_>,
) -> Result<Known, Fault> {
    let own = |push: &Push| push.customer.as_ref().is_none_or(|one| one == window.customer);
    let mut settled = Quantity::ZERO;
    for other in window.pushes.iter().filter(|one| one.push.state.settled() && own(&one.push)) {
        settled = add_push(settled, &other.push)?;
    }
    let mut planned = settled;
    for other in open {
        planned = add_push(planned, &other.push)?;
    }
    let created_at = found.push.created_at;
    Ok(Known {
        settled,
        with_push: add_push(settled, &found.push)?,
        planned,
        doubtful: window.doubtful,
        since: created_at.max(window.restored_at.unwrap_or(created_at)),
    })
}

/// What the provider holds once it has taken this push too.
fn add_push(before: Quantity, push: &Push) -> Result<Quantity, Fault> {
    match push.mode {
        Mode::Delta => exact(before.checked_add(push.quantity)).map_err(|f| f.of(&name(push))),
        Mode::Absolute => Ok(push.value),
    }
}

/// What is adopted of a window.
struct AdoptedParts {
    adopted: Quantity,
    rest: Quantity,
    total: Quantity,
    known: Known,
}

fn plan_adopting(
    (found, open): (&StoredPush, &[&StoredPush]),
    window: ComparedWindow<'_>,
    AdoptedParts { adopted, rest, total, known }: AdoptedParts,
    detail: &str,
    at: Timestamp,
) -> Result<Adopting, Fault> {
    let last = open.last().copied().unwrap_or(found);
    let push = &last.push;
    last.check_window(window.state)?;
    must!(
        known.settled.checked_add(adopted) == Some(total),
        "what is adopted makes the provider's total of what is settled",
        "{} settled={} adopted={adopted} total={total}",
        name(push),
        known.settled
    );
    must!(
        total.checked_add(rest) == Some(known.planned),
        "what is adopted and the rest make what was planned",
        "{} total={total} rest={rest} planned={}",
        name(push),
        known.planned
    );
    let plan = plan_adoption(window.state, (adopted, rest), total, push.mode);
    let plan = plan.map_err(|fault| fault.of(&name(push)))?;
    must!(
        plan.state.planned == window.state.planned,
        "an adoption leaves what was planned for its window",
        "{} planned={}",
        name(push),
        window.state.planned
    );
    let said = Some(detail.to_owned());
    let to = (PushState::Replaced, Class::Adopted);
    let changes = open.iter().map(|one| Change::to(one, to, said.clone(), at).check(one));
    let changes = changes.collect::<Result<_, Fault>>()?;
    let mut pushes = vec![NewPush {
        customer: Some(window.customer.clone()),
        state: PushState::Confirmed,
        class: Class::Adopted,
        detail: said.clone(),
        ..NewPush::beside(last, plan.adopted)
    }];
    let rest = plan.rest.map(|rest| NewPush { detail: said, ..NewPush::beside(last, rest) });
    pushes.extend(rest);
    Ok(Adopting { changes, state: plan.state, pushes })
}

#[cfg(test)]
pub(super) mod tests;
