//! Memory that requests may hold at once: in all, and by one tenant or key.
//!
//! Invariant: what was taken is given back when its [`Share`] is dropped, whatever the outcome of
//! the request. A holder that has used up its part leaves the rest to others.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Bytes that may be held.
pub struct Budget {
    held: AtomicUsize,
    held_max: usize,
    /// The most that one holder has of it.
    holder_max: usize,
    holders: Mutex<HashMap<Arc<str>, usize>>,
}

/// The budget, or the holder's part of it, is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    All,
    Holder,
}

impl Budget {
    pub fn new(held_max: usize, holder_max: usize) -> Arc<Self> {
        Arc::new(Self {
            held: AtomicUsize::new(0),
            held_max,
            holder_max,
            holders: Mutex::default(),
        })
    }

    /// A share of nothing yet. Without a holder it is limited by the whole alone.
    pub fn share(self: &Arc<Self>, holder: Option<&str>) -> Share {
        Share { budget: Arc::clone(self), holder: holder.map(Arc::from), bytes: 0 }
    }
}

/// What one request holds of a budget.
pub struct Share {
    budget: Arc<Budget>,
    holder: Option<Arc<str>>,
    bytes: usize,
}

impl Share {
    /// Takes so much more. What was taken in vain is given back with the rest.
    pub fn take(&mut self, bytes: usize) -> Result<(), Full> {
        let before = self.budget.held.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
        if let Some(holder) = &self.holder {
            let mut holders = self.budget.holders.lock().expect("no holder of it panics");
            let held = holders.entry(Arc::clone(holder)).or_default();
            *held += bytes;
            if *held > self.budget.holder_max {
                return Err(Full::Holder);
            }
        }
        if before.saturating_add(bytes) > self.budget.held_max {
            return Err(Full::All);
        }
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.bytes, Ordering::Relaxed);
        let Some(holder) = self.holder.take() else { return };
        let mut holders = self.budget.holders.lock().expect("no holder of it panics");
        if let Entry::Occupied(mut held) = holders.entry(holder) {
            *held.get_mut() -= self.bytes;
            if *held.get() == 0 {
                held.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_have_a_part_and_give_it_back() {
        let budget = Budget::new(100, 40);
        let mut one = budget.share(Some("acme"));
        assert_eq!(one.take(40), Ok(()));
        assert_eq!(budget.share(Some("acme")).take(1), Err(Full::Holder));
        let mut two = budget.share(Some("globex"));
        assert_eq!(two.take(40), Ok(()));
        assert_eq!(budget.share(None).take(21), Err(Full::All));
        assert_eq!(budget.share(None).take(20), Ok(()));
        drop(one);
        assert_eq!(budget.share(Some("acme")).take(40), Ok(()));
        drop(two);
        assert_eq!(budget.held.load(Ordering::Relaxed), 0);
        assert!(budget.holders.lock().unwrap().is_empty());
    }
}
