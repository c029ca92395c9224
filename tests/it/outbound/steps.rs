//! The steps of outbound tests: cut, push and confirm, and the state of pushes.

use crate::world::{World, at};
use counterfoil::jobs::Job;
use counterfoil::jobs::cut::Pass;
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::submission::{Class, PushState};
use counterfoil::store::push::{Push, PushTrace, Ruling};
use counterfoil::store::reconciliation::SummaryReading;

impl World {
    pub async fn cut(&self) -> Pass {
        self.jobs.cutter.pass().await.unwrap()
    }

    pub async fn push(&self) -> usize {
        self.jobs.submitter.pass().await.unwrap()
    }

    pub async fn confirm(&self) -> usize {
        self.jobs.confirmer.pass().await.unwrap()
    }

    /// Usage of this hour, from its first event to a push that waits.
    pub async fn planned(&self, quantity: &str) -> Push {
        if self.clock.now() < at("2026-11-15T12:30:00Z") {
            self.go_to("2026-11-15T12:30:00Z");
        }
        self.used("acme", quantity, "2026-11-15T12:30:00Z").await;
        if self.clock.now() < at("2026-11-15T14:00:00Z") {
            self.go_to("2026-11-15T14:00:00Z");
        } else {
            self.pass_hours(1);
        }
        assert_eq!(self.cut().await.pushes, 1);
        self.pushes().await.pop().unwrap()
    }

    pub async fn trace(&self, number: u64) -> PushTrace {
        self.store.trace_push(number).await.unwrap().unwrap()
    }

    /// The words of a push's history.
    pub async fn history(&self, number: u64) -> Vec<&'static str> {
        let trace = self.trace(number).await;
        trace.transitions.iter().map(|transition| transition.class.name()).collect()
    }

    /// Checks the state and the reason of a push.
    pub async fn check(&self, number: u64, state: PushState, class: Class) -> Push {
        let push = self.trace(number).await.push;
        assert_eq!((push.state, push.class), (state, class), "{push:?}");
        push
    }

    /// The total of a push's window is read twice, an hour apart, as hourly passes do.
    pub async fn read_twice(&self, number: u64) {
        let push = self.trace(number).await.push;
        let customer = push.customer.unwrap();
        for _ in 0..2 {
            self.pass_hours(1);
            let value = self.stripe.total(customer.as_str(), &push.window.start.to_string());
            let value = Quantity::parse_stored(&value).unwrap();
            let (tenant, customer) = (push.tenant.clone(), customer.clone());
            let (meter, window) = (push.meter, push.window);
            let reading = SummaryReading { tenant, meter, customer, window, value };
            self.store.record_summaries(vec![reading], self.clock.now()).await.unwrap();
        }
    }

    pub async fn retry(&self, number: u64) -> Ruling {
        self.store.retry_push(number, self.clock.now()).await.unwrap()
    }

    /// How often meter events were posted.
    pub fn posts(&self) -> u64 {
        self.stripe.calls("POST /v1/billing/meter_events")
    }
}
