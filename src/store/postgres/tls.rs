//! TLS to the database: what the store's address asks for, and how the server's certificate is
//! checked.
//!
//! Invariant: TLS is offered unless the address says `sslmode=disable`. With `require`, `verify-ca`
//! and `verify-full` nothing is sent before the server's certificate was checked; without a mode,
//! or with `prefer`, a server that has no TLS is talked to in clear.

use crate::store::{Error, Result};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use std::path::PathBuf;
use std::sync::Arc;
use tokio_postgres::config::SslMode;

/// What an address says of TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsChoice {
    pub mode: SslMode,
    check: Check,
    /// The certificates of those who may sign the server's; the public ones if there is none.
    roots: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Check {
    /// Encrypted only: the server's identity is not checked.
    Nothing,
    /// Signed by one of the roots.
    Signature,
    /// And for this host.
    SignatureAndHost,
}

impl TlsChoice {
    /// Takes `sslmode` and `sslrootcert` out of an address; the driver does not know all of them.
    pub fn take_from(url: &str) -> Result<(String, Self)> {
        let mut choice = Self { mode: SslMode::Prefer, check: Check::Nothing, roots: None };
        let place = url.rfind('@').unwrap_or(0);
        let Some(mark) = url[place..].find('?').map(|offset| place + offset) else {
            return Ok((url.to_owned(), choice));
        };
        let mut others = Vec::new();
        for parameter in url[mark + 1..].split('&') {
            match parameter.split_once('=') {
                Some(("sslmode", mode)) => (choice.mode, choice.check) = parse_mode(mode)?,
                Some(("sslrootcert", "system")) => choice.roots = None,
                Some(("sslrootcert", path)) => choice.roots = Some(decode(path)?.into()),
                Some(_) | None => others.push(parameter),
            }
        }
        let mut rest = url[..mark].to_owned();
        if !others.is_empty() {
            rest.push('?');
            rest.push_str(&others.join("&"));
        }
        Ok((rest, choice))
    }

    /// Whether somebody on the way to the server could read or change what is sent.
    pub fn is_weak(&self) -> bool {
        self.check == Check::Nothing
    }

    pub fn client_config(&self) -> Result<ClientConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::Internal { what: error.to_string() })?;
        let verifier: Arc<dyn ServerCertVerifier> = match self.check {
            Check::Nothing => Arc::new(AnyHost { signed_by: None, provider }),
            Check::Signature => {
                let signed_by = Some(self.verify_by_roots(&provider)?);
                Arc::new(AnyHost { signed_by, provider })
            }
            Check::SignatureAndHost => self.verify_by_roots(&provider)?,
        };
        Ok(config.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
    }

    fn verify_by_roots(&self, provider: &Arc<CryptoProvider>) -> Result<Arc<WebPkiServerVerifier>> {
        let roots = Arc::new(self.read_roots()?);
        WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider))
            .build()
            .map_err(|error| Error::Internal { what: error.to_string() })
    }

    fn read_roots(&self) -> Result<RootCertStore> {
        let Some(path) = &self.roots else {
            return Ok(RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() });
        };
        let unusable = |why: String| Error::Internal {
            what: format!("sslrootcert {} cannot be used: {why}", path.display()),
        };
        let mut roots = RootCertStore::empty();
        let found = CertificateDer::pem_file_iter(path).map_err(|e| unusable(e.to_string()))?;
        for certificate in found {
            let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
            roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
        }
        if roots.is_empty() {
            return Err(unusable("it holds no certificate".into()));
        }
        Ok(roots)
    }
}

fn parse_mode(mode: &str) -> Result<(SslMode, Check)> {
    match mode {
        "disable" => Ok((SslMode::Disable, Check::Nothing)),
        "allow" | "prefer" => Ok((SslMode::Prefer, Check::Nothing)),
        "verify-ca" => Ok((SslMode::Require, Check::Signature)),
        "require" | "verify-full" => Ok((SslMode::Require, Check::SignatureAndHost)),
        _ => Err(Error::Internal {
            what: "sslmode is disable, prefer, require, verify-ca or verify-full".into(),
        }),
    }
}

/// Undoes percent-encoding.
fn decode(text: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|d| u8::try_from(d).ok());
        match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                let byte = digit(*high).zip(digit(*low)).map(|(high, low)| high * 16 + low);
                bytes.push(byte.ok_or_else(unreadable)?);
                rest = after;
            }
            (b'%', _) => return Err(unreadable()),
            (byte, _) => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).map_err(|_| unreadable())
}

fn unreadable() -> Error {
    Error::Internal { what: "sslrootcert in the store's address is not a path".into() }
}

