//! `counterfoil conflicts`: payloads that came under an id another payload was counted under, and
//! what a person decides about them.
//!
//! Invariant: a decision that is sent twice is made once, and changes nothing that is counted.

use super::answer::{JsonArguments, ListOr, ask, ask_list, print_more};
use super::client::{Request, ServerArguments};
use super::inboxes::{
    DECIDED_MAX, ListedArguments, WhichArguments, WhyArguments, add, decide_all, decide_one,
    describe, number_of, to_json,
};
use super::table::{cell, grouped, moment, optional, plain, print_table};
use crate::api::inboxes::{
    ConflictAnswer, ConflictDecideSpec, ConflictList, ConflictSelection, ConflictsDecided,
    DecisionSpec,
};
use crate::rules::decision::{ConflictRuling, ConflictState};
use crate::rules::quantity::Quantity;
use std::collections::BTreeMap;
use std::process::ExitCode;

pub type ConflictsArguments = ListOr<ConflictsCommand, ListArguments>;

/// List, show and decide conflicts: other payloads under the id of a counted event
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  counterfoil conflicts
      conflicts that nobody has decided about, oldest first
  counterfoil conflicts show 42
      both payloads
  counterfoil conflicts keep-standing 42 --reason 'the second was an estimate' --author zoe
      what was counted is right
  counterfoil conflicts dismiss --tenant acme --dry-run --reason 'asked in ticket 7' --author zoe
      how many there are and what they add up to; without --dry-run they are dismissed"
)]
pub struct ListArguments {
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    listed: ListedArguments,
    #[command(flatten)]
    shown: JsonArguments,
}

#[derive(clap::Subcommand)]
pub enum ConflictsCommand {
    /// List conflicts, oldest first; the same as no subcommand
    #[command(after_help = "Example:
  counterfoil conflicts list --decided")]
    List(ListArguments),
    /// Show one conflict, both of its payloads and its decision
    #[command(after_help = "Example:
  counterfoil conflicts show 42")]
    Show {
        #[command(flatten)]
        server: ServerArguments,
        /// The record's number
        number: u64,
        #[command(flatten)]
        shown: JsonArguments,
    },
    /// Decide that the counted payload is right
    #[command(after_help = "Example:
  counterfoil conflicts keep-standing 42 --reason 'the second was an estimate' --author zoe")]
    KeepStanding(DecideArguments),
    /// Take a conflict off the list and say nothing of either payload
    #[command(after_help = "Example:
  counterfoil conflicts dismiss 42 --reason 'a test of ours' --author zoe")]
    Dismiss(DecideArguments),
}

#[derive(clap::Args)]
pub struct DecideArguments {
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    which: WhichArguments,
    #[command(flatten)]
    why: WhyArguments,
    #[command(flatten)]
    shown: JsonArguments,
}

