//! Restores from a backup: real files of the store are put back, and what the store has forgotten
//! is neither billed twice nor lost.

use crate::world::{Dice, Ground, World, at, calls_with, event_text};
use counterfoil::jobs::restore::recognise;
use counterfoil::rules::submission::{Class, PushState};
use counterfoil::rules::timestamp::{MICROS_PER_MINUTE, Timestamp};
use counterfoil::store::epoch::Epoch;
use counterfoil::store::push::{Push, PushAges};
use std::path::{Path, PathBuf};
use stripe_sim::FaultKind;

const HOUR: &str = "2026-11-15T12:00:00Z";
const MODES: [&str; 2] = ["delta", "absolute"];

/// A server that was started, with the meter billed in this mode.
async fn start(ground: Ground, mode: &str) -> (World, String) {
    let spec = calls_with(&format!(r#""mode":"{mode}""#));
    let (world, customer) = World::metered(ground, &spec).await;
    assert_eq!(recognise(&*world.store, &world.clock).await.unwrap(), None, "a first start");
    (world, customer)
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let place = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &place);
        } else {
            std::fs::copy(entry.path(), place).unwrap();
        }
    }
}

impl World {
    async fn open(&mut self) -> Option<Epoch> {
        self.store = self.ground.open(None).await;
        self.jobs = self.other_server(|_| {});
        recognise(&*self.store, &self.clock).await.unwrap()
    }

    /// A place beside the store's directory.
    fn beside(&self, name: &str) -> PathBuf {
        self.ground.data().with_file_name(name)
    }

    /// Stops the server, copies its directory, and starts it again.
    async fn back_up(&mut self, name: &str) {
        self.store.close().await;
        copy(&self.ground.data(), &self.beside(name));
        assert_eq!(self.open().await, None, "a short stop");
    }

    /// Stops the server, puts the copy in the directory's place, and starts it again.
    async fn restore(&mut self, name: &str) -> Option<Epoch> {
        self.store.close().await;
        std::fs::remove_dir_all(self.ground.data()).unwrap();
        copy(&self.beside(name), &self.ground.data());
        self.open().await
    }

