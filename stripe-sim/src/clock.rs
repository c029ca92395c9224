//! The simulator's clock, and the only place that reads the machine's.
//!
//! Invariant: a stopped clock moves only when it is set; one that follows another keeps its
//! distance from it. A crash leaves nothing.

use crate::timestamp::Timestamp;
use std::fmt;

pub enum Clock {
    Stopped(Timestamp),
    Following { source: Box<dyn Fn() -> Timestamp + Send + Sync>, ahead_micros: i64 },
}

impl Clock {
    pub fn now(&self) -> Timestamp {
        match self {
            Self::Stopped(now) => *now,
            Self::Following { source, ahead_micros } => {
                source().saturating_add_micros(*ahead_micros)
            }
        }
    }

    /// Moves it, forwards or back.
    pub fn set(&mut self, now: Timestamp) {
        match self {
            Self::Stopped(stopped) => *stopped = now,
            Self::Following { source, ahead_micros } => {
                *ahead_micros = now.micros().saturating_sub(source().micros());
            }
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Stopped(_) => "Stopped",
            Self::Following { .. } => "Following",
        };
        f.debug_tuple(name).field(&self.now()).finish()
    }
}

impl Timestamp {
    /// The time of the machine's clock.
    ///
    /// # Panics
    ///
    /// If the machine's clock is set before 1970.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the machine's clock")]
    pub fn now() -> Self {
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let micros = since_1970.expect("the machine's clock is set after 1970").as_micros();
        Self::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
    }
}
