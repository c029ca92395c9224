//! The demo's closing table: the generator's truth, the ledger and Stripe side by side.
//!
//! Invariant: a row has a mark only if its three numbers are the same text, or for several tenants,
//! if those of each are.

use super::Demo;
use super::report::{Ledger, mark};
use super::settling::Pushes;
use super::stripe::Story;
use super::traffic::{METERS, TENANTS, Truths, decimal, read_decimal};
use crate::cli::table::{cell, grouped, new_table};
use comfy_table::Table;
use std::cmp::Reverse;
use std::time::Duration;

/// Tenants of each meter that have a row of their own.
const LARGEST: usize = 5;

pub struct Comparison {
    rows: Vec<Row>,
    pushes: Pushes,
    story: Story,
    kills: u64,
    outage: Duration,
}

/// One tenant and meter.
struct Row {
    tenant: String,
    meter: &'static str,
    truth: i128,
    ledger: String,
    stripe: String,
}

impl Row {
    fn exact(&self) -> bool {
        let truth = decimal(self.truth);
        truth == self.ledger && truth == self.stripe
    }
}

impl Comparison {
    pub fn gather(
        demo: &Demo,
        truths: &Truths,
        ledger: &Ledger,
        pushes: Pushes,
    ) -> anyhow::Result<Self> {
        let at_stripe = demo.stripe.totals()?;
        let mut rows = Vec::new();
        for (place, meter) in METERS.iter().enumerate().filter(|(_, meter)| meter.billed.is_some())
        {
            let mut own = Vec::new();
            for (tenant, customer) in (0..TENANTS).zip(&demo.customers) {
                let truth = truths.get(&(tenant, place)).and_then(|t| t.value(meter.aggregation));
                let series = (customer.clone(), meter.slug.to_owned());
                own.push(Row {
                    tenant: demo.plan.tenant_name(tenant),
                    meter: meter.slug,
                    truth: truth.unwrap_or(0),
                    ledger: ledger.total(tenant, place),
                    stripe: at_stripe.get(&series).copied().unwrap_or_default().to_string(),
                });
            }
            own.sort_by_key(|row| Reverse(row.truth));
            rows.append(&mut own);
        }
        let seen = demo.seen();
        let (kills, outage) = (seen.kills, seen.outage);
        Ok(Self { rows, pushes, story: demo.stripe.story(), kills, outage })
    }

    pub fn exact(&self) -> bool {
        self.rows.iter().all(Row::exact) && self.pushes.open() == 0 && self.pushes.dead() == 0
    }

    pub fn print(&self) {
        println!(
            "\nWhat is billed: the generator's truth, the server's ledger, and Stripe's totals:"
        );
        let header = ["tenant", "meter", "generator's truth", "ledger", "Stripe", ""];
        let mut table = new_table(&header, 2);
        for meter in &METERS {
            let own: Vec<&Row> = self.rows.iter().filter(|row| row.meter == meter.slug).collect();
            let (largest, others) = own.split_at(own.len().min(LARGEST));
            for row in largest {
                add_row(&mut table, row.tenant.clone(), &[*row]);
            }
            if !own.is_empty() {
                add_row(&mut table, format!("{} others", others.len()), others);
                add_row(&mut table, format!("all {}", own.len()), &own);
            }
        }
        println!("{table}");
        self.print_story();
    }

    fn print_story(&self) {
        let Self { pushes, story, kills, .. } = self;
        let faults: u64 = story.faults.values().sum();
        println!(
            "Stripe was called {} times and was down once, for {} ms; the server was killed {kills} \
             times.\n{} calls failed on purpose:",
            grouped(story.calls),
            grouped(self.outage.as_millis()),
            grouped(faults),
        );
        let kinds: Vec<String> =
            story.faults.iter().map(|(kind, count)| format!("{} {count}", kind.name())).collect();
        for line in kinds.chunks(4) {
            println!("  {}", line.join(", "));
        }
        println!(
            "{} calls repeated one that had counted: Stripe knew their keys, and counted them \
             once.\n{} pushes of {} windows: {} are revisions, for events that came after their \
             window was billed.",
            grouped(story.repeats.replayed + story.repeats.refused),
            grouped(pushes.count()),
            grouped(pushes.windows()),
            grouped(pushes.revisions()),
        );
        let (open, dead) = (pushes.open(), pushes.dead());
        if open + dead > 0 {
            println!("{open} PUSHES ARE STILL OPEN AND {dead} ARE DEAD");
        }
    }
}

/// The rows as one.
fn add_row(table: &mut Table, tenant: String, rows: &[&Row]) {
    let Some(first) = rows.first() else { return };
    let sum = |number: fn(&Row) -> i128| grouped(decimal(rows.iter().map(|row| number(row)).sum()));
    table.add_row([
        cell(tenant),
        cell(first.meter),
        cell(sum(|row| row.truth)),
        cell(sum(|row| read_decimal(&row.ledger).unwrap_or(0))),
        cell(sum(|row| read_decimal(&row.stripe).unwrap_or(0))),
        cell(mark(rows.iter().all(|row| row.exact()))),
    ]);
}
