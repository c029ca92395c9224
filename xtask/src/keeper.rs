//! Keepers: how a program that a command starts is certain to end with the command.
//!
//! A keeper is this binary again, in a process group of its own, between the command and the
//! program. It reads its standard input, which nobody writes to; end of file means that the
//! command is gone, for whatever reason, and the keeper ends the program and cleans up. The kernel
//! closes that pipe even when the command is killed, which no signal handler could match. Being in
//! another group, the keeper does not get the terminal's Ctrl-C and so lives to clean up.

use anyhow::{Context, Result, bail};
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Hidden commands of this binary.
pub const KEEP: &str = "keep";
pub const KEEP_POSTGRES: &str = "keep-postgres";

/// How often a keeper looks whether its program has ended by itself.
const POLL: Duration = Duration::from_millis(20);

/// Something running under a keeper. Dropping it ends the program and waits until it is gone.
pub struct Kept {
    keeper: Child,
    /// Read by a thread, so that a reader with a time limit needs no other means.
    lines: mpsc::Receiver<String>,
}

impl Kept {
    /// Starts a keeper; `set_up` may add to its environment, which the program inherits.
    pub fn start<I, A>(mode: &str, arguments: I, set_up: impl FnOnce(&mut Command)) -> Result<Self>
    where
        I: IntoIterator<Item = A>,
        A: AsRef<OsStr>,
    {
        let own = std::env::current_exe().context("could not find this program's own file")?;
        let mut command = Command::new(own);
        command.arg(mode).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.process_group(0);
        set_up(&mut command);
        let mut keeper = command.spawn().context("could not start a keeper")?;
        let stdout = keeper.stdout.take().context("the keeper has no output")?;
        Ok(Self { keeper, lines: read_lines(stdout) })
    }

    /// The next line the program prints on its standard output.
    pub fn line_within(&self, limit: Duration) -> Result<String> {
        match self.lines.recv_timeout(limit) {
            Ok(line) => Ok(line),
            Err(mpsc::RecvTimeoutError::Timeout) => bail!("it said nothing for {limit:?}"),
            Err(mpsc::RecvTimeoutError::Disconnected) => bail!("it ended before it was ready"),
        }
    }

    /// Waits until the program ends by itself.
    pub fn wait(&mut self) -> Result<()> {
        // `Child::wait` would close standard input first, which tells the keeper to end.
        while self.keeper.try_wait().context("could not wait for the keeper")?.is_none() {
            std::thread::sleep(POLL);
        }
        Ok(())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        if let Err(error) = self.keeper.wait() {
            eprintln!("xtask: could not wait for a keeper: {error}");
        }
    }
}

fn read_lines(stdout: ChildStdout) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // Nobody listens once the wanted line was read; the rest is still read to its end, or
            // the program would block on a full pipe.
            let _ = sender.send(line);
        }
    });
    receiver
}

/// What a keeper does for a plain program: runs it until it ends or the command is gone.
pub fn keep(arguments: &[OsString]) -> Result<()> {
    let (program, rest) = arguments.split_first().context("nothing to keep")?;
    let mut child = Command::new(program)
        .args(rest)
        .stdin(Stdio::null())
        .spawn()
        .with_context(|| format!("could not start {}", program.to_string_lossy()))?;
    wait_for_either(&mut child, &command_is_gone())?;
    // An error here means that it has ended already, which is what is wanted.
    let _ = child.kill();
    child.wait().context("could not wait for the program")?;
    Ok(())
}

/// What a keeper has waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    ProgramEnded,
    CommandIsGone,
}

/// Returns when the program has ended or the command that started this keeper is gone.
pub fn wait_for_either(child: &mut Child, gone: &mpsc::Receiver<()>) -> Result<Waited> {
    loop {
        if child.try_wait().context("could not look at the program")?.is_some() {
            return Ok(Waited::ProgramEnded);
        }
        match gone.recv_timeout(POLL) {
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Ok(Waited::CommandIsGone);
            }
        }
    }
}

/// Receives something when the command that started this keeper is gone.
pub fn command_is_gone() -> mpsc::Receiver<()> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut nothing = Vec::new();
        let _ = std::io::stdin().read_to_end(&mut nothing);
        let _ = sender.send(());
    });
    receiver
}

/// Tries again and again until it is true; false if the time is up.
pub fn becomes_true(limit: Duration, mut check: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while began.elapsed() < limit {
        if check() {
            return true;
        }
        std::thread::sleep(POLL);
    }
    false
}
