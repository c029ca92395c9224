//! `counterfoil pushes`: what the billing provider was told, what became of it, and what to do
//! about what did not work.
//!
//! Invariant: numbers are shown as the server wrote them; none passes through a float.

use super::client::{Client, Request, ServerArguments};
use super::table::{cell, counted, grouped, moment, new_table, plain, plain_json};
use anyhow::Context;
use reqwest::Method;
use serde::Deserialize;
use std::process::ExitCode;

/// List pushes to the billing provider, look at one, retry or discard dead ones
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  counterfoil pushes
  counterfoil pushes --state dead
  counterfoil pushes --tenant acme --meter api_calls --limit 20
  counterfoil pushes show 42
      every attempt, with its time, class and request id
  counterfoil pushes retry 42
      only if it surely was not counted; otherwise it says why not
  counterfoil pushes discard 42 --reason 'credited by hand'"
)]
pub struct PushesArguments {
    #[command(subcommand)]
    command: Option<PushesCommand>,
    #[command(flatten)]
    list: ListArguments,
}

#[derive(clap::Args)]
struct ListArguments {
    #[command(flatten)]
    server: ServerArguments,
    /// Only of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Only of this meter
    #[arg(long)]
    meter: Option<String>,
    /// Only in this state: waiting, observed, submitted, confirmed, reconciled, dead, discarded or
    /// replaced
    #[arg(long)]
    state: Option<String>,
    /// Only with this reason for its state, such as refused or undecidable
    #[arg(long)]
    class: Option<String>,
    /// Most pushes to show, newest first
    #[arg(long, default_value_t = 50)]
    limit: u16,
    /// Print the server's answer as it is
    #[arg(long)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum PushesCommand {
    /// List pushes, newest first; the same as no subcommand
    #[command(after_help = "Example:
  counterfoil pushes list --state dead")]
    List(ListArguments),
    /// Show one push and its whole history
    #[command(after_help = "Example:
  counterfoil pushes show 42")]
    Show {
        #[command(flatten)]
        server: ServerArguments,
        /// The push's id
        id: u64,
        /// Print the server's answer as it is
        #[arg(long)]
        json: bool,
    },
    /// Send a dead push again as a new revision, if that cannot bill twice
    #[command(after_help = "Examples:
  counterfoil pushes retry 42
  counterfoil pushes retry --all
      every dead push that the provider refused, once the cause is mended")]
    #[command(group(clap::ArgGroup::new("which").required(true).args(["id", "all"])))]
    Retry {
        #[command(flatten)]
        server: ServerArguments,
        /// The push's id
        id: Option<u64>,
        /// All dead pushes that were refused
        #[arg(long)]
        all: bool,
    },
    /// Write a dead push off, with a reason
    #[command(after_help = "Example:
  counterfoil pushes discard 42 --reason 'credited by hand'")]
    Discard {
        #[command(flatten)]
        server: ServerArguments,
        /// The push's id
        id: u64,
        /// Why it will never be billed; kept in its history
        #[arg(long)]
        reason: String,
    },
}

#[derive(Deserialize)]
struct PushList {
    pushes: Vec<Push>,
    next_before: Option<u64>,
}

#[derive(Deserialize)]
struct Push {
    id: u64,
    tenant: String,
    customer: Option<String>,
    meter: String,
    window_start: String,
    revision: u32,
    mode: String,
    quantity: String,
    value: String,
    key: String,
    shadow: bool,
    state: String,
    class: String,
    detail: Option<String>,
    unbilled: Option<String>,
    attempts: u32,
    due_at: String,
}

#[derive(Deserialize)]
struct PushTrace {
    #[serde(flatten)]
    push: Push,
    transitions: Vec<Transition>,
}

#[derive(Deserialize)]
struct Transition {
    at: String,
    state: String,
    class: String,
    attempt: u32,
    request_id: Option<String>,
    detail: Option<String>,
}

#[derive(Deserialize)]
struct Ruling {
    replacement: Option<u64>,
}

const UNREADABLE: &str = "the server's answer cannot be read";