pub async fn run(arguments: ConflictsArguments) -> anyhow::Result<ExitCode> {
    match arguments.command.unwrap_or(ConflictsCommand::List(arguments.list)) {
        ConflictsCommand::List(arguments) => list(&arguments).await?,
        ConflictsCommand::Show { server, number, shown } => {
            let request = Request::get(&["v1", "conflicts", &number.to_string()]);
            if let Some(record) = ask::<ConflictAnswer>(&server, &request, shown).await? {
                print_one(&record);
            }
        }
        ConflictsCommand::KeepStanding(arguments) => {
            decide(arguments, ConflictRuling::KeepStanding).await?;
        }
        ConflictsCommand::Dismiss(arguments) => decide(arguments, ConflictRuling::Dismiss).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(arguments: &ListArguments) -> anyhow::Result<()> {
    let ListArguments { server, listed, shown } = arguments;
    let request = listed.request("conflicts");
    let none = match (listed.all, listed.decided) {
        (true, _) => "no conflicts",
        (false, true) => "no decided conflicts",
        (false, false) => "no undecided conflicts",
    };
    let found = ask_list::<ConflictList>(server, &request, *shown, none).await?;
    let Some(list) = found else { return Ok(()) };
    let header = ["number", "tenant", "id", "first received", "state", "by", "deliveries"];
    let rows = list.conflicts.iter().map(|record| {
        [
            cell(record.number),
            cell(&record.tenant),
            cell(&record.id),
            moment(record.first_received_at),
            cell(record.state.name()),
            optional(record.decision.as_ref().map(|decision| &decision.author)),
            cell(record.deliveries),
        ]
    });
    print_table(header, 6, rows);
    print_more(list.next_after);
    Ok(())
}

fn print_one(record: &ConflictAnswer) {
    let ConflictAnswer { number, tenant, id, state, .. } = record;
    println!("{}", plain(&format!("{number}: event {id} of {tenant}")));
    println!("{}", state.name());
    if let Some(decision) = &record.decision {
        println!("{}", describe(decision));
    }
    println!(
        "came {} from {} to {}",
        number_of(record.deliveries, "time", "times"),
        record.first_received_at,
        record.last_received_at
    );
    println!("counted:  {}", plain(record.counted.get()));
    println!("received: {}", plain(record.received.get()));
}

async fn decide(arguments: DecideArguments, ruling: ConflictRuling) -> anyhow::Result<()> {
    let json = arguments.shown.json;
    if arguments.which.numbers.is_empty() {
        return decide_filtered(&arguments, ruling).await;
    }
    let WhyArguments { reason, author } = arguments.why;
    let spec = DecisionSpec { reason, author };
    let path = match ruling {
        ConflictRuling::KeepStanding => "keep-standing",
        ConflictRuling::Dismiss => "dismiss",
    };
    for number in arguments.which.numbers {
        let which = ("conflicts", number, path);
        let record = decide_one::<ConflictAnswer>(&arguments.server, which, &spec, json).await?;
        if let Some(record) = record {
            println!("{number}: {}", became(record.state));
            record.decision.iter().for_each(|decision| println!("  {}", describe(decision)));
        }
    }
    Ok(())
}

fn became(state: ConflictState) -> &'static str {
    match state {
        ConflictState::Undecided => "undecided",
        ConflictState::StandingKept => "what was counted is right",
        ConflictState::Dismissed => "dismissed",
    }
}

/// Conflicts, and the quantities that were and were not counted.
type Sums = (u64, Quantity, Quantity);

async fn decide_filtered(
    arguments: &DecideArguments,
    ruling: ConflictRuling,
) -> anyhow::Result<()> {
    let DecideArguments { server, which, why, shown } = arguments;
    let spec = |after| {
        to_json(&ConflictDecideSpec {
            ruling,
            filter: ConflictSelection {
                tenant: which.tenant.clone(),
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
    let (mut selected, mut decided) = (0, 0);
    let mut totals: BTreeMap<(String, String), Sums> = BTreeMap::new();
    let take = |page: ConflictsDecided| {
        selected += page.selected;
        decided += page.decided;
        for total in page.totals {
            let sum = totals.entry((total.tenant, total.meter)).or_default();
            sum.0 += total.conflicts;
            add(&mut sum.1, total.counted)?;
            add(&mut sum.2, total.received)?;
        }
        Ok(page.next_after)
    };
    decide_all(server, "conflicts", shown.json, spec, take).await?;
    if shown.json {
        return Ok(());
    }
    println!("{} found", number_of(selected, "undecided conflict", "undecided conflicts"));
    if !totals.is_empty() {
        let rows = totals.iter().map(|((tenant, meter), (conflicts, counted, received))| {
            let [counted, received] = [counted, received].map(|sum| cell(grouped(sum)));
            [cell(tenant), cell(meter), cell(grouped(conflicts)), counted, received]
        });
        print_table(["tenant", "meter", "conflicts", "counted", "not counted"], 2, rows);
    }
    if which.dry_run {
        println!("nothing is decided: --dry-run");
    } else {
        println!("{} decided", grouped(decided));
    }
    Ok(())
}
