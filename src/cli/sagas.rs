//! `counterfoil sagas`: operations of several steps, how far each is, and taking one up again.
//!
//! Invariant: listing and showing only read. Resuming asks the server, which refuses where nobody
//! is needed.

use super::answer::{JsonArguments, ListOr, ask, ask_list, print_more};
use super::client::{Client, Request, ServerArguments};
use super::table::{cell, moment, optional, plain, print_table};
use crate::api::sagas::{SagaAnswer, SagaList, SagaStory};
use std::process::ExitCode;

pub type SagasArguments = ListOr<SagasCommand, ListArguments>;

/// List and show sagas; resume a stopped one
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  counterfoil sagas
  counterfoil sagas --state needs_attention
  counterfoil sagas show saga_5f0c2d
      each step, its result and its compensation
  counterfoil sagas resume saga_5f0c2d
      continues a stopped saga; restarts a compensated one from its first step"
)]
pub struct ListArguments {
    #[command(flatten)]
    server: ServerArguments,
    /// Only in this state
    #[arg(long, value_parser = [
        "running", "compensating", "completed", "compensated", "needs_attention"
    ])]
    state: Option<String>,
    /// Only of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Most sagas to show, newest first
    #[arg(long, default_value_t = 50)]
    limit: u16,
    #[command(flatten)]
    shown: JsonArguments,
}

#[derive(clap::Subcommand)]
pub enum SagasCommand {
    /// List sagas, newest first; the same as no subcommand
    #[command(after_help = "Example:
  counterfoil sagas list --tenant acme")]
    List(ListArguments),
    /// Show the steps of one saga
    #[command(after_help = "Example:
  counterfoil sagas show saga_5f0c2d")]
    Show {
        #[command(flatten)]
        server: ServerArguments,
        /// The saga's id
        id: String,
        #[command(flatten)]
        shown: JsonArguments,
    },
    /// Resume a saga that needs attention, or restart one that was undone
    #[command(after_help = "Example:
  counterfoil sagas resume saga_5f0c2d")]
    Resume {
        #[command(flatten)]
        server: ServerArguments,
        /// The saga's id
        id: String,
    },
}

pub async fn run(arguments: SagasArguments) -> anyhow::Result<ExitCode> {
    match arguments.command.unwrap_or(SagasCommand::List(arguments.list)) {
        SagasCommand::List(arguments) => list(&arguments).await?,
        SagasCommand::Show { server, id, shown } => {
            let request = Request::get(&["v1", "sagas", &id]);
            if let Some(story) = ask::<SagaStory>(&server, &request, shown).await? {
                print_story(&story);
            }
        }
        SagasCommand::Resume { server, id } => {
            let path = ["v1", "sagas", &id, "resume"];
            Client::new(&server)?.call(&Request::post(&path)).await?;
            println!("{} goes on", plain(&id));
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(arguments: &ListArguments) -> anyhow::Result<()> {
    let filters = [("state", &arguments.state), ("tenant", &arguments.tenant)];
    let request = Request::list("sagas", filters, arguments.limit);
    let none = "no sagas";
    let found = ask_list::<SagaList>(&arguments.server, &request, arguments.shown, none).await?;
    let Some(list) = found else { return Ok(()) };
    let header = ["id", "kind", "tenant", "state", "since", "goes on", "what"];
    let rows = list.sagas.iter().map(|saga| {
        [
            cell(&saga.id),
            cell(saga.kind.name()),
            cell(&saga.tenant),
            cell(saga.state.name()),
            moment(saga.state_at),
            moment(saga.due_at),
            optional(saga.detail.as_ref()),
        ]
    });
    print_table(header, header.len(), rows);
    print_more(list.next_before);
    Ok(())
}

fn print_story(story: &SagaStory) {
    let SagaAnswer { id, kind, tenant, state, generation, detail, created_at, .. } = &story.saga;
    let (id, kind, tenant, state) = (plain(id), kind.name(), plain(tenant), state.name());
    println!("{id}: {kind} of {tenant}, begun {created_at}, {state}, generation {generation}");
    if let Some(detail) = detail {
        println!("{}", plain(detail));
    }
    println!("asked for: {}", plain(&story.params.to_string()));
    let header = ["at", "generation", "step", "what", "result"];
    let rows = story.log.iter().map(|line| {
        let result = line.result.as_ref().map(ToString::to_string);
        [
            moment(line.at),
            cell(line.generation),
            cell(&line.step),
            cell(line.mark.name()),
            optional(line.detail.as_ref().or(result.as_ref())),
        ]
    });
    print_table(header, header.len(), rows);
}
