//! The seeded simulation: real store, real jobs, real processes that die, and a simulated provider
//! and clocks. Each seed is one life (`world.rs`) with one kind of accident (`stories.rs`); in the
//! end the ledger and the provider must match.
//!
//! `cargo xtask simulate --seeds 500 --store postgres`. Without arguments, as a test: some seeds on
//! each store, and each planted bug, which must be found.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::wildcard_enum_match_arm)]

#[path = "../world/scratch.rs"]
mod scratch;

mod bugs;
mod checks;
mod crew;
mod dice;
mod orders;
mod place;
mod stories;
mod worker;
mod world;

use bugs::{BUGS, Bug, CodePlace};
use place::{Kind, Place};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use stories::Story;
use world::{Counters, World};

const USAGE: &str = "\
cargo xtask simulate [--seeds N] [--from S] [--store sqlite|postgres] [--bug NAME] [--story NAME]
                     | --list-bugs

  --seeds N      lives to live (500)
  --from S       the first seed (1)
  --store STORE  sqlite or postgres (sqlite)
  --bug NAME     plant a bug; the command must then fail
  --story NAME   only this kind of accident
  --list-bugs    the bugs that can be planted
";

/// Seeds of a plain test run, on each store, and most seeds until a bug is found. Other steps of
/// `cargo xtask test` live many more.
const TEST_SEEDS: u64 = 2;
const BUG_SEEDS_MAX: u64 = 60;

struct Run {
    kind: Kind,
    from: u64,
    seeds: u64,
    bug: Option<&'static Bug>,
    story: Option<Story>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["worker", start] => {
            worker::run(start);
            ExitCode::SUCCESS
        }
        ["--list-bugs"] => {
            for Bug { name, what, .. } in &BUGS {
                println!("{name:28}{what}");
            }
            ExitCode::SUCCESS
        }
        [first, ..] if ["--seeds", "--from", "--store", "--bug", "--story"].contains(first) => {
            match parse(&words) {
                Some(run) => report(&run, simulate(&run)),
                None => usage(),
            }
        }
        ["--help" | "-h", ..] => usage(),
        // As a test: a filter that does not name this one leaves nothing to do.
        words if words.iter().any(|w| !w.starts_with('-') && !"simulation".contains(w)) => {
            ExitCode::SUCCESS
        }
        _ => test(),
    }
}

fn usage() -> ExitCode {
    eprint!("{USAGE}");
    ExitCode::from(2)
}

fn parse(words: &[&str]) -> Option<Run> {
    let mut run = Run { kind: Kind::Sqlite, from: 1, seeds: 500, bug: None, story: None };
    for pair in words.chunks(2) {
        match pair {
            ["--seeds", number] => run.seeds = number.parse().ok()?,
            ["--from", number] => run.from = number.parse().ok()?,
            ["--store", "sqlite"] => run.kind = Kind::Sqlite,
            ["--store", "postgres"] => run.kind = Kind::Postgres,
            ["--bug", name] => run.bug = Some(Bug::named(name)?),
            ["--story", name] => {
                run.story = Some(Story::ALL.into_iter().find(|story| story.name() == *name)?);
            }
            _ => return None,
        }
    }
    Some(run)
}

/// What `cargo test` runs.
fn test() -> ExitCode {
    let mut kinds = vec![Kind::Sqlite];
    if std::env::var("COUNTERFOIL_TEST_POSTGRES").is_ok() {
        kinds.push(Kind::Postgres);
    } else {
        assert!(
            std::env::var("COUNTERFOIL_TEST_REQUIRE_POSTGRES").is_err(),
            "COUNTERFOIL_TEST_POSTGRES is not set"
        );
        println!("skipped on PostgreSQL: COUNTERFOIL_TEST_POSTGRES is not set");
    }
    for kind in kinds.iter().copied() {
        let run = Run { kind, from: 1, seeds: TEST_SEEDS, bug: None, story: None };
        if report(&run, simulate(&run)) != ExitCode::SUCCESS {
            return ExitCode::FAILURE;
        }
    }
    for (place, bug) in BUGS.iter().enumerate() {
        let only = match bug.place {
            CodePlace::Shared => Some(kinds[place % kinds.len()]),
            CodePlace::Stores => None,
            CodePlace::Sqlite => Some(Kind::Sqlite),
        };
        for kind in kinds.iter().copied().filter(|kind| only.is_none_or(|only| only == *kind)) {
            let run = Run { kind, from: 1, seeds: BUG_SEEDS_MAX, bug: Some(bug), story: None };
            let (outcome, name) = (simulate(&run), bug.name);
            let Some((seed, _)) = outcome.violation else {
                println!("bug {name} on {} was NOT found in {BUG_SEEDS_MAX} seeds", kind.name());
                return ExitCode::FAILURE;
            };
            println!("bug {name} on {} was found by seed {seed}", kind.name());
        }
    }
    ExitCode::SUCCESS
}

