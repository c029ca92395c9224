//! A small mail server on loopback that speaks SMTP as RFC 5321 has it, with answers of several
//! lines, and that can be told what to say to which command.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A mail that was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mail {
    pub from: String,
    pub to: Vec<String>,
    /// Without the dots that the protocol adds.
    pub text: String,
}

pub struct MailServer {
    pub url: String,
    /// What is said to a line that begins so, in place of the usual.
    script: Mutex<BTreeMap<String, String>>,
    mails: Mutex<Vec<Mail>>,
}

impl MailServer {
    pub async fn start() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("smtp://{}", listener.local_addr().unwrap());
        let (script, mails) = (Mutex::default(), Mutex::default());
        let server = Arc::new(Self { url, script, mails });
        let shared = Arc::clone(&server);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = Arc::clone(&shared);
                tokio::spawn(async move { shared.talk(stream).await });
            }
        });
        server
    }

    /// To a line that begins with `command`, `reply` is said; "" stands for the greeting.
    pub fn says(&self, command: &str, reply: &str) {
        self.script.lock().unwrap().insert(command.to_owned(), format!("{reply}\r\n"));
    }

    pub fn forgets(&self) {
        self.script.lock().unwrap().clear();
    }

    pub fn mails(&self) -> Vec<Mail> {
        self.mails.lock().unwrap().clone()
    }

    fn scripted(&self, line: &str) -> Option<String> {
        let script = self.script.lock().unwrap();
        let fits = |(command, _): &(&String, &String)| {
            !command.is_empty() && line.starts_with(command.as_str())
        };
        script.iter().find(fits).map(|(_, reply)| reply.clone())
    }

    /// Ends when the client leaves; an error of the connection is its leaving.
    async fn talk(&self, stream: TcpStream) -> Option<()> {
        let (read, mut write) = stream.into_split();
        let mut lines = BufReader::new(read).lines();
        let greeting = self.script.lock().unwrap().get("").cloned();
        let greeting = greeting.unwrap_or("220-mail.example.com\r\n220 is ready\r\n".into());
        write.write_all(greeting.as_bytes()).await.ok()?;
        let (mut from, mut to) = (String::new(), Vec::new());
        loop {
            let line = lines.next_line().await.ok()??;
            let reply = match self.scripted(&line) {
                Some(reply) => reply,
                None if line.starts_with("EHLO ") => {
                    "250-mail.example.com\r\n250-SIZE 1000000\r\n250 8BITMIME\r\n".into()
                }
                None if line.starts_with("MAIL FROM:") => {
                    (from, to) = (line.clone(), Vec::new());
                    "250 2.1.0 Ok\r\n".into()
                }
                None if line.starts_with("RCPT TO:") => {
                    to.push(line.clone());
                    "250-2.1.5 Ok\r\n250 2.1.5 go on\r\n".into()
                }
                None if line == "DATA" => {
                    write.write_all(b"354 End with a dot\r\n").await.ok()?;
                    let mut text = String::new();
                    loop {
                        let line = lines.next_line().await.ok()??;
                        if line == "." {
                            break;
                        }
                        text.push_str(line.strip_prefix('.').unwrap_or(&line));
                        text.push('\n');
                    }
                    let mail = Mail { from: from.clone(), to: to.clone(), text };
                    match self.scripted(".") {
                        Some(reply) => reply,
                        None => {
                            self.mails.lock().unwrap().push(mail);
                            "250 2.0.0 Ok: queued\r\n".into()
                        }
                    }
                }
                None if line == "QUIT" => {
                    write.write_all(b"221 2.0.0 Bye\r\n").await.ok()?;
                    return Some(());
                }
                None => "500 5.5.2 What?\r\n".into(),
            };
            write.write_all(reply.as_bytes()).await.ok()?;
        }
    }
}
