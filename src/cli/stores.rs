//! `counterfoil store`: what a person says of the store itself. It opens the store, so with the
//! embedded one the server must be stopped.

use super::store::{StoreArguments, open_store};
use crate::clock::Clock;
use std::process::ExitCode;

/// Tell the server about its store: that it was restored from a backup
#[derive(clap::Args)]
pub struct StoresArguments {
    #[command(subcommand)]
    command: StoresCommand,
}

#[derive(clap::Subcommand)]
enum StoresCommand {
    Restored(RestoredArguments),
}

/// Declare that the store was restored from a backup
///
/// From now on nothing is sent of a window that began before, until the provider's total of the
/// window was compared with what the store knows. A restore is mostly recognised without this;
/// declaring one too many costs readings and an hour of delay.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  counterfoil store restored --data /var/lib/counterfoil
      with the embedded store, while the server is stopped
  counterfoil store restored --store postgres://counterfoil:secret@db/counterfoil")]
struct RestoredArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Kept with the restore
    #[arg(long, value_name = "TEXT", default_value = "declared by a person")]
    reason: String,
}

pub async fn run(arguments: StoresArguments) -> anyhow::Result<ExitCode> {
    let StoresCommand::Restored(arguments) = arguments.command;
    let config = arguments.store.load_config()?;
    let store = open_store(&config).await?;
    let clock = Clock::system();
    let epoch = store.record_restore(&arguments.reason, clock.now()).await?;
    store.record_alive(clock.now()).await?;
    store.close().await;
    println!(
        "the store {} was restored (epoch {}): pushes of windows that began before {} are sent \
         only after the provider's total was compared, from an hour after that moment on",
        config.store.url, epoch.number, epoch.restored_at
    );
    Ok(ExitCode::SUCCESS)
}
