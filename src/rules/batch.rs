//! The verdicts on a batch: the order in which a delivery is judged, and the figures of a batch
//! that must agree before it is written.
//!
//! A delivery is refused if its tenant must be declared and is not; else it is judged against the
//! payload that is counted under its key; else against the accept horizon; and last against the
//! groups of its day, of which an accepted event takes up a place.
//!
//! Events that a person admits are judged as deliveries are, at any time. They were received
//! before: what is counted of them counts, and nothing else is kept or counted of them again.
//!
//! Invariant: every delivery has one verdict, and every verdict is counted once: received =
//! accepted + duplicates + conflicts + quarantined + rejected. Judging allocates nothing for an
//! event that is accepted.

use super::event::Event;
use super::fault::{Fault, must};
use super::refusal::Refusal;
use super::verdict::{Acceptance, Quarantine, Tally, Verdict, judge_known, judge_new};

/// The verdict on a delivery of a tenant that must be declared and is not.
pub fn unknown_tenant() -> Verdict {
    Verdict::Rejected(Refusal::new(
        "unknown_tenant",
        "the tenant is not declared; declare it with PUT /v1/tenants/{id} and send the event again",
    ))
}

/// Judges a delivery of a known tenant. `standing` is the event that is counted under its key;
/// `admit` takes a place for the event's group, and is false if there is none.
pub fn judge_delivery<E: From<Fault>>(
    arriving: &Event,
    standing: Option<&Event>,
    acceptance: Acceptance,
    admit: impl FnOnce() -> Result<bool, E>,
) -> Result<Verdict, E> {
    let verdict = match standing {
        Some(standing) => {
            must!(
                standing.tenant == arriving.tenant && standing.id == arriving.id,
                "a delivery is judged against the event of its own key",
                "tenant={} event={} standing={}/{}",
                arriving.tenant,
                arriving.id,
                standing.tenant,
                standing.id
            );
            judge_known(standing, arriving)
        }
        None => judge_new(arriving, acceptance),
    };
    if verdict == Verdict::Accepted && !admit()? {
        return Ok(Verdict::Quarantined(Quarantine::TooManyGroups));
    }
    Ok(verdict)
}

/// A judged batch, counted in two ways: by what is to be written, and by its verdicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchFigures {
    /// Events of the batch.
    pub delivered: usize,
    /// Items that were refused before they became events.
    pub refused: u64,
    pub verdicts: usize,
    /// Rows of each kind that are to be written.
    pub accepted: usize,
    pub conflicts: usize,
    pub quarantined: usize,
    /// The verdicts of the events, and what was refused.
    pub tally: Tally,
}

/// The facts that must hold of admissions before they are written.
pub fn check_admissions(figures: &BatchFigures) -> Result<(), Fault> {
    let BatchFigures { delivered, refused, verdicts, accepted, conflicts, quarantined, tally } =
        figures;
    must!(
        verdicts == delivered && *refused == 0,
        "every admission has one verdict",
        "admissions={delivered} refused={refused} verdicts={verdicts}"
    );
    must!(
        tally.accepted == count(*accepted) && tally.admitted == tally.accepted,
        "exactly what is admitted is written",
        "accepted={} admitted={} written={accepted}",
        tally.accepted,
        tally.admitted
    );
    must!(
        tally.received() == 0 && *conflicts == 0 && *quarantined == 0,
        "an admission is not received again",
        "received={} conflicts={conflicts} quarantined={quarantined}",
        tally.received()
    );
    Ok(())
}

