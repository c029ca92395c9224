//! Readings: what was read later stands, whoever writes it down last.

use super::world::{Ground, World, at, each};
use counterfoil::jobs::Job;
use counterfoil::rules::ids::CustomerId;
use counterfoil::rules::mirror::{CreditGrant, ObjectKind, ObjectName, Snapshot};
use counterfoil::rules::timestamp::Timestamp;
use counterfoil::store::webhook::{MirrorClaim, MirrorReading, Mirrored, WantedMirror};
use futures_util::future::join_all;
use std::collections::BTreeMap;

pub async fn webhook_older_than_the_mirror_is_stale(ground: Ground) {
    let (world, subscription, _) = World::subscribed(ground).await;
    let path = format!("/v1/subscriptions/{subscription}");
    for turned in ["true", "false", "true"] {
        world.pass_seconds(60);
        world.stripe.ask(&path, &[("cancel_at_period_end", turned)]);
    }
    let events = world.events_of(&subscription);
    assert_eq!(events.len(), 4);
    // The newest first: it is read, and everything older is old news.
    for event in events.iter().rev() {
        world.taken(event).await;
        world.read_all().await;
    }
    let told = world.webhooks().await;
    assert_eq!(each(&told, "status"), ["applied", "stale", "applied", "stale"], "{told:#?}");
    let mirror = world.mirror(ObjectKind::Subscription, &subscription).await.unwrap();
    assert_eq!(mirror.version, 4);
    let Snapshot::Subscription(state) = mirror.snapshot else { panic!("no subscription") };
    assert!(state.cancel_at_period_end);
}

fn grant(amount: i64) -> Snapshot {
    Snapshot::CreditGrant(CreditGrant {
        customer: CustomerId::parse("cus_1").unwrap(),
        category: "paid".into(),
        currency: "usd".into(),
        amount,
        effective_at: None,
        expires_at: None,
        voided_at: None,
    })
}

fn object(id: &str) -> ObjectName {
    ObjectName { kind: ObjectKind::CreditGrant, id: id.into() }
}

/// Claims what is wanted, at a moment at which every lease before has ended.
async fn claim(world: &World) -> Vec<WantedMirror> {
    world.pass_seconds(3_600);
    let now = world.clock.now();
    let lease_until = now.saturating_add_micros(60_000_000);
    world.store.claim_mirrors(MirrorClaim { now, lease_until, limit: 10 }).await.unwrap()
}

/// Begins the only reading that is wanted.
async fn begin(world: &World) -> WantedMirror {
    let mut claimed = claim(world).await;
    assert_eq!(claimed.len(), 1, "{claimed:?}");
    claimed.remove(0)
}

async fn write(world: &World, wanted: &WantedMirror, amount: i64, read_at: Timestamp) -> Mirrored {
    let reading = MirrorReading {
        name: wanted.name.clone(),
        ticket: wanted.ticket,
        snapshot: grant(amount),
        read_at,
    };
    world.store.record_mirrors(vec![reading], world.clock.now()).await.unwrap().remove(0)
}

async fn want(world: &World, name: &ObjectName) {
    world.store.want_mirrors(vec![name.clone()], world.clock.now()).await.unwrap();
}

async fn amount(world: &World, name: &ObjectName) -> (u64, i64) {
    let mirror = world.mirror(name.kind, &name.id).await.unwrap();
    let Snapshot::CreditGrant(grant) = mirror.snapshot else { panic!("no grant") };
    (mirror.version, grant.amount)
}

