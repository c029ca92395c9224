//! Accidents of calls, by their number: a runner counts its calls to store and provider, and one of
//! them fails, is made twice, or is the last that its runner makes.
//!
//! Invariant: an accident befalls one call, the one with its number, whatever comes after.

use counterfoil::provider::{Called, Unreadable};
use counterfoil::store::faulty::{Fault, Faulty};
use counterfoil::store::{Error, Store};
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

/// Verbs of the store that change nothing when they are called again.
const REPEATABLE: [&str; 8] = [
    "put_tenant",
    "put_hold",
    "release_hold",
    "record_subscription",
    "charge_from",
    "set_access",
    "withdraw_subscription",
    "end_subscription",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accident {
    /// It fails and nothing happened.
    FailBefore,
    /// It happened, and the answer is lost.
    FailAfter,
    /// The runner ends before the call, or after it.
    KillBefore,
    KillAfter,
    /// The runner stands still before the call, or after it, until it is let go on.
    StallBefore,
    StallAfter,
    /// The call is made twice.
    Twice,
    /// The provider refuses it for good; reads and the store are unharmed.
    Refuse,
}

#[derive(Default)]
pub struct Script {
    state: Mutex<State>,
    /// The accident's call was reached by a runner that goes no further.
    pub reached: Notify,
    pub go_on: Notify,
}

#[derive(Default)]
struct State {
    calls: Vec<&'static str>,
    planned: Option<(usize, Accident)>,
    /// Every call of this name meets this accident.
    obstacle: Option<(&'static str, Accident)>,
    struck: bool,
}

/// What a call of the provider answers when it fails.
pub trait CanFail {
    fn failure() -> Self;
    /// None if it cannot be refused.
    fn refusal() -> Option<Self>
    where
        Self: Sized;
}

impl<T> CanFail for Result<T, Unreadable> {
    fn failure() -> Self {
        Err(Unreadable { message: "an accident of the test".into() })
    }
    fn refusal() -> Option<Self> {
        None
    }
}

impl<T> CanFail for Called<T> {
    fn failure() -> Self {
        Self::Retry("an accident of the test".into())
    }
    fn refusal() -> Option<Self> {
        Some(Self::Refused("refused by the test".into()))
    }
}

impl Script {
    pub fn new(number: usize, accident: Accident) -> Self {
        let planned = Some((number, accident));
        Self { state: Mutex::new(State { planned, ..State::default() }), ..Self::default() }
    }

    /// All calls of this name meet this accident, until it is told otherwise.
    pub fn obstruct(&self, obstacle: Option<(&'static str, Accident)>) {
        self.state.lock().unwrap().obstacle = obstacle;
    }

    /// Whether a runner that was reached is to go on later.
    pub fn stalls(&self) -> bool {
        let planned = self.planned();
        matches!(planned, Some((_, Accident::StallBefore | Accident::StallAfter)))
    }

    /// Whether the accident's call was reached.
    pub fn struck(&self) -> bool {
        self.state.lock().unwrap().struck
    }

    pub fn planned(&self) -> Option<(usize, Accident)> {
        self.state.lock().unwrap().planned
    }

    pub fn calls(&self) -> Vec<&'static str> {
        self.state.lock().unwrap().calls.clone()
    }

    /// The store, with the accidents of this script.
    pub fn around(self: &Arc<Self>, store: Arc<dyn Store>) -> Arc<dyn Store> {
        let script = Arc::clone(self);
        Faulty::new(store, move |verb| script.fault(verb))
    }

    fn fault(self: &Arc<Self>, verb: &'static str) -> Fault {
        let script = Arc::clone(self);
        let failure = || Error::Unavailable { what: "an accident of the test".into() };
        match self.count(verb) {
            Some(Accident::FailBefore) => Fault::FailBefore(failure()),
            Some(Accident::FailAfter) => Fault::FailAfter(failure()),
            Some(Accident::KillBefore) => {
                Fault::StallBefore(Box::pin(async move { script.stand_still().await }))
            }
            Some(Accident::KillAfter) => {
                Fault::StallAfter(Box::pin(async move { script.stand_still().await }))
            }
            Some(Accident::StallBefore) => {
                Fault::StallBefore(Box::pin(async move { script.stall().await }))
            }
            Some(Accident::StallAfter) => {
                Fault::StallAfter(Box::pin(async move { script.stall().await }))
            }
            Some(Accident::Twice) if REPEATABLE.contains(&verb) => Fault::Twice,
            Some(Accident::Twice | Accident::Refuse) | None => Fault::None,
        }
    }

    /// A call of the provider.
    pub async fn through<T: CanFail>(
        &self,
        name: &'static str,
        call: impl Future<Output = T> + Send,
    ) -> T {
        let Some(accident) = self.count(name) else { return call.await };
        if let Some(failed) = self.before::<T>(accident).await {
            return failed;
        }
        let answer = call.await;
        self.after(accident, answer).await
    }

    /// A call of the provider that changes nothing when it is made again.
    pub async fn repeatable<T: CanFail, F: Future<Output = T> + Send>(
        &self,
        name: &'static str,
        call: impl Fn() -> F + Send + Sync,
    ) -> T {
        let Some(accident) = self.count(name) else { return call().await };
        if let Some(failed) = self.before::<T>(accident).await {
            return failed;
        }
        if accident == Accident::Twice {
            call().await;
        }
        let answer = call().await;
        self.after(accident, answer).await
    }

    fn count(&self, name: &'static str) -> Option<Accident> {
        let mut state = self.state.lock().unwrap();
        state.calls.push(name);
        let number = state.calls.len();
        let planned = state.planned.filter(|(at, _)| *at == number).map(|(_, what)| what);
        state.struck |= planned.is_some();
        let obstacle = state.obstacle.filter(|(obstructed, _)| *obstructed == name);
        obstacle.map(|(_, accident)| accident).or(planned)
    }

    async fn before<T: CanFail>(&self, accident: Accident) -> Option<T> {
        match accident {
            Accident::FailBefore => Some(T::failure()),
            Accident::Refuse => T::refusal(),
            Accident::KillBefore => self.stand_still().await,
            Accident::StallBefore => {
                self.stall().await;
                None
            }
            Accident::FailAfter | Accident::KillAfter | Accident::StallAfter | Accident::Twice => {
                None
            }
        }
    }

    async fn after<T: CanFail>(&self, accident: Accident, answer: T) -> T {
        match accident {
            Accident::FailAfter => T::failure(),
            Accident::KillAfter => self.stand_still().await,
            Accident::StallAfter => {
                self.stall().await;
                answer
            }
            Accident::FailBefore
            | Accident::KillBefore
            | Accident::StallBefore
            | Accident::Twice
            | Accident::Refuse => answer,
        }
    }

    /// Until the runner is dropped.
    async fn stand_still<T>(&self) -> T {
        self.reached.notify_one();
        std::future::pending().await
    }

    async fn stall(&self) {
        self.reached.notify_one();
        self.go_on.notified().await;
    }
}
