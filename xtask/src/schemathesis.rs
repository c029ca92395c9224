//! Validates the server's OpenAPI document, calls every operation of a running server with
//! generated requests, good and bad, and compares each answer with what the document promises.
//! Then `promtool` checks the metrics, which by now have a value of nearly every kind.
//!
//! The seed is fixed, so that a red run can be repeated. The server gets a folder of its own under
//! `target/`, removed at the next start, so that after a failure its data can be looked at.

use crate::debian::{self, Need};
use crate::keeper::{KEEP, Kept};
use crate::{cargo, root, run_to_end};
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Pinned: a newer version finds other things, which should be a change of its own.
const VERSION: &str = "4.32.5";
/// Checks the document itself, as generators of clients do before they begin.
const VALIDATOR: &str = "0.9.0";
const SEED: &str = "20261115";
/// Per operation and phase; keeps the whole under about a minute.
const EXAMPLES_MAX: &str = "40";
const READY_WITHIN: Duration = Duration::from_secs(30);

/// Left out on purpose: `negative_data_rejection` and `positive_data_acceptance`, because a batch
/// answers 200 with a verdict for each item whatever the items are, and a well-formed event of an
/// undeclared meter is refused.
const CHECKS: [&str; 7] = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "ignored_auth",
];

/// `cargo xtask schemathesis`: what `run` needs, and then `run`.
pub fn run_alone() -> Result<()> {
    debian::install_missing(&[Need::PythonVenv, Need::Promtool])?;
    run_to_end(cargo()?.args(["build", "--features", "failpoints"]))?;
    run()
}

/// Expects the built server beside this program.
pub fn run() -> Result<()> {
    let target = root()?.join("target");
    let schemathesis = install(&target.join("venv"))?;
    let folder = target.join("schemathesis");
    if folder.exists() {
        fs::remove_dir_all(&folder).context("could not remove the data of the last run")?;
    }
    fs::create_dir_all(&folder).context("could not make a folder for the server's data")?;
    let key = random_key()?;
    let (_server, url) = start_server(&folder, &key)?;
    let python = schemathesis.with_file_name("python");
    let validate = "import sys, openapi_spec_validator as v; v.validate_url(sys.argv[1])";
    run_to_end(Command::new(&python).args(["-c", validate]).arg(format!("{url}/openapi.json")))?;
    call_operations(&schemathesis, &folder, &url, &key)?;
    check_metrics(&python, &url, &key)
}

