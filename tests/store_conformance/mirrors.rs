//! Mirrors: what is read when, what a reading means for webhooks, and timelines.

use crate::billed::after;
use crate::fixture::{Fixture, claim_at_once, tenant_id};
use crate::inbound::{
    claim, entering, entry, object, read, record_fresh, snapshot, subscription, subscription_name,
    subscription_of, telling, thin, want, webhook,
};
use counterfoil::rules::ids::{CustomerId, TenantId};
use counterfoil::rules::invoice::{Invoice, InvoiceLine};
use counterfoil::rules::mirror::{Customer, ObjectKind, ObjectName, Snapshot};
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::subscription::{Origin, TimelineEntry};
use counterfoil::rules::webhook::WebhookStatus;
use counterfoil::rules::window::Window;
use counterfoil::store::webhook::{Mirror, MirrorClaim, MirrorFilter, Mirrored, WantedMirror};
use counterfoil::store::{Query, TenantFields};
use std::slice::from_ref;

async fn timeline(f: &Fixture, tenant: &TenantId) -> Vec<TimelineEntry> {
    let mut entries = f.store.read_timeline(tenant).await.unwrap();
    entries
        .sort_by_key(|entry| (entry.subscription.clone(), entry.at, entry.origin, entry.version));
    entries
}

pub async fn each_request_takes_the_next_ticket(mut f: Fixture) {
    let (one, two) = (subscription_name("sub_1"), object(ObjectKind::Invoice, "sub_1"));
    assert_eq!(want(&f, &[one.clone(), two.clone(), one.clone()], 0).await, [1, 1, 2]);
    record_fresh(&f, thin(&f, "evt_1", one.clone())).await;
    f.restart().await;
    assert_eq!(want(&f, from_ref(&one), 0).await, [4]);
    assert_eq!(want(&f, &[], 0).await, Vec::<u64>::new());
    let mut wanted = claim(&f, 0).await;
    wanted.sort_by_key(|wanted| wanted.name.kind);
    let expected = |name, ticket| WantedMirror { name, ticket, attempts: 0 };
    assert_eq!(wanted, [expected(one, 4), expected(two, 1)]);
}

pub async fn claims_respect_leases_and_dues(mut f: Fixture) {
    let names = [0, 1, 2].map(|n| subscription_name(&format!("sub_{n}")));
    // They are due in the order of their requests, which is not that of their names.
    for (name, minute) in [(&names[1], 1), (&names[2], 2), (&names[0], 3)] {
        want(&f, from_ref(name), minute).await;
    }
    let ask = async |f: &Fixture, minute: i64, limit: usize| {
        let (now, lease_until) = (after(f.now, minute), after(f.now, minute + 10));
        let claimed = f.store.claim_mirrors(MirrorClaim { now, lease_until, limit }).await;
        claimed.unwrap().into_iter().map(|wanted| wanted.name).collect::<Vec<ObjectName>>()
    };
    assert_eq!(ask(&f, 0, 10).await, [], "nothing is due before it was wanted");
    assert_eq!(ask(&f, 3, 2).await, [names[1].clone(), names[2].clone()]);
    assert_eq!(ask(&f, 3, 2).await, [names[0].clone()]);
    assert_eq!(ask(&f, 12, 10).await, [], "all are leased");
    f.restart().await;
    assert_eq!(ask(&f, 13, 10).await.len(), 3, "leases end");
    assert_eq!(read(&f, &names[1], 1, snapshot("active"), 14).await, Mirrored::Written(None));
    assert_eq!(ask(&f, 40, 10).await.len(), 2, "what was read is not wanted");
}

pub async fn claimants_at_once_share_nothing(f: Fixture) {
    let names: Vec<ObjectName> = (0..30).map(|n| subscription_name(&format!("sub_{n}"))).collect();
    want(&f, &names, 0).await;
    let claimed = claim_at_once(f, |f| async move {
        let claim = MirrorClaim { now: f.now, lease_until: after(f.now, 10), limit: 2 };
        let claimed = f.store.claim_mirrors(claim).await.unwrap();
        claimed.into_iter().map(|wanted| wanted.name.id).collect::<Vec<_>>()
    });
    assert_eq!(claimed.await.len(), 30);
}

