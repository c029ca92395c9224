//! Sagas and their logs, holds on pushes, subscription records.

use crate::accounts::key;
use crate::billed::{Billed, HOUR_MICROS, after, window};
use crate::fixture::{Fixture, at_once, claim_at_once, event, tenant_id};
use counterfoil::jobs::unbilled::{Cause, Slow, Unbilled};
use counterfoil::rules::ids::{MeterNo, SubscriptionId};
use counterfoil::rules::saga::{LogLine, Mark, Saga, SagaKind, SagaState, saga_id};
use counterfoil::rules::submission::{Class, Next};
use counterfoil::rules::timestamp::Timestamp;
use counterfoil::store::Query;
use counterfoil::store::outbox::FeedChange;
use counterfoil::store::push::{PushAges, SubmittedWindow};
use counterfoil::store::saga::{
    Begun, ClaimedSaga, NewSaga, Resumed, SagaFilter, SagaProgress, SubscriptionRecord,
};
use std::sync::Arc;

pub fn new_saga(tenant: &str, once: &str) -> NewSaga {
    let (tenant, key) = (tenant_id(tenant), key(once));
    let id = saga_id(&[7; 32], &tenant, &key);
    let params = r#"{"plan":"pro"}"#.to_owned();
    NewSaga { id, kind: SagaKind::ChangePlan, tenant, key, params }
}

async fn begin(f: &Fixture, tenant: &str, once: &str) -> Begun {
    f.store.begin_saga(new_saga(tenant, once), f.now, None).await.unwrap()
}

async fn begun(f: &Fixture, tenant: &str, once: &str) -> Saga {
    match begin(f, tenant, once).await {
        Begun::Created(saga) => saga,
        other => panic!("{other:?}"),
    }
}

/// Claims what is due so many minutes after now, for ten minutes.
async fn claim(f: &Fixture, minute: i64) -> Vec<ClaimedSaga> {
    let (now, until) = (after(f.now, minute), after(f.now, minute + 10));
    f.store.claim_sagas(now, until, 100).await.unwrap()
}

async fn claim_one(f: &Fixture, minute: i64) -> ClaimedSaga {
    let mut claimed = claim(f, minute).await;
    assert_eq!(claimed.len(), 1, "one saga can be claimed");
    claimed.remove(0)
}

