//! Decisions by the provider's summary: when the provider may have forgotten a key, nothing is sent
//! until its own total has told whether the push counted. And confirmation, which only it can give.

use crate::world::{CALLS, EVENTS, Ground, Jobs, SUMMARIES, World, at};
use counterfoil::jobs::Job;
use counterfoil::jobs::push::PushJob;
use counterfoil::provider::{
    Answer, Limits, Provider, PushFacts, Request, TotalsQuery, Unreadable,
};
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::submission::{Class, PushState};
use counterfoil::store::push::Ruling;
use std::sync::Arc;
use stripe_sim::{FaultKind, FaultRule};

const HOUR: &str = "2026-11-15T12:00:00Z";

/// A push whose only attempt had an unknown outcome, long ago.
async fn forgotten(ground: Ground, kind: FaultKind) -> (World, String, u64) {
    let (world, customer) = World::usual(ground).await;
    let push = world.planned("5").await;
    world.stripe.fault(kind, 1_000);
    world.push().await;
    world.check(push.number, PushState::Observed, Class::Unknown).await;
    (world, customer, push.number)
}

pub async fn for_22_hours_the_same_key_is_sent_and_then_nothing_for_four(ground: Ground) {
    let (world, _, push) = forgotten(ground, FaultKind::LostBefore).await;
    world.pass_seconds(22 * 3_600 - 1);
    world.push().await;
    assert_eq!(world.posts(), 2);
    world.pass_hours(1);
    let summaries = || world.stripe.calls(SUMMARIES);
    for _ in 0..3 {
        world.push().await;
        assert_eq!((world.posts(), summaries()), (2, 0), "neither sent nor asked for");
        world.check(push, PushState::Observed, Class::Unknown).await;
        world.pass_hours(1);
    }
    world.pass_seconds(1);
    world.push().await;
    assert_eq!(summaries(), 1, "26 hours after the first attempt the summary is asked");
}

pub async fn a_push_that_the_summary_shows_has_counted(ground: Ground) {
    let (world, customer, push) = forgotten(ground, FaultKind::LostAfter).await;
    world.pass_hours(26);
    world.push().await;
    world.check(push, PushState::Submitted, Class::Present).await;
    assert_eq!((world.posts(), world.pushes().await.len()), (1, 1));
    world.pass_hours(1);
    world.confirm().await;
    world.check(push, PushState::Confirmed, Class::Confirmed).await;
    assert_eq!(world.stripe.total(&customer, HOUR), "5");
}

pub async fn a_push_that_the_summary_lacks_gets_a_new_revision(ground: Ground) {
    let (world, customer, push) = forgotten(ground, FaultKind::LostBefore).await;
    world.stripe.faults(Vec::new());
    world.pass_hours(26);
    world.push().await;
    world.check(push, PushState::Observed, Class::Unknown).await;
    assert_eq!(world.posts(), 1, "one reading proves nothing");
    world.pass_hours(1);
    world.push().await;
    let absent = world.check(push, PushState::Replaced, Class::Absent).await;
    let next = world.pushes().await.pop().unwrap();
    assert_eq!((next.revision, next.quantity), (2, absent.quantity));
    assert_eq!(next.state, PushState::Submitted);
    assert_ne!(next.key, absent.key);
    assert!(absent.detail.unwrap().contains("the provider's total of the window is 0"));
    assert_eq!(world.stripe.total(&customer, HOUR), "5");
}

pub async fn a_push_on_which_the_summary_fits_neither_needs_a_person(ground: Ground) {
    let (world, _, push) = forgotten(ground, FaultKind::LostBefore).await;
    world.stripe.faults(Vec::new());
    // Another program reports usage of its own for this customer.
    let customer = world.trace(push).await.push.customer.unwrap();
    let stamp = (at(HOUR).micros() / 1_000_000 + 60).to_string();
    let fields = [
        ("event_name", "calls"),
        ("payload[stripe_customer_id]", customer.as_str()),
        ("payload[value]", "3"),
        ("timestamp", &stamp),
    ];
    world.stripe.ask(EVENTS, &fields);
    world.pass_hours(26);
    world.push().await;
    world.check(push, PushState::Dead, Class::Undecidable).await;
    let Ruling::Refused(why) = world.retry(push).await else { panic!("it could bill twice") };
    assert!(why.contains("sending it again could bill twice") && why.contains("discard"), "{why}");
    // What follows in this window cannot be decided either, but is sent.
    let next = world.planned("2").await;
    world.push().await;
    world.check(next.number, PushState::Submitted, Class::Accepted).await;
    let done = world.store.discard_push(push, "seen", world.clock.now()).await.unwrap();
    assert_eq!(done, Ruling::Done(None));
    assert!(matches!(world.retry(push).await, Ruling::Refused(why) if why.contains("discarded")));
}

