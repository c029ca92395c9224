//! The groups of a tenant's meter on a day, from the totals; see [`crate::store::groups`].
//!
//! Invariant: every group that was counted has a total, in a segment or in the ledger. Segments are
//! looked at first, so a segment that is folded meanwhile is seen twice rather than not at all.

use super::rollups::visit_records;
use super::runs::read_runs;
use super::segment::Segment;
use crate::rules::fingerprint::Fingerprinter;
use crate::rules::rollup::Group;
use crate::rules::timestamp::{MICROS_PER_DAY, Timestamp};
use crate::rules::window::Window;
use crate::store::Result;
use crate::store::groups::{GroupDay, KnownGroups};
use rusqlite::Connection;
use std::collections::BTreeSet;

/// Makes the groups of a day known; `ledger` is outside of any transaction.
pub fn load_day<'s>(
    ledger: &Connection,
    segments: impl Iterator<Item = &'s Segment>,
    day: GroupDay,
    fingerprinter: &Fingerprinter,
    known: &mut KnownGroups,
) -> Result<()> {
    let start = Timestamp::from_micros(i64::from(day.day) * MICROS_PER_DAY);
    let range = Window { start, end: start.saturating_add_micros(MICROS_PER_DAY) };
    let totals = segments.filter_map(|segment| segment.totals_of(day.tenant, day.meter));
    let groups = totals.flat_map(|totals| totals.within(range)).map(|((_, group), _)| group);
    let groups = groups.filter(|group| !group.as_text().is_empty());
    let mut found: Vec<i64> = groups.map(|group| fingerprinter.group(group)).collect();
    ledger.execute_batch("BEGIN")?;
    let folded = read_folded(ledger, day, range);
    ledger.execute_batch("ROLLBACK")?;
    found.extend(folded?.iter().map(|group| fingerprinter.group(group)));
    known.load(day, found);
    Ok(())
}

fn read_folded(ledger: &Connection, day: GroupDay, range: Window) -> Result<BTreeSet<Group>> {
    let mut groups = BTreeSet::new();
    let runs = read_runs(ledger)?;
    visit_records(ledger, &runs, (day.tenant, day.meter, range), |record| {
        if !record.key.group.as_text().is_empty() {
            groups.insert(record.key.group);
        }
        Ok(())
    })?;
    Ok(groups)
}
