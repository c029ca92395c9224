//! The full text of what stores answer and keep: memos, changes, refusals, faults. Each expected
//! text is written once here and must come from every store.

use crate::accounts::{self, create_wallet, key};
use crate::billed::{Billed, after, quantity, window};
use crate::credits::{changes, issue, issued, left, taking, terms};
use crate::fixture::{Fixture, call, deliver_to, tenant_id};
use crate::sagas::new_saga;
use counterfoil::rules::account::{NewEntry, Posted};
use counterfoil::rules::credit::{CreditChange, GrantTerms, Pool};
use counterfoil::rules::grant::{VoidGrant, Voided};
use counterfoil::rules::ids::{TenantId, Unit};
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::saga::{LogLine, Mark, SagaState};
use counterfoil::rules::verdict::Verdict;
use counterfoil::store::credit::ChangeFilter;
use counterfoil::store::saga::{Begun, ClaimedSaga, NewSaga, Resumed, SagaProgress};
use counterfoil::store::{Error, Query, Result};

fn acme() -> TenantId {
    tenant_id("acme")
}

/// Issues two grants, draws on both, gives back, voids, refunds, and lets the rest expire.
async fn every_change(f: Fixture) -> Fixture {
    let b = Billed::start(f).await;
    let rates = [(b.f.meter_no("signed").await, quantity("0.5"))].into_iter().collect();
    let expires_at = Some(window(5).start);
    let given = GrantTerms { rates, expires_at, ..terms(&b.f, "acme", "given", "3").await };
    let (pool, unit) = (Pool::Purchased, Unit::parse("eur").unwrap());
    let once = key("bought");
    let bought = GrantTerms { pool, unit, key: once, memo: String::new(), ..given.clone() };
    let given = issue(&b.f, given).await.number;
    let bought = issue(&b.f, bought).await.number;
    b.planned("acme", "e1", "signed", "8", 0).await;
    b.planned("acme", "e2", "signed", "-3", 0).await;
    for (grant, once, amount) in [(given, "void-1", Some("0.25")), (bought, "refund-1", None)] {
        let order = taking("acme", grant, once, amount);
        let taken = b.f.store.void_grant(order, b.f.now, None).await.unwrap();
        assert!(matches!(taken, Voided::Done(_)), "{taken:?}");
    }
    assert_eq!(b.f.store.expire_grants(window(5).start, b.f.now, 10).await.unwrap(), 1);
    b.f
}

fn line(change: &CreditChange) -> String {
    let CreditChange { number, grant, kind, amount, remaining, memo, .. } = change;
    let key = change.key.as_ref().map_or("no key".to_owned(), |key| format!("key {key}"));
    let memo = format!("memo {memo:?}");
    let covered = change.covered.as_ref().map_or("nothing".to_owned(), |covered| {
        format!("{} from {}", covered.quantity, covered.window.start)
    });
    let (kind, left) = (kind.name(), remaining);
    format!("{number}: grant {grant} {kind} {amount}, {left} left, covers {covered}, {key}, {memo}")
}

pub async fn changes_of_credits_read_alike(f: Fixture) {
    let f = every_change(f).await;
    let lines: Vec<String> = changes(&f, "acme", None).await.iter().map(line).collect();
    let expected = [
        "1: grant 1 issued 3, 3 left, covers nothing, no key, memo \"about given\"",
        "2: grant 2 issued 3, 3 left, covers nothing, no key, memo \"\"",
        "3: grant 1 drawn 3, 0 left, covers 6 from 2026-11-12T00:00:00Z, no key, memo \"\"",
        "4: grant 2 drawn 1, 2 left, covers 2 from 2026-11-12T00:00:00Z, no key, memo \"\"",
        "5: grant 2 given_back 1, 3 left, covers 2 from 2026-11-12T00:00:00Z, no key, memo \"\"",
        "6: grant 1 given_back 0.5, 0.5 left, covers 1 from 2026-11-12T00:00:00Z, no key, memo \"\"",
        "7: grant 1 voided 0.25, 0.25 left, covers nothing, key void-1, memo \"not wanted\"",
        "8: grant 2 refunded 3, 0 left, covers nothing, key refund-1, memo \"not wanted\"",
        "9: grant 1 expired 0.25, 0 left, covers nothing, no key, memo \"expired\"",
    ];
    assert_eq!(lines, expected);
}

