//! Subscriptions, and which invoices are read: whether both sides know the same ones.
//!
//! Invariant: a subscription that only the provider has is reported and never made here: one whose
//! customer is no tenant, and one of a tenant that has no subscription record for it. One whose
//! state differs is read again, so that what is written has a version. Invoices of recent periods
//! are listed every night, and those that are not known, or known otherwise, are read; so their
//! comparison (`invoices`) needs no webhook. Nothing of a reading that was cut off is concluded; a
//! crash leaves that to the next pass.

use super::{PassError, ReconcileJob, Running, list_open_findings};
use crate::config::UnknownSubscriptions;
use crate::jobs::mirror::list_all;
use crate::provider::{Inbound, Unreadable};
use crate::rules::drift::{Reason, Verdict};
use crate::rules::finding::{Finding, FindingKind, Observation};
use crate::rules::ids::{SubscriptionId, TenantId};
use crate::rules::invoice::Invoice;
use crate::rules::mirror::{ObjectKind, ObjectName, Snapshot};
use crate::rules::pass::PassKind;
use crate::rules::quantity::Quantity;
use crate::rules::saga::SagaState;
use crate::rules::span::Span;
use crate::rules::subscription::Subscription;
use crate::store::saga::{SagaFilter, SubscriptionRecord};
use crate::store::{self, Query};
use std::collections::BTreeSet;

/// Invoices that are older were compared before and change no more.
pub const INVOICES_REACH: Span = Span::from_hours(40 * 24);

impl ReconcileJob {
    /// Compares subscriptions and invoices, as far as the pass is about them.
    pub(super) async fn compare_objects(&self, running: &mut Running) -> Result<(), PassError> {
        if running.pass.order.tenant.is_some() {
            return Ok(());
        }
        if running.pass.order.kind != PassKind::Hourly
            && let Some(inbound) = self.provider.inbound()
        {
            self.list_invoices(running, inbound).await?;
        }
        let open = list_open_findings(&*self.store, Some(FindingKind::Subscription)).await?;
        let observed = match (running.pass.order.kind, self.provider.inbound()) {
            // Findings are followed by what is read, not by what was known before.
            (PassKind::Hourly, _) | (_, None) if running.readings.are_missing() => None,
            (PassKind::Hourly, _) | (_, None) => Some(self.look_again(&open).await?),
            (PassKind::Nightly | PassKind::OneShot, Some(inbound)) => {
                self.compare_subscriptions(running, inbound).await?
            }
        };
        if let Some(observations) = observed {
            self.follow(running, &open, observations).await?;
        }
        self.compare_invoices(running).await
    }

    /// Asks for readings of recent invoices that no webhook named, or that have changed since.
    /// The hourly pass compares what was read then. A list that cannot be read is logged, and read
    /// again by the next night's pass.
    async fn list_invoices(
        &self,
        running: &mut Running,
        inbound: &dyn Inbound,
    ) -> Result<(), PassError> {
        let since = INVOICES_REACH.before(self.clock.now());
        loop {
            if !self.may_read(running.pass.order.kind, self.clock.now()) {
                return Err(PassError::Spent);
            }
            running.progress.reads += 1;
            let after = self.invoices_after.lock().expect("no holder panics").clone();
            let (invoices, next) = match inbound.list_invoices(since, after.as_deref()).await {
                Ok(page) => (page.invoices, page.next),
                Err(Unreadable { message }) => {
                    tracing::warn!(%message, "the provider's invoices cannot be read");
                    running.readings.lists_missed = true;
                    (Vec::new(), None)
                }
            };
            let mut unread = Vec::new();
            for (id, listed) in invoices {
                let name = ObjectName { kind: ObjectKind::Invoice, id };
                if self.lacks_invoice(&name, &listed).await? {
                    unread.push(name);
                }
            }
            self.store.want_mirrors(unread, self.clock.now()).await?;
            let ended = next.is_none();
            *self.invoices_after.lock().expect("no holder panics") = next;
            if ended {
                return Ok(());
            }
        }
    }

    /// Whether an invoice of a tenant is not mirrored as the list shows it, which is without lines.
    async fn lacks_invoice(&self, name: &ObjectName, listed: &Invoice) -> store::Result<bool> {
        if self.store.find_customer(&listed.customer).await?.is_none() {
            return Ok(false);
        }
        let mirror = self.store.find_mirror(name).await?;
        let Some(Snapshot::Invoice(known)) = mirror.map(|mirror| mirror.snapshot) else {
            return Ok(true);
        };
        Ok(Invoice { lines: Vec::new(), ..known } != *listed)
    }