pub async fn a_stale_reading_is_not_written(mut f: Fixture) {
    let name = subscription_name("sub_1");
    want(&f, &[name.clone(), name.clone(), name.clone()], 0).await;
    assert_eq!(f.store.find_mirror(&name).await.unwrap(), None, "it was not read");
    assert_eq!(read(&f, &name, 2, snapshot("active"), 2).await, Mirrored::Written(None));
    f.restart().await;
    assert_eq!(read(&f, &name, 1, snapshot("trialing"), 3).await, Mirrored::Stale);
    assert_eq!(read(&f, &name, 2, snapshot("trialing"), 3).await, Mirrored::Stale);
    let mirror = |version, snapshot, minute| Mirror {
        name: name.clone(),
        version,
        snapshot,
        read_at: after(f.now, minute),
    };
    let found = f.store.find_mirror(&name).await.unwrap();
    assert_eq!(found, Some(mirror(2, snapshot("active"), 1)));
    let before = Some(snapshot("active"));
    assert_eq!(read(&f, &name, 3, Snapshot::Gone, 4).await, Mirrored::Written(before));
    let found = f.store.find_mirror(&name).await.unwrap();
    assert_eq!(found, Some(mirror(3, Snapshot::Gone, 3)));
}

pub async fn readings_of_one_call_are_in_order(f: Fixture) {
    let (one, two) = (subscription_name("sub_1"), object(ObjectKind::Customer, "cus_1"));
    want(&f, &[one.clone(), one.clone(), two.clone()], 0).await;
    let reading = |name: &ObjectName, ticket, snapshot| {
        let name = name.clone();
        counterfoil::store::webhook::MirrorReading { name, ticket, snapshot, read_at: f.now }
    };
    let gone = Snapshot::Customer(Customer { deleted: true });
    let readings = vec![
        reading(&one, 1, snapshot("trialing")),
        reading(&two, 1, gone.clone()),
        reading(&one, 2, snapshot("active")),
        reading(&one, 1, snapshot("canceled")),
    ];
    let written = f.store.record_mirrors(readings, f.now).await.unwrap();
    use Mirrored::{Stale, Written};
    assert_eq!(written, [Written(None), Written(None), Written(Some(snapshot("trialing"))), Stale]);
    let found = f.store.find_mirror(&one).await.unwrap().unwrap();
    assert_eq!((found.version, found.snapshot), (2, snapshot("active")));
    assert_eq!(f.store.find_mirror(&two).await.unwrap().unwrap().snapshot, gone);
}

pub async fn webhooks_above_the_ticket_keep_waiting(f: Fixture) {
    let name = subscription_name("sub_1");
    let first = record_fresh(&f, thin(&f, "evt_1", name.clone())).await;
    let wanted = claim(&f, 0).await.remove(0);
    assert_eq!(wanted.ticket, 1);
    // It comes while the object is being read; the reading may have been before the change.
    let second = record_fresh(&f, thin(&f, "evt_2", name.clone())).await;
    let elsewhere = record_fresh(&f, thin(&f, "evt_3", subscription_name("sub_2"))).await;
    read(&f, &name, 1, snapshot("active"), 2).await;
    let status = async |number: u64| webhook(&f, number).await.status;
    assert_eq!(status(first).await, WebhookStatus::Applied);
    assert_eq!(webhook(&f, first).await.settled_at, Some(after(f.now, 2)));
    assert_eq!(status(second).await, WebhookStatus::Waiting);
    assert_eq!(webhook(&f, second).await.settled_at, None);
    assert_eq!(status(elsewhere).await, WebhookStatus::Waiting);
    let again = claim(&f, 2).await;
    let again = again.iter().find(|wanted| wanted.name == name).unwrap();
    assert_eq!(again.ticket, 2, "the lease has ended, and a higher ticket is wanted");
    read(&f, &name, 2, snapshot("active"), 3).await;
    assert_eq!(status(second).await, WebhookStatus::Applied);
    assert!(claim(&f, 60).await.iter().all(|wanted| wanted.name != name), "nothing more is wanted");
    // A stale reading settles nothing.
    let third = record_fresh(&f, thin(&f, "evt_4", name.clone())).await;
    assert_eq!(read(&f, &name, 2, snapshot("active"), 61).await, Mirrored::Stale);
    assert_eq!(status(third).await, WebhookStatus::Waiting);
}

