//! Passes and rows for tests of the report and the CSV.

use crate::api::passes::{DriftWindow, PassAnswer, RowAnswer};
use crate::rules::drift::{Reason, Verdict};
use crate::rules::pass::{PassKind, PassState};
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;
use std::collections::BTreeMap;

fn quantity(text: &str) -> Quantity {
    Quantity::parse_stored(text).expect("a quantity")
}

pub fn moment(text: &str) -> Timestamp {
    Timestamp::parse(text).expect("an instant")
}

/// A closed dry run whose counts fit the rows, each of which represents 24 windows.
pub fn pass(rows: &[RowAnswer]) -> PassAnswer {
    let mut verdicts: BTreeMap<Verdict, u64> = BTreeMap::new();
    for row in rows {
        let unequal = u64::try_from(row.windows.len()).expect("few windows");
        *verdicts.entry(Verdict::Equal).or_default() += 24 - unequal;
        for window in &row.windows {
            *verdicts.entry(window.verdict).or_default() += 1;
        }
    }
    let pairs: std::collections::BTreeSet<_> =
        rows.iter().map(|row| (&row.tenant, &row.meter)).collect();
    let pairs = u64::try_from(pairs.len()).expect("few pairs");
    PassAnswer {
        id: 7,
        kind: PassKind::OneShot,
        from: moment("2026-11-01T00:00:00Z"),
        to: moment("2026-11-15T00:00:00Z"),
        tenant: None,
        apply: false,
        state: PassState::Closed,
        created_at: moment("2026-11-16T02:00:00.123456Z"),
        ended_at: Some(moment("2026-11-16T02:04:31Z")),
        pairs,
        pairs_done: pairs,
        pairs_unread: 0,
        windows: verdicts.values().sum(),
        reads: 140,
        verdicts,
        replayed: 0,
        reissued: 0,
        hash: None,
        detail: None,
    }
}

/// A row of ledger, pushed and provider on a day of November; its verdict follows from them.
pub fn row(tenant: &str, day: u32, (ledger, pushed, provider): (&str, &str, &str)) -> RowAnswer {
    let (ledger, pushed, provider) = (quantity(ledger), quantity(pushed), quantity(provider));
    let (verdict, reason, advice) = match (provider.cmp(&pushed), pushed == ledger) {
        (std::cmp::Ordering::Equal, true) => {
            (Verdict::Equal, Reason::Matches, "ledger and provider match")
        }
        (std::cmp::Ordering::Less, true) => (
            Verdict::Replay,
            Reason::Lost,
            "the provider counted it and shows it no more; counterfoil reconcile --apply sends the \
             difference",
        ),
        (std::cmp::Ordering::Greater, _) => (
            Verdict::Bypass,
            Reason::ProviderHigher,
            "something besides this server reports usage for the customer; find it, it is never \
             corrected from here",
        ),
        (std::cmp::Ordering::Equal | std::cmp::Ordering::Less, false) => {
            (Verdict::Waiting, Reason::Uncut, "the next cut hands it to billing")
        }
    };
    let window = DriftWindow {
        start: moment(&format!("2026-11-{day:02}T13:00:00Z")),
        end: moment(&format!("2026-11-{day:02}T14:00:00Z")),
        ledger,
        pushed,
        provider: Some(provider),
        verdict,
        reason,
        action: None,
    };
    RowAnswer {
        tenant: tenant.into(),
        meter: "api_calls".into(),
        from: moment(&format!("2026-11-{day:02}T00:00:00Z")),
        to: moment(&format!("2026-11-{:02}T00:00:00Z", day + 1)),
        ledger,
        pushed,
        provider: Some(provider),
        delta: Some(provider.checked_sub(pushed).expect("small numbers")),
        verdict,
        reason,
        advice: advice.into(),
        written_off: None,
        not_billed: None,
        shadow: None,
        outside: None,
        trial: None,
        note: None,
        windows: if verdict == Verdict::Equal { vec![] } else { vec![window] },
        hash: Some("5feceb66ffc86f38d952786c6d696c79c2dbc239dd4e91b46729d73a27fb57e9".into()),
    }
}
