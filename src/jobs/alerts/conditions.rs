//! What each kind of alert looks at.

use super::AlertsJob;
use crate::jobs::cut::{CutFailure, read_failures};
use crate::jobs::mirror::list_all;
use crate::jobs::reconcile::list_open_findings;
use crate::jobs::watch::{OBSERVED_LONG, SUBMITTED_LONG};
use crate::rules::activity::{
    HOURS, judge_conflicts, judge_quarantine, judge_silence, signs_of_life,
};
use crate::rules::alert::{Alert, AlertKind, Condition};
use crate::rules::command::{curl, shell_option, shell_word, url_part};
use crate::rules::digest::{digest_fields, hex};
use crate::rules::finding::{Finding, FindingKind};
use crate::rules::ids::{MeterNo, TenantId};
use crate::rules::invoice::{Dunning, Invoice, judge_dunning};
use crate::rules::meter::Catalog;
use crate::rules::mirror::{ObjectKind, Snapshot};
use crate::rules::pass::{PassKind, PassState};
use crate::rules::quantity::Quantity;
use crate::rules::saga::{Saga, SagaState};
use crate::rules::self_check::Mismatch;
use crate::rules::span::Span;
use crate::rules::submission::{Class, PushState};
use crate::rules::timestamp::{MICROS_PER_HOUR, Timestamp};
use crate::rules::verdict::Tally;
use crate::rules::window::Window;
use crate::store::list::PAGE;
use crate::store::push::{Push, PushAges, PushFilter, UnmappedSum, UnsentUsage};
use crate::store::reconciliation::PassFilter;
use crate::store::saga::SagaFilter;
use crate::store::self_check::{KeptMismatch, MISMATCHES_MAX};
use crate::store::webhook::Mirror;
use crate::store::{self, Health, Query};
use std::collections::{BTreeMap, BTreeSet};

/// How long before an invoice is fixed open pushes are worth a call.
const FINALIZATION_BEFORE: Span = Span::from_minutes(30);
/// The passes of two hours read the totals twice and send again what did not count; what is dead
/// for longer needs an operator.
const HEALED_WITHIN: Span = Span::from_hours(4);
/// Webhooks whose objects could not be read for so long need an operator.
const WEBHOOKS_LONG: Span = Span::from_minutes(10);
/// A day is compared 5 hours after its end; the pass may take a day and a half.
const NIGHTLY_LATE: Span = Span::from_hours(5 + 36);
/// How long the alert about days that were not compared stays open.
const SKIPPED_SHOWN: Span = Span::from_hours(7 * 24);
const FAILED_MAX: usize = 20;
/// How long usage that was too old to be sent is shown as an alert; its sum stays in the figures.
const UNSENT_SHOWN: Span = Span::from_hours(7 * 24);

/// A number with its noun, and the verb that goes with it.
fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn condition(kind: AlertKind, subject: &str, summary: String, command: &str) -> Condition {
    Condition { kind, subject: subject.to_owned(), summary, command: command.to_owned() }
}

/// A write-ahead log of this size is worth a look: it should not outgrow 128 MiB.
const LOG_BYTES_LARGE: u64 = 1024 * 1024 * 1024;

/// What the store says of itself.
pub(super) fn store_health(health: &Health) -> Vec<Condition> {
    let Health { fold_stopped, unfolded_events, log_bytes, .. } = health;
    let mut found = Vec::new();
    if let Some(why) = fold_stopped {
        let summary = format!(
            "events are not folded, or their totals not merged, any more ({why}); \
             {unfolded_events} events are in the journal only"
        );
        found.push(condition(AlertKind::FoldStopped, "", summary, "counterfoil check"));
    }
    if *log_bytes >= LOG_BYTES_LARGE {
        let mebibytes = log_bytes / (1024 * 1024);
        let summary =
            format!("the write-ahead log has {mebibytes} MiB: a read transaction holds it");
        let command = "fuser -v DATA-DIRECTORY/counterfoil.db";
        found.push(condition(AlertKind::LogLarge, "", summary, command));
    }
    found
}