pub async fn published_credits_read_alike(f: Fixture) {
    let f = every_change(f).await;
    let published = f.store.list_changes(Query::first(Some(acme()), 100)).await.unwrap();
    let texts: Vec<String> =
        published.iter().map(|change| format!("{} {}", change.kind, change.payload)).collect();
    let text = |kind: &str, change: (&str, u64, &str, &str, &str)| {
        let (name, grant, amount, remaining, unit) = change;
        format!(
            r#"{kind} {{"amount":"{amount}","at":"2026-11-15T12:00:00Z","grant":{grant},"kind":"{name}","remaining":"{remaining}","tenant":"acme","unit":"{unit}"}}"#
        )
    };
    let expected = [
        text("credits.issued", ("issued", 1, "3", "3", "credits")),
        text("credits.issued", ("issued", 2, "3", "3", "eur")),
        text("credits.exhausted", ("drawn", 1, "3", "0", "credits")),
        text("credits.voided", ("voided", 1, "0.25", "0.25", "credits")),
        text("credits.voided", ("refunded", 2, "3", "0", "eur")),
        text("credits.expired", ("expired", 1, "0.25", "0", "credits")),
    ];
    assert_eq!(texts, expected);
    let ids: Vec<&str> = published.iter().map(|change| change.id.as_str()).collect();
    assert_eq!(ids[0], "msg_ba88c24835654e85da3ddc8a", "the id is made of the change's number");
}

pub async fn entries_of_credits_read_alike(f: Fixture) {
    let f = every_change(f).await;
    let accounts = f.store.list_accounts(Query::first(acme(), 100)).await.unwrap();
    let mut lines = Vec::new();
    for account in accounts {
        let (name, balance) = (account.name.clone(), account.balance);
        lines.push(format!(
            "{name} in {}, floor {}: {balance}",
            account.unit,
            account.floor.name()
        ));
        let query = Query::first((acme(), name), 100);
        for line in f.store.read_statement(query).await.unwrap() {
            let (key, memo, amount, version) = (line.key, line.memo, line.amount, line.version);
            lines.push(format!("  {version}: {key} {memo:?} {amount} to {}", line.balance));
        }
    }
    let expected = [
        "credits.credits.expired in credits, floor none: 0.25",
        "  1: credits.9 \"grant 1: expired\" 0.25 to 0.25",
        "credits.credits.granted in credits, floor zero: 0",
        "  5: credits.9 \"grant 1: expired\" -0.25 to 0",
        "  4: credits.7 \"grant 1: voided\" -0.25 to 0.25",
        "  3: credits.6 \"grant 1: given_back\" 0.5 to 0.5",
        "  2: credits.3 \"grant 1: drawn\" -3 to 0",
        "  1: credits.1 \"grant 1: issued\" 3 to 3",
        "credits.credits.issued in credits, floor none: -3",
        "  1: credits.1 \"grant 1: issued\" -3 to -3",
        "credits.credits.spent in credits, floor none: 2.5",
        "  2: credits.6 \"grant 1: given_back\" -0.5 to 2.5",
        "  1: credits.3 \"grant 1: drawn\" 3 to 3",
        "credits.credits.voided in credits, floor none: 0.25",
        "  1: credits.7 \"grant 1: voided\" 0.25 to 0.25",
        "credits.eur.issued in eur, floor none: -3",
        "  1: credits.2 \"grant 2: issued\" -3 to -3",
        "credits.eur.purchased in eur, floor zero: 0",
        "  4: credits.8 \"grant 2: refunded\" -3 to 0",
        "  3: credits.5 \"grant 2: given_back\" 1 to 3",
        "  2: credits.4 \"grant 2: drawn\" -1 to 2",
        "  1: credits.2 \"grant 2: issued\" 3 to 3",
        "credits.eur.spent in eur, floor none: 0",
        "  2: credits.5 \"grant 2: given_back\" -1 to 0",
        "  1: credits.4 \"grant 2: drawn\" 1 to 1",
        "credits.eur.voided in eur, floor none: 3",
        "  1: credits.8 \"grant 2: refunded\" 3 to 3",
    ];
    assert_eq!(lines, expected);
}

