//! Alerts, notices and thresholds.

use crate::billed::{after, quantity};
use crate::fixture::{Fixture, at_once, call, claim_at_once, in_pages, tenant_id};
use counterfoil::rules::alert::{Alert, AlertChange, AlertKind, Condition, NoticeEvent};
use counterfoil::rules::ids::MeterNo;
use counterfoil::rules::timestamp::Timestamp;
use counterfoil::store::alert::{
    AlertFilter, PageCounts, Threshold, ThresholdKey, ThresholdKind, ThresholdPeriod,
};
use counterfoil::store::outbox::{ClaimedMessage, Queue, SendOutcome};
use counterfoil::store::{Query, TenantFields};
use std::collections::HashSet;
use std::sync::Arc;

const BOTH: [&str; 2] = ["pager", "chat"];
const DAY_MINUTES: i64 = 24 * 60;

fn condition(kind: AlertKind, subject: &str) -> Condition {
    Condition {
        kind,
        subject: subject.to_owned(),
        summary: format!("something about {subject}"),
        command: format!("counterfoil show {subject}"),
    }
}

async fn change(f: &Fixture, changes: Vec<AlertChange>, minute: i64) -> usize {
    f.store.record_alerts(changes, &BOTH, after(f.now, minute)).await.unwrap()
}

async fn open(f: &Fixture, kind: AlertKind, subject: &str, minute: i64) -> usize {
    change(f, vec![AlertChange::Open(condition(kind, subject))], minute).await
}

async fn resolve(f: &Fixture, number: u64, minute: i64) -> usize {
    change(f, vec![AlertChange::Resolve(number)], minute).await
}

/// All alerts, oldest first.
async fn all(f: &Fixture) -> Vec<Alert> {
    let query = Query::first(AlertFilter::default(), 1_000);
    let mut alerts = f.store.list_alerts(query).await.unwrap();
    alerts.reverse();
    alerts
}

/// A claimed notice, as its destination reads it.
#[derive(Debug, PartialEq)]
struct Notice {
    number: u64,
    fence: u64,
    attempts: u32,
    destination: String,
    event: NoticeEvent,
    alert: Alert,
    created_at: Timestamp,
}

fn read(claimed: ClaimedMessage) -> Notice {
    let ClaimedMessage { message, fence, attempts } = claimed;
    Notice {
        number: message.number,
        fence,
        attempts,
        destination: message.destination,
        event: NoticeEvent::from_name(&message.kind).unwrap(),
        alert: serde_json::from_str(&message.payload).unwrap(),
        created_at: message.at,
    }
}

/// Claims what is due so many minutes after now, for ten minutes.
async fn claim(f: &Fixture, minute: i64) -> Vec<Notice> {
    claim_some(f, minute, 100).await
}

async fn claim_some(f: &Fixture, minute: i64, limit: usize) -> Vec<Notice> {
    let (now, until) = (after(f.now, minute), after(f.now, minute + 10));
    let claimed = f.store.claim_messages(Queue::Alerts, now, until, limit).await.unwrap();
    claimed.into_iter().map(read).collect()
}

async fn settle(f: &Fixture, notice: &Notice, outcome: SendOutcome, minute: i64) -> bool {
    let at = after(f.now, minute);
    f.store.settle_message(notice.number, notice.fence, outcome, at).await.unwrap()
}

fn later(f: &Fixture, minute: i64) -> SendOutcome {
    SendOutcome::Later { until: after(f.now, minute), detail: "HTTP 500".to_owned() }
}

/// To whom of what.
fn told(notices: &[Notice]) -> Vec<(&str, NoticeEvent)> {
    let mut told: Vec<_> =
        notices.iter().map(|notice| (notice.destination.as_str(), notice.event)).collect();
    told.sort_by_key(|(destination, event)| (*destination, event.name()));
    told
}

