//! What `counterfoil quarantine` and `counterfoil conflicts` share: which records are meant, and
//! why and by whom they are decided.
//!
//! Invariant: a bulk decision is asked for page by page until its end; what is sent twice is
//! decided once.

use super::answer::read;
use super::client::{Client, Request, ServerArguments};
use super::table::{counted, plain, plain_json};
use crate::api::inboxes::DecisionAnswer;
use crate::rules::quantity::Quantity;
use anyhow::Context;
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Records that one request decides.
pub const DECIDED_MAX: usize = 500;

/// Which records of an inbox are listed.
#[derive(clap::Args)]
pub struct ListedArguments {
    /// Only of this tenant
    #[arg(long)]
    pub tenant: Option<String>,
    /// Only of this event id
    #[arg(long)]
    pub id: Option<String>,
    /// Only payloads that came first at this instant or later (RFC 3339, or a date in UTC)
    #[arg(long)]
    pub from: Option<String>,
    /// Only payloads that came first before this
    #[arg(long)]
    pub to: Option<String>,
    /// Only decided ones, with what was decided
    #[arg(long)]
    pub decided: bool,
    /// Decided and undecided ones
    #[arg(long, conflicts_with = "decided")]
    pub all: bool,
    /// Most records to show, oldest first
    #[arg(long, default_value_t = 50)]
    pub limit: u16,
}

impl ListedArguments {
    /// A page of the inbox with this name.
    pub fn request(&self, noun: &str) -> Request {
        let decided = (!self.all).then(|| self.decided.to_string());
        let filters = [
            ("tenant", &self.tenant),
            ("id", &self.id),
            ("from", &self.from),
            ("to", &self.to),
            ("decided", &decided),
        ];
        Request::list(noun, filters, self.limit)
    }
}

/// Which undecided records are decided: by their numbers, or by a filter.
#[derive(clap::Args)]
#[command(group(
    clap::ArgGroup::new("which").required(true).multiple(true)
        .args(["numbers", "all", "tenant", "id", "from", "to"])
))]
pub struct WhichArguments {
    /// The records' numbers
    #[arg(conflicts_with_all = ["all", "tenant", "id", "from", "to", "dry_run"])]
    pub numbers: Vec<u64>,
    /// All undecided ones that the other filters leave
    #[arg(long)]
    pub all: bool,
    /// Only of this tenant
    #[arg(long)]
    pub tenant: Option<String>,
    /// Only of this event id
    #[arg(long)]
    pub id: Option<String>,
    /// Only payloads that came first at this instant or later (RFC 3339, or a date in UTC)
    #[arg(long)]
    pub from: Option<String>,
    /// Only payloads that came first before this
    #[arg(long)]
    pub to: Option<String>,
    /// Only say how many there are and what they add up to
    #[arg(long)]
    pub dry_run: bool,
}

/// Why, and by whom.
#[derive(clap::Args)]
pub struct WhyArguments {
    /// Reason; kept with the records
    #[arg(long)]
    pub reason: String,
    /// Who decides; kept with the records
    #[arg(long, env = "COUNTERFOIL_AUTHOR")]
    pub author: String,
}

/// Decides about one record; its number, the ruling, and the server's answer.
pub async fn decide_one<T: DeserializeOwned>(
    server: &ServerArguments,
    (noun, number, ruling): (&str, u64, &str),
    spec: &impl Serialize,
    json: bool,
) -> anyhow::Result<Option<T>> {
    let request = Request::post(&["v1", noun, &number.to_string(), ruling]).with_json(spec);
    let asked = Client::new(server)?.call(&request).await;
    let body = asked.with_context(|| format!("{number} is not decided"))?;
    if json {
        println!("{}", plain_json(&body));
        return Ok(None);
    }
    read(&body).map(Some)
}

/// Asks for page after page of a bulk decision, and prints each for a program if asked to.
pub async fn decide_all<T: DeserializeOwned>(
    server: &ServerArguments,
    noun: &str,
    json: bool,
    spec: impl Fn(Option<u64>) -> Bytes,
    mut take: impl FnMut(T) -> anyhow::Result<Option<u64>>,
) -> anyhow::Result<()> {
    let client = Client::new(server)?;
    let mut after = None;
    loop {
        let mut request = Request::post(&["v1", noun, "decide"]);
        request.body = Some(("application/json", spec(after)));
        let body = client.call(&request).await?;
        if json {
            println!("{}", plain_json(&body));
        }
        after = take(read(&body)?)?;
        if after.is_none() {
            return Ok(());
        }
    }
}

pub fn to_json(spec: &impl Serialize) -> Bytes {
    serde_json::to_vec(spec).expect("a request is plain JSON").into()
}

/// Adds quantities of two pages.
pub fn add(sum: &mut Quantity, more: Quantity) -> anyhow::Result<()> {
    *sum = sum.checked_add(more).context("the quantities add up to more than can be held")?;
    Ok(())
}

/// Who decided, when and why, in a sentence.
pub fn describe(decision: &DecisionAnswer) -> String {
    let DecisionAnswer { reason, author, decided_at } = decision;
    plain(&format!("decided by {author} at {decided_at}: {reason}"))
}

/// `3 events`, or `no events`.
pub fn number_of(count: u64, one: &str, many: &str) -> String {
    if count == 0 { format!("no {many}") } else { counted(count, one, many) }
}