pub async fn refusals_of_credits_read_alike(f: Fixture) {
    let grant = issued(&f, "acme", "ten", "10").await.number;
    let check = async |order: VoidGrant, expected: Voided| {
        let taken = f.store.void_grant(order.clone(), f.now, None).await.unwrap();
        assert_eq!(taken, expected, "{order:?}");
    };
    let ten = Voided::TooLittle(quantity("10"));
    check(taking("acme", grant, "t", Some("10.000001")), ten.clone()).await;
    // Nothing and less than nothing are no refunds, whatever is left.
    check(taking("acme", grant, "t", Some("0")), ten.clone()).await;
    check(taking("acme", grant, "t", Some("-1")), ten).await;
    let reserved = VoidGrant { reserved: quantity("11"), ..taking("acme", grant, "t", None) };
    check(reserved, Voided::TooLittle(Quantity::ZERO)).await;
    check(taking("acme", u64::MAX, "t", None), Voided::NotFound).await;
    check(taking("nobody", grant, "t", None), Voided::NotFound).await;
    let written = changes(&f, "acme", Some(grant)).await;
    assert_eq!(written.len(), 1, "only its issue was written");
}

/// An entry of accounts that no entry has touched.
fn entry(tenant: &str, once: &str, postings: &[(&str, &str)]) -> NewEntry {
    let mut new = accounts::entry(tenant, once, postings);
    new.postings.iter_mut().for_each(|posting| posting.expected_version = Some(0));
    new
}

pub async fn refusals_of_entries_read_alike(f: Fixture) {
    create_wallet(&f, "acme").await;
    let check = async |entry: NewEntry, expected: &str| {
        let posted = f.store.post_entry(entry, f.now, None).await.unwrap();
        let Posted::Refused(refusal) = posted else { panic!("{posted:?}") };
        assert_eq!(refusal.to_refusal().to_string(), expected);
    };
    let count = "an entry has 2 to 100 postings (invalid_postings)";
    check(entry("acme", "k", &[("wallet", "1")]), count).await;
    check(entry("acme", "k", &[("wallet", "1"); 101]), count).await;
    let unknown = "there is no account walle of this tenant; create it first (unknown_account)";
    check(entry("acme", "k", &[("walle", "1"), ("bank", "-1")]), unknown).await;
    check(entry("nobody", "k", &[("walle", "1"), ("bank", "-1")]), unknown).await;
    let below = "account wallet holds 0 and may not fall below 0 (balance_too_low)";
    check(entry("acme", "k", &[("wallet", "-1"), ("bank", "1")]), below).await;
    let sum = "the postings in eur sum to 1; they must sum to 0 (entry_unbalanced)";
    check(entry("acme", "k", &[("wallet", "2"), ("bank", "-1")]), sum).await;
    let paid = entry("acme", "k", &[("wallet", "2"), ("bank", "-2")]);
    let posted = f.store.post_entry(paid.clone(), f.now, None).await.unwrap();
    let Posted::Recorded(recorded) = posted else { panic!("{posted:?}") };
    let again = f.store.post_entry(paid, after(f.now, 1), None).await.unwrap();
    assert_eq!(again, Posted::Repeated(recorded));
    let moved = "account wallet is at version 1; read it again and decide anew (version_moved)";
    check(entry("acme", "k2", &[("wallet", "2"), ("bank", "-2")]), moved).await;
}

