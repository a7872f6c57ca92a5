//! What a client asks for.

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::ZlibEncoder;

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

/// A request for the rows of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    sql: String,
    values: Vec<String>,
    level: Option<u32>,
    ttl: Ttl,
    fresh_key: String,
}

impl Request {
    /// For what this SQL gives, not compressed.
    pub fn new(sql: &str) -> Request {
        Request { sql: sql.to_owned(), values: Vec::new(), level: None, ttl: Ttl::default(), fresh_key: String::new() }
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

    /// The name of the payload's encoding.
    pub fn encoding(&self) -> String {
        self.level.map_or("BLOB".to_owned(), |level| format!("BLOBzip{level}"))
    }

    /// The last part of the URL, behind `http://host:port/SERVLET/Frontier/`.
    pub fn target(&self) -> String {
        let text = self.values.iter().fold(self.sql.clone(), |text, value| text + ":" + value);
        let target =
            format!("type=frontier_request:1:DEFAULT&encoding={}&p1={}", self.encoding(), parameter(text.as_bytes()));
        let ttl = match self.ttl {
            Ttl::Long => "",
            Ttl::Short => "&ttl=short",
            Ttl::Forever => "&ttl=forever",
        };
        let fresh = if self.fresh_key.is_empty() { "" } else { "&freshkey=" };
        [&target, ttl, fresh, &self.fresh_key].concat()
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