pub async fn an_open_alert_is_restated_without_a_notice(f: Fixture) {
    let kind = AlertKind::UsageUnmapped;
    assert_eq!(open(&f, kind, "calls", 0).await, 1);
    let notices = claim(&f, 0).await.len();
    let number = all(&f).await[0].number;
    let text = |summary: &str| Condition { summary: summary.into(), ..condition(kind, "calls") };
    let restate = |summary: &str| vec![AlertChange::Restate(number, text(summary))];
    assert_eq!(change(&f, restate("12 of calls"), 1).await, 0);
    assert_eq!(all(&f).await[0].summary, "12 of calls");
    assert_eq!((notices, claim(&f, 1).await.len()), (BOTH.len(), 0));
    // The last text of an alert stays with it.
    assert_eq!(resolve(&f, number, 2).await, 1);
    assert_eq!(change(&f, restate("13 of calls"), 3).await, 0);
    assert_eq!(all(&f).await[0].summary, "12 of calls");
}

pub async fn an_alert_opens_once(mut f: Fixture) {
    let kind = AlertKind::DeadLetters;
    assert_eq!(open(&f, kind, "acme", 1).await, 1);
    let twice = vec![
        AlertChange::Open(Condition { summary: "other".into(), ..condition(kind, "acme") }),
        AlertChange::Open(condition(kind, "umbrella")),
        AlertChange::Open(condition(kind, "umbrella")),
        AlertChange::Open(condition(AlertKind::Silence, "acme")),
    ];
    assert_eq!(change(&f, twice, 2).await, 2);
    f.restart().await;
    let alerts = all(&f).await;
    let expected = Alert {
        number: alerts[0].number,
        kind,
        subject: "acme".to_owned(),
        summary: "something about acme".to_owned(),
        command: "counterfoil show acme".to_owned(),
        opened_at: after(f.now, 1),
        resolved_at: None,
    };
    assert_eq!((alerts.len(), &alerts[0]), (3, &expected));
    let notices = claim(&f, 2).await;
    assert_eq!(notices.len(), 6, "one for each alert and destination");
    let first: Vec<_> = notices.iter().filter(|notice| notice.alert == expected).collect();
    let destinations: HashSet<&str> = first.iter().map(|n| n.destination.as_str()).collect();
    assert_eq!(destinations, HashSet::from(BOTH));
    for notice in first {
        assert_eq!((notice.event, notice.attempts), (NoticeEvent::Opened, 0));
        assert_eq!(notice.created_at, after(f.now, 1));
    }
    assert_eq!(change(&f, vec![], 3).await, 0);
}

pub async fn openings_at_once_are_one(f: Fixture) {
    let f = Arc::new(f);
    let open = |f: Arc<Fixture>, _| async move { open(&f, AlertKind::Silence, "acme", 0).await };
    let made = at_once(&f, 0..4, open).await.into_iter().sum::<usize>();
    assert_eq!((made, all(&f).await.len(), claim(&f, 0).await.len()), (1, 1, 2));
}

pub async fn an_alert_ends_once(mut f: Fixture) {
    open(&f, AlertKind::Silence, "acme", 0).await;
    let number = all(&f).await[0].number;
    for notice in claim(&f, 0).await {
        assert!(settle(&f, &notice, SendOutcome::Sent, 1).await);
    }
    assert_eq!(resolve(&f, number + 1, 2).await, 0, "there is none");
    assert_eq!(resolve(&f, number, 2).await, 1);
    f.restart().await;
    assert_eq!(resolve(&f, number, 3).await, 0);
    assert_eq!(all(&f).await[0].resolved_at, Some(after(f.now, 2)));
    let notices = claim(&f, 2).await;
    let resolved = NoticeEvent::Resolved;
    assert_eq!(told(&notices), [("chat", resolved), ("pager", resolved)]);
    assert!(notices.iter().all(|notice| notice.alert.resolved_at == Some(after(f.now, 2))));
    // It may begin again.
    assert_eq!(open(&f, AlertKind::Silence, "acme", 4).await, 1);
    let alerts = all(&f).await;
    assert!(alerts[1].number > number && alerts[1].resolved_at.is_none());
    // An end and a beginning may come together.
    let changes = vec![
        AlertChange::Resolve(alerts[1].number),
        AlertChange::Open(condition(AlertKind::Silence, "acme")),
    ];
    assert_eq!(change(&f, changes, 5).await, 2);
    assert_eq!(all(&f).await.len(), 3);
}

