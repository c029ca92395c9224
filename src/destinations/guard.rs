//! The way out for HTTP: which addresses may be reached, and a client that reaches no other.
//!
//! Invariant: unless the settings allow private addresses, every address that a name leads to is
//! checked each time something is sent, and the connection goes to one of those that were checked,
//! so a name that changes between look-up and connection gains nothing. Redirects are not followed,
//! proxies of the environment are not used, and of an answer only its beginning is read.

use super::{Sending, one_line, shorten};
use crate::config::{AlertsConfig, Secret};
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Most bytes of an answer that are read.
const REPLY_BYTES_MAX: usize = 4_096;
/// Most characters of an answer that are recorded.
const REPLY_CHARS_MAX: usize = 200;
/// A shorter part of an address is no secret, and would be found by chance in any answer.
const HIDDEN_CHARS_MIN: usize = 8;

/// What may be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AddressPolicy {
    Public,
    Anywhere,
}

/// One address that notices are POSTed to.
pub struct Outlet {
    http: reqwest::Client,
    url: Url,
    /// The setting that names the address, for messages.
    setting: &'static str,
    /// Secrets: an answer that contains one is not recorded.
    hidden: Vec<String>,
}

/// An answer, as far as it was read.
pub struct Reply {
    pub status: u16,
    /// Its beginning, in one line and without secrets.
    pub text: String,
}

impl Reply {
    pub fn describe(&self, who: &str) -> String {
        let Self { status, text } = self;
        if text.is_empty() {
            format!("{who} answered {status}")
        } else {
            format!("{who} answered {status}: {text}")
        }
    }
}

impl Outlet {
    pub fn connect(
        setting: &'static str,
        url: &Secret,
        config: &AlertsConfig,
    ) -> Result<Self, String> {
        Self::connect_with(setting, url, config, Arc::new(look_up))
    }

    fn connect_with(
        setting: &'static str,
        url: &Secret,
        config: &AlertsConfig,
        lookup: Lookup,
    ) -> Result<Self, String> {
        let reach =
            if config.allow_private { AddressPolicy::Anywhere } else { AddressPolicy::Public };
        let url = read_url(url.expose(), reach).map_err(|why| format!("{setting} {why}"))?;
        // It can only be installed already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .timeout(Duration::from_millis(config.timeout_ms))
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            // A connection that is kept would be used without another look at its address.
            .pool_max_idle_per_host(0)
            .dns_resolver(Arc::new(CheckedResolver { reach, lookup }))
            .build()
            .map_err(|error| format!("cannot make an HTTP client: {error}"))?;
        let hidden = secret_parts(&url);
        Ok(Self { http, url, setting, hidden })
    }

    /// An answer that contains the secret is not recorded.
    pub fn hiding(mut self, secret: &str) -> Self {
        self.hidden.push(secret.to_owned());
        self
    }

    /// Sends JSON. Without an answer, returns the outcome.
    pub async fn post(
        &self,
        headers: &[(&'static str, String)],
        body: Vec<u8>,
    ) -> Result<Reply, Sending> {
        let mut request =
            self.http.post(self.url.clone()).header("content-type", "application/json").body(body);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let response = request.send().await.map_err(|error| self.no_answer(error))?;
        let status = response.status().as_u16();
        let text = self.tell(&read_beginning(response).await);
        Ok(Reply { status, text })
    }

    fn no_answer(&self, error: reqwest::Error) -> Sending {
        let error = error.without_url();
        if let Some(forbidden) = find_forbidden(&error) {
            let setting = self.setting;
            return Sending::Refused { detail: format!("{setting} leads to {forbidden}") };
        }
        let what = if error.is_timeout() { "no answer in time" } else { "no answer" };
        Sending::Later { detail: format!("{what}: {}", innermost(&error)) }
    }

    fn tell(&self, beginning: &[u8]) -> String {
        let text = String::from_utf8_lossy(beginning);
        if self.hidden.iter().any(|secret| text.contains(secret.as_str())) {
            return "(an answer with a secret in it)".into();
        }
        shorten(one_line(&text).trim(), REPLY_CHARS_MAX)
    }
}

/// The status is known by now, so an answer that breaks off is as good as a short one.
async fn read_beginning(mut response: reqwest::Response) -> Vec<u8> {
    let mut beginning = Vec::new();
    while let Ok(Some(part)) = response.chunk().await {
        let room = REPLY_BYTES_MAX - beginning.len();
        beginning.extend_from_slice(&part[..part.len().min(room)]);
        if beginning.len() == REPLY_BYTES_MAX {
            break;
        }
    }
    beginning
}

/// Parts of an address that may be what keeps others from using it.
fn secret_parts(url: &Url) -> Vec<String> {
    let segments = url.path_segments().into_iter().flatten();
    let others = [url.query(), url.password(), Some(url.username())].into_iter().flatten();
    let long = |part: &&str| part.chars().count() >= HIDDEN_CHARS_MIN;
    segments.chain(others).filter(long).map(str::to_owned).collect()
}

/// What is at the bottom of an error: what is above only says that a request failed.
fn innermost(error: &dyn Error) -> String {
    match error.source() {
        Some(source) => innermost(source),
        None => error.to_string(),
    }
}

// ---------------------------------------------------------------------------------------------
// Addresses

/// An address that may not be reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{address}, {class}; if that is meant, set alerts.allow_private = true")]
struct Forbidden {
    address: IpAddr,
    class: &'static str,
}

fn find_forbidden<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Forbidden> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(forbidden) = error.downcast_ref::<Forbidden>() {
            return Some(forbidden);
        }
        next = error.source();
    }
    None
}

