//! Fields of a change: what is left out stays as it is, null takes away, and a value replaces.

use serde::{Deserialize, Deserializer};

/// What a request says of one field. In a struct it has `#[serde(default)]`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Given<T> {
    #[default]
    LeftOut,
    Null,
    Value(T),
}

impl<T> Given<T> {
    /// The field after the change: what stood stays if it is left out, and null brings the default.
    pub fn or_else(self, standing: Option<T>, default: impl FnOnce() -> T) -> T {
        match self {
            Self::Value(value) => value,
            Self::LeftOut => standing.unwrap_or_else(default),
            Self::Null => default(),
        }
    }

    /// The same of a field that may be absent.
    pub fn or_none(self, standing: Option<T>) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            Self::LeftOut => standing,
            Self::Null => None,
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Given<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::deserialize(deserializer)?.map_or(Self::Null, Self::Value))
    }
}
