//! Backup: a copy of a store that may be in use, of one moment.
//!
//! The ledger's moment is fixed first and the journal's after it. The journal then has every commit
//! that the ledger does not, unless a fold ended and its rows were deleted in between; that is
//! seen, and both are fixed again. So the copy is the store as it was at the journal's moment.
//!
//! Invariant: nothing is written to the store. A crash leaves an incomplete directory, which is
//! refused as the target of the next try.

use super::fold::read_state;
use super::recovery::check_journal;
use super::runs::{KEYS_DIRECTORY, path_of, read_runs};
use super::{DIRECTORY_MODE, FILE_NAME, LEDGER_FILE_NAME, migrations, readers, sql_error};
use super::{open_private, sync_directory, sync_error};
use crate::store::{Error, Result};
use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};
use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Copies the store in `directory` to the new directory `target`.
pub fn back_up(directory: &Path, target: &Path) -> Result<()> {
    let connection = readers::open_read_only(directory)?;
    migrations::require_current(&connection)?;
    make_directory(target)?;
    make_directory(&target.join(KEYS_DIRECTORY))?;
    fix_moment(&connection)?;
    for run in read_runs(&connection)? {
        // A file that is gone was merged meanwhile; the copy's first start makes it again.
        let from = path_of(directory, run.run_no);
        let to = path_of(target, run.run_no);
        if std::fs::copy(&from, &to).is_ok() {
            sync(&to)?;
        }
    }
    for (database, name) in [("ledger", LEDGER_FILE_NAME), ("main", FILE_NAME)] {
        copy_database(&connection, database, &target.join(name))?;
    }
    sync_directory(&path_of(target, 0))?;
    sync_directory(&target.join(FILE_NAME))
}

fn make_directory(path: &Path) -> Result<()> {
    DirBuilder::new().mode(DIRECTORY_MODE).create(path).map_err(|error| Error::Unavailable {
        what: format!("cannot create {}, which must be new: {error}", path.display()),
    })
}

/// Begins a read transaction in which the journal has what the ledger has not.
fn fix_moment(connection: &Connection) -> Result<()> {
    loop {
        connection.execute_batch("BEGIN")?;
        let fold = read_state(connection)?;
        match check_journal(connection, fold) {
            Err(Error::Corrupt { .. }) => connection.execute_batch("ROLLBACK")?,
            checked => return checked.map(drop),
        }
    }
}

fn copy_database(connection: &Connection, database: &str, path: &Path) -> Result<()> {
    let unavailable = |error: std::io::Error| Error::Unavailable {
        what: format!("cannot write {}: {error}", path.display()),
    };
    drop(open_private(path).map_err(unavailable)?);
    let mut copy = Connection::open(path)?;
    let backup = Backup::new_with_names(connection, database, &mut copy, "main")?;
    let step = backup.step(-1).map_err(sql_error)?;
    if step != StepResult::Done {
        return Err(Error::Unavailable { what: format!("could not copy: {step:?}") });
    }
    drop(backup);
    drop(copy);
    sync(path)
}

fn sync(path: &Path) -> Result<()> {
    let synced = File::open(path).and_then(|file| file.sync_all());
    synced.map_err(|error| sync_error(path, &error))
}
