//! Opens the page at `/docs` of a running server in a real browser, Debian's Chromium, and tries
//! every operation on it (`tests/docs_page/page_test.mjs`).
//!
//! Playwright is installed in a folder under `target/`, with a pinned version and without a browser
//! of its own.

use crate::debian::{self, Need};
use crate::{cargo, root, run_to_end, schemathesis, stripe_sdk};
use anyhow::{Context, Result};
use std::fs;
use std::process::Command;

/// Pinned: a newer version may expect a newer browser, which should be a change of its own.
const PLAYWRIGHT: &str = "1.65.0";
/// The path of Debian's package.
pub const CHROMIUM: &str = "/usr/bin/chromium";

/// `cargo xtask docs-page`: what `run` needs, and then `run`.
pub fn run_alone() -> Result<()> {
    debian::install_missing(&[Need::PythonVenv, Need::Chromium])?;
    run_to_end(cargo()?.args(["build", "--features", "failpoints"]))?;
    run()
}

/// Expects the built server beside this program.
pub fn run() -> Result<()> {
    let folder = root()?.join("target").join("docs-page");
    if folder.join("data").exists() {
        fs::remove_dir_all(folder.join("data")).context("could not remove the last run's data")?;
    }
    fs::create_dir_all(&folder).context("could not make a folder for the page's test")?;
    let node = stripe_sdk::install_node(&folder, "playwright-core", PLAYWRIGHT)?;
    let key = schemathesis::random_key()?;
    let (_server, url) = schemathesis::start_server(&folder, &key)?;
    let test = root()?.join("tests").join("docs_page").join("page_test.mjs");
    run_to_end(
        Command::new(node.program)
            .arg("--test")
            .arg(test)
            .env("DOCS_URL", &url)
            .env("DOCS_KEY", &key)
            .env("DOCS_FOLDER", &folder)
            .env("DOCS_CHROMIUM", CHROMIUM),
    )
}
