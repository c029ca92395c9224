//! Enums whose values have names: the one table of variants and names from which the stored text,
//! the JSON and, in `api/names.rs`, the API description all come.
//!
//! Invariant: a name is written once, beside its variant, so what is stored, what is sent and what
//! is read back cannot differ. A stored name never changes its meaning.

/// Declares an enum without fields, a name for each variant, and
///
/// - `ALL`, every variant in the order of declaration, which is also their order,
/// - `name()` and `from_name()`, as stored,
/// - JSON by the same names.
macro_rules! named_enum {
    (
        $(#[$attribute:meta])*
        pub enum $type:ident {
            $($(#[$note:meta])* $variant:ident = $name:tt,)+
        }
    ) => {
        $(#[$attribute])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash,
            serde::Serialize, serde::Deserialize,
        )]
        pub enum $type {
            $($(#[$note])* #[serde(rename = $name)] $variant,)+
        }

        impl $type {
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|value| value.name() == name)
            }
        }
    };
}
pub(crate) use named_enum;

#[cfg(test)]
mod tests {
    named_enum! {
        /// Tastes.
        #[derive(Default)]
        pub enum Taste {
            Sweet = "sweet",
            /// The usual one.
            #[default]
            VerySour = "very_sour",
        }
    }

    #[test]
    fn names_are_stored_sent_and_read_back() {
        assert_eq!(Taste::ALL, [Taste::Sweet, Taste::VerySour]);
        assert_eq!(Taste::default().name(), "very_sour");
        assert!(Taste::Sweet < Taste::VerySour);
        for taste in Taste::ALL {
            assert_eq!(Taste::from_name(taste.name()), Some(taste));
            let json = format!("\"{}\"", taste.name());
            assert_eq!(serde_json::to_string(&taste).expect("a text"), json);
            assert_eq!(serde_json::from_str::<Taste>(&json).expect("a name"), taste);
        }
        assert_eq!(Taste::from_name("Sweet"), None);
        assert!(serde_json::from_str::<Taste>("\"bitter\"").is_err());
    }
}
