//! A body as it was before its encoding: never kept, but counted and summed while it comes.

use std::io::Write;

use flate2::Crc;
use flate2::write::MultiGzDecoder;
use hyper::HeaderMap;
use hyper::header::CONTENT_ENCODING;

/// What has come so far.
#[derive(Debug)]
pub(super) enum Decoder {
    Plain(Sum),
    Gzip(Box<MultiGzDecoder<Sum>>),
}

/// Bytes, and their CRC-32.
#[derive(Debug, Default)]
pub(super) struct Sum {
    pub(super) bytes: u64,
    crc: Crc,
}

impl Sum {
    pub(super) fn crc(&self) -> u32 {
        self.crc.sum()
    }
}

impl Write for Sum {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.bytes += bytes.len() as u64;
        self.crc.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Decoder {
    /// The one for an answer with this head; an error is the name of an encoding that was not asked for.
    pub(super) fn of(head: &HeaderMap) -> Result<Decoder, String> {
        let encoding = head.get(CONTENT_ENCODING).map(|value| String::from_utf8_lossy(value.as_bytes()).to_lowercase());
        match encoding.as_deref() {
            None | Some("identity") => Ok(Decoder::Plain(Sum::default())),
            Some("gzip" | "x-gzip") => Ok(Decoder::Gzip(Box::new(MultiGzDecoder::new(Sum::default())))),
            Some(other) => Err(other.to_owned()),
        }
    }

    /// The next bytes; an error: they are not what they are said to be.
    pub(super) fn push(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Decoder::Plain(sum) => sum.write_all(bytes),
            Decoder::Gzip(decoder) => decoder.write_all(bytes),
        }
    }

    /// There are no more; an error: there should be.
    pub(super) fn end(self) -> std::io::Result<Sum> {
        match self {
            Decoder::Plain(sum) => Ok(sum),
            Decoder::Gzip(decoder) => decoder.finish(),
        }
    }
}
