//! Subscription records that follow the readings of their subscription.

use crate::billed::after;
use crate::fixture::{Fixture, tenant_id};
use crate::inbound::{subscription, subscription_name, want};
use crate::sagas::subscription_record;
use counterfoil::rules::ids::SubscriptionId;
use counterfoil::rules::mirror::Snapshot;
use counterfoil::rules::subscription::Subscription;
use counterfoil::store::Query;
use counterfoil::store::saga::SubscriptionRecord;
use counterfoil::store::webhook::MirrorReading;

/// Records the subscription record of a saga and opens its features.
async fn agree(f: &Fixture, saga: &str, subscription: &str) {
    let base = subscription_record(f, saga, subscription, 0);
    let record = SubscriptionRecord { plan: "pro".to_owned(), ..base };
    f.store.record_subscription(record).await.unwrap();
    f.store.set_access(saga, true).await.unwrap();
}

/// A reading that was begun in the minute of its ticket. What has ended did so in minute 7.
fn reading(f: &Fixture, id: &str, ticket: u64, status: &str) -> MirrorReading {
    let minute = i64::try_from(ticket).unwrap();
    let ended_at = (status == "canceled").then(|| after(f.now, 7));
    let state = Subscription { ended_at, ..subscription(status) };
    MirrorReading {
        name: subscription_name(id),
        ticket,
        snapshot: Snapshot::Subscription(state),
        read_at: after(f.now, minute),
    }
}

/// Wants the next reading, and writes it.
async fn read(f: &Fixture, id: &str, status: &str) {
    let ticket = want(f, &[subscription_name(id)], 0).await[0];
    let readings = vec![reading(f, id, ticket, status)];
    f.store.record_mirrors(readings, after(f.now, 60)).await.unwrap();
}

/// Whether the features may be used in minute 60, whether they are suspended, and the minute of the
/// end.
async fn access(f: &Fixture, saga: &str) -> (bool, bool, Option<i64>) {
    let listed = f.store.list_subscription_records(&tenant_id("acme"), 1_000).await.unwrap();
    let found = listed.into_iter().find(|one| one.saga == saga).unwrap();
    let minute = found.ended_at.map(|at| (at.micros() - f.now.micros()) / 60_000_000);
    (found.grants_access_at(after(f.now, 60)), found.suspended, minute)
}

const OPEN: (bool, bool, Option<i64>) = (true, false, None);
const SUSPENDED: (bool, bool, Option<i64>) = (false, true, None);
const ENDED: (bool, bool, Option<i64>) = (false, false, Some(7));

async fn told(f: &Fixture) -> Vec<String> {
    let changes = f.store.list_changes(Query::first(Some(tenant_id("acme")), 1_000)).await.unwrap();
    changes.into_iter().map(|change| change.kind).collect()
}

pub async fn a_reading_suspends_and_ends_the_record_of_its_subscription(mut f: Fixture) {
    agree(&f, "s1", "sub_1").await;
    agree(&f, "other", "sub_2").await;
    let expected = [
        ("active", OPEN),
        ("past_due", OPEN),
        ("unpaid", SUSPENDED),
        ("unpaid", SUSPENDED),
        ("active", OPEN),
        ("paused", SUSPENDED),
        ("on_the_moon", SUSPENDED),
        ("trialing", OPEN),
        ("unpaid", SUSPENDED),
        ("canceled", ENDED),
        ("active", ENDED),
    ];
    for (status, access_then) in expected {
        read(&f, "sub_1", status).await;
        assert_eq!(access(&f, "s1").await, access_then, "{status}");
    }
    f.restart().await;
    assert_eq!(access(&f, "s1").await, ENDED);
    assert_eq!(access(&f, "other").await, OPEN);
    let kinds = ["suspended", "resumed", "suspended", "resumed", "suspended", "ended"];
    assert_eq!(told(&f).await, kinds.map(|kind| format!("access.{kind}")));
}

pub async fn a_published_change_says_what_may_be_used(f: Fixture) {
    agree(&f, "s1", "sub_1").await;
    read(&f, "sub_1", "unpaid").await;
    let change = f.store.list_changes(Query::first(None, 10)).await.unwrap().remove(0);
    assert_eq!(
        (change.kind.as_str(), change.tenant),
        ("access.suspended", Some(tenant_id("acme")))
    );
    let payload: serde_json::Value = serde_json::from_str(&change.payload).unwrap();
    let expected = serde_json::json!({
        "tenant": "acme", "subscription": "sub_1", "saga": "s1", "plan": "pro",
        "features": ["search"], "status": "unpaid", "access": false, "ended_at": null,
    });
    assert_eq!(payload, expected);
}

