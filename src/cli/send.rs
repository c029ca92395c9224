//! `counterfoil send`: events from a file or a pipe to a server.
//!
//! Invariant: an event is sent until the server has answered with its verdict. Whatever happens on
//! the way, the same bytes with the same ids go out again, so nothing is counted twice and the
//! whole command may be repeated. Memory is bounded: one batch for each connection, and one ahead.

mod input;
mod summary;

use super::EXIT_EVENTS_REFUSED;
use super::answer::read;
use super::client::{Client, Request, ServerArguments};
use crate::api::events::Verdicts;
use anyhow::{Context, bail};
use bytes::Bytes;
use indicatif::{ProgressBar, ProgressStyle};
use input::{Batch, CsvDefaults, read_csv, read_ndjson};
use std::fs::File;
use std::io::{BufReader, IsTerminal, Read};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use summary::Summary;
use tokio::sync::{Mutex as AsyncMutex, mpsc};
use tokio::task::JoinSet;

/// How often a line is printed where no bar can be drawn.
const PLAIN_LINE_EVERY: Duration = Duration::from_secs(2);

/// Send events from a file or standard input
#[derive(clap::Args)]
#[command(after_help = "Examples:
  counterfoil send events.ndjson
  zcat events.ndjson.gz | counterfoil send -
  counterfoil send usage.csv --meter api_calls
      the header row names the fields; unknown columns become properties

Sending the same file again is safe: what was counted comes back as duplicate.
Exit code: 0 all counted, 3 some events were refused, 1 the server could not be reached.")]
pub struct SendArguments {
    /// File to read; - is standard input
    #[arg(default_value = "-")]
    file: PathBuf,
    #[command(flatten)]
    server: ServerArguments,
    /// Input format; default: by the file's name
    #[arg(long, value_name = "FORMAT")]
    format: Option<InputFormat>,
    /// Events in one request
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// Concurrent requests; with more than one, batches may arrive out of order
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=256))]
    connections: u32,
    /// Meter of CSV rows that do not name one
    #[arg(long)]
    meter: Option<String>,
    /// Tenant of CSV rows that do not name one
    #[arg(long)]
    tenant: Option<String>,
    /// Seconds to retry a request before giving up
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    retry_for: u64,
    /// Most problems to print
    #[arg(long, default_value_t = 20)]
    problems: usize,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum InputFormat {
    Ndjson,
    Csv,
}

pub async fn run(arguments: SendArguments) -> anyhow::Result<ExitCode> {
    let client = Client::new(&arguments.server)?;
    let sender = Arc::new(Sender {
        client,
        patience: Duration::from_secs(arguments.retry_for),
        summary: Mutex::new(Summary::default()),
        progress: SendProgress::new(input_bytes(&arguments)),
    });
    let places = usize::try_from(arguments.connections).context("too many connections")?;
    let (batches, waiting) = mpsc::channel(1);
    let waiting = Arc::new(AsyncMutex::new(waiting));
    let mut workers = JoinSet::new();
    for _ in 0..places {
        workers.spawn(Arc::clone(&sender).send_batches(Arc::clone(&waiting)));
    }
    drop(waiting);
    let (problems, json) = (arguments.problems, arguments.json);
    let reading = tokio::task::spawn_blocking(move || read_input(&arguments, &batches));
    let mut failure = None;
    while let Some(ended) = workers.join_next().await {
        if let Err(error) = ended.context("a connection's work was interrupted").flatten() {
            // The others may be waiting for input that never comes.
            failure = Some(error);
            workers.abort_all();
            break;
        }
    }
    sender.progress.finish();
    if let Some(failure) = failure {
        if sender.has_sent() {
            sender.print_summary(problems, json)?;
        }
        // Reading standard input may be waiting for a line that never comes: it is not waited for.
        eprintln!("counterfoil: gave up: {failure:#}; sending the same input again is safe");
        std::process::exit(1);
    }
    let read = reading.await.context("reading was interrupted")?;
    if read.is_err() && !sender.has_sent() {
        // A table of zeros would stand above the reason.
        return read.map(|()| ExitCode::FAILURE);
    }
    let refused = sender.print_summary(problems, json)?;
    read?;
    Ok(if refused == 0 { ExitCode::SUCCESS } else { EXIT_EVENTS_REFUSED.into() })
}

struct Sender {
    client: Client,
    patience: Duration,
    summary: Mutex<Summary>,
    progress: SendProgress,
}

