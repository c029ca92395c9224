//! What the commands need besides Rust, and how it gets onto a Debian machine.
//!
//! Only what is missing is installed, so that a machine that has everything needs neither root nor
//! a network. Elsewhere than on Debian it prints what to install.

use crate::{run_to_end, succeeds};
use anyhow::{Result, bail};
use std::process::Command;

/// Something a command needs.
#[derive(Debug, Clone, Copy)]
pub enum Need {
    /// The server's programs, for the throw-away cluster.
    Postgres,
    /// The server's program, which tests start for themselves.
    Redis,
    /// Shows the order of system calls to the crash tests.
    Strace,
    /// A Python that can make virtual environments.
    PythonVenv,
    /// A browser for the test of the documentation page.
    Chromium,
    /// Checks the server's metrics as Prometheus reads them.
    Promtool,
}

impl Need {
    fn is_met(self) -> bool {
        match self {
            Self::Postgres => crate::postgres::program("initdb").is_ok(),
            Self::Redis => succeeds(Command::new("redis-server").arg("--version")),
            Self::Strace => succeeds(Command::new("strace").arg("--version")),
            Self::PythonVenv => {
                succeeds(Command::new("python3").args(["-c", "import venv, ensurepip"]))
            }
            Self::Chromium => std::path::Path::new(crate::docs_page::CHROMIUM).exists(),
            Self::Promtool => succeeds(Command::new("promtool").arg("--version")),
        }
    }

    fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Postgres => &["postgresql"],
            Self::Redis => &["redis-server"],
            Self::Strace => &["strace"],
            Self::PythonVenv => &["python3", "python3-venv"],
            Self::Chromium => &["chromium"],
            Self::Promtool => &["prometheus"],
        }
    }
}

/// Installs what is missing.
pub fn install_missing(needs: &[Need]) -> Result<()> {
    let missing: Vec<Need> = needs.iter().copied().filter(|need| !need.is_met()).collect();
    if missing.is_empty() {
        println!("nothing to install");
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().flat_map(|need| need.packages()).copied().collect();
    if !succeeds(Command::new("apt-get").arg("--version")) {
        bail!("please install what Debian calls {}; there is no apt-get here", packages.join(", "));
    }
    apt_get(&["update", "-qq"])?;
    let mut install = vec!["install", "-y", "-qq", "--no-install-recommends"];
    install.extend(packages);
    apt_get(&install)?;
    if let Some(need) = missing.iter().find(|need| !need.is_met()) {
        bail!("{need:?} is still missing after apt-get {}", install.join(" "));
    }
    Ok(())
}

fn apt_get(arguments: &[&str]) -> Result<()> {
    // Through `env`, since sudo drops most of the environment. Offline, systemctl starts nothing:
    // the packages of servers would start one at once, for ever, and ours are started by the caller
    // that needs one. In a container there is no systemd, and its policy-rc.d says the same.
    let mut command = if user_is_root() {
        Command::new("env")
    } else if succeeds(Command::new("sudo").arg("--version")) {
        let mut sudo = Command::new("sudo");
        sudo.arg("env");
        sudo
    } else {
        bail!("apt-get {} needs root, and there is no sudo", arguments.join(" "));
    };
    command.args(["DEBIAN_FRONTEND=noninteractive", "SYSTEMD_OFFLINE=1", "apt-get"]);
    run_to_end(command.args(arguments))
}

pub fn user_is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}
