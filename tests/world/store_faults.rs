//! Faults of a store that tests switch on and off.

use counterfoil::store::faulty::{Fault, Faulty};
use counterfoil::store::{Error, Store};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::RwLock;

#[derive(Default)]
pub struct StoreFaults {
    down: AtomicBool,
    /// What deliveries fail with while the store is otherwise up.
    pub deliveries: Mutex<Option<Error>>,
    /// How often API keys cannot be read from now on.
    pub api_key_failures: AtomicUsize,
    /// Webhooks are not written while it is held for writing.
    pub webhooks_gate: RwLock<()>,
    /// Grants that were read are not returned while it is held for writing.
    pub grants_gate: RwLock<()>,
    /// How often grants were read.
    pub grants_read: AtomicUsize,
}

impl StoreFaults {
    /// The store with these faults, all of them off.
    pub fn around(store: Arc<dyn Store>) -> (Arc<dyn Store>, Arc<Self>) {
        let faults = Arc::new(Self::default());
        let hook = Arc::clone(&faults);
        (Faulty::new(store, move |verb| hook.fault(verb)), faults)
    }

    /// While it is down, every verb is unavailable.
    pub fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    fn fault(self: &Arc<Self>, verb: &'static str) -> Fault {
        let faults = Arc::clone(self);
        let unavailable = || Error::Unavailable { what: "secret detail of the disk".into() };
        if self.down.load(Ordering::SeqCst) {
            return Fault::FailBefore(unavailable());
        }
        match verb {
            "record_deliveries" => {
                let error = self.deliveries.lock().unwrap().clone();
                error.map_or(Fault::None, Fault::FailBefore)
            }
            "list_api_keys" => {
                let left = self.api_key_failures.fetch_update(
                    Ordering::SeqCst,
                    Ordering::SeqCst,
                    |left| left.checked_sub(1),
                );
                left.map_or(Fault::None, |_| Fault::FailBefore(unavailable()))
            }
            "record_webhooks" => Fault::StallBefore(Box::pin(async move {
                drop(faults.webhooks_gate.read().await);
            })),
            "list_grants" => Fault::StallAfter(Box::pin(async move {
                faults.grants_read.fetch_add(1, Ordering::SeqCst);
                drop(faults.grants_gate.read().await);
            })),
            _ => Fault::None,
        }
    }
}
