//! The socket: requests to a server, over HTTP/1.1, with TLS by rustls where the address says `https`.
//!
//! A silence longer than the time-outs ends a request, however long the whole takes. Redirects are not followed: a token goes to no
//! other address than the one that was given.

use std::cell::Cell;
use std::fmt;
use std::io::{self, Read};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use headwater_model::{JSON_BYTES_MAX, Model};
use headwater_protocol::client::{Failure, status_error};
use headwater_protocol::message::{ChunkRef, ErrorCode, READY_BLOCK_BYTES, ServerError};
use serde::Deserialize;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body, SendBody};

use crate::error::Error;
use crate::stage::Rest;

/// The media type of frames.
const FRAMES: &str = "application/vnd.headwater.sync";
/// How long a connection may take to come about.
const CONNECT_MAX: Duration = Duration::from_secs(15);
/// The most bytes in an answer that is a token.
const TOKEN_BYTES_MAX: u64 = 64 * 1024;
/// However long a token is good, it is not kept for longer: the number is a stranger's, and no clock goes on for ever.
const TOKEN_LIFETIME_MAX: Duration = Duration::from_hours(24);
/// How much of a refusal is read.
const REFUSAL_BYTES_MAX: u64 = 4096;
/// How much of an unexpected answer is shown.
const TEXT_BYTES_MAX: usize = 200;

/// What a user shows to be let in.
#[derive(Clone)]
pub enum Credentials {
    /// A bearer token: from `headwater token`, or from `POST /v1/token`.
    Token(String),
    /// User and password; a short-lived token is got for them.
    Password {
        /// The user.
        user: String,
        /// The password.
        password: String,
    },
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Credentials::Token(_) => f.write_str("Token(..)"),
            Credentials::Password { user, .. } => write!(f, "Password({user}, ..)"),
        }
    }
}

/// Where the server is, and how to be let in.
#[derive(Clone, Debug)]
pub struct Server {
    /// Its address, `https://...`.
    pub url: String,
    /// What to show.
    pub credentials: Credentials,
    /// PEM certificates to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
}

impl Server {
    /// The same, with a token in the place of user and password.
    pub fn with_token(self) -> Result<Server, Error> {
        let token = Client::new(&self, CONNECT_MAX)?.token()?.token;
        Ok(Server { credentials: Credentials::Token(token), ..self })
    }
}

/// Gets the public form of the server's model; `which`: its name, where a server has several, and its version, unless it is the newest.
/// The server refuses credentials of another user than `user`.
pub fn fetch_model(server: &Server, user: &str, which: Option<(&str, Option<u32>)>) -> Result<Model, Error> {
    let client = Client::new(server, Duration::from_secs(30))?;
    let token = client.token()?.token;
    let url = client.url("/v1/model");
    let mut request = shown(client.agent.get(&url), &token, user);
    if let Some((name, version)) = which {
        request = request.query("name", name);
        if let Some(version) = version {
            request = request.query("version", version.to_string());
        }
    }
    let answer = request.call();
    let head = answer.as_ref().ok().and_then(|answer| answer.headers().get("headwater-unenforced")?.to_str().ok());
    let unenforced = head.map(unenforced).unwrap_or_default();
    let text = client.text(&url, answer, JSON_BYTES_MAX as u64)?;
    let model = Model::from_json(&text).map_err(|error| Error::Model(error.to_string()))?;
    Ok(Model { unenforced, ..model })
}

/// Reads `TABLE.REFERENCE`, by their places, separated by commas. What is none is left out: then it is enforced.
fn unenforced(header: &str) -> Vec<(usize, usize)> {
    let one = |place: &str| {
        let (table, reference) = place.trim().split_once('.')?;
        Some((table.parse().ok()?, reference.parse().ok()?))
    };
    header.split(',').filter_map(one).collect()
}

/// A short-lived token.
#[derive(Clone, Deserialize)]
pub(crate) struct Token {
    pub(crate) token: String,
    expires_in_s: u64,
}

impl Token {
    /// For how long it can be used, with something to spare.
    pub(crate) fn lifetime(&self) -> Duration {
        Duration::from_secs(self.expires_in_s.saturating_sub(30)).min(TOKEN_LIFETIME_MAX)
    }
}

/// A server, ready to be asked.
#[derive(Debug)]
pub(crate) struct Client<'s> {
    server: &'s Server,
    agent: Agent,
}

