//! The keeper of a lease: renews it while its job works.
//!
//! A job calls [`Keeper::keep`] inside each of its loops. The lease is renewed when a third of its
//! span has passed since the last renewal, so one step of a loop may take up to two thirds of the
//! span.
//!
//! Invariant: a lease that `keep` calls lost was held by another server in the meantime; what this
//! job writes under the old fence is refused. A crash leaves the lease as it is, and it ends when
//! its span is over.

use crate::clock::Clock;
use crate::rules::timestamp::Timestamp;
use crate::store;
use crate::store::push::{Lease, Leases};

/// Which lease, for whom, and how long it lasts without renewal.
#[derive(Debug, Clone, Copy)]
pub struct LeaseTerms<'a> {
    pub name: &'static str,
    pub holder: &'a str,
    pub span_micros: i64,
}

pub struct Keeper<'a> {
    store: &'a dyn Leases,
    clock: &'a Clock,
    terms: LeaseTerms<'a>,
    lease: Lease,
    /// By the monotonic clock.
    renewed_at: Timestamp,
}

impl<'a> Keeper<'a> {
    /// Claims the lease; none while another server holds it.
    pub async fn claim(
        store: &'a dyn Leases,
        clock: &'a Clock,
        terms: LeaseTerms<'a>,
    ) -> store::Result<Option<Self>> {
        let now = clock.now();
        let claimed = claim(store, terms, now).await?;
        Ok(claimed.map(|lease| Self { store, clock, terms, lease, renewed_at: clock.monotonic() }))
    }

    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Renews the lease if a third of its span has passed; false if it was lost.
    pub async fn keep(&mut self) -> store::Result<bool> {
        let tick = self.clock.monotonic();
        if tick < self.renewed_at.saturating_add_micros(self.terms.span_micros / 3) {
            return Ok(true);
        }
        let claimed = claim(self.store, self.terms, self.clock.now()).await?;
        let kept = claimed.as_ref() == Some(&self.lease);
        self.renewed_at = tick;
        if !kept {
            self.warn_of_loss();
        }
        // If the other server's lease has ended already, the new one is released with this keeper.
        self.lease = claimed.unwrap_or_else(|| self.lease.clone());
        Ok(kept)
    }

    /// Says in the log that another server has taken the lease.
    pub fn warn_of_loss(&self) {
        let (lease, fence) = (self.terms.name, self.lease.fence);
        tracing::warn!(lease, fence, "the lease {lease} was lost to another server");
    }

    pub async fn release(self) -> store::Result<()> {
        self.store.release_lease(&self.lease).await
    }
}

async fn claim(
    store: &dyn Leases,
    LeaseTerms { name, holder, span_micros }: LeaseTerms<'_>,
    now: Timestamp,
) -> store::Result<Option<Lease>> {
    store.claim_lease(name, holder, now, now.saturating_add_micros(span_micros)).await
}
