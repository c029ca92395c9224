//! A directory in memory where the machine has such a place, for tests that are not about disks.

use std::path::Path;

pub fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let inside = memory.is_dir().then(|| tempfile::tempdir_in(memory).ok()).flatten();
    inside.unwrap_or_else(|| tempfile::tempdir().unwrap())
}