pub async fn a_summary_that_cannot_be_read_decides_nothing(ground: Ground) {
    let (world, customer, push) = forgotten(ground, FaultKind::LostAfter).await;
    let unreadable = FaultRule::new(FaultKind::Error503).on_path(SUMMARIES).times(3);
    let garbage = FaultRule::new(FaultKind::Garbage200).on_path(SUMMARIES).times(5);
    world.stripe.faults(vec![unreadable, garbage]);
    world.pass_hours(26);
    for _ in 0..5 {
        world.push().await;
        world.check(push, PushState::Observed, Class::Unknown).await;
        world.pass_seconds(300);
    }
    world.push().await;
    world.check(push, PushState::Submitted, Class::Present).await;
    assert_eq!((world.posts(), world.stripe.total(&customer, HOUR)), (1, "5".to_owned()));
}

/// The provider said 200 and dropped it afterwards: only its total tells.
pub async fn what_was_taken_and_dropped_is_found_after_26_hours_and_retried_by_a_person(
    ground: Ground,
) {
    let (world, customer) = World::usual(ground).await;
    let push = world.planned("5").await;
    world.stripe.fault(FaultKind::AsyncRejection, 1);
    world.push().await;
    world.check(push.number, PushState::Submitted, Class::Accepted).await;
    for _ in 0..104 {
        world.pass_seconds(900);
        world.confirm().await;
        world.check(push.number, PushState::Submitted, Class::Accepted).await;
    }
    // The first reading after 26 hours lacks it, and so does the second.
    world.pass_hours(1);
    world.confirm().await;
    world.check(push.number, PushState::Dead, Class::Absent).await;
    assert_eq!(world.push().await, 0, "nobody sends it again unasked");
    let Ruling::Refused(why) = world.retry(push.number).await else { panic!("it was not read") };
    assert!(why.contains("not read twice"), "{why}");
    world.read_twice(push.number).await;
    assert!(matches!(world.retry(push.number).await, Ruling::Done(Some(_))));
    world.push().await;
    world.pass_hours(1);
    assert_eq!(world.confirm().await, 1);
    assert_eq!(world.stripe.total(&customer, HOUR), "5");
    let history = world.history(push.number).await;
    assert_eq!((history[0], history[1], history[2]), ("cut", "attempt", "accepted"));
    assert_eq!(history[history.len() - 2..], ["absent", "retried"]);
}

pub async fn one_of_three_that_was_dropped_is_told_from_the_others(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    let first = world.planned("5").await.number;
    world.push().await;
    let second = world.planned("2").await.number;
    world.stripe.fault(FaultKind::AsyncRejection, 1);
    world.push().await;
    let third = world.planned("4").await.number;
    world.push().await;
    world.pass_hours(26);
    world.confirm().await;
    world.check(first, PushState::Submitted, Class::Accepted).await;
    world.pass_hours(1);
    world.confirm().await;
    world.check(first, PushState::Confirmed, Class::Confirmed).await;
    world.check(second, PushState::Dead, Class::Absent).await;
    world.check(third, PushState::Confirmed, Class::Confirmed).await;
    world.read_twice(second).await;
    world.retry(second).await;
    world.push().await;
    assert_eq!(world.stripe.total(&customer, HOUR), "11");
}

pub async fn a_push_is_confirmed_only_when_the_summary_shows_it(ground: Ground) {
    let (world, _) = World::usual(ground).await;
    world.stripe.lock().set_summary_lag(3 * 3_600);
    let push = world.planned("5").await;
    world.push().await;
    assert_eq!(world.confirm().await, 0, "it is too early to look");
    for _ in 0..5 {
        world.pass_seconds(1_800);
        world.confirm().await;
        world.check(push.number, PushState::Submitted, Class::Accepted).await;
    }
    world.pass_seconds(7_200);
    world.confirm().await;
    world.check(push.number, PushState::Confirmed, Class::Confirmed).await;
    assert_eq!(world.posts(), 1, "lag makes nobody send anything again");
}