fn line(f: &Fixture, step: u32, mark: Mark, minute: i64) -> LogLine {
    LogLine {
        generation: 1,
        step,
        name: format!("step {step}"),
        mark,
        result: (mark == Mark::Done).then(|| format!(r#"{{"made":{step}}}"#)),
        detail: (mark == Mark::Failed).then(|| "HTTP 500".to_owned()),
        at: after(f.now, minute),
    }
}

/// In this state, due so many minutes after now; the claimant goes on working on it.
fn standing(f: &Fixture, state: SagaState, minute: i64) -> SagaProgress {
    let (due_at, lease_until) = (after(f.now, minute), Some(after(f.now, minute + 10)));
    SagaProgress { state, tries: 0, due_at, detail: None, lease_until }
}

async fn write(
    f: &Fixture,
    claimed: &ClaimedSaga,
    lines: Vec<LogLine>,
    standing: SagaProgress,
    minute: i64,
) -> bool {
    let claim = (claimed.saga.number, claimed.fence);
    let at = after(f.now, minute);
    f.store.record_saga(claim, lines, standing, Vec::new(), at).await.unwrap()
}

/// The same, given back by the claimant.
fn given_back(f: &Fixture, state: SagaState, minute: i64) -> SagaProgress {
    SagaProgress { lease_until: None, ..standing(f, state, minute) }
}

/// Ends the tenant's saga in this state.
async fn end(f: &Fixture, state: SagaState, minute: i64) {
    let claimed = claim_one(f, minute).await;
    assert!(write(f, &claimed, Vec::new(), given_back(f, state, minute), minute).await);
}

async fn find(f: &Fixture, id: &str) -> (Saga, Vec<LogLine>) {
    f.store.find_saga(id).await.unwrap().unwrap()
}

pub async fn a_saga_is_begun_once(mut f: Fixture) {
    let saga = begun(&f, "fresh", "s1").await;
    let new = new_saga("fresh", "s1");
    let expected = Saga {
        number: saga.number,
        id: new.id.clone(),
        kind: SagaKind::ChangePlan,
        tenant: tenant_id("fresh"),
        key: key("s1"),
        params: new.params.clone(),
        state: SagaState::Running,
        generation: 1,
        tries: 0,
        due_at: f.now,
        detail: None,
        created_at: f.now,
        state_at: f.now,
    };
    assert_eq!(saga, expected);
    assert!(f.store.find_tenant(&tenant_id("fresh")).await.unwrap().is_some());
    f.restart().await;
    let later = after(f.now, 3);
    let again = async |new| f.store.begin_saga(new, later, None).await.unwrap();
    assert_eq!(again(new.clone()).await, Begun::Repeated(saga.clone()));
    let others = [
        NewSaga { params: "{}".to_owned(), ..new.clone() },
        NewSaga { kind: SagaKind::CancelSubscription, ..new.clone() },
    ];
    for other in others {
        assert_eq!(again(other).await, Begun::KeyTaken(saga.clone()));
    }
    assert_eq!(begin(&f, "fresh", "s2").await, Begun::Busy(saga.clone()));
    assert_eq!(f.store.find_saga(&new_saga("fresh", "s2").id).await.unwrap(), None);
    assert_eq!(find(&f, &new.id).await, (saga, Vec::new()));
    // The same key of another tenant is another.
    let theirs = begun(&f, "umbrella", "s1").await;
    assert_ne!(theirs.id, new.id);
    // Once it has ended, another may begin, and the first is still itself.
    for claimed in claim(&f, 0).await {
        let ended = given_back(&f, SagaState::Completed, 0);
        assert!(write(&f, &claimed, Vec::new(), ended, 1).await);
    }
    begun(&f, "fresh", "s2").await;
    let Begun::Repeated(first) = again(new).await else { panic!("it was begun before") };
    assert_eq!((first.state, first.state_at), (SagaState::Completed, after(f.now, 1)));
}

pub async fn beginners_at_once_begin_one(f: Fixture) {
    let f = Arc::new(f);
    // Ten keys, each twice.
    let begin =
        |f: Arc<Fixture>, n| async move { begin(&f, "acme", &format!("s{}", n % 10)).await };
    let (mut created, mut repeated, mut busy) = (0, 0, 0);
    for begun in at_once(&f, 0..20, begin).await {
        match begun {
            Begun::Created(_) => created += 1,
            Begun::Repeated(_) => repeated += 1,
            Begun::Busy(_) => busy += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((created, repeated, busy), (1, 1, 18));
    let sagas = f.store.list_sagas(Query::first(SagaFilter::default(), 100)).await.unwrap();
    assert_eq!(sagas.len(), 1);
}

pub async fn a_log_is_written_under_the_fence(mut f: Fixture) {
    let saga = begun(&f, "acme", "s1").await;
    let claimed = claim_one(&f, 0).await;
    assert_eq!((&claimed.saga, claimed.log.as_slice()), (&saga, [].as_slice()));
    assert_eq!(claim(&f, 9).await, vec![], "it is leased");
    let first = vec![line(&f, 0, Mark::Intent, 1)];
    assert!(write(&f, &claimed, first, standing(&f, SagaState::Running, 0), 1).await);
    let lines = vec![line(&f, 0, Mark::Done, 2), line(&f, 1, Mark::Intent, 2)];
    assert!(write(&f, &claimed, lines.clone(), standing(&f, SagaState::Running, 0), 2).await);
    f.restart().await;
    let failed = SagaProgress {
        tries: 3,
        due_at: after(f.now, 8),
        detail: Some("HTTP 500".to_owned()),
        ..given_back(&f, SagaState::Running, 0)
    };
    let tried = vec![line(&f, 1, Mark::Failed, 3)];
    assert!(write(&f, &claimed, tried, failed, 3).await);
    let (stored, log) = find(&f, &saga.id).await;
    let marks: Vec<(u32, Mark)> = log.iter().map(|line| (line.step, line.mark)).collect();
    let expected = [(0, Mark::Intent), (0, Mark::Done), (1, Mark::Intent), (1, Mark::Failed)];
    assert_eq!(marks, expected);
    assert_eq!(log[1..3], lines);
    assert_eq!((stored.tries, stored.detail.as_deref()), (3, Some("HTTP 500")));
    assert_eq!((stored.due_at, stored.state_at), (after(f.now, 8), f.now));
    // It was given back: whoever claims it next has it, and not before it is due.
    assert!(!write(&f, &claimed, Vec::new(), standing(&f, SagaState::Running, 0), 4).await);
    assert_eq!(claim(&f, 7).await, vec![]);
    let next = claim_one(&f, 8).await;
    assert!(next.fence > claimed.fence);
    assert_eq!((next.log, next.saga), (log, stored));
}

pub async fn a_stale_claimant_is_refused(f: Fixture) {
    begun(&f, "acme", "s1").await;
    let first = claim_one(&f, 0).await;
    assert_eq!(claim(&f, 9).await, vec![]);
    // A lease that is over and that nobody else has taken is still the claimant's.
    let intent = vec![line(&f, 0, Mark::Intent, 11)];
    let running = standing(&f, SagaState::Running, 0);
    assert!(write(&f, &first, intent, running.clone(), 11).await);
    let second = claim_one(&f, 12).await;
    assert_eq!(second.log.len(), 1);
    let changes = vec![FeedChange {
        key: "stale".to_owned(),
        kind: "saga.completed",
        tenant: Some(tenant_id("acme")),
        payload: "{}".to_owned(),
    }];
    let (number, done) = (first.saga.number, vec![line(&f, 0, Mark::Done, 13)]);
    let completed = SagaProgress { state: SagaState::Completed, ..running.clone() };
    let stale = f.store.record_saga((number, first.fence), done, completed, changes, f.now).await;
    assert!(!stale.unwrap());
    let unheard = f.store.record_saga((number + 1, 1), Vec::new(), running, Vec::new(), f.now);
    assert!(!unheard.await.unwrap(), "there is none of this number");
    let (saga, log) = find(&f, &first.saga.id).await;
    assert_eq!((saga.state, log.len()), (SagaState::Running, 1), "nothing was written");
    assert_eq!(f.store.list_changes(Query::first(None, 10)).await.unwrap(), []);
}

pub async fn a_saga_ends_with_its_change(f: Fixture) {
    begun(&f, "acme", "s1").await;
    let claimed = claim_one(&f, 0).await;
    let change = FeedChange {
        key: format!("saga:{}:1:completed", claimed.saga.id),
        kind: "saga.completed",
        tenant: Some(tenant_id("acme")),
        payload: r#"{"saga":1}"#.to_owned(),
    };
    let ended = given_back(&f, SagaState::Completed, 2);
    let claim_of = (claimed.saga.number, claimed.fence);
    let (done, at) = (vec![line(&f, 0, Mark::Done, 2)], after(f.now, 2));
    let told = vec![change.clone(), change.clone()];
    assert!(f.store.record_saga(claim_of, done, ended, told, at).await.unwrap());
    let changes = f.store.list_changes(Query::first(Some(tenant_id("acme")), 10)).await.unwrap();
    assert_eq!(changes.len(), 1);
    assert_eq!((&changes[0].id, changes[0].at), (&change.id(), at));
    assert_eq!(claim(&f, 60).await, vec![], "there is nothing left to do");
    let again = write(&f, &claimed, Vec::new(), standing(&f, SagaState::Running, 3), 3).await;
    assert!(!again, "what has ended is not moved by a runner");
    assert_eq!(find(&f, &claimed.saga.id).await.0.state, SagaState::Completed);
}

pub async fn claimants_at_once_share_nothing(f: Fixture) {
    for n in 0..30 {
        begun(&f, &format!("tenant {n}"), "s").await;
    }
    let numbers = claim_at_once(f, |f| async move {
        let claimed = f.store.claim_sagas(f.now, after(f.now, 10), 4).await.unwrap();
        claimed.iter().map(|claimed| claimed.saga.number).collect::<Vec<_>>()
    });
    assert_eq!(numbers.await.len(), 30);
}

pub async fn those_longest_due_go_first(f: Fixture) {
    for (tenant, minute) in [("a", 5), ("b", 3), ("c", 4), ("d", 90)] {
        begun(&f, tenant, "s").await;
        let claimed = claim_one(&f, 0).await;
        let waiting = given_back(&f, SagaState::Running, minute);
        assert!(write(&f, &claimed, Vec::new(), waiting, 0).await);
    }
    let (now, until) = (after(f.now, 10), after(f.now, 20));
    let first = f.store.claim_sagas(now, until, 2).await.unwrap();
    let rest = f.store.claim_sagas(now, until, 2).await.unwrap();
    let tenants = |claimed: &[ClaimedSaga]| -> Vec<String> {
        claimed.iter().map(|claimed| claimed.saga.tenant.to_string()).collect()
    };
    assert_eq!((tenants(&first), tenants(&rest)), {
        (vec!["b".to_owned(), "c".to_owned()], vec!["a".to_owned()])
    });
}

pub async fn a_saga_is_resumed(f: Fixture) {
    let saga = begun(&f, "acme", "s1").await;
    let resume = async |id: &str, minute| f.store.resume_saga(id, after(f.now, minute)).await;
    assert!(matches!(resume(&saga.id, 1).await.unwrap(), Resumed::Refused(_)), "under way");
    assert_eq!(resume("saga_none", 1).await.unwrap(), Resumed::NotFound);
    // It needs an operator before it has turned back: it goes on.
    let claimed = claim_one(&f, 1).await;
    let stuck = SagaProgress {
        tries: 12,
        due_at: after(f.now, 500),
        ..standing(&f, SagaState::NeedsAttention, 1)
    };
    assert!(write(&f, &claimed, vec![line(&f, 0, Mark::Intent, 1)], stuck, 1).await);
    assert_eq!(claim(&f, 600).await, vec![], "no runner takes it up");
    let Resumed::Done(resumed) = resume(&saga.id, 2).await.unwrap() else { panic!("it may be") };
    assert_eq!((resumed.state, resumed.generation, resumed.tries), (SagaState::Running, 1, 0));
    assert_eq!((resumed.due_at, resumed.state_at), (after(f.now, 2), after(f.now, 2)));
    let stale = write(&f, &claimed, Vec::new(), standing(&f, SagaState::Running, 3), 3).await;
    assert!(!stale, "its lease ended with the resume");
    let (stored, log) = find(&f, &saga.id).await;
    assert_eq!(stored, resumed);
    let expected = LogLine {
        generation: 1,
        step: 0,
        name: "saga".to_owned(),
        mark: Mark::Resumed,
        result: None,
        detail: None,
        at: after(f.now, 2),
    };
    assert_eq!((log.len(), log.last()), (2, Some(&expected)));
    // After it has turned back: it goes on undoing.
    let claimed = claim_one(&f, 2).await;
    let back = vec![line(&f, 0, Mark::TurnedBack, 3)];
    assert!(write(&f, &claimed, back, standing(&f, SagaState::NeedsAttention, 3), 3).await);
    let Resumed::Done(resumed) = resume(&saga.id, 4).await.unwrap() else { panic!("it may be") };
    assert_eq!((resumed.state, resumed.generation), (SagaState::Compensating, 1));
    // Everything is undone: it starts anew in the next generation.
    end(&f, SagaState::Compensated, 5).await;
    let other = begun(&f, "acme", "s2").await;
    assert_eq!(resume(&saga.id, 6).await.unwrap(), Resumed::Busy(other));
    end(&f, SagaState::Completed, 6).await;
    let Resumed::Done(resumed) = resume(&saga.id, 7).await.unwrap() else { panic!("it may be") };
    assert_eq!((resumed.state, resumed.generation), (SagaState::Running, 2));
    let (_, log) = find(&f, &saga.id).await;
    let last = log.last().unwrap();
    assert_eq!((last.mark, last.generation, last.at), (Mark::Resumed, 2, after(f.now, 7)));
    end(&f, SagaState::Completed, 8).await;
    assert!(matches!(resume(&saga.id, 9).await.unwrap(), Resumed::Refused(_)), "completed");
}

pub async fn resumes_and_beginnings_at_once_open_one(f: Fixture) {
    for round in 0..5 {
        let tenant = format!("tenant {round}");
        begun(&f, &tenant, "old").await;
        end(&f, SagaState::Compensated, 0).await;
        let old = new_saga(&tenant, "old").id;
        let (resumed, begun) =
            tokio::join!(f.store.resume_saga(&old, f.now), begin(&f, &tenant, "new"));
        let opened = match (resumed.unwrap(), begun) {
            (Resumed::Done(saga), Begun::Busy(other)) => [saga.id, other.id],
            (Resumed::Busy(other), Begun::Created(saga)) => [saga.id, other.id],
            other => panic!("{other:?}"),
        };
        assert_eq!(opened[0], opened[1]);
        end(&f, SagaState::Completed, 0).await;
    }
}

pub async fn pages_and_filters(f: Fixture) {
    for (tenant, once) in [("a", "1"), ("b", "1"), ("a", "2"), ("a", "3")] {
        begun(&f, tenant, once).await;
        end(&f, SagaState::Completed, 0).await;
    }
    begun(&f, "a", "4").await;
    let list = async |query: Query<SagaFilter>| -> Vec<String> {
        let sagas = f.store.list_sagas(query).await.unwrap();
        sagas.into_iter().map(|saga| format!("{}{}", saga.tenant, saga.key)).collect()
    };
    let all = Query::first(SagaFilter::default(), 10);
    assert_eq!(list(all.clone()).await, ["a4", "a3", "a2", "b1", "a1"]);
    let of_a = Query::first(SagaFilter { tenant: Some(tenant_id("a")), state: None }, 10);
    assert_eq!(list(of_a.clone()).await, ["a4", "a3", "a2", "a1"]);
    let (tenant, state) = (Some(tenant_id("a")), Some(SagaState::Completed));
    let ended = Query::first(SagaFilter { tenant, state }, 10);
    assert_eq!(list(ended).await, ["a3", "a2", "a1"]);
    let page = f.store.list_sagas(Query { limit: 2, ..all.clone() }).await.unwrap();
    let before = Some(page[1].number);
    assert_eq!(list(Query { after: before, ..all.clone() }).await, ["a2", "b1", "a1"]);
    assert_eq!(list(Query { after: before, ..of_a }).await, ["a2", "a1"]);
    let nobody = Query::first(SagaFilter { tenant: Some(tenant_id("nobody")), state: None }, 10);
    assert_eq!(list(nobody).await, Vec::<String>::new());
}

// ---------------------------------------------------------------------------------------------
// Holds

pub async fn a_hold_keeps_later_pushes_back(f: Fixture) {
    let mut b = Billed::start(f).await;
    for tenant in ["acme", "umbrella"] {
        b.customer(tenant, &format!("cus_{tenant}")).await;
        for (hour, meter) in [(0, "tokens"), (1, "whole"), (2, "peak")] {
            b.planned(tenant, &format!("e{hour}"), meter, "1", hour).await;
        }
    }
    begun(&b.f, "acme", "1").await;
    let first = claim_one(&b.f, 0).await;
    assert!(put_hold(&b, &first, 1).await);
    // Written again it changes nothing.
    assert!(put_hold(&b, &first, 0).await);
    assert!(write(&b.f, &first, vec![], standing(&b.f, SagaState::Completed, 0), 0).await);
    begun(&b.f, "acme", "2").await;
    let second = claim_one(&b.f, 0).await;
    assert!(put_hold(&b, &second, 2).await);
    b.f.restart().await;
    let claimed = async |b: &Billed, minute: i64| -> Vec<(String, i64)> {
        let mut claimed: Vec<(String, i64)> = b
            .claim(minute)
            .await
            .iter()
            .map(|c| (c.push.tenant.to_string(), c.push.window.start.micros()))
            .collect();
        claimed.sort();
        claimed
    };
    let place = |tenant: &str, hour: i64| (tenant.to_owned(), window(hour).start.micros());
    let others = [0, 1, 2].map(|hour| place("umbrella", hour));
    let mut expected = vec![place("acme", 0)];
    expected.extend(others.clone());
    assert_eq!(claimed(&b, 0).await, expected, "windows from the hold on wait");
    // Leases end after ten minutes; all can be claimed again.
    assert!(b.f.store.release_hold(&first.saga.id).await.unwrap());
    assert!(!b.f.store.release_hold(&first.saga.id).await.unwrap(), "it is gone");
    expected.insert(1, place("acme", 1));
    assert_eq!(claimed(&b, 20).await, expected, "the other hold still stands");
    assert!(b.f.store.release_hold(&second.saga.id).await.unwrap());
    expected.insert(2, place("acme", 2));
    assert_eq!(claimed(&b, 40).await, expected);
}

/// Holds back windows from this hour on, for a saga.
async fn put_hold(b: &Billed, claimed: &ClaimedSaga, hour: i64) -> bool {
    let claim = (claimed.saga.number, claimed.fence);
    b.f.store.put_hold(claim, window(hour).start, b.f.now).await.unwrap()
}

/// Begins a saga of acme that holds back windows from this hour on; returns its id.
async fn held(b: &Billed, hour: i64) -> String {
    begun(&b.f, "acme", "held").await;
    let claimed = claim_one(&b.f, 0).await;
    assert!(put_hold(b, &claimed, hour).await);
    claimed.saga.id
}

/// A runner that wakes up too late leaves no hold behind.
pub async fn a_hold_needs_a_current_claim(f: Fixture) {
    let b = Billed::start(f).await;
    begun(&b.f, "acme", "1").await;
    let stale = claim_one(&b.f, 0).await;
    let current = claim_one(&b.f, 20).await;
    assert!(!put_hold(&b, &stale, 1).await);
    assert!(!b.f.store.release_hold(&current.saga.id).await.unwrap(), "nothing was written");
    assert!(put_hold(&b, &current, 1).await);
    assert!(b.f.store.release_hold(&current.saga.id).await.unwrap());
    let ended = standing(&b.f, SagaState::Compensated, 20);
    assert!(write(&b.f, &current, vec![], ended, 20).await);
    assert!(!put_hold(&b, &current, 1).await, "the saga has ended");
    assert!(!b.f.store.release_hold(&current.saga.id).await.unwrap());
}

/// What a saga holds back is told until the hold is released, and is not told of other tenants,
/// of earlier windows, of shadow pushes, or of what has ended.
pub async fn held_usage_is_among_what_is_not_billed(f: Fixture) {
    let mut b = Billed::start(f).await;
    for tenant in ["acme", "umbrella"] {
        b.customer(tenant, &format!("cus_{tenant}")).await;
    }
    for (hour, meter, amount) in
        [(2, "tokens", "1.5"), (3, "tokens", "20.25"), (4, "tokens", "300"), (4, "whole", "7")]
    {
        b.planned("acme", &format!("{meter}{hour}"), meter, amount, hour).await;
    }
    b.planned("umbrella", "other", "tokens", "4000", 4).await;
    b.planned("nobody", "unmapped", "tokens", "50000", 4).await;
    b.terms.shadow = true;
    b.planned("acme", "shadow", "tokens", "600000", 5).await;
    let (tokens, whole) = (b.f.meter_no("tokens").await, b.f.meter_no("whole").await);
    let sums = async |b: &Billed| -> Vec<(MeterNo, String)> {
        let held = b.f.store.sum_unbilled(vec![]).await.unwrap().held;
        held.into_iter().map(|(meter, sum)| (meter, sum.to_string())).collect()
    };
    assert_eq!(sums(&b).await, []);
    let saga = held(&b, 3).await;
    b.f.restart().await;
    let mut expected = vec![(tokens, "320.25".to_owned()), (whole, "7".to_owned())];
    expected.sort();
    assert_eq!(sums(&b).await, expected);
    let catalog = b.f.store.load_catalog().await.unwrap();
    let slow = Slow::read(&*b.f.store, &catalog).await.unwrap();
    let ages = PushAges { observed_before: b.f.now, submitted_before: b.f.now };
    let counts = b.f.store.count_pushes(ages).await.unwrap();
    let unbilled = Unbilled::of(&counts, &slow).unwrap();
    assert_eq!(unbilled.by_meter[&tokens][&Cause::Held].to_string(), "320.25");
    assert!(b.f.store.release_hold(&saga).await.unwrap());
    assert_eq!(sums(&b).await, []);
}

/// Pushes that are held do not keep others of their tenant and meter waiting.
pub async fn an_earlier_window_passes_a_held_one(f: Fixture) {
    let b = Billed::with_acme(f).await;
    b.planned("acme", "e5", "tokens", "5", 5).await;
    b.planned("acme", "e1", "tokens", "1", 1).await;
    let saga = held(&b, 3).await;
    let claimed = b.claim_one(0).await;
    assert_eq!(claimed.push.window, window(1));
    b.finish(&claimed, b.accepted(0), 0).await;
    assert_eq!(b.claim(1).await, vec![]);
    assert!(b.f.store.release_hold(&saga).await.unwrap());
    assert_eq!(b.claim_one(2).await.push.window, window(5));
}

pub async fn pushes_to_be_sent_are_counted(f: Fixture) {
    let mut b = Billed::with_acme(f).await;
    let count = async |b: &Billed, tenant: &str, hour: i64| {
        b.f.store.count_pushes_before(&tenant_id(tenant), window(hour).start).await.unwrap()
    };
    assert_eq!((count(&b, "acme", 9).await, count(&b, "nobody", 9).await), (0, 0));
    for hour in 0..4 {
        b.planned("acme", &format!("e{hour}"), "tokens", "1", hour).await;
    }
    b.planned("umbrella", "e", "tokens", "1", 0).await;
    b.terms.shadow = true;
    b.planned("acme", "shadow", "whole", "1", 0).await;
    b.terms.shadow = false;
    let counted = [count(&b, "acme", 0).await, count(&b, "acme", 3).await];
    assert_eq!(counted, [0, 3]);
    // One that was begun and whose outcome is unknown counts until it is settled.
    let claimed = b.claim_one(0).await;
    assert_eq!(claimed.push.window, window(0));
    assert!(b.begin(&claimed, 0).await);
    assert_eq!(count(&b, "acme", 3).await, 3);
    assert!(b.settle(&claimed, b.accepted(0), 0).await);
    assert_eq!(count(&b, "acme", 3).await, 2);
    b.send((Class::Refused, Next::Dead), 1).await;
    assert_eq!(count(&b, "acme", 3).await, 1, "a dead one waits for a person");
    assert_eq!(count(&b, "umbrella", 3).await, 1);
}

// ---------------------------------------------------------------------------------------------
// Subscription records

pub fn subscription_record(
    f: &Fixture,
    saga: &str,
    subscription: &str,
    minute: i64,
) -> SubscriptionRecord {
    SubscriptionRecord {
        tenant: tenant_id("acme"),
        subscription: SubscriptionId::parse(subscription).unwrap(),
        plan: format!("plan of {saga}"),
        prices: vec!["price_1".to_owned(), "price \"2\"".to_owned()],
        features: vec!["search".to_owned()],
        access: false,
        suspended: false,
        saga: saga.to_owned(),
        began_at: after(f.now, minute),
        ended_at: None,
    }
}

async fn record(f: &Fixture, record: SubscriptionRecord) {
    f.store.record_subscription(record).await.unwrap();
}

/// Saga, access and end of acme's subscription records, newest first.
async fn agreed(f: &Fixture) -> Vec<(String, bool, Option<i64>)> {
    let listed = f.store.list_subscription_records(&tenant_id("acme"), 100).await.unwrap();
    let minute = |at: Timestamp| (at.micros() - f.now.micros()) / 60_000_000;
    listed.into_iter().map(|a| (a.saga, a.access, a.ended_at.map(minute))).collect()
}

fn row(saga: &str, access: bool, ended: Option<i64>) -> (String, bool, Option<i64>) {
    (saga.to_owned(), access, ended)
}

pub async fn a_subscription_record_is_written_once(mut f: Fixture) {
    let first = subscription_record(&f, "s1", "sub_1", 1);
    // Access comes in a step of its own.
    record(&f, SubscriptionRecord { access: true, ..first.clone() }).await;
    f.restart().await;
    let listed = f.store.list_subscription_records(&tenant_id("acme"), 10).await.unwrap();
    assert_eq!(listed, vec![first.clone()]);
    f.store.set_access("s1", true).await.unwrap();
    f.store.set_access("s0", true).await.unwrap();
    record(&f, first).await;
    assert_eq!(agreed(&f).await, [row("s1", true, None)], "written again, nothing changes");
    f.store.set_access("s1", false).await.unwrap();
    assert_eq!(agreed(&f).await, [row("s1", false, None)]);
    let tenant = tenant_id("umbrella");
    record(&f, SubscriptionRecord { tenant, ..subscription_record(&f, "s2", "sub_2", 2) }).await;
    assert_eq!(agreed(&f).await.len(), 1, "another tenant's");
    assert_eq!(f.store.list_subscription_records(&tenant_id("nobody"), 10).await.unwrap(), []);
}

pub async fn a_subscription_record_replaces_another(f: Fixture) {
    record(&f, subscription_record(&f, "s1", "sub_1", 1)).await;
    record(&f, subscription_record(&f, "other", "sub_2", 1)).await;
    f.store.set_access("s1", true).await.unwrap();
    record(&f, subscription_record(&f, "s2", "sub_1", 5)).await;
    record(&f, subscription_record(&f, "s2", "sub_1", 6)).await;
    let replaced = [row("s2", false, None), row("other", false, None), row("s1", false, Some(5))];
    assert_eq!(agreed(&f).await, replaced);
    f.store.set_access("s2", true).await.unwrap();
    let page = f.store.list_subscription_records(&tenant_id("acme"), 1).await.unwrap();
    assert_eq!((page.len(), page[0].saga.as_str(), page[0].access), (1, "s2", true));
    // Once withdrawn, the one before is as it was.
    for _ in 0..2 {
        f.store.withdraw_subscription("s2").await.unwrap();
        assert_eq!(agreed(&f).await, [row("other", false, None), row("s1", true, None)]);
    }
    // One that took nothing's place is just gone.
    f.store.withdraw_subscription("other").await.unwrap();
    assert_eq!(agreed(&f).await, [row("s1", true, None)]);
    // And it may be made anew.
    f.store.record_subscription(subscription_record(&f, "s2", "sub_1", 9)).await.unwrap();
    assert_eq!(agreed(&f).await, [row("s2", false, None), row("s1", false, Some(9))]);
}

pub async fn a_subscription_record_ends_once(f: Fixture) {
    let subscription = SubscriptionId::parse("sub_1").unwrap();
    f.store.end_subscription(&subscription, f.now).await.unwrap();
    f.store.record_subscription(subscription_record(&f, "s1", "sub_1", 1)).await.unwrap();
    f.store.set_access("s1", true).await.unwrap();
    for minute in [4, 6] {
        f.store.end_subscription(&subscription, after(f.now, minute)).await.unwrap();
        // Its features may be used until then.
        assert_eq!(agreed(&f).await, [row("s1", true, Some(4))]);
    }
    // What ended by itself is not opened again by a withdrawal.
    f.store.record_subscription(subscription_record(&f, "s2", "sub_1", 8)).await.unwrap();
    f.store.withdraw_subscription("s2").await.unwrap();
    assert_eq!(agreed(&f).await, [row("s1", true, Some(4))]);
}

/// Windows, a day and events of the hours in which a subscription begins and ends.
pub async fn stamps_lie_inside_the_subscription(f: Fixture) {
    let b = Billed::with_acme(f).await;
    let at = |hour: i64, minutes: i64| after(window(hour).start, minutes);
    let began_at = at(10, 40);
    let began = SubscriptionRecord { began_at, ..subscription_record(&b.f, "saga_1", "sub_1", 0) };
    record(&b.f, began).await;
    b.f.store.charge_from("saga_1", at(10, 41)).await.unwrap();
    b.f.store.end_subscription(&SubscriptionId::parse("sub_1").unwrap(), at(12, 20)).await.unwrap();
    // The provider charges from 10:41 on what was used from 10:40 on.
    let moments =
        [(9, 30), (10, 30), (10, 40), (10, 50), (11, 30), (12, 10), (12, 20), (12, 50), (13, 30)];
    for (place, (hour, minutes)) in moments.iter().enumerate() {
        let when = at(*hour, *minutes).to_string();
        let quantity = format!("\"{}\"", 10u64.pow(u32::try_from(place).unwrap()));
        let event = event("acme", &format!("e{place}"), "tokens", &quantity, &when, "{}");
        b.f.deliver_one(&event).await;
    }
    b.cut("tokens", &[9, 10, 11, 12, 13]).await;
    // Nobody has agreed to anything with this one.
    b.planned("umbrella", "u10", "tokens", "1", 10).await;
    let pushes = b.pushes().await;
    let stamps: Vec<_> =
        pushes.iter().map(|push| (push.value.to_string(), push.stamped_at)).collect();
    let half = 30_000_000;
    let expected = [
        ("1", at(9, 30)),
        ("10", at(10, 20).saturating_add_micros(half)),
        ("1100", at(10, 50).saturating_add_micros(half)),
        ("10000", at(11, 30)),
        ("100000", at(12, 10)),
        ("11000000", at(12, 40)),
        ("100000000", at(13, 30)),
        ("1", at(10, 30)),
    ];
    assert_eq!(stamps, expected.map(|(value, at)| (value.to_owned(), at)));
}

/// Events that were cut while a hold kept them back, and events that come late.
pub async fn held_pushes_are_stamped_when_the_prices_changed(f: Fixture) {
    let b = Billed::with_acme(f).await;
    b.used("before", "single", "1", 9).await;
    b.used("held", "single", "2", 10).await;
    b.cut("single", &[9, 10]).await;
    let saga = held(&b, 10).await;
    let (began_at, changed_at) = (window(10).start, after(window(10).start, 45));
    let began = SubscriptionRecord { began_at, ..subscription_record(&b.f, &saga, "sub_1", 0) };
    b.f.store.record_subscription(began).await.unwrap();
    for _ in 0..2 {
        b.f.store.charge_from(&saga, changed_at).await.unwrap();
    }
    b.used("late", "single", "4", 10).await;
    b.cut("single", &[10]).await;
    let first = changed_at.saturating_add_micros(1_000_000);
    let stamps: Vec<_> = b.pushes().await.iter().map(|push| push.stamped_at).collect();
    assert_eq!(stamps, [after(window(9).start, 30), first, first]);
}

pub async fn unconfirmed_windows_before_a_boundary_are_listed(f: Fixture) {
    let b = Billed::start(f).await;
    let list = async |limit: usize| -> Vec<(i64, String, usize)> {
        let acme = tenant_id("acme");
        let found = b.f.store.list_unconfirmed_before(&acme, window(3).start, limit).await.unwrap();
        let row = |w: SubmittedWindow| {
            let micros = w.window.start.micros() - window(0).start.micros();
            (micros / HOUR_MICROS, w.expected.to_string(), w.pushes.len())
        };
        found.into_iter().map(row).collect()
    };
    assert_eq!(list(9).await, []);
    b.customer("acme", "cus_acme").await;
    b.customer("umbrella", "cus_umbrella").await;
    let used = [("acme", "a", "1", 2), ("acme", "b", "2", 1), ("umbrella", "c", "4", 1)];
    for (minute, (tenant, id, quantity, hour)) in (0..).zip(used) {
        b.planned(tenant, id, "tokens", quantity, hour).await;
        b.send(b.accepted(minute), minute).await;
    }
    b.planned("acme", "d", "tokens", "8", 3).await;
    b.send(b.accepted(3), 3).await;
    assert_eq!(list(9).await, [(1, "2".into(), 1), (2, "1".into(), 1)]);
    assert_eq!(list(1).await, [(1, "2".into(), 1)]);
}
