//! The one place that turns the setting `store.url` into an open store.

use crate::config::{Config, StoreLayout, StoreUrl};
use crate::store::Store;
use crate::store::postgres::PostgresStore;
use crate::store::sqlite::SqliteStore;
use anyhow::Context;
use std::path::PathBuf;
use std::sync::Arc;

/// Which store a command works on; the same flags everywhere.
#[derive(clap::Args, Debug)]
pub struct StoreArguments {
    /// Directory of the embedded store; short for --store sqlite:DIR
    #[arg(long, value_name = "DIR", conflicts_with = "store")]
    data: Option<PathBuf>,
    /// sqlite:DIR, or postgres://user@host/database; set COUNTERFOIL_STORE_URL to give a password
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Settings file; `counterfoil config explain` shows every setting
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl StoreArguments {
    /// The settings, with the flags over them.
    pub fn load_config(&self) -> anyhow::Result<Config> {
        let mut config = crate::config::load(self.config.as_deref())?;
        if let Some(directory) = &self.data {
            config.store.url = StoreUrl::Sqlite(directory.clone());
        }
        if let Some(text) = &self.store {
            config.store.url = StoreUrl::try_from(text.clone())
                .map_err(|refusal| anyhow::anyhow!("--store: {refusal}"))?;
            if names_password(text) {
                eprintln!(
                    "warning: every user of this machine can read the password in --store; set \
                     COUNTERFOIL_STORE_URL instead"
                );
            }
        }
        Ok(config)
    }
}

/// Whether the address of a database holds a password, before its host or among its parameters.
fn names_password(url: &str) -> bool {
    let authority = url.split_once("://").map_or("", |(_, rest)| rest);
    let user = authority.rsplit_once('@').map_or("", |(user, _)| user);
    let parameters = authority.split_once('?').map_or("", |(_, parameters)| parameters);
    user.contains(':') || parameters.split('&').any(|one| one.starts_with("password="))
}

/// Opens the store that the settings name, creating it if there is none.
pub async fn open_store(config: &Config) -> anyhow::Result<Arc<dyn Store>> {
    match &config.store.url {
        StoreUrl::Sqlite(directory) => {
            let (directory, settings) = (directory.clone(), config.sqlite.clone());
            // Recovery reads the journal, which may take seconds.
            let opening =
                tokio::task::spawn_blocking(move || SqliteStore::open(&directory, &settings));
            let store = opening.await.context("the store's opening was interrupted")?;
            Ok(store.with_context(|| format!("cannot open the store {}", config.store.url))?)
        }
        StoreUrl::Postgres(url) => {
            let distributed = match config.store.layout {
                StoreLayout::Plain => Ok(()),
                StoreLayout::Citus => PostgresStore::distribute(url, &config.postgres).await,
            };
            let store = match distributed {
                Ok(()) => PostgresStore::open(url, &config.postgres).await,
                Err(error) => Err(error),
            };
            Ok(store.with_context(|| {
                format!(
                    "cannot open the store {}; check that the database runs and that --store \
                     names it with its user and password",
                    config.store.url
                )
            })?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_in_addresses_are_recognised() {
        for (url, expected) in [
            ("postgres://u:secret@h/d", true),
            ("postgres://u:s@cret@h:5432/d", true),
            ("postgres://h/d?user=u&password=secret", true),
            ("postgres://u@h:5432/d?sslmode=require", false),
            ("postgres://h:5432/d", false),
            ("sqlite:some/directory", false),
        ] {
            assert_eq!(names_password(url), expected, "{url}");
        }
    }
}
