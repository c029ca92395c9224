//! Metadata: names and texts that a client attaches to an object.
//!
//! Invariant: new entries are merged into the old ones. An empty text removes its entry, and an
//! empty text in place of the whole map removes all. The limits are Stripe's. A crash leaves
//! nothing.

use crate::params::Params;
use crate::request::ApiError;
use serde_json::{Map, Value};

const NAMES_MAX: usize = 50;
const NAME_CHARACTERS_MAX: usize = 40;
const VALUE_CHARACTERS_MAX: usize = 500;

/// Merges the metadata of a request into that of an object.
pub fn merge(kept: &mut Map<String, Value>, params: &Params) -> Result<(), ApiError> {
    if params.is_emptied("metadata") {
        kept.clear();
        return Ok(());
    }
    for (name, value) in params.text_map("metadata")? {
        check_size("keys", &name, NAME_CHARACTERS_MAX)?;
        let text = value.as_str().unwrap_or_default();
        check_size("values", text, VALUE_CHARACTERS_MAX)?;
        if text.is_empty() {
            kept.remove(&name);
        } else {
            kept.insert(name, value);
        }
    }
    if kept.len() > NAMES_MAX {
        let message = format!("Metadata can have at most {NAMES_MAX} keys.");
        return Err(ApiError::parameter("metadata", message));
    }
    Ok(())
}

fn check_size(what: &str, text: &str, characters_max: usize) -> Result<(), ApiError> {
    let characters = text.chars().count();
    if characters > characters_max {
        let message = format!(
            "Metadata {what} can have up to {characters_max} characters, but one of {characters} \
             was given."
        );
        return Err(ApiError::parameter("metadata", message));
    }
    Ok(())
}
