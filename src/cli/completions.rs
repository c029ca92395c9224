//! `counterfoil completions`: a script with which a shell completes commands and flags.

use clap_complete::Shell;
use std::process::ExitCode;

/// Print a script that completes commands and flags in your shell
#[derive(clap::Args)]
#[command(after_help = "Examples:
  counterfoil completions bash > /etc/bash_completion.d/counterfoil
  counterfoil completions zsh > ~/.zfunc/_counterfoil
  counterfoil completions fish > ~/.config/fish/completions/counterfoil.fish")]
pub struct CompletionsArguments {
    shell: Shell,
}

pub fn run(arguments: &CompletionsArguments) -> ExitCode {
    let mut definition = super::definition();
    clap_complete::generate(
        arguments.shell,
        &mut definition,
        "counterfoil",
        &mut std::io::stdout(),
    );
    ExitCode::SUCCESS
}