pub async fn a_reading_judges_what_was_told(f: Fixture) {
    let invoice = |status: &str, lines: Vec<InvoiceLine>| {
        Snapshot::Invoice(Invoice {
            customer: CustomerId::parse("cus_acme").unwrap(),
            subscription: None,
            status: status.to_owned(),
            reason: None,
            currency: "usd".to_owned(),
            created_at: f.now,
            period: Window { start: f.now, end: after(f.now, 60) },
            finalizes_at: None,
            subtotal: 5,
            total_excluding_tax: 5,
            tax: 0,
            total: 5,
            amount_due: 5,
            attempt_count: 0,
            next_attempt_at: None,
            lines,
        })
    };
    let line = InvoiceLine {
        id: "il_1".to_owned(),
        price: None,
        event_name: Some("tokens".to_owned()),
        quantity: Quantity::ONE,
        unit_amount: None,
        subtotal: 5,
        period: Window { start: f.now, end: after(f.now, 60) },
    };
    let (subscribed, invoiced) = (subscription_name("sub_1"), object(ObjectKind::Invoice, "in_1"));
    let mut numbers = Vec::new();
    for (place, (name, told)) in [
        (&subscribed, None),
        (&subscribed, Some(snapshot("active"))),
        (&subscribed, Some(snapshot("trialing"))),
        (&invoiced, Some(invoice("open", vec![]))),
        (&invoiced, Some(invoice("draft", vec![]))),
    ]
    .into_iter()
    .enumerate()
    {
        let receipt = thin(&f, &format!("evt_{place}"), name.clone());
        let receipt = match told {
            Some(told) => telling(receipt, told),
            None => receipt,
        };
        numbers.push(record_fresh(&f, receipt).await);
    }
    read(&f, &subscribed, 3, snapshot("active"), 1).await;
    read(&f, &invoiced, 2, invoice("open", vec![line]), 1).await;
    use WebhookStatus::{Applied, Stale};
    let expected = [Applied, Applied, Stale, Applied, Stale];
    for (number, expected) in numbers.into_iter().zip(expected) {
        assert_eq!(webhook(&f, number).await.status, expected, "webhook {number}");
    }
}

pub async fn what_cannot_be_read_is_put_off(mut f: Fixture) {
    let name = subscription_name("sub_1");
    let number = record_fresh(&f, thin(&f, "evt_1", name.clone())).await;
    let other = record_fresh(&f, thin(&f, "evt_2", subscription_name("sub_2"))).await;
    let wanted = claim(&f, 0).await.into_iter().find(|wanted| wanted.name == name).unwrap();
    let put_off = async |f: &Fixture, wanted: &WantedMirror, minute: i64, detail: &str| {
        f.store.put_off_mirror(wanted, after(f.now, minute), detail).await.unwrap();
    };
    put_off(&f, &wanted, 5, "no connection").await;
    f.restart().await;
    let waiting = webhook(&f, number).await;
    assert_eq!(waiting.status, WebhookStatus::Waiting);
    assert_eq!(waiting.detail.as_deref(), Some("no connection"));
    assert_eq!(webhook(&f, other).await.detail, None);
    // A further webhook takes a ticket, but the object stays put off.
    record_fresh(&f, thin(&f, "evt_3", name.clone())).await;
    assert_eq!(claim(&f, 4).await, []);
    let again = claim(&f, 5).await.remove(0);
    assert_eq!(again, WantedMirror { name: name.clone(), ticket: 2, attempts: 1 });
    put_off(&f, &again, 6, "HTTP 500").await;
    let third = claim(&f, 6).await.remove(0);
    assert_eq!(third.attempts, 2);
    read(&f, &name, 2, snapshot("active"), 7).await;
    let applied = webhook(&f, number).await;
    assert_eq!((applied.status, applied.detail), (WebhookStatus::Applied, None));
    // What was read meanwhile is not put off any more.
    put_off(&f, &third, 8, "too late").await;
    assert_eq!(want(&f, from_ref(&name), 8).await, [3]);
    let fresh = claim(&f, 8).await.into_iter().find(|wanted| wanted.name == name).unwrap();
    assert_eq!((fresh.ticket, fresh.attempts), (3, 0), "a reading begins anew");
}

pub async fn readings_add_only_new_states(mut f: Fixture) {
    f.customer("acme", "cus_acme").await;
    let acme = tenant_id("acme");
    let name = subscription_name("sub_1");
    want(&f, &vec![name.clone(); 6], 0).await;
    read(&f, &name, 1, snapshot("active"), 1).await;
    read(&f, &name, 2, snapshot("active"), 2).await;
    read(&f, &name, 3, snapshot("canceled"), 3).await;
    read(&f, &name, 2, snapshot("paused"), 4).await;
    read(&f, &name, 4, Snapshot::Gone, 5).await;
    f.restart().await;
    read(&f, &name, 6, snapshot("canceled"), 6).await;
    let expected = |minute, version, status| TimelineEntry {
        version,
        ..entry("sub_1", after(f.now, minute), Origin::Read, subscription(status))
    };
    let rows = [(0, 1, "active"), (1, 2, "active"), (2, 3, "canceled"), (5, 6, "canceled")];
    let rows = rows.map(|(minute, version, status)| expected(minute, version, status));
    assert_eq!(timeline(&f, &acme).await, rows);
}

