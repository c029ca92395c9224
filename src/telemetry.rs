//! The log: text for people or JSON lines for programs, always on standard error, since standard
//! output belongs to the ready line and to answers.
//!
//! Invariant: it is set up once, before anything is logged, and by `serve` alone; other commands
//! speak to the person who ran them.

use crate::config::{LogConfig, LogFormat};
use tracing_subscriber::EnvFilter;

/// The setting `log.level` names no level.
#[derive(Debug, thiserror::Error)]
#[error("log.level {level:?} is not a level; use error, warn, info, debug, trace or directives")]
pub struct LevelError {
    level: String,
}

/// Sends what is logged from now on to standard error.
pub fn start(settings: &LogConfig) -> Result<(), LevelError> {
    let filter = EnvFilter::try_new(&settings.level)
        .map_err(|_| LevelError { level: settings.level.clone() })?;
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match settings.format {
        LogFormat::Text => subscriber.with_ansi(false).init(),
        LogFormat::Json => subscriber.json().flatten_event(true).init(),
    }
    Ok(())
}
