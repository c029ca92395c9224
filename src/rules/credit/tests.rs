//! Draws and what is given back, by examples and against a simple model.

use super::covering::*;
use super::*;
use crate::rules::grant::remaining_after;
use crate::rules::samples::{acme, key, quantity, unit};
use proptest::prelude::*;

const METER: MeterNo = MeterNo(1);

fn grant(number: u64, pool: Pool, amount: &str, rate: &str) -> Grant {
    let terms = GrantTerms {
        tenant: acme(),
        key: key(&format!("grant {number}")),
        pool,
        unit: unit("credits"),
        amount: quantity(amount),
        rates: BTreeMap::from([(METER, quantity(rate))]),
        priority: 50,
        effective_at: Timestamp::from_micros(0),
        expires_at: None,
        memo: String::new(),
    };
    Grant { number, remaining: terms.amount, terms, created_at: Timestamp::from_micros(0) }
}

fn expiring(mut grant: Grant, micros: i64) -> Grant {
    grant.terms.expires_at = Some(Timestamp::from_micros(micros));
    grant
}

fn order(before: &str, now: &str, covered: &str) -> CoverOrder {
    let during = Window { start: Timestamp::from_micros(100), end: Timestamp::from_micros(200) };
    let [before, now, covered] = [before, now, covered].map(quantity);
    CoverOrder { meter: METER, scale: 6, during, before, now, covered }
}

/// What covers an order in the usual order of draws.
fn cover(order: &CoverOrder, grants: &[Grant], drawn: &[Draw]) -> Covering {
    plan_covering(order, grants, drawn, DrawOrder::default()).expect("exact")
}

fn texts(draws: &[Draw]) -> Vec<String> {
    draws.iter().map(|d| format!("{}:{}={}", d.grant, d.quantity, d.cost)).collect()
}

fn draw(grant: u64, quantity_text: &str, cost: &str) -> Draw {
    Draw { grant, quantity: quantity(quantity_text), cost: quantity(cost) }
}

#[test]
fn given_before_paid_and_soonest_first() {
    let grants = [
        grant(1, Pool::Purchased, "5", "1"),
        expiring(grant(2, Pool::Granted, "3", "1"), 900),
        grant(3, Pool::Granted, "4", "1"),
        expiring(grant(4, Pool::Granted, "2", "1"), 500),
        // Over before the usage, and not yet begun.
        expiring(grant(5, Pool::Granted, "9", "1"), 100),
    ];
    let check = |draw_order, expected: &[&str]| {
        let plan = plan_covering(&order("0", "11", "0"), &grants, &[], draw_order).expect("exact");
        assert_eq!(texts(&plan.drawn), expected);
        assert_eq!(plan.covered, quantity("11"));
    };
    check(DrawOrder::GrantedFirst, &["4:2=2", "2:3=3", "3:4=4", "1:2=2"]);
    check(DrawOrder::PurchasedFirst, &["1:5=5", "4:2=2", "2:3=3", "3:1=1"]);
    check(DrawOrder::SoonestFirst, &["4:2=2", "2:3=3", "1:5=5", "3:1=1"]);
}

#[test]
fn a_grant_covers_windows_that_it_holds_in() {
    let check = |from: i64, until: Option<i64>, expected: bool| {
        let mut grant = grant(1, Pool::Granted, "5", "1");
        grant.terms.effective_at = Timestamp::from_micros(from);
        grant.terms.expires_at = until.map(Timestamp::from_micros);
        let plan = cover(&order("0", "1", "0"), &[grant], &[]);
        assert_eq!(plan.covered == quantity("1"), expected, "{from} {until:?}");
    };
    // The window goes from 100 to 200.
    check(0, Some(100), false);
    check(0, Some(101), true);
    check(150, Some(160), true);
    check(199, None, true);
    check(200, None, false);
}