impl Sender {
    /// One connection: takes the next batch and sends it until it is answered.
    async fn send_batches(
        self: Arc<Self>,
        batches: Arc<AsyncMutex<mpsc::Receiver<Batch>>>,
    ) -> anyhow::Result<()> {
        loop {
            let next = batches.lock().await.recv().await;
            let Some(mut batch) = next else { return Ok(()) };
            let body = Bytes::from(std::mem::take(&mut batch.body));
            let answer = if body.is_empty() { None } else { Some(self.send(body).await?) };
            let mut summary = self.summary.lock().expect("no holder of the summary panics");
            summary.add_too_long(&batch.too_long);
            if let Some(answer) = answer {
                summary.add(&batch, answer);
            }
            self.progress.advance(batch.bytes_read, &summary);
        }
    }

    async fn send(&self, body: Bytes) -> anyhow::Result<Verdicts> {
        let request = Request::events(body);
        let on_retry = |_: &_| {
            self.summary.lock().expect("no holder of the summary panics").retries += 1;
        };
        let answer = self.client.call_patiently(&request, self.patience, on_retry).await?;
        read(&answer)
    }

    fn has_sent(&self) -> bool {
        self.summary.lock().expect("no holder of the summary panics").sent > 0
    }

    /// Returns how many events were refused.
    fn print_summary(&self, problems_max: usize, json: bool) -> anyhow::Result<u64> {
        let summary = self.summary.lock().expect("no holder of the summary panics");
        if json {
            println!("{}", serde_json::to_string(&*summary)?);
        } else {
            summary.print(problems_max);
        }
        Ok(summary.refused())
    }
}

fn is_standard_input(arguments: &SendArguments) -> bool {
    arguments.file.as_os_str() == "-"
}

/// The length of the input, if it is known.
fn input_bytes(arguments: &SendArguments) -> Option<u64> {
    if is_standard_input(arguments) {
        return None;
    }
    std::fs::metadata(&arguments.file).ok().filter(std::fs::Metadata::is_file).map(|m| m.len())
}

fn read_input(arguments: &SendArguments, batches: &mpsc::Sender<Batch>) -> anyhow::Result<()> {
    let file = &arguments.file;
    let input: Box<dyn Read> = if is_standard_input(arguments) {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(File::open(file).with_context(|| format!("cannot open {}", file.display()))?)
    };
    let is_csv = file.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("csv"));
    let format =
        arguments.format.unwrap_or(if is_csv { InputFormat::Csv } else { InputFormat::Ndjson });
    let events_max = usize::try_from(arguments.batch).context("the batch is too large")?;
    // Once no connection takes batches any more, reading on would be in vain.
    let deliver = |batch| batches.blocking_send(batch).is_ok();
    match format {
        InputFormat::Ndjson if arguments.meter.is_some() || arguments.tenant.is_some() => {
            bail!("--meter and --tenant complete CSV rows; NDJSON is sent unchanged")
        }
        InputFormat::Ndjson => {
            read_ndjson(BufReader::with_capacity(256 * 1024, input), events_max, deliver)
        }
        InputFormat::Csv => {
            let defaults =
                CsvDefaults { meter: arguments.meter.clone(), tenant: arguments.tenant.clone() };
            read_csv(input, &defaults, events_max, deliver)
        }
    }
}

/// A bar for people who watch, a line now and then for a log.
struct SendProgress {
    bar: Option<ProgressBar>,
    last_line: Mutex<Instant>,
}

impl SendProgress {
    fn new(bytes: Option<u64>) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let template = match bytes {
                Some(_) => "{bar:30} {percent}% {bytes_per_sec} {msg}",
                None => "{spinner} {bytes} {bytes_per_sec} {msg}",
            };
            let style = ProgressStyle::with_template(template).expect("the template is valid");
            bytes.map_or_else(ProgressBar::new_spinner, ProgressBar::new).with_style(style)
        });
        Self { bar, last_line: Mutex::new(Instant::now()) }
    }

    fn advance(&self, bytes: u64, summary: &Summary) {
        let message = || {
            format!(
                "{} sent, {} accepted, {} duplicates, {} refused, {} retries",
                summary.sent,
                summary.accepted,
                summary.duplicates,
                summary.refused(),
                summary.retries
            )
        };
        if let Some(bar) = &self.bar {
            bar.inc(bytes);
            bar.set_message(message());
            return;
        }
        let mut last = self.last_line.lock().expect("no holder of the time panics");
        if last.elapsed() >= PLAIN_LINE_EVERY {
            *last = Instant::now();
            eprintln!("{}", message());
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
