//! Epochs of the embedded store: its mark in the database and in two files outside of it.
//!
//! One file lies in the store's directory and tells if only the database was put back; the other
//! lies next to the directory and tells if the whole directory was. Both hold the store's identity
//! and its mark, in one short line that is overwritten in place.
//!
//! Invariant: the database's mark is committed before a file is written, and moves with every batch
//! of attempts once the store is in use. A crash leaves files that are behind, which means nothing.

use super::{FILE_MODE, SqliteStore, sql_error};
use crate::rules::digest::hex;
use crate::rules::restore::{Cause, Life, Mark, MarkFile};
use crate::rules::timestamp::Timestamp;
use crate::store::epoch::{Epoch, Epochs};
use crate::store::sql::{Session, SqlStore, move_mark, read_epoch, record_restore, values};
use crate::store::{Error, Result};
use async_trait::async_trait;
use rusqlite::Connection;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

const INSIDE: &str = "epoch";

/// The files outside the database.
pub struct Marks {
    /// As they were when the store was opened.
    found: Vec<MarkFile>,
    paths: Vec<PathBuf>,
    /// Opened by the first mark that is written; none for a file that cannot be.
    open: Mutex<Option<Vec<File>>>,
}

impl Marks {
    pub fn find(directory: &Path) -> Self {
        let mut paths = vec![directory.join(INSIDE)];
        let beside = directory.file_name().map(|name| {
            let mut name = name.to_owned();
            name.push(".epoch");
            directory.with_file_name(name)
        });
        paths.extend(beside);
        let read = |(place, path): (usize, &PathBuf)| MarkFile {
            path: path.display().to_string(),
            required: place == 0,
            mark: std::fs::read_to_string(path).ok().as_deref().and_then(parse_mark),
        };
        let found = paths.iter().enumerate().map(read).collect();
        Self { found, paths, open: Mutex::new(None) }
    }

    /// Whether the store is in use: only then are marks moved.
    pub fn in_use(&self) -> bool {
        self.open.lock().expect("no holder panics").is_some()
    }

    /// Writes the mark to the files. They are not synced: after a power cut they are behind, which
    /// means nothing.
    pub fn write(&self, mark: &Mark) {
        let mut open = self.open.lock().expect("no holder panics");
        let files = open.get_or_insert_with(|| self.paths.iter().filter_map(open_file).collect());
        let text = format!("{} {:020}\n", mark.store, mark.number);
        for file in files.iter() {
            if let Err(error) = file.write_all_at(text.as_bytes(), 0) {
                tracing::warn!(%error, "a mark could not be written; a restore may go unnoticed");
            }
        }
    }
}

fn open_file(path: &PathBuf) -> Option<File> {
    match File::options().create(true).truncate(false).write(true).mode(FILE_MODE).open(path) {
        Ok(file) => Some(file),
        Err(error) => {
            let path = path.display();
            tracing::warn!(
                %error,
                "{path} cannot be written: a restore of the whole directory is recognised only by \
                 `counterfoil store restored`, or if the server was stopped for 10 minutes"
            );
            None
        }
    }
}

fn parse_mark(text: &str) -> Option<Mark> {
    let (store, number) = text.trim_end().split_once(' ')?;
    Some(Mark { store: store.to_owned(), number: number.parse().ok()? })
}

#[async_trait]
impl Epochs for SqliteStore {
    async fn read_life(&self) -> Result<Life> {
        let files = self.marks.found.clone();
        self.read(move |_, connection| {
            let (own, alive_at) = read_life(connection)?;
            Ok(Life { own, alive_at, files, identity: Vec::new() })
        })
        .await
    }

    async fn read_epoch(&self) -> Result<Option<Epoch>> {
        self.in_reader(read_epoch).await
    }

    async fn record_restore(&self, cause: &Cause, at: Timestamp) -> Result<Epoch> {
        let cause = cause.clone();
        let highest = self.marks.found.iter().filter_map(|file| file.mark.as_ref());
        let highest = highest.map(|mark| mark.number).max().unwrap_or(0);
        // From then on the store is ahead of every mark.
        self.in_transaction(move |session| record_restore(session, &cause, highest, at)).await
    }

    async fn record_alive(&self, at: Timestamp) -> Result<()> {
        let work = move |session: &dyn Session| {
            session.run("-- record_alive\nUPDATE store_life SET alive_at = $1", values![at])?;
            move_mark(session)
        };
        let mark = self.in_transaction(work).await?;
        self.marks.write(&mark);
        Ok(())
    }
}

/// Gives the store its identity when it has none.
pub fn found_store(connection: &Connection) -> Result<()> {
    let mut fresh = [0u8; 16];
    getrandom::fill(&mut fresh).map_err(|error| Error::Internal { what: error.to_string() })?;
    connection.execute(
        "INSERT OR IGNORE INTO store_life (place, store, mark) VALUES (1, ?, 0)",
        [hex(&fresh)],
    )?;
    Ok(())
}

fn read_life(connection: &Connection) -> Result<(Mark, Option<Timestamp>)> {
    connection
        .query_row("-- read_life\nSELECT store, mark, alive_at FROM store_life", [], |row| {
            let mark = Mark { store: row.get(0)?, number: row.get(1)? };
            Ok((mark, row.get::<_, Option<i64>>(2)?.map(Timestamp::from_micros)))
        })
        .map_err(sql_error)
}
