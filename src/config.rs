//! Settings: one TOML file whose default is the manual, and the environment over it. The only
//! place that reads the environment.
//!
//! Invariant: every setting has a default, and a name that the default file does not have is
//! refused, in the file and in the environment.

use crate::rules::attribution::Outside;
use crate::rules::credit::DrawOrder;
use crate::rules::meter::MeterSpec;
use crate::rules::span::Span;
use crate::rules::submission::Backoff;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The default settings, which are also the manual.
pub const DEFAULT_TEXT: &str = include_str!("../counterfoil.default.toml");

/// Variables that are not settings.
const OTHER_VARIABLES: [&str; 3] = ["COUNTERFOIL_ADMIN_KEY", "COUNTERFOIL_URL", "COUNTERFOIL_KEY"];

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub server: ServerConfig,
    pub limits: LimitsConfig,
    pub store: StoreConfig,
    pub sqlite: SqliteConfig,
    pub postgres: PostgresConfig,
    pub ingest: IngestConfig,
    pub tenants: TenantsConfig,
    pub provider: ProviderConfig,
    pub stripe: StripeConfig,
    pub sink: SinkConfig,
    pub push: PushConfig,
    pub reconcile: ReconcileConfig,
    pub billing: BillingConfig,
    pub credits: CreditsConfig,
    pub sagas: SagasConfig,
    pub tax: TaxConfig,
    pub alerts: AlertsConfig,
    pub check: CheckConfig,
    pub log: LogConfig,
    #[serde(default)]
    /// By slug.
    pub meters: BTreeMap<String, MeterSpec>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    pub listen: SocketAddr,
    pub connections_max: usize,
    pub body_bytes_max: usize,
    pub batch_events_max: usize,
    pub header_timeout_ms: u64,
    pub body_timeout_ms: u64,
    pub drain_timeout_ms: u64,
    pub idle_timeout_ms: u64,
    pub connection_age_max_ms: u64,
    /// 0 for no limit.
    pub connections_per_address_max: usize,
    /// Paths of PEM files; both or none.
    pub tls_cert: String,
    pub tls_key: String,
}

/// How much one key, tenant or address may ask for; 0 for no limit of a rate.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsConfig {
    pub event_requests_per_second: u64,
    pub requests_per_second: u64,
    pub address_per_second: u64,
    pub unknown_keys_per_second: u64,
    pub queries_at_once: usize,
    pub query_rows_max: usize,
    pub request_timeout_ms: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreConfig {
    pub url: StoreUrl,
    pub layout: StoreLayout,
    pub wait_ms: u64,
}

