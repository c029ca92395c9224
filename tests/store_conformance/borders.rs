//! Windows in which something changes: a trial ends, a subscription begins or ends, prices change,
//! a period ends; known before the window is cut, or learnt after it.

use crate::billed::{Billed, after, quantity, window};
use crate::fixture::{Fixture, event, tenant_id};
use crate::inbound::{entry, record, subscription, subscription_name, thin};
use counterfoil::rules::attribution::Outside;
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::subscription::{Origin, Subscription};
use counterfoil::rules::timestamp::Timestamp;
use counterfoil::rules::window::Window;
use counterfoil::store::push::{CutOrder, CutReport, PushRelease, Recut};

/// The hour that all of these are about, and moments in it.
const HOUR: i64 = 0;

fn minute(number: i64) -> Timestamp {
    after(window(HOUR).start, number)
}

/// A webhook tells of a state of acme's subscription, from a minute of the hour on.
async fn learn(
    billed: &Billed,
    id: &str,
    (from, origin): (i64, Origin),
    change: impl FnOnce(&mut Subscription),
) {
    let mut state = subscription("active");
    change(&mut state);
    let name = format!("evt_{id}_{from}_{}", origin.name());
    let mut receipt = thin(&billed.f, &name, subscription_name(id));
    receipt.facts.timeline = Some(entry(id, minute(from), origin, state));
    record(&billed.f, vec![receipt]).await;
}

async fn began(billed: &Billed, id: &str, from: i64) {
    learn(billed, id, (from, Origin::Created), |_| {}).await;
}

async fn in_trial(billed: &Billed, id: &str, from: i64, until: i64) {
    let trial = Window { start: minute(from), end: minute(until) };
    learn(billed, id, (from, Origin::Created), |state| state.trial = Some(trial)).await;
}

async fn ended(billed: &Billed, id: &str, at: i64) {
    let end = minute(at);
    learn(billed, id, (at, Origin::Ended), |state| state.ended_at = Some(end)).await;
}

/// Acme uses a meter in minutes 5, 15, 25, 35, 45 and 55: digit by digit, so that a total names
/// its events.
async fn use_all_hour(billed: &Billed, meter: &str) {
    for (place, quantity) in ["1", "20", "300", "4000", "50000", "600000"].iter().enumerate() {
        let at = minute(10 * i64::try_from(place).unwrap() + 5).to_string();
        let id = format!("{meter}-{place}");
        billed
            .f
            .deliver_one(&event("acme", &id, meter, &format!("\"{quantity}\""), &at, "{}"))
            .await;
    }
}

async fn cut_again(billed: &Billed, meter: &str) -> CutReport {
    let mut order = billed.orders("acme", meter, &[HOUR]).await.remove(0);
    order.recut = true;
    let mut orders = vec![order];
    let mut all = CutReport::default();
    while !orders.is_empty() {
        let report = billed.f.store.record_cuts(&billed.lease, orders, billed.terms).await.unwrap();
        all.pushes += report.pushes;
        orders = report.unfinished;
    }
    all
}

/// What each push tells, and the minute and second that it is stamped at.
async fn stamped(billed: &Billed) -> Vec<(String, String)> {
    let pushes = billed.pushes().await;
    let clock = |at: Timestamp| at.to_string()[14..19].to_owned();
    pushes.iter().map(|push| (push.value.to_string(), clock(push.stamped_at))).collect()
}

fn expected(pushes: &[(&str, &str)]) -> Vec<(String, String)> {
    pushes.iter().map(|(value, at)| ((*value).to_owned(), (*at).to_owned())).collect()
}

async fn recuts(billed: &Billed) -> Vec<Recut> {
    billed.f.store.list_recuts(100).await.unwrap()
}

