//! TLS to the database, by rustls, as far as the connection string asks for it.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::target::{Target, Verify};
use crate::Error;
use crate::address::authorities;

/// What makes the connection's TLS.
pub(super) fn connector(target: &Target) -> Result<MakeRustlsConnect, Error> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(&error.to_string()))?;
    let verifier: Arc<dyn ServerCertVerifier> = match target.verify {
        Verify::Nothing => Arc::new(Unverified(provider)),
        Verify::Chain => Arc::new(AnyName(chain_verifier(target, provider)?)),
        Verify::Full => chain_verifier(target, provider)?,
    };
    let config = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

fn chain_verifier(target: &Target, provider: Arc<CryptoProvider>) -> Result<Arc<WebPkiServerVerifier>, Error> {
    let roots = Arc::new(roots(target)?);
    WebPkiServerVerifier::builder_with_provider(roots, provider).build().map_err(|error| unusable(&error.to_string()))
}

fn roots(target: &Target) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    match &target.root_file {
        Some(file) => {
            let found = authorities(file).map_err(|why| unusable(&format!("sslrootcert {}: {why}", file.display())))?;
            roots.add_parsable_certificates(found);
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                return Err(unusable(&format!(
                    "the system has no root certificates ({:?}); name a file",
                    found.errors
                )));
            }
        }
    }
    Ok(roots)
}

fn unusable(why: &str) -> Error {
    Error::Setup {
        what: format!("TLS to the database can't be set up: {why}"),
        mend: "set sslrootcert in the database's URL to a PEM file with the root certificate".into(),
    }
}

/// Takes any certificate: `sslmode` below `verify-ca` asks for no more (but the signatures of the handshake must be right).
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Takes a certificate that a known root has signed, whatever name is in it (`verify-ca`).
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is checked last, so everything else is right.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
