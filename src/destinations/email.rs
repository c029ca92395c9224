//! Mail in plain text, given to a mail server of the operator's own over SMTP.
//!
//! Invariant: a notice has the same Message-ID on every try and for every address, and no text of
//! an alert can make a header. Each address is tried by itself, so that one which is gone does not
//! keep the mail from the others.

use super::{Destination, Notice, Sending, one_line, shorten};
use crate::config::{AlertsConfig, Secret};
use crate::rules::base64;
use crate::rules::timestamp::Timestamp;
use async_trait::async_trait;
use lettre::address::Envelope;
use lettre::message::header::{ContentType, HeaderName, HeaderValue};
use lettre::message::{Mailbox, Message};
use lettre::{Address, AsyncSmtpTransport, AsyncTransport, Tokio1Executor};
use reqwest::Url;
use std::error::Error;
use std::time::{Duration, SystemTime};

/// All are tried at the same time, each over a connection of its own.
const ADDRESSES_MAX: usize = 16;
/// A longer subject is cut by most readers.
const SUBJECT_CHARS_MAX: usize = 150;
/// Most characters of a mail server's answer that are recorded.
const REPLY_CHARS_MAX: usize = 200;
/// Answers about user and password, not about the mail; their text is not recorded.
const LOGIN_CODES: [u16; 4] = [530, 534, 535, 538];

const URL_ADVICE: &str = "alerts.smtp_url is smtp://host:25, smtps://user:password@host:465 or \
                          smtp+starttls://user:password@host:587";

type Relay = AsyncSmtpTransport<Tokio1Executor>;

pub struct Email {
    relay: Relay,
    from: Mailbox,
    to: Vec<Mailbox>,
    timeout: Duration,
    /// Secrets: an answer that contains one is not recorded.
    hidden: Vec<String>,
}

impl Email {
    /// None if the settings do not name one.
    pub fn connect(config: &AlertsConfig) -> Result<Option<Self>, String> {
        let settings = [
            ("alerts.email_to", config.email_to.is_empty()),
            ("alerts.email_from", config.email_from.is_empty()),
            ("alerts.smtp_url", config.smtp_url.is_empty()),
        ];
        if settings.iter().all(|(_, empty)| *empty) {
            return Ok(None);
        }
        if let Some((missing, _)) = settings.iter().find(|(_, empty)| *empty) {
            return Err(format!(
                "mail needs alerts.email_to, alerts.email_from and alerts.smtp_url: set {missing} \
                 too"
            ));
        }
        let from = read_address("alerts.email_from", &config.email_from)?;
        let addresses = config.email_to.split(',').map(str::trim).filter(|text| !text.is_empty());
        let to = addresses
            .map(|text| read_address("alerts.email_to", text))
            .collect::<Result<Vec<_>, _>>()?;
        if to.is_empty() || to.len() > ADDRESSES_MAX {
            return Err(format!("alerts.email_to has 1 to {ADDRESSES_MAX} addresses"));
        }
        let timeout = Duration::from_millis(config.timeout_ms);
        let (relay, hidden) = read_relay(&config.smtp_url, timeout)?;
        Ok(Some(Self { relay, from, to, timeout, hidden }))
    }

    async fn send_one(&self, mail: &[u8], to: &Address) -> Sending {
        let envelope = Envelope::new(Some(self.from.email.clone()), vec![to.clone()])
            .expect("there is an address to send to");
        // The library's own timeout is for each step.
        let sent = self.relay.send_raw(&envelope, mail);
        match tokio::time::timeout(self.timeout, sent).await {
            Ok(Ok(_)) => Sending::Sent,
            Ok(Err(error)) => judge(&error, &self.hidden),
            Err(_) => Sending::Later { detail: "no answer of the mail server in time".into() },
        }
    }

    fn write(&self, notice: &Notice<'_>) -> Result<Vec<u8>, lettre::error::Error> {
        let id = format!("<{}@{}>", notice.key(), self.from.email.domain());
        let mut builder = Message::builder()
            .from(self.from.clone())
            .subject(shorten(&notice.headline(), SUBJECT_CHARS_MAX))
            .message_id(Some(id))
            .date(system_time(notice.at))
            // So that nobody's absence note answers it.
            .raw_header(HeaderValue::new(
                HeaderName::new_from_ascii_str("Auto-Submitted"),
                "auto-generated".into(),
            ))
            .header(ContentType::TEXT_PLAIN);
        for address in &self.to {
            builder = builder.to(address.clone());
        }
        Ok(builder.body(write_body(notice))?.formatted())
    }
}

