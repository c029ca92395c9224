//! Asking for something to show: read for a table, or printed as it is for a program.
//!
//! Invariant: `--json` prints the server's bytes, untouched.

use super::client::{Client, Request, ServerArguments};
use super::table::plain_json;
use anyhow::Context;
use serde::de::DeserializeOwned;

/// How an answer is shown.
#[derive(clap::Args, Clone, Copy)]
pub struct JsonArguments {
    /// Print the server's JSON answer
    #[arg(long)]
    pub json: bool,
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
    serde_json::from_slice(&body).map(Some).context("the server's answer cannot be read")
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
