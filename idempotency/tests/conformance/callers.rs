//! Many callers at once, and callers who leave.

use crate::app::{App, Call};
use crate::checks::{self, Subject};
use crate::place::Place;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use counterfoil_idempotency::Settings;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tower::ServiceExt;

pub async fn a_hundred_callers_have_one_effect(place: Place) {
    // Two servers, each with half of the callers.
    let first = App::charging(place.store().await, Settings::default());
    let second =
        App::charging_at(Arc::clone(&first.provider), place.store().await, Settings::default());
    let mut callers = tokio::task::JoinSet::new();
    for number in 0..100 {
        let app = if number % 2 == 0 { first.clone() } else { second.clone() };
        callers.spawn(async move {
            loop {
                let reply = app.call(Call::new("acme", "k-1", "{\"order\":7}")).await;
                if reply.status != StatusCode::CONFLICT {
                    return reply;
                }
                assert_eq!(reply.code(), "idempotency_key_in_use");
                assert!(reply.retry_after().is_some_and(|seconds| (1..=60).contains(&seconds)));
                tokio::task::yield_now().await;
            }
        });
    }
    let replies = callers.join_all().await;
    assert_eq!(first.provider.asked(), 1);
    assert_eq!(replies.iter().filter(|reply| !reply.replayed()).count(), 1);
    for reply in &replies {
        assert_eq!(reply.status, StatusCode::CREATED);
        assert_eq!(reply.body, "ch_acme_k-1\n");
        assert_eq!(reply.headers["location"], "/orders/ch_acme_k-1");
    }
}

pub async fn a_caller_who_hangs_up_does_not_cut_the_handler(place: Place) {
    let (entered, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let done = Arc::new(AtomicU32::new(0));
    let (inside, gate, count) = (Arc::clone(&entered), Arc::clone(&go_on), Arc::clone(&done));
    let app = App::new(place.store().await, Settings::default(), move |_, _| {
        let (inside, gate, count) = (Arc::clone(&inside), Arc::clone(&gate), Arc::clone(&count));
        async move {
            inside.notify_one();
            gate.notified().await;
            count.fetch_add(1, Ordering::SeqCst);
            "done".into_response()
        }
    });
    let call = Call::new("acme", "k-1", "{}");
    let caller = tokio::spawn(app.router.clone().oneshot(call.clone().request()));
    entered.notified().await;
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    let reply = app.call(call.clone()).await;
    assert_eq!(reply.code(), "idempotency_key_in_use");
    go_on.notify_one();
    let until_done = async {
        loop {
            let reply = app.call(call.clone()).await;
            if reply.status != StatusCode::CONFLICT {
                return reply;
            }
            tokio::task::yield_now().await;
        }
    };
    let reply = tokio::time::timeout(Duration::from_secs(60), until_done).await;
    let reply = reply.expect("the handler was cut");
    assert!(reply.replayed() && reply.body == "done");
    assert_eq!(done.load(Ordering::SeqCst), 1);
}

/// The same checks that the planted bugs have to fail.
pub async fn the_checks_hold(place: Place) {
    for check in checks::ALL {
        let subject = Subject::new(place.store().await, place.clock.clone());
        check.run(&subject).await.unwrap_or_else(|violation| panic!("{check:?}: {violation}"));
    }
}
