//! Placeholder
use std::process::ExitCode;
/// x
#[derive(clap::Args)]
pub struct DemoArguments {}
pub async fn run(_: &DemoArguments) -> anyhow::Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}
