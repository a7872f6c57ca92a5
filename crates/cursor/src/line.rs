//! The socket: TCP, TLS by rustls where the address says `https`, and the request that is upgraded.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use headwater_protocol::cursor::UPGRADE;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use serde::Deserialize;
use socket2::{SockRef, TcpKeepalive};

use crate::{Credentials, Error, Server};

/// How long a connection may take to come about.
const CONNECT_MAX: Duration = Duration::from_secs(15);
/// How long the other side may be silent while it shakes hands, or takes nothing of what it is sent.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// After how long a silence it is asked whether it is there.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// The most bytes of the head of an answer, and of a refusal.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// A connection that is upgraded; what is read and written is what the cursors say.
pub(crate) struct Line {
    pub(crate) socket: Arc<TcpStream>,
    pub(crate) tls: Option<Box<ClientConnection>>,
    /// What came behind the answer's head.
    pub(crate) rest: Vec<u8>,
}

/// The parts of an address.
struct Address {
    is_tls: bool,
    host: String,
    port: u16,
    /// As it stands in the head of a request.
    authority: String,
    path: String,
}

impl Address {
    fn parse(url: &str) -> Result<Address, Error> {
        let none = || {
            Error::Configuration(format!("{url:?} is not a server address, expected https://HOST or http://HOST:PORT"))
        };
        let (is_tls, rest) = match url.split_once("://") {
            Some(("https", rest)) => (true, rest),
            Some(("http", rest)) => (false, rest),
            _ => return Err(none()),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let bracket = authority.rfind(']').map_or(0, |end| end + 1);
        let (host, port) = match authority[bracket..].rsplit_once(':') {
            Some((before, port)) => (&authority[..bracket + before.len()], port.parse().map_err(|_| none())?),
            None => (authority, if is_tls { 443 } else { 80 }),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let is_sound = |text: &str| text.chars().all(|letter| letter.is_ascii_graphic());
        if host.is_empty() || !is_sound(authority) || !is_sound(path) || authority.contains('@') {
            return Err(none());
        }
        let path = format!("/{path}").trim_end_matches('/').to_owned() + "/cursor";
        Ok(Address { is_tls, host, port, authority: authority.to_owned(), path })
    }
}

impl Line {
    /// Connects, and has the connection upgraded.
    pub(crate) fn open(server: &Server) -> Result<Line, Error> {
        let address = Address::parse(&server.url)?;
        let request = request(&address, &server.credentials)?;
        let tls = if address.is_tls { Some(Box::new(tls(server, &address.host)?)) } else { None };
        let network = |error| Error::Network { server: server.url.clone(), source: Arc::new(error) };
        let socket = Arc::new(connect(&address).map_err(network)?);
        let mut line = Line { socket, tls, rest: Vec::new() };
        let (status, head, mut body) = line.ask(&request).map_err(network)?;
        if status == 101 {
            line.socket.set_read_timeout(None).map_err(network)?;
            line.rest = body;
            return Ok(line);
        }
        // Whatever can be read of it is only for people.
        let _ = line.read_refusal(&head, &mut body);
        Err(refused(&format!("{}{}", server.url.trim_end_matches('/'), "/cursor"), status, &body))
    }

    /// Sends a request, and gives the status and the head of its answer, and what came behind it.
    fn ask(&mut self, request: &[u8]) -> io::Result<(u16, String, Vec<u8>)> {
        self.write_all(request)?;
        let mut came = Vec::new();
        loop {
            if let Some(end) = came.windows(4).position(|four| four == b"\r\n\r\n") {
                let body = came.split_off(end + 4);
                let head = String::from_utf8_lossy(&came).into_owned();
                let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
                let status = status.ok_or_else(|| strange("an answer that is not of HTTP/1.1"))?;
                return Ok((status, head, body));
            }
            if came.len() > HEAD_BYTES_MAX {
                return Err(strange("an answer whose head does not end"));
            }
            self.read_into(&mut came)?;
        }
    }

    /// The body of a refusal, as far as its head says how long it is.
    fn read_refusal(&mut self, head: &str, body: &mut Vec<u8>) -> io::Result<()> {
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
        });
        while body.len() < length.unwrap_or(0).min(HEAD_BYTES_MAX) {
            self.read_into(body)?;
        }
        Ok(())
    }

    fn read_into(&mut self, came: &mut Vec<u8>) -> io::Result<()> {
        let mut buffer = [0; 4_096];
        let count = (&*self.socket).read(&mut buffer)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match &mut self.tls {
            Some(tls) => {
                decrypt(tls, &buffer[..count], &self.socket, |plain| came.extend_from_slice(plain))?;
            }
            None => came.extend_from_slice(&buffer[..count]),
        }
        Ok(())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            while tls.is_handshaking() {
                tls.complete_io(&mut &*self.socket)?;
            }
        }
        send(self.tls.as_deref_mut(), &self.socket, bytes)
    }
}

/// Sends bytes.
pub(crate) fn send(tls: Option<&mut ClientConnection>, mut socket: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    let Some(tls) = tls else { return socket.write_all(bytes) };
    tls.writer().write_all(bytes)?;
    while tls.wants_write() {
        tls.write_tls(&mut socket)?;
    }
    Ok(())
}