/// Invariants that the process of this name found violated.
pub(super) fn faults(server: &str, health: &Health) -> Vec<Condition> {
    let describe = |fault: &String| {
        let digest = hex(&digest_fields([fault.as_bytes()])[..8]);
        let subject = format!("{server}/{digest}");
        let summary = format!("an invariant is violated, and the operation was aborted: {fault}");
        condition(AlertKind::InternalFault, &subject, summary, "counterfoil check")
    };
    health.faults.iter().map(describe).collect()
}

/// Windows of an alert each; of further ones an alert tells the number.
const MISMATCHES_SHOWN: usize = 20;

/// One condition for each window that does not agree, and one for the rest of them.
fn mismatched(kept: &[KeptMismatch]) -> Vec<Condition> {
    let kind = AlertKind::SelfCheckMismatch;
    let mut windows: Vec<(String, &KeptMismatch, u64)> = Vec::new();
    for one in kept {
        let Mismatch { tenant, meter, window, .. } = &one.mismatch;
        let subject = format!("{tenant}/{meter}/{}", window.start);
        match windows.iter_mut().find(|(other, _, _)| *other == subject) {
            Some((_, _, more)) => *more += 1,
            None => windows.push((subject, one, 0)),
        }
    }
    let shown = windows.iter().take(MISMATCHES_SHOWN).map(|(subject, one, more)| {
        let mut summary = one.mismatch.to_string();
        if *more > 0 {
            summary.push_str(&format!(", and {}", counted(*more, "group more", "groups more")));
        }
        condition(kind, subject, summary, "counterfoil check")
    });
    let mut found: Vec<Condition> = shown.collect();
    if let Some(more) = windows.len().checked_sub(MISMATCHES_SHOWN).filter(|more| *more > 0) {
        let windows = if more == 1 { "window has" } else { "windows have" };
        let summary = format!("{more} more {windows} a total that its events do not add up to");
        found.push(condition(kind, "", summary, "counterfoil check"));
    }
    found
}

impl AlertsJob {
    /// Windows that do not agree with their events, and whether all were compared.
    pub(super) async fn self_check(&self, now: Timestamp) -> store::Result<Vec<Condition>> {
        let mut found = mismatched(&self.store.list_mismatches(MISMATCHES_MAX).await?);
        let why = match self.store.read_self_check().await {
            Ok(check) => check.not_done(now),
            // What it knew cannot be read: nothing is known to agree, and other alerts go on.
            Err(error) if error.is_of_data() => Some(error.to_string()),
            Err(error) => return Err(error),
        };
        let shown = |why| condition(AlertKind::SelfCheckIncomplete, "", why, "counterfoil check");
        found.extend(why.map(shown));
        Ok(found)
    }

    /// Pushes that wait for too long, dead letters, and what is unbilled.
    pub(super) async fn pushes(
        &self,
        now: Timestamp,
        open: &[Alert],
    ) -> store::Result<Vec<Condition>> {
        let ages = PushAges {
            observed_before: OBSERVED_LONG.before(now),
            submitted_before: SUBMITTED_LONG.before(now),
        };
        let counts = self.store.count_pushes(ages).await?;
        let mut found = Vec::new();
        if counts.observed_long > 0 {
            let count = counts.observed_long;
            let pushes = counted(count, "push was", "pushes were");
            let summary = format!("{pushes} not taken by the provider for 5 minutes");
            let command = "counterfoil pushes --state observed";
            found.push(condition(AlertKind::PushesObservedLong, "", summary, command));
        }
        if counts.submitted_long > 0 {
            let count = counts.submitted_long;
            let pushes = counted(count, "push does", "pushes do");
            let summary = format!("{pushes} not show in the provider's totals for an hour");
            let command = "counterfoil pushes --state submitted";
            found.push(condition(AlertKind::PushesSubmittedLong, "", summary, command));
        }
        let healing = self.healing(now).await?;
        let dead = counts.dead.saturating_sub(u64::try_from(healing.len()).unwrap_or(u64::MAX));
        if dead > 0 {
            let summary = format!("{} an operator", counted(dead, "push needs", "pushes need"));
            let command = "counterfoil pushes --state dead";
            found.push(condition(AlertKind::DeadLetters, "", summary, command));
        }
        let catalog = self.store.load_catalog().await?;
        found.extend(self.unmapped(&catalog, &counts.without_customer, (now, open)));
        found.extend(self.unsent(&catalog, now).await?);
        for (number, mut quantity) in counts.unbilled {
            let Some(meter) = catalog.get(number) else { continue };
            for push in healing.iter().filter(|push| push.meter == number) {
                quantity = quantity.checked_sub(push.quantity).unwrap_or(quantity);
            }
            if quantity == Quantity::ZERO {
                continue;
            }
            let slug = meter.slug.as_str();
            let summary = format!("{quantity} of {slug} were counted and are not billed");
            let command = format!("counterfoil pushes --state dead --meter {slug}");
            found.push(condition(AlertKind::Unbilled, slug, summary, &command));
        }
        Ok(found)
    }

