//! `counterfoil serve`: builds everything once, in order, and takes it down in reverse.
//!
//! Invariant: the ready line is printed when requests are answered, never before. A first admin
//! key is made only once the port is ours, so that a server which cannot start does not make a key
//! that nobody gets to see. On SIGTERM or SIGINT no request is taken any more, those in progress
//! are answered, what waits is committed, and the exit code is 0; a second signal ends the process
//! at once, as kill -9 would, which loses nothing that was acknowledged.

use super::store::{StoreArguments, open_store};
use crate::clock::Clock;
use crate::config::{Config, LogFormat, StoreUrl};
use crate::destinations::{self, ChangeWebhook};
use crate::http::{self, App, auth};
use crate::jobs::binding::{BindingJob, Finding, Gate};
use crate::jobs::clocks::{ClocksJob, server_name};
use crate::jobs::ingest::Ingest;
use crate::jobs::webhook::WebhookInbox;
use crate::jobs::{self, Jobs, Parts, restore};
use crate::provider::{self, Provider};
use crate::rules::ids::MeterSlug;
use crate::rules::meter::Meter;
use crate::store::postgres::PostgresStore;
use crate::store::{Declaration, Declarations};
use anyhow::{Context, bail};
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a shell reports for a process that was interrupted.
const EXIT_INTERRUPTED: i32 = 130;

/// Start the server: ingest events, serve exact totals, bill usage
#[derive(clap::Args)]
#[command(after_help = "Examples:
  counterfoil serve
      data in ./counterfoil-data, on http://127.0.0.1:8787; the first start prints an admin key
  counterfoil serve --data /var/lib/counterfoil --listen 0.0.0.0:8787
  COUNTERFOIL_STORE_URL=postgres://counterfoil:secret@db/counterfoil counterfoil serve
      any number of servers may share one PostgreSQL database; a password given with --store would be
      seen by every user of the machine
  COUNTERFOIL_ADMIN_KEY=choose-a-long-one counterfoil serve --log json
      sets the admin key instead of making one; log and ready line are JSON

SIGTERM or Ctrl-C ends it cleanly; kill -9 loses nothing that was acknowledged.")]
pub struct ServeArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Address and port; port 0 picks a free one, and the ready line names it
    #[arg(long, value_name = "ADDR:PORT", value_parser = read_address)]
    listen: Option<SocketAddr>,
    /// Format of the log and of the ready line
    #[arg(long, value_name = "FORMAT")]
    log: Option<LogFormat>,
}

fn read_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "give an IP address and a port, such as 127.0.0.1:8787".to_owned())
}

pub async fn run(arguments: &ServeArguments) -> anyhow::Result<ExitCode> {
    #[cfg(feature = "failpoints")]
    let _scenario = fail::FailScenario::setup();
    let config = load_config(arguments)?;
    crate::telemetry::start(&config.log)?;
    // Before any job starts: what is counted without a recorder is lost.
    http::install_recorder();
    wait_for_database(&config).await?;
    let signals = Signals::listen()?;
    let clock = Clock::system();
    let store = open_store(&config).await?;
    let listener = bind(config.server.listen).await?;
    let listen = listener.local_addr().context("the port that was bound has no address")?;
    let provider = connect_provider(&config, &clock)?;
    let refused = |refusal| anyhow::anyhow!("settings: {refusal}");
    let destinations = destinations::connect(&config.alerts).map_err(refused)?;
    let number = getrandom::u64().context("the system gives no random numbers")?;
    let context = jobs::Context {
        name: server_name(listen),
        destinations: destinations.iter().map(|destination| destination.name()).collect(),
        ..jobs::Context::new(
            Arc::clone(&store),
            clock.clone(),
            &config,
            format!("server-{number:016x}"),
            number,
        )
    };
    // Before anything is done by the clock, others are asked what time it is.
    let clocks = ClocksJob::start(&context, provider.clone()).await?;
    restore::recognise(&*store, &clock).await.context("cannot tell if the store was restored")?;
    let (binding, gate) = bind_account(&context, provider.as_ref()).await?;
    declare_meters(&config, &*store, &clock).await?;
    let given = crate::config::admin_key();
    let admin_key = auth::create_first_admin_key(&*store, &clock, given).await?;
    let strict_tenants = config.tenants.strict;
    let ingest =
        Ingest::start(Arc::clone(&store), clock.clone(), config.ingest.clone(), strict_tenants);
    let inbox = WebhookInbox::start(store.clone());
    let job_store = store.for_jobs()?.unwrap_or_else(|| Arc::clone(&store));
    let jobs = Jobs::start(Parts {
        context: jobs::Context { store: job_store, ..context },
        provider: provider.clone(),
        gate,
        binding,
        clocks,
        ingest: Arc::clone(&ingest),
        inbox: Arc::clone(&inbox),
        destinations,
        changes: ChangeWebhook::connect(&config.alerts).map_err(refused)?,
    });
    let intake = Arc::clone(&ingest);
    let app = App::new(Arc::clone(&store), intake, inbox, clock, provider, &config);
    announce(&config, listen, admin_key.as_deref())?;
    http::serve(listener, app, signals.first()).await.context("cannot serve")?;
    ingest.drain().await;
    jobs.drain().await;
    store.close().await;
    tracing::info!("stopped: everything that was acknowledged is stored");
    Ok(ExitCode::SUCCESS)
}

/// A database that restarts at the same time as this server is waited for. A signal ends the
/// waiting by ending the process: nothing is open yet.
async fn wait_for_database(config: &Config) -> anyhow::Result<()> {
    let StoreUrl::Postgres(url) = &config.store.url else { return Ok(()) };
    let patience = Duration::from_millis(config.store.wait_ms);
    let waited = PostgresStore::wait_for(url, &config.postgres, patience).await;
    waited.with_context(|| {
        format!(
            "cannot open the store {}; check that the database runs and that --store names it \
             with its user and password",
            config.store.url
        )
    })
}