#[test]
fn a_price_leaves_what_pays_for_nothing() {
    let grants = [grant(1, Pool::Granted, "1", "0.3")];
    let whole = CoverOrder { scale: 0, ..order("0", "10", "0") };
    assert_eq!(texts(&cover(&whole, &grants, &[]).drawn), ["1:3=0.9"]);
    let fine = cover(&order("0", "10", "0"), &grants, &[]);
    assert_eq!(texts(&fine.drawn), ["1:3.333333=0.9999999"]);
}

#[test]
fn shrinking_gives_back_in_reverse() {
    let drawn = [draw(4, "2", "1"), draw(2, "3", "3")];
    let check = |before: &str, now: &str, expected: &[&str], covered: &str| {
        let plan = cover(&order(before, now, "5"), &[], &drawn);
        assert_eq!(texts(&plan.given_back), expected);
        assert_eq!(plan.covered, quantity(covered));
        assert!(plan.drawn.is_empty());
    };
    // What was billed shrinks first.
    check("9", "5", &[], "5");
    check("9", "4", &["2:1=1"], "4");
    check("5", "1", &["2:3=3", "4:1=0.5"], "1");
    check("5", "-3", &["2:3=3", "4:2=1"], "0");
}

#[test]
fn net_draws_are_what_was_not_given_back() {
    let changes = [
        (ChangeKind::Drawn, draw(1, "2", "2")),
        (ChangeKind::Drawn, draw(2, "4", "8")),
        (ChangeKind::GivenBack, draw(2, "1", "2")),
        (ChangeKind::Drawn, draw(2, "1", "2")),
        (ChangeKind::GivenBack, draw(2, "1", "2")),
        (ChangeKind::GivenBack, draw(2, "3", "6")),
        (ChangeKind::GivenBack, draw(1, "1", "1")),
    ];
    let standing = standing_draws(&changes).expect("consistent");
    assert_eq!(texts(&standing), ["1:1=1"]);
    assert!(standing_draws(&[(ChangeKind::GivenBack, draw(1, "1", "1"))]).is_err());
}

#[test]
fn terms_that_cannot_be_exact_are_refused() {
    let code = |change: &dyn Fn(&mut GrantTerms), scale: u32| {
        let mut terms = grant(1, Pool::Granted, "10", "0.001").terms;
        change(&mut terms);
        terms.check(|meter| (meter == METER).then_some(scale)).err().map(|refusal| refusal.code)
    };
    assert_eq!(code(&|_| (), 9), None);
    assert_eq!(code(&|_| (), 10), Some("rate_too_precise"));
    assert_eq!(code(&|terms| terms.amount = Quantity::ZERO, 0), Some("invalid_amount"));
    assert_eq!(code(&|terms| terms.priority = 101, 0), Some("invalid_priority"));
    assert_eq!(code(&|terms| terms.rates.clear(), 0), Some("invalid_rates"));
    let zero = |terms: &mut GrantTerms| terms.rates = BTreeMap::from([(METER, Quantity::ZERO)]);
    assert_eq!(code(&zero, 0), Some("invalid_rates"));
    let other = BTreeMap::from([(MeterNo(7), Quantity::ONE)]);
    let unknown = |terms: &mut GrantTerms| terms.rates = other.clone();
    assert_eq!(code(&unknown, 0), Some("unknown_meter"));
    let over = |terms: &mut GrantTerms| terms.expires_at = Some(terms.effective_at);
    assert_eq!(code(&over, 0), Some("invalid_expiry"));
}

#[test]
fn the_largest_amounts_multiply() {
    let largest = quantity("999999999999999.999999");
    assert_eq!(cost_of(largest, Quantity::ONE), Ok(largest));
    assert_eq!(cost_of(largest, quantity("999999999999999")), Err(Inexact));
    assert_eq!(affordable(largest, Quantity::ONE, 6, largest), Ok(largest));
}