#[async_trait]
impl Destination for Email {
    fn name(&self) -> &'static str {
        "email"
    }

    async fn send(&self, notice: &Notice<'_>) -> Sending {
        let mail = match self.write(notice) {
            Ok(mail) => mail,
            Err(error) => {
                return Sending::Refused { detail: format!("no mail can be written: {error}") };
            }
        };
        let tries = self.to.iter().map(|to| self.send_one(&mail, &to.email));
        let sendings = futures_util::future::join_all(tries).await;
        let names = self.to.iter().map(|to| to.email.to_string());
        gather(names.zip(sendings))
    }
}

/// Tried again if any address may work later. Refused if some are and the others have the mail:
/// trying again is pointless, and somebody should see that an address is wrong.
fn gather(sendings: impl Iterator<Item = (String, Sending)>) -> Sending {
    let (mut later, mut refused) = (Vec::new(), Vec::new());
    for (address, sending) in sendings {
        match sending {
            Sending::Sent => {}
            Sending::Later { detail } => later.push(format!("{address}: {detail}")),
            Sending::Refused { detail } => refused.push(format!("{address}: {detail}")),
        }
    }
    if !later.is_empty() {
        Sending::Later { detail: later.join("; ") }
    } else if !refused.is_empty() {
        Sending::Refused { detail: refused.join("; ") }
    } else {
        Sending::Sent
    }
}

/// A 5xx is the server's word that it will not take the mail. Everything else may pass: also a
/// wrong password, which says nothing about the mail.
fn judge(error: &lettre::transport::smtp::Error, hidden: &[String]) -> Sending {
    let Some(code) = error.status().map(u16::from) else {
        return Sending::Later { detail: tell(&error.to_string(), hidden) };
    };
    if LOGIN_CODES.contains(&code) {
        let detail = format!("the mail server answered {code}: it wants another user or password");
        return Sending::Later { detail };
    }
    let text = error.source().map(ToString::to_string).unwrap_or_default();
    let detail = format!("the mail server answered {code}: {}", tell(&text, hidden));
    if error.is_permanent() { Sending::Refused { detail } } else { Sending::Later { detail } }
}

fn tell(text: &str, hidden: &[String]) -> String {
    if hidden.iter().any(|secret| text.contains(secret.as_str())) {
        return "(an answer with a secret in it)".into();
    }
    shorten(one_line(text).trim(), REPLY_CHARS_MAX)
}

fn write_body(notice: &Notice<'_>) -> String {
    let alert = notice.alert;
    let resolved_at = alert.resolved_at.map(|at| at.to_string()).unwrap_or_default();
    let lines = [
        ("Alert", alert.number.to_string()),
        ("Kind", alert.kind.name().to_owned()),
        ("Severity", alert.kind.severity().name().to_owned()),
        ("Subject", one_line(&alert.subject)),
        ("Opened", alert.opened_at.to_string()),
        ("Resolved", resolved_at),
        ("See", one_line(&alert.command)),
    ];
    let mut body = format!("{}\n\n", notice.headline());
    for (name, value) in lines.iter().filter(|(_, value)| !value.is_empty()) {
        body.push_str(&format!("{name}: {value}\n"));
    }
    body
}

/// A notice of before 1970 does not exist.
fn system_time(at: Timestamp) -> SystemTime {
    let micros = u64::try_from(at.micros()).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_micros(micros)
}

fn read_address(setting: &str, text: &str) -> Result<Mailbox, String> {
    text.parse().map_err(|error| format!("{setting}: {text:?} is no mail address: {error}"))
}

