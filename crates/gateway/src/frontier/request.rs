//! What a URL asks for.
//!
//! ```text
//! /X/Frontier / type=NAME:VERSION:METHOD & encoding=E & p1=...  & type=... & sec=sig & ttl=short & freshkey=K
//!  servlet      first payload                                     second     suffixes, of the whole
//! ```
//!
//! The path is percent-decoded, split on `&`, then each part on its first `=`, and each value is percent-decoded once more.

use std::borrow::Cow;
use std::io::Read as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::ZlibDecoder;
use headwater_model::sql::{Syntax, parameters_in};
use percent_encoding::percent_decode_str;
use thiserror::Error;

/// The most payloads of one request.
const PAYLOADS_MAX: usize = 32;
/// The longest SQL, after inflating.
pub const SQL_BYTES_MAX: usize = 1 << 20;
/// The longest path of a file.
const PATH_BYTES_MAX: usize = 1_000;
/// How hard the servlet compresses for `BLOBzip` without a digit.
const LEVEL: u32 = 5;
/// What the servlet takes nowhere in a statement, not in a literal either.
const WRITES: [&str; 5] = ["drop ", "delete ", "insert ", "alter ", "create "];

/// What is wrong with a request as a whole: a global error.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RequestError {
    /// No payload begins.
    #[error("there is no type= in the request")]
    Nothing,
    /// A part without its `=`.
    #[error("{0:?} is no NAME=VALUE")]
    Part(String),
    /// A part before the first `type=`, or one that nobody knows.
    #[error("{0}= is not expected there")]
    Unexpected(String),
    /// A type other than the built-in ones.
    #[error("type {0:?} is unknown, expected frontier_request:1, frontier_file:1 or cert_request:1")]
    Kind(String),
    /// An encoding in which what is asked for does not come.
    #[error("encoding {encoding:?} is none of {of}, expected {expected}")]
    Encoding {
        /// The encoding, as it was given.
        encoding: String,
        /// The name of what is asked for.
        of: String,
        /// In which it comes.
        expected: &'static str,
    },
    /// A ttl that nobody knows.
    #[error("ttl {0:?} is unknown, expected short or forever")]
    Ttl(String),
    /// Too many payloads.
    #[error("more than {PAYLOADS_MAX} payloads")]
    TooMany,
    /// A value that is no UTF-8 after its percent-decoding.
    #[error("{0}= is not UTF-8")]
    Text(String),
}

/// What is wrong with a payload's `p1`: an error of that payload.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum P1Error {
    /// There is none.
    #[error("there is no p1")]
    Missing,
    /// It is not base64 of the protocol's alphabet.
    #[error("p1 is not base64 with . - _ in the place of + / =")]
    Base64,
    /// It does not inflate.
    #[error("p1 can't be inflated")]
    Zlib,
    /// It inflates to more than is taken.
    #[error("the statement is longer than {SQL_BYTES_MAX} bytes")]
    TooLong,
    /// It is no text.
    #[error("the statement is not UTF-8")]
    Text,
    /// A word that the protocol refuses anywhere in a statement.
    #[error(
        "{0:?} with a blank behind it is taken nowhere in a statement, in its texts, comments and values neither: \
         write a text in two parts, as 'up' || 'date '"
    )]
    Word(&'static str),
    /// The path of a file that would lie outside of the folder.
    #[error("{0:?} is no path of a file")]
    Path(String),
}

/// What is to be done for a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A statement is run.
    Query,
    /// A file is read.
    File,
    /// The certificate is given.
    Certificate,
    /// `meta=`: nobody asks for it any more.
    Meta,
}

/// How a payload comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// As it is.
    Blob,
    /// Compressed by zlib at this level; by the name that the request had.
    Zip {
        /// 1 to 9; 0 packs and does not compress.
        level: u32,
        /// Whether the request named the level.
        is_named: bool,
    },
    /// PEM: of certificates alone.
    Pem,
}

impl Encoding {
    fn parse(text: &str) -> Option<Encoding> {
        match text {
            "BLOB" => Some(Encoding::Blob),
            "BLOBzip" => Some(Encoding::Zip { level: LEVEL, is_named: false }),
            "pem" => Some(Encoding::Pem),
            _ => match text.strip_prefix("BLOBzip")?.as_bytes() {
                [digit @ b'1'..=b'9'] => Some(Encoding::Zip { level: u32::from(digit - b'0'), is_named: true }),
                _ => None,
            },
        }
    }