/// Takes a certificate that a root has signed, whatever host it is for; without roots, every one.
#[derive(Debug)]
struct AnyHost {
    signed_by: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

type Verified = std::result::Result<ServerCertVerified, rustls::Error>;
type Signed = std::result::Result<HandshakeSignatureValid, rustls::Error>;

impl ServerCertVerifier for AnyHost {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Verified {
        let Some(roots) = &self.signed_by else { return Ok(ServerCertVerified::assertion()) };
        let verified = roots.verify_server_cert(certificate, between, host, ocsp, now);
        let other_host = matches!(
            &verified,
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
            ))
        );
        if other_host { Ok(ServerCertVerified::assertion()) } else { verified }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Signed {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Signed {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rustls::pki_types::PrivateKeyDer;
    use std::path::Path;
    use std::process::Command;

    #[test]
    fn tls_settings_are_taken_out_of_the_address() {
        let (url, choice) = TlsChoice::take_from("postgres://u:p@h/d").unwrap();
        assert_eq!((url.as_str(), choice.mode), ("postgres://u:p@h/d", SslMode::Prefer));
        let (url, choice) = TlsChoice::take_from(
            "postgres://u:p?a@h/d?sslmode=verify-ca&a=b&sslrootcert=%2Fca%20x.pem",
        )
        .unwrap();
        assert_eq!(url, "postgres://u:p?a@h/d?a=b");
        assert_eq!((choice.mode, choice.check), (SslMode::Require, Check::Signature));
        assert_eq!(choice.roots.as_deref(), Some(Path::new("/ca x.pem")));
        for (mode, expected, weak) in [
            ("disable", SslMode::Disable, true),
            ("prefer", SslMode::Prefer, true),
            ("require", SslMode::Require, false),
            ("verify-full", SslMode::Require, false),
        ] {
            let (_, choice) =
                TlsChoice::take_from(&format!("postgres://h/d?sslmode={mode}")).unwrap();
            assert_eq!((choice.mode, choice.is_weak()), (expected, weak), "{mode}");
        }
        assert!(TlsChoice::take_from("postgres://h/d?sslmode=sometimes").is_err());
        assert!(TlsChoice::take_from("postgres://h/d?sslrootcert=%zz").is_err());
    }

    /// A root, and a certificate of db.example that it has signed, made by openssl.
    fn make_certificates(folder: &Path) {
        let run = |arguments: &str| {
            let mut command = Command::new("openssl");
            let done = command.args(arguments.split(' ')).current_dir(folder).output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        };
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";
        run(&format!("req -x509 {key} -subj /CN=root -keyout root.key -out root.pem"));
        run(&format!("req -x509 {key} -subj /CN=other -keyout other.key -out other.pem"));
        run(&format!(
            "req -x509 {key} -subj /CN=db.example -addext subjectAltName=DNS:db.example \
             -addext basicConstraints=critical,CA:FALSE -CA root.pem -CAkey root.key \
             -keyout db.key -out db.pem"
        ));
    }

    /// Whether a client with these settings goes on talking to the server of `make_certificates`.
    fn shakes_hands(folder: &Path, parameters: &str, host: &str) -> bool {
        let (_, choice) = TlsChoice::take_from(&format!("postgres://h/d?{parameters}")).unwrap();
        let chain = vec![CertificateDer::from_pem_file(folder.join("db.pem")).unwrap()];
        let key = PrivateKeyDer::from_pem_file(folder.join("db.key")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let server = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let name = ServerName::try_from(host.to_owned()).unwrap();
        let config = Arc::new(choice.client_config().unwrap());
        let mut client = rustls::ClientConnection::new(config, name).unwrap();
        let mut server = rustls::ServerConnection::new(Arc::new(server)).unwrap();
        while client.is_handshaking() || server.is_handshaking() {
            let mut wire = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut wire).unwrap();
            }
            server.read_tls(&mut wire.as_slice()).unwrap();
            if server.process_new_packets().is_err() {
                return false;
            }
            let mut wire = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut wire).unwrap();
            }
            client.read_tls(&mut wire.as_slice()).unwrap();
            if client.process_new_packets().is_err() {
                return false;
            }
        }
        true
    }

    #[test]
    fn certificates_are_checked_as_the_mode_says() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        make_certificates(folder);
        let with = |mode: &str, root: &str, host: &str| {
            let root = folder.join(root);
            shakes_hands(folder, &format!("sslmode={mode}&sslrootcert={}", root.display()), host)
        };
        assert!(with("verify-full", "root.pem", "db.example"));
        assert!(!with("verify-full", "root.pem", "other.example"));
        assert!(!with("verify-full", "other.pem", "db.example"));
        assert!(with("verify-ca", "root.pem", "other.example"));
        assert!(!with("verify-ca", "other.pem", "db.example"));
        assert!(with("require", "root.pem", "db.example"));
        assert!(!shakes_hands(folder, "sslmode=require", "db.example"), "not a public root");
        assert!(shakes_hands(folder, "sslmode=prefer", "db.example"));
    }
}