pub async fn a_timeline_is_the_same_in_any_order(f: Fixture) {
    let receipts = |customer: &str| {
        let receipt = |n: i64, minute: i64, origin: Origin, status: &str| {
            let id = format!("sub_{customer}");
            let mut receipt =
                entering(thin(&f, &format!("{customer}_{n}"), subscription_name(&id)), status);
            let at = after(f.now, minute);
            let state = subscription_of(customer, status);
            receipt.facts.timeline = Some(entry(&id, at, origin, state));
            receipt
        };
        vec![
            receipt(0, 0, Origin::Created, "incomplete"),
            receipt(1, 0, Origin::Updated, "active"),
            receipt(2, 0, Origin::Updated, "past_due"),
            receipt(3, 9, Origin::Ended, "canceled"),
        ]
    };
    let shuffles =
        [("a", [0, 1, 2, 3, 3, 3]), ("b", [3, 2, 1, 0, 1, 2]), ("c", [1, 3, 0, 2, 0, 0])];
    let mut timelines = Vec::new();
    for (tenant, order) in shuffles {
        f.customer(tenant, tenant).await;
        let all = receipts(tenant);
        for place in order {
            f.store.record_webhooks(vec![all[place].clone()]).await.unwrap();
        }
        let mut found: Vec<(i64, Origin, String)> = timeline(&f, &tenant_id(tenant))
            .await
            .into_iter()
            .map(|entry| {
                assert_eq!(entry.subscription.as_str(), format!("sub_{tenant}"));
                assert_eq!(entry.state.customer.as_str(), tenant);
                (entry.at.micros(), entry.origin, entry.state.status)
            })
            .collect();
        found.sort();
        assert_eq!(found.len(), 4);
        timelines.push(found);
    }
    assert!(timelines.iter().all(|timeline| *timeline == timelines[0]));
    assert_eq!(timeline(&f, &tenant_id("nobody")).await, []);
    f.store.put_tenant(&tenant_id("d"), TenantFields::default(), f.now).await.unwrap();
    assert_eq!(timeline(&f, &tenant_id("d")).await, [], "it has no customer");
}

pub async fn pages_and_filters(f: Fixture) {
    let mut names = Vec::new();
    for n in 0..5 {
        names.push(subscription_name(&format!("sub_{n}")));
        let customer = if n % 2 == 0 { "cus_even" } else { "cus_odd" };
        let status = if n < 3 { "active" } else { "canceled" };
        want(&f, &[names[n].clone()], 0).await;
        let snapshot = Snapshot::Subscription(subscription_of(customer, status));
        read(&f, &names[n], 1, snapshot, 1).await;
    }
    let invoice = object(ObjectKind::Customer, "sub_2");
    want(&f, &[invoice.clone(), subscription_name("sub_unread")], 0).await;
    let active = Snapshot::Customer(Customer { deleted: false });
    read(&f, &invoice, 1, active, 1).await;
    let kind = ObjectKind::Subscription;
    let any = || MirrorFilter { kind, status: None, customer: None };
    let of = |filter| Query::first(filter, 100);
    let check = async |query: Query<MirrorFilter, String>, places: &[usize]| {
        let found = f.store.list_mirrors(query).await.unwrap();
        let found: Vec<ObjectName> = found.into_iter().map(|mirror| mirror.name).collect();
        assert_eq!(found, places.iter().map(|place| names[*place].clone()).collect::<Vec<_>>());
    };
    check(of(any()), &[0, 1, 2, 3, 4]).await;
    check(Query { limit: 2, ..of(any()) }, &[0, 1]).await;
    check(Query { after: Some("sub_1".to_owned()), limit: 2, ..of(any()) }, &[2, 3]).await;
    check(of(MirrorFilter { status: Some("canceled".to_owned()), ..any() }), &[3, 4]).await;
    let customer = CustomerId::parse("cus_even").ok();
    check(of(MirrorFilter { customer: customer.clone(), ..any() }), &[0, 2, 4]).await;
    let (status, after) = (Some("active".to_owned()), Some("sub_0".to_owned()));
    check(Query { after, ..of(MirrorFilter { status, customer, ..any() }) }, &[2]).await;
    check(of(MirrorFilter { kind: ObjectKind::Invoice, ..any() }), &[]).await;
    let customers = of(MirrorFilter { kind: ObjectKind::Customer, ..any() });
    let found = f.store.list_mirrors(customers).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((&found[0].name, found[0].version), (&invoice, 1));
}
