//! `stripe-sim [ADDR:PORT]`: a simulator on a port, with the machine's clock.
//!
//! Everything else is set over HTTP under `/_sim/`, so there are no options. Everything is in
//! memory: when the process ends, however it ends, nothing is left.

use std::io;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use stripe_sim::{Options, Simulator, Timestamp};
use tokio::net::TcpListener;

const USAGE: &str = "A Stripe simulator.

Usage: stripe-sim [ADDR:PORT]

Serves on ADDR:PORT, 127.0.0.1:12111 by default; port 0 picks a free port. Any API key that begins
with sk_test_ is accepted.

  curl http://127.0.0.1:12111/_sim/state
  curl -d '{\"advance_seconds\": 86400}' http://127.0.0.1:12111/_sim/clock
  curl -d '{\"seed\": 7, \"per_mille\": {\"lost_after\": 50}}' http://127.0.0.1:12111/_sim/faults
";

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:12111".to_owned());
    if arguments.next().is_some() || address.starts_with('-') {
        let asked = ["-h", "--help"].contains(&address.as_str());
        print!("{USAGE}");
        return if asked { ExitCode::SUCCESS } else { ExitCode::from(2) };
    }
    match run(&address).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot serve on {address}: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(address: &str) -> io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    let url = format!("http://{}", listener.local_addr()?);
    println!("listening on {url} (a Stripe simulator, state at {url}/_sim/state)");
    let simulator = Simulator::following(Timestamp::now, Options::default());
    stripe_sim::serve(listener, Arc::new(Mutex::new(simulator)), std::future::pending()).await
}