pub async fn a_stale_reading_and_one_of_nothing_change_no_access(f: Fixture) {
    agree(&f, "s1", "sub_1").await;
    let name = subscription_name("sub_1");
    want(&f, &[name.clone(), name.clone(), name.clone()], 0).await;
    let write = async |reading: MirrorReading| {
        f.store.record_mirrors(vec![reading], f.now).await.unwrap();
    };
    write(reading(&f, "sub_1", 2, "active")).await;
    write(reading(&f, "sub_1", 1, "unpaid")).await;
    assert_eq!(access(&f, "s1").await, OPEN);
    write(MirrorReading { snapshot: Snapshot::Gone, ..reading(&f, "sub_1", 3, "active") }).await;
    assert_eq!(access(&f, "s1").await, OPEN);
    assert_eq!(told(&f).await, Vec::<String>::new());
}

/// What happens to a subscription and its subscription record, each in a transaction of its own.
#[derive(Debug, Clone, Copy)]
enum Happening {
    Agree,
    /// A saga records the end of minute 9.
    End,
    Read(u64, &'static str),
}

async fn happen(f: &Fixture, happening: Happening, subscription: &str, saga: &str) {
    match happening {
        Happening::Agree => agree(f, saga, subscription).await,
        Happening::End => {
            let subscription = SubscriptionId::parse(subscription).unwrap();
            f.store.end_subscription(&subscription, after(f.now, 9)).await.unwrap();
        }
        Happening::Read(ticket, status) => {
            let readings = vec![reading(f, subscription, ticket, status)];
            f.store.record_mirrors(readings, f.now).await.unwrap();
        }
    }
}

fn orders(happenings: &[Happening]) -> Vec<Vec<Happening>> {
    if happenings.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for place in 0..happenings.len() {
        let mut rest = happenings.to_vec();
        let first = rest.remove(place);
        all.extend(orders(&rest).into_iter().map(|rest| [vec![first], rest].concat()));
    }
    all
}

pub async fn readings_and_sagas_in_any_order_end_alike(f: Fixture) {
    use Happening::{Agree, End, Read};
    let check = async |name: &str, first: &[Happening], happenings: &[Happening], expected| {
        for (number, order) in orders(happenings).into_iter().enumerate() {
            let (subscription, saga) = (format!("sub_{name}_{number}"), format!("{name}_{number}"));
            want(&f, &vec![subscription_name(&subscription); 3], 0).await;
            for happening in first.iter().chain(&order) {
                happen(&f, *happening, &subscription, &saga).await;
            }
            assert_eq!(access(&f, &saga).await, expected, "{order:?}");
        }
    };
    check("unpaid", &[], &[Agree, Read(1, "active"), Read(2, "unpaid")], SUSPENDED).await;
    check("paid", &[], &[Agree, Read(1, "unpaid"), Read(2, "active")], OPEN).await;
    let life = [Agree, Read(1, "unpaid"), Read(2, "active"), Read(3, "canceled")];
    check("over", &[], &life, ENDED).await;
    // A saga that cancels, and the readings of what it does. Its record comes after the
    // subscription record.
    check("cancel", &[Agree], &[End, Read(2, "active"), Read(3, "canceled")], ENDED).await;
}

pub async fn a_plan_changed_while_unpaid_stays_suspended(f: Fixture) {
    agree(&f, "s1", "sub_1").await;
    read(&f, "sub_1", "unpaid").await;
    agree(&f, "s2", "sub_1").await;
    assert_eq!(access(&f, "s2").await, SUSPENDED);
    read(&f, "sub_1", "active").await;
    assert_eq!(access(&f, "s2").await, OPEN);
    // Once withdrawn, the one before follows what is known now.
    f.store.withdraw_subscription("s2").await.unwrap();
    assert_eq!(access(&f, "s1").await, OPEN);
    agree(&f, "s3", "sub_1").await;
    read(&f, "sub_1", "canceled").await;
    f.store.withdraw_subscription("s3").await.unwrap();
    assert_eq!(access(&f, "s1").await, ENDED);
}

pub async fn a_record_and_a_reading_at_once_do_not_miss_each_other(f: Fixture) {
    for number in 0..30 {
        let (subscription, saga) = (format!("sub_{number}"), format!("s{number}"));
        let ticket = want(&f, &[subscription_name(&subscription)], 0).await[0];
        let readings = vec![reading(&f, &subscription, ticket, "canceled")];
        let (recorded, ()) =
            tokio::join!(f.store.record_mirrors(readings, f.now), agree(&f, &saga, &subscription));
        recorded.unwrap();
        assert_eq!(access(&f, &saga).await, ENDED, "{saga}");
    }
}

pub async fn the_newest_record_of_a_subscription(f: Fixture) {
    let id = SubscriptionId::parse("sub_1").unwrap();
    assert_eq!(f.store.find_subscription_record(&id).await.unwrap(), None);
    for saga in ["s1", "s2"] {
        agree(&f, saga, "sub_1").await;
        assert_eq!(f.store.find_subscription_record(&id).await.unwrap().unwrap().saga, saga);
    }
    agree(&f, "other", "sub_2").await;
    f.store.end_subscription(&id, after(f.now, 3)).await.unwrap();
    let found = f.store.find_subscription_record(&id).await.unwrap().unwrap();
    assert_eq!((found.saga.as_str(), found.ended_at), ("s2", Some(after(f.now, 3))));
    assert_eq!(found.tenant, tenant_id("acme"));
}
