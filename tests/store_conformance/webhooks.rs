//! Webhooks: each fact once, under any of its names, and never lost.

use crate::billed::after;
use crate::fixture::{Fixture, at_once, tenant_id};
use crate::inbound::{
    claim, entering, entry, named, read, record, record_fresh, snapshot, subscription,
    subscription_name, telling, thin, unknown, webhook,
};
use counterfoil::rules::subscription::{Origin, TimelineEntry};
use counterfoil::rules::webhook::{WebhookSource, WebhookStatus};
use counterfoil::store::Query;
use counterfoil::store::push::Ruling;
use counterfoil::store::webhook::{
    Mirrored, Receipted, WebhookCounts, WebhookFilter, WebhookReceipt, WebhookRecord,
};
use std::collections::HashSet;
use std::slice::from_ref;
use std::sync::Arc;

/// All webhooks, oldest first.
async fn all(f: &Fixture) -> Vec<WebhookRecord> {
    let query = Query::first(WebhookFilter::default(), 10_000);
    let mut webhooks = f.store.list_webhooks(query).await.unwrap();
    webhooks.reverse();
    webhooks
}

pub async fn a_webhook_is_kept_as_it_came(mut f: Fixture) {
    let mut receipt = telling(thin(&f, "evt_1", subscription_name("sub_1")), snapshot("active"));
    receipt.payload = vec![0, 159, 146, 150, b'\n'];
    receipt.source = WebhookSource::Backfilled;
    let number = record_fresh(&f, receipt.clone()).await;
    f.restart().await;
    let expected = WebhookRecord {
        number,
        event_id: "evt_1".to_owned(),
        event_type: "subscription.updated".to_owned(),
        object: Some(subscription_name("sub_1")),
        source: WebhookSource::Backfilled,
        status: WebhookStatus::Waiting,
        created_at: after(f.now, -1),
        received_at: f.now,
        settled_at: None,
        // It was found in a list.
        deliveries: 0,
        detail: None,
    };
    assert_eq!(all(&f).await, from_ref(&expected));
    let found = f.store.find_webhook(number).await.unwrap();
    assert_eq!(found, Some((expected, receipt.payload)));
    assert_eq!(f.store.find_webhook(number + 1).await.unwrap(), None);
    assert_eq!(record(&f, vec![]).await, []);
}

pub async fn five_at_once_are_one(f: Fixture) {
    let f = Arc::new(f);
    let deliver = |f: Arc<Fixture>, receipt| async move { record(&f, vec![receipt]).await };
    let receipt = thin(&f, "evt_1", subscription_name("sub_1"));
    let receipted = at_once(&f, vec![receipt; 5], deliver).await.concat();
    assert_eq!(receipted.iter().filter(|receipted| receipted.fresh).count(), 1);
    let numbers: HashSet<u64> = receipted.iter().map(|receipted| receipted.number).collect();
    assert_eq!(numbers.len(), 1);
    let webhooks = all(&f).await;
    assert_eq!((webhooks.len(), webhooks[0].deliveries), (1, 5));
    let wanted = claim(&f, 0).await;
    assert_eq!((wanted.len(), wanted[0].ticket), (1, 1), "one of them asked for a reading");
}

pub async fn batches_at_once_share_nothing(f: Fixture) {
    let f = Arc::new(f);
    let send = |f: Arc<Fixture>, sender: usize| async move {
        let mut fresh = 0;
        for round in 0..5 {
            // Each batch holds the same webhooks, in another order.
            let receipt = |n: usize| {
                let object = subscription_name(&format!("sub_{}", n % 4));
                thin(&f, &format!("evt_{round}_{n}"), object)
            };
            let mut receipts: Vec<WebhookReceipt> = (0..20).map(receipt).collect();
            receipts.rotate_left(sender * 7);
            fresh += record(&f, receipts).await.iter().filter(|r| r.fresh).count();
        }
        fresh
    };
    assert_eq!(at_once(&f, 0..3, send).await.iter().sum::<usize>(), 100);
    let webhooks = all(&f).await;
    assert_eq!(webhooks.len(), 100);
    assert!(webhooks.iter().all(|webhook| webhook.deliveries == 3));
    let tickets: Vec<u64> = claim(&f, 0).await.iter().map(|wanted| wanted.ticket).collect();
    assert_eq!(tickets, [25; 4]);
}

pub async fn twins_are_one_in_either_order(f: Fixture) {
    let object = || subscription_name("sub_1");
    // One names the other, or both share a name.
    let pairs = [
        (thin(&f, "a1", object()), named(thin(&f, "a2", object()), &["a1"])),
        (named(thin(&f, "b1", object()), &["b2"]), thin(&f, "b2", object())),
        (named(thin(&f, "c1", object()), &["c"]), named(thin(&f, "c2", object()), &["c"])),
    ];
    for (place, (first, second)) in pairs.into_iter().enumerate() {
        let event_id = first.facts.event_id.clone();
        let number = record_fresh(&f, first).await;
        let twin = record(&f, vec![second]).await;
        assert_eq!(twin, [Receipted { number, fresh: false }], "{event_id}");
        let webhook = webhook(&f, number).await;
        assert_eq!((webhook.deliveries, webhook.event_id), (2, event_id));
        assert_eq!(all(&f).await.len(), place + 1);
    }
    assert_eq!(claim(&f, 0).await[0].ticket, 3);
}

