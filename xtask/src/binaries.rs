//! The server's test binaries, several at a time. `cargo test` runs one after the other, and the
//! longest of them mostly wait: for leases, for disks, for processes that they have killed.
//!
//! What a binary prints goes to a file; it is shown whole if the binary fails.

use crate::{cargo, root};
use anyhow::{Context, Result, bail};
use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

/// How many run at a time.
const AT_ONCE: usize = 3;
/// Those that take minutes; they begin first.
const LONG: [&str; 4] = [SUITES, "simulation", "crash", "store_conformance"];
/// The program that holds most suites. Its tests wait for sockets, databases and processes, so
/// more of them run at a time than there are cores.
const SUITES: &str = "it";
const SUITES_THREADS: &str = "6";

/// Compiles the test binaries; a command for each.
pub fn build(arguments: &[&str]) -> Result<Vec<Command>> {
    let mut command = cargo()?;
    let output = command.args(["test", "--no-run"]).args(arguments).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        println!("{said}");
        bail!("the tests do not compile");
    }
    let binaries = find_binaries(&said);
    if binaries.is_empty() {
        bail!("cargo names no test binary:\n{said}");
    }
    let root = root()?;
    let command = |binary: PathBuf| {
        let mut command = Command::new(root.join(&binary));
        command.current_dir(&root).env("CARGO_MANIFEST_DIR", &root);
        if name_of(&binary) == SUITES {
            command.env("RUST_TEST_THREADS", SUITES_THREADS);
        }
        command
    };
    Ok(binaries.into_iter().map(command).collect())
}

/// The paths in lines such as `Executable tests/tidy.rs (target/debug/deps/tidy-0123456789abcdef)`.
fn find_binaries(said: &str) -> Vec<PathBuf> {
    said.lines()
        .filter_map(|line| line.trim_start().strip_prefix("Executable "))
        .filter_map(|line| Some(PathBuf::from(line.rsplit_once('(')?.1.strip_suffix(')')?)))
        .collect()
}

/// Runs all of them, also if one fails; an error names those that failed.
pub fn run(mut commands: Vec<Command>) -> Result<()> {
    commands.sort_by_key(|command| {
        let name = name_of(Path::new(command.get_program()));
        LONG.iter().position(|long| *long == name).unwrap_or(LONG.len())
    });
    let logs = root()?.join("target/test-output");
    fs::create_dir_all(&logs)?;
    let (queue, failed) = (Mutex::new(VecDeque::from(commands)), Mutex::new(Vec::new()));
    let next = || queue.lock().expect("no holder panics").pop_front();
    let work = || {
        while let Some(mut command) = next() {
            let name = name_of(Path::new(command.get_program()));
            if let Err(error) = run_one(&mut command, &name, &logs) {
                println!("{error:#}");
                failed.lock().expect("no holder panics").push(name);
            }
        }
    };
    std::thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(work))));
    let failed = failed.into_inner().expect("no holder panics");
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

fn run_one(command: &mut Command, name: &str, logs: &Path) -> Result<()> {
    let (began, binary) = (Instant::now(), Path::new(command.get_program()));
    // Two may have one name: the library's own tests and the program's.
    let log = logs.join(binary.file_name().unwrap_or_default()).with_extension("log");
    let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let status = command.stdout(output.try_clone()?).stderr(output).status();
    let status = status.with_context(|| format!("could not start {name}"))?;
    let said = fs::read_to_string(&log).unwrap_or_default();
    let result = said.lines().rfind(|line| line.starts_with("test result")).unwrap_or("no result");
    println!("{name:20} {:>5} s  {result}", began.elapsed().as_secs());
    if !status.success() {
        bail!("--- {name} ---\n{said}\n{name} ended with {status}");
    }
    Ok(())
}

/// The name of the test, without the hash behind it.
fn name_of(binary: &Path) -> String {
    let file = binary.file_name().unwrap_or_default().to_string_lossy();
    file.rsplit_once('-').map_or(file.as_ref(), |(name, _)| name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binaries_are_found_in_what_cargo_says() {
        let said = "   Compiling counterfoil v0.1.0\n  Executable unittests src/lib.rs \
                    (target/debug/deps/counterfoil-08ee1623d2bfb6e7)\n  Executable tests/tidy.rs \
                    (target/debug/deps/tidy-7515ebd8cb531964)\n";
        let found = find_binaries(said);
        assert_eq!(found.len(), 2);
        assert_eq!(name_of(&found[1]), "tidy");
    }

    #[test]
    fn a_failing_binary_fails_the_run_and_the_others_still_run() {
        let run = run(vec![Command::new("/bin/false"), Command::new("/bin/true")]);
        assert_eq!(run.unwrap_err().to_string(), "failed: false");
    }
}