/// The text is not repeated in a refusal: it may hold a secret.
fn read_url(text: &str, reach: AddressPolicy) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| format!("is not an address: {error}"))?;
    let host = match (url.scheme(), url.host_str()) {
        ("http" | "https", Some(host)) => host,
        (_, _) => return Err("must begin with https:// or http://".into()),
    };
    match reach {
        AddressPolicy::Anywhere => {}
        AddressPolicy::Public => judge_host(host)?,
    }
    Ok(url)
}

/// Judges what can be judged without a look-up. The reader of addresses has made `0x7f.1`,
/// `2130706433` and the like into `127.0.0.1` by now.
fn judge_host(host: &str) -> Result<(), String> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = bare.parse::<IpAddr>() {
        return judge_address(address).map_err(|forbidden| format!("leads to {forbidden}"));
    }
    let name = host.trim_end_matches('.').to_ascii_lowercase();
    let last = name.rsplit('.').next().unwrap_or(&name);
    if ["localhost", "local", "internal"].contains(&last) {
        return Err(format!(
            "leads to a name that ends in {last}, which is inside; if that is meant, set \
             alerts.allow_private = true"
        ));
    }
    Ok(())
}

fn judge_address(address: IpAddr) -> Result<(), Forbidden> {
    let class = match address {
        IpAddr::V4(v4) => class_of_v4(v4),
        IpAddr::V6(v6) => class_of_v6(v6),
    };
    match class {
        Some(class) => Err(Forbidden { address, class }),
        None => Ok(()),
    }
}

/// Ranges that are not public, by first address and length of prefix; after the registry of
/// special-purpose addresses that IANA keeps.
const FORBIDDEN_V4: [(Ipv4Addr, u32, &str); 15] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8, "an unspecified address"),
    (Ipv4Addr::new(10, 0, 0, 0), 8, "a private address"),
    (Ipv4Addr::new(100, 64, 0, 0), 10, "an address behind a carrier's NAT"),
    (Ipv4Addr::new(127, 0, 0, 0), 8, "a loopback address"),
    (Ipv4Addr::new(169, 254, 0, 0), 16, "a link-local address"),
    (Ipv4Addr::new(172, 16, 0, 0), 12, "a private address"),
    (Ipv4Addr::new(192, 0, 0, 0), 24, "a reserved address"),
    (Ipv4Addr::new(192, 0, 2, 0), 24, "an address for documentation"),
    (Ipv4Addr::new(192, 88, 99, 0), 24, "a 6to4 relay"),
    (Ipv4Addr::new(192, 168, 0, 0), 16, "a private address"),
    (Ipv4Addr::new(198, 18, 0, 0), 15, "an address for benchmarks"),
    (Ipv4Addr::new(198, 51, 100, 0), 24, "an address for documentation"),
    (Ipv4Addr::new(203, 0, 113, 0), 24, "an address for documentation"),
    (Ipv4Addr::new(224, 0, 0, 0), 4, "a multicast address"),
    (Ipv4Addr::new(240, 0, 0, 0), 4, "a reserved or broadcast address"),
];

/// The same for IPv6. What lies outside of 2000::/3 is not public whether it is listed or not; the
/// lines are there to give it its name.
const FORBIDDEN_V6: [(Ipv6Addr, u32, &str); 14] = [
    (Ipv6Addr::UNSPECIFIED, 128, "an unspecified address"),
    (Ipv6Addr::LOCALHOST, 128, "a loopback address"),
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96, "an IPv4 address in another form"),
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 0), 96, "an IPv4 address in another form"),
    (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96, "an IPv4 address behind NAT64"),
    (Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48, "an IPv4 address behind NAT64"),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7, "a unique-local address"),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10, "a link-local address"),
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10, "a site-local address"),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8, "a multicast address"),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23, "a reserved, benchmark or Teredo address"),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32, "an address for documentation"),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16, "an IPv4 address in 6to4"),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20, "an address for documentation"),
];

