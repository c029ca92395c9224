//! The chain of nightly passes, followed from its first link: whether every row and every pass has
//! the hash that its contents and the link before it make.
//!
//! Invariant: passes are followed in the order of their numbers, each with all its rows in the
//! order of tenant, meter and day. The chain shows that a row was changed, added or taken away, and
//! that a pass before the last one is gone; whether the last passes are gone is shown only by a
//! hash that was written down elsewhere.

use super::digest::hex;
use super::ids::{MeterNo, TenantId};
use super::pass::{Hash, Pass, PassRow, PassState, chain_pass};
use std::collections::BTreeMap;

/// How far a chain was followed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChainReport {
    pub passes: u64,
    pub rows: u64,
    /// The last pass that is chained, and its hash.
    pub head: Option<(u64, Hash)>,
    /// The first row or pass that does not follow; none if all do.
    pub broken: Option<String>,
}

/// The link that the next pass has to follow.
#[derive(Debug, Default)]
pub struct Chain {
    pass: Hash,
    rows: BTreeMap<(TenantId, MeterNo), Hash>,
    report: ChainReport,
}

impl Chain {
    /// Looks at the next pass, unless the chain is broken.
    pub fn follow(&mut self, pass: &Pass, rows: &[PassRow]) {
        if self.report.broken.is_some() || !pass.state.has_ended() {
            return;
        }
        if let Err(broken) = self.follow_rows(pass, rows) {
            self.report.broken = Some(broken);
        }
    }

    /// Ends where what is stored cannot be read.
    pub fn end_unreadable(&mut self, pass: u64, what: &str) {
        let broken = || format!("the rows of pass {pass} cannot be read: {what}");
        self.report.broken.get_or_insert_with(broken);
    }

    pub fn is_broken(&self) -> bool {
        self.report.broken.is_some()
    }

    pub fn report(self) -> ChainReport {
        self.report
    }

    fn follow_rows(&mut self, pass: &Pass, rows: &[PassRow]) -> Result<(), String> {
        let number = pass.number;
        let mut next = BTreeMap::new();
        let mut hashes = Vec::new();
        for row in rows {
            let key = (row.tenant.clone(), row.meter);
            let before = self.rows.get(&key).copied().unwrap_or_default();
            let (tenant, meter, day) = (&row.tenant, row.meter.0, row.day.start);
            let named = format!("the row of {tenant}, meter {meter}, day {day} in pass {number}");
            match row.hash {
                Some(hash) if hash == row.chain(&before) => {
                    next.insert(key, hash);
                    hashes.push(hash);
                }
                Some(_) => return Err(format!("{named} was changed: its hash is another one")),
                None if row.is_audited() => return Err(format!("{named} has lost its hash")),
                None => {}
            }
        }
        let Some(stored) = pass.hash else {
            return match hashes.is_empty() && (pass.state == PassState::Failed || !rows.is_empty())
            {
                true => Ok(()),
                false => Err(format!("pass {number} has lost its hash")),
            };
        };
        let count = u64::try_from(hashes.len()).unwrap_or(u64::MAX);
        if stored != chain_pass(&self.pass, hashes) {
            return Err(format!(
                "pass {number} does not follow from its rows and the pass before: a row was added or \
                 taken away, or a pass before it is gone (its hash is {})",
                hex(&stored)
            ));
        }
        (self.pass, self.rows) = (stored, next);
        self.report.passes += 1;
        self.report.rows += count;
        self.report.head = Some((number, stored));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::drift::{Reason, Verdict};
    use crate::rules::pass::tests::row;
    use crate::rules::pass::{PassKind, PassOrder, PassProgress};
    use crate::rules::quantity::Quantity;
    use crate::rules::timestamp::{MICROS_PER_DAY, Timestamp};
    use crate::rules::window::Window;

    type Night = (Pass, Vec<PassRow>);

    fn night(number: u64, tenants: &[&str], before: Option<&Night>) -> Night {
        let start = i64::try_from(number).expect("small") * MICROS_PER_DAY;
        let at = Timestamp::from_micros;
        let day = Window { start: at(start), end: at(start + MICROS_PER_DAY) };
        let rows: Vec<PassRow> = tenants
            .iter()
            .map(|tenant| {
                let tenant = TenantId::parse(tenant).expect("valid");
                let row = PassRow { tenant, day, ..row() };
                let same = |other: &&PassRow| other.tenant == row.tenant;
                let last = before.and_then(|(_, rows)| rows.iter().find(same)?.hash);
                PassRow { hash: Some(row.chain(&last.unwrap_or_default())), ..row }
            })
            .collect();
        let last = before.and_then(|(pass, _)| pass.hash).unwrap_or_default();
        let hash = Some(chain_pass(&last, rows.iter().filter_map(|row| row.hash)));
        let order = PassOrder { kind: PassKind::Nightly, range: day, tenant: None, apply: true };
        let pass = Pass {
            number,
            order,
            state: PassState::Closed,
            created_at: day.end,
            ended_at: Some(day.end),
            progress: PassProgress::default(),
            hash,
            detail: None,
        };
        (pass, rows)
    }

    fn nights() -> Vec<Night> {
        let mut all: Vec<Night> = Vec::new();
        for number in 1..=4 {
            let tenants: &[&str] = if number == 1 { &[] } else { &["acme", "globex"] };
            let next = night(number, tenants, all.last());
            all.push(next);
        }
        all
    }

    fn follow(nights: &[Night]) -> ChainReport {
        let mut chain = Chain::default();
        nights.iter().for_each(|(pass, rows)| chain.follow(pass, rows));
        chain.report()
    }

    #[test]
    fn an_untouched_chain_is_followed_to_its_head() {
        let nights = nights();
        let report = follow(&nights);
        let head = nights[3].0.hash.map(|hash| (4, hash));
        assert_eq!(report, ChainReport { passes: 4, rows: 6, head, broken: None });
    }

    #[test]
    fn the_first_broken_row_is_named() {
        let check = |change: fn(&mut Vec<Night>), expected: &str| {
            let mut altered = nights();
            change(&mut altered);
            let broken = follow(&altered).broken.expect("it is broken");
            assert!(broken.contains(expected), "{broken}");
        };
        let changed = "the row of globex, meter 1, day 1970-01-03T00:00:00Z in pass 2 was changed";
        check(|nights| nights[1].1[1].ledger = Quantity::ZERO, changed);
        check(|nights| nights[1].1[1].provider = None, changed);
        check(|nights| nights[2].1[0].verdict = Verdict::Bypass, "acme, meter 1");
        check(|nights| nights[2].1[0].hash = None, "pass 3 has lost its hash");
        check(|nights| drop(nights[2].1.remove(1)), "pass 3 does not follow from its rows");
        check(|nights| drop(nights.remove(2)), "in pass 4 was changed");
        check(|nights| nights[0].0.hash = None, "pass 1 has lost its hash");
        check(|nights| nights[3].0.hash = Some([9; 32]), "pass 4 does not follow");
    }

    #[test]
    fn a_pass_that_read_nothing_is_no_link() {
        let mut all = nights();
        let unread = PassRow {
            provider: None,
            verdict: Verdict::Unread,
            reason: Reason::Unread,
            hash: None,
            ..all[3].1[0].clone()
        };
        let mut incomplete = all[3].0.clone();
        (incomplete.number, incomplete.state, incomplete.hash) = (5, PassState::Incomplete, None);
        let mut running = incomplete.clone();
        (running.number, running.state) = (6, PassState::Running);
        all.push((incomplete, vec![unread]));
        all.push((running, Vec::new()));
        assert_eq!(follow(&all).broken, None);
    }
}
