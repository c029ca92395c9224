//! The shell blocks of README.md, docs/billing.md and docs/late-and-wrong.md, run as they are
//! written, one after the other in one shell. Only the ports are others, since tests run side by
//! side.
//!
//! A line with `$ ` is a command, which goes on with the lines that are indented deeper or up to
//! the end of its here-document; what follows is its output. Blanks and instants are not compared,
//! and `…` stands for any text. A server runs until the next one is started.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Jobs of the server may need a moment until a command shows what the page says.
const SHOWN_WITHIN: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Example {
    command: String,
    output: String,
}

fn examples(page: &str) -> Vec<Example> {
    let mut found: Vec<Example> = Vec::new();
    let mut in_document = false;
    let mut in_command = false;
    for line in page.lines() {
        let Some(text) = line.strip_prefix("    ") else {
            if !in_document {
                in_command = false;
                // Output ends with its block.
                if !line.trim().is_empty() {
                    found.push(Example { command: String::new(), output: String::new() });
                }
            } else if let Some(last) = found.last_mut() {
                last.command.push('\n');
            }
            continue;
        };
        if let Some(command) = text.strip_prefix("$ ") {
            in_command = true;
            in_document = command.contains("<<'EOF'");
            found.push(Example { command: command.to_owned(), output: String::new() });
        } else if let Some(last) = found.last_mut().filter(|last| !last.command.is_empty()) {
            if in_document || (in_command && text.starts_with(' ')) {
                last.command.push('\n');
                last.command.push_str(text);
                in_document = in_document && text != "EOF";
            } else {
                in_command = false;
                last.output.push_str(text);
            }
        }
    }
    found.retain(|example| !example.command.is_empty());
    found
}

/// The text without blanks, and with one mark for every instant and date.
fn normal(text: &str) -> String {
    let instant = mask_instants(text);
    instant.chars().filter(|c| !c.is_whitespace()).collect()
}

/// Replaces what looks like a date, with the time after it if there is one.
fn mask_instants(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut shown = String::new();
    let mut place = 0;
    while place < bytes.len() {
        let is_date = bytes.len() >= place + 10
            && bytes[place..place + 10].iter().enumerate().all(|(at, byte)| match at {
                4 | 7 => *byte == b'-',
                _ => byte.is_ascii_digit(),
            });
        if is_date {
            place += 10;
            while place < bytes.len()
                && (bytes[place].is_ascii_digit() || b"T:.Z".contains(&bytes[place]))
            {
                place += 1;
            }
            shown.push_str("<instant>");
        } else {
            let length = text[place..].chars().next().map_or(1, char::len_utf8);
            shown.push_str(&text[place..place + length]);
            place += length;
        }
    }
    shown
}

