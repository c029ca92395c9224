//! A store whose calls fail on demand, for tests of everything that is built on a store.
//!
//! [`Faulty`] wraps any [`Store`]. Each call of a verb asks a hook, by the verb's name, which
//! [`Fault`] it meets. `verbs!` declares the traits of the store and implements each of them for
//! [`Faulty`], so a new verb is written once.
//!
//! Invariant: a call that meets [`Fault::None`] is exactly the wrapped store's.

use super::{Error, Health, Result, Store};
use crate::clock::Clock;
use crate::rules::timestamp::Timestamp;
use async_trait::async_trait;
use counterfoil_idempotency::{
    Answer, Claim, Claimed, Ending, Fingerprint, Scope, Store as KeyStore, StoreError,
};
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;

/// What happens to one call.
pub enum Fault {
    None,
    /// It fails, and nothing happened.
    FailBefore(Error),
    /// It takes effect, and the caller gets this error.
    FailAfter(Error),
    /// It is made twice, and the caller gets the second answer.
    Twice,
    /// It is made when this future has ended.
    StallBefore(BoxFuture<'static, ()>),
    /// It is made at once, and answered when this future has ended.
    StallAfter(BoxFuture<'static, ()>),
}

/// Decides what happens to a call of this verb.
type Hook = dyn Fn(&'static str) -> Fault + Send + Sync;

/// A store with a hook before each call.
pub struct Faulty<S: ?Sized> {
    pub(super) inner: Arc<S>,
    hook: Arc<Hook>,
}

impl<S: ?Sized> Faulty<S> {
    pub fn new(
        inner: Arc<S>,
        hook: impl Fn(&'static str) -> Fault + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { inner, hook: Arc::new(hook) })
    }

    pub(super) async fn call<T, E: From<Error>, F: Future<Output = Result<T, E>>>(
        &self,
        verb: &'static str,
        call: impl Fn() -> F,
    ) -> Result<T, E> {
        match (self.hook)(verb) {
            Fault::None => call().await,
            Fault::FailBefore(error) => Err(error.into()),
            Fault::FailAfter(error) => {
                drop(call().await);
                Err(error.into())
            }
            Fault::Twice => {
                drop(call().await);
                call().await
            }
            Fault::StallBefore(stall) => {
                stall.await;
                call().await
            }
            Fault::StallAfter(stall) => {
                let answer = call().await;
                stall.await;
                answer
            }
        }
    }
}

#[async_trait]
impl Store for Faulty<dyn Store> {
    fn high_water(&self) -> Timestamp {
        self.inner.high_water()
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn for_jobs(&self) -> Result<Option<Arc<dyn Store>>> {
        let Some(inner) = self.inner.for_jobs()? else { return Ok(None) };
        Ok(Some(Arc::new(Self { inner, hook: Arc::clone(&self.hook) })))
    }

    fn request_keys(self: Arc<Self>, clock: Clock) -> Arc<dyn counterfoil_idempotency::Store> {
        let inner = Arc::clone(&self.inner).request_keys(clock);
        Arc::new(Faulty { inner, hook: Arc::clone(&self.hook) })
    }

    async fn ping(&self) -> Result<()> {
        self.call("ping", || self.inner.ping()).await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

/// Declares a trait of the store and implements it for [`Faulty`].
macro_rules! verbs {
    ($(#[$attribute:meta])* pub trait $name:ident: Send + Sync { $($verbs:tt)* }) => {
        $(#[$attribute])*
        #[::async_trait::async_trait]
        pub trait $name: Send + Sync { $($verbs)* }

        $crate::store::faulty::forward! { ($name for dyn $crate::store::Store) {} $($verbs)* }
    };
}

/// Implements a trait for [`Faulty`]: takes its verbs one by one, and adds to the block the method
/// that forwards each.
macro_rules! forward {
    (
        ($trait:ident for $inner:ty) { $($methods:tt)* }
        $(#[$attribute:meta])*
        async fn $verb:ident(&self $(, $argument:ident: $type:ty)* $(,)?) -> $answer:ty;
        $($rest:tt)*
    ) => {
        $crate::store::faulty::forward! {
            ($trait for $inner) {
                $($methods)*
                async fn $verb(&self $(, $argument: $type)*) -> $answer {
                    let call = || self.inner.$verb($(Clone::clone(&$argument)),*);
                    self.call(stringify!($verb), call).await
                }
            }
            $($rest)*
        }
    };
    (
        ($trait:ident for $inner:ty) { $($methods:tt)* }
        $(#[$attribute:meta])*
        fn $fact:ident(&self) -> $answer:ty;
        $($rest:tt)*
    ) => {
        $crate::store::faulty::forward! {
            ($trait for $inner) {
                $($methods)*
                fn $fact(&self) -> $answer {
                    self.inner.$fact()
                }
            }
            $($rest)*
        }
    };
    (($trait:ident for $inner:ty) { $($methods:tt)* }) => {
        #[::async_trait::async_trait]
        impl $trait for $crate::store::faulty::Faulty<$inner> { $($methods)* }
    };
}

pub(super) use {forward, verbs};

forward! {
    (KeyStore for dyn KeyStore) {}
    async fn claim(
        &self,
        scope: &Scope,
        fingerprint: &Fingerprint,
        lease: Duration,
    ) -> Result<Claimed, StoreError>;
    async fn renew(&self, claim: &Claim, lease: Duration) -> Result<(), StoreError>;
    async fn reach(&self, claim: &Claim, point: &str) -> Result<(), StoreError>;
    async fn end(
        &self,
        claim: &Claim,
        answer: &Answer,
        ending: Ending,
        keep: Duration,
    ) -> Result<(), StoreError>;
    async fn release(&self, claim: &Claim) -> Result<(), StoreError>;
    async fn forget(&self, claim: &Claim) -> Result<(), StoreError>;
    async fn sweep(&self, limit: u32) -> Result<u32, StoreError>;
}