    /// Usage of tenants without a customer, by meter; a page once the notice is open for long.
    fn unmapped(
        &self,
        catalog: &Catalog,
        sums: &BTreeMap<MeterNo, UnmappedSum>,
        (now, open): (Timestamp, &[Alert]),
    ) -> Vec<Condition> {
        let mut found = Vec::new();
        for (number, UnmappedSum { tenants, quantity, .. }) in sums {
            let Some(meter) = catalog.get(*number) else { continue };
            let slug = meter.slug.as_str();
            let summary =
                format!("{quantity} of {slug} by {tenants} tenants without a customer is not sent");
            let command = format!("counterfoil pushes --state waiting --meter {slug}");
            let unmapped_long = |alert: &&Alert| {
                let long = self.unmapped_after.after(alert.opened_at) <= now;
                alert.kind == AlertKind::UsageUnmapped && alert.subject == slug && long
            };
            let pages = self.unmapped_after.micros() > 0;
            if let Some(alert) = open.iter().find(unmapped_long).filter(|_| pages) {
                let summary = format!("{summary} since {}", alert.opened_at);
                found.push(condition(AlertKind::UsageUnmappedLong, slug, summary, &command));
            }
            found.push(condition(AlertKind::UsageUnmapped, slug, summary, &command));
        }
        found
    }

    /// Usage that was too old to be sent when its tenant got a customer: one figure each.
    async fn unsent(&self, catalog: &Catalog, now: Timestamp) -> store::Result<Vec<Condition>> {
        let mut found = Vec::new();
        for usage in self.store.list_unsent_usage(UNSENT_SHOWN.before(now), PAGE).await? {
            let UnsentUsage { tenant, meter, pushes, quantity } = usage;
            let Some(meter) = catalog.get(meter) else { continue };
            let slug = meter.slug.as_str();
            let pushes = counted(pushes, "push", "pushes");
            let summary = format!(
                "{quantity} of {slug} by {tenant} ({pushes}) was too old to be sent when the \
                 tenant got a customer"
            );
            let command = format!("counterfoil usage {} --meter {slug}", of_tenant(&tenant));
            let subject = format!("{tenant}/{slug}");
            found.push(condition(AlertKind::UsageUnsent, &subject, summary, &command));
        }
        Ok(found)
    }

    /// Dead pushes that the next pass sends again by itself.
    async fn healing(&self, now: Timestamp) -> store::Result<Vec<Push>> {
        let (state, class) = (Some(PushState::Dead), Some(Class::Absent));
        let lost = PushFilter { state, class, ..PushFilter::default() };
        let mut pushes = self.store.list_pushes(Query::first(lost, PAGE)).await?;
        pushes.retain(|push| !push.shadow && now < HEALED_WITHIN.after(push.state_at));
        Ok(pushes)
    }

    /// Findings that were still there after the next pass: one alert for a tenant and meter.
    pub(super) async fn findings(&self) -> store::Result<Vec<Condition>> {
        let catalog = self.store.load_catalog().await?;
        let mut found: BTreeMap<(AlertKind, String), Condition> = BTreeMap::new();
        for finding in list_open_findings(&*self.store, None).await? {
            if finding.paged_at.is_none() {
                continue;
            }
            let meter = finding.seen.meter.and_then(|meter| catalog.get(meter));
            let slug = meter.map_or("", |meter| meter.slug.as_str());
            let one = describe(&finding, slug);
            found.entry((one.kind, one.subject.clone())).or_insert(one);
        }
        Ok(found.into_values().collect())
    }