/// Hands on what bytes of TLS hold.
pub(crate) fn decrypt(
    tls: &mut ClientConnection,
    mut bytes: &[u8],
    mut socket: &TcpStream,
    mut take: impl FnMut(&[u8]),
) -> io::Result<()> {
    let mut plain = [0; 16 << 10];
    while !bytes.is_empty() {
        tls.read_tls(&mut bytes)?;
        tls.process_new_packets().map_err(io::Error::other)?;
        loop {
            match tls.reader().read(&mut plain) {
                Ok(0) => break,
                Ok(count) => take(&plain[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
    }
    while tls.wants_write() {
        tls.write_tls(&mut socket)?;
    }
    Ok(())
}

fn strange(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn connect(address: &Address) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, format!("{} has no address", address.host));
    for place in (address.host.as_str(), address.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&place, CONNECT_MAX) {
            Ok(socket) => {
                socket.set_nodelay(true)?;
                socket.set_read_timeout(Some(SILENCE_MAX))?;
                socket.set_write_timeout(Some(SILENCE_MAX))?;
                let keep_alive = TcpKeepalive::new().with_time(KEEP_ALIVE).with_interval(KEEP_ALIVE / 3);
                SockRef::from(&socket).set_tcp_keepalive(&keep_alive)?;
                return Ok(socket);
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn request(address: &Address, credentials: &Credentials) -> Result<Vec<u8>, Error> {
    let shown = match credentials {
        Credentials::Nothing => String::new(),
        Credentials::Token(token) => format!("Authorization: Bearer {token}\r\n"),
        Credentials::Password { user, password } => {
            format!("Authorization: Basic {}\r\n", STANDARD.encode(format!("{user}:{password}")))
        }
    };
    if shown.trim_end().chars().any(char::is_control) {
        return Err(Error::Configuration("the token has characters that none has".to_owned()));
    }
    let Address { authority, path, .. } = address;
    let version = env!("CARGO_PKG_VERSION");
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: Upgrade\r\nUpgrade: {UPGRADE}\r\n\
         User-Agent: headwater/{version}\r\n{shown}\r\n"
    );
    Ok(head.into_bytes())
}

/// TLS to a server, which must show a certificate of an authority that is trusted.
fn tls(server: &Server, host: &str) -> Result<ClientConnection, Error> {
    let unusable = |why: String| Error::Configuration(format!("https can't be spoken to {}: {why}", server.url));
    let mut roots = RootCertStore::empty();
    match &server.ca_file {
        Some(path) => {
            let unreadable = |why: String| {
                Error::Configuration(format!(
                    "certificates {} can't be used ({why}), expected a PEM file",
                    path.display()
                ))
            };
            let pem = std::fs::read(path).map_err(|error| unreadable(error.to_string()))?;
            for certificate in CertificateDer::pem_slice_iter(&pem) {
                let certificate = certificate.map_err(|error| unreadable(error.to_string()))?;
                roots.add(certificate).map_err(|error| unreadable(error.to_string()))?;
            }
            if roots.is_empty() {
                return Err(unreadable("it has none".to_owned()));
            }
        }
        None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
    }
    let name = ServerName::try_from(host.to_owned()).map_err(|error| unusable(error.to_string()))?;
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(|error| unusable(error.to_string()))?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    // Nothing else is upgraded.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    ClientConnection::new(Arc::new(config), name).map_err(|error| unusable(error.to_string()))
}

/// What a server says instead.
#[derive(Deserialize)]
struct Refusal {
    error: String,
    message: String,
}

/// How much of an unexpected answer is shown.
const TEXT_BYTES_MAX: usize = 200;

fn refused(url: &str, status: u16, body: &[u8]) -> Error {
    let url = url.to_owned();
    if let Ok(Refusal { error, message }) = serde_json::from_slice(body) {
        return Error::Refused { url, status, code: error, message };
    }
    let text = String::from_utf8_lossy(&body[..body.len().min(TEXT_BYTES_MAX)]).into_owned();
    let message = match (status, text.is_empty()) {
        (404, _) => "there are no cursors there; is [gateway.cursor] among the server's options?".to_owned(),
        (_, true) => "it does not take cursors".to_owned(),
        (_, false) => text,
    };
    Error::Refused { url, status, code: "http".to_owned(), message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_their_parts() {
        let parts = |url: &str| {
            Address::parse(url).map(|address| {
                let Address { is_tls, host, port, authority, path } = address;
                format!("{is_tls} {host} {port} {authority} {path}")
            })
        };
        for (url, expected) in [
            ("http://127.0.0.1:7340", "false 127.0.0.1 7340 127.0.0.1:7340 /cursor"),
            ("https://sync.example.com", "true sync.example.com 443 sync.example.com /cursor"),
            ("https://sync.example.com/shop/", "true sync.example.com 443 sync.example.com /shop/cursor"),
            ("http://[::1]:80/", "false ::1 80 [::1]:80 /cursor"),
            ("http://[::1]", "false ::1 80 [::1] /cursor"),
        ] {
            assert_eq!(parts(url).expect(url), expected);
        }
        for url in ["example.com", "ftp://x", "http://", "http://a:b", "http://u@h", "http://a b", "http://a/x\ny"] {
            assert!(parts(url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_refusal_is_the_servers_where_it_is_one() {
        let ours = refused("u", 401, br#"{"error":"unauthenticated","message":"who are you?"}"#);
        assert_eq!((ours.code(), ours.is_retryable()), ("unauthenticated", false));
        let other = refused("u", 502, &[b'x'; 4096]);
        assert!(other.code() == "http" && other.is_retryable() && other.to_string().len() < 300);
        assert!(refused("u", 404, b"").to_string().contains("[gateway.cursor]"));
    }

    #[test]
    fn a_token_that_would_add_headers_is_none() {
        let address = Address::parse("http://h").expect("an address");
        assert!(request(&address, &Credentials::Token("a\r\nX: y".to_owned())).is_err());
        let head =
            request(&address, &Credentials::Password { user: "ann".into(), password: "s".into() }).expect("a head");
        let head = String::from_utf8(head).expect("text");
        assert!(head.contains("Authorization: Basic YW5uOnM=\r\n") && head.ends_with("\r\n\r\n"));
    }
}