    /// Delivers an event as a producer does that keeps its ids: again, if need be.
    async fn produce(&self, event: &Produced) {
        let Produced { id, quantity, occurred_at } = event;
        let fields = format!(r#""quantity":"{quantity}""#);
        let text = event_text("calls", "acme", id, &fields, occurred_at);
        self.record(self.parse(&[text]).await).await;
    }

    async fn cut_push_and_confirm(&self) {
        self.cut().await;
        self.push().await;
        self.confirm().await;
    }

    /// Works for so many times twenty minutes.
    async fn settle(&self, rounds: usize) {
        for _ in 0..rounds {
            self.pass_seconds(20 * 60);
            self.cut_push_and_confirm().await;
        }
    }
}

struct Produced {
    id: String,
    quantity: u64,
    occurred_at: Timestamp,
}

pub async fn a_restored_store_sends_only_what_the_provider_lacks(ground: Ground) {
    for mode in MODES {
        let (mut world, customer) = start(ground.another().await, mode).await;
        world.back_up("before").await;
        world.planned("10").await;
        world.push().await;
        assert_eq!(world.stripe.total(&customer, HOUR), "10");
        let epoch = world.restore("before").await.expect("the mark beside the directory is ahead");
        assert_eq!(epoch.restored_at, world.clock.now());
        // The producer sends again, and one event is late.
        world.used("acme", "10", "2026-11-15T12:30:00Z").await;
        world.used("acme", "2", "2026-11-15T12:40:00Z").await;
        world.pass_hours(1);
        world.cut().await;
        let planned = world.pushes().await.pop().unwrap();
        world.push().await;
        world.check(planned.number, PushState::Observed, Class::Unknown).await;
        assert_eq!(world.posts(), 1, "nothing is sent before the totals were compared");
        world.settle(4).await;
        assert_eq!(world.stripe.total(&customer, HOUR), "12", "{mode}");
        world.check(planned.number, PushState::Replaced, Class::Adopted).await;
        let pushes = world.pushes().await;
        let told: Vec<String> = pushes.iter().map(|push| push.quantity.to_string()).collect();
        assert_eq!(told, ["12", "10", "2"], "{mode}");
        assert_eq!(pushes[1].class, Class::Adopted);
        // From then on the window needs no comparison.
        world.used("acme", "1", "2026-11-15T12:45:00Z").await;
        world.pass_hours(1);
        world.cut_push_and_confirm().await;
        assert_eq!(world.stripe.total(&customer, HOUR), "13", "{mode}");
    }
}

pub async fn a_store_restored_after_a_day_does_not_bill_the_same_again(ground: Ground) {
    for mode in MODES {
        let (mut world, customer) = start(ground.another().await, mode).await;
        world.back_up("before").await;
        world.planned("10").await;
        world.push().await;
        world.pass_hours(25);
        assert!(world.restore("before").await.is_some());
        world.used("acme", "10", "2026-11-15T12:30:00Z").await;
        world.pass_hours(1);
        world.settle(6).await;
        let push = world.pushes().await.pop().unwrap();
        world.check(push.number, PushState::Confirmed, Class::Confirmed).await;
        assert!(world.history(push.number).await.contains(&"present"));
        assert_eq!((world.posts(), world.stripe.total(&customer, HOUR)), (1, "10".into()));
    }
}

/// A lower total never takes away what was billed before: the ledger lacks events that producers
/// have not sent again.
pub async fn a_restored_store_waits_for_its_producers(ground: Ground) {
    for mode in MODES {
        let (mut world, customer) = start(ground.another().await, mode).await;
        world.back_up("before").await;
        world.planned("10").await;
        world.push().await;
        world.restore("before").await.unwrap();
        world.used("acme", "4", "2026-11-15T12:30:00Z").await;
        world.pass_hours(1);
        world.settle(12).await;
        assert_eq!((world.posts(), world.stripe.total(&customer, HOUR)), (1, "10".into()));
        world.used("acme", "6", "2026-11-15T12:31:00Z").await;
        world.used("acme", "3", "2026-11-15T12:32:00Z").await;
        world.pass_hours(1);
        world.settle(4).await;
        assert_eq!(world.stripe.total(&customer, HOUR), "13", "{mode}");
    }
}

pub async fn a_replaced_database_file_is_recognised(ground: Ground) {
    let (mut world, _) = start(ground, "delta").await;
    world.back_up("before").await;
    world.planned("10").await;
    world.push().await;
    world.store.close().await;
    std::fs::remove_file(world.beside("data.epoch")).unwrap();
    for database in ["counterfoil.db", "ledger.db"] {
        for suffix in ["", "-wal", "-shm"] {
            let name = format!("{database}{suffix}");
            let place = world.ground.data().join(&name);
            let _ = std::fs::remove_file(&place);
            let _ = std::fs::copy(world.beside("before").join(&name), place);
        }
    }
    let epoch = world.open().await.expect("the mark in the directory is ahead");
    assert!(epoch.reason.contains("mark") && !epoch.suspected, "{epoch:?}");
    world.store.close().await;
    assert_eq!(world.open().await, None, "it is recognised once");
    // A copy of the whole machine cannot be told from a long stop.
    world.pass_hours(1);
    world.store.close().await;
    assert!(world.open().await.is_some());
}

pub async fn usage_is_sent_minutes_after_a_long_stop(ground: Ground) {
    for mode in MODES {
        let (mut world, customer) = start(ground.another().await, mode).await;
        let planned = world.planned("10").await;
        world.store.close().await;
        world.pass_seconds(30 * 60);
        let epoch = world.open().await.expect("a copy may have run meanwhile");
        assert!(epoch.suspected, "{epoch:?}");
        world.push().await;
        assert_eq!(world.posts(), 0, "it may have been sent before");
        let waiting = world.store.count_pushes(ages(&world)).await.unwrap();
        assert_eq!((waiting.observed, waiting.observed_long), (1, 0), "it only waits for readings");
        world.pass_seconds(10 * 60);
        world.push().await;
        world.push().await;
        assert_eq!(world.stripe.total(&customer, HOUR), "10", "{mode}");
        let sent = world.pushes().await.pop().unwrap();
        assert_eq!((sent.number, sent.key), (planned.number, planned.key), "{mode}");
    }
}

fn ages(world: &World) -> PushAges {
    let before = world.clock.now().saturating_add_micros(-5 * MICROS_PER_MINUTE);
    PushAges { observed_before: before, submitted_before: before }
}

/// A copy of the whole machine leaves no mark that is ahead, and the provider's total lags behind
/// by more than the wait after a long stop. The key that did not change counts once.
pub async fn a_copy_of_the_machine_is_billed_once_though_the_total_lags(ground: Ground) {
    for mode in MODES {
        let (mut world, customer) = start(ground.another().await, mode).await;
        world.stripe.lock().set_summary_lag(3_600);
        world.back_up("before").await;
        let first = world.planned("10").await;
        world.push().await;
        world.store.close().await;
        std::fs::remove_file(world.beside("data.epoch")).unwrap();
        world.pass_seconds(11 * 60);
        let epoch = world.restore("before").await.expect("a long stop");
        assert!(epoch.suspected, "{epoch:?}");
        world.used("acme", "10", "2026-11-15T12:30:00Z").await;
        world.settle(6).await;
        let again = world.pushes().await.pop().unwrap();
        assert_eq!(again.key, first.key, "{mode}");
        assert_eq!((world.posts(), world.stripe.total(&customer, HOUR)), (2, "10".into()));
    }
}

pub async fn restores_at_random_moments_end_exact(ground: Ground) {
    for mode in MODES {
        for seed in 1..=12 {
            live_through(ground.another().await, mode, seed).await;
        }
    }
}

async fn live_through(ground: Ground, mode: &str, seed: u64) {
    let (mut world, customer) = start(ground, mode).await;
    let mut dice = Dice(seed);
    let (mut produced, mut backups): (Vec<Produced>, u64) = (Vec::new(), 0);
    for step in 0..60 {
        let minutes = i64::try_from(5 + dice.below(30)).unwrap();
        world.clock.advance(minutes * MICROS_PER_MINUTE);
        recognise_alive(&world).await;
        match dice.below(12) {
            0..=4 => {
                let late = i64::try_from(dice.below(150)).unwrap() * MICROS_PER_MINUTE;
                let earliest = at("2026-11-15T12:00:00Z");
                let occurred_at = world.clock.now().saturating_add_micros(-late).max(earliest);
                let quantity = 1 + dice.below(9);
                let event = Produced { id: format!("p{step}"), quantity, occurred_at };
                world.produce(&event).await;
                produced.push(event);
            }
            5 => world.stripe.fault(FaultKind::LostAfter, 1),
            6 => world.stripe.fault(FaultKind::LostBefore, 1),
            7 => {
                world.back_up(&format!("backup{backups}")).await;
                backups += 1;
            }
            8 if backups > 0 => {
                let which = dice.below(backups);
                world.restore(&format!("backup{which}")).await.expect("it is recognised");
            }
            9 if !produced.is_empty() => {
                let count = u64::try_from(produced.len()).unwrap();
                let some = usize::try_from(dice.below(count)).unwrap();
                world.produce(&produced[some]).await;
            }
            _ => world.cut_push_and_confirm().await,
        }
    }
    world.stripe.faults(Vec::new());
    for event in &produced {
        world.produce(event).await;
    }
    // Long enough for an unknown outcome to be decided.
    world.settle(100).await;
    let counted: u64 = produced.iter().map(|event| event.quantity).sum();
    assert_eq!(world.stripe.sum(&customer), counted.to_string(), "{mode}, seed {seed}");
    let observed = |push: &Push| push.state == PushState::Observed;
    assert!(!world.pushes().await.iter().any(observed), "{mode}, seed {seed}");
}

/// What a running server does every minute.
async fn recognise_alive(world: &World) {
    world.store.record_alive(world.clock.now()).await.unwrap();
}
