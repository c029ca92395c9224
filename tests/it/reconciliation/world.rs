//! The world of reconciliation: webhooks arrive from the simulator's own lists, and everything that
//! a server does is done hour by hour.
//!
//! Webhooks are signed, verified, parsed and recorded as the HTTP edge does; a test may lose them
//! or deliver them twice.

pub use crate::world::{ABSOLUTE, CALLS, EVENTS, Ground, Heard, SUMMARIES, at, tenant_id};

use crate::world::{self, event_text};
use counterfoil::config::{Config, Secret};
use counterfoil::jobs::Job;
use counterfoil::provider::stripe::signature::verify;
use counterfoil::provider::stripe::webhook::parse_webhook;
use counterfoil::rules::alert::{Alert, AlertKind, NoticeEvent, Severity};
use counterfoil::rules::drift::{Reason, Verdict};
use counterfoil::rules::event::Event;
use counterfoil::rules::finding::{Finding, FindingKind};
use counterfoil::rules::pass::{Pass, PassKind, PassOrder, PassRow, PassState};
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::submission::{Class, PushState};
use counterfoil::rules::timestamp::{MICROS_PER_HOUR, MICROS_PER_SECOND};
use counterfoil::rules::webhook::WebhookSource;
use counterfoil::rules::window::Window;
use counterfoil::store::Query;
use counterfoil::store::alert::AlertFilter;
use counterfoil::store::reconciliation::{FindingFilter, PassFilter};
use counterfoil::store::webhook::WebhookReceipt;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use stripe_sim::{FaultKind, FaultRule, sign};

/// How far a world goes at a time in which little happens.
const STRIDE_HOURS: i64 = 6;
const WEBHOOK_SECRET: &str = "whsec_reconciliation";
const REPORTS: &str = "/v2/core/events?limit=100\
    &types[0]=v1.billing.meter.error_report_triggered&types[1]=v1.billing.meter.no_meter_found";

/// What is known of the webhooks that were made.
#[derive(Default)]
struct Post {
    seen: BTreeSet<String>,
    lost: bool,
    /// How often each is delivered.
    copies: usize,
}

pub struct World {
    base: world::World,
    post: Mutex<Post>,
    backfills: AtomicBool,
}

extend_world!(World);

pub fn quantity(text: &str) -> Quantity {
    Quantity::parse_stored(text).unwrap()
}