const GLOBAL_V6: (Ipv6Addr, u32) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

fn class_of_v4(address: Ipv4Addr) -> Option<&'static str> {
    let holds = |(first, length, _): &&(Ipv4Addr, u32, &'static str)| {
        (address.to_bits() ^ first.to_bits()).leading_zeros() >= *length
    };
    FORBIDDEN_V4.iter().find(holds).map(|(_, _, class)| *class)
}

fn class_of_v6(address: Ipv6Addr) -> Option<&'static str> {
    let holds = |first: Ipv6Addr, length: u32| {
        (address.to_bits() ^ first.to_bits()).leading_zeros() >= length
    };
    let listed = FORBIDDEN_V6.iter().find(|(first, length, _)| holds(*first, *length));
    let outside = !holds(GLOBAL_V6.0, GLOBAL_V6.1);
    listed.map(|(_, _, class)| *class).or(outside.then_some("not a public address"))
}

// ---------------------------------------------------------------------------------------------
// Look-ups

type FoundAddresses = futures_util::future::BoxFuture<'static, std::io::Result<Vec<SocketAddr>>>;
/// Given from outside so that a test can make a name lead anywhere.
type Lookup = Arc<dyn Fn(String) -> FoundAddresses + Send + Sync>;

/// Asks the system, as every other program of the machine does.
fn look_up(name: String) -> FoundAddresses {
    Box::pin(async move { Ok(tokio::net::lookup_host((name, 0)).await?.collect()) })
}