impl<'s> Client<'s> {
    pub(crate) fn new(server: &'s Server, idle_max: Duration) -> Result<Client<'s>, Error> {
        if !server.url.starts_with("http://") && !server.url.starts_with("https://") {
            let what = format!("{:?} is not a server address, expected https://HOST or http://HOST:PORT", server.url);
            return Err(Error::Configuration { what });
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("headwater/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT_MAX))
            .timeout_per_read(Some(idle_max))
            .timeout_per_write(Some(idle_max))
            .tls_config(TlsConfig::builder().root_certs(roots(server)?).build())
            .build();
        Ok(Client { server, agent: config.new_agent() })
    }

    pub(crate) fn agent(&self) -> &Agent {
        &self.agent
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.server.url.trim_end_matches('/'))
    }

    /// The token to show.
    pub(crate) fn token(&self) -> Result<Token, Error> {
        let (user, password) = match &self.server.credentials {
            Credentials::Token(token) => return Ok(Token { token: token.clone(), expires_in_s: 60 }),
            Credentials::Password { user, password } => (user, password),
        };
        let url = self.url("/v1/token");
        let basic = format!("Basic {}", base64(format!("{user}:{password}").as_bytes()));
        let answer = self.agent.post(&url).header("Authorization", basic).send_empty();
        let text = self.text(&url, answer, TOKEN_BYTES_MAX)?;
        serde_json::from_str(&text).map_err(|_| Error::Http {
            url,
            status: 200,
            text:
                "no token came, expected JSON with token and expires_in_s: is this the address of a Headwater server?"
                    .to_owned(),
        })
    }

    /// Sends a request of frames and gives the answer's body as it comes.
    pub(crate) fn sync(&self, who: &Who, body: &mut dyn Read, is_long: bool) -> Result<Answer, Refused> {
        let url = self.url("/v1/sync");
        let mut request = who.shown(self.agent.post(&url)).header("Content-Type", FRAMES);
        if is_long {
            // Lets the server refuse by the head, before the upload is on its way.
            request = request.header("Expect", "100-continue");
        }
        frames_of(&url, request.send(SendBody::from_reader(body)))
    }

    /// Asks for the rest of a download and gives the answer's body as it comes.
    pub(crate) fn rest(&self, who: &Who, rest: &Rest) -> Result<Answer, Refused> {
        let url = self.url(&format!("/v1/download/{}", hex::encode(rest.id)));
        frames_of(&url, who.shown(self.agent.get(&url)).query("offset", rest.offset.to_string()).call())
    }

    /// Gets a chunk that a download names: at most a byte more than it must have. Without credentials: a cache has it.
    pub(crate) fn chunk(&self, base: &str, named: &ChunkRef) -> Result<Vec<u8>, Refused> {
        let path = format!("/v1/chunk/{}", hex::encode(named.id));
        let url = match base {
            "" => self.url(&path),
            base if base.starts_with("http://") || base.starts_with("https://") => {
                format!("{}{path}", base.trim_end_matches('/'))
            }
            _ => return Err(Refused::Status(status_error(404, None))),
        };
        let mut answer = self.agent.get(&url).call().map_err(|error| Refused::Network(explained(&error)))?;
        if answer.status().as_u16() != 200 {
            return Err(Refused::Status(status_error(answer.status().as_u16(), retry_after_s(&answer))));
        }
        let mut bytes = Vec::new();
        let read = answer.body_mut().as_reader().take(u64::from(named.bytes) + 1).read_to_end(&mut bytes);
        read.map(|_| bytes).map_err(|error| Refused::Network(error.to_string()))
    }

    /// Asks for a ready file.
    pub(crate) fn ask_file(&self, who: &Who, body: &[u8]) -> Result<Answer, Refused> {
        let url = self.url("/v1/file");
        frames_of(&url, who.shown(self.agent.post(&url)).header("Content-Type", FRAMES).send(body))
    }

    /// A ready file's bytes from the offset on, as they come, and how many have come over the network for them until now. They may come
    /// compressed, where the offset is a multiple of [`READY_BLOCK_BYTES`](headwater_protocol::message::READY_BLOCK_BYTES).
    pub(crate) fn file(&self, who: &Who, id: &[u8; 16], offset: u64) -> Result<(Answer, Rc<Cell<u64>>), Refused> {
        let url = self.url(&format!("/v1/file/{}", hex::encode(id)));
        let request = who.shown(self.agent.get(&url)).query("offset", offset.to_string());
        let answer = request.header("Accept-Encoding", "zstd").call();
        let mut answer = answer.map_err(|error| Refused::Network(explained(&error)))?;
        let kind = answer.headers().get("content-type").map(ureq::http::HeaderValue::as_bytes);
        if answer.status().as_u16() == 200 && kind == Some(b"application/octet-stream") {
            let coding = answer.headers().get("content-encoding").map(|coding| coding.as_bytes().to_ascii_lowercase());
            let came = Rc::new(Cell::new(0));
            let counted = Counted { from: answer.into_body().into_reader(), came: Rc::clone(&came) };
            let answer: Box<dyn Read> = match coding.as_deref() {
                None | Some(b"identity") => Box::new(counted),
                Some(b"zstd") => Box::new(unpacked(counted).map_err(|error| Refused::Network(error.to_string()))?),
                Some(other) => {
                    let what = format!("a ready file came in the coding {}", String::from_utf8_lossy(other));
                    return Err(Refused::Stranger(Error::Unexpected { what }));
                }
            };
            return Ok((Answer(answer), came));
        }
        let text = read_text(&mut answer)?;
        Err(Refused::Status(server_error(&answer, &text)))
    }

    /// Asks for a ticket for an upload: the ticket, how much the server has, and how much it takes at a time.
    pub(crate) fn ticket(&self, who: &Who, bytes: u64, digest: &[u8; 32]) -> Result<GivenTicket, Refused> {
        let request = who.shown(self.agent.post(self.url("/v1/upload"))).header("Headwater-Bytes", bytes.to_string());
        let answer = request.header("Headwater-Digest", hex::encode(digest)).send_empty();
        let mut answer = answer.map_err(|error| Refused::Network(explained(&error)))?;
        let text = read_text(&mut answer)?;
        if answer.status().as_u16() != 200 {
            return Err(Refused::Status(server_error(&answer, &text)));
        }
        // Whatever else answers there knows no tickets.
        serde_json::from_slice(&text).map_err(|_| Refused::Status(status_error(404, None)))
    }

    /// Sends a piece of an upload; how many bytes the server has then.
    pub(crate) fn piece(&self, who: &Who, ticket: &str, offset: u64, bytes: &[u8]) -> Result<u64, Refused> {
        let request = who.shown(self.agent.put(self.url(&format!("/v1/upload/{ticket}"))));
        let mut request =
            request.query("offset", offset.to_string()).header("Content-Type", "application/octet-stream");
        if offset == 0 {
            // Lets a proxy refuse by the head.
            request = request.header("Expect", "100-continue");
        }
        let mut answer = request.send(bytes).map_err(|error| Refused::Network(explained(&error)))?;
        let stands = answer.headers().get("headwater-offset").and_then(|value| value.to_str().ok()?.parse().ok());
        match (answer.status().as_u16(), stands) {
            (204, _) => Ok(offset + bytes.len() as u64),
            (409, Some(stands)) => Ok(stands),
            _ => {
                let text = read_text(&mut answer)?;
                Err(Refused::Status(server_error(&answer, &text)))
            }
        }
    }

    fn text(
        &self,
        url: &str,
        answer: Result<ureq::http::Response<Body>, ureq::Error>,
        bytes_max: u64,
    ) -> Result<String, Error> {
        let network =
            |error: ureq::Error| Error::Network { server: self.server.url.clone(), source: explained(&error).into() };
        let mut answer = answer.map_err(network)?;
        let status = answer.status().as_u16();
        if status != 200 {
            let retry_after_s = retry_after_s(&answer);
            let mut text = Vec::new();
            // Whatever can be read of it is only for people.
            let _ = answer.body_mut().as_reader().take(REFUSAL_BYTES_MAX).read_to_end(&mut text);
            return Err(refused(url, status, retry_after_s, &text));
        }
        answer.body_mut().with_config().limit(bytes_max).read_to_string().map_err(network)
    }
}

/// Who asks. The remote's ID is in the head of each request, so that a balancer can lead them all to one server.
pub(crate) struct Who {
    pub(crate) token: String,
    pub(crate) user: String,
    pub(crate) remote_id: [u8; 16],
}

impl Who {
    fn shown<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        shown(request, &self.token, &self.user).header("Headwater-Remote-Id", hex::encode(self.remote_id))
    }
}

/// With the token, and the user whose it must be: the server alone can tell whom it names.
fn shown<B>(request: ureq::RequestBuilder<B>, token: &str, user: &str) -> ureq::RequestBuilder<B> {
    request.header("Authorization", format!("Bearer {token}")).header("Headwater-User", hex::encode(user))
}

/// A ticket that was given.
#[derive(Debug, Deserialize)]
pub(crate) struct GivenTicket {
    /// 32 hex digits.
    pub(crate) ticket: String,
    pub(crate) offset: u64,
    pub(crate) piece_bytes: u64,
}

fn read_text(answer: &mut ureq::http::Response<Body>) -> Result<Vec<u8>, Refused> {
    let mut text = Vec::new();
    let read = answer.body_mut().as_reader().take(REFUSAL_BYTES_MAX).read_to_end(&mut text);
    read.map(|_| text).map_err(|error| Refused::Network(error.to_string()))
}

/// A refusal in the server's own words, or by the status.
fn server_error(answer: &ureq::http::Response<Body>, text: &[u8]) -> ServerError {
    let retry_after_s = retry_after_s(answer);
    known_refusal(retry_after_s, text).unwrap_or_else(|| status_error(answer.status().as_u16(), retry_after_s))
}

/// The answer's body, if it has frames.
fn frames_of(url: &str, answer: Result<ureq::http::Response<Body>, ureq::Error>) -> Result<Answer, Refused> {
    let answer = answer.map_err(|error| Refused::Network(explained(&error)))?;
    let is_frames = answer.headers().get("content-type").is_some_and(|kind| kind.as_bytes() == FRAMES.as_bytes());
    match answer.status().as_u16() {
        _ if is_frames => {}
        200 => return Err(Refused::Stranger(no_frames(url, &answer))),
        status => return Err(Refused::Status(status_error(status, retry_after_s(&answer)))),
    }
    Ok(Answer(Box::new(answer.into_body().into_reader())))
}

/// Somebody answered, and was content: a login page, say.
fn no_frames(url: &str, answer: &ureq::http::Response<Body>) -> Error {
    let kind =
        answer.headers().get("content-type").map_or("none".into(), |kind| String::from_utf8_lossy(kind.as_bytes()));
    let text = format!(
        "that is no Headwater server: its answer is of the type {kind}, expected {FRAMES}; is the address right, and is there a login page or a \
         proxy on the way?"
    );
    Error::Http { url: url.to_owned(), status: 200, text }
}

/// The body of an answer.
pub(crate) struct Answer(Box<dyn Read>);

impl Answer {
    /// The next bytes; none: the end.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }
}

/// Counts what it reads.
struct Counted<R> {
    from: R,
    came: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.came.set(self.came.get() + count as u64);
        Ok(count)
    }
}

