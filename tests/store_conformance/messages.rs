//! The outbox of changes: written once, leased, fenced, pruned.

use crate::billed::after;
use crate::fixture::{Fixture, at_once, claim_at_once, in_pages, tenant_id};
use counterfoil::store::Query;
use counterfoil::store::outbox::{ClaimedMessage, FeedChange, Message, Queue, SendOutcome};
use std::sync::Arc;

fn message(key: &str, tenant: Option<&str>) -> FeedChange {
    let (key, tenant) = (key.to_owned(), tenant.map(tenant_id));
    let payload = format!(r#"{{"about":"{key}"}}"#);
    FeedChange { key, kind: "test.told", tenant, payload }
}

async fn record(f: &Fixture, messages: Vec<FeedChange>, minute: i64) -> usize {
    f.store.publish_changes(messages, after(f.now, minute)).await.unwrap()
}

/// All messages, oldest first, read in pages of two.
async fn all(f: &Fixture, tenant: Option<&str>) -> Vec<Message> {
    let tenant = tenant.map(tenant_id);
    let read = async |last: Option<&Message>| {
        let after = last.map(|message| message.number);
        f.store.list_changes(Query { filter: tenant.clone(), after, limit: 2 }).await.unwrap()
    };
    in_pages(2, read).await
}

/// Claims what is due so many minutes after now, for ten minutes.
async fn claim(f: &Fixture, minute: i64, limit: usize) -> Vec<ClaimedMessage> {
    let (now, until) = (after(f.now, minute), after(f.now, minute + 10));
    f.store.claim_messages(Queue::Changes, now, until, limit).await.unwrap()
}

async fn settle(f: &Fixture, claimed: &ClaimedMessage, outcome: SendOutcome, minute: i64) -> bool {
    let (number, at) = (claimed.message.number, after(f.now, minute));
    f.store.settle_message(number, claimed.fence, outcome, at).await.unwrap()
}

pub async fn a_message_is_written_once(mut f: Fixture) {
    let first = message("a", Some("fresh"));
    assert_eq!(record(&f, vec![first.clone(), message("b", None)], 1).await, 2);
    f.restart().await;
    let other = FeedChange { payload: "{}".to_owned(), kind: "test.other", ..first.clone() };
    let more = vec![first.clone(), other, message("c", Some("acme")), message("c", None)];
    assert_eq!(record(&f, more, 2).await, 1);
    assert_eq!(record(&f, vec![], 3).await, 0);
    let messages = all(&f, None).await;
    let expected = Message {
        number: messages[0].number,
        id: first.id(),
        destination: "webhook".to_owned(),
        kind: "test.told".to_owned(),
        tenant: Some(tenant_id("fresh")),
        payload: first.payload.clone(),
        at: after(f.now, 1),
    };
    assert_eq!((messages.len(), &messages[0]), (3, &expected));
    assert_eq!((messages[1].tenant.as_ref(), &messages[1].id), (None, &message("b", None).id()));
    assert!(messages.windows(2).all(|pair| pair[0].number < pair[1].number));
    assert_eq!(all(&f, Some("fresh")).await, vec![expected]);
    let told: Vec<String> = all(&f, Some("acme")).await.into_iter().map(|m| m.id).collect();
    assert_eq!(told, [message("c", None).id()]);
    assert_eq!(all(&f, Some("nobody")).await, []);
}

pub async fn writers_at_once_write_one(f: Fixture) {
    let f = Arc::new(f);
    let write = |f: Arc<Fixture>, change| async move { record(&f, vec![change], 0).await };
    let written = at_once(&f, vec![message("a", Some("acme")); 6], write).await;
    assert_eq!((written.iter().sum::<usize>(), all(&f, None).await.len()), (1, 1));
}

pub async fn claims_are_leased_and_fenced(f: Fixture) {
    for key in ["a", "b", "c"] {
        record(&f, vec![message(key, Some("acme"))], 0).await;
    }
    let first = claim(&f, 0, 2).await;
    let ids: Vec<&str> = first.iter().map(|claimed| claimed.message.id.as_str()).collect();
    assert_eq!(ids, [message("a", None).id(), message("b", None).id()], "oldest first");
    assert!(first.iter().all(|claimed| claimed.attempts == 0));
    let rest = claim(&f, 1, 10).await;
    assert_eq!(rest.len(), 1, "two are leased");
    assert!(settle(&f, &rest[0], SendOutcome::Sent, 2).await);
    assert!(!settle(&f, &rest[0], SendOutcome::Sent, 2).await, "it is settled");
    // Nobody was heard of again; another claims, and the first is shut out.
    let second = claim(&f, 10, 10).await;
    assert_eq!(second.len(), 2);
    assert_eq!((second[0].attempts, second[0].message.number), (1, first[0].message.number));
    assert!(second[0].fence > first[0].fence);
    assert!(!settle(&f, &first[0], SendOutcome::Sent, 11).await);
    let until = after(f.now, 60);
    let later = SendOutcome::Later { until, detail: "HTTP 500".to_owned() };
    assert!(settle(&f, &second[0], later, 11).await);
    let given_up = SendOutcome::GivenUp { detail: "HTTP 410".to_owned() };
    assert!(settle(&f, &second[1], given_up, 11).await);
    assert_eq!(claim(&f, 59, 10).await, vec![]);
    let third = claim(&f, 60, 10).await;
    assert_eq!(third.len(), 1);
    assert_eq!((third[0].attempts, third[0].message.id.as_str()), (2, ids[0]));
    assert_eq!(all(&f, None).await.len(), 3, "what was settled is kept");
}

pub async fn claimants_at_once_share_nothing(f: Fixture) {
    let messages = (0..60).map(|n| message(&format!("m{n}"), Some("acme"))).collect();
    record(&f, messages, 0).await;
    let numbers = claim_at_once(f, |f| async move {
        claim(&f, 0, 7).await.iter().map(|claimed| claimed.message.number).collect::<Vec<_>>()
    });
    assert_eq!(numbers.await.len(), 60);
}

pub async fn old_messages_are_pruned(f: Fixture) {
    for n in 0..6 {
        record(&f, vec![message(&format!("m{n}"), None)], n).await;
    }
    let claimed = claim(&f, 6, 1).await;
    assert!(settle(&f, &claimed[0], SendOutcome::Sent, 6).await);
    let prune = async |minute, limit| f.store.prune_messages(after(f.now, minute), limit).await;
    assert_eq!(prune(0, 10).await.unwrap(), 0);
    assert_eq!(prune(4, 3).await.unwrap(), 3);
    assert_eq!(prune(4, 3).await.unwrap(), 1, "settled and waiting ones");
    assert_eq!(prune(4, 3).await.unwrap(), 0);
    let left = all(&f, None).await;
    let ids: Vec<String> = left.iter().map(|message| message.id.clone()).collect();
    assert_eq!(ids, ["m4", "m5"].map(|key| message(key, None).id()));
    // Who reads on from the last number misses nothing, even when all were pruned.
    assert_eq!(prune(9, 10).await.unwrap(), 2);
    record(&f, vec![message("m6", None)], 9).await;
    let list = |after| f.store.list_changes(Query { filter: None, after: Some(after), limit: 10 });
    let next = list(left[1].number).await.unwrap();
    assert_eq!(next.len(), 1);
    let none = list(u64::MAX).await.unwrap();
    assert_eq!(none.len(), 0, "nothing comes after the largest number");
    // What was told of an invoice is known for as long as it may be owed.
    let dunning = FeedChange { kind: "dunning.final", ..message("d", None) };
    assert_eq!(record(&f, vec![dunning.clone()], 9).await, 1);
    assert_eq!(prune(20, 10).await.unwrap(), 1);
    assert_eq!(record(&f, vec![dunning], 20).await, 0);
}
