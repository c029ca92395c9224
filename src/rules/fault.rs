//! Facts that must hold of money, checked in release builds.
//!
//! A decision states each fact with `must!` before it returns its plan, and after it has read the
//! rows it decides on. A fact that does not hold is a fault of this program or of stored data: the
//! decision returns a [`Fault`], the store rolls its transaction back, and nothing of the operation
//! happens. Other tenants and operations go on.

/// A fact that does not hold, and the ids of the rows that contradict it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{fact} ({ids})")]
pub struct Fault {
    /// The fact, as a sentence that is true while all is well.
    pub fact: &'static str,
    /// Whose money it is about: `tenant=… push=…`.
    pub ids: String,
}

impl Fault {
    /// Adds whose money it is about, which the decision that found the fault did not know.
    pub fn of(self, whose: &impl std::fmt::Display) -> Self {
        Self { ids: format!("{whose} {}", self.ids).trim_end().to_owned(), ..self }
    }
}

/// Returns a [`Fault`] from the enclosing function unless the fact holds:
/// `must!(balance >= ZERO, "a pool's balance is not negative", "pool={pool} balance={balance}")`.
macro_rules! must {
    ($holds:expr, $fact:literal, $($ids:tt)+) => {
        if !$holds {
            return Err($crate::rules::fault::Fault { fact: $fact, ids: format!($($ids)+) }.into());
        }
    };
}
pub(crate) use must;

/// The text of a value that may be missing, for the ids of a fault.
pub fn shown<T: std::fmt::Display>(value: Option<T>) -> String {
    value.map_or_else(|| "none".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fact_that_does_not_hold_is_named_with_its_ids() {
        let draw = |balance: i64| -> Result<i64, Fault> {
            must!(balance >= 0, "a balance is not negative", "pool={} balance={balance}", "p1");
            Ok(balance)
        };
        assert_eq!(draw(0), Ok(0));
        let fault = draw(-1).unwrap_err();
        assert_eq!(fault.to_string(), "a balance is not negative (pool=p1 balance=-1)");
    }
}
