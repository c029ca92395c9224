//! The self-check's verbs: slices of any size in bounded memory, and what is kept of them.

use crate::fixture::{Fixture, event};
use counterfoil::rules::ids::{MeterNo, TenantNo};
use counterfoil::rules::self_check::{Mismatch, Place, SelfCheck, Slice, SliceReport};
use counterfoil::rules::timestamp::{MICROS_PER_HOUR, Timestamp};
use counterfoil::rules::window::Window;
use counterfoil::store::push::Lease;
use std::time::Duration;

/// Two tenants with totals of all kinds, in batches that are folded one by one.
async fn fill(f: &Fixture) {
    let mut batch = Vec::new();
    for n in 0..200usize {
        let tenant = ["acme", "globex"][n % 2];
        let at = format!("2026-11-{:02}T{:02}:30:00Z", 13 + n % 3, n % 12);
        let properties = format!(r#"{{"user":"u{}","region":"r{}"}}"#, n % 17, n % 5);
        for meter in ["calls", "logins", "lowest", "highest", "seats", "users", "traffic"] {
            let id = format!("{meter}{n}");
            batch.push(event(tenant, &id, meter, "1", &at, &properties));
        }
    }
    for part in batch.chunks(70) {
        f.deliver(part).await;
    }
    for _ in 0..600 {
        if f.store.health().unfolded_events == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("events are not folded");
}

fn everything() -> Slice {
    Slice::of_tenants(TenantNo(0), TenantNo(i32::MAX.unsigned_abs()))
}

pub async fn a_slice_of_any_size_is_compared_in_bounded_memory(f: Fixture) {
    fill(&f).await;
    let whole = f.store.check_slice(everything(), usize::MAX).await.unwrap();
    assert_eq!((whole.events, whole.mismatches.len()), (1_400, 0));
    assert!(whole.totals > 100, "{whole:?}");
    for rows_max in [1, 7, 64] {
        let parts = f.store.check_slice(everything(), rows_max).await.unwrap();
        assert!(parts.rows_held <= rows_max, "{parts:?}");
        assert!(parts.rows > whole.rows, "it is read several times");
        let SliceReport { events, totals, counters, mismatches, .. } = parts;
        assert_eq!((events, totals, counters), (whole.events, whole.totals, whole.counters));
        assert_eq!(mismatches, []);
    }
}

pub async fn slices_and_windows_have_the_same_totals_together(f: Fixture) {
    fill(&f).await;
    let whole = f.store.check_slice(everything(), usize::MAX).await.unwrap();
    let (mut place, mut events) = (Some(Place::START), 0);
    while let Some(from) = place {
        let slices = f.store.plan_slices(from, 1).await.unwrap();
        assert_eq!(slices.len(), 1);
        assert!(slices[0].starts_at(from));
        events += f.store.check_slice(slices[0], usize::MAX).await.unwrap().events;
        place = slices[0].after();
    }
    assert_eq!(events, whole.events);
    // Times of one tenant, cut at an hour; the last of them has the counters.
    let (mut pairs, mut active) = (Vec::new(), Vec::new());
    for _ in 0..600 {
        // What is not folded yet is in no list, and in every comparison.
        pairs = f.store.list_pairs((TenantNo(0), MeterNo(0)), 100).await.unwrap();
        active = f.store.list_active(f.now, TenantNo(0), 10).await.unwrap();
        if pairs.len() == 14 && active.len() == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(pairs.len(), 14, "two tenants and seven meters");
    assert_eq!(active, [pairs[0].tenant, pairs[13].tenant]);
    let border = Timestamp::parse("2026-11-14T05:00:00Z").unwrap();
    let (mut totals, mut counters) = (0, 0);
    for tenant in active {
        let ever = Slice::of_tenants(tenant, tenant).times;
        for times in [Window { end: border, ..ever }, Window { start: border, ..ever }] {
            let part = f.store.check_slice(Slice::of_times(tenant, times), 50).await.unwrap();
            assert_eq!(part.mismatches, []);
            totals += part.totals;
            counters += part.counters;
        }
        let alone = f.store.check_slice(Slice::of_counters(tenant), 50).await.unwrap();
        assert_eq!((alone.totals, alone.mismatches.len()), (0, 0));
    }
    assert_eq!((totals, counters), (whole.totals, whole.counters));
    // Windows of single meters.
    let mut totals = 0;
    for pair in pairs {
        let end = pair.last.saturating_add_micros(MICROS_PER_HOUR);
        let times = Window { start: pair.first, end };
        let slice = Slice::of_window(pair.tenant, pair.meter, times);
        let part = f.store.check_slice(slice, 50).await.unwrap();
        assert_eq!(part.mismatches, []);
        totals += part.totals;
    }
    assert_eq!(totals, whole.totals);
}

fn mismatch(tenant: u32, meter: Option<u16>, hour: i64) -> Mismatch {
    let start = Timestamp::from_micros(hour * MICROS_PER_HOUR);
    Mismatch {
        tenant_no: TenantNo(tenant),
        tenant: format!("tenant-{tenant}"),
        meter_no: meter.map(MeterNo),
        meter: "calls".into(),
        window: Window { start, end: start.saturating_add_micros(MICROS_PER_HOUR) },
        group: String::new(),
        stored: "1 of 1 event".into(),
        events: "2 of 2 events".into(),
    }
}

/// What is kept, as tenant, meter and hour.
async fn kept(f: &Fixture) -> Vec<(u32, Option<u16>, i64)> {
    let kept = f.store.list_mismatches(100).await.unwrap();
    assert_eq!(f.store.count_mismatches().await.unwrap(), kept.len() as u64);
    let shown = |one: Mismatch| {
        let hour = one.window.start.micros() / MICROS_PER_HOUR;
        (one.tenant_no.0, one.meter_no.map(|meter| meter.0), hour)
    };
    kept.into_iter().map(|one| shown(one.mismatch)).collect()
}

pub async fn a_mismatch_is_kept_until_its_slice_agrees(mut f: Fixture) {
    let until = f.now.saturating_add_micros(MICROS_PER_HOUR);
    let lease = f.store.claim_lease("self_check", "a", f.now, until).await.unwrap().unwrap();
    let record = async |f: &Fixture, lease: &Lease, slice: Slice, found: Vec<Mismatch>| {
        let check = SelfCheck { since: Some(f.now), ..SelfCheck::default() };
        f.store.record_self_check(lease, check, vec![(slice, found)], f.now).await.unwrap()
    };
    assert_eq!(f.store.read_self_check().await.unwrap(), SelfCheck::default());
    let found = vec![mismatch(1, None, 5), mismatch(1, Some(1), 5), mismatch(2, Some(1), 7)];
    assert!(record(&f, &lease, everything(), found.clone()).await);
    assert!(record(&f, &lease, everything(), found).await, "found again");
    let all = [(1, None, 5), (1, Some(1), 5), (2, Some(1), 7)];
    assert_eq!(kept(&f).await, all);
    f.restart().await;
    assert_eq!(kept(&f).await, all);
    assert_eq!(f.store.read_self_check().await.unwrap().since, Some(f.now));
    let hour = |hour: i64| mismatch(1, None, hour).window;
    // Slices that do not have the windows say nothing about them.
    for slice in [
        Slice::of_tenants(TenantNo(3), TenantNo(9)),
        Slice::of_window(TenantNo(1), MeterNo(2), hour(5)),
        Slice::of_window(TenantNo(1), MeterNo(1), hour(6)),
    ] {
        assert!(record(&f, &lease, slice, vec![]).await);
        assert_eq!(kept(&f).await, all);
    }
    assert!(record(&f, &lease, Slice::of_window(TenantNo(1), MeterNo(1), hour(5)), vec![]).await);
    assert_eq!(kept(&f).await, [all[0], all[2]]);
    assert!(record(&f, &lease, Slice::of_counters(TenantNo(1)), vec![]).await);
    assert_eq!(kept(&f).await, [all[2]]);
    // Who has lost the lease writes nothing.
    f.store.release_lease(&lease).await.unwrap();
    assert!(!record(&f, &lease, everything(), vec![]).await);
    assert_eq!(kept(&f).await, [all[2]]);
}
