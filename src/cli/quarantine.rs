//! `counterfoil quarantine`: events that were kept and not counted, and what a person decides about
//! them.
//!
//! Invariant: a decision that is sent twice is made once. Quantities are added up exactly.

use super::answer::{JsonArguments, ListOr, ask, ask_list, print_more};
use super::client::{Request, ServerArguments};
use super::inboxes::{
    DECIDED_MAX, ListedArguments, WhichArguments, WhyArguments, add, decide_all, decide_one,
    describe, number_of, to_json,
};
use super::table::{cell, grouped, moment, optional, plain, print_table};
use crate::api::inboxes::{
    DecisionSpec, LeftAnswer, QuarantineAnswer, QuarantineDecideSpec, QuarantineDecided,
    QuarantineList, QuarantineSelection,
};
use crate::rules::decision::{QuarantineRuling, QuarantineState};
use crate::rules::quantity::Quantity;
use std::collections::BTreeMap;
use std::process::ExitCode;

pub type QuarantineArguments = ListOr<QuarantineCommand, ListArguments>;

/// List, show, admit and discard quarantined events
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  counterfoil quarantine
      events that nobody has decided about, oldest first
  counterfoil quarantine --tenant acme --cause too_old
  counterfoil quarantine show 42
  counterfoil quarantine admit 42 --reason 'the outage of 3 November' --author zoe
      counts the event once, at its own time
  counterfoil quarantine discard 43 --reason 'a test of ours' --author zoe
  counterfoil quarantine admit --tenant acme --from 2026-11-03 --to 2026-11-04 --dry-run \\
      --reason 'the outage of 3 November' --author zoe
      how many there are and what they add up to; without --dry-run they are admitted"
)]
pub struct ListArguments {
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    listed: ListedArguments,
    /// Only those that are kept for this reason
    #[arg(long, value_parser = ["too_old", "too_far_ahead", "too_many_groups"])]
    cause: Option<String>,
    #[command(flatten)]
    shown: JsonArguments,
}

#[derive(clap::Subcommand)]
pub enum QuarantineCommand {
    /// List quarantined events, oldest first; the same as no subcommand
    #[command(after_help = "Example:
  counterfoil quarantine list --decided")]
    List(ListArguments),
    /// Show one quarantined event, its payload and its decision
    #[command(after_help = "Example:
  counterfoil quarantine show 42")]
    Show {
        #[command(flatten)]
        server: ServerArguments,
        /// The record's number
        number: u64,
        #[command(flatten)]
        shown: JsonArguments,
    },
    /// Count quarantined events once, at their own times
    #[command(after_help = "Examples:
  counterfoil quarantine admit 42 43 --reason 'the outage of 3 November' --author zoe
  counterfoil quarantine admit --tenant acme --cause too_old --dry-run --reason outage --author zoe
      how many there are and what they add up to; without --dry-run they are admitted")]
    Admit(DecideArguments),
    /// Decide that quarantined events are never counted
    #[command(after_help = "Example:
  counterfoil quarantine discard 42 --reason 'a test of ours' --author zoe")]
    Discard(DecideArguments),
}

#[derive(clap::Args)]
pub struct DecideArguments {
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    which: WhichArguments,
    /// Only those that are kept for this reason
    #[arg(long, value_parser = ["too_old", "too_far_ahead", "too_many_groups"])]
    #[arg(conflicts_with = "numbers")]
    cause: Option<String>,
    #[command(flatten)]
    why: WhyArguments,
    #[command(flatten)]
    shown: JsonArguments,
}