    /// As the request had it, and as the answer echoes it.
    pub fn name(self) -> Cow<'static, str> {
        match self {
            Encoding::Blob => "BLOB".into(),
            Encoding::Zip { is_named: false, .. } => "BLOBzip".into(),
            Encoding::Zip { level, .. } => format!("BLOBzip{level}").into(),
            Encoding::Pem => "pem".into(),
        }
    }
}

/// For how long the answer may be kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ttl {
    /// Not named: long.
    #[default]
    Long,
    /// Not at all without asking again.
    Short,
    /// For ever.
    Forever,
}

impl Ttl {
    /// `max-age` of an answer without errors, in seconds.
    pub fn max_age_s(self) -> u32 {
        match self {
            Ttl::Long => 7 * 24 * 3600,
            Ttl::Short => 0,
            Ttl::Forever => 31_536_000,
        }
    }
}

/// A payload that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// What is to be done.
    pub kind: Kind,
    /// Its name, as the request has it.
    pub name: String,
    /// How it is to come.
    pub encoding: Encoding,
    p1: Option<String>,
}

/// A statement, and the values for its `?`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The SQL; its parameters are `?`.
    pub sql: String,
    /// A text for each of them.
    pub values: Vec<String>,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The path before the payloads, without a slash at its end: `/X/Frontier`.
    pub servlet: String,
    /// At least one.
    pub payloads: Vec<Asked>,
    /// For how long the answer may be kept.
    pub ttl: Ttl,
    /// Whether the answer is to be signed.
    pub is_signed: bool,
    /// What is signed with each payload: the URL from the last slash before the first `&` on, percent-decoded once.
    pub signed_part: String,
}

impl Request {
    /// Parses a request's target: a path, or the absolute URL that a proxy is asked for. Older clients write `?` for the last slash.
    ///
    /// ```
    /// use headwater_gateway::frontier::{Kind, Request};
    ///
    /// let target = "/X/Frontier/type=frontier_request:1:DEFAULT&encoding=BLOBzip5&p1=eNorTs1JTS5RyEzRUchLzE1VSCvKz1UoAQBa6wfD";
    /// let request = Request::parse(target)?;
    /// assert_eq!((request.servlet.as_str(), request.payloads[0].kind), ("/X/Frontier", Kind::Query));
    /// assert_eq!(request.payloads[0].statement()?.sql, "select id, name from t");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn parse(target: &str) -> Result<Request, RequestError> {
        let path = match target.split_once("://") {
            Some((_, rest)) => rest.find('/').map_or("", |at| &rest[at..]),
            None => target,
        };
        let begins = |word: &str| path.match_indices(word).find(|(at, _)| path[..*at].ends_with(['/', '?']));
        let ((at, _), _) = ["type=", "meta="]
            .iter()
            .filter_map(|word| begins(word).map(|found| (found, word)))
            .min_by_key(|((at, _), _)| *at)
            .ok_or(RequestError::Nothing)?;
        let text = decoded(&path[at..]).ok_or_else(|| RequestError::Text("the path".to_owned()))?;
        let first = &path[..path.find('&').unwrap_or(path.len())];
        let signed_part = decoded(&path[first.rfind('/').unwrap_or(0)..]);
        let mut request = Request {
            servlet: path[..at - 1].to_owned(),
            payloads: Vec::new(),
            ttl: Ttl::default(),
            is_signed: false,
            signed_part: signed_part.unwrap_or_default().into_owned(),
        };
        for part in text.split('&') {
            let (name, value) = part.split_once('=').ok_or_else(|| RequestError::Part(shown(part)))?;
            let value = decoded(value).ok_or_else(|| RequestError::Text(shown(name)))?;
            request.take(name, &value)?;
        }
        Ok(request)
    }

    fn take(&mut self, name: &str, value: &str) -> Result<(), RequestError> {
        let unexpected = || RequestError::Unexpected(shown(name));
        match name {
            "type" => self.begin(kind_of(value)?, value.split(':').next().unwrap_or_default()),
            "meta" => self.begin(Kind::Meta, value.split(':').next().unwrap_or_default()),
            "encoding" => {
                let last = self.payloads.last_mut().ok_or_else(unexpected)?;
                last.encoding = last.encoding_of(value)?;
                Ok(())
            }
            "p1" => {
                self.payloads.last_mut().ok_or_else(unexpected)?.p1 = Some(value.to_owned());
                Ok(())
            }
            "ttl" => {
                self.ttl = match value {
                    "short" => Ttl::Short,
                    "forever" => Ttl::Forever,
                    _ => return Err(RequestError::Ttl(shown(value))),
                };
                Ok(())
            }
            "sec" if value == "sig" => {
                self.is_signed = true;
                Ok(())
            }
            // It is there for caches, which take the URL for another.
            "freshkey" => Ok(()),
            _ => Err(unexpected()),
        }
    }

    fn begin(&mut self, kind: Kind, name: &str) -> Result<(), RequestError> {
        if self.payloads.len() == PAYLOADS_MAX {
            return Err(RequestError::TooMany);
        }
        let encoding = if kind == Kind::Certificate { Encoding::Pem } else { Encoding::Blob };
        self.payloads.push(Asked { kind, name: name.to_owned(), encoding, p1: None });
        Ok(())
    }
}