/// A total of the window that lags behind a confirmed revision says nothing against it.
pub async fn a_summary_that_falls_back_harms_nothing(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    let first = world.planned("5").await;
    world.push().await;
    world.pass_hours(1);
    world.confirm().await;
    let second = world.planned("2").await;
    world.push().await;
    world.pass_seconds(1_800);
    world.stripe.faults(vec![FaultRule::new(FaultKind::SummaryLag).on_path(SUMMARIES).times(2)]);
    world.confirm().await;
    world.check(first.number, PushState::Confirmed, Class::Confirmed).await;
    world.check(second.number, PushState::Submitted, Class::Accepted).await;
    world.pass_hours(10);
    world.confirm().await;
    world.confirm().await;
    world.check(second.number, PushState::Confirmed, Class::Confirmed).await;
    assert_eq!(world.stripe.total(&customer, HOUR), "7");
}

pub async fn a_summary_that_is_never_readable_ends_in_a_decision(ground: Ground) {
    let (world, customer, push) = forgotten(ground, FaultKind::LostBefore).await;
    world.stripe.faults(vec![FaultRule::new(FaultKind::Error503).on_path(SUMMARIES).times(10_000)]);
    world.pass_hours(26);
    world.push().await;
    let later = world.planned("2").await.number;
    for _ in 0..71 {
        world.push().await;
        world.check(push, PushState::Observed, Class::Unknown).await;
        world.check(later, PushState::Observed, Class::Cut).await;
        world.pass_hours(1);
    }
    world.pass_hours(1);
    world.push().await;
    let dead = world.check(push, PushState::Dead, Class::Unreadable).await;
    assert!(dead.detail.as_ref().unwrap().contains("could not be read since"), "{dead:?}");
    // Later revisions of the window are not held back any longer.
    world.push().await;
    world.check(later, PushState::Submitted, Class::Accepted).await;
    // A person has the summary asked again; only its answer sends anything.
    assert_eq!(world.retry(push).await, Ruling::Done(Some(push)));
    world.push().await;
    world.check(push, PushState::Observed, Class::Unknown).await;
    assert_eq!(world.stripe.total(&customer, HOUR), "2");
    world.stripe.faults(Vec::new());
    for _ in 0..2 {
        world.pass_hours(1);
        world.push().await;
    }
    world.check(push, PushState::Replaced, Class::Absent).await;
    world.push().await;
    assert_eq!(world.stripe.total(&customer, HOUR), "7");
}

/// A provider that lets another server send what is due just before it shows its totals.
struct Overtaking {
    stripe: Arc<dyn Provider>,
    other: PushJob,
}

#[async_trait::async_trait]
impl Provider for Overtaking {
    fn name(&self) -> &'static str {
        self.stripe.name()
    }

    fn limits(&self) -> Limits {
        self.stripe.limits()
    }

    fn encode(&self, facts: &PushFacts<'_>) -> Vec<u8> {
        self.stripe.encode(facts)
    }

    async fn send_push(&self, request: &Request) -> Answer {
        self.stripe.send_push(request).await
    }

    async fn read_totals(&self, query: &TotalsQuery<'_>) -> Result<Vec<Quantity>, Unreadable> {
        self.other.pass().await.unwrap();
        self.stripe.read_totals(query).await
    }
}

pub async fn confirmation_leaves_a_window_alone_that_changed_after_it_was_listed(ground: Ground) {
    let spec = CALLS.replace("\"sum\"", "\"sum\",\"signed\":true");
    let (world, customer) = World::metered(ground, &spec).await;
    let first = world.planned("5").await.number;
    world.push().await;
    world.pass_hours(27);
    let negative = world.planned("-5").await.number;
    let (stripe, other) = (Arc::clone(&world.provider), world.jobs.submitter.clone());
    let overtaking: Arc<dyn Provider> = Arc::new(Overtaking { stripe, other });
    let World { store, clock, config, recorders, .. } = &world;
    let jobs = Jobs::new(&overtaking, store, clock, config, recorders);
    jobs.confirmer.pass().await.unwrap();
    assert_eq!(world.stripe.total(&customer, HOUR), "0");
    // The total that was read lacks the first push only because of the second.
    world.check(first, PushState::Submitted, Class::Accepted).await;
    world.pass_hours(1);
    world.confirm().await;
    world.check(first, PushState::Confirmed, Class::Confirmed).await;
    world.check(negative, PushState::Confirmed, Class::Confirmed).await;
}
