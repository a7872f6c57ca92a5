//! What a client asks for.

use std::fmt::Write as _;
use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::ZlibEncoder;

use super::signature::Certificate;

/// For how long caches may keep the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ttl {
    /// As the server does otherwise: seven days.
    #[default]
    Long,
    /// Not without asking.
    Short,
    /// A year.
    Forever,
}

/// The type of a payload of rows, ...
pub(super) const ROWS: &str = "frontier_request";
/// ... and of one that is a file's content.
pub(super) const FILE: &str = "frontier_file";

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Rows,
    File,
    Meta,
}

/// A request for one payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    kind: Kind,
    /// SQL, a path, or a name.
    text: String,
    values: Vec<String>,
    level: Option<u32>,
    pub(super) certificate: Option<Certificate>,
    ttl: Ttl,
    fresh_key: String,
}

impl Request {
    /// For what this SQL gives, not compressed.
    pub fn new(sql: &str) -> Request {
        Request::of(Kind::Rows, sql)
    }

    /// For the file at this path below the server's folder.
    pub fn file(path: &str) -> Request {
        Request::of(Kind::File, path)
    }

    /// For what the oldest clients wanted to know of a type, which servers answer by a payload's error.
    pub fn meta(name: &str) -> Request {
        Request::of(Kind::Meta, name)
    }

    fn of(kind: Kind, text: &str) -> Request {
        let (text, values, fresh_key) = (text.to_owned(), Vec::new(), String::new());
        Request { kind, text, values, level: None, certificate: None, ttl: Ttl::default(), fresh_key }
    }

    /// With these in the places of its `?`, as text.
    #[must_use]
    pub fn bind(mut self, values: &[&str]) -> Request {
        self.values = values.iter().map(|value| (*value).to_owned()).collect();
        self
    }

    /// Compressed at this level, 1 to 9; none: not at all.
    #[must_use]
    pub fn level(self, level: Option<u32>) -> Request {
        Request { level, ..self }
    }

    /// To be signed with this certificate's key.
    #[must_use]
    pub fn signed(self, certificate: &Certificate) -> Request {
        Request { certificate: Some(certificate.clone()), ..self }
    }

    /// To be kept for so long.
    #[must_use]
    pub fn ttl(self, ttl: Ttl) -> Request {
        Request { ttl, ..self }
    }

    /// With a key that makes it another URL, and nothing else: no cache has an answer to it. It has no characters that URLs have another use for.
    #[must_use]
    pub fn fresh(self, key: &str) -> Request {
        Request { fresh_key: key.to_owned(), ..self }
    }

    /// The name of the payload's type, which its answer has as well.
    pub(super) fn name(&self) -> &str {
        match self.kind {
            Kind::Rows => ROWS,
            Kind::File => FILE,
            Kind::Meta => &self.text,
        }
    }

    /// The name of the payload's encoding.
    pub fn encoding(&self) -> String {
        self.level.map_or("BLOB".to_owned(), |level| format!("BLOBzip{level}"))
    }

    /// The last part of the URL, behind `http://host:port/SERVLET/Frontier/`.
    pub fn target(&self) -> String {
        let (name, encoding) = (self.name(), self.encoding());
        let payload = match self.kind {
            Kind::Rows => {
                let text = self.values.iter().fold(self.text.clone(), |text, value| text + ":" + value);
                format!("type={name}:1:DEFAULT&encoding={encoding}&p1={}", parameter(text.as_bytes()))
            }
            Kind::File => format!("type={name}:1:DEFAULT&encoding={encoding}&p1={}", path(&self.text)),
            Kind::Meta => format!("meta={name}:1&encoding={encoding}"),
        };
        let signed = if self.certificate.is_some() { "&sec=sig" } else { "" };
        let ttl = match self.ttl {
            Ttl::Long => "",
            Ttl::Short => "&ttl=short",
            Ttl::Forever => "&ttl=forever",
        };
        let fresh = if self.fresh_key.is_empty() { "" } else { "&freshkey=" };
        [&payload, signed, ttl, fresh, &self.fresh_key].concat()
    }

    /// What a signature is of beside the payload: the URL from its last slash before the first `&`, percent-decoded once.
    pub(super) fn signed_part(&self) -> String {
        // No other escapes are written here.
        format!("/{}", self.target().replace("%25", "%"))
    }
}

/// SQL as a part of a URL: zlib at its best level, as the C client has it, then base64 with letters that URLs have no other use for.
fn parameter(text: &[u8]) -> String {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    // Into memory: there is nothing to fail.
    let _ = encoder.write_all(text);
    let base64 = STANDARD.encode(encoder.finish().unwrap_or_default());
    base64.replace('+', ".").replace('/', "-").replace('=', "_")
}

/// A path as a part of a URL: letters that URLs have another use for are percent-encoded twice.
fn path(text: &str) -> String {
    text.bytes().fold(String::new(), |mut path, byte| {
        if byte.is_ascii_alphanumeric() || b"/._-".contains(&byte) {
            path.push(char::from(byte));
        } else {
            let _ = write!(path, "%25{byte:02X}");
        }
        path
    })
}
