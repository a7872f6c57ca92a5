//! Signatures of answers, for clients that trust no cache between.
//!
//! A payload's signature is RSA by PKCS#1 v1.5 over the bare 32 bytes of a SHA-256, without the prefix that names the hash, of the request's
//! [signed part](super::Request::signed_part) and the payload's bytes. Clients take the key from the certificate that `cert_request` gives,
//! and trust that by an authority that they know.

use getrandom::SysRng;
use rsa::PrivateKey;
use rsa::pkcs1::DecodeRsaPrivateKey as _;
use rsa::pkcs1v15::Pkcs1v15Sign;
use rsa::pkcs8::DecodePrivateKey as _;
use thiserror::Error;

/// Signs answers.
pub struct Signer {
    key: PrivateKey,
    certificate: String,
}

/// What is wrong with a key or certificate.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SignerError {
    /// The key.
    #[error("the key is no RSA key in PEM (BEGIN PRIVATE KEY, or BEGIN RSA PRIVATE KEY): {0}")]
    Key(String),
    /// The certificate.
    #[error("the certificate is not in PEM (BEGIN CERTIFICATE)")]
    Certificate,
}

impl Signer {
    /// A certificate, which clients are given as it is, and its key; both PEM.
    pub fn new(certificate: &str, key: &str) -> Result<Signer, SignerError> {
        let key = PrivateKey::from_pkcs8_pem(key)
            .or_else(|error| PrivateKey::from_pkcs1_pem(key).map_err(|_| error))
            .map_err(|error| SignerError::Key(error.to_string()))?;
        if !certificate.contains("-----BEGIN CERTIFICATE-----") || !certificate.is_ascii() {
            return Err(SignerError::Certificate);
        }
        Ok(Signer { key, certificate: certificate.to_owned() })
    }

    /// What `cert_request` is answered.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// The signature of a SHA-256. Blinded, so that the time it takes says nothing of the key.
    pub fn sign(&self, sha256: &[u8; 32]) -> Vec<u8> {
        // Fails only for a key of fewer than 344 bits, or one that is no key.
        self.key.sign_with_rng(&mut SysRng, Pkcs1v15Sign::new_unprefixed(), sha256).unwrap_or_default()
    }
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signer").finish_non_exhaustive()
    }
}

impl PartialEq for Signer {
    fn eq(&self, other: &Signer) -> bool {
        self.certificate == other.certificate && self.key == other.key
    }
}

impl Eq for Signer {}

#[cfg(test)]
pub(crate) mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use sha2::{Digest as _, Sha256};

    use super::*;
    use crate::frontier::payload::example;

    /// A key that is no secret: made for these tests by `openssl genrsa 1024`.
    const KEY: &str = include_str!("signature/key.pem");
    const CERTIFICATE: &str = include_str!("signature/cert.pem");

    pub(crate) fn signer() -> Signer {
        Signer::new(CERTIFICATE, KEY).expect("a key and its certificate")
    }

    /// What `openssl pkeyutl -sign -pkeyopt rsa_padding_mode:pkcs1` makes of the same hash.
    #[test]
    fn a_signature_is_that_of_openssl() {
        let part = "/type=frontier_request:1:DEFAULT&encoding=BLOB&p1=x&sec=sig";
        let hash = Sha256::new_with_prefix(part).chain_update(example().take()).finalize();
        let expected = "QIfMQDYp6vVBZRwtKQxELtsZIiYQfDMsJeAZLkhMx9RnbEe7PwO1nvJuBST/lqTdUuqZFlXe/nRVDeLXTeSo\
                        PGYxS9LB8aGs47DmFn5XgxVphikbBChF8k3M88cFhl8EbAebm2rjVz23gRCRH+RjWZqwE3WhJLoesYB//EzkI0Y=";
        assert_eq!(STANDARD.encode(signer().sign(&hash.into())), expected);
        let older =
            Signer::new(CERTIFICATE, include_str!("signature/key1.pem")).expect("the same key in its older form");
        assert_eq!(older, signer());
    }

    #[test]
    fn what_is_no_key_is_told() {
        assert!(matches!(Signer::new(CERTIFICATE, CERTIFICATE), Err(SignerError::Key(_))));
        assert_eq!(Signer::new(KEY, KEY), Err(SignerError::Certificate));
    }
}