/// The facts that must hold of a batch before it is written.
pub fn check_batch(figures: &BatchFigures) -> Result<(), Fault> {
    let BatchFigures { delivered, refused, verdicts, accepted, conflicts, quarantined, tally } =
        figures;
    must!(
        verdicts == delivered,
        "every delivery has one verdict",
        "delivered={delivered} verdicts={verdicts}"
    );
    must!(
        Some(tally.received()) == count(*delivered).checked_add(*refused),
        "every delivery is counted once",
        "delivered={delivered} refused={refused} counted={}",
        tally.received()
    );
    must!(
        tally.accepted == count(*accepted),
        "exactly what is accepted is written",
        "accepted={} written={accepted}",
        tally.accepted
    );
    must!(
        tally.conflicts == count(*conflicts),
        "every conflict is kept in the inbox",
        "conflicts={} written={conflicts}",
        tally.conflicts
    );
    must!(
        tally.quarantined == count(*quarantined),
        "every quarantined event is kept in the inbox",
        "quarantined={} written={quarantined}",
        tally.quarantined
    );
    must!(
        tally.rejected >= *refused,
        "what was refused is counted as rejected",
        "rejected={} refused={refused}",
        tally.rejected
    );
    Ok(())
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::ids::{EventId, MeterNo, TenantId};
    use crate::rules::properties::Properties;
    use crate::rules::quantity::Quantity;
    use crate::rules::timestamp::Timestamp;

    fn event(id: &str, micros: i64) -> Event {
        Event {
            tenant: TenantId::parse("acme").expect("valid"),
            id: EventId::parse(id).expect("valid"),
            meter: MeterNo(1),
            quantity: Quantity::ONE,
            occurred_at: Timestamp::from_micros(micros),
            properties: Properties::default(),
            subscription: None,
            trial: false,
        }
    }

    #[test]
    fn a_place_is_taken_only_for_an_event_that_is_otherwise_accepted() {
        let acceptance = Acceptance { now: Timestamp::from_micros(1_000), horizon_micros: 100 };
        let check = |arriving: &Event, standing: Option<&Event>, room: Option<bool>, expected| {
            let admit = || -> Result<bool, Fault> { Ok(room.expect("it is not asked for")) };
            assert_eq!(judge_delivery(arriving, standing, acceptance, admit), Ok(expected));
        };
        let (fresh, old) = (event("e", 1_000), event("e", 1));
        check(&fresh, None, Some(true), Verdict::Accepted);
        let full = Verdict::Quarantined(Quarantine::TooManyGroups);
        check(&fresh, None, Some(false), full);
        check(&old, None, None, Verdict::Quarantined(Quarantine::TooOld));
        check(&fresh, Some(&old), None, Verdict::Duplicate { restamped: true });
    }

    #[test]
    fn an_event_of_another_key_is_no_answer() {
        let acceptance = Acceptance { now: Timestamp::from_micros(1_000), horizon_micros: 100 };
        let admit = || -> Result<bool, Fault> { Ok(true) };
        let fault = judge_delivery(&event("a", 1), Some(&event("b", 1)), acceptance, admit);
        let fact = "a delivery is judged against the event of its own key";
        assert_eq!(fault.unwrap_err().fact, fact);
    }

    #[test]
    fn figures_that_disagree_are_a_fault() {
        let tally = Tally {
            accepted: 3,
            duplicates: 2,
            conflicts: 1,
            quarantined: 1,
            rejected: 4,
            ..Tally::default()
        };
        let agreeing = BatchFigures {
            delivered: 8,
            refused: 3,
            verdicts: 8,
            accepted: 3,
            conflicts: 1,
            quarantined: 1,
            tally,
        };
        assert_eq!(check_batch(&agreeing), Ok(()));
        let check = |figures: BatchFigures, fact: &str| {
            assert_eq!(check_batch(&figures).unwrap_err().fact, fact);
        };
        check(BatchFigures { verdicts: 7, ..agreeing }, "every delivery has one verdict");
        let lost = Tally { duplicates: 1, ..tally };
        check(BatchFigures { tally: lost, ..agreeing }, "every delivery is counted once");
        check(BatchFigures { accepted: 4, ..agreeing }, "exactly what is accepted is written");
        check(BatchFigures { conflicts: 0, ..agreeing }, "every conflict is kept in the inbox");
        let fact = "every quarantined event is kept in the inbox";
        check(BatchFigures { quarantined: 2, ..agreeing }, fact);
        let unsaid = Tally { duplicates: 4, rejected: 2, ..tally };
        let fact = "what was refused is counted as rejected";
        check(BatchFigures { tally: unsaid, ..agreeing }, fact);
    }
    #[test]
    fn figures_of_admissions_that_disagree_are_a_fault() {
        let tally = Tally { accepted: 3, admitted: 3, ..Tally::default() };
        let agreeing = BatchFigures {
            delivered: 8,
            refused: 0,
            verdicts: 8,
            accepted: 3,
            conflicts: 0,
            quarantined: 0,
            tally,
        };
        assert_eq!(check_admissions(&agreeing), Ok(()));
        let check = |figures: BatchFigures, fact: &str| {
            assert_eq!(check_admissions(&figures).unwrap_err().fact, fact);
        };
        check(BatchFigures { verdicts: 7, ..agreeing }, "every admission has one verdict");
        check(BatchFigures { accepted: 4, ..agreeing }, "exactly what is admitted is written");
        let received = Tally { duplicates: 1, ..tally };
        let fact = "an admission is not received again";
        check(BatchFigures { tally: received, ..agreeing }, fact);
        check(BatchFigures { conflicts: 1, ..agreeing }, fact);
    }
}
