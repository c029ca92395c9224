//! A fixture whose meters are billed, with the means to use, cut, claim and settle.

use crate::fixture::{Fixture, event, tenant_id};
use counterfoil::rules::attribution::Outside;
use counterfoil::rules::billing::Mode;
use counterfoil::rules::push::CutState;
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::submission::{Class, Next, PushState};
use counterfoil::rules::timestamp::Timestamp;
use counterfoil::rules::window::Window;
use counterfoil::store::Query;
use counterfoil::store::push::{
    AttemptIntent, ClaimedPush, CutOrder, CutReport, CutTerms, Lease, Push, PushClaim, PushFilter,
    PushRelease, PushTrace, Right, Settlement,
};
use counterfoil::store::reconciliation::SummaryReading;

pub const HOUR_MICROS: i64 = 3_600_000_000;

/// Meters besides the fixture's own, and how they are billed.
const METERS: [(&str, &str); 7] = [
    ("tokens", r#"{"aggregation":"sum","billing":{}}"#),
    ("whole", r#"{"aggregation":"sum","billing":{"scale":0}}"#),
    ("signed", r#"{"aggregation":"sum","signed":true,"billing":{"scale":0}}"#),
    ("peak", r#"{"aggregation":"sum","billing":{"mode":"absolute","scale":1}}"#),
    ("daily", r#"{"aggregation":"sum","billing":{"granularity":"day"}}"#),
    ("single", r#"{"aggregation":"sum","billing":{"granularity":"event","scale":0}}"#),
    ("clicks", r#"{"aggregation":"count","billing":{"granularity":"event"}}"#),
];

pub struct Billed {
    pub f: Fixture,
    pub lease: Lease,
    pub terms: CutTerms,
}

impl Billed {
    pub async fn start(f: Fixture) -> Self {
        for (slug, spec) in METERS {
            f.declare(slug, spec).await;
        }
        let until = after(f.now, 60 * 24);
        let lease = f.store.claim_lease("cut", "test", f.now, until).await.unwrap().unwrap();
        let terms = CutTerms {
            at: f.now,
            shadow: false,
            digits_max: 15,
            events_max: 1_000,
            draw_order: Default::default(),
            outside: Outside::Push,
        };
        Self { f, lease, terms }
    }

    /// With the tenant acme and its customer.
    pub async fn with_acme(f: Fixture) -> Self {
        let billed = Self::start(f).await;
        billed.customer("acme", "cus_acme").await;
        billed
    }

    /// An event of tenant acme, in the middle of an hour.
    pub async fn used(&self, id: &str, meter: &str, quantity: &str, hour: i64) {
        self.used_by("acme", id, meter, quantity, hour).await;
    }

    pub async fn used_by(&self, tenant: &str, id: &str, meter: &str, quantity: &str, hour: i64) {
        let at = after(window(hour).start, 30).to_string();
        let quantity = format!("\"{quantity}\"");
        self.f.deliver_one(&event(tenant, id, meter, &quantity, &at, "{}")).await;
    }

    /// Uses and cuts one hour.
    pub async fn planned(&self, tenant: &str, id: &str, meter: &str, quantity: &str, hour: i64) {
        self.used_by(tenant, id, meter, quantity, hour).await;
        assert!(!self.cut_of(tenant, meter, &[hour]).await.lease_lost);
    }

    pub async fn orders(&self, tenant: &str, meter: &str, hours: &[i64]) -> Vec<CutOrder> {
        let number = self.f.meter_no(meter).await;
        let order = |hour: &i64| CutOrder {
            tenant: tenant_id(tenant),
            meter: number,
            window: window(*hour),
            recut: false,
        };
        hours.iter().map(order).collect()
    }

    pub async fn cut_of(&self, tenant: &str, meter: &str, hours: &[i64]) -> CutReport {
        let orders = self.orders(tenant, meter, hours).await;
        self.f.store.record_cuts(&self.lease, orders, self.terms).await.unwrap()
    }

    /// Cuts hours of tenant acme, and returns how many pushes that gave.
    pub async fn cut(&self, meter: &str, hours: &[i64]) -> u64 {
        self.cut_of("acme", meter, hours).await.pushes
    }

    /// Gives a tenant a customer, and releases what has waited for one.
    pub async fn customer(&self, tenant: &str, customer: &str) {
        self.f.customer(tenant, customer).await;
        let release = PushRelease { now: self.f.now, stamp_age_max: None, limit: 1_000 };
        while self.f.store.release_pushes(release).await.unwrap() > 0 {}
    }

    /// The provider's total of a push's window and customer is read at these minutes.
    pub async fn read(&self, push: &Push, value: Quantity, minutes: &[i64]) {
        let Some(customer) = push.customer.clone() else { return };
        let (tenant, meter, window) = (push.tenant.clone(), push.meter, push.window);
        let reading = SummaryReading { tenant, meter, customer, window, value };
        for minute in minutes {
            let at = after(self.f.now, *minute);
            self.f.store.record_summaries(vec![reading.clone()], at).await.unwrap();
        }
    }

    /// The same twice, long after everything that was sent so far.
    pub async fn read_twice(&self, push: &Push, value: Quantity) {
        let minute = 100_000 + 500 * i64::try_from(self.pushes().await.len()).unwrap();
        self.read(push, value, &[minute, minute + 100]).await;
    }

    /// Where an hour of tenant acme stands.
    pub async fn state(&self, meter: &str, hour: i64) -> Option<CutState> {
        let number = self.f.meter_no(meter).await;
        let range = window(hour);
        let cuts = self.f.store.read_cuts(&tenant_id("acme"), number, range).await.unwrap();
        assert!(cuts.len() <= 1 && cuts.iter().all(|(start, _)| *start == range.start));
        cuts.into_iter().next().map(|(_, state)| state)
    }

    pub async fn remainder(&self, tenant: &str, meter: &str, shadow: bool) -> Quantity {
        let number = self.f.meter_no(meter).await;
        self.f.remainder(&tenant_id(tenant), number, shadow).await
    }

    /// How many pushes of a tenant are observed.
    pub async fn observed(&self, tenant: &str) -> usize {
        let state = Some(PushState::Observed);
        let tenant = Some(tenant_id(tenant));
        let query = Query::first(PushFilter { tenant, state, ..PushFilter::default() }, 1_000);
        self.f.store.list_pushes(query).await.unwrap().len()
    }

    /// All pushes, oldest first.
    pub async fn pushes(&self) -> Vec<Push> {
        let query = Query::first(PushFilter::default(), 100_000);
        let mut pushes = self.f.store.list_pushes(query).await.unwrap();
        pushes.reverse();
        pushes
    }

    /// Revision, quantity and value of all pushes, oldest first.
    pub async fn told(&self) -> Vec<(u32, String, String)> {
        let told = |p: Push| (p.revision, p.quantity.to_string(), p.value.to_string());
        self.pushes().await.into_iter().map(told).collect()
    }

    pub async fn trace(&self, number: u64) -> PushTrace {
        self.f.store.trace_push(number).await.unwrap().unwrap()
    }

    pub async fn push(&self, number: u64) -> Push {
        self.trace(number).await.push
    }

    /// Claims what is due so many minutes after now, for ten minutes.
    pub async fn claim(&self, minute: i64) -> Vec<ClaimedPush> {
        let now = after(self.f.now, minute);
        let claim =
            PushClaim { now, lease_until: after(now, 10), limit: 100, shadow: self.terms.shadow };
        self.f.store.claim_pushes(claim).await.unwrap()
    }

    pub async fn claim_one(&self, minute: i64) -> ClaimedPush {
        let mut claimed = self.claim(minute).await;
        assert_eq!(claimed.len(), 1, "one push can be claimed");
        claimed.remove(0)
    }

    pub async fn begin(&self, claimed: &ClaimedPush, minute: i64) -> bool {
        let intent = AttemptIntent {
            push: claimed.push.number,
            fence: claimed.fence,
            customer: claimed.customer.clone(),
            request: format!("request at {minute}").into_bytes(),
        };
        let begun = self.f.store.begin_attempts(vec![intent], after(self.f.now, minute)).await;
        begun.unwrap() == [claimed.push.number]
    }

    pub async fn settle(&self, claimed: &ClaimedPush, end: (Class, Next), minute: i64) -> bool {
        self.settle_number(claimed.push.number, Some(claimed.fence), end, minute).await
    }

    /// Sends a claimed push, and settles it.
    pub async fn finish(&self, claimed: &ClaimedPush, end: (Class, Next), minute: i64) {
        assert!(self.begin(claimed, minute).await);
        assert!(self.settle(claimed, end, minute).await);
    }

    pub async fn settle_number(
        &self,
        push: u64,
        fence: Option<u64>,
        (class, next): (Class, Next),
        minute: i64,
    ) -> bool {
        let right = match fence {
            Some(fence) => Right::Lease(fence),
            None => Right::Reading { expected: self.expected(push).await },
        };
        let request_id = Some(format!("req_{minute}"));
        let detail = Some(format!("said at {minute}"));
        let settlement = Settlement { push, right, class, next, request_id, detail };
        let at = after(self.f.now, minute);
        self.f.store.settle_pushes(vec![settlement], at).await.unwrap() == 1
    }

    /// What the provider's total of a push's window shows when everything has arrived.
    async fn expected(&self, number: u64) -> Quantity {
        let mut pushes = self.pushes().await;
        let Some(push) = pushes.iter().find(|push| push.number == number).cloned() else {
            return Quantity::ZERO;
        };
        pushes.retain(|other| {
            (&other.tenant, other.meter, other.window) == (&push.tenant, push.meter, push.window)
                && other.customer == push.customer
                && other.state.settled()
        });
        pushes.sort_by_key(|push| push.revision);
        match push.mode {
            Mode::Delta => Quantity::from_units(pushes.iter().map(|p| p.quantity.units()).sum()),
            Mode::Absolute => pushes.last().map_or(Quantity::ZERO, |last| last.value),
        }
    }

    /// Claims the one push that is due, sends it, and settles it.
    pub async fn send(&self, end: (Class, Next), minute: i64) -> u64 {
        let claimed = self.claim_one(minute).await;
        self.finish(&claimed, end, minute).await;
        claimed.push.number
    }

    pub fn accepted(&self, minute: i64) -> (Class, Next) {
        (Class::Accepted, Next::Submitted { look_at: after(self.f.now, minute + 15) })
    }

    pub fn waiting(&self, minute: i64) -> (Class, Next) {
        let until = after(self.f.now, minute);
        (Class::Unknown, Next::Wait { until, fresh_request_key: false })
    }
}

pub fn after(at: Timestamp, minutes: i64) -> Timestamp {
    at.saturating_add_micros(minutes * 60_000_000)
}

/// An hour, counted from the start of 2026-11-12.
pub fn window(hour: i64) -> Window {
    let first = Timestamp::parse("2026-11-12T00:00:00Z").unwrap();
    let start = first.saturating_add_micros(hour * HOUR_MICROS);
    Window { start, end: start.saturating_add_micros(HOUR_MICROS) }
}

pub fn quantity(text: &str) -> Quantity {
    Quantity::parse_stored(text).unwrap()
}

pub fn told(rows: &[(u32, &str, &str)]) -> Vec<(u32, String, String)> {
    rows.iter().map(|(r, q, v)| (*r, (*q).to_owned(), (*v).to_owned())).collect()
}

/// States and classes of a push's history.
pub fn steps(trace: &PushTrace) -> Vec<(PushState, Class, u32)> {
    trace.transitions.iter().map(|row| (row.state, row.class, row.attempt)).collect()
}
