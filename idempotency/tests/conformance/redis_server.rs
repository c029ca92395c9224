//! A Redis of the test's own, on a socket in a temporary folder.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

pub struct RedisServer {
    folder: tempfile::TempDir,
    fsync: &'static str,
    process: Mutex<Child>,
}

impl RedisServer {
    /// `fsync` is how often it syncs: `always`, as one that is meant to remember has to, or
    /// `everysec`. None, with a printed line, if the program is missing, and a failure where it is
    /// required.
    pub fn start(fsync: &'static str) -> Option<Self> {
        let found = Command::new("redis-server").arg("--version").output();
        if !found.is_ok_and(|output| output.status.success()) {
            assert!(
                std::env::var("COUNTERFOIL_TEST_REQUIRE_REDIS").is_err(),
                "there is no redis-server in the path"
            );
            println!("skipped: there is no redis-server in the path");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let process = Mutex::new(spawn(folder.path(), fsync));
        Some(Self { folder, fsync, process })
    }

    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.folder.path().join("socket").display())
    }

    /// As kill -9 does.
    pub fn kill(&self) {
        let mut process = self.process.lock().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
        std::fs::remove_file(self.folder.path().join("socket")).unwrap();
    }

    /// After [`RedisServer::kill`]: with everything that was on its disk.
    pub fn start_again(&self) {
        *self.process.lock().unwrap() = spawn(self.folder.path(), self.fsync);
    }

    /// After [`RedisServer::kill`]: with nothing.
    pub fn start_empty(&self) {
        std::fs::remove_dir_all(self.folder.path().join("appendonlydir")).unwrap();
        self.start_again();
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let mut process = self.process.lock().unwrap();
        let _ = process.kill();
        let _ = process.wait();
    }
}

fn spawn(folder: &Path, fsync: &str) -> Child {
    let socket = folder.join("socket");
    let child = Command::new("redis-server")
        .args(["--port", "0", "--save", "", "--appendonly", "yes", "--appendfsync", fsync])
        .arg("--unixsocket")
        .arg(&socket)
        .arg("--dir")
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let began = Instant::now();
    while !answers(&socket) {
        assert!(began.elapsed() < Duration::from_secs(30), "redis-server did not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

/// Whether it has read its disk: until then it takes connections and refuses commands.
fn answers(socket: &Path) -> bool {
    let Ok(mut stream) = UnixStream::connect(socket) else { return false };
    let mut answer = [0; 7];
    stream.write_all(b"PING\r\n").and_then(|()| stream.read_exact(&mut answer)).is_ok()
        && &answer == b"+PONG\r\n"
}