/// Decodes zstd frames, one after another, none of which may want more memory than one of ours does.
fn unpacked(from: impl Read) -> io::Result<impl Read> {
    let mut decoder = zstd::Decoder::new(from)?;
    decoder.window_log_max(READY_BLOCK_BYTES.ilog2())?;
    Ok(decoder)
}

/// Why there is no answer of frames.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The connection failed.
    Network(String),
    /// An HTTP status says so.
    Status(ServerError),
    /// Whoever answered is no Headwater server.
    Stranger(Error),
}

/// Why a connection failed, with what mends it where TLS is on one side alone, or the certificate is not one for servers.
pub(crate) fn explained(error: &ureq::Error) -> String {
    const MENDS: [(&str, &str); 3] = [
        (
            "CaUsedAsEndEntity",
            "the server's certificate is that of a certificate authority: make it with `openssl req -x509 ... -addext \
             basicConstraints=critical,CA:FALSE`, or sign one with that authority",
        ),
        ("InvalidContentType", "does the server speak TLS? If not, its address begins with http://"),
        ("invalid HTTP version", "does the server speak TLS? Then its address begins with https://"),
    ];
    let text = error.to_string();
    match MENDS.iter().find(|(sign, _)| text.contains(sign)) {
        Some((_, mend)) => format!("{text} ({mend})"),
        None => text,
    }
}

