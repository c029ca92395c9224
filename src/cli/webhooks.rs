//! `counterfoil webhooks`: webhooks that the provider sent, and their states.
//!
//! Invariant: listing and showing only read. A replay has the webhook's object read again from the
//! provider, which changes nothing when done twice; a webhook that is only kept is refused.

use super::answer::{JsonArguments, ListOr, ask, ask_list, print_more};
use super::client::{Client, Request, ServerArguments};
use super::table::{cell, moment, optional, plain, print_table};
use crate::api::webhooks::{WebhookList, WebhookTrace};
use std::process::ExitCode;

pub type WebhooksArguments = ListOr<WebhooksCommand, ListArguments>;

/// List and show received webhooks; read a webhook's object again
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  counterfoil webhooks
  counterfoil webhooks --status waiting
  counterfoil webhooks --type invoice.created --limit 20
  counterfoil webhooks show 42
      with its payload
  counterfoil webhooks replay 42
      reads its object from the provider again; repeating it is safe"
)]
pub struct ListArguments {
    #[command(flatten)]
    server: ServerArguments,
    /// Only with this status
    #[arg(long, value_parser = ["waiting", "applied", "stale", "kept"])]
    status: Option<String>,
    /// Only of this type, such as invoice.created
    #[arg(long = "type", value_name = "TYPE")]
    event_type: Option<String>,
    /// Most webhooks to show, newest first
    #[arg(long, default_value_t = 50)]
    limit: u16,
    #[command(flatten)]
    shown: JsonArguments,
}

#[derive(clap::Subcommand)]
pub enum WebhooksCommand {
    /// List webhooks, newest first; the same as no subcommand
    #[command(after_help = "Example:
  counterfoil webhooks list --status waiting")]
    List(ListArguments),
    /// Show one webhook and its payload
    #[command(after_help = "Example:
  counterfoil webhooks show 42")]
    Show {
        #[command(flatten)]
        server: ServerArguments,
        /// The webhook's id
        id: u64,
        #[command(flatten)]
        shown: JsonArguments,
    },
    /// Read a webhook's object from the provider again
    #[command(after_help = "Example:
  counterfoil webhooks replay 42")]
    Replay {
        #[command(flatten)]
        server: ServerArguments,
        /// The webhook's id
        id: u64,
    },
}

pub async fn run(arguments: WebhooksArguments) -> anyhow::Result<ExitCode> {
    match arguments.command.unwrap_or(WebhooksCommand::List(arguments.list)) {
        WebhooksCommand::List(arguments) => list(&arguments).await?,
        WebhooksCommand::Show { server, id, shown } => {
            let request = Request::get(&["v1", "webhooks", &id.to_string()]);
            if let Some(whole) = ask::<WebhookTrace>(&server, &request, shown).await? {
                print_one(&whole)?;
            }
        }
        WebhooksCommand::Replay { server, id } => {
            let path = ["v1", "webhooks", &id.to_string(), "replay"];
            Client::new(&server)?.call(&Request::post(&path)).await?;
            println!("the object is read again; `counterfoil webhooks show {id}` shows the result");
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(arguments: &ListArguments) -> anyhow::Result<()> {
    let filters = [("status", &arguments.status), ("type", &arguments.event_type)];
    let request = Request::list("webhooks", filters, arguments.limit);
    let none = "no webhooks";
    let found = ask_list::<WebhookList>(&arguments.server, &request, arguments.shown, none).await?;
    let Some(list) = found else { return Ok(()) };
    let header = ["id", "type", "object", "status", "source", "received", "event", "deliveries"];
    let rows = list.webhooks.iter().map(|webhook| {
        [
            cell(webhook.id),
            cell(&webhook.event_type),
            optional(webhook.object_id.as_ref()),
            cell(webhook.status.name()),
            cell(webhook.source.name()),
            moment(webhook.received_at),
            cell(&webhook.event_id),
            cell(webhook.deliveries),
        ]
    });
    print_table(header, 7, rows);
    print_more(list.next_before);
    Ok(())
}

fn print_one(whole: &WebhookTrace) -> anyhow::Result<()> {
    let webhook = &whole.webhook;
    let (status, source) = (webhook.status.name(), webhook.source.name());
    let object = match (webhook.object_kind, &webhook.object_id) {
        (Some(kind), Some(id)) => format!("{} {id}", kind.name()),
        (Some(_), None) | (None, _) => "no object".into(),
    };
    let settled = match webhook.settled_at {
        Some(at) => format!("{status} at {at}"),
        None => status.to_owned(),
    };
    let lines = [
        format!("webhook {}: {} about {object}", webhook.id, webhook.event_type),
        format!("event {}, made at {}", webhook.event_id, webhook.created_at),
        format!("{source} at {}, {} deliveries", webhook.received_at, webhook.deliveries),
        settled,
    ];
    for line in lines.iter().chain(&webhook.detail) {
        println!("{}", plain(line));
    }
    // JSON escapes what a terminal would obey.
    let payload: serde_json::Value = serde_json::from_str(whole.payload.get())?;
    println!("\n{}", serde_json::to_string_pretty(&payload)?);
    Ok(())
}
