//! The meters as this server knows them: a copy of the store's catalog.
//!
//! Invariant: a meter in the copy counts as it does in the store, since a definition never
//! changes; the copy can only lack meters declared elsewhere. So it is read again when a meter is
//! not found, at most once in [`RELOAD_PAUSE`], and after each declaration made here.

use super::problem::{Kind, Problem};
use crate::rules::ids::MeterNo;
use crate::rules::meter::{Catalog, Meter};
use crate::store::{self, Declarations};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

/// Unknown slugs come in storms; the store is asked only once in this time.
const RELOAD_PAUSE: Duration = Duration::from_secs(1);

pub struct CatalogCache {
    store: Arc<dyn Declarations>,
    loaded: RwLock<Option<(Instant, Arc<Catalog>)>>,
}

impl CatalogCache {
    pub fn new(store: Arc<dyn Declarations>) -> Self {
        Self { store, loaded: RwLock::new(None) }
    }

    pub async fn current(&self) -> store::Result<Arc<Catalog>> {
        match self.loaded() {
            Some((_, catalog)) => Ok(catalog),
            None => self.reload().await,
        }
    }

    pub async fn reload(&self) -> store::Result<Arc<Catalog>> {
        let at = Instant::now();
        let catalog = Arc::new(self.store.load_catalog().await?);
        let mut loaded = self.loaded.write().expect("no holder of the catalog panics");
        // The answer to the later query wins: it lacks nothing the other has.
        if loaded.as_ref().is_none_or(|(before, _)| *before <= at) {
            *loaded = Some((at, Arc::clone(&catalog)));
        }
        Ok(catalog)
    }

    /// A newer catalog, unless the present one is too young to ask again.
    pub async fn renewed(&self) -> store::Result<Option<Arc<Catalog>>> {
        match self.loaded() {
            Some((at, _)) if at.elapsed() < RELOAD_PAUSE => Ok(None),
            Some(_) | None => self.reload().await.map(Some),
        }
    }

    /// The meter of this slug, or the problem that there is none.
    pub async fn find(&self, slug: &str) -> Result<(MeterNo, Arc<Meter>), Problem> {
        let found = |catalog: &Catalog| catalog.find(slug).map(|(no, meter)| (no, meter.clone()));
        if let Some(meter) = found(&*self.current().await?) {
            return Ok(meter);
        }
        let renewed = self.renewed().await?;
        renewed.as_deref().and_then(found).ok_or_else(unknown_meter)
    }

    fn loaded(&self) -> Option<(Instant, Arc<Catalog>)> {
        self.loaded.read().expect("no holder of the catalog panics").clone()
    }
}

pub fn unknown_meter() -> Problem {
    Problem::new(
        Kind::NotFound,
        "unknown_meter",
        "there is no meter of this slug; GET /v1/meters lists them, PUT /v1/meters/{slug} \
         declares one",
    )
}
