//! Migrations: numbered SQL files, embedded, forward only, the same numbers and names for both
//! stores.
//!
//! Invariant: a store is opened only if every migration it has is known here with the same
//! checksum; a newer or edited schema is refused rather than guessed at. Each migration commits
//! together with its row in `schema_migrations`, so a crash leaves it applied or not.

use super::Error;
use sha2::{Digest, Sha256};

/// One embedded migration.
#[derive(Debug, Clone, Copy)]
pub struct Migration {
    pub number: i64,
    pub name: &'static str,
    pub sql: &'static str,
}

impl Migration {
    /// Hex SHA-256 of the file, to notice an edit of a migration that was applied.
    pub fn checksum(&self) -> String {
        Sha256::digest(self.sql.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// What the store's own table says was applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    pub number: i64,
    pub checksum: String,
}

/// The migrations still to apply, or why the store must not be opened.
pub fn judge_migrations<'m>(
    known: &'m [Migration],
    applied: &[Applied],
) -> Result<&'m [Migration], Error> {
    for (place, row) in applied.iter().enumerate() {
        let Some(migration) = known.get(place).filter(|m| m.number == row.number) else {
            return Err(Error::Corrupt {
                what: format!(
                    "the store has schema version {}, which this version of counterfoil does not \
                     know; run the version that created it, or a newer one",
                    row.number
                ),
            });
        };
        if migration.checksum() != row.checksum {
            return Err(Error::Corrupt {
                what: format!("migration {} was changed after it was applied", row.number),
            });
        }
    }
    Ok(&known[applied.len()..])
}

/// Refuses a store whose schema is not exactly this version's; for commands that only read.
pub fn require_current(known: &[Migration], applied: &[Applied]) -> Result<(), Error> {
    let missing = judge_migrations(known, applied)?;
    let what = match (applied.last(), missing.last()) {
        (_, None) => return Ok(()),
        (None, Some(_)) => "there is no counterfoil store here".to_owned(),
        (Some(newest), Some(needed)) => format!(
            "its schema is version {}, older than version {} of this program, and this command \
             changes nothing; start the server of this version once, which migrates it, or use \
             the version that runs on it",
            newest.number, needed.number
        ),
    };
    Err(Error::Unavailable { what })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [Migration; 2] = [
        Migration { number: 1, name: "a", sql: "A" },
        Migration { number: 2, name: "b", sql: "B" },
    ];

    fn applied(migrations: &[Migration]) -> Vec<Applied> {
        let row = |m: &Migration| Applied { number: m.number, checksum: m.checksum() };
        migrations.iter().map(row).collect()
    }

    #[test]
    fn what_is_left_to_do() {
        let left = |rows: &[Applied]| {
            judge_migrations(&KNOWN, rows)
                .map(|left| left.iter().map(|m| m.number).collect::<Vec<_>>())
        };
        assert_eq!(left(&[]).expect("fresh"), [1, 2]);
        assert_eq!(left(&applied(&KNOWN[..1])).expect("older"), [2]);
        assert_eq!(left(&applied(&KNOWN)).expect("current"), Vec::<i64>::new());
    }

    #[test]
    fn newer_and_edited_schemas_are_refused() {
        let mut newer = applied(&KNOWN);
        newer.push(Applied { number: 3, checksum: String::new() });
        assert!(judge_migrations(&KNOWN, &newer).is_err());
        let mut edited = applied(&KNOWN);
        edited[0].checksum = "other".into();
        assert!(judge_migrations(&KNOWN, &edited).is_err());
    }
}
