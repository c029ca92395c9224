//! The server in process, against the Stripe simulator where Stripe matters: one module a suite,
//! all of them in one program, since linking it takes longer than compiling it.
//!
//! A test of a store is a plain function over a [`world::Ground`], and the list of its suite makes
//! it a named test for each store. With warnings denied, a function that is written and not listed
//! does not compile, so the lists are complete. PostgreSQL is taken from COUNTERFOIL_TEST_POSTGRES
//! (`cargo xtask test` starts one); without it those tests print that they were skipped, unless
//! COUNTERFOIL_TEST_REQUIRE_POSTGRES is set.
//!
//! Tests run side by side in one process: none may set an environment variable or a fail point.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::as_conversions,
    clippy::wildcard_enum_match_arm
)]

#[path = "../world/world.rs"]
mod world;

/// Makes tests of functions, for every store.
macro_rules! on_every_store {
    ($($module:ident { $($test:ident),* $(,)? })*) => {
        mod sqlite { $(mod $module { $(
            #[test]
            fn $test() {
                crate::run(super::super::$module::$test(crate::world::Ground::sqlite()));
            }
        )* })* }
        mod postgres { $(mod $module { $(
            #[test]
            fn $test() {
                crate::run(async {
                    let Some(ground) = crate::world::Ground::postgres().await else { return };
                    super::super::$module::$test(ground).await;
                });
            }
        )* })* }
    };
}

/// Makes tests of functions whose subject is not the store: the embedded one serves them.
macro_rules! on_one_store {
    ($($module:ident { $($test:ident),* $(,)? })*) => {
        mod one_store { $(mod $module { $(
            #[test]
            fn $test() {
                crate::run(super::super::$module::$test(crate::world::Ground::sqlite()));
            }
        )* })* }
    };
}

/// Lets a suite's world be used as the common one, which it has in `base`.
macro_rules! extend_world {
    ($world:ident) => {
        impl std::ops::Deref for $world {
            type Target = crate::world::World;

            fn deref(&self) -> &Self::Target {
                &self.base
            }
        }

        impl std::ops::DerefMut for $world {
            fn deref_mut(&mut self) -> &mut Self::Target {
                &mut self.base
            }
        }
    };
}

mod commands;
mod destinations;
mod http_api;
mod operations;
mod outbound;
mod reconciliation;
mod sagas;
mod self_check;
mod webhooks;

/// Runs a test to its end. The same snapshot is asserted once for each store.
fn run(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    insta::allow_duplicates! { runtime.block_on(test) }
}