pub async fn twins_within_a_batch_are_one(mut f: Fixture) {
    let object = || subscription_name("sub_1");
    let receipts = vec![
        named(thin(&f, "a1", object()), &["a"]),
        thin(&f, "b1", object()),
        named(thin(&f, "a2", object()), &["a"]),
        thin(&f, "a1", object()),
    ];
    let receipted = record(&f, receipts).await;
    let fresh: Vec<bool> = receipted.iter().map(|receipted| receipted.fresh).collect();
    assert_eq!(fresh, [true, true, false, false]);
    assert_eq!(receipted[2].number, receipted[0].number);
    assert_eq!(receipted[3].number, receipted[0].number);
    assert!(receipted[0].number < receipted[1].number, "numbers are in the order of arrival");
    f.restart().await;
    let deliveries: Vec<u64> = all(&f).await.iter().map(|webhook| webhook.deliveries).collect();
    assert_eq!(deliveries, [3, 1]);
    assert_eq!(claim(&f, 0).await[0].ticket, 2);
}

pub async fn names_of_a_twin_are_learned(f: Fixture) {
    let object = || subscription_name("sub_1");
    let number = record_fresh(&f, named(thin(&f, "a1", object()), &["a"])).await;
    for names in [&["a"], &["a2"]] {
        let later = named(thin(&f, names[0], object()), &["a2", "a3"]);
        assert_eq!(record(&f, vec![later]).await, [Receipted { number, fresh: false }]);
    }
    let known = record(&f, vec![thin(&f, "a3", object())]).await;
    assert_eq!(known, [Receipted { number, fresh: false }]);
    assert_eq!(webhook(&f, number).await.deliveries, 4);
}

pub async fn a_snapshot_after_a_thin_twin_adds_its_state(f: Fixture) {
    f.customer("acme", "cus_acme").await;
    let object = || subscription_name("sub_1");
    let number = record_fresh(&f, thin(&f, "a1", object())).await;
    assert_eq!(timeline(&f).await, []);
    let full = || entering(named(thin(&f, "a2", object()), &["a1"]), "active");
    let expected = entry("sub_1", after(f.now, -1), Origin::Updated, subscription("active"));
    for _ in 0..2 {
        let twin = record(&f, vec![full()]).await;
        assert_eq!(twin, [Receipted { number, fresh: false }]);
        assert_eq!(timeline(&f).await, from_ref(&expected), "a state is held once");
    }
    // Other webhooks of the same moment and state add nothing either, others do.
    record_fresh(&f, entering(thin(&f, "b", object()), "active")).await;
    assert_eq!(timeline(&f).await.len(), 1);
    record_fresh(&f, entering(thin(&f, "c", object()), "past_due")).await;
    assert_eq!(timeline(&f).await.len(), 2);
}

pub async fn unknown_types_are_kept(f: Fixture) {
    let number = record_fresh(&f, unknown(&f, "evt_1")).await;
    assert!(!record(&f, vec![unknown(&f, "evt_1")]).await[0].fresh);
    let webhook = webhook(&f, number).await;
    assert_eq!((webhook.status, webhook.object), (WebhookStatus::Kept, None));
    assert_eq!((webhook.deliveries, webhook.settled_at), (2, Some(f.now)));
    assert_eq!(claim(&f, 0).await, []);
    assert_eq!(f.store.count_webhooks().await.unwrap(), WebhookCounts::default());
    let replayed = f.store.replay_webhook(number, f.now).await.unwrap();
    assert!(matches!(replayed, Ruling::Refused(_)), "it has no object to be read");
}

pub async fn a_replay_waits_once(mut f: Fixture) {
    let name = subscription_name("sub_1");
    let told = telling(thin(&f, "evt_1", name.clone()), snapshot("active"));
    let number = record_fresh(&f, told).await;
    let replay = async |f: &Fixture, minute: i64| {
        f.store.replay_webhook(number, after(f.now, minute)).await.unwrap()
    };
    assert_eq!(replay(&f, 1).await, Ruling::Done(None));
    assert_eq!(claim(&f, 1).await[0].ticket, 1, "one that waits is left as it is");
    assert_eq!(read(&f, &name, 1, snapshot("active"), 2).await, Mirrored::Written(None));
    assert_eq!(webhook(&f, number).await.status, WebhookStatus::Applied);
    assert_eq!(replay(&f, 3).await, Ruling::Done(None));
    assert_eq!(replay(&f, 4).await, Ruling::Done(None));
    let counts = f.store.count_webhooks().await.unwrap();
    assert_eq!(counts.waiting_since, Some(after(f.now, 3)), "it waits from its replay");
    f.restart().await;
    let waiting = webhook(&f, number).await;
    assert_eq!((waiting.status, waiting.settled_at), (WebhookStatus::Waiting, None));
    assert_eq!((waiting.received_at, waiting.deliveries), (f.now, 1));
    assert_eq!(claim(&f, 2).await, [], "it is due when it was asked for");
    assert_eq!(claim(&f, 3).await[0].ticket, 2);
    let before = Some(snapshot("active"));
    assert_eq!(read(&f, &name, 2, snapshot("canceled"), 5).await, Mirrored::Written(before));
    let stale = webhook(&f, number).await;
    assert_eq!((stale.status, stale.settled_at), (WebhookStatus::Stale, Some(after(f.now, 5))));
    assert_eq!(f.store.replay_webhook(number + 1, f.now).await.unwrap(), Ruling::NotFound);
}