    /// Windows that cannot be cut.
    pub(super) async fn cuts(&self) -> store::Result<Vec<Condition>> {
        let describe = |CutFailure { tenant, meter, error }: CutFailure| {
            let subject = format!("{tenant}/{meter}");
            let summary = format!("usage of {meter} by {tenant} cannot be cut: {error}");
            condition(AlertKind::CutFailing, &subject, summary, "counterfoil check")
        };
        Ok(read_failures(&*self.store).await?.into_iter().map(describe).collect())
    }

    /// Sagas that can neither go on nor back.
    pub(super) async fn sagas(&self) -> store::Result<Vec<Condition>> {
        let state = Some(SagaState::NeedsAttention);
        let stopped = Query::first(SagaFilter { tenant: None, state }, PAGE);
        let stuck = self.store.list_sagas(stopped).await?;
        let describe = |saga: Saga| {
            let Saga { id, kind, tenant, detail, .. } = saga;
            let why = detail.unwrap_or_default();
            let summary = format!("{} of {tenant} needs an operator: {why}", kind.name());
            let command = format!("counterfoil sagas show {}", shell_word(&id));
            condition(AlertKind::SagaNeedsAttention, &id, summary, &command)
        };
        Ok(stuck.into_iter().map(describe).collect())
    }

    /// Drafts that are about to be fixed, and payments that failed.
    pub(super) async fn invoices(&self, now: Timestamp) -> store::Result<Vec<Condition>> {
        let mut found = Vec::new();
        for Mirror { name, snapshot, .. } in
            list_all(&*self.store, ObjectKind::Invoice, Some("draft")).await?
        {
            let Snapshot::Invoice(invoice) = snapshot else { continue };
            let near = |at: Timestamp| now >= FINALIZATION_BEFORE.before(at);
            if invoice.finalizes_at.is_some_and(near) {
                found.extend(self.finalization(&name.id, &invoice).await?);
            }
        }
        for Mirror { name, snapshot, .. } in
            list_all(&*self.store, ObjectKind::Invoice, Some("open")).await?
        {
            let Snapshot::Invoice(invoice) = snapshot else { continue };
            if judge_dunning(&invoice) == Dunning::Failing {
                let (customer, attempts) = (&invoice.customer, invoice.attempt_count);
                let id = &name.id;
                let summary = format!("invoice {id} of {customer} was not paid: try {attempts}");
                let command = format!(
                    "counterfoil webhooks --type invoice.payment_failed # {}",
                    shell_word(id)
                );
                found.push(condition(AlertKind::PaymentFailed, id, summary, &command));
            }
        }
        Ok(found)
    }

    /// A draft that is fixed soon, while usage of its period is not at the provider.
    async fn finalization(&self, id: &str, invoice: &Invoice) -> store::Result<Option<Condition>> {
        let Some(tenant) = self.store.find_customer(&invoice.customer).await? else {
            return Ok(None);
        };
        let mut open = 0;
        for state in [PushState::Observed, PushState::Dead] {
            let filter = PushFilter {
                tenant: Some(tenant.id.clone()),
                state: Some(state),
                range: Some(invoice.period),
                ..PushFilter::default()
            };
            let pushes = self.store.list_pushes(Query::first(filter, PAGE)).await?;
            open += pushes.iter().map(|push| u64::from(!push.shadow)).sum::<u64>();
        }
        let Some(at) = invoice.finalizes_at.filter(|_| open > 0) else { return Ok(None) };
        let tenant = tenant.id;
        let pushes = counted(open, "push of its period is", "pushes of its period are");
        let summary = format!(
            "invoice {id} of {tenant} is finalized at {at}, and {pushes} not at the provider"
        );
        let command = format!("counterfoil pushes {}", of_tenant(&tenant));
        Ok(Some(condition(AlertKind::FinalizationNear, id, summary, &command)))
    }

