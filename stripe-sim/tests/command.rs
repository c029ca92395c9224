//! The command `stripe-sim`: its ready line, a call, and its usage.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_stripe-sim"))
}

#[test]
fn serves_where_the_ready_line_says() {
    let child = command().arg("127.0.0.1:0").stdout(Stdio::piped()).spawn().unwrap();
    let mut running = Running(child);
    let mut line = String::new();
    BufReader::new(running.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.strip_prefix("listening on http://").unwrap().split(' ').next().unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /_sim/state HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    assert!(response.contains("\"faults_injected\":{}"), "{response}");
}

#[test]
fn usage() {
    for (arguments, code) in [(&["--help"][..], 0), (&["--port"], 2), (&["127.0.0.1:0", "x"], 2)] {
        let output = command().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert!(String::from_utf8(output.stdout).unwrap().contains("Usage: stripe-sim"));
    }
    let output = command().arg("nowhere").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().starts_with("cannot serve on nowhere: "));
}