pub async fn run(arguments: QuarantineArguments) -> anyhow::Result<ExitCode> {
    match arguments.command.unwrap_or(QuarantineCommand::List(arguments.list)) {
        QuarantineCommand::List(arguments) => list(&arguments).await?,
        QuarantineCommand::Show { server, number, shown } => {
            let request = Request::get(&["v1", "quarantine", &number.to_string()]);
            if let Some(record) = ask::<QuarantineAnswer>(&server, &request, shown).await? {
                print_one(&record);
            }
        }
        QuarantineCommand::Admit(arguments) => decide(arguments, QuarantineRuling::Admit).await?,
        QuarantineCommand::Discard(arguments) => {
            decide(arguments, QuarantineRuling::Discard).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(arguments: &ListArguments) -> anyhow::Result<()> {
    let ListArguments { server, listed, cause, shown } = arguments;
    let mut request = listed.request("quarantine");
    request.query.extend(cause.clone().map(|cause| ("reason", cause)));
    let none = match (listed.all, listed.decided) {
        (true, _) => "no quarantined events",
        (false, true) => "no decided events",
        (false, false) => "no undecided events",
    };
    let found = ask_list::<QuarantineList>(server, &request, *shown, none).await?;
    let Some(list) = found else { return Ok(()) };
    let header = ["number", "tenant", "id", "cause", "first received", "state", "by", "deliveries"];
    let rows = list.quarantined.iter().map(|record| {
        [
            cell(record.number),
            cell(&record.tenant),
            cell(&record.id),
            cell(&record.reason),
            moment(record.first_received_at),
            cell(record.state.name()),
            optional(record.decision.as_ref().map(|decision| &decision.author)),
            cell(record.deliveries),
        ]
    });
    print_table(header, 7, rows);
    print_more(list.next_after);
    Ok(())
}

fn print_one(record: &QuarantineAnswer) {
    let QuarantineAnswer { number, tenant, id, reason, state, .. } = record;
    println!("{}", plain(&format!("{number}: event {id} of {tenant}, {reason}")));
    println!("{}", state.name());
    if let Some(decision) = &record.decision {
        println!("{}", describe(decision));
    }
    let times = record.deliveries;
    println!(
        "came {} from {} to {}",
        number_of(times, "time", "times"),
        record.first_received_at,
        record.last_received_at
    );
    println!("{}", plain(record.payload.get()));
}

async fn decide(arguments: DecideArguments, ruling: QuarantineRuling) -> anyhow::Result<()> {
    let json = arguments.shown.json;
    if arguments.which.numbers.is_empty() {
        return decide_filtered(&arguments, ruling).await;
    }
    let WhyArguments { reason, author } = arguments.why;
    let spec = DecisionSpec { reason, author };
    for number in arguments.which.numbers {
        let which = ("quarantine", number, ruling.name());
        let record = decide_one::<QuarantineAnswer>(&arguments.server, which, &spec, json).await?;
        if let Some(record) = record {
            println!("{number}: {}", became(record.state));
            record.decision.iter().for_each(|decision| println!("  {}", describe(decision)));
        }
    }
    Ok(())
}

fn became(state: QuarantineState) -> &'static str {
    match state {
        QuarantineState::Undecided => "undecided",
        QuarantineState::Admitted => "admitted: it is counted",
        QuarantineState::Duplicate => "not counted again: the same payload was counted before",
        QuarantineState::Conflict => "not counted: another payload was counted under its id",
        QuarantineState::Discarded => "discarded: it is not counted",
    }
}

/// The outcome for all that a filter found.
#[derive(Default)]
struct Outcome {
    selected: u64,
    admitted: u64,
    duplicates: u64,
    conflicts: u64,
    discarded: u64,
    totals: BTreeMap<(String, String), (u64, Quantity)>,
    left: Vec<LeftAnswer>,
}

async fn decide_filtered(
    arguments: &DecideArguments,
    ruling: QuarantineRuling,
) -> anyhow::Result<()> {
    let DecideArguments { server, which, cause, why, shown } = arguments;
    let spec = |after| {
        to_json(&QuarantineDecideSpec {
            ruling,
            filter: QuarantineSelection {
                tenant: which.tenant.clone(),
                reason: cause.clone(),
                id: which.id.clone(),
                from: which.from.clone(),
                to: which.to.clone(),
            },
            reason: why.reason.clone(),
            author: why.author.clone(),
            dry_run: which.dry_run,
            limit: Some(DECIDED_MAX),
            after,
        })
    };
    let mut outcome = Outcome::default();
    let take = |page: QuarantineDecided| outcome.add(page);
    decide_all(server, "quarantine", shown.json, spec, take).await?;
    if !shown.json {
        outcome.print(which.dry_run);
    }
    Ok(())
}

impl Outcome {
    /// Adds a page; returns where the next one begins.
    fn add(&mut self, page: QuarantineDecided) -> anyhow::Result<Option<u64>> {
        self.selected += page.selected;
        self.admitted += page.admitted;
        self.duplicates += page.duplicates;
        self.conflicts += page.conflicts;
        self.discarded += page.discarded;
        self.left.extend(page.left);
        for total in page.totals {
            let sum = self.totals.entry((total.tenant, total.meter)).or_default();
            sum.0 += total.events;
            add(&mut sum.1, total.quantity)?;
        }
        Ok(page.next_after)
    }

    fn print(&self, dry_run: bool) {
        println!("{} found", number_of(self.selected, "undecided event", "undecided events"));
        let rows = self.totals.iter().map(|((tenant, meter), (events, quantity))| {
            [cell(tenant), cell(meter), cell(grouped(events)), cell(grouped(quantity))]
        });
        if !self.totals.is_empty() {
            print_table(["tenant", "meter", "events", "quantity"], 2, rows);
        }
        let outcomes = [
            (self.admitted, "admitted"),
            (self.duplicates, "not counted again: the same payload was counted before"),
            (self.conflicts, "not counted: another payload was counted under the id"),
            (self.discarded, "discarded"),
        ];
        for (count, what) in outcomes.into_iter().filter(|(count, _)| *count > 0) {
            println!("{} {what}", grouped(count));
        }
        for LeftAnswer { number, code, detail, .. } in &self.left {
            println!("{}", plain(&format!("{number} stays undecided: {detail} ({code})")));
        }
        if dry_run {
            println!("nothing is decided: --dry-run");
        }
    }
}
