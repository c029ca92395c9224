//! A provider that cannot be read: nothing is said to be equal or different that was not read.

use super::nightly::{all_rows, is_chained};
use super::world::{Ground, SUMMARIES, World, quantity};
use counterfoil::rules::alert::AlertKind;
use counterfoil::rules::drift::{Reason, Verdict};
use counterfoil::rules::finding::FindingKind;
use counterfoil::rules::pass::{Pass, PassKind, PassRow, PassState};

const FROM: &str = "2026-11-15T00:00:00Z";
const TO: &str = "2026-11-16T00:00:00Z";

fn check_unread(pass: &Pass, rows: &[PassRow]) {
    assert_eq!(pass.state, PassState::Incomplete, "{pass:#?}");
    assert_eq!((pass.progress.pairs_unread, pass.hash), (pass.progress.pairs, None));
    assert!(pass.ended_at.is_some() && pass.detail.as_ref().unwrap().contains("were not read"));
    let verdicts: Vec<Verdict> = pass.progress.verdicts.keys().copied().collect();
    assert_eq!(verdicts, [Verdict::Unread]);
    assert!(!rows.is_empty());
    for row in rows {
        assert_eq!((row.verdict, row.reason), (Verdict::Unread, Reason::Unread), "{row:#?}");
        assert_eq!((row.provider, row.delta(), row.hash), (None, None, None));
        assert!(row.windows.is_empty());
    }
}

pub async fn a_pass_that_reads_nothing_calls_nothing_equal(ground: Ground) {
    let (world, _) = World::usual(ground).await;
    world.tenant("quiet").await;
    world.out_of_reach(SUMMARIES);
    world.used("acme", "30", "2026-11-15T11:10:00Z").await;
    world.hours(2).await;
    let pass = world.ordered(FROM, TO, false).await;
    let rows = world.rows(pass.number).await;
    assert_eq!(rows.len(), 2);
    check_unread(&pass, &rows);
    let hourly = world.passes(PassKind::Hourly).await.pop().unwrap();
    assert_eq!(hourly.state, PassState::Incomplete);
    assert!(!hourly.progress.verdicts.contains_key(&Verdict::Equal), "{hourly:#?}");
}

pub async fn an_earlier_reading_is_not_shown_as_read_now(ground: Ground) {
    let (world, _) = World::usual(ground).await;
    world.used("acme", "30", "2026-11-15T11:10:00Z").await;
    world.hours(4).await;
    let read = world.one_shot(FROM, TO, false).await;
    let rows = world.rows(read.number).await;
    assert_eq!((rows[0].provider, rows[0].verdict), (Some(quantity("30")), Verdict::Equal));
    world.out_of_reach(SUMMARIES);
    world.pass_seconds(60);
    let pass = world.ordered(FROM, TO, false).await;
    check_unread(&pass, &world.rows(pass.number).await);
}

pub async fn a_finding_advances_only_on_a_fresh_reading(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    world.used("acme", "30", "2026-11-15T11:10:00Z").await;
    world.hours(3).await;
    world.stripe.foreign(&customer, "calls", "7", "2026-11-15T11:20:00Z");
    world.hours(1).await;
    let first = world.only_finding(FindingKind::Usage).await;
    world.out_of_reach(SUMMARIES);
    world.hours(3).await;
    world.ordered(FROM, TO, true).await;
    let still = world.only_finding(FindingKind::Usage).await;
    assert_eq!(still, first);
    assert_eq!((world.pages(), still.passes), (Vec::new(), 1));
    world.stripe.faults(Vec::new());
    world.hours(1).await;
    world.check_finding(Verdict::Bypass, Reason::ProviderHigher, true).await;
    assert_eq!(world.pages(), [AlertKind::DriftUnresolved]);
}

pub async fn an_unread_night_is_no_link_of_the_chain(ground: Ground) {
    let (world, _) = World::usual(ground).await;
    for day in [15, 16, 18] {
        if day > 15 {
            world.leap(&format!("2026-11-{day}T12:00:00Z")).await;
        }
        world.used("acme", "10", &format!("2026-11-{day}T11:00:00Z")).await;
        world.leap(&format!("2026-11-{day}T14:00:00Z")).await;
        world.hours(1).await;
        if day == 16 {
            world.out_of_reach(SUMMARIES);
        }
        world.leap(&format!("2026-11-{}T05:00:00Z", day + 1)).await;
        if day == 16 {
            // The next night begins before the pass is taken up again.
            world.stripe.faults(Vec::new());
            world.leap("2026-11-18T05:00:00Z").await;
        }
    }
    let nights = all_rows(&world).await;
    let states: Vec<PassState> = nights.iter().map(|(pass, _)| pass.state).collect();
    let (closed, incomplete) = (PassState::Closed, PassState::Incomplete);
    assert_eq!(states, [closed, closed, incomplete, closed, closed]);
    check_unread(&nights[2].0, &nights[2].1);
    assert!(nights[3].0.hash.is_some() && nights[3].1[0].hash.is_some());
    assert!(is_chained(&nights));
}

pub async fn an_incomplete_night_is_taken_up_again(ground: Ground) {
    let (world, _) = World::usual(ground).await;
    world.used("acme", "10", "2026-11-15T11:00:00Z").await;
    world.until("2026-11-15T16:00:00Z").await;
    world.out_of_reach(SUMMARIES);
    world.leap("2026-11-16T05:00:00Z").await;
    let (night, rows) = all_rows(&world).await.pop().unwrap();
    check_unread(&night, &rows);
    world.leap("2026-11-16T06:00:00Z").await;
    let (night, rows) = all_rows(&world).await.pop().unwrap();
    check_unread(&night, &rows);
    world.stripe.faults(Vec::new());
    world.leap("2026-11-16T07:00:00Z").await;
    let nights = all_rows(&world).await;
    assert_eq!(nights.len(), 2);
    let (pass, rows) = nights.last().unwrap();
    assert_eq!((pass.number, pass.state, &pass.detail), (night.number, PassState::Closed, &None));
    assert_eq!((rows[0].verdict, rows[0].provider), (Verdict::Equal, Some(quantity("10"))));
    assert_eq!(pass.progress.verdicts.keys().copied().collect::<Vec<_>>(), [Verdict::Equal]);
    assert!(is_chained(&nights));
    world.leap("2026-11-16T09:00:00Z").await;
    assert_eq!(all_rows(&world).await, nights, "a closed pass never changes");
}

pub async fn a_list_that_cannot_be_read_makes_a_pass_incomplete(ground: Ground) {
    let (world, _) = World::usual(ground).await;
    world.used("acme", "30", "2026-11-15T11:10:00Z").await;
    world.hours(4).await;
    world.out_of_reach("/v1/subscriptions");
    let pass = world.ordered(FROM, TO, false).await;
    let rows = world.rows(pass.number).await;
    assert_eq!((pass.state, rows[0].verdict), (PassState::Incomplete, Verdict::Equal));
    assert!(pass.detail.unwrap().contains("subscriptions"));
    world.stripe.faults(Vec::new());
    world.one_shot(FROM, TO, false).await;
}