/// Whether the parts between `…` are found one after the other; the ends count unless they are `…`.
fn fits(expected: &str, shown: &str) -> bool {
    let (expected, shown) = (normal(expected), normal(shown));
    let parts: Vec<&str> = expected.split('…').collect();
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return false };
    if parts.len() == 1 {
        return expected == shown;
    }
    let Some(mut rest) = shown.strip_prefix(first).and_then(|rest| rest.strip_suffix(last)) else {
        return false;
    };
    for part in &parts[1..parts.len() - 1] {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

struct Shell {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    server_port: String,
    simulator_port: String,
    number: usize,
}

impl Shell {
    fn start(folder: &Path) -> Self {
        let free_port = || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap().port().to_string()
        };
        let (server_port, simulator_port) = (free_port(), free_port());
        let program = Path::new(env!("CARGO_BIN_EXE_counterfoil"));
        let path = format!(
            "{}:{}",
            program.parent().unwrap().display(),
            std::env::var("PATH").unwrap_or_default()
        );
        let mut command = Command::new("bash");
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("COUNTERFOIL_")) {
            command.env_remove(name);
        }
        let mut child = command
            .current_dir(folder)
            .env("PATH", path)
            .env("COUNTERFOIL_SERVER_LISTEN", format!("127.0.0.1:{server_port}"))
            .env("COUNTERFOIL_URL", format!("http://127.0.0.1:{server_port}"))
            .env("no_proxy", "localhost,127.0.0.1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut shell = Self { child, input, output, server_port, simulator_port, number: 0 };
        shell.run("exec 2>&1");
        shell
    }

    /// Runs a command in the shell; returns its exit code and what it printed.
    fn run(&mut self, command: &str) -> (i32, String) {
        self.number += 1;
        let mark = format!("end-of-command-{}", self.number);
        writeln!(self.input, "{command}\necho \"\n{mark} $?\"").unwrap();
        let mut shown = String::new();
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the shell ended: {shown}");
            if let Some(code) = line.strip_prefix(&mark) {
                return (code.trim().parse().unwrap(), shown);
            }
            shown.push_str(&line);
        }
    }

    fn with_ports(&self, text: &str) -> String {
        text.replace("8787", &self.server_port).replace("12111", &self.simulator_port)
    }

    /// Starts a program that goes on running, in place of the one of its kind before; returns what
    /// it has printed once it is ready.
    fn start_program(&mut self, command: &str) -> String {
        let kind = if command.contains("stripe-sim") { "simulator" } else { "server" };
        let more = match kind {
            "simulator" => format!(" --listen 127.0.0.1:{}", self.simulator_port),
            _ => String::new(),
        };
        self.run(&format!("[ -z \"${kind}\" ] || {{ kill ${kind}; wait ${kind}; }}"));
        // The ready line of the program before must not be taken for this one's.
        self.run(&format!(": > {kind}.log"));
        self.run(&format!("{command}{more} > {kind}.log 2> {kind}.err & {kind}=$!"));
        let began = Instant::now();
        loop {
            let (_, shown) = self.run(&format!("cat {kind}.log"));
            if shown.contains("listening on") {
                return shown;
            }
            let (_, errors) = self.run(&format!("cat {kind}.err"));
            assert!(began.elapsed() < SHOWN_WITHIN, "{command} is not ready: {errors}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn check(&mut self, example: &Example) {
        let command = self.with_ports(&example.command);
        let expected = self.with_ports(&example.output);
        if command.contains("counterfoil serve") || command.contains("counterfoil stripe-sim") {
            let shown = self.start_program(&command);
            assert!(fits(&expected, &shown), "{command}\nshows\n{shown}\nand not\n{expected}");
            return;
        }
        let only_reads = !["--json", "-X", "-d ", "--apply", "="]
            .iter()
            .any(|writes| command.contains(writes) && !command.contains("?tenant="));
        let began = Instant::now();
        loop {
            let (code, shown) = self.run(&command);
            if expected.is_empty() {
                assert_eq!(code, 0, "{command}\nshows\n{shown}");
                return;
            }
            if fits(&expected, &shown) {
                return;
            }
            assert!(
                only_reads && began.elapsed() < SHOWN_WITHIN,
                "{command}\nshows\n{shown}\nand not\n{expected}"
            );
            std::thread::sleep(Duration::from_millis(500));
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = writeln!(self.input, "kill $server $simulator; exit");
        let _ = self.child.wait();
    }
}

#[test]
fn examples_of_the_pages_work_as_written() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = Shell::start(folder.path());
    for page in ["README.md", "docs/billing.md", "docs/late-and-wrong.md"] {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
        let examples = examples(&std::fs::read_to_string(page).unwrap());
        assert!(examples.len() > 10, "{} examples", examples.len());
        for example in &examples {
            shell.check(example);
        }
    }
}

#[test]
fn marks_stand_for_any_text() {
    assert!(fits("total 0.3 …", "total  0.3\nfrom 2"));
    assert!(fits("at 2026-11-15T23:00:20.766Z; 1", "at 2027-01-01T00:00:00Z; 1"));
    assert!(fits("…b…", "a b c") && fits("a…c", "a b c"));
    assert!(!fits("b…", "a b") && !fits("a", "a b") && !fits("…c…b…", "b c"));
}