struct Outcome {
    seeds: u64,
    counters: Counters,
    /// The first seed that went wrong, and how.
    violation: Option<(u64, String)>,
    seconds: u64,
}

/// Lives the seeds, one on each core, until one goes wrong.
fn simulate(run: &Run) -> Outcome {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let started = Instant::now();
    let (next, lived) = (AtomicU64::new(run.from), AtomicU64::new(0));
    let wrong = AtomicBool::new(false);
    let counters = Mutex::new(Counters::default());
    let violations = Mutex::new(BTreeMap::new());
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(1)
                    .enable_all()
                    .build()
                    .unwrap();
                loop {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= run.from + run.seeds || wrong.load(Ordering::SeqCst) {
                        return;
                    }
                    let only = run.story.or_else(|| run.bug?.story);
                    let story = only.unwrap_or_else(|| Story::of(seed));
                    let (counted, result) = live(run, (seed, story), &runtime);
                    lived.fetch_add(1, Ordering::SeqCst);
                    counters.lock().unwrap().add(&counted);
                    if let Err(what) = result {
                        wrong.store(true, Ordering::SeqCst);
                        violations.lock().unwrap().insert(seed, what);
                    }
                }
            });
        }
    });
    Outcome {
        seeds: lived.into_inner(),
        counters: counters.into_inner().unwrap(),
        violation: violations.into_inner().unwrap().pop_first(),
        seconds: started.elapsed().as_secs(),
    }
}

fn live(
    run: &Run,
    (seed, story): (u64, Story),
    runtime: &tokio::runtime::Runtime,
) -> (Counters, Result<(), String>) {
    let place = Place::new(run.kind, seed, runtime);
    let mut world = World::new(seed, run.bug.map(|bug| bug.name), &place, runtime);
    let result = story.live(&mut world).map_err(|what| format!("({}) {what}", story.name()));
    let counted = world.count();
    drop(world);
    if result.is_err() && run.bug.is_none() {
        let log = place.log_text();
        let tail: Vec<&str> = log.lines().rev().take(20).collect();
        tail.into_iter().rev().for_each(|line| eprintln!("{line}"));
    }
    place.remove(runtime);
    (counted, result)
}

fn report(run: &Run, outcome: Outcome) -> ExitCode {
    let Outcome { seeds, counters, violation, seconds } = outcome;
    let store = run.kind.name();
    let sum = |counts: &mut dyn Iterator<Item = &u64>| counts.sum::<u64>();
    println!(
        "{seeds} seeds on {store} in {seconds} s: {} events delivered, {} taken by the provider, \
         {} totals compared, {} events lost by it, {} faults, {} crashes",
        counters.events,
        counters.accepted,
        counters.windows,
        counters.lost,
        sum(&mut counters.faults.values()),
        sum(&mut counters.crashes.values()),
    );
    let show = |counts: Vec<String>| counts.join(", ");
    println!("faults: {}", show(counters.faults.iter().map(|(n, c)| format!("{n} {c}")).collect()));
    println!(
        "crashes: {}",
        show(counters.crashes.iter().map(|(n, c)| format!("{n} {c}")).collect())
    );
    let Some((seed, what)) = violation else {
        println!("no violation");
        return ExitCode::SUCCESS;
    };
    let bug = run.bug.map_or_else(String::new, |bug| format!(" --bug {}", bug.name));
    let story = run.story.map_or_else(String::new, |story| format!(" --story {}", story.name()));
    println!("VIOLATION in seed {seed}: {what}");
    println!("again: cargo xtask simulate --seeds 1 --from {seed} --store {store}{bug}{story}");
    ExitCode::FAILURE
}