pub async fn run(arguments: PushesArguments) -> anyhow::Result<ExitCode> {
    match arguments.command {
        None => list(&arguments.list).await?,
        Some(PushesCommand::List(arguments)) => list(&arguments).await?,
        Some(PushesCommand::Show { server, id, json }) => {
            let request = Request::new(Method::GET, &["v1", "pushes", &id.to_string()]);
            let body = Client::new(&server)?.call(&request).await?;
            if json {
                println!("{}", plain_json(&body));
            } else {
                print_trace(&serde_json::from_slice(&body).context(UNREADABLE)?);
            }
        }
        Some(PushesCommand::Retry { server, id: Some(id), .. }) => {
            retry(&Client::new(&server)?, id).await?;
        }
        Some(PushesCommand::Retry { server, id: None, .. }) => retry_all(&server).await?,
        Some(PushesCommand::Discard { server, id, reason }) => {
            let path = ["v1", "pushes", &id.to_string(), "discard"];
            let spec = serde_json::json!({"reason": reason});
            let request = Request::new(Method::POST, &path).with_json(&spec);
            Client::new(&server)?.call(&request).await?;
            println!("{id} is written off");
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn retry(client: &Client, id: u64) -> anyhow::Result<()> {
    let path = ["v1", "pushes", &id.to_string(), "retry"];
    let body = client.call(&Request::new(Method::POST, &path)).await?;
    let ruling: Ruling = serde_json::from_slice(&body).context(UNREADABLE)?;
    match ruling.replacement {
        Some(replacement) => println!("push {replacement} takes the place of {id}"),
        None => println!("{id} will be tried again"),
    }
    Ok(())
}

/// Retries page after page, from the newest to the oldest.
async fn retry_all(server: &ServerArguments) -> anyhow::Result<()> {
    let client = Client::new(server)?;
    let mut before: Option<u64> = None;
    let mut retried = 0;
    loop {
        let mut request = Request::new(Method::GET, &["v1", "pushes"]);
        request.query.extend([("state", "dead".into()), ("class", "refused".into())]);
        request.query.extend(before.map(|before| ("before", before.to_string())));
        let body = client.call(&request).await?;
        let page: PushList = serde_json::from_slice(&body).context(UNREADABLE)?;
        for push in &page.pushes {
            retry(&client, push.id).await?;
            retried += 1;
        }
        before = page.next_before;
        if before.is_none() {
            println!("{} will be sent again", counted(retried, "push", "pushes"));
            return Ok(());
        }
    }
}

async fn list(arguments: &ListArguments) -> anyhow::Result<()> {
    let mut request = Request::new(Method::GET, &["v1", "pushes"]);
    let limit = arguments.limit.to_string();
    let wanted = [
        ("tenant", arguments.tenant.as_ref()),
        ("meter", arguments.meter.as_ref()),
        ("state", arguments.state.as_ref()),
        ("class", arguments.class.as_ref()),
        ("limit", Some(&limit)),
    ];
    let given = wanted.into_iter().filter_map(|(name, value)| Some((name, value?.clone())));
    request.query.extend(given);
    let body = Client::new(&arguments.server)?.call(&request).await?;
    if arguments.json {
        println!("{}", plain_json(&body));
        return Ok(());
    }
    let list: PushList = serde_json::from_slice(&body).context(UNREADABLE)?;
    if list.pushes.is_empty() {
        println!("no pushes");
        return Ok(());
    }
    let header = ["id", "tenant", "meter", "window", "state", "class", "rev", "tries", "quantity"];
    let mut table = new_table(&header, 6);
    for push in &list.pushes {
        let state =
            if push.shadow { format!("{} (shadow)", push.state) } else { push.state.clone() };
        table.add_row([
            cell(push.id),
            cell(&push.tenant),
            cell(&push.meter),
            moment(&push.window_start),
            cell(state),
            cell(&push.class),
            cell(push.revision),
            cell(push.attempts),
            cell(grouped(&push.quantity)),
        ]);
    }
    println!("{table}");
    if list.next_before.is_some() {
        println!("there are more; --limit shows up to 1000");
    }
    Ok(())
}

fn print_trace(trace: &PushTrace) {
    let push = &trace.push;
    let customer = push.customer.as_deref().unwrap_or("no customer yet");
    let of = plain(&format!("{} ({customer})", push.tenant));
    println!(
        "push {} of {of}: {} of {}, window {}, revision {}",
        push.id,
        grouped(&push.quantity),
        push.meter,
        push.window_start,
        push.revision
    );
    println!("{} {} as {}", push.mode, grouped(&push.value), push.key);
    match (&push.unbilled, push.state.as_str()) {
        (Some(unbilled), _) => println!("{}, {} unbilled", push.state, grouped(unbilled)),
        (None, "observed") => println!("observed; due at {}", push.due_at),
        (None, state) => println!("{state}"),
    }
    if let Some(detail) = &push.detail {
        println!("{}", plain(detail));
    }
    let header = ["at", "class", "state", "request", "detail", "try"];
    let mut table = new_table(&header, 5);
    for transition in &trace.transitions {
        table.add_row([
            moment(&transition.at),
            cell(&transition.class),
            cell(&transition.state),
            cell(transition.request_id.as_deref().unwrap_or("-")),
            cell(transition.detail.as_deref().unwrap_or("-")),
            cell(transition.attempt),
        ]);
    }
    println!("\n{table}");
}
