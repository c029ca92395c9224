//! Rates, coupons and rounding, by figures that can be checked by hand.

use super::*;
use crate::rules::samples::{acme, quantity};
use proptest::prelude::*;

fn at(day: i64) -> Timestamp {
    Timestamp::from_micros(day * 86_400_000_000)
}

fn rate(jurisdiction: &str, name: &str, percent: &str, days: (i64, Option<i64>)) -> TaxRate {
    TaxRate {
        jurisdiction: jurisdiction.into(),
        name: name.into(),
        percent: quantity(percent),
        valid_from: at(days.0),
        valid_until: days.1.map(at),
    }
}

fn request(prices: PriceKind, jurisdiction: &str, amounts: &[&str]) -> QuoteRequest {
    let line = |(place, amount): (usize, &&str)| QuoteLine {
        id: place.to_string(),
        amount: quantity(amount),
    };
    QuoteRequest {
        tenant: acme(),
        currency: "eur".into(),
        jurisdiction: jurisdiction.into(),
        prices,
        at: at(10),
        lines: amounts.iter().enumerate().map(line).collect(),
        coupon: None,
        cycle: None,
    }
}

fn rates() -> Vec<TaxRate> {
    vec![
        rate("de", "vat", "16", (0, Some(10))),
        rate("de", "vat", "19", (10, None)),
        rate("us-ny", "state", "4", (0, None)),
        rate("us-ny-nyc", "city", "4.5", (0, None)),
        rate("us-n", "other", "50", (0, None)),
    ]
}

fn figures(request: &QuoteRequest, coupon: Option<&Coupon>) -> [String; 4] {
    let discounts = discounts(request, coupon).expect("fits");
    let quote = quote(request, &discounts, &rates()).expect("fits");
    [quote.discount, quote.net, quote.tax, quote.gross].map(|figure| figure.to_string())
}

#[test]
fn a_place_without_a_rate_is_not_tax_free() {
    let asked = request(PriceKind::Exclusive, "fr", &["200"]);
    let quoted = quote(&asked, &[Quantity::ZERO], &rates());
    assert_eq!(quoted.map_err(|refusal| refusal.code), Err("no_tax_rate"));
    let free = [rate("fr", "vat", "0", (0, None))];
    let quoted = quote(&asked, &[Quantity::ZERO], &free).expect("declared as 0");
    assert_eq!(quoted.tax, Quantity::ZERO);
    let misspelt = QuoteRequest { currency: "euro".into(), ..asked };
    assert_eq!(misspelt.check().map_err(|refusal| refusal.code), Err("invalid_unit"));
}

#[test]
fn tax_is_put_on_or_was_in_the_price() {
    let check = |prices, place: &str, amounts: &[&str], expected: [&str; 3]| {
        let [_, net, tax, gross] = figures(&request(prices, place, amounts), None);
        assert_eq!([net.as_str(), tax.as_str(), gross.as_str()], expected);
    };
    check(PriceKind::Exclusive, "de", &["100"], ["100", "19", "119"]);
    check(PriceKind::Inclusive, "de", &["119"], ["100", "19", "119"]);
    check(PriceKind::Inclusive, "de", &["0.01"], ["0.01", "0", "0.01"]);
    // Half a cent goes up: 19 % of 0.50 is 0.095.
    check(PriceKind::Exclusive, "de", &["0.5"], ["0.5", "0.1", "0.6"]);
    // Each line is rounded: two of 0.095 make 0.20.
    check(PriceKind::Exclusive, "de", &["0.5", "0.5"], ["1", "0.2", "1.2"]);
    // A city pays its state's rate too, but not that of a place whose name begins alike.
    check(PriceKind::Exclusive, "us-ny-nyc", &["200"], ["200", "17", "217"]);
    check(PriceKind::Inclusive, "us-ny-nyc", &["217"], ["200", "17", "217"]);
}

#[test]
fn the_moment_decides_to_the_microsecond() {
    let mut asked = request(PriceKind::Exclusive, "de", &["100"]);
    asked.at = at(10).saturating_add_micros(-1);
    assert_eq!(figures(&asked, None)[2], "16");
    asked.at = at(10);
    assert_eq!(figures(&asked, None)[2], "19");
}

fn coupon(off: Off) -> Coupon {
    let currency = match off {
        Off::Percent(_) => None,
        Off::Amount(_) => Some("eur".to_owned()),
    };
    let code = "SPRING".to_owned();
    Coupon { code, off, currency, valid_from: at(0), valid_until: None, cycles_max: None }
}

