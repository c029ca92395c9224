//! Customers as sagas make, find and mark them.

use super::{HOUR, NOON, World, id, refusal, told};
use serde_json::{Value, json};
use stripe_sim::{
    FaultKind, FaultPlan, FaultRule, Options, SimRequest, Simulator, Timestamp, Transport,
};

fn listed(world: &mut World, query: &str) -> Vec<String> {
    let list = world.get(&format!("/v1/customers?{query}")).json();
    let rows = list["data"].as_array().unwrap_or_else(|| panic!("{list}")).iter();
    rows.map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn made_and_changed() {
    let mut world = World::new();
    let fields = [
        ("name", "Ada"),
        ("email", "ada@example.com"),
        ("metadata[app_tenant]", "acme"),
        ("metadata[app_saga]", "saga_1"),
    ];
    let made = world.post("/v1/customers", &fields).json();
    assert_eq!((&made["object"], &made["created"]), (&json!("customer"), &json!(NOON)));
    assert_eq!((&made["name"], &made["email"]), (&json!("Ada"), &json!("ada@example.com")));
    let expected = json!({ "app_tenant": "acme", "app_saga": "saga_1" });
    assert_eq!(made["metadata"], expected);
    let path = format!("/v1/customers/{}", made["id"].as_str().unwrap());
    assert_eq!(world.get(&path).json(), made);

    let mut check = |fields: &[(&str, &str)], expected: Value| {
        let changed = world.post(&path, fields).json();
        assert_eq!(changed["metadata"], expected, "{fields:?}");
        assert_eq!(world.get(&path).json(), changed);
    };
    let both = json!({ "app_saga": "saga_1", "app_state": "abandoned" });
    check(&[("metadata[app_state]", "abandoned"), ("metadata[app_tenant]", "")], both.clone());
    check(&[("metadata[never_there]", "")], both.clone());
    check(&[("description", "none of the metadata's business")], both);
    check(&[("metadata", "")], json!({}));
    let unnamed = world.post(&path, &[("name", "")]).json();
    assert_eq!((&unnamed["name"], &unnamed["email"]), (&Value::Null, &made["email"]));

    let changes = told(&mut world, "customer.updated");
    assert_eq!(changes.len(), 4, "what changed nothing is not told");
    let first = &changes[0]["data"]["previous_attributes"]["metadata"];
    assert_eq!(*first, json!({ "app_state": null, "app_tenant": "acme" }));
    assert_eq!(told(&mut world, "customer.created")[1]["data"]["object"], made);
}

#[test]
fn what_is_refused() {
    let mut world = World::new();
    let (name, value) = ("n".repeat(41), "v".repeat(501));
    let long_name = format!("metadata[{name}]");
    let mut check = |fields: &[(&str, &str)], code: Option<&str>, part: &str| {
        let request = SimRequest::form("/v1/customers", fields).with_key("key");
        let (status, kind, found, message) = refusal(&world.simulator.handle(&request));
        assert_eq!((status, kind.as_str()), (400, "invalid_request_error"), "{fields:?}");
        assert_eq!(found.as_deref(), code, "{fields:?}");
        assert!(message.contains(part), "{fields:?}: {message}");
    };
    check(&[("email", "ada")], Some("email_invalid"), "Invalid email address: ada");
    check(&[("email", "a b@example.com")], Some("email_invalid"), "Invalid email address");
    check(&[("tenant", "acme")], Some("parameter_unknown"), "tenant");
    check(&[(&long_name, "x")], None, "up to 40 characters");
    check(&[("metadata[a]", &value)], None, "up to 500 characters");
    check(&[("metadata[a][b]", "x")], None, "metadata[a]");
    let many: Vec<(String, &str)> = (0..51).map(|n| (format!("metadata[n{n}]"), "x")).collect();
    let many: Vec<(&str, &str)> =
        many.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    check(&many, None, "at most 50 keys");
    assert_eq!(world.simulator.customers().len(), 1, "only the world's own");
    // All of this was refused before it was executed, so the key is still free.
    let request = SimRequest::form("/v1/customers", &many[..50]).with_key("key");
    assert_eq!(world.simulator.handle(&request).status, 200);
    let missing = world.post("/v1/customers/cus_none", &[]);
    assert_eq!((missing.status, refusal(&missing).2.as_deref()), (404, Some("resource_missing")));
}

#[test]
fn lists_by_time_and_email_page_after_page() {
    let mut world = World::new();
    let own = world.customer.clone();
    let mut made = Vec::new();
    for number in 0..250 {
        world.advance(1);
        let email = if number % 2 == 0 { "even@example.com" } else { "odd@example.com" };
        made.push(id(&world.post("/v1/customers", &[("email", email)])));
    }
    made.reverse();
    let mut pages = |query: &str| {
        let (mut ids, mut sizes): (Vec<String>, Vec<usize>) = (Vec::new(), Vec::new());
        loop {
            let after = ids.last().map_or(String::new(), |id| format!("&starting_after={id}"));
            let list = world.get(&format!("/v1/customers?limit=100&{query}{after}")).json();
            let rows = list["data"].as_array().unwrap();
            ids.extend(rows.iter().map(|row| row["id"].as_str().unwrap().to_owned()));
            sizes.push(rows.len());
            if list["has_more"] == false {
                return (ids, sizes);
            }
        }
    };
    assert_eq!(pages(&format!("created[gte]={}", NOON + 1)), (made.clone(), vec![100, 100, 50]));
    assert_eq!(pages(&format!("created[gt]={}", NOON + 1)).0, made[..249]);
    assert_eq!(
        pages(&format!("created[lte]={}", NOON + 1)).0,
        [&made[249], &own].map(Clone::clone)
    );
    assert_eq!(pages(&format!("created[lt]={}", NOON + 1)).0, [own]);
    assert_eq!(pages("email=odd@example.com").0.len(), 125);
    assert_eq!(pages(&format!("created={}", NOON + 250)).0, made[..1]);
    assert_eq!(pages(&format!("created[gte]={}", NOON + HOUR)).1, [0]);
    let path = format!("/v1/customers/{}", made[0]);
    world.simulator.handle(&SimRequest::new("DELETE", &path));
    assert_eq!(listed(&mut world, "limit=1"), made[1..2], "one that is deleted is not listed");
    assert_eq!(world.get("/v1/customers?starting_after=cus_none").status, 400);
}

#[test]
fn one_customer_under_one_key() {
    let mut world = World::new();
    let request = SimRequest::form("/v1/customers", &[("name", "Ada")]).with_key("key");
    let first = world.simulator.handle(&request);
    let again = world.simulator.handle(&request);
    assert_eq!((&again.body, again.header("idempotent-replayed")), (&first.body, Some("true")));
    // A key is not looked at where nothing is made, and not by a DELETE.
    let path = format!("/v1/customers/{}", id(&first));
    let deleted = world.simulator.handle(&SimRequest::new("DELETE", &path).with_key("key"));
    assert_eq!(deleted.json()["deleted"], true);
    let stale = world.simulator.handle(&request);
    assert_eq!(id(&stale), id(&first), "a replay shows what was, and not that it is gone");
    let other = SimRequest::form("/v1/customers", &[("name", "Bob")]).with_key("key");
    assert_eq!(refusal(&world.simulator.handle(&other)).1, "idempotency_error");
    let (_, ticket) = world.simulator.begin(&other.clone().with_key("slow"));
    let (status, _, code, _) = refusal(&world.simulator.handle(&other.clone().with_key("slow")));
    assert_eq!((status, code.as_deref()), (409, Some("idempotency_key_in_use")));
    world.simulator.end(&ticket);
    assert_eq!(world.simulator.handle(&other.with_key("slow")).status, 200);
    assert_eq!(world.simulator.customers().len(), 3);
}

#[test]
fn each_call_can_be_hit_alone() {
    let check = |kind: FaultKind, status: u16, transport: Transport, made: usize| {
        let mut world = World::new();
        let rule = FaultRule::new(kind).on_call("POST /v1/customers");
        world.simulator.set_faults(FaultPlan::of_rules(vec![rule]));
        let path = format!("/v1/customers/{}", world.customer);
        assert_eq!(world.post(&path, &[("name", "Ada")]).status, 200, "another call");
        assert_eq!(world.get("/v1/customers").status, 200, "another method");
        let request = SimRequest::form("/v1/customers", &[]).with_key("key");
        let hit = world.simulator.handle(&request);
        assert_eq!((hit.status, hit.transport), (status, transport), "{kind:?}");
        assert_eq!(world.simulator.customers().len(), 1 + made, "{kind:?}");
        let again = world.simulator.handle(&request);
        let kept = status == 500;
        assert_eq!(again.status, if kept { 500 } else { 200 }, "{kind:?}");
        let replayed = kept || made == 1;
        assert_eq!(again.header("idempotent-replayed").is_some(), replayed, "{kind:?}");
        let expected = if kept { 1 + made } else { 2 };
        assert_eq!(world.simulator.customers().len(), expected, "{kind:?}");
    };
    check(FaultKind::LostBefore, 0, Transport::Closed, 0);
    check(FaultKind::HangBefore, 0, Transport::Silent, 0);
    check(FaultKind::LostAfter, 200, Transport::Closed, 1);
    check(FaultKind::HangAfter, 200, Transport::Silent, 1);
    check(FaultKind::ResetMidBody, 200, Transport::Half, 1);
    check(FaultKind::Delayed, 200, Transport::Delayed, 1);
    check(FaultKind::Error500Executed, 500, Transport::Whole, 1);
    check(FaultKind::Error500NotExecuted, 500, Transport::Whole, 0);
    check(FaultKind::Error503, 503, Transport::Whole, 0);
    check(FaultKind::RateLimited429, 429, Transport::Whole, 0);
    check(FaultKind::LockTimeout429, 429, Transport::Whole, 0);
    check(FaultKind::Conflict409, 409, Transport::Whole, 0);
}

#[test]
fn everything_can_be_seen() {
    let mut world = World::new();
    let made = id(&world.post("/v1/customers", &[("metadata[app_saga]", "saga_1")]));
    let own = world.customer.clone();
    world.simulator.handle(&SimRequest::new("DELETE", &format!("/v1/customers/{own}")));
    // Without a key, and through every accident.
    let every = FaultPlan::of_rules(vec![FaultRule::new(FaultKind::Error503).times(9)]);
    world.simulator.set_faults(every);
    let mut request = SimRequest::get("/_sim/customers");
    request.headers.clear();
    let shown = world.simulator.handle(&request).json();
    assert_eq!(shown["data"][0], json!({ "id": own, "object": "customer", "deleted": true }));
    assert_eq!(shown["data"][1]["id"], made.as_str());
    assert_eq!(shown["data"][1]["metadata"], json!({ "app_saga": "saga_1" }));
    assert_eq!(shown["data"].as_array().unwrap().len(), 2);
    assert_eq!(world.get("/_sim/subscriptions").json(), json!({ "data": [] }));
}

#[test]
fn account_is_shown_to_secret_keys_and_not_to_restricted_ones() {
    let options = |key: &str| Options { api_key: Some(key.into()), ..Options::default() };
    let ask = |key: &str| {
        let now = Timestamp::from_seconds(NOON);
        let request = SimRequest::get("/v1/account");
        let request = request.with_header("authorization", &format!("Bearer {key}"));
        Simulator::new(now, options(key)).handle(&request)
    };
    let shown = ask("sk_live_1");
    assert_eq!(shown.status, 200);
    assert!(shown.json()["id"].as_str().unwrap().starts_with("acct_"));
    assert_eq!(ask("rk_live_1").status, 403);
}