/// The server, and the texts that its answers must not contain. The address is not repeated in a
/// refusal: it may hold a password.
fn read_relay(secret: &Secret, timeout: Duration) -> Result<(Relay, Vec<String>), String> {
    let text = secret.expose();
    let url = Url::parse(text).map_err(|error| format!("{URL_ADVICE}: {error}"))?;
    let plain = matches!(url.path(), "" | "/") && url.query().is_none() && url.fragment().is_none();
    if !plain || url.host_str().is_none_or(str::is_empty) {
        return Err(URL_ADVICE.into());
    }
    let password = url.password().unwrap_or_default();
    if url.username().is_empty() != password.is_empty() {
        return Err(format!("{URL_ADVICE}: a user and a password, or neither"));
    }
    // What the library calls each of them.
    let known = match (url.scheme(), text.split_once("://")) {
        ("smtp", Some(_)) if !password.is_empty() => {
            return Err(format!("{URL_ADVICE}: a password is not sent without TLS"));
        }
        ("smtp" | "smtps", Some(_)) => text.to_owned(),
        ("smtp+starttls", Some((_, place))) => {
            format!("smtp://{}?tls=required", place.trim_end_matches('/'))
        }
        (_, _) => return Err(URL_ADVICE.into()),
    };
    // It can only be installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let relay = Relay::from_url(&known)
        .map_err(|error| format!("cannot use alerts.smtp_url: {error}"))?
        .timeout(Some(timeout))
        .build();
    let both = format!("\0{}\0{password}", url.username());
    let coded = [base64::encode(password.as_bytes()), base64::encode(both.as_bytes())];
    let hidden = if password.is_empty() {
        Vec::new()
    } else {
        coded.into_iter().chain([password.to_owned()]).collect()
    };
    Ok((relay, hidden))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{alert, notice, settings};
    use super::*;
    use crate::rules::alert::NoticeEvent;

    fn config() -> AlertsConfig {
        let mut config = settings();
        config.email_to = "ops@example.com, Second <second@example.com>".into();
        config.email_from = "Counterfoil <billing@example.org>".into();
        config.smtp_url = Secret::new("smtps://user:hunter2@mail.example.com:465");
        config
    }

    fn email(config: &AlertsConfig) -> Email {
        Email::connect(config).expect("valid").expect("named")
    }

    #[test]
    fn no_text_makes_a_header() {
        let alert = alert("3 pushes\r\nBcc: thief@example.net\r\n\r\nand a body é");
        let notice = notice(&alert, NoticeEvent::Opened);
        let mail = email(&config()).write(&notice).expect("a mail");
        let mail = String::from_utf8(mail).expect("ASCII");
        let (head, body) = mail.split_once("\r\n\r\n").expect("a head and a body");
        assert!(!head.contains("\r\nBcc"), "{head}");
        assert!(!head.contains("thief\r\n"), "{head}");
        let id = "Message-ID: <counterfoil-notice-41-1794745800000000@example.org>\r\n";
        assert!(head.contains(id), "{head}");
        assert!(head.contains("Date: Sun, 15 Nov 2026 13:00:00 +0000"), "{head}");
        assert!(head.contains("To: ops@example.com, Second <second@example.com>"), "{head}");
        assert!(head.contains("Auto-Submitted: auto-generated"), "{head}");
        assert!(body.contains("\r\nSee: counterfoil pushes --state dead\r\n"), "{body}");
        assert!(mail.is_ascii() && !mail.replace("\r\n", "").contains(['\r', '\n']));
    }

    #[test]
    fn servers_are_read_or_refused_without_their_password() {
        for url in [
            "smtp://mail.example.com",
            "smtp://127.0.0.1:2525",
            "smtps://user:hunter2@mail.example.com",
            "smtp+starttls://user%40example.com:hunter2@mail.example.com:587/",
        ] {
            let changed = AlertsConfig { smtp_url: Secret::new(url), ..config() };
            assert!(Email::connect(&changed).is_ok(), "{url}");
        }
        for url in [
            "hunter2",
            "smtp://",
            "http://user:hunter2@mail.example.com",
            "smtp://user:hunter2@mail.example.com",
            "smtps://hunter2@mail.example.com",
            "smtps://user:hunter2@mail.example.com:99999",
            "smtps://user:hunter2@mail.example.com?tls=opportunistic",
            "smtps://user:%ffhunter2@mail.example.com",
        ] {
            let changed = AlertsConfig { smtp_url: Secret::new(url), ..config() };
            let refusal = Email::connect(&changed).err().expect(url);
            assert!(refusal.contains("alerts.smtp_url"), "{refusal}");
            assert!(!refusal.contains("hunter2"), "{refusal}");
        }
    }

    #[test]
    fn addresses_are_read_or_refused() {
        for to in ["nobody", "a@b.example, nobody", ",", "a@b.example\r\nBcc: c@d.example"] {
            let changed = AlertsConfig { email_to: to.into(), ..config() };
            let refusal = Email::connect(&changed).err().expect(to);
            assert!(refusal.contains("alerts.email_to"), "{refusal}");
        }
        let changed = AlertsConfig { email_to: "a@b.example,".repeat(17), ..config() };
        assert!(Email::connect(&changed).is_err());
    }

    #[test]
    fn one_address_decides_for_all_only_if_it_may_work_later() {
        let sent = || ("a".to_owned(), Sending::Sent);
        let later = || ("b".to_owned(), Sending::Later { detail: "busy".into() });
        let refused = || ("c".to_owned(), Sending::Refused { detail: "gone".into() });
        let check = |all: Vec<(String, Sending)>, expected: Sending| {
            assert_eq!(gather(all.into_iter()), expected);
        };
        check(vec![sent(), sent()], Sending::Sent);
        let busy = Sending::Later { detail: "b: busy".into() };
        check(vec![sent(), refused(), later()], busy);
        check(vec![refused(), sent()], Sending::Refused { detail: "c: gone".into() });
    }

    #[test]
    fn an_answer_with_a_password_is_not_recorded() {
        let email = email(&config());
        for secret in ["hunter2", "aHVudGVyMg==", "AHVzZXIAaHVudGVyMg=="] {
            let recorded = tell(&format!("you said {secret}"), &email.hidden);
            assert_eq!(recorded, "(an answer with a secret in it)");
        }
        assert_eq!(tell("no such\r\nuser ", &email.hidden), "no such  user");
    }
}
