//! A store whose calls fail on demand, for tests of everything that is built on a store.
//!
//! [`Faulty`] wraps any [`Store`]. Each call of a verb asks a hook, by the verb's name, which
//! [`Fault`] it meets. `verbs!` declares the traits of the store and implements each of them for
//! [`Faulty`], so a new verb is written once.
//!
//! Invariant: a call that meets [`Fault::None`] is exactly the wrapped store's.

use super::{Error, Health, Result, Store};
use crate::rules::timestamp::Timestamp;
use async_trait::async_trait;
use futures_util::future::BoxFuture;
use std::sync::Arc;

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
pub struct Faulty {
    pub(super) inner: Arc<dyn Store>,
    hook: Arc<Hook>,
}

impl Faulty {
    pub fn new(
        inner: Arc<dyn Store>,
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
impl Store for Faulty {
    fn high_water(&self) -> Timestamp {
        self.inner.high_water()
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn for_jobs(&self) -> Result<Option<Arc<dyn Store>>> {
        let hook = || Arc::clone(&self.hook);
        let inner = self.inner.for_jobs()?;
        Ok(inner.map(|inner| -> Arc<dyn Store> { Arc::new(Self { inner, hook: hook() }) }))
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

        $crate::store::faulty::forward! { $name {} $($verbs)* }
    };
}

/// Takes the verbs of a trait one by one, and adds the method that forwards each to the block.
macro_rules! forward {
    (
        $name:ident { $($methods:tt)* }
        $(#[$attribute:meta])*
        async fn $verb:ident(&self $(, $argument:ident: $type:ty)* $(,)?) -> $answer:ty;
        $($rest:tt)*
    ) => {
        $crate::store::faulty::forward! {
            $name {
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
        $name:ident { $($methods:tt)* }
        $(#[$attribute:meta])*
        fn $fact:ident(&self) -> $answer:ty;
        $($rest:tt)*
    ) => {
        $crate::store::faulty::forward! {
            $name {
                $($methods)*
                fn $fact(&self) -> $answer {
                    self.inner.$fact()
                }
            }
            $($rest)*
        }
    };
    ($name:ident { $($methods:tt)* }) => {
        #[::async_trait::async_trait]
        impl $name for $crate::store::faulty::Faulty { $($methods)* }
    };
}

pub(super) use {forward, verbs};
