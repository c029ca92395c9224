//! Tenants whose windows cannot be cut for what is stored of them.
//!
//! Invariant: a failing tenant and meter is logged once, when it begins to fail, and is stored for
//! as long as it fails, so that every server can show it. A crash leaves what was stored; the next
//! pass compares it with what it finds.

use super::CutJob;
use crate::rules::ids::{MeterNo, TenantId};
use crate::rules::meter::Catalog;
use crate::store::{self, webhook::Webhooks};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Where the list is stored.
const CURSOR: &str = "cut.failures";
/// Failures that are stored; with more than these something is wrong with the whole store.
const STORED_MAX: usize = 100;

/// A tenant's windows of a meter that cannot be cut.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutFailure {
    pub tenant: String,
    pub meter: String,
    pub error: String,
}

/// Why windows were to be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    Walk,
    Recut,
}

/// The last failure of each tenant and meter.
#[derive(Default)]
pub struct Failures(BTreeMap<(Cause, MeterNo), BTreeMap<TenantId, String>>);

impl Failures {
    /// Takes over what a whole walk over a meter, or the last look at all requests, has found.
    pub fn replace(&mut self, cause: Cause, meter: MeterNo, failed: BTreeMap<TenantId, String>) {
        let before = self.0.remove(&(cause, meter)).unwrap_or_default();
        for (tenant, error) in failed.iter().filter(|(tenant, _)| !before.contains_key(*tenant)) {
            let (tenant, meter_no) = (tenant.as_str(), meter.0);
            tracing::warn!(
                tenant,
                meter_no,
                error,
                "windows of tenant {tenant} cannot be cut and are not billed: {error}"
            );
        }
        for tenant in before.keys().filter(|tenant| !failed.contains_key(*tenant)) {
            tracing::info!(tenant = tenant.as_str(), "windows of tenant {tenant} are cut again");
        }
        if !failed.is_empty() {
            self.0.insert((cause, meter), failed);
        }
    }

    fn list(&self, catalog: &Catalog) -> Vec<CutFailure> {
        let slug = |meter| catalog.get(meter).map_or_else(String::new, |m| m.slug.to_string());
        let one = |(meter, tenant, error): (MeterNo, &TenantId, &String)| {
            let (tenant, error) = (tenant.to_string(), error.clone());
            CutFailure { tenant, meter: slug(meter), error }
        };
        let all = self.0.iter().flat_map(|((_, meter), failed)| {
            failed.iter().map(|(tenant, error)| (*meter, tenant, error))
        });
        all.take(STORED_MAX).map(one).collect()
    }
}

impl CutJob {
    /// Stores the failures if they differ from those stored before.
    pub(super) async fn show_failures(&self, catalog: &Catalog) -> store::Result<()> {
        let listed = self.memory().failures.list(catalog);
        if listed == read_failures(&*self.store).await? {
            return Ok(());
        }
        let text = serde_json::to_string(&listed).expect("texts are valid JSON");
        self.store.record_cursor(CURSOR, &text).await
    }
}

/// Windows that cannot be cut, as the last pass of any server has found them.
pub async fn read_failures(store: &dyn Webhooks) -> store::Result<Vec<CutFailure>> {
    let Some(text) = store.read_cursor(CURSOR).await? else { return Ok(Vec::new()) };
    serde_json::from_str(&text)
        .map_err(|_| store::Error::Corrupt { what: "the list of failing cuts".into() })
}
