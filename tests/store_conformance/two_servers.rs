//! Two servers on one PostgreSQL database, sending the same events at once.

use crate::fixture::{Fixture, call, deliver_to};
use counterfoil::rules::verdict::Verdict;
use std::sync::Arc;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_events_at_once_are_counted_once() {
    let Some(f) = Fixture::postgres().await else { return };
    let f = Arc::new(f);
    let other = f.second_server().await;
    let batches: Vec<Vec<String>> = (0..20)
        .map(|b| (0..50).map(|n| call(&format!("e{}", b * 40 + n), "1")).collect())
        .collect();
    let mut tasks = Vec::new();
    for (server, partition) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
        let (f, other, mut batches) = (Arc::clone(&f), Arc::clone(&other), batches.clone());
        if server == 1 {
            batches.reverse();
        }
        tasks.push(tokio::spawn(async move {
            let store = if server == 0 { &f.store } else { &other };
            let mut accepted = 0;
            for json in batches {
                let events = f.events(&json).await;
                let verdicts = store.record_deliveries(partition, f.batch(events)).await.unwrap();
                for verdict in verdicts {
                    match verdict {
                        Verdict::Accepted => accepted += 1,
                        Verdict::Duplicate { restamped: false } => {}
                        other => panic!("{other:?}"),
                    }
                }
            }
            accepted
        }));
    }
    let mut accepted = 0;
    for task in tasks {
        accepted += task.await.unwrap();
    }
    // 20 batches of 50 that overlap by ten: 810 different ids.
    assert_eq!(accepted, 810);
    assert_eq!(f.total("acme", "calls").await, "810");
    f.check().await;
    other.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn meters_and_tenants_made_at_once_are_made_once() {
    let Some(f) = Fixture::postgres().await else { return };
    let other = f.second_server().await;
    let spec = r#"{"aggregation":"sum"}"#;
    let events = f.events(&[call("e1", "1").replace("acme", "both")]).await;
    let (a, b) = tokio::join!(
        deliver_to(f.store.as_ref(), f.batch(events.clone())),
        deliver_to(other.as_ref(), f.batch(events)),
    );
    assert_eq!([a, b].concat().iter().filter(|v| **v == Verdict::Accepted).count(), 1);
    f.declare("later", spec).await;
    let catalog = other.load_catalog().await.unwrap();
    assert!(catalog.find("later").is_some());
    assert_eq!(f.total("both", "calls").await, "1");
}
