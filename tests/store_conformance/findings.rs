//! Findings: opened once, followed by each pass, cleared.

use crate::billed::{after, quantity};
use crate::fixture::{Fixture, tenant_id};
use counterfoil::rules::drift::{Reason, Verdict};
use counterfoil::rules::finding::{Finding, FindingChange, FindingKind, Observation};
use counterfoil::rules::ids::MeterNo;
use counterfoil::store::push::Lease;
use counterfoil::store::reconciliation::FindingFilter;
use counterfoil::store::{Query, TenantFields};

struct Finder {
    f: Fixture,
    lease: Lease,
}

impl Finder {
    async fn start(f: Fixture) -> Self {
        let until = after(f.now, 60);
        let lease = f.store.claim_lease("reconcile", "a", f.now, until).await.unwrap().unwrap();
        for tenant in ["acme", "umbrella"] {
            let fields = TenantFields::default();
            f.store.put_tenant(&tenant_id(tenant), fields, f.now).await.unwrap();
        }
        Self { f, lease }
    }

    /// Makes changes found by a pass, as many minutes after now as its number is.
    async fn record(&self, pass: u64, changes: Vec<FindingChange>) {
        let at = after(self.f.now, i64::try_from(pass).unwrap());
        let recorded = self.f.store.record_findings(&self.lease, pass, changes, at).await;
        assert!(recorded.unwrap());
    }

    async fn open(&self, pass: u64, seen: Observation) {
        self.record(pass, vec![FindingChange::Open(seen)]).await;
    }

    async fn see(&self, pass: u64, number: u64, seen: Observation, page: bool) {
        self.record(pass, vec![FindingChange::Seen { number, seen, page }]).await;
    }

    async fn clear(&self, pass: u64, number: u64) {
        self.record(pass, vec![FindingChange::Clear { number }]).await;
    }

    /// All findings, oldest first.
    async fn all(&self) -> Vec<Finding> {
        let query = Query::first(FindingFilter::default(), 1_000);
        let mut findings = self.f.store.list_findings(query).await.unwrap();
        findings.reverse();
        findings
    }

    async fn drifting(&self) -> u64 {
        self.f.store.count_drifting_tenants().await.unwrap()
    }
}

pub fn usage(tenant: &str, subject: &str, verdict: Verdict) -> Observation {
    Observation {
        kind: FindingKind::Usage,
        tenant: Some(tenant_id(tenant)),
        meter: Some(MeterNo(1)),
        subject: subject.to_owned(),
        verdict,
        reason: Reason::Lost,
        ledger: quantity("5.000000000001"),
        provider: quantity("-3"),
        detail: "the provider shows less".to_owned(),
    }
}

/// About an object of the provider that belongs to nobody here.
fn stray(kind: FindingKind, subject: &str) -> Observation {
    Observation { kind, tenant: None, meter: None, ..usage("acme", subject, Verdict::Undecidable) }
}

pub async fn a_finding_is_followed_until_it_is_cleared(f: Fixture) {
    let mut finder = Finder::start(f).await;
    let seen = usage("acme", "a", Verdict::Waiting);
    finder.open(1, seen.clone()).await;
    let mut expected = Finding {
        number: finder.all().await[0].number,
        seen,
        opened_at: after(finder.f.now, 1),
        opened_pass: 1,
        last_pass: 1,
        passes: 1,
        paged_at: None,
        cleared_at: None,
    };
    assert_eq!(finder.all().await, [expected.clone()]);
    expected.seen = Observation {
        reason: Reason::ProviderHigher,
        ledger: quantity("1"),
        provider: quantity("2"),
        detail: "more".to_owned(),
        ..usage("acme", "a", Verdict::Bypass)
    };
    finder.see(2, expected.number, expected.seen.clone(), true).await;
    (expected.last_pass, expected.passes) = (2, 2);
    expected.paged_at = Some(after(finder.f.now, 2));
    finder.f.restart().await;
    assert_eq!(finder.all().await, [expected.clone()]);
    // A pass that is run again counts once, and who was called is not called again.
    finder.see(2, expected.number, expected.seen.clone(), true).await;
    finder.see(3, expected.number, expected.seen.clone(), true).await;
    (expected.last_pass, expected.passes) = (3, 3);
    assert_eq!(finder.all().await, [expected.clone()]);
    finder.clear(4, expected.number).await;
    expected.cleared_at = Some(after(finder.f.now, 4));
    assert_eq!(finder.all().await, [expected.clone()]);
    // What is cleared stays so.
    finder.clear(5, expected.number).await;
    finder.see(5, expected.number, usage("acme", "a", Verdict::Replay), true).await;
    finder.clear(5, expected.number + 1).await;
    assert_eq!(finder.all().await, [expected.clone()]);
    finder.open(6, usage("acme", "a", Verdict::Replay)).await;
    let all = finder.all().await;
    assert_eq!((all.len(), &all[0]), (2, &expected));
    assert_eq!((all[1].opened_pass, all[1].passes, all[1].paged_at), (6, 1, None));
}

