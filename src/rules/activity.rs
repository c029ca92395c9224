//! Whether a tenant behaves as it used to: how many of its events conflict, and whether it has
//! fallen silent.
//!
//! Invariant: only what is counted, or was before, is a sign of life: a tenant whose events are all
//! quarantined, in conflict or refused is as silent as one that sends none. Silence is not zero
//! usage. A tenant that sent something in most hours of a day and
//! then nothing is silent until it sends again; one that never sent much is not.

use super::verdict::Tally;

/// Hours of a day in which an active tenant sends something.
const ACTIVE_HOURS_MIN: usize = 18;
/// Hours without anything after which an active tenant is silent.
pub const SILENT_HOURS: usize = 3;
/// Hours that are looked at: a day, and those that may be silent.
pub const HOURS: usize = 24 + SILENT_HOURS;
/// Fewer conflicts than this are not worth a word.
const CONFLICTS_MIN: u64 = 10;
/// Of a hundred events.
const CONFLICTS_PERCENT: u64 = 1;
/// The same for events that are kept and not counted.
const QUARANTINED_MIN: u64 = 10;
const QUARANTINED_PERCENT: u64 = 1;

/// Whether a tenant is silent, by what it sent in each of the last [`HOURS`] whole hours, oldest
/// first; `was_silent` says whether it was at the look before.
pub fn judge_silence(sent: &[u64; HOURS], was_silent: bool) -> bool {
    let (day, lately) = sent.split_at(HOURS - SILENT_HOURS);
    let nothing = lately.iter().all(|count| *count == 0);
    let active = day.iter().filter(|count| **count > 0).count() >= ACTIVE_HOURS_MIN;
    nothing && (active || was_silent)
}

/// Whether too many of a tenant's events conflict.
pub fn judge_conflicts(tally: &Tally) -> bool {
    let received = tally.received();
    tally.conflicts >= CONFLICTS_MIN
        && tally.conflicts.saturating_mul(100) >= received.saturating_mul(CONFLICTS_PERCENT)
}

/// Whether too many of a tenant's events are kept and not counted.
pub fn judge_quarantine(tally: &Tally) -> bool {
    let received = tally.received();
    tally.quarantined >= QUARANTINED_MIN
        && tally.quarantined.saturating_mul(100) >= received.saturating_mul(QUARANTINED_PERCENT)
}

/// Events of a tally that show that the tenant's usage is counted.
pub fn signs_of_life(tally: &Tally) -> u64 {
    tally.accepted_at_receipt() + tally.duplicates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_distinguished_from_rest() {
        let check = |active: usize, lately: u64, was_silent: bool, expected: bool| {
            let mut sent = [0; HOURS];
            sent[..active].fill(5);
            sent[HOURS - 1] = lately;
            assert_eq!(judge_silence(&sent, was_silent), expected, "{active} {lately}");
        };
        check(24, 0, false, true);
        check(18, 0, false, true);
        check(17, 0, false, false);
        check(17, 0, true, true);
        check(0, 0, true, true);
        check(24, 1, false, false);
        check(24, 1, true, false);
        check(0, 0, false, false);
    }

    #[test]
    fn what_is_not_counted_is_no_sign_of_life() {
        let tally = Tally { conflicts: 5, quarantined: 7, rejected: 9, ..Tally::default() };
        assert_eq!(signs_of_life(&tally), 0);
        let tally = Tally { accepted: 1, duplicates: 2, ..tally };
        assert_eq!(signs_of_life(&tally), 3);
        let check = |accepted: u64, quarantined: u64, expected: bool| {
            let tally = Tally { accepted, quarantined, ..Tally::default() };
            assert_eq!(judge_quarantine(&tally), expected, "{accepted} {quarantined}");
        };
        check(0, 9, false);
        check(0, 10, true);
        check(990, 10, true);
        check(991, 10, false);
    }

    #[test]
    fn a_few_conflicts_are_no_matter() {
        let check = |accepted: u64, conflicts: u64, expected: bool| {
            let tally = Tally { accepted, conflicts, ..Tally::default() };
            assert_eq!(judge_conflicts(&tally), expected, "{accepted} {conflicts}");
        };
        check(0, 9, false);
        check(0, 10, true);
        check(989, 10, true);
        check(991, 10, false);
    }
}