pub fn window(start: &str, end: &str) -> Window {
    Window { start: at(start), end: at(end) }
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

impl World {
    pub async fn on(ground: Ground) -> Self {
        Self::with(ground, |_| {}).await
    }

    pub async fn with(ground: Ground, change: impl FnOnce(&mut Config)) -> Self {
        let base = world::World::with(ground, |config| {
            config.stripe.webhook_secrets = Secret::new(WEBHOOK_SECRET);
            change(config);
        });
        let post = Mutex::new(Post { copies: 1, ..Post::default() });
        Self { base: base.await, post, backfills: AtomicBool::new(true) }
    }

    /// With a tenant `acme` that is a customer, and the meter `calls`; returns the customer.
    pub async fn usual(ground: Ground) -> (Self, String) {
        Self::usual_with(ground, |_| {}).await
    }

    pub async fn usual_with(ground: Ground, change: impl FnOnce(&mut Config)) -> (Self, String) {
        let world = Self::with(ground, change).await;
        let customer = world.set_up().await;
        (world, customer)
    }

    /// The provider answers every call for totals, or for anything, with an error.
    pub fn out_of_reach(&self, part: &str) {
        let rule = FaultRule::new(FaultKind::Error503).on_path(part).times(u64::MAX / 2);
        self.stripe.faults(vec![rule]);
    }

    /// An event of the meter `calls` with an id of the test's.
    pub async fn event(&self, tenant: &str, id: &str, quantity: &str, occurred_at: &str) -> Event {
        let fields = format!(r#""quantity":"{quantity}""#);
        let text = event_text("calls", tenant, id, &fields, occurred_at);
        self.parse(&[text]).await.remove(0)
    }

    /// Hour by hour, everything that a server does.
    pub async fn hours(&self, hours: u32) {
        for _ in 0..hours {
            self.clock.advance(MICROS_PER_HOUR);
            self.work().await;
        }
    }

    /// The same for a longer time in which little happens, and the last hours one by one.
    pub async fn rest(&self, hours: i64) {
        let until = self.clock.now().saturating_add_micros(hours * MICROS_PER_HOUR);
        while self.clock.now() < until {
            let left = (until.micros() - self.clock.now().micros()) / MICROS_PER_HOUR;
            let step = if left > STRIDE_HOURS { STRIDE_HOURS } else { 1 };
            self.clock.advance(step * MICROS_PER_HOUR);
            self.work().await;
        }
    }

    /// The same until this moment, which is a whole number of hours away.
    pub async fn until(&self, text: &str) {
        self.rest((at(text).micros() - self.clock.now().micros()) / MICROS_PER_HOUR).await;
        assert_eq!(self.clock.now(), at(text), "a whole number of hours");
    }

    /// Goes to a moment with no work in between, and then does everything.
    pub async fn leap(&self, text: &str) {
        self.go_to(text);
        self.work().await;
    }

    /// Everything that a server does at this moment. Alerts are looked at in between too, where
    /// something has changed: what heals itself must not call anybody at any time.
    pub async fn work(&self) {
        self.deliver_webhooks().await;
        self.read_objects().await;
        if self.backfills.load(Ordering::SeqCst) {
            self.jobs.backfill.pass().await.unwrap();
        }
        self.read_objects().await;
        self.send().await;
        if self.jobs.confirmer.pass().await.unwrap() > 0 {
            self.look().await;
        }
        self.reconcile().await;
        self.read_objects().await;
        self.jobs.submitter.pass().await.unwrap();
        self.look().await;
    }

    /// Cuts and pushes, and takes what is told of the pushes.
    pub async fn send(&self) {
        self.jobs.cutter.flush().await.unwrap();
        self.jobs.cutter.pass().await.unwrap();
        self.jobs.submitter.pass().await.unwrap();
        self.deliver_webhooks().await;
        self.read_objects().await;
    }

    pub async fn read_objects(&self) {
        while self.jobs.mirror.pass().await.unwrap() > 0 {}
    }

    /// Runs all passes that are due; returns their numbers.
    pub async fn reconcile(&self) -> Vec<u64> {
        let mut numbers = Vec::new();
        while let Some(number) = self.jobs.reconciler.pass().await.unwrap() {
            numbers.push(number);
        }
        numbers
    }

    pub async fn look(&self) {
        self.jobs.alerter.pass().await.unwrap();
        while self.jobs.messenger.pass().await.unwrap() > 0 {}
    }

    /// From now on webhooks are lost, or arrive again.
    pub fn lose_webhooks(&self, lost: bool) {
        lock(&self.post).lost = lost;
    }

    /// Whether the provider's list of events is read.
    pub fn keep_backfill(&self, kept: bool) {
        self.backfills.store(kept, Ordering::SeqCst);
    }

    pub fn copy_webhooks(&self, copies: usize) {
        lock(&self.post).copies = copies;
    }

    /// Delivers the webhooks that were made since the last time, oldest first.
    pub async fn deliver_webhooks(&self) {
        self.stripe.lock().tick();
        let mut bodies = self.fresh_events("/v1/events?limit=100");
        for mut report in self.fresh_events(REPORTS) {
            // A thin event is posted without its data.
            report.as_object_mut().unwrap().remove("data");
            bodies.push(report);
        }
        let (lost, copies) = {
            let post = lock(&self.post);
            (post.lost, post.copies)
        };
        for body in bodies.into_iter().filter(|_| !lost) {
            for _ in 0..copies {
                self.receive(&body.to_string()).await;
            }
        }
    }

    /// A webhook comes in; returns whether it was not known.
    pub async fn receive(&self, body: &str) -> bool {
        let now = self.clock.now();
        let seconds = now.micros().div_euclid(MICROS_PER_SECOND);
        let header = sign(WEBHOOK_SECRET, seconds, body);
        let secrets = [Secret::new("whsec_old"), Secret::new(WEBHOOK_SECRET)];
        verify(&secrets, &header, body.as_bytes(), now).unwrap();
        let facts = parse_webhook(body.as_bytes()).unwrap();
        let (payload, source) = (body.as_bytes().to_vec(), WebhookSource::Delivered);
        let receipt = WebhookReceipt { facts, payload, source, received_at: now };
        self.store.record_webhooks(vec![receipt]).await.unwrap()[0].fresh
    }

    fn fresh_events(&self, target: &str) -> Vec<Value> {
        let mut fresh: Vec<Value> = Vec::new();
        let mut asked = target.to_owned();
        loop {
            let page = self.stripe.get(&asked);
            let events = page["data"].as_array().unwrap().clone();
            let id = |event: &Value| event["id"].as_str().unwrap().to_owned();
            let last = events.last().map(id);
            let mut post = lock(&self.post);
            let known = events.iter().any(|event| post.seen.contains(&id(event)));
            fresh.extend(events.into_iter().filter(|event| post.seen.insert(id(event))));
            match last {
                Some(last) if !known && page["has_more"] == true => {
                    asked = format!("{target}&starting_after={last}");
                }
                _ => break,
            }
        }
        fresh.reverse();
        fresh
    }

    /// Checks quantity, state and reason of every push, oldest first.
    pub async fn check_pushes(&self, expected: &[(&str, PushState, Class)]) {
        let pushes = self.pushes().await;
        let found: Vec<(String, PushState, Class)> =
            pushes.iter().map(|push| (push.quantity.to_string(), push.state, push.class)).collect();
        let wanted: Vec<(String, PushState, Class)> =
            expected.iter().map(|(text, state, class)| ((*text).into(), *state, *class)).collect();
        assert_eq!(found, wanted);
    }

    /// The sum of all pushes that count, which is what was handed to billing.
    pub async fn planned_sum(&self) -> String {
        let pushes = self.pushes().await;
        let live = pushes.iter().filter(|push| push.state != PushState::Replaced);
        let sum = live.map(|push| push.quantity).reduce(|a, b| a.checked_add(b).unwrap());
        sum.unwrap_or_default().to_string()
    }

    /// Every finding, oldest first.
    pub async fn findings(&self) -> Vec<Finding> {
        let query = Query::first(FindingFilter::default(), 10_000);
        let mut findings = self.store.list_findings(query).await.unwrap();
        findings.reverse();
        findings
    }

    pub async fn open_findings(&self, kind: FindingKind) -> Vec<Finding> {
        let findings = self.findings().await.into_iter();
        findings.filter(|one| one.cleared_at.is_none() && one.seen.kind == kind).collect()
    }

    /// The only open finding of a kind.
    pub async fn only_finding(&self, kind: FindingKind) -> Finding {
        let mut open = self.open_findings(kind).await;
        assert_eq!(open.len(), 1, "{open:#?}");
        open.remove(0)
    }

    /// Checks the only open finding of usage, and whether it has paged.
    pub async fn check_finding(&self, verdict: Verdict, reason: Reason, paged: bool) -> Finding {
        let finding = self.only_finding(FindingKind::Usage).await;
        let seen = &finding.seen;
        assert_eq!((seen.verdict, seen.reason), (verdict, reason), "{finding:#?}");
        assert_eq!(finding.paged_at.is_some(), paged, "{finding:#?}");
        finding
    }

    /// Passes of a kind, oldest first.
    pub async fn passes(&self, kind: PassKind) -> Vec<Pass> {
        let query = Query::first(PassFilter { kind: Some(kind), ..PassFilter::default() }, 10_000);
        let mut passes = self.store.list_passes(query).await.unwrap();
        passes.reverse();
        passes
    }

    pub async fn rows(&self, pass: u64) -> Vec<PassRow> {
        let query = Query::first(pass, 10_000);
        self.store.list_pass_rows(query).await.unwrap()
    }

    /// A pass that a person orders; returns it when it is closed.
    pub async fn one_shot(&self, from: &str, to: &str, apply: bool) -> Pass {
        let pass = self.ordered(from, to, apply).await;
        assert_eq!(pass.state, PassState::Closed);
        pass
    }

    /// A pass that a person orders, when it has ended.
    pub async fn ordered(&self, from: &str, to: &str, apply: bool) -> Pass {
        let (kind, range) = (PassKind::OneShot, window(from, to));
        let order = PassOrder { kind, range, tenant: None, apply };
        let number = self.store.create_pass(order, self.clock.now()).await.unwrap();
        self.reconcile().await;
        self.store.find_pass(number).await.unwrap().unwrap()
    }

    /// Every alert, oldest first.
    pub async fn alerts(&self) -> Vec<Alert> {
        let query = Query::first(AlertFilter::default(), 10_000);
        let mut alerts = self.store.list_alerts(query).await.unwrap();
        alerts.reverse();
        alerts
    }

    /// Alerts of a kind: how many were ever opened, and how many are open.
    pub async fn alerted(&self, kind: AlertKind) -> (usize, usize) {
        let alerts = self.alerts().await;
        let own = || alerts.iter().filter(|alert| alert.kind == kind);
        (own().count(), own().filter(|alert| alert.resolved_at.is_none()).count())
    }

    /// Kinds that somebody was called for, in the order of the calls.
    pub fn pages(&self) -> Vec<AlertKind> {
        let heard = lock(&self.recorders.pager.heard);
        let page = |one: &&Heard| {
            one.event == NoticeEvent::Opened && one.kind.severity() == Severity::Page && one.taken
        };
        heard.iter().filter(page).map(|one| one.kind).collect()
    }

    /// Checks that the pager took one opening of a kind, and its end.
    pub fn check_opened_and_resolved(&self, kind: AlertKind) {
        assert_eq!(self.notices(kind), [NoticeEvent::Opened, NoticeEvent::Resolved]);
    }

    /// What the pager took of a kind.
    pub fn notices(&self, kind: AlertKind) -> Vec<NoticeEvent> {
        let heard = lock(&self.recorders.pager.heard);
        heard.iter().filter(|one| one.kind == kind && one.taken).map(|one| one.event).collect()
    }
}