    pub(super) async fn customers(&self) -> store::Result<Vec<Condition>> {
        let mut found = Vec::new();
        for mirror in list_all(&*self.store, ObjectKind::Customer, Some("deleted")).await? {
            let Ok(customer) = crate::rules::ids::CustomerId::parse(&mirror.name.id) else {
                continue;
            };
            let Some(tenant) = self.store.find_customer(&customer).await? else { continue };
            let tenant = tenant.id;
            let summary = format!(
                "customer {customer} of {tenant} was deleted at the provider; its usage cannot be \
                 billed"
            );
            let command = format!("counterfoil pushes {}", of_tenant(&tenant));
            found.push(condition(AlertKind::CustomerDeleted, customer.as_str(), summary, &command));
        }
        Ok(found)
    }

    pub(super) async fn webhooks(&self, now: Timestamp) -> store::Result<Option<Condition>> {
        let counts = self.store.count_webhooks().await?;
        let long = |since: &Timestamp| WEBHOOKS_LONG.after(*since) <= now;
        Ok(counts.waiting_since.filter(long).map(|since| {
            let summary = format!(
                "{} webhooks wait since {since}: the provider's objects cannot be read",
                counts.waiting
            );
            let command = "counterfoil webhooks --status waiting";
            condition(AlertKind::WebhooksWaiting, "", summary, command)
        }))
    }

    /// Days that no nightly pass has compared: the last ones, where passes are late, and those that
    /// a pass failed over or skipped lately.
    pub(super) async fn nights(&self, now: Timestamp) -> store::Result<Vec<Condition>> {
        let list = |state, limit| {
            let nightly = PassFilter { kind: Some(PassKind::Nightly), state };
            self.store.list_passes(Query::first(nightly, limit))
        };
        let command = "counterfoil passes --kind nightly";
        let mut found = Vec::new();
        let closed = list(Some(PassState::Closed), 1).await?.pop();
        let newest = list(None, 1).await?.pop();
        let compared = match (&closed, &newest) {
            (Some(closed), _) => Some(closed.order.range.end),
            (None, Some(newest)) => Some(newest.created_at),
            (None, None) => None,
        };
        if let Some(end) = compared.filter(|end| now >= NIGHTLY_LATE.after(*end)) {
            let summary = format!(
                "no nightly pass has compared all that was used since {end}; it takes too long, the \
                 provider cannot be read, or reconcile.reads_per_hour is too small"
            );
            found.push(condition(AlertKind::NightlyLate, "", summary, command));
        }
        for pass in list(Some(PassState::Failed), FAILED_MAX).await? {
            if now < SKIPPED_SHOWN.after(pass.created_at) {
                let (number, why) = (pass.number, pass.detail.unwrap_or_default());
                let summary = format!("nightly pass {number} compared nothing: {why}");
                let subject = format!("pass {number}");
                found.push(condition(AlertKind::NightlyLate, &subject, summary, command));
            }
        }
        Ok(found)
    }