pub async fn who_never_heard_of_it_does_not_hear_of_its_end(f: Fixture) {
    open(&f, AlertKind::Silence, "acme", 0).await;
    let number = all(&f).await[0].number;
    let one = claim_some(&f, 0, 1).await.remove(0);
    assert!(settle(&f, &one, SendOutcome::Sent, 1).await);
    assert_eq!(resolve(&f, number, 2).await, 1);
    let notices = claim(&f, 60).await;
    assert_eq!(told(&notices), [(one.destination.as_str(), NoticeEvent::Resolved)]);
}

pub async fn who_may_have_heard_of_it_hears_of_its_end(f: Fixture) {
    open(&f, AlertKind::Silence, "acme", 0).await;
    let number = all(&f).await[0].number;
    let notices = claim(&f, 1).await;
    let (failed, sending) = (&notices[0], &notices[1]);
    assert!(settle(&f, failed, later(&f, 9), 2).await);
    assert_eq!(resolve(&f, number, 3).await, 1);
    assert!(!settle(&f, sending, SendOutcome::Sent, 4).await, "it is given up");
    let first = claim(&f, 10).await;
    assert_eq!(told(&first), [(failed.destination.as_str(), NoticeEvent::Resolved)]);
    // The other end is told when the opening cannot be on its way any more.
    let second = claim(&f, 11).await;
    assert_eq!(told(&second), [(sending.destination.as_str(), NoticeEvent::Resolved)]);
}

pub async fn a_refused_opening_is_not_tried_again(f: Fixture) {
    open(&f, AlertKind::Silence, "acme", 0).await;
    for notice in claim(&f, 0).await {
        let outcome = SendOutcome::GivenUp { detail: "HTTP 404".to_owned() };
        assert!(settle(&f, &notice, outcome, 1).await);
        assert!(!settle(&f, &notice, SendOutcome::Sent, 1).await, "it is settled");
    }
    assert_eq!(claim(&f, 60).await, []);
}

pub async fn notices_are_leased_and_fenced(mut f: Fixture) {
    for (subject, minute) in [("b", 2), ("a", 1), ("c", 3)] {
        let changes = vec![AlertChange::Open(condition(AlertKind::Silence, subject))];
        f.store.record_alerts(changes, &["pager"], after(f.now, minute)).await.unwrap();
    }
    let subjects = |notices: &[Notice]| {
        notices.iter().map(|notice| notice.alert.subject.clone()).collect::<Vec<_>>()
    };
    assert_eq!(claim_some(&f, 0, 9).await, [], "none is due");
    let first = claim_some(&f, 3, 2).await;
    assert_eq!(subjects(&first), ["a", "b"], "longest due first");
    assert_eq!(subjects(&claim_some(&f, 3, 2).await), ["c"]);
    assert_eq!(claim_some(&f, 12, 9).await, [], "all are leased");
    f.restart().await;
    let again = claim_some(&f, 13, 9).await;
    assert_eq!(subjects(&again), ["a", "b", "c"]);
    assert_eq!((again[0].number, again[0].fence), (first[0].number, first[0].fence + 1));
    assert_eq!(again[0].attempts, 1, "the one before may have been made");
    assert!(!settle(&f, &first[0], SendOutcome::Sent, 14).await, "an earlier fence");
    assert!(settle(&f, &again[0], later(&f, 20), 14).await);
    assert!(!settle(&f, &again[0], SendOutcome::Sent, 14).await, "its lease has ended");
    assert!(settle(&f, &again[1], SendOutcome::Sent, 14).await);
    assert_eq!(claim_some(&f, 19, 9).await, []);
    let third = claim_some(&f, 20, 9).await;
    assert_eq!((subjects(&third), third[0].attempts), (vec!["a".to_owned()], 2));
    let unknown = f.store.settle_message(9_999, 1, SendOutcome::Sent, f.now).await.unwrap();
    assert!(!unknown);
}

