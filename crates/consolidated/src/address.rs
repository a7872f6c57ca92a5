//! What the addresses of databases have in common: percent-encoding, and files with certificates of authorities.

use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// A value of a URL as it is meant; otherwise what is wrong with it.
pub(crate) fn percent_decoded(text: &str) -> Result<String, &'static str> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let decoded = match byte {
            b'%' => {
                let mut half = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
                half().zip(half()).map(|(high, low)| (high * 16 + low) as u8)
            }
            other => Some(other),
        };
        bytes.push(decoded.ok_or("a % is not followed by two hexadecimal digits")?);
    }
    String::from_utf8(bytes).map_err(|_| "it has percent-encoded bytes that are not UTF-8")
}

/// The certificates of a PEM file, one or more, each of which can be a root; otherwise what is wrong with the file.
pub(crate) fn authorities(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = read.map_err(|error| error.to_string())?;
    let mut roots = RootCertStore::empty();
    for certificate in &found {
        roots.add(certificate.clone()).map_err(|error| error.to_string())?;
    }
    if found.is_empty() { Err("no certificate in it".to_owned()) } else { Ok(found) }
}