    /// Walks the provider's list to its end; none if it could not be read.
    async fn compare_subscriptions(
        &self,
        running: &mut Running,
        inbound: &dyn Inbound,
    ) -> Result<Option<Vec<Observation>>, PassError> {
        let mut observations = Vec::new();
        let mut seen = BTreeSet::new();
        let mut after: Option<String> = None;
        loop {
            running.progress.reads += 1;
            let page = match inbound.list_subscriptions(after.as_deref()).await {
                Ok(page) => page,
                Err(Unreadable { message }) => {
                    tracing::warn!(%message, "the provider's subscriptions cannot be read");
                    running.readings.lists_missed = true;
                    return Ok(None);
                }
            };
            let mut unknown = Vec::new();
            for (id, subscription) in page.subscriptions {
                self.keep_lease(running).await?;
                let name = ObjectName { kind: ObjectKind::Subscription, id: id.clone() };
                let judged = self.judge_subscription(&name, &subscription).await?;
                unknown.extend(judged.read_again.then_some(name));
                observations.extend(judged.observation);
                seen.insert(id);
            }
            self.store.want_mirrors(unknown, self.clock.now()).await?;
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let mut lacking = Vec::new();
        for mirror in list_all(&*self.store, ObjectKind::Subscription, None).await? {
            if !seen.contains(&mirror.name.id) && !has_ended(mirror.snapshot.status()) {
                let detail = "the provider's list lacks it".to_owned();
                let (verdict, reason) = (Verdict::Undecidable, Reason::OneSided);
                observations.push(observe(&mirror.name.id, None, (verdict, reason), detail));
                lacking.push(mirror.name);
            }
        }
        // It may be gone, or have come while the list was read; reading it tells.
        self.store.want_mirrors(lacking, self.clock.now()).await?;
        Ok(Some(observations))
    }

    async fn judge_subscription(
        &self,
        name: &ObjectName,
        listed: &Subscription,
    ) -> store::Result<JudgedSubscription> {
        let mirror = self.store.find_mirror(name).await?;
        let known = mirror.as_ref().map(|mirror| &mirror.snapshot);
        let same = known == Some(&Snapshot::Subscription(listed.clone()));
        let tenant = self.store.find_customer(&listed.customer).await?;
        let unmanaged = match &tenant {
            Some(tenant) if !has_ended(&listed.status) => {
                self.is_unmanaged(&tenant.id, &name.id).await?
            }
            Some(_) | None => false,
        };
        let observation = match (&tenant, known) {
            (Some(tenant), _) if unmanaged => {
                let (id, status) = (tenant.id.clone(), &listed.status);
                let detail = format!(
                    "it is {status}, and {id} has no subscription record for it: nothing here grants or ends \
                     what it pays for; accept it as it is with counterfoil findings --accept, or \
                     cancel it at the provider"
                );
                Some(observe(&name.id, Some(id), (Verdict::Bypass, Reason::OneSided), detail))
            }
            (None, _) if !has_ended(&listed.status) => {
                let customer = &listed.customer;
                let detail = format!(
                    "customer {customer} is no tenant here; its usage is billed by nobody: PUT \
                     /v1/tenants/{{id}} with \"customer\": \"{customer}\", or cancel it"
                );
                Some(observe(&name.id, None, (Verdict::Bypass, Reason::OneSided), detail))
            }
            (Some(tenant), Some(known)) if !same => {
                let (was, is) = (known.status(), &listed.status);
                let detail = format!("it was {was} here and is {is} at the provider");
                let verdict = (Verdict::Waiting, Reason::Status);
                Some(observe(&name.id, Some(tenant.id.clone()), verdict, detail))
            }
            (Some(_) | None, _) => None,
        };
        Ok(JudgedSubscription { observation, read_again: !same })
    }

    /// Whether no subscription record here belongs to a tenant's subscription, though one should.
    /// While a saga of the tenant is under way it may be about to record it, or to cancel it.
    async fn is_unmanaged(&self, tenant: &TenantId, id: &str) -> store::Result<bool> {
        if self.settings.unknown_subscriptions == UnknownSubscriptions::Ignore {
            return Ok(false);
        }
        let now = self.clock.now();
        // An id that no subscription record could name has none.
        let record = match SubscriptionId::parse(id) {
            Ok(id) => self.store.find_subscription_record(&id).await?,
            Err(_) => None,
        };
        let in_force = |record: SubscriptionRecord| record.ended_at.is_none_or(|end| now < end);
        if record.is_some_and(in_force) || self.store.is_accepted(id).await? {
            return Ok(false);
        }
        for state in [SagaState::Running, SagaState::Compensating] {
            let (tenant, state) = (Some(tenant.clone()), Some(state));
            let query = Query::first(SagaFilter { tenant, state }, 1);
            if !self.store.list_sagas(query).await?.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What has become of open findings, by what is known here.
    async fn look_again(&self, open: &[Finding]) -> store::Result<Vec<Observation>> {
        let mut observations = Vec::new();
        for finding in open {
            let name =
                ObjectName { kind: ObjectKind::Subscription, id: finding.seen.subject.clone() };
            let Some(mirror) = self.store.find_mirror(&name).await? else {
                observations.push(finding.seen.clone());
                continue;
            };
            let still = if finding.seen.reason == Reason::Status {
                // It was to be read again, and was.
                mirror.read_at < finding.opened_at
            } else {
                let tenant = match mirror.snapshot.customer() {
                    Some(customer) => self.store.find_customer(customer).await?,
                    None => None,
                };
                let nothing_belongs = match (&tenant, &finding.seen.tenant) {
                    (None, _) => true,
                    // It was of nobody then; the next night's pass looks for a subscription record.
                    (Some(_), None) => false,
                    (Some(tenant), Some(_)) => {
                        self.is_unmanaged(&tenant.id, &finding.seen.subject).await?
                    }
                };
                nothing_belongs && !has_ended(mirror.snapshot.status())
            };
            observations.extend(still.then(|| finding.seen.clone()));
        }
        Ok(observations)
    }
}

struct JudgedSubscription {
    observation: Option<Observation>,
    read_again: bool,
}

pub fn observe(
    id: &str,
    tenant: Option<TenantId>,
    (verdict, reason): (Verdict, Reason),
    detail: String,
) -> Observation {
    Observation {
        kind: FindingKind::Subscription,
        tenant,
        meter: None,
        subject: id.to_owned(),
        verdict,
        reason,
        ledger: Quantity::ZERO,
        provider: Quantity::ZERO,
        detail,
    }
}

fn has_ended(status: &str) -> bool {
    matches!(status, "canceled" | "incomplete_expired" | "gone")
}