pub async fn claimants_at_once_share_nothing(f: Fixture) {
    let kinds = AlertKind::ALL;
    let changes = kinds.map(|kind| AlertChange::Open(condition(kind, "acme"))).to_vec();
    assert_eq!(change(&f, changes, 0).await, kinds.len());
    let numbers = claim_at_once(f, |f| async move {
        claim_some(&f, 0, 2).await.iter().map(|notice| notice.number).collect::<Vec<_>>()
    });
    assert_eq!(numbers.await.len(), 2 * kinds.len());
}

pub async fn pages_and_filters(f: Fixture) {
    for (kind, subject) in [
        (AlertKind::Silence, "a"),
        (AlertKind::DeadLetters, ""),
        (AlertKind::Silence, "b"),
        (AlertKind::Unbilled, ""),
    ] {
        open(&f, kind, subject, 0).await;
    }
    let numbers: Vec<u64> = all(&f).await.iter().map(|alert| alert.number).collect();
    resolve(&f, numbers[0], 1).await;
    let check = async |query: Query<AlertFilter>, places: &[usize]| {
        let found = f.store.list_alerts(query).await.unwrap();
        let found: Vec<u64> = found.iter().map(|alert| alert.number).collect();
        assert_eq!(found, places.iter().map(|place| numbers[*place]).collect::<Vec<_>>());
    };
    let (any, of) = (AlertFilter::default, |filter| Query::first(filter, 100));
    check(of(any()), &[3, 2, 1, 0]).await;
    check(Query { after: Some(numbers[3]), limit: 2, ..of(any()) }, &[2, 1]).await;
    check(of(AlertFilter { open: Some(true), ..any() }), &[3, 2, 1]).await;
    check(of(AlertFilter { open: Some(false), ..any() }), &[0]).await;
    check(of(AlertFilter { kind: Some(AlertKind::Silence), ..any() }), &[2, 0]).await;
    let (kind, open) = (Some(AlertKind::Silence), Some(true));
    check(of(AlertFilter { kind, open }), &[2]).await;
}

pub async fn pages_are_counted_by_day_and_week(f: Fixture) {
    let count = async || f.store.count_pages(f.now).await.unwrap();
    assert_eq!(count().await, PageCounts::default());
    for (place, days) in [0, 0, 1, 3, 6, 8, 13, 15].into_iter().enumerate() {
        let subject = place.to_string();
        // An hour within each day before now.
        let minute = -days * DAY_MINUTES - 60;
        assert_eq!(open(&f, AlertKind::DeadLetters, &subject, minute).await, 1);
        assert_eq!(open(&f, AlertKind::Silence, &subject, minute).await, 1, "nobody is called");
    }
    let mut expected = PageCounts { open: 8, day: 2, week: 5, week_before: 2 };
    assert_eq!(count().await, expected);
    let last = all(&f).await.iter().rfind(|a| a.kind == AlertKind::DeadLetters).unwrap().number;
    resolve(&f, last, 0).await;
    expected.open = 7;
    assert_eq!(count().await, expected);
}

fn threshold(f: &Fixture, tenant: &str, limit: &str) -> Threshold {
    Threshold {
        tenant: tenant_id(tenant),
        meter: MeterNo(1),
        kind: ThresholdKind::Threshold,
        period: ThresholdPeriod::Month,
        limit: quantity(limit),
        created_at: f.now,
    }
}

