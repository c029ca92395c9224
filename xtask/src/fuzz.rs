//! The fuzz targets in `fuzz/`: that they still compile. Property tests run the same functions
//! (`src/fuzzing.rs`) on the stable toolchain; a fuzzer is run by hand.

use crate::{root, run_to_end, succeeds};
use anyhow::Result;
use std::process::Command;

/// The name of the step.
pub const STEP: &str = "fuzz targets";

/// What this machine lacks to build them.
pub fn missing() -> Option<&'static str> {
    if !succeeds(nightly().arg("--version")) {
        return Some("there is no nightly toolchain");
    }
    if !succeeds(nightly().args(["fuzz", "--version"])) {
        return Some("there is no cargo-fuzz");
    }
    None
}

pub fn build() -> Result<()> {
    run_to_end(nightly().current_dir(root()?).args(["fuzz", "build"]))
}

/// rustup's cargo, which would otherwise download a toolchain that is missing.
fn nightly() -> Command {
    let mut command = Command::new("cargo");
    command.arg("+nightly").env("RUSTUP_AUTO_INSTALL", "0");
    command
}
