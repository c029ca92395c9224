//! Asking for something to show: read for a table, or printed as it is for a program.
//!
//! Invariant: `--json` prints the server's bytes, untouched.

use super::client::{Client, Request, ServerArguments};
use super::table::plain_json;
use crate::api::Page;
use anyhow::Context;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// How an answer is shown.
#[derive(clap::Args, Clone, Copy)]
pub struct JsonArguments {
    /// Print the server's JSON answer
    #[arg(long)]
    pub json: bool,
}

// Without an attribute and a doc comment of its own, which would take the place of the list's.
#[derive(clap::Args)]
pub struct ListOr<Command: clap::Subcommand, List: clap::Args> {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub list: List,
}

/// The answer, or none if it was printed for a program.
pub async fn ask<T: DeserializeOwned>(
    server: &ServerArguments,
    request: &Request,
    shown: JsonArguments,
) -> anyhow::Result<Option<T>> {
    let body = Client::new(server)?.call(request).await?;
    if shown.json {
        println!("{}", plain_json(&body));
        return Ok(None);
    }
    read(&body).map(Some)
}

/// A page of a list; none if it was printed for a program, or is empty, which `none` says.
pub async fn ask_list<P: Page + DeserializeOwned>(
    server: &ServerArguments,
    request: &Request,
    shown: JsonArguments,
    none: &str,
) -> anyhow::Result<Option<P>> {
    let page = ask::<P>(server, request, shown).await?;
    if page.as_ref().is_some_and(Page::is_empty) {
        println!("{none}");
    }
    Ok(page.filter(|page| !page.is_empty()))
}

/// An answer, from its bytes.
pub fn read<T: DeserializeOwned>(body: &[u8]) -> anyhow::Result<T> {
    serde_json::from_slice(body).context("the server's answer cannot be read")
}

/// A list, read page after page.
pub struct Pages<'c> {
    client: &'c Client,
    /// For the next page; none after the last.
    request: Option<Request>,
}

/// Where the next page begins, in any page.
#[derive(Deserialize)]
struct Next {
    next_before: Option<u64>,
    next_after: Option<String>,
}

impl<'c> Pages<'c> {
    pub fn new(client: &'c Client, request: Request) -> Self {
        Self { client, request: Some(request) }
    }

    /// The next page and its bytes.
    pub async fn next<P: DeserializeOwned>(&mut self) -> anyhow::Result<Option<(P, Bytes)>> {
        let Some(mut request) = self.request.take() else { return Ok(None) };
        let body = self.client.call(&request).await?;
        let Next { next_before, next_after } = read(&body)?;
        let before = next_before.map(|before| ("before", before.to_string()));
        if let Some(cursor) = before.or(next_after.map(|after| ("after", after))) {
            request.query.retain(|(name, _)| *name != cursor.0);
            request.query.push(cursor);
            self.request = Some(request);
        }
        Ok(Some((read(&body)?, body)))
    }
}

/// The parameters of a request that were given.
pub fn given<'a>(
    wanted: impl IntoIterator<Item = (&'static str, Option<&'a String>)>,
) -> Vec<(&'static str, String)> {
    wanted.into_iter().filter_map(|(name, value)| Some((name, value?.clone()))).collect()
}

/// Said under a list that was cut off.
pub fn print_more(next: Option<u64>) {
    if next.is_some() {
        println!("there are more; --limit shows up to 1000");
    }
}
