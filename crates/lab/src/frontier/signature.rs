//! Signed answers: RSA by PKCS#1 v1.5 over the bare 32 bytes of a SHA-256, without the prefix that names the hash, of a part of the URL and of
//! what the base64 carries.

use rsa::PublicKey;
use rsa::pkcs1::DecodeRsaPublicKey as _;
use rsa::pkcs1v15::Pkcs1v15Sign;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use x509_cert::der::Decode as _;

/// A server's certificate. What vouches for it is not looked at: whoever asks knows where it is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    key: PublicKey,
}

/// Why a text is no certificate that can be used here.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CertificateError {
    /// It is not in PEM.
    #[error("the certificate is not in PEM: {0}")]
    Pem(String),
    /// What the PEM has is no certificate.
    #[error("the certificate is none of X.509: {0}")]
    X509(String),
    /// Its key is of another kind.
    #[error("the certificate's key is none of RSA: {0}")]
    Key(String),
}

impl Certificate {
    /// What a server is asked for to get it, in the place of [`Request::target`](super::Request::target).
    pub const TARGET: &'static str = "type=cert_request:1&encoding=pem";

    /// Reads the first certificate of a text in PEM.
    pub fn from_pem(pem: &str) -> Result<Certificate, CertificateError> {
        let der = CertificateDer::from_pem_slice(pem.as_bytes());
        let der = der.map_err(|error| CertificateError::Pem(error.to_string()))?;
        let read = x509_cert::Certificate::from_der(&der).map_err(|error| CertificateError::X509(error.to_string()))?;
        let bits = read.tbs_certificate.subject_public_key_info.subject_public_key;
        let key = PublicKey::from_pkcs1_der(bits.raw_bytes());
        Ok(Certificate { key: key.map_err(|error| CertificateError::Key(error.to_string()))? })
    }

    /// Whether this is its key's signature of a part of the URL and these bytes.
    pub(super) fn has_signed(&self, part: &str, carried: &[u8], signature: &[u8]) -> bool {
        let hash = Sha256::new_with_prefix(part).chain_update(carried).finalize();
        self.key.verify(Pkcs1v15Sign::new_unprefixed(), &hash, signature).is_ok()
    }
}
