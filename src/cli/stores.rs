//! `counterfoil store`: backups, and what a person says of the store itself. Apart from the backup
//! it opens the store, so with the embedded one the server must be stopped.

use super::store::{StoreArguments, open_store};
use crate::clock::Clock;
use crate::config::StoreUrl;
use crate::rules::binding::Unbinding;
use crate::rules::restore::Cause;
use crate::store::sqlite::SqliteStore;
use anyhow::bail;
use std::path::PathBuf;
use std::process::ExitCode;

/// Back up a store, or declare that it was restored or bills to another account
#[derive(clap::Args)]
pub struct StoresArguments {
    #[command(subcommand)]
    command: StoresCommand,
}

#[derive(clap::Subcommand)]
enum StoresCommand {
    Backup(BackupArguments),
    Restored(RestoredArguments),
    Rebind(RebindArguments),
}

/// Copy the embedded store to a new directory; the server may run
///
/// The copy is the store as it was at one moment. To restore it, stop the server and put the copy
/// in the place of its directory.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  counterfoil store backup --data /var/lib/counterfoil --to /backup/counterfoil-2026-11-18
  counterfoil check --data /backup/counterfoil-2026-11-18
      compares the totals of the copy with its events")]
struct BackupArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Directory of the copy; it must not exist
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
}

/// Declare that the store was restored from a backup
///
/// After this, the server sends nothing for windows that began earlier until it has compared each
/// with the provider's total. The server detects most restores by itself; an unneeded declaration
/// costs extra reads and an hour of delay.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  counterfoil store restored --data /var/lib/counterfoil
      with the embedded store, while the server is stopped
  counterfoil store restored --store postgres://counterfoil:secret@db/counterfoil")]
struct RestoredArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Reason; stored with the restore
    #[arg(long, value_name = "TEXT", default_value = "declared by an operator")]
    reason: String,
}

/// Bind the store to another account of the provider
///
/// The first start binds a store to the account and mode (test or live) of its key, and a server
/// does not start with the key of another account. This command removes the binding; the next start
/// binds the store again. Earlier pushes count as billed and are not sent again. Earlier windows
/// are not compared with the new account.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  counterfoil store rebind --data /var/lib/counterfoil
      with the embedded store, while the server is stopped
  counterfoil store rebind --store postgres://counterfoil:secret@db/counterfoil")]
struct RebindArguments {
    #[command(flatten)]
    store: StoreArguments,
}

pub async fn run(arguments: StoresArguments) -> anyhow::Result<ExitCode> {
    match arguments.command {
        StoresCommand::Backup(arguments) => back_up(arguments).await,
        StoresCommand::Restored(arguments) => declare_restored(arguments).await,
        StoresCommand::Rebind(arguments) => rebind(arguments).await,
    }
}

async fn back_up(arguments: BackupArguments) -> anyhow::Result<ExitCode> {
    let config = arguments.store.load_config()?;
    let StoreUrl::Sqlite(directory) = &config.store.url else {
        bail!("this backs the embedded store up; use pg_dump or a base backup for PostgreSQL");
    };
    let (directory, target) = (directory.clone(), arguments.to.clone());
    let copying =
        tokio::task::spawn_blocking(move || SqliteStore::back_up_directory(&directory, &target));
    copying.await??;
    println!("the store {} was copied to {}", config.store.url, arguments.to.display());
    Ok(ExitCode::SUCCESS)
}

async fn declare_restored(arguments: RestoredArguments) -> anyhow::Result<ExitCode> {
    let config = arguments.store.load_config()?;
    let store = open_store(&config).await?;
    let clock = Clock::system();
    let epoch = store.record_restore(&Cause::known(arguments.reason), clock.now()).await?;
    store.record_alive(clock.now()).await?;
    store.close().await;
    println!(
        "the store {} was restored (epoch {}): pushes of windows that began before {} are sent \
         only after the provider's total was compared, from an hour after that moment on",
        config.store.url, epoch.number, epoch.restored_at
    );
    Ok(ExitCode::SUCCESS)
}

async fn rebind(arguments: RebindArguments) -> anyhow::Result<ExitCode> {
    let config = arguments.store.load_config()?;
    let store = open_store(&config).await?;
    let url = &config.store.url;
    let unbinding = store.end_binding(Clock::system().now()).await?;
    store.close().await;
    match unbinding {
        Unbinding::Ended(binding) => println!(
            "the store {url} is not bound to {} any more; the next start binds it to the account \
             of its key",
            binding.account
        ),
        Unbinding::Unbound => println!("the store {url} is bound to no account; nothing to do"),
        Unbinding::Unsettled(count) => bail!(
            "{count} pushes were sent and it is not known yet if they count in the account that \
             the store is bound to; start the server with the old key until `counterfoil status` \
             shows none submitted, or decide about them with `counterfoil pushes`"
        ),
    }
    Ok(ExitCode::SUCCESS)
}