/// Claims the tenant's saga and leaves it in this state.
async fn leave(f: &Fixture, state: SagaState, lines: Vec<LogLine>) -> ClaimedSaga {
    let claimed = f.store.claim_sagas(f.now, after(f.now, 10), 10).await.unwrap().remove(0);
    let standing = SagaProgress { state, tries: 0, due_at: f.now, detail: None, lease_until: None };
    let claim = (claimed.saga.number, claimed.fence);
    assert!(f.store.record_saga(claim, lines, standing, Vec::new(), f.now).await.unwrap());
    claimed
}

pub async fn answers_about_sagas_read_alike(f: Fixture) {
    let resume = async |id: &str| f.store.resume_saga(id, f.now).await.unwrap();
    let begin = async |new: NewSaga| f.store.begin_saga(new, f.now, None).await.unwrap();
    let Begun::Created(saga) = begin(new_saga("acme", "s1")).await else { panic!("it is new") };
    assert_eq!(resume(&saga.id).await, Resumed::Refused("it is still running"));
    assert_eq!(begin(new_saga("acme", "s2")).await, Begun::Busy(saga.clone()));
    leave(&f, SagaState::Completed, Vec::new()).await;
    assert_eq!(resume(&saga.id).await, Resumed::Refused("it is completed"));
    let Begun::Created(undone) = begin(new_saga("acme", "s2")).await else { panic!("it is new") };
    leave(&f, SagaState::Compensated, Vec::new()).await;
    let Begun::Created(open) = begin(new_saga("acme", "s3")).await else { panic!("it is new") };
    assert_eq!(resume(&undone.id).await, Resumed::Busy(open));
    leave(&f, SagaState::Completed, Vec::new()).await;
    let Resumed::Done(resumed) = resume(&undone.id).await else { panic!("it may be") };
    let (found, log) = f.store.find_saga(&undone.id).await.unwrap().unwrap();
    assert_eq!(found, resumed);
    let text = |line: &LogLine| {
        let LogLine { generation, step, name, mark, result, detail, at } = line;
        format!("{generation}/{step} {name} {} {result:?} {detail:?} {at}", mark.name())
    };
    let lines: Vec<String> = log.iter().map(text).collect();
    assert_eq!(lines, ["2/0 saga resumed None None 2026-11-15T12:00:00Z"]);
}

pub async fn resuming_raises_the_fence(f: Fixture) {
    f.store.begin_saga(new_saga("acme", "s1"), f.now, None).await.unwrap();
    let stuck = leave(&f, SagaState::NeedsAttention, Vec::new()).await;
    f.store.resume_saga(&stuck.saga.id, f.now).await.unwrap();
    let next = f.store.claim_sagas(f.now, after(f.now, 10), 10).await.unwrap().remove(0);
    assert_eq!((stuck.fence, next.fence), (1, 3), "the resume took the fence between them");
}

pub async fn verdicts_read_alike(f: Fixture) {
    let mut batch = f.batch(f.events(&[call("e1", "5")]).await);
    batch.strict_tenants = true;
    let verdicts = deliver_to(f.store.as_ref(), batch).await;
    let Verdict::Rejected(refusal) = &verdicts[0] else { panic!("{verdicts:?}") };
    assert_eq!(
        refusal.to_string(),
        "the tenant is not declared; declare it with PUT /v1/tenants/{id} and send the event again \
         (unknown_tenant)"
    );
}

/// While a server only compares, a window of one that bills is followed: it may shrink below what
/// is covered of it. What it grows by after that is covered already, up to that.
pub async fn growth_of_a_window_that_was_followed_is_covered_once(f: Fixture) {
    let mut b = Billed::start(f).await;
    let rates = [(b.f.meter_no("signed").await, Quantity::ONE)].into_iter().collect();
    let terms = GrantTerms { rates, ..terms(&b.f, "acme", "ten", "10").await };
    issue(&b.f, terms).await;
    b.planned("acme", "e1", "signed", "4", 0).await;
    b.terms.shadow = true;
    b.planned("acme", "e2", "signed", "-2", 0).await;
    b.terms.shadow = false;
    b.planned("acme", "e3", "signed", "3", 0).await;
    let cut = b.state("signed", 0).await.unwrap();
    assert_eq!((cut.total, cut.covered), (quantity("5"), quantity("5")));
    assert_eq!(left(&b.f, "acme").await, ["5"]);
}