pub async fn one_of_a_kind_and_subject_is_open(f: Fixture) {
    let finder = Finder::start(f).await;
    let different = [
        usage("acme", "a", Verdict::Replay),
        usage("umbrella", "a", Verdict::Replay),
        Observation { meter: Some(MeterNo(2)), ..usage("acme", "a", Verdict::Replay) },
        usage("acme", "b", Verdict::Replay),
        Observation { meter: None, ..usage("acme", "a", Verdict::Replay) },
        stray(FindingKind::Subscription, "a"),
        stray(FindingKind::Invoice, "a"),
    ];
    let twice = different.iter().chain(&different).cloned().map(FindingChange::Open).collect();
    finder.record(1, twice).await;
    assert_eq!(finder.all().await.len(), different.len());
    assert!(finder.all().await.iter().all(|finding| finding.passes == 1));
    let changed = different.clone().map(|seen| Observation { detail: "again".to_owned(), ..seen });
    finder.record(2, changed.clone().map(FindingChange::Open).to_vec()).await;
    let all = finder.all().await;
    assert_eq!(all.len(), different.len(), "followed instead");
    for (finding, seen) in all.iter().zip(&changed) {
        assert_eq!((&finding.seen, finding.opened_pass), (seen, 1));
        assert_eq!((finding.last_pass, finding.passes, finding.paged_at), (2, 2, None));
    }
}

pub async fn changes_of_one_call_are_in_order(f: Fixture) {
    let finder = Finder::start(f).await;
    finder.open(1, usage("acme", "a", Verdict::Replay)).await;
    let number = finder.all().await[0].number;
    let reopen = FindingChange::Open(usage("acme", "a", Verdict::Bypass));
    finder.record(2, vec![FindingChange::Clear { number }, reopen]).await;
    let all = finder.all().await;
    let open: Vec<bool> = all.iter().map(|finding| finding.cleared_at.is_none()).collect();
    assert_eq!(open, [false, true]);
    assert_eq!((all[1].opened_pass, all[1].seen.verdict), (2, Verdict::Bypass));
    let stale = Lease { fence: finder.lease.fence + 1, ..finder.lease.clone() };
    let change = vec![FindingChange::Clear { number: all[1].number }];
    let recorded = finder.f.store.record_findings(&stale, 3, change, finder.f.now).await;
    assert!(!recorded.unwrap());
    assert_eq!(finder.all().await, all);
}

pub async fn pages_and_filters(f: Fixture) {
    let finder = Finder::start(f).await;
    for seen in [
        usage("acme", "a", Verdict::Replay),
        usage("umbrella", "a", Verdict::Replay),
        stray(FindingKind::Subscription, "sub_1"),
        usage("acme", "b", Verdict::Replay),
        stray(FindingKind::Invoice, "in_1"),
    ] {
        finder.open(1, seen).await;
    }
    let numbers: Vec<u64> = finder.all().await.iter().map(|finding| finding.number).collect();
    finder.clear(2, numbers[0]).await;
    let check = async |query: Query<FindingFilter>, places: &[usize]| {
        let found = finder.f.store.list_findings(query).await.unwrap();
        let found: Vec<u64> = found.iter().map(|finding| finding.number).collect();
        assert_eq!(found, places.iter().map(|place| numbers[*place]).collect::<Vec<_>>());
    };
    let (any, of) = (FindingFilter::default, |filter| Query::first(filter, 100));
    check(of(any()), &[4, 3, 2, 1, 0]).await;
    check(Query { after: Some(numbers[4]), limit: 2, ..of(any()) }, &[3, 2]).await;
    check(of(FindingFilter { open: Some(true), ..any() }), &[4, 3, 2, 1]).await;
    check(of(FindingFilter { open: Some(false), ..any() }), &[0]).await;
    check(of(FindingFilter { kind: Some(FindingKind::Usage), ..any() }), &[3, 1, 0]).await;
    let tenant = Some(tenant_id("acme"));
    check(of(FindingFilter { tenant: tenant.clone(), ..any() }), &[3, 0]).await;
    check(of(FindingFilter { tenant, open: Some(true), ..any() }), &[3]).await;
    check(of(FindingFilter { tenant: Some(tenant_id("nobody")), ..any() }), &[]).await;
}

pub async fn drifting_tenants_are_counted(f: Fixture) {
    let finder = Finder::start(f).await;
    let see = |pass: u64, seen: Observation| finder.open(pass, seen);
    assert_eq!(finder.drifting().await, 0);
    see(1, usage("acme", "a", Verdict::Replay)).await;
    see(1, usage("acme", "b", Verdict::Bypass)).await;
    see(1, usage("umbrella", "a", Verdict::Waiting)).await;
    see(1, stray(FindingKind::Subscription, "sub_1")).await;
    assert_eq!(finder.drifting().await, 0, "seen by one pass");
    see(2, usage("acme", "a", Verdict::Replay)).await;
    assert_eq!(finder.drifting().await, 1);
    see(2, usage("acme", "b", Verdict::Bypass)).await;
    assert_eq!(finder.drifting().await, 1, "a tenant counts once");
    see(2, usage("umbrella", "a", Verdict::Waiting)).await;
    see(2, stray(FindingKind::Subscription, "sub_1")).await;
    assert_eq!(finder.drifting().await, 1, "what waits is no drift, nor what is no usage");
    see(3, usage("umbrella", "a", Verdict::Undecidable)).await;
    assert_eq!(finder.drifting().await, 2);
    see(3, usage("acme", "a", Verdict::Tolerance)).await;
    assert_eq!(finder.drifting().await, 2);
    for finding in finder.all().await {
        finder.clear(4, finding.number).await;
    }
    assert_eq!(finder.drifting().await, 0);
}
