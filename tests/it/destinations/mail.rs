//! Mail: what arrives, and what the server's answers mean.

use super::mail_server::MailServer;
use super::{alert, later, only, opened, refused, resolved, settings};
use crate::world::at;
use counterfoil::config::{AlertsConfig, Secret};
use counterfoil::destinations::{Notice, Sending};
use counterfoil::rules::alert::Alert;
use std::time::{Duration, Instant};

fn config(url: &str) -> AlertsConfig {
    AlertsConfig {
        email_to: "ops@example.com".into(),
        email_from: "Counterfoil <billing@example.org>".into(),
        smtp_url: Secret::new(url),
        ..settings()
    }
}

fn header<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let (head, _) = text.split_once("\n\n").unwrap();
    head.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).collect()
}

#[tokio::test]
async fn a_mail_arrives() {
    let server = MailServer::start().await;
    let destination = only(&config(&server.url));
    assert_eq!(destination.name(), "email");
    let mut alert = alert();
    assert_eq!(destination.send(&opened(&alert)).await, Sending::Sent);
    alert.resolved_at = Some(at("2026-11-15T12:45:00Z"));
    assert_eq!(destination.send(&resolved(&alert)).await, Sending::Sent);
    let mails = server.mails();
    assert!(mails[0].from.starts_with("MAIL FROM:<billing@example.org>"), "{}", mails[0].from);
    assert_eq!(mails[0].to, ["RCPT TO:<ops@example.com>"]);
    let text = &mails[0].text;
    assert_eq!(header(text, "Subject"), ["[page] 3 pushes of <acme> & others need an operator"]);
    assert_eq!(header(text, "From"), ["Counterfoil <billing@example.org>"]);
    assert_eq!(header(text, "To"), ["ops@example.com"]);
    assert_eq!(header(text, "Date"), ["Sun, 15 Nov 2026 12:31:00 +0000"]);
    assert_eq!(header(text, "Content-Type"), ["text/plain; charset=utf-8"]);
    let (_, body) = text.split_once("\n\n").unwrap();
    let expected = "[page] 3 pushes of <acme> & others need an operator\n\
                    \n\
                    Alert: 7\n\
                    Kind: dead_letters\n\
                    Severity: page\n\
                    Subject: acme\n\
                    Opened: 2026-11-15T12:30:00Z\n\
                    See: counterfoil pushes list --state dead\n";
    assert_eq!(body.trim_end(), expected.trim_end());
    let text = &mails[1].text;
    let subject = "[page resolved] 3 pushes of <acme> & others need an operator";
    assert_eq!(header(text, "Subject"), [subject]);
    assert!(text.contains("\nResolved: 2026-11-15T12:45:00Z\n"), "{text}");
    assert_ne!(header(&mails[0].text, "Message-ID"), header(text, "Message-ID"));
}

#[tokio::test]
async fn a_mail_that_is_sent_again_has_the_same_message_id() {
    let server = MailServer::start().await;
    server.says(".", "451-4.3.0 The queue\r\n451 4.3.0 is full");
    let destination = only(&config(&server.url));
    let alert = alert();
    let first = opened(&alert);
    let detail = later(destination.send(&first).await);
    assert!(detail.contains("ops@example.com: the mail server answered 451"), "{detail}");
    assert!(detail.contains("is full"), "{detail}");
    server.forgets();
    let again = Notice { at: at("2026-11-15T13:00:00Z"), ..first };
    for notice in [first, again] {
        assert_eq!(destination.send(&notice).await, Sending::Sent);
    }
    let ids: Vec<String> =
        server.mails().iter().map(|mail| header(&mail.text, "Message-ID").concat()).collect();
    let expected = "<counterfoil-notice-41-1794745800000000@example.org>";
    assert_eq!(ids, [expected, expected]);
}

#[tokio::test]
async fn the_servers_answers_are_told_apart() {
    let server = MailServer::start().await;
    let destination = only(&config(&server.url));
    for command in ["", "EHLO", "MAIL", "RCPT", "DATA", "."] {
        server.forgets();
        server.says(command, "450-4.2.0 Busy\r\n450 4.2.0 come back");
        let detail = later(destination.send(&opened(&alert())).await);
        assert!(detail.contains("450"), "{command:?}: {detail}");
        server.forgets();
        server.says(command, "550-5.7.1 No\r\n550 5.7.1 never");
        let detail = refused(destination.send(&opened(&alert())).await);
        assert!(detail.contains("550") && detail.contains("never"), "{command:?}: {detail}");
        server.forgets();
        server.says(command, "what is this");
        later(destination.send(&opened(&alert())).await);
        // A server that wants a login says nothing about the mail.
        server.forgets();
        server.says(command, "530 5.7.0 Log in first");
        later(destination.send(&opened(&alert())).await);
    }
    assert_eq!(server.mails(), []);
}

#[tokio::test]
async fn an_address_that_is_gone_does_not_keep_the_mail_from_others() {
    let server = MailServer::start().await;
    server.says("RCPT TO:<gone@example.com>", "550 5.1.1 No such user");
    let email_to = "gone@example.com, ops@example.com,Second <second@example.com>".to_owned();
    let destination = only(&AlertsConfig { email_to, ..config(&server.url) });
    let detail = refused(destination.send(&opened(&alert())).await);
    assert!(detail.starts_with("gone@example.com: the mail server answered 550"), "{detail}");
    assert!(!detail.contains("ops@example.com"), "{detail}");
    let mut told: Vec<String> = server.mails().into_iter().flat_map(|mail| mail.to).collect();
    told.sort();
    assert_eq!(told, ["RCPT TO:<ops@example.com>", "RCPT TO:<second@example.com>"]);
}

#[tokio::test]
async fn no_text_of_an_alert_speaks_to_the_server() {
    let server = MailServer::start().await;
    let destination = only(&config(&server.url));
    let hostile = "a\r\nBcc: thief@example.net\r\n.\r\nQUIT\r\n.. é\0";
    let alert = Alert {
        subject: hostile.into(),
        summary: hostile.into(),
        command: format!(".\r\n{hostile}"),
        ..alert()
    };
    assert_eq!(destination.send(&opened(&alert)).await, Sending::Sent);
    let mails = server.mails();
    assert_eq!(mails.len(), 1);
    assert_eq!(mails[0].to, ["RCPT TO:<ops@example.com>"]);
    assert_eq!(header(&mails[0].text, "Bcc"), Vec::<&str>::new());
    assert_eq!(header(&mails[0].text, "Subject").len(), 1);
}

/// Nobody listens, somebody says nothing, and somebody does not know TLS.
#[tokio::test]
async fn a_server_that_does_not_answer_is_tried_later_and_no_password_is_told() {
    let server = MailServer::start().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = listener.local_addr().unwrap();
    let speaking = server.url.replace("smtp://", "");
    for scheme in ["smtps", "smtp+starttls"] {
        for place in [silent.to_string(), speaking.clone(), "127.0.0.1:1".to_owned()] {
            let url = format!("{scheme}://user:canary-password@{place}");
            let config = AlertsConfig { timeout_ms: 300, ..config(&url) };
            assert!(!format!("{config:?}").contains("canary"), "{config:?}");
            let before = Instant::now();
            let detail = later(only(&config).send(&opened(&alert())).await);
            assert!(!detail.contains("canary"), "{detail}");
            assert!(before.elapsed() < Duration::from_secs(4), "{url}");
        }
    }
    assert_eq!(server.mails(), []);
}