/// How a PostgreSQL keeps its tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreLayout {
    Plain,
    /// Distributed by tenant.
    Citus,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SqliteConfig {
    pub segment_events: usize,
    pub segment_age_max_ms: u64,
    pub readers: usize,
    pub query_timeout_ms: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PostgresConfig {
    pub writers: usize,
    pub readers: usize,
    pub request_writers: usize,
    pub job_connections: usize,
    pub timeout_ms: u64,
    pub query_timeout_ms: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IngestConfig {
    pub accept_horizon_hours: u32,
    pub queue_events_max: usize,
    pub queue_tenant_percent: usize,
    pub groups_per_day: usize,
    pub group_events_max: usize,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantsConfig {
    pub strict: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderConfig {
    pub kind: ProviderKind,
    pub shadow: Shadow,
}

impl ProviderConfig {
    /// Whether usage is compared and never billed.
    pub fn is_shadow(&self) -> bool {
        self.shadow != Shadow::Off
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderKind {
    None,
    Stripe,
    Sink,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shadow {
    Off,
    Sandbox,
    Nowhere,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StripeConfig {
    pub api_key: Secret,
    pub api_base: String,
    pub timeout_ms: u64,
    /// Several, with commas in between.
    pub webhook_secrets: Secret,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SinkConfig {
    pub url: String,
    pub secret: Secret,
    pub timeout_ms: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PushConfig {
    pub rate_per_second: u32,
    pub concurrency_max: usize,
    pub lease_ms: u32,
    pub backoff_base_ms: u64,
    pub backoff_max_ms: u64,
    pub look_after: Span,
    pub poll_ms: u64,
}

impl PushConfig {
    pub fn backoff(&self) -> Backoff {
        Backoff { base_ms: self.backoff_base_ms, max_ms: self.backoff_max_ms }
    }
}

/// Where alerts go. The addresses are secrets too: their holders can write to the channel.
/// The self-check.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckConfig {
    /// Of the day in UTC.
    pub walk_hour: u32,
    pub rows_per_second: u64,
    pub sample_windows: usize,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlertsConfig {
    pub webhook_url: Secret,
    pub webhook_secret: Secret,
    pub webhook_changes: bool,
    pub slack_url: Secret,
    pub pagerduty_key: Secret,
    pub pagerduty_url: String,
    pub email_to: String,
    pub email_from: String,
    pub smtp_url: Secret,
    pub allow_private: bool,
    pub timeout_ms: u64,
    /// Zero: never.
    pub unmapped_after: Span,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BillingConfig {
    pub outside: Outside,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreditsConfig {
    pub order: DrawOrder,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SagasConfig {
    pub lease_ms: u32,
}

/// Who quotes tax.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaxConfig {
    pub engine: TaxEngineKind,
    pub url: String,
    pub token: Secret,
    pub timeout_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaxEngineKind {
    Table,
    Http,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReconcileConfig {
    pub passes: bool,
    pub reads_per_hour: u32,
    pub replay: bool,
    pub reissue: bool,
    pub unknown_subscriptions: UnknownSubscriptions,
}

/// What a subscription of a tenant is that nothing here belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownSubscriptions {
    /// A finding.
    Page,
    /// Nothing: subscriptions are made elsewhere.
    Ignore,
}

/// A text that no log and no error message shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    pub fn expose(&self) -> &str {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The secrets of a list with commas in between.
    pub fn split(&self) -> Vec<Self> {
        let parts = self.0.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.map(Self::new).collect()
    }
}

/// An error never repeats what was given.
impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let toml::Value::String(text) = toml::Value::deserialize(from)? else {
            return Err(serde::de::Error::custom("a secret is a text in quotes"));
        };
        Ok(Self(text))
    }
}

/// Masked, so that whatever shows settings shows no secret.
impl Serialize for Secret {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(if self.0.is_empty() { "" } else { "…" })
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_empty() { "(none)" } else { "…" })
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogConfig {
    pub level: String,
    pub format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    Text,
    Json,
}

/// Which store, and where.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum StoreUrl {
    Sqlite(PathBuf),
    /// A connection string; it may hold a password.
    Postgres(String),
}

/// Why the settings cannot be used, with what to do.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the settings file {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{origin}: {detail}")]
    Invalid { origin: String, detail: String },
}

/// Reads the settings: defaults, then the file, then the environment.
pub fn load(file: Option<&Path>) -> Result<Config, ConfigError> {
    let file = read_file(file)?;
    merge(file.as_ref().map(|(origin, text)| (origin.as_str(), text.as_str())), &environment())
}

fn read_file(file: Option<&Path>) -> Result<Option<(String, String)>, ConfigError> {
    let Some(path) = file else { return Ok(None) };
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.into(), source })?;
    Ok(Some((path.display().to_string(), text)))
}

/// One setting in force, as text, without secrets.
#[derive(Debug, PartialEq, Eq)]
pub struct Setting {
    pub section: String,
    pub key: String,
    pub value: String,
    /// The layer that decided it.
    pub origin: String,
}

/// Every setting in force and the layer it comes from, in the order of names.
pub fn list_settings(file: Option<&Path>) -> Result<Vec<Setting>, ConfigError> {
    let file = read_file(file)?;
    let file = file.as_ref().map(|(origin, text)| (origin.as_str(), text.as_str()));
    list_layers(file, &environment())
}

fn list_layers(
    file: Option<(&str, &str)>,
    environment: &[(String, String)],
) -> Result<Vec<Setting>, ConfigError> {
    // As the types serialise it: secrets are masked.
    let table = toml::Table::try_from(merge(file, environment)?)
        .map_err(|error| invalid_toml("settings", "", &error.to_string(), None))?;
    let given = match file {
        Some((origin, text)) => Some((origin, parse_table(origin, text)?)),
        None => None,
    };
    let mut settings = Vec::new();
    for (section, keys) in &table {
        for (key, value) in keys.as_table().into_iter().flatten() {
            let variable = format!("COUNTERFOIL_{section}_{key}").to_ascii_uppercase();
            let in_file = given
                .as_ref()
                .filter(|(_, table)| table.get(section).is_some_and(|s| s.get(key).is_some()));
            let origin = match in_file {
                _ if environment.iter().any(|(name, _)| *name == variable) => variable,
                Some((origin, _)) => (*origin).to_owned(),
                None => "default".to_owned(),
            };
            let value = without_credentials(value.clone()).to_string();
            settings.push(Setting { section: section.clone(), key: key.clone(), value, origin });
        }
    }
    Ok(settings)
}

/// The value, with every address in it cut down to its scheme, host and path: user, password and
/// query may be secret.
fn without_credentials(value: toml::Value) -> toml::Value {
    let toml::Value::String(text) = &value else { return value };
    let Some((scheme, rest)) = text.split_once("://") else { return value };
    // A password may hold an @ of its own.
    let (user, rest) = match rest.rsplit_once('@') {
        Some((_, rest)) => ("…@", rest),
        None => ("", rest),
    };
    let (place, query) = match rest.split_once(['?', '#']) {
        Some((place, _)) => (place, "?…"),
        None => (rest, ""),
    };
    toml::Value::String(format!("{scheme}://{user}{place}{query}"))
}

/// The first admin key, if the environment names one.
#[expect(clippy::disallowed_methods, reason = "this is the one place that reads the environment")]
pub fn admin_key() -> Option<String> {
    std::env::var("COUNTERFOIL_ADMIN_KEY").ok().filter(|key| !key.is_empty())
}

/// How wide the terminal is, if the environment says so.
#[expect(clippy::disallowed_methods, reason = "this is the one place that reads the environment")]
pub fn columns() -> Option<u16> {
    std::env::var("COLUMNS").ok()?.parse().ok().filter(|columns| *columns > 0)
}

#[expect(clippy::disallowed_methods, reason = "this is the one place that reads the environment")]
fn environment() -> Vec<(String, String)> {
    std::env::vars()
        .filter(|(name, _)| {
            name.starts_with("COUNTERFOIL_") && !name.starts_with("COUNTERFOIL_TEST_")
        })
        .filter(|(name, _)| !OTHER_VARIABLES.contains(&name.as_str()))
        .collect()
}

fn merge(
    file: Option<(&str, &str)>,
    environment: &[(String, String)],
) -> Result<Config, ConfigError> {
    let table = merge_tables(file, environment)?;
    let config = Config::deserialize(table).map_err(|error| ConfigError::Invalid {
        origin: "settings".into(),
        detail: error.to_string(),
    })?;
    check(&config)?;
    Ok(config)
}

fn merge_tables(
    file: Option<(&str, &str)>,
    environment: &[(String, String)],
) -> Result<toml::Table, ConfigError> {
    let mut table = parse_table("the built-in defaults", DEFAULT_TEXT)?;
    if let Some((origin, text)) = file {
        for (section, value) in parse_table(origin, text)? {
            merge_section(&mut table, &section, value)
                .map_err(|detail| ConfigError::Invalid { origin: origin.to_owned(), detail })?;
        }
    }
    for (name, value) in environment {
        merge_variable(&mut table, name, value)
            .map_err(|detail| ConfigError::Invalid { origin: name.clone(), detail })?;
    }
    Ok(table)
}

fn parse_table(origin: &str, text: &str) -> Result<toml::Table, ConfigError> {
    text.parse::<toml::Table>()
        .map_err(|error| invalid_toml(origin, text, error.message(), error.span()))
}

/// Says where the fault is and what it is. The line itself is not repeated: it may hold a secret.
fn invalid_toml(
    origin: &str,
    text: &str,
    message: &str,
    span: Option<std::ops::Range<usize>>,
) -> ConfigError {
    let place = span.and_then(|span| text.get(..span.start)).map(|before| {
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        format!("line {line}, column {column}: ")
    });
    let detail = format!("{}{message}", place.unwrap_or_default());
    ConfigError::Invalid { origin: origin.to_owned(), detail }
}

fn merge_section(table: &mut toml::Table, section: &str, value: toml::Value) -> Result<(), String> {
    if section == "meters" {
        table.insert(section.to_owned(), value);
        return Ok(());
    }
    let Some(toml::Value::Table(known)) = table.get_mut(section) else {
        return Err(format!("there is no section [{section}]; see `counterfoil config explain`"));
    };
    let toml::Value::Table(changes) = value else {
        return Err(format!("[{section}] must be a section"));
    };
    for (key, value) in changes {
        if !known.contains_key(&key) {
            return Err(format!(
                "there is no setting {section}.{key}; see `counterfoil config explain`"
            ));
        }
        known.insert(key, value);
    }
    Ok(())
}

fn merge_variable(table: &mut toml::Table, name: &str, text: &str) -> Result<(), String> {
    let path = name.trim_start_matches("COUNTERFOIL_").to_ascii_lowercase();
    let (section, key) = path.split_once('_').unwrap_or((&path, ""));
    let current = table.get_mut(section).and_then(|section| section.get_mut(key));
    let Some(current) = current else {
        return Err("there is no such setting; see `counterfoil config explain`".into());
    };
    *current = if current.is_integer() {
        toml::Value::Integer(text.parse().map_err(|_| format!("{text:?} is not a whole number"))?)
    } else if current.is_bool() {
        toml::Value::Boolean(text.parse().map_err(|_| format!("{text:?} is not true or false"))?)
    } else {
        toml::Value::String(text.to_owned())
    };
    Ok(())
}

/// Limits that would make the server useless or unsafe are refused at the start.
fn check(config: &Config) -> Result<(), ConfigError> {
    let at_least_one = [
        ("server.connections_max", config.server.connections_max),
        ("server.body_bytes_max", config.server.body_bytes_max),
        ("server.batch_events_max", config.server.batch_events_max),
        ("limits.queries_at_once", config.limits.queries_at_once),
        ("limits.query_rows_max", config.limits.query_rows_max),
        ("ingest.groups_per_day", config.ingest.groups_per_day),
        ("sqlite.segment_events", config.sqlite.segment_events),
        ("sqlite.readers", config.sqlite.readers),
        ("postgres.writers", config.postgres.writers),
        ("postgres.readers", config.postgres.readers),
        ("postgres.request_writers", config.postgres.request_writers),
        ("postgres.job_connections", config.postgres.job_connections),
        ("ingest.queue_events_max", config.ingest.queue_events_max),
        ("ingest.group_events_max", config.ingest.group_events_max),
        ("ingest.queue_tenant_percent", config.ingest.queue_tenant_percent),
        ("push.concurrency_max", config.push.concurrency_max),
    ];
    let invalid = |detail: String| ConfigError::Invalid { origin: "settings".into(), detail };
    let address = &config.tax.url;
    if config.tax.engine == TaxEngineKind::Http
        && !["http://", "https://"].iter().any(|scheme| address.starts_with(scheme))
    {
        let detail = "tax.engine is \"http\": set tax.url to the address that quotes";
        return Err(invalid(detail.into()));
    }
    if let Some((name, _)) = at_least_one.iter().find(|(_, value)| *value == 0) {
        return Err(invalid(format!("{name} must be at least 1")));
    }
    if config.ingest.queue_tenant_percent > 100 {
        return Err(invalid("ingest.queue_tenant_percent is at most 100".into()));
    }
    if config.ingest.accept_horizon_hours == 0 {
        return Err(invalid("ingest.accept_horizon_hours must be at least 1".into()));
    }
    let push = &config.push;
    if push.rate_per_second == 0 || push.backoff_base_ms == 0 || push.poll_ms == 0 {
        let names = "push.rate_per_second, push.backoff_base_ms and push.poll_ms";
        return Err(invalid(format!("{names} must be at least 1")));
    }
    if config.check.rows_per_second == 0 || config.check.walk_hour > 23 {
        let detail = "check.rows_per_second is at least 1, and check.walk_hour 0 to 23";
        return Err(invalid(detail.into()));
    }
    if config.alerts.timeout_ms == 0 {
        return Err(invalid("alerts.timeout_ms must be at least 1".into()));
    }
    if u64::from(config.sagas.lease_ms) < config.stripe.timeout_ms.saturating_mul(2) {
        return Err(invalid("sagas.lease_ms must be at least twice stripe.timeout_ms".into()));
    }
    // A claim must not end while its request may still be on its way.
    let timeout_ms = config.stripe.timeout_ms.max(config.sink.timeout_ms);
    if u64::from(push.lease_ms) < timeout_ms.saturating_mul(2) {
        let detail = "push.lease_ms must be at least twice stripe.timeout_ms and sink.timeout_ms";
        return Err(invalid(detail.into()));
    }
    Ok(())
}

impl TryFrom<String> for StoreUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("sqlite:").filter(|path| !path.is_empty()) {
            Ok(Self::Sqlite(path.into()))
        } else if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            Ok(Self::Postgres(text))
        } else {
            // The text is not repeated: it may hold a password.
            Err("a store is sqlite:DIRECTORY or postgres://user:password@host/database".into())
        }
    }
}

impl std::fmt::Display for StoreUrl {
    /// Without a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            // A password may hold an @ of its own, and may also stand behind the question mark.
            Self::Postgres(url) => match url.rsplit_once('@') {
                Some((_, host)) => {
                    let place = host.split_once('?').map_or(host, |(place, _)| place);
                    write!(f, "postgres://…@{place}")
                }
                None => write!(f, "postgres://…"),
            },
        }
    }
}

/// Without a password.
impl Serialize for StoreUrl {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl std::fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_refused(file: &str, environment: &[(&str, &str)], expected: &str) {
        let owned: Vec<_> =
            environment.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let error = merge(Some(("test.toml", file)), &owned).expect_err("refused").to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn the_default_file_is_complete() {
        let config = merge(None, &[]).expect("valid");
        assert_eq!(config.server.listen.to_string(), "127.0.0.1:8787");
        assert_eq!(config.store.url, StoreUrl::Sqlite("counterfoil-data".into()));
    }

    #[test]
    fn file_then_environment() {
        let file = "[server]\nlisten = \"127.0.0.1:1\"\n[tenants]\nstrict = true\n\
                    [meters.calls]\naggregation = \"sum\"\n";
        let environment = [
            ("COUNTERFOIL_SERVER_LISTEN".to_owned(), "127.0.0.1:2".to_owned()),
            ("COUNTERFOIL_INGEST_ACCEPT_HORIZON_HOURS".to_owned(), "24".to_owned()),
        ];
        let config = merge(Some(("test.toml", file)), &environment).expect("valid");
        assert_eq!(config.server.listen.port(), 2);
        assert!(config.tenants.strict);
        assert_eq!(config.ingest.accept_horizon_hours, 24);
        assert_eq!(config.meters.keys().next().map(String::as_str), Some("calls"));
    }

    #[test]
    fn unknown_names_and_bad_values_are_refused() {
        check_refused("[sever]\n", &[], "no section [sever]");
        check_refused("[server]\nlistne = 1\n", &[], "no setting server.listne");
        check_refused("[server]\nconnections_max = 0\n", &[], "at least 1");
        check_refused("[alerts]\ntimeout_ms = 0\n", &[], "alerts.timeout_ms");
        check_refused("[store]\nurl = \"mysql://u:secret@h\"\n", &[], "sqlite:DIRECTORY");
        check_refused("[meters.a]\naggregation=\"sum\"\nscael=1\n", &[], "scael");
        check_refused("", &[("COUNTERFOIL_SERVER_PORT", "1")], "no such setting");
        check_refused("", &[("COUNTERFOIL_TENANTS_STRICT", "yes")], "not true or false");
    }

    #[test]
    fn settings_are_listed_with_their_layer() {
        let file = "[store]\nurl = \"postgres://me:hunter2@db/x\"\n[tenants]\nstrict = true\n";
        let environment = [("COUNTERFOIL_TENANTS_STRICT".to_owned(), "false".to_owned())];
        let settings = list_layers(Some(("test.toml", file)), &environment).expect("valid");
        let check = |section: &str, key: &str, value: &str, origin: &str| {
            let found = settings.iter().find(|s| s.section == section && s.key == key);
            let found = found.expect("listed");
            assert_eq!((found.value.as_str(), found.origin.as_str()), (value, origin));
        };
        check("store", "url", "\"postgres://…@db/x\"", "test.toml");
        check("tenants", "strict", "false", "COUNTERFOIL_TENANTS_STRICT");
        check("sqlite", "readers", "4", "default");
    }

    /// Every setting that takes a text is set to one with a secret; those that take only certain
    /// texts refuse it.
    #[test]
    fn secrets_are_not_listed() {
        let address = "https://me:hunter2@host/path?api_key=hunter2";
        let defaults = parse_table("defaults", DEFAULT_TEXT).expect("valid");
        let mut taken = Vec::new();
        for (section, keys) in &defaults {
            for (key, _) in keys.as_table().into_iter().flatten().filter(|(_, v)| v.is_str()) {
                let name = format!("COUNTERFOIL_{section}_{key}").to_ascii_uppercase();
                let environment = [(name, address.to_owned())];
                let Ok(settings) = list_layers(None, &environment) else { continue };
                assert!(!format!("{settings:?}").contains("hunter2"), "{section}.{key}");
                taken.push(format!("{section}.{key}"));
            }
        }
        for secret in ["stripe.api_key", "tax.token", "tax.url", "alerts.smtp_url", "sink.url"] {
            assert!(taken.iter().any(|name| name == secret), "{secret} takes a text");
        }
        let bare = [("COUNTERFOIL_TAX_TOKEN".to_owned(), "hunter2".to_owned())];
        let (settings, config) = (list_layers(None, &bare), merge(None, &bare).expect("valid"));
        assert!(!format!("{settings:?} {config:?}").contains("hunter2"));
    }

    #[test]
    fn errors_in_the_file_do_not_repeat_secrets() {
        for (file, expected) in [
            ("[stripe]\napi_key = \"hunter2\n", "line 2"),
            ("[alerts]\npagerduty_key = 12345678\n", "a secret is a text in quotes"),
            ("[alerts]\nslack_url = [\"hunter2\"]\n", "a secret is a text in quotes"),
        ] {
            let error = merge(Some(("test.toml", file)), &[]).expect_err("refused").to_string();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("hunter2") && !error.contains("12345678"), "{error}");
        }
    }

    #[test]
    fn passwords_are_not_shown() {
        let url = StoreUrl::try_from("postgres://me:hunter2@db/x".to_owned()).expect("valid");
        assert_eq!(format!("{url} {url:?}"), "postgres://…@db/x postgres://…@db/x");
        let url = StoreUrl::try_from("postgres://me:hun@ter2@db/x?password=hunter2".to_owned());
        assert_eq!(url.expect("valid").to_string(), "postgres://…@db/x");
    }
}
