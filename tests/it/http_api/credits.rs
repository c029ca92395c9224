//! Credits as the interface shows them: issued, drawn by cuts, voided, expired; balances
//! between cuts, and what quotas leave.

use super::idempotency::{check_replay, check_same};
use super::pushes::Scripted;
use crate::world::{Dice, Ground, Server, configured, default_config, each};
use counterfoil::config::{Config, Shadow};
use counterfoil::jobs::Job;
use counterfoil::jobs::credits::CreditsJob;
use counterfoil::jobs::cut::CutJob;
use counterfoil::jobs::push::PushJob;
use counterfoil::provider::Provider;
use counterfoil::rules::credit::DrawOrder;
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::timestamp::MICROS_PER_HOUR;
use http::Method;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

const GRANTS: &str = "/v1/tenants/acme/grants";
const SINCE: &str = "2026-11-10T00:00:00Z";

/// A server that bills `calls` and `words` by the hour and `bytes` by the day.
pub async fn billing(ground: Ground) -> Server {
    billing_by(ground, &default_config()).await
}

async fn billing_by(ground: Ground, config: &Config) -> Server {
    let mut config = config.clone();
    config.ingest.accept_horizon_hours = 24 * 30;
    let server = Server::start_empty(ground, &config).await;
    let from = "2026-11-01T00:00:00Z";
    for (slug, spec) in [
        ("calls", json!({"aggregation": "sum", "billing": {"from": from}})),
        (
            "words",
            json!({
                "aggregation": "sum", "scale": 0, "precision": 12, "signed": true,
                "billing": {"from": from},
            }),
        ),
        ("bytes", json!({"aggregation": "sum", "billing": {"from": from, "granularity": "day"}})),
        ("free", json!({"aggregation": "sum"})),
    ] {
        server.put(&format!("/v1/meters/{slug}"), &spec.to_string()).await.ok(201);
    }
    server
}

/// Sends usage of a tenant and meter at a time.
pub async fn usage(server: &Server, (tenant, meter): (&str, &str), quantity: &str, at: &str) {
    let id = format!("{meter}-{at}-{quantity}-{}", server.clock.now());
    let event = json!({
        "tenant": tenant, "id": id, "meter": meter, "quantity": quantity, "occurred_at": at,
    });
    let answer = server.post(&event.to_string()).await;
    assert_eq!((answer.status, &answer.json()["accepted"]), (200, &1.into()), "{}", answer.body);
}

/// Cuts windows that are not open any more.
pub async fn cut(server: &Server) {
    cut_by(server, DrawOrder::default(), false).await;
}

async fn cut_by(server: &Server, draw_order: DrawOrder, shadow: bool) {
    let context = server.context(|config| {
        config.ingest.accept_horizon_hours = 24 * 30;
        config.provider.shadow = if shadow { Shadow::Nowhere } else { Shadow::Off };
        config.credits.order = draw_order;
    });
    let cutter = CutJob::new(&context, 15);
    cutter.pass().await.unwrap();
}

fn spec(pool: &str, amount: &str, rates: Value) -> Value {
    json!({"pool": pool, "unit": "eur", "amount": amount, "rates": rates, "effective_at": SINCE})
}

/// Issues a grant and returns its number.
pub async fn issue(server: &Server, tenant: &str, key: &str, spec: &Value) -> u64 {
    let path = format!("/v1/tenants/{tenant}/grants");
    server.once(&path, key, &spec.to_string()).await.ok(201)["id"].as_u64().unwrap()
}

fn quantity(value: &Value) -> Quantity {
    Quantity::parse_stored(value.as_str().unwrap()).unwrap()
}

/// What the pools have left after what is pending.
async fn expected(server: &Server, tenant: &str) -> BTreeMap<(String, String), Quantity> {
    let pools = server.get(&format!("/v1/tenants/{tenant}/credits")).await.rows("pools");
    let of = |pool: &Value| {
        let name = |member: &str| pool[member].as_str().unwrap().to_owned();
        let left = quantity(&pool["remaining"]).checked_sub(quantity(&pool["pending"])).unwrap();
        assert!(left >= Quantity::ZERO, "{pool}");
        ((name("unit"), name("pool")), left)
    };
    pools.iter().map(of).filter(|(_, left)| *left > Quantity::ZERO).collect()
}

