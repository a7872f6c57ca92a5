//! TLS to MariaDB: servers are known by the authority that the address names.

use std::path::{Path, PathBuf};

use headwater_consolidated::mysql::MariaDb as Backend;
use headwater_consolidated::results::QueryBackend as _;
use headwater_consolidated::{Error, QueryConnection};
use headwater_protocol::Value;
use headwater_testkit::MariaDb;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use super::results::read;

/// An authority of one's own.
struct Authority {
    /// In PEM.
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let mut parameters = CertificateParams::new(Vec::<String>::new()).expect("parameters");
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let certificate = parameters.self_signed(&key).expect("a certificate").pem();
        Authority { certificate, issuer: Issuer::new(parameters, key) }
    }

    /// A server whose certificate is for this name.
    fn server(&self, name: &str) -> (MariaDb, String) {
        let parameters = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        let key = KeyPair::generate().expect("a key");
        let certificate = parameters.signed_by(&key, &self.issuer).expect("a certificate");
        let server = MariaDb::start_with_tls(&certificate.pem(), &key.serialize_pem()).expect("a server");
        let url = server.url(&server.create_database().expect("a database"));
        (server, url)
    }

    fn write(&self, folder: &Path, name: &str) -> PathBuf {
        let file = folder.join(name);
        std::fs::write(&file, &self.certificate).expect("written");
        file
    }
}

fn connect(url: &str) -> Result<Box<dyn QueryConnection>, Error> {
    Backend::new(url)?.connect_for_queries()
}

/// By which cipher the session speaks; empty: in clear.
fn cipher(url: &str) -> String {
    let mut connection = connect(url).expect(url);
    let found = read(&mut *connection, "SHOW STATUS LIKE 'Ssl_cipher'", &[]).expect("a row");
    let Value::Text(cipher) = &found.rows[0][1] else { panic!("{:?}", found.rows) };
    String::from_utf8(cipher.clone()).expect("UTF-8")
}

/// Why nobody is let in: the setup is wrong.
fn refused(url: &str) -> String {
    let error = connect(url).err().expect("refused");
    assert!(matches!(error, Error::Setup { .. }), "{error:?}");
    error.to_string()
}

#[test]
fn a_server_is_known_by_the_authority_that_the_address_names() {
    let folder = tempfile::tempdir().expect("a folder");
    let (own, other) = (Authority::new("own"), Authority::new("other"));
    let (own_file, other_file) = (own.write(folder.path(), "own ca.pem"), other.write(folder.path(), "other.pem"));
    let own_file = own_file.display().to_string().replace(' ', "%20");
    let (server, url) = own.server("127.0.0.1");
    assert_eq!(cipher(&url), "", "nobody has asked for TLS");
    for options in [
        format!("ssl_ca={own_file}"),
        format!("require_ssl=true&ssl_ca={own_file}"),
        format!("ssl_ca={own_file}&verify_ca=true"),
    ] {
        assert_ne!(cipher(&format!("{url}?{options}")), "", "{options}");
    }
    assert_ne!(cipher(&format!("{url}?require_ssl=true&verify_ca=false")), "", "whoever it is");
    for options in [format!("ssl_ca={}", other_file.display()), "require_ssl=true".to_owned()] {
        let said = refused(&format!("{url}?{options}"));
        assert!(said.contains("UnknownIssuer") && said.contains("check require_ssl and ssl_ca"), "{options}: {said}");
    }
    // What ends a query goes the same way.
    server.sql("", "ALTER USER tester REQUIRE SSL").expect("altered");
    assert!(refused(&url).contains("check user and password"));
    let connection = connect(&format!("{url}?ssl_ca={own_file}")).expect("by TLS");
    connection.canceller().expect("it can")();

    let (_elsewhere, url) = own.server("elsewhere.example");
    let said = refused(&format!("{url}?ssl_ca={own_file}"));
    assert!(said.contains("not valid for name \"127.0.0.1\"") && said.contains("elsewhere.example"), "{said}");
}

#[test]
fn a_server_without_tls_is_not_spoken_to_in_clear() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = Authority::new("own").write(folder.path(), "ca.pem").display().to_string();
    let server = MariaDb::shared().expect("a server");
    let url = server.url(&server.create_database().expect("a database"));
    for options in
        [format!("ssl_ca={file}"), "require_ssl=true".to_owned(), "require_ssl=true&verify_ca=false".to_owned()]
    {
        let said = refused(&format!("{url}?{options}"));
        assert!(said.contains("check require_ssl and ssl_ca"), "{options}: {said}");
    }
    let empty = folder.path().join("empty.pem");
    std::fs::write(&empty, "no certificate\n").expect("written");
    let said = refused(&format!("{url}?ssl_ca={}", empty.display()));
    assert!(said.contains("no certificate in it") && said.contains("PEM file"), "{said}");
}
