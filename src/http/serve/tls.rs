//! TLS on the listener: a certificate and its key from files, read again when they change.
//!
//! Invariant: what is served was read as a whole and fits together. Files that cannot be used stop
//! a start; later they are logged, and the certificate that was read before stays in use.

use crate::config::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::PathBuf;
use std::sync::{Arc, RwLock};
use std::time::{Duration, SystemTime};
use tokio_rustls::TlsAcceptor;

/// How often the files are looked at.
pub const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The certificate in use.
pub struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    loaded: RwLock<LoadedFiles>,
}

#[derive(Clone)]
struct LoadedFiles {
    acceptor: TlsAcceptor,
    /// When the files were changed last.
    changed: ChangedFiles,
}

type ChangedFiles = [Option<SystemTime>; 2];

impl Tls {
    /// None if no certificate is set.
    pub fn load(config: &ServerConfig) -> Result<Option<Arc<Self>>, String> {
        let (certificate, key) = match (config.tls_cert.as_str(), config.tls_key.as_str()) {
            ("", "") => return Ok(None),
            ("", _) | (_, "") => {
                return Err("server.tls_cert and server.tls_key are set together".to_owned());
            }
            (certificate, key) => (PathBuf::from(certificate), PathBuf::from(key)),
        };
        let changed = changed(&certificate, &key);
        let acceptor = read(&certificate, &key)?;
        let loaded = RwLock::new(LoadedFiles { acceptor, changed });
        Ok(Some(Arc::new(Self { certificate, key, loaded })))
    }

    pub fn acceptor(&self) -> TlsAcceptor {
        self.loaded.read().expect("no holder of it panics").acceptor.clone()
    }

    /// Reads the files again if one of them has changed.
    pub fn refresh(&self) {
        let changed = changed(&self.certificate, &self.key);
        let known = self.loaded.read().expect("no holder of it panics").changed;
        if changed == known {
            return;
        }
        let read = read(&self.certificate, &self.key);
        let mut loaded = self.loaded.write().expect("no holder of it panics");
        // Files that do not fit together are looked at again when they change again.
        loaded.changed = changed;
        match read {
            Ok(acceptor) => {
                loaded.acceptor = acceptor;
                tracing::info!("the TLS certificate was read again");
            }
            Err(error) => tracing::error!(
                %error,
                "the TLS certificate has changed and cannot be used; the one before stays in use"
            ),
        }
    }
}

fn changed(certificate: &PathBuf, key: &PathBuf) -> ChangedFiles {
    [certificate, key].map(|path| std::fs::metadata(path).and_then(|file| file.modified()).ok())
}

fn read(certificate: &PathBuf, key: &PathBuf) -> Result<TlsAcceptor, String> {
    let unreadable = |name: &str, path: &PathBuf, error: &dyn std::fmt::Display| {
        format!("{name} = {:?} cannot be read: {error}", path.display().to_string())
    };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(|error| unreadable("server.tls_cert", certificate, &error))?;
    let private = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| unreadable("server.tls_key", key, &error))?;
    let provider = Arc::new(ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private))
        .map_err(|error| format!("server.tls_cert and server.tls_key cannot be used: {error}"))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
