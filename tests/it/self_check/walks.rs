//! One story a test: the job runs step by step, by a clock that the test moves.

use super::damage::{COUNTER, TOTAL, UNREADABLE};
use crate::world::{Ground, Job, StoreFaults, World};
use counterfoil::clock::Clock;
use counterfoil::jobs::Context;
use counterfoil::jobs::self_check::{SelfCheckJob, Step};
use counterfoil::rules::alert::{Alert, AlertKind};
use counterfoil::rules::event::{Event, Item, parse_event};
use counterfoil::rules::timestamp::MICROS_PER_HOUR;
use counterfoil::rules::verdict::Verdict;
use counterfoil::store::alert::AlertFilter;
use counterfoil::store::{Query, Store};
use std::sync::Arc;

const DAY: i64 = 24 * MICROS_PER_HOUR;

struct Checked {
    world: World,
    job: SelfCheckJob,
}

/// Another server's job on the same store.
fn new_job(store: &Arc<dyn Store>, clock: &Clock, world: &World, holder: &str) -> SelfCheckJob {
    let store = Arc::clone(store);
    SelfCheckJob::new(&Context::new(store, clock.clone(), &world.config, holder.to_owned(), 1))
}

impl Checked {
    /// Three tenants with a hundred events each of a meter, so that some are folded.
    async fn on(ground: Ground) -> Self {
        let world = World::on(ground).await;
        world.meter("calls", r#"{"aggregation":"sum"}"#).await;
        let job = new_job(&world.store, &world.clock, &world, "server-a");
        let checked = Self { world, job };
        for tenant in 0..3 {
            checked.send(tenant, 0..100).await;
        }
        checked.settle().await;
        checked
    }

    async fn send(&self, tenant: usize, numbers: std::ops::Range<usize>) {
        let catalog = self.world.store.load_catalog().await.unwrap();
        let at = self.world.clock.now();
        let event = |number: usize| -> Event {
            let json = format!(
                r#"{{"tenant":"tenant-{tenant}","id":"e{tenant}-{number}","meter":"calls","quantity":"2","occurred_at":"{at}"}}"#
            );
            let item: Item<'_> = serde_json::from_str(&json).unwrap();
            parse_event(&item, &catalog).unwrap()
        };
        let verdicts = self.world.record(numbers.map(event).collect()).await;
        assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Accepted));
    }

    /// Waits until what can be folded is folded.
    async fn settle(&self) {
        if let Ground::Database(url) = &*self.world.ground {
            let (client, connection) =
                tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            for _ in 0..600 {
                let sql = "SELECT (SELECT count(*) FROM rollup_deltas)
                    + (SELECT count(*) FROM counter_deltas)";
                if client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == 0 {
                    return;
                }
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
            panic!("deltas are not folded");
        }
        for _ in 0..600 {
            if self.world.store.health().unfolded_events < 40 {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        panic!("segments are not folded");
    }

    /// Runs the job until nothing is due.
    async fn run(&self) -> u64 {
        let mut slices = 0;
        loop {
            let Step { slices: done, .. } = self.job.pass().await.unwrap();
            if done == 0 {
                return slices;
            }
            slices += done;
        }
    }

    async fn next_night(&self) {
        self.world.clock.advance(DAY);
        self.run().await;
    }

    async fn alerts(&self, kind: AlertKind) -> Vec<Alert> {
        self.world.jobs.alerter.pass().await.unwrap();
        let open = AlertFilter { open: Some(true), kind: Some(kind) };
        self.world.store.list_alerts(Query::first(open, 100)).await.unwrap()
    }
}

pub async fn a_sound_store_is_checked_whole(ground: Ground) {
    let checked = Checked::on(ground).await;
    assert!(checked.run().await >= 2, "a sample and a walk");
    let check = checked.world.store.read_self_check().await.unwrap();
    let complete = check.complete.expect("a walk has ended");
    assert!(complete.is_complete() && complete.mismatches == 0);
    assert!(complete.events >= 240 && complete.totals >= 3, "{complete:?}");
    assert!(check.sample.windows >= 3);
    for kind in [AlertKind::SelfCheckMismatch, AlertKind::SelfCheckIncomplete] {
        assert_eq!(checked.alerts(kind).await, []);
    }
}

pub async fn a_wrong_total_pages_until_its_window_agrees(ground: Ground) {
    let checked = Checked::on(ground).await;
    TOTAL.plant(&checked.world.ground).await;
    checked.run().await;
    let open = checked.alerts(AlertKind::SelfCheckMismatch).await;
    assert!(!open.is_empty());
    let first = &open[open.len() - 1];
    let window = "2026-11-15T12:00:00Z";
    assert!(first.subject.starts_with("tenant-") && first.subject.contains(window), "{first:?}");
    assert!(first.subject.contains("/calls/"), "{first:?}");
    assert!(first.summary.contains("stored is"), "{first:?}");
    assert!(first.summary.contains("the events add up to"), "{first:?}");
    // Looking again changes nothing, and neither does an hour in which nothing is mended.
    assert_eq!(checked.alerts(AlertKind::SelfCheckMismatch).await, open);
    checked.next_night().await;
    assert_eq!(checked.alerts(AlertKind::SelfCheckMismatch).await, open);
    TOTAL.mend(&checked.world.ground).await;
    assert_eq!(checked.alerts(AlertKind::SelfCheckMismatch).await, open, "it was not looked at");
    checked.world.clock.advance(MICROS_PER_HOUR);
    checked.run().await;
    assert_eq!(checked.alerts(AlertKind::SelfCheckMismatch).await, [], "the hour's sample agrees");
}

pub async fn a_wrong_counter_pages_until_it_agrees(ground: Ground) {
    let checked = Checked::on(ground).await;
    COUNTER.plant(&checked.world.ground).await;
    checked.run().await;
    let open = checked.alerts(AlertKind::SelfCheckMismatch).await;
    assert!(!open.is_empty());
    assert!(open.iter().all(|alert| alert.subject.contains("/accepted/")), "{open:?}");
    COUNTER.mend(&checked.world.ground).await;
    checked.next_night().await;
    assert_eq!(checked.alerts(AlertKind::SelfCheckMismatch).await, []);
}

pub async fn what_cannot_be_read_is_not_checked(ground: Ground) {
    let checked = Checked::on(ground).await;
    UNREADABLE.plant(&checked.world.ground).await;
    TOTAL.plant(&checked.world.ground).await;
    checked.run().await;
    let check = checked.world.store.read_self_check().await.unwrap();
    assert_eq!(check.complete, None, "what was not read has not passed");
    let walk = check.walk.expect("it has ended");
    assert!(walk.ended_at.is_some() && walk.unchecked_parts > 0 && !walk.is_complete());
    let told = checked.alerts(AlertKind::SelfCheckIncomplete).await;
    assert_eq!(told.len(), 1);
    assert!(told[0].summary.contains("tenant-0, meter calls"), "{told:?}");
    let others = checked.alerts(AlertKind::SelfCheckMismatch).await;
    let own = |alert: &&Alert| alert.subject.starts_with("tenant-0/");
    assert_eq!(others.iter().find(own), None, "nothing is known of it");
    UNREADABLE.mend(&checked.world.ground).await;
    TOTAL.mend(&checked.world.ground).await;
    checked.next_night().await;
    assert_eq!(checked.alerts(AlertKind::SelfCheckIncomplete).await, []);
    assert_eq!(checked.alerts(AlertKind::SelfCheckMismatch).await, []);
}

pub async fn a_walk_goes_on_after_a_crash(ground: Ground) {
    let checked = Checked::on(ground).await;
    let store = Arc::clone(&checked.world.store);
    // The slice was compared, and its result was not written: as a process that ended there.
    let failing = counterfoil::store::faulty::Faulty::new(Arc::clone(&store), {
        let walked = std::sync::atomic::AtomicU64::new(0);
        move |verb| {
            let down = counterfoil::store::Error::Unavailable { what: "the process ended".into() };
            let wrote = |walked: &std::sync::atomic::AtomicU64| {
                walked.fetch_add(1, std::sync::atomic::Ordering::SeqCst)
            };
            match verb {
                "plan_slices" => {
                    wrote(&walked);
                    counterfoil::store::faulty::Fault::None
                }
                "record_self_check" if walked.load(std::sync::atomic::Ordering::SeqCst) > 0 => {
                    counterfoil::store::faulty::Fault::FailBefore(down)
                }
                _ => counterfoil::store::faulty::Fault::None,
            }
        }
    });
    let failing: Arc<dyn Store> = failing;
    let crashing = new_job(&failing, &checked.world.clock, &checked.world, "server-a");
    while crashing.pass().await.is_ok() {}
    let check = store.read_self_check().await.unwrap();
    let walk = check.walk.expect("it was begun");
    assert_eq!((walk.ended_at, walk.events), (None, 0), "the slice is not done");
    checked.run().await;
    let check = store.read_self_check().await.unwrap();
    let complete = check.complete.expect("the slice was done again");
    assert_eq!(complete.started_at, walk.started_at, "it is the same walk");
    assert!(complete.events >= 240);
}

pub async fn events_that_come_meanwhile_are_no_mismatch(ground: Ground) {
    let checked = Arc::new(Checked::on(ground).await);
    let sending = Arc::clone(&checked);
    let sent = tokio::spawn(async move {
        for round in 1..=40 {
            for tenant in 0..3 {
                sending.send(tenant, round * 100..round * 100 + 25).await;
            }
        }
    });
    let mut slices = 0;
    while !sent.is_finished() {
        checked.next_night().await;
        slices += 1;
    }
    sent.await.unwrap();
    checked.settle().await;
    checked.next_night().await;
    assert!(slices > 0);
    let check = checked.world.store.read_self_check().await.unwrap();
    assert_eq!(checked.world.store.list_mismatches(10).await.unwrap(), []);
    assert!(check.complete.expect("a walk has ended").events >= 3_000);
    assert_eq!(checked.world.store.check(&|_| {}).await.unwrap().findings, Vec::<String>::new());
}

pub async fn a_store_that_is_down_is_not_checked(ground: Ground) {
    let checked = Checked::on(ground).await;
    let faults: &Arc<StoreFaults> = &checked.world.store_faults;
    faults.set_down(true);
    assert!(checked.job.pass().await.is_err());
    faults.set_down(false);
    let check = checked.world.store.read_self_check().await.unwrap();
    assert_eq!((check.complete, check.sample.at), (None, None));
    checked.run().await;
    assert!(checked.world.store.read_self_check().await.unwrap().complete.is_some());
}

pub async fn one_of_two_servers_walks(ground: Ground) {
    let checked = Checked::on(ground).await;
    let World { store, clock, .. } = &checked.world;
    let other = new_job(store, clock, &checked.world, "server-b");
    assert!(checked.job.pass().await.unwrap().slices > 0);
    assert_eq!(other.pass().await.unwrap(), Step::default(), "the other one has the lease");
    // A lease that has ended is another's, and a walk goes on where it is.
    clock.advance(MICROS_PER_HOUR / 2);
    while other.pass().await.unwrap().slices > 0 {}
    assert!(store.read_self_check().await.unwrap().complete.is_some());
    assert_eq!(checked.job.pass().await.unwrap(), Step::default());
}

pub async fn the_state_is_where_operators_look(ground: Ground) {
    let checked = Checked::on(ground).await;
    checked.run().await;
    let check = checked.world.store.read_self_check().await.unwrap();
    assert_eq!(check.not_done(checked.world.clock.now()), None);
    let later = checked.world.clock.now().saturating_add_micros(3 * DAY);
    assert!(check.not_done(later).is_some(), "a walk that did not happen is told");
    checked.world.clock.advance(3 * DAY);
    let told = checked.alerts(AlertKind::SelfCheckIncomplete).await;
    assert!(told[0].summary.contains("not everything has been checked"), "{told:?}");
}