pub async fn pages_and_filters(f: Fixture) {
    let mut numbers = Vec::new();
    for n in 0..6 {
        let receipt = match n % 3 {
            0 => thin(&f, &format!("evt_{n}"), subscription_name("sub_1")),
            1 => thin(&f, &format!("evt_{n}"), subscription_name("sub_2")),
            _ => unknown(&f, &format!("evt_{n}")),
        };
        numbers.push(record_fresh(&f, receipt).await);
    }
    assert!(numbers.is_sorted());
    read(&f, &subscription_name("sub_1"), 2, snapshot("active"), 1).await;
    let check = async |query: Query<WebhookFilter>, places: &[usize]| {
        let found = f.store.list_webhooks(query).await.unwrap();
        let found: Vec<u64> = found.iter().map(|webhook| webhook.number).collect();
        assert_eq!(found, places.iter().map(|place| numbers[*place]).collect::<Vec<_>>());
    };
    let (any, of) = (WebhookFilter::default, |filter| Query::first(filter, 100));
    check(of(any()), &[5, 4, 3, 2, 1, 0]).await;
    check(Query { limit: 2, ..of(any()) }, &[5, 4]).await;
    check(Query { after: Some(numbers[4]), limit: 2, ..of(any()) }, &[3, 2]).await;
    check(Query { after: Some(numbers[0]), ..of(any()) }, &[]).await;
    check(of(WebhookFilter { status: Some(WebhookStatus::Waiting), ..any() }), &[4, 1]).await;
    check(of(WebhookFilter { status: Some(WebhookStatus::Applied), ..any() }), &[3, 0]).await;
    check(of(WebhookFilter { status: Some(WebhookStatus::Stale), ..any() }), &[]).await;
    check(of(WebhookFilter { status: Some(WebhookStatus::Kept), ..any() }), &[5, 2]).await;
    let event_type = Some("subscription.updated".to_owned());
    check(of(WebhookFilter { event_type: event_type.clone(), ..any() }), &[4, 3, 1, 0]).await;
    let status = Some(WebhookStatus::Waiting);
    check(
        Query { filter: WebhookFilter { event_type, status }, after: Some(numbers[4]), limit: 1 },
        &[1],
    )
    .await;
}

pub async fn those_waiting_are_counted(f: Fixture) {
    let count = async || f.store.count_webhooks().await.unwrap();
    assert_eq!(count().await, WebhookCounts::default());
    for (n, minute) in [(1, 3), (2, 1), (3, 2)] {
        let object = subscription_name(&format!("sub_{n}"));
        let mut receipt = thin(&f, &format!("evt_{n}"), object);
        receipt.received_at = after(f.now, minute);
        record_fresh(&f, receipt).await;
    }
    let since = |minute| Some(after(f.now, minute));
    assert_eq!(count().await, WebhookCounts { waiting: 3, waiting_since: since(1) });
    read(&f, &subscription_name("sub_2"), 1, snapshot("active"), 5).await;
    assert_eq!(count().await, WebhookCounts { waiting: 2, waiting_since: since(2) });
    for n in [1, 3] {
        read(&f, &subscription_name(&format!("sub_{n}")), 1, snapshot("active"), 5).await;
    }
    assert_eq!(count().await, WebhookCounts::default());
}

pub async fn cursors_are_kept(mut f: Fixture) {
    assert_eq!(f.store.read_cursor("backfill").await.unwrap(), None);
    f.store.record_cursor("backfill", "evt_1").await.unwrap();
    f.store.record_cursor("other", "x").await.unwrap();
    f.store.record_cursor("backfill", "evt_2").await.unwrap();
    f.restart().await;
    assert_eq!(f.store.read_cursor("backfill").await.unwrap().as_deref(), Some("evt_2"));
    assert_eq!(f.store.read_cursor("other").await.unwrap().as_deref(), Some("x"));
}

async fn timeline(f: &Fixture) -> Vec<TimelineEntry> {
    f.store.read_timeline(&tenant_id("acme")).await.unwrap()
}
