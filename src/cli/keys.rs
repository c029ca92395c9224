//! `counterfoil keys`: making, listing and revoking keys. For admins.
//!
//! Invariant: a token is shown once, when it is made, and a list never shows one.

use super::client::{Client, Request, ServerArguments};
use super::table::{cell, moment, new_table, plain_json};
use anyhow::Context;
use reqwest::Method;
use serde::Deserialize;
use std::process::ExitCode;

/// Make, list and revoke keys
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
    /// Make a key and show its token, this once
    #[command(after_help = "Examples:
  counterfoil keys create --name gateway --scope ingest
  counterfoil keys create --name reports --scope read --scope operate")]
    Create {
        #[command(flatten)]
        server: ServerArguments,
        /// What the key is for, to tell it from others
        #[arg(long)]
        name: String,
        /// What it allows; may be given several times
        #[arg(long = "scope", required = true, value_delimiter = ',', value_parser = SCOPES)]
        scopes: Vec<String>,
        /// Bind it to one tenant: it reaches nothing of another
        #[arg(long)]
        tenant: Option<String>,
        /// Print the server's answer as it is
        #[arg(long)]
        json: bool,
    },
    /// List all keys, without their tokens
    #[command(after_help = "Example:
  counterfoil keys list")]
    List {
        #[command(flatten)]
        server: ServerArguments,
        /// Print the server's answer as it is
        #[arg(long)]
        json: bool,
    },
    /// Revoke a key by its id, for ever
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

#[derive(Deserialize)]
struct KeyList {
    keys: Vec<Key>,
}

#[derive(Deserialize)]
struct Key {
    id: String,
    name: String,
    scopes: Vec<String>,
    tenant: Option<String>,
    created_at: String,
    revoked_at: Option<String>,
}

#[derive(Deserialize)]
struct NewKey {
    id: String,
    token: String,
}

pub async fn run(arguments: KeysArguments) -> anyhow::Result<ExitCode> {
    match arguments.command {
        KeysCommand::Create { server, name, scopes, tenant, json } => {
            let mut spec = serde_json::json!({"name": name, "scopes": scopes});
            if let Some(tenant) = tenant {
                spec["tenant"] = tenant.into();
            }
            let request = Request::new(Method::POST, &["v1", "keys"]).with_json(&spec);
            let body = Client::new(&server)?.call(&request).await?;
            if json {
                println!("{}", plain_json(&body));
                return Ok(ExitCode::SUCCESS);
            }
            let key: NewKey = serde_json::from_slice(&body).context(UNREADABLE)?;
            // The token alone on standard output, for `KEY=$(counterfoil keys create …)`.
            eprintln!("made {}; its token is shown this once and kept nowhere:", key.id);
            println!("{}", key.token);
        }
        KeysCommand::List { server, json } => {
            let request = Request::new(Method::GET, &["v1", "keys"]);
            let body = Client::new(&server)?.call(&request).await?;
            if json {
                println!("{}", plain_json(&body));
                return Ok(ExitCode::SUCCESS);
            }
            let list: KeyList = serde_json::from_slice(&body).context(UNREADABLE)?;
            print_keys(&list);
        }
        KeysCommand::Revoke { server, id } => {
            let request = Request::new(Method::DELETE, &["v1", "keys", &id]);
            Client::new(&server)?.call(&request).await?;
            println!("revoked {id}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

const UNREADABLE: &str = "the server's answer cannot be read";

fn print_keys(list: &KeyList) {
    let header = ["id", "name", "scopes", "tenant", "created", "revoked"];
    let mut table = new_table(&header, header.len());
    for key in &list.keys {
        table.add_row([
            cell(&key.id),
            cell(&key.name),
            cell(key.scopes.join(", ")),
            cell(key.tenant.as_deref().unwrap_or("any")),
            moment(&key.created_at),
            moment(key.revoked_at.as_deref().unwrap_or("-")),
        ]);
    }
    println!("{table}");
}
