//! `counterfoil pushes`: submissions to the billing provider, their states, and what to do
//! about what did not work.
//!
//! Invariant: numbers are shown as the server wrote them; none passes through a float.

use super::answer::{JsonArguments, ListOr, Pages, ask, ask_list, print_more, read};
use super::client::{Client, Request, ServerArguments};
use super::table::{cell, counted, grouped, moment, optional, plain, print_table};
use crate::api::pushes::{DiscardSpec, PushList, PushTraceAnswer, RulingAnswer};
use crate::rules::submission::PushState;
use std::process::ExitCode;

pub type PushesArguments = ListOr<PushesCommand, ListArguments>;

/// List and show pushes to the billing provider; retry or discard dead letters
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
      sends only what the provider certainly did not count; otherwise prints the reason
  counterfoil pushes discard 42 --reason 'credited by hand'"
)]
pub struct ListArguments {
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
    #[command(flatten)]
    shown: JsonArguments,
}

#[derive(clap::Subcommand)]
pub enum PushesCommand {
    /// List pushes, newest first; the same as no subcommand
    #[command(after_help = "Example:
  counterfoil pushes list --state dead")]
    List(ListArguments),
    /// Show one push and its history
    #[command(after_help = "Example:
  counterfoil pushes show 42")]
    Show {
        #[command(flatten)]
        server: ServerArguments,
        /// The push's id
        id: u64,
        #[command(flatten)]
        shown: JsonArguments,
    },
    /// Send a dead push again as a new revision, if that cannot bill twice
    #[command(after_help = "Examples:
  counterfoil pushes retry 42
  counterfoil pushes retry --all
      every dead push that the provider refused, once the cause is fixed")]
    #[command(group(clap::ArgGroup::new("which").required(true).args(["id", "all"])))]
    Retry {
        #[command(flatten)]
        server: ServerArguments,
        /// The push's id
        id: Option<u64>,
        /// All dead pushes that the provider refused
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
        /// Reason; kept in the push's history
        #[arg(long)]
        reason: String,
    },
}

pub async fn run(arguments: PushesArguments) -> anyhow::Result<ExitCode> {
    match arguments.command.unwrap_or(PushesCommand::List(arguments.list)) {
        PushesCommand::List(arguments) => list(&arguments).await?,
        PushesCommand::Show { server, id, shown } => {
            let request = Request::get(&["v1", "pushes", &id.to_string()]);
            if let Some(trace) = ask::<PushTraceAnswer>(&server, &request, shown).await? {
                print_trace(&trace);
            }
        }
        PushesCommand::Retry { server, id: Some(id), .. } => {
            retry(&Client::new(&server)?, id).await?;
        }
        PushesCommand::Retry { server, id: None, .. } => retry_all(&server).await?,
        PushesCommand::Discard { server, id, reason } => {
            let path = ["v1", "pushes", &id.to_string(), "discard"];
            let request = Request::post(&path).with_json(&DiscardSpec { reason });
            Client::new(&server)?.call(&request).await?;
            println!("{id} is written off");
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn retry(client: &Client, id: u64) -> anyhow::Result<()> {
    let path = ["v1", "pushes", &id.to_string(), "retry"];
    let body = client.call(&Request::post(&path)).await?;
    match read::<RulingAnswer>(&body)?.replacement {
        Some(replacement) => println!("push {replacement} takes the place of {id}"),
        None => println!("{id} will be tried again"),
    }
    Ok(())
}

/// Retries page after page, from the newest to the oldest.
async fn retry_all(server: &ServerArguments) -> anyhow::Result<()> {
    let client = Client::new(server)?;
    let mut request = Request::get(&["v1", "pushes"]);
    request.query.extend([("state", "dead".into()), ("class", "refused".into())]);
    let mut pages = Pages::new(&client, request);
    let mut retried = 0;
    while let Some((page, _)) = pages.next::<PushList>().await? {
        for push in &page.pushes {
            retry(&client, push.id).await?;
            retried += 1;
        }
    }
    println!("{} will be sent again", counted(retried, "push", "pushes"));
    Ok(())
}

async fn list(arguments: &ListArguments) -> anyhow::Result<()> {
    let filters = [
        ("tenant", &arguments.tenant),
        ("meter", &arguments.meter),
        ("state", &arguments.state),
        ("class", &arguments.class),
    ];
    let request = Request::list("pushes", filters, arguments.limit);
    let none = "no pushes";
    let found = ask_list::<PushList>(&arguments.server, &request, arguments.shown, none).await?;
    let Some(list) = found else { return Ok(()) };
    let header = ["id", "tenant", "meter", "window", "state", "class", "rev", "tries", "quantity"];
    let rows = list.pushes.iter().map(|push| {
        let shadow = if push.shadow { " (shadow)" } else { "" };
        [
            cell(push.id),
            cell(&push.tenant),
            cell(&push.meter),
            moment(push.window_start),
            cell(format!("{}{shadow}", push.state.name())),
            cell(push.class.name()),
            cell(push.revision),
            cell(push.attempts),
            cell(grouped(push.quantity)),
        ]
    });
    print_table(header, 6, rows);
    print_more(list.next_before);
    Ok(())
}

fn print_trace(trace: &PushTraceAnswer) {
    let push = &trace.push;
    let customer = push.customer.as_deref().unwrap_or("no customer yet");
    let of = plain(&format!("{} ({customer})", push.tenant));
    println!(
        "push {} of {of}: {} of {}, window {}, revision {}",
        push.id,
        grouped(push.quantity),
        push.meter,
        push.window_start,
        push.revision
    );
    println!("{} {} as {}", push.mode.name(), grouped(push.value), push.key);
    let state = push.state.name();
    match (push.unbilled, push.state) {
        (Some(unbilled), _) => println!("{state}, {} unbilled", grouped(unbilled)),
        (None, PushState::Observed) => println!("{state}; due at {}", push.due_at),
        (None, _) => println!("{state}"),
    }
    if let Some(detail) = &push.detail {
        println!("{}", plain(detail));
    }
    let header = ["at", "class", "state", "request", "detail", "try"];
    let rows = trace.transitions.iter().map(|transition| {
        [
            moment(transition.at),
            cell(transition.class.name()),
            cell(transition.state.name()),
            optional(transition.request_id.as_ref()),
            optional(transition.detail.as_ref()),
            cell(transition.attempt),
        ]
    });
    println!();
    print_table(header, 5, rows);
}
