//! TLS to servers of https. Their certificates must be signed by an authority that the system knows, or that the files of `SSL_CERT_FILE` and
//! `SSL_CERT_DIR` name, as with other programs.

use std::sync::Arc;

use hyper::Uri;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::harness::{Class, Failure};
use crate::link::Stream;

/// What makes TLS to one server.
#[derive(Clone)]
pub(crate) struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl Tls {
    /// To the server of this address; none: it is one of http.
    pub(crate) fn to(uri: &Uri) -> Result<Option<Tls>, Failure> {
        if uri.scheme_str() != Some("https") {
            return Ok(None);
        }
        let unusable = |why: String| Failure::usage(format!("https can't be spoken: {why}"));
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(|error| unusable(error.to_string()))?;
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            return Err(unusable("there are no root certificates; name a file of them by SSL_CERT_FILE".to_owned()));
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| unusable(error.to_string()))?;
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Some(Tls { connector: TlsConnector::from(Arc::new(config)), name }))
    }

    /// Shakes hands over a connection that is there.
    pub(crate) async fn over(&self, stream: impl Stream + 'static) -> Result<Box<dyn Stream>, Failure> {
        let stream = self.connector.connect(self.name.clone(), stream).await;
        let refused = |error: std::io::Error| {
            let name = self.name.to_str();
            Failure::new(
                Class::Refused,
                format!("TLS to {name}: {error}; a certificate of one's own is named by SSL_CERT_FILE"),
            )
        };
        Ok(Box::new(stream.map_err(refused)?))
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Tls").field(&self.name).finish()
    }
}
