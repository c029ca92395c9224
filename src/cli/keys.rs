//! `counterfoil keys`: making, listing and revoking keys. For admins.
//!
//! Invariant: a token is shown once, when it is made, and a list never shows one.

use super::answer::{JsonArguments, ask};
use super::client::{Client, Request, ServerArguments};
use super::table::{cell, moment, print_table};
use crate::api::keys::{KeyList, NewKeyAnswer};
use reqwest::Method;
use std::process::ExitCode;

/// Create, list and revoke API keys
#[derive(clap::Args)]
#[command(after_help = "Examples:
  counterfoil keys create --name gateway --scope ingest
  counterfoil keys create --name acme-portal --scope read --tenant acme
  counterfoil keys list
  counterfoil keys revoke key_0123456789abcdef01234567")]
pub struct KeysArguments {
    #[command(subcommand)]
    command: KeysCommand,
}

#[derive(clap::Subcommand)]
enum KeysCommand {
    /// Create a key and print its token, once
    #[command(after_help = "Examples:
  counterfoil keys create --name gateway --scope ingest
  counterfoil keys create --name reports --scope read --scope operate")]
    Create {
        #[command(flatten)]
        server: ServerArguments,
        /// Name of the key
        #[arg(long)]
        name: String,
        /// Scope; may be repeated
        #[arg(long = "scope", required = true, value_delimiter = ',', value_parser = SCOPES)]
        scopes: Vec<String>,
        /// Restrict the key to one tenant
        #[arg(long)]
        tenant: Option<String>,
        #[command(flatten)]
        shown: JsonArguments,
    },
    /// List all keys, without their tokens
    #[command(after_help = "Example:
  counterfoil keys list")]
    List {
        #[command(flatten)]
        server: ServerArguments,
        #[command(flatten)]
        shown: JsonArguments,
    },
    /// Revoke a key permanently, by its id
    #[command(after_help = "Example:
  counterfoil keys revoke key_0123456789abcdef01234567")]
    Revoke {
        #[command(flatten)]
        server: ServerArguments,
        /// The key's id, as `keys list` shows it; not its token
        id: String,
    },
}

const SCOPES: [&str; 4] = ["ingest", "read", "operate", "admin"];

pub async fn run(arguments: KeysArguments) -> anyhow::Result<ExitCode> {
    match arguments.command {
        KeysCommand::Create { server, name, scopes, tenant, shown } => {
            let spec = serde_json::json!({"name": name, "scopes": scopes, "tenant": tenant});
            let request = Request::post(&["v1", "keys"]).with_json(&spec);
            if let Some(made) = ask::<NewKeyAnswer>(&server, &request, shown).await? {
                // The token alone on standard output, for `KEY=$(counterfoil keys create …)`.
                eprintln!("made {}; its token is shown this once and kept nowhere:", made.key.id);
                println!("{}", made.token);
            }
        }
        KeysCommand::List { server, shown } => {
            let request = Request::get(&["v1", "keys"]);
            if let Some(list) = ask::<KeyList>(&server, &request, shown).await? {
                print_keys(&list);
            }
        }
        KeysCommand::Revoke { server, id } => {
            let request = Request::new(Method::DELETE, &["v1", "keys", &id]);
            Client::new(&server)?.call(&request).await?;
            println!("revoked {id}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print_keys(list: &KeyList) {
    let header = ["id", "name", "scopes", "tenant", "created", "revoked"];
    let rows = list.keys.iter().map(|key| {
        [
            cell(&key.id),
            cell(&key.name),
            cell(key.scopes.join(", ")),
            cell(key.tenant.as_deref().unwrap_or("any")),
            moment(key.created_at),
            moment(key.revoked_at),
        ]
    });
    print_table(header, header.len(), rows);
}
