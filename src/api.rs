//! The wire: what the HTTP API takes and answers as JSON, one file a noun. The server writes these
//! types, the command line reads them, and the OpenAPI document describes them.
//!
//! Invariant: a decimal number and an instant are strings in JSON, and no decimal number passes
//! through a float. What a request says is text that the server checks; an answer is typed.

/// Defines a page of a list: the items under the name of their list, with their order in
/// parentheses, and where the next page begins.
macro_rules! page {
    ($name:ident, $items:ident: $item:ident $(($order:tt))?, next_before: $cursor:ident) => {
        page!($name, $items: $item $(($order))?, next_before: $cursor,
            "Give it as `before` for the next page; null at the end.");
    };
    ($name:ident, $items:ident: $item:ident $(($order:tt))?, next_after: $cursor:ident) => {
        page!($name, $items: $item $(($order))?, next_after: $cursor,
            "Give it as `after` for the next page; null at the end.");
    };
    ($name:ident, $items:ident: $item:ident $(($order:tt))?, $next:ident: $at:ident, $doc:tt) => {
        #[derive(serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
        pub struct $name {
            $(#[doc = $order])?
            pub $items: Vec<$item>,
            #[doc = $doc]
            pub $next: Option<$at>,
        }

        impl crate::api::Page for $name {
            type Item = $item;
            type Cursor = $at;

            fn new($items: Vec<$item>, $next: Option<$at>) -> Self {
                Self { $items, $next }
            }

            fn is_empty(&self) -> bool {
                self.$items.is_empty()
            }
        }
    };
}

pub mod accounts;
pub mod alerts;
pub mod changes;
pub mod comparison;
pub mod credits;
pub mod events;
pub mod findings;
pub mod health;
pub mod inboxes;
pub mod keys;
pub mod meters;
mod names;
pub mod passes;
pub mod pushes;
pub mod quotes;
pub mod sagas;
pub mod tenants;
pub mod usage;
pub mod webhooks;

// utoipa describes a field by the last name of its type: with its features `decimal` and
// `jiff_0_2`, a field of either name is a string, and an instant has the format `date-time`.
use crate::rules::quantity::Quantity as Decimal;
use crate::rules::timestamp::Timestamp;

/// A part of a list.
pub trait Page {
    type Item;
    type Cursor;

    fn new(items: Vec<Self::Item>, next: Option<Self::Cursor>) -> Self;
    fn is_empty(&self) -> bool;
}