/// What the server says instead of a token or a model.
#[derive(Deserialize)]
struct Refusal {
    error: String,
    message: String,
}

fn retry_after_s(answer: &ureq::http::Response<Body>) -> Option<u32> {
    answer.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok())
}

fn known_refusal(retry_after_s: Option<u32>, text: &[u8]) -> Option<ServerError> {
    let refusal = serde_json::from_slice::<Refusal>(text).ok()?;
    let code = ErrorCode::ALL.iter().copied().find(|code| code.name() == refusal.error)?;
    Some(ServerError {
        code,
        retry_after_ms: retry_after_s.unwrap_or(0).saturating_mul(1000),
        message: refusal.message,
    })
}

/// A refusal in the server's own words, or whatever else answered in its place.
fn refused(url: &str, status: u16, retry_after_s: Option<u32>, text: &[u8]) -> Error {
    if let Some(error) = known_refusal(retry_after_s, text) {
        return Error::Failed(Failure::Refused(error));
    }
    let shown = &text[..text.len().min(TEXT_BYTES_MAX)];
    Error::Http { url: url.to_owned(), status, text: String::from_utf8_lossy(shown).into_owned() }
}

/// The certificates to trust: those of the file, or the system's.
fn roots(server: &Server) -> Result<RootCerts, Error> {
    let unreadable = |path: &PathBuf, why: String| Error::Configuration {
        what: format!("certificates {} can't be used ({why}), expected a PEM file", path.display()),
    };
    let certificates: Vec<Certificate<'static>> = match &server.ca_file {
        Some(path) => {
            let pem = std::fs::read(path).map_err(|error| unreadable(path, error.to_string()))?;
            let mut found = Vec::new();
            for item in parse_pem(&pem) {
                if let PemItem::Certificate(certificate) = item.map_err(|error| unreadable(path, error.to_string()))? {
                    found.push(certificate);
                }
            }
            if found.is_empty() {
                return Err(unreadable(path, "it has none".to_owned()));
            }
            found
        }
        None if server.url.starts_with("https://") => {
            let native = rustls_native_certs::load_native_certs();
            native.certs.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).collect()
        }
        None => Vec::new(),
    };
    Ok(RootCerts::new_with_certs(&certificates))
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place)) as usize & 63];
            out.push(if place <= three.len() { char::from(digit) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_as_in_rfc_4648() {
        let vectors = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (plain, coded) in vectors {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
    }

    #[test]
    fn secrets_are_not_printed() {
        let password = Credentials::Password { user: "ann".to_owned(), password: "hunter2".to_owned() };
        assert_eq!(format!("{password:?} {:?}", Credentials::Token("t0ken".to_owned())), "Password(ann, ..) Token(..)");
    }

    #[test]
    fn a_token_for_ever_is_got_anew_some_day() {
        let lifetime = |expires_in_s| Token { token: String::new(), expires_in_s }.lifetime();
        assert_eq!(lifetime(900), Duration::from_secs(870));
        assert_eq!(lifetime(7), Duration::ZERO);
        assert!(std::time::Instant::now().checked_add(lifetime(u64::MAX)).is_some(), "no clock goes so far");
    }

    #[test]
    fn a_refusal_is_the_servers_where_it_is_one() {
        let ours = br#"{"error":"overloaded","message":"later"}"#;
        let error = refused("u", 503, Some(2), ours);
        assert!(matches!(&error, Error::Failed(Failure::Refused(error)) if error.retry_after_ms == 2000), "{error:?}");
        assert_eq!(error.code(), "overloaded");
        let others = [&b"<html>"[..], br#"{"error":"teapot","message":""}"#, &[b'x'; 4096]];
        for text in others {
            let error = refused("u", 502, None, text);
            assert!(error.to_string().len() < 300 && error.code() == "http" && error.is_retryable(), "{error}");
        }
    }

    #[test]
    fn addresses_and_certificates_are_checked_first() {
        let server = |url: &str, ca_file: Option<&str>| Server {
            url: url.to_owned(),
            credentials: Credentials::Token(String::new()),
            ca_file: ca_file.map(PathBuf::from),
        };
        let code = |server: Server| Client::new(&server, CONNECT_MAX).map(drop).map_err(|error| error.code());
        assert_eq!(code(server("example.com", None)), Err("configuration"));
        assert_eq!(code(server("https://example.com", Some("/nonexistent"))), Err("configuration"));
        assert_eq!(code(server("http://example.com", None)), Ok(()));
    }
}