/// A begins, B begins, B writes, A writes.
pub async fn a_lower_ticket_never_overwrites(ground: Ground) {
    let world = World::on(ground).await;
    let name = object("credgr_1");
    want(&world, &name).await;
    let a = begin(&world).await;
    let a_read = world.clock.now();
    want(&world, &name).await;
    let b = begin(&world).await;
    assert!(b.ticket > a.ticket);
    assert!(matches!(write(&world, &b, 2, world.clock.now()).await, Mirrored::Written(None)));
    assert!(matches!(write(&world, &a, 1, a_read).await, Mirrored::Stale));
    assert_eq!(amount(&world, &name).await, (b.ticket, 2));
    // Nor does its failure put the object off.
    world.store.put_off_mirror(&a, at("2027-01-01T00:00:00Z"), "late").await.unwrap();
    want(&world, &name).await;
    let c = begin(&world).await;
    assert!(matches!(write(&world, &c, 3, world.clock.now()).await, Mirrored::Written(Some(_))));
    assert!(matches!(write(&world, &c, 4, world.clock.now()).await, Mirrored::Stale), "once");
    assert_eq!(amount(&world, &name).await, (c.ticket, 3));
}

/// Two readers with a begin and a write each, and a change that is told, in every order: whoever
/// began last after the change decides.
pub async fn every_order_of_two_readers_keeps_the_newest_reading(ground: Ground) {
    let world = World::on(ground).await;
    // Steps of A and B: begin, write. 'w' wants a reading, after the provider has changed.
    let orders =
        "wAaBb wABab wABba wAwBab wAwBba wAwaBb wAawBb wABwabAa wABwbaBb wAwBbaAa wwABbwaAa";
    for order in orders.split(' ') {
        let name = object(&format!("credgr_{order}"));
        let (mut provider, mut wanted) = (0, 0);
        let mut begun: BTreeMap<char, (WantedMirror, i64, Timestamp)> = BTreeMap::new();
        let mut highest = 0;
        for step in order.chars() {
            match step {
                'w' => {
                    provider += 1;
                    wanted += 1;
                    want(&world, &name).await;
                }
                'A' | 'B' => {
                    let claimed = claim(&world).await;
                    if let Some(one) = claimed.into_iter().find(|one| one.name == name) {
                        begun.insert(step, (one, provider, world.clock.now()));
                    }
                }
                _ => {
                    let Some((one, seen, read_at)) = begun.remove(&step.to_ascii_uppercase())
                    else {
                        continue;
                    };
                    let written = write(&world, &one, seen, read_at).await;
                    let newer = one.ticket > highest;
                    assert_eq!(matches!(written, Mirrored::Written(_)), newer, "{order}: {one:?}");
                    highest = highest.max(one.ticket);
                    let (version, amount) = amount(&world, &name).await;
                    assert_eq!(version, highest, "{order}");
                    assert!(amount >= i64::try_from(version).unwrap(), "{order}: what was told");
                }
            }
        }
        // Whatever was left undone is done by whoever comes next.
        for one in claim(&world).await {
            write(&world, &one, provider, world.clock.now()).await;
        }
        assert_eq!(amount(&world, &name).await, (wanted, provider), "{order}");
    }
}

/// Two servers read side by side while webhooks come in.
pub async fn concurrent_readers_read_each_object_once(ground: Ground) {
    let (world, subscription, _) = World::subscribed(ground).await;
    let path = format!("/v1/subscriptions/{subscription}");
    for number in 0..30 {
        world.pass_seconds(1);
        let (number, ends) = (number.to_string(), if number % 2 == 0 { "true" } else { "false" });
        world.stripe.ask(&path, &[("metadata[n]", &number), ("cancel_at_period_end", ends)]);
        let event = world.events_of(&subscription).pop().unwrap();
        let (told, first, second) =
            tokio::join!(world.taken(&event), world.jobs.mirror.pass(), world.jobs.mirror.pass());
        assert!(!told.1);
        assert!(first.unwrap() + second.unwrap() <= 2);
    }
    world.read_all().await;
    let mirror = world.mirror(ObjectKind::Subscription, &subscription).await.unwrap();
    assert_eq!(mirror.version, 30);
    let Snapshot::Subscription(state) = mirror.snapshot else { panic!("no subscription") };
    assert!(!state.cancel_at_period_end);
    let told = world.webhooks().await;
    assert!(told.iter().all(|hook| hook["status"] != "waiting"), "{told:#?}");
    let again = join_all([world.jobs.mirror.pass(), world.jobs.mirror.pass()]).await;
    assert!(again.into_iter().all(|read| read.unwrap() == 0));
}