/// One step of a random history of windows that share grants.
fn steps() -> impl Strategy<Value = Vec<(usize, i64)>> {
    proptest::collection::vec((0usize..4, -5i64..400), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]
    #[test]
    fn nothing_is_made_or_lost(
        amounts in proptest::collection::vec((1i64..300, 1i64..7, any::<bool>()), 0..5),
        steps in steps(),
        soonest in any::<bool>(),
    ) {
        let draw_order = if soonest { DrawOrder::SoonestFirst } else { DrawOrder::GrantedFirst };
        let mut grants: Vec<Grant> = (1u64..)
            .zip(&amounts)
            .map(|(number, (amount, rate, paid))| {
                let pool = if *paid { Pool::Purchased } else { Pool::Granted };
                grant(number, pool, &amount.to_string(), &format!("0.{rate}"))
            })
            .collect();
        let mut totals = [Quantity::ZERO; 4];
        let mut covered = [Quantity::ZERO; 4];
        let mut changes: [Vec<(ChangeKind, Draw)>; 4] = Default::default();
        for (window, total) in steps {
            let now = Quantity::from_units(i128::from(total) * Quantity::ONE.units());
            let mut order = order("0", "0", "0");
            (order.before, order.now, order.covered) = (totals[window], now, covered[window]);
            let standing = standing_draws(&changes[window]).expect("consistent");
            let plan = plan_covering(&order, &grants, &standing, draw_order).expect("exact");
            let moves = plan.drawn.iter().map(|draw| (ChangeKind::Drawn, *draw));
            let back = plan.given_back.iter().map(|draw| (ChangeKind::GivenBack, *draw));
            for (kind, draw) in moves.chain(back) {
                let grant = grants.iter_mut().find(|grant| grant.number == draw.grant);
                let grant = grant.expect("draws name grants");
                grant.remaining = remaining_after(grant, kind, draw.cost).expect("in range");
                changes[window].push((kind, draw));
            }
            (totals[window], covered[window]) = (now, plan.covered);
            // A window is covered by its net draws, and never by more than it used.
            let standing = standing_draws(&changes[window]).expect("consistent");
            prop_assert_eq!(sum(standing.iter().map(|draw| draw.quantity)), Ok(plan.covered));
            prop_assert!(plan.covered <= now.max(Quantity::ZERO));
            // Each grant: what is left and its net draws make its amount.
            for grant in &grants {
                let mut spent = Quantity::ZERO;
                for draw in changes.iter().flat_map(|c| standing_draws(c).expect("consistent")) {
                    if draw.grant == grant.number {
                        spent = spent.checked_add(draw.cost).expect("fits");
                        let rate = grant.terms.rates[&METER];
                        prop_assert_eq!(cost_of(draw.quantity, rate), Ok(draw.cost));
                    }
                }
                prop_assert_eq!(spent.checked_add(grant.remaining), Some(grant.terms.amount));
            }
        }
    }
}

#[test]
fn windows_that_contradict_themselves_are_not_covered() {
    let grants = [grant(1, Pool::Granted, "5", "1")];
    let check = |change: fn(&mut CoverOrder), expected: &str| {
        let mut order = order("0", "3", "0");
        change(&mut order);
        let fault = plan_covering(&order, &grants, &[], DrawOrder::default()).unwrap_err();
        assert_eq!(fault.fact, expected);
    };
    check(|order| order.scale = 13, "a meter has at most 12 decimal places");
    check(|order| order.during.end = order.during.start, "usage takes some time");
    check(|order| order.covered = quantity("-1"), "covered usage is not negative");
    let finer = "covered usage has no more decimal places than its meter";
    check(|order| order.covered = quantity("0.0000001"), finer);
    let finer = "usage has no more decimal places than its meter";
    check(|order| order.now = quantity("3.0000001"), finer);
    let unexplained = "the net draws of a window are what of it is covered";
    check(|order| order.covered = quantity("4"), unexplained);
}

