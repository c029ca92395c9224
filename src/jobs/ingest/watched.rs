//! Tenants and meters with thresholds, and which of them have just used something.
//!
//! Invariant: a commit that counts an event of a watched tenant and meter marks it before the
//! verdict is given. With nothing watched, a commit pays one load of a flag. A crash forgets the
//! marks; every threshold is looked at after a start.

use crate::rules::event::Event;
use crate::rules::ids::{MeterNo, TenantId};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, RwLock};
use tokio::sync::Notify;

type PairSet = HashSet<(TenantId, MeterNo)>;

#[derive(Default)]
pub struct Watched {
    any: AtomicBool,
    pairs: RwLock<PairSet>,
    touched: Mutex<PairSet>,
    marked: Notify,
}

impl Watched {
    /// Sets what is watched.
    pub fn watch(&self, pairs: PairSet) {
        self.any.store(!pairs.is_empty(), Ordering::SeqCst);
        *self.pairs.write().expect("no holder panics") = pairs;
    }

    /// The watched ones among these events, to be marked once they are counted.
    pub fn among(&self, events: &[Event]) -> PairSet {
        if !self.any.load(Ordering::Relaxed) {
            return PairSet::new();
        }
        let pairs = self.pairs.read().expect("no holder panics");
        let own = events.iter().map(|event| (event.tenant.clone(), event.meter));
        own.filter(|pair| pairs.contains(pair)).collect()
    }

    pub fn mark(&self, pairs: PairSet) {
        if !pairs.is_empty() {
            self.touched.lock().expect("no holder panics").extend(pairs);
            self.marked.notify_one();
        }
    }

    /// Takes the marks off and returns them.
    pub fn take(&self) -> PairSet {
        std::mem::take(&mut self.touched.lock().expect("no holder panics"))
    }

    /// Waits until something is marked.
    pub async fn marked(&self) {
        self.marked.notified().await;
    }
}
