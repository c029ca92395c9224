//! A Stripe simulator behind a port, on the clock of a test.

use counterfoil::clock::Clock;
use counterfoil::rules::timestamp::Timestamp;
use std::sync::{Arc, Mutex};
use stripe_sim::{Handle, Options, Simulator};

/// Starts a simulator that has the time of the server under test.
pub async fn start_stripe(clock: &Clock, options: Options) -> Handle {
    let clock = clock.clone();
    let simulator = Simulator::following(move || stripe_time(clock.now()), options);
    let listen = "127.0.0.1:0".parse().unwrap();
    Handle::start(listen, Arc::new(Mutex::new(simulator))).await.unwrap()
}

/// An instant in the simulator's type.
pub fn stripe_time(time: Timestamp) -> stripe_sim::Timestamp {
    stripe_sim::Timestamp::from_micros(time.micros())
}
