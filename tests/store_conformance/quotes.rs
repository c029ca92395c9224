//! Tax rates, coupons and quotes.

use crate::accounts::key;
use crate::billed::{after, quantity, window};
use crate::fixture::{Fixture, at_once, in_pages, tenant_id};
use counterfoil::rules::ids::OnceKey;
use counterfoil::rules::tax::{Coupon, Off, TaxRate};
use counterfoil::store::Query;
use counterfoil::store::quote::{CouponPut, CouponUse, QuoteRecorded, RatePut, StoredQuote};
use std::sync::Arc;

fn rate(jurisdiction: &str, percent: &str, from: i64, until: Option<i64>) -> TaxRate {
    TaxRate {
        jurisdiction: jurisdiction.to_owned(),
        name: "vat".to_owned(),
        percent: quantity(percent),
        valid_from: window(from).start,
        valid_until: until.map(|hour| window(hour).start),
    }
}

async fn put(f: &Fixture, rate: TaxRate) -> RatePut {
    f.store.put_tax_rate(rate, f.now).await.unwrap()
}

fn coupon(code: &str, cycles_max: Option<u32>) -> Coupon {
    Coupon {
        code: code.to_owned(),
        off: Off::Percent(quantity("10")),
        currency: None,
        valid_from: window(0).start,
        valid_until: Some(window(9).start),
        cycles_max,
    }
}