    /// Conflicts of the last hours, and tenants that have fallen silent.
    pub(super) async fn activity(
        &self,
        now: Timestamp,
        open: &[Alert],
    ) -> store::Result<Vec<Condition>> {
        let hour = now.micros().div_euclid(MICROS_PER_HOUR);
        let hours = i64::try_from(HOURS).expect("a day and a few hours");
        let at = |hour: i64| Timestamp::from_micros(hour * MICROS_PER_HOUR);
        let range = Window { start: at(hour - hours), end: at(hour + 1) };
        let mut sent: BTreeMap<TenantId, [u64; HOURS]> = BTreeMap::new();
        let mut lately: BTreeMap<TenantId, Tally> = BTreeMap::new();
        let mut awake: BTreeSet<TenantId> = BTreeSet::new();
        for row in self.store.read_counters(range).await? {
            let Some(tenant) = row.tenant else { continue };
            let place = row.hour.micros().div_euclid(MICROS_PER_HOUR) - (hour - hours);
            let place = usize::try_from(place).unwrap_or(HOURS);
            if place + 1 >= HOURS {
                lately.entry(tenant.clone()).or_default().merge(&row.tally);
            }
            let hours = sent.entry(tenant.clone()).or_insert([0; HOURS]);
            match hours.get_mut(place) {
                Some(count) => *count += signs_of_life(&row.tally),
                // What is counted in this very hour ends its silence.
                None if signs_of_life(&row.tally) > 0 => drop(awake.insert(tenant)),
                None => {}
            }
        }
        let was_silent = |tenant: &TenantId| {
            let silent = |alert: &&Alert| alert.kind == AlertKind::Silence;
            open.iter().filter(silent).any(|alert| alert.subject == tenant.as_str())
        };
        for alert in open.iter().filter(|alert| alert.kind == AlertKind::Silence) {
            let tenant = TenantId::parse(&alert.subject).ok();
            sent.extend(
                tenant.filter(|tenant| !sent.contains_key(tenant)).map(|t| (t, [0; HOURS])),
            );
        }
        let silent = |(tenant, hours): &(&TenantId, &[u64; HOURS])| {
            !awake.contains(*tenant) && judge_silence(hours, was_silent(tenant))
        };
        let mut found: Vec<Condition> = sent
            .iter()
            .filter(silent)
            .map(|(tenant, _)| {
                let summary =
                    format!("events of {tenant} were counted every hour and then none for 3 hours");
                let command =
                    curl(&format!("/v1/events?tenant={}&limit=1", url_part(tenant.as_str())));
                condition(AlertKind::Silence, tenant.as_str(), summary, &command)
            })
            .collect();
        found.extend(lately.iter().filter(|(_, tally)| judge_conflicts(tally)).map(
            |(tenant, tally)| {
                let (conflicts, received) = (tally.conflicts, tally.received());
                let summary = format!(
                    "{conflicts} of {received} events of {tenant} reused the id of an event with \
                     another payload"
                );
                let command = curl(&format!("/v1/conflicts?tenant={}", url_part(tenant.as_str())));
                condition(AlertKind::ConflictRate, tenant.as_str(), summary, &command)
            },
        ));
        found.extend(quarantined(&lately));
        Ok(found)
    }
}

/// Tenants of which many events are kept and not counted.
fn quarantined(lately: &BTreeMap<TenantId, Tally>) -> impl Iterator<Item = Condition> {
    lately.iter().filter(|(_, tally)| judge_quarantine(tally)).map(|(tenant, tally)| {
        let (quarantined, received) = (tally.quarantined, tally.received());
        let summary = format!(
            "{quarantined} of {received} events of {tenant} were too old, too far ahead or of too \
             many groups, and are not counted"
        );
        let command = curl(&format!("/v1/quarantine?tenant={}", url_part(tenant.as_str())));
        condition(AlertKind::QuarantineRate, tenant.as_str(), summary, &command)
    })
}

fn of_tenant(tenant: &TenantId) -> String {
    shell_option("--tenant", tenant.as_str())
}

fn describe(finding: &Finding, slug: &str) -> Condition {
    let seen = &finding.seen;
    let tenant = seen.tenant.as_ref().map_or("", TenantId::as_str);
    let (reason, id) = (seen.reason.name(), &seen.subject);
    match seen.kind {
        FindingKind::Usage => {
            let (ledger, provider) = (seen.ledger, seen.provider);
            let summary = format!(
                "{slug} of {tenant}: ledger {ledger}, provider {provider} in {id} ({reason})"
            );
            let command = format!("counterfoil findings {}", shell_option("--tenant", tenant));
            condition(AlertKind::DriftUnresolved, &format!("{tenant}/{slug}"), summary, &command)
        }
        FindingKind::Subscription => {
            let summary = format!("subscription {id}: {}", seen.detail);
            let command = "counterfoil findings --kind subscription";
            condition(AlertKind::UnknownSubscription, id, summary, command)
        }
        FindingKind::Invoice => {
            let summary = format!("invoice {id} of {tenant}: {}", seen.detail);
            let command = "counterfoil findings --kind invoice";
            condition(AlertKind::InvoiceDrift, id, summary, command)
        }
    }
}
