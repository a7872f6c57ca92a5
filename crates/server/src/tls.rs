//! TLS from two PEM files: TLS 1.2 and 1.3 by rustls, HTTP/2 offered by ALPN.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;

/// Why TLS can't be set up.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A PEM file that can't be read, or has not what it should.
    #[error("{option} {} can't be read, expected a PEM file with {expected}", path.display())]
    Pem {
        /// The option that names it.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// What it should hold.
        expected: &'static str,
        /// What is wrong.
        #[source]
        source: pem::Error,
    },
    /// Certificate and key don't go together, or can't be used.
    #[error("the certificate {} and its key can't be used", certificate.display())]
    Rejected {
        /// The certificate's file.
        certificate: PathBuf,
        /// What is wrong.
        #[source]
        source: rustls::Error,
    },
}

/// Reads certificate chain and key.
pub(crate) fn load(certificate: &Path, key: &Path) -> Result<Arc<rustls::ServerConfig>, TlsError> {
    let unread = |option, path: &Path, expected| {
        let path = path.to_owned();
        move |source| TlsError::Pem { option, path, expected, source }
    };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(unread("tls_certificate", certificate, "the certificate chain"))?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(unread("tls_key", key, "the private key"))?;
    let rejected = |source| TlsError::Rejected { certificate: certificate.to_owned(), source };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(rejected)?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(rejected)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