fn call_operations(schemathesis: &Path, folder: &Path, url: &str, key: &str) -> Result<()> {
    run_to_end(
        Command::new(schemathesis)
            .current_dir(folder)
            .env("PYTHONPATH", root()?.join("xtask"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("SCHEMATHESIS_HOOKS", "schemathesis_hooks")
            .args(["run", "--no-color"])
            .arg(format!("{url}/openapi.json"))
            .args(["--url", url])
            .args(["--header", &format!("Authorization: Bearer {key}")])
            .args(["--checks", &CHECKS.join(",")])
            // Not `stateful`: it follows one operation's answer into the next, and so may revoke
            // the very key it works with.
            .args(["--phases", "examples,coverage,fuzzing"])
            .args(["--mode", "all", "--continue-on-failure"])
            .args(["--max-examples", EXAMPLES_MAX, "--seed", SEED])
            .args(["--generation-database", "none"])
            .args(["--request-timeout", "10", "--workers", "1"]),
    )
}

/// Warnings fail too: a metric without help is one that nobody can read.
fn check_metrics(python: &Path, url: &str, key: &str) -> Result<()> {
    let fetch = "import sys, urllib.request as r; \
                 q = r.Request(sys.argv[1], headers={'Authorization': 'Bearer ' + sys.argv[2]}); \
                 sys.stdout.buffer.write(r.urlopen(q, timeout=10).read())";
    let mut fetched = Command::new(python)
        .args(["-c", fetch, &format!("{url}/metrics"), key])
        .stdout(Stdio::piped())
        .spawn()
        .context("could not read the metrics")?;
    let metrics = fetched.stdout.take().context("the metrics are piped")?;
    let checked = run_to_end(Command::new("promtool").args(["check", "metrics"]).stdin(metrics));
    if !fetched.wait().is_ok_and(|status| status.success()) {
        bail!("{url}/metrics could not be read");
    }
    checked
}

/// Makes the virtual environment, unless it is there with the right version. Returns the program.
fn install(venv: &Path) -> Result<PathBuf> {
    let program = venv.join("bin").join("schemathesis");
    let validator = program.with_file_name("openapi-spec-validator");
    let is_installed = |program: &Path, version: &str| {
        let output = Command::new(program).arg("--version").output();
        output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(version))
    };
    if is_installed(&program, VERSION) && is_installed(&validator, VALIDATOR) {
        return Ok(program);
    }
    println!("installing schemathesis {VERSION} in {}", venv.display());
    run_to_end(Command::new("python3").args(["-m", "venv", "--clear"]).arg(venv))?;
    run_to_end(
        Command::new(venv.join("bin").join("pip"))
            .args(["install", "--quiet", "--disable-pip-version-check"])
            .arg(format!("schemathesis=={VERSION}"))
            .arg(format!("openapi-spec-validator=={VALIDATOR}")),
    )?;
    Ok(program)
}

/// Starts the server on a port of its choice; returns it with its URL.
pub fn start_server(folder: &Path, key: &str) -> Result<(Kept, String)> {
    let own = std::env::current_exe().context("could not find this program's own file")?;
    let server = own.with_file_name("counterfoil");
    let data = folder.join("data");
    let log = File::create(folder.join("server.log")).context("could not make the server's log")?;
    let mut arguments = vec![server.into_os_string(), "serve".into(), "--data".into()];
    arguments.push(data.into_os_string());
    arguments.extend(["--listen", "127.0.0.1:0", "--log", "json"].map(Into::into));
    let kept = Kept::start(KEEP, arguments, |command| {
        // The server refuses settings it does not know, and must not get ours by accident.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("COUNTERFOIL_") {
                command.env_remove(name);
            }
        }
        command.env("COUNTERFOIL_ADMIN_KEY", key).stderr(log);
        // Without one the endpoint for webhooks answers 503, which would be found as a failure.
        command.env("COUNTERFOIL_STRIPE_WEBHOOK_SECRETS", "whsec_schemathesis");
        // Requests without a key are to be answered 401, however many there are.
        command.env("COUNTERFOIL_LIMITS_UNKNOWN_KEYS_PER_SECOND", "0");
        command.env("COUNTERFOIL_LIMITS_REQUESTS_PER_SECOND", "0");
    })?;
    let url = ready_url(&kept).with_context(|| {
        let log = folder.join("server.log");
        let text = fs::read_to_string(&log).unwrap_or_default();
        format!("the server did not become ready; {} says:\n{text}", log.display())
    })?;
    Ok((kept, url))
}

fn ready_url(server: &Kept) -> Result<String> {
    let began = Instant::now();
    while began.elapsed() < READY_WITHIN {
        let line = server.line_within(READY_WITHIN)?;
        if let Some(url) = url_field(&line) {
            return Ok(url.trim_end_matches('/').to_owned());
        }
    }
    bail!("no line with a url in {READY_WITHIN:?}")
}

/// The field `url` of a JSON object on one line. A URL has nothing that JSON escapes, so there is
/// no need for a JSON reader in the one program that is compiled before all others.
fn url_field(line: &str) -> Option<&str> {
    let (_, after_name) = line.split_once("\"url\"")?;
    let value = after_name.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
    value.split('"').next().filter(|url| url.starts_with("http"))
}

pub fn random_key() -> Result<String> {
    let mut bytes = [0_u8; 32];
    let mut source = File::open("/dev/urandom").context("could not open /dev/urandom")?;
    source.read_exact(&mut bytes).context("could not read /dev/urandom")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_of_a_ready_line() {
        let check = |line: &str, expected: Option<&str>| assert_eq!(url_field(line), expected);
        check(r#"{"ready":true,"url":"http://127.0.0.1:81"}"#, Some("http://127.0.0.1:81"));
        check(r#"{ "url" : "http://[::1]:81/" , "b":1}"#, Some("http://[::1]:81/"));
        check(r#"{"message":"starting"}"#, None);
        check(r#"{"url":7}"#, None);
        check("", None);
    }

    #[test]
    fn keys_are_long_and_differ() {
        let (one, two) = (random_key().unwrap(), random_key().unwrap());
        assert_eq!(one.len(), 64);
        assert_ne!(one, two);
    }
}