pub fn quote(f: &Fixture, tenant: &str, once: &str) -> StoredQuote {
    StoredQuote {
        tenant: tenant_id(tenant),
        key: key(once),
        request: format!(r#"{{"of":"{once}"}}"#),
        answer: format!(r#"{{"answer":"{once} é"}}"#),
        engine: "table".to_owned(),
        at: f.now,
    }
}

fn using(code: &str, cycle: i64, cycles_max: Option<u32>) -> Option<CouponUse> {
    Some(CouponUse { code: code.to_owned(), cycle: window(cycle).start, cycles_max })
}

async fn record(f: &Fixture, quote: StoredQuote, coupon: Option<CouponUse>) -> QuoteRecorded {
    f.store.record_quote(quote, coupon, None).await.unwrap()
}

async fn uses(f: &Fixture, tenant: &str, code: &str, cycle: i64) -> (Option<OnceKey>, u32) {
    let cycle = window(cycle).start;
    f.store.read_coupon_uses(&tenant_id(tenant), code, cycle).await.unwrap()
}

pub async fn rates_of_one_name_never_overlap(mut f: Fixture) {
    let first = rate("de", "19", 2, Some(5));
    assert_eq!(put(&f, first.clone()).await, RatePut::Created);
    assert_eq!(put(&f, first.clone()).await, RatePut::Unchanged);
    f.restart().await;
    let overlapping = [
        rate("de", "16", 2, Some(5)),
        rate("de", "16", 4, None),
        rate("de", "16", 0, Some(3)),
        rate("de", "16", 0, None),
        rate("de", "16", 3, Some(4)),
    ];
    for other in overlapping {
        assert_eq!(put(&f, other).await, RatePut::Overlaps(first.clone()));
    }
    let before = rate("de", "16", 0, Some(2));
    let following = rate("de", "20", 5, None);
    assert_eq!(put(&f, following.clone()).await, RatePut::Created);
    assert_eq!(put(&f, before.clone()).await, RatePut::Created);
    assert_eq!(put(&f, rate("de", "21", 7, None)).await, RatePut::Overlaps(following.clone()));
    // Other places and other names are others.
    let other_name = TaxRate { name: "levy".to_owned(), ..first.clone() };
    let other_place = rate("de-be", "1.5", 2, Some(5));
    assert_eq!(put(&f, other_name.clone()).await, RatePut::Created);
    assert_eq!(put(&f, other_place.clone()).await, RatePut::Created);
    let listed = f.store.list_tax_rates(Query::first((), 100)).await.unwrap();
    assert_eq!(listed, [other_name, before, first, following, other_place]);
    for limit in [1, 2] {
        let read = async |last: Option<&TaxRate>| {
            let key =
                |last: &TaxRate| (last.jurisdiction.clone(), last.name.clone(), last.valid_from);
            let query = Query { filter: (), after: last.map(key), limit };
            f.store.list_tax_rates(query).await.unwrap()
        };
        assert_eq!(in_pages(limit, read).await, listed);
    }
}

pub async fn a_rate_ends(f: Fixture) {
    let standing = rate("de", "19", 2, None);
    put(&f, standing.clone()).await;
    let end = async |from: i64, until: i64| {
        let (from, until) = (window(from).start, window(until).start);
        f.store.end_tax_rate("de", "vat", from, until).await.unwrap()
    };
    assert!(!end(3, 5).await, "there is none that begins then");
    assert!(!end(2, 2).await && !end(2, 1).await, "it would end before it begins");
    assert_eq!(
        f.store.list_tax_rates(Query::first((), 100)).await.unwrap(),
        vec![standing.clone()]
    );
    assert!(end(2, 6).await);
    assert!(end(2, 6).await, "again");
    assert!(!end(2, 7).await, "a rate is never made longer");
    let ended = TaxRate { valid_until: Some(window(6).start), ..standing };
    assert_eq!(f.store.list_tax_rates(Query::first((), 100)).await.unwrap(), vec![ended.clone()]);
    assert_eq!(put(&f, rate("de", "20", 5, None)).await, RatePut::Overlaps(ended));
    assert_eq!(put(&f, rate("de", "20", 6, None)).await, RatePut::Created);
}

pub async fn rates_at_once_never_overlap(f: Fixture) {
    let f = Arc::new(f);
    for round in 0..5 {
        // Begins differ, so that no key of the table meets another.
        let rates = (0..8).map(|n| rate(&format!("place-{round}"), "19", n, None));
        let mut created = 0;
        for outcome in at_once(&f, rates, |f, rate| async move { put(&f, rate).await }).await {
            match outcome {
                RatePut::Created => created += 1,
                RatePut::Overlaps(_) => {}
                RatePut::Unchanged => panic!("they all differ"),
            }
        }
        assert_eq!(created, 1);
    }
    assert_eq!(f.store.list_tax_rates(Query::first((), 100)).await.unwrap().len(), 5);
}

pub async fn coupons_are_written_once(mut f: Fixture) {
    let spring = coupon("SPRING", Some(3));
    let amount = Coupon {
        off: Off::Amount(quantity("5.25")),
        currency: Some("eur".to_owned()),
        valid_until: None,
        ..coupon("spring", None)
    };
    let put = async |coupon: &Coupon, f: &Fixture| {
        f.store.put_coupon(coupon.clone(), f.now).await.unwrap()
    };
    assert_eq!(put(&spring, &f).await, CouponPut::Created);
    assert_eq!(put(&amount, &f).await, CouponPut::Created, "codes differ in case");
    f.restart().await;
    assert_eq!(put(&spring, &f).await, CouponPut::Unchanged);
    let other = Coupon { cycles_max: None, ..spring.clone() };
    assert_eq!(put(&other, &f).await, CouponPut::Refused(spring.clone()));
    assert_eq!(f.store.find_coupon("SPRING").await.unwrap(), Some(spring.clone()));
    assert_eq!(f.store.find_coupon("Spring").await.unwrap(), None);
    assert_eq!(
        f.store.list_coupons(Query::first((), 10)).await.unwrap(),
        [spring.clone(), amount.clone()]
    );
    assert_eq!(f.store.list_coupons(Query::first((), 1)).await.unwrap(), [spring]);
    let after_spring = Query { filter: (), after: Some("SPRING".to_owned()), limit: 10 };
    assert_eq!(f.store.list_coupons(after_spring).await.unwrap(), [amount]);
}

pub async fn a_quote_is_kept_as_it_was_answered(mut f: Fixture) {
    let first = quote(&f, "fresh", "q1");
    assert_eq!(record(&f, first.clone(), None).await, QuoteRecorded::Recorded(first.clone()));
    f.restart().await;
    // Whatever is answered later, the first answer stands.
    let later = after(f.now, 9);
    let again = StoredQuote {
        answer: "{}".to_owned(),
        engine: "other".to_owned(),
        at: later,
        ..first.clone()
    };
    assert_eq!(record(&f, again, None).await, QuoteRecorded::Repeated(first.clone()));
    let other = StoredQuote { request: "{}".to_owned(), ..first.clone() };
    assert_eq!(record(&f, other, None).await, QuoteRecorded::KeyTaken(first.clone()));
    let find = async |tenant: &str, once: &str| {
        f.store.find_quote(&tenant_id(tenant), &key(once)).await.unwrap()
    };
    assert_eq!(find("fresh", "q1").await, Some(first));
    assert_eq!(find("fresh", "q2").await, None);
    assert_eq!(find("nobody", "q1").await, None);
    // The same key of another tenant is another.
    let theirs = StoredQuote { request: "[]".to_owned(), ..quote(&f, "umbrella", "q1") };
    assert_eq!(record(&f, theirs.clone(), None).await, QuoteRecorded::Recorded(theirs.clone()));
    assert_eq!(find("umbrella", "q1").await, Some(theirs));
}

pub async fn a_coupon_is_used_once_in_a_cycle(f: Fixture) {
    let first = quote(&f, "acme", "q1");
    let recorded = QuoteRecorded::Recorded(first.clone());
    assert_eq!(uses(&f, "acme", "SPRING", 0).await, (None, 0));
    assert_eq!(record(&f, first.clone(), using("SPRING", 0, Some(2))).await, recorded);
    let repeated = record(&f, first.clone(), using("SPRING", 0, Some(2))).await;
    assert_eq!(repeated, QuoteRecorded::Repeated(first));
    let second = quote(&f, "acme", "q2");
    let refused = record(&f, second.clone(), using("SPRING", 0, Some(2))).await;
    assert_eq!(refused, QuoteRecorded::CouponUsed(Some(key("q1"))));
    assert_eq!(f.store.find_quote(&tenant_id("acme"), &key("q2")).await.unwrap(), None);
    let next = record(&f, second.clone(), using("SPRING", 1, Some(2))).await;
    assert_eq!(next, QuoteRecorded::Recorded(second));
    let third = quote(&f, "acme", "q3");
    let refused = record(&f, third.clone(), using("SPRING", 2, Some(2))).await;
    assert_eq!(refused, QuoteRecorded::CouponUsed(None), "two cycles are all it may be used in");
    assert_eq!(uses(&f, "acme", "SPRING", 1).await, (Some(key("q2")), 2));
    assert_eq!(uses(&f, "acme", "SPRING", 2).await, (None, 2));
    // Another coupon, another tenant and no limit are other matters.
    let unlimited = record(&f, third.clone(), using("OTHER", 2, None)).await;
    assert_eq!(unlimited, QuoteRecorded::Recorded(third));
    let theirs = quote(&f, "umbrella", "q1");
    let recorded = record(&f, theirs.clone(), using("SPRING", 0, Some(2))).await;
    assert_eq!(recorded, QuoteRecorded::Recorded(theirs));
    assert_eq!(uses(&f, "umbrella", "SPRING", 0).await, (Some(key("q1")), 1));
}

pub async fn a_coupon_at_once_is_used_once(f: Fixture) {
    let f = Arc::new(f);
    let mut used = 0;
    for cycle in 0..3 {
        let use_coupon = |f: Arc<Fixture>, n| async move {
            let quote = quote(&f, "acme", &format!("q{cycle}-{n}"));
            record(&f, quote, using("SPRING", cycle, None)).await
        };
        let mut winner = None;
        let mut losers = Vec::new();
        for outcome in at_once(&f, 0..8, use_coupon).await {
            match outcome {
                QuoteRecorded::Recorded(quote) => assert_eq!(winner.replace(quote.key), None),
                QuoteRecorded::CouponUsed(by) => losers.push(by),
                other => panic!("{other:?}"),
            }
        }
        used += 1;
        assert_eq!(losers, vec![winner.clone(); 7]);
        assert_eq!(uses(&f, "acme", "SPRING", cycle).await, (winner, used));
    }
}

/// Different cycles at once do not use a coupon more often than it may be.
pub async fn cycles_at_once_keep_the_limit(f: Fixture) {
    let f = Arc::new(f);
    let use_coupon = |f: Arc<Fixture>, cycle| async move {
        let quote = quote(&f, "acme", &format!("q{cycle}"));
        record(&f, quote, using("SPRING", cycle, Some(3))).await
    };
    let mut recorded = 0;
    for outcome in at_once(&f, 0..8, use_coupon).await {
        match outcome {
            QuoteRecorded::Recorded(_) => recorded += 1,
            QuoteRecorded::CouponUsed(by) => assert_eq!(by, None),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((recorded, uses(&f, "acme", "SPRING", 99).await), (3, (None, 3)));
}

pub async fn one_key_at_once_is_one_quote(f: Fixture) {
    let f = Arc::new(f);
    let answer = |f: Arc<Fixture>, n| async move {
        let answer = format!(r#"{{"from":{n}}}"#);
        let quote = StoredQuote { answer, ..quote(&f, "acme", "q") };
        record(&f, quote, using("SPRING", 0, Some(1))).await
    };
    let (mut recorded, mut answers) = (0, Vec::new());
    for outcome in at_once(&f, 0..12, answer).await {
        match outcome {
            QuoteRecorded::Recorded(quote) => {
                recorded += 1;
                answers.push(quote);
            }
            QuoteRecorded::Repeated(quote) => answers.push(quote),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((recorded, answers.len()), (1, 12));
    assert!(answers.iter().all(|answer| *answer == answers[0]), "all are told the same");
}