/// Gives the client addresses that were checked, and no others. If one is forbidden all are: who
/// mixes the two means no good.
struct CheckedResolver {
    reach: AddressPolicy,
    lookup: Lookup,
}

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (reach, found) = (self.reach, (self.lookup)(name.as_str().to_owned()));
        Box::pin(async move {
            let addresses = found.await?;
            match reach {
                AddressPolicy::Anywhere => {}
                AddressPolicy::Public => {
                    addresses.iter().try_for_each(|found| judge_address(found.ip()))?
                }
            }
            let checked: Addrs = Box::new(addresses.into_iter());
            Ok(checked)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::settings;
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn only_public_addresses_pass() {
        let refused = [
            "0.0.0.0 0.255.255.255 10.0.0.0 10.255.255.255 100.64.0.0 100.127.255.255 127.0.0.1",
            "127.255.255.255 169.254.0.1 169.254.169.254 172.16.0.0 172.31.255.255 192.0.0.8",
            "192.0.2.1 192.88.99.1 192.168.0.1 192.168.255.255 198.18.0.0 198.19.255.255",
            "198.51.100.7 203.0.113.7 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255",
            ":: ::1 ::2 ::ffff:10.0.0.1 ::ffff:8.8.8.8 ::8.8.8.8 ::ffff:0:8.8.8.8 64:ff9b::8.8.8.8",
            "64:ff9b:1::1 100::1 2001::1 2001:2::1 2001:10::1 2001:20::1 2001:db8::1 2002:a00:1::",
            "2002:808:808:: 3fff::1 3fff:fff:: 5f00::1 fc00::1 fd12:3456::1 fe80::1 febf::1",
            "fec0::1 ff02::1 ff0e::1 4000::1",
        ];
        for text in refused.iter().flat_map(|line| line.split(' ')) {
            let address = text.parse().expect("an address");
            assert!(judge_address(address).is_err(), "{text} passes");
        }
        let public = [
            "1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255",
            "128.0.0.1 169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 192.0.1.0 192.0.3.0",
            "192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 203.0.112.255 203.0.114.0",
            "223.255.255.255 2001:200::1 2001:4860:4860::8888 2606:4700::1111 2a00:1450::1",
            "2003::1 3ffe::1",
        ];
        for text in public.iter().flat_map(|line| line.split(' ')) {
            let address = text.parse().expect("an address");
            assert_eq!(judge_address(address), Ok(()), "{text} is refused");
        }
    }

    #[test]
    fn every_spelling_of_an_address_is_seen_through() {
        let hosts = [
            "127.0.0.1 2130706433 0x7f.1 0x7f000001 0177.0.0.1 017700000001 127.1 127.0.0.1. 0",
            "%31%32%37.0.0.1 １２７.0.0.1 0xa9fea9fe 169.254.169.254 10.1 0x0a000001",
            "[::1] [::] [::ffff:10.0.0.1] [::ffff:a00:1] [0:0:0:0:0:ffff:7f00:1] [::127.0.0.1]",
            "[64:ff9b::a00:1] [2002:7f00:1::] [fe80::1] [fd00::1]",
            "localhost LOCALHOST localhost. a.localhost metadata.internal metadata.internal.",
            "Metadata.Google.INTERNAL printer.local internal local ｌocalhost",
        ];
        for host in hosts.iter().flat_map(|line| line.split(' ')) {
            for url in [format!("http://{host}/"), format!("https://user@{host}:8443/a?b")] {
                let refusal = read_url(&url, AddressPolicy::Public).expect_err(&url);
                assert!(refusal.contains("alerts.allow_private"), "{url}: {refusal}");
                assert!(read_url(&url, AddressPolicy::Anywhere).is_ok(), "{url}");
            }
        }
        for url in ["https://hooks.slack.com/a", "http://8.8.8.8/", "https://internal.example/"] {
            assert!(read_url(url, AddressPolicy::Public).is_ok(), "{url}");
        }
    }

    #[test]
    fn only_http_passes() {
        for url in ["", "example.com/a", "ftp://example.com/", "file:///etc/passwd", "http://"] {
            for reach in [AddressPolicy::Public, AddressPolicy::Anywhere] {
                assert!(read_url(url, reach).is_err(), "{url}");
            }
        }
    }

    fn outlet(
        addresses: &'static [&'static str],
        port: u16,
        reach: AddressPolicy,
    ) -> (Outlet, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        let lookup: Lookup = Arc::new(move |_| {
            counter.fetch_add(1, Ordering::SeqCst);
            let parse = |text: &&str| SocketAddr::new(text.parse().expect("an address"), 0);
            let found: Vec<SocketAddr> = addresses.iter().map(parse).collect();
            Box::pin(async move { Ok(found) })
        });
        let url = Secret::new(&format!("http://hooks.example.com:{port}/canary-in-the-path"));
        let config = AlertsConfig { allow_private: reach == AddressPolicy::Anywhere, ..settings() };
        let outlet = Outlet::connect_with("alerts.webhook_url", &url, &config, lookup);
        (outlet.expect("a public name"), asked)
    }

    /// The listener would take the connection; that nobody comes is the point.
    #[tokio::test]
    async fn a_name_that_leads_inside_is_refused_at_each_delivery() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        for addresses in [["127.0.0.1"].as_slice(), &["8.8.8.8", "127.0.0.1"], &["::1"]] {
            let (outlet, asked) = outlet(addresses, port, AddressPolicy::Public);
            for times in 1..=2 {
                let sending = outlet.post(&[], Vec::new()).await.err().expect("no answer");
                let Sending::Refused { detail } = sending else { panic!("{sending:?}") };
                assert!(detail.contains("alerts.webhook_url leads to"), "{detail}");
                assert!(detail.contains("a loopback address"), "{detail}");
                assert!(!detail.contains("canary"), "{detail}");
                assert_eq!(asked.load(Ordering::SeqCst), times, "asked anew each time");
            }
        }
        let wait = tokio::time::timeout(Duration::from_millis(50), listener.accept());
        assert!(wait.await.is_err(), "nobody came");
    }

    /// Whom it reached before does not count, though the receiver would keep the connection.
    #[tokio::test]
    async fn a_name_is_looked_up_anew_for_each_delivery() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let router = axum::Router::new().fallback(|| async { "ok" });
        tokio::spawn(async move { axum::serve(listener, router).await });
        let (outlet, asked) = outlet(&["127.0.0.1"], port, AddressPolicy::Anywhere);
        for times in 1..=3 {
            let reply = outlet.post(&[], Vec::new()).await.expect("an answer");
            assert_eq!((reply.status, reply.text.as_str()), (200, "ok"));
            assert_eq!(asked.load(Ordering::SeqCst), times);
        }
    }

    #[test]
    fn an_answer_with_a_secret_is_not_recorded() {
        let (outlet, _) = outlet(&[], 80, AddressPolicy::Public);
        let outlet = outlet.hiding("hunter2");
        assert_eq!(outlet.tell(b"no\r\nservice "), "no  service");
        assert_eq!(outlet.tell(b"you said hunter2"), "(an answer with a secret in it)");
        let echo = outlet.tell(b"POST /canary-in-the-path");
        assert_eq!(echo, "(an answer with a secret in it)");
        assert_eq!(outlet.tell(&[b'a'; 4_096]).chars().count(), REPLY_CHARS_MAX);
    }
}