pub async fn usage_is_pushed_on_its_side_of_a_border(f: Fixture) {
    let billed = Billed::with_acme(f).await;
    in_trial(&billed, "sub_1", -600, 20).await;
    learn(&billed, "sub_1", (40, Origin::Updated), |state| {
        state.prices = vec!["price_large".into()];
        state.trial = Some(Window { start: minute(-600), end: minute(20) });
    })
    .await;
    use_all_hour(&billed, "tokens").await;
    assert_eq!(billed.cut("tokens", &[HOUR]).await, 2);
    // Two events lie in the trial, two before the change of prices, two after it.
    assert_eq!(stamped(&billed).await, expected(&[("4300", "30:00"), ("650000", "50:00")]));
    let state = billed.state("tokens", HOUR).await.unwrap();
    assert_eq!((state.total, state.trial), (quantity("654300"), quantity("21")));
    assert_eq!(state.planned, quantity("654300"));
    let pushes = billed.pushes().await;
    assert!(pushes.iter().all(|push| push.subscriptions.starts_with(r#"{"sub_1":"#)));
    assert_eq!(billed.cut("tokens", &[HOUR]).await, 0, "nothing has changed");
    assert_eq!(cut_again(&billed, "tokens").await.pushes, 0, "nor does a recut find anything");
}

pub async fn a_late_event_goes_to_its_own_side(f: Fixture) {
    let mut billed = Billed::with_acme(f).await;
    began(&billed, "sub_1", -600).await;
    ended(&billed, "sub_1", 30).await;
    use_all_hour(&billed, "tokens").await;
    billed.cut("tokens", &[HOUR]).await;
    assert_eq!(stamped(&billed).await, expected(&[("321", "15:00"), ("654000", "45:00")]));
    billed.f.restart().await;
    for (id, at) in [("late-before", 29), ("late-after", 30)] {
        let event = event("acme", id, "tokens", "\"0.5\"", &minute(at).to_string(), "{}");
        billed.f.deliver_one(&event).await;
        billed.cut("tokens", &[HOUR]).await;
    }
    let all = [("321", "15:00"), ("654000", "45:00"), ("0.5", "15:00"), ("0.5", "45:00")];
    assert_eq!(stamped(&billed).await, expected(&all));
}

pub async fn a_timeline_that_is_learnt_late_makes_exact_revisions(f: Fixture) {
    let mut billed = Billed::with_acme(f).await;
    use_all_hour(&billed, "tokens").await;
    billed.cut("tokens", &[HOUR]).await;
    assert_eq!(stamped(&billed).await, expected(&[("654321", "30:00")]));
    assert_eq!(recuts(&billed).await, []);
    // The webhook about the trial comes after the cut, and it is cut short after that.
    in_trial(&billed, "sub_1", -600, 40).await;
    let [asked] = recuts(&billed).await.try_into().unwrap();
    assert_eq!((asked.tenant.as_str(), asked.expedited), ("acme", true));
    assert!(asked.range.start <= minute(0) && minute(60) <= asked.range.end);
    assert_eq!(cut_again(&billed, "tokens").await.pushes, 2);
    let learnt = [("654321", "30:00"), ("-654321", "20:00"), ("650000", "50:00")];
    assert_eq!(stamped(&billed).await, expected(&learnt));
    billed.f.restart().await;
    let short = Window { start: minute(-600), end: minute(20) };
    learn(&billed, "sub_1", (20, Origin::Updated), |state| state.trial = Some(short)).await;
    cut_again(&billed, "tokens").await;
    let state = billed.state("tokens", HOUR).await.unwrap();
    assert_eq!((state.trial, state.total), (quantity("21"), quantity("654300")));
    assert_eq!(state.planned, quantity("654300"));
    let keys: std::collections::BTreeSet<String> =
        billed.pushes().await.into_iter().map(|push| push.key).collect();
    assert_eq!(keys.len(), billed.pushes().await.len(), "each revision has its own key");
    // The same state once more divides nothing anew.
    let before = recuts(&billed).await.len();
    learn(&billed, "sub_1", (30, Origin::Updated), |state| state.trial = Some(short)).await;
    assert_eq!(recuts(&billed).await.len(), before);
}

pub async fn usage_in_no_subscription_is_held_until_one_is_known(f: Fixture) {
    let mut billed = Billed::with_acme(f).await;
    billed.terms.outside = Outside::Hold;
    use_all_hour(&billed, "tokens").await;
    assert_eq!(billed.cut("tokens", &[HOUR]).await, 0);
    let state = billed.state("tokens", HOUR).await.unwrap();
    assert_eq!((state.count, state.total, state.outside), (6, Quantity::ZERO, quantity("654321")));
    let meter = billed.f.meter_no("tokens").await;
    let sums = billed.f.store.sum_unbilled(vec![(meter, Timestamp::from_micros(0))]).await.unwrap();
    assert_eq!(sums.outside.get(&meter), Some(&quantity("654321")));
    began(&billed, "sub_1", 30).await;
    assert_eq!(cut_again(&billed, "tokens").await.pushes, 1);
    assert_eq!(stamped(&billed).await, expected(&[("654000", "45:00")]));
    let state = billed.state("tokens", HOUR).await.unwrap();
    assert_eq!((state.total, state.outside), (quantity("654000"), quantity("321")));
}

pub async fn a_producers_own_stamp_wins(f: Fixture) {
    let billed = Billed::with_acme(f).await;
    in_trial(&billed, "sub_1", -600, 600).await;
    let stamped_event = |id: &str, quantity: &str, stamp: &str| {
        event("acme", id, "tokens", quantity, &minute(10).to_string(), "{}")
            .replace(r#""properties""#, &format!(r#"{stamp}"properties""#))
    };
    let batch = [
        stamped_event("e1", "1", ""),
        stamped_event("e2", "20", r#""subscription":"sub_1","#),
        stamped_event("e3", "300", r#""subscription":"sub_other","#),
        stamped_event("e4", "4000", r#""subscription":"sub_other","trial":true,"#),
    ];
    billed.f.deliver(&batch).await;
    assert_eq!(billed.cut("tokens", &[HOUR]).await, 1);
    let push = billed.pushes().await.remove(0);
    assert_eq!(
        (push.value, push.subscriptions.as_str()),
        (quantity("300"), r#"{"sub_other":"300"}"#)
    );
    let state = billed.state("tokens", HOUR).await.unwrap();
    assert_eq!((state.count, state.trial), (4, quantity("21")));
}

pub async fn events_that_are_billed_one_by_one_are_attributed_too(f: Fixture) {
    let billed = Billed::with_acme(f).await;
    in_trial(&billed, "sub_1", -600, 20).await;
    use_all_hour(&billed, "single").await;
    assert_eq!(billed.cut("single", &[HOUR]).await, 4);
    let state = billed.state("single", HOUR).await.unwrap();
    assert_eq!((state.total, state.trial), (quantity("654300"), quantity("21")));
    assert_eq!(billed.cut("single", &[HOUR]).await, 0, "what was set aside is not found again");
    // The trial was longer than was known.
    let long = Window { start: minute(-600), end: minute(40) };
    learn(&billed, "sub_1", (30, Origin::Updated), |state| state.trial = Some(long)).await;
    cut_again(&billed, "single").await;
    let state = billed.state("single", HOUR).await.unwrap();
    assert_eq!((state.total, state.trial), (quantity("650000"), quantity("4321")));
    let sum: i128 = billed.pushes().await.iter().map(|push| push.quantity.units()).sum();
    assert_eq!(Quantity::from_units(sum), quantity("650000"));
    assert_eq!(cut_again(&billed, "single").await.pushes, 0);
}

pub async fn a_day_is_divided_like_an_hour(f: Fixture) {
    let billed = Billed::with_acme(f).await;
    began(&billed, "sub_1", -60 * 100).await;
    ended(&billed, "sub_1", 30).await;
    use_all_hour(&billed, "daily").await;
    let meter = billed.f.meter_no("daily").await;
    let start = window(HOUR).start;
    let day = Window { start, end: after(start, 24 * 60) };
    let order = CutOrder { tenant: tenant_id("acme"), meter, window: day, recut: false };
    let report =
        billed.f.store.record_cuts(&billed.lease, vec![order], billed.terms).await.unwrap();
    assert_eq!(report.pushes, 2);
    let values: Vec<String> =
        billed.pushes().await.iter().map(|push| push.value.to_string()).collect();
    assert_eq!(values, ["321", "654000"]);
    assert!(billed.pushes().await[0].stamped_at < minute(30));
    assert!(billed.pushes().await[1].stamped_at > minute(30));
}

pub async fn a_window_billed_by_its_total_is_stamped_where_it_is_charged(f: Fixture) {
    let billed = Billed::with_acme(f).await;
    in_trial(&billed, "sub_1", -600, 40).await;
    use_all_hour(&billed, "peak").await;
    assert_eq!(billed.cut("peak", &[HOUR]).await, 1);
    assert_eq!(stamped(&billed).await, expected(&[("650000", "40:01")]));
    let state = billed.state("peak", HOUR).await.unwrap();
    assert_eq!((state.total, state.trial), (quantity("650000"), quantity("4321")));
}

pub async fn usage_is_divided_at_borders_that_are_asked_for(f: Fixture) {
    let billed = Billed::with_acme(f).await;
    began(&billed, "sub_1", 20).await;
    use_all_hour(&billed, "tokens").await;
    let meter = billed.f.meter_no("tokens").await;
    let (acme, own) = (tenant_id("acme"), window(HOUR));
    let borders = [minute(50)];
    let divided = billed.f.store.divide_usage(&acme, meter, own, &borders, Outside::Hold);
    let divided = divided.await.unwrap().unwrap();
    let charges: Vec<String> =
        divided.charges.iter().map(|charge| charge.billable.to_string()).collect();
    assert_eq!(charges, ["0", "54300", "600000"]);
    assert_eq!((divided.count, divided.outside), (6, quantity("21")));
    let nobody = tenant_id("nobody");
    let none = billed.f.store.divide_usage(&nobody, meter, own, &[], Outside::Hold).await.unwrap();
    assert_eq!(none, None);
}

pub async fn a_mapping_divides_what_was_cut_before(f: Fixture) {
    let billed = Billed::start(f).await;
    // The provider's customer is known before the tenant is mapped to it.
    in_trial(&billed, "sub_1", -600, 40).await;
    use_all_hour(&billed, "tokens").await;
    assert_eq!(billed.cut("tokens", &[HOUR]).await, 1);
    assert_eq!(recuts(&billed).await, []);
    billed.f.customer("acme", "cus_acme").await;
    let [asked] = recuts(&billed).await.try_into().unwrap();
    assert!(asked.range.start <= minute(0) && billed.f.now <= asked.range.end);
    // Nothing is sent before the trial is taken back.
    let release = PushRelease { now: billed.f.now, stamp_age_max: None, limit: 100 };
    assert_eq!(billed.f.store.release_pushes(release).await.unwrap(), 0);
    assert_eq!(cut_again(&billed, "tokens").await.pushes, 2);
    assert!(billed.f.store.finish_recut(&billed.lease, asked.number).await.unwrap());
    assert!(billed.f.store.release_pushes(release).await.unwrap() > 0);
    let state = billed.state("tokens", HOUR).await.unwrap();
    assert_eq!((state.total, state.trial), (quantity("650000"), quantity("4321")));
    // The same customer once more is no change; a tenant of which nothing is known neither.
    billed.f.customer("acme", "cus_acme").await;
    billed.f.customer("umbrella", "cus_umbrella").await;
    assert_eq!(recuts(&billed).await, []);
}

pub async fn usage_under_a_former_customer_stays_divided_by_its_subscriptions(f: Fixture) {
    let billed = Billed::with_acme(f).await;
    in_trial(&billed, "sub_1", -600, 40).await;
    use_all_hour(&billed, "tokens").await;
    billed.cut("tokens", &[HOUR]).await;
    billed.f.customer("acme", "cus_other").await;
    let late = event("acme", "late", "tokens", "\"0.5\"", &minute(10).to_string(), "{}");
    billed.f.deliver_one(&late).await;
    assert_eq!(billed.cut("tokens", &[HOUR]).await, 0);
    let state = billed.state("tokens", HOUR).await.unwrap();
    assert_eq!((state.total, state.trial), (quantity("650000"), quantity("4321.5")));
    // What is learnt of its subscriptions still concerns the tenant.
    let before = recuts(&billed).await.len();
    let short = Window { start: minute(-600), end: minute(20) };
    learn(&billed, "sub_1", (20, Origin::Updated), |state| state.trial = Some(short)).await;
    assert_eq!(recuts(&billed).await.len(), before + 1);
}
