//! Accounts and entries: what is written, what is refused, and who may look.

use super::idempotency::with_accounts;
use crate::world::{Answer, Ground, Server, each};
use counterfoil::rules::timestamp::MICROS_PER_HOUR;
use http::Method;
use serde_json::{Value, json};

const ENTRIES: &str = "/v1/tenants/acme/entries";

fn entry(postings: &[(&str, &str)]) -> String {
    let postings: Vec<Value> = postings
        .iter()
        .map(|(account, amount)| json!({"account": account, "amount": amount}))
        .collect();
    json!({"memo": "", "postings": postings}).to_string()
}

async fn balance(server: &Server, account: &str) -> (String, u64) {
    let answer = server.get(&format!("/v1/tenants/acme/accounts/{account}")).await;
    let account = answer.json();
    (account["balance"].as_str().unwrap().to_owned(), account["version"].as_u64().unwrap())
}

fn names(answer: &Answer) -> Vec<String> {
    each(&answer.rows("accounts"), "name")
}

pub async fn an_account_is_created_and_stays_what_it_is(ground: Ground) {
    let server = Server::start(ground).await;
    let put = async |name: &str, body: &str| {
        server.put(&format!("/v1/tenants/acme/accounts/{name}"), body).await
    };
    let first = put("wallet", r#"{"unit":"eur","floor":"zero"}"#).await;
    insta::assert_snapshot!(first.show(), @r#"200 {"name":"wallet","unit":"eur","floor":"zero","balance":"0","version":0,"created_at":"2026-11-15T12:00:00Z"}"#);
    server.clock.advance(MICROS_PER_HOUR);
    let again = put("wallet", r#"{"unit":"eur","floor":"zero"}"#).await;
    assert_eq!((again.status, &again.body), (200, &first.body));
    for body in [r#"{"unit":"usd","floor":"zero"}"#, r#"{"unit":"eur"}"#] {
        let differs = put("wallet", body).await;
        differs.problem_saying(409, "account_differs", "is of eur with floor zero");
    }
    assert_eq!(put("plain", r#"{"unit":"eur"}"#).await.json()["floor"], "none");
    let read = server.get("/v1/tenants/acme/accounts/wallet").await;
    assert_eq!(read.body, first.body);
    // Another tenant's account of the same name is another account.
    let other = server.put("/v1/tenants/globex/accounts/wallet", r#"{"unit":"points"}"#).await;
    assert_eq!((other.status, &other.json()["unit"]), (200, &"points".into()));
    assert_eq!(server.get("/v1/tenants/acme/accounts/wallet").await.body, first.body);
}

pub async fn names_and_units_are_checked(ground: Ground) {
    let server = Server::start(ground).await;
    for name in ["credits.eur.issued", "credits.", "credits.anything"] {
        let path = format!("/v1/tenants/acme/accounts/{name}");
        server.put(&path, r#"{"unit":"eur"}"#).await.problem(422, "account_reserved");
        server.get(&path).await.problem(404, "unknown_account");
    }
    let accounts = "/v1/tenants/acme/accounts";
    for (path, body, status, code) in [
        ("wallet", r#"{"unit":"EUR"}"#, 422, "invalid_unit"),
        ("wallet", r#"{"unit":""}"#, 422, "invalid_unit"),
        ("wallet", r#"{"unit":"eur","floor":"below"}"#, 422, "invalid_body"),
        ("wallet", r#"{"unit":"eur","balance":"5"}"#, 422, "invalid_body"),
        ("wallet", r#"["eur","zero"]"#, 422, "invalid_body"),
        ("wallet", r#"{"unit":"#, 400, "invalid_json"),
        ("a%00b", r#"{"unit":"eur"}"#, 400, "invalid_account"),
        ("a%0ab", r#"{"unit":"eur"}"#, 400, "invalid_account"),
        (&"x".repeat(129), r#"{"unit":"eur"}"#, 400, "invalid_account"),
    ] {
        server.put(&format!("{accounts}/{path}"), body).await.problem(status, code);
    }
    assert_eq!(server.get(accounts).await.json()["accounts"], json!([]));
    let path = format!("{accounts}/{}", "x".repeat(128));
    assert_eq!(server.put(&path, r#"{"unit":"eur"}"#).await.status, 200);
    let path = format!("{accounts}/%C3%BCber%2Fa%20b");
    assert_eq!(server.put(&path, r#"{"unit":"eur"}"#).await.json()["name"], "über/a b");
    assert_eq!(server.get(&path).await.json()["name"], "über/a b");
}

pub async fn what_does_not_add_up_is_refused_whole(ground: Ground) {
    let server = with_accounts(ground).await;
    server.put("/v1/tenants/acme/accounts/points", r#"{"unit":"points"}"#).await;
    server.put("/v1/tenants/globex/accounts/theirs", r#"{"unit":"eur"}"#).await;
    let many: Vec<(&str, &str)> = vec![("wallet", "1"); 101];
    let fine = [("wallet", "25"), ("payments", "-25")];
    let cases: Vec<(Vec<(&str, &str)>, &str)> = vec![
        (vec![("wallet", "25"), ("payments", "-24.99")], "entry_unbalanced"),
        (vec![("wallet", "25"), ("points", "-25")], "entry_unbalanced"),
        (vec![("wallet", "0.000000000001"), ("payments", "-0.000000000002")], "entry_unbalanced"),
        (vec![("wallet", "-1"), ("payments", "1")], "balance_too_low"),
        (vec![("wallet", "25"), ("nobody", "-25")], "unknown_account"),
        (vec![("wallet", "25"), ("theirs", "-25")], "unknown_account"),
        (vec![("wallet", "25"), ("wallet", "-25")], "account_repeated"),
        (vec![("wallet", "0"), ("payments", "0")], "amount_zero"),
        (vec![("wallet", "25")], "invalid_postings"),
        (vec![], "invalid_postings"),
        (many, "invalid_postings"),
        (vec![("credits.eur.granted", "5"), ("payments", "-5")], "account_reserved"),
        (vec![("wallet", "1e3"), ("payments", "-1e3")], "invalid_amount"),
        (vec![("wallet", "+1"), ("payments", "-1")], "invalid_amount"),
        (vec![("wallet", ""), ("payments", "-1")], "invalid_amount"),
        (vec![("wallet", "0.0000000000001"), ("payments", "-1")], "invalid_amount"),
        (vec![("wallet", "1000000000000000"), ("payments", "-1")], "invalid_amount"),
        (vec![("", "1"), ("payments", "-1")], "invalid_account"),
        (vec![("a\u{0}b", "1"), ("payments", "-1")], "invalid_account"),
    ];
    for (number, (postings, code)) in cases.iter().enumerate() {
        let answer = server.once(ENTRIES, &format!("k{number}"), &entry(postings)).await;
        answer.problem(422, code);
    }
    for (body, status, code) in [
        (r#"{"postings":[{"account":"wallet","amount":25}]}"#.to_owned(), 422, "invalid_body"),
        (entry(&fine).replace("\"\"", "\"a\\u0000b\""), 422, "invalid_memo"),
        (entry(&fine).replace("\"\"", &format!("\"{}\"", "x".repeat(501))), 422, "invalid_memo"),
        (entry(&fine).replace("memo", "note"), 422, "invalid_body"),
        ("{".to_owned(), 400, "invalid_json"),
    ] {
        let key = format!("b{}", body.len());
        server.once(ENTRIES, &key, &body).await.problem(status, code);
    }
    // Entries of credits have keys of their own kind, which nobody may take from them.
    server.once(ENTRIES, "credits.1", &entry(&fine)).await.problem(422, "key_reserved");
    assert_eq!(balance(&server, "wallet").await, ("0".into(), 0));
    assert_eq!(balance(&server, "payments").await, ("0".into(), 0));
    // All the room there is, and not one step more.
    let largest = "999999999999999.999999999999";
    let most = [("wallet", largest), ("payments", "-999999999999999.999999999999")];
    assert_eq!(server.once(ENTRIES, "most", &entry(&most)).await.status, 201);
    assert_eq!(balance(&server, "wallet").await, (largest.into(), 1));
    let back =
        [("wallet", "-999999999999999.999999999998"), ("payments", "999999999999999.999999999998")];
    assert_eq!(server.once(ENTRIES, "back", &entry(&back)).await.status, 201);
    assert_eq!(balance(&server, "wallet").await, ("0.000000000001".into(), 2));
    let too_much = [("wallet", "-0.000000000002"), ("payments", "0.000000000002")];
    let answer = server.once(ENTRIES, "below", &entry(&too_much)).await;
    answer.problem_saying(422, "balance_too_low", "wallet holds 0.000000000001");
}

pub async fn an_entry_may_hold_several_units(ground: Ground) {
    let server = with_accounts(ground).await;
    for name in ["points", "given"] {
        let path = format!("/v1/tenants/acme/accounts/{name}");
        server.put(&path, r#"{"unit":"points"}"#).await;
    }
    let body =
        entry(&[("wallet", "9.99"), ("points", "-100"), ("payments", "-9.99"), ("given", "100")]);
    let answer = server.once(ENTRIES, "k", &body).await;
    insta::assert_snapshot!(answer.show(), @r#"201 {"number":1,"key":"k","memo":"","postings":[{"account":"wallet","unit":"eur","amount":"9.99","balance":"9.99","version":1},{"account":"points","unit":"points","amount":"-100","balance":"-100","version":1},{"account":"payments","unit":"eur","amount":"-9.99","balance":"-9.99","version":1},{"account":"given","unit":"points","amount":"100","balance":"100","version":1}],"at":"2026-11-15T12:00:00Z"}"#);
}

pub async fn an_entry_holds_to_the_versions_it_was_decided_on(ground: Ground) {
    let server = with_accounts(ground).await;
    let post = async |key: &str, version: u64| {
        let postings = json!([
            {"account": "wallet", "amount": "1", "expected_version": version},
            {"account": "payments", "amount": "-1"},
        ]);
        server.once(ENTRIES, key, &json!({"postings": postings}).to_string()).await
    };
    assert_eq!(post("k1", 0).await.status, 201);
    post("k2", 0).await.problem_saying(409, "version_moved", "wallet is at version 1");
    assert_eq!(post("k3", 1).await.status, 201);
    post("k4", 3).await.problem(409, "version_moved");
    post("k5", u64::MAX).await.problem(409, "version_moved");
    assert_eq!(balance(&server, "wallet").await, ("2".into(), 2));
    // A repeat after its key was forgotten is no new decision: its own writing moved the version.
    assert_eq!(server.forget_keys().await, 5);
    assert_eq!(post("k1", 0).await.ok(201)["postings"][0]["version"], 1);
    assert_eq!(balance(&server, "wallet").await, ("2".into(), 2));
}

pub async fn a_statement_is_read_page_by_page(ground: Ground) {
    let server = with_accounts(ground).await;
    for number in 0..5u32 {
        let amount = 10u64.pow(number).to_string();
        let body = entry(&[("wallet", &amount), ("payments", &format!("-{amount}"))]);
        assert_eq!(server.once(ENTRIES, &format!("k{number}"), &body).await.status, 201);
        server.clock.advance(MICROS_PER_HOUR);
    }
    let path = "/v1/tenants/acme/accounts/wallet/statement";
    let (mut before, mut lines) = (String::new(), Vec::new());
    for (page, size) in [2, 2, 1].into_iter().enumerate() {
        let answer = server.get(&format!("{path}?limit=2{before}")).await;
        let found = answer.rows("lines");
        assert_eq!(found.len(), size, "page {page}");
        lines.extend(found);
        let next = &answer.json()["next_before"];
        assert_eq!(next.is_null(), page == 2);
        before = format!("&before={next}");
    }
    let told = each(&lines, "balance");
    assert_eq!(told, ["11111", "1111", "111", "11", "1"], "newest first, none twice");
    let versions: Vec<_> = lines.iter().map(|line| line["version"].as_u64().unwrap()).collect();
    assert_eq!(versions, [5, 4, 3, 2, 1]);
    assert_eq!((&lines[4]["key"], &lines[4]["at"]), (&"k0".into(), &"2026-11-15T12:00:00Z".into()));
    assert_eq!(server.get(path).await.json()["lines"], json!(lines));
    let exact = server.get(&format!("{path}?limit=5")).await.json();
    assert_eq!(exact["next_before"], Value::Null, "nothing comes after the last");
    let none = server.get(&format!("{path}?before=1")).await.json();
    assert_eq!(none, json!({"lines": [], "next_before": null}));
    let all = server.get(&format!("{path}?before=18446744073709551615")).await.json();
    assert_eq!(all["lines"], json!(lines));
    let other = server.get("/v1/tenants/acme/accounts/payments/statement?limit=1").await;
    let line = &other.rows("lines")[0];
    assert_eq!((&line["amount"], &line["balance"]), (&"-10000".into(), &"-11111".into()));
    for query in ["limit=0", "limit=1001"] {
        server.get(&format!("{path}?{query}")).await.problem(400, "invalid_limit");
    }
    for query in ["limit=x", "before=-1", "after=1"] {
        server.get(&format!("{path}?{query}")).await.problem(400, "invalid_query");
    }
    let unknown = "/v1/tenants/acme/accounts/nobody/statement";
    server.get(unknown).await.problem(404, "unknown_account");
}

pub async fn accounts_are_listed_by_name(ground: Ground) {
    let server = Server::start(ground).await;
    let accounts = "/v1/tenants/acme/accounts";
    assert_eq!(names(&server.get(accounts).await), Vec::<String>::new());
    for name in ["b", "B", "a", "c"] {
        server.put(&format!("{accounts}/{name}"), r#"{"unit":"eur"}"#).await;
    }
    assert_eq!(names(&server.get(accounts).await), ["B", "a", "b", "c"]);
    let page = server.get(&format!("{accounts}?limit=3")).await;
    assert_eq!((names(&page).len(), &page.json()["next_after"]), (3, &"b".into()));
    let rest = server.get(&format!("{accounts}?limit=3&after=b")).await;
    assert_eq!((names(&rest), &rest.json()["next_after"]), (vec!["c".into()], &Value::Null));
    server.get(&format!("{accounts}?after=a%00")).await.problem(400, "invalid_account");
}

pub async fn an_entry_is_found_by_its_key(ground: Ground) {
    let server = with_accounts(ground).await;
    let body = entry(&[("wallet", "1"), ("payments", "-1")]);
    let key = "order/42?x=%41";
    let written = server.once(ENTRIES, key, &body).await;
    assert_eq!(written.json()["key"], key);
    let path = format!("{ENTRIES}/order%2F42%3Fx=%2541");
    assert_eq!(server.get(&path).await.body, written.body);
    server.get(&format!("{ENTRIES}/nothing")).await.problem(404, "unknown_entry");
    let other = "/v1/tenants/globex/entries/order%2F42%3Fx=%2541";
    server.get(other).await.problem(404, "unknown_entry");
    server.get(&format!("{ENTRIES}/a%00b")).await.problem(400, "invalid_key");
}

pub async fn who_may_look_and_who_may_write(ground: Ground) {
    let server = with_accounts(ground).await;
    let body = entry(&[("wallet", "1"), ("payments", "-1")]);
    assert_eq!(server.once(ENTRIES, "k1", &body).await.status, 201);
    let reads = ["accounts", "accounts/wallet", "accounts/wallet/statement", "entries/k1"];
    let (own, read) = (server.key("read", Some("acme")).await, server.key("read", None).await);
    let other = server.key("operate", Some("globex")).await;
    let ingest = server.key("ingest", Some("acme")).await;
    for path in reads.map(|path| format!("/v1/tenants/acme/{path}")) {
        for key in [&own, &read] {
            assert_eq!(server.get_as(key, &path).await.status, 200, "{path}");
        }
        server.get_as(&ingest, &path).await.problem(403, "scope_missing");
        let answer = server.get_as(&other, &path).await;
        answer.problem(403, "tenant_forbidden");
        // The same is said of a tenant that does not exist.
        let nobody = path.replace("acme", "nobody");
        assert_eq!(server.get_as(&other, &nobody).await.body, answer.body);
    }
    let account = "/v1/tenants/acme/accounts/new";
    let bound = server.key("operate", Some("acme")).await;
    for (key, code) in [(&own, "scope_missing"), (&bound, "tenant_forbidden")] {
        server.call(Method::PUT, account, key, r#"{"unit":"eur"}"#).await.problem(403, code);
        server.once_as(key, (Method::POST, ENTRIES), "k2", &body).await.problem(403, code);
    }
    server.get(account).await.problem(404, "unknown_account");
    server.get(&format!("{ENTRIES}/k2")).await.problem(404, "unknown_entry");
    server.faults.set_down(true);
    for path in reads {
        let path = format!("/v1/tenants/acme/{path}");
        server.get(&path).await.problem(503, "store_unavailable");
    }
    server.put(account, r#"{"unit":"eur"}"#).await.problem(503, "store_unavailable");
}
