//! `counterfoil stripe`: whether a Stripe account is ready, what is missing, and how the two sides
//! compare.
//!
//! Invariant: `check`, `compare` and `setup --dry-run` change nothing. `setup --apply` creates what
//! is missing and touches nothing that exists. The key is never printed.

use super::EXIT_FINDINGS;
use super::answer::{Pages, given, read};
use super::client::{Client, Failure, Request, ServerArguments};
use super::table::{
    cell, counted, grouped, moment, new_table, plain, plain_json, print_table, word,
};
use crate::api::comparison::{ComparedWindow, ComparisonAnswer, WindowVerdict};
use crate::api::meters::{MeterAnswer, MeterList};
use crate::api::tenants::TenantList;
use crate::config::{Config, Shadow};
use crate::provider::stripe::setup::{Fitness, judge_meter};
use crate::provider::stripe::{StripeClient, is_live};
use crate::rules::billing::Billing;
use crate::rules::ids::MeterSlug;
use crate::rules::meter::{Meter, MeterSpec};
use anyhow::bail;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

/// Most tenants whose customers are looked up at Stripe.
const CUSTOMERS_MAX: usize = 100;

/// Check and set up a Stripe account; compare it with the ledger
#[derive(clap::Args)]
#[command(after_help = "Examples:
  COUNTERFOIL_STRIPE_API_KEY=sk_test_… counterfoil stripe check --config counterfoil.toml
  counterfoil stripe setup --config counterfoil.toml --dry-run
  counterfoil stripe setup --config counterfoil.toml --apply
  counterfoil stripe compare --tenant acme --meter api_calls")]
pub struct StripeArguments {
    #[command(subcommand)]
    command: StripeCommand,
}

#[derive(clap::Subcommand)]
enum StripeCommand {
    /// Check the key, the meters and the customers; changes nothing
    #[command(after_help = "Examples:
  counterfoil stripe check --config counterfoil.toml
      meters of the settings file
  counterfoil stripe check --key cf_…
      also meters and tenants of a running server

Exit code: 0 ready, 4 something is missing or does not fit.")]
    Check(AccountArguments),
    /// Create the meters that are missing at Stripe
    #[command(after_help = "Examples:
  counterfoil stripe setup --config counterfoil.toml --dry-run
  counterfoil stripe setup --config counterfoil.toml --apply")]
    #[command(group(clap::ArgGroup::new("mode").required(true).args(["dry_run", "apply"])))]
    Setup {
        #[command(flatten)]
        account: AccountArguments,
        /// Only print what would be created
        #[arg(long)]
        dry_run: bool,
        /// Create it
        #[arg(long)]
        apply: bool,
    },
    /// Compare ledger, pushes and Stripe, window by window
    #[command(after_help = "Examples:
  counterfoil stripe compare --tenant acme --meter api_calls
      the last day
  counterfoil stripe compare --tenant acme --meter api_calls --from 2026-11-01 --to 2026-11-08

A window may also be written_off (an operator decided so), not_billed (before the meter's billing.from)
or shadow (counted in shadow mode): it is never billed, and does not differ. Of a window that is outside,
usage in no subscription is held. Usage in a trial is never billed and no part of the ledger's column.

Exit code: 0 no window differs, 4 some windows differ.")]
    Compare(CompareArguments),
}

#[derive(clap::Args)]
struct AccountArguments {
    /// Settings file with the meters and the key
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArguments,
}

#[derive(clap::Args)]
struct CompareArguments {
    #[command(flatten)]
    server: ServerArguments,
    /// Who is billed
    #[arg(long)]
    tenant: String,
    /// What is counted, by its slug
    #[arg(long)]
    meter: String,
    /// First instant, RFC 3339 or a date in UTC
    #[arg(long)]
    from: Option<String>,
    /// First instant that is no longer included
    #[arg(long)]
    to: Option<String>,
    /// Print the server's JSON answer
    #[arg(long)]
    json: bool,
}

pub async fn run(arguments: StripeArguments) -> anyhow::Result<ExitCode> {
    match arguments.command {
        StripeCommand::Check(account) => check(&account).await,
        StripeCommand::Setup { account, apply, .. } => setup(&account, apply).await,
        StripeCommand::Compare(arguments) => compare(&arguments).await,
    }
}

/// What is looked at, and what was found.
#[derive(Default)]
struct Findings {
    rows: Vec<(String, &'static str, String)>,
    bad: usize,
}

impl Findings {
    fn good(&mut self, what: impl Into<String>, detail: impl Into<String>) {
        self.rows.push((what.into(), "ok", detail.into()));
    }

    fn bad(&mut self, what: impl Into<String>, result: &'static str, fix: impl Into<String>) {
        self.rows.push((what.into(), result, fix.into()));
        self.bad += 1;
    }

    fn note(&mut self, what: impl Into<String>, detail: impl Into<String>) {
        self.rows.push((what.into(), "-", detail.into()));
    }

