//! `counterfoil stripe-sim`: the Stripe simulator of the crate `stripe-sim` on a port.
//!
//! Invariant: the ready line is printed when requests are answered, never before. Everything is in
//! memory: when the process ends, however it ends, nothing is left.

use super::serve::{Signals, bind, reachable};
use anyhow::{Context, bail};
use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use stripe_sim::{FaultPlan, Options, RateClock, RateLimit, Simulator, Timestamp};

/// Start a Stripe simulator that counts, forgets, delays and fails as Stripe does
#[derive(clap::Args)]
#[command(after_help = "Examples:
  counterfoil stripe-sim
      on http://127.0.0.1:12111; any key that begins with sk_test_ is taken
  counterfoil stripe-sim --seed 7 --faults lost_after=50,error_500_executed=20,rate_limited_429=30
      50 of 1,000 calls are executed and never answered, and so on; the same seed fails the same
  counterfoil stripe-sim --clock 2026-01-31T00:00:00Z
      a clock that is stopped until it is moved:
      curl -d '{\"advance_seconds\": 86400}' http://127.0.0.1:12111/_sim/clock
  curl http://127.0.0.1:12111/_sim/state
      the exact totals, and every fault that was injected

Everything is in memory and ends with the process.")]
pub struct StripeSimArguments {
    /// Address and port; port 0 picks a free one, and the ready line names it
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:12111")]
    listen: SocketAddr,
    /// Seed of the faults; the same seed gives the same faults
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Chance of each fault in thousandths, as fault=20,fault=5 or all=2; or a plan as JSON
    #[arg(long, value_name = "SPEC", value_parser = read_faults)]
    faults: Option<FaultPlan>,
    /// Freeze its clock at this time until it is moved; default: the machine's clock
    #[arg(long, value_name = "RFC3339", value_parser = read_clock)]
    clock: Option<Timestamp>,
    /// Calls per second; beyond it the answer is 429
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=1_000_000))]
    rate: Option<i64>,
    /// Seconds until a meter event is in summaries and on invoices; Stripe promises no figure
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    #[arg(value_parser = clap::value_parser!(i64).range(0..=604_800))]
    lag: i64,
}

fn read_faults(text: &str) -> Result<FaultPlan, String> {
    text.parse()
}

fn read_clock(text: &str) -> Result<Timestamp, String> {
    text.parse()
        .map_err(|_| "give a date-time with an offset, such as 2026-11-15T12:30:00Z".to_owned())
}

pub async fn run(arguments: StripeSimArguments) -> anyhow::Result<ExitCode> {
    let signals = Signals::listen()?;
    let rate = arguments
        .rate
        .map(|calls_per_second| RateLimit { calls_per_second, clock: RateClock::Machine });
    let summary_lag_seconds = arguments.lag;
    let options = Options { rate, summary_lag_seconds, ..Options::default() };
    let mut simulator = match arguments.clock {
        Some(now) => Simulator::new(now, options),
        None => Simulator::following(Timestamp::now, options),
    };
    let mut plan = arguments.faults.unwrap_or_default();
    if plan.seed == 0 {
        plan.seed = arguments.seed;
    } else if arguments.seed != 1 && arguments.seed != plan.seed {
        bail!("--seed and the plan of --faults name different seeds; leave one of them out");
    }
    simulator.set_faults(plan);
    let listener = bind(arguments.listen).await?;
    let listen = listener.local_addr().context("the port that was bound has no address")?;
    announce(listen)?;
    let simulator = Arc::new(Mutex::new(simulator));
    stripe_sim::serve(listener, simulator, signals.first()).await.context("cannot serve")?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the ready line. The port is bound, so a client that connects now is answered.
fn announce(listen: SocketAddr) -> anyhow::Result<()> {
    let url = format!("http://{}", reachable(listen));
    let mut output = std::io::stdout().lock();
    writeln!(output, "listening on {url} (a Stripe simulator, state at {url}/_sim/state)")
        .and_then(|()| output.flush())
        .context("cannot print the ready line")
}
