//! Cuts: what becomes a push, and what is kept for later.

use crate::billed::{Billed, after, quantity, told, window};
use crate::fixture::{Fixture, event, tenant_id};
use counterfoil::rules::billing::Mode;
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::submission::{Class, PushState};
use counterfoil::rules::timestamp::Timestamp;
use counterfoil::rules::window::Window;
use counterfoil::store::push::CutOrder;

pub async fn three_calls_with_one_lease(f: Fixture) {
    let billed = Billed::start(f).await;
    let hours: Vec<i64> = (0..20).collect();
    for hour in &hours {
        billed.used(&format!("t{hour}"), "tokens", "2", *hour).await;
        billed.used(&format!("s{hour}"), "single", "2", *hour).await;
    }
    let mut orders = billed.orders("acme", "tokens", &hours).await;
    orders.extend(billed.orders("acme", "single", &hours).await);
    let outbound = billed.f.store.clone();
    let cut = || outbound.record_cuts(&billed.lease, orders.clone(), billed.terms);
    let (a, b, c) = tokio::join!(cut(), cut(), cut());
    let reports = [a.unwrap(), b.unwrap(), c.unwrap()];
    assert_eq!(reports.iter().map(|report| report.pushes).sum::<u64>(), 40);
    let pushes = billed.pushes().await;
    assert!(pushes.iter().all(|push| push.revision == 1) && pushes.len() == 40);
}

pub async fn a_late_event_makes_a_revision(f: Fixture) {
    let mut billed = Billed::with_acme(f).await;
    billed.used("e1", "tokens", "10", 0).await;
    assert_eq!(billed.cut("tokens", &[0]).await, 1);
    let first = billed.pushes().await.remove(0);
    assert_eq!((first.state, first.class), (PushState::Observed, Class::Cut));
    assert_eq!((first.window, first.mode, first.shadow), (window(0), Mode::Delta, false));
    assert_eq!(first.stamped_at, after(window(0).start, 30));
    assert_eq!((first.created_at, first.due_at), (billed.f.now, billed.f.now));
    assert_eq!(first.key.len(), 44);
    for _ in 0..2 {
        assert_eq!(billed.cut("tokens", &[0, 1, 2]).await, 0, "nothing has changed");
        billed.f.restart().await;
    }
    billed.used("e2", "tokens", "2.5", 0).await;
    assert_eq!(billed.cut("tokens", &[0]).await, 1);
    assert_eq!(billed.told().await, told(&[(1, "10", "10"), (2, "2.5", "2.5")]));
    assert_eq!(billed.push(first.number).await, first, "what was planned never changes");
    assert_ne!(billed.pushes().await[1].key, first.key);
    let state = billed.state("tokens", 0).await.unwrap();
    assert_eq!((state.count, state.revision), (2, 2));
    assert_eq!((state.total, state.planned), (quantity("12.5"), quantity("12.5")));
}

