//! Every target over arbitrary bytes, and over its seeds with a few changes, which reach further.

use super::*;
use crate::rules::ids::TenantNo;
use proptest::prelude::*;
use std::path::Path;

type Target = fn(&[u8]) -> Outcome;

/// The valid inputs of a target: the files that a fuzzer starts from as well.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/fuzzing/seeds").join(target);
    let files = std::fs::read_dir(&folder).expect("a target has a folder of seeds");
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    // The order of a folder is not the same everywhere.
    paths.sort();
    let seeds: Vec<_> = paths.iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(!seeds.is_empty(), "{target} has no seeds");
    seeds
}

/// One change of an input, at a place that is taken modulo its length.
#[derive(Debug, Clone)]
enum Mutation {
    Replace(usize, u8),
    Flip(usize, u8),
    Insert(usize, Vec<u8>),
    Remove(usize, usize),
    /// A part of the input comes again, elsewhere.
    Repeat(usize, usize, usize),
    Truncate(usize),
}

impl Mutation {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let place = |at: usize, length: usize| at % (length + 1);
        match self {
            Self::Replace(at, byte) => {
                let at = place(*at, bytes.len());
                bytes.splice(at..(at + 1).min(bytes.len()), [*byte]);
            }
            Self::Flip(at, bit) => {
                let at = place(*at, bytes.len());
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << (bit % 8);
                }
            }
            Self::Insert(at, new) => {
                let at = place(*at, bytes.len());
                bytes.splice(at..at, new.iter().copied());
            }
            Self::Remove(at, length) => {
                let at = place(*at, bytes.len());
                bytes.drain(at..(at + length).min(bytes.len()));
            }
            Self::Repeat(from, length, to) => {
                let (from, to) = (place(*from, bytes.len()), place(*to, bytes.len()));
                let part = bytes[from..(from + length).min(bytes.len())].to_vec();
                bytes.splice(to..to, part);
            }
            Self::Truncate(at) => bytes.truncate(place(*at, bytes.len())),
        }
    }
}

fn any_change() -> impl Strategy<Value = Mutation> {
    let at = 0usize..1 << 16;
    // What the grammars of the targets turn on, beside bytes that mean nothing to them.
    let tokens = proptest::sample::select(vec![
        "\"",
        "\\u0000",
        "\\ud800",
        "null",
        "{}",
        "[",
        "]",
        ",",
        "\n",
        "1e999",
        "-0",
        ".5",
        "=",
        "/",
        "9223372036854775807",
        "\u{e9}",
        "\u{feff}",
        "true",
        "99999999999999999999",
        "t=",
        "v1=",
    ]);
    prop_oneof![
        (at.clone(), any::<u8>()).prop_map(|(at, byte)| Mutation::Replace(at, byte)),
        (at.clone(), any::<u8>()).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
        (at.clone(), tokens).prop_map(|(at, new)| Mutation::Insert(at, new.as_bytes().to_vec())),
        (at.clone(), proptest::collection::vec(any::<u8>(), 1..9))
            .prop_map(|(at, new)| Mutation::Insert(at, new)),
        (at.clone(), 1usize..40).prop_map(|(at, length)| Mutation::Remove(at, length)),
        (at.clone(), 1usize..80, at.clone())
            .prop_map(|(from, length, to)| Mutation::Repeat(from, length, to)),
        at.prop_map(Mutation::Truncate),
    ]
}

/// Runs a target over its seeds as they are, then over bytes that are arbitrary or nearly a seed.
fn check(target: Target, seeds: Vec<Vec<u8>>) {
    for seed in &seeds {
        assert_eq!(target(seed), Outcome::Accepted, "{}", String::from_utf8_lossy(seed));
    }
    let arbitrary = proptest::collection::vec(any::<u8>(), 0..200);
    let changes = proptest::collection::vec(any_change(), 1..6);
    let changed = (proptest::sample::select(seeds), changes).prop_map(|(mut bytes, changes)| {
        changes.iter().for_each(|change| change.apply(&mut bytes));
        bytes
    });
    let inputs = prop_oneof![1 => arbitrary, 4 => changed];
    // PROPTEST_CASES, 256 unless it is set, lengthens the search.
    let config = ProptestConfig::default();
    let cases = config.cases.saturating_mul(8);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases,
        failure_persistence: None,
        ..config
    });
    let run = runner.run(&inputs, |bytes| {
        target(&bytes);
        Ok(())
    });
    run.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn event_bodies() {
    check(event_json, seeds("event_json"));
}

#[test]
fn cloud_events() {
    check(cloud_event, seeds("cloud_event"));
}

#[test]
fn stripe_webhooks() {
    check(stripe_webhook, seeds("stripe_webhook"));
}

#[test]
fn stripe_signatures() {
    check(stripe_signature, seeds("stripe_signature"));
}

#[test]
fn cursors() {
    check(cursor, seeds("cursor"));
}

/// Rows are made here: their bytes are nothing that a person would read in a file.
#[test]
fn journal_rows() {
    let text = concat!(
        r#"[{"tenant":"acme","id":"e1","meter":"calls","quantity":"2.5","#,
        r#""occurred_at":"2026-11-15T12:00:00Z","subscription":"sub_1","trial":true},"#,
        r#"{"tenant":"acme","id":"e2","meter":"visitors","#,
        r#""occurred_at":"2026-11-15T12:00:00.000001Z","properties":{"region":"eu"}}]"#,
    );
    let events = read_events(text.as_bytes(), Format::Json);
    let mut bytes = Vec::new();
    for event in &events {
        let event = event.as_ref().expect("the event is valid");
        record::write_event(&mut bytes, TenantNo(7), event);
    }
    let tally = Tally { duplicates: 300, rejected: 1, ..Tally::default() };
    let row = record::write_journal(&[(TenantNo(7), tally)], events.len(), &bytes);
    let plain = lz4_flex::decompress_size_prepended(&row).expect("it was compressed here");
    check(journal_row, vec![row, plain]);
}

/// Changed seeds are accepted often enough for an assertion about accepted events to be tried.
#[test]
fn a_false_claim_about_accepted_events_is_found() {
    // A change of any field refutes it. Few changes hit one given field: a claim about the tenant
    // alone was not refuted in every run.
    let claim: Target = |body| {
        static KNOWN: LazyLock<Vec<Event>> = LazyLock::new(|| {
            let seeds = seeds("event_json");
            seeds.iter().flat_map(|seed| read_events(seed, Format::Json)).flatten().collect()
        });
        let events = read_events(body, Format::Json);
        events.iter().flatten().for_each(|event| assert!(KNOWN.contains(event)));
        Outcome::accepted_if(events.iter().any(Option::is_some))
    };
    let found = std::panic::catch_unwind(|| check(claim, seeds("event_json")));
    assert!(found.is_err());
}