// ---------------------------------------------------------------------------------------------
// Faults

fn fault<T: std::fmt::Debug>(outcome: Result<T>) -> String {
    match outcome {
        Err(Error::Internal { what }) => what,
        other => panic!("{other:?}"),
    }
}

pub async fn grants_that_contradict_their_history_stay_as_they_are(f: Fixture) {
    let expires_at = Some(window(5).start);
    let expiring = GrantTerms { expires_at, ..terms(&f, "acme", "a", "10").await };
    let grant = issue(&f, expiring.clone()).await.number;
    let sound = GrantTerms { tenant: tenant_id("umbrella"), ..expiring };
    let sound = issue(&f, sound).await.number;
    f.plant(&format!("UPDATE grants SET remaining = '9' WHERE grant_no = {grant}")).await;
    let taken = f.store.void_grant(taking("acme", grant, "t", None), f.now, None).await;
    let expected = format!(
        "what is left of a grant is what its last change left (grant={grant} remaining=9 \
         last=10)"
    );
    assert_eq!(fault(taken), expected);
    // It keeps no other grant from its end.
    assert_eq!(f.store.expire_grants(f.now, f.now, 10).await.unwrap(), 1);
    assert_eq!([left(&f, "acme").await, left(&f, "umbrella").await], [["9"], ["0"]]);
    assert!(sound > grant);
    f.plant("UPDATE credit_changes SET amount = '8' WHERE kind = 'issued'").await;
    let history = changes(&f, "umbrella", None).await;
    assert_eq!(history.len(), 2, "the first change of a grant has none before it");
    f.plant("UPDATE credit_changes SET remaining = '8' WHERE kind = 'issued'").await;
    let tenant = tenant_id("umbrella");
    let query = Query::first(ChangeFilter { tenant, grant: None }, 10);
    let history = fault(f.store.list_credit_changes(query).await);
    assert!(history.starts_with("a change moves what the change before it left"), "{history}");
}

pub async fn accounts_that_contradict_themselves_take_no_entry(f: Fixture) {
    create_wallet(&f, "acme").await;
    f.plant("UPDATE accounts SET balance = '1' WHERE name = 'wallet'").await;
    let paid = entry("acme", "k", &[("wallet", "2"), ("bank", "-2")]);
    let posted = fault(f.store.post_entry(paid, f.now, None).await);
    let expected =
        "an account that no entry has touched is empty (tenant=acme account=wallet balance=1)";
    assert_eq!(posted, expected);
    let found = f.store.find_entry(&acme(), &key("k")).await.unwrap();
    assert_eq!(found, None, "nothing was written");
}

pub async fn sagas_that_contradict_themselves_are_not_resumed(f: Fixture) {
    f.store.begin_saga(new_saga("acme", "s1"), f.now, None).await.unwrap();
    let (name, mark, at) = ("pay".to_owned(), Mark::Intent, f.now);
    let line = LogLine { generation: 1, step: 0, name, mark, result: None, detail: None, at };
    let stuck = leave(&f, SagaState::NeedsAttention, vec![line]).await;
    f.plant("UPDATE saga_lines SET mark = 'undone'").await;
    let id = &stuck.saga.id;
    let expected =
        format!("only a saga that has turned back undoes (saga={id} step=0 mark=undone)");
    assert_eq!(fault(f.store.resume_saga(id, f.now).await), expected);
    let (saga, _) = f.store.find_saga(id).await.unwrap().unwrap();
    assert_eq!(saga.state, SagaState::NeedsAttention, "it stays as it is");
}