fn load_config(arguments: &ServeArguments) -> anyhow::Result<Config> {
    let mut config = arguments.store.load_config()?;
    if let Some(listen) = arguments.listen {
        config.server.listen = listen;
    }
    if let Some(format) = arguments.log {
        config.log.format = format;
    }
    Ok(config)
}

/// The billing provider, with a word about what it is used for.
fn connect_provider(config: &Config, clock: &Clock) -> anyhow::Result<Option<Arc<dyn Provider>>> {
    let Config { provider, stripe, sink, .. } = config;
    let provider = provider::connect_heard_by(provider, stripe, sink, clock)
        .map_err(|refusal| anyhow::anyhow!("settings: {refusal}"))?;
    match &provider {
        Some(provider) => {
            let (name, shadow) = (provider.name(), config.provider.shadow);
            tracing::info!(provider = name, ?shadow, "billed totals go to {name}");
        }
        None if config.meters.values().any(|meter| meter.billing.is_some()) => {
            tracing::warn!("meters are billed and provider.kind is \"none\": nothing is pushed");
        }
        None => {}
    }
    Ok(provider)
}

/// Refuses to start with the key of another account than the one that the store is bound to.
async fn bind_account(
    context: &jobs::Context,
    provider: Option<&Arc<dyn Provider>>,
) -> anyhow::Result<(Option<BindingJob>, Gate)> {
    let Some(provider) = provider.filter(|_| !context.config.provider.is_shadow()) else {
        return Ok((None, Gate::open()));
    };
    let (binding, gate) = BindingJob::new(context, provider);
    match binding.check().await.context("cannot read the store's binding")? {
        Finding::Bound => {}
        Finding::Other(explained) => bail!("{explained}"),
        Finding::Unread(why) => tracing::warn!(
            "the account that the key belongs to cannot be read ({why}): events are taken, and \
             nothing is sent until it can be"
        ),
    }
    Ok((Some(binding), gate))
}

async fn declare_meters(
    config: &Config,
    store: &dyn Declarations,
    clock: &Clock,
) -> anyhow::Result<()> {
    for (slug, spec) in &config.meters {
        let refuse = |detail: &str| anyhow::anyhow!("settings: [meters.{slug}]: {detail}");
        let parsed = MeterSlug::parse(slug).map_err(|refusal| refuse(&refusal.detail))?;
        let meter =
            Meter::declare(parsed, spec.clone()).map_err(|refusal| refuse(&refusal.detail))?;
        match store.declare_meter(meter, clock.now()).await? {
            Declaration::Created => tracing::info!(meter = slug, "a meter was declared"),
            Declaration::Updated => {}
            Declaration::EventNameTaken(other) => bail!(
                "settings: [meters.{slug}.billing]: meter {other} is billed under the same \
                 event_name; give each meter its own"
            ),
            Declaration::Refused(standing) => {
                let standing = serde_json::to_string(&standing.spec)?;
                bail!(
                    "settings: [meters.{slug}] was declared differently before, as {standing}, \
                     and its totals rest on that; put the old definition back, or declare the new \
                     one under another slug"
                );
            }
        }
    }
    Ok(())
}

pub(super) async fn bind(listen: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(listen).await.map_err(|error| {
        let why = if error.kind() == ErrorKind::AddrInUse {
            "another program listens there; stop it, or choose another port with --listen (port 0 \
             picks a free one)"
        } else if error.kind() == ErrorKind::PermissionDenied {
            "this user may not use that port; choose one above 1023 with --listen"
        } else {
            "choose an address of this machine with --listen"
        };
        anyhow::anyhow!("cannot listen on {listen}: {error}: {why}")
    })
}

/// Prints the ready line, on standard output, and a key that was just made.
fn announce(config: &Config, listen: SocketAddr, admin_key: Option<&str>) -> anyhow::Result<()> {
    let scheme = if config.server.tls_cert.is_empty() { "http" } else { "https" };
    let url = format!("{scheme}://{}", reachable(listen));
    let (store, version) = (config.store.url.to_string(), env!("CARGO_PKG_VERSION"));
    let line = match config.log.format {
        LogFormat::Json => {
            let mut ready = serde_json::json!({
                "event": "ready", "url": url, "listen": listen.to_string(),
                "store": store, "version": version,
            });
            if let Some(key) = admin_key {
                ready["admin_key"] = key.into();
            }
            ready.to_string()
        }
        LogFormat::Text => {
            if let Some(key) = admin_key {
                eprintln!(
                    "\nThe first admin key, shown this once and kept nowhere:\n\n    {key}\n\n\
                     Try it:\n\n    export COUNTERFOIL_URL={url} COUNTERFOIL_KEY={key}\n    \
                     counterfoil keys create --name gateway --scope ingest\n"
                );
            }
            format!("listening on {url} (store {store}, version {version}, interface {url}/docs)")
        }
    };
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}").and_then(|()| output.flush()).context("cannot print the ready line")
}

/// Where a program on this machine reaches a server that listens on all addresses.
pub(super) fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip @ (IpAddr::V4(_) | IpAddr::V6(_)) => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// SIGTERM and SIGINT, heard from the moment the process begins to open its store.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        let terminate = listen(SignalKind::terminate())?;
        Ok(Self { terminate, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Waits for the first signal; from then on the next one ends the process.
    pub(super) async fn first(mut self) {
        self.next().await;
        tracing::info!("stopping: requests in progress end first; signal again to stop at once");
        tokio::spawn(async move {
            self.next().await;
            std::process::exit(EXIT_INTERRUPTED);
        });
    }
}