pub async fn a_threshold_has_one_limit(mut f: Fixture) {
    let put = async |f: &Fixture, threshold: &Threshold| {
        f.store.put_threshold(threshold.clone()).await.unwrap();
    };
    let first = threshold(&f, "acme", "100.5");
    put(&f, &first).await;
    let second = Threshold { limit: quantity("7"), created_at: after(f.now, 1), ..first.clone() };
    put(&f, &second).await;
    let others = [
        Threshold { kind: ThresholdKind::Quota, ..first.clone() },
        Threshold { period: ThresholdPeriod::Day, ..first.clone() },
        Threshold { meter: MeterNo(2), ..first.clone() },
        threshold(&f, "umbrella", "1"),
    ];
    for other in &others {
        put(&f, other).await;
    }
    f.restart().await;
    let sorted = |mut thresholds: Vec<Threshold>| {
        thresholds.sort_by_key(|t| (t.tenant.clone(), t.meter, t.kind, t.period));
        thresholds
    };
    let mut expected = others.to_vec();
    expected.push(second.clone());
    let all = async |tenant: Option<&str>| {
        let query = Query::first(tenant.map(tenant_id), usize::MAX);
        sorted(f.store.list_thresholds(query).await.unwrap())
    };
    assert_eq!(all(None).await, sorted(expected.clone()));
    let of_acme = expected.iter().filter(|t| t.tenant == tenant_id("acme")).cloned();
    assert_eq!(all(Some("acme")).await, sorted(of_acme.collect()));
    assert_eq!(all(Some("nobody")).await, []);
    let delete = async |tenant: &str| {
        let Threshold { meter, kind, period, .. } = second.clone();
        f.store.delete_threshold(&tenant_id(tenant), meter, kind, period).await.unwrap()
    };
    assert!(!delete("nobody").await);
    assert!(delete("acme").await);
    assert!(!delete("acme").await);
    expected.pop();
    assert_eq!(all(None).await, sorted(expected));
}

pub async fn a_threshold_creates_its_tenant(mut f: Fixture) {
    f.store.put_threshold(threshold(&f, "initech", "1")).await.unwrap();
    let found = f.store.find_tenant(&tenant_id("initech")).await.unwrap().unwrap();
    assert_eq!((found.name, found.customer, found.created_at), (None, None, f.now));
    // It is the same tenant as the one that events name, before and after a restart.
    f.deliver_one(&call("e1", "2").replace("acme", "initech")).await;
    f.restart().await;
    f.deliver_one(&call("e2", "2").replace("acme", "initech")).await;
    assert_eq!(f.total("initech", "calls").await, "4");
    assert_eq!(f.store.list_tenants(Query::first((), 10)).await.unwrap().len(), 1);
    // A tenant that is known stays as it is.
    let fields = TenantFields { name: Some("Hooli".into()), ..TenantFields::default() };
    f.store.put_tenant(&tenant_id("hooli"), fields, f.now).await.unwrap();
    f.store.put_threshold(threshold(&f, "hooli", "1")).await.unwrap();
    let found = f.store.find_tenant(&tenant_id("hooli")).await.unwrap().unwrap();
    assert_eq!(found.name.as_deref(), Some("Hooli"));
    f.check().await;
}

pub async fn pages_of_thresholds_hold_every_one_once(f: Fixture) {
    let mut expected = Vec::new();
    for tenant in ["zeta", "acme", "globex"] {
        let one = threshold(&f, tenant, "1");
        for kind in [ThresholdKind::Threshold, ThresholdKind::Quota] {
            for period in [ThresholdPeriod::Day, ThresholdPeriod::Month] {
                expected.push(Threshold { kind, period, ..one.clone() });
            }
        }
    }
    for one in &expected {
        f.store.put_threshold(one.clone()).await.unwrap();
    }
    let key = |t: &Threshold| (t.tenant.clone(), t.meter, t.kind, t.period);
    for tenant in [None, Some(tenant_id("acme"))] {
        let mut expected = expected.clone();
        expected.retain(|one| tenant.as_ref().is_none_or(|tenant| one.tenant == *tenant));
        for limit in [1, 5, 100] {
            let read = async |last: Option<&Threshold>| {
                let after =
                    last.cloned().map(|Threshold { tenant, meter, kind, period, .. }| {
                        ThresholdKey { tenant, meter, kind, period }
                    });
                let query = Query { filter: tenant.clone(), after, limit };
                f.store.list_thresholds(query).await.unwrap()
            };
            let mut found = in_pages(limit, read).await;
            found.sort_by_key(key);
            expected.sort_by_key(key);
            assert_eq!(found, expected, "limit {limit}");
        }
    }
}