async fn changes(server: &Server, query: &str) -> Vec<Value> {
    server.get(&format!("/v1/tenants/acme/credits/changes?{query}")).await.rows("changes")
}

async fn remaining(server: &Server, grant: u64) -> String {
    let grants = server.get(GRANTS).await.rows("grants");
    let grant = grants.iter().find(|one| one["id"] == grant).unwrap();
    grant["remaining"].as_str().unwrap().to_owned()
}

/// Quantities of a tenant's pushes of a meter, in the order of their windows and revisions.
async fn pushed(server: &Server, meter: &str) -> Vec<String> {
    let path = format!("/v1/pushes?tenant=acme&meter={meter}");
    let mut pushes = server.get(&path).await.rows("pushes");
    pushes.sort_by_key(|push| (push["window_start"].to_string(), push["revision"].as_u64()));
    each(&pushes, "quantity")
}

/// Every grant's amount is what is left of it and what its changes say; the accounts say the same.
async fn check_explained(server: &Server, tenant: &str) {
    let path = format!("/v1/tenants/{tenant}/grants");
    for grant in server.get(&path).await.rows("grants") {
        let path = format!("/v1/tenants/{tenant}/credits/changes?grant={}", grant["id"]);
        let changes = server.get(&path).await.rows("changes");
        let mut left = Quantity::ZERO;
        for change in changes.iter().rev() {
            let amount = quantity(&change["amount"]);
            left = match change["kind"].as_str().unwrap() {
                "issued" | "given_back" => left.checked_add(amount).unwrap(),
                _ => left.checked_sub(amount).unwrap(),
            };
            assert_eq!(left, quantity(&change["remaining"]), "{change}");
            assert!(left >= Quantity::ZERO && left <= quantity(&grant["amount"]), "{change}");
        }
        assert_eq!(left, quantity(&grant["remaining"]), "{grant}");
    }
    let mut sums: BTreeMap<String, Quantity> = BTreeMap::new();
    for account in server.get(&format!("/v1/tenants/{tenant}/accounts")).await.rows("accounts") {
        let sum = sums.entry(account["unit"].to_string()).or_default();
        *sum = sum.checked_add(quantity(&account["balance"])).unwrap();
    }
    assert!(!sums.is_empty() && sums.values().all(|sum| *sum == Quantity::ZERO), "{sums:?}");
}