pub async fn trials_are_not_billed(f: Fixture) {
    let billed = Billed::start(f).await;
    let at = after(window(0).start, 5).to_string();
    let stamped = |id: &str, quantity: &str, stamp: &str| {
        event("acme", id, "tokens", quantity, &at, "{}")
            .replace(r#""properties""#, &format!(r#"{stamp}"properties""#))
    };
    let batch = [
        stamped("e1", "1", r#""trial":true,"#),
        stamped("e2", "2", r#""subscription":"sub_b","#),
        stamped("e3", "4", r#""subscription":"sub_a","#),
        stamped("e4", "8", r#""subscription":"sub_a","trial":true,"#),
        stamped("e5", "0.5", ""),
        stamped("e6", "0.25", r#""subscription":"sub_a","#),
    ];
    billed.f.deliver(&batch).await;
    assert_eq!(billed.cut("tokens", &[0]).await, 1);
    let push = billed.pushes().await.remove(0);
    assert_eq!(push.quantity, quantity("6.75"));
    assert_eq!(push.subscriptions, r#"{"":"0.5","sub_a":"4.25","sub_b":"2"}"#);
    assert_eq!(billed.state("tokens", 0).await.unwrap().count, 6);
    billed.f.deliver(&[stamped("e7", "9", r#""trial":true,"#)]).await;
    assert_eq!(billed.cut("tokens", &[0]).await, 0);
    let state = billed.state("tokens", 0).await.unwrap();
    assert_eq!((state.count, state.revision, state.total), (7, 1, quantity("6.75")));
}

pub async fn absolute_totals_are_sent_whole(f: Fixture) {
    let billed = Billed::start(f).await;
    for (id, used) in [("e1", "10.27"), ("e2", "0.02"), ("e3", "5")] {
        billed.used(id, "peak", used, 0).await;
        billed.cut("peak", &[0]).await;
    }
    assert_eq!(billed.told().await, told(&[(1, "10.2", "10.2"), (2, "5", "15.2")]));
    assert_eq!(billed.remainder("acme", "peak", false).await, quantity("0.09"));
    assert!(billed.pushes().await.iter().all(|push| push.mode == Mode::Absolute));
}

pub async fn remainders_are_carried_over_windows(f: Fixture) {
    let mut billed = Billed::start(f).await;
    for hour in 0..58 {
        billed.used(&format!("e{hour}"), "whole", "0.768", hour).await;
        billed.cut("whole", &[hour]).await;
        if hour == 30 {
            billed.f.restart().await;
        }
    }
    // 58 x 0.768 = 44.544
    let pushes = billed.pushes().await;
    let sum: i128 = pushes.iter().map(|push| push.quantity.units()).sum();
    assert_eq!(Quantity::from_units(sum), quantity("44"));
    assert!(pushes.iter().all(|push| push.quantity == Quantity::ONE));
    assert_eq!(billed.remainder("acme", "whole", false).await, quantity("0.544"));
    assert_eq!(billed.remainder("acme", "whole", true).await, Quantity::ZERO);
    assert_eq!(billed.remainder("nobody", "whole", false).await, Quantity::ZERO);
    // A carried window has a state and no push.
    let state = billed.state("whole", 0).await.unwrap();
    assert_eq!((state.count, state.revision, state.total), (1, 0, quantity("0.768")));
}

pub async fn days_are_cut_as_one(f: Fixture) {
    let billed = Billed::start(f).await;
    for (id, hour) in [("e1", 0), ("e2", 9), ("e3", 23), ("next", 24)] {
        billed.used(id, "daily", "1.5", hour).await;
    }
    let day = Window { start: window(0).start, end: window(23).end };
    let meter = billed.f.meter_no("daily").await;
    let order = CutOrder { tenant: tenant_id("acme"), meter, window: day, recut: false };
    let report = billed.f.store.record_cuts(&billed.lease, vec![order], billed.terms).await;
    assert_eq!(report.unwrap().pushes, 1);
    let push = billed.pushes().await.remove(0);
    assert_eq!((push.window, push.quantity), (day, quantity("4.5")));
    assert_eq!(push.stamped_at, window(12).start);
}

pub async fn each_event_is_a_push(f: Fixture) {
    let mut billed = Billed::start(f).await;
    let start = window(0).start;
    let stamp = |seconds: i64| start.saturating_add_micros(seconds * 1_000_000);
    let click = |id: &str, seconds: i64| {
        event("acme", id, "clicks", "1", &stamp(seconds).to_string(), "{}")
    };
    let trial = click("trial", 7).replace(r#""properties""#, r#""trial":true,"properties""#);
    billed.f.deliver(&[click("b", 60), click("a", 0), trial, click("c", 3599)]).await;
    assert_eq!(billed.cut("clicks", &[0]).await, 3);
    assert_eq!(billed.cut("clicks", &[0]).await, 0);
    // One that comes late and lies between.
    billed.f.deliver(&[click("late", 30)]).await;
    assert_eq!(billed.cut("clicks", &[0]).await, 1);
    billed.f.restart().await;
    assert_eq!(billed.cut("clicks", &[0]).await, 0);
    let found: Vec<(String, u32, Timestamp)> = billed
        .pushes()
        .await
        .into_iter()
        .map(|push| (push.event.unwrap().to_string(), push.revision, push.stamped_at))
        .collect();
    let expected = [("a", 1, 1), ("b", 2, 60), ("c", 3, 3599), ("late", 4, 30)];
    assert_eq!(found, expected.map(|(id, revision, at)| (id.to_owned(), revision, stamp(at))));
    let state = billed.state("clicks", 0).await.unwrap();
    assert_eq!((state.count, state.total, state.planned), (5, quantity("4"), quantity("4")));
}

pub async fn carried_events_are_added_once(f: Fixture) {
    let billed = Billed::start(f).await;
    let start = window(0).start;
    let used = |id: &str, quantity: &str, minute: i64| {
        event("acme", id, "single", quantity, &after(start, minute).to_string(), "{}")
    };
    let batch = [used("a", "0.4", 1), used("b", "0", 2), used("c", "0.4", 3), used("d", "0.4", 4)];
    billed.f.deliver(&batch).await;
    for _ in 0..3 {
        billed.cut("single", &[0]).await;
        assert_eq!(billed.told().await, told(&[(1, "1", "1")]));
        assert_eq!(billed.remainder("acme", "single", false).await, quantity("0.2"));
    }
    assert_eq!(billed.pushes().await[0].event.as_ref().unwrap().as_str(), "d");
    billed.f.deliver(&[used("e", "0.7", 0), used("f", "0.1", 9)]).await;
    for _ in 0..2 {
        billed.cut("single", &[0]).await;
        assert_eq!(billed.remainder("acme", "single", false).await, Quantity::ZERO);
    }
    assert_eq!(billed.told().await, told(&[(1, "1", "1"), (2, "1", "1")]));
    let state = billed.state("single", 0).await.unwrap();
    assert_eq!((state.count, state.total, state.planned), (6, quantity("2"), quantity("2")));
}

pub async fn events_beyond_the_limit_are_left(f: Fixture) {
    let mut billed = Billed::start(f).await;
    billed.terms.events_max = 4;
    for n in 0..10 {
        billed.used(&format!("e{n}"), "clicks", "1", 0).await;
    }
    let orders = billed.orders("acme", "clicks", &[0]).await;
    for (pushes, finished) in [(4, false), (4, false), (2, true), (0, true)] {
        let report = billed.cut_of("acme", "clicks", &[0]).await;
        assert_eq!(report.pushes, pushes);
        assert_eq!(report.unfinished, if finished { Vec::new() } else { orders.clone() });
        billed.f.restart().await;
    }
    let mut events: Vec<String> =
        billed.pushes().await.into_iter().map(|push| push.event.unwrap().to_string()).collect();
    events.sort();
    events.dedup();
    assert_eq!(events.len(), 10);
    assert_eq!(billed.state("clicks", 0).await.unwrap().count, 10);
}

pub async fn shadow_is_decided_by_the_first_cut(f: Fixture) {
    let mut billed = Billed::start(f).await;
    for (meter, pushes) in [("tokens", 1), ("clicks", 1)] {
        let id = |n: u32| format!("{meter}{n}");
        billed.terms.shadow = true;
        billed.used(&id(1), meter, "1", 0).await;
        assert_eq!(billed.cut(meter, &[0]).await, pushes);
        billed.terms.shadow = false;
        billed.used(&id(2), meter, "1", 1).await;
        assert_eq!(billed.cut(meter, &[1]).await, pushes);
        // Late events, each under the other value.
        billed.used(&id(3), meter, "1", 0).await;
        assert_eq!(billed.cut(meter, &[0]).await, 0);
        billed.terms.shadow = true;
        billed.used(&id(4), meter, "1", 1).await;
        assert_eq!(billed.cut(meter, &[1]).await, 0);
        for (hour, shadow) in [(0, true), (1, false)] {
            let state = billed.state(meter, hour).await.unwrap();
            assert_eq!((state.shadow, state.count, state.revision), (shadow, 2, 1));
            assert_eq!((state.total, state.planned), (quantity("2"), quantity("1")));
            let remainder = billed.remainder("acme", meter, shadow).await;
            assert_eq!(remainder, quantity("1"), "planned and remainder are the total");
        }
        // The next cut of its kind sends what has waited.
        billed.terms.shadow = false;
        billed.used(&id(5), meter, "1", 2).await;
        assert_eq!(billed.cut(meter, &[2]).await, 1);
        let last = billed.pushes().await.pop().unwrap();
        assert_eq!((last.quantity, last.shadow), (quantity("2"), false));
        assert_eq!(billed.remainder("acme", meter, false).await, Quantity::ZERO);
    }
    let shadows: Vec<bool> = billed.pushes().await.iter().map(|push| push.shadow).collect();
    assert_eq!(shadows, [true, false, false, true, false, false]);
}

pub async fn what_is_not_billed_is_not_cut(f: Fixture) {
    let billed = Billed::start(f).await;
    billed.used("e1", "calls", "1", 0).await;
    assert_eq!(billed.cut("calls", &[0]).await, 0);
    assert_eq!(billed.state("calls", 0).await, None);
    for meter in ["tokens", "clicks"] {
        assert_eq!(billed.cut_of("nobody", meter, &[0, 1]).await, Default::default());
    }
    assert_eq!(billed.told().await, []);
}

pub async fn marks_move_and_stay(f: Fixture) {
    let mut billed = Billed::start(f).await;
    let (tokens, peak) = (billed.f.meter_no("tokens").await, billed.f.meter_no("peak").await);
    let mark = |minute| after(billed.f.now, minute);
    for (meter, at) in [(tokens, mark(1)), (peak, mark(2)), (tokens, mark(3))] {
        assert!(billed.f.store.record_cut_mark(&billed.lease, meter, at).await.unwrap());
    }
    let expected = [(tokens, mark(3)), (peak, mark(2))];
    billed.f.restart().await;
    let mut marks = billed.f.store.read_cut_marks().await.unwrap();
    marks.sort();
    assert_eq!(marks, expected);
}
