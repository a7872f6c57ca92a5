//! The frame around a payload.

use std::io::Read as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::ZlibDecoder;
use md5::{Digest as _, Md5};
use roxmltree::{Document, Node, ParsingOptions};
use thiserror::Error;

use super::payload::{PayloadError, Records, file};
use super::request::{FILE, ROWS, Request};
use super::signature::Certificate;

/// Why an answer is not taken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AnswerError {
    /// It is no frame: cut off, say.
    #[error("the answer is no frame: {0}")]
    Frame(String),
    /// The server says that the request can't be served.
    #[error("the server says of the request: {0}")]
    Global(String),
    /// The server says that there is no payload, and why.
    #[error("the server says of the payload: {0}")]
    Payload(String),
    /// What came is not what the server says that it sent.
    #[error("{what} is {found}, expected {expected}")]
    Differs {
        /// What of it.
        what: &'static str,
        /// As it came.
        found: String,
        /// As it should be.
        expected: String,
    },
    /// It is not signed by who should have signed it, or something else was signed.
    #[error("the answer is not to be trusted: {0}")]
    Signature(&'static str),
    /// The payload can't be read.
    #[error(transparent)]
    Records(#[from] PayloadError),
}

/// An answer that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The payload as it was before its encoding.
    pub payload: Vec<u8>,
    /// How many rows it has; a file has one.
    pub records: u64,
    /// How often the server had told before that it is still at work.
    pub keepalives: usize,
}

/// What an answer must be, beside what it says of itself.
struct Expected<'a> {
    /// The type and the encoding of its payload.
    name: &'a str,
    encoding: &'a str,
    /// Whose key has signed it, with which part of the URL; none: it has an MD5 instead.
    signed: Option<(&'a Certificate, &'a str)>,
}

impl Answer {
    /// Reads an answer to a request for rows whole, which must have the encoding that was asked for.
    pub fn parse(xml: &[u8], encoding: &str) -> Result<Answer, AnswerError> {
        Answer::read(xml, &Expected { name: ROWS, encoding, signed: None })
    }

    /// Reads an answer whole, which must be one to this request, and signed where that was asked for.
    pub fn to(request: &Request, xml: &[u8]) -> Result<Answer, AnswerError> {
        let (encoding, part) = (request.encoding(), request.signed_part());
        let signed = request.certificate.as_ref().map(|certificate| (certificate, part.as_str()));
        Answer::read(xml, &Expected { name: request.name(), encoding: &encoding, signed })
    }

    /// A file's content.
    pub fn file(&self) -> Result<Vec<u8>, PayloadError> {
        file(&self.payload)
    }

    fn read(xml: &[u8], expected: &Expected<'_>) -> Result<Answer, AnswerError> {
        let frame = |what: &str| AnswerError::Frame(what.to_owned());
        if !xml.is_ascii() {
            return Err(frame("it has bytes beyond ASCII, which the deployed clients can't read"));
        }
        let text = std::str::from_utf8(xml).map_err(|error| frame(&error.to_string()))?;
        let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
        let document = Document::parse_with_options(text, options).map_err(|error| frame(&error.to_string()))?;
        let root = document.root_element();
        if !root.has_tag_name("frontier") || root.attribute("xmlversion") != Some("1.0") {
            return Err(frame("its root is no frontier of xmlversion 1.0"));
        }
        if let Some(error) = child(root, "global_error") {
            return Err(AnswerError::Global(error.attribute("msg").unwrap_or_default().to_owned()));
        }
        let transaction = child(root, "transaction").ok_or_else(|| frame("it has no transaction"))?;
        same("the number of payloads", transaction.attribute("payloads"), "1")?;
        let payload = child(transaction, "payload").ok_or_else(|| frame("it has no payload"))?;
        same("the type", payload.attribute("type"), expected.name)?;
        same("the version", payload.attribute("version"), "1")?;
        same("the encoding", payload.attribute("encoding"), expected.encoding)?;
        let quality = child(payload, "quality").ok_or_else(|| frame("its payload has no quality"))?;
        if quality.attribute("error") != Some("0") {
            return Err(AnswerError::Payload(quality.attribute("message").unwrap_or_default().to_owned()));
        }
        let data = child(payload, "data").ok_or_else(|| frame("its payload has no data"))?;
        Answer::taken(data, quality, expected)
    }

    /// Decodes, and checks what the server says of it.
    fn taken(data: Node<'_, '_>, quality: Node<'_, '_>, expected: &Expected<'_>) -> Result<Answer, AnswerError> {
        let frame = |what: &str| AnswerError::Frame(what.to_owned());
        let keepalives = data.children().filter(|node| node.has_tag_name("keepalive")).count();
        let text: String = data.children().filter_map(|node| node.text().filter(|_| node.is_text())).collect();
        let base64: String = text.split_ascii_whitespace().collect();
        let carried = STANDARD.decode(base64).map_err(|error| frame(&error.to_string()))?;
        expected.vouched(quality, &carried)?;
        let said = |name| quality.attribute(name).and_then(|text| text.parse::<u64>().ok());
        let size = said("full_size").ok_or_else(|| frame("its quality has no full_size"))?;
        let payload = if expected.encoding == "BLOB" {
            carried
        } else {
            // No more is taken than was said, and one byte that tells that there is more.
            let mut payload = Vec::new();
            let decoder = ZlibDecoder::new(&*carried).take(size.saturating_add(1));
            { decoder }.read_to_end(&mut payload).map_err(|error| frame(&error.to_string()))?;
            payload
        };
        same("full_size", Some(&size.to_string()), &payload.len().to_string())?;
        let records = if expected.name == FILE { file(&payload).map(|_| 1)? } else { count(&payload)? };
        same("records", quality.attribute("records"), &records.to_string())?;
        Ok(Answer { payload, records, keepalives })
    }
}

impl Expected<'_> {
    /// Whether these are the bytes that were sent: by their MD5, or by the signature.
    fn vouched(&self, quality: Node<'_, '_>, carried: &[u8]) -> Result<(), AnswerError> {
        let Some((certificate, part)) = self.signed else {
            return same("the MD5", quality.attribute("md5"), &hex::encode(Md5::digest(carried)));
        };
        let signature = quality.attribute("sig").ok_or(AnswerError::Signature("it is not signed"))?;
        if certificate.has_signed(part, carried, &STANDARD.decode(signature).unwrap_or_default()) {
            return Ok(());
        }
        Err(AnswerError::Signature("its signature is another's, or of something else"))
    }
}

fn count(payload: &[u8]) -> Result<u64, PayloadError> {
    let (mut records, mut count) = (Records::of(payload)?, 0);
    while records.next_record()?.is_some() {
        count += 1;
    }
    Ok(count)
}

fn child<'a, 'd>(of: Node<'a, 'd>, name: &str) -> Option<Node<'a, 'd>> {
    of.children().find(|node| node.has_tag_name(name))
}

/// What the server says must be what is.
fn same(what: &'static str, said: Option<&str>, actual: &str) -> Result<(), AnswerError> {
    match said {
        Some(said) if said == actual => Ok(()),
        said => {
            let (found, expected) = (said.unwrap_or("missing").to_owned(), actual.to_owned());
            Err(AnswerError::Differs { what, found, expected })
        }
    }
}