pub async fn a_grant_is_issued_and_shown(ground: Ground) {
    let server = billing(ground).await;
    let body = json!({
        "pool": "purchased", "unit": "eur", "amount": "100", "memo": "invoice 117",
        "rates": {"calls": "0.002", "words": "1"}, "expires_at": "2027-01-01T00:00:00Z",
    });
    let first = server.once(GRANTS, "topup", &body.to_string()).await;
    insta::assert_snapshot!(first.show(), @r#"201 {"id":1,"key":"topup","pool":"purchased","unit":"eur","amount":"100","remaining":"100","rates":{"calls":"0.002","words":"1"},"priority":50,"effective_at":"2026-11-15T12:00:00Z","expires_at":"2027-01-01T00:00:00Z","memo":"invoice 117","created_at":"2026-11-15T12:00:00Z"}"#);
    server.clock.advance(MICROS_PER_HOUR);
    check_replay(&first, &server.once(GRANTS, "topup", &body.to_string()).await);
    let listed = server.get(GRANTS).await.json();
    assert_eq!(listed, json!({"grants": [first.json()], "next_after": null}));
    // Long after, the same top-up is the same grant, and another is refused.
    assert_eq!(server.forget_keys().await, 1);
    check_same(&first, &server.once(GRANTS, "topup", &body.to_string()).await);
    assert_eq!(server.forget_keys().await, 1);
    let mut other = body.clone();
    other["amount"] = "101".into();
    server.once(GRANTS, "topup", &other.to_string()).await.problem(409, "key_taken");
    assert_eq!(server.get(GRANTS).await.json(), listed);
    check_explained(&server, "acme").await;
}

pub async fn a_repeat_that_comes_after_the_expiry_is_still_a_repeat(ground: Ground) {
    let server = billing(ground).await;
    let body = json!({
        "pool": "granted", "unit": "eur", "amount": "5", "rates": {"calls": "1"},
        "expires_at": "2026-11-16T00:00:00Z",
    });
    let first = server.once(GRANTS, "a", &body.to_string()).await;
    first.ok(201);
    assert_eq!(server.forget_keys().await, 1);
    check_same(&first, &server.once(GRANTS, "a", &body.to_string()).await);
    // A new one that has expired before it begins is refused.
    server.once(GRANTS, "b", &body.to_string()).await.problem(422, "invalid_expiry");
    server.forget_keys().await;
    let other = body.to_string().replace("\"5\"", "\"6\"");
    server.once(GRANTS, "a", &other).await.problem(409, "key_taken");
    assert_eq!(server.get(GRANTS).await.rows("grants").len(), 1);
}

pub async fn what_a_grant_cannot_be(ground: Ground) {
    let server = billing(ground).await;
    let fine = spec("granted", "5", json!({"calls": "0.5"}));
    let with = |member: &str, value: Value| {
        let mut spec = fine.clone();
        spec[member] = value;
        spec
    };
    let many: BTreeMap<String, &str> = (0..51).map(|n| (format!("m{n}"), "1")).collect();
    for meter in many.keys() {
        server.put(&format!("/v1/meters/{meter}"), r#"{"aggregation":"sum"}"#).await;
    }
    let cases = [
        ("amount", json!("0"), "invalid_amount"),
        ("amount", json!("-1"), "invalid_amount"),
        ("amount", json!("1e2"), "invalid_amount"),
        ("amount", json!("0.0000000000001"), "invalid_amount"),
        ("amount", json!(5), "invalid_body"),
        ("unit", json!("Eur"), "invalid_unit"),
        ("unit", json!(""), "invalid_unit"),
        ("pool", json!("stolen"), "invalid_body"),
        ("rates", json!({}), "invalid_rates"),
        ("rates", json!({"calls": "0"}), "invalid_rates"),
        ("rates", json!({"calls": "-1"}), "invalid_rates"),
        ("rates", json!({"calls": "x"}), "invalid_amount"),
        ("rates", json!({"nothing": "1"}), "unknown_meter"),
        ("rates", json!({"calls": "0.0000001"}), "rate_too_precise"),
        ("rates", json!(many), "invalid_rates"),
        ("priority", json!(101), "invalid_priority"),
        ("priority", json!(256), "invalid_body"),
        ("priority", json!(-1), "invalid_body"),
        ("expires_at", json!(SINCE), "invalid_expiry"),
        ("expires_at", json!("2026-11-09T23:59:59Z"), "invalid_expiry"),
        ("expires_at", json!("soon"), "invalid_timestamp"),
        ("effective_at", json!("2026-13-01T00:00:00Z"), "invalid_timestamp"),
        ("memo", json!("x".repeat(501)), "invalid_memo"),
        ("memo", json!("a\u{0}b"), "invalid_memo"),
        ("tenant", json!("globex"), "invalid_body"),
    ];
    for (number, (member, value, code)) in cases.into_iter().enumerate() {
        let body = with(member, value).to_string();
        server.once(GRANTS, &format!("k{number}"), &body).await.problem(422, code);
    }
    assert_eq!(server.get(GRANTS).await.json()["grants"], json!([]));
    assert_eq!(server.get("/v1/changes").await.json()["changes"], json!([]));
    // The finest rate there is: six decimals of the meter and six of the rate.
    let finest = with("rates", json!({"calls": "0.000001", "words": "0.000000000001"}));
    issue(&server, "acme", "finest", &finest).await;
}

pub async fn a_tenant_has_so_many_grants_and_no_more(ground: Ground) {
    let server = billing(ground).await;
    let body = spec("granted", "5", json!({"calls": "1"}));
    for number in 0..100 {
        issue(&server, "acme", &format!("g{number}"), &body).await;
    }
    let full = server.once(GRANTS, "g100", &body.to_string()).await;
    full.problem(422, "too_many_grants");
    let (mut after, mut found) = (String::new(), Vec::new());
    for _ in 0..3 {
        let page = server.get(&format!("{GRANTS}?limit=40{after}")).await;
        found.extend(each(&page.rows("grants"), "key"));
        after = format!("&after={}", page.json()["next_after"]);
    }
    let all: Vec<String> = (0..100).map(|number| format!("g{number}")).collect();
    assert_eq!((found, after.as_str()), (all, "&after=null"));
    let path = format!("{GRANTS}/{}/void", server.get(GRANTS).await.json()["grants"][3]["id"]);
    assert_eq!(server.once(&path, "t", "{}").await.status, 200);
    let live = server.get(&format!("{GRANTS}?live=true&limit=1000")).await;
    assert_eq!(live.rows("grants").len(), 99);
    issue(&server, "acme", "g101", &body).await;
    for path in [GRANTS, "/v1/tenants/acme/credits/changes"] {
        server.get(&format!("{path}?limit=0")).await.problem(400, "invalid_limit");
    }
    for query in ["after=18446744073709551615", "after=9223372036854775808&live=true"] {
        let answer = server.get(&format!("{GRANTS}?{query}")).await;
        assert_eq!(answer.rows("grants").len(), 0, "{query}");
    }
    assert_eq!(changes(&server, "grant=18446744073709551615").await.len(), 0);
}

pub async fn what_is_left_is_voided(ground: Ground) {
    let server = billing(ground).await;
    let rates = json!({"calls": "1"});
    let bought = issue(&server, "acme", "a", &spec("purchased", "100", rates.clone())).await;
    let gift = issue(&server, "acme", "b", &spec("granted", "7", rates.clone())).await;
    let take = async |grant: u64, key: &str, body: &str| {
        server.once(&format!("{GRANTS}/{grant}/void"), key, body).await
    };
    let part = take(bought, "t1", r#"{"amount":"40","memo":"half of it"}"#).await;
    insta::assert_snapshot!(part.show(), @r#"200 {"number":3,"grant":1,"kind":"refunded","amount":"40","remaining":"60","covered":null,"memo":"half of it","at":"2026-11-15T12:00:00Z"}"#);
    check_replay(&part, &take(bought, "t1", r#"{"amount":"40","memo":"half of it"}"#).await);
    let problem =
        take(bought, "t2", r#"{"amount":"60.000000000001"}"#).await.problem(422, "too_little_left");
    assert!(problem["detail"].as_str().unwrap().starts_with("only 60 can"), "{problem}");
    for (body, code) in [
        (r#"{"amount":"0"}"#, "invalid_amount"),
        (r#"{"amount":"-1"}"#, "invalid_amount"),
        (r#"{"amount":"all"}"#, "invalid_amount"),
        (r#"{"amount":1}"#, "invalid_body"),
        (r#"{"memo":"a\nb"}"#, "invalid_memo"),
    ] {
        take(bought, &format!("t3-{code}-{}", body.len()), body).await.problem(422, code);
    }
    for unknown in [0, 99, u64::MAX] {
        take(unknown, "t4", "{}").await.problem(404, "unknown_grant");
        server.clock.advance(2 * MICROS_PER_HOUR);
        server.sweep().await;
    }
    let path = format!("{GRANTS}/x/void");
    server.once(&path, "t5", "{}").await.problem(404, "unknown_grant");
    let other = format!("/v1/tenants/globex/grants/{bought}/void");
    server.once(&other, "t6", "{}").await.problem(404, "unknown_grant");
    // All that is left, once; then there is nothing more.
    let rest = take(bought, "t7", "{}").await.json();
    assert_eq!((&rest["amount"], &rest["remaining"]), (&"60".into(), &"0".into()));
    take(bought, "t8", "{}").await.problem(422, "too_little_left");
    let void = take(gift, "t9", "{}").await.json();
    assert_eq!((&void["kind"], &void["amount"]), (&"voided".into(), &"7".into()));
    let kinds = each(&changes(&server, "").await, "kind");
    assert_eq!(kinds, ["voided", "refunded", "refunded", "issued", "issued"]);
    // A repeat after the key was forgotten takes nothing more.
    let third = issue(&server, "acme", "c", &spec("granted", "9", rates)).await;
    server.forget_keys().await;
    check_same(&part, &take(bought, "t1", r#"{"amount":"40","memo":"half of it"}"#).await);
    server.forget_keys().await;
    take(third, "t1", "{}").await.problem(409, "key_taken");
    assert_eq!(remaining(&server, third).await, "9");
    check_explained(&server, "acme").await;
    let told = server.get("/v1/changes").await.rows("changes");
    assert_eq!(told.iter().filter(|change| change["kind"] == "credits.voided").count(), 3);
}

pub async fn credits_cover_first_and_the_rest_is_pushed(ground: Ground) {
    let server = billing(ground).await;
    server.put("/v1/tenants/acme", r#"{"customer":"cus_acme"}"#).await;
    let rates = json!({"calls": "0.5"});
    let bought = issue(&server, "acme", "a", &spec("purchased", "2", rates.clone())).await;
    let gift = issue(&server, "acme", "b", &spec("granted", "3", rates.clone())).await;
    for (amount, at) in [
        ("4", "2026-11-15T07:30:00Z"),
        ("5", "2026-11-15T08:30:00Z"),
        ("6", "2026-11-15T09:30:00Z"),
    ] {
        usage(&server, ("acme", "calls"), amount, at).await;
    }
    cut(&server).await;
    // Ten units are covered: six by the gift, then four by what was paid for.
    assert_eq!(pushed(&server, "calls").await, ["5"], "a window that is covered is not pushed");
    assert_eq!([remaining(&server, gift).await, remaining(&server, bought).await], ["0", "0"]);
    let changes = changes(&server, "").await;
    let drawn = changes.iter().filter(|change| change["kind"] == "drawn").rev();
    let told: Vec<Value> = drawn
        .map(|change| {
            let covered = &change["covered"];
            let (window, quantity) = (&covered["window_start"], &covered["quantity"]);
            json!([change["grant"], window, quantity, change["amount"]])
        })
        .collect();
    let expected = [
        json!([gift, "2026-11-15T07:00:00Z", "4", "2"]),
        json!([gift, "2026-11-15T08:00:00Z", "2", "1"]),
        json!([bought, "2026-11-15T08:00:00Z", "3", "1.5"]),
        json!([bought, "2026-11-15T09:00:00Z", "1", "0.5"]),
    ];
    assert_eq!(told, expected);
    // A top-up does not rewrite what was billed; what grows later is covered.
    let more = issue(&server, "acme", "c", &spec("purchased", "1", rates)).await;
    usage(&server, ("acme", "calls"), "0.4", "2026-11-15T09:40:00Z").await;
    cut(&server).await;
    assert_eq!(pushed(&server, "calls").await, ["5"]);
    assert_eq!(remaining(&server, more).await, "0.8");
    usage(&server, ("acme", "calls"), "2", "2026-11-15T07:45:00Z").await;
    cut(&server).await;
    assert_eq!(pushed(&server, "calls").await, ["0.4", "5"], "1.6 of it were covered");
    check_explained(&server, "acme").await;
    let context = server.context(|config| config.push.rate_per_second = 1_000);
    let provider: Arc<dyn Provider> = Arc::new(Scripted::UNFIT);
    PushJob::new(&context, &provider).pass().await.unwrap();
    let states = server.get("/v1/pushes?tenant=acme").await.rows("pushes");
    assert!(states.iter().all(|push| push["state"] == "submitted"), "{states:?}");
}

pub async fn what_shrinks_is_given_back(ground: Ground) {
    let server = billing(ground).await;
    let grant = issue(&server, "acme", "a", &spec("granted", "10", json!({"words": "1"}))).await;
    usage(&server, ("acme", "words"), "14", "2026-11-15T08:30:00Z").await;
    cut(&server).await;
    assert_eq!(remaining(&server, grant).await, "0");
    assert_eq!(pushed(&server, "words").await, ["4"]);
    // First what was billed shrinks, then what was covered.
    usage(&server, ("acme", "words"), "-7", "2026-11-15T08:40:00Z").await;
    cut(&server).await;
    assert_eq!(remaining(&server, grant).await, "3");
    assert_eq!(pushed(&server, "words").await, ["4", "-4"]);
    let kinds = each(&changes(&server, "").await, "kind");
    assert_eq!(kinds, ["given_back", "drawn", "issued"]);
    check_explained(&server, "acme").await;
}

async fn issue_some(server: &Server, tenant: &str, dice: &mut Dice) {
    for number in 0..4 {
        let mut rates = json!({});
        for meter in ["calls", "words", "bytes"] {
            if dice.below(3) > 0 {
                let rate = ["1", "0.25", "3", "0.000001", "0.7"];
                rates[meter] = rate[usize::try_from(dice.below(5)).unwrap()].into();
            }
        }
        if rates == json!({}) {
            rates["calls"] = "2".into();
        }
        let pool = if dice.below(2) == 0 { "granted" } else { "purchased" };
        let mut spec = spec(pool, &format!("{}.{}", 1 + dice.below(30), dice.below(10)), rates);
        spec["unit"] = if dice.below(4) == 0 { "credits" } else { "eur" }.into();
        spec["priority"] = dice.below(3).into();
        if dice.below(2) == 0 {
            // Before or after much of the usage, and never at the border of a window.
            let day = 14 + dice.below(2);
            spec["expires_at"] = format!("2026-11-{day}T{:02}:10:00Z", dice.below(24)).into();
        }
        if dice.below(3) == 0 {
            spec["effective_at"] = format!("2026-11-13T{:02}:20:00Z", dice.below(24)).into();
        }
        issue(server, tenant, &format!("{tenant}-{number}"), &spec).await;
    }
}

async fn use_some(server: &Server, tenant: &str, dice: &mut Dice) {
    for _ in 0..20 {
        let meter = ["calls", "words", "bytes"][usize::try_from(dice.below(3)).unwrap()];
        let quantity = match meter {
            "words" => format!("{}", 1 + dice.below(3)),
            _ => format!("{}.{}", dice.below(3), 1 + dice.below(9)),
        };
        let (day, hour) = (13 + dice.below(2), dice.below(24));
        let at = format!("2026-11-{day}T{hour:02}:{:02}:00Z", dice.below(60));
        usage(server, (tenant, meter), &quantity, &at).await;
        server.clock.advance(1_000);
    }
}

pub async fn a_balance_is_what_the_next_cut_leaves(ground: Ground) {
    check_balances(ground, DrawOrder::GrantedFirst, 0).await;
}

pub async fn a_balance_goes_by_the_order_that_is_set(ground: Ground) {
    check_balances(ground.another().await, DrawOrder::PurchasedFirst, 100).await;
    check_balances(ground.another().await, DrawOrder::SoonestFirst, 200).await;
}

async fn check_balances(ground: Ground, order: DrawOrder, first_seed: u64) {
    let server = billing_by(ground, &configured(|config| config.credits.order = order)).await;
    let mut drawn = 0;
    for seed in first_seed..first_seed + 8 {
        let (tenant, mut dice) = (format!("t{seed}"), Dice(seed));
        issue_some(&server, &tenant, &mut dice).await;
        for round in 0..2 {
            use_some(&server, &tenant, &mut dice).await;
            let before = expected(&server, &tenant).await;
            // All of that usage lies in windows that have ended, so one pass cuts it all.
            cut_by(&server, order, false).await;
            for pool in server.get(&format!("/v1/tenants/{tenant}/credits")).await.rows("pools") {
                assert_eq!(pool["pending"], "0", "seed {seed}, round {round}: {pool}");
            }
            assert_eq!(expected(&server, &tenant).await, before, "seed {seed}, round {round}");
        }
        let path = format!("/v1/tenants/{tenant}/credits/changes?limit=1000");
        let told = server.get(&path).await.rows("changes");
        drawn += told.iter().filter(|change| change["kind"] == "drawn").count();
        check_explained(&server, &tenant).await;
    }
    assert!(drawn > 40, "{drawn}");
}

pub async fn what_is_only_compared_draws_nothing(ground: Ground) {
    let config = configured(|config| config.provider.shadow = Shadow::Nowhere);
    let server = billing_by(ground, &config).await;
    let grant = issue(&server, "acme", "a", &spec("granted", "10", json!({"calls": "1"}))).await;
    usage(&server, ("acme", "calls"), "4", "2026-11-15T08:30:00Z").await;
    let credits = async || server.get("/v1/tenants/acme/credits").await.json()["pools"][0].clone();
    let before = credits().await;
    assert_eq!((&before["pending"], &before["available"]), (&"0".into(), &"10".into()));
    cut_by(&server, DrawOrder::default(), true).await;
    assert_eq!((credits().await, remaining(&server, grant).await), (before, "10".into()));
    assert_eq!(pushed(&server, "calls").await, ["4"], "all of it is compared");
}

pub async fn a_balance_holds_usage_of_this_moment(ground: Ground) {
    let server = billing(ground).await;
    let body = spec("granted", "10", json!({"calls": "0.5", "bytes": "1"}));
    issue(&server, "acme", "a", &body).await;
    let mut later = spec("purchased", "5", json!({"calls": "1"}));
    later["effective_at"] = "2026-11-16T00:00:00Z".into();
    issue(&server, "acme", "b", &later).await;
    let credits = async || server.get("/v1/tenants/acme/credits").await.show();
    usage(&server, ("acme", "calls"), "3", "2026-11-15T11:59:59Z").await;
    usage(&server, ("acme", "bytes"), "0.000001", "2026-11-15T12:00:00Z").await;
    usage(&server, ("acme", "free"), "1000", "2026-11-15T12:00:00Z").await;
    insta::assert_snapshot!(credits().await, @r#"200 {"pools":[{"unit":"eur","pool":"granted","remaining":"10","pending":"1.500001","available":"8.499999"},{"unit":"eur","pool":"purchased","remaining":"5","pending":"0","available":"0"}]}"#);
    assert_eq!(changes(&server, "").await.len(), 2, "a look changes nothing");
    let allowance = server.get("/v1/tenants/acme/entitlements/calls").await;
    insta::assert_snapshot!(allowance.show(), @r#"200 {"meter":"calls","known":true,"allowed":true,"quotas":[],"covered":"16.999998"}"#);
    // Nothing is there, nothing was promised.
    let nobody = server.get("/v1/tenants/nobody/credits").await;
    assert_eq!(nobody.ok(200), json!({"pools": []}));
}

pub async fn an_entitlement_is_exact_after_every_event(ground: Ground) {
    let server = billing(ground).await;
    for (period, limit) in [("day", "1"), ("month", "2.5")] {
        let quota = json!({
            "tenant": "acme", "meter": "free", "kind": "quota", "period": period, "limit": limit,
        });
        assert_eq!(server.put("/v1/thresholds", &quota.to_string()).await.status, 200);
    }
    // A threshold is worth a word and limits nothing; another tenant's quota is its own.
    for (tenant, kind) in [("acme", "threshold"), ("globex", "quota")] {
        let one = json!({
            "tenant": tenant, "meter": "free", "kind": kind, "period": "day", "limit": "0.1",
        });
        server.put("/v1/thresholds", &one.to_string()).await;
    }
    let path = "/v1/tenants/acme/entitlements/free";
    let look = async || {
        let answer = server.get(path).await.json();
        let quotas = answer["quotas"].as_array().unwrap().clone();
        let of = |period: &str| {
            let quota = quotas.iter().find(|quota| quota["period"] == period).unwrap();
            let text = |name: &str| quota[name].as_str().unwrap();
            format!("{} of {}", text("used"), text("remaining"))
        };
        assert_eq!(quotas.len(), 2);
        (answer["allowed"].as_bool().unwrap(), of("day"), of("month"))
    };
    let told = |allowed: bool, day: &str, month: &str| (allowed, day.to_owned(), month.to_owned());
    assert_eq!(look().await, told(true, "0 of 1", "0 of 2.5"));
    usage(&server, ("acme", "free"), "0.4", "2026-11-01T00:00:00Z").await;
    assert_eq!(look().await, told(true, "0 of 1", "0.4 of 2.1"));
    usage(&server, ("acme", "free"), "0.999999", "2026-11-15T00:00:00Z").await;
    assert_eq!(look().await, told(true, "0.999999 of 0.000001", "1.399999 of 1.100001"));
    usage(&server, ("acme", "free"), "100", "2026-10-31T23:59:59.999999Z").await;
    usage(&server, ("acme", "free"), "0.000001", "2026-11-15T12:00:00Z").await;
    assert_eq!(look().await, told(false, "1 of 0", "1.4 of 1.1"));
    usage(&server, ("acme", "free"), "0.5", "2026-11-15T12:00:00Z").await;
    assert_eq!(look().await, told(false, "1.5 of 0", "1.9 of 0.6"));
    server.clock.advance(12 * MICROS_PER_HOUR);
    assert_eq!(look().await, told(true, "0 of 1", "1.9 of 0.6"), "a new day");
    usage(&server, ("acme", "free"), "0.7", "2026-11-16T00:00:00Z").await;
    assert_eq!(look().await, told(false, "0.7 of 0.3", "2.6 of 0"));
    server.clock.advance(15 * 24 * MICROS_PER_HOUR);
    assert_eq!(look().await, told(true, "0 of 1", "0 of 2.5"), "a new month");
    let none =
        json!({"meter": "calls", "known": true, "allowed": true, "quotas": [], "covered": "0"});
    assert_eq!(server.get("/v1/tenants/acme/entitlements/calls").await.json(), none);
    server.get("/v1/tenants/acme/entitlements/nothing").await.problem(404, "unknown_meter");
}

pub async fn what_has_expired_is_taken_away_after_a_while(ground: Ground) {
    let server = billing(ground).await;
    let rates = json!({"calls": "1"});
    let mut short = spec("purchased", "10", rates.clone());
    short["expires_at"] = "2026-11-15T11:00:00Z".into();
    let short = issue(&server, "acme", "short", &short).await;
    let long = issue(&server, "acme", "long", &spec("purchased", "10", rates)).await;
    let expire = async || {
        let context = server.context(|config| config.ingest.accept_horizon_hours = 26);
        CreditsJob::new(&context).pass().await.unwrap()
    };
    assert_eq!(expire().await, 0, "it has expired and may still be needed");
    let pool = &server.get("/v1/tenants/acme/credits").await.rows("pools")[0];
    assert_eq!((&pool["remaining"], &pool["available"]), (&"20".into(), &"10".into()));
    // Usage from before comes late, and is covered by it; usage from after is not.
    usage(&server, ("acme", "calls"), "3", "2026-11-15T10:30:00Z").await;
    usage(&server, ("acme", "calls"), "4", "2026-11-15T11:30:00Z").await;
    server.clock.advance(24 * MICROS_PER_HOUR);
    cut(&server).await;
    let left = async || [remaining(&server, short).await, remaining(&server, long).await];
    assert_eq!(left().await, ["7", "6"]);
    server.clock.advance(72 * MICROS_PER_HOUR);
    assert_eq!(expire().await, 0, "what came in the meantime is not cut");
    cut(&server).await;
    assert_eq!((expire().await, expire().await), (1, 0));
    assert_eq!(left().await, ["0", "6"]);
    let last = changes(&server, &format!("grant={short}&limit=1")).await;
    assert_eq!((&last[0]["kind"], &last[0]["amount"]), (&"expired".into(), &"7".into()));
    // What comes later than that is billed.
    usage(&server, ("acme", "calls"), "20", "2026-11-15T10:40:00Z").await;
    cut(&server).await;
    assert_eq!(pushed(&server, "calls").await, ["14"], "six of it were covered by the other");
    check_explained(&server, "acme").await;
    let path = format!("{GRANTS}/{short}/void");
    server.once(&path, "t", "{}").await.problem(422, "too_little_left");
}

pub async fn changes_are_read_page_by_page(ground: Ground) {
    let server = billing(ground).await;
    for number in 0..5u32 {
        let amount = 10u64.pow(number).to_string();
        issue(&server, "acme", &amount, &spec("granted", &amount, json!({"calls": "1"}))).await;
    }
    let path = "/v1/tenants/acme/credits/changes";
    let (mut before, mut amounts) = (String::new(), Vec::new());
    for size in [2, 2, 1] {
        let page = server.get(&format!("{path}?limit=2{before}")).await;
        let found = page.rows("changes");
        assert_eq!(found.len(), size);
        amounts.extend(each(&found, "amount"));
        before = format!("&before={}", page.json()["next_before"]);
    }
    assert_eq!(amounts, ["10000", "1000", "100", "10", "1"]);
    assert_eq!(before, "&before=null");
    assert_eq!(changes(&server, "before=18446744073709551615").await.len(), 5);
}

pub async fn who_may_look_and_who_may_give(ground: Ground) {
    let server = billing(ground).await;
    let body = spec("granted", "5", json!({"calls": "1"})).to_string();
    let grant = issue(&server, "acme", "a", &serde_json::from_str(&body).unwrap()).await;
    let (own, bound) =
        (server.key("read", Some("acme")).await, server.key("operate", Some("acme")).await);
    let other = server.key("operate", Some("globex")).await;
    let paths = ["grants", "credits", "credits/changes", "entitlements/calls"];
    let paths = paths.map(|path| format!("/v1/tenants/acme/{path}"));
    for path in &paths {
        assert_eq!(server.get_as(&own, path).await.status, 200, "{path}");
        server.get_as(&other, path).await.problem(403, "tenant_forbidden");
    }
    let void_grant = format!("{GRANTS}/{grant}/void");
    for (key, code) in [(&own, "scope_missing"), (&bound, "tenant_forbidden")] {
        for (path, body) in [(GRANTS, body.as_str()), (&void_grant, "{}")] {
            server.once_as(key, (Method::POST, path), "k", body).await.problem(403, code);
        }
    }
    assert_eq!(remaining(&server, grant).await, "5");
    server.faults.set_down(true);
    for path in &paths {
        server.get(path).await.problem(503, "store_unavailable");
    }
}