#[test]
fn a_discount_comes_before_tax() {
    let lines = request(PriceKind::Exclusive, "de", &["10", "20", "0.01"]);
    let percent = coupon(Off::Percent(quantity("10")));
    assert_eq!(figures(&lines, Some(&percent)), ["3", "27.01", "5.13", "32.14"]);
    let amount = coupon(Off::Amount(quantity("10")));
    assert_eq!(figures(&lines, Some(&amount)), ["10", "20.01", "3.8", "23.81"]);
    // No more than there is.
    let all = coupon(Off::Amount(quantity("1000")));
    assert_eq!(figures(&lines, Some(&all)), ["30.01", "0", "0", "0"]);
}

#[test]
fn currencies_have_their_own_smallest_units() {
    let mut yen = request(PriceKind::Exclusive, "de", &["105"]);
    yen.currency = "jpy".into();
    assert_eq!(figures(&yen, None)[2], "20");
    yen.lines[0].amount = quantity("1.5");
    assert_eq!(yen.check().map_err(|refusal| refusal.code), Err("invalid_amount"));
}

#[test]
fn rates_of_one_name_do_not_overlap() {
    let one = rate("de", "vat", "19", (0, Some(10)));
    assert!(!one.overlaps(&rate("de", "vat", "16", (10, None))));
    assert!(one.overlaps(&rate("de", "vat", "16", (9, None))));
    assert!(one.overlaps(&rate("de", "vat", "16", (-5, None))));
    assert!(!one.overlaps(&rate("de", "levy", "16", (0, None))));
    assert!(!one.overlaps(&rate("at", "vat", "16", (0, None))));
}

#[test]
fn what_cannot_be_exact_is_refused() {
    let refused = |rate: TaxRate| rate.check().map_err(|refusal| refusal.code);
    assert_eq!(refused(rate("de", "vat", "0.0000001", (0, None))), Err("invalid_percent"));
    assert_eq!(refused(rate("de", "vat", "100.1", (0, None))), Err("invalid_percent"));
    assert_eq!(refused(rate("DE", "vat", "19", (0, None))), Err("invalid_jurisdiction"));
    assert_eq!(refused(rate("de", "vat", "19", (5, Some(5)))), Err("invalid_validity"));
    assert_eq!(refused(rate("de", "vat", "8.875", (0, None))), Ok(()));
    let bad = |off| coupon(off).check().map_err(|refusal| refusal.code);
    assert_eq!(bad(Off::Percent(quantity("101"))), Err("invalid_coupon"));
    assert_eq!(bad(Off::Amount(quantity("0.001"))), Err("invalid_coupon"));
    assert_eq!(bad(Off::Amount(quantity("0.01"))), Ok(()));
    let mut asked = request(PriceKind::Exclusive, "de", &["1"]);
    asked.coupon = Some("SPRING".into());
    assert_eq!(asked.check().map_err(|refusal| refusal.code), Err("cycle_missing"));
}

proptest! {
    #[test]
    fn sums_hold(
        cents in proptest::collection::vec(0i64..10_000_000_000, 1..30),
        percents in proptest::collection::vec(0i64..100_000_000, 1..4),
        off in 1i64..10_000_000_000, by_percent in any::<bool>(), inclusive in any::<bool>(),
    ) {
        let prices = if inclusive { PriceKind::Inclusive } else { PriceKind::Exclusive };
        let mut asked = request(prices, "de", &[]);
        let cent = smallest("eur");
        asked.lines = cents.iter().map(|cents| QuoteLine {
            id: String::new(),
            amount: Quantity::from_units(i128::from(*cents) * cent),
        }).collect();
        let rates: Vec<TaxRate> = percents.iter().enumerate().map(|(place, micro)| {
            let mut rate = rate("de", &place.to_string(), "0", (0, None));
            rate.percent = Quantity::from_units(i128::from(*micro) * 10i128.pow(6));
            rate
        }).collect();
        let off = if by_percent {
            Off::Percent(Quantity::from_units(i128::from(off % 100 + 1) * Quantity::ONE.units()))
        } else {
            Off::Amount(Quantity::from_units(i128::from(off) * cent))
        };
        let taken = discounts(&asked, Some(&coupon(off.clone()))).expect("fits");
        let quote = quote(&asked, &taken, &rates).expect("fits");
        for line in &quote.lines {
            let taxes: i128 = line.taxes.iter().map(|tax| tax.amount.units()).sum();
            prop_assert_eq!(line.net.units() + taxes, line.gross.units());
            let price = line.amount.units() - line.discount.units();
            let stated = if inclusive { line.gross } else { line.net };
            prop_assert_eq!(stated.units(), price);
            for figure in [line.discount, line.net, line.gross] {
                prop_assert_eq!(figure.units() % cent, 0);
                prop_assert!(figure >= Quantity::ZERO);
            }
        }
        prop_assert_eq!(quote.net.units() + quote.tax.units(), quote.gross.units());
        if let Off::Amount(amount) = off {
            let total: i128 = asked.lines.iter().map(|line| line.amount.units()).sum();
            prop_assert_eq!(quote.discount.units(), amount.units().min(total));
        }
    }
}
