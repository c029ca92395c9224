//! Stores with bugs that such stores are known to have. Each must fail its check, or the check
//! checks nothing; and without a bug the same wrapper must pass all of them.

use crate::checks::{ALL, Check, Subject};
use crate::place::Place;
use async_trait::async_trait;
use counterfoil_idempotency::{
    Answer, Claim, Claimed, Ending, Fingerprint, Scope, Store, StoreError,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    /// A store that is down is taken for one that knows nothing.
    FailsOpen,
    /// Writes go to the record, whoever owns it.
    DoesNotFence,
    /// The end is left to a task, and the answer goes out before it.
    DoesNotAwaitTheEnd,
    /// A refusal is deleted so that it can be tried again.
    DeletesFailures,
    /// Keys of all tenants are in one space.
    IgnoresTenants,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_planted_bug_is_found() {
    let bugs = [
        (Bug::FailsOpen, Check::NothingRunsWithoutItsStore),
        (Bug::DoesNotFence, Check::AStaleOwnerEndsNothing),
        (Bug::DoesNotAwaitTheEnd, Check::TheEndIsOnRecordBeforeTheAnswer),
        (Bug::DeletesFailures, Check::ARefusalIsFinal),
        (Bug::IgnoresTenants, Check::TenantsShareNothing),
    ];
    for (bug, check) in bugs {
        let found = run(bug, check).await;
        assert!(found.is_err(), "{check:?} did not notice {bug:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_bug_nothing_is_found() {
    for check in ALL {
        assert_eq!(run(Bug::None, check).await, Ok(()), "{check:?}");
    }
}

async fn run(bug: Bug, check: Check) -> Result<(), String> {
    let place = Place::sqlite();
    let subject = Subject::wrapped(place.store().await, place.clock.clone(), |inner| {
        Arc::new(Planted { inner, bug, claims: Mutex::default(), deleted: Mutex::default() })
    });
    check.run(&subject).await
}

struct Planted {
    inner: Arc<dyn Store>,
    bug: Bug,
    /// The last claim of each key.
    claims: Mutex<HashMap<String, Claim>>,
    /// How often each key was deleted.
    deleted: Mutex<HashMap<String, u32>>,
}

impl Planted {
    fn scope(&self, scope: &Scope) -> Scope {
        let deleted = self.deleted.lock().unwrap().get(&scope.key).copied().unwrap_or(0);
        let key = if deleted == 0 { scope.key.clone() } else { format!("{}#{deleted}", scope.key) };
        let tenant =
            if self.bug == Bug::IgnoresTenants { String::new() } else { scope.tenant.clone() };
        Scope { tenant, route: scope.route.clone(), key }
    }

    /// The claim that a write goes by.
    fn claim_of(&self, claim: &Claim) -> Claim {
        let last = self.claims.lock().unwrap().get(&claim.scope.key).cloned();
        if self.bug == Bug::DoesNotFence { last.unwrap() } else { claim.clone() }
    }
}

#[async_trait]
impl Store for Planted {
    async fn claim(
        &self,
        scope: &Scope,
        fingerprint: &Fingerprint,
        lease: Duration,
    ) -> Result<Claimed, StoreError> {
        let claimed = self.inner.claim(&self.scope(scope), fingerprint, lease).await;
        match claimed {
            Ok(Claimed::Owned(claim)) => {
                self.claims.lock().unwrap().insert(claim.scope.key.clone(), claim.clone());
                // The handler sees whose call it is, whatever the store makes of it.
                let seen = Scope { tenant: scope.tenant.clone(), ..claim.scope.clone() };
                Ok(Claimed::Owned(Claim { scope: seen, ..claim }))
            }
            Ok(Claimed::Ended(answer))
                if self.bug == Bug::DeletesFailures && answer.status >= 400 =>
            {
                *self.deleted.lock().unwrap().entry(scope.key.clone()).or_default() += 1;
                self.inner.claim(&self.scope(scope), fingerprint, lease).await
            }
            Err(StoreError::Unavailable(_)) if self.bug == Bug::FailsOpen => {
                let (scope, owner) = (scope.clone(), [0; 16]);
                Ok(Claimed::Owned(Claim { scope, owner, fence: 1, recovery_point: None }))
            }
            other => other,
        }
    }

    async fn renew(&self, claim: &Claim, lease: Duration) -> Result<(), StoreError> {
        self.inner.renew(&self.claim_of(claim), lease).await
    }

    async fn reach(&self, claim: &Claim, point: &str) -> Result<(), StoreError> {
        let claim = Claim { scope: self.scope(&claim.scope), ..self.claim_of(claim) };
        match self.inner.reach(&claim, point).await {
            Err(StoreError::Unavailable(_)) if self.bug == Bug::FailsOpen => Ok(()),
            reached => reached,
        }
    }

    async fn end(
        &self,
        claim: &Claim,
        answer: &Answer,
        ending: Ending,
        keep: Duration,
    ) -> Result<(), StoreError> {
        let claim = Claim { scope: self.scope(&claim.scope), ..self.claim_of(claim) };
        if self.bug == Bug::DoesNotAwaitTheEnd {
            let (inner, answer) = (Arc::clone(&self.inner), answer.clone());
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(3600)).await;
                inner.end(&claim, &answer, ending, keep).await
            });
            return Ok(());
        }
        match self.inner.end(&claim, answer, ending, keep).await {
            Err(StoreError::Unavailable(_)) if self.bug == Bug::FailsOpen => Ok(()),
            ended => ended,
        }
    }

    async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
        let claim = Claim { scope: self.scope(&claim.scope), ..self.claim_of(claim) };
        self.inner.release(&claim).await
    }

    async fn forget(&self, claim: &Claim) -> Result<(), StoreError> {
        let claim = Claim { scope: self.scope(&claim.scope), ..self.claim_of(claim) };
        self.inner.forget(&claim).await
    }

    async fn sweep(&self, limit: u32) -> Result<u32, StoreError> {
        self.inner.sweep(limit).await
    }
}