/// By `name:version[:method]`.
fn kind_of(value: &str) -> Result<Kind, RequestError> {
    let mut parts = value.split(':');
    let known = match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(name), Some("1"), None | Some("DEFAULT"), None) => match name {
            "frontier_request" => Some(Kind::Query),
            "frontier_file" => Some(Kind::File),
            "cert_request" => Some(Kind::Certificate),
            _ => None,
        },
        _ => None,
    };
    known.ok_or_else(|| RequestError::Kind(shown(value)))
}

fn decoded(text: &str) -> Option<Cow<'_, str>> {
    percent_decode_str(text).decode_utf8().ok()
}

/// The beginning of what a stranger sent.
fn shown(text: &str) -> String {
    text.chars().take(100).collect()
}

impl Asked {
    /// An encoding in which it comes: a certificate as PEM alone, all else never so.
    fn encoding_of(&self, value: &str) -> Result<Encoding, RequestError> {
        let is_certificate = self.kind == Kind::Certificate;
        let found = Encoding::parse(value).filter(|encoding| (*encoding == Encoding::Pem) == is_certificate);
        let expected = if is_certificate { "pem" } else { "BLOB, BLOBzip, or BLOBzip and a digit from 1 to 9" };
        found.ok_or_else(|| RequestError::Encoding { encoding: shown(value), of: shown(&self.name), expected })
    }

    /// The statement of a query, and the values for its parameters.
    pub fn statement(&self) -> Result<Statement, P1Error> {
        self.statement_in(Syntax::Any)
    }

    /// The same in the SQL of one database: `#` begins a comment in MariaDB's, in which a `?` is none.
    pub fn statement_in(&self, syntax: Syntax) -> Result<Statement, P1Error> {
        let p1 = self.p1.as_deref().ok_or(P1Error::Missing)?;
        let base64: Vec<u8> = p1
            .bytes()
            .map(|byte| match byte {
                b'.' => b'+',
                b'-' => b'/',
                b'_' => b'=',
                // They have no place in it.
                b'+' | b'/' | b'=' => b' ',
                other => other,
            })
            .collect();
        let zipped = STANDARD.decode(base64).map_err(|_| P1Error::Base64)?;
        let mut bytes = Vec::new();
        let mut inflating = ZlibDecoder::new(&*zipped).take(SQL_BYTES_MAX as u64 + 1);
        inflating.read_to_end(&mut bytes).map_err(|_| P1Error::Zlib)?;
        if bytes.len() > SQL_BYTES_MAX {
            return Err(P1Error::TooLong);
        }
        let text = String::from_utf8(bytes).map_err(|_| P1Error::Text)?;
        let lower = text.to_ascii_lowercase();
        match WRITES.into_iter().find(|word| lower.contains(word)) {
            Some(word) => Err(P1Error::Word(word.trim_end())),
            None => Ok(bound(text, syntax)),
        }
    }

    /// The path of a file, relative to the folder of files.
    pub fn path(&self) -> Result<String, P1Error> {
        let p1 = self.p1.as_deref().ok_or(P1Error::Missing)?;
        let is_part = |part: &str| !matches!(part, "" | "." | "..") && !part.contains(['\\', '\0']);
        let is_path = p1.len() <= PATH_BYTES_MAX && p1.split('/').all(is_part);
        if is_path { Ok(p1.to_owned()) } else { Err(P1Error::Path(shown(p1))) }
    }
}

/// Takes the values off the end of a statement that has `?`: `... where id = ? and name = ?:5:alpha`.
fn bound(text: String, syntax: Syntax) -> Statement {
    let marks = parameters_in(&text, syntax).iter().filter(|parameter| parameter.name == "?").count();
    if marks == 0 || !text.contains(':') {
        return Statement { sql: text, values: Vec::new() };
    }
    let mut parts: Vec<&str> = text.rsplitn(marks + 1, ':').collect();
    if parts.len() <= marks {
        return Statement { sql: text, values: Vec::new() };
    }
    let sql = parts.pop().unwrap_or_default().to_owned();
    let values = parts.into_iter().rev().map(ToOwned::to_owned).collect();
    Statement { sql, values }
}

#[cfg(test)]
mod tests;
