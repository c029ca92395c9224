//! `counterfoil completions`: a script with which a shell completes commands and flags.

use clap_complete::Shell;
use std::process::ExitCode;

/// Print a completion script for your shell
#[derive(clap::Args)]
#[command(after_help = "Examples:
  counterfoil completions bash > /etc/bash_completion.d/counterfoil
  counterfoil completions zsh > ~/.zfunc/_counterfoil
  counterfoil completions fish > ~/.config/fish/completions/counterfoil.fish")]
pub struct CompletionsArguments {
    shell: Shell,
}

pub fn run(arguments: &CompletionsArguments) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut super::definition(), "counterfoil", &mut script);
    // Not written directly: clap_complete panics in its own words when the reader has gone.
    print!("{}", String::from_utf8_lossy(&script));
    ExitCode::SUCCESS
}