#[test]
fn draws_that_contradict_the_order_are_not_planned() {
    let grants = [
        expiring(grant(1, Pool::Granted, "3", "1"), 900),
        grant(2, Pool::Granted, "4", "2"),
        grant(3, Pool::Purchased, "9", "1"),
    ];
    let check = |draws: &[Draw], grown: &str, expected: Option<&str>| {
        let order = order("0", grown, "0");
        let outcome = check_draws(&order, &grants, draws, quantity(grown), DrawOrder::GrantedFirst);
        assert_eq!(outcome.err().map(|fault| fault.fact), expected, "{draws:?}");
    };
    check(&[draw(1, "3", "3"), draw(2, "1", "2")], "4", None);
    check(&[draw(1, "3", "3"), draw(2, "2", "4"), draw(3, "9", "9")], "20", None);
    check(&[draw(1, "0", "0")], "1", Some("a draw covers some usage"));
    let step = "a draw covers whole steps of its meter";
    check(&[draw(1, "0.0000001", "0.0000001")], "1", Some(step));
    check(&[draw(1, "1", "2")], "1", Some("a draw costs its usage times the rate"));
    let skipped = "a grant is drawn on after all before it are used up";
    check(&[draw(1, "2", "2"), draw(2, "1", "2")], "3", Some(skipped));
    check(&[draw(1, "4", "4")], "4", Some("a grant is never overdrawn"));
    let stray = "a draw is on a grant that pays for its usage";
    check(&[draw(1, "3", "3"), draw(9, "1", "1")], "4", Some(stray));
    check(&[draw(1, "1", "1"), draw(1, "1", "1")], "2", Some(stray));
    let unpaid = "usage is billed only when no grant can pay for it";
    check(&[draw(1, "3", "3"), draw(2, "2", "4")], "6", Some(unpaid));
}

#[test]
fn of_equal_grants_the_first_to_expire_is_known() {
    let check = |first: Option<i64>, second: Option<i64>, pool: Pool, expected: bool| {
        let ending = |number, pool, end: Option<i64>| {
            let grant = grant(number, pool, "1", "1");
            end.map_or(grant.clone(), |end| expiring(grant, end))
        };
        let (first, second) = (ending(1, Pool::Granted, first), ending(2, pool, second));
        assert_eq!(outlasts(&first, &second), expected);
    };
    check(Some(600), Some(500), Pool::Granted, true);
    check(None, Some(500), Pool::Granted, true);
    check(Some(500), Some(500), Pool::Granted, false);
    check(Some(400), None, Pool::Granted, false);
    check(None, None, Pool::Granted, false);
    check(Some(600), Some(500), Pool::Purchased, false);
}

#[test]
fn changes_of_a_window_that_contradict_each_other_are_a_fault() {
    use ChangeKind::{Drawn, Expired, GivenBack};
    let check = |changes: &[(ChangeKind, Draw)], expected: &str| {
        assert_eq!(standing_draws(changes).unwrap_err().fact, expected);
    };
    check(&[(Drawn, draw(1, "1", "0"))], "a window's change moves usage and credits");
    let kinds = "a window's changes are draws and what is given back";
    check(&[(Expired, draw(1, "1", "1"))], kinds);
    let last = "what is given back is of the last net draw";
    check(&[(Drawn, draw(1, "1", "1")), (GivenBack, draw(2, "1", "1"))], last);
    let more = "no more is given back than was drawn";
    check(&[(Drawn, draw(1, "1", "1")), (GivenBack, draw(1, "2", "1"))], more);
    let together = "a draw's usage and its cost are given back together";
    check(&[(Drawn, draw(1, "2", "2")), (GivenBack, draw(1, "2", "1"))], together);
}

/// A window that was only followed for a while may hold less than is covered of it. What it grows
/// by then is covered already, up to that.
#[test]
fn growth_below_what_is_covered_draws_nothing() {
    let grants = [grant(1, Pool::Granted, "9", "1")];
    let check = |before: &str, now: &str, expected: &[&str], covered: &str| {
        let plan = cover(&order(before, now, "4"), &grants, &[]);
        assert_eq!(texts(&plan.drawn), expected);
        assert_eq!(plan.covered, quantity(covered));
    };
    check("2", "4", &[], "4");
    check("2", "5", &["1:1=1"], "5");
    check("6", "7", &["1:1=1"], "5");
}
