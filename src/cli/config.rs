//! `counterfoil config`: what is in force and why, and the manual of all settings.
//!
//! Invariant: no secret is printed.

use crate::config::{DEFAULT_TEXT, Setting, list_settings};
use std::path::PathBuf;
use std::process::ExitCode;

/// Show the settings in force, or the reference of all settings
#[derive(clap::Args)]
#[command(after_help = "Examples:
  counterfoil config print --config counterfoil.toml
  counterfoil config explain > counterfoil.toml")]
pub struct ConfigArguments {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(clap::Subcommand)]
enum ConfigCommand {
    /// Print the settings in force and where each comes from, without secrets
    #[command(after_help = "Examples:
  counterfoil config print
  COUNTERFOIL_SERVER_LISTEN=127.0.0.1:9000 counterfoil config print --config counterfoil.toml")]
    Print {
        /// Settings file
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Print the default settings file, which explains every setting
    #[command(after_help = "Example:
  counterfoil config explain > counterfoil.toml")]
    Explain,
}

pub fn run(arguments: &ConfigArguments) -> anyhow::Result<ExitCode> {
    match &arguments.command {
        ConfigCommand::Explain => print!("{DEFAULT_TEXT}"),
        ConfigCommand::Print { config } => {
            let mut last_section = String::new();
            for Setting { section, key, value, origin } in list_settings(config.as_deref())? {
                if section != last_section {
                    let gap = if last_section.is_empty() { "" } else { "\n" };
                    println!("{gap}[{section}]");
                    last_section = section;
                }
                println!("{key} = {value}  # {origin}");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
