//! The program: reads the command line and runs what it names. Everything else is in the library,
//! where tests can reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    counterfoil::cli::run()
}