    /// Shows them, and at the end the verdict: this one if nothing is bad.
    fn print(&self, verdict: &str) -> ExitCode {
        let mut table = new_table(&["checked", "result", "detail"], 3);
        for (what, result, detail) in &self.rows {
            table.add_row([cell(what), cell(result), cell(detail)]);
        }
        println!("{table}");
        if self.bad == 0 {
            println!("\n{verdict}");
            return ExitCode::SUCCESS;
        }
        println!("\n{} to fix", self.bad);
        ExitCode::from(EXIT_FINDINGS)
    }
}

async fn check(account: &AccountArguments) -> anyhow::Result<ExitCode> {
    let config = crate::config::load(account.config.as_deref())?;
    let stripe = connect(&config)?;
    let mut findings = Findings::default();
    let at_stripe = match stripe.list_meters().await {
        Ok(meters) => meters,
        Err(error) => bail!("the key does not work at {}: {error}", config.stripe.api_base),
    };
    let kind = if is_live(&config.stripe.api_key) { "live" } else { "sandbox or test" };
    findings.good("key", format!("{kind}, at {}", config.stripe.api_base));
    if config.provider.shadow == Shadow::Sandbox && is_live(&config.stripe.api_key) {
        findings.bad("shadow", "unfit", "provider.shadow is \"sandbox\" and the key is live");
    }
    let server = find_server(account, &mut findings).await?;
    let meters = billed_meters(&config, server.as_ref()).await?;
    if meters.is_empty() {
        findings.bad("meters", "missing", "no meter is billed; add [meters.NAME.billing]");
    }
    for (meter, billing) in &meters {
        let name = format!("meter {}", meter.slug);
        match judge_meter(meter, billing, &at_stripe) {
            Fitness::Fits => findings.good(name, format!("fits mode {}", billing.mode.name())),
            Fitness::Missing => {
                findings.bad(name, "missing", "counterfoil stripe setup --apply creates it");
            }
            Fitness::Unfit(why) => findings.bad(name, "unfit", why),
        }
    }
    match &server {
        Some(server) => check_customers(server, &stripe, &mut findings).await?,
        None => findings.note("customers", "give --key to check the tenants of a running server"),
    }
    Ok(findings.print("ready"))
}

async fn setup(account: &AccountArguments, apply: bool) -> anyhow::Result<ExitCode> {
    let config = crate::config::load(account.config.as_deref())?;
    let stripe = connect(&config)?;
    let at_stripe = stripe.list_meters().await.map_err(|error| anyhow::anyhow!("{error}"))?;
    let mut findings = Findings::default();
    let server = find_server(account, &mut findings).await?;
    let mut verdict = "ready";
    for (meter, billing) in billed_meters(&config, server.as_ref()).await? {
        let name = format!("meter {}", meter.slug);
        match judge_meter(&meter, &billing, &at_stripe) {
            Fitness::Fits => findings.good(name, "is there already"),
            Fitness::Unfit(why) => findings.bad(name, "unfit", why),
            Fitness::Missing if apply => {
                let made = stripe.create_meter(&meter, &billing).await;
                let id = made.map_err(|error| anyhow::anyhow!("{name}: {error}"))?;
                findings.good(name, format!("created as {id}"));
            }
            Fitness::Missing => {
                findings.note(name, "would be created");
                verdict = "nothing was changed; --apply creates what is missing";
            }
        }
    }
    Ok(findings.print(verdict))
}

/// The server whose meters and tenants are looked at too, if a key for one was given. Beside a
/// settings file it may be down: the file's meters can be checked before the first start.
async fn find_server(
    account: &AccountArguments,
    findings: &mut Findings,
) -> anyhow::Result<Option<Client>> {
    if account.server.key.is_none() {
        return Ok(None);
    }
    let server = Client::new(&account.server)?;
    match server.call(&Request::get(&["healthz"])).await {
        Ok(_) => Ok(Some(server)),
        Err(error @ Failure::NoAnswer(_)) if account.config.is_some() => {
            findings.note("server", format!("only the settings file was looked at: {error}"));
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

fn connect(config: &Config) -> anyhow::Result<StripeClient> {
    StripeClient::connect(&config.stripe).map_err(|refusal| anyhow::anyhow!("{refusal}"))
}

/// Meters with billing: those of the settings file, and those of the server if there is one. A
/// meter of both counts as the server says, and is billed if either says so.
async fn billed_meters(
    config: &Config,
    server: Option<&Client>,
) -> anyhow::Result<Vec<(Meter, Billing)>> {
    let mut specs: BTreeMap<String, MeterSpec> = config.meters.clone();
    if let Some(server) = server {
        let body = server.call(&Request::get(&["v1", "meters"])).await?;
        for MeterAnswer { slug, mut spec } in read::<MeterList>(&body)?.meters {
            if spec.archived {
                specs.remove(&slug);
                continue;
            }
            let in_file = specs.get(&slug).and_then(|spec| spec.billing.clone());
            spec.billing = spec.billing.or(in_file);
            specs.insert(slug, spec);
        }
    }
    let mut meters = Vec::new();
    for (slug, spec) in specs {
        let Some(billing) = spec.billing.clone() else { continue };
        let parsed = MeterSlug::parse(&slug)?;
        meters.push((Meter::declare(parsed, spec)?, billing));
    }
    Ok(meters)
}

#[derive(Deserialize)]
struct Customer {
    #[serde(default)]
    deleted: bool,
}

async fn check_customers(
    server: &Client,
    stripe: &StripeClient,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let mut unmapped = Vec::new();
    let (mut looked_up, mut mapped) = (0, 0);
    let mut request = Request::get(&["v1", "tenants"]);
    request.query.push(("limit", "1000".into()));
    let mut pages = Pages::new(server, request);
    while let Some((page, _)) = pages.next::<TenantList>().await? {
        for tenant in page.tenants {
            let Some(customer) = tenant.customer else {
                unmapped.push(tenant.id);
                continue;
            };
            mapped += 1;
            if looked_up == CUSTOMERS_MAX {
                continue;
            }
            looked_up += 1;
            let name = format!("tenant {}", tenant.id);
            match stripe.get::<Customer>(&format!("/v1/customers/{customer}"), "").await {
                Ok(Customer { deleted: false }) => {}
                Ok(Customer { deleted: true }) => {
                    findings.bad(name, "unfit", format!("customer {customer} was deleted"));
                }
                Err(error) => findings.bad(name, "unfit", format!("{customer}: {error}")),
            }
        }
    }
    if unmapped.is_empty() {
        let mapped = counted(mapped, "tenant is mapped", "tenants are mapped");
        let detail = format!("{mapped}, {looked_up} looked up");
        findings.good("customers", detail);
    } else {
        let shown: Vec<&str> = unmapped.iter().take(5).map(String::as_str).collect();
        findings.bad(
            "customers",
            "missing",
            format!(
                "{} no customer, such as {}; pushes wait until PUT /v1/tenants/{{id}} gives one",
                counted(unmapped.len(), "tenant has", "tenants have"),
                shown.join(", ")
            ),
        );
    }
    Ok(())
}

/// A verdict in a word, in capitals if the window needs attention.
fn verdict(window: &ComparedWindow) -> String {
    let word = word(window.verdict);
    if window.verdict == WindowVerdict::Differs { word.to_uppercase() } else { word }
}

/// Says that the column of Stripe is a sum, if it is one.
fn print_customers(comparison: &ComparisonAnswer) {
    let former: Vec<&str> = comparison.customers.iter().skip(1).map(String::as_str).collect();
    if !former.is_empty() {
        let former = plain(&former.join(", "));
        println!("Stripe's totals of windows that were sent for {former} before are added\n");
    }
}

/// Who wrote usage off, and why.
fn print_notes(comparison: &ComparisonAnswer) {
    let noted = comparison.windows.iter().filter_map(|w| Some((&w.start, w.note.as_ref()?)));
    for (place, (start, note)) in noted.enumerate() {
        if place == 0 {
            println!("\nwritten off");
        }
        println!("  {start}: {}", plain(note));
    }
}

async fn compare(arguments: &CompareArguments) -> anyhow::Result<ExitCode> {
    let mut request = Request::get(&["v1", "comparison"]);
    request.query = given([
        ("tenant", Some(&arguments.tenant)),
        ("meter", Some(&arguments.meter)),
        ("from", arguments.from.as_ref()),
        ("to", arguments.to.as_ref()),
    ]);
    let body = Client::new(&arguments.server)?.call(&request).await?;
    let comparison: ComparisonAnswer = read(&body)?;
    let code =
        if comparison.differing == 0 { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FINDINGS) };
    if arguments.json {
        println!("{}", plain_json(&body));
        return Ok(code);
    }
    let header =
        ["window", "state", "", "ledger", "trial", "outside", "written off", "pushed", "Stripe"];
    let of = plain(&format!("{} ({})", arguments.tenant, comparison.customer));
    println!("{} of {of}\n", arguments.meter);
    print_customers(&comparison);
    let rows = comparison.windows.iter().map(|window| {
        [
            moment(window.start),
            cell(word(window.state)),
            cell(verdict(window)),
            cell(grouped(window.ledger)),
            cell(window.trial.map_or_else(String::new, grouped)),
            cell(window.outside.map_or_else(String::new, grouped)),
            cell(window.written_off.map_or_else(String::new, grouped)),
            cell(grouped(window.pushed)),
            cell(grouped(window.provider)),
        ]
    });
    print_table(header, 3, rows);
    print_notes(&comparison);
    match (comparison.windows.len(), comparison.differing) {
        (0, _) => println!("\nno usage on either side"),
        (windows, _) if comparison.windows.iter().all(|window| window.equal) => match windows {
            1 => println!("\nthe one window is equal"),
            _ => println!("\nall {windows} windows are equal"),
        },
        (windows, _) => {
            let mut counts: BTreeMap<String, usize> = BTreeMap::new();
            for window in &comparison.windows {
                *counts.entry(verdict(window)).or_default() += 1;
            }
            let shown: Vec<String> =
                counts.iter().map(|(verdict, count)| format!("{count} {verdict}")).collect();
            println!("\n{}: {}", counted(windows, "window", "windows"), shown.join(", "));
        }
    }
    Ok(code)
}
