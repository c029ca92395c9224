//! Pushes of tenants without a customer: they wait, are summed, and are released in their order.

use crate::billed::{Billed, after, quantity, window};
use crate::fixture::{Fixture, tenant_id};
use counterfoil::rules::span::Span;
use counterfoil::rules::submission::{Class, PushState};
use counterfoil::rules::timestamp::Timestamp;
use counterfoil::store::push::{PushAges, PushCounts, PushRelease, UnmappedSum, UnsentUsage};
use std::sync::Arc;

async fn counts(billed: &Billed) -> PushCounts {
    let at = after(billed.f.now, 60);
    let ages = PushAges { observed_before: at, submitted_before: at };
    billed.f.store.count_pushes(ages).await.unwrap()
}

fn sum(tenants: u64, pushes: u64, text: &str) -> UnmappedSum {
    UnmappedSum { tenants, pushes, quantity: quantity(text) }
}

async fn release(billed: &Billed, now: Timestamp, limit: usize) -> usize {
    let stamp_age_max = Some(Span::from_hours(34 * 24));
    billed.f.store.release_pushes(PushRelease { now, stamp_age_max, limit }).await.unwrap()
}

pub async fn usage_without_a_customer_waits_and_is_summed(f: Fixture) {
    let mut billed = Billed::start(f).await;
    let (tokens, single) = (billed.f.meter_no("tokens").await, billed.f.meter_no("single").await);
    for tenant in ["acme", "hooli"] {
        for hour in 0..3 {
            billed.planned(tenant, &format!("{tenant}-t{hour}"), "tokens", "1.5", hour).await;
        }
    }
    billed.planned("acme", "s", "single", "4", 0).await;
    billed.f.restart().await;
    assert!(billed.pushes().await.iter().all(|push| push.state == PushState::Waiting));
    assert_eq!(billed.claim(1).await, []);
    assert_eq!(release(&billed, billed.f.now, 100).await, 0, "there is no customer");
    let counted = counts(&billed).await;
    assert_eq!((counted.observed, counted.dead), (0, 0));
    let expected = [(tokens, sum(2, 6, "9")), (single, sum(1, 1, "4"))];
    assert_eq!(counted.without_customer, expected.into_iter().collect());
    // What is only compared waits too, and is in no sum.
    billed.terms.shadow = true;
    billed.planned("hooli", "shadow", "tokens", "8", 5).await;
    assert_eq!(counts(&billed).await, counted);
    billed.f.customer("hooli", "cus_hooli").await;
    assert_eq!(release(&billed, billed.f.now, 100).await, 4);
    let counted = counts(&billed).await;
    assert_eq!(counted.observed, 3);
    let expected = [(tokens, sum(1, 3, "4.5")), (single, sum(1, 1, "4"))];
    assert_eq!(counted.without_customer, expected.into_iter().collect());
}

pub async fn usage_too_old_to_be_sent_is_one_figure(f: Fixture) {
    let billed = Billed::start(f).await;
    for hour in 0..5 {
        billed.planned("acme", &format!("t{hour}"), "tokens", "1.5", hour).await;
    }
    billed.f.customer("acme", "cus_acme").await;
    // Stamps lie at half past: those of hours 0 to 2 are 34 days old by then.
    let now = Span::from_hours(34 * 24).after(after(window(2).start, 45));
    assert_eq!(release(&billed, now, 100).await, 5);
    assert_eq!(release(&billed, now, 100).await, 0);
    let states: Vec<_> =
        billed.pushes().await.iter().map(|push| (push.state, push.class)).collect();
    let closed = (PushState::Replaced, Class::NotSent);
    let due = (PushState::Observed, Class::Cut);
    assert_eq!(states, [closed, closed, closed, due, due]);
    let tokens = billed.f.meter_no("tokens").await;
    let counted = counts(&billed).await;
    assert_eq!((counted.dead, counted.unbilled), (0, vec![]), "no dead letters");
    assert_eq!(counted.without_customer, Default::default());
    assert_eq!(counted.unsent, [(tokens, sum(1, 3, "4.5"))].into_iter().collect());
    let unsent = async |since| billed.f.store.list_unsent_usage(since, 10).await.unwrap();
    let figure = UnsentUsage {
        tenant: tenant_id("acme"),
        meter: tokens,
        pushes: 3,
        quantity: quantity("4.5"),
    };
    assert_eq!(unsent(now).await, [figure]);
    assert_eq!(unsent(after(now, 1)).await, []);
}

pub async fn revisions_are_released_in_their_order(f: Fixture) {
    let billed = Billed::start(f).await;
    for (id, used) in [("e1", "10"), ("e2", "2"), ("e3", "3")] {
        billed.planned("acme", id, "peak", used, 0).await;
    }
    billed.f.customer("acme", "cus_acme").await;
    assert_eq!(release(&billed, billed.f.now, 1).await, 1);
    // A total that is cut now waits behind the earlier ones: sent before them, it would be lost.
    billed.planned("acme", "e4", "peak", "4", 0).await;
    assert_eq!(billed.pushes().await[3].state, PushState::Waiting);
    for (minute, value) in [(1, "10"), (2, "12"), (3, "15"), (4, "19")] {
        let claimed = billed.claim_one(minute).await;
        assert_eq!(claimed.push.value, quantity(value));
        billed.finish(&claimed, billed.accepted(minute), minute).await;
        release(&billed, after(billed.f.now, minute), 1).await;
    }
    assert_eq!(release(&billed, billed.f.now, 1).await, 0);
    billed.planned("acme", "e5", "peak", "1", 0).await;
    assert_eq!(billed.pushes().await[4].state, PushState::Observed, "nothing waits any more");
}

pub async fn a_customer_given_while_windows_are_cut_leaves_nothing_waiting(f: Fixture) {
    let billed = Arc::new(Billed::start(f).await);
    for round in 0..20 {
        let tenant = format!("tenant-{round}");
        for hour in 0..4 {
            let id = format!("{tenant}-{hour}");
            billed.used_by(&tenant, &id, "tokens", "1", hour).await;
        }
        let (own, named) = (Arc::clone(&billed), tenant.clone());
        let cutting = tokio::spawn(async move {
            for hour in 0..4 {
                own.cut_of(&named, "tokens", &[hour]).await;
            }
        });
        billed.f.customer(&tenant, &format!("cus_{tenant}")).await;
        cutting.await.unwrap();
        while release(&billed, billed.f.now, 100).await > 0 {}
    }
    let pushes = billed.pushes().await;
    assert_eq!(pushes.len(), 80);
    assert!(pushes.iter().all(|push| push.state == PushState::Observed));
    assert_eq!(counts(&billed).await.without_customer, Default::default());
}
